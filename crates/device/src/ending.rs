//! The end of the process. From then on nothing on a device is freed, and no compiler runs in this process. Libraries that share
//! the device, or that compile, may have taken down their own state already. The system frees everything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Whether the process is about to end, and the compilations that run in it.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    has_come: AtomicBool,
    compilations: Mutex<usize>,
    idle: Condvar,
}

/// That of this process.
pub(crate) static OF_PROCESS: Ending = Ending::new();

/// Prepares for the end of the process: waits for compilers that run in it, at most so long. From now on none starts, and nothing on a
/// device is freed. Runtimes that call finalizers before they end, such as Python's, call it first.
pub fn end_of_process(limit: Duration) {
    OF_PROCESS.come(limit);
}

/// A compilation in this process, until it is dropped.
pub(crate) struct Compilation<'a>(&'a Ending);

impl Ending {
    pub(crate) const fn new() -> Ending {
        Ending { has_come: AtomicBool::new(false), compilations: Mutex::new(0), idle: Condvar::new() }
    }

    pub(crate) fn come(&self, limit: Duration) {
        self.has_come.store(true, Ordering::SeqCst);
        let running = self.compilations.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.idle.wait_timeout_while(running, limit, |running| *running > 0));
    }

    pub(crate) fn has_come(&self) -> bool {
        self.has_come.load(Ordering::SeqCst)
    }

    /// Registers a compilation; None at the end of the process.
    pub(crate) fn compilation(&self) -> Option<Compilation<'_>> {
        let mut running = self.compilations.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that `come` either sees the compilation or has come before it.
        if self.has_come() {
            return None;
        }
        *running += 1;
        Some(Compilation(self))
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        *self.0.compilations.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.idle.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_end_waits_for_compilers_and_no_other_starts() {
        let ending = Ending::new();
        std::thread::scope(|scope| {
            let running = ending.compilation().unwrap();
            let start = Instant::now();
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                drop(running);
            });
            ending.come(Duration::from_secs(60));
            assert!((Duration::from_millis(90)..Duration::from_secs(30)).contains(&start.elapsed()), "{:?}", start.elapsed());
        });
        assert!(ending.has_come() && ending.compilation().is_none());
        // One that hangs holds up nothing.
        let other = Ending::new();
        let _hangs = other.compilation().unwrap();
        other.come(Duration::from_millis(10));
    }
}
