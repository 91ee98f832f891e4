//! From a program and buffers to launches on a device: compiling its kernels and binding their arguments.

use std::sync::Arc;
use tilewright_device::{Buffer, Compiled, Device, DeviceError, Launch, LaunchArg};
use tilewright_gen::contraction::{Contraction, Operand};
use tilewright_gen::program::{ADDED_ALIGN, Binding, Program};
use tilewright_ir::Scalar;

/// Memory a program runs on.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Left factor.
    pub a: Buffer,
    /// Right factor.
    pub b: Buffer,
    /// Result.
    pub c: Buffer,
    /// Bias vector, where the contraction has one.
    pub bias: Option<Buffer>,
    /// Residual, where the contraction has one.
    pub residual: Option<Buffer>,
    /// At least [`Program::workspace_bytes`] bytes, where that is not 0.
    pub workspace: Option<Buffer>,
    /// Element 0 of A, B and C within its buffer, in elements.
    pub offsets: [u64; 3],
}

/// Factors of `C = alpha * A * B + beta * C`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Of the product.
    pub alpha: f64,
    /// Of the old result; 0 never reads it.
    pub beta: f64,
}

impl Default for Factors {
    fn default() -> Self {
        Factors { alpha: 1.0, beta: 0.0 }
    }
}

/// Why a program cannot run on these buffers.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BindError {
    /// The operand does not start where the kernel's wide accesses need it.
    #[error(
        "operand {operand:?} starts at a multiple of {actual} bytes only, this plan needs {needed}; \
             align it, or plan for this alignment"
    )]
    Misaligned {
        /// Operand.
        operand: Operand,
        /// Largest power of two known to divide its start, in bytes.
        actual: u64,
        /// What the program's accesses need, in bytes.
        needed: u32,
    },
    /// The bias vector or the residual does not start where vectors of it can be read.
    #[error("the buffer of the {what} starts at a multiple of {actual} bytes only, {needed} are needed; allocate it by itself")]
    Unaligned {
        /// Which.
        what: &'static str,
        /// Largest power of two known to divide its start, in bytes.
        actual: u64,
        /// What is needed, in bytes.
        needed: u32,
    },
    /// A buffer is smaller than what the program touches.
    #[error("the buffer of {what} holds {actual} bytes, {needed} are needed")]
    TooSmall {
        /// Operand or workspace.
        what: String,
        /// Its size in bytes.
        actual: u64,
        /// What is needed in bytes.
        needed: u64,
    },
    /// A buffer the program needs was not given.
    #[error("the program needs {0}, and none was given")]
    Absent(&'static str),
    /// The program contradicts itself: a bug of the generator.
    #[error("malformed program: {0}")]
    Program(String),
    /// The device refused a part of a buffer.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Buffers {
    const fn of(&self, operand: Operand) -> (&Buffer, u64) {
        match operand {
            Operand::A => (&self.a, self.offsets[0]),
            Operand::B => (&self.b, self.offsets[1]),
            Operand::C => (&self.c, self.offsets[2]),
        }
    }

    /// Alignment of an operand's element 0, in bytes: a power of two.
    pub fn alignment(&self, operand: Operand, scalar: Scalar) -> u64 {
        let (buffer, offset) = self.of(operand);
        let bytes = offset.saturating_mul(u64::from(scalar.bytes()));
        if bytes == 0 { buffer.alignment() } else { buffer.alignment().min(1 << bytes.trailing_zeros()) }
    }
}

/// Compiles every kernel of a program, one after the other.
///
/// # Errors
/// Those of [`Device::compile`].
pub fn compile(device: &dyn Device, program: &Program) -> Result<Vec<Arc<Compiled>>, DeviceError> {
    program.kernels.iter().map(|k| device.compile(k)).collect()
}

/// Asks the alignments and sizes a program needs of the real buffers.
///
/// # Errors
/// [`BindError::Misaligned`], [`BindError::TooSmall`], [`BindError::Absent`].
pub fn check(program: &Program, contraction: &Contraction, buffers: &Buffers) -> Result<(), BindError> {
    for need in &program.alignments {
        let actual = buffers.alignment(need.operand, contraction.tensor(need.operand).scalar);
        if !actual.is_multiple_of(u64::from(need.bytes.max(1))) {
            return Err(BindError::Misaligned { operand: need.operand, actual, needed: need.bytes });
        }
    }
    for need in &program.bases {
        let actual = buffers.of(need.operand).0.alignment();
        if !actual.is_multiple_of(u64::from(need.bytes.max(1))) {
            return Err(BindError::Misaligned { operand: need.operand, actual, needed: need.bytes });
        }
    }
    for operand in [Operand::A, Operand::B, Operand::C] {
        let tensor = contraction.tensor(operand);
        let (buffer, offset) = buffers.of(operand);
        let needed = (tensor.len.saturating_add(offset)).saturating_mul(u64::from(tensor.scalar.bytes()));
        if buffer.bytes() < needed {
            return Err(BindError::TooSmall { what: format!("operand {operand:?}"), actual: buffer.bytes(), needed });
        }
    }
    let bias = contraction.bias.as_ref().map(|x| ("bias", x.len, x.scalar, &buffers.bias, "a bias vector"));
    let residual = contraction.residual.as_ref().map(|x| ("residual", x.len, x.scalar, &buffers.residual, "a residual"));
    for (what, len, scalar, given, absent) in bias.into_iter().chain(residual) {
        let given = given.as_ref().ok_or(BindError::Absent(absent))?;
        let needed = len.saturating_mul(u64::from(scalar.bytes()));
        if given.bytes() < needed {
            return Err(BindError::TooSmall { what: what.into(), actual: given.bytes(), needed });
        }
        if !given.alignment().is_multiple_of(u64::from(ADDED_ALIGN)) {
            return Err(BindError::Unaligned { what, actual: given.alignment(), needed: ADDED_ALIGN });
        }
    }
    if program.workspace_bytes > 0 {
        let given = buffers.workspace.as_ref().ok_or(BindError::Absent("workspace"))?;
        if given.bytes() < program.workspace_bytes {
            return Err(BindError::TooSmall { what: "workspace".into(), actual: given.bytes(), needed: program.workspace_bytes });
        }
    }
    Ok(())
}

/// Binds a program's arguments to buffers. `compiled` holds the program's kernels in order. Legality is asked again
/// with the real buffers.
///
/// # Errors
/// What [`check`] finds; [`BindError::Program`] where program and kernels do not belong together.
pub fn bind(
    program: &Program,
    compiled: &[Arc<Compiled>],
    contraction: &Contraction,
    buffers: &Buffers,
    factors: Factors,
) -> Result<Vec<Launch>, BindError> {
    check(program, contraction, buffers)?;
    let factor = |value: f64| match contraction.accumulator() {
        Scalar::F64 => LaunchArg::F64(value),
        _ => LaunchArg::F32(value as f32),
    };
    let argument = |binding: &Binding| -> Result<LaunchArg, BindError> {
        Ok(match *binding {
            Binding::Buffer(operand) => LaunchArg::Buffer(buffers.of(operand).0.clone()),
            Binding::Offset(operand) => {
                let offset = buffers.of(operand).1;
                let offset = i64::try_from(offset).map_err(|_| BindError::Program(format!("offset {offset} of {operand:?}")))?;
                LaunchArg::I64(offset)
            }
            Binding::Bias => LaunchArg::Buffer(buffers.bias.clone().ok_or(BindError::Absent("a bias vector"))?),
            Binding::Residual => LaunchArg::Buffer(buffers.residual.clone().ok_or(BindError::Absent("a residual"))?),
            // A tensor map is encoded by the device; what is bound is the memory from its element 0 on.
            Binding::OperandMap(operand) => {
                let (whole, offset) = buffers.of(operand);
                let from = offset.saturating_mul(u64::from(contraction.tensor(operand).scalar.bytes()));
                LaunchArg::Buffer(whole.slice(from, whole.bytes().saturating_sub(from))?)
            }
            Binding::Workspace(from) | Binding::WorkspaceMap(from) => {
                let whole = buffers.workspace.as_ref().ok_or(BindError::Absent("workspace"))?;
                LaunchArg::Buffer(whole.slice(from, whole.bytes().saturating_sub(from))?)
            }
            Binding::Alpha => factor(factors.alpha),
            Binding::Beta => factor(factors.beta),
            Binding::I64(value) => LaunchArg::I64(value),
            Binding::I32(value) => LaunchArg::I32(value),
        })
    };
    let mut launches = Vec::with_capacity(program.launches.len());
    for launch in &program.launches {
        let kernel = compiled
            .get(launch.kernel)
            .ok_or_else(|| BindError::Program(format!("launch of kernel {} of {}", launch.kernel, compiled.len())))?;
        let args = launch.args.iter().map(argument).collect::<Result<_, _>>()?;
        launches.push(Launch { kernel: kernel.clone(), grid: launch.grid, args });
    }
    Ok(launches)
}
