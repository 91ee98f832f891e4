//! Vendor libraries behind one trait: each runs the same problem on the same device buffers and the same queue.

mod clblast;
mod clblast_tuned;
mod cublas;
mod cublaslt;
mod cuda;
mod cudnn;
mod gemm;

use crate::error::BenchError;
use crate::stats::median;
use crate::workload::Workload;
use std::path::Path;
use tilewright_device::{Device, Native, Timing};

/// A vendor's library, opened for one device.
pub trait Baseline {
    /// What it is called in options, tables and records.
    fn name(&self) -> &'static str;
    /// Its version.
    fn version(&self) -> String;
    /// Makes it ready for a problem. What the library lets its users choose from is chosen here, by timing.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] where it does not compute the problem; [`BenchError::Call`] where a call fails.
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError>;
}

/// A library made ready for one problem on one set of buffers.
pub trait Runner {
    /// Puts one execution on the device's queue, without waiting.
    ///
    /// # Errors
    /// The library's refusal.
    fn enqueue(&mut self) -> Result<(), String>;
    /// What was chosen, for the record.
    fn note(&self) -> String {
        String::new()
    }
}

/// The libraries that `--against` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Library {
    /// cuBLAS; f32 with TF32 off.
    Cublas,
    /// cuBLASLt: the best of its eight first heuristic results.
    Cublaslt,
    /// cuDNN, f32 with TF32 off.
    Cudnn,
    /// CLBlast as it comes.
    Clblast,
    /// CLBlast with the best parameters its own tuners found for this size.
    ClblastTuned,
}

/// Opens a library on a device. `tuned` is the folder with the results of CLBlast's tuners.
///
/// # Errors
/// [`BenchError::Missing`] with how to get it; [`BenchError::Unsupported`] if the device does not speak its API.
pub fn open(library: Library, device: &dyn Device, tuned: Option<&Path>) -> Result<Box<dyn Baseline>, BenchError> {
    let native = native(device)?;
    Ok(match library {
        Library::Cublas => Box::new(cublas::Cublas::open(native)?),
        Library::Cublaslt => Box::new(cublaslt::CublasLt::open(native)?),
        Library::Cudnn => Box::new(cudnn::Cudnn::open(native)?),
        Library::Clblast => Box::new(clblast::ClBlast::open(native)?),
        Library::ClblastTuned => {
            let folder = tuned.ok_or_else(|| {
                BenchError::Usage(
                    "clblast-tuned needs --clblast-tuned DIR with what CLBlast's tuners wrote; \
                     crates/bench/scripts/clblast-tune.sh runs them"
                        .into(),
                )
            })?;
            Box::new(clblast_tuned::Tuned::open(native, folder)?)
        }
    })
}

/// A version as NVIDIA's libraries count it: 130100 is 13.1.0.
fn version(number: usize) -> String {
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// A device's native side.
///
/// # Errors
/// [`BenchError::Usage`] for the emulator.
pub fn native(device: &dyn Device) -> Result<&dyn Native, BenchError> {
    device.native().ok_or_else(|| {
        BenchError::Usage(format!("{} has no vendor libraries and no clock; choose cuda:0 or opencl:0", device.info().id))
    })
}

/// Times every alternative (one warm-up, then cold repeats) and gives the number and the median of the fastest; those that
/// fail are passed over.
///
/// # Errors
/// Why the last one failed, if all did.
fn fastest(
    native: &dyn Native,
    count: usize,
    run: &mut dyn FnMut(usize) -> Result<(), String>,
) -> Result<(usize, f64), BenchError> {
    let mut best: Option<(usize, f64)> = None;
    let mut failure = BenchError::Call { call: "heuristics", reason: "the library offers nothing for this problem".into() };
    for n in 0..count {
        let mut time = |repeats| native.time(&mut || run(n), &Timing { flush_l2: true, repeats });
        let us = match time(1).and_then(|_| time(5)) {
            Ok(times) => median(&times).unwrap_or(f64::INFINITY),
            Err(e) if e.is_fatal() => return Err(e.into()),
            Err(e) => {
                failure = e.into();
                continue;
            }
        };
        if best.is_none_or(|(_, least)| us < least) {
            best = Some((n, us));
        }
    }
    best.ok_or(failure)
}
