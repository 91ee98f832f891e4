//! Random pairs of plan and problem through OpenCL, on PoCL in CI.
//!
//! Each takes PoCL about a third of a second to compile, so there are few; `TILEWRIGHT_RANDOM_PAIRS=500` is for once before a release, and for
//! another `TILEWRIGHT_RANDOM_SEED`. Without an OpenCL device the test says so and is skipped; with
//! `TILEWRIGHT_REQUIRE_TOOLS=1` it fails.

#[path = "../../ir/tests/support/missing.rs"]
mod missing;
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use support::{judge, number};
use tilewright_device::open;
use tilewright_tune::random::{Recipe, pair};

#[test]
fn random_pairs_verify_on_opencl() {
    all_pass(Recipe::short_code());
}

/// What runs ahead, stores late, reads fragments early: processors have neither roles nor asynchronous copies.
#[test]
fn random_schedules_verify_on_opencl() {
    all_pass(Recipe { schedules: true, ..Recipe::short_code() });
}

/// Reductions of results, and of tensors by themselves: no lanes exchange, so that all threads meet in shared memory.
#[test]
fn random_reductions_verify_on_opencl() {
    all_pass(Recipe { reductions: true, ..Recipe::short_code() });
}

fn all_pass(recipe: Recipe) {
    let device = match open("opencl") {
        Ok(device) => device,
        Err(e) => return missing::missing(&e.to_string()),
    };
    let count = number("TILEWRIGHT_RANDOM_PAIRS").unwrap_or(100);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let (start, next, failed) = (Instant::now(), AtomicU64::new(first), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let wrong = match pair(&device.info().target, &recipe, seed) {
                        Some(pair) => judge(&device, &pair),
                        None => Some(format!("seed {seed}: no legal pair was found")),
                    };
                    failed.lock().unwrap().extend(wrong);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    eprintln!("{count} pairs on {} in {:.1} s, {} failed", device.info().name, start.elapsed().as_secs_f64(), failed.len());
    assert!(failed.is_empty(), "{} of {count} failed, among them:\n{}", failed.len(), failed[..failed.len().min(12)].join("\n"));
}
