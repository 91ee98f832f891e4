//! Lowers matrix instructions, transaction barriers and bulk copies.

use super::Lower;
use crate::code::{
    Address, Bulk, Held, Index, Inst, Left, Matrix, MatrixLoad, RegElement, Space, Tile, WarpgroupProduct, WaveProduct,
};
use crate::lanes::Slot;
use crate::matrix::places::Maps;
use crate::{EmuError, Options};
use std::sync::Arc;
use tilewright_ir::*;

/// Transaction barriers of a work-group: more do not fit beside anything else.
const MAX_TX: u32 = 512;

/// Refuses kernels whose shape these operations cannot have.
pub(super) fn supported(k: &Kernel, options: &Options, warpgroups: bool) -> Result<(), String> {
    let wave = if k.wave > 0 { k.wave } else { options.wave.max(1) };
    let barriers: u32 = k.tx_barriers.iter().map(|t| t.len).sum();
    if barriers > MAX_TX {
        return Err(format!("{barriers} transaction barriers: up to {MAX_TX} are possible"));
    }
    if warpgroups && wave != 32 {
        return Err(format!("warpgroup instructions need waves of 32, not {wave}"));
    }
    Ok(())
}

impl Lower<'_> {
    /// Lowers a transaction barrier or bulk copy operation.
    pub(super) fn bulk(&mut self, op: &BulkOp) -> Result<(), EmuError> {
        let bulk = match op {
            BulkOp::Init { barrier, arrivals } => Bulk::Init { barrier: self.tx(barrier)?, arrivals: *arrivals },
            BulkOp::InitFence => Bulk::InitFence,
            BulkOp::Expect { barrier, bytes } => Bulk::Expect { barrier: self.tx(barrier)?, bytes: *bytes },
            BulkOp::Arrive { barrier } => Bulk::Arrive { barrier: self.tx(barrier)? },
            BulkOp::Wait { barrier, parity } => {
                let barrier = self.tx(barrier)?;
                Bulk::Wait { barrier, parity: self.number(*parity)? }
            }
            BulkOp::ArriveAt { barrier, rank } => {
                let barrier = self.tx(barrier)?;
                Bulk::ArriveAt { barrier, rank: self.number(*rank)? }
            }
            BulkOp::Load { to, map, at, barrier, peers } => {
                let barrier = self.tx(barrier)?;
                let (to, scalar) = self.shared_address(*to)?;
                let at = at.iter().map(|e| self.number(*e)).collect::<Result<_, _>>()?;
                let peers = peers.map(|p| self.number(p)).transpose()?;
                Bulk::Load { to, scalar, map: map.index(), at, barrier, peers }
            }
            BulkOp::Store { from, map, at } => {
                let (from, scalar) = self.shared_address(*from)?;
                let at = at.iter().map(|e| self.number(*e)).collect::<Result<_, _>>()?;
                Bulk::Store { from, scalar, map: map.index(), at }
            }
            BulkOp::StoreCommit => Bulk::StoreCommit,
            BulkOp::StoreWait { pending } => Bulk::StoreWait { pending: *pending },
            BulkOp::ProxyFence => Bulk::ProxyFence,
            // Says how registers are shared out, which has no effect on results.
            BulkOp::Registers { .. } => return Ok(()),
        };
        self.code.bulks.push(bulk);
        self.inst(Inst::Bulk(self.code.bulks.len() as u32 - 1, self.mask));
        Ok(())
    }

    /// The instruction of an operation, and where its matrices are; `columns` of those that come in several widths.
    fn instruction(&mut self, op: &MatrixOp, columns: Option<u32>) -> Result<(&'static Mma, Arc<Maps>), EmuError> {
        let Some(row) = Mma::of(op) else { return Err(self.invalid(format!("there is no matrix instruction for {op:?}"))) };
        let columns = columns.unwrap_or(row.shape.n);
        if let Some((.., maps)) = self.maps.iter().find(|(known, wide, _)| std::ptr::eq(*known, row) && *wide == columns) {
            return Ok((row, maps.clone()));
        }
        let maps = Maps::new(row, columns);
        self.maps.push((row, columns, maps.clone()));
        Ok((row, maps))
    }

    /// Lowers a matrix operation.
    pub(super) fn matrix(&mut self, op: &MatrixOp) -> Result<(), EmuError> {
        let mut written = None;
        let matrix = match op {
            MatrixOp::Mma { a, b, acc, .. } | MatrixOp::Mfma { a, b, acc, .. } => {
                let (row, maps) = self.instruction(op, None)?;
                let (a, b) = (self.read_slice(*a, row.a.registers)?, self.read_slice(*b, row.b.registers)?);
                written = Some((*acc, row.c.registers));
                Matrix::Wave(WaveProduct { row, maps, a, b, acc: self.read_slice(*acc, row.c.registers)? })
            }
            MatrixOp::LoadMatrix { to, count, trans, from } => {
                let (from, scalar) = self.shared_address(*from)?;
                let first = self.first(*to)?;
                for i in 0..i64::from(*count) {
                    let (n, _) = self.element_at(to.regs, first.saturating_add(i))?;
                    self.settled(to.regs, n, true);
                }
                written = Some((*to, u32::from(*count)));
                Matrix::Load(MatrixLoad { to: self.slice(*to, (*count).into())?, trans: *trans, from, scalar })
            }
            MatrixOp::Warpgroup { n, a, b, acc, accumulate, .. } => {
                let (row, maps) = self.instruction(op, Some(*n))?;
                let mut held = vec![self.held(*acc, n / 2, true)?];
                let a = match a {
                    WarpgroupA::Shared(t) => Left::Shared(self.tile(t)?),
                    WarpgroupA::Regs(s) => {
                        held.push(self.held(*s, 4, false)?);
                        Left::Regs(self.read_slice(*s, 4)?)
                    }
                };
                let b = self.tile(b)?;
                let accumulate = self.condition(*accumulate)?;
                let slots = self.slice(*acc, n / 2)?;
                self.check_slice(*acc, n / 2, accumulate)?;
                written = Some((*acc, n / 2));
                Matrix::Warpgroup(WarpgroupProduct { row, n: *n, maps, a, b, acc: slots, accumulate, held })
            }
            MatrixOp::WarpgroupFence { .. } => Matrix::Fence,
            MatrixOp::WarpgroupCommit => Matrix::Commit,
            MatrixOp::WarpgroupWait { pending, .. } => Matrix::Wait { pending: *pending },
        };
        self.code.matrices.push(matrix);
        self.inst(Inst::Matrix(self.code.matrices.len() as u32 - 1, self.mask));
        if let Some((s, count)) = written {
            let first = self.first(s)?;
            for i in 0..i64::from(count) {
                let (n, _) = self.element_at(s.regs, first.saturating_add(i))?;
                self.assigned_element(n);
            }
        }
        Ok(())
    }

    /// Notes a read or write of a register element that warpgroup instructions may be working on.
    pub(super) fn settled(&mut self, r: RegId, n: usize, write: bool) {
        if self.options.checks.shared_races && self.facts.warpgroup_regs.contains(&r) {
            let element = (n - self.elements[r.index()]) as u32;
            self.inst(Inst::Settled { mask: self.mask, of: RegElement { reg: r.0, element }, write });
        }
    }

    fn first(&self, s: RegSlice) -> Result<i64, EmuError> {
        let name = &self.k.regs[s.regs.index()].name;
        self.as_const(s.first)
            .ok_or_else(|| self.invalid(format!("the index of register array `{name}` is no constant once loops are unrolled")))
    }
    fn held(&self, s: RegSlice, count: u32, written: bool) -> Result<Held, EmuError> {
        Ok(Held { reg: s.regs.0, first: self.first(s)? as u32, count, written })
    }
    /// Slots of consecutive elements.
    fn slice(&mut self, s: RegSlice, count: u32) -> Result<Vec<Slot>, EmuError> {
        let first = self.first(s)?;
        let mut slots = Vec::new();
        for i in 0..i64::from(count) {
            slots.extend(self.element_at(s.regs, first.saturating_add(i))?.1);
        }
        Ok(slots)
    }
    /// Consecutive elements must hold values in the lanes of a mask.
    fn check_slice(&mut self, s: RegSlice, count: u32, mask: Slot) -> Result<(), EmuError> {
        let first = self.first(s)?;
        for i in 0..i64::from(count) {
            let (n, _) = self.element_at(s.regs, first.saturating_add(i))?;
            self.must_be_written(s.regs, n, mask);
        }
        Ok(())
    }
    /// Slots of consecutive elements that an instruction reads.
    fn read_slice(&mut self, s: RegSlice, count: u32) -> Result<Vec<Slot>, EmuError> {
        self.check_slice(s, count, self.mask)?;
        self.slice(s, count)
    }
    fn tile(&mut self, t: &SharedTile) -> Result<Tile, EmuError> {
        Ok(Tile {
            array: t.array.index(),
            byte: self.number(t.byte)?,
            swizzle: t.swizzle,
            k_contiguous: t.k_contiguous,
            leading: t.leading_bytes as usize,
            stride: t.stride_bytes as usize,
        })
    }
    /// The slot of an `I32`.
    pub(super) fn number(&mut self, e: ExprId) -> Result<Slot, EmuError> {
        let comp = self.eval(e)?.comps[0];
        Ok(self.slot(comp, Scalar::I32))
    }
    fn shared_address(&mut self, mem: MemRef) -> Result<(Address, Scalar), EmuError> {
        match mem.base {
            Base::Shared(_) => Ok((self.address(mem)?, self.k.base_scalar(mem.base))),
            _ => Err(self.invalid("the address is not in shared memory")),
        }
    }
    fn tx(&mut self, t: &TxRef) -> Result<Address, EmuError> {
        let (rest, offset) = self.split_constant(t.index);
        let index = match rest {
            None => Index::None,
            Some(e) => {
                let comp = self.eval_as_i64(e)?;
                Index::I64(self.slot(comp, Scalar::I64))
            }
        };
        Ok(Address { space: Space::Tx(t.barriers.0 as usize), index, cursor: Slot::NONE, offset })
    }
}
