//! The analytic cost model: modelled microseconds of a derived plan on a target, with a breakdown, and no device.
//!
//! It is a roofline that knows how a kernel falls short of the roof:
//!
//! - instruction issue besides the multiply-adds;
//! - bank conflicts and uncoalesced loads, found by walking the lanes of a wave over the real views;
//! - latency that neither prefetching nor occupancy hides;
//! - work-groups that do not fill the device evenly;
//! - traffic beyond the caches;
//! - helper kernels.
//!
//! It orders candidates; its times are called *modelled* and never mixed with measured ones.

mod calibration;
mod cpu;
mod elements;
mod gpu;
mod halo_seeds;
mod matrix;
mod matrix_seeds;
mod own;
mod pick;
mod rank;
mod seed_keys;
mod seeds;
mod tail;
mod traffic;
mod wave;
mod wave_unit_seeds;

pub use calibration::Calibration;
pub(crate) use rank::sort;
pub use rank::{Candidate, Picker};

use serde::Serialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};
use tilewright_gen::kernel::split_lanes;
use tilewright_gen::plan::{Derived, Finish, Footprint, OperandTiling, Source, Split, SplitRows, Stage, added_bytes};
use tilewright_ir::affine::Atom;
use tilewright_ir::mma::Owner;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::contraction::{Contraction, Operand, ResultSource};
use tilewright_problem::view::View;
use tilewright_problem::{Extent, Oriented};

/// Modelled time of a program and where it goes. Times in microseconds.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// use tilewright_gen::space::Space;
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::Gemm;
/// use tilewright_tune::model::Picker;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 2048, 2048, 2048).build()?.into(), &target)?;
/// let estimate = Picker::new(&space).estimate(&Plan::parse("fma 128x128x16 on 16x16")?).expect("a legal plan");
/// // Multiply-adds limit a large product, not device memory.
/// assert!(estimate.math_us > estimate.dram_us && estimate.total_us >= estimate.main_us);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The whole program.
    pub total_us: f64,
    /// Starting its kernels.
    pub launch_us: f64,
    /// Copies into workspace, scaling of C, summing of splits.
    pub helpers_us: f64,
    /// The main kernel.
    pub main_us: f64,
    /// What the main kernel would take if multiply-adds were all it did, on all units.
    pub math_us: f64,
    /// The same for issuing its instructions.
    pub issue_us: f64,
    /// The same for its shared-memory accesses.
    pub shared_us: f64,
    /// The same for its traffic with the last-level cache.
    pub l2_us: f64,
    /// The same for its traffic with device memory.
    pub dram_us: f64,
    /// What waiting for memory and barriers adds beyond all of the above.
    pub stall_us: f64,
    /// Work-groups resident per unit.
    pub resident: u32,
    /// Work-groups of the busiest unit over the mean: 1 is perfectly even.
    pub imbalance: f64,
    /// Bytes from and to device memory, all kernels.
    pub dram_bytes: f64,
}

impl Estimate {
    /// This and another part of the same problem: occupancy is that of the first. Parts in one launch fill the device together, so that
    /// the others take what evenly spread work takes.
    fn with(&self, other: &Estimate, joined: bool) -> Estimate {
        let even = if joined { 1.0 / other.imbalance.max(1.0) } else { 1.0 };
        let (launch_us, main_us) = (if joined { 0.0 } else { other.launch_us }, other.main_us * even);
        Estimate {
            total_us: self.total_us + launch_us + other.helpers_us + main_us,
            launch_us: self.launch_us + launch_us,
            helpers_us: self.helpers_us + other.helpers_us,
            main_us: self.main_us + main_us,
            math_us: self.math_us + other.math_us,
            issue_us: self.issue_us + other.issue_us,
            shared_us: self.shared_us + other.shared_us,
            l2_us: self.l2_us + other.l2_us,
            dram_us: self.dram_us + other.dram_us,
            stall_us: self.stall_us + (other.stall_us - (other.main_us - main_us)).max(0.0),
            dram_bytes: self.dram_bytes + other.dram_bytes,
            ..*self
        }
    }
    /// Name of the resource that limits the main kernel most.
    pub fn bound(&self) -> &'static str {
        let parts = [
            ("math", self.math_us),
            ("instruction issue", self.issue_us),
            ("shared memory", self.shared_us),
            ("last-level cache", self.l2_us),
            ("device memory", self.dram_us),
            ("latency", self.stall_us),
            ("launches", self.launch_us),
            ("helper kernels", self.helpers_us),
        ];
        parts.iter().max_by(|x, y| x.1.total_cmp(&y.1)).map_or("nothing", |p| p.0)
    }
}

/// Estimates plans of one contraction on one target. Remembers what many plans share; may be used from many threads.
#[derive(Debug)]
pub struct Model<'a> {
    contraction: Cow<'a, Contraction>,
    /// Of plans that compute the transposed product, of operands that units read as narrower parts, and of both.
    others: [[OnceLock<Box<Model<'a>>>; 2]; 2],
    target: &'a Target,
    calibration: Calibration,
    loads: Mutex<HashMap<wave::LoadShape, wave::LoadCost>>,
    tiles: Mutex<HashMap<(Operand, Source, u32, u32), f64>>,
    fragments: Mutex<HashMap<wave::FragmentShape, f64>>,
    stores: Mutex<HashMap<wave::StoreShape, f64>>,
}

impl<'a> Model<'a> {
    /// A model of a contraction on a target.
    pub fn new(contraction: &'a Contraction, target: &'a Target) -> Self {
        Model::of(Cow::Borrowed(contraction), target)
    }

    fn of(contraction: Cow<'a, Contraction>, target: &'a Target) -> Self {
        Model {
            contraction,
            others: Default::default(),
            target,
            calibration: Calibration::default(),
            loads: Mutex::default(),
            tiles: Mutex::default(),
            fragments: Mutex::default(),
            stores: Mutex::default(),
        }
    }

    /// The same with other constants.
    pub fn calibrated(mut self, calibration: Calibration) -> Self {
        self.others = Default::default();
        self.calibration = calibration;
        self
    }

    /// As [`Model::estimate`], for a part that is launched after another part of the problem. `cached`: the parts run concurrently, and the
    /// others bring operand A to the last-level cache.
    pub fn after_launch(&self, spec: &Derived, footprint: &Footprint, cached: bool) -> Estimate {
        let e = self.seen(&spec.c).of_part(spec, footprint, cached);
        let saved = self.target.rates.launch_us * (1.0 - self.calibration.next_launch);
        Estimate { launch_us: e.launch_us - saved, total_us: e.total_us - saved, ..e }
    }

    /// The modelled time of a derived plan that fits with this footprint.
    pub fn estimate(&self, spec: &Derived, footprint: &Footprint) -> Estimate {
        self.seen(&spec.c).of_part(spec, footprint, false)
    }

    /// The model of the contraction as kernels compute it.
    fn seen(&self, c: &Oriented) -> &Model<'a> {
        let [transposed, converted] = c.changes();
        let model = || Box::new(Model::of(Cow::Owned((**c).clone()), self.target).calibrated(self.calibration));
        match transposed || converted {
            true => self.others[usize::from(transposed)][usize::from(converted)].get_or_init(model),
            false => self,
        }
    }

    /// A kernel whose sums have no terms: it stores.
    fn zeros(&self, spec: &Derived, footprint: &Footprint, work: &Work) -> Estimate {
        let rates = &self.target.rates;
        let bytes = traffic::traffic(&self.contraction, spec, self.target, work, work.groups).bytes;
        let dram_us = bytes / (rates.dram_gbs * 1e3 * self.calibration.dram);
        let stored_us = bytes / (calibration::ZEROS * f64::from(self.target.units.max(1)) * rates.clock_ghz * 1e3);
        let main_us = soft_max(&[stored_us, dram_us]);
        let stall_us = (main_us - dram_us).max(0.0);
        let (resident, imbalance) = (footprint.groups_per_unit, 1.0);
        Estimate { main_us, l2_us: stored_us, dram_us, stall_us, resident, imbalance, dram_bytes: bytes, ..Estimate::default() }
    }

    fn of_part(&self, spec: &Derived, footprint: &Footprint, cached: bool) -> Estimate {
        let work = Work::new(&self.contraction, spec);
        let mut e = if self.contraction.k == 0 && self.contraction.reductions().next().is_none() {
            self.zeros(spec, footprint, &work)
        } else if let ResultSource::Elements(_) = self.contraction.source {
            elements::main_kernel(self, spec, footprint)
        } else if spec.schedule.own() {
            own::main_kernel(self, spec, footprint, &work, cached)
        } else {
            match spec.tiling.unit.family().owner {
                Owner::Wave | Owner::Warpgroup => matrix::main_kernel(self, spec, footprint, &work),
                Owner::Thread if self.target.wave <= 1 => cpu::main_kernel(self, spec, &work),
                Owner::Thread => gpu::main_kernel(self, spec, footprint, &work),
            }
        };
        let helpers = helpers(self, spec);
        e.helpers_us = helpers.us;
        e.launch_us = self.target.rates.launch_us * (1.0 + self.calibration.next_launch * f64::from(helpers.kernels));
        e.dram_bytes += helpers.bytes;
        e.total_us = e.launch_us + e.helpers_us + e.main_us;
        e
    }
}

/// Sizes that every part of the model reads.
pub(crate) struct Work {
    /// Result tiles along m and n.
    pub tiles_m: u64,
    pub tiles_n: u64,
    /// Work-groups, or tiles of persistent ones.
    pub groups: f64,
    /// Of these tiles, the tiles that are split along k.
    pub tail: f64,
    /// k-tiles of one work-group.
    pub iterations: f64,
    /// Multiply-adds of one work-group in one k-tile, edges counted whole.
    pub fma: f64,
    /// Bytes of an accumulator.
    pub acc_bytes: f64,
    /// The share of its waves, or warpgroups, that have rows and columns of the result, on average: others wait.
    pub at_work: f64,
}

impl Work {
    fn new(c: &Contraction, spec: &Derived) -> Work {
        let t = &spec.tiling;
        let tile = |v: u32| u64::from(v.max(1));
        // Whole clusters.
        let [tiles_m, tiles_n, entries] = c.tiles([tile(t.a.macro_tile), tile(t.b.macro_tile)]);
        let tiles = expected_tiles(c, [&t.a, &t.b].map(|o| tile(o.macro_tile)));
        let [tiles_m, tiles_n] = if spec.counted_groups(c).is_some() { tiles } else { [tiles_m, tiles_n] };
        let micro = expected_tiles(c, [&t.a, &t.b].map(|o| tile(o.micro)));
        let share = |i: usize, o: &OperandTiling| {
            let all = tiles[i] * tile(o.macro_tile) / tile(o.micro);
            (micro[i] as f64 / all.max(1) as f64).min(1.0)
        };
        let waits = spec.schedule.in_pipeline() && spec.schedule.roles.is_some();
        let at_work = if waits { share(0, &t.a) * share(1, &t.b) } else { 1.0 };
        let (tiles_m, tiles_n) = (tiles_m.next_multiple_of(tile(t.cluster.m)), tiles_n.next_multiple_of(tile(t.cluster.n)));
        let ways = u64::from(t.split_k.ways.max(1));
        let split_rows = t.tail.map_or(0, |tail| tiles_m.saturating_sub(tail.first));
        Work {
            tail: split_rows as f64 * tiles_n as f64 * entries as f64,
            tiles_m,
            tiles_n,
            groups: tiles_m as f64 * tiles_n as f64 * entries as f64 * ways as f64,
            iterations: c.depth().div_ceil(tile(t.k_tile)).div_ceil(ways) as f64,
            fma: f64::from(t.a.macro_tile) * f64::from(t.b.macro_tile) * f64::from(t.k_tile),
            acc_bytes: f64::from(c.accumulator().bytes()),
            at_work,
        }
    }
}

/// Tiles along m and n, of groups about as many as there will be. The last tile of each group is half full on average, and each
/// group has one.
fn expected_tiles(c: &Contraction, sizes: [u64; 2]) -> [u64; 2] {
    let [m, n, _] = c.tiles(sizes);
    let expected = |extent: Extent, tiles: u64| if c.grouped(extent) { (tiles - c.g.div_ceil(2)).max(c.g) } else { tiles };
    [expected(Extent::M, m), expected(Extent::N, n)]
}

/// Multiply-adds per clock and unit for a type of accumulator.
pub(crate) const fn fma_rate(target: &Target, accumulator: Scalar) -> f64 {
    let rate = match accumulator {
        Scalar::F64 => target.rates.f64_fma,
        _ => target.rates.f32_fma,
    };
    if rate > 0.0 { rate } else { 1.0 }
}

struct Helpers {
    us: f64,
    bytes: f64,
    kernels: u32,
}

/// Compute units that have something to do: persistent work-groups may be fewer than units.
fn at_work(spec: &Derived, units: f64) -> f64 {
    match spec.tiling.persistent {
        0 => units,
        stay => units.min(f64::from(stay)),
    }
}

/// Cost of finding an element of a view, relative to the cost in padded windows of a filter of two dimensions. These have six
/// digits of coordinates and two bounds.
fn addressing(view: &View) -> f64 {
    let digits = view.access.offset.terms.iter().filter(|(atom, _)| matches!(atom, Atom::Digit { .. })).count();
    ((digits + view.access.bounds.len()) as f64 / 8.0).min(1.0)
}

/// Kernels before and after the main one: all of them stream memory.
fn helpers(model: &Model, spec: &Derived) -> Helpers {
    let (c, target, k) = (&*model.contraction, model.target, &model.calibration);
    let t = &spec.tiling;
    let mut h = Helpers { us: 0.0, bytes: 0.0, kernels: 0 };
    let mut stream = |bytes: f64, cost: f64| {
        h.kernels += 1;
        h.bytes += bytes;
        // What fits into the cache stays there for the kernel that follows.
        let cached = if bytes < target.l2_bytes as f64 * 0.5 { 2.0 } else { 1.0 };
        h.us += cost * bytes / (target.rates.dram_gbs * 1e3 * 0.8 * cached) + k.helper;
    };
    let (mut copied, mut slowed) = (0.0, 0.0);
    for (which, tensor, tiling) in [(0, &c.a, &t.a), (1, &c.b, &t.b)] {
        if tiling.source != Source::InPlace && c.k > 0 {
            let written = spec.copied_elements(which);
            let gathered = if tiling.source.gathers() { addressing(&tensor.view) } else { 0.0 };
            let bytes = (written + (tensor.len as f64).min(written)) * f64::from(tensor.scalar.bytes());
            copied += bytes;
            slowed += bytes * (1.0 + (k.gather - 1.0) * gathered);
        }
    }
    // One launch copies both operands.
    if copied > 0.0 {
        stream(copied, slowed / copied);
    }
    let (mut after, mut ahead, mut finished) = (0.0, 0.0, 0.0);
    for r in c.reductions() {
        let (parts, values) = (spec.partials(c, r), c.result_shape(r).left(r.over) as f64);
        let bytes = c.state(r).iter().map(|scalar| f64::from(scalar.bytes())).sum::<f64>() * parts.len() as f64;
        if parts.cluster_peers() > 1 {
            finished += 2.0 * target.rates.cluster_barrier / (target.rates.clock_ghz * 1e3);
        }
        match parts.finish {
            None => {}
            // Written by the main kernel, read by the next one.
            Some(Finish::Kernel | Finish::Cluster) => after += 2.0 * bytes,
            Some(Finish::Ticket) => {
                let tickets = parts.tickets() as f64;
                ahead += 4.0 * tickets;
                finished +=
                    calibration::TICKET_US + bytes / tickets.max(1.0) / (target.rates.clock_ghz * 1e3 * calibration::UNIT_BYTES);
            }
            Some(Finish::Atomic(stage)) => {
                ahead += values * f64::from(r.scalar.bytes());
                let each = if stage == Stage::Element { c.result_shape(r).count(r.over) } else { parts.parts };
                let rate = f64::from(target.units) * target.rates.clock_ghz * 1e3 / calibration::ATOMIC_CLOCKS;
                finished += (values * each as f64 / rate).max(each as f64 * calibration::ATOMIC_US);
            }
        }
    }
    for bytes in [after, ahead].into_iter().filter(|bytes| *bytes > 0.0) {
        stream(bytes, 1.0);
    }
    let SplitRows { rows, splits } = spec.split_rows(c);
    if splits > 1 {
        let share = rows as f64 / c.m.max(1) as f64;
        let acc = f64::from(c.accumulator().bytes());
        let partials = if spec.epilogue.split == Split::Atomic { 0.0 } else { f64::from(splits) * acc };
        let stored = f64::from(c.stored_together() * c.c.scalar.bytes());
        stream(share * (c.results() * (partials + stored) + added_bytes(c)), 1.0);
        // Each sum is a loop over the splits, which threads share where there are few sums.
        h.us += k.way * f64::from(splits) / f64::from(split_lanes(c.g * rows * c.n, splits));
    }
    h.us += finished;
    h
}

/// A maximum without a corner: resources that are equally busy get in each other's way.
pub(crate) fn soft_max(values: &[f64]) -> f64 {
    let top = values.iter().fold(0.0, |a: f64, &b| a.max(b));
    if top <= 0.0 {
        return 0.0;
    }
    top * values.iter().map(|v| (v.max(0.0) / top).powi(6)).sum::<f64>().powf(1.0 / 6.0)
}

#[cfg(test)]
mod tests;
