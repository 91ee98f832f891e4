//! The hold: a kernel that keeps the stream waiting until the host has queued a whole timed span. What the host needs for a call, of
//! a library above all, is then no part of the span.

use super::{Context, Driver, Failure, Handle, LaunchSize, Loaded, Pinned};
use crate::DeviceError;
use crate::device::Backend;
use crate::job::Job;
use crate::timing::hold_expired;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Launches that are queued during a hold. More would fill the driver's queue, which then blocks the host that is to end the hold.
pub(super) const HELD: usize = 256;
/// Entry point of the kernel.
pub(super) const ENTRY: &str = "tw_hold";

/// The kernel in CUDA C++: waits for its ticket, for 2 s of the device's clock at most.
const CUDA: &str = r#"
__device__ unsigned long long tw_now() { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
extern "C" __global__ void tw_hold(volatile unsigned *flags, unsigned ticket) {
    const unsigned long long start = tw_now();
    while ((int)(flags[0] - ticket) < 0) {
        if (tw_now() - start > 2000000000ull) { flags[1] = ticket; __threadfence_system(); return; }
        __nanosleep(100);
    }
}
"#;

/// The same in HIP, whose clock counts 10 ns.
const HIP: &str = r#"
extern "C" __global__ void tw_hold(volatile unsigned *flags, unsigned ticket) {
    const long long start = wall_clock64();
    while ((int)(flags[0] - ticket) < 0) {
        if (wall_clock64() - start > 200000000ll) { flags[1] = ticket; __threadfence_system(); return; }
        __builtin_amdgcn_s_sleep(8);
    }
}
"#;

/// What is to be compiled for it, given any job of the device.
pub(super) fn job(of: Job) -> Job {
    let source = if of.backend == Backend::Hip { HIP } else { CUDA };
    Job { entry: ENTRY.into(), source: source.into(), ..of }
}

/// The loaded kernel and the flags that it shares with the host. They are the last ticket that is released, and the last that ran
/// out of time.
pub(super) struct Hold<D: Driver> {
    context: Arc<Context<D>>,
    loaded: Loaded,
    flags: Pinned,
}

impl<D: Driver> Hold<D> {
    pub(super) fn new(context: Arc<Context<D>>, driver: &D, loaded: Loaded) -> Result<Self, Failure> {
        let flags = match driver.pinned(2 * size_of::<u32>()) {
            Ok(flags) => flags,
            Err(failure) => {
                driver.unload(loaded.module);
                return Err(failure);
            }
        };
        let hold = Hold { context, loaded, flags };
        hold.flag(0).store(0, Ordering::SeqCst);
        hold.flag(1).store(0, Ordering::SeqCst);
        Ok(hold)
    }

    fn flag(&self, n: usize) -> &AtomicU32 {
        // SAFETY: the allocation has two aligned numbers and lives as long as `self`; all accesses are atomic or the device's own.
        unsafe { AtomicU32::from_ptr((self.flags.host as *mut u32).add(n)) }
    }

    /// Queues the kernel for the next ticket, which the queue then keeps.
    pub(super) fn begin(&self, driver: &D, last: &mut u32) -> Result<Held, Failure> {
        let mut ticket = last.wrapping_add(1).max(1);
        *last = ticket;
        let mut flags = self.flags.device;
        let mut params = [(&raw mut flags).cast::<c_void>(), (&raw mut ticket).cast()];
        self.context.gate.shut();
        let size = LaunchSize { grid: [1, 1, 1], threads: 1, shared: 0 };
        let stream = Handle(driver.stream().0);
        // SAFETY: the kernel takes an address and a number; the flags live as long as the device.
        let launched = unsafe { driver.launch(stream, self.loaded.function, size, false, &mut params) };
        match launched {
            Ok(()) => Ok(Held { ticket, launches: 0 }),
            Err(failure) => {
                self.context.gate.open();
                Err(failure)
            }
        }
    }

    /// Lets the device go on.
    pub(super) fn end(&self, held: &Held) {
        self.flag(0).store(held.ticket, Ordering::SeqCst);
        self.context.gate.open();
    }

    /// Fails if the hold of this ticket, or a later hold, ended by its time limit instead of by the host's release.
    pub(super) fn judge(&self, ticket: u32) -> Result<(), DeviceError> {
        let expired = self.flag(1).load(Ordering::SeqCst);
        if expired == 0 || (expired.wrapping_sub(ticket) as i32) < 0 {
            return Ok(());
        }
        Err(hold_expired(&self.context.id))
    }
}

impl<D: Driver> Drop for Hold<D> {
    fn drop(&mut self) {
        if let Some(driver) = self.context.to_free() {
            driver.unload(self.loaded.module);
            driver.free_pinned(self.flags);
        }
    }
}

/// A hold that the host has not ended.
#[derive(Debug)]
pub(super) struct Held {
    pub ticket: u32,
    /// Launches queued since.
    pub launches: usize,
}

/// Shut while the device is held. Calls of other threads that wait for the device inside of the driver would keep the host from ending
/// the hold: they wait here.
#[derive(Default)]
pub(super) struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.is_shut.lock().unwrap_or_else(PoisonError::into_inner) = shut;
        self.opened.notify_all();
    }
    fn shut(&self) {
        self.set(true);
    }
    fn open(&self) {
        self.set(false);
    }
    /// Returns when the gate is open, or after the longest hold.
    pub(super) fn pass(&self) {
        let is_shut = self.is_shut.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = self.opened.wait_timeout_while(is_shut, Duration::from_millis(2500), |shut| *shut);
        drop(passed);
    }
}
