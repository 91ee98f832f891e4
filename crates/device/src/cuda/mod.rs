//! CUDA: devices of NVIDIA's driver, kernels through NVRTC.

mod driver;
mod library;
pub(crate) mod nvrtc;
mod ptxas;
mod status;
pub mod tensor_map;

pub use library::{folders_of_loaded, preload};
pub(crate) use library::{load_opencl, tool_folders};
pub(crate) use ptxas::{read_log, slow_reason};

use crate::device::{Backend, DeviceKind};
use crate::gpu::{Compiler, GpuDevice};
use crate::job::Job;
use crate::options::Options;
use crate::{Device, DeviceError, DeviceInfo, Offline};
use cudarc::driver::{result, sys};
use driver::Cuda;
use status::{call, check};
use std::sync::Arc;
use tilewright_ir::{Kernel, Limits, Target};

fn missing(reason: impl Into<String>) -> DeviceError {
    DeviceError::Missing {
        what: "CUDA".into(),
        reason: reason.into(),
        remedy: "install NVIDIA's driver (it brings libcuda.so.1) and see that `nvidia-smi` lists the GPU".into(),
    }
}

/// First driver with all functions used here (`cuEventElapsedTime_v2`); a missing one is a panic of the bindings.
const OLDEST_DRIVER: i32 = 12080;

/// CUDA version of the driver, as 1000 major + 10 minor.
fn driver_version() -> Result<i32, DeviceError> {
    let mut version = 0;
    // SAFETY: the out pointer is valid.
    unsafe { call!(cuDriverGetVersion(&mut version)) }.map_err(|f| missing(format!("{} says {}", f.call, f.reason)))?;
    Ok(version)
}

fn spell(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Number of devices, once the driver is up.
fn count() -> Result<i32, DeviceError> {
    if !library::load_driver() {
        return Err(missing("libcuda.so.1 was not found"));
    }
    result::init().map_err(|e| missing(format!("cuInit says {e}")))?;
    let version = driver_version()?;
    if version < OLDEST_DRIVER {
        return Err(missing(format!("the driver is for CUDA {}; 12.8 or newer is needed", spell(version))));
    }
    match result::device::get_count() {
        Ok(0) => Err(missing("the driver lists no device")),
        Ok(n) => Ok(n),
        Err(e) => Err(missing(format!("cuDeviceGetCount says {e}"))),
    }
}

/// All devices.
///
/// # Errors
/// What is missing: driver, device or NVRTC.
pub(crate) fn list() -> Result<Vec<DeviceInfo>, DeviceError> {
    let count = count()?;
    nvrtc::version()?;
    (0..count).map(|n| describe(n).map(|(info, _)| info)).collect()
}

/// Opens the n-th device.
pub(crate) fn open(n: usize, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let count = count()?;
    nvrtc::version()?;
    let ordinal = i32::try_from(n).ok().filter(|&n| n < count).ok_or_else(|| DeviceError::NoSuchDevice {
        spec: format!("cuda:{n}"),
        available: format!("CUDA has devices 0 to {}", count - 1),
    })?;
    let (info, device) = describe(ordinal)?;
    let driver = Cuda::new(device, driver_version()?).map_err(|f| {
        let device_id = info.id.clone();
        match f.reach {
            _ if exclusive(device) => {
                DeviceError::Api { device: device_id, call: f.call, reason: format!("{}; {EXCLUSIVE}", f.reason) }
            }
            crate::gpu::Reach::Memory => {
                let reason = format!("{}; {NO_ROOM} of {} bytes", f.reason, info.memory_bytes);
                DeviceError::OutOfMemory { device: device_id, bytes: CONTEXT_BYTES, reason }
            }
            _ => DeviceError::Api { device: device_id, call: f.call, reason: f.reason },
        }
    })?;
    let compiler = Compiler { options: nvrtc::options(&info.target.arch), compile: nvrtc::compile, read_log };
    Ok(Arc::new(GpuDevice::new(info, options.clone(), compiler, driver)))
}

/// Why a device that another process uses does not open, and the remedy.
const EXCLUSIVE: &str = "the device is in exclusive compute mode and another process uses it (`nvidia-smi -c DEFAULT` shares it; else \
                         choose trials in this process)";

/// About what a context takes of an H100's memory.
const CONTEXT_BYTES: u64 = 600 << 20;

/// Why a device whose memory is full does not open, and the remedy. Free bytes cannot be asked without a context: a caller that has one adds them.
const NO_ROOM: &str = "a context needs about so many bytes, and this process and others hold nearly all (empty their caches, as \
                       `torch.cuda.empty_cache()` does; else choose trials in this process)";

/// One process at a time may use the device.
fn exclusive(device: sys::CUdevice) -> bool {
    let mode = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE;
    // SAFETY: the device is valid.
    let mode = unsafe { result::device::get_attribute(device, mode) };
    mode == Ok(sys::CUcomputemode::CU_COMPUTEMODE_EXCLUSIVE_PROCESS as i32)
}

/// Clients of NVIDIA's multi-process service share one context: a kernel that crashes in one may end the others, so that a worker process
/// protects nobody.
const SHARED: &str = "NVIDIA's multi-process service (MPS) shares this device's context between processes, so that a crash in a worker may \
                      end this process too (stop the service: `echo quit | nvidia-cuda-mps-control`; else choose trials in this process)";

fn is_shared(device: sys::CUdevice) -> bool {
    // SAFETY: the device is valid. Drivers that do not know the attribute refuse it.
    unsafe { result::device::get_attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED) == Ok(1) }
}

/// UUID of a device as hexadecimal digits; that of a MIG instance is its own.
fn uuid(device: sys::CUdevice) -> Option<String> {
    let uuid = result::device::get_uuid(device).ok()?;
    Some(uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect())
}

/// Opens the device with a UUID, whatever its number, for trials beside the process that uses it.
pub(crate) fn open_uuid(wanted: &str, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let count = count()?;
    let of = |n: i32| result::device::get(n).ok().and_then(uuid);
    let n = (0..count).find(|&n| of(n).as_deref() == Some(wanted)).ok_or_else(|| DeviceError::NoSuchDevice {
        spec: format!("cuda with UUID {wanted}"),
        available: format!("CUDA shows {count} other devices to this process"),
    })?;
    if result::device::get(n).is_ok_and(is_shared) {
        return Err(DeviceError::Api { device: format!("cuda:{n}"), call: "a worker process", reason: SHARED.into() });
    }
    open(usize::try_from(n).unwrap_or(0), options)
}

/// Compiles a kernel for an architecture (`sm_90a`) with NVRTC, without a GPU.
///
/// # Errors
/// [`DeviceError::Missing`] without NVRTC, [`DeviceError::BadSpec`] for an unknown architecture, else as
/// [`Device::compile`].
pub fn compile(kernel: &Kernel, arch: &str, options: &Options) -> Result<Offline, DeviceError> {
    nvrtc::version()?;
    let device = format!("cuda:{arch}");
    let target = Target::by_arch(arch).filter(|_| arch.starts_with("sm_")).ok_or_else(|| DeviceError::BadSpec {
        spec: device.clone(),
        reason: "no description of this architecture is built in".into(),
    })?;
    let source = tilewright_ir::print(kernel, &target)
        .map_err(|e| DeviceError::Invalid { device: device.clone(), invalid: Box::new(e) })?;
    let job = Job {
        backend: Backend::Cuda,
        device,
        place: None,
        arch: arch.into(),
        entry: source.entry.clone(),
        source: source.text.clone(),
        options: nvrtc::options(arch),
    };
    let binary = nvrtc::compile_limited(job, options)?;
    let mut resources = read_log(&binary.log);
    resources.shared_bytes = resources.shared_bytes.or(Some(0)).map(|b| b + source.dynamic_shared_bytes);
    Ok(Offline { source, code: binary.code, resources, log: binary.log })
}

fn describe(ordinal: i32) -> Result<(DeviceInfo, sys::CUdevice), DeviceError> {
    let id = format!("cuda:{ordinal}");
    let failed = |call: &'static str, reason: String| DeviceError::Api { device: id.clone(), call, reason };
    let device = result::device::get(ordinal).map_err(|e| failed("cuDeviceGet", e.to_string()))?;
    let name = result::device::get_name(device).map_err(|e| failed("cuDeviceGetName", e.to_string()))?;
    let mut memory = 0;
    // SAFETY: the device is valid, so is the out pointer.
    unsafe { call!(cuDeviceTotalMem_v2(&mut memory, device)) }.map_err(|f| failed(f.call, f.reason))?;
    let get = |attribute| {
        // SAFETY: the device is valid.
        unsafe { result::device::get_attribute(device, attribute) }
            .map(i64::from)
            .map_err(|e| failed("cuDeviceGetAttribute", format!("{attribute:?}: {e}")))
    };
    let target = target(&get)?;
    let (major, minor) = nvrtc::version()?;
    let fingerprint = format!(
        "driver {} CUDA {} NVRTC {major}.{minor}",
        module_version().unwrap_or_else(|| "unknown".into()),
        spell(driver_version()?)
    );
    let info = DeviceInfo {
        id,
        name,
        backend: Backend::Cuda,
        kind: DeviceKind::Gpu,
        target,
        fingerprint,
        memory_bytes: memory as u64,
        max_buffer_bytes: memory as u64,
    };
    Ok((info, device))
}

/// Version of the kernel module (580.159.03), where the system tells.
fn module_version() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let mut words = text.lines().next()?.split_whitespace();
    words.find(|w| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.')).map(String::from)
}

/// What the generator plans for. Limits come from the driver. Features and rates come from the built-in description of the
/// architecture, for an unknown one from what is portable.
fn target(get: &dyn Fn(sys::CUdevice_attribute) -> Result<i64, DeviceError>) -> Result<Target, DeviceError> {
    use sys::CUdevice_attribute::*;
    let (major, minor) = (get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?, get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?);
    let small = |v: i64| u32::try_from(v).unwrap_or(0);
    let base = Target::by_compute_capability(small(major), small(minor)).ok_or_else(|| missing("no description"))?;
    if !Target::known().contains(&base.arch.as_str()) {
        tracing::warn!("{} is not known: kernels use what every GPU since sm_80 has, times are modelled after sm_80", base.arch);
    }
    let u32_of = |attribute| get(attribute).map(|v| v.clamp(0, i64::from(u32::MAX)) as u32);
    let u64_of = |attribute| get(attribute).map(|v| v.max(0) as u64);
    let shared_per_group = u32_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let mut rates = base.rates;
    let clock_khz = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0);
    if clock_khz > 0 {
        rates.clock_ghz = clock_khz as f64 * 1e-6;
    }
    let memory_khz = get(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0);
    let bus_bits = get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0);
    if memory_khz > 0 && bus_bits > 0 {
        // Two transfers per clock.
        rates.dram_gbs = 2.0 * memory_khz as f64 * 1e3 * bus_bits as f64 / 8.0 * 1e-9;
    }
    Ok(Target {
        wave: u32_of(CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        units: u32_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: u64_of(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        limits: Limits {
            max_threads: u32_of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            shared_per_group,
            shared_per_unit: u32_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            registers_per_thread: base.limits.registers_per_thread,
            registers_per_unit: u32_of(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            threads_per_unit: u32_of(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            groups_per_unit: u32_of(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            max_grid: [
                u64_of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                u64_of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                u64_of(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
        },
        rates,
        ..base
    })
}
