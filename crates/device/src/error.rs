//! What can go wrong with a device: every error names the device or library and the remedy.

use std::time::Duration;

// Without the emulator nothing makes such an error.
#[cfg(not(feature = "emulator"))]
use std::convert::Infallible as EmuError;
#[cfg(feature = "emulator")]
use tilewright_emu::EmuError;
use tilewright_ir::Invalid;

/// Why a device operation failed.
///
/// ```
/// use tilewright_device::{DeviceError, open};
///
/// let error = open("gpu7").err().expect("no such device");
/// assert!(matches!(&error, DeviceError::BadSpec { spec, .. } if spec == "gpu7"));
/// assert!(error.to_string().ends_with("Write emu, emu:ARCH, opencl:N, opencl:NAME, cuda:N or hip:N"));
/// ```
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeviceError {
    /// A library or driver is not on this machine.
    #[error("{what} is not available: {reason}\n  {remedy}")]
    Missing {
        /// The back end or library.
        what: String,
        /// What was tried.
        reason: String,
        /// How to install it.
        remedy: String,
    },
    /// The text does not name a device.
    #[error("`{spec}` is not a device: {reason}. Write emu, emu:ARCH, opencl:N, opencl:NAME, cuda:N or hip:N")]
    BadSpec {
        /// What was given.
        spec: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The back end works but has no such device.
    #[error("there is no device `{spec}`; {available}")]
    NoSuchDevice {
        /// What was asked for.
        spec: String,
        /// What there is instead.
        available: String,
    },
    /// The kernel is malformed, or this device cannot run it (see [`Invalid`]). Nothing was compiled.
    #[error("{device}: {invalid}")]
    Invalid {
        /// Device id.
        device: String,
        /// The reason.
        invalid: Box<Invalid>,
    },
    /// The device's compiler refused the printed source.
    #[error("{device}: the compiler refused kernel `{entry}`:\n{log}")]
    Compile {
        /// Device id.
        device: String,
        /// Entry point.
        entry: String,
        /// What the compiler said.
        log: String,
    },
    /// The compiler did not answer within its limit. The kernel is unusable here; the device is unharmed.
    #[error("{device}: compiling `{entry}` took more than {limit:?}")]
    CompileTimeout {
        /// Device id.
        device: String,
        /// Entry point.
        entry: String,
        /// The limit.
        limit: Duration,
    },
    /// The compile worker died. The kernel is unusable here; the device is unharmed.
    #[error("{device}: the compiler crashed on `{entry}`: {reason}")]
    CompilerCrashed {
        /// Device id.
        device: String,
        /// Entry point.
        entry: String,
        /// How the worker ended.
        reason: String,
    },
    /// A buffer of this size cannot be had.
    #[error("{device}: no room for {bytes} bytes: {reason}")]
    OutOfMemory {
        /// Device id.
        device: String,
        /// Bytes asked for.
        bytes: u64,
        /// What the device said.
        reason: String,
    },
    /// A buffer belongs to another device, or the range lies outside it.
    #[error("{device}: {reason}")]
    BadBuffer {
        /// Device id.
        device: String,
        /// What is wrong.
        reason: String,
    },
    /// The launch does not match its kernel or the device's limits.
    #[error("{device}: launch of `{entry}`: {reason}")]
    BadLaunch {
        /// Device id.
        device: String,
        /// Entry point.
        entry: String,
        /// What is wrong.
        reason: String,
    },
    /// A call into the vendor's library failed.
    #[error("{device}: {call} failed: {reason}")]
    Api {
        /// Device id.
        device: String,
        /// Function of the library.
        call: &'static str,
        /// The library's name for the failure.
        reason: String,
    },
    /// The kernel did not end within the deadline. On a real device its context is lost: open the device in a new
    /// process.
    #[error("{device}: `{entry}` did not end within {deadline:?}; the device is unusable in this process from now on")]
    Hang {
        /// Device id.
        device: String,
        /// Entry point of the last kernel launched.
        entry: String,
        /// The limit.
        deadline: Duration,
    },
    /// A kernel broke the device's context (an access outside all memory, an illegal instruction). Open the device in a
    /// new process.
    #[error("{device}: `{entry}` crashed: {reason}; the device is unusable in this process from now on")]
    Crash {
        /// Device id.
        device: String,
        /// Entry point of the last kernel launched.
        entry: String,
        /// The driver's name for it.
        reason: String,
    },
    /// A kernel crashed or hung in the worker process that holds the device for trials. This process is unharmed; the next trial runs in a
    /// new worker.
    #[error("{device}: `{entry}` {reason}; its worker process has ended, this process is unharmed")]
    WorkerLost {
        /// Device id.
        device: String,
        /// Entry point of the last kernel launched.
        entry: String,
        /// How it ended.
        reason: String,
    },
    /// No worker process can hold the device, so nothing is tried on it.
    #[error(
        "{device}: trials and looks need a worker process: {reason}\n  set TILEWRIGHT_WORKER to the path of the command `tilewright`, put it into PATH, call `tilewright::worker_main()` first in `main`, or choose trials in this process: `Trials::InProcess`, `in_process=True`, `TW_TRIALS_IN_PROCESS`"
    )]
    NoWorker {
        /// Device id.
        device: String,
        /// What is wrong.
        reason: String,
    },
    /// An earlier failure left the device unusable in this process.
    #[error("{device}: unusable in this process since {cause}; start a new process")]
    Poisoned {
        /// Device id.
        device: String,
        /// The failure that did it.
        cause: String,
    },
    /// The emulator measures no time: ask the tuner's cost model.
    #[error("{device}: an emulator has no clock; its times are modelled, not measured")]
    NotTimed {
        /// Device id.
        device: String,
    },
    /// The emulator refused or faulted the kernel: its report names the rule, the statement and the thread.
    #[error("{device}: {error}")]
    Emulation {
        /// Device id.
        device: String,
        /// Entry point.
        entry: String,
        /// What the emulator found.
        error: Box<EmuError>,
    },
    /// A file or process of the binary cache or the compile worker failed.
    #[error("{what}: {reason}")]
    Io {
        /// File or program.
        what: String,
        /// The operating system's reason.
        reason: String,
    },
}

impl DeviceError {
    /// True if the device cannot be used any more in this process, or its memory is gone. A search counts every other
    /// error of a kernel or launch as one failed trial.
    pub const fn is_fatal(&self) -> bool {
        matches!(
            self,
            DeviceError::Hang { .. }
                | DeviceError::Crash { .. }
                | DeviceError::Poisoned { .. }
                | DeviceError::WorkerLost { .. }
                | DeviceError::NoWorker { .. }
        )
    }
}
