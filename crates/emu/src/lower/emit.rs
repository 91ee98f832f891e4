//! Adds arithmetic and instructions to the code, and keeps constants and temporaries.

use super::value::{self, Comp, is_wide};
use super::{Class, Lower};
use crate::code::Inst;
use crate::lanes::Slot;
use crate::op::{Alu, Op};
use tilewright_ir::Scalar;

impl Lower<'_> {
    /// Adds arithmetic.
    pub(super) fn push(&mut self, op: Op, d: Slot, a: Slot, b: Slot, c: Slot) {
        self.code.alu.push(Alu { op, d, a, b, c });
        self.code.alu_sites.push(self.site);
    }
    /// Wraps pending arithmetic in an instruction.
    pub(super) fn flush(&mut self) {
        let (start, end) = (self.pending as u32, self.code.alu.len() as u32);
        if start < end {
            let work = std::mem::take(&mut self.work);
            self.code.insts.push(Inst::Alu { start, end, work, mask: self.mask });
            self.code.sites.push(self.site);
            self.pending = self.code.alu.len();
        }
    }
    /// Adds an instruction after pending arithmetic; its position.
    pub(super) fn inst(&mut self, inst: Inst) -> usize {
        self.flush();
        self.code.insts.push(inst);
        self.code.sites.push(self.site);
        self.code.insts.len() - 1
    }
    /// Where the next instruction will stand, for jumps.
    pub(super) fn next_index(&mut self) -> u32 {
        self.flush();
        self.label = self.code.insts.len();
        self.code.insts.len() as u32
    }
    pub(super) fn patch(&mut self, at: usize, target: u32) {
        if let Inst::Jump(t) | Inst::Again(t) | Inst::JumpIfZero(_, t) | Inst::JumpIfNone(_, t) = &mut self.code.insts[at] {
            *t = target;
        }
    }
    /// The uniform slot of a constant.
    pub(super) fn constant(&mut self, comp: Comp, scalar: Scalar) -> Slot {
        let wide = is_wide(scalar);
        let bits = value::bits(comp, scalar).unwrap_or(0);
        if let Some(&slot) = self.consts.get(&(wide, bits)) {
            return slot;
        }
        let slot = self.slots.fresh(Class { wide, uniform: true });
        self.consts.insert((wide, bits), slot);
        if wide {
            self.code.consts64.push((slot, bits));
        } else {
            self.code.consts32.push((slot, bits as u32));
        }
        slot
    }
    /// The slot that holds a component.
    pub(super) fn slot(&mut self, comp: Comp, scalar: Scalar) -> Slot {
        match comp {
            Comp::Slot(s) => s,
            c => self.constant(c, scalar),
        }
    }
    /// A slot in the innermost scope.
    pub(super) fn temp(&mut self, wide: bool, uniform: bool) -> Slot {
        self.slots.alloc(Class { wide, uniform }, self.slots.depth())
    }
    pub(super) fn mov(&mut self, scalar: Scalar, d: Slot, a: Slot) {
        if d != a {
            self.push(if is_wide(scalar) { Op::Mov64 } else { Op::Mov32 }, d, a, Slot::NONE, Slot::NONE);
        }
    }
    /// Puts values into slots where lanes are active.
    pub(super) fn put(&mut self, scalar: Scalar, d: &[Slot], comps: &[Comp]) {
        let sources: Vec<Slot> = comps.iter().map(|&c| self.slot(c, scalar)).collect();
        // A vector built from its own components must not overwrite what it still reads.
        let overlap = sources.iter().enumerate().any(|(i, s)| d[..i.min(d.len())].contains(s));
        let sources = if overlap {
            sources
                .into_iter()
                .map(|s| {
                    let t = self.temp(is_wide(scalar), s.is_uniform());
                    self.mov(scalar, t, s);
                    t
                })
                .collect()
        } else {
            sources
        };
        for (&d, s) in d.iter().zip(sources) {
            if self.mask.is_some() && d != s {
                let op = if is_wide(scalar) { Op::Select64 } else { Op::Select32 };
                self.push(op, d, self.mask, s, d);
            } else {
                self.mov(scalar, d, s);
            }
        }
    }
}
