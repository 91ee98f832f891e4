//! The hold: an event that the host completes when it has queued a whole timed span. Then the span holds no host time of a call, of a
//! library above all. A watchdog completes the event after [`LONGEST`], so that a call that waits for the device ends.

use super::handle::{Failure, Handle, check};
use opencl3::error_codes::CL_OUT_OF_HOST_MEMORY;
use opencl3::event as cl_event;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Launches that are queued during a hold. More would fill a driver's queue, which then blocks the host that is to end the hold.
pub(super) const HELD: usize = 256;
/// Longest hold.
const LONGEST: Duration = Duration::from_secs(2);

/// States of an event.
const WAITS: u8 = 0;
const RELEASED: u8 = 1;
const EXPIRED: u8 = 2;

/// The event of a hold, which the host and the watchdog share.
pub(super) struct UserEvent {
    handle: Handle,
    state: AtomicU8,
}

impl UserEvent {
    /// The event, for a command that waits for it.
    pub(super) const fn handle(&self) -> &Handle {
        &self.handle
    }
    /// Completes the event, unless it is complete: OpenCL takes one completion only.
    fn complete(&self, state: u8) -> Result<(), Failure> {
        if self.state.compare_exchange(WAITS, state, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Ok(());
        }
        check("clSetUserEventStatus", cl_event::set_user_event_status(self.handle.get(), cl_event::CL_COMPLETE))
    }
    /// The watchdog ended the hold.
    pub(super) fn is_expired(&self) -> bool {
        self.state.load(Ordering::SeqCst) == EXPIRED
    }
}

/// A hold that the host has not ended. Its drop ends it.
pub(super) struct Hold {
    pub(super) event: Arc<UserEvent>,
    /// Launches queued since.
    launches: usize,
    /// Its drop ends the watchdog.
    _ended: mpsc::Sender<()>,
}

impl Hold {
    /// A hold of a context's queue, and its watchdog. It holds what waits for its event.
    pub(super) fn begin(context: &Handle) -> Result<Hold, Failure> {
        let event = check("clCreateUserEvent", cl_event::create_user_event(context.get()))?;
        let handle = Handle::new(event, cl_event::release_event);
        let event = Arc::new(UserEvent { handle, state: AtomicU8::new(WAITS) });
        let (ended, wait) = mpsc::channel();
        let watched = event.clone();
        let watch = move || {
            if wait.recv_timeout(LONGEST) == Err(mpsc::RecvTimeoutError::Timeout)
                && let Err(Failure { call, reason, .. }) = watched.complete(EXPIRED)
            {
                tracing::warn!("{call}: {reason}");
            }
        };
        // Without a watchdog nothing is held.
        std::thread::Builder::new().name("hold".into()).spawn(watch).map_err(|e| Failure {
            call: "the hold of the device",
            reason: format!("no thread for its watchdog: {e}"),
            code: CL_OUT_OF_HOST_MEMORY,
        })?;
        Ok(Hold { event, launches: 0, _ended: ended })
    }

    /// Counts a launch; true if there must be no more.
    pub(super) fn is_full_after_one_more(&mut self) -> bool {
        self.launches += 1;
        self.launches >= HELD
    }

    /// Lets the device go on.
    pub(super) fn end(self) -> Result<(), Failure> {
        self.event.complete(RELEASED)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // After `end` there is nothing to do. On the way of an error the device must go on all the same.
        let _ = self.event.complete(RELEASED);
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::{ClDevice, Queue};
    use super::*;
    use crate::options::Options;
    use crate::{Cache, CacheState, Device, Launch, Native, NativeHandles, Timing};
    use opencl3::command_queue as cl_queue;
    use std::time::Instant;
    use tilewright_ir::Builder;

    /// PoCL's device, or another one, that is held although it is a processor; nothing without a driver. The driver must not be PoCL's `basic`.
    fn held() -> Option<ClDevice> {
        let options = Options { cache: Cache::disabled(), ..Options::default() };
        match super::super::device("0", &options) {
            Ok(mut device) => {
                device.holds = true;
                Some(device)
            }
            Err(e) if std::env::var_os("TILEWRIGHT_REQUIRE_TOOLS").is_some() => panic!("an OpenCL device: {e}"),
            Err(e) => {
                eprintln!("SKIPPED: an OpenCL device: {e}");
                None
            }
        }
    }

    fn launch(device: &ClDevice) -> Launch {
        Launch { kernel: device.compile(&Builder::new("nothing", 32).finish()).unwrap(), grid: [1; 3], args: Vec::new() }
    }

    #[test]
    fn a_hold_ends_when_256_launches_are_queued() {
        let Some(device) = held() else { return };
        let (one, sweep) = (launch(&device), device.sweep.launch(&device).unwrap());
        for cache in [CacheState::Cold, CacheState::Warm] {
            let mut holds = Vec::new();
            let mut work = |queue: &mut Queue| {
                holds.clear();
                for _ in 0..2 * HELD {
                    device.start(queue, &one)?;
                    holds.push(queue.is_held());
                }
                Ok(())
            };
            let time = device.timed(&mut device.queue().unwrap(), &sweep, cache, &mut work).unwrap();
            assert!(time > 0.0 && holds.iter().filter(|held| **held).count() == HELD - 1, "{time}: {holds:?}");
            assert!(holds[HELD - 2] && !holds[HELD - 1]);
        }
        assert!(Device::time(&device, &[one], &Timing::cold(3)).unwrap().iter().all(|&us| us > 0.0 && us < 1e6));
    }

    #[test]
    fn a_call_that_waits_for_the_device_is_freed_after_two_seconds_and_its_sample_fails() {
        let Some(device) = held() else { return };
        let one = launch(&device);
        let NativeHandles::OpenCl { queue, .. } = device.handles() else { panic!("handles of OpenCL") };
        let mut calls = 0;
        let mut waits = || {
            calls += 1;
            cl_queue::finish(queue as *mut std::ffi::c_void).map_err(|code| code.to_string())
        };
        let start = Instant::now();
        let failed = Native::time(&device, &mut waits, &Timing::cold(3)).unwrap_err().to_string();
        let took = start.elapsed();
        assert!(failed.contains("within 2 s") && failed.contains("a call waits for the device"), "{failed}");
        assert!((LONGEST..LONGEST * 5).contains(&took), "{took:?}");
        // No other sample is taken, and the device goes on.
        assert_eq!(calls, 1);
        let mut returns = || Ok(());
        assert_eq!(Native::time(&device, &mut returns, &Timing::cold(3)).unwrap().len(), 3);
        assert_eq!(Device::time(&device, &[one], &Timing::cold(2)).unwrap().len(), 2);
    }

    #[test]
    fn a_call_that_fails_ends_the_hold() {
        let Some(device) = held() else { return };
        let start = Instant::now();
        let failed = Native::time(&device, &mut || Err("no such routine".into()), &Timing::cold(1)).unwrap_err().to_string();
        assert!(failed.contains("no such routine") && start.elapsed() < LONGEST, "{failed}");
    }
}
