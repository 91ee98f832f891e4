//! Vendor libraries under one trait: each runs the same problem on the same device buffers and the same queue.

mod clblast;
mod clblast_tuned;
mod cublas;
mod cublas_3m;
mod cublas_complex;
mod cublas_groups;
mod cublaslt;
mod cuda;
mod cudnn;
mod gemm;

use crate::error::BenchError;
use crate::record::Workspace;
use crate::stats::median;
use crate::workload::{Workload, native};
use std::path::Path;
use std::time::{Duration, Instant};
use tilewright_device::{Device, DeviceError, Timing};

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
    /// Device memory besides the operands, where the library takes it from its caller.
    fn workspace(&self) -> Option<Workspace> {
        None
    }
}

/// The libraries that `--against` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Library {
    /// cuBLAS; f32 with TF32 off. Of grouped products a call for each group.
    Cublas,
    /// cuBLAS's one call for all groups of a grouped product.
    CublasGrouped,
    /// cuBLAS's complex products by three real ones in place of four (`cublasCgemm3m`), whose results are less accurate.
    #[value(name = "cublas-3m")]
    Cublas3m,
    /// cuBLASLt: the best right one of its first 32 heuristic results, with 128 MiB of workspace.
    Cublaslt,
    /// cuBLASLt with 1 GiB of workspace, as much as generated kernels may use by default.
    #[value(name = "cublaslt-1g")]
    Cublaslt1g,
    /// cuDNN: the best right one of its convolution calls' algorithms and its graph interface's plans; f32 with TF32 off.
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
        Library::CublasGrouped => Box::new(cublas_groups::CublasGroups::open(native)?),
        Library::Cublas3m => Box::new(cublas_3m::Cublas3m::open(native)?),
        Library::Cublaslt => Box::new(cublaslt::CublasLt::open(native, "cublaslt", 128 << 20)?),
        Library::Cublaslt1g => Box::new(cublaslt::CublasLt::open(native, "cublaslt-1g", 1 << 30)?),
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

/// Which of several ways to compute a problem was chosen.
struct Chosen {
    /// Its number.
    number: usize,
    /// Its result was right. False only where no way computes right.
    right: bool,
    /// Faster ones whose results were wrong.
    passed_over: usize,
}

impl Chosen {
    /// For the record, after what was chosen.
    fn note(&self) -> String {
        match (self.right, self.passed_over) {
            (true, 0) => String::new(),
            (true, n) => format!(", {n} faster but wrong"),
            (false, n) => format!(", all {n} wrong"),
        }
    }
}

/// How often the ways are timed among which the fastest is chosen.
#[derive(Clone, Copy)]
struct Samples {
    /// Samples of every way.
    first: u32,
    /// Ways that are timed again, the fastest ones of the first samples.
    again: usize,
}

impl Samples {
    /// Samples of those that are timed again.
    const MOST: u32 = 9;
    /// All samples of every way.
    const ALL: Samples = Samples { first: Samples::MOST, again: 0 };
    /// A first look at every way, all samples of the eight fastest.
    const OF_FASTEST: Samples = Samples { first: 3, again: 8 };
}

/// A way whose untimed run lasts longer than this, and than [`SLOWER`] times the fastest untimed run, is timed no further.
const LONG: Duration = Duration::from_secs(1);
/// See [`LONG`].
const SLOWER: u32 = 20;

/// Whether a way is dropped after its untimed run: its samples would take minutes, and it cannot win.
fn is_hopeless(run: Duration, fastest: Duration) -> bool {
    run > LONG && run > fastest.saturating_mul(SLOWER)
}

/// Times every way to compute a workload: one run untimed, then samples with caches as the workload says. The fastest ones are
/// timed again where `samples` says so. Gives the fastest way with a right result, or the fastest of all where none is right.
/// Ways that fail are passed over, and so are ways with an untimed run that takes far too long ([`LONG`]).
///
/// # Errors
/// Why the last one failed, if all did.
fn fastest_right(
    workload: &Workload<'_>,
    count: usize,
    samples: Samples,
    run: &mut dyn FnMut(usize) -> Result<(), String>,
) -> Result<Chosen, BenchError> {
    let mut failure = BenchError::Call { call: "heuristics", reason: "the library offers nothing for this problem".into() };
    let native = workload.native();
    let mut settle = |outcome: Result<Option<f64>, DeviceError>| match outcome {
        Ok(median) => Ok(median),
        Err(e) if e.is_fatal() => Err(BenchError::from(e)),
        Err(e) => {
            failure = e.into();
            Ok(None)
        }
    };
    let time = |number: usize, repeats: u32, run: &mut dyn FnMut(usize) -> Result<(), String>| {
        let timing = Timing { cache: workload.cache(), repeats };
        native.time(&mut || run(number), &timing).map(|samples| median(&samples))
    };
    let (mut times, mut fastest) = (Vec::new(), Duration::MAX);
    for number in 0..count {
        let start = Instant::now();
        let untimed = native.run(&mut || run(number)).map(|()| start.elapsed());
        let median = settle(untimed.and_then(|untimed| {
            fastest = fastest.min(untimed);
            if is_hopeless(untimed, fastest) { Ok(None) } else { time(number, samples.first, run) }
        }))?;
        times.extend(median.map(|us| (number, us)));
    }
    times.sort_by(|x, y| x.1.total_cmp(&y.1));
    let rest = times.split_off(times.len().min(samples.again));
    for way in &mut times {
        way.1 = settle(time(way.0, Samples::MOST, run))?.unwrap_or(f64::INFINITY);
    }
    times.sort_by(|x, y| x.1.total_cmp(&y.1));
    times.extend(rest);
    for (passed_over, &(number, _)) in times.iter().enumerate() {
        let mut once = || Ok(native.run(&mut || run(number))?);
        match workload.check(&mut once) {
            Ok(judgement) if judgement.correct => return Ok(Chosen { number, right: true, passed_over }),
            Err(e) if e.is_fatal() => return Err(e),
            _ => {}
        }
    }
    match times.first() {
        Some(&(number, _)) => Ok(Chosen { number, right: false, passed_over: times.len() }),
        None => Err(failure),
    }
}
