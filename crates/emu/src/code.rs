//! The lowered form of a kernel: a flat list of instructions over register slots, shared by all contexts that run it.
//!
//! Loops that must unroll are unrolled, register arrays have become slots, constants and addresses are folded. Straight lines of
//! arithmetic are ranges of [`Code::alu`]; everything else is one [`Inst`]. To add an operation: a variant of [`Inst`], its
//! lowering in `lower`, its execution in `exec`.

use crate::lanes::Slot;
use crate::matrix::places::Maps;
use crate::op::Alu;
use std::sync::Arc;
use tilewright_ir::{Arg, AtomicOp, BarrierScope, Mma, Scalar, SharedArray, ShuffleKind, Swizzle, TxBarriers};

/// One step of a context.
#[derive(Clone, Debug)]
pub(crate) enum Inst {
    /// Arithmetic `start..end` of [`Code::alu`].
    Alu { start: u32, end: u32, work: Work, mask: Slot },
    /// Accesses `start..end` of [`Code::mems`]: memory to registers. Several differ in constant offset and destination only.
    Load { start: u32, end: u32 },
    /// Access [`Code::mems`]: registers to memory.
    Store(u32),
    /// Access [`Code::mems`]: read-modify-write. The old value goes to the slot, if there is one.
    Atomic(AtomicOp, u32, Slot),
    /// Fence of the lanes in the mask.
    Fence(Slot),
    /// Copy [`Code::copies`].
    AsyncCopy(u32),
    /// Closes the current group of copies of the lanes in the mask.
    AsyncCommit(Slot),
    /// Waits until at most so many groups of the lanes in the mask are unfinished.
    AsyncWait(u32, Slot),
    /// Barrier reached by the lanes in the mask.
    Barrier(BarrierScope, Slot),
    /// Access [`Code::mems`] of the work-group of the rank in the slot: its shared memory to registers.
    LoadPeer(u32, Slot),
    /// Exchange within waves.
    Shuffle { kind: ShuffleKind, wide: bool, from: Slot, to: Slot, mask: Slot },
    /// The lanes in the mask need `flag` set: a register is about to be read.
    Written { flag: Slot, mask: Slot, of: RegElement },
    /// Bulk operation [`Code::bulks`] of the lanes in the mask.
    Bulk(u32, Slot),
    /// Matrix operation [`Code::matrices`] of the lanes in the mask.
    Matrix(u32, Slot),
    /// The lanes in the mask read (or write) a register that warpgroup instructions use too.
    Settled { mask: Slot, of: RegElement, write: bool },
    /// The lanes in the mask wait for the launch before this one.
    LaunchWait(Slot),
    /// Goes on elsewhere.
    Jump(u32),
    /// Goes on elsewhere, back, which spends a step.
    Again(u32),
    /// Goes on elsewhere if the uniform flag is 0.
    JumpIfZero(Slot, u32),
    /// Goes on elsewhere if no lane is in the mask.
    JumpIfNone(Slot, u32),
    /// Goes on at the branch of [`Code::roles`] that names the context's threads.
    Role(u32),
    /// The context is done.
    End,
}

/// Work of a straight line of arithmetic, for the counters, per lane that runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) flop: u32,
    pub(crate) fma: u32,
    pub(crate) alu: u32,
    pub(crate) uniform: u32,
}

/// How an index slot is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    /// The index is the access's constant alone.
    None,
    I32(Slot),
    U32(Slot),
    I64(Slot),
}

/// What an address counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Shared array by number.
    Shared(usize),
    /// Buffer argument by number.
    Global(usize),
    /// Array of transaction barriers by number.
    Tx(usize),
}

/// An address per lane: elements from the first of an array, `index + cursor + offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) space: Space,
    pub(crate) index: Index,
    /// 64-bit slot of a cursor, or none.
    pub(crate) cursor: Slot,
    pub(crate) offset: i64,
}

/// A load, store or atomic.
#[derive(Clone, Debug)]
pub(crate) struct Mem {
    pub(crate) address: Address,
    pub(crate) scalar: Scalar,
    /// One slot per element moved.
    pub(crate) values: Vec<Slot>,
    /// Lanes that touch memory; the others receive zero from a load.
    pub(crate) mask: Slot,
    /// Statement number.
    pub(crate) site: u32,
}

/// An asynchronous copy.
#[derive(Clone, Debug)]
pub(crate) struct Copy {
    pub(crate) dst: Address,
    pub(crate) src: Address,
    pub(crate) scalar: Scalar,
    pub(crate) lanes: u8,
    /// Lanes that issue the copy.
    pub(crate) mask: Slot,
    /// Lanes of those that read global memory; the others fill with zeros. None: all.
    pub(crate) guard: Slot,
}

/// A transaction barrier or bulk copy operation.
#[derive(Clone, Debug)]
pub(crate) enum Bulk {
    Init { barrier: Address, arrivals: u32 },
    InitFence,
    Expect { barrier: Address, bytes: u32 },
    Arrive { barrier: Address },
    ArriveAt { barrier: Address, rank: Slot },
    Wait { barrier: Address, parity: Slot },
    Load { to: Address, scalar: Scalar, map: usize, at: Vec<Slot>, barrier: Address, peers: Option<Slot> },
    Store { from: Address, scalar: Scalar, map: usize, at: Vec<Slot> },
    StoreCommit,
    StoreWait { pending: u32 },
    ProxyFence,
}

impl Bulk {
    /// It reaches other work-groups of the cluster.
    pub(crate) const fn reaches_peers(&self) -> bool {
        matches!(self, Bulk::ArriveAt { .. } | Bulk::Load { peers: Some(_), .. })
    }
}

/// An operand that a warpgroup instruction reads from shared memory.
#[derive(Clone, Debug)]
pub(crate) struct Tile {
    /// Shared array by number.
    pub(crate) array: usize,
    /// First byte within it.
    pub(crate) byte: Slot,
    pub(crate) swizzle: Swizzle,
    pub(crate) k_contiguous: bool,
    pub(crate) leading: usize,
    pub(crate) stride: usize,
}

/// Left operand of a warpgroup instruction.
#[derive(Clone, Debug)]
pub(crate) enum Left {
    Shared(Tile),
    Regs(Vec<Slot>),
}

/// Registers of a thread that an instruction in flight works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) reg: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// They are written, not only read.
    pub(crate) written: bool,
}

/// One element of a register array of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegElement {
    pub(crate) reg: u32,
    pub(crate) element: u32,
}

/// A product of fragments of one wave.
#[derive(Clone, Debug)]
pub(crate) struct WaveProduct {
    pub(crate) row: &'static Mma,
    pub(crate) maps: Arc<Maps>,
    pub(crate) a: Vec<Slot>,
    pub(crate) b: Vec<Slot>,
    pub(crate) acc: Vec<Slot>,
}

/// 8 x 8 matrices of 16-bit elements from shared memory to registers.
#[derive(Clone, Debug)]
pub(crate) struct MatrixLoad {
    pub(crate) to: Vec<Slot>,
    pub(crate) trans: bool,
    pub(crate) from: Address,
    pub(crate) scalar: Scalar,
}

/// A product of a warpgroup: 64 rows by `n` columns.
#[derive(Clone, Debug)]
pub(crate) struct WarpgroupProduct {
    pub(crate) row: &'static Mma,
    pub(crate) n: u32,
    pub(crate) maps: Arc<Maps>,
    pub(crate) a: Left,
    pub(crate) b: Tile,
    pub(crate) acc: Vec<Slot>,
    pub(crate) accumulate: Slot,
    /// Registers that it uses until it has finished.
    pub(crate) held: Vec<Held>,
}

/// A matrix operation.
#[derive(Clone, Debug)]
pub(crate) enum Matrix {
    /// An instruction of single waves: `mma.sync`, `v_mfma`.
    Wave(WaveProduct),
    /// `ldmatrix`.
    Load(MatrixLoad),
    /// `wgmma.mma_async`.
    Warpgroup(WarpgroupProduct),
    Fence,
    Commit,
    Wait {
        pending: u32,
    },
}

/// A branch of a role statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    pub(crate) first_thread: u32,
    pub(crate) threads: u32,
    pub(crate) target: u32,
}

/// Slots needed of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) varying32: usize,
    pub(crate) varying64: usize,
    pub(crate) uniform32: usize,
    pub(crate) uniform64: usize,
}

/// A lowered kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    pub(crate) insts: Vec<Inst>,
    /// Statement number of each instruction, an index into `statements`.
    pub(crate) sites: Vec<u32>,
    pub(crate) alu: Vec<Alu>,
    /// Statement number of each arithmetic operation.
    pub(crate) alu_sites: Vec<u32>,
    pub(crate) mems: Vec<Mem>,
    pub(crate) copies: Vec<Copy>,
    pub(crate) bulks: Vec<Bulk>,
    pub(crate) matrices: Vec<Matrix>,
    pub(crate) roles: Vec<Vec<Branch>>,
    /// Position and printed form of each statement.
    pub(crate) statements: Vec<String>,
    pub(crate) sizes: Sizes,
    /// Uniform 32-bit constants.
    pub(crate) consts32: Vec<(Slot, u32)>,
    /// Uniform 64-bit constants.
    pub(crate) consts64: Vec<(Slot, u64)>,
    /// Slot of each scalar argument.
    pub(crate) arg_slots: Vec<Slot>,
    pub(crate) group_slots: [Slot; 3],
    pub(crate) local_slot: Slot,
    /// Lane flags of register elements, clear when a work-group starts.
    pub(crate) flags: Vec<Slot>,

    pub(crate) name: String,
    pub(crate) threads: u32,
    pub(crate) wave: u32,
    /// Work-groups per cluster, 1 at least.
    pub(crate) cluster: u32,
    /// It may begin while the launch before it runs.
    pub(crate) follows: bool,
    /// It lets the next one begin from its own start on.
    pub(crate) precedes: bool,
    /// Some read goes to another work-group's shared memory.
    pub(crate) peer_reads: bool,
    pub(crate) args: Vec<Arg>,
    /// Names and elements of register arrays, for messages.
    pub(crate) reg_names: Vec<String>,
    pub(crate) shared: Vec<SharedArray>,
    pub(crate) shared_bytes: usize,
    pub(crate) uses: Uses,
    pub(crate) tx_barriers: Vec<TxBarriers>,
    /// Buffer arguments that see atomics.
    pub(crate) atomic_args: Vec<usize>,
}

/// What a kernel uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    /// Thread numbers other than 0 at which roles split the work-group.
    pub(crate) splits: Vec<u32>,
    /// Some barrier orders less than the whole work-group.
    pub(crate) partial_barriers: bool,
    /// Waves may overtake one another: some named or transaction barrier, or warpgroup instruction, is used.
    pub(crate) waves_apart: bool,
    /// Warpgroup instructions.
    pub(crate) warpgroups: bool,
    /// Bulk stores, or waits for them.
    pub(crate) bulk_stores: bool,
    /// Tensor map arguments that bulk stores write through.
    pub(crate) stored_maps: Vec<usize>,
    /// Atomics in shared memory.
    pub(crate) shared_atomics: bool,
}

impl Default for Slot {
    fn default() -> Self {
        Slot::NONE
    }
}
