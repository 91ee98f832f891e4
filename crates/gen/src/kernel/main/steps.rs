//! The pipeline of bulk copies: a circular buffer of stages, transaction barriers that say which are full and which are free, the
//! copies into them and what walks them.

use crate::kernel::copy::fetch_lines::Stream;
use crate::kernel::copy::fetch_tile::FetchTile;
use crate::kernel::copy::shift::Shifter;
use crate::kernel::input::{Input, Shape};
use crate::kernel::stages::ping_pong::Turns;
use crate::kernel::stages::ring::{Ring, Walk};
use crate::kernel::stages::schedule::Step;
use crate::kernel::tile::position::{KRange, TilePosition};
use crate::kernel::unit::wgmma::Warpgroup;
use crate::plan::BulkTile;
use tilewright_ir::*;

/// Load threads that bring tiles themselves.
pub(crate) struct Loaders<'a> {
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
pub(crate) struct Copies<'a> {
    pub inputs: [&'a Input; 2],
    /// Maps of operands that come in bulk.
    pub maps: [Option<ArgId>; 2],
    pub loaders: Option<Loaders<'a>>,
    /// True in the thread that issues; `None` where the code is that thread's alone.
    pub elected: Option<ExprId>,
    pub walk: Walk,
}

/// Math of a role on the circular buffer.
pub(crate) struct Consumer<'a> {
    pub math: &'a Warpgroup,
    pub walk: Walk,
    /// The next buffer to release, where that is not the one just read.
    pub released: Option<Walk>,
    /// True in one lane of each wave.
    pub first_lane: ExprId,
    /// Where others copy into this work-group's buffers: lanes that release one, and the rank at which each does.
    pub releases: Option<(ExprId, ExprId)>,
    /// Where teams alternate between result tiles.
    pub turns: Option<Turns>,
}

/// One role's part of the pipeline for one result tile.
pub(crate) struct Pipeline<'a> {
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
                self.ring.wait(b, x.walk);
            }
            (Step::Math { .. }, _, Some(x)) => {
                let buffer = x.walk.buffer(b);
                x.math.k_tile(b, self.ring, buffer, t);
                if x.released.is_some() {
                    self.ring.next(b, x.walk);
                }
            }
            (Step::Drain { pending }, _, Some(x)) => x.math.drain(b, pending),
            (Step::Release { behind }, _, Some(x)) => {
                let walk = x.released.unwrap_or(x.walk);
                let release = |b: &mut Builder| {
                    let barrier = self.ring.free(b, walk);
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
        let buffer = c.walk.buffer(b);
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
                    let barrier = self.ring.full(b, c.walk);
                    b.bulk(BulkOp::Arrive { barrier });
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
        let barrier = self.ring.full(b, c.walk);
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

/// Rows of the circular buffer's operands' tensor maps that a launch of a chunk of the batch may touch.
pub(crate) fn chunked_map(tile: &BulkTile, input: &Input, shape: &Shape) -> TensorMap {
    let mut map = tile.map.clone();
    if input.chunk_local && tile.batched {
        map.extent[2] = shape.chunk;
    }
    map
}
