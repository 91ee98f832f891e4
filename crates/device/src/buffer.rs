//! Device memory: a handle to an allocation, or to a slice of one.

use crate::DeviceError;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Bytes of one device's memory. Clones share the memory, which is freed with the last of them.
///
/// ```
/// use tilewright_device::open;
///
/// let device = open("emu")?;
/// let memory = device.alloc(4096)?;
/// let part = memory.slice(512, 1024)?;
/// assert_eq!((part.offset(), part.bytes(), part.device()), (512, 1024, "emu"));
/// // A part must lie inside.
/// assert!(part.slice(1000, 100).is_err());
/// # Ok::<(), tilewright_device::DeviceError>(())
/// ```
#[derive(Clone)]
pub struct Buffer {
    device: Arc<str>,
    memory: Arc<dyn Any + Send + Sync>,
    alignment: u64,
    offset: u64,
    bytes: u64,
}

impl Buffer {
    /// Wraps a back end's allocation that starts at a multiple of `alignment` bytes (a power of two).
    pub(crate) fn new(device: Arc<str>, memory: Arc<dyn Any + Send + Sync>, alignment: u64, bytes: u64) -> Self {
        Buffer { device, memory, alignment, offset: 0, bytes }
    }
    /// Size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Where it starts within its allocation, in bytes.
    pub const fn offset(&self) -> u64 {
        self.offset
    }
    /// Largest power of two known to divide the address of the first byte, in bytes.
    pub const fn alignment(&self) -> u64 {
        if self.offset == 0 {
            return self.alignment;
        }
        let of_offset = 1 << self.offset.trailing_zeros();
        if of_offset < self.alignment { of_offset } else { self.alignment }
    }
    /// Id of the device it lives on.
    pub fn device(&self) -> &str {
        &self.device
    }
    /// A part of it, sharing the memory. As a launch argument on OpenCL the part must start at a multiple of 512 bytes
    /// (sub-buffers demand it); pass finer offsets as kernel arguments.
    ///
    /// # Errors
    /// [`DeviceError::BadBuffer`] if the part does not lie inside.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Buffer, DeviceError> {
        self.check_range(offset, bytes)?;
        Ok(Buffer { offset: self.offset + offset, bytes, ..self.clone() })
    }
    pub(crate) fn check_range(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(DeviceError::BadBuffer {
                device: self.device.to_string(),
                reason: format!("{bytes} bytes from byte {offset} leave a buffer of {} bytes", self.bytes),
            }),
        }
    }
    /// The back end's allocation, if the buffer is of its kind and of this device.
    pub(crate) fn memory<T: Any + Send + Sync>(&self, device: &str) -> Result<&T, DeviceError> {
        let memory = if &*self.device == device { self.memory.downcast_ref::<T>() } else { None };
        memory.ok_or_else(|| DeviceError::BadBuffer {
            device: device.into(),
            reason: format!("the buffer lives on {}: copy it over first", self.device),
        })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, {}..{})", self.device, self.offset, self.offset + self.bytes)
    }
}
