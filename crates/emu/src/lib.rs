//! The built-in emulated GPU of tilewright: runs [`tilewright_ir::Kernel`] on the CPU, checks every access, counts the work.
//!
//! [`Program::new`] lowers a kernel once; [`Program::run`] executes a grid of work-groups on [`Buffer`]s, each operation over all
//! lanes at once. With [`Checks`] it is a sanitizer (bounds, alignment, uninitialised reads, races, barriers, deadlock, asynchronous
//! copies, integer overflow); with [`Options::count`] it counts transactions, bank conflicts and the instruction mix.

mod error;
mod memory;
mod options;

pub use error::{EmuError, Location};
pub use memory::{ArgValue, Buffer};
pub use options::{Checks, Counters, Options, Report};

use tilewright_ir::Kernel;

/// A kernel lowered for execution with fixed [`Options`].
#[derive(Clone, Debug)]
pub struct Program {
    kernel: String,
}

impl Program {
    /// Lowers a kernel. Refuses one that the kernel language does not allow, and with [`Checks::access`] one that writes a
    /// [`tilewright_ir::Access::Read`] buffer or reads a [`tilewright_ir::Access::Write`] buffer.
    pub fn new(kernel: &Kernel, options: &Options) -> Result<Program, EmuError> {
        let _ = options;
        Ok(Program { kernel: kernel.name.clone() })
    }

    /// Runs `grid` work-groups (x, y, z) with one value per kernel argument.
    ///
    /// On an error the contents of the buffers that the kernel writes are unspecified.
    pub fn run(&self, grid: [u32; 3], args: &[ArgValue]) -> Result<Report, EmuError> {
        let _ = (grid, args);
        Err(EmuError::Unsupported { kernel: self.kernel.clone(), what: "the emulator's execution is not built yet".into() })
    }
}

/// Lowers and runs a kernel once: [`Program::new`] and [`Program::run`].
pub fn run(kernel: &Kernel, grid: [u32; 3], args: &[ArgValue], options: &Options) -> Result<Report, EmuError> {
    Program::new(kernel, options)?.run(grid, args)
}
