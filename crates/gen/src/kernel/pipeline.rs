//! The pipeline of bulk copies: a ring of buffers, transaction barriers that say which are full and which are free, the
//! copies into them and what walks them.

use super::cluster::ClusterPlace;
use super::fetch_lines::Stream;
use super::fetch_tile::FetchTile;
use super::position::{KRange, TilePosition};
use super::schedule::Step;
use super::shift_lines::Shifter;
use super::turns::Turns;
use super::warpgroup::Warpgroup;
use super::{Input, Shape};
use crate::plan::{BulkTile, KernelSpec, SplitSum, Tiling, sum_bytes};
use tilewright_ir::*;

/// The buffers of both operands and their barriers, in shared memory.
#[derive(Clone)]
pub(super) struct Ring {
    /// Tiles of A and of B, all buffers of one operand behind each other.
    pub arrays: [SharedId; 2],
    pub tiles: [BulkTile; 2],
    full: TxId,
    free: TxId,
    buffers: u32,
    /// The work-group's place in its cluster, and how the cluster is cut.
    pub place: Option<(ClusterPlace, Tiling)>,
    /// One for each team of math waves where they take result tiles in turn, and how many there are.
    pub turns: Option<(TxId, u32)>,
    /// Where load waves shift from staging: a barrier for each wave and slot, and how many there are.
    staged: Option<(TxId, u32)>,
}

/// A walk around the ring: the buffer, and the parity of the phase its barriers are in.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    buffer: VarId,
    phase: VarId,
}

impl Ring {
    /// Declares buffers and barriers.
    pub fn new(b: &mut Builder, tiles: [BulkTile; 2], spec: &KernelSpec) -> Ring {
        let (buffers, teams) = (spec.schedule.buffers, spec.teams());
        let place = ClusterPlace::new(b, &spec.tiling).map(|place| (place, spec.tiling.clone()));
        let mut at = 0;
        let arrays = [0, 1].map(|i| {
            let t = &tiles[i];
            let array = b.shared(["a_tile", "b_tile"][i], t.map.scalar, t.bytes / t.map.scalar.bytes() * buffers, at);
            at += t.bytes * buffers;
            array
        });
        if spec.epilogue.split_sum == SplitSum::Cluster {
            at = at.max(sum_bytes(&spec.tiling) as u32);
        }
        let full = b.tx_barriers("full", buffers, at);
        let free = b.tx_barriers("free", buffers, at + 8 * buffers);
        let turns = (teams > 1).then(|| (b.tx_barriers("turn", teams, at + 16 * buffers), teams));
        let slots = spec.schedule.slots;
        let staged = (slots > 0).then(|| {
            let count = slots * spec.load_threads() / spec.tiling.wave_lanes.max(1);
            let at = b.kernel().shared_bytes();
            (b.tx_barriers("staged", count, at), count)
        });
        Ring { arrays, tiles, full, free, buffers, place, turns, staged }
    }

    /// Barriers of the slots of staging: of each wave one behind the other.
    pub fn staged_barriers(&self) -> TxId {
        self.staged.map_or(self.full, |(staged, _)| staged)
    }

    /// One thread sets the barriers up; all meet behind it. A buffer is full after this many arrivals, and the bytes of bulk copies
    /// if there are any.
    pub fn init(&self, b: &mut Builder, local: ExprId, (full, copied): (u32, bool), math_waves: u32) {
        let sharers = self.place.as_ref().map_or(1, |(_, t)| t.cluster.sharers());
        b.if_then(local.equals(0), |b| {
            for i in 0..self.buffers {
                let index = b.int(i64::from(i), Scalar::I32);
                b.bulk(BulkOp::Init { barrier: TxRef { barriers: self.full, index }, arrivals: full });
                b.bulk(BulkOp::Init { barrier: TxRef { barriers: self.free, index }, arrivals: math_waves * sharers });
            }
            if let Some((turn, teams)) = self.turns {
                for i in 0..teams {
                    let index = b.int(i64::from(i), Scalar::I32);
                    b.bulk(BulkOp::Init { barrier: TxRef { barriers: turn, index }, arrivals: math_waves });
                }
            }
            if let Some((staged, count)) = self.staged {
                for i in 0..count {
                    let index = b.int(i64::from(i), Scalar::I32);
                    b.bulk(BulkOp::Init { barrier: TxRef { barriers: staged, index }, arrivals: 1 });
                }
            }
            if copied || self.staged.is_some() {
                b.bulk(BulkOp::InitFence);
            }
        });
        match self.place {
            // Others arrive at these and copy into the buffers.
            Some(_) => b.push(Stmt::Barrier(BarrierScope::ClusterStart)),
            None => b.barrier(),
        }
    }

    /// In the copying thread, behind its last copy: in a cluster the work-group stays until its buffers have been released for the
    /// last time, which others do too. Where sums are exchanged, all meet behind that anyway.
    pub fn drain(&self, b: &mut Builder, walk: Walk) {
        if self.place.as_ref().is_none_or(|(_, t)| t.cluster.sharers() <= 1 || t.cluster.splits > 1) {
            return;
        }
        b.for_range("last", 0, self.buffers, Unroll::No, |b, _| {
            self.acquire(b, walk);
            self.next(b, walk);
        });
    }

    /// Waits until a buffer is free.
    fn acquire(&self, b: &mut Builder, walk: Walk) {
        let buffer = b.get(walk.buffer);
        let phase = b.get(walk.phase);
        // The first time around nothing is waited for: the phase before the first counts as over.
        let parity = b.value(1 - phase);
        b.bulk(BulkOp::Wait { barrier: TxRef { barriers: self.free, index: buffer }, parity });
    }

    /// A walk that starts at the first buffer.
    pub fn walk(&self, b: &mut Builder, name: &str) -> Walk {
        let zero = b.int(0, Scalar::I32);
        Walk { buffer: b.declare(&format!("{name}_buffer"), zero), phase: b.declare(&format!("{name}_phase"), zero) }
    }

    /// Passes over buffers that others read.
    pub fn skip(&self, b: &mut Builder, walk: Walk, tiles: ExprId) {
        let sum = b.bind("skipped", walk.buffer + tiles.cast(Scalar::I32));
        b.set(walk.phase, (walk.phase + sum / self.buffers) % 2);
        b.set(walk.buffer, sum % self.buffers);
    }

    fn next(&self, b: &mut Builder, walk: Walk) {
        walk.turn(b, self.buffers);
    }
}

impl Walk {
    /// The buffer.
    pub fn buffer(self, b: &mut Builder) -> ExprId {
        b.get(self.buffer)
    }
    /// The parity of its phase.
    pub fn phase(self, b: &mut Builder) -> ExprId {
        b.get(self.phase)
    }

    /// On to the next of so many buffers.
    pub fn turn(self, b: &mut Builder, buffers: u32) {
        let more = b.bind("next_buffer", self.buffer + 1);
        let around = b.bind("around", more.equals(buffers));
        b.set(self.buffer, around.select(0, more));
        let phase = b.get(self.phase);
        let turned = b.value(1 - phase);
        b.set(self.phase, around.select(turned, phase));
    }
}

/// Load threads that bring tiles themselves.
pub(super) struct Loaders<'a> {
    /// What they bring; the other operand comes by bulk copies.
    pub tiles: [Option<FetchTile<'a>>; 2],
    /// What they shift from staging.
    pub shifter: Option<Shifter<'a>>,
    /// True in the thread that issues bulk copies.
    pub first: ExprId,
    /// True in one lane of each wave.
    pub first_lane: ExprId,
}

impl Loaders<'_> {
    /// The walk along k of a result tile begins.
    pub fn begin(&self, b: &mut Builder, at: &TilePosition, range: &KRange) -> [Option<Stream>; 2] {
        [(0, at.m_start), (1, at.n_start)].map(|(i, start)| {
            let tile = self.tiles[i].as_ref()?;
            tile.begin(b, at, start, range.begin)
        })
    }
}

/// Copies of both operands' tiles: bulk copies are issued by one thread.
pub(super) struct Copies<'a> {
    pub inputs: [&'a Input; 2],
    /// Maps of operands that come in bulk.
    pub maps: [Option<ArgId>; 2],
    pub loaders: Option<Loaders<'a>>,
    /// True in the thread that issues; `None` where the code is that thread's alone.
    pub elected: Option<ExprId>,
    pub walk: Walk,
}

/// Math of a role on the ring.
pub(super) struct Consumer<'a> {
    pub math: &'a Warpgroup,
    pub walk: Walk,
    /// The next buffer to release, where that is not the one just read.
    pub released: Option<Walk>,
    /// True in one lane of each wave.
    pub first_lane: ExprId,
    /// Where others copy into this work-group's buffers: lanes that release one, and the rank at which each does.
    pub releases: Option<(ExprId, ExprId)>,
    /// Where teams take result tiles in turn.
    pub turns: Option<Turns>,
}

/// One role's part of the pipeline for one result tile.
pub(super) struct Pipeline<'a> {
    pub ring: &'a Ring,
    pub at: &'a TilePosition,
    pub range: &'a KRange,
    pub copies: Option<&'a Copies<'a>>,
    pub consumer: Option<&'a Consumer<'a>>,
    /// First k of the next tile to copy, in roles that copy.
    pub k_fetch: Option<VarId>,
    /// What load waves that fetch lines hold from one k-tile to the next.
    pub streams: [Option<Stream>; 2],
}

impl Pipeline<'_> {
    /// Emits a step of this role. `t` is the loop counter; `None` before the loop; `tail` behind it.
    pub fn step(&self, b: &mut Builder, step: Step, t: Option<ExprId>, tail: bool) {
        match (step, self.copies, self.consumer) {
            (Step::Acquire { ahead }, Some(c), _) => {
                self.guarded(b, c, t, ahead, |b| self.ring.acquire(b, c.walk));
            }
            (Step::Fetch { ahead }, Some(c), _) => self.guarded(b, c, t, ahead, |b| self.fetch(b, c)),
            (Step::Await, _, Some(x)) => {
                let buffer = b.get(x.walk.buffer);
                let phase = b.get(x.walk.phase);
                b.bulk(BulkOp::Wait { barrier: TxRef { barriers: self.ring.full, index: buffer }, parity: phase });
            }
            (Step::Math { .. }, _, Some(x)) => {
                let buffer = b.get(x.walk.buffer);
                x.math.k_tile(b, self.ring, buffer, t);
                if x.released.is_some() {
                    self.ring.next(b, x.walk);
                }
            }
            (Step::Drain { pending }, _, Some(x)) => x.math.drain(b, pending),
            (Step::Release { behind }, _, Some(x)) => {
                let walk = x.released.unwrap_or(x.walk);
                let release = |b: &mut Builder| {
                    let index = b.get(walk.buffer);
                    let barrier = TxRef { barriers: self.ring.free, index };
                    match x.releases {
                        Some((releases, rank)) => b.if_then(releases, |b| b.bulk(BulkOp::ArriveAt { barrier, rank })),
                        None => b.if_then(x.first_lane, |b| b.bulk(BulkOp::Arrive { barrier })),
                    }
                    self.ring.next(b, walk);
                };
                let exists = match (tail, t) {
                    _ if behind == 0 => None,
                    (true, _) => Some(b.value(self.range.tiles.ge(behind))),
                    (false, Some(t)) => Some(b.value(t.ge(behind))),
                    (false, None) => None,
                };
                match exists {
                    Some(exists) => b.if_then(exists, release),
                    None => release(b),
                }
            }
            (Step::TakeTurn, _, Some(Consumer { turns: Some(turns), .. })) => turns.take(b),
            (Step::HandOn, _, Some(Consumer { turns: Some(turns), first_lane, .. })) => turns.hand_on(b, *first_lane),
            // The step of another role.
            _ => {}
        }
    }

    /// What only the issuing thread does, if there is a tile that far ahead.
    fn guarded(&self, b: &mut Builder, c: &Copies, t: Option<ExprId>, ahead: u32, body: impl FnOnce(&mut Builder)) {
        let exists = (ahead > 0 || t.is_none()).then(|| {
            let tile = match t {
                Some(t) => b.value(t + ahead),
                None => b.int(i64::from(ahead), b.ty(self.range.tiles).scalar),
            };
            b.value(tile.lt(self.range.tiles))
        });
        match b.and_opt(exists, c.elected) {
            Some(guard) => b.if_then(guard, body),
            None => body(b),
        }
    }

    fn fetch(&self, b: &mut Builder, c: &Copies) {
        let buffer = b.get(c.walk.buffer);
        let Some(k_fetch) = self.k_fetch else { return };
        let k = b.get(k_fetch);
        match &c.loaders {
            None => self.copy(b, c, buffer, k),
            Some(loaders) => {
                if c.maps.iter().any(Option::is_some) {
                    b.if_then(loaders.first, |b| self.copy(b, c, buffer, k));
                }
                if let Some(shifter) = &loaders.shifter {
                    shifter.emit(b, buffer);
                }
                for (i, tile) in loaders.tiles.iter().enumerate() {
                    let start = if i == 0 { self.at.m_start } else { self.at.n_start };
                    if let Some(tile) = tile {
                        tile.emit(b, self.streams[i].as_ref(), buffer, self.at, start, (k, self.range.step));
                    }
                }
                // Each thread makes its own writes visible; then one lane speaks for its wave.
                b.bulk(BulkOp::ProxyFence);
                b.push(Stmt::Barrier(BarrierScope::Wave));
                b.if_then(loaders.first_lane, |b| {
                    b.bulk(BulkOp::Arrive { barrier: TxRef { barriers: self.ring.full, index: buffer } });
                });
                if let Some(shifter) = &loaders.shifter {
                    shifter.next(b);
                }
            }
        }
        b.set(k_fetch, k_fetch + self.range.step);
        self.ring.next(b, c.walk);
    }

    /// Bulk copies into a buffer, issued by one thread.
    fn copy(&self, b: &mut Builder, c: &Copies, buffer: ExprId, k: ExprId) {
        let barrier = TxRef { barriers: self.ring.full, index: buffer };
        let bytes = (0..2).filter(|i| c.maps[*i].is_some()).map(|i| self.ring.tiles[i].bytes).sum();
        b.bulk(BulkOp::Expect { barrier, bytes });
        let k = b.value(k.cast(Scalar::I32));
        for i in 0..2 {
            let Some(map) = c.maps[i] else { continue };
            let (t, input) = (&self.ring.tiles[i], c.inputs[i]);
            let elements = t.bytes / t.map.scalar.bytes();
            let first = b.value(buffer * elements);
            let row = if i == 0 { self.at.m_start } else { self.at.n_start }.value(b);
            let row = b.value(row.cast(Scalar::I32));
            let g = if input.chunk_local { self.at.g_local } else { self.at.g };
            let g = b.value(g.cast(Scalar::I32));
            let (fast, slow) = if t.k_contiguous { (k, row) } else { (row, k) };
            let height = t.map.tile[1];
            let place = self.ring.place.as_ref();
            let peers = place.and_then(|(place, tiling)| place.receivers(b, tiling, i));
            // In a cluster a part of the columns, or of the lines.
            let part = place.and_then(|(place, tiling)| place.part(tiling, i));
            let along = |b: &mut Builder, count: u32, cut: bool| -> Vec<ExprId> {
                match part {
                    Some((parts, index)) if cut => (0..count / parts).map(|x| b.value(index * (count / parts) + x)).collect(),
                    _ => (0..count).map(|x| b.int(x.into(), Scalar::I32)).collect(),
                }
            };
            let by_column = part.is_some_and(|(parts, _)| t.columns.is_multiple_of(parts));
            let columns = along(b, t.columns, by_column);
            let lines = along(b, t.lines, !by_column);
            for &column in &columns {
                for &line in &lines {
                    let mut at = vec![b.value(fast + column * t.row), b.value(slow + line * height)];
                    at.extend(t.batched.then_some(g));
                    let to = b.mem(Base::Shared(self.ring.arrays[i]), first + (column * t.lines + line) * (height * t.row));
                    b.bulk(BulkOp::Load { to, map, at, barrier, peers });
                }
            }
        }
    }
}

/// Rows of the ring's operands' tensor maps that a launch of a chunk of the batch may touch.
pub(super) fn chunked_map(tile: &BulkTile, input: &Input, shape: &Shape) -> TensorMap {
    let mut map = tile.map.clone();
    if input.chunk_local && tile.batched {
        map.extent[2] = shape.chunk;
    }
    map
}

/// Waves that compute a tile together, and so read each of its buffers.
pub(super) fn math_waves(spec: &KernelSpec) -> u32 {
    spec.tiling.math_threads() / spec.tiling.wave_lanes.max(1)
}
