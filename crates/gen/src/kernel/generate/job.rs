//! A part of a problem that becomes launches: its inputs, the chunks of its batch, and its share of the workspace.

use super::WORKSPACE_ALIGN;
use super::assembly::{Assembly, Chunk};
use crate::kernel::copy::fetch_tile;
use crate::kernel::error::GenerateError;
use crate::kernel::exit::operations::Applied;
use crate::kernel::input::{Input, Regions, Rows, Shape};
use crate::kernel::prepare::OperandCopy;
use crate::kernel::reduce::Parts;
use crate::kernel::{finish, prepare, reduce};
use crate::plan::reach::gap_width;
use crate::plan::{Derived, Edge, Exit, Finish, KernelSpec, OperandTiling, Source, Split, Transport};
use crate::program::{Alignment, Binding, Factor, Groups};
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, Operand, Tensor};
use tilewright_problem::view::G;

/// What the main kernel reads its operands through: views of their own, or copies in workspace.
pub(crate) fn inputs(derived: &Derived) -> [Input; 2] {
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
            up: c.up().filter(|_| operand == Operand::B),
        }
    };
    [input(names[0], derived.read(0), &t.a, t.edge_m, Extent::M), input(names[1], derived.read(1), &t.b, t.edge_n, Extent::N)]
}

/// Which tiles a main kernel computes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tiles {
    /// All tiles, or all before the split tail.
    Whole,
    /// The split tail.
    Tail,
}

/// What all stages read.
pub(crate) struct Job<'a> {
    /// Number among the parts of the problem.
    pub number: usize,
    pub tiles: Tiles,
    pub c: &'a Contraction,
    pub spec: &'a KernelSpec,
    pub inputs: &'a [Input; 2],
    /// Of operands that are copied: what a copy reads, and what it writes.
    copies: [Option<(Tensor, Input)>; 2],
    pub shape: Shape,
    /// Splits that leave their sums to others, and whether they leave them in workspace.
    pub split: u64,
    pub by_workspace: bool,
    /// Bytes of workspace beside the parts of reductions, for one batch entry at least.
    pub needed: u64,
    /// Bytes of these that copies of operands take.
    copied: u64,
    /// The parts of its reductions.
    pub reductions: Vec<Parts>,
    /// Rows and columns of C where they are known only at launch.
    sizes: [Option<Extent>; 2],
}

impl<'a> Job<'a> {
    /// Cuts the batch into chunks. Each chunk fits in the workspace together with so many bytes of it for the parts of
    /// reductions.
    pub fn new(
        c: &'a Contraction,
        spec: &'a KernelSpec,
        tiles: Tiles,
        number: usize,
        inputs: &'a [Input; 2],
        [workspace, reduced]: [u64; 2],
    ) -> Result<Job<'a>, GenerateError> {
        let t = &spec.tiling;
        let split = spec.split_outside() as u64;
        let by_workspace = spec.epilogue.split == Split::Workspace;
        let [all_m, tiles_n, _] = c.tiles([t.a.macro_tile.into(), t.b.macro_tile.into()]);
        let (all_m, tiles_n) = (all_m.next_multiple_of(t.cluster.m.into()), tiles_n.next_multiple_of(t.cluster.n.into()));
        let (rows, tiles_m) = match t.tail {
            None => (Rows::all(c), all_m),
            Some(tail) => {
                let first = tail.first * u64::from(t.a.macro_tile);
                match tiles {
                    Tiles::Whole => (Rows { count: first, ..Rows::all(c) }, tail.first),
                    Tiles::Tail => (Rows { first, first_tile: tail.first, count: c.m - first }, all_m - tail.first),
                }
            }
        };
        // Bytes of workspace: per batch entry, and shared by all.
        let (mut per_entry, mut shared) = (0, 0);
        for x in inputs.iter().filter(|x| x.copied(c)) {
            let bytes = x.tensor.len * x.tensor.scalar.bytes() as u64;
            let entry = if x.chunk_local { bytes / c.g.max(1) } else { bytes };
            *(if x.chunk_local { &mut per_entry } else { &mut shared }) += entry + WORKSPACE_ALIGN;
        }
        let copied = per_entry;
        if by_workspace {
            per_entry += split * rows.count * c.n * c.accumulator().bytes() as u64 + WORKSPACE_ALIGN;
        }
        let needed = per_entry + shared + reduced;
        if needed > 0 && needed > workspace {
            return Err(GenerateError::Workspace { needed, budget: workspace });
        }
        let left = workspace.saturating_sub(shared + reduced);
        let chunk = left.checked_div(per_entry).map_or(c.entries(), |entries| entries.clamp(1, c.entries().max(1)));
        let k_tiles = c.k.div_ceil(t.k_tile as u64);
        let shape = Shape { rows, tiles_m, tiles_n, k_tiles, chunk, chunks: c.entries().div_ceil(chunk.max(1)) };
        let sizes = [Extent::M, Extent::N].map(|extent| c.dynamic_extent(extent));
        let (needed, copied) = (shared + per_entry * shape.chunk, shared + copied * shape.chunk);
        let copies = [(&inputs[0], &c.a), (&inputs[1], &c.b)].map(|(x, source)| x.copied(c).then(|| x.copy_of(source)));
        Ok(Job {
            number,
            tiles,
            c,
            spec,
            inputs,
            copies,
            shape,
            split,
            by_workspace,
            needed,
            copied,
            reductions: Vec::new(),
            sizes,
        })
    }

    /// Whether the split tail is in the launch of its whole tiles, with which it shares copies of operands.
    pub fn follows(&self, lead: &Job, room: u64) -> bool {
        let together = self.number == lead.number && !lead.spec.style.straight;
        together && !lead.chunked() && !self.chunked() && lead.needed + self.needed - self.copied <= room
    }

    pub fn chunked(&self) -> bool {
        self.shape.chunks > 1
    }

    /// An operand's copy is that of another part, which neither cuts into chunks: it reads the same elements and has the same layout.
    pub fn same_copy(&self, other: &Job, operand: usize) -> bool {
        let [own, others] = [self, other].map(|job| job.copies[operand].as_ref());
        own.zip(others).is_some_and(|((from, to), (others, other))| from == others && to.tensor == other.tensor)
    }

    pub fn chunk(&self, i: u64) -> Chunk {
        let first = i * self.shape.chunk;
        let most = self.shape.chunk.min(self.c.entries() - first);
        let (entries, count) = match self.c.dynamic().g {
            true => (Factor::Entries { first, most }, Binding::Entries { first, most }),
            false => (Factor::Fixed(most), Binding::I64(most as i64)),
        };
        Chunk { first, entries, count, work: Binding::Work }
    }

    /// Results are reduced.
    pub fn reduces(&self) -> bool {
        self.c.reductions().next().is_some()
    }

    /// What a kernel ahead makes of the results, where there is such: what splits add their sums to, or what exits add.
    pub fn ahead(&self) -> Option<Applied> {
        let begins = !self.c.drop_c || self.c.bias().is_some() || self.c.residual().is_some();
        match self.split > 1 && !self.by_workspace {
            true => begins.then_some(Applied::Rest),
            false => self.c.turns_old().then_some(Applied::Ahead),
        }
    }

    /// Elements of the result in a chunk.
    pub fn elements(&self, chunk: &Chunk) -> Vec<Factor> {
        let [m, n] =
            [(self.sizes[0], self.shape.rows.count), (self.sizes[1], self.c.result_columns())].map(|(size, all)| match size {
                Some(extent) => Factor::Steps { extent, more: 0, of: 1 },
                None => Factor::Fixed(all),
            });
        vec![chunk.entries, m, n]
    }

    /// Work-groups of the kernel that sums the splits of a chunk. The last chunk of a batch may be shorter, its kernel is the same.
    pub fn sum_groups(&self, chunk: &Chunk) -> Groups {
        let c = self.c;
        if c.reductions().next().is_some() {
            return reduce::elements::groups(c, chunk.entries);
        }
        let lanes = finish::lanes(c, self.shape.rows.count, self.shape.chunk, self.split as u32);
        finish::sum_groups(self.elements(chunk), lanes)
    }

    pub fn launch_fillers(&self, fillers: &[Filler], chunk: &Chunk, out: &mut Assembly) -> Result<(), GenerateError> {
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
    pub fn pieces(&self, chunk: &Chunk) -> Vec<Factor> {
        let t = &self.spec.tiling;
        let tiles = [(self.sizes[0], self.shape.tiles_m, &t.a), (self.sizes[1], self.shape.tiles_n, &t.b)];
        let [tiles_m, tiles_n] = tiles.map(|(size, tiles, tiling)| match size {
            Some(extent) => Factor::Steps { extent, more: 0, of: tiling.macro_tile.into() },
            None => Factor::Fixed(tiles),
        });
        vec![Factor::Fixed(t.split_k.ways.into()), tiles_m, tiles_n, chunk.entries]
    }

    /// What the real pointers must satisfy.
    pub fn need(&self, out: &mut Assembly) {
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
    pub(super) fn reserve(job: &Job, same: [Option<u64>; 2], out: &mut Assembly) -> Regions {
        let (c, chunk) = (job.c, job.shape.chunk);
        let mut copies = same;
        for (copy, x) in copies.iter_mut().zip(job.inputs).filter(|(copy, x)| copy.is_none() && x.copied(c)) {
            let entries = if x.chunk_local { x.tensor.len / c.g.max(1) * chunk } else { x.tensor.len };
            *copy = Some(out.reserve(entries * x.tensor.scalar.bytes() as u64));
        }
        let bytes = job.split * chunk * job.shape.rows.count * c.n * c.accumulator().bytes() as u64;
        let partials = job.by_workspace.then(|| out.reserve(bytes));
        Regions { copies, filled: same.map(|region| region.is_some()), partials, reductions: job.reductions.clone() }
    }

    /// A kernel after the others reduces the parts stored there.
    pub(super) fn reduced(&self) -> bool {
        self.reductions.iter().any(|parts| parts.partials.finish == Some(Finish::Kernel))
    }
}

/// A kernel that copies operands.
pub(crate) struct Filler<'a> {
    copies: Vec<OperandCopy<'a>>,
    /// Its number in the program.
    kernel: usize,
}

/// Kernels that copy operands into workspace; where possible one launch copies both.
pub(super) fn fillers<'a>(job: &'a Job, regions: &Regions, out: &mut Assembly) -> Vec<Filler<'a>> {
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
