//! Expressions: shared where they are the same, with constants and neutral elements folded.

use super::fold::{fold, wrapped};
use super::{Builder, Ex};
use crate::ids::*;
use crate::kernel::*;
use crate::types::*;

/// What makes two expressions the same one.
#[derive(PartialEq, Eq, Hash)]
pub(super) enum Key {
    Int(i64, Type),
    Float(u64, Type),
    Arg(ArgId),
    Var(VarId),
    Reg(RegId, ExprId),
    Builtin(Builtin),
    Unary(UnaryOp, ExprId),
    Binary(BinaryOp, ExprId, ExprId),
    Fma(ExprId, ExprId, ExprId),
    Select(ExprId, ExprId, ExprId),
    Cast(ExprId, Type),
    Extract(ExprId, u8),
    Vector(Vec<ExprId>),
    Splat(ExprId, u8),
    Words(ExprId),
}

impl Builder {
    pub(super) fn node(&mut self, expr: Expr, ty: Type) -> ExprId {
        let key = match &expr {
            Expr::Int(v) => Key::Int(*v, ty),
            Expr::Float(v) => Key::Float(v.to_bits(), ty),
            Expr::Arg(a) => Key::Arg(*a),
            Expr::Var(v) => Key::Var(*v),
            Expr::Reg(r, i) => Key::Reg(*r, *i),
            Expr::Builtin(b) => Key::Builtin(*b),
            Expr::Unary(op, a) => Key::Unary(*op, *a),
            Expr::Binary(op, a, b) => Key::Binary(*op, *a, *b),
            Expr::Fma(a, b, c) => Key::Fma(*a, *b, *c),
            Expr::Select(c, a, b) => Key::Select(*c, *a, *b),
            Expr::Cast(a) => Key::Cast(*a, ty),
            Expr::Extract(a, l) => Key::Extract(*a, *l),
            Expr::Vector(v) => Key::Vector(v.clone()),
            Expr::Splat(a) => Key::Splat(*a, ty.lanes),
            Expr::Words(a) => Key::Words(*a),
        };
        if let Some(&id) = self.seen.get(&key) {
            return id;
        }
        self.ranges.push(self.range_of(&expr, ty));
        self.kernel.exprs.push((expr, ty));
        let id = ExprId(self.kernel.exprs.len() as u32 - 1);
        self.seen.insert(key, id);
        id
    }
    /// Type of an expression.
    pub fn ty(&self, e: ExprId) -> Type {
        self.kernel.ty(e)
    }
    /// Integer (or `Bool`) constant.
    pub fn int(&mut self, value: i64, scalar: Scalar) -> ExprId {
        self.node(Expr::Int(value), scalar.ty())
    }
    /// Float constant.
    pub fn float(&mut self, value: f64, scalar: Scalar) -> ExprId {
        self.node(Expr::Float(value), scalar.ty())
    }
    /// Zero of any type.
    pub fn zero(&mut self, ty: Type) -> ExprId {
        let zero = if ty.scalar.is_float() { self.float(0.0, ty.scalar) } else { self.int(0, ty.scalar) };
        self.splat(zero, ty.lanes)
    }
    /// What every thread knows.
    pub fn builtin(&mut self, b: Builtin) -> ExprId {
        self.node(Expr::Builtin(b), Scalar::I32.ty())
    }
    /// Reads a variable.
    pub fn get(&mut self, v: VarId) -> ExprId {
        let ty = self.kernel.vars[v.index()].ty;
        self.node(Expr::Var(v), ty)
    }
    /// Reads a register element.
    pub fn reg(&mut self, r: RegId, index: impl Into<Ex>) -> ExprId {
        let index = self.typed(index, Scalar::I32);
        let ty = self.kernel.regs[r.index()].ty;
        self.node(Expr::Reg(r, index), ty)
    }
    /// The place of a register element.
    pub fn reg_place(&mut self, r: RegId, index: impl Into<Ex>) -> Place {
        let index = self.typed(index, Scalar::I32);
        Place::Reg(r, index)
    }
    /// Two-operand operation with folding of constants and of neutral elements.
    pub fn binary(&mut self, op: BinaryOp, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        let (a, b) = self.pair(a, b);
        let ty = self.ty(a);
        let out = if op.is_comparison() { ty.with_scalar(Scalar::Bool) } else { ty };
        if ty.lanes == 1 && (ty.scalar.is_int() || ty.scalar == Scalar::Bool) {
            let (x, y) = (self.kernel.as_int(a), self.kernel.as_int(b));
            if let (Some(x), Some(y)) = (x, y)
                && let Some(v) = fold(op, x, y)
                && wrapped(v, out.scalar) == v
            {
                return self.int(v, out.scalar);
            }
            use BinaryOp::*;
            match (op, x, y) {
                (Add | Or | Xor, Some(0), _) => return b,
                (Add | Sub | Or | Xor | Shl | Shr, _, Some(0)) => return a,
                (Mul, Some(1), _) => return b,
                (Mul | Div, _, Some(1)) => return a,
                (Mul, Some(0), _) | (Mul, _, Some(0)) => return self.int(0, ty.scalar),
                (Rem, _, Some(1)) => return self.int(0, ty.scalar),
                (And, Some(1), _) if ty.scalar == Scalar::Bool => return b,
                (And, _, Some(1)) if ty.scalar == Scalar::Bool => return a,
                (And, Some(0), _) | (And, _, Some(0)) => return self.int(0, ty.scalar),
                // (x + c1) + c2 = x + (c1 + c2): keeps printed addresses short.
                (Add, _, Some(c2)) => {
                    if let Expr::Binary(Add, x, c1) = *self.kernel.expr(a)
                        && let Some(c1) = self.kernel.as_int(c1)
                    {
                        return self.binary(Add, x, c1 + c2);
                    }
                }
                (Add, Some(_), None) => return self.binary(Add, b, a),
                _ => {}
            }
            if let Some(known) = self.by_ranges(op, a, b, out) {
                return known;
            }
        }
        self.node(Expr::Binary(op, a, b), out)
    }
    /// Sum.
    pub fn add(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Add, a, b)
    }
    /// Difference.
    pub fn sub(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Sub, a, b)
    }
    /// Product.
    pub fn mul(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Mul, a, b)
    }
    /// Truncating quotient.
    pub fn div(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Div, a, b)
    }
    /// Remainder.
    pub fn rem(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Rem, a, b)
    }
    /// Less than.
    pub fn lt(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Lt, a, b)
    }
    /// Less than or equal.
    pub fn le(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Le, a, b)
    }
    /// Equal.
    pub fn eq(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::Eq, a, b)
    }
    /// Conjunction.
    pub fn and(&mut self, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        self.binary(BinaryOp::And, a, b)
    }
    /// Conjunction with an optional condition: `None` stands for true.
    pub fn and_opt(&mut self, a: Option<ExprId>, b: Option<ExprId>) -> Option<ExprId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.and(a, b)),
            (x, None) | (None, x) => x,
        }
    }
    /// One condition more besides those that there are.
    pub fn and_also(&mut self, guard: &mut Option<ExprId>, condition: impl Into<Ex>) {
        let condition = self.value(condition);
        *guard = self.and_opt(*guard, Some(condition));
    }
    /// One-operand operation.
    pub fn unary(&mut self, op: UnaryOp, a: ExprId) -> ExprId {
        let ty = self.ty(a);
        self.node(Expr::Unary(op, a), ty)
    }
    /// `a * b + c` with one rounding.
    pub fn fma(&mut self, a: ExprId, b: ExprId, c: ExprId) -> ExprId {
        let ty = self.ty(c);
        self.node(Expr::Fma(a, b, c), ty)
    }
    /// `cond ? a : b`.
    pub fn select(&mut self, cond: ExprId, a: impl Into<Ex>, b: impl Into<Ex>) -> ExprId {
        let (a, b) = self.pair(a, b);
        if let Some(c) = self.kernel.as_int(cond) {
            return if c != 0 { a } else { b };
        }
        let ty = self.ty(a);
        self.node(Expr::Select(cond, a, b), ty)
    }
    /// Conversion; a no-op where the type is right already. Of each byte of integers of 4 bits it makes two numbers.
    pub fn cast(&mut self, a: impl Into<Ex>, scalar: Scalar) -> ExprId {
        let a = self.typed(a, scalar);
        let ty = self.ty(a);
        if ty.scalar == scalar {
            return a;
        }
        if let (Some(v), true) = (self.kernel.as_int(a), scalar.is_int()) {
            return self.int(wrapped(v, scalar), scalar);
        }
        self.node(Expr::Cast(a), scalar.vector(ty.lanes * ty.scalar.numbers() as u8))
    }
    /// One lane of a vector; of a scalar, the scalar.
    pub fn extract(&mut self, a: ExprId, lane: u32) -> ExprId {
        let ty = self.ty(a);
        if ty.lanes == 1 { a } else { self.node(Expr::Extract(a, lane as u8), ty.scalar.ty()) }
    }
    /// A vector from scalars; of one scalar, the scalar.
    pub fn vector(&mut self, parts: &[ExprId]) -> ExprId {
        match parts {
            [one] => *one,
            _ => {
                let ty = parts.first().map_or(Scalar::F32, |&p| self.ty(p).scalar).vector(parts.len() as u8);
                self.node(Expr::Vector(parts.to_vec()), ty)
            }
        }
    }
    /// The bits of a vector of 16-bit floats, two in each word.
    pub fn words(&mut self, a: ExprId) -> ExprId {
        let lanes = self.ty(a).lanes / 2;
        self.node(Expr::Words(a), Scalar::U32.vector(lanes))
    }
    /// The scalar in every lane.
    pub fn splat(&mut self, a: ExprId, lanes: u8) -> ExprId {
        let ty = self.ty(a);
        if lanes == 1 { a } else { self.node(Expr::Splat(a), ty.scalar.vector(lanes)) }
    }
}
