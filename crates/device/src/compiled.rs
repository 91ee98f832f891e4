//! A kernel made ready for one device, with what its compiler told about it.

use crate::resources::Resources;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use tilewright_ir::Arg;

/// A kernel compiled without a device, for what its compiler tells.
#[derive(Clone, Debug)]
pub struct Offline {
    /// What was compiled.
    pub source: tilewright_ir::Source,
    /// The binary: a cubin or a code object.
    pub code: Vec<u8>,
    /// What it uses.
    pub resources: Resources,
    /// What the compiler said.
    pub log: String,
}

impl Offline {
    /// As [`Compiled::slow_reason`].
    pub fn slow_reason(&self) -> Option<String> {
        crate::cuda::slow_reason(&self.log, self.resources.spill_bytes)
    }
}

/// A kernel compiled for one device.
pub struct Compiled {
    pub(crate) device: Arc<str>,
    pub(crate) entry: String,
    pub(crate) source: String,
    pub(crate) args: Vec<Arg>,
    pub(crate) threads: u32,
    /// It may begin before the launch ahead of it has ended.
    pub(crate) follows: bool,
    pub(crate) resources: Resources,
    pub(crate) log: String,
    pub(crate) cached: bool,
    pub(crate) binary: Arc<dyn Any + Send + Sync>,
}

impl Compiled {
    /// Id of the device it was compiled for.
    pub fn device(&self) -> &str {
        &self.device
    }
    /// Name of the entry point.
    pub fn entry(&self) -> &str {
        &self.entry
    }
    /// The printed source, in the device's language. On the emulator, the source for the target it plays.
    pub fn source(&self) -> &str {
        &self.source
    }
    /// Arguments in call order.
    pub fn args(&self) -> &[Arg] {
        &self.args
    }
    /// Threads per work-group.
    pub const fn threads(&self) -> u32 {
        self.threads
    }
    /// What it uses.
    pub const fn resources(&self) -> &Resources {
        &self.resources
    }
    /// What the compiler said; may be empty.
    pub fn log(&self) -> &str {
        &self.log
    }
    /// Why the kernel must be slow whatever it is run on, where its compiler says so. Reasons are matrix instructions one after
    /// the other, and more spilled than there are registers. It is right all the same; a search need not run it.
    pub fn slow_reason(&self) -> Option<String> {
        crate::cuda::slow_reason(&self.log, self.resources.spill_bytes)
    }
    /// True if the binary came from the cache.
    pub const fn cached(&self) -> bool {
        self.cached
    }
    pub(crate) fn binary<T: Any + Send + Sync>(&self, device: &str) -> Option<&T> {
        if &*self.device == device { self.binary.downcast_ref() } else { None }
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("device", &self.device)
            .field("entry", &self.entry)
            .field("threads", &self.threads)
            .field("resources", &self.resources)
            .finish_non_exhaustive()
    }
}
