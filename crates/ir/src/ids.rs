//! Handles of what a kernel declares, and addresses made of them.

use serde::{Deserialize, Serialize};

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub u32);
        impl $name {
            /// Position in its arena.
            pub const fn index(self) -> usize { self.0 as usize }
        }
    )*};
}

handles!(
    /// An expression of [`crate::Kernel::exprs`].
    ExprId,
    /// A named value of [`crate::Kernel::vars`].
    VarId,
    /// A register array of [`crate::Kernel::regs`].
    RegId,
    /// A shared-memory array of [`crate::Kernel::shared`].
    SharedId,
    /// A global-memory pointer of [`crate::Kernel::cursors`].
    CursorId,
    /// A kernel argument of [`crate::Kernel::args`].
    ArgId
);

/// Where an address starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Base {
    /// First element of a buffer argument.
    Buffer(ArgId),
    /// Where a cursor points.
    Cursor(CursorId),
    /// First element of a shared array.
    Shared(SharedId),
}

/// An address: base plus index in elements of the base's scalar type. The access moves as many consecutive elements as
/// the value has lanes, and must be aligned to their total size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemRef {
    /// Start.
    pub base: Base,
    /// Signed distance in elements.
    pub index: ExprId,
}
