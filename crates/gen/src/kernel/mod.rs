//! Kernel generation: a contraction and a derived plan become a program.
//!
//! The main kernel is built from four rooms that mirror the four choices: [`index`] reads views, `load` and `math` cut
//! tiles, [`schedule`] orders the stages, `epilogue` stores the result, with what `post` adds. `materialise` copies an operand into workspace,
//! `helpers` scale C and sum splits.

pub mod schedule;

mod barriers;
mod bulk_kernel;
mod cluster;
mod cluster_sum;
mod epilogue;
mod fetch_edge;
mod fetch_layout;
mod fetch_lines;
mod fetch_tile;
mod helpers;
mod load;
mod main_kernel;
mod main_loop;
mod materialise;
mod math;
mod mfma;
mod pipeline;
mod position;
mod post;
mod row_fragments;
mod row_store;
mod shift_lines;
mod staged_store;
mod turns;
mod warpgroup;
mod wave_unit;

pub use helpers::split_lanes;
pub use position::WIDE_OFFSETS;
mod word_copy;

use crate::plan::materialised;
use crate::plan::{
    BulkTile, Edge, KernelSpec, OperandTiling, Source, SplitSum, fetched_tile, partials, shared_bulk_tile, shifted_hulls,
    store_tile,
};
use crate::program::{Alignment, Binding, Factor, Groups, Launch, MapExtent, Program};
use thiserror::Error;
use tilewright_problem::contraction::{Contraction, Operand, Tensor};
use tilewright_problem::view::{G, ROW};
use tilewright_problem::{Extent, Extents};

/// Why no program can be made. Plans that passed `derive` and `fits` do not meet these.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum GenerateError {
    /// More work-groups than a grid dimension holds.
    #[error(
        "the launch needs {groups} work-groups, more than the {max} a grid dimension holds; use larger macro tiles or a smaller batch"
    )]
    GridTooLarge {
        /// Needed.
        groups: u128,
        /// Available.
        max: u64,
    },
    /// The workspace budget does not hold what one batch entry needs.
    #[error(
        "one batch entry needs {needed} bytes of workspace and the budget is {budget}; raise the workspace or choose WOS0 and SKS0"
    )]
    Workspace {
        /// Bytes for one entry.
        needed: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// An operand is no box that bulk copies move.
    #[error("{operand:?} is not what bulk copies move: {why}; choose WOS1 or UNI0")]
    Bulk {
        /// Which.
        operand: Operand,
        /// What it lacks.
        why: String,
    },
    /// Two roles would wait for each other at different barriers: the work-group would hang. A bug of the generator.
    #[error(
        "role `{first}` meets {meets} barriers of the work-group as written, role `{second}` {other}, or under other loops or \
         conditions; this is a bug of the generator, report the plan and use LWV0"
    )]
    Barriers {
        /// One role.
        first: String,
        /// Its barriers.
        meets: usize,
        /// The other role.
        second: String,
        /// Its barriers.
        other: usize,
    },
}

/// Name of the kernel that holds the main loop; the others of a program prepare its operands or sum its results.
pub const MAIN: &str = "tw_contract";

/// What the main kernel reads an operand through: its own view, or a copy in workspace.
pub(crate) struct Input {
    pub operand: Operand,
    pub tensor: Tensor,
    pub tiling: OperandTiling,
    /// Which extent its rows are, where that is known only at launch.
    pub rows: Option<Extent>,
    /// How many batch entries there are is known only at launch.
    pub run_time_batch: bool,
    /// The copy is indexed by the position within the chunk, not by the batch coordinate.
    pub chunk_local: bool,
    pub edge: Edge,
}

/// Sizes of the launch shared by the rooms.
pub(crate) struct Shape {
    /// Tiles along m and n, of whole clusters.
    pub tiles_m: u64,
    pub tiles_n: u64,
    pub k_tiles: u64,
    /// Batch entries per launch.
    pub chunk: u64,
    pub chunks: u64,
}

/// Regions of the workspace start at multiples of this: OpenCL devices pass on parts of a buffer from multiples of up to 512 bytes on.
const WORKSPACE_ALIGN: u64 = crate::plan::WORKSPACE_ALIGN as u64;
const MAX_GROUPS: u64 = (1 << 31) - 1;

/// Generates the kernels and launches of a contraction under a derived plan.
///
/// `workspace` is the budget in bytes for materialised operands and split sums; where one batch does not fit, the batch
/// is cut into chunks that reuse the workspace.
pub fn generate(c: &Contraction, spec: &KernelSpec, workspace: u64) -> Result<Program, GenerateError> {
    let t = &spec.tiling;
    let c = &*c.oriented(t.exchanged);
    let names = if t.exchanged { [Operand::B, Operand::A] } else { [Operand::A, Operand::B] };
    // Extents as the problem names them.
    let named = |extent: Extent| if t.exchanged { extent.turned() } else { extent };
    let dynamic = |extent: Extent| c.dynamic.has(extent).then(|| named(extent));
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
            rows: dynamic(rows),
            run_time_batch: c.dynamic.g,
            chunk_local: copied && tensor.view.access.offset.uses(tilewright_problem::view::G),
            tensor,
            tiling: tiling.clone(),
            edge,
        }
    };
    let a = input(names[0], &c.a, &t.a, t.edge_m, Extent::M);
    let b = input(names[1], &c.b, &t.b, t.edge_n, Extent::N);

    let split = spec.split_outside() as u64;
    let by_workspace = split > 1 && spec.epilogue.split_sum == SplitSum::Workspace;
    // Bytes of workspace: per batch entry, and shared by all.
    let (mut per_entry, mut shared) = (0, 0);
    for x in [&a, &b] {
        if x.tiling.source != Source::InPlace {
            let bytes = x.tensor.len * x.tensor.scalar.bytes() as u64;
            let entry = if x.chunk_local { bytes / c.g.max(1) } else { bytes };
            *(if x.chunk_local { &mut per_entry } else { &mut shared }) += entry + WORKSPACE_ALIGN;
        }
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
    let program = Program { kernels: vec![], launches: vec![], workspace_bytes: 0, alignments: vec![], bases: vec![] };
    let largest = c.oriented(t.exchanged).extents();
    let mut out = Assembly { program, cursor: 0, largest };

    // Workspace layout: copies first, then partial sums.
    let region = |out: &mut Assembly, x: &Input| {
        (x.tiling.source != Source::InPlace).then(|| {
            let entries = if x.chunk_local { x.tensor.len / c.g.max(1) * chunk } else { x.tensor.len };
            out.reserve(entries * x.tensor.scalar.bytes() as u64)
        })
    };
    let region_a = region(&mut out, &a);
    let region_b = region(&mut out, &b);
    let region_partials = by_workspace.then(|| out.reserve(split * chunk * c.m * c.n * c.accumulator().bytes() as u64));

    let chunked = shape.chunks > 1;
    let mut fillers = Vec::new();
    match (region_a, region_b) {
        // One launch copies both.
        (Some(ra), Some(rb)) if !chunked && c.dynamic.is_none() => {
            let kernel = out.add_first(materialise::materialise(&[(&c.a, &a), (&c.b, &b)], false));
            fillers.push((vec![(&a, &c.a, ra), (&b, &c.b, rb)], kernel));
        }
        _ => {
            for (x, source, region) in [(&a, &c.a, region_a), (&b, &c.b, region_b)] {
                if let Some(region) = region {
                    let kernel = out.add_first(materialise::materialise(&[(source, x)], chunked || c.dynamic.g));
                    fillers.push((vec![(x, source, region)], kernel));
                }
            }
        }
    }
    let scale = (split > 1 && !by_workspace).then(|| out.add_first(helpers::finish(c, t.exchanged, 0, &shape)));
    let bulk = match spec.schedule.bulk {
        false => None,
        true => {
            let tile = |x: &Input, fetched, shares| {
                if fetched {
                    fetched_tile(&x.tensor, &x.tiling, t.k_tile)
                } else {
                    shared_bulk_tile(&x.tensor, &x.tiling, t.k_tile, shares)
                }
                .map_err(|why| GenerateError::Bulk { operand: x.operand, why })
            };
            let fetched = spec.schedule.fetched;
            Some([tile(&a, fetched[0], t.cluster.n)?, tile(&b, fetched[1], t.cluster.m)?])
        }
    };
    let store = match spec.epilogue.bulk {
        false => None,
        true => {
            let tensor = if by_workspace { partials(c, split * chunk) } else { c.c.clone() };
            Some(store_tile(&tensor, t.b.micro).map_err(|why| GenerateError::Bulk { operand: Operand::C, why })?)
        }
    };
    let shifted = shifted_hulls(spec, c);
    let by_loads = |i: usize| spec.schedule.fetched[i] && shifted[i].is_none();
    let read_by_words =
        |i: usize, x: &Input| by_loads(i) && bulk.as_ref().is_some_and(|tiles| fetch_tile::by_words(x, &tiles[i]));
    let by_words = [read_by_words(0, &a), read_by_words(1, &b)];
    let fetch_width = |i: usize, x: &Input| bulk.as_ref().map_or(1, |tiles| fetch_tile::width(x, &tiles[i]));
    let fetch_widths = [fetch_width(0, &a), fetch_width(1, &b)];
    let lines_of_rows = store.as_ref().is_some_and(|tile| tile.by_rows);
    let mut main = main_kernel::build(c, spec, &a, &b, &shape, bulk.clone(), store);
    // What is launched together need not wait for the whole launch before it to end before it begins.
    if !fillers.is_empty() || scale.is_some() {
        main = main.following();
    }
    main.precedes = by_workspace;
    let bulk_store = spec.epilogue.bulk;
    barriers::check_roles(&main)?;
    let main = out.add(main);
    let sum = by_workspace.then(|| {
        let kernel = helpers::finish(c, t.exchanged, t.split_k.ways, &shape);
        out.add(kernel.following())
    });

    for i in 0..shape.chunks {
        let first = i * chunk;
        let count = chunk.min(c.g - first);
        let chunk_arg = chunked.then_some(Binding::I64(first as i64));
        let entries = if c.dynamic.g { Factor::Entries { first, most: count } } else { Factor::Fixed(count) };
        let entries_arg = if c.dynamic.g { Binding::Entries { first, most: count } } else { Binding::I64(count as i64) };
        let sizes = [Extent::M, Extent::N].map(dynamic);
        let [all_m, all_n] = [(sizes[0], c.m), (sizes[1], c.n)].map(|(size, all)| match size {
            Some(extent) => Factor::Steps { extent, more: 0, of: 1 },
            None => Factor::Fixed(all),
        });
        for (parts, kernel) in &fillers {
            if i > 0 && parts.iter().all(|(x, ..)| !x.chunk_local) {
                continue;
            }
            let (mut groups, mut args) = (Vec::new(), Vec::new());
            for &(x, source, region) in parts {
                groups.push(materialise::groups(source, x, if x.chunk_local { entries } else { Factor::Fixed(1) }));
                let chunk = (x.chunk_local && (chunked || c.dynamic.g)).then_some((first, entries_arg));
                args.extend(materialise::bindings(source, x, region, chunk));
            }
            out.launch(*kernel, Groups::together(groups, &out.largest), args, vec![])?;
        }
        let finish_args = |partials: Option<u64>| {
            let mut args = vec![Binding::Buffer(Operand::C), Binding::Offset(Operand::C)];
            args.extend(post::Added::bindings(c));
            args.extend(partials.map(Binding::Workspace));
            args.extend(partials.map(|_| Binding::Alpha));
            args.push(Binding::Beta);
            args.push(entries_arg);
            args.extend(chunk_arg);
            args.extend(sizes.into_iter().flatten().map(Binding::Extent));
            args
        };
        let all = || helpers::groups(vec![entries, all_m, all_n]);
        if let Some(kernel) = scale {
            out.launch(kernel, all(), finish_args(None), vec![])?;
        }
        let (mut args, mut maps) = (Vec::new(), Vec::new());
        for (i, (x, region)) in [(&a, region_a), (&b, region_b)].into_iter().enumerate() {
            if let Some(hulls) = &shifted[i] {
                for class in &hulls.classes {
                    let batch = x.run_time_batch && class.map.tile.len() > 2;
                    let entries = Factor::Steps { extent: Extent::G, more: 0, of: 1 };
                    maps.extend(batch.then_some(MapExtent { arg: args.len(), dim: 2, extent: entries }));
                    args.push(Binding::OperandMap(x.operand, class.first));
                }
                continue;
            }
            match region {
                _ if spec.schedule.fetched[i] => args.extend(fetch_bindings(x, region, by_words[i])),
                _ if spec.schedule.bulk => {
                    maps.extend(bulk.iter().flat_map(|tiles| map_extents(&tiles[i], x, args.len())));
                    args.push(region.map_or(Binding::OperandMap(x.operand, 0), Binding::WorkspaceMap));
                }
                Some(region) => args.push(Binding::Workspace(region)),
                None => args.extend([Binding::Buffer(x.operand), Binding::Offset(x.operand)]),
            }
        }
        match region_partials {
            Some(region) => args.push(Binding::Workspace(region)),
            None => {
                args.extend([Binding::Buffer(Operand::C), Binding::Offset(Operand::C)]);
                args.extend(post::Added::bindings(c).filter(|_| split == 1));
                args.push(Binding::Alpha);
                args.extend((split == 1).then_some(Binding::Beta));
            }
        }
        args.extend(chunk_arg);
        if bulk_store {
            maps.extend(store_extents(
                c,
                args.len(),
                if lines_of_rows { [sizes[1], sizes[0]] } else { sizes },
                region_partials.is_some(),
            ));
        }
        args.extend(bulk_store.then(|| region_partials.map_or(Binding::OperandMap(Operand::C, 0), Binding::WorkspaceMap)));
        let [tiles_m, tiles_n] =
            [(sizes[0], shape.tiles_m, &t.a), (sizes[1], shape.tiles_n, &t.b)].map(|(size, tiles, tiling)| match size {
                Some(extent) => Factor::Steps { extent, more: 0, of: tiling.macro_tile.into() },
                None => Factor::Fixed(tiles),
            });
        // As the kernel declares them: behind what is common to all its forms.
        let most = (t.persistent > 0).then_some(u64::from(t.persistent));
        let groups = Groups { factors: vec![Factor::Fixed(t.split_k.ways.into()), tiles_m, tiles_n, entries], per: 1, most };
        args.extend(sizes.into_iter().flatten().map(Binding::Extent));
        if most.is_some() {
            // Clusters walk together.
            let work = groups.work(&out.largest) / u128::from(t.cluster.size());
            let work = i32::try_from(work).map_err(|_| GenerateError::GridTooLarge { groups: work, max: MAX_GROUPS })?;
            if !c.dynamic.is_none() {
                args.push(Binding::Work);
            } else if chunked {
                args.push(Binding::I32(work));
            }
        }
        out.launch(main, groups, args, maps)?;
        if let Some(kernel) = sum {
            // The last chunk of a batch may be shorter, its kernel is the same.
            let lanes = helpers::split_lanes(chunk * c.m * c.n, split as u32);
            out.launch(kernel, helpers::sum_groups(vec![entries, all_m, all_n], lanes), finish_args(region_partials), vec![])?;
        }
    }
    for (i, (x, source)) in [(&a, &c.a), (&b, &c.b)].into_iter().enumerate() {
        let width = match x.tiling.source {
            Source::InPlace if by_loads(i) => {
                let base = by_words[i].then_some(Alignment { operand: x.operand, bytes: word_copy::BASE_ALIGN });
                out.program.bases.extend(base);
                fetch_widths[i]
            }
            Source::InPlace => x.tiling.load_width,
            _ => {
                let base = materialise::base_align(source, x).map(|bytes| Alignment { operand: x.operand, bytes });
                out.program.bases.extend(base);
                materialise::source_width(source, x)
            }
        };
        out.need(x.operand, width * x.tensor.scalar.bytes());
    }
    let stores = if split > 1 { 1 } else { spec.epilogue.store_width };
    let stored = match spec.schedule.bulk && spec.epilogue.staged && !by_workspace {
        true if bulk_store => 16,
        // Rows leave in vectors as wide as the start of C allows.
        true => c.c.align.clamp(c.c.scalar.bytes(), 16),
        false => stores * c.c.scalar.bytes(),
    };
    out.need(Operand::C, stored);
    out.program.workspace_bytes = out.cursor;
    Ok(out.program)
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

impl Input {
    /// Rows of a copy beyond the operand's last that a copy known only at launch fills as well: to the end of a panel.
    pub fn padding_rows(&self) -> u64 {
        if self.tiling.source == Source::Packed { u64::from(self.tiling.macro_tile) - 1 } else { 0 }
    }
    /// Some rows of the last macro tile do not exist in memory.
    pub fn rows_overrun(&self, tiles: u64) -> bool {
        // Panels are filled to their ends.
        if self.rows.is_some() && self.tiling.source != Source::Packed {
            return true;
        }
        self.edge == Edge::Predicate && tiles * self.tiling.macro_tile as u64 > self.tensor.view.extent[ROW]
    }
}
