//! The one lowering of a [`Schedule`] into steps: a prologue and the body of the main loop.
//!
//! Steps are data. The generator emits them (each role the steps that concern it), `explain` draws them, and tests remove
//! them one by one. With `P` = fetch ahead, `B` = buffers, tile `t` the loop counter:
//!
//! ```text
//! P = 0           barrier; fetch t; store t; barrier; math t
//! P >= 1, B = 1   barrier; fetch t+P; math t; barrier; store t+1
//! P >= 1, B >= 2  [wait]; barrier; fetch or copy t+P; math t; store t+S       S = min(P, B-1)
//! ```
//! The barrier at the head says two things at once: tile `t` is in shared memory, and nobody still reads tile `t-1`, whose
//! buffer the steps behind it may overwrite. Fetches beyond the last tile bring zeros and touch no memory, so the body
//! needs no tail: buffers filled by them are never read.

use crate::plan::{Schedule, StorePoint};

/// One step of the main loop. `ahead` is the distance of the step's tile from the loop counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Wait until at most `pending` groups of asynchronous copies are unfinished.
    WaitCopies {
        /// Groups that may still fly.
        pending: u32,
    },
    /// All waves meet.
    Barrier,
    /// Global memory to staging registers, or start of asynchronous copies, for tile t + ahead; staging set `set`.
    Fetch {
        /// Distance in tiles.
        ahead: u32,
    },
    /// Staging registers to shared memory for tile t + ahead.
    Store {
        /// Distance in tiles.
        ahead: u32,
    },
    /// Fragments and math of tile t; with `store`, the store of tile t + ahead is spread between its k-steps.
    Math {
        /// Distance of the tile whose store is spread here.
        store: Option<u32>,
    },
}

impl Step {
    /// True if waves that load take part.
    pub fn is_load(self) -> bool {
        !matches!(self, Step::Math { .. })
    }
    /// True if waves that compute take part.
    pub fn is_math(self) -> bool {
        matches!(self, Step::Math { .. } | Step::Barrier)
    }
}

/// A lowered schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// Before the loop; `ahead` counts from tile 0.
    pub prologue: Vec<Step>,
    /// Once per tile.
    pub body: Vec<Step>,
    /// Sets of staging registers; the body is unrolled by this so that each fetch has a fixed set.
    pub sets: u32,
}

/// Lowers a schedule. Total: [`crate::plan`] has refused what makes no sense.
pub fn lower(s: &Schedule) -> Lowered {
    let p = s.fetch_ahead;
    let any_async = s.async_a || s.async_b;
    let all_async = s.async_a && s.async_b;
    if p == 0 {
        let body =
            vec![Step::Barrier, Step::Fetch { ahead: 0 }, Step::Store { ahead: 0 }, Step::Barrier, Step::Math { store: None }];
        return Lowered { prologue: vec![], body, sets: 1 };
    }
    let single = s.buffers == 1;
    let stored = if single { 1 } else { p.min(s.buffers - 1) };
    // Tiles whose staging registers are alive at once: from the one stored next to the one fetched last.
    let sets = if all_async { 1 } else { p - stored + 1 };
    let mut prologue = Vec::new();
    for ahead in 0..p {
        prologue.push(Step::Fetch { ahead });
        if ahead < stored {
            prologue.push(Step::Store { ahead });
        }
    }
    let mut body = Vec::new();
    if any_async {
        body.push(Step::WaitCopies { pending: p - 1 });
    }
    body.push(Step::Barrier);
    body.push(Step::Fetch { ahead: p });
    let store = Step::Store { ahead: stored };
    match (single, s.store) {
        _ if all_async => body.push(Step::Math { store: None }),
        (true, _) => body.extend([Step::Math { store: None }, Step::Barrier, store]),
        (false, StorePoint::AtOnce) => body.extend([store, Step::Math { store: None }]),
        (false, StorePoint::AfterMath) => body.extend([Step::Math { store: None }, store]),
        // With roles no wave has both the store and the math.
        (false, StorePoint::Spread) if s.roles.is_some() => body.extend([Step::Math { store: None }, store]),
        (false, StorePoint::Spread) => body.push(Step::Math { store: Some(stored) }),
    }
    Lowered { prologue, body, sets }
}
