//! Lowers control flow: loops, branches, roles, and what returns leave.

use super::value::Comp;
use super::{Binding, Lower};
use crate::EmuError;
use crate::code::{Branch, Inst};
use crate::lanes::Slot;
use crate::lower::value::{Value, is_wide};
use crate::op::Op;
use tilewright_ir::*;

/// The fields of a loop's statement.
pub(super) struct Loop<'k> {
    pub statement: *const Stmt,
    pub var: VarId,
    pub start: ExprId,
    pub end: ExprId,
    pub step: i64,
    pub body: &'k Block,
}

impl<'k> Lower<'k> {
    /// Lowers a block in its own scope.
    fn scoped(&mut self, straight: bool, block: &'k Block) -> Result<(), EmuError> {
        let site = self.site;
        self.slots.open(straight);
        self.block(block)?;
        // Arithmetic at the block's end belongs to it, not to what follows.
        self.flush();
        self.slots.close();
        self.site = site;
        Ok(())
    }

    /// Runs `code` under another mask.
    fn masked(&mut self, mask: Slot, code: impl FnOnce(&mut Self) -> Result<(), EmuError>) -> Result<(), EmuError> {
        self.flush();
        let before = std::mem::replace(&mut self.mask, mask);
        code(self)?;
        self.flush();
        self.mask = before;
        Ok(())
    }

    /// Takes lanes that returned in a statement out of the mask for the rest of the block.
    pub(super) fn mask_returned(&mut self, s: &Stmt) {
        if !self.facts.leaving.contains(&(s as *const Stmt)) || !self.live.is_some() {
            return;
        }
        self.flush();
        self.mask = self.without_returned(self.mask);
        let at = self.inst(Inst::JumpIfNone(self.live, 0));
        self.ends.push(at);
    }

    /// A mask less the lanes that returned.
    fn without_returned(&mut self, mask: Slot) -> Slot {
        if !mask.is_some() || mask == self.live {
            return self.live;
        }
        let d = self.temp(false, false);
        self.push(Op::And32, d, mask, self.live, Slot::NONE);
        d
    }

    pub(super) fn for_loop(&mut self, of: &Loop<'k>, unroll: Unroll) -> Result<(), EmuError> {
        match unroll {
            Unroll::Full | Unroll::Silent | Unroll::Repeat => self.unrolled(of),
            Unroll::No | Unroll::By(_) => self.counted(of),
        }
    }

    fn unrolled(&mut self, of: &Loop<'k>) -> Result<(), EmuError> {
        let Loop { var, start, end, step, body, .. } = *of;
        let (Some(first), Some(end)) = (self.as_const(start), self.as_const(end)) else {
            return Err(self.invalid("a loop to be unrolled has bounds that are no constants"));
        };
        let leaving = self.facts.leaving.contains(&of.statement);
        let mask = self.mask;
        let mut at = first;
        while at < end {
            let site = self.site;
            self.slots.open(true);
            let value = Value { comps: vec![Comp::Int(at)], since: Some(self.slots.depth()) };
            self.vars[var.index()] = Binding::Fixed(value);
            if leaving {
                self.flush();
                self.mask = self.without_returned(mask);
            }
            self.block(body)?;
            if self.mask != mask {
                self.flush();
                self.mask = mask;
            }
            self.slots.close();
            self.site = site;
            at = at.saturating_add(step);
        }
        Ok(())
    }

    /// A run-time loop: one uniform counter where the bounds are uniform, else a counter and a mask per lane.
    fn counted(&mut self, of: &Loop<'k>) -> Result<(), EmuError> {
        let Loop { var, start, end, step, body, .. } = *of;
        let ty = self.k.ty(start);
        let (scalar, wide) = (ty.scalar, is_wide(ty.scalar));
        let first = self.eval(start)?.comps[0];
        let limit = self.eval(end)?;
        let uniform = first.is_uniform() && limit.comps[0].is_uniform();
        let counter = self.temp(wide, uniform);
        let first = self.slot(first, scalar);
        self.mov(scalar, counter, first);
        let outer = self.mask;
        let leaving = self.facts.leaving.contains(&of.statement);
        // Lanes still in the loop; once out, a lane stays out.
        let inside = if uniform { outer } else { self.temp(false, false) };
        if !uniform {
            let all = if outer.is_some() { outer } else { self.constant(Comp::Int(1), Scalar::Bool) };
            self.mov(Scalar::Bool, inside, all);
        }
        self.slots.forget_changing();
        let written = self.written.clone();
        let head = self.next_index();
        self.slots.open(false);
        if leaving && !uniform {
            self.push(Op::And32, inside, inside, self.live, Slot::NONE);
        }
        // The end is evaluated afresh where it may change.
        let limit = if limit.since.is_some() { limit } else { self.eval(end)? };
        let limit = self.slot(limit.comps[0], scalar);
        let goes_on = self.temp(false, uniform);
        self.arithmetic(BinaryOp::Lt, scalar, goes_on, counter, limit)?;
        let exit = if uniform {
            self.inst(Inst::JumpIfZero(goes_on, 0))
        } else {
            self.push(Op::And32, inside, inside, goes_on, Slot::NONE);
            self.inst(Inst::JumpIfNone(inside, 0))
        };
        self.masked(inside, |l| {
            if leaving && uniform {
                l.mask = l.without_returned(l.mask);
            }
            let since = Some(l.slots.depth());
            l.vars[var.index()] = Binding::Fixed(Value { comps: vec![Comp::Slot(counter)], since });
            let site = l.site;
            l.slots.forget_changing();
            l.block(body)?;
            l.site = site;
            Ok(())
        })?;
        self.masked(inside, |l| {
            let by = l.constant(Comp::Int(step), scalar);
            l.arithmetic(BinaryOp::Add, scalar, counter, counter, by)
        })?;
        self.slots.close();
        self.inst(Inst::Again(head));
        let end = self.next_index();
        self.patch(exit, end);
        self.written = written;
        Ok(())
    }

    pub(super) fn branch(&mut self, cond: ExprId, then: &'k Block, otherwise: &'k Block) -> Result<(), EmuError> {
        let comp = self.eval(cond)?.comps[0];
        if let Comp::Int(v) = comp {
            self.slots.forget_changing();
            let before = self.mask;
            self.scoped(true, if v != 0 { then } else { otherwise })?;
            self.mask = before;
            return Ok(());
        }
        let cond = self.slot(comp, Scalar::Bool);
        self.slots.forget_changing();
        let before = self.written.clone();
        let sides =
            if cond.is_uniform() { self.uniform_branch(cond, then, otherwise)? } else { self.split(cond, then, otherwise)? };
        let both = sides[0].iter().zip(&sides[1]).map(|(a, b)| a & b);
        self.written = before.iter().zip(both).map(|(a, b)| a | b).collect();
        Ok(())
    }

    /// All threads go the same way. Gives what each side has surely assigned.
    fn uniform_branch(&mut self, cond: Slot, then: &'k Block, otherwise: &'k Block) -> Result<[Vec<bool>; 2], EmuError> {
        let (mask, before) = (self.mask, self.written.clone());
        let skip = self.inst(Inst::JumpIfZero(cond, 0));
        self.scoped(false, then)?;
        self.mask = mask;
        let a = std::mem::replace(&mut self.written, before);
        let over = if otherwise.is_empty() { None } else { Some(self.inst(Inst::Jump(0))) };
        let here = self.next_index();
        self.patch(skip, here);
        self.scoped(false, otherwise)?;
        self.mask = mask;
        if let Some(over) = over {
            let here = self.next_index();
            self.patch(over, here);
        }
        Ok([a, self.written.clone()])
    }

    /// Threads go different ways: both sides run, each under its mask.
    fn split(&mut self, cond: Slot, then: &'k Block, otherwise: &'k Block) -> Result<[Vec<bool>; 2], EmuError> {
        let before = self.written.clone();
        let (yes, no) = (self.temp(false, false), self.temp(false, false));
        if self.mask.is_some() {
            self.push(Op::And32, yes, self.mask, cond, Slot::NONE);
            self.push(Op::AndNot32, no, self.mask, cond, Slot::NONE);
        } else {
            // A copy: the condition may be a variable that the branch assigns.
            self.mov(Scalar::Bool, yes, cond);
            self.push(Op::NotBool, no, cond, Slot::NONE, Slot::NONE);
        }
        for (mask, block) in [(yes, then), (no, otherwise)] {
            self.written = before.clone();
            if !block.is_empty() {
                let skip = self.inst(Inst::JumpIfNone(mask, 0));
                self.masked(mask, |l| l.scoped(false, block))?;
                let here = self.next_index();
                self.patch(skip, here);
            }
        }
        // Masked assignments set flags lane by lane and promise nothing.
        Ok([before.clone(), before])
    }

    pub(super) fn roles(&mut self, roles: &'k [Role]) -> Result<(), EmuError> {
        let table = self.code.roles.len();
        self.code.roles.push(Vec::new());
        let mask = self.mask;
        self.inst(Inst::Role(table as u32));
        let before = self.written.clone();
        let mut after: Option<Vec<bool>> = None;
        let mut ends = Vec::new();
        for role in roles {
            let target = self.next_index();
            self.code.roles[table].push(Branch { first_thread: role.first_thread, threads: role.threads, target });
            self.written = before.clone();
            self.scoped(false, &role.body)?;
            self.mask = mask;
            ends.push(self.inst(Inst::Jump(0)));
            let written = &self.written;
            after = Some(match after {
                None => written.clone(),
                Some(a) => a.iter().zip(written).map(|(x, y)| x & y).collect(),
            });
        }
        let end = self.next_index();
        for at in ends {
            self.patch(at, end);
        }
        self.written = after.unwrap_or(before);
        Ok(())
    }
}
