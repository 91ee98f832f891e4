//! From a program and buffers to launches on a device: compiling its kernels and binding their arguments.

use std::sync::Arc;
use tilewright_device::{Buffer, Compiled, Device, DeviceError, Launch, LaunchArg};
use tilewright_gen::program::{ADDED_ALIGN, Binding, Factor, Launch as Planned, Program};
use tilewright_ir::{ArgKind, Scalar};
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_problem::reference::TestData;
use tilewright_problem::{Extent, Extents};

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
    /// Of the product. 0 multiplies as any other: a NaN or an infinity in A or B reaches C. (The reference BLAS does not read A and B
    /// then: that takes a kernel of its own, or a test in each epilogue.)
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
    /// An extent that the program does not hold for.
    #[error("{} = {value}: this kernel holds for {}", .extent.name(), held(*.most, *.dynamic))]
    Extent {
        /// Which.
        extent: Extent,
        /// Asked for.
        value: u64,
        /// The largest.
        most: u64,
        /// Smaller ones are possible.
        dynamic: bool,
    },
    /// A factor that the kernels cannot be given.
    #[error(
        "{name} = {value:e} does not fit {scalar}, the type that sums are scaled in; give one of magnitude {:e} or less",
        f32::MAX
    )]
    Factor {
        /// `alpha` or `beta`.
        name: &'static str,
        /// Asked for.
        value: f64,
        /// The type of the sums.
        scalar: Scalar,
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

fn held(most: u64, dynamic: bool) -> String {
    if dynamic { format!("1 to {most}") } else { format!("{most} only") }
}

impl Buffers {
    /// Copies test data to a device; there is no workspace yet.
    ///
    /// # Errors
    /// Those of [`Device::alloc`] and [`Device::write`].
    pub fn upload(device: &dyn Device, data: &TestData) -> Result<Buffers, DeviceError> {
        let upload = |bytes: &[u8]| {
            let buffer = device.alloc(bytes.len() as u64)?;
            device.write(&buffer, 0, bytes)?;
            Ok::<_, DeviceError>(buffer)
        };
        Ok(Buffers {
            a: upload(&data.a.bytes)?,
            b: upload(&data.b.bytes)?,
            c: upload(&data.c.bytes)?,
            bias: data.bias.as_ref().map(|bias| upload(&bias.bytes)).transpose()?,
            residual: data.residual.as_ref().map(|residual| upload(&residual.bytes)).transpose()?,
            workspace: None,
            offsets: [data.a.start, data.b.start, data.c.start],
        })
    }

    /// Copies the inputs of other test data of the same problem into the buffers: all but C.
    ///
    /// # Errors
    /// Those of [`Device::write`].
    pub fn write_inputs(&self, device: &dyn Device, data: &TestData) -> Result<(), DeviceError> {
        device.write(&self.a, 0, &data.a.bytes)?;
        device.write(&self.b, 0, &data.b.bytes)?;
        self.write_added(device, data)
    }

    /// Copies bias and residual of other test data of the same problem into their buffers.
    ///
    /// # Errors
    /// Those of [`Device::write`].
    pub fn write_added(&self, device: &dyn Device, data: &TestData) -> Result<(), DeviceError> {
        for (buffer, data) in [(&self.bias, &data.bias), (&self.residual, &data.residual)] {
            if let (Some(buffer), Some(data)) = (buffer, data) {
                device.write(buffer, 0, &data.bytes)?;
            }
        }
        Ok(())
    }

    /// The buffer of an operand.
    pub const fn operand(&self, operand: Operand) -> &Buffer {
        self.of(operand).0
    }

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

fn narrow(value: u128) -> Result<i32, BindError> {
    i32::try_from(value).map_err(|_| BindError::Program(format!("{value} does not fit 32 bits")))
}

/// Compiles every kernel of a program, one after the other.
///
/// # Errors
/// Those of [`Device::compile`].
pub fn compile(device: &dyn Device, program: &Program) -> Result<Vec<Arc<Compiled>>, DeviceError> {
    program.kernels.iter().map(|k| device.compile(k)).collect()
}

/// Asks the alignments and sizes a program needs of the real buffers, for a launch with these extents.
///
/// # Errors
/// [`BindError::Extent`], [`BindError::Misaligned`], [`BindError::TooSmall`], [`BindError::Absent`].
pub fn check(program: &Program, contraction: &Contraction, buffers: &Buffers, at: &Extents) -> Result<(), BindError> {
    for extent in [Extent::G, Extent::M, Extent::N] {
        let (value, most, dynamic) = (at.of(extent), contraction.extents().of(extent), contraction.dynamic.has(extent));
        if value == 0 || value > most || (!dynamic && value != most) {
            return Err(BindError::Extent { extent, value, most, dynamic });
        }
    }
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
        let needed = (contraction.len_at(operand, at).saturating_add(offset)).saturating_mul(u64::from(tensor.scalar.bytes()));
        if buffer.bytes() < needed {
            return Err(BindError::TooSmall { what: format!("operand {operand:?}"), actual: buffer.bytes(), needed });
        }
    }
    let bias = contraction.bias().map(|x| ("bias", contraction.bias_len_at(at), x.scalar, &buffers.bias, "a bias vector"));
    let residual =
        contraction.residual().map(|x| ("residual", contraction.residual_len_at(at), x.scalar, &buffers.residual, "a residual"));
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

/// Binds a program's arguments to buffers, for a launch with these extents (those of the contraction, or smaller ones where they are
/// known only at launch). `compiled` holds the program's kernels in order. Legality is asked again with the real buffers.
///
/// # Errors
/// What [`check`] finds; [`BindError::Program`] where program and kernels do not belong together.
pub fn bind(
    program: &Program,
    compiled: &[Arc<Compiled>],
    contraction: &Contraction,
    buffers: &Buffers,
    factors: Factors,
    at: &Extents,
) -> Result<Vec<Launch>, BindError> {
    check(program, contraction, buffers, at)?;
    let scalar = contraction.accumulator();
    for (name, value) in [("alpha", factors.alpha), ("beta", factors.beta)] {
        // Infinities and NaN are the caller's own and mean what they mean in IEEE arithmetic.
        if value.is_finite() && scalar != Scalar::F64 && (value as f32).is_infinite() {
            return Err(BindError::Factor { name, value, scalar });
        }
    }
    let factor = |value: f64| match contraction.accumulator() {
        Scalar::F64 => LaunchArg::F64(value),
        _ => LaunchArg::F32(value as f32),
    };
    let argument = |planned: &Planned, binding: &Binding| -> Result<LaunchArg, BindError> {
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
            Binding::OperandMap(operand, first) => {
                let (whole, offset) = buffers.of(operand);
                let from = offset.saturating_add(first).saturating_mul(u64::from(contraction.tensor(operand).scalar.bytes()));
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
            Binding::Extent(extent) => LaunchArg::I32(narrow(at.of(extent).into())?),
            Binding::Entries { first, most } => LaunchArg::I64(Factor::Entries { first, most }.at(at) as i64),
            Binding::Work => {
                let groups = planned.groups.as_ref();
                LaunchArg::I32(narrow(groups.map_or(planned.grid[0].into(), |groups| groups.work(at)))?)
            }
        })
    };
    let mut launches = Vec::with_capacity(program.launches.len());
    for launch in &program.launches {
        let kernel = compiled
            .get(launch.kernel)
            .ok_or_else(|| BindError::Program(format!("launch of kernel {} of {}", launch.kernel, compiled.len())))?;
        let grid = launch.grid_at(at);
        if grid.contains(&0) {
            // A part of the batch that this launch does not have.
            continue;
        }
        let mut args = launch.args.iter().map(|b| argument(launch, b)).collect::<Result<Vec<_>, _>>()?;
        for (n, arg) in args.iter_mut().enumerate() {
            let sized: Vec<_> = launch.maps.iter().filter(|m| m.arg == n).collect();
            let Some(ArgKind::TensorMap(map)) = kernel.args().get(n).map(|a| &a.kind).filter(|_| !sized.is_empty()) else {
                continue;
            };
            let mut extent = map.extent.clone();
            for m in sized {
                if let Some(size) = extent.get_mut(m.dim) {
                    *size = m.extent.at(at);
                }
            }
            if let LaunchArg::Buffer(memory) = arg {
                *arg = LaunchArg::Map { memory: memory.clone(), extent };
            }
        }
        launches.push(Launch { kernel: kernel.clone(), grid, args });
    }
    Ok(launches)
}
