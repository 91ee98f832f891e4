//! Lowers statements, one by one.

use super::flow::Loop;
use super::slots::Class;
use super::value::{Comp, Value, is_wide};
use super::{Binding, Lower, MAX_OPERATIONS};
use crate::EmuError;
use crate::code::{Copy, Inst, Space};
use crate::lanes::Slot;
use crate::op::Op;
use tilewright_ir::*;

impl<'k> Lower<'k> {
    pub(super) fn block(&mut self, block: &'k Block) -> Result<(), EmuError> {
        for s in block {
            self.site = self.facts.numbers.get(&(s as *const Stmt)).copied().unwrap_or(0);
            if self.code.alu.len() + self.code.insts.len() > MAX_OPERATIONS {
                let kernel = self.k.name.clone();
                return Err(EmuError::Unsupported {
                    kernel,
                    what: format!("it unrolls to more than {MAX_OPERATIONS} operations"),
                });
            }
            // What a statement binds outlives its own scope.
            let outer = self.slots.depth();
            self.slots.open(true);
            let more = self.statement(s, outer)?;
            self.slots.close();
            if !more {
                break;
            }
            self.mask_returned(s);
        }
        Ok(())
    }

    /// Lowers one statement; false if nothing after it in its block can run.
    fn statement(&mut self, s: &'k Stmt, outer: usize) -> Result<bool, EmuError> {
        match s {
            Stmt::Comment(_) | Stmt::SchedHint { .. } => {}
            Stmt::Let(v, e) => self.bind(*v, *e, outer)?,
            Stmt::Declare(v, e) => self.declare(*v, *e, outer)?,
            Stmt::Assign(Place::New(v), e) => self.bind(*v, *e, outer)?,
            Stmt::Assign(place, e) => self.assign(*place, *e)?,
            Stmt::Load { .. } | Stmt::Store { .. } | Stmt::Atomic { .. } | Stmt::LoadPeer { .. } => self.access(s, outer)?,
            Stmt::FetchAdd { place, mem, value } => {
                let (values, scalar) = self.operand(*value)?;
                let (address, mask) = (self.address(*mem)?, self.mask);
                if let Space::Global(a) = address.space {
                    self.code.atomic_args.push(a);
                }
                self.receive(*place, scalar.ty(), outer, |l, to| {
                    let mem = l.mem(address, scalar, values, mask);
                    l.inst(Inst::Atomic(AtomicOp::Add, mem, to[0]));
                })?;
            }
            Stmt::Fence => {
                self.inst(Inst::Fence(self.mask));
            }
            Stmt::PlaceCursor(c, e) => self.place_cursor(*c, *e)?,
            Stmt::AdvanceCursor(c, e) => self.advance_cursor(*c, *e)?,
            Stmt::For { var, start, end, step, unroll, body } => {
                let of = Loop { statement: s, var: *var, start: *start, end: *end, step: *step, body };
                self.for_loop(&of, *unroll)?;
            }
            Stmt::If { cond, then, otherwise } => self.branch(*cond, then, otherwise)?,
            Stmt::Roles(roles) => self.roles(roles)?,
            Stmt::Barrier(scope) => {
                self.inst(Inst::Barrier(*scope, self.mask));
            }
            Stmt::AsyncCopy { dst, src, lanes, guard } => {
                let guard = guard.map(|g| self.condition(g)).transpose()?.unwrap_or(Slot::NONE);
                let copy = Copy {
                    dst: self.address(*dst)?,
                    src: self.address(*src)?,
                    scalar: self.k.base_scalar(dst.base),
                    lanes: *lanes,
                    mask: self.mask,
                    guard,
                };
                self.code.copies.push(copy);
                self.inst(Inst::AsyncCopy(self.code.copies.len() as u32 - 1));
            }
            Stmt::AsyncCommit => {
                self.inst(Inst::AsyncCommit(self.mask));
            }
            Stmt::AsyncWait(n) => {
                self.inst(Inst::AsyncWait(*n, self.mask));
            }
            Stmt::Shuffle { place, value, kind } => {
                let ty = self.k.ty(*value);
                let (values, scalar) = self.operand(*value)?;
                let mask = self.mask;
                let wide = is_wide(scalar);
                self.receive(*place, ty, outer, |l, to| {
                    l.inst(Inst::Shuffle { kind: *kind, wide, from: values[0], to: to[0], mask });
                })?;
            }
            Stmt::Matrix(op) => self.matrix(op)?,
            Stmt::Bulk(op) => self.bulk(op)?,
            Stmt::LaunchWait => {
                self.inst(Inst::LaunchWait(self.mask));
            }
            Stmt::Return => {
                if self.mask.is_some() && self.live.is_some() {
                    self.push(Op::AndNot32, self.live, self.live, self.mask, Slot::NONE);
                } else {
                    let at = self.inst(Inst::Jump(0));
                    self.ends.push(at);
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn declare(&mut self, v: VarId, e: ExprId, outer: usize) -> Result<(), EmuError> {
        let ty = self.k.ty(e);
        let class = Class { wide: is_wide(ty.scalar), uniform: !self.facts.varying_vars[v.index()] };
        let d: Vec<Slot> = (0..ty.lanes).map(|_| self.slots.alloc(class, outer)).collect();
        let comps = self.eval(e)?.comps;
        for (&d, &c) in d.iter().zip(&comps) {
            let s = self.slot(c, ty.scalar);
            self.mov(ty.scalar, d, s);
        }
        self.vars[v.index()] = Binding::Mutable(d);
        Ok(())
    }

    /// Loads, stores and atomics.
    fn access(&mut self, s: &Stmt, outer: usize) -> Result<(), EmuError> {
        match s {
            Stmt::Load { place, mem, guard } => {
                let touch = self.guarded(*guard)?;
                let address = self.address(*mem)?;
                let ty = self.k.place_ty(*place);
                self.receive(*place, ty, outer, |l, values| {
                    let inst = l.mem(address, ty.scalar, values, touch);
                    l.load(inst);
                })?;
            }
            Stmt::LoadPeer { place, mem, rank } => {
                let rank = self.number(*rank)?;
                let address = self.address(*mem)?;
                let ty = self.k.place_ty(*place);
                let mask = self.mask;
                self.receive(*place, ty, outer, |l, values| {
                    let mem = l.mem(address, ty.scalar, values, mask);
                    l.code.peer_reads = true;
                    l.inst(Inst::LoadPeer(mem, rank));
                })?;
            }
            Stmt::Store { mem, value, guard } | Stmt::Atomic { mem, value, guard, .. } => {
                let touch = self.guarded(*guard)?;
                let (values, scalar) = self.operand(*value)?;
                let address = self.address(*mem)?;
                let inst = self.mem(address, scalar, values, touch);
                if let Stmt::Atomic { op, .. } = s {
                    if let Space::Global(a) = address.space {
                        self.code.atomic_args.push(a);
                    }
                    self.inst(Inst::Atomic(*op, inst, Slot::NONE));
                } else {
                    self.inst(Inst::Store(inst));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn place_cursor(&mut self, c: CursorId, e: ExprId) -> Result<(), EmuError> {
        if !self.cursors[c.index()].is_some() {
            // Cursors are few and may be placed again: each keeps its slot.
            let uniform = !self.facts.varying_cursors[c.index()];
            self.cursors[c.index()] = self.slots.fresh(Class { wide: true, uniform });
        }
        let offset = self.eval_as_i64(e)?;
        self.put(Scalar::I64, &[self.cursors[c.index()]], &[offset]);
        Ok(())
    }

    fn advance_cursor(&mut self, c: CursorId, e: ExprId) -> Result<(), EmuError> {
        let slot = self.cursors[c.index()];
        if !slot.is_some() {
            return Err(self.invalid("the cursor is moved before it is placed"));
        }
        let by = self.eval_as_i64(e)?;
        let by = self.slot(by, Scalar::I64);
        if !self.mask.is_some() {
            return self.arithmetic(BinaryOp::Add, Scalar::I64, slot, slot, by);
        }
        let sum = self.temp(true, slot.is_uniform() && by.is_uniform());
        self.arithmetic(BinaryOp::Add, Scalar::I64, sum, slot, by)?;
        self.put(Scalar::I64, &[slot], &[Comp::Slot(sum)]);
        Ok(())
    }

    /// Binds an immutable name: to the value itself where it stays as it is, else to a copy.
    fn bind(&mut self, v: VarId, e: ExprId, outer: usize) -> Result<(), EmuError> {
        let scalar = self.k.ty(e).scalar;
        let value = self.eval(e)?;
        let mut comps = Vec::new();
        for c in value.comps {
            let Comp::Slot(s) = c else {
                comps.push(c);
                continue;
            };
            let class = Class { wide: is_wide(scalar), uniform: s.is_uniform() };
            if value.since.is_some() && !self.slots.is_temporary(class, s) {
                comps.push(c);
                continue;
            }
            let d = self.slots.alloc(class, outer);
            self.retarget(scalar, d, s);
            comps.push(Comp::Slot(d));
        }
        self.vars[v.index()] = Binding::Fixed(Value { comps, since: Some(outer) });
        Ok(())
    }

    fn assign(&mut self, place: Place, e: ExprId) -> Result<(), EmuError> {
        let ty = self.k.ty(e);
        let d = self.place(place)?;
        let value = self.eval(e)?;
        match (&value.comps[..], &d[..]) {
            ([Comp::Slot(s)], [d]) if !self.mask.is_some() => self.retarget(ty.scalar, *d, *s),
            (comps, d) => self.put_vector(ty.scalar, d, comps),
        }
        self.assigned(place)
    }
}
