//! Lowers what statements touch: variables, register elements, memory.

use super::value::{Comp, Value, is_wide};
use super::{Binding, Class, Lower};
use crate::EmuError;
use crate::code::{Address, Index, Inst, Mem, Space};
use crate::lanes::Slot;
use crate::op::Op;
use tilewright_ir::*;

impl Lower<'_> {
    /// Lets `write` fill the slots of a place, whatever the place and the mask.
    pub(super) fn receive(
        &mut self,
        place: Place,
        ty: Type,
        outer: usize,
        write: impl FnOnce(&mut Self, Vec<Slot>),
    ) -> Result<(), EmuError> {
        let wide = is_wide(ty.scalar);
        match place {
            Place::New(v) => {
                let class = Class { wide, uniform: false };
                let d: Vec<Slot> = (0..ty.lanes).map(|_| self.slots.alloc(class, outer)).collect();
                write(self, d.clone());
                let comps = d.into_iter().map(Comp::Slot).collect();
                self.vars[v.index()] = Binding::Fixed(Value { comps, since: Some(outer) });
            }
            _ => {
                let d = self.place(place)?;
                if self.mask.is_some() {
                    let t: Vec<Slot> = d.iter().map(|_| self.temp(wide, false)).collect();
                    write(self, t.clone());
                    self.put(ty.scalar, &d, &t.into_iter().map(Comp::Slot).collect::<Vec<_>>());
                } else {
                    write(self, d);
                }
                self.assigned(place)?;
            }
        }
        Ok(())
    }

    /// Slots of an assignable place.
    pub(super) fn place(&mut self, place: Place) -> Result<Vec<Slot>, EmuError> {
        match place {
            Place::New(v) | Place::Var(v) => match &self.vars[v.index()] {
                Binding::Mutable(d) if self.mask.is_some() && d.iter().any(|s| s.is_uniform()) => {
                    Err(self.invalid("a value that all threads share is assigned by some of them"))
                }
                Binding::Mutable(d) => Ok(d.clone()),
                _ => Err(self.invalid(format!("`{}` is assigned without being declared", self.k.vars[v.index()].name))),
            },
            Place::Reg(r, index) => {
                let (_, slots) = self.element(r, index)?;
                Ok(slots)
            }
        }
    }

    /// Number of a register element among all, and its slots.
    pub(super) fn element(&mut self, r: RegId, index: ExprId) -> Result<(usize, Vec<Slot>), EmuError> {
        let array = &self.k.regs[r.index()];
        let Some(i) = self.as_const(index) else {
            return Err(
                self.invalid(format!("the index of register array `{}` is no constant once loops are unrolled", array.name))
            );
        };
        self.element_at(r, i)
    }

    /// As [`Lower::element`], by a known index.
    pub(super) fn element_at(&self, r: RegId, i: i64) -> Result<(usize, Vec<Slot>), EmuError> {
        let array = &self.k.regs[r.index()];
        if i < 0 || i >= array.len as i64 {
            let (memory, len) = (array.name.clone(), array.len as u64);
            return Err(EmuError::OutOfBounds { at: self.location(), memory, index: i, lanes: 1, len });
        }
        let lanes = array.ty.lanes as u32;
        let first = self.regs[r.index()] + i as u32 * lanes;
        Ok((self.elements[r.index()] + i as usize, (first..first + lanes).map(Slot::varying).collect()))
    }

    /// Notes that a place now holds a value.
    pub(super) fn assigned(&mut self, place: Place) -> Result<(), EmuError> {
        let Place::Reg(r, index) = place else { return Ok(()) };
        let (n, _) = self.element(r, index)?;
        self.settled(r, n, true);
        self.assigned_element(n);
        Ok(())
    }

    /// Notes that a register element now holds a value.
    pub(super) fn assigned_element(&mut self, n: usize) {
        if self.options.checks.initialised && !self.written[n] {
            self.flag_sets.push((self.code.alu.len(), n));
            let one = self.constant(Comp::Int(1), Scalar::Bool);
            if self.mask.is_some() {
                self.push(Op::Or32, self.flags[n], self.flags[n], self.mask, Slot::NONE);
            } else {
                self.push(Op::Mov32, self.flags[n], one, Slot::NONE, Slot::NONE);
                self.written[n] = true;
            }
        }
    }

    /// Adds an access; its number.
    pub(super) fn mem(&mut self, address: Address, scalar: Scalar, values: Vec<Slot>, mask: Slot) -> u32 {
        self.code.mems.push(Mem { address, scalar, values, mask, site: self.site });
        self.code.mems.len() as u32 - 1
    }

    /// Adds a load, to the load before it where only offset and destination differ: a fragment read element by element.
    pub(super) fn load(&mut self, mem: u32) {
        let label = self.label;
        let nothing_between = self.pending == self.code.alu.len() && label != self.code.insts.len();
        if let Some(Inst::Load { start, end }) = self.code.insts.last_mut()
            && nothing_between
            && *end == mem
            && !self.options.interleave
        {
            let (first, this) = (&self.code.mems[*start as usize], &self.code.mems[mem as usize]);
            let (a, b) = (&first.address, &this.address);
            let kept = match a.index {
                Index::I32(index) => !this.values.contains(&index) && !first.values.contains(&index),
                _ => false,
            };
            let alike =
                a.space == b.space && a.index == b.index && a.cursor == b.cursor && first.values.len() == this.values.len();
            if kept && alike && matches!(a.space, Space::Shared(_)) && !first.mask.is_some() && !this.mask.is_some() {
                *end += 1;
                return;
            }
        }
        self.inst(Inst::Load { start: mem, end: mem + 1 });
    }

    /// Slots and scalar type of a value to be stored.
    pub(super) fn operand(&mut self, e: ExprId) -> Result<(Vec<Slot>, Scalar), EmuError> {
        let scalar = self.k.ty(e).scalar;
        let comps = self.eval(e)?.comps;
        Ok((comps.into_iter().map(|c| self.slot(c, scalar)).collect(), scalar))
    }

    /// Lanes that touch memory under a guard: active ones where it holds.
    pub(super) fn guarded(&mut self, guard: Option<ExprId>) -> Result<Slot, EmuError> {
        let Some(g) = guard else { return Ok(self.mask) };
        let g = self.condition(g)?;
        if !self.mask.is_some() {
            return Ok(g);
        }
        let both = self.temp(false, false);
        self.push(Op::And32, both, self.mask, g, Slot::NONE);
        Ok(both)
    }

    pub(super) fn condition(&mut self, e: ExprId) -> Result<Slot, EmuError> {
        let comp = self.eval(e)?.comps[0];
        Ok(self.slot(comp, Scalar::Bool))
    }

    pub(super) fn address(&mut self, mem: MemRef) -> Result<Address, EmuError> {
        let (space, cursor) = match mem.base {
            Base::Shared(s) => (Space::Shared(s.index()), Slot::NONE),
            Base::Buffer(a) => (Space::Global(a.index()), Slot::NONE),
            Base::Cursor(c) => match self.cursors[c.index()] {
                s if s.is_some() => (Space::Global(self.k.cursors[c.index()].buffer.index()), s),
                _ => return Err(self.invalid("the cursor is used before it is placed")),
            },
        };
        let (rest, offset) = self.split_constant(mem.index);
        let (index, offset) = match rest {
            None => (Index::None, offset),
            Some(e) => match (self.eval(e)?.comps[0], self.k.ty(e).scalar) {
                (Comp::Int(v), _) => (Index::None, offset.wrapping_add(v)),
                (Comp::Slot(s), Scalar::U32) => (Index::U32(s), offset),
                (Comp::Slot(s), Scalar::I64) => (Index::I64(s), offset),
                (Comp::Slot(s), _) => (Index::I32(s), offset),
                (Comp::Float(_), _) => return Err(self.invalid("an index is a float")),
            },
        };
        Ok(Address { space, index, cursor, offset })
    }
}
