//! From a program and buffers to launches on a device: compiling its kernels and binding their arguments.

use crate::reference::TestData;
use std::sync::Arc;
use tilewright_device::{Buffer, Compiled, Device, DeviceError, Launch, LaunchArg, MapExtents, Number, declared};
use tilewright_gen::program::{ADDED_ALIGN, Binding, Factor, Launch as Planned, Program};
use tilewright_ir::{ArgKind, Scalar};
pub use tilewright_problem::Factors;
use tilewright_problem::contraction::{Contraction, Operand, OperandValues, Reduce, ResultSource};
use tilewright_problem::{Extent, Extents, PerRole, Role};

/// Memory a program runs on.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Operand A.
    pub a: Buffer,
    /// Operand B.
    pub b: Buffer,
    /// Result.
    pub c: Buffer,
    /// What the contraction reads, or stores, beside the operands.
    pub added: PerRole<Option<Buffer>>,
    /// Values of the problem's reductions.
    pub reductions: Vec<Buffer>,
    /// At least [`Program::workspace_bytes`] bytes, where that is not 0.
    pub workspace: Option<Buffer>,
    /// Element 0 of A, B and C within its buffer, in elements.
    pub offsets: [u64; 3],
}

/// Why a program cannot run on these buffers.
///
/// ```
/// use tilewright_check::run::{BindError, check_extents};
/// # use tilewright_ir::Scalar;
/// # use tilewright_problem::lower::{ConvForm, lower};
/// # use tilewright_problem::{Dynamic, Extent, Gemm};
///
/// // Kernels for up to 64 rows do not hold for 65.
/// let gemm = Gemm::new(Scalar::F32, 64, 8, 8).dynamic(Dynamic::NONE.with(Extent::M)).build()?;
/// let contraction = lower(&gemm.into(), ConvForm::PER_SAMPLE)?.lead;
/// let error = check_extents(&contraction, &contraction.extents().with(Extent::M, 65)).unwrap_err();
/// assert!(matches!(error, BindError::Extent { extent: Extent::M, value: 65, most: 64, .. }));
/// assert_eq!(error.to_string(), "m = 65: this kernel holds for 1 to 64");
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
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
    #[error(
        "the buffer of the {what} starts at a multiple of {actual} bytes only, {needed} are needed; make it a separate allocation"
    )]
    Unaligned {
        /// Which.
        what: &'static str,
        /// Largest power of two known to divide its start, in bytes.
        actual: u64,
        /// What is needed, in bytes.
        needed: u32,
    },
    /// A result lies where a factor or another result does.
    #[error(
        "the memory of {written} overlaps that of {used}, which would be overwritten while it is in use; give {written} separate memory"
    )]
    Overlap {
        /// Whose memory the kernels write.
        written: &'static str,
        /// Whose memory it overlaps.
        used: &'static str,
    },
    /// The result lies where the residual does, beside a complex beta.
    #[error(
        "operand C overlaps the residual in memory, and a complex beta is multiplied into C before the residual is read; give C separate memory, or use \
             beta 0"
    )]
    OverlapsResidual,
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
    #[error("{name} = {value:e} does not fit {scalar}, the type of the accumulators; give a magnitude of {:e} or less", f32::MAX)]
    Factor {
        /// `alpha` or `beta`.
        name: &'static str,
        /// Asked for.
        value: f64,
        /// The type of the sums.
        scalar: Scalar,
    },
    /// An imaginary part of a factor that the kernels have real.
    #[error("{name} = {value:e}: {reason}")]
    Imaginary {
        /// `alpha_im` or `beta_im`.
        name: &'static str,
        /// Asked for.
        value: f64,
        /// The reason and the remedy.
        reason: String,
    },
    /// A factor of integers.
    #[error("alpha = {alpha:e}, beta = {beta:e}: integer results are not scaled; use 1 and 0, or an f32 result (tensor)")]
    Scaled {
        /// Asked for.
        alpha: f64,
        /// The beta that was passed.
        beta: f64,
    },
    /// An old result beside a gate.
    #[error("beta = {beta:e}: a gated product adds no old result; use 0, or give it as a residual")]
    Gated {
        /// Asked for.
        beta: f64,
    },
    /// A result that is neither stored nor read.
    #[error("beta = {beta:e}: C is neither stored nor read here; use 0, or store C")]
    Dropped {
        /// Asked for.
        beta: f64,
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
        let mut added = PerRole::default();
        for (role, values) in data.added.given() {
            added.set(role, Some(upload(&values.bytes)?));
        }
        if let Some(wide) = &data.ungated {
            added.set(Role::Preactivations, Some(upload(&wide.c.bytes)?));
        }
        Ok(Buffers {
            a: upload(&data.a.bytes)?,
            b: upload(&data.b.bytes)?,
            c: upload(&data.c.bytes)?,
            added,
            reductions: data.reductions.iter().map(|reduction| upload(&reduction.bytes)).collect::<Result<_, _>>()?,
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

    /// Copies the bias, residual and other added tensors of other test data of the same problem into the buffers.
    ///
    /// # Errors
    /// Those of [`Device::write`].
    pub fn write_added(&self, device: &dyn Device, data: &TestData) -> Result<(), DeviceError> {
        for (role, values) in data.added.given() {
            if let Some(buffer) = self.added.given_to(role) {
                device.write(buffer, 0, &values.bytes)?;
            }
        }
        Ok(())
    }

    /// The buffer of an operand.
    pub const fn operand(&self, operand: Operand) -> &Buffer {
        match operand {
            Operand::A => &self.a,
            Operand::B => &self.b,
            Operand::C => &self.c,
        }
    }

    /// The buffer of a role, where there is one.
    pub fn get(&self, role: Role) -> Option<&Buffer> {
        match role {
            Role::A => Some(&self.a),
            Role::B => Some(&self.b),
            Role::C => Some(&self.c),
            Role::Reduction(number) => self.reductions.get(number),
            Role::Workspace => self.workspace.as_ref(),
            other => self.added.given_to(other),
        }
    }

    /// Where the operands begin.
    pub fn alignments(&self, contraction: &Contraction) -> Alignments {
        Alignments::of(contraction, [&self.a, &self.b, &self.c].map(Buffer::alignment), self.offsets)
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

/// Powers of two, in bytes, that are known to divide where operands A, B and C begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alignments {
    /// Their element 0.
    pub elements: [u64; 3],
    /// The buffers they lie in.
    pub buffers: [u64; 3],
}

impl Alignments {
    /// The alignments of A, B and C. Element 0 is `offsets` elements after the start of a buffer, and `buffers` are the buffers'
    /// alignments in bytes.
    pub fn of(contraction: &Contraction, buffers: [u64; 3], offsets: [u64; 3]) -> Alignments {
        let element = |n: usize, operand| {
            let bytes = contraction.tensor(operand).scalar.bytes_of(offsets[n]);
            if bytes == 0 { buffers[n] } else { buffers[n].min(1 << bytes.trailing_zeros()) }
        };
        Alignments { elements: [element(0, Operand::A), element(1, Operand::B), element(2, Operand::C)], buffers }
    }
    /// Asks what a program needs.
    ///
    /// # Errors
    /// [`BindError::Misaligned`].
    pub fn check(&self, program: &Program) -> Result<(), BindError> {
        let elements = program.alignments.iter().map(|need| (need, &self.elements));
        let buffers = program.bases.iter().map(|need| (need, &self.buffers));
        for (need, actual) in elements.chain(buffers) {
            let actual = actual[need.operand as usize];
            if !actual.is_multiple_of(u64::from(need.bytes.max(1))) {
                return Err(BindError::Misaligned { operand: need.operand, actual, needed: need.bytes });
            }
        }
        Ok(())
    }
}

/// Asks the alignments and sizes a program needs of the real buffers, for a launch with these extents.
///
/// # Errors
/// [`BindError::Extent`], [`BindError::Misaligned`], [`BindError::TooSmall`], [`BindError::Absent`].
pub fn check(program: &Program, contraction: &Contraction, buffers: &Buffers, at: &Extents) -> Result<(), BindError> {
    check_extents(contraction, at)?;
    buffers.alignments(contraction).check(program)?;
    let large_enough = |role: Role, needed: u64| {
        let given = buffers.get(role).ok_or(absent(role))?;
        if given.bytes() < needed {
            return Err(BindError::TooSmall { what: role.words().into(), actual: given.bytes(), needed });
        }
        Ok(given)
    };
    for (role, needed) in memories(contraction, buffers.offsets, at) {
        check_added(role, large_enough(role, needed)?.alignment())?;
    }
    if program.workspace_bytes > 0 {
        large_enough(Role::Workspace, program.workspace_bytes)?;
    }
    Ok(())
}

/// Asks that a contraction holds for the extents of a launch.
///
/// # Errors
/// [`BindError::Extent`].
pub fn check_extents(contraction: &Contraction, at: &Extents) -> Result<(), BindError> {
    for extent in [Extent::G, Extent::M, Extent::N] {
        let (value, most, dynamic) = (at.of(extent), contraction.extents().of(extent), contraction.dynamic().has(extent));
        if (value == 0 && most > 0) || value > most || (!dynamic && value != most) {
            return Err(BindError::Extent { extent, value, most, dynamic });
        }
    }
    Ok(())
}

/// Bytes from the start of an operand's buffer to the end of what a launch touches.
pub fn bytes(contraction: &Contraction, operand: Operand, offset: u64, at: &Extents) -> u64 {
    let len = contraction.len_at(operand, at);
    // Of an empty tensor nothing is touched, wherever it begins.
    let len = if len == 0 { 0 } else { len.saturating_add(offset) };
    contraction.tensor(operand).scalar.bytes_of(len)
}

/// The operands that a launch touches: all but a result that is not stored, and one where there is no product.
pub fn operands(contraction: &Contraction) -> impl Iterator<Item = Operand> + use<> {
    let all = [Operand::A, Operand::B, Operand::C];
    let count = match contraction.source {
        ResultSource::Elements(_) => 1,
        _ => 3 - usize::from(contraction.drop_c),
    };
    all.into_iter().take(count)
}

/// The memories that a launch touches apart from the workspace, with the bytes from their start to the end of what it touches. `offsets`: element 0
/// of A, B and C within its memory, in elements.
pub fn memories(contraction: &Contraction, offsets: [u64; 3], at: &Extents) -> impl Iterator<Item = (Role, u64)> {
    let operand = move |x: Operand| (x.into(), bytes(contraction, x, offsets[x as usize], at));
    operands(contraction).map(operand).chain(added(contraction, at))
}

/// Quantisation parameters, bias, residual, up weights, second pair, pre-activations and reductions in the problem's order, as far as a
/// contraction has them. Each comes with the bytes that a launch touches.
pub fn added(contraction: &Contraction, at: &Extents) -> impl Iterator<Item = (Role, u64)> {
    let bytes = |len: u64, scalar: Scalar| scalar.bytes_of(len);
    let quants = contraction.quants();
    let quants: Vec<_> =
        quants.map(|(quant, x)| (Role::from(quant), bytes(contraction.vector_len_at(x, at), x.scalar))).collect();
    let bias = contraction.bias().map(|x| (Role::Bias, bytes(contraction.bias_len_at(at), x.scalar)));
    let residual = contraction.residual().map(|x| (Role::Residual, bytes(contraction.residual_len_at(at), x.scalar)));
    let up = contraction.up().map(|_| (Role::Up, bytes(contraction.len_at(Operand::B, at), contraction.b.scalar)));
    let second: Vec<_> =
        contraction.second_operands().map(|(role, x)| (role, bytes(contraction.second_len_at(role, at), x.scalar))).collect();
    let stored = contraction.preactivations();
    let stored = stored.map(|x| (Role::Preactivations, bytes(contraction.preactivations_len_at(at), x.scalar)));
    let values = |x: &Reduce| (Role::Reduction(x.number), bytes(contraction.result_shape_at(x, at).left(x.over), x.scalar));
    let of_operand = |x: &OperandValues| (Role::Reduction(x.reduce.number), bytes(x.len, x.reduce.scalar));
    let mut reductions: Vec<_> =
        contraction.reductions().map(values).chain(contraction.operand_values.iter().map(of_operand)).collect();
    reductions.sort_by_key(|(role, _)| role.index());
    quants.into_iter().chain(bias).chain(residual).chain(up).chain(second).chain(stored).chain(reductions)
}

/// The error where the memory of a role is not given.
pub const fn absent(role: Role) -> BindError {
    BindError::Absent(match role {
        Role::Bias => "a bias vector",
        Role::Residual => "a residual",
        Role::Reduction(_) => "a buffer for each reduction",
        role => role.words(),
    })
}

/// Asks the alignment, in bytes, that the memory of a role needs for vectors of it. That of operands depends on the plan: [`Alignments`].
///
/// # Errors
/// [`BindError::Unaligned`].
pub fn check_added(role: Role, actual: u64) -> Result<(), BindError> {
    let operand = matches!(role, Role::A | Role::B | Role::C);
    if operand || actual.is_multiple_of(u64::from(ADDED_ALIGN)) {
        return Ok(());
    }
    Err(BindError::Unaligned { what: role.words(), actual, needed: ADDED_ALIGN })
}

/// An argument of a launch: a number, or a memory from a byte on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// Memory.
    Memory(Role, u64),
    /// A tensor map over memory.
    Map(Role, u64, MapExtents),
    /// A number.
    Number(Number),
}

/// The scalar arguments of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    contraction: &'a Contraction,
    /// Element 0 of A, B and C within its buffer, in elements.
    offsets: [u64; 3],
    factors: Factors,
    at: &'a Extents,
}

impl<'a> Call<'a> {
    /// A launch with these factors and extents.
    ///
    /// # Errors
    /// [`BindError::Factor`], [`BindError::Imaginary`], [`BindError::Scaled`], [`BindError::Gated`], [`BindError::Dropped`].
    pub fn new(
        contraction: &'a Contraction,
        offsets: [u64; 3],
        factors: Factors,
        at: &'a Extents,
    ) -> Result<Call<'a>, BindError> {
        let scalar = contraction.result_scalar();
        if !scalar.is_float() && (factors.alpha != 1.0 || factors.beta != 0.0) {
            return Err(BindError::Scaled { alpha: factors.alpha, beta: factors.beta });
        }
        let made_for = [contraction.turns_factor(), contraction.turns_old()];
        for ((name, value), made_for) in [("alpha_im", factors.alpha_im), ("beta_im", factors.beta_im)].into_iter().zip(made_for)
        {
            if value != 0.0 && !made_for {
                let complex = contraction.a.signs.is_some() || contraction.b.signs.is_some();
                return Err(BindError::Imaginary { name, value, reason: Factors::refusal(name, complex) });
            }
        }
        for (name, value) in factors.named() {
            // Infinities and NaN are the caller's own and mean what they mean in IEEE arithmetic.
            if value.is_finite() && scalar != Scalar::F64 && (value as f32).is_infinite() {
                return Err(BindError::Factor { name, value, scalar });
            }
        }
        if contraction.pairs().is_some() && factors.reads_old() {
            return Err(BindError::Gated { beta: factors.beta });
        }
        if contraction.drop_c && factors.reads_old() {
            return Err(BindError::Dropped { beta: factors.beta });
        }
        Ok(Call { contraction, offsets, factors, at })
    }

    /// Argument `n` of a launch. Nothing is allocated.
    ///
    /// # Errors
    /// [`BindError::Program`] where program and kernel do not belong together.
    pub fn argument(&self, launch: &Planned, n: usize, kernel: &Compiled) -> Result<Argument, BindError> {
        let malformed = || BindError::Program(format!("argument {n} of `{}`", kernel.entry()));
        let factor = |value: f64| match self.contraction.result_scalar() {
            Scalar::F64 => Number::F64(value),
            _ => Number::F32(value as f32),
        };
        let element = |operand: Operand, more: u64| {
            let from = self.offsets[operand as usize].saturating_add(more);
            self.contraction.tensor(operand).scalar.bytes_of(from)
        };
        let map = |memory, from| {
            let Some(ArgKind::TensorMap(map)) = kernel.args().get(n).map(|a| &a.kind) else { return Err(malformed()) };
            let mut extents = declared(map);
            for sized in launch.maps.iter().filter(|m| m.arg == n) {
                *extents.get_mut(sized.dim).ok_or_else(malformed)? = sized.extent.at(self.at);
            }
            Ok(Argument::Map(memory, from, extents))
        };
        let number = match *launch.args.get(n).ok_or_else(malformed)? {
            Binding::Buffer(operand) => return Ok(Argument::Memory(operand.into(), 0)),
            Binding::Quant(quant) => return Ok(Argument::Memory(quant.into(), 0)),
            Binding::Bias => return Ok(Argument::Memory(Role::Bias, 0)),
            Binding::Residual => return Ok(Argument::Memory(Role::Residual, 0)),
            Binding::Preactivations => return Ok(Argument::Memory(Role::Preactivations, 0)),
            Binding::Up => return Ok(Argument::Memory(Role::Up, 0)),
            Binding::Second(operand) => return Ok(Argument::Memory(Role::second(operand), 0)),
            Binding::Reduction(number) => return Ok(Argument::Memory(Role::Reduction(number), 0)),
            Binding::Workspace(from) => return Ok(Argument::Memory(Role::Workspace, from)),
            // A tensor map is encoded by the device; what is bound is the memory from its element 0 on.
            Binding::OperandMap(operand, first) => return map(operand.into(), element(operand, first)),
            Binding::UpMap(first) => return map(Role::Up, self.contraction.b.scalar.bytes_of(first)),
            Binding::SecondMap(operand, first) => {
                return map(Role::second(operand), self.contraction.tensor(operand).scalar.bytes_of(first));
            }
            Binding::PreactivationsMap(first) => {
                let bytes = self.contraction.preactivations().map_or(0, |x| x.scalar.bytes_of(first));
                return map(Role::Preactivations, bytes);
            }
            Binding::WorkspaceMap(from) => return map(Role::Workspace, from),
            Binding::Offset(operand) => {
                let offset = self.offsets[operand as usize];
                Number::I64(i64::try_from(offset).map_err(|_| BindError::Program(format!("offset {offset} of {operand:?}")))?)
            }
            Binding::Alpha => factor(self.factors.alpha),
            Binding::Beta => factor(self.factors.beta),
            Binding::AlphaIm => factor(self.factors.alpha_im),
            Binding::BetaIm => factor(self.factors.beta_im),
            Binding::I64(value) => Number::I64(value),
            Binding::I32(value) => Number::I32(value),
            Binding::Extent(extent) => Number::I32(narrow(self.at.of(extent).into())?),
            Binding::Entries { first, most } => Number::I64(Factor::Entries { first, most }.at(self.at) as i64),
            Binding::Work => {
                let groups = launch.groups.as_ref();
                Number::I32(narrow(groups.map_or(launch.grid[0].into(), |groups| groups.work(self.at)))?)
            }
        };
        Ok(Argument::Number(number))
    }
}

/// Binds a program's arguments to buffers, for a launch with these extents. They are the contraction's extents, or smaller ones
/// where they are known only at launch. `compiled` holds the program's kernels in order. Legality is asked again with the real
/// buffers.
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
    let call = Call::new(contraction, buffers.offsets, factors, at)?;
    let from = |role: Role, from: u64| {
        let whole = buffers.get(role).ok_or(absent(role))?;
        Ok::<_, BindError>(whole.slice(from, whole.bytes().saturating_sub(from))?)
    };
    let mut launches = Vec::with_capacity(program.launches.len());
    for launch in &program.launches {
        let kernel = kernel_of(launch, compiled)?;
        let grid = launch.grid_at(at);
        if grid.contains(&0) {
            // A part of the batch that this launch does not have.
            continue;
        }
        let argument = |n| {
            Ok(match call.argument(launch, n, kernel)? {
                Argument::Memory(memory, first) => LaunchArg::Buffer(from(memory, first)?),
                Argument::Map(memory, first, extent) => LaunchArg::Map { memory: from(memory, first)?, extent },
                Argument::Number(number) => number.into(),
            })
        };
        let args = (0..launch.args.len()).map(argument).collect::<Result<Vec<_>, BindError>>()?;
        launches.push(Launch { kernel: kernel.clone(), grid, args });
    }
    Ok(launches)
}

/// The kernel of a launch.
///
/// # Errors
/// [`BindError::Program`] where there is none.
pub fn kernel_of<'a>(launch: &Planned, compiled: &'a [Arc<Compiled>]) -> Result<&'a Arc<Compiled>, BindError> {
    let of = compiled.len();
    compiled.get(launch.kernel).ok_or_else(|| BindError::Program(format!("launch of kernel {} of {of}", launch.kernel)))
}
