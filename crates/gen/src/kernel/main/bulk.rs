//! The main kernel with bulk copies and a matrix unit: the circular buffer of stages, and the roles around the same main loop.
//!
//! Work-groups may stay for several result tiles ([`Tiling::persistent`](crate::plan::Tiling)): every role walks over the same
//! tiles, and the circular buffer goes on from one to the next, so that copies of the next tile fly while results are stored.

use super::main_loop::MainLoop;
use crate::kernel::copy::fetch_tile::{self, FetchTile};
use crate::kernel::copy::shift::Shifter;
use crate::kernel::exit::bulk::StagedStore;
use crate::kernel::exit::cluster_sum::ClusterSum;
use crate::kernel::exit::out::OutArgs;
use crate::kernel::exit::rows::RowStore;
use crate::kernel::exit::{self as exit, Staged};
use crate::kernel::input::{Input, Shape};
use crate::kernel::main::steps::{Consumer, Copies, Loaders, Pipeline, chunked_map};
use crate::kernel::stages::ping_pong::{Passing, Turns};
use crate::kernel::stages::ring::{Ring, math_waves};
use crate::kernel::stages::schedule::{Lowered, lower};
use crate::kernel::tile::position::{KRange, TilePosition, TileWalk};
use crate::kernel::unit::Accumulators;
use crate::kernel::unit::wgmma::Warpgroup;
use crate::plan::{
    BulkTile, ClassMap, Hulls, KernelSpec, SplitSum, StoreTile, Transport, fetch_in_flight, lines_fetched, store_slabs,
};
use tilewright_ir::*;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::G;

/// What the roles are built from.
pub(crate) struct BulkKernel<'a> {
    pub c: &'a Contraction,
    pub spec: &'a KernelSpec,
    pub inputs: [&'a Input; 2],
    pub walk: TileWalk<'a>,
    pub ways: [Way; 2],
    pub out: OutArgs,
    /// Where results go in bulk: how, and through which map.
    pub store: Option<(StoreTile, ArgId)>,
}

/// How an operand's tiles come.
#[derive(Clone)]
pub(crate) enum Way {
    /// By bulk copies through this map.
    Bulk(ArgId),
    /// By the load waves.
    Fetched(fetch_tile::Source),
    /// By bulk copies to staging through these maps, one for each class of lines, and by the load waves from there.
    Shifted(Hulls, Vec<ArgId>),
}

/// Declares the tensor map of an operand.
pub(crate) fn map_argument(b: &mut Builder, name: &str, doc: &str, tile: &BulkTile, input: &Input, shape: &Shape) -> ArgId {
    b.tensor_map(name, chunked_map(tile, input, shape), doc)
}

/// Declares the tensor maps of an operand whose lines are shifted, by class.
pub(crate) fn class_maps(b: &mut Builder, name: &str, doc: &str, hulls: &Hulls) -> Vec<ArgId> {
    let declare = |(class, map): (usize, &ClassMap)| {
        let doc = format!("{doc}, lines {class}, {}, ...", class + hulls.classes.len());
        b.tensor_map(&format!("{name}_{class}"), map.map.clone(), &doc)
    };
    hulls.classes.iter().enumerate().map(declare).collect()
}

impl BulkKernel<'_> {
    /// Emits shared memory, barriers and roles.
    pub fn emit(&self, b: &mut Builder, tiles: [BulkTile; 2]) {
        b.wave(self.spec.tiling.wave_lanes);
        let ring = Ring::new(b, tiles, self.spec, self.walk.place);
        let local = b.bind("local_id", Builtin::LocalId);
        ring.init(b, local, self.full_arrivals(), math_waves(self.spec));
        let lowered = lower(&self.spec.schedule, self.spec.tiling.k_tile);
        let Some(roles) = self.spec.schedule.roles else {
            let elected = b.bind("elected", local.equals(0));
            let copies = self.copies(b, &ring, Some(elected), None);
            return self.math(b, &ring, &lowered, local, Some(&copies));
        };
        let math_body = b.block(|b| {
            if let Some((_, count)) = roles.registers {
                b.bulk(BulkOp::Registers { count, raise: true });
            }
            self.math(b, &ring, &lowered, local, None);
        });
        let load_body = b.block(|b| {
            if let Some((count, _)) = roles.registers {
                b.bulk(BulkOp::Registers { count, raise: false });
            }
            let walk = |b: &mut Builder, loaders| {
                let copies = self.copies(b, &ring, None, loaders);
                self.walk.each(b, None, |b, at, range| {
                    self.k_loop(b, &ring, &lowered, at, range, Some(&copies), None);
                });
                ring.drain(b, copies.walk);
            };
            let first = b.value(local.equals(roles.math_threads));
            if self.fetches() {
                let first = b.bind("first_loader", first);
                let thread = b.bind("load_thread", local - roles.math_threads);
                let loaders = self.loaders(b, &ring, thread, first);
                walk(b, Some(loaders));
            } else {
                b.if_then(first, |b| walk(b, None));
            }
            // The math waves exchange their sums between these.
            for _ in 0..self.meetings() {
                b.push(Stmt::Barrier(BarrierScope::Cluster));
            }
        });
        b.push(Stmt::Roles(vec![
            Role { name: "math".into(), first_thread: 0, threads: roles.math_threads, body: math_body },
            Role { name: "load".into(), first_thread: roles.math_threads, threads: roles.load_threads, body: load_body },
        ]));
    }

    fn copies<'k>(&'k self, b: &mut Builder, ring: &Ring, elected: Option<ExprId>, loaders: Option<Loaders<'k>>) -> Copies<'k> {
        let maps = self.ways.each_ref().map(|way| match way {
            Way::Bulk(map) => Some(*map),
            Way::Fetched(_) | Way::Shifted(..) => None,
        });
        Copies { inputs: self.inputs, maps, elected, loaders, walk: ring.walk(b, "copy") }
    }

    /// Load waves write tiles themselves.
    fn fetches(&self) -> bool {
        self.spec.schedule.copies.iter().any(Transport::is_written)
    }

    /// Arrivals that make a buffer full, besides its bytes: that of the thread that copies, those of waves that write; and whether
    /// there are bytes.
    fn full_arrivals(&self) -> (u32, bool) {
        let waves = if self.fetches() { self.spec.load_threads() / self.spec.tiling.wave_lanes.max(1) } else { 0 };
        let copied = !self.spec.schedule.copies.iter().all(Transport::is_written);
        (waves + u32::from(copied), copied)
    }

    /// Elements of an operand that are there at once.
    fn memory(&self, input: &Input) -> u64 {
        let tensor = &input.tensor;
        if input.chunk_local { tensor.len / tensor.view.extent[G].max(1) * self.walk.shape.chunk } else { tensor.len }
    }

    /// The load threads, for operands that they fetch.
    fn loaders<'k>(&'k self, b: &mut Builder, ring: &'k Ring, thread: ExprId, first: ExprId) -> Loaders<'k> {
        let first_lane = b.bind("first_load_lane", (thread % self.spec.tiling.wave_lanes).equals(0));
        let in_flight = fetch_in_flight(self.spec.load_registers(), lines_fetched(self.spec, self.c));
        let tiles = [0, 1].map(|i| match self.ways[i] {
            Way::Bulk(_) | Way::Shifted(..) => None,
            Way::Fetched(source) => {
                let array = &b.kernel().shared[ring.arrays[i].index()];
                let (len, at) = (array.len / 2, array.byte_offset);
                let words = b.shared(["a_tile_words", "b_tile_words"][i], Scalar::U32, len, at);
                Some(FetchTile {
                    input: self.inputs[i],
                    axis: i,
                    source,
                    arrays: [ring.arrays[i], words],
                    tile: ring.tiles[i].clone(),
                    thread,
                    threads: self.spec.load_threads(),
                    registers: self.spec.load_registers(),
                    in_flight: in_flight[i],
                    k_tile: self.spec.tiling.k_tile,
                    beyond: [self.spec.tiling.cluster.m, self.spec.tiling.cluster.n][i] > 1,
                    len: self.memory(self.inputs[i]),
                    ints: self.walk.ints,
                })
            }
        });
        let shifter = self.spec.schedule.copies.iter().any(|copy| copy.shifted().is_some()).then(|| {
            let staging = self.ways.each_ref().map(|way| match way {
                Way::Shifted(hulls, maps) => Some((hulls.clone(), maps.clone())),
                Way::Bulk(_) | Way::Fetched(_) => None,
            });
            let shifter = Shifter::new(b, (self.walk, self.spec), ring, staging, (thread, first_lane));
            shifter.begin(b);
            shifter
        });
        Loaders { tiles, shifter, first, first_lane }
    }

    /// The math role, or the only one.
    fn math(&self, b: &mut Builder, ring: &Ring, lowered: &Lowered, local: ExprId, copies: Option<&Copies>) {
        let may_be_empty = self.walk.shape.k_tiles < u64::from(self.spec.tiling.split_k.ways.max(1));
        let math = Warpgroup::new(b, self.spec, ring, local, may_be_empty);
        let lane = b.value(local % self.spec.tiling.wave_lanes);
        let first_lane = b.bind("first_lane", lane.equals(0));
        let walk = ring.walk(b, "read");
        let released = (self.spec.schedule.fragments_ahead > 0).then(|| ring.walk(b, "released"));
        let turns = ring.turns.map(|turns| Turns::new(b, turns, math.team));
        let releases = ring.place.as_ref().and_then(|(place, tiling)| place.releases(b, tiling, lane));
        let consumer = Consumer { math: &math, walk, released, first_lane, releases, turns };
        let staged = self.spec.epilogue.staged.then(|| self.staged(b, local, first_lane));
        let passing = turns.map(|turns| Passing { turns, ring, walks: [Some(walk), released], tiles: self.walk });
        let sum = self.cluster_sum(b, ring, &math, local);
        self.walk.each(b, passing, |b, at, range| {
            math.start(b);
            self.k_loop(b, ring, lowered, at, range, copies, Some(&consumer));
            let plain = |b: &mut Builder, math: &dyn Accumulators| {
                exit::emit_unit(b, self.c, self.spec, self.inputs, math, at, &self.out, self.walk.ints);
            };
            match (&sum, &staged) {
                (Some(sum), _) => sum.emit(b, plain),
                (None, Some(staged)) => {
                    exit::emit_staged(b, self.c, self.spec, self.inputs, &math, at, &self.out, self.walk.ints, staged);
                }
                (None, None) => plain(b, &math),
            }
        });
        if let Some(Staged::Bulk(staged)) = &staged {
            staged.finish(b);
        }
        if let Some(Copies { elected: Some(elected), walk, .. }) = copies
            && ring.place.is_some()
        {
            b.if_then(*elected, |b| ring.drain(b, *walk));
        }
    }

    /// Cluster barriers of the exchange of sums.
    fn meetings(&self) -> usize {
        if self.spec.epilogue.split_sum == SplitSum::Cluster { 2 } else { 0 }
    }

    /// How splits of a tile exchange their sums, where they are a cluster.
    fn cluster_sum<'m>(&self, b: &mut Builder, ring: &Ring, math: &'m Warpgroup, thread: ExprId) -> Option<ClusterSum<'m>> {
        let (place, tiling) = ring.place.as_ref().filter(|_| self.meetings() > 0)?;
        let first = b.value((place.n * tiling.cluster.m + place.m) * tiling.cluster.splits);
        Some(ClusterSum::new(b, math, tiling, thread, (place.split, first)))
    }

    /// The staging buffers of the math waves, behind the circular buffer.
    fn staged(&self, b: &mut Builder, local: ExprId, first_lane: ExprId) -> Staged {
        let wave = b.value(local / self.spec.tiling.wave_lanes);
        let at = b.kernel().shared_bytes().next_multiple_of(1024);
        let teams = self.spec.teams();
        let waves = teams * math_waves(self.spec);
        match &self.store {
            Some((tile, map)) => {
                Staged::Bulk(StagedStore::new(b, tile.clone(), *map, (at, waves, store_slabs(teams)), wave, first_lane))
            }
            None => Staged::Rows(RowStore::new(b, self.spec, self.out.bytes(self.c), at, local)),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn k_loop(
        &self,
        b: &mut Builder,
        ring: &Ring,
        lowered: &Lowered,
        at: &TilePosition,
        range: &KRange,
        copies: Option<&Copies>,
        consumer: Option<&Consumer>,
    ) {
        let k_fetch = copies.map(|_| b.declare("k_fetch", range.begin));
        let loaders = copies.and_then(|c| c.loaders.as_ref());
        let streams = loaders.map_or([None, None], |l| l.begin(b, at, range));
        let pipeline = Pipeline { ring, at, range, copies, consumer, k_fetch, streams };
        MainLoop::piped(b, lowered, range, &pipeline);
    }
}
