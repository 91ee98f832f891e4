//! Launches in sequence, as on one queue, and the launches that may still run when the next launch begins.

use crate::exec::Worker;
use crate::launch::{Launch, Past};
use crate::{ArgValue, Counters, EmuError, Program, Report};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// A queue. Launches run one after the other. With [`crate::Checks::global_races`] one that
/// [follows](tilewright_ir::Kernel::follows) is held against those that may still run where it has not waited for them.
#[derive(Debug, Default)]
pub struct Queue {
    /// What may still run when a launch that follows begins.
    running: Vec<Past>,
}

impl Queue {
    /// Runs `grid` work-groups (x, y, z) with one value per kernel argument.
    ///
    /// Work-groups are handed out in order to [`crate::Options::threads`] host threads. With one thread, or without atomics on floats,
    /// results are the same in every run.
    ///
    /// # Errors
    /// Arguments that do not fit, or the first broken rule, of the lowest-numbered work-group that breaks one. The contents of the
    /// buffers that the kernel writes are then unspecified.
    pub fn run(&mut self, program: &Program, grid: [u32; 3], args: &[ArgValue]) -> Result<Report, EmuError> {
        let (code, options) = (&program.code, &program.options);
        if !code.follows {
            self.running.clear();
        }
        let launch = Launch::new(code, options, grid, args, &self.running)?;
        // Those of a cluster run together, on one host thread.
        let groups = launch.groups() / u64::from(code.cluster);
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if options.threads > 0 { options.threads } else { cores() };
        let threads = threads.min(usize::try_from(groups).unwrap_or(usize::MAX));
        let shared = Progress { next: AtomicU64::new(0), stop: AtomicBool::new(false), done: Mutex::default() };
        if threads <= 1 {
            shared.work(&launch, groups);
        } else {
            std::thread::scope(|s| {
                for _ in 0..threads {
                    s.spawn(|| shared.work(&launch, groups));
                }
            });
        }
        // A launch with `precedes` lets the next launch begin at any time, even before its own wait. After any other launch, the next begins
        // only at its end.
        if !code.precedes {
            self.running.clear();
        }
        self.running.push(launch.past());
        let (counters, failed) = shared.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        match failed {
            Some((_, error)) => Err(error),
            None => Ok(Report { groups: ((groups - 1).div_ceil(options.every.max(1)) + 1) * u64::from(code.cluster), counters }),
        }
    }
}

/// What host threads share while a launch runs.
struct Progress {
    next: AtomicU64,
    stop: AtomicBool,
    /// Work counted, and the failure of the lowest-numbered work-group.
    done: Mutex<(Counters, Option<(u64, EmuError)>)>,
}

impl Progress {
    fn work(&self, launch: &Launch<'_>, groups: u64) {
        let mut worker = Worker::new(launch);
        let mut failed = None;
        let every = launch.options.every.max(1);
        while !self.stop.load(Relaxed) {
            let place = self.next.fetch_add(1, Relaxed).saturating_mul(every);
            let number = place.min(groups - 1);
            if place >= groups - 1 + every {
                break;
            }
            let ran = worker.run(number);
            // What was lost for want of memory explains whatever else went wrong.
            if let Err(error) = launch.intact().and(ran) {
                self.stop.store(true, Relaxed);
                failed = Some((number, error));
            }
        }
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.0.add(&worker.counters());
        if let Some((number, error)) = failed
            && done.1.as_ref().is_none_or(|(n, _)| number < *n)
        {
            done.1 = Some((number, error));
        }
    }
}
