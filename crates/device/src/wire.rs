//! What crosses between a tuner and the worker that holds its device: plain data.

use crate::identity::Identity;
use crate::{CacheState, DeviceError, MapExtents, Resources};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use tilewright_ir::Kernel;

/// The build of this program, as far as a worker is concerned (`build.rs`). A worker answers [`Call::Open`] with its own: one of another build
/// would print another kernel, and time it in place of ours.
pub(crate) const BUILD: &str = env!("TILEWRIGHT_BUILD");

/// How the worker opens its device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Opening {
    pub identity: Identity,
    pub deadline: Duration,
    pub compile_limit: Duration,
    /// Folder of the cache of binaries.
    pub cache: Option<PathBuf>,
    /// Its own compile workers.
    pub compilers: Invocation,
    /// The file of the memory that both share.
    pub staging: PathBuf,
}

/// A program to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Invocation {
    pub path: PathBuf,
    pub args: Vec<String>,
}

/// A call, with numbers that the tuner gives to memory and kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Call {
    Open(Opening),
    Prepare {
        threads: usize,
    },
    Load {
        number: u64,
        kernel: Box<Kernel>,
    },
    Alloc {
        number: u64,
        bytes: u64,
    },
    /// Of memory and kernels that nobody holds any more.
    Free {
        memory: Vec<u64>,
        kernels: Vec<u64>,
    },
    /// The bytes begin here in the shared memory.
    Write {
        to: Part,
        at: usize,
    },
    /// The bytes go there in the shared memory.
    Read {
        from: Part,
        at: usize,
    },
    Fill {
        part: Part,
        byte: u8,
    },
    Launch(Vec<Start>),
    Rehearse(Vec<Start>),
    Sync,
    Time {
        launches: Vec<Start>,
        cache: CacheState,
        repeats: u32,
    },
}

impl Call {
    /// True for calls that run beside others: they take long, and the tuner makes several at once.
    pub(crate) fn runs_in_parallel(&self) -> bool {
        const LONG: u64 = 1 << 20;
        match self {
            Call::Load { .. } | Call::Rehearse(_) => true,
            Call::Write { to: part, .. } | Call::Read { from: part, .. } => part.bytes >= LONG,
            _ => false,
        }
    }
}

/// A part of an allocation, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    pub memory: u64,
    pub offset: u64,
    pub bytes: u64,
}

/// A launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub kernel: u64,
    pub grid: [u32; 3],
    pub args: Vec<Given>,
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Given {
    Buffer(Part),
    Map(Part, MapExtents),
    I32(i32),
    I64(i64),
    /// As bits: JSON has no infinities.
    F32(u32),
    /// As bits.
    F64(u64),
}

/// The answer to [`Call::Load`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoadReply {
    pub resources: Resources,
    pub log: String,
    pub cached: bool,
}

/// The answer to [`Call::Time`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TimeReply {
    /// Microseconds.
    pub times: Vec<f64>,
    /// The wait for another process that timed on the device, where it was long.
    pub waited: Option<Waited>,
}

/// A wait for another process that holds the device's lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waited {
    /// The process, as it wrote into the lock's file.
    pub holder: String,
    pub time: Duration,
    /// The other process did not release the device: both timed at once.
    pub in_vain: bool,
}

impl std::fmt::Display for Waited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waited {:.1} s for {}, which times on this device", self.time.as_secs_f64(), self.holder)?;
        if self.in_vain { write!(f, "; both time at once now, and times may be too large") } else { Ok(()) }
    }
}

/// An error of the worker's device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fault {
    kind: Kind,
    entry: String,
    reason: String,
    bytes: u64,
    limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Kind {
    Compile,
    CompileTimeout,
    CompilerCrashed,
    OutOfMemory,
    BadBuffer,
    BadLaunch,
    Hang,
    Crash,
    Other,
}

impl From<DeviceError> for Fault {
    fn from(e: DeviceError) -> Fault {
        let text = e.to_string();
        let fault = |kind, entry, reason| Fault { kind, entry, reason, bytes: 0, limit: Duration::ZERO };
        match e {
            DeviceError::Compile { entry, log, .. } => fault(Kind::Compile, entry, log),
            DeviceError::CompileTimeout { entry, limit, .. } => {
                Fault { limit, ..fault(Kind::CompileTimeout, entry, String::new()) }
            }
            DeviceError::CompilerCrashed { entry, reason, .. } => fault(Kind::CompilerCrashed, entry, reason),
            DeviceError::OutOfMemory { bytes, reason, .. } => Fault { bytes, ..fault(Kind::OutOfMemory, String::new(), reason) },
            DeviceError::BadBuffer { reason, .. } => fault(Kind::BadBuffer, String::new(), reason),
            DeviceError::BadLaunch { entry, reason, .. } => fault(Kind::BadLaunch, entry, reason),
            DeviceError::Hang { entry, deadline, .. } => Fault { limit: deadline, ..fault(Kind::Hang, entry, String::new()) },
            DeviceError::Crash { entry, reason, .. } => fault(Kind::Crash, entry, reason),
            DeviceError::Poisoned { cause, .. } => fault(Kind::Crash, String::new(), cause),
            _ => fault(Kind::Other, String::new(), text),
        }
    }
}

impl Fault {
    /// The same error of the tuner's device.
    pub fn on(self, device: &str) -> DeviceError {
        let device = device.to_string();
        let Fault { kind, entry, reason, bytes, limit } = self;
        match kind {
            Kind::Compile => DeviceError::Compile { device, entry, log: reason },
            Kind::CompileTimeout => DeviceError::CompileTimeout { device, entry, limit },
            Kind::CompilerCrashed => DeviceError::CompilerCrashed { device, entry, reason },
            Kind::OutOfMemory => DeviceError::OutOfMemory {
                device,
                bytes,
                reason: format!(
                    "{reason}; trials run in a worker process beside this one: release memory of the device here, or choose trials in this process"
                ),
            },
            Kind::BadBuffer => DeviceError::BadBuffer { device, reason },
            Kind::BadLaunch => DeviceError::BadLaunch { device, entry, reason },
            Kind::Hang => DeviceError::WorkerLost { device, entry, reason: format!("did not end within {limit:?}") },
            Kind::Crash => DeviceError::WorkerLost { device, entry, reason: format!("crashed: {reason}") },
            Kind::Other => DeviceError::Api { device, call: "the worker", reason },
        }
    }
}
