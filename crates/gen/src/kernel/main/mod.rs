//! The main kernel: arguments, shared memory, and the waves of each role around the main loop.
//!
//! With barriers of the work-group, roles stand within the walk over result tiles. With transaction barriers each role walks over the
//! tiles by itself, and the circular buffer goes on from one to the next: copies of the next tile fly while results are stored.

mod arguments;
mod main_loop;

use crate::kernel::copy::copies::{Copies, Operands, TileCopies};
use crate::kernel::exit::bulk::StagedStore;
use crate::kernel::exit::cluster_sum::ClusterSum;
use crate::kernel::exit::out::OutArgs;
use crate::kernel::exit::rows::RowStore;
use crate::kernel::exit::{self, Staged};
use crate::kernel::input::{Input, Ints, Shape};
use crate::kernel::stages::counter::Counter;
use crate::kernel::stages::ping_pong::{Passing, Turns};
use crate::kernel::stages::ring::{Ring, math_waves};
use crate::kernel::stages::schedule::{Lowered, lower};
use crate::kernel::tile::cluster::ClusterPlace;
use crate::kernel::tile::position::{KRange, TilePosition, TileWalk};
use crate::kernel::tile::shared::SharedTile;
use crate::kernel::unit::math::{Fma, KSteps};
use crate::kernel::unit::mfma::MfmaUnit;
use crate::kernel::unit::mma::WaveUnit;
use crate::kernel::unit::wgmma::Warpgroup;
use crate::kernel::unit::{Accumulators, Results, Unit};
use crate::plan::{KernelSpec, MathUnit, SplitSum, StoreTile, shared_align, store_slabs};
use arguments::{declare_operand, declare_results, declare_sizes, declare_work};
use main_loop::{Consumer, MainLoop};
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;

/// Builds the main kernel.
pub(crate) fn build(
    c: &Contraction,
    spec: &KernelSpec,
    a: &Input,
    b_in: &Input,
    shape: &Shape,
    store: Option<StoreTile>,
) -> Kernel {
    let t = &spec.tiling;
    let threads = spec.launch_threads();
    let mut b = Builder::new(crate::kernel::MAIN, threads);
    b.min_groups(spec.style.min_groups);
    b.doc(format!("C[g,m,n] = {}   {}", c.formula(), c.sizes()));
    b.doc(format!("macro tile {} x {}, k-tile {}, {} threads", t.a.macro_tile, t.b.macro_tile, t.k_tile, threads));
    let ints = Ints::new(
        spec.style.wide_index,
        &[
            shape.tiles_m * t.a.macro_tile as u64,
            shape.tiles_n * t.b.macro_tile as u64,
            c.k + 8 * t.k_tile as u64 * t.split_k.ways as u64,
            c.g,
        ],
        &[a.tensor.len, b_in.tensor.len, c.c.len, c.m * c.n, c.residual.as_ref().map_or(0, |r| r.len)],
    );
    let inputs = [a, b_in];
    let sources = [0, 1].map(|i| declare_operand(&mut b, spec, i, inputs[i], shape));
    let (out, g_first) = declare_results(&mut b, c, spec, shape);
    let store = store.map(|tile| {
        let map = b.tensor_map("c_map", tile.map.clone(), "results, stored in bulk");
        (tile, map)
    });
    let sizes = declare_sizes(&mut b, c, ints);
    let work = declare_work(&mut b, c, spec, shape);
    let place = ClusterPlace::new(&mut b, t);
    let tiles = TileWalk { c, tiling: t, inputs, shape, ints, g_first, sizes, work, place };
    let shared = stages(&mut b, spec, inputs);
    let ring = spec.schedule.in_pipeline().then(|| Ring::new(&mut b, spec, place));
    if t.unit.family().lanes > 1 || ring.is_some() {
        b.wave(t.wave_lanes);
    }
    let lowered = lower(&spec.schedule, t.k_steps());
    let operands = Operands { spec, tiles, sources, shared, ring, sets: lowered.sets };
    let local = b.bind("local_id", Builtin::LocalId);
    Main { c, spec, operands, lowered, out, store, local }.emit(&mut b);
    b.finish()
}

/// The stages of both operands, one operand behind the other.
fn stages(b: &mut Builder, spec: &KernelSpec, inputs: [&Input; 2]) -> [SharedTile; 2] {
    [(0, "a_tile"), (1, "b_tile")].map(|(i, name)| {
        let (x, s) = (inputs[i], &spec.schedule);
        let at = b.kernel().shared_bytes().next_multiple_of(shared_align(&x.tiling, x.tensor.scalar));
        SharedTile::new(b, name, x.tensor.scalar, (&x.tiling, &s.copies[i]), (spec.tiling.k_tile, s.buffers, at))
    })
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
    c: &'a Contraction,
    spec: &'a KernelSpec,
    operands: Operands<'a>,
    lowered: Lowered,
    out: OutArgs,
    /// Where results go in bulk: how, and through which map.
    store: Option<(StoreTile, ArgId)>,
    local: ExprId,
}

impl Main<'_> {
    fn emit(&self, b: &mut Builder) {
        if let Some(ring) = &self.operands.ring {
            ring.init(b, self.local, self.operands.full_arrivals(), math_waves(self.spec));
            return self.roles(b, |b, waves, _| {
                self.role_of_ring(b, ring, waves);
                0
            });
        }
        self.operands.tiles.each(b, None, |b, at, range| {
            self.roles(b, |b, waves, barriers| self.role_of_barriers(b, waves, (at, range), barriers));
            let others_read = self.spec.schedule.buffers > 1 || self.spec.epilogue.staged;
            if self.spec.tiling.persistent > 0 && !self.lowered.prologue.is_empty() && others_read {
                // The next tile's prologue overwrites what this one's last k-tile, and its results on their way, are read from.
                b.barrier();
            }
        });
    }

    /// Each role's code. A body returns how many barriers of the work-group its epilogue meets; that of the load waves is told.
    fn roles(&self, b: &mut Builder, mut body: impl FnMut(&mut Builder, Waves, u32) -> u32) {
        let Some(roles) = self.spec.schedule.roles else {
            body(b, Waves::All, 0);
            return;
        };
        let mut barriers = 0;
        let [math, load] = [Waves::Math, Waves::Load].map(|waves| {
            b.block(|b| {
                if let Some((load, math)) = roles.registers {
                    let raise = waves == Waves::Math;
                    b.bulk(BulkOp::Registers { count: if raise { math } else { load }, raise });
                }
                barriers = body(b, waves, barriers);
            })
        });
        b.push(Stmt::Roles(vec![
            Role { name: "math".into(), first_thread: 0, threads: roles.math_threads, body: math },
            Role { name: "load".into(), first_thread: roles.math_threads, threads: roles.load_threads, body: load },
        ]));
    }

    /// Position among the load threads.
    fn load_thread(&self, b: &mut Builder) -> ExprId {
        match self.spec.schedule.roles {
            Some(roles) => b.bind("load_thread", self.local - roles.math_threads),
            None => self.local,
        }
    }

    /// A role's part in a result tile, with barriers of the work-group; how many the epilogue meets.
    fn role_of_barriers(&self, b: &mut Builder, waves: Waves, (at, range): (&TilePosition, &KRange), barriers: u32) -> u32 {
        let copies = (waves != Waves::Math).then(|| {
            let thread = self.load_thread(b);
            Copies::by_threads(b, &self.operands, thread)
        });
        let copies = copies.as_ref().map(|copies| copies.begin(b, at, range));
        let consumer = (waves != Waves::Load).then(|| self.consumer(b, None));
        self.k_loop(b, range, copies.as_ref(), consumer.as_ref());
        // Copies beyond the last tile may still fly; where results are staged over the tiles, or further tiles follow, they land before
        // the next barrier.
        let further = self.spec.epilogue.staged || self.spec.tiling.persistent > 0;
        if copies.is_some() && further && self.spec.schedule.copied().0 {
            b.push(Stmt::AsyncWait(0));
        }
        match &consumer {
            Some(consumer) => self.results(b, consumer, None, at),
            None => {
                // The math waves' epilogue meets these barriers.
                (0..barriers).for_each(|_| b.barrier());
                barriers
            }
        }
    }

    /// A role around the circular buffer, for all its result tiles.
    fn role_of_ring(&self, b: &mut Builder, ring: &Ring, waves: Waves) {
        let operands = (&self.operands, ring);
        let Some(roles) = self.spec.schedule.roles.filter(|_| waves == Waves::Load) else {
            let copies = (waves == Waves::All).then(|| {
                let elected = b.bind("elected", self.local.equals(0));
                Copies::into_ring(b, operands, self.local, (Some(elected), None))
            });
            return self.math_of_ring(b, ring, copies.as_ref());
        };
        let load = |b: &mut Builder, thread: ExprId, first: Option<ExprId>| {
            let copies = Copies::into_ring(b, operands, thread, (None, first));
            self.operands.tiles.each(b, None, |b, at, range| {
                let tile = copies.begin(b, at, range);
                self.k_loop(b, range, Some(&tile), None);
            });
            ring.drain(b, copies.issue);
        };
        let first = b.value(self.local.equals(roles.math_threads));
        if self.operands.written() {
            let first = b.bind("first_loader", first);
            let thread = self.load_thread(b);
            load(b, thread, Some(first));
        } else {
            b.if_then(first, |b| load(b, self.local, None));
        }
        // The math waves exchange their sums between these.
        for _ in 0..self.meetings() {
            b.push(Stmt::Barrier(BarrierScope::Cluster));
        }
    }

    /// The math role, or the only one.
    fn math_of_ring(&self, b: &mut Builder, ring: &Ring, copies: Option<&Copies>) {
        let consumer = self.consumer(b, Some(ring));
        let staged = self.spec.epilogue.staged.then(|| self.staged(b, consumer.first_lane));
        let counters = [Some(consumer.read), consumer.released];
        let passing = consumer.turns.map(|turns| Passing { turns, counters, tiles: self.operands.tiles });
        self.operands.tiles.each(b, passing, |b, at, range| {
            let tile = copies.map(|copies| copies.begin(b, at, range));
            self.k_loop(b, range, tile.as_ref(), Some(&consumer));
            self.results(b, &consumer, staged.as_ref(), at);
        });
        if let Some(Staged::Bulk(staged)) = &staged {
            staged.finish(b);
        }
        if let Some(Copies { elected: Some(elected), issue, .. }) = copies
            && ring.place.is_some()
        {
            b.if_then(*elected, |b| ring.drain(b, *issue));
        }
    }

    fn k_loop(&self, b: &mut Builder, range: &KRange, copies: Option<&TileCopies>, math: Option<&Consumer>) {
        if let Some(consumer) = math {
            consumer.unit.start(b);
        }
        let ring = self.operands.ring.as_ref();
        MainLoop { spec: self.spec, lowered: &self.lowered, range, ring, copies, math }.emit(b);
    }

    /// The unit of this thread, and what it counts stages with.
    fn consumer(&self, b: &mut Builder, ring: Option<&Ring>) -> Consumer {
        let (unit, team) = self.unit(b);
        let stages = self.spec.schedule.buffers;
        let Some(ring) = ring else {
            let first_lane = b.int(0, Scalar::Bool);
            let read = Counter::new(b, "read", stages, false);
            return Consumer { unit, read, released: None, first_lane, releases: None, turns: None };
        };
        let lane = b.value(self.local % self.spec.tiling.wave_lanes);
        let first_lane = b.bind("first_lane", lane.equals(0));
        let read = Counter::new(b, "read", stages, true);
        let released = (self.spec.schedule.math_behind > 0).then(|| Counter::new(b, "released", stages, true));
        let turns = ring.turns.map(|turns| Turns::new(b, turns, team));
        let releases = ring.place.as_ref().and_then(|(place, tiling)| place.releases(b, tiling, lane));
        Consumer { unit, read, released, first_lane, releases, turns }
    }

    /// The unit of this thread, and the number of its team.
    fn unit(&self, b: &mut Builder) -> (Box<dyn Unit>, ExprId) {
        let (t, spec, shared) = (&self.spec.tiling, self.spec, &self.operands.shared);
        let scalar = self.operands.tiles.inputs[0].tensor.scalar;
        if let [Some(x), Some(y)] = shared.each_ref().map(|tile| tile.panels.clone())
            && t.unit == MathUnit::Warpgroup
        {
            let may_be_empty = self.operands.tiles.shape.k_tiles < u64::from(t.split_k.ways.max(1));
            let unit = Warpgroup::new(b, spec, (shared, [x, y]), self.local, may_be_empty);
            let team = unit.team;
            return (Box::new(unit), team);
        }
        let (thread, team) = match spec.teams() {
            1 => (self.local, b.int(0, Scalar::I32)),
            _ => (b.bind("team_thread", self.local % t.math_threads()), b.value(self.local / t.math_threads())),
        };
        let unit: Box<dyn Unit> = match (t.unit, t.instruction(self.c)) {
            (MathUnit::Mma, Some(row)) => {
                let unit = WaveUnit::new(b, spec, row, scalar, shared, thread);
                Box::new(KSteps::new(spec, unit))
            }
            (MathUnit::Mfma, _) => {
                let unit = MfmaUnit::new(b, spec, scalar, shared, thread);
                Box::new(KSteps::new(spec, unit))
            }
            _ => {
                let unit = Fma::new(b, spec, self.c.accumulator(), shared, thread);
                Box::new(KSteps::new(spec, unit))
            }
        };
        (unit, team)
    }

    /// The epilogue of a result tile; how many barriers of the work-group it meets.
    fn results(&self, b: &mut Builder, consumer: &Consumer, staged: Option<&Staged>, at: &TilePosition) -> u32 {
        let (c, spec, out, ints) = (self.c, self.spec, &self.out, self.operands.tiles.ints);
        let inputs = self.operands.tiles.inputs;
        let plain = |b: &mut Builder, math: &dyn Accumulators| exit::emit_unit(b, c, spec, inputs, math, at, out, ints);
        match consumer.unit.results() {
            Results::Micro(math) => return exit::emit(b, c, spec, inputs, math, math.first(), at, out, ints),
            Results::Bands(math) if spec.epilogue.staged => {
                return exit::emit_rows(b, c, spec, inputs, math, at, out, ints, self.local);
            }
            Results::Bands(math) => plain(b, math),
            Results::Runs(math) => plain(b, math),
            Results::Warpgroup(math) => match (self.cluster_sum(b, math), staged) {
                (Some(sum), _) => sum.emit(b, plain),
                (None, Some(staged)) => exit::emit_staged(b, c, spec, inputs, math, at, out, ints, staged),
                (None, None) => plain(b, math),
            },
        }
        0
    }

    /// Cluster barriers of the exchange of sums.
    fn meetings(&self) -> usize {
        if self.spec.epilogue.split_sum == SplitSum::Cluster { 2 } else { 0 }
    }

    /// How splits of a tile exchange their sums, where they are a cluster.
    fn cluster_sum<'m>(&self, b: &mut Builder, math: &'m Warpgroup) -> Option<ClusterSum<'m>> {
        let place = self.operands.tiles.place.filter(|_| self.meetings() > 0)?;
        let tiling = &self.spec.tiling;
        let first = b.value((place.n * tiling.cluster.m + place.m) * tiling.cluster.splits);
        Some(ClusterSum::new(b, math, tiling, self.local, (place.split, first)))
    }

    /// The staging buffers of the math waves, behind the circular buffer.
    fn staged(&self, b: &mut Builder, first_lane: ExprId) -> Staged {
        let wave = b.value(self.local / self.spec.tiling.wave_lanes);
        let at = b.kernel().shared_bytes().next_multiple_of(1024);
        let teams = self.spec.teams();
        let waves = teams * math_waves(self.spec);
        match &self.store {
            Some((tile, map)) => {
                Staged::Bulk(StagedStore::new(b, tile.clone(), *map, (at, waves, store_slabs(teams)), wave, first_lane))
            }
            None => Staged::Rows(RowStore::new(b, self.spec, self.out.bytes(self.c), at, self.local)),
        }
    }
}
