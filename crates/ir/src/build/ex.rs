//! Index arithmetic as values: [`Ex`] is an expression that is no part of a kernel yet, so that it is written with Rust's operators and
//! needs no builder: `row * stride + col / 8 % 4`.
//!
//! Handles ([`ExprId`], [`VarId`]), built-in values and integers are its leaves. Whatever takes an expression of a kernel takes an
//! `Ex` as well; [`Builder::value`] puts one into the kernel's arena, where equal expressions are one and constants are folded. What is
//! used several times is put there first: the handle can be copied.

use super::Builder;
use super::fold::fold;
use crate::ids::*;
use crate::types::*;
use std::ops;
use std::rc::Rc;

/// An expression that is no part of a kernel yet. An integer without a type takes that of the other operand.
///
/// ```
/// use tilewright_ir::{Builder, Builtin, Ex, Scalar};
///
/// /// The element of a row-major matrix of `columns` columns.
/// fn element(row: impl Into<Ex>, column: impl Into<Ex>, columns: i64) -> Ex {
///     row.into() * columns + column
/// }
/// let mut b = Builder::new("example", 32);
/// let at = b.value(element(Builtin::GroupId(0), Builtin::LocalId / 4 % 8, 64));
/// assert_eq!(b.ty(at), Scalar::I32.ty());
/// // Constants are folded.
/// let constant = b.value(element(2, 3, 64));
/// assert_eq!(b.kernel().as_int(constant), Some(131));
/// ```
#[derive(Clone, Debug)]
pub struct Ex(Node);

#[derive(Clone, Debug)]
enum Node {
    Expr(ExprId),
    Int(i64),
    Typed(i64, Scalar),
    Var(VarId),
    Reg(RegId, Rc<Node>),
    Builtin(Builtin),
    Unary(UnaryOp, Rc<Node>),
    Binary(BinaryOp, Rc<[Node; 2]>),
    Fma(Rc<[Node; 3]>),
    Select(Rc<[Node; 3]>),
    Cast(Rc<Node>, Scalar),
    Extract(Rc<Node>, u32),
}

impl Ex {
    /// An integer of a type.
    pub const fn int(value: i64, scalar: Scalar) -> Ex {
        Ex(Node::Typed(value, scalar))
    }
    /// A register element.
    pub fn reg(regs: RegId, index: impl Into<Ex>) -> Ex {
        Ex(Node::Reg(regs, Rc::new(index.into().0)))
    }
    /// The integer without a type that this is, if it is one.
    pub const fn as_int(&self) -> Option<i64> {
        match self.0 {
            Node::Int(value) => Some(value),
            _ => None,
        }
    }

    fn binary(op: BinaryOp, x: Ex, y: Ex) -> Ex {
        if let (Node::Int(x), Node::Int(y)) = (&x.0, &y.0)
            && !op.is_comparison()
            && let Some(value) = fold(op, *x, *y)
        {
            return Ex(Node::Int(value));
        }
        let (x, y) = if op == BinaryOp::Mul && x.as_int().is_some() { (y, x) } else { (x, y) };
        Ex(Node::Binary(op, Rc::new([x.0, y.0])))
    }
}

impl From<ExprId> for Ex {
    fn from(e: ExprId) -> Ex {
        Ex(Node::Expr(e))
    }
}
impl From<&ExprId> for Ex {
    fn from(e: &ExprId) -> Ex {
        Ex(Node::Expr(*e))
    }
}
impl From<VarId> for Ex {
    fn from(v: VarId) -> Ex {
        Ex(Node::Var(v))
    }
}
impl From<Builtin> for Ex {
    fn from(b: Builtin) -> Ex {
        Ex(Node::Builtin(b))
    }
}
impl From<&Ex> for Ex {
    fn from(e: &Ex) -> Ex {
        e.clone()
    }
}
macro_rules! integers {
    ($($t:ty),*) => {$(impl From<$t> for Ex { fn from(v: $t) -> Ex { Ex(Node::Int(v as i64)) } })*};
}
integers!(i32, u32, i64, u64, usize);

/// Operators and methods of everything that is an expression.
macro_rules! arithmetic {
    ($($t:ty),*) => {$(
        arithmetic!(@operators $t: Add add Add, Sub sub Sub, Mul mul Mul, Div div Div, Rem rem Rem,
            BitAnd bitand And, BitOr bitor Or, BitXor bitxor Xor, Shl shl Shl, Shr shr Shr);
        arithmetic!(@left $t: Add add Add, Sub sub Sub, Mul mul Mul);
    )*};
    (@operators $t:ty: $($op:ident $name:ident $kind:ident),*) => {$(
        impl<T: Into<Ex>> ops::$op<T> for $t {
            type Output = Ex;
            fn $name(self, y: T) -> Ex {
                Ex::binary(BinaryOp::$kind, self.into(), y.into())
            }
        }
    )*};
    (@left $t:ty: $($op:ident $name:ident $kind:ident),*) => {$(
        arithmetic!(@number $t, $op $name $kind: i32, u32, u64);
    )*};
    (@number $t:ty, $op:ident $name:ident $kind:ident: $($number:ty),*) => {$(
        impl ops::$op<$t> for $number {
            type Output = Ex;
            fn $name(self, y: $t) -> Ex {
                Ex::binary(BinaryOp::$kind, self.into(), y.into())
            }
        }
    )*};
}
arithmetic!(ExprId, &ExprId, VarId, Builtin, Ex, &Ex);

/// Comparisons and what has no operator. Conditions are `Bool`, one for each lane.
macro_rules! methods {
    ($($t:ty),*) => {$(impl $t {
        /// `self < y`.
        pub fn lt(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Lt, self.into(), y.into())
        }
        /// `self <= y`.
        pub fn le(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Le, self.into(), y.into())
        }
        /// `self > y`, as `y < self`.
        pub fn gt(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Lt, y.into(), self.into())
        }
        /// `self >= y`, as `y <= self`.
        pub fn ge(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Le, y.into(), self.into())
        }
        /// `self == y`.
        pub fn equals(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Eq, self.into(), y.into())
        }
        /// Both conditions.
        pub fn and(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::And, self.into(), y.into())
        }
        /// The smaller one.
        pub fn min(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Min, self.into(), y.into())
        }
        /// The larger one.
        pub fn max(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Max, self.into(), y.into())
        }
        /// The smaller one; NaN where either is.
        pub fn minimum(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Minimum, self.into(), y.into())
        }
        /// The larger one; NaN where either is.
        pub fn maximum(self, y: impl Into<Ex>) -> Ex {
            Ex::binary(BinaryOp::Maximum, self.into(), y.into())
        }
        /// `self ? x : y`.
        pub fn select(self, x: impl Into<Ex>, y: impl Into<Ex>) -> Ex {
            Ex(Node::Select(Rc::new([Ex::from(self).0, x.into().0, y.into().0])))
        }
        /// The value in another type; the same where it has that type.
        pub fn cast(self, scalar: Scalar) -> Ex {
            Ex(Node::Cast(Rc::new(Ex::from(self).0), scalar))
        }
        /// One lane of a vector; of a scalar, the scalar.
        pub fn extract(self, lane: u32) -> Ex {
            Ex(Node::Extract(Rc::new(Ex::from(self).0), lane))
        }
        /// `self * x + y` with one rounding.
        pub fn fma(self, x: impl Into<Ex>, y: impl Into<Ex>) -> Ex {
            Ex(Node::Fma(Rc::new([Ex::from(self).0, x.into().0, y.into().0])))
        }
        /// One-operand operation.
        pub fn unary(self, op: UnaryOp) -> Ex {
            Ex(Node::Unary(op, Rc::new(Ex::from(self).0)))
        }
    })*};
}
methods!(ExprId, VarId, Builtin, Ex);

impl Builder {
    /// The expression in the kernel: an integer without a type is an `I32`.
    pub fn value(&mut self, x: impl Into<Ex>) -> ExprId {
        self.typed(x, Scalar::I32)
    }
    /// Interns an expression. Integers without a type get `scalar`.
    pub(super) fn typed(&mut self, x: impl Into<Ex>, scalar: Scalar) -> ExprId {
        self.intern(&x.into().0, scalar)
    }
    /// Two operands of one operation, where an integer without a type takes the other's.
    pub(super) fn pair(&mut self, x: impl Into<Ex>, y: impl Into<Ex>) -> (ExprId, ExprId) {
        let (x, y) = (x.into().0, y.into().0);
        self.both(&x, &y)
    }

    fn both(&mut self, x: &Node, y: &Node) -> (ExprId, ExprId) {
        if let Node::Int(_) = x {
            let y = self.intern(y, Scalar::I32);
            return (self.intern(x, self.ty(y).scalar), y);
        }
        let x = self.intern(x, Scalar::I32);
        (x, self.intern(y, self.ty(x).scalar))
    }

    fn intern(&mut self, node: &Node, scalar: Scalar) -> ExprId {
        match node {
            Node::Expr(e) => *e,
            Node::Int(v) if scalar.is_float() => self.float(*v as f64, scalar),
            Node::Int(v) => self.int(*v, scalar),
            Node::Typed(v, scalar) => self.int(*v, *scalar),
            Node::Var(v) => self.get(*v),
            Node::Reg(regs, index) => {
                let index = self.intern(index, Scalar::I32);
                self.reg(*regs, index)
            }
            Node::Builtin(b) => self.builtin(*b),
            Node::Unary(op, x) => {
                let x = self.intern(x, scalar);
                self.unary(*op, x)
            }
            Node::Binary(op, operands) => {
                let [x, y] = &**operands;
                let (x, y) = self.both(x, y);
                self.binary(*op, x, y)
            }
            Node::Fma(operands) => {
                let [x, y, z] = [0, 1, 2].map(|i| self.intern(&operands[i], scalar));
                self.fma(x, y, z)
            }
            Node::Select(operands) => {
                let [cond, x, y] = &**operands;
                let cond = self.intern(cond, Scalar::Bool);
                let (x, y) = self.both(x, y);
                self.select(cond, x, y)
            }
            Node::Cast(x, to) => {
                let x = self.intern(x, *to);
                self.cast(x, *to)
            }
            Node::Extract(x, lane) => {
                let x = self.intern(x, scalar);
                self.extract(x, *lane)
            }
        }
    }
}
