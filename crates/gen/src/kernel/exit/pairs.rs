//! Gated products: each thread makes results of the pairs of sums that it holds. Exits then see a tile of half the columns.

use super::Epilogue;
use super::functions::gated;
use super::operations::{AroundGate, Operations, Run, Start};
use super::out::{Out, OutArgs, columns_contiguous};
use crate::kernel::tile::position::TilePosition;
use crate::kernel::unit::AccumulatorSet;
use crate::kernel::unit::accumulators::{self, Accumulators};
use crate::plan::{Edge, OfResults};
use tilewright_ir::affine::Coord;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;
use tilewright_problem::Gate;
use tilewright_problem::contraction::{Contraction, Pairs};

/// Most neighbours whose vectors are read together.
const TOGETHER: u32 = 4;

/// A column of the product in the place of a result's: that of the first of its pair.
fn first_column(b: &mut Builder, pairs: &Pairs, column: ExprId) -> ExprId {
    let granule = pairs.granule as i64;
    b.value(column / granule * (2 * granule) + column % granule)
}

/// The result's column that the first of a pair is in the place of.
fn result_column(b: &mut Builder, pairs: &Pairs, first: ExprId) -> ExprId {
    let granule = pairs.granule as i64;
    b.value(first / (2 * granule) * granule + first % granule)
}

impl Epilogue<'_> {
    /// Runs the body with the epilogue of what leaves: of a gated product that of its results.
    pub(super) fn with_results<R>(&self, body: impl FnOnce(&Epilogue<'_>) -> R) -> Option<R> {
        self.spec.pairs(self.c)?;
        let OfResults { spec, contraction: c } = self.spec.of_results(self.c);
        let operations = self.args.operations.around_gate(&c)?.on_results;
        let args = OutArgs { target: self.args.target, operations, reducers: Vec::new(), operands: Vec::new() };
        let of_pairs = self.inputs[1].with_tiling(spec.tiling.b.clone());
        let results = Epilogue {
            c: &c,
            spec: &spec,
            inputs: [self.inputs[0], &of_pairs],
            args: &args,
            ints: self.ints,
            thread: self.thread,
            first_lane: self.first_lane,
            place: self.place,
            store: self.store,
            piped: self.piped,
            shared: self.shared,
            kept: Vec::new(),
        };
        Some(body(&results))
    }

    /// The place of the tile of results.
    pub(super) fn results_at(&self, b: &mut Builder, at: &TilePosition) -> TilePosition {
        let start = at.n_start.value(b);
        // Tiles begin with a granule.
        let half = b.bind("result_start", start / 2);
        let every = i64::from(self.inputs[1].tiling.macro_tile / 2);
        let pulled = self.inputs[1].edge == Edge::PullBack;
        let n_start = Coord::start(b, half, if pulled { 1 } else { every });
        TilePosition { n_start, ..*at }
    }

    /// Whether the tile may reach beyond the last row (axis 0) or column (axis 1).
    fn may_overrun(&self, axis: usize) -> bool {
        let cluster = self.spec.tiling.cluster;
        let tiles = u64::from(self.inputs[axis].tiling.macro_tile) * u64::from([cluster.m, cluster.n][axis]);
        ![self.c.m, self.c.n][axis].is_multiple_of(tiles)
    }

    /// Number of rows, where the tile may reach beyond the last.
    fn row_limit(&self, at: &TilePosition) -> Option<Ex> {
        let may = self.inputs[0].edge == Edge::Predicate && self.may_overrun(0);
        at.sizes[0].map(Ex::from).or(may.then_some(self.c.m.into()))
    }
}

/// The pairs of sums that a thread holds of a tile, and the registers of their results. Exits make results right before they store them.
/// All results at once need more registers than a thread has: a tile of 256 x 192 in bf16 spilled 744 bytes.
pub(super) struct TilePairs<'a> {
    of_product: &'a Epilogue<'a>,
    of_results: &'a Epilogue<'a>,
    at: &'a TilePosition,
    /// The place of the tile of results.
    to: &'a TilePosition,
    pairs: Pairs,
    /// The numbers of the sums of each result.
    elements: Vec<[u32; 2]>,
    ahead: Operations<'a>,
    gate: Gate,
    /// Who may store sums, where sums are stored.
    owner: Option<Out<'a>>,
    accumulators: Accumulators,
    results: Accumulators,
    /// Registers of the results.
    pub set: AccumulatorSet,
    /// Sums of the gate and of the other factor in the places of results, where they leave by bulk stores beside these.
    pub preactivations: Vec<Accumulators>,
}

impl<'a> TilePairs<'a> {
    /// `of_results` is the epilogue of the results, `at` the place of the tile, `to` the place of its results.
    pub fn new(
        b: &mut Builder,
        acc: &AccumulatorSet,
        [of_product, of_results]: [&'a Epilogue<'a>; 2],
        [at, to]: [&'a TilePosition; 2],
    ) -> Option<Self> {
        let pairs = of_product.spec.pairs(of_product.c)?;
        let elements = of_product.spec.tiling.pair_elements(&pairs)?;
        let AroundGate { on_sums: ahead, gate, .. } = of_product.args.operations.around_gate(of_results.c)?;
        b.comment("the gate");
        // Sums that are stored are the tile's own only.
        let ahead = ahead.of_entry(b, at.g);
        let owner = ahead.stores().then(|| Out::owner(of_results, to));
        let accumulators = Accumulators::new(b, &of_product.spec.tiling, of_product.c, *acc);
        let regs = b.regs("gated", of_product.c.result_scalar().ty(), elements.len() as u32);
        let column = result_column(b, &pairs, acc.first[1]);
        let set = AccumulatorSet { regs, first: [acc.first[0], b.bind("result_col", column)], thread: acc.thread };
        let results = Accumulators::new(b, &of_results.spec.tiling, of_results.c, set);
        let beside = of_results.store.map_or(0, |store| store.preactivations.len());
        let preactivations = ["gate_part", "other_part"].into_iter().take(beside).map(|name| {
            let regs = b.regs(name, of_product.c.result_scalar().ty(), elements.len() as u32);
            Accumulators::new(b, &of_results.spec.tiling, of_results.c, AccumulatorSet { regs, ..set })
        });
        let preactivations = preactivations.collect();
        Some(TilePairs {
            of_product,
            of_results,
            at,
            to,
            pairs,
            elements,
            ahead,
            gate,
            owner,
            accumulators,
            results,
            set,
            preactivations,
        })
    }

    /// Makes the results of these runs, or all. An exit with maps stores the pre-activations of runs; otherwise they are stored here.
    pub fn make(&self, b: &mut Builder, runs: Option<&[accumulators::Run]>) {
        let wanted: Option<Vec<u32>> = runs.map(|runs| runs.iter().flat_map(accumulators::Run::elements).collect());
        let by_column = columns_contiguous(self.of_results.c);
        // Neighbours of one granule, which neither a tile nor a staging buffer ends between.
        let divides = |width: &u32| {
            self.pairs.granule.is_multiple_of((*width).into()) && self.pairs.columns.is_multiple_of((*width).into())
        };
        let width = if by_column { [TOGETHER, 2].into_iter().find(divides).unwrap_or(1) } else { 1 };
        let along = if by_column { Axis::Col } else { Axis::Row };
        let beside: &[Accumulators] = if wanted.is_some() { &self.preactivations } else { &[] };
        let ahead = if beside.is_empty() { self.ahead.clone() } else { self.ahead.storing_nothing() };
        let mut done = Vec::new();
        self.results.pieces(b, along, width, 0..self.results.count(), &mut |b, row, col, numbers| {
            if wanted.as_ref().is_none_or(|wanted| wanted.contains(&numbers[0])) {
                let parts = self.piece(b, &ahead, [row, col], numbers);
                for (held, part) in beside.iter().zip(&parts) {
                    done.extend(numbers.iter().zip(part).map(|(&number, &value)| (held.regs, number, value)));
                }
                for (i, &number) in numbers.iter().enumerate() {
                    let result = gated(b, self.gate, [parts[0][i], parts[1][i]]);
                    done.push((self.set.regs, number, b.bind("result", result)));
                }
            }
        });
        for (regs, number, value) in done {
            b.set_reg(regs, number, value);
        }
    }

    /// Both sums of results that are neighbours, from this row and column of the macro tile on, after the operations on them.
    fn piece(&self, b: &mut Builder, ahead: &Operations, [row, col]: [ExprId; 2], numbers: &[u32]) -> [Vec<ExprId>; 2] {
        let (ints, by_column) = (self.of_product.ints, columns_contiguous(self.of_results.c));
        let [row, column] = [(self.at.m_start, row), (self.to.n_start, col)].map(|(start, x)| {
            let start = start.value(b);
            b.value(start + x.cast(ints.coord))
        });
        let guard = self.owner.as_ref().and_then(|owner| {
            let [row, column] = [(row, 0), (column, 1)].map(|(x, axis)| {
                let at = Coord::plain(b, x);
                owner.owned(b, at, axis)
            });
            b.and_opt(row, column)
        });
        // Past the last column there is nothing to read.
        let column = match self.of_results.may_overrun(1) {
            true => b.value(column.min(self.pairs.columns as i64 - numbers.len() as i64)),
            false => column,
        };
        let first = first_column(b, &self.pairs, column);
        [0, 1].map(|part| {
            let values = numbers
                .iter()
                .map(|&number| self.accumulators.value(b, self.elements[number as usize][part]))
                .collect::<Vec<_>>();
            let column = b.value(first + part as i64 * self.pairs.granule as i64);
            let run = Run {
                g: self.at.g,
                row: Coord::plain(b, row),
                col: Coord::plain(b, column),
                by_column,
                length: numbers.len() as u32,
                piece: None,
                start: Start::Multiple,
                overruns: [self.of_results.row_limit(self.at), None],
            };
            ahead.apply(b, &run, guard, ints, None, &values)
        })
    }
}

/// What the kernel that sums splits makes of the sums of a pair.
pub(crate) struct FinishedPairs<'a> {
    pub pairs: Pairs,
    operations: AroundGate<'a>,
}

impl<'a> FinishedPairs<'a> {
    /// Of a gated product's contraction, and of that of its results.
    pub fn of(c: &Contraction, results: &'a Contraction, operations: &Operations<'a>) -> Option<FinishedPairs<'a>> {
        Some(FinishedPairs { pairs: *c.pairs()?, operations: operations.around_gate(results)? })
    }
    /// The product's column of a result's first sum.
    pub fn first(&self, b: &mut Builder, column: ExprId) -> ExprId {
        first_column(b, &self.pairs, column)
    }
    /// The operations on results.
    pub const fn on_results(&self) -> &Operations<'a> {
        &self.operations.on_results
    }
    /// The gate's result of both sums; `run` is that of the first.
    pub fn combine(&self, b: &mut Builder, run: &Run, ints: crate::kernel::input::Ints, sums: [ExprId; 2]) -> ExprId {
        let AroundGate { on_sums: ahead, gate, .. } = &self.operations;
        let ahead = ahead.of_entry(b, run.g);
        let both = [0, 1].map(|part| {
            let column = run.col.value(b);
            let column = b.value(column + part as i64 * self.pairs.granule as i64);
            let run = Run { col: Coord::plain(b, column), ..run.clone() };
            ahead.apply(b, &run, None, ints, None, &sums[part..=part])[0]
        });
        gated(b, *gate, both)
    }
}
