//! Builds kernels: typed expressions with constant folding, and statements into a stack of open blocks.
//!
//! The builder is for generators, which are code, so misuse (adding an `f32` to an `i32`) is a bug of the caller and
//! is reported by the validator on the finished kernel, never by a panic here.

mod ex;
mod expr;
mod fold;
mod range;

pub use ex::Ex;
pub use fold::fold;

use crate::ids::*;
use crate::kernel::*;
use crate::matrix::{BulkOp, MatrixOp, TensorMap, TxBarriers, TxId};
use crate::types::*;
use expr::Key;
use range::Range;
use std::collections::HashMap;

/// Assembles one [`Kernel`].
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar, Target, validate};
///
/// // The first `len` elements of x are set to a value; threads past the end store nothing.
/// let mut b = Builder::new("fill", 256);
/// let x = b.buffer("x", Scalar::F32, Access::Write, "output");
/// let (len, value) = (b.scalar_arg("len", Scalar::I32, "elements"), b.scalar_arg("value", Scalar::F32, "their value"));
/// let i = b.bind("i", Builtin::GroupId(0) * 256 + Builtin::LocalId);
/// let inside = b.lt(i, len);
/// b.store(Base::Buffer(x), i, value, Some(inside));
/// let kernel = b.finish();
/// assert_eq!((kernel.args.len(), kernel.threads), (3, 256));
/// validate(&kernel, &Target::by_arch("sm_80").expect("a known architecture"))?;
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
pub struct Builder {
    kernel: Kernel,
    blocks: Vec<Block>,
    seen: HashMap<Key, ExprId>,
    /// Of each expression, its range.
    ranges: Vec<Option<Range>>,
    /// Of variables that are never set again.
    of_vars: HashMap<VarId, Range>,
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
                follows: false,
                precedes: false,
                zero_words: false,
                exprs: Vec::new(),
                vars: Vec::new(),
                regs: Vec::new(),
                shared: Vec::new(),
                tx_barriers: Vec::new(),
                cursors: Vec::new(),
                body: Vec::new(),
                text: None,
            },
            blocks: vec![Vec::new()],
            seen: HashMap::new(),
            ranges: Vec::new(),
            of_vars: HashMap::new(),
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
    /// Zeros of guarded loads are chosen in whole words ([`Kernel::zero_words`]).
    pub fn zero_words(&mut self) {
        self.kernel.zero_words = true;
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
    pub fn bind(&mut self, name: &str, value: impl Into<Ex>) -> ExprId {
        let value = self.value(value);
        if matches!(self.kernel.expr(value), Expr::Int(_) | Expr::Float(_) | Expr::Var(_)) {
            return value;
        }
        let v = self.var(name, self.ty(value));
        self.push(Stmt::Let(v, value));
        self.of_vars.extend(self.range(value).map(|range| (v, range)));
        self.get(v)
    }
    /// Declares a mutable variable.
    pub fn declare(&mut self, name: &str, value: impl Into<Ex>) -> VarId {
        let value = self.value(value);
        let v = self.var(name, self.ty(value));
        self.push(Stmt::Declare(v, value));
        v
    }
    /// Assigns a mutable variable.
    pub fn set(&mut self, v: VarId, value: impl Into<Ex>) {
        let value = self.typed(value, self.kernel.vars[v.index()].ty.scalar);
        self.push(Stmt::Assign(Place::Var(v), value));
    }
    /// Assigns a register element.
    pub fn set_reg(&mut self, r: RegId, index: impl Into<Ex>, value: impl Into<Ex>) {
        let place = self.reg_place(r, index);
        let value = self.typed(value, self.kernel.regs[r.index()].ty.scalar);
        self.push(Stmt::Assign(place, value));
    }
    /// An address.
    pub fn mem(&mut self, base: Base, index: impl Into<Ex>) -> MemRef {
        let index = self.typed(index, Scalar::I32);
        MemRef { base, index }
    }
    /// Loads `lanes` consecutive elements into a new name.
    pub fn load(&mut self, name: &str, base: Base, index: impl Into<Ex>, lanes: u32, guard: Option<ExprId>) -> ExprId {
        let ty = self.kernel.base_scalar(base).vector(lanes as u8);
        let v = self.var(name, ty);
        self.load_to(Place::New(v), base, index, guard);
        self.get(v)
    }
    /// Reads `lanes` elements of another work-group's shared memory into a new name.
    pub fn load_peer(&mut self, name: &str, base: Base, index: impl Into<Ex>, lanes: u32, rank: impl Into<Ex>) -> ExprId {
        let mem = self.mem(base, index);
        let rank = self.value(rank);
        let v = self.var(name, self.kernel.base_scalar(base).vector(lanes as u8));
        self.push(Stmt::LoadPeer { place: Place::New(v), mem, rank });
        self.get(v)
    }
    /// A value of another lane of the wave, under a new name.
    pub fn shuffle(&mut self, name: &str, value: impl Into<Ex>, kind: ShuffleKind) -> ExprId {
        let value = self.value(value);
        let v = self.var(name, self.ty(value));
        self.push(Stmt::Shuffle { place: Place::New(v), value, kind });
        self.get(v)
    }
    /// The first lane's value of a wave, for values that are the same in all of its lanes, so that compilers know it. The caller knows that it lies in
    /// `0..=most`.
    pub fn uniform(&mut self, name: &str, value: impl Into<Ex>, most: i64) -> ExprId {
        let value = self.value(value);
        let v = self.var(name, self.ty(value));
        self.push(Stmt::Shuffle { place: Place::New(v), value, kind: ShuffleKind::Broadcast(0) });
        self.known_within(v, 0, most)
    }
    /// Loads into a place; the place's type says how many elements.
    pub fn load_to(&mut self, place: Place, base: Base, index: impl Into<Ex>, guard: Option<ExprId>) {
        let mem = self.mem(base, index);
        let guard = guard.filter(|&g| self.kernel.as_int(g) != Some(1));
        self.push(Stmt::Load { place, mem, guard });
    }
    /// Stores a value.
    pub fn store(&mut self, base: Base, index: impl Into<Ex>, value: impl Into<Ex>, guard: Option<ExprId>) {
        let mem = self.mem(base, index);
        let value = self.typed(value, self.kernel.base_scalar(base));
        let guard = guard.filter(|&g| self.kernel.as_int(g) != Some(1));
        self.push(Stmt::Store { mem, value, guard });
    }
    /// Updates an element atomically.
    pub fn atomic(&mut self, op: AtomicOp, base: Base, index: impl Into<Ex>, value: impl Into<Ex>, guard: Option<ExprId>) {
        let mem = self.mem(base, index);
        let value = self.typed(value, self.kernel.base_scalar(base));
        self.push(Stmt::Atomic { op, mem, value, guard });
    }
    /// Adds to an `I32` atomically. Returns the old value, under a new name.
    pub fn fetch_add(&mut self, name: &str, base: Base, index: impl Into<Ex>, value: impl Into<Ex>) -> ExprId {
        let mem = self.mem(base, index);
        let value = self.typed(value, Scalar::I32);
        let v = self.var(name, Scalar::I32.ty());
        self.push(Stmt::FetchAdd { place: Place::New(v), mem, value });
        self.get(v)
    }
    /// Declares a cursor.
    pub fn cursor(&mut self, name: &str, buffer: ArgId, offset: impl Into<Ex>) -> CursorId {
        let offset = self.typed(offset, Scalar::I64);
        self.kernel.cursors.push(Cursor { name: name.into(), buffer });
        let c = CursorId(self.kernel.cursors.len() as u32 - 1);
        self.push(Stmt::PlaceCursor(c, offset));
        c
    }
    /// Moves a cursor.
    pub fn advance(&mut self, cursor: CursorId, by: impl Into<Ex>) {
        let by = self.typed(by, Scalar::I64);
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
        start: impl Into<Ex>,
        end: impl Into<Ex>,
        unroll: Unroll,
        f: impl FnOnce(&mut Self, ExprId),
    ) {
        let (start, end) = self.pair(start, end);
        if let (Some(s), Some(e)) = (self.kernel.as_int(start), self.kernel.as_int(end)) {
            if e <= s {
                return;
            }
            if e == s + 1 {
                return f(self, start);
            }
        }
        let var = self.var(name, self.ty(start));
        if let (Some(first), Some(end)) = (self.range(start), self.range(end))
            && first.least < end.most
        {
            self.of_vars.insert(var, Range::new(first.least, end.most - 1));
        }
        let counter = self.get(var);
        let body = self.block(|b| f(b, counter));
        self.push(Stmt::For { var, start, end, step: 1, unroll, body });
    }
    /// Runs the body where the condition holds.
    pub fn if_given(&mut self, cond: Option<ExprId>, f: impl FnOnce(&mut Self)) {
        match cond {
            Some(cond) => self.if_then(cond, f),
            None => f(self),
        }
    }
    /// Statements under a condition.
    pub fn if_then(&mut self, cond: impl Into<Ex>, f: impl FnOnce(&mut Self)) {
        self.if_else(cond, f, |_| {});
    }
    /// Two-way branch. A constant condition leaves one side only.
    pub fn if_else(&mut self, cond: impl Into<Ex>, then: impl FnOnce(&mut Self), otherwise: impl FnOnce(&mut Self)) {
        let cond = self.value(cond);
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
