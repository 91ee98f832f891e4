//! The device trait: describe, compile, allocate, copy, launch, time.

use crate::foreign::{Foreign, MapExtents, Number};
use crate::mark::{Mark, Passed};
use crate::{Buffer, Compiled, DeviceError, Identity, Native, Timing};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use tilewright_ir::{ArgKind, Builder, Kernel, Scalar, Target, TensorMap};

/// The way a device is spoken to.
///
/// ```
/// use tilewright_device::{Backend, open};
///
/// assert_eq!(open("emu")?.info().backend, Backend::Emulator);
/// // The prefix names devices, the text is for messages.
/// assert_eq!((Backend::Hip.prefix(), Backend::Hip.to_string()), ("hip", "HIP".to_string()));
/// # Ok::<(), tilewright_device::DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The built-in emulator.
    Emulator,
    /// OpenCL through the installable client driver loader.
    OpenCl,
    /// NVIDIA's driver and NVRTC.
    Cuda,
    /// AMD's HIP and hiprtc.
    Hip,
}

impl Backend {
    /// All of them, the preferred one first.
    pub const ALL: [Backend; 4] = [Backend::Cuda, Backend::Hip, Backend::OpenCl, Backend::Emulator];

    /// The one whose device ids begin so: by what stands before a colon, if there is one.
    pub fn of_id(id: &str) -> Option<Backend> {
        let prefix = id.split(':').next()?;
        Backend::ALL.into_iter().find(|backend| backend.prefix() == prefix)
    }
    /// Prefix of device ids: `emu`, `opencl`, `cuda`, `hip`.
    pub const fn prefix(self) -> &'static str {
        match self {
            Backend::Emulator => "emu",
            Backend::OpenCl => "opencl",
            Backend::Cuda => "cuda",
            Backend::Hip => "hip",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Emulator => "emulator",
            Backend::OpenCl => "OpenCL",
            Backend::Cuda => "CUDA",
            Backend::Hip => "HIP",
        })
    }
}

/// What kind of machine a device is.
///
/// ```
/// use tilewright_device::{DeviceKind, list};
///
/// // All devices but emulated ones measure times.
/// let timed = |kind| !matches!(kind, DeviceKind::Emulated);
/// let found = list().into_iter().filter_map(|listing| listing.device.ok());
/// assert!(found.into_iter().all(|info| timed(info.kind) == info.is_measured()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// Interpreted: results are real, times are not.
    Emulated,
    /// Host processor cores.
    Cpu,
    /// Graphics processor.
    Gpu,
    /// Anything else OpenCL knows.
    Accelerator,
}

/// What a device is.
///
/// ```
/// use tilewright_device::open;
///
/// let device = open("emu:gfx942")?;
/// let info = device.info();
/// assert_eq!((info.id.as_str(), info.target.arch.as_str(), info.target.wave), ("emu:gfx942", "gfx942", 64));
/// assert!(!info.is_measured() && info.max_buffer_bytes <= info.memory_bytes);
/// # Ok::<(), tilewright_device::DeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Names it in this process: `cuda:0`. [`crate::open`] takes it.
    pub id: String,
    /// The vendor's name for it.
    pub name: String,
    /// How it is spoken to.
    pub backend: Backend,
    /// What kind of machine it is.
    pub kind: DeviceKind,
    /// What the generator plans for.
    pub target: Target,
    /// Driver and compiler with versions: part of the key of records and cached binaries.
    pub fingerprint: String,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Largest single buffer in bytes.
    pub max_buffer_bytes: u64,
}

impl DeviceInfo {
    /// True if [`Device::time`] measures; false on the emulator, whose times can only be modelled.
    pub const fn is_measured(&self) -> bool {
        !matches!(self.kind, DeviceKind::Emulated)
    }
}

/// An argument of a launch.
#[derive(Clone, Debug)]
pub enum LaunchArg {
    /// Global memory. For a tensor map, the memory from the map's element 0 on: the device encodes the map.
    Buffer(Buffer),
    /// A tensor map over the memory from its element 0 on. It has extents of this launch, in the map's order, instead of the
    /// extents that the kernel declares (at most those).
    Map {
        /// Memory.
        memory: Buffer,
        /// Extents in elements.
        extent: MapExtents,
    },
    /// 32-bit integer.
    I32(i32),
    /// 64-bit integer.
    I64(i64),
    /// 32-bit float.
    F32(f32),
    /// 64-bit float.
    F64(f64),
}

impl LaunchArg {
    const fn describe(&self) -> &'static str {
        match self {
            LaunchArg::Buffer(_) => "a buffer",
            LaunchArg::Map { .. } => "a tensor map",
            LaunchArg::I32(_) => "an i32",
            LaunchArg::I64(_) => "an i64",
            LaunchArg::F32(_) => "an f32",
            LaunchArg::F64(_) => "an f64",
        }
    }
}

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What runs.
    pub kernel: Arc<Compiled>,
    /// Work-groups along each dimension.
    pub grid: [u32; 3],
    /// Arguments in the kernel's order.
    pub args: Vec<LaunchArg>,
}

/// A device. All work on it runs in one order; methods may be called from any thread.
///
/// `launch` returns before the work is done; `write`, `read`, `sync` and `time` wait for it. A kernel that does not end within
/// the deadline of [`crate::Options`] is reported by the call that waits, as [`DeviceError::Hang`].
///
/// ```
/// use tilewright_device::{Launch, LaunchArg, open};
/// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar};
///
/// // A kernel that doubles 32 numbers in place.
/// let mut b = Builder::new("twice", 32);
/// let x = b.buffer("x", Scalar::F32, Access::ReadWrite, "numbers");
/// let value = b.load("value", Base::Buffer(x), Builtin::LocalId, 1, None);
/// b.store(Base::Buffer(x), Builtin::LocalId, value + value, None);
///
/// let device = open("emu")?;
/// let kernel = device.compile(&b.finish())?;
/// let memory = device.alloc(32 * 4)?;
/// device.write(&memory, 0, &1.5f32.to_ne_bytes().repeat(32))?;
/// device.launch(&[Launch { kernel, grid: [1, 1, 1], args: vec![LaunchArg::Buffer(memory.clone())] }])?;
/// let mut bytes = [0; 4];
/// device.read(&memory, 31 * 4, &mut bytes)?;
/// assert_eq!(f32::from_ne_bytes(bytes), 3.0);
/// # Ok::<(), tilewright_device::DeviceError>(())
/// ```
pub trait Device: Send + Sync {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// Does the one-time work that the first uses of the device would wait for. It starts `threads` compile workers, loads the
    /// vendor's compiler in each, and runs an empty kernel. Work that is already done is skipped.
    ///
    /// # Errors
    /// Those of [`Device::compile`], [`Device::launch`] and [`Device::sync`].
    fn prepare(&self, threads: usize) -> Result<(), DeviceError> {
        let _ = threads;
        run_nothing(self)
    }

    /// Makes a kernel ready to run: validates, prints, compiles (or finds the binary in the cache) and loads it. May be
    /// called from many threads at once.
    ///
    /// # Errors
    /// [`DeviceError::Invalid`] where the device cannot run it, [`DeviceError::Compile`], [`DeviceError::CompileTimeout`],
    /// [`DeviceError::CompilerCrashed`].
    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError>;

    /// Allocates memory with undefined content; aligned to at least 64 bytes (see [`Buffer::alignment`]). The emulator takes
    /// memory where it is written: there [`Device::write`], [`Device::fill`] and [`Device::launch`] may find that there is too little.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn alloc(&self, bytes: u64) -> Result<Buffer, DeviceError>;

    /// Prepares host memory for many copies: a GPU's driver locks its pages. Where it cannot, copies are slower and right.
    ///
    /// # Safety
    /// The memory stays mapped until the device and all that belongs to it are dropped.
    unsafe fn lock_pages(&self, _memory: *mut [u8]) {}

    /// Waits for the work so far and copies host bytes into a buffer, from byte `offset` on.
    ///
    /// # Errors
    /// [`DeviceError::BadBuffer`] for a foreign buffer or a range outside it; what [`Device::sync`] gives.
    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), DeviceError>;

    /// Waits for the work so far and copies bytes of a buffer, from byte `offset` on, to the host.
    ///
    /// # Errors
    /// As [`Device::write`] and [`Device::sync`].
    fn read(&self, buffer: &Buffer, offset: u64, data: &mut [u8]) -> Result<(), DeviceError>;

    /// Sets every byte of a buffer.
    ///
    /// # Errors
    /// As [`Device::write`].
    fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), DeviceError>;

    /// Starts kernels in order and returns. (The emulator runs them before it returns.)
    ///
    /// # Errors
    /// [`DeviceError::BadLaunch`] where arguments, grid or device do not fit; nothing of the sequence has then started.
    /// [`DeviceError::Emulation`] for a rule the kernel breaks.
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError>;

    /// Tries launches in a compile worker, on zeros, where the device's driver compiles kernels only when they first run (OpenCL
    /// on processors). A crash or a hang then costs the worker alone, and the work is not done again here. Nothing happens on
    /// other devices or without workers. May be called from many threads at once.
    ///
    /// # Errors
    /// [`DeviceError::CompileTimeout`], [`DeviceError::CompilerCrashed`], [`DeviceError::BadLaunch`].
    fn rehearse(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        let _ = launches;
        Ok(())
    }

    /// How another process finds this device; `None` where no other can.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// Bytes of its memory that nobody holds, where it can be asked.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// True for a device in a worker process: after a fatal error the next call finds a new worker. Kernels are still there, memory is
    /// not.
    fn revives(&self) -> bool {
        false
    }

    /// Waits for everything started.
    ///
    /// # Errors
    /// What the work ran into: [`DeviceError::Hang`], [`DeviceError::Crash`], [`DeviceError::Api`].
    fn sync(&self) -> Result<(), DeviceError>;

    /// A mark after all work started so far.
    ///
    /// # Errors
    /// As [`Device::launch`].
    fn mark(&self) -> Result<Box<dyn Mark>, DeviceError> {
        self.sync()?;
        Ok(Box::new(Passed))
    }

    /// Runs the sequence once per repeat and returns the device's time of each repeat, in microseconds.
    ///
    /// The time runs from a mark before the first kernel to a mark after the last. Before every repeat a read of other memory sweeps the
    /// cache, which also gives the host time to queue the run. For warm caches the sequence then runs once untimed. To interleave
    /// alternatives, call this alternately with one repeat each. Clocks are not warmed up.
    ///
    /// # Errors
    /// As [`Device::launch`] and [`Device::sync`]; [`DeviceError::NotTimed`] on the emulator.
    fn time(&self, launches: &[Launch], timing: &Timing) -> Result<Vec<f64>, DeviceError>;

    /// The native queue and memory, for a vendor's library that is to run beside; `None` on the emulator.
    fn native(&self) -> Option<&dyn Native> {
        None
    }

    /// Launches on memory and streams of others; `None` where memory has no addresses (emulator, OpenCL).
    fn foreign(&self) -> Option<&dyn Foreign> {
        None
    }
}

impl From<Number> for LaunchArg {
    fn from(number: Number) -> LaunchArg {
        match number {
            Number::I32(v) => LaunchArg::I32(v),
            Number::I64(v) => LaunchArg::I64(v),
            Number::F32(v) => LaunchArg::F32(v),
            Number::F64(v) => LaunchArg::F64(v),
        }
    }
}

/// A kernel that does nothing, for trying out what runs it.
pub(crate) fn nothing() -> Kernel {
    Builder::new("tw_nothing", 32).finish()
}

/// Compiles, launches and awaits [`nothing`].
pub(crate) fn run_nothing(device: &(impl Device + ?Sized)) -> Result<(), DeviceError> {
    let kernel = device.compile(&nothing())?;
    device.launch(&[Launch { kernel, grid: [1; 3], args: Vec::new() }])?;
    device.sync()
}

/// Checks that launches belong to this device and match their kernels' arguments and the grid limits.
pub(crate) fn check_launches(info: &DeviceInfo, launches: &[Launch]) -> Result<(), DeviceError> {
    for launch in launches {
        let kernel = &launch.kernel;
        let bad = |reason: String| DeviceError::BadLaunch { device: info.id.clone(), entry: kernel.entry().into(), reason };
        if kernel.device() != info.id {
            return Err(bad(format!("the kernel was compiled for {}", kernel.device())));
        }
        for (d, (&groups, &limit)) in launch.grid.iter().zip(&info.target.limits.max_grid).enumerate() {
            if groups == 0 || u64::from(groups) > limit {
                return Err(bad(format!("{groups} work-groups along dimension {d}: 1 to {limit} are possible")));
            }
        }
        if launch.args.len() != kernel.args().len() {
            return Err(bad(format!("{} arguments given, {} declared", launch.args.len(), kernel.args().len())));
        }
        for (arg, declared) in launch.args.iter().zip(kernel.args()) {
            let fits = match (arg, &declared.kind) {
                (LaunchArg::Buffer(b), ArgKind::Buffer { scalar, .. }) => {
                    if b.device() != info.id {
                        return Err(bad(format!("the buffer for `{}` lives on {}", declared.name, b.device())));
                    }
                    let need = u64::from(scalar.bytes());
                    if !b.alignment().is_multiple_of(need) {
                        let at = b.offset();
                        return Err(bad(format!("`{}` starts at byte {at} of its buffer, no multiple of {need}", declared.name)));
                    }
                    true
                }
                (LaunchArg::Buffer(b), ArgKind::TensorMap(map)) => {
                    check_map(info, b, map).map_err(|what| bad(format!("tensor map `{}`: {what}", declared.name)))?;
                    true
                }
                (LaunchArg::Map { memory, extent }, ArgKind::TensorMap(map)) => {
                    let named = |what: String| bad(format!("tensor map `{}`: {what}", declared.name));
                    let map = resized(map, within(map, extent)).map_err(named)?;
                    check_map(info, memory, &map).map_err(named)?;
                    true
                }
                (LaunchArg::I32(_), ArgKind::Scalar(s)) => matches!(s, Scalar::I32 | Scalar::U32),
                (LaunchArg::I64(_), ArgKind::Scalar(s)) => *s == Scalar::I64,
                (LaunchArg::F32(_), ArgKind::Scalar(s)) => *s == Scalar::F32,
                (LaunchArg::F64(_), ArgKind::Scalar(s)) => *s == Scalar::F64,
                _ => false,
            };
            if !fits {
                let want = match &declared.kind {
                    ArgKind::Buffer { scalar, .. } => format!("a buffer of {scalar}"),
                    ArgKind::Scalar(s) => s.to_string(),
                    ArgKind::TensorMap(_) => "a tensor map over a buffer".into(),
                };
                return Err(bad(format!("`{}` is {want}, {} was given", declared.name, arg.describe())));
            }
        }
    }
    Ok(())
}

/// The extents of a launch that a map has dimensions for.
pub(crate) fn within<'a>(map: &TensorMap, extents: &'a MapExtents) -> &'a [u64] {
    &extents[..map.extent.len().min(extents.len())]
}

/// A kernel's tensor map with the extents of a launch.
pub(crate) fn resized(map: &TensorMap, extent: &[u64]) -> Result<TensorMap, String> {
    let within = extent.len() == map.extent.len() && extent.iter().zip(&map.extent).all(|(now, most)| (1..=*most).contains(now));
    if !within {
        return Err(format!("extents {extent:?} are not within 1 to {:?}", map.extent));
    }
    Ok(TensorMap { extent: extent.to_vec(), ..map.clone() })
}

/// Checks the memory that a tensor map is to lie on.
fn check_map(info: &DeviceInfo, buffer: &Buffer, map: &TensorMap) -> Result<(), String> {
    if !matches!(info.backend, Backend::Cuda | Backend::Emulator) {
        return Err(format!("{} has none; choose a plan without bulk copies", info.backend));
    }
    if buffer.device() != info.id {
        return Err(format!("its buffer lives on {}", buffer.device()));
    }
    if !buffer.alignment().is_multiple_of(16) {
        let at = buffer.offset();
        return Err(format!(
            "its first element stands at byte {at} of its buffer, no multiple of 16; align it, or choose a plan without bulk copies"
        ));
    }
    if let Some(stride) = map.stride_bytes.iter().find(|s| !s.is_multiple_of(16)) {
        return Err(format!(
            "a stride of {stride} bytes is no multiple of 16; pad the leading dimension, or choose a plan without bulk copies"
        ));
    }
    match map_bytes(map) {
        Some(needed) if needed <= buffer.bytes() => Ok(()),
        needed => Err(format!("its {:?} elements span {needed:?} bytes, the buffer has {}", map.extent, buffer.bytes())),
    }
}

/// Bytes from a map's first element to the end of its last. `None` beyond 64 bits.
pub(crate) fn map_bytes(map: &TensorMap) -> Option<u64> {
    let strides = std::iter::once(u64::from(map.scalar.bytes())).chain(map.stride_bytes.iter().copied());
    let mut last = 0u64;
    for (extent, stride) in map.extent.iter().zip(strides) {
        last = last.checked_add(extent.saturating_sub(1).checked_mul(stride)?)?;
    }
    last.checked_add(map.scalar.bytes().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tilewright_ir::Swizzle;

    fn map() -> TensorMap {
        let (extent, stride_bytes, tile) = (vec![100, 10], vec![208], vec![64, 8]);
        TensorMap { scalar: Scalar::BF16, round_tf32: false, extent, stride_bytes, tile, swizzle: Swizzle::B128, im2col: None }
    }

    fn buffer(device: &str, bytes: u64) -> Buffer {
        Buffer::new(device.into(), Arc::new(()), 256, bytes)
    }

    #[test]
    fn memory_of_a_map_is_checked() {
        let info = crate::emulator::describe("emu", "sm_90a").unwrap();
        let needed = map_bytes(&map()).unwrap();
        assert_eq!(needed, 9 * 208 + 200);
        let check = |buffer: &Buffer, map: &TensorMap| check_map(&info, buffer, map).map_err(|e| e.to_string());
        assert_eq!(check(&buffer("emu", needed), &map()), Ok(()));
        assert!(check(&buffer("emu", needed - 1), &map()).unwrap_err().contains("span"));
        assert!(check(&buffer("opencl:0", needed), &map()).unwrap_err().contains("opencl:0"));
        let odd = buffer("emu", needed + 8).slice(8, needed).unwrap();
        assert!(check(&odd, &map()).unwrap_err().contains("byte 8"));
        let padded = TensorMap { stride_bytes: vec![200], ..map() };
        assert!(check(&buffer("emu", needed), &padded).unwrap_err().contains("200 bytes"));
        let elsewhere = DeviceInfo { backend: Backend::Hip, ..info.clone() };
        assert!(check_map(&elsewhere, &buffer("emu", needed), &map()).unwrap_err().contains("HIP"));
    }
}
