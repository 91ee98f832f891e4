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
    ///
    /// ```
    /// use tilewright_ir::{Builder, Builtin, Expr};
    ///
    /// let mut b = Builder::new("example", 32);
    /// let (x, y) = (b.builtin(Builtin::LocalId), b.builtin(Builtin::LocalId));
    /// // Equal expressions are one node.
    /// assert_eq!((x, b.kernel().expr(y)), (y, &Expr::Builtin(Builtin::LocalId)));
    /// ```
    ExprId,
    /// A named value of [`crate::Kernel::vars`].
    ///
    /// ```
    /// use tilewright_ir::{Builder, Builtin};
    ///
    /// let mut b = Builder::new("example", 32);
    /// let total = b.declare("total", Builtin::LocalId);
    /// b.set(total, total + 1);
    /// assert_eq!(b.kernel().vars[total.index()].name, "total");
    /// ```
    VarId,
    /// A register array of [`crate::Kernel::regs`].
    ///
    /// ```
    /// use tilewright_ir::{Builder, Scalar};
    ///
    /// let mut b = Builder::new("example", 32);
    /// let acc = b.regs("acc", Scalar::F32.ty(), 8);
    /// let zero = b.float(0.0, Scalar::F32);
    /// b.set_reg(acc, 3, zero);
    /// assert_eq!(b.kernel().regs[acc.index()].len, 8);
    /// ```
    RegId,
    /// A shared-memory array of [`crate::Kernel::shared`].
    ///
    /// ```
    /// use tilewright_ir::{Base, Builder, Builtin, Scalar};
    ///
    /// let mut b = Builder::new("example", 32);
    /// let tile = b.shared("tile", Scalar::F32, 32, 0);
    /// let neighbour = b.load("neighbour", Base::Shared(tile), (Builtin::LocalId + 1) % 32, 1, None);
    /// assert_eq!(b.ty(neighbour), b.kernel().shared[tile.index()].scalar.ty());
    /// ```
    SharedId,
    /// A global-memory pointer of [`crate::Kernel::cursors`].
    ///
    /// ```
    /// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar};
    ///
    /// let mut b = Builder::new("example", 32);
    /// let x = b.buffer("x", Scalar::F32, Access::Read, "4 x 32 elements");
    /// // A pointer that moves by 32 elements with each load.
    /// let from = b.cursor("from", x, Builtin::LocalId);
    /// for _ in 0..4 {
    ///     b.load("value", Base::Cursor(from), 0, 1, None);
    ///     b.advance(from, 32);
    /// }
    /// assert_eq!(b.kernel().cursors[from.index()].buffer, x);
    /// ```
    CursorId,
    /// A kernel argument of [`crate::Kernel::args`].
    ///
    /// ```
    /// use tilewright_ir::{Access, Builder, Scalar};
    ///
    /// let mut b = Builder::new("example", 32);
    /// b.buffer("x", Scalar::F32, Access::Read, "input");
    /// let y = b.buffer("y", Scalar::F32, Access::Write, "output");
    /// assert_eq!((y.index(), b.kernel().args[1].name.as_str()), (1, "y"));
    /// ```
    ArgId
);

/// Where an address starts.
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar};
///
/// let mut b = Builder::new("example", 32);
/// let x = b.buffer("x", Scalar::F16, Access::Read, "8 elements per thread");
/// let tile = b.shared("tile", Scalar::F16, 256, 0);
/// // From global to shared memory, 8 elements at once.
/// let value = b.load("value", Base::Buffer(x), Builtin::LocalId * 8, 8, None);
/// b.store(Base::Shared(tile), Builtin::LocalId * 8, value, None);
/// assert_eq!(b.ty(value).bytes(), 16);
/// ```
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
///
/// ```
/// use tilewright_ir::{Access, AtomicOp, Base, Builder, Builtin, Scalar, Stmt};
///
/// let mut b = Builder::new("example", 32);
/// let x = b.buffer("x", Scalar::I32, Access::ReadWrite, "counts");
/// let mem = b.mem(Base::Buffer(x), Builtin::LocalId % 4);
/// let value = b.int(1, Scalar::I32);
/// b.push(Stmt::Atomic { op: AtomicOp::Add, mem, value, guard: None });
/// assert_eq!((mem.base, b.ty(mem.index)), (Base::Buffer(x), Scalar::I32.ty()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemRef {
    /// Start.
    pub base: Base,
    /// Signed distance in elements.
    pub index: ExprId,
}
