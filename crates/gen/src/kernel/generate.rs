//! The stages from a derived plan to a program: inputs and workspace, preparing kernels, the main kernel, the kernel that finishes splits.

use super::arguments::{Arguments, Bound, BoundKernel};
use super::copy::fetch_tile;
use super::error::GenerateError;
use super::exit::operations::Applied;
use super::input::{Input, Regions, Shape};
use super::main::PartJob;
use super::prepare::OperandCopy;
use super::reduce::Parts;
use super::stages::roles;
use super::{finish, main, prepare, reduce};
use crate::plan::reach::gap_width;
use crate::plan::{
    Derived, Edge, Exit, Finish, KernelSpec, OperandTiling, RoleSplit, Source, Split, StoreTile, Transport, partials_bytes,
};
use crate::program::{Alignment, Binding, Factor, Groups, Launch, Program};

use tilewright_problem::contraction::{Centre, Centred, Contraction, Operand, Reduce, ResultSource, Tensor};
use tilewright_problem::view::G;
use tilewright_problem::{Extent, Extents};

/// Regions of the workspace start at multiples of this: OpenCL devices pass on parts of a buffer from multiples of up to 512 bytes on.
const WORKSPACE_ALIGN: u64 = crate::plan::WORKSPACE_ALIGN as u64;
const MAX_GROUPS: u64 = (1 << 31) - 1;

/// Most parts of a problem in one kernel, which has code for each.
const MOST_JOINED: usize = 8;

/// Generates the kernels and launches of a contraction under a derived plan: [`generate_parts`] of a problem that has one part.
///
/// # Errors
/// [`GenerateError`]; plans that passed `derive` and `fits` do not meet them.
pub fn generate(derived: &Derived, workspace: u64) -> Result<Program, GenerateError> {
    generate_parts(&[derived], workspace)
}

/// Generates the kernels and launches of the parts of a problem, each under its derived plan. Neighbours whose plans suit each other
/// ([`join`]) have one main kernel and one launch of it.
///
/// `workspace` is the budget in bytes for materialised operands and split sums; where one batch does not fit, the batch
/// is cut into chunks that reuse the workspace.
///
/// # Errors
/// [`GenerateError`]; plans that passed `derive` and `fits` do not meet them.
pub fn generate_parts(parts: &[&Derived], workspace: u64) -> Result<Program, GenerateError> {
    let is_alone = |(part, _): &(&Derived, usize)| matches!(part.c.source, ResultSource::Elements(_));
    let (alone, parts) = parts.iter().copied().zip(0..).partition::<Vec<_>, _>(is_alone);
    let mut out = Assembly::default();
    // Zero points need sums of the other operand over k, so the kernels of these sums run first.
    let totals: Vec<&Centred> = parts.iter().filter_map(|(part, _)| part.c.centre()).flat_map(Centre::iter).collect();
    let needed = |c: &Contraction| c.reductions().any(|r| totals.iter().any(|x| x.number == r.number));
    let (first, alone) = alone.into_iter().partition::<Vec<_>, _>(|(part, _)| needed(&part.c));
    let budget = workspace.saturating_sub(totals.iter().map(|x| totals_bytes(x)).sum());
    for (part, number) in first {
        out.part = number;
        reduction(part, budget, &mut out)?;
    }
    products(&parts.iter().map(|(part, _)| *part).collect::<Vec<_>>(), budget, &mut out)?;
    for (part, number) in alone {
        out.part = number;
        reduction(part, budget, &mut out)?;
    }
    place_totals(&totals, &mut out.program);
    if out.program.workspace_bytes > workspace && !totals.is_empty() {
        return Err(GenerateError::Workspace { needed: out.program.workspace_bytes, budget: workspace });
    }
    Ok(out.program)
}

/// Bytes of workspace for the sums of an operand over k.
const fn totals_bytes(x: &Centred) -> u64 {
    (x.totals.len * 4).next_multiple_of(WORKSPACE_ALIGN)
}

/// Places the sums of operands at the end of the workspace. Launches refer to these sums as reductions, by number.
fn place_totals(totals: &[&Centred], program: &mut Program) {
    for x in totals {
        let at = program.workspace_bytes.next_multiple_of(WORKSPACE_ALIGN);
        for arg in program.launches.iter_mut().flat_map(|launch| &mut launch.args) {
            if *arg == Binding::Reduction(x.number) {
                *arg = Binding::Workspace(at);
            }
        }
        program.workspace_bytes = at + totals_bytes(x);
    }
}

/// The kernels and launches of sums of products.
fn products(parts: &[&Derived], workspace: u64, out: &mut Assembly) -> Result<(), GenerateError> {
    let inputs: Vec<[Input; 2]> = parts.iter().map(|part| inputs(part)).collect();
    let reduced = parts.iter().map(|part| partials_bytes(part, &part.c, WORKSPACE_ALIGN)).sum();
    let jobs = parts.iter().zip(&inputs).zip(0..);
    let jobs = jobs.map(|((part, inputs), number)| Job::new(part, number, inputs, [workspace, reduced]));
    let mut jobs = jobs.collect::<Result<Vec<Job>, _>>()?;
    let Some(first) = jobs.first() else { return Ok(()) };
    (out.part, out.largest, out.cursor) = (first.number, first.c.problem_extents(), 0);
    // What the launches of all parts leave of reductions stays to the end.
    let left = out.reserve_parts(parts);
    (out.base, out.program.workspace_bytes) = (out.cursor, out.program.workspace_bytes.max(out.cursor));
    let reduced: Vec<(&Contraction, &[Parts])> = jobs.iter().zip(&left).map(|(job, parts)| (job.c, parts.as_slice())).collect();
    let chunk = first.chunk(0);
    let start = reduce::start::start(&reduced);
    let begun = start.is_some();
    if let Some((kernel, groups)) = start {
        let kernel = out.add_first(kernel);
        out.launch(kernel, groups, &chunk)?;
    }
    let finish = reduce::finish::finish(&reduced);
    let part = out.part;
    for (job, parts) in jobs.iter_mut().zip(&left) {
        job.reductions.clone_from(parts);
    }
    while let Some(first) = (!jobs.is_empty()).then(|| jobs.remove(0)) {
        let mut together = vec![first];
        for job in std::mem::take(&mut jobs) {
            let needed = together.iter().map(|job| job.needed).sum::<u64>() + job.needed;
            let lead = &together[0];
            let room = workspace.saturating_sub(out.base);
            let alone = lead.chunked() || job.chunked() || !lead.c.fixed() || needed > room;
            let joins = !alone && together.len() < MOST_JOINED && join(lead.spec, job.c, job.spec);
            if joins { &mut together } else { &mut jobs }.push(job);
        }
        launch_together(&together, begun, out)?;
    }
    if let Some((kernel, groups)) = finish {
        out.part = part;
        let kernel = out.add(kernel.following());
        out.launch(kernel, groups, &chunk)?;
    }
    Ok(())
}

/// Whether two parts of a problem can share a main kernel: their plans differ at most in how vectors of memory are laid out.
pub fn join(lead: &KernelSpec, c: &Contraction, other: &KernelSpec) -> bool {
    use std::mem::discriminant;
    let tiles = |spec: &KernelSpec| [&spec.tiling.a, &spec.tiling.b].map(|o| (o.macro_tile, o.micro, o.source));
    let kinds = |spec: &KernelSpec| spec.schedule.copies.each_ref().map(discriminant);
    let mut spec = other.clone();
    (spec.tiling.a, spec.tiling.b) = (lead.tiling.a.clone(), lead.tiling.b.clone());
    spec.schedule.copies = lead.schedule.copies.clone();
    spec.schedule.roles = spec.schedule.roles.zip(lead.schedule.roles).map(|(x, y)| RoleSplit { registers: y.registers, ..x });
    spec.epilogue.exit = lead.epilogue.exit.clone();
    spec.shared = lead.shared.clone();
    if c.g == 1 {
        // There is no order of a single batch entry.
        spec.tiling.entries_fastest = lead.tiling.entries_fastest;
    }
    if lead.schedule.own() {
        // Nothing in shared memory depends on how much a thread loads at once.
        spec.tiling.k_tile = lead.tiling.k_tile;
    }
    // Waves come from part to part each for itself, and each with the staging buffers that it has there; where there is no sum, none is
    // used.
    let staging =
        |spec: &KernelSpec| (discriminant(&spec.epilogue.exit), spec.epilogue.exit.bulk().map(StoreTile::staging_bytes));
    let unstaged = c.k == 0 && other.epilogue.exit.bulk().is_none();
    let apart = !unstaged && staging(lead) != staging(other);
    // Ping-pong teams, and producer warps that shift rows, rely on the work-group's next tile.
    let ahead = lead.teams() > 1 || lead.schedule.slots() > 0;
    !ahead && !apart && !lead.style.straight && spec == *lead && tiles(other) == tiles(lead) && kinds(other) == kinds(lead)
}

/// The kernels and launches of parts that share the main kernel. `begun`: reductions have their first values.
fn launch_together(jobs: &[Job], begun: bool, out: &mut Assembly) -> Result<(), GenerateError> {
    let Some(first) = jobs.first() else { return Ok(()) };
    out.largest = first.c.problem_extents();
    out.cursor = out.base;
    let mut before: Vec<(Regions, Vec<Filler>, _)> = Vec::new();
    for job in jobs {
        out.part = job.number;
        let done = jobs.iter().zip(&before);
        let same =
            |i: usize| done.clone().find(|(other, _)| job.same_copy(other, i)).and_then(|(_, (regions, ..))| regions.copies[i]);
        let regions = Regions::reserve(job, [same(0), same(1)], out);
        let fillers = fillers(job, &regions, out);
        let scale = job.ahead().map(|applied| {
            out.add_first(match job.reduces() {
                true => reduce::elements::finish(job.c, job.spec, &job.shape, &regions),
                false => finish::finish(job.c, applied, 0, None, &job.shape),
            })
        });
        before.push((regions, fillers, scale));
    }
    let follows = begun || before.iter().any(|(_, fillers, scale)| !fillers.is_empty() || scale.is_some());
    out.part = first.number;
    let main = main_kernel(first.spec, jobs, before.iter().map(|(regions, ..)| regions), follows, out)?;
    let mut after = Vec::new();
    for (job, (regions, ..)) in jobs.iter().zip(&before) {
        out.part = job.number;
        let sum = job.by_workspace.then(|| {
            let mut sum = match job.c.reductions().next() {
                Some(_) => reduce::elements::finish(job.c, job.spec, &job.shape, regions),
                None => finish::finish(job.c, Applied::All, job.spec.tiling.split_k.ways, regions.partials, &job.shape),
            }
            .following();
            sum.kernel.precedes = regions.reduced();
            out.add(sum)
        });
        after.push(sum);
    }
    for i in 0..first.shape.chunks {
        for (job, (_, fillers, scale)) in jobs.iter().zip(&before) {
            let chunk = job.chunk(i);
            job.launch_fillers(fillers, &chunk, out)?;
            if let Some(kernel) = scale {
                let groups = match job.reduces() {
                    true => reduce::elements::groups(job.c, chunk.entries),
                    false => finish::groups_ahead(job.c, job.elements(&chunk)),
                };
                out.launch(*kernel, groups, &chunk)?;
            }
        }
        launch_main(jobs, main, i, out)?;
        for (job, sum) in jobs.iter().zip(&after) {
            if let Some(kernel) = sum {
                let chunk = job.chunk(i);
                out.launch(*kernel, job.sum_groups(&chunk), &chunk)?;
            }
        }
    }
    jobs.iter().for_each(|job| job.need(out));
    out.program.workspace_bytes = out.program.workspace_bytes.max(out.cursor);
    Ok(())
}

/// The main kernel of parts.
fn main_kernel<'r>(
    spec: &KernelSpec,
    jobs: &[Job],
    regions: impl Iterator<Item = &'r Regions>,
    follows: bool,
    out: &mut Assembly,
) -> Result<usize, GenerateError> {
    let mut precedes = false;
    let jobs = jobs.iter().zip(regions).map(|(job, regions)| {
        let store = job.spec.epilogue.exit.bulk().map(|tile| {
            // Partial sums of a chunk of the batch are fewer.
            if job.by_workspace { tile.of_entries(job.split * job.shape.chunk) } else { tile.clone() }
        });
        precedes |= job.by_workspace || regions.reduced();
        PartJob { c: job.c, spec: job.spec, inputs: [&job.inputs[0], &job.inputs[1]], shape: &job.shape, store, regions }
    });
    let jobs: Vec<PartJob> = jobs.collect();
    let mut main = main::build(spec, &jobs);
    // What is launched together need not wait for the whole launch before it to end before it begins.
    if follows {
        main = main.following();
    }
    main.kernel.precedes = precedes;
    roles::check_roles(&main.kernel)?;
    Ok(out.add(main))
}

/// The launch of the main kernel on this chunk of the batch.
fn launch_main(jobs: &[Job], kernel: usize, i: u64, out: &mut Assembly) -> Result<(), GenerateError> {
    let Some(first) = jobs.first() else { return Ok(()) };
    let (t, mut chunk) = (&first.spec.tiling, first.chunk(i));
    let most = (t.persistent > 0).then_some(u64::from(t.persistent));
    let of = |job: &Job| Groups { factors: job.pieces(&job.chunk(i)), per: 1, most };
    let groups = match jobs {
        [job] => of(job),
        jobs => {
            let all: u128 = jobs.iter().map(|job| of(job).work(&out.largest)).sum();
            Groups { factors: vec![Factor::Fixed(u64::try_from(all).unwrap_or(u64::MAX))], per: 1, most }
        }
    };
    if most.is_some() {
        // Clusters walk together.
        let all = groups.work(&out.largest) / u128::from(t.cluster.size());
        let all = i32::try_from(all).map_err(|_| GenerateError::GridTooLarge { groups: all, max: MAX_GROUPS })?;
        if first.c.dynamic().is_none() {
            chunk.work = Binding::I32(all);
        }
    }
    out.launch(kernel, groups, &chunk)
}

/// The program of a standalone reduction, or its part in a program: a kernel over the tensor's elements, and a kernel that
/// reduces the work-groups' parts.
fn reduction(part: &Derived, workspace: u64, out: &mut Assembly) -> Result<(), GenerateError> {
    let (c, spec): (&Contraction, _) = (&part.c, &part.spec);
    let ResultSource::Elements(elements) = &c.source else { return Ok(()) };
    let needed = partials_bytes(spec, c, WORKSPACE_ALIGN);
    if needed > workspace {
        return Err(GenerateError::Workspace { needed, budget: workspace });
    }
    (out.largest, out.cursor) = (c.extents(), 0);
    let parts = out.reserve_parts(&[part]).pop().unwrap_or_default();
    let whole = Chunk { first: 0, entries: Factor::Fixed(1), count: Binding::I64(1), work: Binding::Work };
    // Of an empty tensor no element is read: the last kernel alone writes the values of an empty axis, if there are some.
    let read = (c.n > 0).then(|| {
        let mut main = reduce::alone::build(c, elements, spec, &parts);
        main.kernel.precedes = spec.finishes_after(c);
        let start = reduce::start::start(&[(c, &parts)]).map(|(kernel, groups)| (out.add_first(kernel), groups));
        (out.add(if start.is_some() { main.following() } else { main }), start)
    });
    let follows = read.is_some();
    if let Some((main, start)) = read {
        if let Some((kernel, groups)) = start {
            out.launch(kernel, groups, &whole)?;
        }
        let factors = reduce::alone::grid(c, spec).map(Factor::Fixed).to_vec();
        out.launch(main, Groups { factors, per: 1, most: None }, &whole)?;
    }
    if let Some((kernel, groups)) = reduce::finish::finish(&[(c, &parts)]) {
        let kernel = out.add(if follows { kernel.following() } else { kernel });
        out.launch(kernel, groups, &whole)?;
    }
    out.need(elements.of, spec.element_loads(c).width() * c.a.scalar.bytes());
    out.program.workspace_bytes = out.program.workspace_bytes.max(out.cursor);
    Ok(())
}

/// What the main kernel reads its operands through: views of their own, or copies in workspace.
pub(super) fn inputs(derived: &Derived) -> [Input; 2] {
    let (t, c) = (&derived.spec.tiling, &derived.c);
    let names = c.factors();
    let input = |operand, tensor: &Tensor, tiling: &OperandTiling, edge, rows: Extent| {
        // A packed operand has whole panels: nothing to pull back.
        let edge = if tiling.source == Source::Packed { Edge::Predicate } else { edge };
        Input {
            operand,
            rows: c.dynamic_extent(rows),
            grouped: c.grouped(rows),
            any_term: c.any_term(),
            run_time_batch: c.dynamic().g,
            chunk_local: tiling.source.gathers() && tensor.view.access.offset.uses(G),
            tensor: tensor.clone(),
            tiling: tiling.clone(),
            edge,
        }
    };
    [input(names[0], derived.read(0), &t.a, t.edge_m, Extent::M), input(names[1], derived.read(1), &t.b, t.edge_n, Extent::N)]
}

/// What all stages read.
pub(super) struct Job<'a> {
    /// Number among the parts of the problem.
    number: usize,
    c: &'a Contraction,
    spec: &'a KernelSpec,
    inputs: &'a [Input; 2],
    /// Of operands that are copied: what a copy reads, and what it writes.
    copies: [Option<(Tensor, Input)>; 2],
    pub(super) shape: Shape,
    /// Splits that leave their sums to others, and whether they leave them in workspace.
    split: u64,
    by_workspace: bool,
    /// Bytes of workspace beside the parts of reductions, for one batch entry at least.
    needed: u64,
    /// The parts of its reductions.
    reductions: Vec<Parts>,
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
    /// Cuts the batch into chunks. Each chunk fits in the workspace together with so many bytes of it for the parts of
    /// reductions.
    pub(super) fn new(
        Derived { spec, c, .. }: &'a Derived,
        number: usize,
        inputs: &'a [Input; 2],
        [workspace, reduced]: [u64; 2],
    ) -> Result<Job<'a>, GenerateError> {
        let t = &spec.tiling;
        let split = spec.split_outside() as u64;
        let by_workspace = spec.epilogue.split == Split::Workspace;
        // Bytes of workspace: per batch entry, and shared by all.
        let (mut per_entry, mut shared) = (0, 0);
        for x in inputs.iter().filter(|x| x.copied(c)) {
            let bytes = x.tensor.len * x.tensor.scalar.bytes() as u64;
            let entry = if x.chunk_local { bytes / c.g.max(1) } else { bytes };
            *(if x.chunk_local { &mut per_entry } else { &mut shared }) += entry + WORKSPACE_ALIGN;
        }
        if by_workspace {
            per_entry += split * c.m * c.n * c.accumulator().bytes() as u64 + WORKSPACE_ALIGN;
        }
        let needed = per_entry + shared + reduced;
        if needed > 0 && needed > workspace {
            return Err(GenerateError::Workspace { needed, budget: workspace });
        }
        let left = workspace.saturating_sub(shared + reduced);
        let chunk = left.checked_div(per_entry).map_or(c.entries(), |entries| entries.clamp(1, c.entries().max(1)));
        let [tiles_m, tiles_n, _] = c.tiles([t.a.macro_tile.into(), t.b.macro_tile.into()]);
        let shape = Shape {
            tiles_m: tiles_m.next_multiple_of(t.cluster.m.into()),
            tiles_n: tiles_n.next_multiple_of(t.cluster.n.into()),
            k_tiles: c.k.div_ceil(t.k_tile as u64),
            chunk,
            chunks: c.entries().div_ceil(chunk.max(1)),
        };
        let sizes = [Extent::M, Extent::N].map(|extent| c.dynamic_extent(extent));
        let needed = shared + per_entry * shape.chunk;
        let copies = [(&inputs[0], &c.a), (&inputs[1], &c.b)].map(|(x, source)| x.copied(c).then(|| x.copy_of(source)));
        Ok(Job { number, c, spec, inputs, copies, shape, split, by_workspace, needed, reductions: Vec::new(), sizes })
    }

    fn chunked(&self) -> bool {
        self.shape.chunks > 1
    }

    /// An operand's copy is that of another part, which neither cuts into chunks: it reads the same elements and has the same layout.
    fn same_copy(&self, other: &Job, operand: usize) -> bool {
        let [own, others] = [self, other].map(|job| job.copies[operand].as_ref());
        own.zip(others).is_some_and(|((from, to), (others, other))| from == others && to.tensor == other.tensor)
    }

    fn chunk(&self, i: u64) -> Chunk {
        let first = i * self.shape.chunk;
        let most = self.shape.chunk.min(self.c.entries() - first);
        let (entries, count) = match self.c.dynamic().g {
            true => (Factor::Entries { first, most }, Binding::Entries { first, most }),
            false => (Factor::Fixed(most), Binding::I64(most as i64)),
        };
        Chunk { first, entries, count, work: Binding::Work }
    }

    /// Results are reduced.
    fn reduces(&self) -> bool {
        self.c.reductions().next().is_some()
    }

    /// What a kernel ahead makes of the results, where there is such: what splits add their sums to, or what exits add.
    fn ahead(&self) -> Option<Applied> {
        let begins = !self.c.drop_c || self.c.bias().is_some() || self.c.residual().is_some();
        match self.split > 1 && !self.by_workspace {
            true => begins.then_some(Applied::Rest),
            false => self.c.turns_old().then_some(Applied::Ahead),
        }
    }

    /// Elements of the result in a chunk.
    fn elements(&self, chunk: &Chunk) -> Vec<Factor> {
        let [m, n] = [(self.sizes[0], self.c.m), (self.sizes[1], self.c.result_columns())].map(|(size, all)| match size {
            Some(extent) => Factor::Steps { extent, more: 0, of: 1 },
            None => Factor::Fixed(all),
        });
        vec![chunk.entries, m, n]
    }

    /// Work-groups of the kernel that sums the splits of a chunk. The last chunk of a batch may be shorter, its kernel is the same.
    fn sum_groups(&self, chunk: &Chunk) -> Groups {
        let c = self.c;
        if c.reductions().next().is_some() {
            return reduce::elements::groups(c, chunk.entries);
        }
        let lanes = finish::lanes(c, self.shape.chunk, self.split as u32);
        finish::sum_groups(self.elements(chunk), lanes)
    }

    fn launch_fillers(&self, fillers: &[Filler], chunk: &Chunk, out: &mut Assembly) -> Result<(), GenerateError> {
        for Filler { copies, kernel } in fillers {
            if chunk.first > 0 && copies.iter().all(|copy| !copy.to.chunk_local) {
                continue;
            }
            let entries = |x: &Input| if x.chunk_local { chunk.entries } else { Factor::Fixed(prepare::entries(x)) };
            let groups = copies.iter().map(|copy| prepare::groups(copy.source, copy.to, entries(copy.to))).collect();
            out.launch(*kernel, Groups::together(groups, &out.largest), chunk)?;
        }
        Ok(())
    }

    /// Tiles and splits of a chunk.
    fn pieces(&self, chunk: &Chunk) -> Vec<Factor> {
        let t = &self.spec.tiling;
        let tiles = [(self.sizes[0], self.shape.tiles_m, &t.a), (self.sizes[1], self.shape.tiles_n, &t.b)];
        let [tiles_m, tiles_n] = tiles.map(|(size, tiles, tiling)| match size {
            Some(extent) => Factor::Steps { extent, more: 0, of: tiling.macro_tile.into() },
            None => Factor::Fixed(tiles),
        });
        vec![Factor::Fixed(t.split_k.ways.into()), tiles_m, tiles_n, chunk.entries]
    }

    /// What the real pointers must satisfy.
    fn need(&self, out: &mut Assembly) {
        let (c, spec) = (self.c, self.spec);
        for (i, x) in self.inputs.iter().enumerate().filter(|_| c.k > 0) {
            let width = match (&self.copies[i], &spec.schedule.copies[i]) {
                (None, Transport::Written(tile)) => fetch_tile::width(x, tile),
                (None, Transport::Halo(halo)) => halo.tile.load_width,
                (None, _) => x.tiling.load_width,
                (Some((source, to)), _) => {
                    let base = prepare::base_align(source, to).map(|bytes| Alignment { operand: x.operand, bytes });
                    out.program.bases.extend(base);
                    prepare::source_width(source, to)
                }
            };
            out.need(x.operand, x.tensor.scalar.bytes_of(width.into()) as u32);
        }
        if c.drop_c {
            return;
        }
        let stored = match &spec.epilogue.exit {
            _ if self.by_workspace => gap_width(c) * c.c.scalar.bytes(),
            Exit::Bulk { .. } => 16,
            // Rows are stored in vectors as wide as the start of C allows.
            Exit::Rows => c.c.align.clamp(c.c.scalar.bytes(), 16),
            exit => exit.width().max(gap_width(c)) * c.c.scalar.bytes(),
        };
        out.need(Operand::C, stored);
    }
}

impl Regions {
    /// Copies of the operands first, then partial sums. `same`: where another part of the launch has the same copy of an operand, which is
    /// not made again.
    fn reserve(job: &Job, same: [Option<u64>; 2], out: &mut Assembly) -> Regions {
        let (c, chunk) = (job.c, job.shape.chunk);
        let mut copies = same;
        for (copy, x) in copies.iter_mut().zip(job.inputs).filter(|(copy, x)| copy.is_none() && x.copied(c)) {
            let entries = if x.chunk_local { x.tensor.len / c.g.max(1) * chunk } else { x.tensor.len };
            *copy = Some(out.reserve(entries * x.tensor.scalar.bytes() as u64));
        }
        let bytes = job.split * chunk * c.m * c.n * c.accumulator().bytes() as u64;
        let partials = job.by_workspace.then(|| out.reserve(bytes));
        Regions { copies, filled: same.map(|region| region.is_some()), partials, reductions: job.reductions.clone() }
    }

    /// A kernel after the others reduces the parts stored there.
    fn reduced(&self) -> bool {
        self.reductions.iter().any(|parts| parts.partials.finish == Some(Finish::Kernel))
    }
}

/// A kernel that copies operands.
struct Filler<'a> {
    copies: Vec<OperandCopy<'a>>,
    /// Its number in the program.
    kernel: usize,
}

/// Kernels that copy operands into workspace; where possible one launch copies both.
fn fillers<'a>(job: &'a Job, regions: &Regions, out: &mut Assembly) -> Vec<Filler<'a>> {
    let copied = |i: usize| {
        let (source, to) = job.copies[i].as_ref()?;
        Some(OperandCopy { source, to, region: regions.copies[i]? })
    };
    let copied: Vec<_> = (0..2).filter(|i| !regions.filled[*i]).filter_map(copied).collect();
    let together = if job.chunked() || !job.c.dynamic().is_none() { 1 } else { 2 };
    let chunked = job.chunked() || job.c.dynamic().g;
    let of = |copies: &[OperandCopy<'a>]| {
        let kernel = out.add_first(prepare::materialise(copies, chunked));
        Filler { copies: copies.to_vec(), kernel }
    };
    copied.chunks(together).map(of).collect()
}

/// Collects kernels and launches, and hands out workspace.
#[derive(Default)]
struct Assembly {
    program: Program,
    /// Those of each kernel.
    arguments: Vec<Arguments>,
    cursor: u64,
    /// Bytes at the start of workspace that all launches keep.
    base: u64,
    /// The part of the problem that kernels belong to: kernels of later parts have its number in their names.
    part: usize,
    /// The largest extents, as the problem names them.
    largest: Extents,
}

impl Assembly {
    fn reserve(&mut self, bytes: u64) -> u64 {
        let at = self.cursor.next_multiple_of(WORKSPACE_ALIGN);
        self.cursor = at + bytes;
        at
    }
    /// Room for the parts of the reductions of each contraction: those of one reduction's component side by side.
    fn reserve_parts(&mut self, all: &[&Derived]) -> Vec<Vec<Parts>> {
        let parts = |Derived { spec, c, .. }: &&Derived| {
            let of = |r: &Reduce| {
                let parts = spec.partials(c, r);
                let state = if parts.is_empty() { Vec::new() } else { c.state(r) };
                let components = state.into_iter().map(|scalar| parts.len() * u64::from(scalar.bytes()));
                let regions = components.chain(Some(4 * parts.tickets()).filter(|bytes| *bytes > 0)).collect();
                Parts { partials: parts, regions }
            };
            spec.reduced(c).map(of).collect()
        };
        let mut all: Vec<Vec<Parts>> = all.iter().map(parts).collect();
        for reduction in 0..all.iter().map(Vec::len).max().unwrap_or(0) {
            let same = all.iter_mut().filter_map(|of| of.get_mut(reduction)).map(|parts| &mut parts.regions);
            let mut same: Vec<&mut Vec<u64>> = same.collect();
            for component in 0..same.iter().map(|at| at.len()).max().unwrap_or(0) {
                for bytes in same.iter_mut().filter_map(|at| at.get_mut(component)) {
                    *bytes = self.reserve(*bytes);
                }
            }
        }
        all
    }
    /// A kernel after which the main kernel is launched.
    fn add_first(&mut self, mut of: BoundKernel) -> usize {
        of.kernel.precedes = true;
        self.add(of)
    }
    fn add(&mut self, of: BoundKernel) -> usize {
        let BoundKernel { mut kernel, args } = of;
        if self.part > 0 {
            kernel.name = format!("{}_{}", kernel.name, self.part);
        }
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
