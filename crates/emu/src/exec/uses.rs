//! Integer results beyond their type are wrong only where they are used.
//!
//! Kernels evaluate indices for all lanes and use those of the lanes that are inside. A result beyond its type is therefore
//! remembered with its lane, and goes through arithmetic as NaN goes through sums. It is an error once it decides, addresses or
//! is stored. In LLVM such a result is *poison*. A choice takes the poison of what it chooses; a condition that is false whatever
//! the other one is has none. Nothing here runs until some result is poison.

use crate::EmuError;
use crate::code::{Address, Bulk, Copy, Index, Inst, Left, Matrix, Mem};
use crate::context::{Context, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use crate::op::{Alu, Fault, FaultKind, Op};
use crate::poison::Mark;

/// Marks the result of an operation that faulted.
pub(crate) fn faulted(ctx: &mut Context, op: &Alu, fault: &Fault, site: u32) {
    let wide = op.op.writes_wide();
    let lanes = if op.d.is_uniform() { 1 } else { ctx.files.blocks * LANES };
    let mut marks: Vec<Option<Mark>> = (0..lanes).map(|l| ctx.poison.at(wide, op.d, l)).collect();
    let new = Mark { site, wide: fault.kind == FaultKind::OverflowI64 };
    for &lane in fault.lanes.iter().filter(|&&l| l < lanes) {
        // What an operand did wrong comes first.
        marks[lane].get_or_insert(new);
    }
    ctx.poison.put(wide, op.d, marks);
}

/// Lets poison of the operands of an operation that is about to run reach its result.
pub(crate) fn propagate_poison(ctx: &mut Context, o: &Alu) {
    if o.op == Op::Nop {
        return;
    }
    let (wide, operands) = (o.op.writes_wide(), o.operands());
    if !operands.iter().any(|&(slot, wide)| ctx.poison.has(wide, slot)) {
        ctx.poison.remove(wide, o.d);
        return;
    }
    let lanes = if o.d.is_uniform() { 1 } else { ctx.files.blocks * LANES };
    let marks = (0..lanes).map(|lane| result(ctx, o, &operands, lane)).collect();
    ctx.poison.put(wide, o.d, marks);
}

/// The mark of one lane of a result.
fn result(ctx: &Context, o: &Alu, operands: &[(Slot, bool)], lane: usize) -> Option<Mark> {
    let at = |wide, slot| ctx.poison.at(wide, slot, lane);
    let value = |slot| ctx.files.r32.block(slot, lane / LANES).0[lane % LANES];
    let is = |slot, expected: fn(u32) -> bool| at(false, slot).is_none() && expected(value(slot));
    match o.op {
        Op::Select32 | Op::Select64 => {
            let chosen = if value(o.a) != 0 { o.b } else { o.c };
            at(false, o.a).or_else(|| at(o.op == Op::Select64, chosen))
        }
        Op::And32 if is(o.a, |x| x == 0) || is(o.b, |x| x == 0) => None,
        Op::AndNot32 if is(o.a, |x| x == 0) || is(o.b, |x| x != 0) => None,
        _ => operands.iter().find_map(|&(slot, wide)| at(wide, slot)),
    }
}

/// Looks at what an instruction other than arithmetic is about to use, and forgets the marks of what it writes.
///
/// # Errors
/// [`EmuError::Overflow`] where an active lane uses poison.
pub(crate) fn used(launch: &Launch<'_>, team: &Team, ctx: &mut Context, inst: &Inst, site: u32) -> Result<(), EmuError> {
    let code = launch.code;
    let look = Look { launch, team, ctx, site };
    let written = match inst {
        Inst::Alu { .. } | Inst::Jump(_) | Inst::Again(_) | Inst::Role(_) | Inst::End => Vec::new(),
        Inst::Load { start, end } => {
            let loads = &code.mems[*start as usize..*end as usize];
            loads.iter().try_for_each(|m| look.place(m))?;
            loads.iter().map(|m| (m.scalar.bytes() == 8, m.values.clone())).collect()
        }
        Inst::LoadPeer(m, rank) => {
            let m = &code.mems[*m as usize];
            look.place(m)?;
            look.values(false, &[*rank], m.mask)?;
            vec![(m.scalar.bytes() == 8, m.values.clone())]
        }
        Inst::Store(m) | Inst::Atomic(_, m, _) => {
            let m = &code.mems[*m as usize];
            look.place(m)?;
            look.values(m.scalar.bytes() == 8, &m.values, m.mask)?;
            match inst {
                Inst::Atomic(_, _, to) if to.is_some() => vec![(false, vec![*to])],
                _ => Vec::new(),
            }
        }
        Inst::AsyncCopy(c) => {
            look.copy(&code.copies[*c as usize])?;
            Vec::new()
        }
        Inst::AsyncCommit(mask)
        | Inst::AsyncWait(_, mask)
        | Inst::Barrier(_, mask)
        | Inst::Written { mask, .. }
        | Inst::Settled { mask, .. }
        | Inst::LaunchWait(mask)
        | Inst::Fence(mask)
        | Inst::JumpIfZero(mask, _)
        | Inst::JumpIfNone(mask, _) => {
            look.mask(*mask)?;
            Vec::new()
        }
        Inst::Shuffle { wide, from, to, mask, .. } => {
            look.mask(*mask)?;
            look.values(*wide, &[*from], Slot::NONE)?;
            vec![(*wide, vec![*to])]
        }
        Inst::Bulk(b, mask) => {
            look.mask(*mask)?;
            look.bulk(&code.bulks[*b as usize], *mask)?;
            Vec::new()
        }
        Inst::Matrix(m, mask) => {
            look.mask(*mask)?;
            look.matrix(&code.matrices[*m as usize], *mask)?
        }
    };
    for (wide, slots) in written {
        slots.into_iter().for_each(|slot| ctx.poison.remove(wide, slot));
    }
    Ok(())
}

/// A look at what one instruction uses.
#[derive(Clone, Copy)]
struct Look<'a> {
    launch: &'a Launch<'a>,
    team: &'a Team,
    ctx: &'a Context,
    site: u32,
}

impl Look<'_> {
    /// Values that the lanes in a mask use.
    fn values(&self, wide: bool, slots: &[Slot], mask: Slot) -> Result<(), EmuError> {
        slots
            .iter()
            .filter(|&&s| self.ctx.poison.has(wide, s))
            .try_for_each(|&slot| self.ctx.active(mask).try_for_each(|lane| self.lane(wide, slot, lane)))
    }
    fn lane(&self, wide: bool, slot: Slot, lane: usize) -> Result<(), EmuError> {
        let Some(mark) = self.ctx.poison.at(wide, slot, lane) else { return Ok(()) };
        let at = self.team.location(self.launch, mark.site, self.ctx.first + lane as u32);
        let used = self.launch.code.statements.get(self.site as usize).cloned().unwrap_or_default();
        Err(EmuError::Overflow { at, ty: if mark.wide { "i64" } else { "i32" }, used })
    }
    /// A mask decides for every lane.
    fn mask(&self, mask: Slot) -> Result<(), EmuError> {
        self.values(false, &[mask], Slot::NONE)
    }
    fn address(&self, a: &Address, mask: Slot) -> Result<(), EmuError> {
        match a.index {
            Index::None => {}
            Index::I32(s) | Index::U32(s) => self.values(false, &[s], mask)?,
            Index::I64(s) => self.values(true, &[s], mask)?,
        }
        self.values(true, &[a.cursor], mask)
    }
    fn place(&self, m: &Mem) -> Result<(), EmuError> {
        self.mask(m.mask)?;
        self.address(&m.address, m.mask)
    }
    /// The source of a copy is used where its guard holds only.
    fn copy(&self, c: &Copy) -> Result<(), EmuError> {
        self.mask(c.mask)?;
        self.values(false, &[c.guard], c.mask)?;
        self.address(&c.dst, c.mask)?;
        let reads = |lane: &usize| self.ctx.bits(c.guard, lane / LANES) >> (lane % LANES) & 1 != 0;
        let slots = match c.src.index {
            Index::None => [(false, Slot::NONE), (true, c.src.cursor)],
            Index::I32(s) | Index::U32(s) => [(false, s), (true, c.src.cursor)],
            Index::I64(s) => [(true, s), (true, c.src.cursor)],
        };
        let active = || self.ctx.active(c.mask).filter(reads);
        slots.iter().try_for_each(|&(wide, slot)| active().try_for_each(|lane| self.lane(wide, slot, lane)))
    }
    fn bulk(&self, op: &Bulk, mask: Slot) -> Result<(), EmuError> {
        match op {
            Bulk::InitFence | Bulk::StoreCommit | Bulk::StoreWait { .. } | Bulk::ProxyFence => Ok(()),
            Bulk::Init { barrier, .. } | Bulk::Expect { barrier, .. } | Bulk::Arrive { barrier } => self.address(barrier, mask),
            Bulk::ArriveAt { barrier, rank: slot } | Bulk::Wait { barrier, parity: slot } => {
                self.address(barrier, mask)?;
                self.values(false, &[*slot], mask)
            }
            Bulk::Load { to, at, barrier, peers, .. } => {
                self.address(barrier, mask)?;
                self.address(to, mask)?;
                self.values(false, peers.as_slice(), mask)?;
                self.values(false, at, mask)
            }
            Bulk::Store { from, at, .. } => {
                self.address(from, mask)?;
                self.values(false, at, mask)
            }
        }
    }
    /// What a matrix instruction reads; the registers that it writes.
    fn matrix(&self, op: &Matrix, mask: Slot) -> Result<Vec<(bool, Vec<Slot>)>, EmuError> {
        let words = |slots: &[Slot]| self.values(false, slots, mask);
        match op {
            Matrix::Wave(product) => [&product.a, &product.b, &product.acc].into_iter().try_for_each(|s| words(s))?,
            Matrix::Load(load) => {
                self.address(&load.from, mask)?;
                return Ok(vec![(false, load.to.clone())]);
            }
            Matrix::Warpgroup(product) => {
                words(&product.acc)?;
                words(&[product.accumulate, product.b.byte])?;
                match &product.a {
                    Left::Shared(tile) => words(&[tile.byte])?,
                    Left::Regs(slots) => words(slots)?,
                }
            }
            Matrix::Fence | Matrix::Commit | Matrix::Wait { .. } => {}
        }
        Ok(Vec::new())
    }
}
