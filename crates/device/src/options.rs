//! How devices are opened: cache, compile workers, limits.

use crate::cache::Cache;
use crate::worker::Workers;
use std::sync::Arc;
use std::time::Duration;

/// How a device is opened.
///
/// ```
/// use std::time::Duration;
/// use tilewright_device::{Cache, Options, open_with};
///
/// // Kernels that run for more than a second count as hung, and nothing is written to disk.
/// let options = Options { deadline: Duration::from_secs(1), cache: Cache::disabled(), ..Options::default() };
/// assert_eq!(open_with("emu", &options)?.info().id, "emu");
/// # Ok::<(), tilewright_device::DeviceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// Where compiled binaries are kept.
    pub cache: Cache,
    /// Compiles in worker processes; without them on a thread of this process, where a crash of the vendor's compiler is
    /// a crash of the program.
    pub workers: Option<Arc<Workers>>,
    /// Longest time one compilation may take.
    pub compile_limit: Duration,
    /// Longest time one wait for the device may take before its kernel counts as hung.
    pub deadline: Duration,
    /// How the emulator runs kernels: with all checks by default. The wave width comes from the target it plays.
    #[cfg(feature = "emulator")]
    pub emulator: tilewright_emu::Options,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            cache: Cache::from_env(),
            workers: None,
            compile_limit: Duration::from_secs(60),
            deadline: Duration::from_secs(20),
            #[cfg(feature = "emulator")]
            emulator: tilewright_emu::Options { max_steps: 1 << 32, ..tilewright_emu::Options::default() },
        }
    }
}

impl Options {
    /// Compiles in worker processes.
    #[must_use]
    pub fn with_workers(mut self, workers: Workers) -> Self {
        self.workers = Some(Arc::new(workers));
        self
    }
}
