//! Marks in the order of a device's work. A caller can query a mark without waiting for later work.

use crate::DeviceError;
use std::time::{Duration, Instant};

/// A mark after all work that was started before [`Device::mark`](crate::Device::mark).
///
/// ```
/// use tilewright_device::{Launch, open};
/// use tilewright_ir::Builder;
///
/// let device = open("emu")?;
/// let kernel = device.compile(&Builder::new("nothing", 64).finish())?;
/// device.launch(&[Launch { kernel, grid: [1, 1, 1], args: vec![] }])?;
/// let mark = device.mark()?;
/// // Later launches are not waited for.
/// mark.wait()?;
/// assert!(mark.is_passed()?);
/// # Ok::<(), tilewright_device::DeviceError>(())
/// ```
pub trait Mark: Send + Sync {
    /// Has the device passed it? Does not wait.
    ///
    /// # Errors
    /// What the work ran into.
    fn is_passed(&self) -> Result<bool, DeviceError>;
    /// Waits until the device has passed it.
    ///
    /// # Errors
    /// What the work ran into; [`DeviceError::Hang`] after the device's deadline.
    fn wait(&self) -> Result<(), DeviceError>;
}

/// A mark of a device whose work is done when its launch returns.
pub(crate) struct Passed;

impl Mark for Passed {
    fn is_passed(&self) -> Result<bool, DeviceError> {
        Ok(true)
    }
    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Asks until it is so; false after the deadline. Short work is awaited closely, long work without burning a core.
pub(crate) fn within(deadline: Duration, mut passed: impl FnMut() -> Result<bool, DeviceError>) -> Result<bool, DeviceError> {
    let start = Instant::now();
    loop {
        if passed()? {
            return Ok(true);
        }
        let waited = start.elapsed();
        if waited > deadline {
            return Ok(false);
        }
        if waited > Duration::from_millis(2) {
            std::thread::sleep(Duration::from_micros(100));
        } else {
            std::thread::yield_now();
        }
    }
}
