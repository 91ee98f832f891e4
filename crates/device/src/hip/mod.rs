//! HIP: devices of AMD's runtime, kernels through hiprtc. Written after AMD's documentation and sharing all but the calls
//! themselves with CUDA; it has not run on AMD hardware.

mod driver;
pub(crate) mod hiprtc;

use crate::device::{Backend, DeviceKind};
use crate::gpu::{Compiler, GpuDevice};
use crate::options::Options;
use crate::{Device, DeviceError, DeviceInfo, Resources};
use cubecl_hip_sys as sys;
use driver::{Hip, call, check};
use std::ffi::CStr;
use std::sync::Arc;
use tilewright_ir::{Features, Limits, Target};

fn missing(reason: impl Into<String>) -> DeviceError {
    DeviceError::Missing {
        what: "HIP".into(),
        reason: reason.into(),
        remedy: "install ROCm 6 or newer (it brings libamdhip64.so and libhiprtc.so); set ROCM_PATH if it is not in /opt/rocm"
            .into(),
    }
}

/// That the libraries can be loaded; nothing else of the bindings may be called before.
pub(crate) fn available() -> Result<(), DeviceError> {
    if sys::is_available() { Ok(()) } else { Err(missing("libamdhip64.so or libhiprtc.so was not found")) }
}

fn count() -> Result<i32, DeviceError> {
    available()?;
    let mut count = 0;
    // SAFETY: the out pointer is valid.
    unsafe { call!(hipGetDeviceCount(&mut count)) }.map_err(|f| missing(format!("{} says {}", f.call, f.reason)))?;
    if count == 0 { Err(missing("the runtime lists no device")) } else { Ok(count) }
}

/// All devices.
///
/// # Errors
/// What is missing: runtime or device.
pub(crate) fn list() -> Result<Vec<DeviceInfo>, DeviceError> {
    (0..count()?).map(describe).collect()
}

/// Opens the n-th device.
pub(crate) fn open(n: usize, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let count = count()?;
    let ordinal = i32::try_from(n).ok().filter(|&n| n < count).ok_or_else(|| DeviceError::NoSuchDevice {
        spec: format!("hip:{n}"),
        available: format!("HIP has devices 0 to {}", count - 1),
    })?;
    let info = describe(ordinal)?;
    let driver = Hip::new(ordinal).map_err(|f| DeviceError::Api { device: info.id.clone(), call: f.call, reason: f.reason })?;
    let compiler =
        Compiler { options: hiprtc::options(&info.target.arch), compile: hiprtc::compile, read_log: |_| Resources::default() };
    Ok(Arc::new(GpuDevice::new(info, options.clone(), compiler, driver)))
}

fn describe(ordinal: i32) -> Result<DeviceInfo, DeviceError> {
    let id = format!("hip:{ordinal}");
    let failed = |f: crate::gpu::Failure| DeviceError::Api { device: id.clone(), call: f.call, reason: f.reason };
    // SAFETY: all-zero bytes are a valid value of this structure of numbers.
    let mut properties: sys::hipDeviceProp_tR0600 = unsafe { std::mem::zeroed() };
    // SAFETY: the out pointer is valid.
    unsafe { call!(hipGetDevicePropertiesR0600(&mut properties, ordinal)) }.map_err(failed)?;
    let text = |chars: &[std::ffi::c_char]| {
        let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).collect();
        CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |t| t.to_string_lossy().into_owned())
    };
    let mut runtime = 0;
    // SAFETY: the out pointer is valid.
    unsafe { call!(hipRuntimeGetVersion(&mut runtime)) }.map_err(failed)?;
    let (major, minor) = hiprtc::version().unwrap_or_default();
    Ok(DeviceInfo {
        id,
        name: text(&properties.name),
        backend: Backend::Hip,
        kind: DeviceKind::Gpu,
        target: target(&properties, &text(&properties.gcnArchName))?,
        fingerprint: format!("HIP runtime {runtime} hiprtc {major}.{minor}"),
        memory_bytes: properties.totalGlobalMem as u64,
        max_buffer_bytes: properties.totalGlobalMem as u64,
    })
}

/// What the generator plans for. Limits come from the runtime. The rest comes from the built-in description of the architecture,
/// for an unknown one from the nearest known.
fn target(p: &sys::hipDeviceProp_tR0600, full_arch: &str) -> Result<Target, DeviceError> {
    // The name carries features: gfx942:sramecc+:xnack-.
    let arch = full_arch.split(':').next().unwrap_or_default();
    let base = Target::by_gfx(arch).ok_or_else(|| missing("no description"))?;
    let u32_of = |v: i32, or: u32| if v > 0 { v as u32 } else { or };
    let small = |v: usize, or: u32| u32::try_from(v).ok().filter(|&v| v > 0).unwrap_or(or);
    let mut rates = base.rates;
    if p.clockRate > 0 {
        rates.clock_ghz = f64::from(p.clockRate) * 1e-6;
    }
    if p.memoryClockRate > 0 && p.memoryBusWidth > 0 {
        // Two transfers per clock.
        rates.dram_gbs = 2.0 * f64::from(p.memoryClockRate) * 1e3 * f64::from(p.memoryBusWidth) / 8.0 * 1e-9;
    }
    let limits = base.limits;
    Ok(Target {
        arch: arch.into(),
        wave: u32_of(p.warpSize, base.wave),
        units: u32_of(p.multiProcessorCount, base.units),
        l2_bytes: if p.l2CacheSize > 0 { p.l2CacheSize as u64 } else { base.l2_bytes },
        features: Features { async_copy: false, named_barrier: false, ..base.features },
        limits: Limits {
            max_threads: u32_of(p.maxThreadsPerBlock, limits.max_threads),
            shared_per_group: small(p.sharedMemPerBlock, limits.shared_per_group),
            shared_per_unit: small(p.sharedMemPerMultiprocessor, limits.shared_per_unit),
            threads_per_unit: u32_of(p.maxThreadsPerMultiProcessor, limits.threads_per_unit),
            // The runtime bounds groups times threads of a dimension to 32 bits.
            max_grid: p.maxGridSize.map(|v| u64::from(u32_of(v, 65535).min(u32::MAX / 1024))),
            ..limits
        },
        rates,
        ..base
    })
}
