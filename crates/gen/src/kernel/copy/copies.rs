//! The copies of a role: k-tiles of both operands into the stages, each operand by its own method.

use super::fetch_tile::FetchTile;
use super::load::{KLimit, LoadContext, Loader};
use super::memory::Memory;
use super::shift::{Producer, Shifter, Staged};
use crate::kernel::input::{Input, Shape};
use crate::kernel::stages::counter::Counter;
use crate::kernel::stages::ring::{FullStage, Ring};
use crate::kernel::tile::cluster::CopyPart;
use crate::kernel::tile::position::{KRange, TilePosition, TileWalk};
use crate::kernel::tile::shared::SharedTile;
use crate::plan::{BulkTile, KernelSpec, Spans, Transport};
use tilewright_ir::affine::{Affine, Coord, Part, affine};
use tilewright_ir::*;
use tilewright_problem::view::ROW;

/// The kernel arguments through which an operand's tiles are read.
pub(crate) enum Source {
    /// Memory that threads read.
    Memory(Memory),
    /// Tensor maps.
    Map(Maps),
    /// Tensor maps of the spans of rows that are copied to staging, one for each class of rows.
    Classes(Spans, Vec<ArgId>),
    /// Sums without terms read nothing.
    Nothing,
}

/// The tensor maps of an operand's tiles.
#[derive(Clone, Copy)]
pub(crate) struct Maps {
    pub own: ArgId,
    /// Of the second tensor, where the operand is two.
    pub up: Option<ArgId>,
}

/// What tiles of a second pair of factors are read through.
pub(crate) struct SecondSources {
    /// The first k of the second pair, at which a k-tile begins.
    pub first: u64,
    pub inputs: [Input; 2],
    pub sources: [Source; 2],
}

/// The map of an operand of the second pair, and the coordinates of its copies by (g, row, k).
struct SecondBox<'a> {
    map: ArgId,
    at: &'a [Affine],
}

/// Both operands of a role's copies.
pub(crate) struct Operands<'a> {
    pub spec: &'a KernelSpec,
    pub tiles: TileWalk<'a>,
    pub sources: [Source; 2],
    pub second: Option<SecondSources>,
    /// Operands with a halo, by position and channel.
    pub halos: [Option<Input>; 2],
    /// None where no tile is shared.
    pub shared: Vec<SharedTile>,
    /// The circular buffer with transaction barriers, if the schedule has one.
    pub ring: Option<Ring>,
    /// Sets of staging registers.
    pub sets: u32,
}

/// Producer warps that write tiles through registers.
struct Writers<'a> {
    /// Tiles that they load from global memory, and those of the second pair of factors.
    tiles: [Option<FetchTile<'a>>; 2],
    second: [Option<FetchTile<'a>>; 2],
    /// Operands that they shift from the staging buffer.
    shifter: Option<Shifter<'a>>,
    /// True in the thread that issues bulk copies.
    first: ExprId,
    /// True in one lane of each wave.
    first_lane: ExprId,
}

/// Conditions that hold in the thread that issues bulk copies.
#[derive(Clone, Copy)]
pub(crate) struct Issuers {
    /// If other threads run the same code.
    pub elected: Option<ExprId>,
    /// If producer warps also write tiles.
    pub first: Option<ExprId>,
}

/// The copies of a role.
pub(crate) struct Copies<'a> {
    of: &'a Operands<'a>,
    /// Position among the threads of the role.
    thread: ExprId,
    /// True in the thread that issues bulk copies, where others run the same code.
    pub elected: Option<ExprId>,
    writers: Option<Writers<'a>>,
    /// The stage that is copied to next, and the one that staging registers are stored to.
    pub issue: Counter,
    store: Counter,
}

/// How one operand's k-tiles of a result tile come.
enum Method<'a> {
    Threads(Box<PairLoader<'a>>),
    /// Before the loop.
    Halo,
    Bulk(Maps),
    Written,
    Shifted,
}

/// How threads load an operand's k-tiles.
struct PairLoader<'a> {
    lead: Loader<'a>,
    /// Of the second pair of factors.
    second: Option<Loader<'a>>,
}

impl<'a> PairLoader<'a> {
    /// The loader of a pair.
    fn of(&self, second: bool) -> &Loader<'a> {
        self.second.as_ref().filter(|_| second).unwrap_or(&self.lead)
    }
    /// Moves both to the next k-tile.
    fn advance(&self, b: &mut Builder, k_step: i64, condition: Option<ExprId>) {
        for loader in std::iter::once(&self.lead).chain(&self.second) {
            loader.advance(b, k_step, condition);
        }
    }
}

/// The copies of a result tile.
pub(crate) struct TileCopies<'a> {
    pub role: &'a Copies<'a>,
    at: &'a TilePosition,
    range: &'a KRange,
    /// First k of the next tile.
    k: VarId,
    operands: [Method<'a>; 2],
}

impl Operands<'_> {
    pub const fn input(&self, i: usize) -> &Input {
        self.tiles.inputs[i]
    }

    /// The map of an operand of the second pair of factors, and where its copies start.
    fn second_box(&self, i: usize) -> Option<SecondBox<'_>> {
        let tile = self.spec.schedule.second.as_ref()?.bulk[i].as_ref()?;
        let Source::Map(maps) = &self.second.as_ref()?.sources[i] else { return None };
        Some(SecondBox { map: maps.own, at: &tile.at })
    }

    /// Returns whether producer warps write tiles through registers.
    pub fn written(&self) -> bool {
        self.spec.schedule.copies.iter().any(|copy| !matches!(copy, Transport::Bulk(_)))
    }

    /// What makes a stage full: the arrivals of the thread that copies and of the waves that write, and the bytes of copies.
    pub fn full_arrivals(&self) -> FullStage {
        let waves = if self.written() { self.spec.load_threads() / self.spec.tiling.wave_lanes.max(1) } else { 0 };
        let copied = self.spec.schedule.copies.iter().any(|copy| matches!(copy, Transport::Bulk(_)));
        FullStage { arrivals: waves + u32::from(copied), copied }
    }

    /// A first, unless the plan says otherwise.
    fn order(&self) -> [usize; 2] {
        if self.spec.style.a_first { [0, 1] } else { [1, 0] }
    }

    /// First row of an operand's part of a result tile.
    const fn start(at: &TilePosition, i: usize) -> Coord {
        if i == 0 { at.m_start } else { at.n_start }
    }

    /// Batch coordinate.
    pub const fn entry(&self, at: &TilePosition, i: usize) -> ExprId {
        if self.input(i).chunk_local { at.g_local } else { at.g }
    }

    fn writers<'k>(&'k self, b: &mut Builder, ring: &'k Ring, thread: ExprId, first: ExprId) -> Writers<'k> {
        let first_lane = b.bind("first_producer_lane", (thread % self.spec.tiling.wave_lanes).equals(0));
        let t = &self.spec.tiling;
        let written = |i: usize, input: &'k Input, source: &Source| {
            let (Transport::Written(tile), Source::Memory(source)) = (&self.spec.schedule.copies[i], source) else {
                return None;
            };
            Some(FetchTile {
                input,
                axis: i,
                source: *source,
                array: self.shared[i].array,
                tile: tile.clone(),
                thread,
                threads: self.spec.load_threads(),
                round: [&t.a, &t.b][i].rounded(t.unit.family(), tile.map.scalar),
                parts: [&t.a, &t.b][i].shared_parts,
                registers: self.spec.load_registers(),
                k_tile: self.spec.tiling.k_tile,
                beyond: [self.spec.tiling.cluster.m, self.spec.tiling.cluster.n][i] > 1,
                ints: self.tiles.ints,
            })
        };
        let tiles = [0, 1].map(|i| written(i, self.input(i), &self.sources[i]));
        let second = [0, 1].map(|i| {
            let second = self.second.as_ref()?;
            written(i, &second.inputs[i], &second.sources[i])
        });
        let staging = self.sources.each_ref().map(|source| match source {
            Source::Classes(spans, maps) => Some(Staged { spans, maps }),
            Source::Map(_) | Source::Memory(_) | Source::Nothing => None,
        });
        let shifter = staging.iter().any(Option::is_some).then(|| {
            let producer = Producer { thread, first_lane };
            let shifter = Shifter::new(b, self.tiles, self.spec, ring, &self.shared, staging, producer);
            shifter.begin(b);
            shifter
        });
        Writers { tiles, second, shifter, first, first_lane }
    }
}

impl<'a> Copies<'a> {
    /// Of threads that bring tiles together: all of the work-group's (`thread`), or those that load.
    pub fn by_threads(b: &mut Builder, of: &'a Operands<'a>, thread: ExprId) -> Copies<'a> {
        let s = &of.spec.schedule;
        let (any, all) = s.copied();
        let counter = |b: &mut Builder, name: &str, used: bool| Counter::new(b, name, if used { s.buffers } else { 1 }, false);
        let issue = counter(b, "copy", any);
        Copies { of, thread, elected: None, writers: None, issue, store: counter(b, "store", !all) }
    }

    /// Copies into the stages of a circular buffer. `issue` is the position of earlier copies into the buffer.
    pub fn into_ring(
        b: &mut Builder,
        of: &'a Operands<'a>,
        ring: &'a Ring,
        thread: ExprId,
        issuers: Issuers,
        issue: Option<Counter>,
    ) -> Copies<'a> {
        let Issuers { elected, first } = issuers;
        let writers = first.map(|first| of.writers(b, ring, thread, first));
        let stages = of.spec.schedule.buffers;
        Copies {
            of,
            thread,
            elected,
            writers,
            issue: issue.unwrap_or_else(|| Counter::new(b, "copy", stages, true)),
            store: Counter::new(b, "store", 1, false),
        }
    }

    /// Threads write the panels that instructions read.
    pub fn panels(&self) -> bool {
        self.of.shared.iter().any(|tile| tile.panels.is_some())
    }

    /// A result tile begins.
    pub fn begin<'t>(&'t self, b: &mut Builder, at: &'t TilePosition, range: &'t KRange) -> TileCopies<'t> {
        let k = b.declare("k_fetch", range.begin);
        let mut operands = [Method::Shifted, Method::Shifted];
        for i in self.of.order() {
            operands[i] = match &self.of.sources[i] {
                Source::Map(maps) => Method::Bulk(*maps),
                Source::Classes(..) | Source::Nothing => Method::Shifted,
                Source::Memory(source) if self.of.halos[i].is_some() => {
                    self.windows(b, i, *source, at);
                    Method::Halo
                }
                Source::Memory(source) => match self.writers.as_ref().and_then(|w| w.tiles[i].as_ref()) {
                    Some(_) => Method::Written,
                    None => {
                        let lead =
                            self.loader(b, i, LoadFrom { input: self.of.input(i), source: *source, staging: None }, at, range);
                        let staging = Some(lead.staging());
                        let second = self.of.second.as_ref().and_then(|second| match &second.sources[i] {
                            Source::Memory(source) => Some(LoadFrom { input: &second.inputs[i], source: *source, staging }),
                            _ => None,
                        });
                        let second = second.map(|from| self.loader(b, i, from, at, range));
                        Method::Threads(Box::new(PairLoader { lead, second }))
                    }
                },
            };
        }
        TileCopies { role: self, at, range, k, operands }
    }

    /// Starts the copies of a result tile's windows: the first group of asynchronous copies has them.
    fn windows(&self, b: &mut Builder, i: usize, source: Memory, at: &TilePosition) {
        let (of, shared) = (self.of, &self.of.shared[i]);
        let (Some(input), Some(halo)) = (&of.halos[i], &shared.halo) else { return };
        let zero = b.int(0, of.tiles.ints.coord);
        let mut point = [Coord::plain(b, zero); 3];
        point[ROW] = Operands::start(at, i);
        let first = affine(b, &halo.row, &point, Part::Whole, of.tiles.ints.coord);
        let first = b.bind("first_position", first);
        // A tile that wraps no image has fewer.
        let rows = i64::from(self.of.input(i).tiling.macro_tile);
        point[ROW] = point[ROW].shifted(b, rows - 1);
        let last = affine(b, &halo.row, &point, Part::Whole, of.tiles.ints.coord);
        let end = b.bind("end_position", last + halo.beyond);
        let cx = LoadContext {
            source,
            thread: self.thread,
            row_start: Coord::plain(b, first),
            g: Coord::plain(b, of.entry(at, i)),
            k_begin: zero,
            sets: of.sets,
            tiles: 1,
            rows: Some(end),
            staging: None,
        };
        let loader = Loader::new(b, input, shared.clone(), &cx, halo.channels, true, of.tiles.ints);
        let (start, stage) = (Coord::start(b, zero, halo.channels.into()), b.int(0, Scalar::I32));
        loader.fetch(b, start, None, None, 0, stage);
    }

    fn loader<'t>(&'t self, b: &mut Builder, i: usize, from: LoadFrom<'t>, at: &TilePosition, range: &KRange) -> Loader<'t> {
        let of = self.of;
        let shape = of.tiles.shape;
        let cx = LoadContext {
            source: from.source,
            thread: self.thread,
            row_start: Operands::start(at, i),
            g: Coord::plain(b, of.entry(at, i)),
            k_begin: range.begin,
            sets: of.sets,
            tiles: if i == 0 { shape.rows.first_tile + shape.tiles_m } else { shape.tiles_n },
            rows: at.sizes[i],
            staging: from.staging,
        };
        let asynchronous = of.spec.schedule.copies[i].is_async();
        Loader::new(b, from.input, of.shared[i].clone(), &cx, of.spec.tiling.k_tile, asynchronous, of.tiles.ints)
    }
}

/// What a loader reads, and the staging registers that it shares with another.
struct LoadFrom<'a> {
    input: &'a Input,
    source: Memory,
    staging: Option<RegId>,
}

impl TileCopies<'_> {
    fn pair_loaders(&self) -> impl Iterator<Item = (usize, &PairLoader<'_>)> {
        self.role.of.order().into_iter().filter_map(|i| match &self.operands[i] {
            Method::Threads(loader) => Some((i, &**loader)),
            _ => None,
        })
    }

    fn loaders(&self) -> impl Iterator<Item = (usize, &Loader<'_>)> {
        self.pair_loaders().map(|(i, loader)| (i, &loader.lead))
    }
    /// Emits what reads the k-tile from `k` on: for the first pair of factors (false) and for the second (true), if there is one.
    fn of_pair(&self, b: &mut Builder, k: ExprId, read: impl Fn(&mut Builder, bool)) {
        match &self.role.of.second {
            None => read(b, false),
            Some(second) => b.if_else(k.lt(second.first as i64), |b| read(b, false), |b| read(b, true)),
        }
    }

    /// The next k-tile: into this set of staging registers, or on its way to the next stage.
    pub fn fetch(&self, b: &mut Builder, set: u32, in_loop: bool) {
        match &self.role.of.ring {
            None => self.fetch_by_threads(b, set, in_loop),
            Some(ring) => self.fetch_into_ring(b, ring),
        }
    }

    /// Where every tile is whole, the tile after the last is the last again. Nobody reads that fetch. Loads without a condition
    /// leave the loop one block, within which compilers keep their order.
    fn fetch_by_threads(&self, b: &mut Builder, set: u32, in_loop: bool) {
        let (range, spec) = (self.range, self.role.of.spec);
        let k = b.get(self.k);
        let coord = Coord::start(b, k, range.every);
        let overruns = spec.schedule.fetch_ahead > 0 && !range.ragged;
        // In the loop there is a tile. Before it there may be none.
        let some = in_loop || b.kernel().as_int(range.tiles).is_some_and(|tiles| tiles > 0);
        let valid = (overruns && !some).then(|| b.bind("tile_exists", k.lt(range.limit)));
        let limit = range.ragged.then_some(KLimit { below_zero: range.staggered, end: range.limit });
        let next = b.value(k + range.step);
        let more = overruns.then(|| b.bind("more_tiles", next.lt(range.limit)));
        for (i, loader) in self.pair_loaders() {
            let buffer = self.stage_start(b, self.role.issue, i);
            self.of_pair(b, k, |b, second| loader.of(second).fetch(b, coord, valid, limit, set, buffer));
            loader.advance(b, range.step, more);
        }
        let next = match more {
            Some(more) => b.value(more.select(next, k)),
            None => next,
        };
        b.set(self.k, next);
        if spec.schedule.copied().0 {
            b.push(Stmt::AsyncCommit);
            self.role.issue.next(b);
        }
    }

    /// First element of the stage that a counter is at.
    fn stage_start(&self, b: &mut Builder, counter: Counter, i: usize) -> ExprId {
        let stage = counter.stage(b);
        b.value(stage * self.role.of.shared[i].stage)
    }

    fn fetch_into_ring(&self, b: &mut Builder, ring: &Ring) {
        let stage = self.role.issue.stage(b);
        let k = b.get(self.k);
        match &self.role.writers {
            None => self.copy(b, ring, stage, k),
            Some(writers) => self.write(b, ring, writers, stage, k),
        }
        b.set(self.k, k + self.range.step);
        self.role.issue.next(b);
    }

    /// Asynchronous copies of a tile that exists into the next stage.
    fn load(&self, b: &mut Builder, k: ExprId) {
        let range = self.range;
        let coord = Coord::start(b, k, range.every);
        let limit = range.ragged.then_some(KLimit { below_zero: false, end: range.limit });
        for (i, loader) in self.pair_loaders() {
            let buffer = self.stage_start(b, self.role.issue, i);
            self.of_pair(b, k, |b, second| loader.of(second).fetch(b, coord, None, limit, 0, buffer));
            loader.advance(b, range.step, None);
        }
    }

    /// Emits the work of producer warps: one thread issues bulk copies, all threads write, and each warp arrives at the barrier.
    fn write(&self, b: &mut Builder, ring: &Ring, writers: &Writers, stage: ExprId, k: ExprId) {
        if self.operands.iter().any(|method| matches!(method, Method::Bulk(_))) {
            b.if_then(writers.first, |b| self.copy(b, ring, stage, k));
        }
        if let Some(shifter) = &writers.shifter {
            shifter.emit(b, stage);
        }
        for (i, (first, second)) in writers.tiles.iter().zip(&writers.second).enumerate() {
            self.of_pair(b, k, |b, is_second| {
                if let Some(tile) = if is_second { second } else { first } {
                    tile.emit(b, stage, self.at, Operands::start(self.at, i), k, self.range);
                }
            });
        }
        if self.loaders().next().is_some() {
            self.load(b, k);
            b.push(Stmt::AsyncCommit);
            b.push(Stmt::AsyncWait(0));
        }
        // Each thread makes its own writes visible; then one lane speaks for its wave.
        b.bulk(BulkOp::ProxyFence);
        b.push(Stmt::Barrier(BarrierScope::Wave));
        b.if_then(writers.first_lane, |b| {
            let barrier = ring.full(b, self.role.issue);
            b.bulk(BulkOp::Arrive { barrier });
        });
        if let Some(shifter) = &writers.shifter {
            shifter.next(b);
        }
    }

    /// Bulk copies into a stage, issued by one thread.
    fn copy(&self, b: &mut Builder, ring: &Ring, stage: ExprId, k: ExprId) {
        let barrier = ring.full(b, self.role.issue);
        let maps = self.operands.each_ref().map(|method| if let Method::Bulk(maps) = method { Some(*maps) } else { None });
        let of = self.role.of;
        let copied = |i: usize| Some((maps[i]?, of.shared[i].panels.as_ref()?));
        let bytes = (0..2).filter_map(copied).map(|(_, tile)| tile.bytes).sum();
        b.bulk(BulkOp::Expect { barrier, bytes });
        let (k_start, zero) = (b.value(k.cast(Scalar::I32)), b.int(0, Scalar::I32));
        let k = Coord { aligned: k_start, every: self.range.every, local: zero };
        for i in 0..2 {
            let Some((maps, t)) = copied(i) else { continue };
            let first = b.value(stage * of.shared[i].stage);
            let start = Operands::start(self.at, i);
            let [aligned, local] = [start.aligned, start.local].map(|value| b.value(value.cast(Scalar::I32)));
            let row = Coord { aligned, local, ..start };
            let g = b.value(of.entry(self.at, i).cast(Scalar::I32));
            let height = t.map.tile[1];
            let peers = ring.place.and_then(|place| place.receivers(b, i));
            // In a cluster a part of the columns, or of the lines.
            let part = ring.place.and_then(|place| place.part(i));
            let along = |b: &mut Builder, count: u32, cut: bool| -> Vec<ExprId> {
                match part {
                    Some(CopyPart { parts, index }) if cut => {
                        (0..count / parts).map(|x| b.value(index * (count / parts) + x)).collect()
                    }
                    _ => (0..count).map(|x| b.int(x.into(), Scalar::I32)).collect(),
                }
            };
            let by_column = part.is_some_and(|part| t.columns.is_multiple_of(part.parts));
            let columns = along(b, t.columns, by_column);
            let lines = along(b, t.lines, !by_column);
            for &column in &columns {
                for &line in &lines {
                    let [along, across] = [b.value(column * (t.row * t.numbers)), b.value(line * height)];
                    let (row_by, k_by) = if t.k_contiguous { (across, along) } else { (along, across) };
                    let row = Coord { local: b.value(row.local + row_by), ..row };
                    let k = Coord { local: k_by, ..k };
                    let point = [Coord::plain(b, g), row, k];
                    let to = b.mem(Base::Shared(of.shared[i].array), first + (column * t.lines + line) * (height * t.row));
                    let load = |b: &mut Builder, map, forms: &[Affine]| {
                        let at = forms.iter().map(|form| affine(b, form, &point, Part::Whole, Scalar::I32)).collect();
                        b.bulk(BulkOp::Load { to, map, at, barrier, peers });
                    };
                    // A box is within the rows and within the terms of one tensor.
                    match (maps.up, &of.input(i).up) {
                        (Some(up), Some(form)) => {
                            let second = affine(b, form, &point, Part::Whole, Scalar::I32);
                            b.if_else(second.equals(0), |b| load(b, maps.own, &t.at), |b| load(b, up, &t.at));
                        }
                        _ => self.of_pair(b, k_start, |b, second| match of.second_box(i).filter(|_| second) {
                            Some(SecondBox { map, at }) => load(b, map, at),
                            None => load(b, maps.own, &t.at),
                        }),
                    }
                }
            }
        }
    }

    /// Staging registers of this set into the next stage.
    pub fn store(&self, b: &mut Builder, set: u32) {
        for (i, loader) in self.loaders().filter(|(_, loader)| !loader.is_async()) {
            let buffer = self.stage_start(b, self.role.store, i);
            loader.store(b, set, buffer, 0, loader.pieces());
        }
        self.role.store.next(b);
    }

    /// Emits the part of a spread store that follows k-step `step` of `k_steps`. The second half of the k-steps carries the stores.
    pub fn store_part(&self, b: &mut Builder, set: u32, step: u32, k_steps: u32) {
        let stored = || self.loaders().filter(|(_, loader)| !loader.is_async());
        let total: usize = stored().map(|(_, loader)| loader.pieces()).sum();
        let depth = k_steps as usize;
        let half = depth / 2;
        let share = |s: usize| (s * total).div_ceil((depth - half).max(1)).min(total);
        let Some(step) = (step as usize).checked_sub(half) else { return };
        let (from, to) = (share(step), share(step + 1));
        let mut base = 0;
        for (i, loader) in stored() {
            let n = loader.pieces();
            let within = |piece: usize| piece.clamp(base, base + n) - base;
            let buffer = self.stage_start(b, self.role.store, i);
            loader.store(b, set, buffer, within(from), within(to));
            base += n;
        }
    }

    /// Advances the store stage after the spread stores of a k-tile.
    pub fn stored(&self, b: &mut Builder) {
        self.role.store.next(b);
    }
}

/// The tensor map of an operand's tiles, of what a launch of a chunk of the batch may touch.
pub(crate) fn chunked_map(tile: &BulkTile, input: &Input, shape: &Shape) -> TensorMap {
    let mut map = tile.map.clone();
    if input.chunk_local && tile.batched {
        map.extent[2] = shape.chunk;
    }
    map
}
