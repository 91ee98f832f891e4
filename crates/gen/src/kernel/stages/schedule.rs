//! The one lowering of a [`Schedule`] into steps: a prologue and the body of the main loop.
//!
//! Steps are data. The generator emits them (each role the steps that concern it), `explain` draws them, and tests remove
//! them one by one. With `P` = fetch ahead, `B` = buffers, tile `t` the loop counter:
//!
//! ```text
//! P = 0           barrier; fetch t; store t; barrier; math t
//! P >= 1, B = 1   barrier; fetch t+P; math t; barrier; store t+1
//! P >= 1, B >= 2  [wait]; barrier; fetch or copy t+P; math t; store t+S       S = min(P, B-1)
//! bulk            acquire t+P; fetch t+P; await t; math t; drain; release t-F      F = unfinished tiles
//! carried         fetch or copy t+P; math t (head); store t+S; [wait]; barrier; math t (tail)
//! ping-pong       take turn; [bulk]; pass turn; drain
//! ```
//! With scheduling hints, fences follow the fetch, and precede a store after math and the tail.
//!
//! Bulk copies use no work-group barrier. Each buffer has two transaction barriers. One signals that the buffer is full: its bytes
//! have arrived. The other signals that it is free: every math wave has read it. With roles, `P` is 0: the producer warps run ahead
//! while buffers are free. Both roles execute the same steps, each at its own pace. Matrix instructions are asynchronous too.
//! `F` tiles of them may be unfinished while the next are issued; their buffers are released `F` tiles later.
//!
//! Two-level accumulation (`Math::Promoted`) adds the accumulators in f32 at the end of the body.
//!
//! The carried form is `B >= 2` with fragments read ahead. The last k-steps of a tile are computed after the barrier, from fragments
//! read before it. The first fragments of the next tile arrive meanwhile, so no wave waits for shared memory at the head of a tile.
//!
//! A wait identifies a phase by its parity alone, so no wave may wait for a phase further ahead than the next. With ping-pong,
//! a team waits for buffers only after the team before it has seen all of its own buffers full.
//!
//! The barrier at the head guarantees two facts: tile `t` is in shared memory, and no wave still reads tile `t-1`. The steps after
//! the barrier may overwrite the buffer of tile `t-1`. Fetches past the last tile load the last tile again, or zeros where k is
//! no multiple of the k-tile. The math never reads these buffers, so the body needs no tail.

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
    /// Wait until the buffer of tile t + ahead is free.
    Acquire {
        /// Distance in tiles.
        ahead: u32,
    },
    /// Wait until the buffer of tile t is full.
    Await,
    /// Wait until at most `pending` tiles of asynchronous math are unfinished.
    Drain {
        /// Tiles whose math may be unfinished.
        pending: u32,
    },
    /// Adds the accumulators in f32 after every so many tiles, and after the last tile; no instruction is unfinished then.
    Promote {
        /// Tiles.
        every: u32,
    },
    /// With ping-pong: wait until the previous team has its last k-tile.
    TakeTurn,
    /// Signals the next team that it may begin its result tile.
    HandOn,
    /// Releases the buffer of an earlier tile, whose math is finished.
    Release {
        /// Distance in tiles.
        distance: u32,
    },
    /// The compiler moves nothing across (a hint, `HNT1`): loads stay before the math, stores after it.
    Fence,
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
    /// The first fragments of tile t, before its math.
    Fragments,
    /// Fragments and math of tile t; with `store`, the store of tile t + ahead is spread between its k-steps.
    Math {
        /// Which k-steps.
        part: MathPart,
        /// Distance of the tile whose store is spread here.
        store: Option<u32>,
    },
}

/// The k-steps of one [`Step::Math`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MathPart {
    /// All of the tile.
    Whole,
    /// All but those whose fragments are read ahead last.
    Head,
    /// The rest, while the first fragments of the next tile are read.
    Tail,
}

/// A lowered schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lowered {
    /// Before the loop; `ahead` counts from tile 0.
    pub prologue: Vec<Step>,
    /// Once per tile.
    pub body: Vec<Step>,
    /// After the loop; distances count from the tile after the last.
    pub tail: Vec<Step>,
    /// Sets of staging registers; the body is unrolled by this so that each fetch has a fixed set.
    pub sets: u32,
}

/// Lowers a schedule for k-tiles of `k_tile` k-steps. Total: [`crate::plan`] has refused what makes no sense.
pub fn lower(s: &Schedule, k_tile: u32) -> Lowered {
    let mut lowered = plain(s, k_tile);
    lowered.body.extend(s.promoted.map(|every| Step::Promote { every }));
    lowered
}

/// The same of sums that instructions keep to the end.
fn plain(s: &Schedule, k_tile: u32) -> Lowered {
    if s.in_pipeline() {
        return bulk(s);
    }
    if s.own() {
        // No tile is shared: nobody waits for anybody.
        let body = vec![Step::Math { part: MathPart::Whole, store: None }];
        return Lowered { prologue: vec![], body, tail: vec![], sets: 1 };
    }
    let mut lowered = by_threads(s, k_tile);
    if s.math_in_flight.is_some() {
        drain(&mut lowered.body);
    }
    lowered
}

/// Asynchronous math is finished before the work-group meets again: another tile then takes the place of what it reads.
fn drain(body: &mut Vec<Step>) {
    let Some(math) = body.iter().position(|step| matches!(step, Step::Math { .. })) else { return };
    let barrier = body.iter().skip(math).position(|step| *step == Step::Barrier);
    body.insert(barrier.map_or(body.len(), |i| math + i), Step::Drain { pending: 0 });
}

/// The forms of threads that bring tiles together, with barriers of the work-group.
fn by_threads(s: &Schedule, k_tile: u32) -> Lowered {
    let p = s.fetch_ahead;
    let whole = |store| Step::Math { part: MathPart::Whole, store };
    let (any_async, all_async) = s.copied();
    if p == 0 {
        let body = vec![Step::Barrier, Step::Fetch { ahead: 0 }, Step::Store { ahead: 0 }, Step::Barrier, whole(None)];
        return Lowered { prologue: vec![], body, tail: vec![], sets: 1 };
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
    let wait = Step::WaitCopies { pending: p - 1 };
    let store = Step::Store { ahead: stored };
    // Compilers sink loads towards their use and hoist stores into the math where they are free to. Asynchronous copies are
    // not moved anyway.
    let fence = (s.hints && !all_async).then_some(Step::Fence);
    let fragment_sets = s.fragments_ahead + 1;
    let carried = !single && fragment_sets > 1 && s.fragments_ahead < k_tile && k_tile.is_multiple_of(fragment_sets);
    let mut body = Vec::new();
    if carried {
        let arrived = |steps: &mut Vec<Step>| {
            steps.extend(any_async.then_some(wait));
            steps.push(Step::Barrier);
        };
        arrived(&mut prologue);
        prologue.push(Step::Fragments);
        body.push(Step::Fetch { ahead: p });
        body.extend(fence);
        let head = |store| Step::Math { part: MathPart::Head, store };
        match s.store {
            _ if all_async => body.push(head(None)),
            StorePoint::AtOnce => body.extend([store, head(None)]),
            // With roles no wave has both the store and the math.
            StorePoint::Spread if s.roles.is_none() => body.push(head(Some(stored))),
            _ => {
                body.push(head(None));
                body.extend(fence);
                body.push(store);
            }
        }
        arrived(&mut body);
        body.extend(s.hints.then_some(Step::Fence));
        body.push(Step::Math { part: MathPart::Tail, store: None });
        return Lowered { prologue, body, tail: vec![], sets };
    }
    if any_async {
        body.push(wait);
    }
    body.push(Step::Barrier);
    body.push(Step::Fetch { ahead: p });
    body.extend(fence);
    match (single, s.store) {
        _ if all_async => body.push(whole(None)),
        (true, _) => body.extend([whole(None), Step::Barrier, store]),
        (false, StorePoint::AtOnce) => body.extend([store, whole(None)]),
        (false, StorePoint::Spread) if s.roles.is_none() => body.push(whole(Some(stored))),
        (false, _) => {
            body.push(whole(None));
            body.extend(fence);
            body.push(store);
        }
    }
    Lowered { prologue, body, tail: vec![], sets }
}

/// The form of bulk copies, with transaction barriers.
fn bulk(s: &Schedule) -> Lowered {
    let ahead = if s.roles.is_some() { 0 } else { s.fetch_ahead };
    let distance = s.math_in_flight.unwrap_or(0);
    let fetch = |ahead| [Step::Acquire { ahead }, Step::Fetch { ahead }];
    let mut body = fetch(ahead).to_vec();
    body.push(Step::Await);
    body.push(Step::Math { part: MathPart::Whole, store: None });
    body.extend(s.math_in_flight.map(|pending| Step::Drain { pending }));
    body.push(Step::Release { distance });
    let mut prologue: Vec<Step> = (0..ahead).flat_map(fetch).collect();
    let mut tail = Vec::new();
    if s.roles.is_some_and(|r| r.teams > 1) {
        prologue.push(Step::TakeTurn);
        tail.push(Step::HandOn);
    }
    if distance > 0 {
        tail.push(Step::Drain { pending: 0 });
        tail.extend((1..=distance).rev().map(|distance| Step::Release { distance }));
    }
    Lowered { prologue, body, tail, sets: 1 }
}
