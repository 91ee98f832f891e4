//! The main kernel: arguments, shared memory, and the waves of each role around the main loop.

use crate::kernel::copy::fetch_tile::{self, by_words};
use crate::kernel::copy::load::{LoadContext, Loader, SharedTile};
mod bulk;
mod main_loop;
mod steps;

use crate::kernel::exit::fused::Added;
use crate::kernel::exit::{self, out};
use crate::kernel::input::Ints;
use crate::kernel::input::{Input, Shape};
use crate::kernel::stages::schedule::{Lowered, lower};
use crate::kernel::tile::cluster::ClusterPlace;
use crate::kernel::tile::position::{KRange, Sizes, TilePosition, TileWalk};
use crate::kernel::unit::Accumulators;
use crate::kernel::unit::math::{Fma, Math, MathRoom, micro_first};
use crate::kernel::unit::mfma::MfmaUnit;
use crate::kernel::unit::mma::WaveUnit;
use crate::plan::{BulkTile, KernelSpec, MathUnit, RoleSplit, Source, SplitSum, StoreTile, Transport, shared_align};
use bulk::{BulkKernel, Way, class_maps, map_argument};
use main_loop::MainLoop;
use tilewright_ir::affine::Coord;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, Operand};

struct Args {
    buffer: [ArgId; 2],
    offset: [Option<ExprId>; 2],
    out: out::OutArgs,
    g_first: Option<ExprId>,
}

/// Builds the main kernel.
pub(crate) fn build(
    c: &Contraction,
    spec: &KernelSpec,
    a: &Input,
    b_in: &Input,
    shape: &Shape,
    bulk: Option<[BulkTile; 2]>,
    store: Option<StoreTile>,
) -> Kernel {
    let t = &spec.tiling;
    let threads = spec.launch_threads();
    let mut b = Builder::new(crate::kernel::MAIN, threads);
    let b = &mut b;
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
    if let Some(tiles) = bulk {
        let ways = [(0, a), (1, b_in)].map(|(i, x)| {
            let (name, doc) = operand_name(x);
            match &spec.schedule.copies[i] {
                Transport::Bulk(_) => return Way::Bulk(map_argument(b, name, &doc, &tiles[i], x, shape)),
                Transport::Shifted(of) => return Way::Shifted(of.spans.clone(), class_maps(b, name, &doc, &of.spans)),
                _ => {}
            }
            let buffer = b.buffer(name, x.tensor.scalar, Access::Read, &doc);
            let in_place = x.tiling.source == Source::InPlace;
            let offset = in_place
                .then(|| b.scalar_arg(&format!("{name}_offset"), Scalar::I64, "first element of the operand in its buffer"));
            let words = by_words(x, &tiles[i])
                .then(|| b.buffer(&format!("{name}_words"), Scalar::U32, Access::Read, "the same memory, as words"));
            Way::Fetched(fetch_tile::Source { buffer, offset, words })
        });
        let (out, g_first) = declare_results(b, c, spec, shape);
        let store = store.map(|tile| {
            let map = b.tensor_map("c_map", tile.map.clone(), "results, stored in bulk");
            (tile, map)
        });
        let sizes = declare_sizes(b, c, spec, ints);
        let work = declare_work(b, c, spec, shape);
        let place = ClusterPlace::new(b, t);
        let walk = TileWalk { c, tiling: t, inputs: [a, b_in], shape, ints, g_first, sizes, work, place };
        BulkKernel { c, spec, inputs: [a, b_in], walk, ways, out, store }.emit(b, tiles);
        return std::mem::replace(b, Builder::new("", 0)).finish();
    }
    build_by_threads(b, c, spec, [a, b_in], shape, ints);
    std::mem::replace(b, Builder::new("", 0)).finish()
}

/// Launches differ in their pieces of work, and persistent work-groups have to know how many there are.
fn declare_work(b: &mut Builder, c: &Contraction, spec: &KernelSpec, shape: &Shape) -> Option<ExprId> {
    let many = spec.tiling.persistent > 0 && (shape.chunks > 1 || !c.dynamic.is_none());
    many.then(|| b.scalar_arg("work", Scalar::I32, "tiles and splits of this launch"))
}

/// The main kernel whose tiles threads bring, with barriers of the work-group.
fn build_by_threads(b: &mut Builder, c: &Contraction, spec: &KernelSpec, inputs: [&Input; 2], shape: &Shape, ints: Ints) {
    let t = &spec.tiling;
    let args = declare_args(b, c, spec, inputs, shape);
    let sizes = declare_sizes(b, c, spec, ints);
    let work = declare_work(b, c, spec, shape);
    let tile_at = |b: &mut Builder, input: &Input, name: &str, at: u32| {
        let o = &input.tiling;
        let (lines, pitch) = o.lines(t.k_tile);
        let buffer = pitch * lines;
        let array = b.shared(name, input.tensor.scalar, buffer * spec.schedule.buffers, at);
        SharedTile { array, pitch, along: o.shared_along, buffer }
    };
    let shared_a = tile_at(b, inputs[0], "a_tile", 0);
    let end_a = b.kernel().shared_bytes().next_multiple_of(shared_align(&inputs[1].tiling, inputs[1].tensor.scalar));
    let shared = [shared_a, tile_at(b, inputs[1], "b_tile", end_a)];
    if t.unit.family().fragments {
        b.wave(t.wave_lanes);
    }
    let local = b.builtin(Builtin::LocalId);
    let local = b.bind("local_id", local);
    let walk = TileWalk { c, tiling: t, inputs, shape, ints, g_first: args.g_first, sizes, work, place: None };
    let lowered = lower(&spec.schedule, t.k_steps());
    walk.each(b, None, |b, at, range| {
        let tile = Parts { c, spec, inputs, shape, args: &args, at, range, shared, lowered: &lowered, ints };
        match spec.schedule.roles {
            None => tile.both(b, local),
            Some(roles) => tile.roles(b, local, roles),
        }
        let others_read = spec.schedule.buffers > 1 || spec.epilogue.staged;
        if t.persistent > 0 && !lowered.prologue.is_empty() && others_read {
            // The next tile's prologue overwrites what this one's last k-tile, and its results on their way, are read from.
            b.barrier();
        }
    });
}

/// Copies beyond the last tile may still fly; where results are staged over the tiles, or further tiles follow, they land before the next
/// barrier.
fn settle(b: &mut Builder, spec: &KernelSpec) {
    if (spec.epilogue.staged || spec.tiling.persistent > 0) && spec.schedule.copied().0 {
        b.push(Stmt::AsyncWait(0));
    }
}

fn declare_args(b: &mut Builder, c: &Contraction, spec: &KernelSpec, inputs: [&Input; 2], shape: &Shape) -> Args {
    let mut buffer = [ArgId(0); 2];
    let mut offset = [None; 2];
    for (i, x) in inputs.iter().enumerate() {
        let (name, doc) = operand_name(x);
        let copied = x.tiling.source != Source::InPlace;
        buffer[i] = b.buffer(name, x.tensor.scalar, Access::Read, &doc);
        if !copied {
            offset[i] = Some(b.scalar_arg(&format!("{name}_offset"), Scalar::I64, "first element of the operand in its buffer"));
        }
    }
    let (out, g_first) = declare_results(b, c, spec, shape);
    Args { buffer, offset, out, g_first }
}

/// Name of an operand's argument, and what it is.
fn operand_name(x: &Input) -> (&'static str, String) {
    let (name, doc) = if x.operand == Operand::A { ("a", "left operand") } else { ("b", "right operand") };
    let copied = x.tiling.source != Source::InPlace;
    (name, if copied { format!("{doc}, materialised in workspace") } else { doc.to_string() })
}

fn declare_results(b: &mut Builder, c: &Contraction, spec: &KernelSpec, shape: &Shape) -> (out::OutArgs, Option<ExprId>) {
    let acc = c.accumulator();
    let split = spec.split_outside() > 1;
    let out = if split && spec.epilogue.split_sum == SplitSum::Workspace {
        let partials = b.buffer("partials", acc, Access::Write, "partial sums [split][g][result], summed by the next kernel");
        out::OutArgs::Partials { partials, chunk: shape.chunk }
    } else {
        let buffer = b.buffer("c", c.c.scalar, Access::ReadWrite, "result");
        let offset = b.scalar_arg("c_offset", Scalar::I64, "first element of the result in its buffer");
        let added = if split { Added::default() } else { Added::declare(b, c) };
        let alpha = b.scalar_arg("alpha", acc, "factor of the product");
        if split {
            out::OutArgs::Atomic { buffer, offset, alpha }
        } else {
            let beta = b.scalar_arg("beta", acc, "factor of the old result; 0 never reads it");
            out::OutArgs::Store { buffer, offset, added, alpha, beta }
        }
    };
    let g_first = (shape.chunks > 1).then(|| b.scalar_arg("g_first", Scalar::I64, "first batch entry of this launch"));
    (out, g_first)
}

/// Arguments for rows and columns of C that are known only at launch.
fn declare_sizes(b: &mut Builder, c: &Contraction, spec: &KernelSpec, ints: Ints) -> Sizes {
    [(Extent::M, c.m, "rows"), (Extent::N, c.n, "columns")].map(|(extent, most, what)| {
        c.dynamic.has(extent).then(|| {
            let named = if spec.tiling.exchanged { extent.turned() } else { extent };
            let size = b.scalar_arg(named.name(), Scalar::I32, &format!("{what} of the result, 1 to {most}"));
            b.value(size.cast(ints.coord))
        })
    })
}

/// What both roles of a result tile are built from.
struct Parts<'a> {
    c: &'a Contraction,
    spec: &'a KernelSpec,
    inputs: [&'a Input; 2],
    shape: &'a Shape,
    args: &'a Args,
    at: &'a TilePosition,
    range: &'a KRange,
    shared: [SharedTile; 2],
    lowered: &'a Lowered,
    ints: Ints,
}

impl<'a> Parts<'a> {
    /// All waves load and compute.
    fn both(&self, b: &mut Builder, local: ExprId) {
        let mut main = self.main_loop(b);
        main.loaders = Some(self.loaders(b, local));
        let (math, first) = self.start_math(b, local);
        main.math = Some(math);
        main.emit(b);
        settle(b, self.spec);
        self.epilogue(b, main.math.as_ref(), first);
    }

    /// Some waves load, the others compute.
    fn roles(&self, b: &mut Builder, local: ExprId, roles: RoleSplit) {
        let mut barriers = 0;
        let math_body = b.block(|b| {
            let mut main = self.main_loop(b);
            let (math, first) = self.start_math(b, local);
            main.math = Some(math);
            main.emit(b);
            barriers = self.epilogue(b, main.math.as_ref(), first);
        });
        let load_body = b.block(|b| {
            let mut main = self.main_loop(b);
            let thread = b.bind("load_thread", local - roles.math_threads);
            main.loaders = Some(self.loaders(b, thread));
            main.emit(b);
            settle(b, self.spec);
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

    fn main_loop(&self, b: &mut Builder) -> MainLoop<'a> {
        MainLoop::new(b, self.spec, self.lowered, self.range, self.ints, self.shared)
    }

    fn loaders(&self, b: &mut Builder, thread: ExprId) -> [Loader<'a>; 2] {
        let make = |b: &mut Builder, i: usize| {
            let input = self.inputs[i];
            let g = if input.chunk_local { self.at.g_local } else { self.at.g };
            let cx = LoadContext {
                buffer: self.args.buffer[i],
                offset: self.args.offset[i],
                thread,
                row_start: if i == 0 { self.at.m_start } else { self.at.n_start },
                g: Coord::plain(b, g),
                k_begin: self.range.begin,
                sets: self.lowered.sets,
                tiles: if i == 0 { self.shape.tiles_m } else { self.shape.tiles_n },
                rows: self.at.sizes[i],
            };
            let asynchronous = self.spec.schedule.copies[i].is_async();
            Loader::new(b, input, self.shared[i], &cx, self.spec.tiling.k_tile, asynchronous, self.ints)
        };
        if self.spec.style.a_first {
            let a = make(b, 0);
            [a, make(b, 1)]
        } else {
            let second = make(b, 1);
            [make(b, 0), second]
        }
    }

    fn epilogue(&self, b: &mut Builder, math: Option<&Math>, first: [ExprId; 2]) -> u32 {
        let Some(math) = math else { return 0 };
        let unit: &dyn Accumulators = match &math.room {
            MathRoom::Fma(math) => {
                return exit::emit(b, self.c, self.spec, self.inputs, math, first, self.at, &self.args.out, self.ints);
            }
            MathRoom::Wave(unit) if self.spec.epilogue.staged => {
                let (args, thread) = (&self.args.out, b.builtin(Builtin::LocalId));
                return exit::emit_rows(b, self.c, self.spec, self.inputs, unit, self.at, args, self.ints, thread);
            }
            MathRoom::Wave(unit) => unit,
            MathRoom::Mfma(unit) => unit,
        };
        exit::emit_unit(b, self.c, self.spec, self.inputs, unit, self.at, &self.args.out, self.ints);
        0
    }

    /// Micro ids and accumulators. Returns the thread's first row and column within the macro tile as well.
    fn start_math(&self, b: &mut Builder, local: ExprId) -> (Math, [ExprId; 2]) {
        let t = &self.spec.tiling;
        let scalar = self.inputs[0].tensor.scalar;
        if let (MathUnit::Mma, Some(row)) = (t.unit, t.instruction(self.c)) {
            let unit = WaveUnit::new(b, self.spec, row, scalar, self.shared, local);
            let first = unit.first();
            return (Math::new(self.spec, MathRoom::Wave(unit)), first);
        }
        if t.unit == MathUnit::Mfma {
            let unit = MfmaUnit::new(b, self.spec, scalar, self.shared, local);
            let first = unit.first();
            return (Math::new(self.spec, MathRoom::Mfma(unit)), first);
        }
        let grid = t.grid();
        let id_a = grid.emit(b, Axis::Row, &[(Axis::Thread, local)], Scalar::I32);
        let id_b = grid.emit(b, Axis::Col, &[(Axis::Thread, local)], Scalar::I32);
        let id_a = b.bind("micro_id_a", id_a);
        let id_b = b.bind("micro_id_b", id_b);
        let first_a = micro_first(b, &t.a, id_a);
        let first_a = b.bind("micro_row", first_a);
        let first_b = micro_first(b, &t.b, id_b);
        let first_b = b.bind("micro_col", first_b);
        let first = [first_a, first_b];
        let fma = Fma::new(b, self.spec, self.c.accumulator(), first);
        (Math::new(self.spec, MathRoom::Fma(fma)), first)
    }
}
