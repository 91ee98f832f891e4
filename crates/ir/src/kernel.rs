//! The kernel: arenas of expressions and declarations, and a tree of statements.
//!
//! Expressions are pure and typed; every effect is a statement. An expression is evaluated afresh by each statement that
//! names it, so sharing a node never fixes a value: bind one with [`Stmt::Let`] for that.

use crate::ids::*;
use crate::matrix::{BulkOp, MatrixOp, TensorMap, TxBarriers};
use crate::types::*;
use serde::{Deserialize, Serialize};

/// A constant as the bits of its double.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.to_bits())
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        u64::deserialize(deserializer).map(f64::from_bits)
    }
}

/// A pure, typed expression node. [`Kernel::exprs`] stores its type with it.
///
/// ```
/// use tilewright_ir::{BinaryOp, Builder, Builtin, Expr};
///
/// let mut b = Builder::new("example", 32);
/// let quarter = b.value(Builtin::LocalId / 4);
/// // A node names its operands, which are nodes of the same arena.
/// let Expr::Binary(BinaryOp::Div, thread, four) = *b.kernel().expr(quarter) else { panic!("a quotient") };
/// assert_eq!(b.kernel().expr(thread), &Expr::Builtin(Builtin::LocalId));
/// assert_eq!(b.kernel().as_int(four), Some(4));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Expr {
    /// Integer or boolean constant of the node's type.
    Int(i64),
    /// Floating-point constant of the node's type. Serialised as its bits: JSON has no infinities.
    Float(#[serde(with = "bits")] f64),
    /// A scalar kernel argument.
    Arg(ArgId),
    /// A named value, mutable variable or loop counter.
    Var(VarId),
    /// An element of a register array. The index must be a compile-time constant once loops marked
    /// [`Unroll::Full`] are unrolled: register files cannot be indexed at run time.
    Reg(RegId, ExprId),
    /// What every thread knows.
    Builtin(Builtin),
    /// One-operand operation, lane by lane.
    Unary(UnaryOp, ExprId),
    /// Two-operand operation, lane by lane.
    Binary(BinaryOp, ExprId, ExprId),
    /// `a * b + c` with one rounding (`fma`, `mad`), lane by lane. Of two vectors of four integers of 8 bits and an `I32`, the sum of the
    /// four products and `c`, which wraps.
    Fma(ExprId, ExprId, ExprId),
    /// `if cond { a } else { b }`, both sides evaluated; `cond` is a scalar `Bool`.
    Select(ExprId, ExprId, ExprId),
    /// Conversion to the node's type; float to narrower float rounds to nearest even.
    Cast(ExprId),
    /// One lane of a vector.
    Extract(ExprId, u8),
    /// A vector from scalars, one per lane.
    Vector(Vec<ExprId>),
    /// A vector with the scalar in every lane.
    Splat(ExprId),
    /// The bits of a vector of 16-bit floats as words (`U32`): two lanes in each, the first in its lower half.
    Words(ExprId),
}

/// A kernel argument.
///
/// ```
/// use tilewright_ir::{Access, ArgKind, Builder, Scalar};
///
/// let mut b = Builder::new("example", 32);
/// b.buffer("x", Scalar::F16, Access::Read, "input");
/// b.scalar_arg("alpha", Scalar::F32, "factor");
/// let kinds: Vec<&ArgKind> = b.kernel().args.iter().map(|arg| &arg.kind).collect();
/// assert_eq!(kinds, [&ArgKind::Buffer { scalar: Scalar::F16, access: Access::Read }, &ArgKind::Scalar(Scalar::F32)]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ArgKind {
    /// Global memory of elements of this type.
    Buffer {
        /// Element type.
        scalar: Scalar,
        /// How the kernel uses it.
        access: Access,
    },
    /// A scalar passed by value.
    Scalar(Scalar),
    /// A tensor map for bulk copies, encoded on the host.
    TensorMap(TensorMap),
}

/// A kernel argument with its name.
///
/// ```
/// use tilewright_ir::{Access, Builder, Scalar, Target, print};
///
/// let mut b = Builder::new("example", 32);
/// b.buffer("weights", Scalar::F16, Access::Read, "B, 64 x 32");
/// let kernel = b.finish();
/// assert_eq!((kernel.args[0].name.as_str(), kernel.args[0].doc.as_str()), ("weights", "B, 64 x 32"));
/// // The head of the source explains each argument.
/// let source = print(&kernel, &Target::by_arch("gfx942").expect("a known architecture"))?;
/// assert!(source.text.contains("B, 64 x 32"));
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arg {
    /// Name in printed source.
    pub name: String,
    /// Buffer or scalar.
    pub kind: ArgKind,
    /// One line on what it is, its unit or shape; printed at the head of the source.
    pub doc: String,
}

/// A named value.
///
/// ```
/// use tilewright_ir::{Builder, Builtin, Scalar, Var};
///
/// let mut b = Builder::new("example", 32);
/// b.bind("row", Builtin::LocalId / 8);
/// assert_eq!(b.kernel().vars, [Var { name: "row".into(), ty: Scalar::I32.ty() }]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Var {
    /// Name in printed source (made unique by the printer).
    pub name: String,
    /// Type.
    pub ty: Type,
}

/// An array in registers, private to each thread.
///
/// ```
/// use tilewright_ir::{Base, Builder, RegArray, Scalar, Unroll};
///
/// let mut b = Builder::new("example", 32);
/// let tile = b.shared("tile", Scalar::F32, 64, 0);
/// // Four vectors of two elements. The loop is unrolled, so that each index is a constant.
/// let fragment = b.regs("fragment", Scalar::F32.vector(2), 4);
/// b.for_range("i", 0, 4, Unroll::Full, |b, i| {
///     let place = b.reg_place(fragment, i);
///     b.load_to(place, Base::Shared(tile), i * 2, None);
/// });
/// assert_eq!(b.kernel().regs, [RegArray { name: "fragment".into(), ty: Scalar::F32.vector(2), len: 4 }]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegArray {
    /// Name in printed source.
    pub name: String,
    /// Element type (may be a vector).
    pub ty: Type,
    /// Number of elements.
    pub len: u32,
}

/// An array in the work-group's shared memory.
///
/// ```
/// use tilewright_ir::{Builder, Scalar};
///
/// let mut b = Builder::new("example", 32);
/// b.shared("tile", Scalar::F16, 512, 0);
/// // The epilogue uses the memory of the tile again.
/// b.shared("rows", Scalar::F32, 256, 0);
/// let ends: Vec<u32> = b.kernel().shared.iter().map(|array| array.byte_end()).collect();
/// assert_eq!(ends, [1024, 1024]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedArray {
    /// Name in printed source.
    pub name: String,
    /// Element type.
    pub scalar: Scalar,
    /// Number of elements.
    pub len: u32,
    /// First byte within the work-group's shared memory. Arrays may overlap on purpose (an epilogue buffer over the
    /// operand tiles): the emulator tracks initialisation and races by byte.
    pub byte_offset: u32,
}

impl SharedArray {
    /// One past its last byte.
    pub const fn byte_end(&self) -> u32 {
        self.byte_offset + self.len * self.scalar.bytes()
    }
}

/// A moving pointer into a global buffer, one per thread.
///
/// ```
/// use tilewright_ir::{Access, Builder, Builtin, Cursor, Scalar};
///
/// let mut b = Builder::new("example", 32);
/// let x = b.buffer("x", Scalar::F32, Access::Read, "input");
/// // Offsets of large tensors are 64-bit integers.
/// b.cursor("row", x, Builtin::GroupId(0).cast(Scalar::I64) * 4096);
/// assert_eq!(b.kernel().cursors, [Cursor { name: "row".into(), buffer: x }]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cursor {
    /// Name in printed source.
    pub name: String,
    /// The buffer argument it points into.
    pub buffer: ArgId,
}

/// Where a value is put.
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Builtin, Place, Scalar};
///
/// let mut b = Builder::new("example", 32);
/// let x = b.buffer("x", Scalar::F32, Access::Read, "input");
/// let ahead = b.regs("ahead", Scalar::F32.ty(), 2);
/// // A load into a register element: the value of the next k-tile.
/// let place = b.reg_place(ahead, 1);
/// b.load_to(place, Base::Buffer(x), Builtin::LocalId, None);
/// assert!(matches!(place, Place::Reg(array, _) if array == ahead));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Place {
    /// Declares an immutable name for the rest of the block.
    New(VarId),
    /// A mutable variable declared earlier by [`Stmt::Declare`].
    Var(VarId),
    /// An element of a register array.
    Reg(RegId, ExprId),
}

/// What a loop asks the compiler for.
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Scalar, Target, Unroll, print};
///
/// let mut b = Builder::new("example", 32);
/// let x = b.buffer("x", Scalar::F32, Access::Write, "output");
/// let rows = b.scalar_arg("rows", Scalar::I32, "rows");
/// let zero = b.float(0.0, Scalar::F32);
/// b.for_range("row", 0, rows, Unroll::By(4), |b, row| b.store(Base::Buffer(x), row, zero, None));
/// let source = print(&b.finish(), &Target::by_arch("sm_80").expect("a known architecture"))?;
/// assert!(source.text.contains("#pragma unroll 4"));
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Unroll {
    /// Nothing.
    No,
    /// Full unrolling is required (register indices depend on the counter): bounds must be constants.
    Full,
    /// As `Full`, without writing the request into the source: the compiler is trusted to unroll
    /// (MIOpenGEMM's `PUN0`).
    Silent,
    /// Unroll by this factor.
    By(u32),
    /// The source repeats the body with a constant in place of the counter, by a macro: the compiler sees no loop.
    Repeat,
}

/// Statement list.
///
/// ```
/// use tilewright_ir::{Block, Builder, Stmt};
///
/// let mut b = Builder::new("example", 32);
/// // The block is no part of the kernel until a statement has it, such as a loop or a role.
/// let block: Block = b.block(|b| b.barrier());
/// assert!(matches!(block[..], [Stmt::Barrier(_)]) && b.kernel().body.is_empty());
/// ```
pub type Block = Vec<Stmt>;

/// Who takes part in a barrier.
///
/// ```
/// use tilewright_ir::{BarrierScope, Builder, Stmt, Target, print};
///
/// // All 4 waves meet at barrier 1, then at the work-group's.
/// let mut b = Builder::new("example", 128);
/// b.wave(32);
/// b.push(Stmt::Barrier(BarrierScope::Named { id: 1, threads: 128 }));
/// b.push(Stmt::Barrier(BarrierScope::WorkGroup));
/// let kernel = b.finish();
/// assert!(print(&kernel, &Target::by_arch("sm_90a").expect("a known architecture"))?.text.contains("bar.sync"));
/// // AMD's hardware has the barrier of the work-group alone.
/// assert!(print(&kernel, &Target::by_arch("gfx900").expect("a known architecture")).is_err());
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum BarrierScope {
    /// All threads of the work-group.
    WorkGroup,
    /// The first-come `threads` threads that name barrier `id` (1 .. 16; 0 is the work-group's).
    Named {
        /// Hardware barrier number.
        id: u8,
        /// Number of participating threads, a multiple of the wave size.
        threads: u32,
    },
    /// The threads of each wave among themselves: orders their shared-memory accesses.
    Wave,
    /// All threads of all work-groups of the cluster ([`Kernel::cluster`]): orders their shared-memory accesses.
    Cluster,
    /// All threads of all work-groups of the cluster come here before its barriers are used. It orders nothing but their set-up
    /// ([`BulkOp::InitFence`](crate::BulkOp::InitFence)), and so waits for no memory.
    ClusterStart,
}

impl BarrierScope {
    /// All work-groups of the cluster meet.
    pub fn of_cluster(self) -> bool {
        matches!(self, BarrierScope::Cluster | BarrierScope::ClusterStart)
    }
}

/// One branch of [`Stmt::Roles`].
///
/// ```
/// use tilewright_ir::{Builder, Role, Stmt, well_formed};
///
/// // A producer wave and a consumer wave.
/// let mut b = Builder::new("example", 64);
/// b.wave(32);
/// let [load, math] = ["load", "math"].map(|name| b.block(|b| b.comment(name)));
/// b.push(Stmt::Roles(vec![
///     Role { name: "load".into(), first_thread: 0, threads: 32, body: load },
///     Role { name: "math".into(), first_thread: 32, threads: 32, body: math },
/// ]));
/// well_formed(&b.finish())?;
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Role {
    /// Name in comments and timelines (`load`, `math`).
    pub name: String,
    /// First thread of the role, a multiple of the wave size.
    pub first_thread: u32,
    /// Number of threads, a multiple of the wave size.
    pub threads: u32,
    /// What it does.
    pub body: Block,
}

/// A statement. The tree is structured; there is no jump.
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar, Stmt};
///
/// let mut b = Builder::new("copy", 32);
/// let x = b.buffer("x", Scalar::F32, Access::Read, "input");
/// let y = b.buffer("y", Scalar::F32, Access::Write, "output");
/// let value = b.load("value", Base::Buffer(x), Builtin::LocalId, 1, None);
/// b.store(Base::Buffer(y), Builtin::LocalId, value, None);
/// // Each method of the builder that has an effect adds a statement.
/// assert!(matches!(b.finish().body[..], [Stmt::Load { .. }, Stmt::Store { guard: None, .. }]));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stmt {
    /// A line of explanation in the printed source.
    Comment(String),
    /// Names a value for the rest of the block.
    Let(VarId, ExprId),
    /// Declares a mutable variable with its first value.
    Declare(VarId, ExprId),
    /// Gives a mutable variable or register element a new value.
    Assign(Place, ExprId),
    /// Reads memory. With a guard, lanes where it is false do not touch memory and receive zero.
    Load {
        /// Receives the value; its type says how many elements move.
        place: Place,
        /// Address.
        mem: MemRef,
        /// Scalar `Bool`.
        guard: Option<ExprId>,
    },
    /// Writes memory where the guard holds.
    Store {
        /// Address.
        mem: MemRef,
        /// Value; its type says how many elements move, its scalar is the memory's.
        value: ExprId,
        /// Scalar `Bool`.
        guard: Option<ExprId>,
    },
    /// Atomic read-modify-write of one element where the guard holds; no result.
    Atomic {
        /// What happens to memory.
        op: AtomicOp,
        /// Address.
        mem: MemRef,
        /// Scalar operand of the memory's type.
        value: ExprId,
        /// Scalar `Bool`.
        guard: Option<ExprId>,
    },
    /// Adds to one `I32` of global memory atomically and returns the previous value. It orders no other access: see
    /// [`Stmt::Fence`].
    FetchAdd {
        /// Receives the old value.
        place: Place,
        /// Address.
        mem: MemRef,
        /// `I32`.
        value: ExprId,
    },
    /// Orders the thread's accesses to global memory before and after it, as all threads of the device see them. Consider a
    /// thread that executes a fence, then a [`Stmt::FetchAdd`]. Its earlier accesses, and accesses that barriers ordered before
    /// the fence, become visible to other threads. Another thread sees them after its own later `FetchAdd` of the same element
    /// and a fence after that. Data exchanged in this way is in [`Access::Exchange`] buffers.
    Fence,
    /// Declares a cursor at buffer + offset elements (`I64` or `I32`).
    PlaceCursor(CursorId, ExprId),
    /// Moves a cursor by a signed number of elements.
    AdvanceCursor(CursorId, ExprId),
    /// `for (var = start; var < end; var += step)`; the counter's type is that of `start`.
    For {
        /// Counter, immutable in the body.
        var: VarId,
        /// First value.
        start: ExprId,
        /// Exclusive end.
        end: ExprId,
        /// Positive constant.
        step: i64,
        /// Request to the compiler.
        unroll: Unroll,
        /// Repeated part.
        body: Block,
    },
    /// Two-way branch on a scalar `Bool`.
    If {
        /// Condition.
        cond: ExprId,
        /// Where it holds.
        then: Block,
        /// Where it does not.
        otherwise: Block,
    },
    /// Splits the work-group by waves: each thread runs the one branch that names it. Between them the branches name every
    /// thread exactly once.
    Roles(Vec<Role>),
    /// Waits for the other participants and orders memory (shared, and global within the work-group) among them.
    Barrier(BarrierScope),
    /// Reads shared memory of another work-group of the cluster (or of this one): what stands there at this address. Its writes must be
    /// ordered before, and it must stay until it knows that this has happened: both by cluster barriers.
    LoadPeer {
        /// Receives the value: 1, 2 or 4 `F32`.
        place: Place,
        /// Shared address, as in this work-group.
        mem: MemRef,
        /// Which work-group, `I32`: its position in the cluster.
        rank: ExprId,
    },
    /// Asynchronous copy of consecutive elements from global to shared memory (`cp.async`). The issuing thread sees the data
    /// after [`Stmt::AsyncWait`]; other threads see it after a later barrier. Where the guard is false, the destination is
    /// filled with zeros and global memory is not touched.
    AsyncCopy {
        /// Shared destination.
        dst: MemRef,
        /// Global source.
        src: MemRef,
        /// Elements to copy: total 4, 8 or 16 bytes, both sides aligned to it.
        lanes: u8,
        /// Scalar `Bool`.
        guard: Option<ExprId>,
    },
    /// Closes the thread's current group of asynchronous copies.
    AsyncCommit,
    /// Waits until at most this many of the thread's committed groups are unfinished.
    AsyncWait(u32),
    /// Exchange of a 32-bit scalar or `F64` within the wave; every lane of the wave takes part.
    Shuffle {
        /// Receives the value.
        place: Place,
        /// What this lane gives.
        value: ExprId,
        /// Which lane gives to which.
        kind: ShuffleKind,
    },
    /// Hint to the compiler's scheduler, without effect on results. With a size: the next so many instructions of these classes
    /// stand here, as AMD's `sched_group_barrier`. With size 0, a fence: only instructions of these classes may be moved across,
    /// as AMD's `sched_barrier`. CUDA knows only the fence, and it holds back memory accesses alone. OpenCL has the fence on
    /// AMD's devices.
    SchedHint {
        /// Instruction class mask (0x08 MFMA, 0x20 VMEM read, 0x100 LDS read, 0x200 LDS write, 0x02 VALU).
        mask: u32,
        /// Number of instructions; 0 for a fence.
        size: u32,
    },
    /// A matrix instruction.
    Matrix(MatrixOp),
    /// A transaction barrier or bulk copy operation.
    Bulk(BulkOp),
    /// Waits until the previous launch has ended and its writes are visible, where this kernel [may begin
    /// before](Kernel::follows). Elsewhere it does nothing. It is in the body itself, once. Launches that may still run must
    /// not write global memory that the thread accesses before this wait. They must not access global memory that the thread
    /// writes before it.
    LaunchWait,
    /// Ends the thread (allowed only where no barrier follows in its role).
    Return,
}

/// Work-groups of the largest cluster there is; beyond [`PORTABLE_CLUSTER`] a device may refuse it.
pub const MAX_CLUSTER: u32 = 16;
/// Work-groups of the largest cluster that every device with clusters has room for.
pub const PORTABLE_CLUSTER: u32 = 8;

/// Arguments and tensor maps of a kernel at most: what a launch keeps room for, since it allocates nothing.
pub const MAX_ARGS: usize = 64;
/// See [`MAX_ARGS`].
pub const MAX_MAPS: usize = 32;

/// A whole kernel.
///
/// ```
/// use tilewright_ir::{Base, Builder, Builtin, Scalar};
///
/// let mut b = Builder::new("example", 64);
/// let tile = b.shared("tile", Scalar::F32, 64, 0);
/// let zero = b.float(0.0, Scalar::F32);
/// b.store(Base::Shared(tile), Builtin::LocalId, zero, None);
/// let kernel = b.finish();
/// // A kernel is data: it is compared, stored as JSON and read again.
/// let text = serde_json::to_string(&kernel)?;
/// assert_eq!(serde_json::from_str::<tilewright_ir::Kernel>(&text)?, kernel);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Entry point name.
    pub name: String,
    /// Lines printed at the head of the source.
    pub doc: Vec<String>,
    /// Arguments in call order.
    pub args: Vec<Arg>,
    /// Threads per work-group (one dimension).
    pub threads: u32,
    /// Waves are this wide where it matters (shuffles, roles, wave barriers); 0 if the kernel does not care.
    pub wave: u32,
    /// Work-groups per compute unit the compiler should make room for in registers; 0 leaves it to the compiler.
    pub min_groups: u32,
    /// Work-groups that run at the same time and reach each other's shared memory: this many neighbours along the grid's first
    /// dimension. The dimension's extent is a multiple of it. Ranks in the cluster are `GroupId(0) % cluster`. 0 or 1: no
    /// clusters.
    #[serde(default)]
    pub cluster: u32,
    /// May begin while the launch before it on the queue still runs, and waits for that one's end at its [`Stmt::LaunchWait`]. A
    /// device that cannot begin it early runs it as any other. [`Kernel::following`] makes a kernel so.
    #[serde(default)]
    pub follows: bool,
    /// Lets the next launch begin as soon as there is room, from this kernel's start on, if that launch
    /// [follows](Kernel::follows).
    #[serde(default)]
    pub precedes: bool,
    /// Where a guarded load of 16-bit elements gives zeros, it does so in whole words. Compilers that choose each element on its
    /// own need as many instructions again as there are elements. This affects the spelling only.
    #[serde(default)]
    pub zero_words: bool,
    /// Expression arena: node and type.
    pub exprs: Vec<(Expr, Type)>,
    /// Named values.
    pub vars: Vec<Var>,
    /// Register arrays. Their elements are undefined until assigned.
    pub regs: Vec<RegArray>,
    /// Shared arrays.
    pub shared: Vec<SharedArray>,
    /// Transaction barriers in shared memory.
    #[serde(default)]
    pub tx_barriers: Vec<TxBarriers>,
    /// Global pointers.
    pub cursors: Vec<Cursor>,
    /// What happens.
    pub body: Block,
    /// Source text in place of what would be printed: an edited one, with the same entry point, arguments and threads. Compilers get it;
    /// the emulator, which runs the body, refuses such a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Kernel {
    /// Type of an expression.
    pub fn ty(&self, e: ExprId) -> Type {
        self.exprs[e.index()].1
    }
    /// Node of an expression.
    pub fn expr(&self, e: ExprId) -> &Expr {
        &self.exprs[e.index()].0
    }
    /// Shared memory used, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        let arrays = self.shared.iter().map(SharedArray::byte_end);
        let barriers = self.tx_barriers.iter().map(|t| t.byte_offset + 8 * t.len);
        arrays.chain(barriers).max().unwrap_or(0)
    }
    /// Element type of what an address points at.
    pub fn base_scalar(&self, base: Base) -> Scalar {
        let buffer = match base {
            Base::Shared(s) => return self.shared[s.index()].scalar,
            Base::Buffer(a) => a,
            Base::Cursor(c) => self.cursors[c.index()].buffer,
        };
        match self.args[buffer.index()].kind {
            ArgKind::Buffer { scalar, .. } => scalar,
            ArgKind::Scalar(scalar) => scalar,
            ArgKind::TensorMap(ref map) => map.scalar,
        }
    }
    /// Type a place holds.
    pub fn place_ty(&self, place: Place) -> Type {
        match place {
            Place::New(v) | Place::Var(v) => self.vars[v.index()].ty,
            Place::Reg(r, _) => self.regs[r.index()].ty,
        }
    }
    /// The kernel as one that [follows](Kernel::follows): it waits before the first statement of its body that reaches global memory,
    /// or may end a thread.
    #[must_use]
    pub fn following(mut self) -> Kernel {
        if !self.follows {
            let ends = |s: &Stmt| matches!(s, Stmt::Return);
            let first = self.body.iter().position(|s| reaches_global(s) || any(std::slice::from_ref(s), &ends));
            self.body.insert(first.unwrap_or(self.body.len()), Stmt::LaunchWait);
            self.follows = true;
        }
        self
    }
    /// The constant an integer expression is, if it is one.
    pub fn as_int(&self, e: ExprId) -> Option<i64> {
        match self.expr(e) {
            Expr::Int(v) => Some(*v),
            _ => None,
        }
    }
}

/// True if a statement reaches global memory, or one within it does.
fn reaches_global(s: &Stmt) -> bool {
    let global = |mem: &MemRef| !matches!(mem.base, Base::Shared(_));
    any(std::slice::from_ref(s), &|s| match s {
        Stmt::Load { mem, .. } | Stmt::Store { mem, .. } | Stmt::Atomic { mem, .. } | Stmt::FetchAdd { mem, .. } => global(mem),
        Stmt::AsyncCopy { .. } | Stmt::Bulk(BulkOp::Load { .. } | BulkOp::Store { .. }) => true,
        _ => false,
    })
}

/// True if a statement of the block, or of the blocks within it, is one that is asked for.
pub(crate) fn any(block: &[Stmt], is: &impl Fn(&Stmt) -> bool) -> bool {
    block.iter().any(|s| {
        is(s)
            || match s {
                Stmt::For { body, .. } => any(body, is),
                Stmt::If { then, otherwise, .. } => any(then, is) || any(otherwise, is),
                Stmt::Roles(roles) => roles.iter().any(|r| any(&r.body, is)),
                _ => false,
            }
    })
}
