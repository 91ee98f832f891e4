//! Which OpenCL devices there are, and what each tells of itself.

use crate::device::{Backend, DeviceKind};
use crate::identity::Place;
use crate::{DeviceError, DeviceInfo};
use opencl3::device::{
    CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, Device as ClDevice,
};
use opencl3::error_codes::ClError;
use opencl3::platform::{Platform, get_platforms};
use opencl3::types::cl_device_id;
use std::sync::OnceLock;
use tilewright_ir::{Dialect, Features, Limits, Rates, Target};

/// Whose OpenCL it is, where that makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vendor {
    Nvidia,
    Pocl,
    Other,
}

/// A device of some platform.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// Counted over all platforms.
    pub number: usize,
    /// Name of the platform.
    pub platform: String,
    /// Version of the platform (`OpenCL 3.0 CUDA 13.0.97`), empty where it does not tell.
    pub version: String,
    pub device: ClDevice,
}

impl Found {
    /// The device's own name, empty where it does not tell.
    pub(crate) fn name(&self) -> String {
        self.device.name().unwrap_or_default().trim().to_string()
    }
    pub(crate) fn id(&self) -> cl_device_id {
        self.device.id()
    }
    pub(crate) fn vendor(&self) -> Vendor {
        if self.platform.contains("NVIDIA") {
            Vendor::Nvidia
        } else if self.platform.contains("Portable Computing Language") || self.platform.contains("PoCL") {
            Vendor::Pocl
        } else {
            Vendor::Other
        }
    }
}

const NO_DEVICE: i32 = -1;
const NO_LIBRARY: i32 = -2000;
const NO_PLATFORM: i32 = -1001;

pub(crate) fn missing(reason: impl Into<String>) -> DeviceError {
    DeviceError::Missing {
        what: "OpenCL".into(),
        reason: reason.into(),
        remedy: "install a loader and a driver: for the CPU `apt install ocl-icd-libopencl1 pocl-opencl-icd`; for a GPU \
                 the loader and the vendor's driver, which puts a file into /etc/OpenCL/vendors"
            .into(),
    }
}

/// Devices, and platforms that failed with why.
type Discovery = Result<(Vec<Found>, Vec<String>), DeviceError>;

/// All devices of all platforms. A platform that fails is passed over and named in the second part.
pub(crate) fn devices() -> Discovery {
    // Asked once per process: drivers set themselves up at the first question, and some (PoCL 3.1) crash when two
    // threads ask it at a time.
    static FOUND: OnceLock<Discovery> = OnceLock::new();
    FOUND.get_or_init(discover).clone()
}

fn discover() -> Discovery {
    crate::cuda::load_opencl();
    let platforms = match get_platforms() {
        Ok(platforms) => platforms,
        Err(ClError(NO_LIBRARY)) => return Err(missing("libOpenCL.so.1 was not found")),
        Err(ClError(NO_PLATFORM)) => return Err(missing("the loader finds no driver")),
        Err(e) => return Err(missing(format!("clGetPlatformIDs says {e}"))),
    };
    let (mut found, mut broken) = (Vec::new(), Vec::new());
    for platform in platforms {
        let name = platform.name().unwrap_or_else(|_| "a platform without name".into());
        let version = platform.version().unwrap_or_default().trim().to_string();
        match devices_of(&platform) {
            Ok(ids) => {
                for id in ids {
                    let (platform, version) = (name.clone(), version.clone());
                    found.push(Found { number: found.len(), platform, version, device: ClDevice::new(id) });
                }
            }
            Err(e) => broken.push(format!("{name}: {e}")),
        }
    }
    if found.is_empty() {
        return Err(missing(if broken.is_empty() { "no platform has a device".into() } else { broken.join("; ") }));
    }
    Ok((found, broken))
}

fn devices_of(platform: &Platform) -> Result<Vec<cl_device_id>, ClError> {
    match platform.get_devices(CL_DEVICE_TYPE_ALL) {
        Err(ClError(NO_DEVICE)) => Ok(Vec::new()),
        other => other,
    }
}

/// Finds a device by number or by a part of its own or its platform's name (any case).
pub(crate) fn find(which: &str) -> Result<Found, DeviceError> {
    let wanted = which.to_lowercase();
    let number = which.parse::<usize>().ok();
    pick(&format!("opencl:{which}"), |found| match number {
        Some(n) => found.number == n,
        None => found.name().to_lowercase().contains(&wanted) || found.platform.to_lowercase().contains(&wanted),
    })
}

/// Finds the device that has this [`place`] in another process: processes need not list platforms in one order.
pub(crate) fn find_place(id: &str, place: &Place) -> Result<Found, DeviceError> {
    pick(&format!("{id} ({} of {})", place.name, place.platform), |found| place_of(found).is_ok_and(|p| p == *place))
}

/// The place of a device.
pub(crate) fn place_of(device: &Found) -> Result<Place, DeviceError> {
    let (found, _) = devices()?;
    let (platform, name) = (device.platform.clone(), device.name());
    let before = found.iter().filter(|f| f.number < device.number && f.platform == platform && f.name() == name);
    Ok(Place { nth: before.count(), platform, name })
}

fn pick(spec: &str, wanted: impl Fn(&Found) -> bool) -> Result<Found, DeviceError> {
    let (found, broken) = devices()?;
    let all = found.iter().map(|f| format!("opencl:{} is {} ({})", f.number, f.name(), f.platform));
    let failed = broken.iter().map(|b| format!("a platform failed: {b}"));
    let available = all.chain(failed).collect::<Vec<_>>().join(", ");
    found.into_iter().find(wanted).ok_or_else(|| DeviceError::NoSuchDevice { spec: spec.into(), available })
}

/// Asks a device for everything.
pub(crate) fn describe(found: &Found) -> Result<DeviceInfo, DeviceError> {
    let id = format!("opencl:{}", found.number);
    let device = &found.device;
    let failed = |what: &'static str| {
        let device = format!("{id} (platform {})", found.platform);
        move |e: ClError| DeviceError::Api { device, call: "clGetDeviceInfo", reason: format!("{what}: {e}") }
    };
    let name = device.name().map_err(failed("CL_DEVICE_NAME"))?.trim().to_string();
    let ty = device.dev_type().map_err(failed("CL_DEVICE_TYPE"))?;
    let kind = match ty {
        t if t & CL_DEVICE_TYPE_GPU != 0 => DeviceKind::Gpu,
        t if t & CL_DEVICE_TYPE_CPU != 0 => DeviceKind::Cpu,
        t if t & CL_DEVICE_TYPE_ACCELERATOR != 0 => DeviceKind::Accelerator,
        _ => DeviceKind::Accelerator,
    };
    let extensions = device.extensions().map_err(failed("CL_DEVICE_EXTENSIONS"))?;
    let has = |extension: &str| extensions.split_whitespace().any(|e| e == extension);
    let max_threads = device.max_work_group_size().map_err(failed("CL_DEVICE_MAX_WORK_GROUP_SIZE"))? as u32;
    let local = device.local_mem_size().map_err(failed("CL_DEVICE_LOCAL_MEM_SIZE"))?.min(u64::from(u32::MAX)) as u32;
    let wave = match kind {
        DeviceKind::Cpu => 1,
        _ if has("cl_nv_device_attribute_query") => device.wrap_size_nv().unwrap_or(32),
        _ if has("cl_amd_device_attribute_query") => device.wavefront_width_amd().unwrap_or(64),
        _ => 32,
    };
    let base = nearest(found, kind, wave);
    let clock = device.max_clock_frequency().map_err(failed("CL_DEVICE_MAX_CLOCK_FREQUENCY"))?;
    let f64 = has("cl_khr_fp64") || device.double_fp_config().is_ok_and(|c| c != 0);
    let nvidia = found.vendor() == Vendor::Nvidia;
    let cores = matches!(kind, DeviceKind::Cpu);
    let target = Target {
        arch: "generic".into(),
        dialect: Dialect::OpenCl,
        wave,
        units: device.max_compute_units().map_err(failed("CL_DEVICE_MAX_COMPUTE_UNITS"))?,
        l2_bytes: device.global_mem_cache_size().map_err(failed("CL_DEVICE_GLOBAL_MEM_CACHE_SIZE"))?,
        features: Features {
            f64,
            atomic64: has("cl_khr_int64_base_atomics"),
            shuffle: wave > 1
                && has("cl_khr_subgroups")
                && has("cl_khr_subgroup_shuffle")
                && (nvidia || has("cl_intel_required_subgroup_size")),
            dot: has("cl_khr_integer_dot_product"),
            async_copy: false,
            named_barrier: false,
            // OpenCL C leaves barriers that not all work-items reach by one and the same call undefined.
            roles: false,
            ..Features::default()
        },
        limits: Limits {
            max_threads,
            shared_per_group: local,
            // On a processor, local memory is plain memory and one work-group at a time runs per core.
            shared_per_unit: if cores { local } else { base.limits.shared_per_unit.max(local) },
            registers_per_thread: base.limits.registers_per_thread,
            registers_per_unit: base.limits.registers_per_unit,
            threads_per_unit: base.limits.threads_per_unit.max(max_threads),
            groups_per_unit: base.limits.groups_per_unit,
            max_grid: if nvidia { [(1 << 31) - 1, 65535, 65535] } else { [u64::from(u32::MAX); 3] },
        },
        rates: Rates { clock_ghz: if clock > 0 { f64::from(clock) * 1e-3 } else { base.rates.clock_ghz }, ..base.rates },
    };
    let driver = device.driver_version().map_err(failed("CL_DRIVER_VERSION"))?;
    let version = device.version().map_err(failed("CL_DEVICE_VERSION"))?;
    Ok(DeviceInfo {
        id: id.clone(),
        fingerprint: format!("{} / {} / driver {}", found.platform, version.trim(), driver.trim()),
        name,
        backend: Backend::OpenCl,
        kind,
        target,
        memory_bytes: device.global_mem_size().map_err(failed("CL_DEVICE_GLOBAL_MEM_SIZE"))?,
        max_buffer_bytes: device.max_mem_alloc_size().map_err(failed("CL_DEVICE_MAX_MEM_ALLOC_SIZE"))?,
    })
}

/// What OpenCL does not tell, from the built-in description nearest to the device.
fn nearest(found: &Found, kind: DeviceKind, wave: u32) -> Target {
    let known = match (kind, found.vendor()) {
        (DeviceKind::Cpu, _) => None,
        (_, Vendor::Nvidia) => match found.device.compute_capability_major_nv() {
            Ok(major) => Target::by_compute_capability(major, 0),
            Err(_) => Target::by_compute_capability(0, 0),
        },
        _ => {
            // AMD's devices are named by architecture, with features after a colon.
            let name = found.device.name().unwrap_or_default();
            let arch = name.split(':').next().unwrap_or_default();
            Target::by_arch(arch).or_else(|| Target::by_arch(if wave == 64 { "gfx900" } else { "sm_75" }))
        }
    };
    known.unwrap_or_else(Target::processor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_again_by_its_names() {
        let Ok((all, _)) = devices() else { return };
        for found in &all {
            let place = place_of(found).unwrap();
            assert_eq!(find_place("opencl", &place).unwrap().number, found.number);
            let other = Place { nth: all.len(), ..place };
            let e = find_place("opencl:7", &other).unwrap_err().to_string();
            assert!(e.contains("opencl:7") && e.contains(&other.name) && e.contains("opencl:0 is"), "{e}");
        }
    }
}
