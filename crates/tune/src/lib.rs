//! Finds the fastest verified plan of a problem on a device: search, cost model and records.
//!
//! A [`Space`](tilewright_gen::space::Space) is the plans of one problem on one target. [`model`] estimates times without a
//! device, and [`search`] times candidates and has [`tilewright_check`] verify them. [`look`](mod@look) verifies a plan before
//! its first use, and [`Records`] keeps every trial in one file.
//!
//! ```
//! use tilewright_device::open;
//! use tilewright_ir::Scalar;
//! use tilewright_problem::{Gemm, Problem};
//! use tilewright_tune::search::{Budget, Cancel, Options, tune};
//! use tilewright_gen::space::Space;
//!
//! let device = open("emu")?;
//! let problem = Problem::Gemm(Gemm::new(Scalar::F32, 32, 32, 32).build()?);
//! let space = Space::new(&problem, &device.info().target)?;
//! let options = Options { budget: Budget::trials(3), ..Options::default() };
//! let outcome = tune(&device, &space, None, &options, &Cancel::default(), &mut |_| ())?;
//! assert!(outcome.verified);
//! println!("{}: {} us", outcome.plan, outcome.time_us);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod key;
pub mod look;
pub mod model;
pub mod records;
pub mod search;

pub use key::ProblemKey;
pub use records::Records;
