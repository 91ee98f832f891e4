//! The epilogue as a value: how the sums of splits meet, and how results leave.

use super::bulk::StoreTile;
use super::reduction::Finish;
use serde::Serialize;

/// How the partial sums of the splits of k meet ([`SplitK`](super::SplitK)).
///
/// ```
/// use tilewright_gen::plan::{Plan, Split};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 64, 64, 4096).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, 4 splits, split-sum=1")?;
/// let derived = space.resolve(&plan)?.spec;
/// // Four work-groups store partial sums in workspace, and a second kernel adds them in a fixed order.
/// assert_eq!((derived.epilogue.split, derived.split_outside()), (Split::Workspace, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Split {
    /// k is not split.
    None,
    /// Atomic additions into C; bitwise results vary.
    Atomic,
    /// Partials in workspace, summed in fixed order by a second kernel.
    Workspace,
    /// The splits are a cluster: each sums a part of the tile in fixed order, from the others' shared memory.
    Cluster,
}

/// How results leave the registers.
///
/// ```
/// use tilewright_gen::plan::{Exit, Plan};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// // Each thread stores its own results, one at a time.
/// assert_eq!(derived.epilogue.exit, Exit::Direct { width: 1 });
/// assert!(!derived.epilogue.exit.staged());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Exit {
    /// Each thread stores its own, so many neighbours at a time (`CVW`).
    Direct {
        /// Elements per store, in C's contiguous direction.
        width: u32,
    },
    /// Through a staging buffer in shared memory, so that neighbouring threads store neighbouring results (`CST1`).
    Staged {
        /// Elements per store.
        width: u32,
    },
    /// The lanes of each wave store whole rows from its staging buffer (`CST1` of matrix units), in vectors as wide as C allows.
    Rows,
    /// Through staging buffers by bulk stores (TMA); directly where C is read as well and cannot be added ahead.
    Bulk {
        /// Elements per store where C is read.
        width: u32,
        /// How bulk stores move them; the batch entries of partial sums are those of the whole batch.
        tile: StoreTile,
    },
}

impl Exit {
    /// Elements per store of a thread that stores its own results.
    pub const fn width(&self) -> u32 {
        match self {
            Exit::Direct { width } | Exit::Staged { width } | Exit::Bulk { width, .. } => *width,
            Exit::Rows => 1,
        }
    }
    /// Each wave has a staging buffer.
    pub const fn by_waves(&self) -> bool {
        matches!(self, Exit::Rows | Exit::Bulk { .. })
    }
    /// Through shared memory.
    pub const fn staged(&self) -> bool {
        !matches!(self, Exit::Direct { .. })
    }
    /// How bulk stores move results.
    pub const fn bulk(&self) -> Option<&StoreTile> {
        match self {
            Exit::Bulk { tile, .. } => Some(tile),
            _ => None,
        }
    }
}

/// What happens to the accumulators: how splits are summed, how results are stored.
///
/// ```
/// use tilewright_gen::plan::{Finish, Plan, Split};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// let epilogue = &derived.epilogue;
/// assert_eq!((epilogue.split, epilogue.finish, epilogue.carry), (Split::None, Finish::Kernel, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Epilogue {
    /// How splits of k are summed.
    pub split: Split,
    /// How results are stored.
    pub exit: Exit,
    /// Lanes of a wave exchange values where results are reduced; otherwise threads reduce through shared memory only.
    pub shuffles: bool,
    /// How work-groups reduce values that several of them have parts of.
    pub finish: Finish,
    /// Persistent work-groups add up the parts of their own tiles before these leave them (`RDC`).
    pub carry: bool,
    /// The main loop reduces operands whose tiles it has (`RDK`); else kernels of their own do.
    pub operands: bool,
}
