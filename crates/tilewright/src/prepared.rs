//! An operation made ready to be launched: compiled for its device and for where its operands begin. What is slow is over.

use crate::program::Ready;
use crate::{Context, Error};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tilewright_check::run::{
    Alignments, Argument, BindError, Buffers, Call, Factors, absent, added, bind, bytes, check_added, check_extents, kernel_of,
    memories, operands,
};
use tilewright_device::{Foreign, Stream, Value, copy_in, copy_out};
use tilewright_gen::plan::Plan;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Extents, PerRole, Problem, Role};

/// What a workspace is aligned to, in bytes.
const WORKSPACE_ALIGN: u64 = 256;

/// Most arguments of a kernel.
const ARGS: usize = 64;

/// Addresses of the first bytes of a problem's memories, where they belong to others. On CUDA and HIP they are addresses of the device's
/// memory. On the emulator and on OpenCL they are addresses of this process, whose bytes the launch copies in and out. The address of a memory
/// that the problem does not have is 0.
///
/// Operands A, B and C begin at the problem's own offset from their address. Scales, zero points, ends of groups, bias, residual and the
/// values of reductions are aligned to 16 bytes. The workspace has [`Prepared::workspace_bytes`] bytes, aligned to 256; the emulator and OpenCL
/// need none. Launches that may overlap need a workspace each.
///
/// ```
/// use tilewright::{Addresses, Role};
/// let [a, b, mut c] = [[1.0_f32; 4]; 3];
/// let addresses = Addresses::operands([a.as_ptr() as u64, b.as_ptr() as u64, c.as_mut_ptr() as u64]);
/// assert_eq!(addresses.of(Role::Bias), 0);
/// ```
pub type Addresses = PerRole<u64>;

/// Largest power of two that divides an address, at most 256.
pub(crate) const fn alignment(address: u64) -> u64 {
    if address == 0 { 256 } else { 1 << if address.trailing_zeros() > 8 { 8 } else { address.trailing_zeros() } }
}

/// A compiled operation, for operands that begin as it was prepared for. Clones share it; any thread may launch it, on any stream.
///
/// ```
/// use tilewright::{Addresses, Context, Factors, Gemm, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let prepared = context.gemm(Gemm::new(Scalar::F32, 2, 2, 2))?.prepare()?;
/// let (a, b, mut c) = ([1.0f32, 2.0, 3.0, 4.0], [1.0f32, 0.0, 0.0, 1.0], [0.0f32; 4]);
/// let addresses = Addresses::operands([a.as_ptr() as u64, b.as_ptr() as u64, c.as_mut_ptr() as u64]);
/// // SAFETY: the arrays are as large as the problem says, and the call copies C back before it returns.
/// unsafe { prepared.launch_on_host_memory(&addresses, Factors::default(), None)? };
/// assert_eq!(c, a);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone)]
pub struct Prepared {
    context: Context,
    ready: Arc<Ready>,
    /// The problem's offsets of A, B and C, in elements. Complex elements count as two.
    offsets: [u64; 3],
    /// Whether A, B and C fill their memory: what overlaps it overlaps elements. False for a C that is not kept.
    filled: [bool; 3],
    /// The same of A and B of the second pair of factors.
    filled_second: [bool; 2],
}

impl Prepared {
    pub(crate) fn new(context: Context, ready: Arc<Ready>, problem: &Problem, offsets: [u64; 3]) -> Prepared {
        let filled = |operand| problem.is_packed(operand) && (operand != Operand::C || problem.keeps_c());
        let second = if let Problem::Gemm(gemm) = problem { gemm.second_product() } else { None };
        let filled_second = [0, 1].map(|index| second.as_ref().is_some_and(|second| second.is_packed(index)));
        Prepared { context, ready, offsets, filled: [Operand::A, Operand::B, Operand::C].map(filled), filled_second }
    }
    /// The plan that runs.
    pub fn plan(&self) -> Plan {
        self.ready.plan
    }
    /// Bytes of workspace that a launch on memory of others takes.
    pub fn workspace_bytes(&self) -> u64 {
        if self.context.device().foreign().is_some() { self.ready.program.workspace_bytes } else { 0 }
    }
    /// Alignments, in bytes, that the addresses of A, B and C need; launches that have less are refused.
    pub fn alignments(&self) -> [u64; 3] {
        let Ready { program, contraction, .. } = &*self.ready;
        let fits = |align: u64, operand: Operand| {
            let mut given = [256; 3];
            given[operand as usize] = align;
            Alignments::of(contraction, given, self.offsets).check(program).is_ok()
        };
        [Operand::A, Operand::B, Operand::C].map(|x| (0..8).map(|n| 1 << n).find(|&align| fits(align, x)).unwrap_or(256))
    }
    /// The largest extents of a launch.
    pub fn extents(&self) -> Extents {
        self.ready.contraction.extents()
    }

    /// Starts the operation on memory and a stream of others, and returns. On CUDA and HIP no lock is held over a call of the
    /// driver. Nothing is allocated, waited for or asked of the device, because the stream may be capturing a graph. `self` must
    /// live until the stream has passed the launch. Kernels that a graph captured stay loaded to the end of the process. The
    /// emulator and OpenCL devices take no stream: there the operands are copied in, and C is copied out before this returns.
    ///
    /// # Errors
    /// [`Error::Bind`] for an address that is missing or less aligned than prepared for ([`crate::Operation::prepare_for`]), and for a result that
    /// overlaps an operand or another result. [`Error::Bind`] also for extents that the problem does not have, and factors that the accumulator's
    /// type cannot hold. [`Error::Device`].
    ///
    /// # Safety
    /// Every address must be one of this device's memory (emulator and OpenCL: of this process), with as many bytes as the problem says. The memory
    /// must stay valid until the stream has passed the launch, or every replay of it. C may overlap the residual only, and with a complex beta no
    /// operand. Pre-activations must overlap no other memory.
    pub unsafe fn launch(
        &self,
        stream: Stream,
        addresses: &Addresses,
        factors: Factors,
        at: Option<Extents>,
    ) -> Result<(), Error> {
        let Ready { program, contraction, .. } = &*self.ready;
        let at = at.unwrap_or_else(|| contraction.extents());
        self.check(addresses, &at, self.workspace_bytes() > 0)?;
        let call = Call::new(contraction, self.offsets, factors, &at)?;
        let Some(device) = self.context.device().foreign() else {
            // SAFETY: the caller vouches for the addresses, which are of this process here.
            return unsafe { self.launch_on_host_memory(addresses, factors, Some(at)) };
        };
        if contraction.turns_old() && factors.reads_old() {
            self.check_residual(addresses, &at)?;
        }
        let starts = [Role::A, Role::B, Role::C].map(|role| alignment(addresses.of(role)));
        Alignments::of(contraction, starts, self.offsets).check(program)?;
        added(contraction, &at).try_for_each(|(role, _)| check_added(role, alignment(addresses.of(role))))?;
        if program.workspace_bytes > 0 && alignment(addresses.of(Role::Workspace)) < WORKSPACE_ALIGN {
            let (what, actual, needed) = ("workspace", alignment(addresses.of(Role::Workspace)), WORKSPACE_ALIGN as u32);
            return Err(BindError::Unaligned { what, actual, needed }.into());
        }
        // SAFETY: the caller vouches for the addresses.
        unsafe { self.start(device, stream, addresses, &call, &at) }
    }

    /// That the extents are possible, and no address is missing.
    fn check(&self, addresses: &Addresses, at: &Extents, workspace: bool) -> Result<(), BindError> {
        let contraction = &self.ready.contraction;
        check_extents(contraction, at)?;
        let touched = memories(contraction, self.offsets, at).filter(|(_, bytes)| *bytes > 0).map(|(role, _)| role);
        match touched.chain(workspace.then_some(Role::Workspace)).find(|role| addresses.of(*role) == 0) {
            Some(missing) => Err(absent(missing)),
            None => self.check_apart(addresses, at),
        }
    }

    /// That C, which a kernel ahead of the product changes, overlaps no residual.
    fn check_residual(&self, addresses: &Addresses, at: &Extents) -> Result<(), BindError> {
        let contraction = &self.ready.contraction;
        let residual = contraction.residual().map_or(0, |x| x.scalar.bytes_of(contraction.residual_len_at(at)));
        let [c, added] = [Role::C, Role::Residual].map(|role| addresses.of(role));
        let end = c.saturating_add(bytes(contraction, Operand::C, self.offsets[Operand::C as usize], at));
        let overlaps = added < end && c < added.saturating_add(residual);
        if residual > 0 && overlaps { Err(BindError::OverlapsResidual) } else { Ok(()) }
    }

    /// A tensor beside A and B whose elements are multiplied, and fill its memory.
    fn is_filled_factor(&self, role: Role) -> bool {
        match role {
            // The up weights lie as B does.
            Role::Up => self.filled[Operand::B as usize],
            Role::A2 => self.filled_second[0],
            Role::B2 => self.filled_second[1],
            _ => false,
        }
    }

    /// That C overlaps no factor, and pre-activations overlap no other memory, where what overlaps memory overlaps elements: of all extents, and of
    /// tensors without gaps.
    fn check_apart(&self, addresses: &Addresses, at: &Extents) -> Result<(), BindError> {
        let contraction = &self.ready.contraction;
        if *at != contraction.extents() {
            return Ok(());
        }
        let memory = |operand: Operand| {
            let first = contraction.tensor(operand).scalar.bytes_of(self.offsets[operand as usize]);
            let address = addresses.of(operand.into());
            let end = bytes(contraction, operand, self.offsets[operand as usize], at);
            address.saturating_add(first)..address.saturating_add(end)
        };
        let apart = |written: Role, result: Range<u64>, others: &[Operand]| {
            let overlaps = |operand: &&Operand| {
                let other = memory(**operand);
                self.filled[**operand as usize] && other.start < result.end && result.start < other.end
            };
            match others.iter().find(overlaps) {
                Some(operand) => Err(BindError::Overlap { written: written.words(), used: Role::from(*operand).words() }),
                None => Ok(()),
            }
        };
        if self.filled[Operand::C as usize] {
            apart(Role::C, memory(Operand::C), &[Operand::A, Operand::B])?;
            let result = memory(Operand::C);
            let shares = |(role, bytes): &(Role, u64)| {
                let start = addresses.of(*role);
                start < result.end && result.start < start.saturating_add(*bytes)
            };
            if let Some((role, _)) = added(contraction, at).filter(|(role, _)| self.is_filled_factor(*role)).find(shares) {
                return Err(BindError::Overlap { written: Role::C.words(), used: role.words() });
            }
        }
        match added(contraction, at).find(|(role, bytes)| *role == Role::Preactivations && *bytes > 0) {
            Some((role, bytes)) => {
                let start = addresses.of(role);
                let result = start..start.saturating_add(bytes);
                apart(role, result.clone(), &[Operand::A, Operand::B, Operand::C])?;
                let shares = |first: u64, bytes: u64| first < result.end && result.start < first.saturating_add(bytes);
                let mut others = added(contraction, at).filter(|(other, _)| *other != role);
                match others.find(|(other, bytes)| shares(addresses.of(*other), *bytes)) {
                    Some((other, _)) => Err(BindError::Overlap { written: role.words(), used: other.words() }),
                    None => Ok(()),
                }
            }
            None => Ok(()),
        }
    }

    /// # Safety
    /// As [`Prepared::launch`].
    unsafe fn start(
        &self,
        device: &dyn Foreign,
        stream: Stream,
        addresses: &Addresses,
        call: &Call<'_>,
        at: &Extents,
    ) -> Result<(), Error> {
        let mut in_sequence = false;
        for launch in &self.ready.program.launches {
            let kernel = kernel_of(launch, &self.ready.compiled)?;
            let grid = launch.grid_at(at);
            if grid.contains(&0) {
                // A part of the batch that this launch does not have.
                continue;
            }
            let mut args = [Value::Address(0); ARGS];
            let count = launch.args.len();
            if count > ARGS {
                return Err(BindError::Program(format!(
                    "`{}` has {count} arguments, at most {ARGS} are possible",
                    kernel.entry()
                ))
                .into());
            }
            for (n, value) in args.iter_mut().enumerate().take(count) {
                let address = |role, from: u64| addresses.of(role).wrapping_add(from);
                *value = match call.argument(launch, n, kernel)? {
                    Argument::Memory(role, from) => Value::Address(address(role, from)),
                    Argument::Map(role, from, extents) => Value::Map(address(role, from), extents),
                    Argument::Number(number) => Value::Number(number),
                };
            }
            // SAFETY: the caller vouches for the addresses; `self` holds the kernel.
            unsafe { device.start(stream, kernel, grid, in_sequence, &args[..count]) }?;
            in_sequence = true;
        }
        Ok(())
    }

    /// Copies operands from this process into memory of the device, whatever device that is, runs there, and copies C back before it
    /// returns.
    ///
    /// # Errors
    /// As [`Prepared::launch`].
    ///
    /// # Safety
    /// As [`Prepared::launch`], with addresses of this process.
    pub unsafe fn launch_on_host_memory(
        &self,
        addresses: &Addresses,
        factors: Factors,
        at: Option<Extents>,
    ) -> Result<(), Error> {
        let at = &at.unwrap_or_else(|| self.extents());
        self.check(addresses, at, false)?;
        let device = &**self.context.device();
        let contraction = &self.ready.contraction;
        let upload = |role: Role, bytes: u64| {
            let size = usize::try_from(bytes).map_err(|_| absent(role))?;
            let buffer = device.alloc(bytes.max(1))?;
            if size > 0 {
                // SAFETY: the caller vouches for the address and for as many bytes as the problem says.
                unsafe { copy_in(device, addresses.of(role), &buffer, size) }?;
            }
            Ok::<_, Error>(buffer)
        };
        let operand = |x: Operand| upload(x.into(), bytes(contraction, x, self.offsets[x as usize], at));
        let mut others = PerRole::default();
        let (mut reductions, mut values) = (Vec::new(), Vec::new());
        for (role, bytes) in added(contraction, at) {
            let buffer = upload(role, bytes)?;
            if let Role::Reduction(_) = role {
                values.push((buffer.clone(), addresses.of(role), bytes));
                reductions.push(buffer);
            } else {
                if role == Role::Preactivations {
                    values.push((buffer.clone(), addresses.of(role), bytes));
                }
                others.set(role, Some(buffer));
            }
        }
        let a = operand(Operand::A)?;
        // Operands that a launch does not touch need no memory.
        let touched = |x: Operand| if operands(contraction).any(|other| other == x) { operand(x) } else { Ok(a.clone()) };
        let (b, c) = (touched(Operand::B)?, touched(Operand::C)?);
        values.extend((!contraction.drop_c).then(|| (c.clone(), addresses.of(Role::C), c.bytes())));
        let offsets = self.offsets;
        self.run(Buffers { a, b, c, added: others, reductions, workspace: None, offsets }, factors, at)?;
        for (buffer, to, bytes) in values.into_iter().filter(|(.., bytes)| *bytes > 0) {
            // SAFETY: as above, to write.
            unsafe { copy_out(device, &buffer, to, bytes as usize) }?;
        }
        Ok(())
    }

    /// Starts the operation on buffers of its device, in the device's own order.
    pub(crate) fn run(&self, mut buffers: Buffers, factors: Factors, at: &Extents) -> Result<(), Error> {
        let Ready { program, compiled, contraction, .. } = &*self.ready;
        buffers.workspace = self.context.workspace(program.workspace_bytes)?;
        let launches = bind(program, compiled, contraction, &buffers, factors, at)?;
        Ok(self.context.device().launch(&launches)?)
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("plan", &self.ready.plan.to_string()).finish_non_exhaustive()
    }
}
