//! The stages from a derived plan to a program: inputs and workspace, preparing kernels, the main kernel, the kernel that finishes splits.

mod assembly;
mod job;

pub(super) use job::{Job, Tiles, inputs};

use super::error::GenerateError;
use super::exit::operations::Applied;
use super::input::{Input, Regions};
use super::main::PartJob;
use super::reduce::Parts;
use super::stages::roles;
use super::{finish, main, reduce};
use crate::plan::{Derived, KernelSpec, RoleSplit, StoreTile, partials_bytes};
use crate::program::{Binding, Factor, Groups, Program};
use assembly::{Assembly, Chunk};
use job::{Filler, fillers};
use tilewright_problem::contraction::{Centre, Centred, Contraction, ResultSource};

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
    let tails: Vec<Option<KernelSpec>> = parts.iter().map(|part| part.of_tail(&part.c)).collect();
    let mut jobs = Vec::new();
    for (number, ((part, inputs), tail)) in parts.iter().zip(&inputs).zip(&tails).enumerate() {
        let whole = Some((&part.spec, Tiles::Whole));
        for (spec, tiles) in whole.into_iter().chain(tail.as_ref().map(|tail| (tail, Tiles::Tail))) {
            jobs.push(Job::new(&part.c, spec, tiles, number, inputs, [workspace, reduced])?);
        }
    }
    let Some(first) = jobs.first() else { return Ok(()) };
    (out.part, out.largest, out.cursor) = (first.number, first.c.problem_extents(), 0);
    // What the launches of all parts leave of reductions stays to the end.
    let left = out.reserve_parts(parts);
    (out.base, out.program.workspace_bytes) = (out.cursor, out.program.workspace_bytes.max(out.cursor));
    let reduced: Vec<(&Contraction, &[Parts])> =
        parts.iter().zip(&left).map(|(part, left)| (&*part.c, left.as_slice())).collect();
    let chunk = first.chunk(0);
    let start = reduce::start::start(&reduced);
    let begun = start.is_some();
    if let Some((kernel, groups)) = start {
        let kernel = out.add_first(kernel);
        out.launch(kernel, groups, &chunk)?;
    }
    let finish = reduce::finish::finish(&reduced);
    let part = out.part;
    for job in &mut jobs {
        // A split tail has no reductions.
        job.reductions = left.get(job.number).filter(|_| job.tiles == Tiles::Whole).cloned().unwrap_or_default();
    }
    while let Some(first) = (!jobs.is_empty()).then(|| jobs.remove(0)) {
        let mut together = vec![first];
        for job in std::mem::take(&mut jobs) {
            let lead = &together[0];
            let room = workspace.saturating_sub(out.base);
            let joins = match job.tiles {
                Tiles::Tail => job.follows(lead, room),
                Tiles::Whole => {
                    let needed = together.iter().map(|job| job.needed).sum::<u64>() + job.needed;
                    let alone = lead.chunked() || job.chunked() || !lead.c.fixed() || needed > room;
                    !alone && together.len() < MOST_JOINED && join(lead.spec, job.c, job.spec)
                }
            };
            if joins { &mut together } else { &mut jobs }.push(job);
        }
        launch_together(&together, begun, out)?;
    }
    out.tail = false;
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
    out.tail = first.tiles == Tiles::Tail;
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
