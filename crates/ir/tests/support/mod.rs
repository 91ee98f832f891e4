//! Small kernels that between them use everything the language has, and the targets they are printed for.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

pub mod matrix;
mod products;
mod scrambled;
mod threads;
mod values;

pub use products::*;
pub use scrambled::*;
pub use threads::*;
pub use values::*;

use tilewright_ir::*;

/// An OpenCL device without waves: what PoCL describes.
pub fn opencl() -> Target {
    let like = Target::by_arch("gfx900").expect("known");
    Target {
        arch: "generic".into(),
        dialect: Dialect::OpenCl,
        wave: 1,
        features: Features { f64: true, atomic64: true, ..Features::default() },
        ..like
    }
}

/// A built-in target.
pub fn target(arch: &str) -> Target {
    Target::by_arch(arch).expect("known architecture")
}

/// A built-in target spoken to in OpenCL C, with the waves the extension gives it.
pub fn target_in_opencl(arch: &str) -> Target {
    Target { dialect: Dialect::OpenCl, ..target(arch) }
}
