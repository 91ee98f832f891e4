//! Whether a derived plan fits a device, and how much of it one work-group takes.

use super::derived::Derived;
use super::own_loads::OwnLoads;
use super::reach;
use super::reduction::Finish;
use super::refusal::Refusal;
use super::spec::*;
use super::tile::*;
use super::transport::Transport;
use serde::Serialize;
use tilewright_ir::{Mma, REGISTER_STEP, Scalar, Target};
use tilewright_problem::FactorParts;
use tilewright_problem::contraction::{Contraction, ResultSource, Tensor};

/// What a kernel takes of a device.
///
/// ```
/// use tilewright_gen::plan::{Plan, fits};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 128x128x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// // The k-tiles of A and B: 16 lines of 128 elements and one of padding each.
/// let footprint = fits(&derived, &target)?;
/// assert_eq!((footprint.threads, footprint.shared_bytes), (256, 2 * 16 * (128 + 1) * 4));
/// assert!(footprint.groups_per_unit >= 1 && footprint.registers > 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Footprint {
    /// Threads per work-group, producers and consumers together.
    pub threads: u32,
    /// Shared memory per work-group, in bytes.
    pub shared_bytes: u32,
    /// 32-bit registers per thread, estimated, before the compiler spills or saves any.
    pub registers: u32,
    /// Work-groups that one compute unit can hold at once, by threads, shared memory and estimated registers.
    pub groups_per_unit: u32,
}

/// Registers for pointers, counters and ids. Compilers were seen to need 20 to 35 of them for plain strides.
const ADDRESS_REGISTERS: u32 = 26;
/// Further registers per row of a thread's load tile when the operand's rows are not a plain stride (offset, bounds).
const ROW_REGISTERS: u32 = 3;
/// Registers of consumer warps besides accumulators: descriptors, counters, addresses of the epilogue.
const UNIT_REGISTERS: u32 = 26;
/// Registers for stores of whole rows, which read and scale accumulators while the next rows are in registers.
const ROW_REGISTERS_OUT: u32 = 12;
/// The same where threads load what they multiply: in a single block, with its loads before the multiply-adds (4,400 took an assembler 20 s).
const MOST_OWN: u64 = 3_000;
/// Loads of what a thread multiplies that it has on their way to registers at once.
const OWN_LOADS: u32 = 8;
/// Multiply-adds that a load is as long as: 768 loads of a thread took an assembler more than a minute.
const LOAD_TEXT: u64 = 24;
/// Most multiply-adds of a thread that the main loop's source may hold. Compilers need a minute and more for longer loops, and
/// the instruction cache holds a tenth of it.
const MOST_UNROLLED: u64 = 16_384;

/// The footprint on a device, or why the device cannot run it.
pub fn fits(derived: &Derived, target: &Target) -> Result<Footprint, Refusal> {
    let (Derived { spec, c, .. }, limits) = (derived, &target.limits);
    features(spec, c, target)?;
    let threads = spec.launch_threads();
    if threads > limits.max_threads {
        return Err(Refusal::Threads { threads, max: limits.max_threads });
    }
    let bytes = spec.shared.bytes();
    let most = bytes.max(spec.element_bytes(c));
    if most > limits.shared_per_group as u64 {
        return Err(Refusal::Shared { bytes: most, max: limits.shared_per_group });
    }
    let shared_bytes = bytes as u32;
    let (count, max) = (unrolled(spec), if spec.schedule.own() { MOST_OWN } else { MOST_UNROLLED });
    if count > max {
        return Err(Refusal::Unrolled { count, max });
    }
    let (groups, max) = (pieces(derived), limits.max_grid[0]);
    if groups > max {
        return Err(Refusal::Groups { groups, max });
    }
    // Room for several work-groups (MGP) is taken from registers that cannot be spilled.
    let share = if spec.schedule.writes_later() {
        let wave = spec.tiling.wave_lanes.max(1);
        limits.share(threads.div_ceil(wave) * spec.style.min_groups.max(1), wave)
    } else {
        limits.registers_per_unit / threads.max(1) / REGISTER_STEP * REGISTER_STEP
    };
    let even = limits.registers_per_thread.min(share);
    let budget = spec.schedule.roles.and_then(|r| r.registers);
    let max = budget.map_or(even, |(_, math)| math);
    // Whatever moves later: assemblers refuse an instruction whose accumulators, and operand A where it is in registers, the launch's share does
    // not hold.
    if let Some(row) = spec.tiling.accumulator_row() {
        let a = if spec.tiling.a.fragment_sets > 0 { row.a.registers } else { 0 };
        let instruction = row.accumulator_registers(row.columns(spec.tiling.b.micro)) + a + UNIT_REGISTERS;
        if instruction > even {
            return Err(Refusal::Registers { needed: instruction, max: even });
        }
    }
    let needed = math_registers(spec, c) + spec.carried_registers(c);
    if needed > max {
        return Err(Refusal::Registers { needed, max });
    }
    let registers = registers(spec, c);
    let held = registers.min(even).next_multiple_of(REGISTER_STEP).max(REGISTER_STEP);
    let by_registers = limits.registers_per_unit / (held * threads).max(1);
    let by_shared = limits.shared_per_unit.checked_div(shared_bytes + limits.shared_reserved()).unwrap_or(limits.groups_per_unit);
    let by_threads = limits.threads_per_unit / threads.max(1);
    let groups_per_unit = limits.groups_per_unit.min(by_registers).min(by_shared).min(by_threads).max(1);
    Ok(Footprint { threads, shared_bytes, registers, groups_per_unit })
}

/// Multiply-adds of a thread in the text of the main loop: k-steps written out, once per set of staging registers. A load with its
/// address and bounds counts as much as [`LOAD_TEXT`] of them.
fn unrolled(spec: &KernelSpec) -> u64 {
    let (t, s) = (&spec.tiling, &spec.schedule);
    let written_out = spec.style.unroll_k || s.own() || s.fragments_ahead > 0 || s.store == StorePoint::Spread;
    let steps = if written_out { t.k_steps() } else { 1 };
    let (rows, columns) = t.instruction.map_or((1, 1), |row| (row.shape.m, row.columns(t.b.micro)));
    let math = [t.b.micro / columns, steps, staging_sets(s)]
        .iter()
        .fold(u64::from(t.a.micro / rows), |n, x| n.saturating_mul(u64::from(*x)));
    let [a, b] = &s.copies;
    let loads = if s.in_pipeline() { 0 } else { (a.loads(&t.a) + b.loads(&t.b)) as u64 };
    math.saturating_add(LOAD_TEXT * loads)
}

fn features(spec: &KernelSpec, c: &Contraction, target: &Target) -> Result<(), Refusal> {
    let f = &target.features;
    let s = &spec.schedule;
    let double = [c.a.scalar, c.b.scalar, c.c.scalar].contains(&Scalar::F64);
    let atomic = spec.epilogue.split == Split::Atomic;
    let wide = c.reductions().any(|r| r.scalar.bytes() == 8);
    let unit = format!("UNI{}", spec.tiling.unit.family().number);
    let checks = [
        (double && !f.f64, "f64", "64-bit floating point", "f32"),
        (double && atomic && !f.atomic64, "ICE, SKS0 in f64", "64-bit atomics", "SKS1 or ICE1"),
        (spec.epilogue.finish == Finish::Ticket && !f.fence, "RDF1", "fences between work-groups", "RDF0"),
        (wide && spec.epilogue.finish.stage().is_some() && !f.atomic64, "RDF2, RDF3, RDF4 in 64 bits", "64-bit atomics", "RDF0"),
        (s.copied().0 && !f.async_copy, "ACP1", "asynchronous copies", "ACP0"),
        (s.roles.is_some() && !f.roles, "LWV", "waves with roles of their own", "LWV0"),
        (s.in_pipeline() && !f.bulk_copy, "ACP2", "bulk tensor copies", "ACP0"),
        (spec.tiling.cluster.size() > 1 && !f.cluster, "CLU, SKS2", "clusters of work-groups", "CLU1, and SKS0 or SKS1"),
        (!spec.tiling.unit.available(f), unit.as_str(), spec.tiling.unit.family().name, "another UNI"),
    ];
    match checks.into_iter().find(|(lacks, ..)| *lacks) {
        Some((_, wanted, feature, instead)) => Err(Refusal::Feature { wanted: wanted.into(), feature, instead }),
        None => Ok(()),
    }
}

/// Work-groups of the main kernel for the whole batch.
pub fn work_groups(derived: &Derived) -> u64 {
    match derived.tiling.persistent {
        0 => pieces(derived),
        stay => pieces(derived).min(u64::from(stay)),
    }
}

/// Tiles of the result over the whole batch, each split of k counted.
pub fn pieces(derived: &Derived) -> u64 {
    of_rows(derived, |tail, rows| tail.first + (rows - tail.first) * u64::from(tail.splits))
}

/// The same with the splits of each tile of a tail counted as one: what is loaded and multiplied.
pub fn whole_pieces(derived: &Derived) -> u64 {
    of_rows(derived, |_, rows| rows)
}

/// Pieces of work, where rows of tiles with a tail count as so many.
fn of_rows(Derived { spec, c, .. }: &Derived, with_tail: fn(Tail, u64) -> u64) -> u64 {
    let t = &spec.tiling;
    if let ResultSource::Elements(_) = c.source {
        return c.m.div_ceil(t.a.macro_tile.into()).saturating_mul(c.n.div_ceil(spec.share_of_columns(c)));
    }
    // Whole clusters.
    let [tiles_m, tiles_n, entries] = c.tiles([t.a.macro_tile.into(), t.b.macro_tile.into()]);
    let tiles_m = tiles_m.next_multiple_of(u64::from(t.cluster.m.max(1)));
    let tiles_n = tiles_n.next_multiple_of(u64::from(t.cluster.n.max(1)));
    let rows = t.tail.map_or(tiles_m, |tail| with_tail(tail, tiles_m));
    [tiles_n, entries, t.split_k.ways as u64].iter().fold(rows, |n, x| n.saturating_mul(*x))
}

/// Sets of staging registers a schedule needs: k-tiles fetched and not yet stored.
pub fn staging_sets(s: &Schedule) -> u32 {
    if s.fetch_ahead == 0 || s.copied().1 {
        return 1;
    }
    let stored = s.fetch_ahead.min(s.buffers - 1).max(1);
    s.fetch_ahead - stored + 1
}

/// Accumulators and fragments.
fn math_registers(spec: &KernelSpec, c: &Contraction) -> u32 {
    let t = &spec.tiling;
    let words = c.accumulator().bytes().div_ceil(4);
    if let Some(row) = t.accumulator_row() {
        let rows = if spec.epilogue.exit == Exit::Rows { ROW_REGISTERS_OUT } else { 0 };
        let held = fragment_registers(spec, c, row);
        return spec.sum_registers() * words + held + UNIT_REGISTERS + rows + spec.scale_registers(c);
    }
    if let [Transport::Own(a), Transport::Own(b)] = &spec.schedule.copies {
        let words_of = |loads: &OwnLoads, tensor: &Tensor| (loads.width * tensor.scalar.bytes()).div_ceil(4);
        // Of loads ahead those of two k-tiles are alive, and the conditions under which they exist.
        let held = |loads: &OwnLoads, tensor: &Tensor| loads.places.len() as u32 * (2 * words_of(loads, tensor) + 1);
        // The loads of a line of taps, or all of the next k-tile, the elements of one of them and of the other factor.
        let loads = match spec.schedule.fetch_ahead {
            0 => (a.places.len() as u32).min(OWN_LOADS) * words_of(a, &c.a),
            _ => held(a, &c.a) + held(b, &c.b),
        };
        return (t.a.micro * t.b.micro + 2 * t.b.micro) * words + loads;
    }
    let fragments = (t.a.micro + t.b.micro) * (1 + spec.schedule.fragments_ahead);
    (t.a.micro * t.b.micro * spec.schedule.sum_sets() + fragments) * words + spec.scale_registers(c)
}

/// Fragments of a lane: those of the k-steps on their way, and all parts of what is split in registers.
fn fragment_registers(spec: &KernelSpec, c: &Contraction, row: &Mma) -> u32 {
    let t = &spec.tiling;
    if row.b.registers == 0 {
        return t.a.fragment_registers();
    }
    let step = (t.a.micro + t.b.micro) * t.k_step() * c.a.factor().bytes() * t.a.shared_parts;
    // All parts of an instruction's depth of B, and of one fragment of A.
    let parts = |split: FactorParts| split.parts * (t.b.micro / row.shape.n * row.b.registers + row.a.registers);
    let parts = t.a.split_in_registers().map_or(0, parts);
    step / row.lanes() / 4 * (1 + spec.schedule.fragments_ahead) + parts
}

/// Staging registers and what a load thread needs to know where it is.
fn load_registers(spec: &KernelSpec, c: &Contraction) -> u32 {
    if spec.schedule.in_pipeline() {
        // Waves that fetch keep as many pieces in flight as registers allow: compilers take all there are.
        return if spec.schedule.copies.iter().any(Transport::is_written) { spec.even_registers() } else { 0 };
    }
    let sets = staging_sets(&spec.schedule);
    let one = |o: &OperandTiling, tensor: &Tensor, copy: &Transport| {
        if let Transport::Halo(_) = copy {
            // What lanes read at each instruction's rows.
            return o.micro / spec.tiling.unit.family().block.rows.max(1);
        }
        let plain = matches!(o.source, Source::Copy | Source::CopyAlongK | Source::CopyInRuns(_)) || reach::is_plain(tensor);
        let rows = if o.load_along == Along::Row { o.load_row / o.load_width.max(1) } else { o.load_row };
        copy.registers(o, tensor, sets) + if plain { 0 } else { rows * ROW_REGISTERS }
    };
    let [a, b] = &spec.schedule.copies;
    one(&spec.tiling.a, &c.a, a) + one(&spec.tiling.b, &c.b, b)
}

/// Estimated registers per thread. With roles the branches exclude each other, so the larger counts.
fn registers(spec: &KernelSpec, c: &Contraction) -> u32 {
    let (math, load) = (math_registers(spec, c) + spec.carried_registers(c), load_registers(spec, c));
    let busy = if spec.schedule.roles.is_some() { math.max(load) } else { math + load };
    let split = if spec.epilogue.split == Split::Workspace { 2 } else { 0 };
    // Where windows lie in shared memory the loop has no addresses of its own beside the unit's, and fragments are dead when the
    // epilogue stores rows. NVRTC's code for sm_90a takes 60 to 251 registers where this says 92 to 240.
    let windows = spec.schedule.roles.is_none() && spec.schedule.copies.iter().any(|copy| copy.halo().is_some());
    let address = if windows { 0 } else { ADDRESS_REGISTERS };
    let rows = if windows && spec.epilogue.exit == Exit::Rows { ROW_REGISTERS_OUT } else { 0 };
    busy + address + split - rows
}
