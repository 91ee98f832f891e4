//! The kernel language of tilewright: types, expressions, statements, a builder, a validator and printers.
//!
//! A [`Kernel`] is what the generator makes, what the emulator runs and what a printer spells in CUDA C++, HIP C++ or
//! OpenCL C. It is small, closed and typed; effects stand only in statements.
//!
//! Below it stand the values that index arithmetic is made of ([`affine`]) and those that say where
//! the elements of tiles are ([`layout`]); [`mma`] is the table of instructions that multiply.

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
mod target;
mod types;
mod validate;

pub use build::{Builder, Ex, fold};
pub use fnuz::{F8E4M3Fnuz, F8E5M2Fnuz};
pub use host::memory_left;
pub use ids::*;
pub use kernel::*;
pub use matrix::*;
pub use mma::{MathUnit, Mma};
pub use print::{Source, print};
pub use target::*;
pub use types::*;
pub use validate::{Fault, Invalid, validate, well_formed};
