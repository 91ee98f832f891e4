//! The stages from a derived plan to a program: inputs and workspace, preparing kernels, the main kernel, the kernel that finishes splits.

use super::arguments::{Arguments, Bound};
use super::copy::fetch_tile;
use super::error::GenerateError;
use super::input::{Input, Regions, Shape};
use super::stages::roles;
use super::{elements, finish, main, prepare, reduce};
use crate::plan::{Edge, Exit, KernelSpec, OperandTiling, Source, Split, Transport, materialised, partials_bytes};
use crate::program::{Alignment, Binding, Factor, Groups, Launch, Program};
use tilewright_ir::Kernel;
use tilewright_problem::contraction::{Contraction, Operand, Tensor};
use tilewright_problem::view::G;
use tilewright_problem::{Extent, Extents};

/// Regions of the workspace start at multiples of this: OpenCL devices pass on parts of a buffer from multiples of up to 512 bytes on.
const WORKSPACE_ALIGN: u64 = crate::plan::WORKSPACE_ALIGN as u64;
const MAX_GROUPS: u64 = (1 << 31) - 1;

/// Generates the kernels and launches of a contraction under a derived plan.
///
/// `workspace` is the budget in bytes for materialised operands and split sums; where one batch does not fit, the batch
/// is cut into chunks that reuse the workspace.
///
/// # Errors
/// [`GenerateError`]; plans that passed `derive` and `fits` do not meet them.
pub fn generate(c: &Contraction, spec: &KernelSpec, workspace: u64) -> Result<Program, GenerateError> {
    let c = &*c.oriented(spec.tiling.exchanged);
    let inputs = inputs(c, spec);
    let job = Job::new(c, spec, &inputs, workspace)?;
    let mut out = Assembly {
        program: Program { kernels: vec![], launches: vec![], workspace_bytes: 0, alignments: vec![], bases: vec![] },
        arguments: vec![],
        cursor: 0,
        largest: c.oriented(false).extents(),
    };
    let regions = Regions::reserve(&job, &mut out);
    let fillers = fillers(&job, &regions, &mut out);
    let scale = (job.split > 1 && !job.by_workspace).then(|| out.add_first(finish::finish(c, (0, None), &job.shape)));
    let main = job.main(&regions, !fillers.is_empty() || scale.is_some(), &mut out)?;
    let sum = job.by_workspace.then(|| {
        let (kernel, args) = finish::finish(c, (spec.tiling.split_k.ways, regions.partials), &job.shape);
        out.add((kernel.following(), args))
    });
    let reduced = reduce::finish::finish(c, &regions.reductions)
        .map(|(kernel, args, groups)| (out.add((kernel.following(), args)), groups));
    for i in 0..job.shape.chunks {
        let chunk = job.chunk(i);
        job.launch_fillers(&fillers, &chunk, &mut out)?;
        if let Some(kernel) = scale {
            let groups = elements::groups(job.elements(&chunk));
            out.launch(kernel, groups, &chunk)?;
        }
        job.launch_main(main, &chunk, &mut out)?;
        if let Some(kernel) = sum {
            // The last chunk of a batch may be shorter, its kernel is the same.
            let lanes = finish::split_lanes(job.shape.chunk * c.m * c.n, job.split as u32);
            let groups = finish::sum_groups(job.elements(&chunk), lanes);
            out.launch(kernel, groups, &chunk)?;
        }
    }
    if let Some((kernel, groups)) = reduced {
        out.launch(kernel, groups, &job.chunk(0))?;
    }
    job.need(&mut out);
    out.program.workspace_bytes = out.cursor;
    Ok(out.program)
}

/// What the main kernel reads its operands through: views of their own, or copies in workspace.
pub(super) fn inputs(c: &Contraction, spec: &KernelSpec) -> [Input; 2] {
    let t = &spec.tiling;
    let names = c.factors();
    let input = |operand, tensor: &Tensor, tiling: &OperandTiling, edge, rows: Extent| {
        let tensor = match tiling.source {
            Source::InPlace => tensor.clone(),
            source => materialised(tensor, source, tiling.macro_tile),
        };
        let copied = tiling.source != Source::InPlace;
        // A packed operand has whole panels: nothing to pull back.
        let edge = if tiling.source == Source::Packed { Edge::Predicate } else { edge };
        Input {
            operand,
            rows: c.dynamic_extent(rows),
            run_time_batch: c.dynamic.g,
            chunk_local: copied && tensor.view.access.offset.uses(G),
            tensor,
            tiling: tiling.clone(),
            edge,
        }
    };
    [input(names[0], &c.a, &t.a, t.edge_m, Extent::M), input(names[1], &c.b, &t.b, t.edge_n, Extent::N)]
}

/// What all stages read.
pub(super) struct Job<'a> {
    c: &'a Contraction,
    spec: &'a KernelSpec,
    inputs: &'a [Input; 2],
    pub(super) shape: Shape,
    /// Splits that leave their sums to others, and whether they leave them in workspace.
    split: u64,
    by_workspace: bool,
    /// Rows and columns of C where they are known only at launch.
    sizes: [Option<Extent>; 2],
}

/// The batch entries of one launch.
#[derive(Clone, Copy)]
struct Chunk {
    first: u64,
    entries: Factor,
    /// The same as an argument, and the pieces of work of the main kernel.
    count: Binding,
    work: Binding,
}

impl<'a> Job<'a> {
    /// Cuts the batch into chunks of which each fits in the workspace.
    pub(super) fn new(
        c: &'a Contraction,
        spec: &'a KernelSpec,
        inputs: &'a [Input; 2],
        workspace: u64,
    ) -> Result<Job<'a>, GenerateError> {
        let t = &spec.tiling;
        let split = spec.split_outside() as u64;
        let by_workspace = spec.epilogue.split == Split::Workspace;
        // Bytes of workspace: per batch entry, and shared by all.
        let (mut per_entry, mut shared) = (0, 0);
        for x in inputs.iter().filter(|x| x.tiling.source != Source::InPlace) {
            let bytes = x.tensor.len * x.tensor.scalar.bytes() as u64;
            let entry = if x.chunk_local { bytes / c.g.max(1) } else { bytes };
            *(if x.chunk_local { &mut per_entry } else { &mut shared }) += entry + WORKSPACE_ALIGN;
        }
        if by_workspace {
            per_entry += split * c.m * c.n * c.accumulator().bytes() as u64 + WORKSPACE_ALIGN;
        }
        shared += partials_bytes(spec, c, WORKSPACE_ALIGN);
        let needed = per_entry + shared;
        if needed > 0 && needed > workspace {
            return Err(GenerateError::Workspace { needed, budget: workspace });
        }
        let chunk = workspace.saturating_sub(shared).checked_div(per_entry).map_or(c.g, |entries| entries.clamp(1, c.g.max(1)));
        let shape = Shape {
            tiles_m: c.m.div_ceil(t.a.macro_tile as u64).next_multiple_of(t.cluster.m.into()),
            tiles_n: c.n.div_ceil(t.b.macro_tile as u64).next_multiple_of(t.cluster.n.into()),
            k_tiles: c.k.div_ceil(t.k_tile as u64),
            chunk,
            chunks: c.g.div_ceil(chunk.max(1)),
        };
        let sizes = [Extent::M, Extent::N].map(|extent| c.dynamic_extent(extent));
        Ok(Job { c, spec, inputs, shape, split, by_workspace, sizes })
    }

    /// Operands with the tensors that they are copies of.
    fn sources(&self) -> [(&'a Input, &'a Tensor); 2] {
        [(&self.inputs[0], &self.c.a), (&self.inputs[1], &self.c.b)]
    }

    fn chunked(&self) -> bool {
        self.shape.chunks > 1
    }

    fn chunk(&self, i: u64) -> Chunk {
        let first = i * self.shape.chunk;
        let most = self.shape.chunk.min(self.c.g - first);
        let (entries, count) = match self.c.dynamic.g {
            true => (Factor::Entries { first, most }, Binding::Entries { first, most }),
            false => (Factor::Fixed(most), Binding::I64(most as i64)),
        };
        Chunk { first, entries, count, work: Binding::Work }
    }

    /// Elements of the result in a chunk.
    fn elements(&self, chunk: &Chunk) -> Vec<Factor> {
        let [m, n] = [(self.sizes[0], self.c.m), (self.sizes[1], self.c.n)].map(|(size, all)| match size {
            Some(extent) => Factor::Steps { extent, more: 0, of: 1 },
            None => Factor::Fixed(all),
        });
        vec![chunk.entries, m, n]
    }

    fn launch_fillers(&self, fillers: &[Filler], chunk: &Chunk, out: &mut Assembly) -> Result<(), GenerateError> {
        for (parts, kernel) in fillers {
            if chunk.first > 0 && parts.iter().all(|(_, x, _)| !x.chunk_local) {
                continue;
            }
            let entries = |x: &Input| if x.chunk_local { chunk.entries } else { Factor::Fixed(1) };
            let groups = parts.iter().map(|&(source, x, _)| prepare::groups(source, x, entries(x))).collect();
            out.launch(*kernel, Groups::together(groups, &out.largest), chunk)?;
        }
        Ok(())
    }

    /// The main kernel.
    fn main(&self, regions: &Regions, follows: bool, out: &mut Assembly) -> Result<usize, GenerateError> {
        let (c, spec, [a, b]) = (self.c, self.spec, self.inputs);
        let store = spec.epilogue.exit.bulk().map(|tile| {
            // Partial sums of a chunk of the batch are fewer.
            if self.by_workspace { tile.of_entries(self.split * self.shape.chunk) } else { tile.clone() }
        });
        let (mut main, args) = main::build(c, spec, a, b, &self.shape, store, regions);
        // What is launched together need not wait for the whole launch before it to end before it begins.
        if follows {
            main = main.following();
        }
        main.precedes = self.by_workspace || regions.reductions.iter().any(|(_, region)| region.is_some());
        roles::check_roles(&main)?;
        Ok(out.add((main, args)))
    }

    fn launch_main(&self, kernel: usize, chunk: &Chunk, out: &mut Assembly) -> Result<(), GenerateError> {
        let t = &self.spec.tiling;
        let tiles = [(self.sizes[0], self.shape.tiles_m, &t.a), (self.sizes[1], self.shape.tiles_n, &t.b)];
        let [tiles_m, tiles_n] = tiles.map(|(size, tiles, tiling)| match size {
            Some(extent) => Factor::Steps { extent, more: 0, of: tiling.macro_tile.into() },
            None => Factor::Fixed(tiles),
        });
        let most = (t.persistent > 0).then_some(u64::from(t.persistent));
        let groups =
            Groups { factors: vec![Factor::Fixed(t.split_k.ways.into()), tiles_m, tiles_n, chunk.entries], per: 1, most };
        let mut work = Binding::Work;
        if most.is_some() {
            // Clusters walk together.
            let all = groups.work(&out.largest) / u128::from(t.cluster.size());
            let all = i32::try_from(all).map_err(|_| GenerateError::GridTooLarge { groups: all, max: MAX_GROUPS })?;
            if self.c.dynamic.is_none() {
                work = Binding::I32(all);
            }
        }
        out.launch(kernel, groups, &Chunk { work, ..*chunk })
    }

    /// What the real pointers must satisfy.
    fn need(&self, out: &mut Assembly) {
        let (c, spec) = (self.c, self.spec);
        for (i, (x, source)) in self.sources().into_iter().enumerate() {
            let width = match (x.tiling.source, &spec.schedule.copies[i]) {
                (Source::InPlace, Transport::Written(tile)) => fetch_tile::width(x, tile),
                (Source::InPlace, _) => x.tiling.load_width,
                _ => {
                    let base = prepare::base_align(source, x).map(|bytes| Alignment { operand: x.operand, bytes });
                    out.program.bases.extend(base);
                    prepare::source_width(source, x)
                }
            };
            out.need(x.operand, width * x.tensor.scalar.bytes());
        }
        if c.drop_c {
            return;
        }
        let stored = match &spec.epilogue.exit {
            _ if self.by_workspace => c.c.scalar.bytes(),
            Exit::Bulk { .. } => 16,
            // Rows leave in vectors as wide as the start of C allows.
            Exit::Staged { .. } if spec.tiling.unit.family().lanes > 1 => c.c.align.clamp(c.c.scalar.bytes(), 16),
            exit => exit.width() * c.c.scalar.bytes(),
        };
        out.need(Operand::C, stored);
    }
}

impl Regions {
    /// Copies of the operands first, then partial sums, then the parts of reductions, of the whole batch.
    fn reserve(job: &Job, out: &mut Assembly) -> Regions {
        let (c, chunk) = (job.c, job.shape.chunk);
        let copies = job.inputs.each_ref().map(|x| {
            (x.tiling.source != Source::InPlace).then(|| {
                let entries = if x.chunk_local { x.tensor.len / c.g.max(1) * chunk } else { x.tensor.len };
                out.reserve(entries * x.tensor.scalar.bytes() as u64)
            })
        });
        let bytes = job.split * chunk * c.m * c.n * c.accumulator().bytes() as u64;
        let partials = job.by_workspace.then(|| out.reserve(bytes));
        let reduced = c.reductions().map(|r| {
            let parts = job.spec.tiling.partials(c, r);
            (parts, (!parts.in_place()).then(|| out.reserve(parts.len() * c.accumulator().bytes() as u64)))
        });
        Regions { copies, partials, reductions: reduced.collect() }
    }
}

/// A kernel that copies operands, with what it copies to which region.
type Filler<'a> = (Vec<(&'a Tensor, &'a Input, u64)>, usize);

/// Kernels that copy operands into workspace; where possible one launch copies both.
fn fillers<'a>(job: &Job<'a>, regions: &Regions, out: &mut Assembly) -> Vec<Filler<'a>> {
    let copied = job.sources().into_iter().zip(regions.copies);
    let copied: Vec<_> = copied.filter_map(|((x, source), region)| Some((source, x, region?))).collect();
    let together = if job.chunked() || !job.c.dynamic.is_none() { 1 } else { 2 };
    let chunked = job.chunked() || job.c.dynamic.g;
    copied.chunks(together).map(|parts| (parts.to_vec(), out.add_first(prepare::materialise(parts, chunked)))).collect()
}

/// Collects kernels and launches, and hands out workspace.
struct Assembly {
    program: Program,
    /// Those of each kernel.
    arguments: Vec<Arguments>,
    cursor: u64,
    /// The largest extents, as the problem names them.
    largest: Extents,
}

impl Assembly {
    fn reserve(&mut self, bytes: u64) -> u64 {
        let at = self.cursor.next_multiple_of(WORKSPACE_ALIGN);
        self.cursor = at + bytes;
        at
    }
    /// A kernel behind which the main one is launched.
    fn add_first(&mut self, (kernel, args): (Kernel, Arguments)) -> usize {
        self.add((Kernel { precedes: true, ..kernel }, args))
    }
    fn add(&mut self, (kernel, args): (Kernel, Arguments)) -> usize {
        self.program.kernels.push(kernel);
        self.arguments.push(args);
        self.program.kernels.len() - 1
    }
    fn launch(&mut self, kernel: usize, groups: Groups, chunk: &Chunk) -> Result<(), GenerateError> {
        let count = groups.count(&self.largest);
        if count == 0 {
            return Ok(());
        }
        if count > MAX_GROUPS as u128 {
            return Err(GenerateError::GridTooLarge { groups: count, max: MAX_GROUPS });
        }
        let groups = groups.depends().then_some(groups);
        let of = |bound: &Bound| match *bound {
            Bound::To(binding) => binding,
            Bound::First => Binding::I64(chunk.first as i64),
            Bound::Entries => chunk.count,
            Bound::Work => chunk.work,
        };
        let arguments = &self.arguments[kernel];
        let (args, maps) = (arguments.bound.iter().map(of).collect(), arguments.maps.clone());
        self.program.launches.push(Launch { kernel, grid: [count as u32, 1, 1], args, groups, maps });
        Ok(())
    }
    fn need(&mut self, operand: Operand, bytes: u32) {
        self.program.alignments.push(Alignment { operand, bytes });
    }
}
