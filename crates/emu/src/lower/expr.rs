//! Lowers expressions: folds constants, shares what was evaluated before, counts the work.

use super::value::{Comp, Conversion, Value, binary, conversion, fold, is_wide, joined, round, unary, wrap};
use super::{Binding, Lower};
use crate::EmuError;
use crate::code::{Inst, RegElement};
use crate::lanes::Slot;
use crate::op::Op;
use tilewright_ir::*;

impl Lower<'_> {
    /// Evaluates an expression into constants and slots. Slots of variables and registers are returned without a copy: a caller that
    /// keeps the value must copy it.
    pub(super) fn eval(&mut self, e: ExprId) -> Result<Value, EmuError> {
        let ty = self.k.ty(e);
        match self.k.expr(e) {
            Expr::Int(v) => {
                let comp =
                    if ty.scalar.is_float() { Comp::Float(round(*v as f64, ty.scalar)) } else { Comp::Int(wrap(*v, ty.scalar)) };
                return Ok(Value::constant(comp));
            }
            Expr::Float(v) => return Ok(Value::constant(Comp::Float(round(*v, ty.scalar)))),
            Expr::Arg(a) => return Ok(Value::constant(Comp::Slot(self.code.arg_slots[a.index()]))),
            Expr::Builtin(Builtin::LocalId) => return Ok(Value::constant(Comp::Slot(self.code.local_slot))),
            Expr::Builtin(Builtin::GroupId(d)) => {
                return Ok(Value::constant(Comp::Slot(self.code.group_slots[*d as usize])));
            }
            Expr::Var(v) => {
                return match &self.vars[v.index()] {
                    Binding::Fixed(value) => Ok(value.clone()),
                    Binding::Mutable(d) => Ok(Value { comps: d.iter().map(|&s| Comp::Slot(s)).collect(), since: None }),
                    Binding::Unbound => {
                        Err(self.invalid(format!("`{}` is read before it is bound", self.k.vars[v.index()].name)))
                    }
                };
            }
            Expr::Reg(r, index) => return self.read_reg(*r, *index),
            _ => {}
        }
        if let Some(known) = self.slots.known(e) {
            return Ok(known.clone());
        }
        let value = self.node(e, ty)?;
        let depth = self.lifetime(ty.scalar, value.since);
        self.slots.remember(e, value.clone(), depth);
        Ok(value)
    }

    fn read_reg(&mut self, r: RegId, index: ExprId) -> Result<Value, EmuError> {
        let (n, slots) = self.element(r, index)?;
        self.settled(r, n, false);
        self.must_be_written(r, n, self.mask);
        Ok(Value { comps: slots.into_iter().map(Comp::Slot).collect(), since: None })
    }

    /// A register element is about to be read by the lanes in a mask.
    pub(super) fn must_be_written(&mut self, r: RegId, n: usize, mask: Slot) {
        if self.options.checks.initialised && !self.written[n] {
            self.flagged.insert(n);
            let element = (n - self.elements[r.index()]) as u32;
            self.inst(Inst::Written { flag: self.flags[n], mask, of: RegElement { reg: r.0, element } });
        }
    }

    /// Evaluates a compound node.
    fn node(&mut self, e: ExprId, ty: Type) -> Result<Value, EmuError> {
        let k = self.k;
        Ok(match k.expr(e) {
            Expr::Unary(op, a) => {
                let x = self.eval(*a)?;
                let since = x.since;
                let comps = x.comps.iter().map(|&x| self.unary(*op, ty.scalar, x, since)).collect::<Result<_, _>>()?;
                Value { comps, since }
            }
            Expr::Binary(op, a, b) => {
                if let Some(value) = self.mul_add(*op, *a, *b, ty)? {
                    return Ok(value);
                }
                let (x, y) = (self.eval(*a)?, self.eval(*b)?);
                let (scalar, since) = (k.ty(*a).scalar, joined(x.since, y.since));
                let pairs = x.comps.iter().zip(&y.comps);
                let comps = pairs.map(|(&x, &y)| self.binary(*op, scalar, x, y, since)).collect::<Result<_, _>>()?;
                Value { comps, since }
            }
            Expr::Fma(a, b, c) if ty.scalar.is_float() => {
                let op = if ty.scalar == Scalar::F64 { Op::FmaF64 } else { Op::FmaF32 };
                self.fused(op, *a, *b, *c, ty)?
            }
            Expr::Fma(a, b, c) if k.ty(*a).scalar.is_int8() => {
                let (x, y, z) = (self.eval(*a)?, self.eval(*b)?, self.eval(*c)?);
                let (from, since) = (k.ty(*a).scalar, joined(joined(x.since, y.since), z.since));
                let mut sum = z.comps[0];
                for (&x, &y) in x.comps.iter().zip(&y.comps) {
                    let [x, y] = [x, y].map(|byte| self.cast(byte, from, Scalar::I32, since));
                    let product = self.binary(BinaryOp::Mul, ty.scalar, x, y, since)?;
                    sum = self.binary(BinaryOp::Add, ty.scalar, product, sum, since)?;
                }
                Value { comps: vec![sum], since }
            }
            Expr::Fma(a, b, c) => {
                let (x, y, z) = (self.eval(*a)?, self.eval(*b)?, self.eval(*c)?);
                let since = joined(joined(x.since, y.since), z.since);
                let mut comps = Vec::new();
                for ((&x, &y), &z) in x.comps.iter().zip(&y.comps).zip(&z.comps) {
                    let product = self.binary(BinaryOp::Mul, ty.scalar, x, y, since)?;
                    comps.push(self.binary(BinaryOp::Add, ty.scalar, product, z, since)?);
                }
                Value { comps, since }
            }
            Expr::Select(c, a, b) => {
                let (c, x, y) = (self.eval(*c)?, self.eval(*a)?, self.eval(*b)?);
                let since = joined(joined(c.since, x.since), y.since);
                let comps = match c.comps[0] {
                    Comp::Int(0) => y.comps,
                    Comp::Int(_) => x.comps,
                    c => x.comps.iter().zip(&y.comps).map(|(&x, &y)| self.select(c, x, y, ty.scalar, since)).collect(),
                };
                Value { comps, since }
            }
            Expr::Cast(a) => {
                let x = self.eval(*a)?;
                let (from, since) = (k.ty(*a).scalar, x.since);
                if from.is_int4() {
                    return self.numbers_of_4_bits(&x, from, ty.scalar);
                }
                Value { comps: x.comps.iter().map(|&x| self.cast(x, from, ty.scalar, since)).collect(), since }
            }
            Expr::Extract(a, lane) => {
                let x = self.eval(*a)?;
                Value { comps: vec![x.comps[*lane as usize]], since: x.since }
            }
            Expr::Vector(parts) => {
                let mut value = Value { comps: Vec::new(), since: Some(0) };
                for p in parts {
                    let x = self.eval(*p)?;
                    value.since = joined(value.since, x.since);
                    value.comps.extend(x.comps);
                }
                value
            }
            Expr::Splat(a) => {
                let x = self.eval(*a)?;
                Value { comps: vec![x.comps[0]; ty.lanes as usize], since: x.since }
            }
            Expr::Words(a) => {
                let x = self.eval(*a)?;
                let (from, since, mut comps) = (k.ty(*a).scalar, x.since, Vec::new());
                for pair in x.comps.chunks_exact(2) {
                    let [low, high] = [pair[0], pair[1]].map(|half| Comp::Slot(self.slot(half, from)));
                    let high = self.binary(BinaryOp::Shl, Scalar::U32, high, Comp::Int(16), since)?;
                    comps.push(self.binary(BinaryOp::Or, Scalar::U32, low, high, since)?);
                }
                Value { comps, since }
            }
            // Leaves are dealt with by `eval`.
            _ => return Err(self.invalid("an expression of unknown kind")),
        })
    }

    /// The two numbers of each byte, the one in its lower half first.
    fn numbers_of_4_bits(&mut self, bytes: &Value, from: Scalar, to: Scalar) -> Result<Value, EmuError> {
        let (since, mut comps) = (bytes.since, Vec::new());
        for &byte in &bytes.comps {
            let byte = self.cast(byte, Scalar::U8, Scalar::I32, since);
            for half in 0..2 {
                let number = match from {
                    Scalar::I4 => {
                        let top = self.binary(BinaryOp::Shl, Scalar::I32, byte, Comp::Int(28 - 4 * half), since)?;
                        self.binary(BinaryOp::Shr, Scalar::I32, top, Comp::Int(28), since)?
                    }
                    _ => {
                        let number = self.binary(BinaryOp::Shr, Scalar::I32, byte, Comp::Int(4 * half), since)?;
                        self.binary(BinaryOp::And, Scalar::I32, number, Comp::Int(15), since)?
                    }
                };
                comps.push(self.cast(number, Scalar::I32, to, since));
            }
        }
        Ok(Value { comps, since })
    }

    /// `a * b + c` with two roundings in one operation.
    fn mul_add(&mut self, op: BinaryOp, a: ExprId, b: ExprId, ty: Type) -> Result<Option<Value>, EmuError> {
        let k = self.k;
        let fused = match ty.scalar {
            Scalar::F32 => Op::MulAddF32,
            Scalar::F64 => Op::MulAddF64,
            _ => return Ok(None),
        };
        if op != BinaryOp::Add {
            return Ok(None);
        }
        for (product, sum) in [(b, a), (a, b)] {
            if let (Expr::Binary(BinaryOp::Mul, x, y), None) = (k.expr(product), self.slots.known(product)) {
                return self.fused(fused, *x, *y, sum, ty).map(Some);
            }
        }
        Ok(None)
    }

    fn fused(&mut self, op: Op, a: ExprId, b: ExprId, c: ExprId, ty: Type) -> Result<Value, EmuError> {
        let (x, y, z) = (self.eval(a)?, self.eval(b)?, self.eval(c)?);
        let since = joined(joined(x.since, y.since), z.since);
        let mut comps = Vec::new();
        for ((&x, &y), &z) in x.comps.iter().zip(&y.comps).zip(&z.comps) {
            let [x, y, z] = [x, y, z].map(|c| self.slot(c, ty.scalar));
            let uniform = x.is_uniform() && y.is_uniform() && z.is_uniform();
            let d = self.result(is_wide(ty.scalar), uniform, ty.scalar, since);
            self.push(op, d, x, y, z);
            self.count(uniform, true, 2);
            comps.push(Comp::Slot(d));
        }
        Ok(Value { comps, since })
    }

    /// The scope until whose end a result is kept. It is the statement's scope. But results that addresses and guards are made of
    /// are kept for as long as they stay true.
    fn lifetime(&self, scalar: Scalar, since: Option<usize>) -> usize {
        match since {
            Some(d) if !scalar.is_float() => self.slots.reach(d),
            _ => self.slots.depth(),
        }
    }

    /// A slot for a result.
    fn result(&mut self, wide: bool, uniform: bool, scalar: Scalar, since: Option<usize>) -> Slot {
        let depth = self.lifetime(scalar, since);
        self.slots.alloc(super::Class { wide, uniform }, depth)
    }

    fn count(&mut self, uniform: bool, fma: bool, flop: u32) {
        let w = &mut self.work;
        w.flop += flop;
        if uniform {
            w.uniform += 1;
        } else if fma {
            w.fma += 1;
        } else {
            w.alu += 1;
        }
    }

    fn unary(&mut self, op: UnaryOp, s: Scalar, x: Comp, since: Option<usize>) -> Result<Comp, EmuError> {
        match (op, x) {
            (UnaryOp::Neg, x) if s.is_int() => return self.binary(BinaryOp::Sub, s, Comp::Int(0), x, since),
            (UnaryOp::Not, Comp::Int(v)) if s == Scalar::Bool => return Ok(Comp::Int((v == 0) as i64)),
            (UnaryOp::Neg, Comp::Float(v)) => return Ok(Comp::Float(-v)),
            _ => {}
        }
        let Some(code) = unary(op, s) else { return Err(self.invalid(format!("{op:?} of {s}"))) };
        let a = self.slot(x, s);
        let d = self.result(is_wide(s), a.is_uniform(), s, since);
        self.push(code, d, a, Slot::NONE, Slot::NONE);
        self.count(a.is_uniform(), false, s.is_float() as u32);
        Ok(Comp::Slot(d))
    }

    fn binary(&mut self, op: BinaryOp, s: Scalar, x: Comp, y: Comp, since: Option<usize>) -> Result<Comp, EmuError> {
        if let Some(simple) = simplify(op, s, x, y) {
            return Ok(simple);
        }
        let (a, b) = (self.slot(x, s), self.slot(y, s));
        let uniform = a.is_uniform() && b.is_uniform();
        let to = if op.is_comparison() { Scalar::Bool } else { s };
        let d = self.result(is_wide(to), uniform, to, since);
        self.arithmetic(op, s, d, a, b)?;
        Ok(Comp::Slot(d))
    }

    /// Emits a binary operation on slots.
    pub(super) fn arithmetic(&mut self, op: BinaryOp, s: Scalar, d: Slot, a: Slot, b: Slot) -> Result<(), EmuError> {
        let Some(code) = binary(op, s, self.options.checks.overflow) else {
            return Err(self.invalid(format!("{op:?} of {s}")));
        };
        self.push(code, d, a, b, self.mask);
        let flop = s.is_float() && !op.is_comparison();
        self.count(a.is_uniform() && b.is_uniform(), false, flop as u32);
        Ok(())
    }

    fn select(&mut self, c: Comp, x: Comp, y: Comp, s: Scalar, since: Option<usize>) -> Comp {
        if x == y {
            return x;
        }
        let [a, b] = [x, y].map(|v| self.slot(v, s));
        let c = self.slot(c, Scalar::Bool);
        let uniform = a.is_uniform() && b.is_uniform() && c.is_uniform();
        let d = self.result(is_wide(s), uniform, s, since);
        self.push(if is_wide(s) { Op::Select64 } else { Op::Select32 }, d, c, a, b);
        self.count(uniform, false, 0);
        Comp::Slot(d)
    }

    fn cast(&mut self, x: Comp, from: Scalar, to: Scalar, since: Option<usize>) -> Comp {
        match x {
            Comp::Int(v) if to.is_float() => match from {
                // Beyond 53 bits the way to a 32-bit float must not round twice.
                _ if to == Scalar::F32 => return Comp::Float(v as f32 as f64),
                _ => return Comp::Float(round(v as f64, to)),
            },
            Comp::Int(v) => return Comp::Int(wrap(v, to)),
            Comp::Float(v) if to.is_float() => return Comp::Float(round(v, to)),
            Comp::Float(v) => {
                return Comp::Int(match to {
                    Scalar::Bool => (v != 0.0) as i64,
                    Scalar::I32 => v as i32 as i64,
                    Scalar::U32 => v as u32 as i64,
                    _ => v as i64,
                });
            }
            Comp::Slot(_) => {}
        }
        match conversion(from, to) {
            Conversion::Same => x,
            Conversion::Through(middle) => {
                let x = self.cast(x, from, middle, since);
                self.cast(x, middle, to, since)
            }
            Conversion::One(op) => {
                let a = self.slot(x, from);
                let d = self.result(is_wide(to), a.is_uniform(), to, since);
                self.push(op, d, a, Slot::NONE, Slot::NONE);
                self.count(a.is_uniform(), false, 0);
                Comp::Slot(d)
            }
        }
    }

    /// Evaluates an integer as 64 bits.
    pub(super) fn eval_as_i64(&mut self, e: ExprId) -> Result<Comp, EmuError> {
        let value = self.eval(e)?;
        let from = self.k.ty(e).scalar;
        Ok(self.cast(value.comps[0], from, Scalar::I64, value.since))
    }

    /// The integer constant an expression is here, without emitting anything.
    pub(super) fn as_const(&self, e: ExprId) -> Option<i64> {
        let s = self.k.ty(e).scalar;
        match self.k.expr(e) {
            Expr::Int(v) => Some(wrap(*v, s)),
            Expr::Var(v) => match &self.vars[v.index()] {
                Binding::Fixed(Value { comps, .. }) => match comps[..] {
                    [Comp::Int(v)] => Some(v),
                    _ => None,
                },
                _ => None,
            },
            Expr::Binary(op, a, b) => fold(*op, self.k.ty(*a).scalar, self.as_const(*a)?, self.as_const(*b)?),
            Expr::Cast(a) if s.is_int() && self.k.ty(*a).scalar.is_int() => Some(wrap(self.as_const(*a)?, s)),
            Expr::Select(c, a, b) => self.as_const(if self.as_const(*c)? != 0 { *a } else { *b }),
            _ => None,
        }
    }

    /// Splits constant summands off an index. `None` stands for 0.
    pub(super) fn split_constant(&self, e: ExprId) -> (Option<ExprId>, i64) {
        if let Some(v) = self.as_const(e) {
            return (None, v);
        }
        match self.k.expr(e) {
            Expr::Binary(BinaryOp::Add, a, b) if self.k.ty(e).scalar != Scalar::U32 => {
                for (rest, c) in [(*a, *b), (*b, *a)] {
                    if let Some(c) = self.as_const(c) {
                        let (rest, more) = self.split_constant(rest);
                        return (rest, more.wrapping_add(c));
                    }
                }
                (Some(e), 0)
            }
            Expr::Binary(BinaryOp::Sub, a, b) if self.k.ty(e).scalar != Scalar::U32 => match self.as_const(*b) {
                Some(c) => {
                    let (rest, more) = self.split_constant(*a);
                    (rest, more.wrapping_sub(c))
                }
                None => (Some(e), 0),
            },
            Expr::Cast(a) if self.k.ty(e).scalar == Scalar::I64 && self.k.ty(*a).scalar == Scalar::I32 => self.split_constant(*a),
            _ => (Some(e), 0),
        }
    }

    /// Puts a single value where it belongs: the operation that just made it writes there itself if nobody else wants its result.
    pub(super) fn retarget(&mut self, scalar: Scalar, d: Slot, s: Slot) {
        let temporary = self.slots.is_temporary(super::Class { wide: is_wide(scalar), uniform: s.is_uniform() }, s);
        if let Some(last) = self.code.alu.last_mut()
            && self.pending < self.code.alu_sites.len()
            && last.d == s
            && temporary
            && last.op.writes_wide() == is_wide(scalar)
        {
            last.d = d;
            return;
        }
        self.mov(scalar, d, s);
    }

    /// As [`Lower::put`] for vectors, letting the operations that made the components write them in place where that is safe.
    pub(super) fn put_vector(&mut self, scalar: Scalar, d: &[Slot], comps: &[Comp]) {
        let n = comps.len();
        let ops = self.code.alu.len();
        let in_place = !self.mask.is_some() && n <= ops - self.pending.min(ops) && {
            let made = &self.code.alu[ops - n..];
            made.iter().enumerate().all(|(i, o)| {
                Comp::Slot(o.d) == comps[i]
                    && o.op.writes_wide() == is_wide(scalar)
                    && self.slots.is_temporary(super::Class { wide: is_wide(scalar), uniform: o.d.is_uniform() }, o.d)
                    // A later component must not read what an earlier one has overwritten.
                    && d[..i].iter().all(|&w| w != o.a && w != o.b && w != o.c)
            })
        };
        if in_place {
            for (o, &d) in self.code.alu[ops - n..].iter_mut().zip(d) {
                o.d = d;
            }
        } else {
            self.put(scalar, d, comps);
        }
    }
}

/// Integer arithmetic that needs no operation.
fn simplify(op: BinaryOp, s: Scalar, x: Comp, y: Comp) -> Option<Comp> {
    if s.is_float() {
        return None;
    }
    match (op, x, y) {
        (op, Comp::Int(x), Comp::Int(y)) => fold(op, s, x, y).map(Comp::Int),
        (BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor, x, Comp::Int(0)) => Some(x),
        (BinaryOp::Add | BinaryOp::Or | BinaryOp::Xor, Comp::Int(0), y) => Some(y),
        (BinaryOp::Sub | BinaryOp::Shl | BinaryOp::Shr, x, Comp::Int(0)) => Some(x),
        (BinaryOp::Mul | BinaryOp::And, _, Comp::Int(0)) | (BinaryOp::Mul | BinaryOp::And, Comp::Int(0), _) => Some(Comp::Int(0)),
        (BinaryOp::Mul | BinaryOp::Div, x, Comp::Int(1)) => Some(x),
        (BinaryOp::Mul, Comp::Int(1), y) => Some(y),
        (BinaryOp::And, x, Comp::Int(1)) if s == Scalar::Bool => Some(x),
        (BinaryOp::And, Comp::Int(1), y) if s == Scalar::Bool => Some(y),
        (BinaryOp::Or, _, Comp::Int(1)) | (BinaryOp::Or, Comp::Int(1), _) if s == Scalar::Bool => Some(Comp::Int(1)),
        (BinaryOp::Rem, _, Comp::Int(1)) => Some(Comp::Int(0)),
        _ => None,
    }
}
