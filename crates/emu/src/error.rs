//! Errors of the emulator. Each names the kernel, the statement, the work-group, the thread and the memory.

use std::fmt;

/// Place of a violation: kernel, statement and thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Kernel name.
    pub kernel: String,
    /// Position of the statement in the tree and its printed form.
    pub statement: String,
    /// Work-group (x, y, z).
    pub group: [u32; 3],
    /// Thread within the work-group.
    pub thread: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.group;
        write!(f, "kernel `{}`, {}, work-group ({x}, {y}, {z}), thread {}", self.kernel, self.statement, self.thread)
    }
}

/// Reason why the emulator refused or stopped a kernel.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EmuError {
    /// The kernel breaks a rule of the kernel language.
    #[error("kernel `{kernel}` is not valid: {what}")]
    Invalid {
        /// Kernel name.
        kernel: String,
        /// Rule and place.
        what: String,
    },
    /// The kernel uses a feature that the emulator lacks.
    #[error("kernel `{kernel}` cannot be emulated: {what}")]
    Unsupported {
        /// Kernel name.
        kernel: String,
        /// The missing feature.
        what: String,
    },
    /// The launch does not fit the kernel: number or kind of arguments, or a grid with no work-group.
    #[error("launch of kernel `{kernel}`: {what}")]
    Launch {
        /// Kernel name.
        kernel: String,
        /// The argument and the expected value.
        what: String,
    },
    /// A host copy reaches past the end of a buffer.
    #[error("host access to bytes {offset}..{end} of a buffer of {len} bytes; allocate a larger buffer, or copy less")]
    HostRange {
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// Buffer size.
        len: usize,
    },
    /// This machine has too little memory for emulated memory and the state of its checks. The last writes are lost.
    #[error(
        "this machine has no memory for another {wanted} bytes of emulated memory; {used} bytes are in use; use a smaller problem or fewer checks"
    )]
    OutOfMemory {
        /// Bytes that could not be allocated.
        wanted: u64,
        /// Bytes in use.
        used: u64,
    },
    /// An access is outside of its array.
    #[error("{at}: out of bounds: `{memory}` has {len} elements, index {index} with {lanes} lanes")]
    OutOfBounds {
        /// Where.
        at: Box<Location>,
        /// Buffer or shared array.
        memory: String,
        /// Index in elements from the array's (or argument's) first.
        index: i64,
        /// Elements moved.
        lanes: u32,
        /// Elements of the array.
        len: u64,
    },
    /// A vector access is not aligned to its size, or the first coordinate of a bulk copy is no multiple of 16 bytes.
    #[error("{at}: misaligned: byte {byte} of `{memory}` is accessed as {size} bytes and must be a multiple of {size}")]
    Misaligned {
        /// Where.
        at: Box<Location>,
        /// Buffer or shared array.
        memory: String,
        /// Byte address relative to a 256-byte boundary of the allocation.
        byte: u64,
        /// Bytes moved, the alignment needed.
        size: u32,
    },
    /// An element is read before it is written.
    #[error("{at}: `{memory}` element {index} is read before it is written")]
    Uninitialised {
        /// Where.
        at: Box<Location>,
        /// Register array, shared array or buffer.
        memory: String,
        /// Element.
        index: i64,
    },
    /// Two threads access the same bytes, at least one writes, and no barrier orders them.
    #[error("{at}: race on `{memory}` element {index}: {access} here, {other} by {who} with no barrier between")]
    Race {
        /// Where the second access is.
        at: Box<Location>,
        /// Shared array or buffer.
        memory: String,
        /// Element.
        index: i64,
        /// Kind of the second access: `read`, `write` or `atomic`.
        access: &'static str,
        /// Kind of the first access.
        other: &'static str,
        /// Thread of the first access.
        who: String,
    },
    /// A kernel that may begin early accesses, before its wait, bytes that a launch that may still run writes (or, for a write, uses).
    #[error(
        "{at}: {access} of `{memory}` element {index} before the LaunchWait: the launch of `{kernel}` may still use it; move the access after the LaunchWait"
    )]
    Early {
        /// Where.
        at: Box<Location>,
        /// Buffer.
        memory: String,
        /// Element.
        index: i64,
        /// `read`, `write` or `atomic`.
        access: &'static str,
        /// Kernel of the launch that may still run.
        kernel: String,
    },
    /// An access touches memory that an asynchronous copy still fills or reads.
    #[error(
        "{at}: `{memory}` element {index} is {access} while an asynchronous copy of thread {issuer} is in flight; add an AsyncWait before the access"
    )]
    InFlight {
        /// Where.
        at: Box<Location>,
        /// Shared array or buffer.
        memory: String,
        /// Element.
        index: i64,
        /// Kind of access: `read`, `write`, `overwritten`.
        access: &'static str,
        /// Thread that issued the copy.
        issuer: u32,
    },
    /// A bulk copy overwrites shared memory that threads have read by ordinary loads. Barriers do not hold the copy back until the loads have
    /// arrived in registers (seen on an H200: single elements of a later k-tile).
    #[error(
        "{at}: an ordinary read of `{memory}` element {index} may not have ended; add a ProxyFence between the read and this copy"
    )]
    Unread {
        /// Where.
        at: Box<Location>,
        /// Shared array.
        memory: String,
        /// Element.
        index: i64,
    },
    /// A bulk copy or warpgroup instruction accesses shared memory after ordinary writes, without the proxy fence that makes the writes
    /// visible to it.
    #[error(
        "{at}: thread {writer} wrote `{memory}` element {index} by an ordinary store; add a ProxyFence between the store and this access"
    )]
    Unfenced {
        /// Where.
        at: Box<Location>,
        /// Shared array.
        memory: String,
        /// Element.
        index: i64,
        /// Thread that wrote it.
        writer: u32,
    },
    /// Registers are accessed while a warpgroup instruction uses them, or a warpgroup instruction uses them without a fence after an access.
    #[error("{at}: register `{memory}`[{index}]: {what}")]
    Registers {
        /// Where.
        at: Box<Location>,
        /// Register array.
        memory: String,
        /// Element.
        index: u32,
        /// The violation and the remedy.
        what: &'static str,
    },
    /// A work-group ends while a bulk copy may still use its shared memory.
    #[error("{at}: the work-group ends without a wait for {what}; add the wait")]
    Unfinished {
        /// The copy and its thread.
        at: Box<Location>,
        /// The unfinished operation.
        what: String,
    },
    /// The use of a transaction barrier breaks a rule.
    #[error("{at}: transaction barrier `{barrier}`: {what}")]
    TxBarrier {
        /// Where.
        at: Box<Location>,
        /// Array and index.
        barrier: String,
        /// The broken rule.
        what: String,
    },
    /// The access to another work-group of the cluster breaks a rule.
    #[error("{at}: {what}")]
    Peer {
        /// Where.
        at: Box<Location>,
        /// The broken rule.
        what: String,
    },
    /// A copy in im2col mode starts outside of the window origins, or has illegal offsets.
    #[error("{at}: the copy through `{memory}` in im2col mode starts at {start:?}: {what}")]
    Window {
        /// Where.
        at: Box<Location>,
        /// Tensor map.
        memory: String,
        /// Coordinates and offsets.
        start: Vec<i64>,
        /// The broken rule.
        what: &'static str,
    },
    /// Only some of the threads reach a barrier or shuffle.
    #[error("{at}: divergent {what}: this thread does not take part while others of its {scope} do")]
    Divergent {
        /// Where; the thread is a missing one.
        at: Box<Location>,
        /// The operation.
        what: &'static str,
        /// `work-group` or `wave`.
        scope: &'static str,
    },
    /// Uses of a named barrier have different or illegal counts.
    #[error("{at}: barrier {id}: {what}")]
    BarrierCount {
        /// Where.
        at: Box<Location>,
        /// Barrier number.
        id: u8,
        /// The conflict.
        what: String,
    },
    /// No thread can continue.
    #[error("{at}: deadlock: {waiting}")]
    Deadlock {
        /// One of the waiting statements.
        at: Box<Location>,
        /// The waiting threads and their barriers.
        waiting: String,
    },
    /// Signed integer arithmetic overflows, and a condition, an address or a store uses the result.
    #[error("{at}: {ty} overflow; the result is used in {used}")]
    Overflow {
        /// The overflowing operation.
        at: Box<Location>,
        /// Integer type.
        ty: &'static str,
        /// The statement that uses it.
        used: String,
    },
    /// Integer division by zero.
    #[error("{at}: integer division by zero")]
    DivideByZero {
        /// Where.
        at: Box<Location>,
    },
    /// The step limit was reached.
    #[error("{at}: more than {steps} loop iterations in one work-group")]
    Runaway {
        /// The loop.
        at: Box<Location>,
        /// The limit.
        steps: u64,
    },
}
