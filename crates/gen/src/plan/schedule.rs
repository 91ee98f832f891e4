//! The schedule as a value: when each stage of the main loop runs, in how many buffers, by which copies, and by which waves.

use super::second::SecondCopies;
use super::transport::Transport;
use serde::Serialize;

/// Position of the store to shared memory.
///
/// ```
/// use tilewright_gen::plan::{Plan, StorePoint};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // Without prefetching, a k-tile is stored as soon as it is loaded.
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// assert_eq!((derived.schedule.fetch_ahead, derived.schedule.store), (0, StorePoint::AtOnce));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum StorePoint {
    /// Right after the fetch (waits for it at once).
    AtOnce,
    /// After the math of the current k-tile.
    AfterMath,
    /// Spread between the math of the k-steps.
    Spread,
}

/// Waves that load and waves that compute.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// let roles = derived.schedule.roles.expect("producer and consumer warps");
/// assert_eq!((roles.load_threads, roles.math_threads, roles.teams), (128, 256, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RoleSplit {
    /// Threads that only load.
    pub load_threads: u32,
    /// Threads that only compute.
    pub math_threads: u32,
    /// Ping-pong teams of consumer threads, which alternate between result tiles. 1: all threads compute each tile together.
    pub teams: u32,
    /// Registers per thread of producer and consumer warps, if the hardware can move registers between warps.
    pub registers: Option<(u32, u32)>,
}

/// When each stage of the main loop runs, in how many buffers, on which waves.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 128x64x16 on 16x16, async+async, 3 stages")?;
/// let derived = space.resolve(&plan)?.spec;
/// // Copies run two k-tiles ahead, into three buffers.
/// let schedule = &derived.schedule;
/// assert_eq!((schedule.buffers, schedule.fetch_ahead, schedule.copied()), (3, 2, (true, true)));
/// assert!(!schedule.in_pipeline());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Schedule {
    /// k-tiles that fetch or copy runs ahead of the math; 0 is MIOpenGEMM's loop.
    pub fetch_ahead: u32,
    /// Shared-memory buffers per operand.
    pub buffers: u32,
    /// Position of the store to shared memory.
    pub store: StorePoint,
    /// k-steps that fragments are read ahead of the math.
    pub fragments_ahead: u32,
    /// k-tiles with unfinished instructions while the next k-tile is issued; `None` for synchronous instructions.
    #[serde(rename = "math_behind")]
    pub math_in_flight: Option<u32>,
    /// k-tiles between promotions of the accumulators to f32, with two-level accumulation (`Math::Promoted`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promoted: Option<u32>,
    /// How A's and B's k-tiles get to shared memory.
    pub copies: [Transport; 2],
    /// The same of a second pair of factors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<Box<SecondCopies>>,
    /// Wave roles; `None`: every wave does everything.
    pub roles: Option<RoleSplit>,
    /// Emit scheduling hints where the target has them.
    pub hints: bool,
}

impl Schedule {
    /// Sets of sums that a tile has in registers.
    pub const fn sum_sets(&self) -> u32 {
        1 + self.promoted.is_some() as u32
    }
    /// Instructions or loads write registers while the thread goes on, so compilers cannot spill them.
    pub const fn writes_later(&self) -> bool {
        self.math_in_flight.is_some() || self.own() && self.fetch_ahead > 0
    }
    /// Transaction barriers say when a buffer is full or free.
    pub const fn in_pipeline(&self) -> bool {
        self.copies[0].in_pipeline() || self.copies[1].in_pipeline()
    }
    /// Each thread loads what it multiplies itself.
    pub const fn own(&self) -> bool {
        self.copies[0].own().is_some()
    }
    /// Operands that are copied asynchronously by threads: some, all.
    pub const fn copied(&self) -> (bool, bool) {
        let [a, b] = [self.copies[0].is_async(), self.copies[1].is_async()];
        (a || b, a && b)
    }
    /// k-tiles in staging; 0 where none are shifted.
    pub fn slots(&self) -> u32 {
        self.copies.iter().filter_map(Transport::shifted).map(|s| s.slots).max().unwrap_or(0)
    }
    /// The same with so many k-tiles in staging.
    pub(super) fn with_slots(mut self, slots: u32) -> Schedule {
        for copy in &mut self.copies {
            if let Transport::Shifted(shifted) = copy {
                shifted.slots = slots;
            }
        }
        self
    }
}
