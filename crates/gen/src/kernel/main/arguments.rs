//! What the main kernel's arguments are, each with what launches bind it to.

use crate::kernel::arguments::{Arguments, Bound};
use crate::kernel::change::Change;
use crate::kernel::copy::copies::{Maps, SecondSources, Source, chunked_map};
use crate::kernel::copy::memory::Memory;
use crate::kernel::exit::operations::{Applied, Operations};
use crate::kernel::exit::out::{OutArgs, Target};
use crate::kernel::finish::result;
use crate::kernel::input::{Input, Ints, Regions, Shape};
use crate::kernel::reduce::Reducer;
use crate::kernel::tile::groups::{Groups, Terms};
use crate::kernel::tile::position::Sizes;
use crate::plan::{BulkTile, KernelSpec, Spans, Split, StoreTile, Transport};
use crate::program::Binding;
use tilewright_ir::affine::Affine;
use tilewright_ir::*;
use tilewright_problem::contraction::{Contraction, GroupEnds, LaunchExtents, Operand, Vector};
use tilewright_problem::view::G;
use tilewright_problem::{Extent, Quant, Ragged, Role};

/// The up weights, in words.
const UP: &str = "operand B of the gate's other factor";

/// Declares the arguments of a kernel.
pub(super) struct Declare<'d> {
    pub b: &'d mut Builder,
    pub args: &'d mut Arguments,
    pub spec: &'d KernelSpec,
    pub shape: &'d Shape,
    pub regions: &'d Regions,
}

impl Declare<'_> {
    /// What an operand's tiles are read through.
    pub fn operand(&mut self, i: usize, x: &Input) -> Source {
        let (name, doc) = if x.operand == Operand::A { ("a", "operand A") } else { ("b", "operand B") };
        let region = self.regions.copies[i];
        let doc = if region.is_none() { doc.to_string() } else { format!("{doc}, materialised in workspace") };
        match &self.spec.schedule.copies[i] {
            Transport::Bulk(tile) => {
                let before = tile.first * u64::from(x.tensor.scalar.bytes());
                let of_copy = |region: u64| Binding::WorkspaceMap(region + before);
                let to = region.map_or(Binding::OperandMap(x.operand, tile.first), of_copy);
                let own = self.bulk(x, tile, name, &doc, to);
                let up = x.up.is_some().then(|| self.bulk(x, tile, "up", UP, Binding::UpMap(tile.first)));
                return Source::Map(Maps { own, up });
            }
            Transport::Shifted(of) => return Source::Classes(of.spans.clone(), self.classes(name, &doc, x, &of.spans)),
            Transport::Registers
            | Transport::Async
            | Transport::Halo(_)
            | Transport::Own(_)
            | Transport::Panels { .. }
            | Transport::Written(_) => {}
        }
        let to = region.map_or(Binding::Buffer(x.operand), Binding::Workspace);
        let buffer = self.args.buffer(self.b, name, x.tensor.scalar, Access::Read, &doc, to);
        let offset = region.is_none().then(|| {
            let (name, doc) = (format!("{name}_offset"), "first element of the operand in its buffer");
            self.args.scalar(self.b, &name, Scalar::I64, doc, Binding::Offset(x.operand))
        });
        let change = Change::declare(self.b, self.args, &x.tensor);
        let up = x.up.is_some().then(|| self.args.buffer(self.b, "up", x.tensor.scalar, Access::Read, UP, Binding::Up));
        Source::Memory(Memory { buffer, up, offset, change })
    }

    /// The tensor map of an operand's tiles.
    fn bulk(&mut self, x: &Input, tile: &BulkTile, name: &str, doc: &str, to: Binding) -> ArgId {
        let map = chunked_map(tile, x, self.shape);
        let rows = x.rows.map(|extent| (usize::from(tile.k_contiguous), extent));
        // A copy of a chunk has as many entries as the chunk has.
        let entries = tile.at.iter().position(|at| *at == Affine::axis(G)).filter(|_| x.run_time_batch && !x.chunk_local);
        let batch = entries.map(|dim| (dim, Extent::G));
        self.args.map(self.b, name, map, doc, to, rows.into_iter().chain(batch))
    }

    /// What tiles of the second pair of factors are read through, if there is one.
    pub fn second(&mut self, c: &Contraction, inputs: [&Input; 2]) -> Option<SecondSources> {
        let (second, copies) = (c.second.as_ref()?, self.spec.schedule.second.as_deref()?);
        let tensors = [&second.a, &second.b];
        let inputs = [0, 1].map(|i| Input { tensor: tensors[i].clone(), ..inputs[i].clone() });
        let sources = [0, 1].map(|i| {
            let x = &inputs[i];
            let (name, doc) = match x.operand {
                Operand::A => ("a2", Role::A2.words()),
                _ => ("b2", Role::B2.words()),
            };
            if let Some(tile) = &copies.bulk[i] {
                return Source::Map(Maps {
                    own: self.bulk(x, tile, name, doc, Binding::SecondMap(x.operand, tile.first)),
                    up: None,
                });
            }
            let to = Binding::Second(x.operand);
            let buffer = self.args.buffer(self.b, name, x.tensor.scalar, Access::Read, doc, to);
            Source::Memory(Memory { buffer, up: None, offset: None, change: None })
        });
        Some(SecondSources { first: copies.first, inputs, sources })
    }

    /// The scales of blocks of k.
    pub fn scales(&mut self, c: &Contraction) -> Vec<ArgId> {
        let declare = |x: &Vector| {
            let (name, doc) = (if x.along_n { "scale_n" } else { "scale_m" }, "factors of sums of blocks of k");
            let to = Binding::Quant(Quant::scale(c.along(x)));
            self.args.buffer(self.b, name, x.scalar, Access::Read, doc, to)
        };
        c.block_scales.iter().map(declare).collect()
    }

    /// Tensor maps of an operand whose lines are shifted, by class.
    fn classes(&mut self, name: &str, doc: &str, x: &Input, spans: &Spans) -> Vec<ArgId> {
        let declared = spans.classes.iter().enumerate().map(|(class, map)| {
            let doc = format!("{doc}, lines {class}, {}, ...", class + spans.classes.len());
            let batch = (x.run_time_batch && map.map.tile.len() > 2).then_some((2, Extent::G));
            let to = Binding::OperandMap(x.operand, map.first);
            self.args.map(self.b, &format!("{name}_{class}"), map.map.clone(), &doc, to, batch)
        });
        declared.collect()
    }

    /// Where results go, and the first batch entry of the launch.
    pub fn results<'a>(&mut self, c: &'a Contraction) -> (OutArgs<'a>, Option<ExprId>) {
        let split = self.spec.epilogue.split;
        let target = match self.regions.partials {
            Some(region) => {
                let doc = "partial sums [split][g][result], summed by the next kernel";
                let to = Binding::Workspace(region);
                let partials = self.args.buffer(self.b, "partials", c.accumulator(), Access::Write, doc, to);
                Target::Partials { partials, chunk: self.shape.chunk, rows: self.shape.rows }
            }
            None if c.drop_c => Target::Nowhere,
            None => {
                let (buffer, offset) = result(self.b, self.args, c);
                Target::C { buffer, offset, atomic: split == Split::Atomic }
            }
        };
        let (operations, ()) = Operations::declare(self.b, self.args, c, Applied::in_main(split), |_, _| ());
        // What is reduced is the whole sum.
        let reducers = match split {
            Split::Workspace => Vec::new(),
            _ => Reducer::declare(self.b, self.args, c, false, &self.regions.reductions),
        };
        let operands = Reducer::declare(self.b, self.args, c, true, &self.regions.reductions);
        (OutArgs { target, operations, reducers, operands }, self.args.first(self.b, self.shape.chunks))
    }

    /// The map of bulk stores. Partial sums lie as those of the largest result.
    pub fn store(&mut self, c: &Contraction, tile: &StoreTile) -> ArgId {
        let to = self.regions.partials.map_or(Binding::OperandMap(Operand::C, 0), Binding::WorkspaceMap);
        self.stored(c, tile, "c_map", "results", to)
    }

    /// The maps of bulk stores of pre-activations: of the gate, then of the other factor. None where they are stored otherwise.
    pub fn preactivations(&mut self, c: &Contraction) -> Vec<ArgId> {
        let stores = self.spec.preactivation_stores(c).into_iter().flatten();
        let names = [("gate_map", "sums of the gate"), ("other_map", "sums of the other factor")];
        let declared = stores.zip(names).map(|(store, (name, what))| {
            let to = Binding::PreactivationsMap(store.first);
            self.stored(c, &store.tile, name, what, to)
        });
        declared.collect()
    }

    fn stored(&mut self, c: &Contraction, tile: &StoreTile, name: &str, what: &str, to: Binding) -> ArgId {
        let run_time = [Extent::M, Extent::N].map(|extent| c.dynamic_extent(extent));
        let slow = if tile.by_rows { 1 } else { 0 };
        let batch = (c.dynamic().g && c.c.view.extent[G] > 1).then_some((2, Extent::G));
        let sizes = [(1, run_time[slow]), (0, run_time[1 - slow])].into_iter().filter_map(|(dim, size)| Some((dim, size?)));
        let extents = sizes.chain(batch).filter(|_| self.regions.partials.is_none());
        let doc = format!("{what}, stored in bulk");
        self.args.map(self.b, name, tile.map.clone(), &doc, to, extents)
    }

    /// Rows and columns of C that are known only at launch.
    pub fn sizes(&mut self, c: &Contraction, ints: Ints) -> Sizes {
        [(Extent::M, c.m, "rows"), (Extent::N, c.n, "columns")].map(|(extent, most, what)| {
            let named = c.dynamic_extent(extent)?;
            let doc = format!("{what} of the result, 1 to {most}");
            let size = self.args.scalar(self.b, named.name(), Scalar::I32, &doc, Binding::Extent(named));
            Some(self.b.value(size.cast(ints.coord)))
        })
    }

    /// The groups of rows or columns.
    pub fn groups(&mut self, c: &Contraction) -> Option<Groups> {
        let LaunchExtents::Grouped(GroupEnds { of, ends }) = &c.launch else { return None };
        let (axis, lines) = match of {
            Ragged::M => (0, c.m),
            Ragged::N => (1, c.n),
            Ragged::K => return None,
        };
        let doc = format!("where each group of {} ends, ascending", ["rows", "columns"][axis]);
        let ends = self.ends(ends.scalar, &doc);
        Some(Groups { ends, count: c.g, axis, lines, skip: !self.spec.style.straight, table: None })
    }

    /// The ranges of k that batch entries sum over.
    pub fn terms(&mut self, c: &Contraction) -> Option<Terms> {
        let LaunchExtents::Grouped(GroupEnds { of: Ragged::K, ends }) = &c.launch else { return None };
        let ends = self.ends(ends.scalar, "where the terms of each group end, ascending");
        Some(Terms { ends, k: c.k })
    }

    /// The buffer with the ends of groups.
    fn ends(&mut self, scalar: Scalar, doc: &str) -> ArgId {
        self.args.buffer(self.b, Quant::Ends.name(), scalar, Access::Read, doc, Binding::Quant(Quant::Ends))
    }

    /// Launches differ in their pieces of work, and persistent work-groups have to know how many there are.
    pub fn work(&mut self, c: &Contraction) -> Option<ExprId> {
        let many = self.spec.tiling.persistent > 0 && (self.shape.chunks > 1 || !c.dynamic().is_none());
        many.then(|| self.args.scalar(self.b, "work", Scalar::I32, "tiles and splits of this launch", Bound::Work))
    }
}
