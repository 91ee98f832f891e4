//! An operation made ready to be launched: compiled for its device and for where its operands begin. What is slow is over.

use crate::program::Ready;
use crate::{Context, Error};
use std::fmt;
use std::sync::Arc;
use tilewright_device::{Foreign, Stream, Value, copy_in, copy_out};
use tilewright_gen::plan::Plan;
use tilewright_gen::program::Program;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Extents, MOST_REDUCTIONS, Problem, Quant};
use tilewright_tune::run::{
    Alignments, Argument, BindError, Buffers, Call, Factors, Memory, added, bind, bytes, check_extents, kernel_of, operands,
};

/// What a workspace is aligned to, in bytes.
const WORKSPACE_ALIGN: u64 = 256;

/// Most arguments of a kernel.
const ARGS: usize = 64;

/// Memory of others that a launch runs on: addresses of first bytes. On CUDA and HIP those of the device's memory; on the emulator and on
/// OpenCL those of this process, whose bytes are copied in and out by the launch. What a problem does not have is 0.
///
/// Operands begin at the problem's own offset behind their address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Left factor, input, or output gradient.
    pub a: u64,
    /// Right factor, filter, or input.
    pub b: u64,
    /// Result.
    pub c: u64,
    /// Scales along m and n, zero points of A and B, ends of groups ([`Quant::ALL`]), aligned to 16 bytes.
    pub quants: [u64; Quant::ALL.len()],
    /// Bias vector, aligned to 16 bytes.
    pub bias: u64,
    /// Residual, aligned to 16 bytes.
    pub residual: u64,
    /// Values of the problem's reductions, each aligned to 16 bytes.
    pub reductions: [u64; MOST_REDUCTIONS],
    /// [`Prepared::workspace_bytes`] bytes, aligned to 256; not asked for on the emulator and on OpenCL. Launches that may overlap
    /// need a workspace each.
    pub workspace: u64,
}

impl Addresses {
    fn of(&self, memory: Memory) -> u64 {
        match memory {
            Memory::Operand(Operand::A) => self.a,
            Memory::Operand(Operand::B) => self.b,
            Memory::Operand(Operand::C) => self.c,
            Memory::Quant(quant) => self.quants[quant as usize],
            Memory::Bias => self.bias,
            Memory::Residual => self.residual,
            Memory::Reduction(number) => self.reductions.get(number).copied().unwrap_or(0),
            Memory::Workspace => self.workspace,
        }
    }
}

/// Largest power of two that divides an address, at most 256.
pub(crate) const fn alignment(address: u64) -> u64 {
    if address == 0 { 256 } else { 1 << if address.trailing_zeros() > 8 { 8 } else { address.trailing_zeros() } }
}

/// A compiled operation, for operands that begin as it was prepared for. Clones share it; any thread may launch it, on any stream.
#[derive(Clone)]
pub struct Prepared {
    context: Context,
    ready: Arc<Ready>,
    /// Element 0 of A, B and C behind their addresses, in elements (of complex ones in parts): the problem's own.
    offsets: [u64; 3],
    /// A and B that must not share memory with C: they fill theirs, as C does.
    apart: [bool; 2],
}

impl Prepared {
    pub(crate) fn new(context: Context, ready: Arc<Ready>, problem: &Problem, offsets: [u64; 3]) -> Prepared {
        let filled = |operand| problem.keeps_c() && problem.is_packed(operand) && problem.is_packed(Operand::C);
        Prepared { context, ready, offsets, apart: [Operand::A, Operand::B].map(filled) }
    }
    /// The plan that runs.
    pub fn plan(&self) -> Plan {
        self.ready.plan
    }
    /// Kernels and launches.
    pub fn program(&self) -> &Program {
        &self.ready.program
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

    /// Starts the operation on memory and a stream of others, and returns. On CUDA and HIP no lock is held over a call of the driver, and
    /// nothing is allocated, waited for or asked of the device: the stream may be capturing a graph. `self` must live until the stream
    /// has passed the launch, and as long as a graph that captured it. The emulator and OpenCL devices take no stream: there the
    /// operands are copied in, and C is copied out before this returns.
    ///
    /// # Errors
    /// [`Error::Bind`] for an address that is missing or not aligned as this was prepared for ([`crate::Operation::prepare_for`]), for a
    /// result in memory that a factor fills, for extents the problem does not have and factors that the type of the sums cannot hold; [`Error::Device`].
    ///
    /// # Safety
    /// Every address must be one of this device's memory (emulator and OpenCL: of this process), as large as the problem says, and stay
    /// so until the stream has passed the launch, or every replay of it; C must not overlap another operand than the residual, and with a complex beta
    /// not that either.
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
        let starts = [addresses.a, addresses.b, addresses.c].map(alignment);
        Alignments::of(contraction, starts, self.offsets).check(program)?;
        added(contraction, &at).try_for_each(|(memory, _)| memory.check_added(alignment(addresses.of(memory))))?;
        if program.workspace_bytes > 0 && alignment(addresses.workspace) < WORKSPACE_ALIGN {
            let (what, actual, needed) = ("workspace", alignment(addresses.workspace), WORKSPACE_ALIGN as u32);
            return Err(BindError::Unaligned { what, actual, needed }.into());
        }
        // SAFETY: the caller vouches for the addresses.
        unsafe { self.start(device, stream, addresses, &call, &at) }
    }

    /// That the extents are possible, and no address is missing.
    fn check(&self, addresses: &Addresses, at: &Extents, workspace: bool) -> Result<(), BindError> {
        let contraction = &self.ready.contraction;
        check_extents(contraction, at)?;
        let operands = operands(contraction).map(|x| (Memory::Operand(x), bytes(contraction, x, self.offsets[x as usize], at)));
        let touched = operands.chain(added(contraction, at)).filter(|(_, bytes)| *bytes > 0).map(|(memory, _)| memory);
        match touched.chain(workspace.then_some(Memory::Workspace)).find(|memory| addresses.of(*memory) == 0) {
            Some(missing) => Err(missing.absent()),
            None => self.check_apart(addresses, at),
        }
    }

    /// That C, which a kernel ahead of the product changes, overlaps no residual.
    fn check_residual(&self, addresses: &Addresses, at: &Extents) -> Result<(), BindError> {
        let contraction = &self.ready.contraction;
        let residual = contraction.residual().map_or(0, |x| x.scalar.bytes_of(contraction.residual_len_at(at)));
        let end = addresses.c.saturating_add(bytes(contraction, Operand::C, self.offsets[Operand::C as usize], at));
        let overlaps = addresses.residual < end && addresses.c < addresses.residual.saturating_add(residual);
        if residual > 0 && overlaps { Err(BindError::OverlapsResidual) } else { Ok(()) }
    }

    /// That C overlaps no factor, where what overlaps memory overlaps elements: of all extents, and of tensors without gaps.
    fn check_apart(&self, addresses: &Addresses, at: &Extents) -> Result<(), BindError> {
        let contraction = &self.ready.contraction;
        let memory = |operand: Operand| {
            let first = contraction.tensor(operand).scalar.bytes_of(self.offsets[operand as usize]);
            let address = addresses.of(Memory::Operand(operand));
            let end = bytes(contraction, operand, self.offsets[operand as usize], at);
            address.saturating_add(first)..address.saturating_add(end)
        };
        let (result, whole) = (memory(Operand::C), *at == contraction.extents());
        let overlaps = |operand: &Operand| {
            let factor = memory(*operand);
            whole && self.apart[*operand as usize] && factor.start < result.end && result.start < factor.end
        };
        match [Operand::A, Operand::B].into_iter().find(overlaps) {
            Some(operand) => Err(BindError::Overlap { operand }),
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
        let mut behind = false;
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
                let address = |memory, from: u64| addresses.of(memory).wrapping_add(from);
                *value = match call.argument(launch, n, kernel)? {
                    Argument::Memory(memory, from) => Value::Address(address(memory, from)),
                    Argument::Map(memory, from, extents) => Value::Map(address(memory, from), extents),
                    Argument::Number(number) => Value::Number(number),
                };
            }
            // SAFETY: the caller vouches for the addresses; `self` holds the kernel.
            unsafe { device.start(stream, kernel, grid, behind, &args[..count]) }?;
            behind = true;
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
        let upload = |memory: Memory, bytes: u64| {
            let size = usize::try_from(bytes).map_err(|_| memory.absent())?;
            let buffer = device.alloc(bytes.max(1))?;
            if size > 0 {
                // SAFETY: the caller vouches for the address and for as many bytes as the problem says.
                unsafe { copy_in(device, addresses.of(memory), &buffer, size) }?;
            }
            Ok::<_, Error>(buffer)
        };
        let operand = |x: Operand| upload(Memory::Operand(x), bytes(contraction, x, self.offsets[x as usize], at));
        let (mut quants, mut bias, mut residual) = ([const { None }; Quant::ALL.len()], None, None);
        let (mut reductions, mut values) = (Vec::new(), Vec::new());
        for (memory, bytes) in added(contraction, at) {
            match memory {
                Memory::Quant(quant) => quants[quant as usize] = Some(upload(memory, bytes)?),
                Memory::Bias => bias = Some(upload(memory, bytes)?),
                Memory::Reduction(_) => {
                    reductions.push(upload(memory, bytes)?);
                    values.push(bytes);
                }
                _ => residual = Some(upload(memory, bytes)?),
            }
        }
        let a = operand(Operand::A)?;
        let b = if contraction.elements.is_some() { a.clone() } else { operand(Operand::B)? };
        // What is not stored needs no memory.
        let c = if contraction.drop_c { a.clone() } else { operand(Operand::C)? };
        let mut results: Vec<_> = reductions.iter().cloned().zip(addresses.reductions).zip(values).collect();
        results.extend((!contraction.drop_c).then(|| ((c.clone(), addresses.c), c.bytes())));
        let offsets = self.offsets;
        self.run(Buffers { a, b, c, quants, bias, residual, reductions, workspace: None, offsets }, factors, at)?;
        for ((buffer, to), bytes) in results.into_iter().filter(|(_, bytes)| *bytes > 0) {
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
