//! The library of tilewright. It turns a problem (a matrix product, a convolution, a reduction) into the fastest GPU kernel that
//! it finds for your shape on your device. It verifies the kernel, runs it, and gives you its source.
//!
//! A [`Context`] is a device with its tuning records. An [`Operation`] is one problem on a context: it has a plan, can be tuned, runs on
//! [`Operands`], and prints its source. A [`Buffer`] is typed device memory. A [`Prepared`] operation is launched on memory and streams of
//! the caller.
//!
//! ```
//! use tilewright::{Context, Gemm, Options, RecordsAt, Scalar};
//!
//! # fn main() -> Result<(), tilewright::Error> {
//! // The built-in device. `Context::new()` takes the most capable one of the machine, with the user's records.
//! let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
//! let context = Context::with(options)?;
//!
//! // C = A * B, row-major as in C (`.order(Order::Col)` for BLAS'): A is 3 x 2, B is 2 x 2.
//! let operation = context.gemm(Gemm::new(Scalar::F32, 3, 2, 2))?;
//! let a = context.upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let b = context.upload(&[1.0f32, 0.0, 1.0, 1.0])?;
//! let mut c = context.alloc::<f32>(6)?;
//! operation.run(&a, &b, &mut c, 1.0, 0.0)?;
//! assert_eq!(c.download()?, [3.0, 2.0, 7.0, 4.0, 11.0, 6.0]);
//!
//! println!("{}", operation.plan()?);
//! println!("{}", operation.source()?);
//! # Ok(())
//! # }
//! ```
//!
//! A convolution is an operation like any other: A is the input, B the filter, C the output.
//!
//! ```
//! use tilewright::{Context, Conv, Layout, Operands, Options, RecordsAt, Scalar};
//!
//! # fn main() -> Result<(), tilewright::Error> {
//! # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
//! # let context = Context::with(options)?;
//! let conv = Conv::new(Scalar::F32, 1, 2, 3, &[4, 4], &[3, 3]).pad(&[1, 1], &[1, 1]).layout(Layout::Nhwc).bias();
//! let operation = context.conv(conv)?;
//! let input = context.upload(&[1.0f32; 32])?;
//! let filter = context.upload(&[0.5f32; 54])?;
//! let bias = context.upload(&[10.0f32, 20.0, 30.0])?;
//! let mut output = context.alloc::<f32>(48)?;
//! operation.run_with(Operands::new(&input, &filter, &mut output).bias(&bias))?;
//! // A corner sees 4 of the 9 pixels.
//! assert_eq!(output.download()?[..3], [14.0, 24.0, 34.0]);
//! # Ok(())
//! # }
//! ```
//!
//! The epilogue belongs to the problem: `activation(alpha * A * B + bias + beta * C) + residual`.
//!
//! ```
//! use tilewright::{Activation, Along, Context, Gemm, Operands, Options, RecordsAt, Scalar, f16};
//!
//! # fn main() -> Result<(), tilewright::Error> {
//! # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
//! # let context = Context::with(options)?;
//! let gemm = Gemm::new(Scalar::F16, 2, 2, 2).out_dtype(Scalar::F32).bias(Along::M).activation(Activation::Relu).residual();
//! let operation = context.gemm(gemm)?;
//! let a = context.upload(&[1.0, 0.0, 0.0, 1.0].map(f16::from_f32))?;
//! let b = context.upload(&[1.0, 2.0, 3.0, 4.0].map(f16::from_f32))?;
//! let bias = context.upload(&[0.5f32, -3.0])?;
//! let residual = context.upload(&[10.0f32, 20.0, 30.0, 40.0])?;
//! let mut c = context.alloc::<f32>(4)?;
//! operation.run_with(Operands::new(&a, &b, &mut c).bias(&bias).residual(&residual))?;
//! assert_eq!(c.download()?, [11.5, 22.5, 30.0, 41.0]);
//! # Ok(())
//! # }
//! ```
//!
//! A kernel holds for one shape, except for dynamic extents, which each launch gives: a language model's batch changes with every step and
//! compiles nothing. [`Buckets`] takes another plan for each range of sizes.
//!
//! ```
//! use tilewright::{Context, Dynamic, Extent, Gemm, Operands, Options, Order, RecordsAt, Scalar};
//!
//! # fn main() -> Result<(), tilewright::Error> {
//! # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
//! # let context = Context::with(options)?;
//! // Up to 32 tokens (rows), each 3 numbers long, times a 3 x 2 weight.
//! let gemm = Gemm::new(Scalar::F32, 32, 2, 3).order(Order::Row).dynamic(Dynamic { m: true, ..Dynamic::NONE });
//! let operation = context.gemm(gemm)?;
//! let weight = context.upload(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! for tokens in [1u64, 7, 32] {
//!     let x = context.upload(&vec![1.0f32; tokens as usize * 3])?;
//!     let mut y = context.alloc::<f32>(tokens * 2)?;
//!     operation.run_with(Operands::new(&x, &weight, &mut y).at(operation.extents().with(Extent::M, tokens)))?;
//!     assert_eq!(y.download()?, [9.0, 12.0].repeat(tokens as usize));
//! }
//! assert_eq!(context.programs(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! A plan comes from the records if the problem was tuned on this device, else from a cost model that measures nothing. Every launch checks
//! the alignment of its operands. If the plan needs more, the next plan of a fixed fallback order runs; the last one works for every address.
//! A plan that no search verified is looked at before its result is first used ([`Operation::prepare`]); one that fails is never used.
//!
//! On a GPU or an OpenCL device, candidates and looks run in a worker process, unless [`Trials`] says otherwise. A program that calls
//! [`worker_main`] first is its own worker.

mod buckets;
mod buffer;
mod bundle;
mod campaign;
mod context;
mod edited;
mod element;
mod emit;
mod error;
// The command's as well; its facts change with the kernels.
#[doc(hidden)]
pub mod explain;
mod host;
mod launch;
mod look;
mod map;
mod operands;
mod operation;
mod prepared;
mod program;
mod trial;

pub use buckets::Buckets;
pub use buffer::{Buffer, Slice, SliceMut};
pub use bundle::{Bundled, Files, bundle};
pub use campaign::{Campaign, Wanted};
pub use context::{Context, Options, RecordsAt, Trials, default_records};
pub use edited::{Edited, SourceError};
pub use element::Element;
pub use emit::Emission;
pub use error::{Error, FailedLook};
pub use host::{Host, HostCode, Images};
pub use operands::Operands;
pub use operation::{Operation, Origin};
pub use prepared::{Addresses, Prepared};
pub use trial::{Times, Verified};

pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use tilewright_check::run::{BindError, Factors};
pub use tilewright_check::verify::{Depth, Verification, VerifyError};
pub use tilewright_device::{
    Backend, Buffer as DeviceMemory, Cache, CacheEntry, CacheState, Device, DeviceError, DeviceInfo, DeviceKind, Listing, Mark,
    Native, NativeHandles, Options as DeviceOptions, Program as WorkerProgram, Stream, Timing, Workers, compile_worker_main,
    end_of_process, exit_now, list as list_devices, worker_main,
};
pub use tilewright_gen::graph::remedies;
pub use tilewright_gen::kernel::GenerateError;
pub use tilewright_gen::plan::{Chiral, Common, Constraint, GrammarError, Key, Keys, Plan, Refusal};
pub use tilewright_gen::program::Program;
pub use tilewright_gen::space::Space;
pub use tilewright_ir::{Dialect, Features, Invalid, Limits, Rates, Scalar, Target};
pub use tilewright_ir::{F8E4M3Fnuz, F8E5M2Fnuz};
pub use tilewright_problem::contraction::Contraction;
pub use tilewright_problem::fields;
pub use tilewright_problem::{
    Activation, Along, Axes, Complex, Conv, ConvBuilder, Direction, Dtype, Dynamic, Extent, Extents, Function, Gate,
    GateFunction, Gemm, GemmBuilder, Layout, MOST_REDUCTIONS, Math, Name, Operator, Order, PerRole, Problem, ProblemError, Quant,
    Ragged, Reduce, ReduceBuilder, Reduction, Role, RoleMemory, Scale, Scales, ZeroPoint, ZeroPoints, operator,
};
pub use tilewright_tune::model::{Candidate, Estimate};
pub use tilewright_tune::records::{RecordsError, TimeKind, Trial};
pub use tilewright_tune::search::{
    Audience, Budget, Cancel, Ended, Event, Lineup, Options as SearchOptions, Outcome, Phase, RivalTime, SharedBudget, Standing,
    Step, Strategy, Tally, TuneError,
};
pub use tilewright_tune::{ProblemKey, Records};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Compiles and runs the examples of the guide to Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/rust.md")]
struct Guide;

/// Compiles and runs the example of the guide to convolutions.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/convolution.md")]
struct GuideToConvolutions;

/// Compiles and runs the example of the guide to reductions.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/reductions.md")]
struct GuideToReductions;
