//! The stages from a derived plan to a program: inputs and workspace, preparing kernels, the main kernel, the kernel that finishes splits.

use super::copy::fetch_tile;
use super::error::GenerateError;
use super::exit::fused;
use super::input::{Input, Shape};
use super::stages::roles;
use super::{elements, finish, main, prepare};
use crate::plan::{BulkTile, Edge, KernelSpec, OperandTiling, Source, SplitSum, Transport, materialised, partials, store_tile};
use crate::program::{Alignment, Binding, Factor, Groups, Launch, MapExtent, Program};
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
        cursor: 0,
        largest: c.oriented(false).extents(),
    };
    let regions = Regions::reserve(&job, &mut out);
    let fillers = fillers(&job, &regions, &mut out);
    let scale = (job.split > 1 && !job.by_workspace).then(|| out.add_first(finish::finish(c, 0, &job.shape)));
    let main = Main::build(&job, !fillers.is_empty() || scale.is_some(), &mut out)?;
    let sum = job.by_workspace.then(|| {
        let kernel = finish::finish(c, spec.tiling.split_k.ways, &job.shape);
        out.add(kernel.following())
    });
    for i in 0..job.shape.chunks {
        let chunk = job.chunk(i);
        job.launch_fillers(&fillers, &chunk, &mut out)?;
        if let Some(kernel) = scale {
            let groups = elements::groups(job.elements(&chunk));
            out.launch(kernel, groups, job.finish_bindings(None, &chunk), vec![])?;
        }
        main.launch(&job, &regions, &chunk, &mut out)?;
        if let Some(kernel) = sum {
            // The last chunk of a batch may be shorter, its kernel is the same.
            let lanes = finish::split_lanes(job.shape.chunk * c.m * c.n, job.split as u32);
            let groups = finish::sum_groups(job.elements(&chunk), lanes);
            out.launch(kernel, groups, job.finish_bindings(regions.partials, &chunk), vec![])?;
        }
    }
    main.need(&job, &mut out);
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
struct Chunk {
    first: u64,
    entries: Factor,
    /// The same as an argument.
    count: Binding,
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
        let by_workspace = split > 1 && spec.epilogue.split_sum == SplitSum::Workspace;
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
        if self.c.dynamic.g {
            Chunk { first, entries: Factor::Entries { first, most }, count: Binding::Entries { first, most } }
        } else {
            Chunk { first, entries: Factor::Fixed(most), count: Binding::I64(most as i64) }
        }
    }

    /// The first batch entry as an argument, which kernels have where the batch is cut.
    fn first(&self, chunk: &Chunk) -> Option<Binding> {
        self.chunked().then_some(Binding::I64(chunk.first as i64))
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
            if chunk.first > 0 && parts.iter().all(|(x, ..)| !x.chunk_local) {
                continue;
            }
            let (mut groups, mut args) = (Vec::new(), Vec::new());
            for &(x, source, region) in parts {
                groups.push(prepare::groups(source, x, if x.chunk_local { chunk.entries } else { Factor::Fixed(1) }));
                let cut = x.chunk_local && (self.chunked() || self.c.dynamic.g);
                args.extend(prepare::bindings(source, x, region, cut.then_some((chunk.first, chunk.count))));
            }
            out.launch(*kernel, Groups::together(groups, &out.largest), args, vec![])?;
        }
        Ok(())
    }

    /// As [`finish::finish`] declares its arguments.
    fn finish_bindings(&self, partials: Option<u64>, chunk: &Chunk) -> Vec<Binding> {
        let mut args = vec![Binding::Buffer(Operand::C), Binding::Offset(Operand::C)];
        args.extend(fused::Added::bindings(self.c));
        args.extend(partials.map(Binding::Workspace));
        args.extend(partials.map(|_| Binding::Alpha));
        args.push(Binding::Beta);
        args.push(chunk.count);
        args.extend(self.first(chunk));
        args.extend(self.sizes.into_iter().flatten().map(Binding::Extent));
        args
    }
}

/// Where the workspace holds what: copies of the operands first, then partial sums.
struct Regions {
    copies: [Option<u64>; 2],
    partials: Option<u64>,
}

impl Regions {
    fn reserve(job: &Job, out: &mut Assembly) -> Regions {
        let (c, chunk) = (job.c, job.shape.chunk);
        let copies = job.inputs.each_ref().map(|x| {
            (x.tiling.source != Source::InPlace).then(|| {
                let entries = if x.chunk_local { x.tensor.len / c.g.max(1) * chunk } else { x.tensor.len };
                out.reserve(entries * x.tensor.scalar.bytes() as u64)
            })
        });
        let bytes = job.split * chunk * c.m * c.n * c.accumulator().bytes() as u64;
        Regions { copies, partials: job.by_workspace.then(|| out.reserve(bytes)) }
    }
}

/// A kernel that copies operands, with what it copies to which region.
type Filler<'a> = (Vec<(&'a Input, &'a Tensor, u64)>, usize);

/// Kernels that copy operands into workspace.
fn fillers<'a>(job: &Job<'a>, regions: &Regions, out: &mut Assembly) -> Vec<Filler<'a>> {
    let [(a, from_a), (b, from_b)] = job.sources();
    match regions.copies {
        // One launch copies both.
        [Some(to_a), Some(to_b)] if !job.chunked() && job.c.dynamic.is_none() => {
            let kernel = out.add_first(prepare::materialise(&[(from_a, a), (from_b, b)], false));
            vec![(vec![(a, from_a, to_a), (b, from_b, to_b)], kernel)]
        }
        copies => {
            let copied = job.sources().into_iter().zip(copies).filter_map(|((x, source), region)| Some((x, source, region?)));
            let one = |(x, source, region)| {
                let kernel = out.add_first(prepare::materialise(&[(source, x)], job.chunked() || job.c.dynamic.g));
                (vec![(x, source, region)], kernel)
            };
            copied.map(one).collect()
        }
    }
}

/// The main kernel and what its arguments follow from.
struct Main {
    kernel: usize,
    bulk: Option<[BulkTile; 2]>,
    /// Operands that load waves read in aligned vectors of words; elements of an access of those that they read otherwise.
    by_words: [bool; 2],
    fetch_widths: [u32; 2],
    /// Bulk stores take C's rows for their slow dimension.
    lines_of_rows: bool,
}

impl Main {
    fn build(job: &Job, follows: bool, out: &mut Assembly) -> Result<Main, GenerateError> {
        let (c, spec, [a, b]) = (job.c, job.spec, job.inputs);
        let t = &spec.tiling;
        let [copy_a, copy_b] = &spec.schedule.copies;
        let bulk = copy_a.tile().zip(copy_b.tile()).map(|(a, b)| [a.clone(), b.clone()]);
        let store = match spec.epilogue.bulk {
            false => None,
            true => {
                let tensor = if job.by_workspace { partials(c, job.split * job.shape.chunk) } else { c.c.clone() };
                Some(store_tile(&tensor, t.b.micro).map_err(|why| GenerateError::Bulk { operand: Operand::C, why })?)
            }
        };
        let by_words = [0, 1].map(|i| {
            let by_loads = matches!(spec.schedule.copies[i], Transport::Written(_));
            by_loads && bulk.as_ref().is_some_and(|tiles| fetch_tile::by_words(&job.inputs[i], &tiles[i]))
        });
        let fetch_widths = [0, 1].map(|i| bulk.as_ref().map_or(1, |tiles| fetch_tile::width(&job.inputs[i], &tiles[i])));
        let lines_of_rows = store.as_ref().is_some_and(|tile| tile.by_rows);
        let mut main = main::build(c, spec, a, b, &job.shape, store);
        // What is launched together need not wait for the whole launch before it to end before it begins.
        if follows {
            main = main.following();
        }
        main.precedes = job.by_workspace;
        roles::check_roles(&main)?;
        Ok(Main { kernel: out.add(main), bulk, by_words, fetch_widths, lines_of_rows })
    }

    fn launch(&self, job: &Job, regions: &Regions, chunk: &Chunk, out: &mut Assembly) -> Result<(), GenerateError> {
        let t = &job.spec.tiling;
        let (mut args, maps) = self.bindings(job, regions, chunk);
        let tiles = [(job.sizes[0], job.shape.tiles_m, &t.a), (job.sizes[1], job.shape.tiles_n, &t.b)];
        let [tiles_m, tiles_n] = tiles.map(|(size, tiles, tiling)| match size {
            Some(extent) => Factor::Steps { extent, more: 0, of: tiling.macro_tile.into() },
            None => Factor::Fixed(tiles),
        });
        let most = (t.persistent > 0).then_some(u64::from(t.persistent));
        let groups =
            Groups { factors: vec![Factor::Fixed(t.split_k.ways.into()), tiles_m, tiles_n, chunk.entries], per: 1, most };
        if most.is_some() {
            // Clusters walk together.
            let work = groups.work(&out.largest) / u128::from(t.cluster.size());
            let work = i32::try_from(work).map_err(|_| GenerateError::GridTooLarge { groups: work, max: MAX_GROUPS })?;
            if !job.c.dynamic.is_none() {
                args.push(Binding::Work);
            } else if job.chunked() {
                args.push(Binding::I32(work));
            }
        }
        out.launch(self.kernel, groups, args, maps)
    }

    /// What the arguments are bound to, as [`main::build`] declares them, but for the pieces of work of a launch.
    fn bindings(&self, job: &Job, regions: &Regions, chunk: &Chunk) -> (Vec<Binding>, Vec<MapExtent>) {
        let (c, spec) = (job.c, job.spec);
        let (mut args, mut maps) = (Vec::new(), Vec::new());
        for (i, (x, region)) in job.inputs.iter().zip(regions.copies).enumerate() {
            if let Some(of) = spec.schedule.copies[i].shifted() {
                for class in &of.spans.classes {
                    let batch = x.run_time_batch && class.map.tile.len() > 2;
                    let entries = Factor::Steps { extent: Extent::G, more: 0, of: 1 };
                    maps.extend(batch.then_some(MapExtent { arg: args.len(), dim: 2, extent: entries }));
                    args.push(Binding::OperandMap(x.operand, class.first));
                }
                continue;
            }
            match region {
                _ if spec.schedule.copies[i].is_written() => args.extend(fetch_bindings(x, region, self.by_words[i])),
                _ if spec.schedule.in_pipeline() => {
                    maps.extend(self.bulk.iter().flat_map(|tiles| map_extents(&tiles[i], x, args.len())));
                    args.push(region.map_or(Binding::OperandMap(x.operand, 0), Binding::WorkspaceMap));
                }
                Some(region) => args.push(Binding::Workspace(region)),
                None => args.extend([Binding::Buffer(x.operand), Binding::Offset(x.operand)]),
            }
        }
        match regions.partials {
            Some(region) => args.push(Binding::Workspace(region)),
            None => {
                args.extend([Binding::Buffer(Operand::C), Binding::Offset(Operand::C)]);
                args.extend(fused::Added::bindings(c).filter(|_| job.split == 1));
                args.push(Binding::Alpha);
                args.extend((job.split == 1).then_some(Binding::Beta));
            }
        }
        args.extend(job.first(chunk));
        if spec.epilogue.bulk {
            let [m, n] = job.sizes;
            let sizes = if self.lines_of_rows { [n, m] } else { [m, n] };
            maps.extend(store_extents(c, args.len(), sizes, regions.partials.is_some()));
            args.push(regions.partials.map_or(Binding::OperandMap(Operand::C, 0), Binding::WorkspaceMap));
        }
        args.extend(job.sizes.into_iter().flatten().map(Binding::Extent));
        (args, maps)
    }

    /// What the real pointers must satisfy.
    fn need(&self, job: &Job, out: &mut Assembly) {
        let (c, spec) = (job.c, job.spec);
        for (i, (x, source)) in job.sources().into_iter().enumerate() {
            let width = match x.tiling.source {
                Source::InPlace if matches!(spec.schedule.copies[i], Transport::Written(_)) => {
                    let base = self.by_words[i].then_some(Alignment { operand: x.operand, bytes: prepare::BASE_ALIGN });
                    out.program.bases.extend(base);
                    self.fetch_widths[i]
                }
                Source::InPlace => x.tiling.load_width,
                _ => {
                    let base = prepare::base_align(source, x).map(|bytes| Alignment { operand: x.operand, bytes });
                    out.program.bases.extend(base);
                    prepare::source_width(source, x)
                }
            };
            out.need(x.operand, width * x.tensor.scalar.bytes());
        }
        let stores = if job.split > 1 { 1 } else { spec.epilogue.store_width };
        let stored = match spec.tiling.unit.family().lanes > 1 && spec.epilogue.staged && !job.by_workspace {
            true if spec.epilogue.bulk => 16,
            // Rows leave in vectors as wide as the start of C allows.
            true => c.c.align.clamp(c.c.scalar.bytes(), 16),
            false => stores * c.c.scalar.bytes(),
        };
        out.need(Operand::C, stored);
    }
}

/// What the arguments of an operand are bound to that the load waves fetch.
fn fetch_bindings(x: &Input, region: Option<u64>, by_words: bool) -> Vec<Binding> {
    let (buffer, offset) = match region {
        Some(region) => (Binding::Workspace(region), None),
        None => (Binding::Buffer(x.operand), Some(Binding::Offset(x.operand))),
    };
    [Some(buffer), offset, by_words.then_some(buffer)].into_iter().flatten().collect()
}

/// Collects kernels and launches, and hands out workspace.
struct Assembly {
    program: Program,
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
    fn add_first(&mut self, kernel: tilewright_ir::Kernel) -> usize {
        self.add(tilewright_ir::Kernel { precedes: true, ..kernel })
    }
    fn add(&mut self, kernel: tilewright_ir::Kernel) -> usize {
        self.program.kernels.push(kernel);
        self.program.kernels.len() - 1
    }
    fn launch(&mut self, kernel: usize, groups: Groups, args: Vec<Binding>, maps: Vec<MapExtent>) -> Result<(), GenerateError> {
        let count = groups.count(&self.largest);
        if count == 0 {
            return Ok(());
        }
        if count > MAX_GROUPS as u128 {
            return Err(GenerateError::GridTooLarge { groups: count, max: MAX_GROUPS });
        }
        let groups = groups.depends().then_some(groups);
        self.program.launches.push(Launch { kernel, grid: [count as u32, 1, 1], args, groups, maps });
        Ok(())
    }
    fn need(&mut self, operand: Operand, bytes: u32) {
        self.program.alignments.push(Alignment { operand, bytes });
    }
}

/// Extents of an operand's tensor map, argument `arg`, that follow from the launch.
fn map_extents(tile: &BulkTile, input: &Input, arg: usize) -> Vec<MapExtent> {
    let of = |extent: Extent| Factor::Steps { extent, more: 0, of: 1 };
    let dim = usize::from(tile.k_contiguous);
    let rows = input.rows.map(|extent| MapExtent { arg, dim, extent: of(extent) });
    // A copy of a chunk has as many entries as the chunk has.
    let batch = input.run_time_batch && tile.batched && !input.chunk_local;
    rows.into_iter().chain(batch.then(|| MapExtent { arg, dim: 2, extent: of(Extent::G) })).collect()
}

/// Extents of the result's tensor map that follow from the launch, slow and contiguous dimension. Partial sums lie as those of the largest result.
fn store_extents(c: &Contraction, arg: usize, sizes: [Option<Extent>; 2], partials: bool) -> Vec<MapExtent> {
    if partials {
        return Vec::new();
    }
    let of = |extent: Extent| Factor::Steps { extent, more: 0, of: 1 };
    let mut all = Vec::new();
    for (dim, size) in [(1, sizes[0]), (0, sizes[1])] {
        all.extend(size.map(|extent| MapExtent { arg, dim, extent: of(extent) }));
    }
    if c.dynamic.g && c.c.view.extent[G] > 1 {
        all.push(MapExtent { arg, dim: 2, extent: of(Extent::G) });
    }
    all
}
