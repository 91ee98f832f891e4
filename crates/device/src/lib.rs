//! Runs kernels: CUDA, HIP, OpenCL and the built-in emulator as one trait, [`Device`], with buffers, compiling, launching, timing and a cache
//! of binaries.
//!
//! Every vendor library is loaded at run time. A missing library is no error: [`list`] names it and the way to get it.
//! A kernel becomes a [`Compiled`] on one device and runs there in order with all other launches.
//! [`Device::time`] times launches on hardware.
//!
//! ```
//! use tilewright_device::{Launch, open};
//! use tilewright_ir::Builder;
//!
//! let device = open("emu")?; // "cuda:0", "hip:0", "opencl:0"
//! let kernel = device.compile(&Builder::new("nothing", 64).finish())?;
//! let launch = [Launch { kernel, grid: [1, 1, 1], args: vec![] }];
//! device.launch(&launch)?;
//! device.sync()?;
//! # Ok::<(), tilewright_device::DeviceError>(())
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
mod ending;
mod error;
mod foreign;
mod gpu;
mod hip;
mod host_copy;
mod identity;
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
mod settings;
mod sweep;
mod timing;
mod wire;
mod worker;

pub use buffer::Buffer;
pub use cache::{Cache, CacheEntry};
pub use compiled::{Compiled, Offline};
pub use compilers::compile_worker_main;
pub use device::{Backend, Device, DeviceInfo, DeviceKind, Launch, LaunchArg};
pub use ending::end_of_process;
pub use error::DeviceError;
pub use foreign::{Foreign, MapExtents, Number, Stream, Value, declared};
pub use host_copy::{copy_in, copy_out};
pub use identity::Identity;
pub use isolated::{COMPILE_WORKER, Program, isolate, worker_main};
pub use mark::Mark;
pub use native::{Native, NativeHandles};
pub use open::{Listing, default_device, list, open, open_with};
pub use options::Options;
pub use process::{CRASHED, exit_now, note_crashes};
pub use resources::Resources;
pub use timing::{CacheState, Timing};
pub use worker::Workers;
