//! Work counts of a derived plan: what `explain` shows and cost models start from. Counted from the plan, not measured.

use super::derived::Derived;
use super::fits::{Footprint, pieces, whole_pieces};
use super::spec::*;
use super::tile::*;
use super::transport::Transport;
use serde::Serialize;
use tilewright_ir::mma::Reads;
use tilewright_ir::{Mma, MmaShape, Target};
use tilewright_problem::contraction::{Contraction, ResultSource, Tensor};
use tilewright_problem::view::{COL, G, ROW};

/// What one thread does in one k-tile. Loads and stores are instructions of the plan's widths.
///
/// ```
/// use tilewright_gen::plan::{Plan, counts};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 128x128x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A thread computes 8 x 8 results: 64 multiply-adds for each of 16 k.
/// let each = counts(&derived).per_k_tile;
/// assert_eq!((each.math, each.barriers), (64.0 * 16.0, 2.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Instructions {
    /// Multiply-adds (vectors of `MVW` count once).
    pub math: f64,
    /// Reads from shared memory into fragments.
    pub fragment_reads: f64,
    /// Loads from global memory, or asynchronous copies.
    pub global_loads: f64,
    /// Stores to shared memory; asynchronous copies have none.
    pub shared_stores: f64,
    /// Barriers of the work-group.
    pub barriers: f64,
}

/// Work of all kernels of a program, the whole batch together.
///
/// ```
/// use tilewright_gen::plan::{Plan, counts};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 500, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 128x128x16 on 16x16, predicate")?;
/// let derived = space.resolve(&plan)?.spec;
/// let counts = counts(&derived);
/// assert_eq!((counts.groups, counts.k_tiles, counts.launches), (16, 32, 1));
/// // Edges are counted as whole tiles.
/// assert_eq!(counts.useful(), 500.0 / 512.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Floating-point operations asked for: 2 g m n k.
    pub flop: f64,
    /// Floating-point operations done: edges and k tails counted as whole tiles.
    pub flop_done: f64,
    /// Least traffic with device memory in bytes: every operand once, C once, copies and partial sums written and read.
    pub dram_bytes: f64,
    /// Bytes that work-groups load of A and B: every tile of every k-tile, whatever caches hold.
    pub loaded_bytes: f64,
    /// Bytes of results and partial sums that the main kernel stores.
    pub stored_bytes: f64,
    /// Bytes written to shared memory.
    pub shared_written: f64,
    /// Bytes read from shared memory, a broadcast counted once per thread.
    pub shared_read: f64,
    /// Tiles of the result times splits of k: work-groups of the main kernel where none is persistent.
    pub groups: u64,
    /// Threads per work-group.
    pub threads: u32,
    /// k-tiles of the busiest work-group.
    pub k_tiles: u64,
    /// Kernels launched if the batch needs no cutting. They are: one for the copies, scaling of C, main kernel, split-k
    /// reduction, reduction of the tiles' parts of the result's reductions.
    pub launches: u32,
    /// One math thread in one k-tile, and one load thread.
    pub per_k_tile: Instructions,
}

impl Counts {
    /// Floating-point operations per byte of least device-memory traffic.
    pub fn intensity(&self) -> f64 {
        self.flop / self.dram_bytes.max(1.0)
    }
    /// Share of the operations done that were asked for, 0 to 1.
    pub fn useful(&self) -> f64 {
        if self.flop_done > 0.0 { self.flop / self.flop_done } else { 1.0 }
    }
}

impl Footprint {
    /// Times that the device is filled with work-groups; the fractional part is the last, partly filled one.
    pub fn fills(&self, groups: u64, target: &Target) -> f64 {
        groups as f64 / (f64::from(self.groups_per_unit) * f64::from(target.units.max(1)))
    }
}

/// Bytes of quantisation parameters, bias and residual, read once, and of pre-activations, written once.
pub fn added_bytes(c: &Contraction) -> f64 {
    let vectors = c.quants().map(|(_, x)| x).chain(c.bias());
    let vectors: f64 = vectors.map(|x| x.len as f64 * f64::from(x.scalar.bytes())).sum();
    let tensors = c.residual().into_iter().chain(c.preactivations());
    vectors + tensors.map(|x| x.len as f64 * f64::from(x.scalar.bytes())).sum::<f64>()
}

/// Counts the work of a derived plan.
pub fn counts(derived: &Derived) -> Counts {
    let Derived { spec, c, .. } = derived;
    let t = &spec.tiling;
    let groups = whole_pieces(derived);
    let all_k_tiles = c.depth().div_ceil(u64::from(t.k_tile));
    let ways = u64::from(t.split_k.ways.max(1));
    // k-tiles over all work-groups: a split shares them.
    let steps = (groups / ways) as f64 * all_k_tiles as f64;
    let tile = |i: usize, o: &OperandTiling, tensor: &Tensor| match &spec.schedule.copies[i] {
        // Each thread's loads.
        Transport::Own(loads) => tensor.bytes_of(f64::from(spec.launch_threads() * loads.width)) * loads.places.len() as f64,
        // The k-tile's share of a halo that is copied once for all k-tiles.
        Transport::Halo(halo) => tensor.bytes_of(f64::from(halo.copied())) * ways as f64 / all_k_tiles.max(1) as f64,
        _ => tile_bytes(o, t.k_tile, tensor),
    };
    let (tile_a, tile_b) = (tile(0, &t.a, &c.a), tile(1, &t.b, &c.b));
    let shared = if spec.schedule.own() { 0.0 } else { 1.0 };
    let size = |o: &OperandTiling, tensor: &Tensor| o.shared_bytes(tensor) * f64::from(o.shared_parts);
    let widened = |bytes: f64, o: &OperandTiling, tensor: &Tensor| bytes / tensor.bytes_of(1.0) * size(o, tensor);
    let results = c.results();
    let acc_bytes = f64::from(c.accumulator().bytes());
    let split = spec.split_rows(c);
    let by_workspace = split.splits > 1 && spec.epilogue.split != Split::Atomic;
    let share = split.rows as f64 / c.m.max(1) as f64;
    let partials = if by_workspace { results * share * f64::from(split.splits) * acc_bytes } else { 0.0 };
    let c_bytes = if c.drop_c { 0.0 } else { results * f64::from(c.c.scalar.bytes()) };
    let read_once = match c.source {
        ResultSource::Elements(_) => results.min(c.a.len as f64) * f64::from(c.a.scalar.bytes()),
        _ => 0.0,
    };
    let second: f64 = c.second_operands().map(|(_, x)| x.bytes_of(x.len as f64)).sum();
    let added = added_bytes(c) + read_once + second;
    let copied: f64 =
        [0, 1].map(|which| derived.copied_elements(which) * f64::from(derived.read(which).scalar.bytes())).iter().sum();
    let read = |o: &OperandTiling, tensor: &Tensor| f64::from(o.micro * t.k_tile) * size(o, tensor);
    let math_threads = f64::from(t.math_threads() / t.unit.family().lanes);
    let copies = [&t.a, &t.b].iter().filter(|o| o.source != Source::InPlace).count() as u32;
    Counts {
        flop: c.flop(),
        flop_done: 2.0 * steps * f64::from(t.a.macro_tile) * f64::from(t.b.macro_tile) * f64::from(t.k_tile),
        dram_bytes: least_bytes(c, &c.a, c.m) + least_bytes(c, &c.b, c.n) + c_bytes + added + 2.0 * (copied + partials),
        loaded_bytes: steps * (tile_a + tile_b),
        stored_bytes: match (split.splits > 1, by_workspace) {
            (true, true) => partials + c_bytes * (1.0 - share),
            (true, false) => c_bytes * ways as f64,
            _ => c_bytes,
        },
        shared_written: shared * steps * (widened(tile_a, &t.a, &c.a) + widened(tile_b, &t.b, &c.b)),
        shared_read: shared * steps * math_threads * (read(&t.a, &c.a) + read(&t.b, &c.b)),
        groups: pieces(derived),
        threads: spec.launch_threads(),
        k_tiles: all_k_tiles.div_ceil(ways),
        launches: 1
            + copies.min(1)
            + u32::from(split.splits > 1)
            + u32::from(spec.finishes_after(c))
            + u32::from(spec.begins_ahead(c)),
        per_k_tile: instructions(spec, c),
    }
}

fn tile_bytes(o: &OperandTiling, k_tile: u32, tensor: &Tensor) -> f64 {
    tensor.bytes_of(f64::from(o.macro_tile) * f64::from(k_tile))
}

/// Bytes of an operand that must come from device memory once. Windows of a convolution overlap, so its memory may hold fewer
/// elements than its view has.
fn least_bytes(c: &Contraction, tensor: &Tensor, rows: u64) -> f64 {
    let own = tensor.view.extent[G] as f64;
    let named = own.max(c.g as f64) * rows as f64 * c.k as f64;
    tensor.bytes_of(named.min(tensor.len as f64))
}

/// Math instructions of a k-step, and reads from shared memory into registers.
struct KStep {
    math: f64,
    reads: f64,
}

fn instructions(spec: &KernelSpec, c: &Contraction) -> Instructions {
    let (t, s) = (&spec.tiling, &spec.schedule);
    let bytes = c.a.factor().bytes();
    let of_step = match (t.unit.family().reads, t.instruction) {
        (Reads::Panels, _) => return from_panels(spec, c),
        (Reads::Fragments, Some(row)) => of_fragments(t, row, bytes),
        _ => {
            // Dot products read each row separately.
            let alone = t.unit.family().along_k(bytes, false);
            let reads = |o: &OperandTiling| f64::from(o.micro) / if alone { 1.0 } else { f64::from(o.fragment_width.max(1)) };
            KStep { math: f64::from(t.a.micro * t.b.micro) / f64::from(t.math_width.max(1)), reads: reads(&t.a) + reads(&t.b) }
        }
    };
    let k_steps = f64::from(t.k_steps());
    let stores = |i: usize, o: &OperandTiling| s.copies[i].stores(o) * f64::from(o.shared_parts);
    Instructions {
        math: k_steps * of_step.math * f64::from(t.products()),
        fragment_reads: if s.own() { 0.0 } else { k_steps * of_step.reads },
        global_loads: s.copies[0].loads(&t.a) + s.copies[1].loads(&t.b),
        shared_stores: stores(0, &t.a) + stores(1, &t.b),
        barriers: if s.own() {
            0.0
        } else if s.buffers == 1 {
            2.0
        } else {
            1.0
        },
    }
}

/// Instructions that read panels: at most operand A comes in fragments.
fn from_panels(spec: &KernelSpec, c: &Contraction) -> Instructions {
    let (t, bytes) = (&spec.tiling, c.a.factor().bytes());
    let math = f64::from(t.steps(c, 32 / bytes).len() as u32 * (t.a.micro / t.unit.family().block.rows));
    // A fragment from lines of 32-bit elements along rows comes word by word.
    let words = bytes == 4 && c.a.view.stride(ROW) == Some(1) && c.a.view.stride(COL) != Some(1);
    let reads = match (t.a.fragment_sets, words) {
        (0, _) => 0.0,
        (_, false) => 1.0,
        (_, true) => f64::from(FRAGMENT),
    };
    Instructions {
        math: math * f64::from(t.products()),
        fragment_reads: math * reads,
        global_loads: 2.0,
        ..Instructions::default()
    }
}

/// A k-step of instructions whose lanes read fragments of both operands, of factors of so many bytes.
fn of_fragments(t: &Tiling, row: &Mma, bytes: u32) -> KStep {
    let (MmaShape { m: rows, n: columns, k: depth }, family) = (row.shape, t.unit.family());
    let steps = t.k_step() / depth.max(1);
    // A read fills a few registers of each lane at once; those of wider elements come one by one.
    let at_once = if bytes <= 2 { family.read } else { 1 };
    let held = |o: &OperandTiling| o.micro * t.k_step() * bytes / 4 / family.lanes;
    let reads = |o: &OperandTiling| f64::from(held(o).div_ceil(at_once) * o.shared_parts);
    KStep { math: f64::from((t.a.micro / rows) * (t.b.micro / columns) * steps), reads: reads(&t.a) + reads(&t.b) }
}
