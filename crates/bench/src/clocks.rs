//! Clocks, temperature and power of an NVIDIA GPU, read through its management library (a few microseconds a reading).

use libloading::{Library, Symbol};
use serde::{Deserialize, Serialize};
use std::ffi::{c_int, c_uint, c_void};

/// One reading. A part that the library does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    /// Clock of the multiprocessors in MHz.
    pub sm_mhz: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_mhz: Option<u32>,
    /// Temperature in degrees Celsius.
    pub celsius: Option<u32>,
    /// Power drawn in watts.
    pub watts: Option<f64>,
}

/// The management library with one GPU.
pub struct Monitor {
    library: Library,
    gpu: *mut c_void,
}

type Ask = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint) -> c_int;
type AskPlain = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int;

impl Monitor {
    /// Opens the library for the GPU of this number, counted as the driver counts; `None` where there is none.
    pub fn open(number: u32) -> Option<Monitor> {
        let mut gpu = std::ptr::null_mut();
        // SAFETY: the library's initialisers are wanted; the signatures are those of nvml.h.
        let library = unsafe {
            let library = Library::new("libnvidia-ml.so.1").ok()?;
            let init: Symbol<'_, unsafe extern "C" fn() -> c_int> = library.get(b"nvmlInit_v2\0").ok()?;
            let find: Symbol<'_, unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int> =
                library.get(b"nvmlDeviceGetHandleByIndex_v2\0").ok()?;
            if init() != 0 || find(number, &mut gpu) != 0 {
                return None;
            }
            library
        };
        Some(Monitor { library, gpu })
    }

    /// Reads everything.
    pub fn read(&self) -> Clocks {
        let clock = |which| self.ask(b"nvmlDeviceGetClockInfo\0", which);
        Clocks {
            sm_mhz: clock(1),
            memory_mhz: clock(2),
            celsius: self.ask(b"nvmlDeviceGetTemperature\0", 0),
            watts: self.power().map(|milliwatts| f64::from(milliwatts) * 1e-3),
        }
    }

    fn ask(&self, function: &[u8], which: c_uint) -> Option<u32> {
        let mut value = 0;
        // SAFETY: both functions have this signature; the handle is the library's.
        let status = unsafe { self.library.get::<Ask>(function).ok()?(self.gpu, which, &mut value) };
        (status == 0).then_some(value)
    }

    fn power(&self) -> Option<u32> {
        let mut value = 0;
        // SAFETY: as in `ask`.
        let status = unsafe { self.library.get::<AskPlain>(b"nvmlDeviceGetPowerUsage\0").ok()?(self.gpu, &mut value) };
        (status == 0).then_some(value)
    }
}
