//! A device's own queue and memory, handed out so that a vendor's library can work there beside generated kernels.

use crate::{Buffer, DeviceError, Timing};

/// Handles of the device's native API, as addresses. They stay valid as long as the device lives.
///
/// ```
/// use tilewright_device::{NativeHandles, open};
///
/// /// The stream that a vendor's library shall run on.
/// fn stream(handles: NativeHandles) -> Option<usize> {
///     match handles {
///         NativeHandles::Cuda { stream, .. } | NativeHandles::Hip { stream, .. } => Some(stream),
///         NativeHandles::OpenCl { .. } => None,
///     }
/// }
/// // The emulator has no native queue.
/// assert_eq!(open("emu")?.native().and_then(|native| stream(native.handles())), None);
/// # Ok::<(), tilewright_device::DeviceError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeHandles {
    /// CUDA.
    Cuda {
        /// `CUcontext`: the device's primary context, the one the run-time libraries use.
        context: usize,
        /// `CUstream` on which all work of the device runs.
        stream: usize,
    },
    /// HIP.
    Hip {
        /// Number of the device.
        device: usize,
        /// `hipStream_t` on which all work of the device runs.
        stream: usize,
    },
    /// OpenCL.
    OpenCl {
        /// `cl_context`.
        context: usize,
        /// `cl_device_id`.
        device: usize,
        /// `cl_command_queue` on which all work of the device runs, in order, with profiling.
        queue: usize,
    },
}

/// What a library said of its call.
pub(crate) fn refused(device: &str, queued: Result<(), String>) -> Result<(), DeviceError> {
    queued.map_err(|reason| DeviceError::Api { device: device.into(), call: "a library", reason })
}

/// The time of each repeat of foreign work, of which `once` runs one; the first error of that work ends it.
pub(crate) fn times(
    device: &str,
    timing: &Timing,
    enqueue: &mut dyn FnMut() -> Result<(), String>,
    mut once: impl FnMut(&mut dyn FnMut()) -> Result<f64, DeviceError>,
) -> Result<Vec<f64>, DeviceError> {
    let one = |_| {
        let mut queued = Ok(());
        let time = once(&mut || {
            if queued.is_ok() {
                queued = enqueue();
            }
        })?;
        refused(device, queued).map(|()| time)
    };
    (0..timing.repeats).map(one).collect()
}

/// What a device offers to libraries that speak its native API.
///
/// ```
/// use tilewright_device::{Device, DeviceError, Timing, open};
///
/// /// Microseconds of a library's call on the device's own queue; `None` where there is none.
/// fn library_us(device: &dyn Device, call: &mut dyn FnMut() -> Result<(), String>) -> Result<Option<f64>, DeviceError> {
///     let Some(native) = device.native() else { return Ok(None) };
///     native.run(call)?;
///     Ok(native.time(call, &Timing::cold(3))?.into_iter().reduce(f64::min))
/// }
/// assert_eq!(library_us(&*open("emu")?, &mut || Ok(()))?, None);
/// # Ok::<(), DeviceError>(())
/// ```
pub trait Native {
    /// The handles.
    fn handles(&self) -> NativeHandles;

    /// Where a buffer lies: the device address of its first byte (CUDA, HIP), or its memory object (OpenCL), within which
    /// the buffer starts at [`Buffer::offset`].
    ///
    /// # Errors
    /// [`DeviceError::BadBuffer`] for a foreign buffer.
    fn memory(&self, buffer: &Buffer) -> Result<usize, DeviceError>;

    /// Puts work on the native queue once and waits for it, untimed. Work that [`Native::time`] times has run before, because
    /// libraries load kernels at the first call, and wait for the device then.
    ///
    /// # Errors
    /// As [`crate::Device::sync`]; [`DeviceError::Api`] with the text that `enqueue` fails with.
    fn run(&self, enqueue: &mut dyn FnMut() -> Result<(), String>) -> Result<(), DeviceError>;

    /// As [`crate::Device::time`], for work that `enqueue` puts on the native queue. `enqueue` runs once per repeat, twice for
    /// warm caches, with the device current on its thread. It must not wait for the queue, which is held meanwhile, and must not
    /// call the device. A hold ends after 2 s, which frees a call that waits.
    ///
    /// # Errors
    /// As [`crate::Device::time`]; [`DeviceError::Api`] with the text that `enqueue` fails with, or because its hold ran out of time.
    fn time(&self, enqueue: &mut dyn FnMut() -> Result<(), String>, timing: &Timing) -> Result<Vec<f64>, DeviceError>;
}
