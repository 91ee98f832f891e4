//! Everything a run can object to, each naming kernel, statement, work-group, thread and the memory concerned.

use std::fmt;

/// Where in a kernel and by whom a rule was broken.
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

/// Why a kernel was refused or stopped.
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
    /// The kernel asks for something the emulator lacks.
    #[error("kernel `{kernel}` cannot be emulated: {what}")]
    Unsupported {
        /// Kernel name.
        kernel: String,
        /// What is missing.
        what: String,
    },
    /// The launch does not fit the kernel: number or kind of arguments, or a grid with no work-group.
    #[error("launch of kernel `{kernel}`: {what}")]
    Launch {
        /// Kernel name.
        kernel: String,
        /// Which argument and what it should be.
        what: String,
    },
    /// A host copy reaches past the end of a buffer.
    #[error("host access to bytes {offset}..{end} of a buffer of {len} bytes")]
    HostRange {
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// Buffer size.
        len: usize,
    },
    /// This machine has no room for what was written, or for what the checks note about it. What did not fit is lost.
    #[error("this machine has no room for {wanted} bytes more of emulated memory, which takes {used} already")]
    OutOfMemory {
        /// Bytes that could not be had.
        wanted: u64,
        /// Bytes taken already.
        used: u64,
    },
    /// An access outside its array.
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
        /// Elements there are.
        len: u64,
    },
    /// A vector access whose address is not a multiple of its size, or a bulk copy whose first coordinate is none of 16 bytes.
    #[error("{at}: misaligned: byte {byte} of `{memory}` accessed as {size} bytes")]
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
    /// A read of something never written.
    #[error("{at}: `{memory}` element {index} is read before it is written")]
    Uninitialised {
        /// Where.
        at: Box<Location>,
        /// Register array, shared array or buffer.
        memory: String,
        /// Element.
        index: i64,
    },
    /// Two threads touch the same bytes, one of them writes, nothing orders them.
    #[error("{at}: race on `{memory}` element {index}: {access} here, {other} by {who} with no barrier between")]
    Race {
        /// Where the second access is.
        at: Box<Location>,
        /// Shared array or buffer.
        memory: String,
        /// Element.
        index: i64,
        /// What the second access is: `read`, `write` or `atomic`.
        access: &'static str,
        /// What the first access was.
        other: &'static str,
        /// Who made the first access.
        who: String,
    },
    /// A kernel that may begin early reaches, before it waits, what a launch that may still run writes (or, to be written, uses).
    #[error("{at}: {access} of `{memory}` element {index} before the LaunchWait: the launch of `{kernel}` may still be using it")]
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
    /// Memory that an asynchronous copy is still filling or reading was touched.
    #[error(
        "{at}: `{memory}` element {index} is {access} while an asynchronous copy of thread {issuer} is in flight: AsyncWait first"
    )]
    InFlight {
        /// Where.
        at: Box<Location>,
        /// Shared array or buffer.
        memory: String,
        /// Element.
        index: i64,
        /// What was done: `read`, `write`, `overwritten`.
        access: &'static str,
        /// Thread that issued the copy.
        issuer: u32,
    },
    /// Shared memory that threads read in the ordinary way is overwritten by a bulk copy, which barriers do not hold back until what was
    /// read has come to registers (seen on an H200: single elements of a later k-tile).
    #[error(
        "{at}: `{memory}` element {index} was read in the ordinary way, which need not have ended: ProxyFence between that and this"
    )]
    Unread {
        /// Where.
        at: Box<Location>,
        /// Shared array.
        memory: String,
        /// Element.
        index: i64,
    },
    /// Shared memory written in the ordinary way is read or overwritten by a bulk copy or warpgroup instruction, which does not
    /// see such writes by itself.
    #[error(
        "{at}: `{memory}` element {index} was written by thread {writer} in the ordinary way: ProxyFence between that and this"
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
    /// Registers touched while a warpgroup instruction works on them, or worked on without a fence after they were touched.
    #[error("{at}: register `{memory}`[{index}]: {what}")]
    Registers {
        /// Where.
        at: Box<Location>,
        /// Register array.
        memory: String,
        /// Element.
        index: u32,
        /// What is wrong, and the remedy.
        what: &'static str,
    },
    /// A work-group ends, and its shared memory with it, while a bulk copy may still use it.
    #[error("{at}: the work-group ends before anybody has waited for {what}")]
    Unfinished {
        /// The copy, and who issued it.
        at: Box<Location>,
        /// What should have been waited for.
        what: String,
    },
    /// A transaction barrier used against its rules.
    #[error("{at}: transaction barrier `{barrier}`: {what}")]
    TxBarrier {
        /// Where.
        at: Box<Location>,
        /// Array and index.
        barrier: String,
        /// Which rule.
        what: String,
    },
    /// Another work-group of the cluster used against the rules.
    #[error("{at}: {what}")]
    Peer {
        /// Where.
        at: Box<Location>,
        /// Which rule.
        what: String,
    },
    /// A copy in im2col mode that starts where its windows have no origin, or with offsets that the mode lacks.
    #[error("{at}: the copy through `{memory}` in im2col mode starts at {start:?}: {what}")]
    Window {
        /// Where.
        at: Box<Location>,
        /// Tensor map.
        memory: String,
        /// Coordinates and offsets.
        start: Vec<i64>,
        /// Which rule.
        what: &'static str,
    },
    /// A barrier or shuffle that only some of its threads reach.
    #[error("{at}: divergent {what}: this thread does not take part while others of its {scope} do")]
    Divergent {
        /// Where; the thread is one that is missing.
        at: Box<Location>,
        /// The operation.
        what: &'static str,
        /// `work-group` or `wave`.
        scope: &'static str,
    },
    /// A named barrier used with counts that do not fit together.
    #[error("{at}: barrier {id}: {what}")]
    BarrierCount {
        /// Where.
        at: Box<Location>,
        /// Barrier number.
        id: u8,
        /// What does not fit.
        what: String,
    },
    /// Nobody can go on.
    #[error("{at}: deadlock: {waiting}")]
    Deadlock {
        /// One waiting place.
        at: Box<Location>,
        /// Who waits for what.
        waiting: String,
    },
    /// Signed integer arithmetic left its type, and the result decides, addresses or is stored.
    #[error("{at}: {ty} overflow; the result is used in {used}")]
    Overflow {
        /// Where it left its type.
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
