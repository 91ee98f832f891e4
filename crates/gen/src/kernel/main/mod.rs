//! The main kernel: arguments, shared memory, and the waves of each role around the main loop.
//!
//! With barriers of the work-group, roles stand within the walk over result tiles. With transaction barriers each role walks over the
//! tiles by itself, and the circular buffer goes on from one to the next: copies of the next tile fly while results are stored.

mod arguments;
mod main_loop;

use crate::kernel::arguments::Arguments;
use crate::kernel::copy::copies::{Copies, Operands, TileCopies};
use crate::kernel::exit::out::OutArgs;
use crate::kernel::exit::{Epilogue, Staged};
use crate::kernel::input::{Input, Ints, Regions, Shape};
use crate::kernel::stages::counter::Counter;
use crate::kernel::stages::ping_pong::{Passing, Turns};
use crate::kernel::stages::ring::{Ring, math_waves};
use crate::kernel::stages::schedule::{Lowered, lower};
use crate::kernel::tile::cluster::ClusterPlace;
use crate::kernel::tile::position::{KRange, TilePosition, TileWalk};
use crate::kernel::tile::shared::SharedTile;
use crate::kernel::unit::Unit;
use crate::kernel::unit::math::{Fma, KSteps};
use crate::kernel::unit::mfma::MfmaUnit;
use crate::kernel::unit::mma::WaveUnit;
use crate::kernel::unit::wgmma::Warpgroup;
use crate::plan::{KernelSpec, MathUnit, Split, StoreTile, shared_align, sum_bytes};
use arguments::Declare;
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
    regions: &Regions,
) -> (Kernel, Arguments) {
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
        &[a.tensor.len, b_in.tensor.len, c.c.len, c.m * c.n, c.residual().map_or(0, |r| r.len)],
    );
    let inputs = [a, b_in];
    let mut args = Arguments::default();
    let mut declare = Declare { b: &mut b, args: &mut args, spec, shape, regions };
    let sources = [0, 1].map(|i| declare.operand(i, inputs[i]));
    let (out, g_first) = declare.results(c);
    let store = store.map(|tile| {
        let map = declare.store(c, &tile);
        (tile, map)
    });
    let (sizes, work) = (declare.sizes(c, ints), declare.work(c));
    let place = ClusterPlace::new(&mut b, t);
    let tiles = TileWalk { c, tiling: t, inputs, shape, ints, g_first, sizes, work, place };
    let shared = stages(&mut b, spec, inputs);
    let ring = spec.schedule.in_pipeline().then(|| Ring::new(&mut b, spec, place, sum_bytes(spec, c.accumulator())));
    let exchanges = spec.tile_reductions(c).iter().any(|r| !r.lane_bits.is_empty());
    if t.unit.family().lanes > 1 || ring.is_some() || exchanges {
        b.wave(t.wave_lanes);
    }
    let lowered = lower(&spec.schedule, t.k_steps());
    let operands = Operands { spec, tiles, sources, shared, ring, sets: lowered.sets };
    let local = b.bind("local_id", Builtin::LocalId);
    Main { c, spec, operands, lowered, out, store, local }.emit(&mut b);
    (b.finish(), args)
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
    out: OutArgs<'a>,
    /// Where results go in bulk: how, and through which map.
    store: Option<(StoreTile, ArgId)>,
    local: ExprId,
}

impl Main<'_> {
    fn emit(&self, b: &mut Builder) {
        if let Some(ring) = &self.operands.ring {
            ring.init(b, self.local, self.operands.full_arrivals(), math_waves(self.spec));
            return self.roles(b, |b, waves| self.role_of_ring(b, ring, waves));
        }
        self.operands.tiles.each(b, None, |b, at, range| {
            self.roles(b, |b, waves| self.role_of_barriers(b, waves, (at, range)));
            let others_read = self.spec.schedule.buffers > 1 || self.spec.epilogue.exit.staged() || self.reduces_over_tiles();
            if self.spec.tiling.persistent > 0 && !self.lowered.prologue.is_empty() && others_read {
                // The next tile's prologue overwrites what this one's last k-tile, and its results on their way, are read from.
                b.barrier();
            }
        });
    }

    /// Results are reduced through the shared memory of the tiles.
    fn reduces_over_tiles(&self) -> bool {
        self.spec.reduction_bytes(self.c) > 0
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

    /// A role's part in a result tile, with barriers of the work-group.
    fn role_of_barriers(&self, b: &mut Builder, waves: Waves, (at, range): (&TilePosition, &KRange)) {
        let copies = (waves != Waves::Math).then(|| {
            let thread = self.load_thread(b);
            Copies::by_threads(b, &self.operands, thread)
        });
        let copies = copies.as_ref().map(|copies| copies.begin(b, at, range));
        let consumer = (waves != Waves::Load).then(|| self.consumer(b, None));
        self.k_loop(b, range, copies.as_ref(), consumer.as_ref());
        // Copies beyond the last tile may still fly; where results are staged over the tiles, or further tiles follow, they land before
        // the next barrier.
        let over_tiles =
            self.spec.epilogue.exit.staged() || self.spec.epilogue.split == Split::Cluster || self.reduces_over_tiles();
        if copies.is_some() && (over_tiles || self.spec.tiling.persistent > 0) && self.spec.schedule.copied().0 {
            b.push(Stmt::AsyncWait(0));
        }
        let epilogue = self.epilogue(b, None);
        match &consumer {
            Some(consumer) => epilogue.emit(b, &consumer.unit.sums(), at, None),
            None => epilogue.meet(b),
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
        // Sums of a cluster take the stages' place, and all of its threads meet around them, tile after tile.
        let meets = self.spec.epilogue.split == Split::Cluster && self.spec.tiling.persistent > 0;
        let load = |b: &mut Builder, thread: ExprId, elected: (Option<ExprId>, Option<ExprId>)| {
            let copies = Copies::into_ring(b, operands, thread, elected);
            self.operands.tiles.each(b, None, |b, at, range| {
                let tile = copies.begin(b, at, range);
                self.k_loop(b, range, Some(&tile), None);
                if meets {
                    self.epilogue(b, None).meet(b);
                }
            });
            ring.drain(b, copies.issue);
        };
        let first = b.value(self.local.equals(roles.math_threads));
        if self.operands.written() {
            let first = b.bind("first_loader", first);
            let thread = self.load_thread(b);
            load(b, thread, (None, Some(first)));
        } else if meets {
            let first = b.bind("elected", first);
            load(b, self.local, (Some(first), None));
        } else {
            b.if_then(first, |b| load(b, self.local, (None, None)));
        }
        if !meets {
            self.epilogue(b, None).meet(b);
        }
    }

    /// The math role, or the only one.
    fn math_of_ring(&self, b: &mut Builder, ring: &Ring, copies: Option<&Copies>) {
        let consumer = self.consumer(b, Some(ring));
        let epilogue = self.epilogue(b, consumer.first_lane);
        let staged = epilogue.staged(b);
        let counters = [Some(consumer.read), consumer.released];
        let passing = consumer.turns.map(|turns| Passing { turns, counters, tiles: self.operands.tiles });
        self.operands.tiles.each(b, passing, |b, at, range| {
            let tile = copies.map(|copies| copies.begin(b, at, range));
            self.k_loop(b, range, tile.as_ref(), Some(&consumer));
            epilogue.emit(b, &consumer.unit.sums(), at, staged.as_ref());
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
            let read = Counter::new(b, "read", stages, false);
            return Consumer { unit, read, released: None, first_lane: None, releases: None, turns: None };
        };
        let lane = b.value(self.local % self.spec.tiling.wave_lanes);
        let first_lane = b.bind("first_lane", lane.equals(0));
        let read = Counter::new(b, "read", stages, true);
        let released = (self.spec.schedule.math_behind > Some(0)).then(|| Counter::new(b, "released", stages, true));
        let turns = ring.turns.map(|turns| Turns::new(b, turns, team));
        let releases = ring.place.as_ref().and_then(|(place, tiling)| place.releases(b, tiling, lane));
        Consumer { unit, read, released, first_lane: Some(first_lane), releases, turns }
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

    /// The epilogue; with transaction barriers its staging buffers stand behind the circular buffer.
    fn epilogue(&self, b: &mut Builder, first_lane: Option<ExprId>) -> Epilogue<'_> {
        let TileWalk { inputs, ints, place, .. } = self.operands.tiles;
        let first_lane = first_lane.unwrap_or_else(|| b.value((self.local % self.spec.tiling.wave_lanes).equals(0)));
        Epilogue {
            c: self.c,
            spec: self.spec,
            inputs,
            args: &self.out,
            ints,
            thread: self.local,
            first_lane,
            place,
            store: self.store.as_ref(),
            piped: self.operands.ring.is_some(),
        }
    }
}
