//! How a k-tile of one operand gets from global to shared memory, and what allows it.
//!
//! A [`Transport`] is one value per operand; whether a plan may have it is decided here and nowhere else. What the decision computed
//! (tensor maps, staging) stays in the value, so that nobody computes it again.

use super::bulk::{BulkTile, bulk_tile, fetched_tile, panels};
use super::fetch_shape::{LINE_CLASSES, fetch_width};
use super::frame::{Frame, OperandFrame, fragment_sets};
use super::halo::{Halo, Wanted};
use super::keys::{Chiral, Keys, Side};
use super::own_loads::OwnLoads;
use super::refusal::Refusal;
use super::spans::{Spans, spans};
use super::tile::{Along, OperandTiling, Source};
use super::value::Plan;
use serde::Serialize;
use std::borrow::Cow;
use tilewright_ir::mma::{Family, Lines, Reads};
use tilewright_ir::{ASYNC_COPY_BYTES, Scalar, WARP};
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::COL;

/// Weights that a lane reads and converts at once: as many as a vector has lanes.
const RUN: u32 = 16;

/// The copy method of one operand.
///
/// ```
/// use tilewright_gen::plan::{Plan, Transport};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, registers+registers")?;
/// let derived = space.resolve(&plan)?.spec;
/// assert_eq!(derived.schedule.copies, [Transport::Registers, Transport::Registers]);
/// let bulk = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, 4 producers")?;
/// // sm_80 has no bulk copies.
/// assert!(space.resolve(&bulk).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Transport {
    /// Threads load vectors into registers and store them to shared memory (`ACP0`).
    Registers,
    /// Threads issue asynchronous copies of 4, 8 or 16 bytes (cp.async, `ACP1`).
    Async,
    /// Either of these into swizzled panels: for units that read nothing else, and beside bulk copies of the other operand.
    Panels {
        /// The panels.
        tile: BulkTile,
        /// By asynchronous copies.
        asynchronous: bool,
    },
    /// One thread issues bulk tensor copies (`ACP2`).
    Bulk(BulkTile),
    /// Producer warps write the tile through registers, laid out as bulk copies would bring it (`ACP0` of a pipeline with transaction
    /// barriers).
    Written(BulkTile),
    /// Asynchronous copies bring each element of a result tile's windows once, and k-tiles are read from there at shifted places (`ACP4`).
    Halo(Box<Halo>),
    /// Each thread loads what it multiplies itself, and shared memory has no part in it (`BIM4`).
    Own(OwnLoads),
    /// Bulk copies bring aligned enclosing spans of rows to staging, and producer warps shift them from there into the tile (`ACP3`).
    Shifted(Box<Shifted>),
}

/// An operand's tiling, the copies of its tiles, and the tensor that these read.
pub(super) struct TiledOperand<'a> {
    pub tiling: OperandTiling,
    pub copy: Transport,
    /// The tensor that the kernel reads.
    pub read: Cow<'a, Tensor>,
}

/// A tile that is shifted from staging.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// // Rows of A are misaligned: bulk copies bring enclosing spans, and producer warps shift them into the tile.
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 513).lda(513).ldb(512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, shifted-tma+tma, 3 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// let shifted = derived.schedule.copies[0].shifted().expect("a shifted tile");
/// assert_eq!((shifted.tile.bytes, shifted.slots), (128 * 128, 4));
/// assert!(u64::from(shifted.slots * shifted.spans.slot_bytes()) <= derived.shared.spans[0].bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Shifted {
    /// The tile as instructions read it.
    pub tile: BulkTile,
    /// The copy to staging.
    pub spans: Spans,
    /// k-tiles in staging.
    pub slots: u32,
}

impl Transport {
    /// Transaction barriers say when its tiles are there; the tile is laid out as bulk copies bring it.
    pub const fn in_pipeline(&self) -> bool {
        matches!(self, Transport::Bulk(_) | Transport::Written(_) | Transport::Shifted(_))
    }
    /// By bulk copies, from tensor maps.
    pub const fn is_bulk(&self) -> bool {
        matches!(self, Transport::Bulk(_))
    }
    /// Asynchronous copies of single threads.
    pub const fn is_async(&self) -> bool {
        matches!(self, Transport::Async | Transport::Panels { asynchronous: true, .. } | Transport::Halo(_))
    }
    /// Producer warps of a pipeline write the tile.
    pub const fn is_written(&self) -> bool {
        matches!(self, Transport::Written(_) | Transport::Shifted(_))
    }
    /// The tile of a pipeline.
    pub fn tile(&self) -> Option<&BulkTile> {
        match self {
            Transport::Registers | Transport::Async | Transport::Halo(_) | Transport::Own(_) => None,
            Transport::Panels { tile, .. } | Transport::Bulk(tile) | Transport::Written(tile) => Some(tile),
            Transport::Shifted(shifted) => Some(&shifted.tile),
        }
    }
    /// What threads load for themselves.
    pub const fn own(&self) -> Option<&OwnLoads> {
        if let Transport::Own(loads) = self { Some(loads) } else { None }
    }
    /// The windows of a whole result tile.
    pub fn halo(&self) -> Option<&Halo> {
        if let Transport::Halo(halo) = self { Some(halo) } else { None }
    }
    /// Staging, where the tile is shifted from there.
    pub fn shifted(&self) -> Option<&Shifted> {
        if let Transport::Shifted(shifted) = self { Some(shifted) } else { None }
    }
    /// Registers of a load thread that hold vectors in flight, of so many k-tiles at once.
    pub(super) fn registers(&self, o: &OperandTiling, tensor: &Tensor, k_tiles: u32) -> u32 {
        let words = (tensor.scalar.bytes_of(o.load_width.into()) as u32).div_ceil(4);
        if matches!(self, Transport::Registers | Transport::Panels { asynchronous: false, .. }) {
            // With a complex alpha the other part of each element's number waits beside it; a copy in workspace has it multiplied already.
            let twice = o.source == Source::InPlace && tensor.signs.is_some_and(|signs| signs.other.is_some());
            o.load_row * o.load_k / o.load_width.max(1) * words * if twice { 2 } else { 1 } * k_tiles
        } else {
            0
        }
    }
    /// Stores to shared memory of a load thread for a k-tile.
    pub(super) fn stores(&self, o: &OperandTiling) -> f64 {
        if self.is_async() || self.in_pipeline() || self.own().is_some() {
            0.0
        } else {
            f64::from(o.load_row * o.load_k) / f64::from(o.store_width.max(1))
        }
    }
    /// Loads from memory and stores to shared memory of a load thread for a k-tile.
    pub fn loads_and_stores(&self, o: &OperandTiling) -> f64 {
        self.loads(o) + self.stores(o)
    }
    /// Loads from memory of a load thread for a k-tile; a bulk copy counts as one.
    pub(super) fn loads(&self, o: &OperandTiling) -> f64 {
        if let Transport::Own(loads) = self {
            return loads.places.len() as f64;
        }
        match self {
            // Those of a result tile stand before the loop.
            Transport::Halo(_) => 0.0,
            _ if self.in_pipeline() => 1.0,
            _ => f64::from(o.load_row * o.load_k) / f64::from(o.load_width.max(1)),
        }
    }

    /// Whether lanes of a unit read windows of a halo (`ACP4`): rows begin anywhere in shared memory, where `ldmatrix` reads them.
    pub fn reads_halos(unit: &Family) -> bool {
        matches!(unit.reads, Reads::Fragments) && unit.read_as_matrices()
    }
    /// Checks that the copy method can convert elements and change signs, if the operand needs it. Both happen in registers. A copy in
    /// workspace has changed the signs already.
    pub(super) fn converts(plan: &Plan, side: Side, tensor: &Tensor) -> Result<(), Refusal> {
        let (acp, wos, scalar) = (side.key(Chiral::Acp), side.key(Chiral::Wos), tensor.scalar);
        match (tensor.factor, plan.of(side).copy, plan.of(side).source) {
            (Some(factor), 1 | 2, 0) if Transport::raw(plan, side, tensor).is_some() && Transport::read_raw(plan, factor) => {
                Ok(())
            }
            (Some(factor), value @ 1.., _) => Err(Refusal::Converted { acp, value, scalar, factor }),
            (_, _, value @ 1..) if scalar.numbers() > 1 => Err(Refusal::CopiedPairs { wos, value, scalar }),
            (_, value @ 1.., 0) if tensor.signs.is_some() => Err(Refusal::Signed { acp, value }),
            _ => Ok(()),
        }
    }
    /// Returns whether lanes of the unit convert weights that they read from shared memory. They do so with mma.sync for 16-bit
    /// floats, and with wgmma if operand A is in registers.
    fn read_raw(plan: &Keys, factor: Scalar) -> bool {
        let by_lanes = match plan.family().reads {
            Reads::Vectors => false,
            Reads::Fragments => !plan.has_panels(),
            Reads::Panels => true,
        };
        by_lanes && plan.family().wave() == WARP && matches!(factor, Scalar::F16 | Scalar::BF16)
    }
    /// The type of an operand's elements in shared memory, where copies bring them as memory has them.
    pub(super) fn raw(plan: &Keys, side: Side, tensor: &Tensor) -> Option<Scalar> {
        let method = match plan.family().reads {
            Reads::Vectors | Reads::Fragments => 1,
            Reads::Panels if fragment_sets(plan, side) > 0 => 2,
            // Instructions read factors and no weights.
            Reads::Panels => return None,
        };
        (tensor.has_weights() && plan.of(side).copy == method).then_some(tensor.scalar)
    }
    /// Checks that weights that lanes convert are contiguous along k.
    pub(super) fn raw_along(plan: &Plan, side: Side, tensor: &Tensor, along: Along) -> Result<(), Refusal> {
        let acp = side.key(Chiral::Acp);
        match (Transport::raw(plan, side, tensor), along) {
            (Some(_), Along::Row) => Err(Refusal::RawLines { acp, lines: acp.part().name() }),
            _ => Ok(()),
        }
    }
    /// Checks the path of elements that registers hold as two numbers, if the unit reads panels. They must pass through
    /// registers: elements of A as fragments, elements of B in producer warps.
    pub(super) fn check_wide_split(plan: &Plan) -> Result<(), Refusal> {
        let (rga, lwv) = (plan.register_sets, plan.producers);
        let [acp_a, acp_b] = Side::ALL.map(|side| plan.of(side).copy);
        match plan.family().reads {
            Reads::Panels if rga == 0 || lwv == 0 || (acp_a, acp_b) != (2, 0) => {
                Err(Refusal::UnitSplits { rga, lwv, acp_a, acp_b })
            }
            Reads::Panels | Reads::Vectors | Reads::Fragments => Ok(()),
        }
    }
    /// Fits operand B's copy to weights of operand A that lanes convert, or the reverse.
    ///
    /// Weights in fragments of a warpgroup's operand A put operand B in their order of k ([`Transport::in_runs`]). Weights in shared memory
    /// need both operands contiguous along k.
    pub(super) fn fit_to_weights<'a>(
        plan: &Plan,
        frame: &Frame,
        a: &TiledOperand,
        b: TiledOperand<'a>,
        from: &Tensor,
    ) -> Result<TiledOperand<'a>, Refusal> {
        if let Some(run) = frame.runs {
            let copy = Transport::in_runs(plan, run, &b.tiling, from, b.copy)?;
            return Ok(TiledOperand { copy, ..b });
        }
        let raw = [a, &b].iter().position(|x| x.tiling.raw.is_some());
        let rows = |x: &&TiledOperand| x.tiling.shared_along != Along::K || x.copy.tile().is_some() || x.copy.halo().is_some();
        match (raw, [a, &b].iter().position(rows)) {
            (Some(raw), Some(lines)) => Err(Refusal::RawLines { acp: Side::ALL[raw].key(Chiral::Acp), lines: ["A", "B"][lines] }),
            _ => Ok(b),
        }
    }
    /// Stores operand B in the k order of the weights of operand A in the lanes of a warpgroup, by a copy or by producer warps.
    fn in_runs(plan: &Plan, run: u32, o: &OperandTiling, tensor: &Tensor, copy: Transport) -> Result<Transport, Refusal> {
        let (acp, wos) = (plan.b.copy, plan.b.source);
        let runs = Some(run);
        match copy {
            Transport::Bulk(tile)
                if o.source == Source::CopyInRuns(run) && tensor.view.extent[COL].is_multiple_of(u64::from(4 * run)) =>
            {
                Ok(Transport::Bulk(BulkTile { runs, ..tile }))
            }
            Transport::Written(tile)
                if o.source == Source::InPlace && tile.k_contiguous && fetch_width(tensor, COL).is_multiple_of(2) =>
            {
                Ok(Transport::Written(BulkTile { runs, ..tile }))
            }
            _ => Err(Refusal::RawOrder { acp, wos }),
        }
    }
    /// Weights along k that a lane holds at once, where operand A is in registers.
    pub(super) fn runs(plan: &Plan, a: &Tensor, k_tile: u32) -> Option<u32> {
        let weights = Transport::raw(plan, Side::A, a).filter(|_| fragment_sets(plan, Side::A) > 0);
        weights.map(|_| RUN.min(k_tile / 4))
    }
    /// Whether asynchronous copies move vectors of this width and direction, if the plan asks for them.
    pub(super) fn copies_vectors(
        plan: &Plan,
        side: Side,
        from: &Tensor,
        width: u32,
        along: Along,
        unit: &Family,
    ) -> Result<(), Refusal> {
        let acp = side.key(Chiral::Acp);
        if plan.of(side).copy != 1 {
            return Ok(());
        }
        let bytes = from.scalar.bytes_of(width.into()) as u32;
        let lines = unit.lines(from.scalar.bytes(), false);
        if width > 1 && along == Along::K && lines == Lines::Rows && !plan.has_panels() {
            return Err(Refusal::AsyncAlongK { acp });
        }
        if width > 1 && along == Along::Row && from.scalar.bytes() == 1 && lines == Lines::K {
            return Err(Refusal::AsyncAlongRows { acp, scalar: from.scalar });
        }
        if !ASYNC_COPY_BYTES.contains(&bytes) {
            return Err(Refusal::AsyncBytes { acp, width, scalar: from.scalar, bytes });
        }
        Ok(())
    }

    /// Threads that write panels, along the lines that their vectors come in.
    pub(super) fn panels(plan: &Plan, side: Side, from: &Tensor, o: &OperandTiling, frame: &Frame) -> Result<Transport, Refusal> {
        let acp = side.key(Chiral::Acp);
        let tile = panels(from, o, frame.k_tile, o.shared_along, frame.family);
        let tile = tile.map_err(|why| Refusal::BulkBox { acp, value: plan.of(side).copy, why })?;
        Ok(Transport::Panels { tile, asynchronous: plan.of(side).copy == 1 })
    }

    /// Derives the halo of a result tile whose rows start at multiples of `grain`, for threads that copy it.
    pub(super) fn windows(
        plan: &Plan,
        operand: &OperandFrame,
        from: &Tensor,
        o: &OperandTiling,
        frame: &Frame,
        grain: u64,
    ) -> Result<Transport, Refusal> {
        let (acp, k_tile) = (operand.side.key(Chiral::Acp), frame.k_tile);
        let refuse = |why: &str| Err(Refusal::Halo { acp, why: why.into() });
        let row = frame.row.filter(|row| Transport::reads_halos(frame.family) && row.a.elements > 1);
        let Some(row) = row.filter(|_| !plan.has_panels()) else {
            return refuse("it needs ldmatrix: mma.sync (UNI1) with 16-bit or 8-bit operands, without TMA; use another ACP");
        };
        if !matches!(o.source, Source::InPlace | Source::PaddedRows) {
            return refuse("windows in a workspace copy do not overlap; use WOS0 or WOS3");
        }
        if operand.run_time {
            return refuse("the number of its rows is known only at launch; use another ACP");
        }
        if frame.stagger {
            return refuse("k-tiles start at any k with UFO1; use UFO0");
        }
        let wanted = Wanted { k_tile, k_step: row.step, threads: frame.load_threads, grain };
        let halo = Halo::new(from, o, &wanted).map_err(|why| Refusal::Halo { acp, why: format!("{why}; use another ACP") })?;
        Ok(Transport::Halo(Box::new(halo)))
    }

    /// Checks the copy methods of both operands against the pipeline, as far as the plan alone decides.
    pub(super) fn check_plan(plan: &Plan) -> Result<(), Refusal> {
        let (pfg, buf, lwv, pipeline) = (plan.ahead, plan.buffers, plan.producers, plan.has_pipeline());
        for side in Side::ALL {
            let acp = side.key(Chiral::Acp);
            match (pipeline, plan.of(side).copy) {
                // The copy of tile t + PFG lands while tile t is read: it needs a buffer of its own.
                (false, value @ (1 | 4)) if pfg == 0 || buf < pfg + 1 => {
                    return Err(Refusal::AsyncAhead { acp, value, pfg, buf });
                }
                (true, value) if plan.family().wave() > WARP => return Err(Refusal::BulkUnit { acp, value }),
                // Tiles that do not come in bulk are written by waves that do nothing else.
                (true, value) if value != 2 && lwv == 0 => return Err(Refusal::UnitCopy { acp, value, lwv }),
                // Each has as many classes of lines to itself.
                (true, 3) if lwv > LINE_CLASSES || !LINE_CLASSES.is_multiple_of(lwv) => {
                    return Err(Refusal::ShiftWaves { acp, lwv });
                }
                _ => {}
            }
        }
        let (rga, acp) = (plan.register_sets, plan.a.copy);
        if rga > 0 && acp != 2 { Err(Refusal::FragmentsWritten { rga, acp }) } else { Ok(()) }
    }
    /// Checks that operand B may be two tensors: a row of it is in the one or the other.
    pub(super) fn reads_two_tensors(&self, plan: &Plan) -> Result<(), Refusal> {
        let refuse = |key: Chiral, value, why| Err(Refusal::TwoTensors { key: Side::B.key(key), value, why });
        if plan.b.source > 0 {
            return refuse(Chiral::Wos, plan.b.source, "copies in workspace are of one tensor; use WOS0");
        }
        match self {
            Transport::Shifted(_) => refuse(Chiral::Acp, plan.b.copy, "rows are shifted from one tensor; use ACP0 with LWV"),
            Transport::Halo(_) => refuse(Chiral::Acp, plan.b.copy, "a halo is of one tensor; use another ACP"),
            Transport::Registers
            | Transport::Async
            | Transport::Panels { .. }
            | Transport::Bulk(_)
            | Transport::Own(_)
            | Transport::Written(_) => Ok(()),
        }
    }
    /// Derives the copy method of an operand in a pipeline.
    pub(super) fn in_pipeline_of(
        plan: &Plan,
        operand: &OperandFrame,
        from: &Tensor,
        o: &OperandTiling,
        frame: &Frame,
    ) -> Result<Transport, Refusal> {
        let (acp, k_tile, unit) = (operand.side.key(Chiral::Acp), frame.k_tile, frame.family);
        let found = match plan.of(operand.side).copy {
            0 if operand.shares > 1 => Err("producer warps (ACP0) write it for one work-group, not for a cluster".into()),
            0 => fetched_tile(from, o, k_tile, unit).map(Transport::Written),
            3 if operand.shares > 1 => Err("producer warps (ACP3) shift it for one work-group, not for a cluster".into()),
            3 if o.source != Source::InPlace => Err("rows of a workspace copy are aligned and need no shift".into()),
            3 => spans(from, o, k_tile, unit).and_then(|spans| {
                // A copy ahead into the next piece of work counts on its k-tiles.
                let empty = plan.persistent > 0 && frame.k.div_ceil(k_tile.into()) < plan.splits.into();
                match (operand.run_time, empty) {
                    (true, _) => Err("its rows are known only at launch, but its tensor maps are not".into()),
                    (_, true) => {
                        Err("copies run ahead into the next tile (PST), and some splits (ICE) have no k-tile; use PST0, \
                                      a smaller ICE"
                            .into())
                    }
                    _ => {
                        Ok(Transport::Shifted(Box::new(Shifted { tile: fetched_tile(from, o, k_tile, unit)?, spans, slots: 0 })))
                    }
                }
            }),
            _ => bulk_tile(from, o, k_tile, unit, operand.shares).map(Transport::Bulk),
        };
        found.map_err(|why| Refusal::BulkBox { acp, value: plan.of(operand.side).copy, why })
    }
}
