//! The main kernel: arguments, shared memory, and the waves of each role around the main loop.
//!
//! With work-group barriers, the roles are inside the walk over result tiles. With transaction barriers, each role walks over the
//! tiles independently. The circular buffer continues from one tile to the next: the next tile is copied while results are stored.

mod arguments;
mod main_loop;

use crate::kernel::arguments::{Arguments, BoundKernel};
use crate::kernel::copy::copies::{Copies, Issuers, Operands, SecondSources, Source, TileCopies};
use crate::kernel::exit::operations::largest_added;
use crate::kernel::exit::out::OutArgs;
use crate::kernel::exit::{BulkOutput, Epilogue, Staged};
use crate::kernel::input::{Input, Ints, Regions, Shape};
use crate::kernel::reduce::operands::OperandLoop;
use crate::kernel::reduce::tile::Kept;
use crate::kernel::stages::counter::Counter;
use crate::kernel::stages::ping_pong::{Passing, Turns};
use crate::kernel::stages::ring::{Ring, math_waves};
use crate::kernel::stages::schedule::{Lowered, lower};
use crate::kernel::tile::cluster::ClusterPlace;
use crate::kernel::tile::groups::{Groups, Terms};
use crate::kernel::tile::position::{KRange, Sizes, TilePosition, TileWalk, TileWork};
use crate::kernel::tile::shared::SharedTile;
use crate::kernel::unit::Unit;
use crate::kernel::unit::math::{Fma, KSteps};
use crate::kernel::unit::mfma::MfmaUnit;
use crate::kernel::unit::mma::WaveUnit;
use crate::kernel::unit::own::Own;
use crate::kernel::unit::scales::TileScales;
use crate::kernel::unit::wgmma::Warpgroup;
use crate::plan::{Edge, KernelSpec, MathUnit, SharedMap, Split, StoreTile};
use arguments::Declare;
use main_loop::{Consumer, MainLoop};
use tilewright_ir::affine::Coord;
use tilewright_ir::*;
use tilewright_problem::contraction::{Contraction, Operand, Tensor};
use tilewright_problem::view::COL;

/// What the main kernel computes of a part of the problem, and where that goes.
pub(crate) struct PartJob<'a> {
    pub c: &'a Contraction,
    pub spec: &'a KernelSpec,
    pub inputs: [&'a Input; 2],
    pub shape: &'a Shape,
    pub store: Option<StoreTile>,
    pub regions: &'a Regions,
}

/// Builds the main kernel of parts with plans that differ only in what they read and write. A work-group takes tiles of the first
/// part, then of the next, and has code for each. `spec` is the plan of the first.
pub(crate) fn build(spec: &KernelSpec, jobs: &[PartJob]) -> BoundKernel {
    let t = &spec.tiling;
    let threads = spec.launch_threads();
    let mut b = Builder::new(crate::kernel::MAIN, threads);
    b.min_groups(spec.style.min_groups);
    if spec.schedule.own() {
        b.zero_words();
    }
    for job in jobs {
        b.doc(match job.shape.rows.first {
            0 => format!("C[g,m,n] = {}   {}", job.c.formula(), job.c.sizes()),
            row => format!(
                "from row {row} on: {} splits of k, whose partial sums the next kernel adds",
                job.spec.tiling.split_k.ways
            ),
        });
    }
    if jobs.iter().any(|job| job.c.factors()[0] == Operand::B) {
        b.doc("The product is transposed (SWP1): A, m and smem_a are the caller's B, n and tiles of B. Arguments have the caller's names.");
    }
    b.doc(format!("macro tile {} x {}, k-tile {}, {} threads", t.a.macro_tile, t.b.macro_tile, t.k_tile, threads));
    let mut args = Arguments::default();
    let declared: Vec<Declared> = jobs.iter().map(|job| Declared::new(&mut b, &mut args, job)).collect();
    let place = ClusterPlace::new(&mut b, t);
    let maps = SharedMap::together(&jobs.iter().map(|job| &job.spec.shared).collect::<Vec<_>>());
    let shared: Vec<Vec<SharedTile>> = jobs.iter().zip(&maps).map(|(job, map)| stages(&mut b, job, map)).collect();
    let barriers = maps.first().and_then(|map| map.barriers);
    let ring = barriers.map(|barriers| Ring::new(&mut b, spec, place, &barriers));
    let exchanges = jobs.iter().any(|job| spec.tile_reductions(job.c).iter().any(|r| !r.lane_bits.is_empty()));
    if t.unit.family().wave() > 1 || ring.is_some() || exchanges || (spec.epilogue.operands && spec.exchanging() > 1) {
        b.wave(t.wave_lanes);
    }
    let tables: Vec<Option<SharedId>> = maps.iter().map(|map| table(&mut b, map)).collect();
    let mut before = 0;
    let parts = jobs.iter().zip(declared).zip(shared).zip(tables).zip(maps).map(|((((job, declared), shared), table), map)| {
        let Declared { ints, sources, second, scales, out, g_first, store, sizes, groups, terms, work } = declared;
        let groups = groups.map(|groups| Groups { table, ..groups });
        let &PartJob { c, spec, inputs, shape, .. } = job;
        let more = jobs.len() > 1;
        let tiling = &spec.tiling;
        let tiles = TileWalk { c, tiling, inputs, shape, ints, g_first, sizes, groups, terms, work, place, before, more };
        before += tiles.pieces();
        let lowered = lower(&spec.schedule, spec.tiling.k_steps());
        let halos = [0, 1].map(|i| spec.schedule.copies[i].halo().map(|halo| inputs[i].of_halo(halo)));
        let operands = Operands { spec, tiles, sources, second, halos, shared, ring: ring.clone(), sets: lowered.sets };
        Part { c, spec, operands, scales, lowered, out, store, map }
    });
    let parts = parts.collect();
    let local = b.bind("local_id", Builtin::LocalId);
    Main { spec, parts, ring, local }.emit(&mut b);
    BoundKernel { kernel: b.finish(), args }
}

/// Space for the number of tiles before each group.
fn table(b: &mut Builder, map: &SharedMap) -> Option<SharedId> {
    let area = map.groups;
    (area.bytes > 0).then(|| b.shared("first_tiles", Scalar::I32, area.bytes as u32 / Scalar::I32.bytes(), area.first()))
}

/// The arguments of a part.
struct Declared<'a> {
    ints: Ints,
    sources: [Source; 2],
    second: Option<SecondSources>,
    scales: Vec<ArgId>,
    out: OutArgs<'a>,
    g_first: Option<ExprId>,
    store: Option<BulkOutput>,
    sizes: Sizes,
    groups: Option<Groups>,
    terms: Option<Terms>,
    work: Option<ExprId>,
}

impl<'a> Declared<'a> {
    fn new(b: &mut Builder, args: &mut Arguments, job: &PartJob<'a>) -> Declared<'a> {
        let &PartJob { c, spec, inputs, shape, regions, .. } = job;
        let t = &spec.tiling;
        // Terms count from the first pair's on; where a tensor starts makes up for them.
        let second_len = c.second.as_ref().map_or(0, |second| {
            let reach = |x: &Tensor| {
                let before = x.view.access.offset.stride(COL).map_or(0, i64::unsigned_abs).saturating_mul(second.first);
                x.len.saturating_add(before)
            };
            reach(&second.a).max(reach(&second.b))
        });
        let ints = Ints::new(
            spec.style.wide_index,
            &[
                (shape.rows.first_tile + shape.tiles_m) * t.a.macro_tile as u64,
                shape.tiles_n * t.b.macro_tile as u64,
                c.k + 8 * t.k_tile as u64 * t.split_k.ways as u64,
                c.g,
            ],
            &[inputs[0].tensor.len, inputs[1].tensor.len, second_len, c.c.len, c.m * c.n, largest_added(c)],
        );
        let mut declare = Declare { b, args, spec, shape, regions };
        let sources = [0, 1].map(|i| if c.k == 0 { Source::Nothing } else { declare.operand(i, inputs[i]) });
        let second = declare.second(c, inputs);
        let scales = declare.scales(c);
        let (out, g_first) = declare.results(c);
        let store = job.store.clone().map(|tile| {
            let map = declare.store(c, &tile);
            BulkOutput { tile, map, preactivations: declare.preactivations(c) }
        });
        let (sizes, groups, terms, work) = (declare.sizes(c, ints), declare.groups(c), declare.terms(c), declare.work(c));
        Declared { ints, sources, second, scales, out, g_first, store, sizes, groups, terms, work }
    }
}

/// The stages of both operands, where threads share their tiles.
fn stages(b: &mut Builder, job: &PartJob, map: &SharedMap) -> Vec<SharedTile> {
    let (spec, s) = (job.spec, &job.spec.schedule);
    if s.own() {
        return Vec::new();
    }
    let operands = [(0, "smem_a"), (1, "smem_b")].into_iter().map(|(i, name)| {
        let x = job.inputs[i];
        let scalar = x.tiling.shared_scalar(&x.tensor);
        SharedTile::new(b, name, scalar, &x.tiling, &s.copies[i], spec.tiling.k_tile, map.operands[i])
    });
    operands.collect()
}

/// Waves that run the same code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waves {
    All,
    Math,
    Load,
}

/// What the roles are built from.
struct Main<'a> {
    /// The plan of the first part, which says what all have in common.
    spec: &'a KernelSpec,
    parts: Vec<Part<'a>>,
    ring: Option<Ring>,
    local: ExprId,
}

/// A part of the problem.
struct Part<'a> {
    c: &'a Contraction,
    spec: &'a KernelSpec,
    operands: Operands<'a>,
    /// Scales of blocks of k.
    scales: Vec<ArgId>,
    lowered: Lowered,
    out: OutArgs<'a>,
    store: Option<BulkOutput>,
    /// Places of its arrays in shared memory.
    map: SharedMap,
}

/// What a role's math reads its stages from.
#[derive(Clone, Copy)]
enum Stages<'s> {
    /// A circular buffer, for all tiles. `progress` is where the part before has come to.
    OfRing { ring: &'s Ring, progress: Option<Progress> },
    /// The stages of one tile.
    OfTile(TileWork<'s>),
}

/// What a role goes on with from part to part.
#[derive(Clone, Copy)]
struct Progress {
    issue: Option<Counter>,
    read: Option<Counter>,
    released: Option<Counter>,
    /// The work-group's first piece of work.
    group: ExprId,
}

impl Part<'_> {
    /// There are sums to compute.
    const fn has_terms(&self) -> bool {
        self.c.k > 0
    }
    /// Results are reduced through the shared memory of the tiles.
    fn reduces_over_tiles(&self) -> bool {
        self.map.reductions.bytes + self.map.carried.bytes > 0
    }
}

impl Main<'_> {
    fn emit(&self, b: &mut Builder) {
        for part in &self.parts {
            let (tiles, t) = (&part.operands.tiles, &part.spec.tiling);
            if let Some(groups) = &tiles.groups {
                let size = [&t.a, &t.b][groups.axis].macro_tile;
                groups.count_tiles(b, self.local, self.spec.launch_threads(), size);
            }
        }
        if let (Some(ring), Some(first)) = (&self.ring, self.parts.first()) {
            ring.init(b, self.local, first.operands.full_arrivals(), math_waves(self.spec));
            return self.roles(b, |b, waves| self.role_of_ring(b, ring, waves));
        }
        let mut group = None;
        for part in &self.parts {
            let tiles = &part.operands.tiles;
            part.announce_tail(b);
            let first = *group.get_or_insert_with(|| self.first_work(b, tiles));
            let kept = if part.spec.epilogue.carry { self.epilogue(b, part, None).carried_identities(b) } else { Vec::new() };
            let work = tiles.each(b, first, None, |b, at, range| {
                self.roles(b, |b, waves| self.role_of_barriers(b, part, waves, TileWork { at, range }, &kept));
                let others_read = part.spec.schedule.buffers > 1 || part.spec.epilogue.exit.staged() || part.reduces_over_tiles();
                if part.spec.tiling.persistent > 0 && !part.lowered.prologue.is_empty() && others_read {
                    // The next tile's prologue overwrites what this one's last k-tile, and its results on their way, are read from.
                    b.barrier();
                }
            });
            if !kept.is_empty() {
                self.roles(b, |b, waves| {
                    let epilogue = Epilogue { kept: kept.clone(), ..self.epilogue(b, part, None) };
                    if waves == Waves::Load { epilogue.join_last_barriers(b) } else { epilogue.store_carried(b, tiles, work) }
                });
            }
        }
    }

    /// The work-group's first piece of work. Parts with threads that load their own operands read the same tensor. Such parts
    /// alternate if each has as many tiles. Then data that adjacent work-groups read comes from memory once.
    fn first_work(&self, b: &mut Builder, tiles: &TileWalk) -> ExprId {
        let (group, parts) = (tiles.first_work(b), self.parts.len() as i64);
        let alike = self.parts.iter().all(|part| part.operands.tiles.pieces() == tiles.pieces());
        let in_turn = parts > 1 && alike && self.spec.schedule.own() && self.spec.tiling.persistent == 0;
        if in_turn { b.bind("piece", group % parts * tiles.pieces() as i64 + group / parts) } else { group }
    }

    /// Each role's code.
    fn roles(&self, b: &mut Builder, body: impl Fn(&mut Builder, Waves)) {
        let Some(roles) = self.spec.schedule.roles else { return body(b, Waves::All) };
        let [math, load] = [Waves::Math, Waves::Load].map(|waves| {
            b.block(|b| {
                if let Some((load, math)) = roles.registers {
                    let raise = waves == Waves::Math;
                    b.bulk(BulkOp::Registers { count: if raise { math } else { load }, raise });
                }
                body(b, waves);
            })
        });
        b.push(Stmt::Roles(vec![
            Role { name: "consumer".into(), first_thread: 0, threads: roles.math_threads, body: math },
            Role { name: "producer".into(), first_thread: roles.math_threads, threads: roles.load_threads, body: load },
        ]));
    }

    /// Position among the load threads.
    fn load_thread(&self, b: &mut Builder) -> ExprId {
        match self.spec.schedule.roles {
            Some(roles) => {
                let last = i64::from(roles.load_threads) - 1;
                b.bind_within("producer_thread", self.local - roles.math_threads, 0, last)
            }
            None => self.local,
        }
    }

    /// A role's share of a result tile, with barriers of the work-group.
    fn role_of_barriers(&self, b: &mut Builder, part: &Part, waves: Waves, work: TileWork, kept: &[Kept]) {
        let TileWork { at, range } = work;
        let copies = (waves != Waves::Math && part.has_terms() && !part.spec.schedule.own()).then(|| {
            let thread = self.load_thread(b);
            Copies::by_threads(b, &part.operands, thread)
        });
        let copies = copies.as_ref().map(|copies| copies.begin(b, at, range));
        let consumer = (waves != Waves::Load).then(|| self.consumer(b, part, Stages::OfTile(work)));
        let epilogue = Epilogue { kept: kept.to_vec(), ..self.epilogue(b, part, None) };
        let operands = if consumer.is_some() { part.operand_loops(b, &epilogue, work) } else { Vec::new() };
        let scales = consumer.as_ref().and_then(|consumer| part.tile_scales(b, consumer, at));
        part.k_loop(b, range, copies.as_ref(), consumer.as_ref(), &operands, scales.as_ref());
        operands.iter().for_each(|operand| operand.store_values(b));
        // Copies beyond the last tile may still fly; where results are staged over the tiles, or further tiles follow, they
        // land before the next barrier.
        let over_tiles =
            part.spec.epilogue.exit.staged() || part.spec.epilogue.split == Split::Cluster || part.reduces_over_tiles();
        if copies.is_some() && (over_tiles || part.spec.tiling.persistent > 0) && part.spec.schedule.copied().0 {
            b.push(Stmt::AsyncWait(0));
        }
        match &consumer {
            Some(consumer) => epilogue.emit(b, &consumer.unit.accumulators(), at, None),
            None => epilogue.join_barriers(b),
        }
    }

    /// A role around the circular buffer, for all its result tiles.
    fn role_of_ring(&self, b: &mut Builder, ring: &Ring, waves: Waves) {
        let Some(roles) = self.spec.schedule.roles.filter(|_| waves == Waves::Load) else {
            let elected = (waves == Waves::All).then(|| b.bind("elected", self.local.equals(0)));
            return self.math_of_ring(b, ring, elected);
        };
        // Partial sums of a cluster overwrite the stages, so all threads of the cluster synchronise around them in every tile. Reduced
        // values need the same barriers, and values carried across tiles need them after the last tile. A group may have no tile and
        // then no barrier.
        let groups = self.parts.iter().any(|part| part.operands.tiles.groups.is_some());
        let several = self.spec.tiling.persistent > 0 || self.parts.len() > 1 || groups;
        let reduce = |part: &Part| [false, true].into_iter().any(|after_last| part.spec.reduces_in_cluster(part.c, after_last));
        let cluster_syncs = several && (self.spec.epilogue.split == Split::Cluster || self.parts.iter().any(reduce));
        let load = |b: &mut Builder, thread: ExprId, issuers: Issuers| {
            let mut progress: Option<Progress> = None;
            for part in self.parts.iter().filter(|part| part.has_terms() || cluster_syncs) {
                let issue = progress.and_then(|p| p.issue);
                let copies = part.has_terms().then(|| Copies::into_ring(b, &part.operands, ring, thread, issuers, issue));
                let group = progress.map_or_else(|| part.operands.tiles.first_work(b), |p| p.group);
                let issue = copies.as_ref().map(|copies| copies.issue).or(issue);
                progress = Some(Progress { issue, read: None, released: None, group });
                part.announce_tail(b);
                part.operands.tiles.each(b, group, None, |b, at, range| {
                    let tile = copies.as_ref().map(|copies| copies.begin(b, at, range));
                    part.k_loop(b, range, tile.as_ref(), None, &[], None);
                    if cluster_syncs {
                        self.epilogue(b, part, None).join_barriers(b);
                    }
                });
                if cluster_syncs {
                    self.epilogue(b, part, None).join_last_barriers(b);
                }
            }
            if let Some(issue) = progress.and_then(|p| p.issue) {
                // Only the thread that copies knows where it has come to.
                b.if_given(issuers.elected, |b| ring.drain(b, issue));
            }
        };
        let first = b.value(self.local.equals(roles.math_threads));
        if self.parts.iter().any(|part| part.operands.written()) {
            let first = b.bind("first_producer", first);
            let thread = self.load_thread(b);
            load(b, thread, Issuers { elected: None, first: Some(first) });
        } else if cluster_syncs {
            let first = b.bind("elected", first);
            load(b, self.local, Issuers { elected: Some(first), first: None });
        } else {
            b.if_then(first, |b| load(b, self.local, Issuers { elected: None, first: None }));
        }
        if let Some(part) = self.parts.first().filter(|_| !cluster_syncs) {
            self.epilogue(b, part, None).join_barriers(b);
        }
    }

    /// Emits the consumer role, or the only role. In the only role, one thread also issues the copies.
    fn math_of_ring(&self, b: &mut Builder, ring: &Ring, elected: Option<ExprId>) {
        let mut progress: Option<Progress> = None;
        for part in &self.parts {
            let issue = progress.and_then(|p| p.issue);
            let copies = elected.filter(|_| part.has_terms()).map(|elected| {
                let issuers = Issuers { elected: Some(elected), first: None };
                Copies::into_ring(b, &part.operands, ring, self.local, issuers, issue)
            });
            let consumer = self.consumer(b, part, Stages::OfRing { ring, progress });
            let mut epilogue = self.epilogue(b, part, consumer.first_lane);
            if part.spec.epilogue.carry {
                epilogue.kept = epilogue.carried_identities(b);
            }
            let exit = &part.spec.epilogue.exit;
            if progress.is_some() && exit.staged() && exit.bulk().is_none() {
                // Other lanes may still read the staging buffer of the part before. Each bulk store begins with a barrier.
                b.push(Stmt::Barrier(BarrierScope::Wave));
            }
            let staged = epilogue.staged(b);
            let counters = [Some(consumer.read), consumer.released];
            part.announce_tail(b);
            let passing = consumer.turns.map(|turns| Passing { turns, counters, tiles: part.operands.tiles });
            let group = progress.map_or_else(|| part.operands.tiles.first_work(b), |p| p.group);
            let work = part.operands.tiles.each(b, group, passing, |b, at, range| {
                let tile = copies.as_ref().map(|copies| copies.begin(b, at, range));
                let operands = part.operand_loops(b, &epilogue, TileWork { at, range });
                let scales = part.tile_scales(b, &consumer, at);
                let math = |b: &mut Builder| part.k_loop(b, range, tile.as_ref(), Some(&consumer), &operands, scales.as_ref());
                // Of waves that copy as well each has its text once.
                let exist = if copies.is_none() { part.exist(b, &consumer, at) } else { None };
                match exist {
                    None => math(b),
                    Some(exist) => {
                        b.if_else(exist, math, |b| part.k_loop(b, range, None, Some(&consumer.idle()), &operands, None))
                    }
                }
                operands.iter().for_each(|operand| operand.store_values(b));
                epilogue.emit(b, &consumer.unit.accumulators(), at, staged.as_ref());
            });
            epilogue.store_carried(b, &part.operands.tiles, work);
            if let Some(Staged::Bulk(staged)) = &staged {
                staged.finish(b);
            }
            let issue = copies.map(|copies| copies.issue).or(issue);
            progress = Some(Progress { issue, read: Some(consumer.read), released: consumer.released, group });
        }
        if let (Some(elected), Some(issue)) = (elected, progress.and_then(|p| p.issue))
            && ring.place.is_some()
        {
            b.if_then(elected, |b| ring.drain(b, issue));
        }
    }

    /// The unit of this thread, and what it counts stages with.
    fn consumer(&self, b: &mut Builder, part: &Part, of: Stages) -> Consumer {
        let tile = if let Stages::OfTile(work) = of { Some(work) } else { None };
        let (unit, team) = self.unit(b, part, tile);
        let stages = self.spec.schedule.buffers;
        let Stages::OfRing { ring, progress } = of else {
            let read = Counter::new(b, "read", stages, false);
            return Consumer { unit, read, released: None, first_lane: None, release: None, turns: None };
        };
        let lane = b.value(self.local % self.spec.tiling.wave_lanes);
        let first_lane = b.bind("first_lane", lane.equals(0));
        let read = progress.and_then(|p| p.read).unwrap_or_else(|| Counter::new(b, "read", stages, true));
        let released = progress.map_or_else(
            || (self.spec.schedule.math_in_flight > Some(0)).then(|| Counter::new(b, "released", stages, true)),
            |p| p.released,
        );
        let turns = ring.turns.map(|turns| Turns::new(b, turns, team));
        let release = ring.place.and_then(|place| place.release(b, lane));
        Consumer { unit, read, released, first_lane: Some(first_lane), release, turns }
    }

    /// The unit of this thread, and the number of its team.
    fn unit(&self, b: &mut Builder, part: &Part, tile: Option<TileWork>) -> (Box<dyn Unit>, ExprId) {
        let (t, spec, shared) = (&part.spec.tiling, part.spec, &part.operands.shared);
        let row = t.instruction;
        if let Some(row) = row.filter(|row| row.unit == MathUnit::Warpgroup) {
            let tiles = &part.operands.tiles;
            let may_be_empty = tiles.terms.is_some() || tiles.shape.k_tiles < u64::from(t.split_k.ways.max(1));
            let unit = Warpgroup::new(b, spec, row, shared, self.local, may_be_empty, part.c);
            let team = unit.team;
            return (Box::new(unit), team);
        }
        let (thread, team) = match spec.teams() {
            1 => (self.local, b.int(0, Scalar::I32)),
            _ => (b.bind("team_thread", self.local % t.math_threads()), b.value(self.local / t.math_threads())),
        };
        let unit: Box<dyn Unit> = match row {
            Some(row) if row.unit == MathUnit::Mma => {
                let starts = tile.map(|work| [work.at.m_start, work.at.n_start]);
                let unit = WaveUnit::new(b, part.c, spec, row, shared, starts, thread);
                Box::new(KSteps::new(spec, unit))
            }
            Some(row) if row.unit == MathUnit::Mfma => {
                let unit = MfmaUnit::new(b, spec, row, shared, thread);
                Box::new(KSteps::new(spec, unit))
            }
            None if spec.schedule.own() => Box::new(Own::new(b, part.c, &part.operands, thread, tile)),
            _ => {
                let unit = Fma::new(b, spec, part.c.accumulator(), shared, thread);
                Box::new(KSteps::new(spec, unit))
            }
        };
        (unit, team)
    }

    /// The epilogue; with transaction barriers its staging buffers follow the circular buffer.
    fn epilogue<'e>(&'e self, b: &mut Builder, part: &'e Part<'e>, first_lane: Option<ExprId>) -> Epilogue<'e> {
        let TileWalk { inputs, ints, place, .. } = part.operands.tiles;
        let first_lane = first_lane.unwrap_or_else(|| b.value((self.local % self.spec.tiling.wave_lanes).equals(0)));
        Epilogue {
            c: part.c,
            spec: part.spec,
            inputs,
            args: &part.out,
            ints,
            thread: self.local,
            first_lane,
            place,
            store: part.store.as_ref(),
            piped: part.operands.ring.is_some(),
            shared: &part.map,
            kept: Vec::new(),
        }
    }
}

impl Part<'_> {
    /// A comment where the last rows of tiles begin, if they are split.
    fn announce_tail(&self, b: &mut Builder) {
        if self.operands.tiles.shape.rows.first > 0 {
            b.comment("the last rows of tiles, split along k");
        }
    }

    /// The reductions of operands that go with the main loop of a tile.
    fn operand_loops<'p>(&'p self, b: &mut Builder, epilogue: &'p Epilogue<'p>, work: TileWork<'p>) -> Vec<OperandLoop<'p>> {
        let shared = &self.operands.shared;
        [0, 1].into_iter().filter_map(|kept| OperandLoop::new(b, epilogue, work, shared, kept)).collect()
    }

    /// Whether a warpgroup has any rows and columns of a result tile, where all of those of some may be past the edge.
    fn exist(&self, b: &mut Builder, consumer: &Consumer, at: &TilePosition) -> Option<ExprId> {
        if !self.has_terms() || !consumer.unit.may_idle() {
            return None;
        }
        let TileWalk { c, inputs, .. } = self.operands.tiles;
        let first = consumer.unit.accumulators().first;
        let mut along = |i: usize, start: Coord, extent: u64| {
            let size = at.sizes[i];
            let may = inputs[i].edge == Edge::Predicate && inputs[i].tiling.leaves_empty(size.is_none().then_some(extent));
            may.then(|| {
                let start = start.value(b);
                let own = b.value(start + first[i].cast(b.ty(start).scalar));
                let end = size.unwrap_or_else(|| b.int(extent as i64, b.ty(start).scalar));
                b.value(own.lt(end))
            })
        };
        let (rows, columns) = (along(0, at.m_start, c.m), along(1, at.n_start, c.n));
        b.and_opt(rows, columns)
    }

    /// The scales of a thread's accumulators in two-level accumulation.
    fn tile_scales(&self, b: &mut Builder, consumer: &Consumer, at: &TilePosition) -> Option<TileScales<'_>> {
        TileScales::new(b, self.spec, self.c, at, consumer.unit.accumulators(), &self.scales)
    }

    fn k_loop(
        &self,
        b: &mut Builder,
        range: &KRange,
        copies: Option<&TileCopies>,
        math: Option<&Consumer>,
        operands: &[OperandLoop],
        scales: Option<&TileScales>,
    ) {
        if let Some(consumer) = math {
            consumer.unit.start(b);
        }
        if self.has_terms() {
            let ring = self.operands.ring.as_ref();
            MainLoop { spec: self.spec, lowered: &self.lowered, range, ring, copies, math, operands, scales }.emit(b);
        }
    }
}
