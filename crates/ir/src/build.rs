//! Builds kernels: typed expressions with constant folding, and statements into a stack of open blocks.
//!
//! The builder is for generators, which are code, so misuse (adding an `f32` to an `i32`) is a bug of the caller and
//! is reported by the validator on the finished kernel, never by a panic here.

use crate::kernel::*;
use crate::matrix::{BulkOp, MatrixOp, TensorMap, TxBarriers, TxId};
use crate::types::*;
use std::collections::HashMap;

/// What builder methods take as an operand: an expression, or an integer that adopts the other operand's type.
#[derive(Clone, Copy, Debug)]
pub enum Operand {
    /// An existing expression.
    Expr(ExprId),
    /// An integer literal.
    Int(i64),
}

impl From<ExprId> for Operand {
    fn from(e: ExprId) -> Self {
        Operand::Expr(e)
    }
}
macro_rules! int_operand {
    ($($t:ty),*) => {$(impl From<$t> for Operand { fn from(v: $t) -> Self { Operand::Int(v as i64) } })*};
}
int_operand!(i32, u32, i64, usize);

#[derive(PartialEq, Eq, Hash)]
enum Key {
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
}

/// Assembles one [`Kernel`].
pub struct Builder {
    kernel: Kernel,
    blocks: Vec<Block>,
    seen: HashMap<Key, ExprId>,
}

impl Builder {
    /// Starts a kernel of `threads` threads per work-group.
    pub fn new(name: impl Into<String>, threads: u32) -> Self {
        Builder {
            kernel: Kernel {
                name: name.into(),
                doc: Vec::new(),
                args: Vec::new(),
                threads,
                wave: 0,
                min_groups: 0,
                cluster: 0,
                exprs: Vec::new(),
                vars: Vec::new(),
                regs: Vec::new(),
                shared: Vec::new(),
                tx_barriers: Vec::new(),
                cursors: Vec::new(),
                body: Vec::new(),
            },
            blocks: vec![Vec::new()],
            seen: HashMap::new(),
        }
    }
    /// The finished kernel. Blocks still open are closed.
    pub fn finish(mut self) -> Kernel {
        while self.blocks.len() > 1 {
            let tail = self.blocks.pop().unwrap_or_default();
            if let Some(top) = self.blocks.last_mut() {
                top.extend(tail);
            }
        }
        self.kernel.body = self.blocks.pop().unwrap_or_default();
        self.kernel
    }
    /// The kernel so far (types and declarations; the body is not in it yet).
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }
    /// Adds a line to the head of the source.
    pub fn doc(&mut self, line: impl Into<String>) {
        self.kernel.doc.push(line.into());
    }
    /// Declares the wave width the kernel is built for.
    pub fn wave(&mut self, lanes: u32) {
        self.kernel.wave = lanes;
    }
    /// Asks the compiler for room for this many work-groups per compute unit.
    pub fn min_groups(&mut self, groups: u32) {
        self.kernel.min_groups = groups;
    }
    /// Work-groups per cluster; see [`Kernel::cluster`].
    pub fn cluster(&mut self, groups: u32) {
        self.kernel.cluster = groups;
    }

    // ---- declarations

    /// A buffer argument.
    pub fn buffer(&mut self, name: &str, scalar: Scalar, access: Access, doc: &str) -> ArgId {
        self.arg(name, ArgKind::Buffer { scalar, access }, doc)
    }
    /// A scalar argument; the expression reads it.
    pub fn scalar_arg(&mut self, name: &str, scalar: Scalar, doc: &str) -> ExprId {
        let arg = self.arg(name, ArgKind::Scalar(scalar), doc);
        self.node(Expr::Arg(arg), scalar.ty())
    }
    /// A tensor map argument.
    pub fn tensor_map(&mut self, name: &str, map: TensorMap, doc: &str) -> ArgId {
        self.arg(name, ArgKind::TensorMap(map), doc)
    }
    /// An array of transaction barriers at a byte offset of shared memory.
    pub fn tx_barriers(&mut self, name: &str, len: u32, byte_offset: u32) -> TxId {
        self.kernel.tx_barriers.push(TxBarriers { name: name.into(), len, byte_offset });
        TxId(self.kernel.tx_barriers.len() as u32 - 1)
    }
    /// A matrix instruction.
    pub fn matrix(&mut self, op: MatrixOp) {
        self.push(Stmt::Matrix(op));
    }
    /// A transaction barrier or bulk copy operation.
    pub fn bulk(&mut self, op: BulkOp) {
        self.push(Stmt::Bulk(op));
    }
    fn arg(&mut self, name: &str, kind: ArgKind, doc: &str) -> ArgId {
        self.kernel.args.push(Arg { name: name.into(), kind, doc: doc.into() });
        ArgId(self.kernel.args.len() as u32 - 1)
    }
    /// A register array of `len` elements.
    pub fn regs(&mut self, name: &str, ty: Type, len: u32) -> RegId {
        self.kernel.regs.push(RegArray { name: name.into(), ty, len });
        RegId(self.kernel.regs.len() as u32 - 1)
    }
    /// A shared array at a byte offset.
    pub fn shared(&mut self, name: &str, scalar: Scalar, len: u32, byte_offset: u32) -> SharedId {
        self.kernel.shared.push(SharedArray { name: name.into(), scalar, len, byte_offset });
        SharedId(self.kernel.shared.len() as u32 - 1)
    }
    fn var(&mut self, name: &str, ty: Type) -> VarId {
        self.kernel.vars.push(Var { name: name.into(), ty });
        VarId(self.kernel.vars.len() as u32 - 1)
    }

    // ---- expressions

    fn node(&mut self, expr: Expr, ty: Type) -> ExprId {
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
        };
        if let Some(&id) = self.seen.get(&key) {
            return id;
        }
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
    pub fn reg(&mut self, r: RegId, index: impl Into<Operand>) -> ExprId {
        let index = self.operand(index.into(), Scalar::I32);
        let ty = self.kernel.regs[r.index()].ty;
        self.node(Expr::Reg(r, index), ty)
    }
    /// The place of a register element.
    pub fn reg_place(&mut self, r: RegId, index: impl Into<Operand>) -> Place {
        let index = self.operand(index.into(), Scalar::I32);
        Place::Reg(r, index)
    }
    fn operand(&mut self, o: Operand, scalar: Scalar) -> ExprId {
        match o {
            Operand::Expr(e) => e,
            Operand::Int(v) if scalar.is_float() => self.float(v as f64, scalar),
            Operand::Int(v) => self.int(v, scalar),
        }
    }
    fn pair(&mut self, a: Operand, b: Operand) -> (ExprId, ExprId) {
        let scalar = match (a, b) {
            (Operand::Expr(e), _) | (_, Operand::Expr(e)) => self.ty(e).scalar,
            _ => Scalar::I32,
        };
        (self.operand(a, scalar), self.operand(b, scalar))
    }
    /// Two-operand operation with folding of constants and of neutral elements.
    pub fn binary(&mut self, op: BinaryOp, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        let (a, b) = self.pair(a.into(), b.into());
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
        }
        self.node(Expr::Binary(op, a, b), out)
    }
    /// Sum.
    pub fn add(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Add, a, b)
    }
    /// Difference.
    pub fn sub(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Sub, a, b)
    }
    /// Product.
    pub fn mul(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Mul, a, b)
    }
    /// Truncating quotient.
    pub fn div(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Div, a, b)
    }
    /// Remainder.
    pub fn rem(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Rem, a, b)
    }
    /// Less than.
    pub fn lt(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Lt, a, b)
    }
    /// Less than or equal.
    pub fn le(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Le, a, b)
    }
    /// Equal.
    pub fn eq(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::Eq, a, b)
    }
    /// Conjunction.
    pub fn and(&mut self, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        self.binary(BinaryOp::And, a, b)
    }
    /// Conjunction with an optional condition: `None` stands for true.
    pub fn and_opt(&mut self, a: Option<ExprId>, b: Option<ExprId>) -> Option<ExprId> {
        match (a, b) {
            (Some(a), Some(b)) => Some(self.and(a, b)),
            (x, None) | (None, x) => x,
        }
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
    pub fn select(&mut self, cond: ExprId, a: impl Into<Operand>, b: impl Into<Operand>) -> ExprId {
        let (a, b) = self.pair(a.into(), b.into());
        if let Some(c) = self.kernel.as_int(cond) {
            return if c != 0 { a } else { b };
        }
        let ty = self.ty(a);
        self.node(Expr::Select(cond, a, b), ty)
    }
    /// Conversion; a no-op where the type is right already.
    pub fn cast(&mut self, a: impl Into<Operand>, scalar: Scalar) -> ExprId {
        let a = self.operand(a.into(), scalar);
        let ty = self.ty(a);
        if ty.scalar == scalar {
            return a;
        }
        if let (Some(v), true) = (self.kernel.as_int(a), scalar.is_int()) {
            return self.int(wrapped(v, scalar), scalar);
        }
        self.node(Expr::Cast(a), ty.with_scalar(scalar))
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
    /// The scalar in every lane.
    pub fn splat(&mut self, a: ExprId, lanes: u8) -> ExprId {
        let ty = self.ty(a);
        if lanes == 1 { a } else { self.node(Expr::Splat(a), ty.scalar.vector(lanes)) }
    }

    // ---- statements

    /// Adds a statement to the innermost open block.
    pub fn push(&mut self, s: Stmt) {
        if let Some(top) = self.blocks.last_mut() {
            top.push(s);
        }
    }
    /// A comment line.
    pub fn comment(&mut self, text: impl Into<String>) {
        self.push(Stmt::Comment(text.into()));
    }
    /// Names a value. Constants stay constants.
    pub fn bind(&mut self, name: &str, value: ExprId) -> ExprId {
        if matches!(self.kernel.expr(value), Expr::Int(_) | Expr::Float(_) | Expr::Var(_)) {
            return value;
        }
        let v = self.var(name, self.ty(value));
        self.push(Stmt::Let(v, value));
        self.get(v)
    }
    /// Declares a mutable variable.
    pub fn declare(&mut self, name: &str, value: ExprId) -> VarId {
        let v = self.var(name, self.ty(value));
        self.push(Stmt::Declare(v, value));
        v
    }
    /// Assigns a mutable variable.
    pub fn set(&mut self, v: VarId, value: ExprId) {
        self.push(Stmt::Assign(Place::Var(v), value));
    }
    /// Assigns a register element.
    pub fn set_reg(&mut self, r: RegId, index: impl Into<Operand>, value: ExprId) {
        let place = self.reg_place(r, index);
        self.push(Stmt::Assign(place, value));
    }
    /// An address.
    pub fn mem(&mut self, base: Base, index: impl Into<Operand>) -> MemRef {
        let index = self.operand(index.into(), Scalar::I32);
        MemRef { base, index }
    }
    /// Loads `lanes` consecutive elements into a new name.
    pub fn load(&mut self, name: &str, base: Base, index: impl Into<Operand>, lanes: u32, guard: Option<ExprId>) -> ExprId {
        let ty = self.kernel.base_scalar(base).vector(lanes as u8);
        let v = self.var(name, ty);
        self.load_to(Place::New(v), base, index, guard);
        self.get(v)
    }
    /// Reads `lanes` elements of another work-group's shared memory into a new name.
    pub fn load_peer(&mut self, name: &str, base: Base, index: impl Into<Operand>, lanes: u32, rank: ExprId) -> ExprId {
        let mem = self.mem(base, index);
        let v = self.var(name, self.kernel.base_scalar(base).vector(lanes as u8));
        self.push(Stmt::LoadPeer { place: Place::New(v), mem, rank });
        self.get(v)
    }
    /// Loads into a place; the place's type says how many elements.
    pub fn load_to(&mut self, place: Place, base: Base, index: impl Into<Operand>, guard: Option<ExprId>) {
        let mem = self.mem(base, index);
        let guard = guard.filter(|&g| self.kernel.as_int(g) != Some(1));
        self.push(Stmt::Load { place, mem, guard });
    }
    /// Stores a value.
    pub fn store(&mut self, base: Base, index: impl Into<Operand>, value: ExprId, guard: Option<ExprId>) {
        let mem = self.mem(base, index);
        let guard = guard.filter(|&g| self.kernel.as_int(g) != Some(1));
        self.push(Stmt::Store { mem, value, guard });
    }
    /// Declares a cursor.
    pub fn cursor(&mut self, name: &str, buffer: ArgId, offset: impl Into<Operand>) -> CursorId {
        let offset = self.operand(offset.into(), Scalar::I64);
        self.kernel.cursors.push(Cursor { name: name.into(), buffer });
        let c = CursorId(self.kernel.cursors.len() as u32 - 1);
        self.push(Stmt::PlaceCursor(c, offset));
        c
    }
    /// Moves a cursor.
    pub fn advance(&mut self, cursor: CursorId, by: impl Into<Operand>) {
        let by = self.operand(by.into(), Scalar::I64);
        if self.kernel.as_int(by) != Some(0) {
            self.push(Stmt::AdvanceCursor(cursor, by));
        }
    }
    /// Work-group barrier.
    pub fn barrier(&mut self) {
        self.push(Stmt::Barrier(BarrierScope::WorkGroup));
    }
    /// Builds a block on its own.
    pub fn block(&mut self, f: impl FnOnce(&mut Self)) -> Block {
        self.blocks.push(Vec::new());
        f(self);
        self.blocks.pop().unwrap_or_default()
    }
    /// A counted loop; the body receives the counter. A loop of one constant trip is no loop.
    pub fn for_range(
        &mut self,
        name: &str,
        start: impl Into<Operand>,
        end: impl Into<Operand>,
        unroll: Unroll,
        f: impl FnOnce(&mut Self, ExprId),
    ) {
        let (start, end) = self.pair(start.into(), end.into());
        if let (Some(s), Some(e)) = (self.kernel.as_int(start), self.kernel.as_int(end)) {
            if e <= s {
                return;
            }
            if e == s + 1 {
                return f(self, start);
            }
        }
        let var = self.var(name, self.ty(start));
        let counter = self.get(var);
        let body = self.block(|b| f(b, counter));
        self.push(Stmt::For { var, start, end, step: 1, unroll, body });
    }
    /// Runs the body where the condition holds.
    pub fn if_then(&mut self, cond: ExprId, f: impl FnOnce(&mut Self)) {
        self.if_else(cond, f, |_| {});
    }
    /// Two-way branch. A constant condition leaves one side only.
    pub fn if_else(&mut self, cond: ExprId, then: impl FnOnce(&mut Self), otherwise: impl FnOnce(&mut Self)) {
        match self.kernel.as_int(cond) {
            Some(0) => otherwise(self),
            Some(_) => then(self),
            None => {
                let then = self.block(then);
                let otherwise = self.block(otherwise);
                self.push(Stmt::If { cond, then, otherwise });
            }
        }
    }
}

/// What an integer type keeps of a value: the low bits.
fn wrapped(v: i64, scalar: Scalar) -> i64 {
    match scalar {
        Scalar::I32 => i64::from(v as i32),
        Scalar::U32 => i64::from(v as u32),
        _ => v,
    }
}

fn fold(op: BinaryOp, x: i64, y: i64) -> Option<i64> {
    use BinaryOp::*;
    Some(match op {
        Add => x.checked_add(y)?,
        Sub => x.checked_sub(y)?,
        Mul => x.checked_mul(y)?,
        Div => x.checked_div(y)?,
        Rem => x.checked_rem(y)?,
        Min => x.min(y),
        Max => x.max(y),
        And => x & y,
        Or => x | y,
        Xor => x ^ y,
        Shl => x.checked_shl(u32::try_from(y).ok()?)?,
        Shr => x.checked_shr(u32::try_from(y).ok()?)?,
        Lt => (x < y) as i64,
        Le => (x <= y) as i64,
        Eq => (x == y) as i64,
        Ne => (x != y) as i64,
    })
}
