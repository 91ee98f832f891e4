//! One trait for all devices (emulator, OpenCL, CUDA, HIP): buffers, compilation, launches, timing, binary cache.
//!
//! Every vendor library is loaded at run time. One that is missing is no error: [`list`] says what is missing and how to
//! get it. A kernel becomes a [`Compiled`] on one device and runs there in order with everything else launched on it.
//!
//! ```no_run
//! # fn main() -> Result<(), tilewright_device::DeviceError> {
//! # let kernel = tilewright_ir::Builder::new("nothing", 64).finish();
//! use tilewright_device::{Launch, Timing, open};
//! let device = open("cuda:0")?;
//! let compiled = device.compile(&kernel)?;
//! let launch = [Launch { kernel: compiled, grid: [1, 1, 1], args: vec![] }];
//! device.launch(&launch)?;
//! device.sync()?;
//! let microseconds = device.time(&launch, &Timing::default())?;
//! # Ok(()) }
//! ```

pub mod amd;
mod buffer;
mod cache;
mod compile;
mod compiled;
mod compilers;
pub mod cuda;
mod device;
#[cfg_attr(not(feature = "emulator"), path = "no_emulator.rs")]
mod emulator;
mod error;
mod foreign;
mod gpu;
mod hip;
pub mod inspect;
mod isolated;
mod job;
mod mark;
#[cfg(test)]
#[path = "../../ir/tests/support/missing.rs"]
mod missing;
mod native;
mod open;
mod opencl;
mod options;
mod process;
mod resources;
mod sweep;
mod timing;
mod worker;

pub use buffer::Buffer;
pub use cache::{Cache, CacheEntry};
pub use compiled::{Compiled, Offline};
pub use compilers::compile_worker_main;
pub use device::{Backend, Device, DeviceInfo, DeviceKind, Launch, LaunchArg};
pub use error::DeviceError;
pub use foreign::{Foreign, MapExtents, Number, Stream, Value, copy_in, copy_out, declared};
pub use isolated::{COMPILE_WORKER, Identity, Program, isolate, worker_main};
pub use mark::Mark;
pub use native::{Native, NativeHandles};
pub use open::{Listing, default_device, list, open, open_with};
pub use options::Options;
pub use process::{CRASHED, exit_now, note_crashes};
pub use resources::Resources;
pub use timing::{CacheState, Timing};
pub use worker::Workers;
