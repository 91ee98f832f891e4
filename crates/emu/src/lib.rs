//! The built-in emulated GPU of tilewright: runs a [`tilewright_ir::Kernel`] on the CPU, checks every access and counts the work.
//!
//! [`Program::new`] lowers a kernel once; [`Program::run`] executes a grid of work-groups on [`Buffer`]s, each operation over all lanes at once.
//! [`Queue::run`] does the same after other launches. [`Options`] choose the [`Checks`], a random order of waves, and [`Counters`].
//!
//! ```
//! use tilewright_emu::{ArgValue, Buffer, EmuError, Options, run};
//! use tilewright_ir::{Access, Base, Builder, Builtin, Scalar};
//!
//! // Thread i writes i. Without a guard the last threads write out of bounds.
//! let mut b = Builder::new("count", 64);
//! let y = b.buffer("y", Scalar::I32, Access::Write, "output");
//! let i = b.builtin(Builtin::LocalId);
//! b.store(Base::Buffer(y), i, i, None);
//! let kernel = b.finish();
//!
//! let arg = |bytes| [ArgValue::Buffer { buffer: Buffer::new(bytes), offset: 0 }];
//! run(&kernel, [1, 1, 1], &arg(64 * 4), &Options::default())?;
//! let refused = run(&kernel, [1, 1, 1], &arg(60 * 4), &Options::default());
//! assert!(matches!(refused, Err(EmuError::OutOfBounds { .. })));
//! # Ok::<(), EmuError>(())
//! ```
//!
//! # Semantics
//!
//! * Integers wrap; using the result of a signed overflow is an error with [`Checks::overflow`], division by zero always is. Shift counts count modulo
//!   the width. Float arithmetic is IEEE, rounded once per operation, [`tilewright_ir::Expr::Fma`] once in all; `Min` and `Max` are
//!   `fmin` and `fmax`. Conversions round to nearest even; float to integer truncates, saturates and sends NaN to 0.
//! * Memory that nobody wrote reads as bytes 0xFF (NaN), registers too. Shared memory starts afresh in every work-group. Global memory
//!   takes room on this machine where it is written ([`Pool`]).
//! * Matrix instructions add products, exact in f32, one by one in the order of k, each sum rounded; TF32 inputs lose their lower 13
//!   bits. A [`tilewright_ir::ArgKind::TensorMap`] argument is given as [`ArgValue::Buffer`], where the tensor's first element stands, or as
//!   [`ArgValue::Map`] with smaller extents than the kernel's.
//! * A lane of a shuffle whose source is outside its wave keeps its own value.
//! * Atomics on floats add in the order work-groups happen to run: with several host threads the last bits may vary.
//!
//! # How threads run
//!
//! Threads run in lockstep: the whole work-group, or each role where the kernel has roles. Each wave runs in lockstep alone where
//! named or transaction barriers or warpgroup instructions let waves overtake one another. With [`Options::interleave`] every
//! wave runs on its own. Waves alternate at random (by seed) at memory operations, barriers and shuffles. Asynchronous copies
//! land at once or when they are waited for. The work-groups of a cluster run together, their contexts in one order. Bulk loads
//! land at once or later wherever races are watched.
//!
//! # What the race checks see
//!
//! Two accesses to the same bytes, one of them a write, by different threads, must have a barrier between them that orders them.
//! It does not matter in which order they happened to run, nor whether the threads are of one wave. In global memory, accesses of
//! different work-groups are never ordered; atomics go with atomics. Transaction barriers order accesses before an arrival, and
//! the bulk loads that complete on them, before accesses that follow a wait. If one lane alone waits, it alone knows until its
//! wave synchronizes. Bulk copies and warpgroup instructions count as threads of their own. They see ordinary writes after a
//! proxy fence only, and use memory until they are waited for. In a cluster, all that holds for accesses of one work-group to
//! another's barriers and shared memory. A work-group must not end before it knows of the last use of its own. One thing may go
//! unseen. Where a kernel uses wave or named barriers, only the last of several reads of a global element within a work-group is
//! remembered.
//!
//! A kernel that [may begin early](Kernel::follows) still runs after all previous launches. The checks compare its accesses before its
//! [`tilewright_ir::Stmt::LaunchWait`] with the accesses of previous launches that may still run on a device. It must not read bytes that
//! they have written. It must not write bytes that they have used, and must not write at all to buffers that they only read.

mod access;
mod alu;
mod cluster;
mod code;
mod context;
mod copies;
mod counters;
mod error;
mod exec;
mod gather;
mod lanes;
mod launch;
mod lower;
mod map;
mod matrix;
mod memory;
mod op;
mod options;
mod poison;
mod pool;
mod queue;
mod quick;
mod rare;
mod shadow;
mod show;
mod simd;

pub use error::{EmuError, Location};
pub use memory::{ArgValue, Buffer};
pub use options::{Checks, Counters, Options, Report};
pub use pool::Pool;
pub use queue::Queue;

use tilewright_ir::Kernel;

/// A kernel lowered for execution with fixed [`Options`].
#[derive(Clone, Debug)]
pub struct Program {
    code: code::Code,
    options: Options,
}

impl Program {
    /// Lowers a kernel.
    ///
    /// # Errors
    /// A kernel that is not well formed ([`tilewright_ir::well_formed`]): this includes writing a
    /// [`tilewright_ir::Access::Read`] buffer and reading a [`tilewright_ir::Access::Write`] one. A register array indexed out of
    /// bounds, or by what is no constant, once loops are unrolled.
    pub fn new(kernel: &Kernel, options: &Options) -> Result<Program, EmuError> {
        Ok(Program { code: lower::lower(kernel, options)?, options: options.clone() })
    }

    /// Runs it once, on a [`Queue`] of its own.
    ///
    /// # Errors
    /// As [`Queue::run`].
    pub fn run(&self, grid: [u32; 3], args: &[ArgValue]) -> Result<Report, EmuError> {
        Queue::default().run(self, grid, args)
    }
}

/// Lowers and runs a kernel once: [`Program::new`] and [`Program::run`].
pub fn run(kernel: &Kernel, grid: [u32; 3], args: &[ArgValue], options: &Options) -> Result<Report, EmuError> {
    Program::new(kernel, options)?.run(grid, args)
}
