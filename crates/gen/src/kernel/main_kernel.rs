//! The main kernel: ids, the k range of a work-group, and the main loop as its lowered schedule says.

use super::index::Coord;
use super::load::{LoadContext, Loader, SharedTile};
use super::math::{Math, Tiles, micro_first};
use super::schedule::{Lowered, MathPart, Step, lower};
use super::{Input, Shape, epilogue};
use crate::contraction::{Contraction, Operand};
use crate::plan::{Edge, GroupOrder, KernelSpec, Source, SplitSum, Tiling};
use tilewright_ir::*;

/// Integer types of index arithmetic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ints {
    /// Coordinates.
    pub coord: Scalar,
    /// Element offsets within a tensor.
    pub offset: Scalar,
}

impl Ints {
    /// The narrowest types that hold every coordinate and offset of the launch.
    pub fn new(wide: bool, extents: &[u64], lens: &[u64]) -> Ints {
        // Room for tiles that overrun the edge.
        let limit = (1u64 << 31) - (1 << 16);
        let ty = |values: &[u64]| if wide || values.iter().any(|&v| v >= limit) { Scalar::I64 } else { Scalar::I32 };
        let offset = ty(lens);
        Ints { coord: if offset == Scalar::I64 && wide { Scalar::I64 } else { ty(extents) }, offset }
    }
}

/// Which result tile a work-group computes.
pub(super) struct TilePosition {
    pub tile_m: ExprId,
    pub tile_n: ExprId,
    /// First row and column.
    pub m_start: Coord,
    pub n_start: Coord,
    pub split: ExprId,
    /// Batch coordinate within the chunk and in the whole problem.
    pub g_local: ExprId,
    pub g: ExprId,
}

/// The k-tiles of a work-group.
struct KRange {
    tiles: ExprId,
    begin: ExprId,
    limit: ExprId,
    step: i64,
    /// Some tile may be partly or wholly outside 0..k element by element.
    ragged: bool,
    /// First tile may start below zero.
    staggered: bool,
}

/// Mutable counters of the main loop.
struct Counters {
    k_fetch: VarId,
    copy: Option<VarId>,
    store: Option<VarId>,
    read: Option<VarId>,
}

struct Args {
    buffer: [ArgId; 2],
    offset: [Option<ExprId>; 2],
    out: epilogue::OutArgs,
    g_first: Option<ExprId>,
}

/// Builds the main kernel.
pub(super) fn build(c: &Contraction, spec: &KernelSpec, a: &Input, b_in: &Input, shape: &Shape) -> Kernel {
    let t = &spec.tiling;
    let threads = spec.launch_threads();
    let mut b = Builder::new(super::MAIN, threads);
    let b = &mut b;
    b.min_groups(spec.style.min_groups);
    b.doc(format!("C[g,m,n] = alpha * sum_k A[g,m,k] * B[g,k,n] + beta * C[g,m,n]   g {} m {} n {} k {}", c.g, c.m, c.n, c.k));
    b.doc(format!("macro tile {} x {}, k-tile {}, {} threads", t.a.macro_tile, t.b.macro_tile, t.k_tile, threads));
    let ints = Ints::new(
        spec.style.wide_index,
        &[
            shape.tiles_m * t.a.macro_tile as u64,
            shape.tiles_n * t.b.macro_tile as u64,
            c.k + 8 * t.k_tile as u64 * t.split_k.ways as u64,
            c.g,
        ],
        &[a.tensor.len, b_in.tensor.len, c.c.len, c.m * c.n],
    );
    let args = declare_args(b, c, spec, [a, b_in], shape);
    let tile_at = |b: &mut Builder, input: &Input, name: &str, at: u32| {
        let o = &input.tiling;
        let pitch = o.macro_tile + o.pad;
        let buffer = pitch * t.k_tile;
        let array = b.shared(name, input.tensor.scalar, buffer * spec.schedule.buffers, at);
        SharedTile { array, pitch, buffer }
    };
    let shared_a = tile_at(b, a, "a_tile", 0);
    let end_a = b.kernel().shared_bytes().next_multiple_of(16);
    let shared_b = tile_at(b, b_in, "b_tile", end_a);

    let local = b.builtin(Builtin::LocalId);
    let local = b.bind("local_id", local);
    let at = position(b, t, shape, [a, b_in], &args, ints, c);
    let range = k_range(b, c, t, &at, shape, ints, spec.schedule.fetch_ahead);
    let lowered = lower(&spec.schedule, t.k_tile);
    let inputs = [a, b_in];

    match spec.schedule.roles {
        None => {
            let counters = counters(b, &range, spec, ints);
            let mut loaders = loaders(b, spec, inputs, [shared_a, shared_b], &args, &at, &range, local, &lowered, shape, ints);
            let (math, first) = start_math(b, c, spec, inputs, local);
            main_loop(b, spec, &lowered, &range, &counters, Some(&mut loaders), Some(&math), ints);
            epilogue::emit(b, c, spec, inputs, &math, first, &at, &args.out, ints);
        }
        Some(roles) => {
            let (pitch_a, pitch_b) = (copy_tile(&shared_a), copy_tile(&shared_b));
            let mut barriers = 0;
            let math_body = b.block(|b| {
                let counters = counters(b, &range, spec, ints);
                let (math, first) = start_math(b, c, spec, inputs, local);
                let tiles = MathTiles { shared: [pitch_a, pitch_b] };
                math_loop(b, spec, &lowered, &range, &counters, &math, &tiles);
                barriers = epilogue::emit(b, c, spec, inputs, &math, first, &at, &args.out, ints);
            });
            let load_body = b.block(|b| {
                let counters = counters(b, &range, spec, ints);
                let thread = b.sub(local, roles.math_threads);
                let thread = b.bind("load_thread", thread);
                let mut loaders =
                    loaders(b, spec, inputs, [shared_a, shared_b], &args, &at, &range, thread, &lowered, shape, ints);
                main_loop(b, spec, &lowered, &range, &counters, Some(&mut loaders), None, ints);
                // The math waves' epilogue meets these barriers.
                for _ in 0..barriers {
                    b.barrier();
                }
            });
            b.push(Stmt::Roles(vec![
                Role { name: "math".into(), first_thread: 0, threads: roles.math_threads, body: math_body },
                Role { name: "load".into(), first_thread: roles.math_threads, threads: roles.load_threads, body: load_body },
            ]));
        }
    }
    std::mem::replace(b, Builder::new("", 0)).finish()
}

fn copy_tile(s: &SharedTile) -> SharedTile {
    SharedTile { array: s.array, pitch: s.pitch, buffer: s.buffer }
}

fn declare_args(b: &mut Builder, c: &Contraction, spec: &KernelSpec, inputs: [&Input; 2], shape: &Shape) -> Args {
    let mut buffer = [ArgId(0); 2];
    let mut offset = [None; 2];
    for (i, x) in inputs.iter().enumerate() {
        let (name, doc) = if x.operand == Operand::A { ("a", "left operand") } else { ("b", "right operand") };
        let copied = x.tiling.source != Source::InPlace;
        let doc = if copied { format!("{doc}, materialised in workspace") } else { doc.to_string() };
        buffer[i] = b.buffer(name, x.tensor.scalar, Access::Read, &doc);
        if !copied {
            offset[i] = Some(b.scalar_arg(&format!("{name}_offset"), Scalar::I64, "first element of the operand in its buffer"));
        }
    }
    let acc = c.accumulator();
    let split = spec.tiling.split_k.ways > 1;
    let out = if split && spec.epilogue.split_sum == SplitSum::Workspace {
        let partials = b.buffer("partials", acc, Access::Write, "partial sums [split][g][result], summed by the next kernel");
        epilogue::OutArgs::Partials { partials, chunk: shape.chunk }
    } else {
        let access = if split { Access::ReadWrite } else { Access::ReadWrite };
        let buffer = b.buffer("c", c.c.scalar, access, "result");
        let offset = b.scalar_arg("c_offset", Scalar::I64, "first element of the result in its buffer");
        let bias = (!split)
            .then_some(c.bias.as_ref())
            .flatten()
            .map(|x| b.buffer("bias", x.scalar, Access::Read, "added to the result"));
        let alpha = b.scalar_arg("alpha", acc, "factor of the product");
        if split {
            epilogue::OutArgs::Atomic { buffer, offset, alpha }
        } else {
            let beta = b.scalar_arg("beta", acc, "factor of the old result; 0 never reads it");
            epilogue::OutArgs::Store { buffer, offset, bias, alpha, beta }
        }
    };
    let g_first = (shape.chunks > 1).then(|| b.scalar_arg("g_first", Scalar::I64, "first batch entry of this launch"));
    Args { buffer, offset, out, g_first }
}

fn position(
    b: &mut Builder,
    t: &Tiling,
    shape: &Shape,
    inputs: [&Input; 2],
    args: &Args,
    ints: Ints,
    c: &Contraction,
) -> TilePosition {
    let group = b.builtin(Builtin::GroupId(0));
    let group = b.bind("group_id", group);
    let ways = t.split_k.ways;
    let split = b.rem(group, ways);
    let split = b.bind("split", split);
    let tile = b.div(group, ways);
    let tiles = (shape.tiles_m * shape.tiles_n) as i64;
    let batched = shape.chunk > 1;
    let zero = b.int(0, Scalar::I32);
    let (g_local, tile) = if batched { (b.div(tile, tiles), b.rem(tile, tiles)) } else { (zero, tile) };
    let tile = b.bind("tile", tile);
    let g_local = b.bind("g_local", g_local);
    let (tm, tn) = (shape.tiles_m as i64, shape.tiles_n as i64);
    let (tile_m, tile_n) = match t.order {
        GroupOrder::ColumnsFastest => (b.div(tile, tn), b.rem(tile, tn)),
        GroupOrder::RowsFastest => (b.rem(tile, tm), b.div(tile, tm)),
        GroupOrder::Strips(width) => {
            let width = (width as i64).min(tn);
            let strip = b.div(tile, width * tm);
            let strip = b.bind("strip", strip);
            let within = b.rem(tile, width * tm);
            let first = b.mul(strip, width);
            let first = b.bind("strip_first", first);
            // The last strip may be narrower.
            let here = if tn % width == 0 {
                b.int(width, Scalar::I32)
            } else {
                let left = b.sub(tn, first);
                b.binary(BinaryOp::Min, left, width)
            };
            let col = b.rem(within, here);
            (b.div(within, here), b.add(first, col))
        }
    };
    let tile_m = b.bind("tile_m", tile_m);
    let tile_n = b.bind("tile_n", tile_n);
    let start = |b: &mut Builder, name: &str, tile: ExprId, input: &Input, extent: u64| {
        let size = input.tiling.macro_tile as i64;
        let tile = b.cast(tile, ints.coord);
        let value = b.mul(tile, size);
        let divides = extent as i64 % size == 0;
        let (value, unit) = match input.edge {
            Edge::PullBack if !divides => (b.binary(BinaryOp::Min, value, extent as i64 - size), 1),
            _ => (value, size),
        };
        let aligned = b.bind(name, value);
        let zero = b.int(0, ints.coord);
        if unit == 1 { Coord::plain(b, aligned) } else { Coord { aligned, unit, local: zero } }
    };
    let m_start = start(b, "m_start", tile_m, inputs[0], c.m);
    let n_start = start(b, "n_start", tile_n, inputs[1], c.n);
    let g_local = b.cast(g_local, ints.coord);
    let g = match args.g_first {
        Some(first) => {
            let first = b.cast(first, ints.coord);
            let g = b.add(first, g_local);
            b.bind("g", g)
        }
        None => g_local,
    };
    TilePosition { tile_m, tile_n, m_start, n_start, split, g_local, g }
}

fn k_range(b: &mut Builder, c: &Contraction, t: &Tiling, at: &TilePosition, shape: &Shape, ints: Ints, ahead: u32) -> KRange {
    let depth = t.k_tile as i64;
    let k = c.k as i64;
    let ways = t.split_k.ways as i64;
    let shift = t.k_stagger.then(|| {
        // Work-groups start at different k to spread over memory channels (MIOpenGEMM's unroll-for-offset).
        let m = b.mul(at.tile_m, 13);
        let n = b.mul(at.tile_n, 7);
        let sum = b.add(m, n);
        let shift = b.rem(sum, depth);
        let shift = b.cast(shift, ints.coord);
        b.bind("k_shift", shift)
    });
    let total = match shift {
        None => b.int(shape.k_tiles as i64, ints.coord),
        Some(shift) => {
            let reach = b.add(shift, k + depth - 1);
            let total = b.div(reach, depth);
            b.bind("k_tiles", total)
        }
    };
    let split = b.cast(at.split, ints.coord);
    let (tiles, first) = if ways == 1 {
        (total, b.int(0, ints.coord))
    } else {
        let each = b.div(total, ways);
        let rest = b.rem(total, ways);
        let more = b.lt(split, rest);
        let one = b.int(1, ints.coord);
        let zero = b.int(0, ints.coord);
        let extra = b.select(more, one, zero);
        let tiles = b.add(each, extra);
        let tiles = b.bind("my_k_tiles", tiles);
        let first = if t.split_k.interleave {
            split
        } else {
            let even = b.mul(split, each);
            let uneven = b.binary(BinaryOp::Min, split, rest);
            b.add(even, uneven)
        };
        (tiles, first)
    };
    let mut begin = b.mul(first, depth);
    if let Some(shift) = shift {
        begin = b.sub(begin, shift);
    }
    let begin = b.bind("k_begin", begin);
    let limit = if ways == 1 || t.split_k.interleave {
        b.int(k, ints.coord)
    } else {
        let mine = b.mul(tiles, depth);
        let end = b.add(begin, mine);
        let end = b.binary(BinaryOp::Min, end, k);
        b.bind("k_limit", end)
    };
    let _ = ahead;
    KRange {
        tiles,
        begin,
        limit,
        step: if t.split_k.interleave { depth * ways } else { depth },
        ragged: k % depth != 0 || t.k_stagger,
        staggered: t.k_stagger,
    }
}

fn counters(b: &mut Builder, range: &KRange, spec: &KernelSpec, ints: Ints) -> Counters {
    let begin = b.cast(range.begin, ints.coord);
    let k_fetch = b.declare("k_fetch", begin);
    let zero = b.int(0, Scalar::I32);
    let many = spec.schedule.buffers > 1;
    let any_async = spec.schedule.async_a || spec.schedule.async_b;
    let all_async = spec.schedule.async_a && spec.schedule.async_b;
    Counters {
        k_fetch,
        copy: (many && any_async).then(|| b.declare("copy_buffer", zero)),
        store: (many && !all_async).then(|| b.declare("store_buffer", zero)),
        read: many.then(|| b.declare("read_buffer", zero)),
    }
}

#[allow(clippy::too_many_arguments)]
fn loaders<'a>(
    b: &mut Builder,
    spec: &KernelSpec,
    inputs: [&'a Input; 2],
    shared: [SharedTile; 2],
    args: &Args,
    at: &TilePosition,
    range: &KRange,
    thread: ExprId,
    lowered: &Lowered,
    shape: &Shape,
    ints: Ints,
) -> [Loader<'a>; 2] {
    let make = |b: &mut Builder, i: usize, shared: SharedTile| {
        let input = inputs[i];
        let g = if input.chunk_local { at.g_local } else { at.g };
        let cx = LoadContext {
            buffer: args.buffer[i],
            offset: args.offset[i],
            thread,
            row_start: if i == 0 { at.m_start } else { at.n_start },
            g: Coord::plain(b, g),
            k_begin: range.begin,
            sets: lowered.sets,
            tiles: if i == 0 { shape.tiles_m } else { shape.tiles_n },
        };
        let asynchronous = if i == 0 { spec.schedule.async_a } else { spec.schedule.async_b };
        Loader::new(b, input, shared, &cx, spec.tiling.k_tile, asynchronous, ints)
    };
    let [sa, sb] = shared;
    if spec.style.a_first {
        let a = make(b, 0, sa);
        [a, make(b, 1, sb)]
    } else {
        let second = make(b, 1, sb);
        [make(b, 0, sa), second]
    }
}

/// Micro ids and accumulators. Returns the thread's first row and column within the macro tile as well.
fn start_math(b: &mut Builder, c: &Contraction, spec: &KernelSpec, inputs: [&Input; 2], local: ExprId) -> (Math, [ExprId; 2]) {
    let t = &spec.tiling;
    let (na, nb) = (t.threads_a, t.threads_b);
    let (id_a, id_b) = if t.wave_a == 0 {
        if t.micro_b_fastest { (b.div(local, nb), b.rem(local, nb)) } else { (b.rem(local, na), b.div(local, na)) }
    } else {
        // A wave covers wave_a x wave_b micro tiles; waves cover the thread grid, along m first.
        let wave_b = t.wave_lanes / t.wave_a;
        let wave = b.div(local, t.wave_lanes);
        let lane = b.rem(local, t.wave_lanes);
        let (lane_a, lane_b) = if t.micro_b_fastest {
            (b.div(lane, wave_b), b.rem(lane, wave_b))
        } else {
            (b.rem(lane, t.wave_a), b.div(lane, t.wave_a))
        };
        let waves_a = na / t.wave_a;
        let (wave_row, wave_col) = (b.rem(wave, waves_a), b.div(wave, waves_a));
        let row = b.mul(wave_row, t.wave_a);
        let col = b.mul(wave_col, wave_b);
        (b.add(row, lane_a), b.add(col, lane_b))
    };
    let id_a = b.bind("micro_id_a", id_a);
    let id_b = b.bind("micro_id_b", id_b);
    let first_a = micro_first(b, &t.a, id_a);
    let first_a = b.bind("micro_row", first_a);
    let first_b = micro_first(b, &t.b, id_b);
    let first_b = b.bind("micro_col", first_b);
    let _ = inputs;
    let first = [first_a, first_b];
    (Math::new(b, spec, c.accumulator(), first), first)
}

struct MathTiles {
    shared: [SharedTile; 2],
}

fn math_loop(
    b: &mut Builder,
    spec: &KernelSpec,
    lowered: &Lowered,
    range: &KRange,
    counters: &Counters,
    math: &Math,
    tiles: &MathTiles,
) {
    let shared = [&tiles.shared[0], &tiles.shared[1]];
    let emit = |b: &mut Builder, steps: &[Step], _: u32| {
        for step in steps.iter().filter(|s| s.is_math()) {
            match step {
                Step::Barrier => b.barrier(),
                Step::Fragments => first_fragments(b, spec, counters, math, shared),
                Step::Math { part, .. } => math_step(b, spec, counters, math, shared, *part, None),
                _ => {}
            }
        }
    };
    emit(b, &lowered.prologue, 0);
    run_loop(b, range, lowered.sets, &lowered.body, emit);
}

fn buffer_offsets(b: &mut Builder, index: Option<VarId>, shared: [&SharedTile; 2]) -> [ExprId; 2] {
    match index {
        None => [b.int(0, Scalar::I32); 2],
        Some(v) => {
            let i = b.get(v);
            [b.mul(i, shared[0].buffer), b.mul(i, shared[1].buffer)]
        }
    }
}

fn next_buffer(b: &mut Builder, index: Option<VarId>, buffers: u32) {
    if let Some(v) = index {
        let i = b.get(v);
        let next = if buffers == 2 {
            b.sub(1, i)
        } else {
            let last = b.eq(i, buffers - 1);
            let more = b.add(i, 1);
            let zero = b.int(0, Scalar::I32);
            b.select(last, zero, more)
        };
        b.set(v, next);
    }
}

fn first_fragments(b: &mut Builder, spec: &KernelSpec, counters: &Counters, math: &Math, shared: [&SharedTile; 2]) {
    let buffer = buffer_offsets(b, counters.read, shared);
    math.first_fragments(b, &Tiles { tiling: &spec.tiling, shared, buffer });
}

fn math_step(
    b: &mut Builder,
    spec: &KernelSpec,
    counters: &Counters,
    math: &Math,
    shared: [&SharedTile; 2],
    part: MathPart,
    between: Option<&mut dyn FnMut(&mut Builder, u32)>,
) {
    if part == MathPart::Tail {
        next_buffer(b, counters.read, spec.schedule.buffers);
    }
    let buffer = buffer_offsets(b, counters.read, shared);
    let tiles = Tiles { tiling: &spec.tiling, shared, buffer };
    match part {
        MathPart::Whole => {
            math.whole(b, &tiles, between);
            next_buffer(b, counters.read, spec.schedule.buffers);
        }
        MathPart::Head => math.head(b, &tiles, between),
        MathPart::Tail => math.tail(b, &tiles),
    }
}

/// The loop over this work-group's k-tiles, unrolled by `sets`.
fn run_loop(b: &mut Builder, range: &KRange, sets: u32, body: &[Step], mut emit: impl FnMut(&mut Builder, &[Step], u32)) {
    if sets == 1 {
        b.for_range("t", 0, range.tiles, Unroll::No, |b, _| emit(b, body, 0));
        return;
    }
    let rounds = b.add(range.tiles, sets - 1);
    let rounds = b.div(rounds, sets);
    b.for_range("round", 0, rounds, Unroll::No, |b, round| {
        let first = b.mul(round, sets);
        emit(b, body, 0);
        for set in 1..sets {
            let tile = b.add(first, set);
            let exists = b.lt(tile, range.tiles);
            b.if_then(exists, |b| emit(b, body, set));
        }
    });
}

#[allow(clippy::too_many_arguments)]
fn main_loop(
    b: &mut Builder,
    spec: &KernelSpec,
    lowered: &Lowered,
    range: &KRange,
    counters: &Counters,
    loaders: Option<&mut [Loader; 2]>,
    math: Option<&Math>,
    ints: Ints,
) {
    let Some(loaders) = loaders else { return };
    let mut emit = |b: &mut Builder, steps: &[Step], sub: u32| {
        for step in steps {
            load_or_math(b, spec, lowered, range, counters, loaders, math, ints, *step, sub);
        }
    };
    if !lowered.prologue.is_empty() {
        b.comment("prologue: the first tiles are on their way before the loop starts");
    }
    emit(b, &lowered.prologue, 0);
    run_loop(b, range, lowered.sets, &lowered.body, emit);
}

#[allow(clippy::too_many_arguments)]
fn load_or_math(
    b: &mut Builder,
    spec: &KernelSpec,
    lowered: &Lowered,
    range: &KRange,
    counters: &Counters,
    loaders: &mut [Loader; 2],
    math: Option<&Math>,
    ints: Ints,
    step: Step,
    sub: u32,
) {
    let order = if spec.style.a_first { [0, 1] } else { [1, 0] };
    let buffers = spec.schedule.buffers;
    let any_async = loaders.iter().any(Loader::is_async);
    match step {
        Step::WaitCopies { pending } => b.push(Stmt::AsyncWait(pending)),
        Step::Barrier => b.barrier(),
        Step::Fetch { ahead } => {
            let k = b.get(counters.k_fetch);
            let unit = if range.staggered { 1 } else { spec.tiling.k_tile as i64 };
            let zero = b.int(0, ints.coord);
            let coord = if unit == 1 { Coord::plain(b, k) } else { Coord { aligned: k, unit, local: zero } };
            let overruns = spec.schedule.fetch_ahead > 0;
            let valid = (overruns && !range.ragged).then(|| {
                let valid = b.lt(k, range.limit);
                b.bind("tile_exists", valid)
            });
            let limit = range.ragged.then_some((range.staggered, range.limit));
            let offsets = buffer_offsets(b, counters.copy, [&loaders[0].shared, &loaders[1].shared]);
            for i in order {
                loaders[i].fetch(b, coord, valid, limit, (sub + ahead) % lowered.sets, offsets[i]);
                loaders[i].advance(b, range.step);
            }
            let next = b.add(k, range.step);
            b.set(counters.k_fetch, next);
            if any_async {
                b.push(Stmt::AsyncCommit);
                next_buffer(b, counters.copy, buffers);
            }
        }
        Step::Store { ahead } => {
            let offsets = buffer_offsets(b, counters.store, [&loaders[0].shared, &loaders[1].shared]);
            for i in order {
                if !loaders[i].is_async() {
                    let pieces = loaders[i].pieces();
                    loaders[i].store(b, (sub + ahead) % lowered.sets, offsets[i], 0, pieces);
                }
            }
            next_buffer(b, counters.store, buffers);
        }
        Step::Fragments => {
            let Some(math) = math else { return };
            first_fragments(b, spec, counters, math, [&loaders[0].shared, &loaders[1].shared]);
        }
        Step::Math { part, store } => {
            let Some(math) = math else { return };
            let shared = [copy_tile(&loaders[0].shared), copy_tile(&loaders[1].shared)];
            let shared = [&shared[0], &shared[1]];
            match store {
                None => math_step(b, spec, counters, math, shared, part, None),
                Some(ahead) => {
                    let set = (sub + ahead) % lowered.sets;
                    let offsets = buffer_offsets(b, counters.store, shared);
                    let total: usize = loaders.iter().filter(|l| !l.is_async()).map(Loader::pieces).sum();
                    let carried = if part == MathPart::Head { spec.schedule.fragments_ahead } else { 0 };
                    let depth = (spec.tiling.k_tile - carried) as usize;
                    let mut between = |b: &mut Builder, step: u32| {
                        // The second half of the k-steps carries the stores.
                        let half = depth / 2;
                        let step = step as usize;
                        if step < half {
                            return;
                        }
                        let share = |s: usize| (s * total).div_ceil((depth - half).max(1)).min(total);
                        let (from, to) = (share(step - half), share(step + 1 - half));
                        let mut base = 0;
                        for i in order {
                            if loaders[i].is_async() {
                                continue;
                            }
                            let n = loaders[i].pieces();
                            let (lo, hi) = (from.clamp(base, base + n) - base, to.clamp(base, base + n) - base);
                            loaders[i].store(b, set, offsets[i], lo, hi);
                            base += n;
                        }
                    };
                    math_step(b, spec, counters, math, shared, part, Some(&mut between));
                    next_buffer(b, counters.store, buffers);
                }
            }
        }
    }
}
