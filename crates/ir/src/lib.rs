//! The kernel language of tilewright. The generator writes kernels in this form, the emulator runs them, and the printers spell
//! them in CUDA C++, HIP C++ or OpenCL C.
//!
//! A [`Kernel`] has arguments, shared memory, registers, typed expressions and statements. Expressions have no effects; statements do.
//! A [`Builder`] makes a kernel, [`validate`](fn@validate) checks it for a [`Target`], and [`print`](fn@print) spells it. Index arithmetic is
//! written as [`affine`] forms, positions in tiles as [`layout`]s, and [`mma`] is the table of multiply instructions.
//!
//! ```
//! use tilewright_ir::{Access, Base, Builder, Builtin, Scalar, Target, print};
//!
//! // y[i] = 2 * x[i], one element per thread.
//! let mut b = Builder::new("twice", 128);
//! let x = b.buffer("x", Scalar::F32, Access::Read, "input");
//! let y = b.buffer("y", Scalar::F32, Access::Write, "output");
//! let (group, thread) = (b.builtin(Builtin::GroupId(0)), b.builtin(Builtin::LocalId));
//! let i = b.bind("i", group * 128 + thread);
//! let value = b.load("value", Base::Buffer(x), i, 1, None);
//! b.store(Base::Buffer(y), i, value + value, None);
//! let kernel = b.finish();
//!
//! let target = Target::by_arch("sm_90a").expect("a known architecture");
//! let source = print(&kernel, &target)?;
//! assert!(source.text.contains("__global__"));
//! # Ok::<(), tilewright_ir::Invalid>(())
//! ```

pub mod affine;
mod build;
mod fnuz;
mod host;
mod ids;
mod kernel;
pub mod layout;
mod matrix;
pub mod mma;
mod print;
mod reroll;
mod target;
mod types;
mod validate;
pub mod visit;

pub use build::{Builder, Ex, fold};
pub use fnuz::{F8E4M3Fnuz, F8E5M2Fnuz};
pub use host::memory_left;
pub use ids::*;
pub use kernel::*;
pub use matrix::*;
pub use mma::{MathUnit, Mma};
pub use print::{Source, print};
pub use reroll::reroll;
pub use target::*;
pub use types::*;
pub use validate::{Fault, Invalid, validate, well_formed};
