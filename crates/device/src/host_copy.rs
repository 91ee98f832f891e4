//! Copies between memory of the host that others own and buffers of a device.

use crate::{Buffer, Device, DeviceError};

/// Copies so many bytes of this process from an address on to the start of a buffer.
///
/// # Errors
/// Those of [`Device::write`].
///
/// # Safety
/// The bytes must be readable and nobody may write them meanwhile.
pub unsafe fn copy_in(device: &dyn Device, address: u64, buffer: &Buffer, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the caller vouches for the range.
    device.write(buffer, 0, unsafe { std::slice::from_raw_parts(address as usize as *const u8, bytes) })
}

/// Waits for the work so far and copies so many bytes from the start of a buffer to an address in this process.
///
/// # Errors
/// Those of [`Device::read`].
///
/// # Safety
/// The bytes must be writable and nobody may use them meanwhile.
pub unsafe fn copy_out(device: &dyn Device, buffer: &Buffer, address: u64, bytes: usize) -> Result<(), DeviceError> {
    // SAFETY: the caller vouches for the range.
    device.read(buffer, 0, unsafe { std::slice::from_raw_parts_mut(address as usize as *mut u8, bytes) })
}
