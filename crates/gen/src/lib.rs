//! Generates kernels: from a contraction and a plan to a program. It knows no device beyond [`tilewright_ir::Target`].
//!
//! ```text
//! Contraction --derive, fits--> Derived --generate--> Program
//! ```
//!
//! A [`Plan`](plan::Plan) is a number per key. [`derive`](fn@plan::derive) decides whether it suits a contraction and returns a
//! [`Derived`](plan::Derived) plan. That plan has tiling, schedule and epilogue as values, and the contraction in the orientation
//! that the kernel computes. [`fits`](fn@plan::fits) decides whether it fits a device. [`generate`](fn@kernel::generate) returns
//! a [`Program`](program::Program): kernels, their launches and the workspace that they need. A plan that cannot be is a
//! [`Refusal`](plan::Refusal), which says what to change.
//!
//! A [`Space`](space::Space) is all plans of a problem on a target. It resolves a plan for every part of the problem, and repairs
//! a plan that is refused. A [`Graph`](graph::Graph) says which plans are one move apart.
//!
//! ```
//! use tilewright_gen::kernel::generate;
//! use tilewright_gen::plan::{Constraint, Env, Plan, derive, fits};
//! use tilewright_ir::{Scalar, Target};
//! use tilewright_problem::lower::{ConvForm, lower};
//! use tilewright_problem::{Gemm, Problem};
//!
//! let problem = Problem::Gemm(Gemm::new(Scalar::F32, 512, 512, 512).build()?);
//! let contraction = lower(&problem, ConvForm::PER_SAMPLE)?.lead;
//! let target = Target::by_arch("sm_80").expect("a known architecture");
//! let env = Env::new(&target, 0);
//!
//! // 8 x 8 results per thread, 256 threads: tiles of 128 x 128.
//! let plan: Plan = Constraint::parse("A_MIC8__B_MIC8__C_UNR16_MAC256")?.apply(&Plan::default()).into();
//! let spec = derive(&plan, &contraction, &env)?;
//! assert_eq!(spec.tiling.macro_tile(), (128, 128));
//! assert!(fits(&spec, &target)?.shared_bytes > 0);
//! let program = generate(&spec, 0)?;
//! assert_eq!(program.launches[0].grid, [16, 1, 1]);
//!
//! // Tiles of 512 rows need 64 rows per thread: more registers than there are.
//! let large: Plan = Constraint::parse("A_MIC64__B_MIC64")?.apply(&plan).into();
//! let refused = derive(&large, &contraction, &env).and_then(|spec| fits(&spec, &target));
//! println!("{}", refused.unwrap_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod cell;
pub mod graph;
pub mod kernel;
pub mod plan;
pub mod program;
mod repair;
pub mod space;
