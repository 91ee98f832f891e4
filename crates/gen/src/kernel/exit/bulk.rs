//! Results of a matrix unit on their way through shared memory into bulk stores.
//!
//! Every wave has its own staging buffers. A buffer has 16 rows of at most 128 bytes, or as many columns of 16 rows where columns
//! are contiguous in C. The wave writes the results of its lanes there in the swizzled layout (no bank conflicts). One lane
//! issues a bulk store, which clips at the edges of C. Waves never wait for each other, and the stores run while the work-group
//! goes on with its next tile.

use super::out::{self, Out};
use super::owners::Share;
use super::{BulkOutput, Epilogue};
use crate::kernel::exit::operations::stored;
use crate::kernel::unit::accumulators::{Accumulators, Run};
use crate::plan::{STORE_ROWS, StoreTile, store_buffers};
use tilewright_ir::affine::Coord;
use tilewright_ir::*;

/// Bytes that all swizzles repeat after in a line, and of the chunks that they move.
const PATTERN: u32 = 128;
const CHUNK: u32 = 16;

/// A wave's staging buffers and the map its results go through.
pub(crate) struct StagedStore {
    tile: StoreTile,
    map: ArgId,
    /// Maps of the values that are stored beside the results.
    preactivations: Vec<ArgId>,
    staging: SharedId,
    /// First element of the wave's first staging buffer.
    first: ExprId,
    scalar: Scalar,
    elected: ExprId,
    /// Staging buffers of each wave.
    buffers_each: u32,
}

/// Whether a lane holds upper rows of a band. `number` is 0 or 1, and `crossed` is the condition under which the lane swaps the
/// values of a pair.
#[derive(Clone, Copy)]
struct UpperRows {
    number: ExprId,
    crossed: ExprId,
}

/// What fills a staging buffer: what the wave holds of it, and the values of a run.
struct Fill<'a> {
    math: &'a Accumulators,
    runs: &'a [Run],
    values: &'a dyn Fn(&mut Builder, &Run) -> Vec<ExprId>,
}

impl StagedStore {
    /// Declares the consumer warps' staging buffers.
    pub fn new(b: &mut Builder, e: &Epilogue, BulkOutput { tile, map, preactivations }: &BulkOutput) -> Self {
        let (scalar, buffers_each) = (tile.map.scalar, store_buffers(e.spec.teams()));
        let wave = b.value(e.thread / e.spec.tiling.wave_lanes);
        let each = tile.staging_bytes() * buffers_each / scalar.bytes();
        let staging = e.staging_array(b, scalar);
        let first = b.bind("smem_c_at", wave * each);
        let preactivations = preactivations.clone();
        StagedStore { tile: tile.clone(), map: *map, preactivations, staging, first, scalar, elected: e.first_lane, buffers_each }
    }

    /// Stores 16 rows of the wave from the given (outer, row, column) on, through a map. This is store `number` of `of` that the wave makes of
    /// a result tile, which chooses the staging buffer.
    fn store(&self, b: &mut Builder, map: ArgId, [number, of]: [u32; 2], [outer, row, col]: [ExprId; 3], fill: &Fill) {
        let offset = (number % self.buffers_each) * self.tile.staging_bytes() / self.scalar.bytes();
        // A tile's first stores follow those of the tile before, whose last ones need not have ended with the last staging buffer.
        let odd = of % self.buffers_each;
        let pending = if number < odd { odd - 1 } else { self.buffers_each - 1 };
        b.if_then(self.elected, |b| b.bulk(BulkOp::StoreWait { pending }));
        b.push(Stmt::Barrier(BarrierScope::Wave));
        // Where pairs of results have 32 bits each, lanes of the upper rows write the second one first. So no two lanes access
        // the same bank.
        let pairs = self.tile.by_rows && self.scalar.bytes() == 4 && fill.runs.iter().all(|run| run.len() == 2);
        let upper = pairs.then(|| {
            let [line, _] = fill.math.lane_in_band(b, 2);
            let upper = b.value(line / 4);
            UpperRows { number: b.bind("upper_rows", upper), crossed: b.value(upper.equals(1)) }
        });
        for run in fill.runs {
            let values: Vec<ExprId> = (fill.values)(b, run).into_iter().map(|v| stored(b, v, self.scalar)).collect();
            match self.tile.by_rows {
                true => self.put_across(b, fill.math, run, upper, &values, offset),
                false => self.put_along(b, fill.math, run, &values, offset),
            }
        }
        b.bulk(BulkOp::ProxyFence);
        b.push(Stmt::Barrier(BarrierScope::Wave));
        b.if_then(self.elected, |b| {
            let from = b.mem(Base::Shared(self.staging), self.first + offset);
            let row = b.value(row.cast(Scalar::I32));
            let col = b.value(col.cast(Scalar::I32));
            let mut at = if self.tile.by_rows { vec![row, col] } else { vec![col, row] };
            if self.tile.batched {
                at.push(b.value(outer.cast(Scalar::I32)));
            }
            b.bulk(BulkOp::Store { from, map, at });
            b.bulk(BulkOp::StoreCommit);
        });
    }

    /// Lines of the staging buffer are rows: a run lies within one chunk of its line.
    fn put_along(&self, b: &mut Builder, math: &Accumulators, run: &Run, values: &[ExprId], offset: u32) {
        let per_chunk = CHUNK / self.scalar.bytes();
        let runs_per_chunk = per_chunk / run.len();
        let [line, within] = math.lane_in_band(b, run.len());
        // Which chunks of a line change places follows from the line: the same for lines 8 apart.
        let lines_per_pattern = PATTERN / self.tile.row_bytes();
        let chunks = self.tile.row_bytes() / CHUNK;
        let chunk = b.value(within / runs_per_chunk + run.col / per_chunk);
        let chunk = if chunks > 1 { b.value(chunk ^ (line / lines_per_pattern % chunks)) } else { chunk };
        // Runs of 8-bit results fill half a chunk in one band of columns.
        let in_chunk = within % runs_per_chunk * run.len() + run.col % per_chunk;
        let place = b.value(self.first + (line + run.row) * self.tile.columns + (chunk * per_chunk + in_chunk));
        let value = b.vector(values);
        b.store(Base::Shared(self.staging), place + offset, value, None);
    }

    /// Lines of the staging buffer are columns, 16 rows each. A lane's neighbours follow each other in one 128-byte row of banks.
    fn put_across(
        &self,
        b: &mut Builder,
        math: &Accumulators,
        run: &Run,
        upper: Option<UpperRows>,
        values: &[ExprId],
        offset: u32,
    ) {
        let per_chunk = CHUNK / self.scalar.bytes();
        let [line, within] = math.lane_in_band(b, run.len());
        let (chunks, columns_per_pattern) = (self.tile.row_bytes() / CHUNK, PATTERN / self.tile.row_bytes());
        let ordered = match (upper, values) {
            (Some(UpperRows { crossed, .. }), [x, y]) => vec![b.value(crossed.select(*y, *x)), b.value(crossed.select(*x, *y))],
            _ => values.to_vec(),
        };
        let row = b.value(line + run.row);
        for (e, value) in ordered.into_iter().enumerate() {
            let own = match upper {
                Some(upper) => b.value(upper.number ^ (e as i64)),
                None => b.int(e as i64, Scalar::I32),
            };
            let column = b.value(within * run.len() + own + run.col);
            // Which chunks of a line change places follows from the column: the same for the columns of a pattern.
            let turn = match columns_per_pattern / run.len() {
                0 => b.value(column / columns_per_pattern % chunks),
                runs => b.value(within / runs),
            };
            let place = b.value(self.first + (((row / per_chunk) ^ turn) * per_chunk + row % per_chunk) + column * STORE_ROWS);
            b.store(Base::Shared(self.staging), place + offset, value, None);
        }
    }

    /// Before the work-group ends or its staging buffers are given up: nothing reads them any more.
    pub fn finish(&self, b: &mut Builder) {
        b.if_then(self.elected, |b| b.bulk(BulkOp::StoreWait { pending: 0 }));
    }
}

impl Out<'_> {
    /// The wave's results through its staging buffers of shared memory: all that it holds, or its work-group's share.
    pub fn in_bulk(&self, b: &mut Builder, math: &Accumulators, staged: &StagedStore, share: Option<&Share>) {
        let coord = self.e.ints.coord;
        let m_start = self.at.m_start.value(b);
        let m_start = match self.e.args.target {
            // Partial sums of the last rows begin at row 0 of theirs.
            out::Target::Partials { rows, .. } if rows.first > 0 => b.value(m_start - rows.first as i64),
            _ => m_start,
        };
        let n_start = self.at.n_start.value(b);
        let outer = self.outer(b);
        let (bands, columns) = (math.bands(), staged.tile.columns);
        let across = self.e.spec.tiling.b.micro / columns;
        let ours: Vec<u32> =
            (0..bands.len() as u32 * across).filter(|fill| share.is_none_or(|share| share.fills(*fill))).collect();
        let beside = self.preactivations();
        let (mut number, of) = (0, ours.len() as u32 * (1 + beside.len() as u32));
        for (first, band) in (0..).step_by(across as usize).zip(bands) {
            for s in (0..across).filter(|s| ours.contains(&(first + s))) {
                let row = b.value(m_start + (math.first[0] + band).cast(coord));
                let col = b.value(n_start + (math.first[1] + (s * columns)).cast(coord));
                let values = |b: &mut Builder, run: &Run| {
                    let values = math.values(b, run);
                    let [line, within] = math.lane_in_band(b, 1);
                    let row = b.value(row + (line + run.row).cast(coord));
                    let col = b.value(col + (within + run.col).cast(coord));
                    // Neighbours along n are neighbours in memory, or have nothing to do with each other.
                    let together = if staged.tile.by_rows { 1 } else { values.len() };
                    let mut results = Vec::new();
                    for (i, part) in values.chunks(together).enumerate() {
                        let col = b.value(col + i);
                        let (row, col) = (Coord::plain(b, row), Coord::plain(b, col));
                        results.extend(self.results(b, row, col, part));
                    }
                    results
                };
                let runs = math.in_band(band, s * columns..(s + 1) * columns);
                self.make(b, math, Some(&runs));
                for (held, map) in beside.iter().zip(&staged.preactivations) {
                    let values = |b: &mut Builder, run: &Run| held.values(b, run);
                    staged.store(b, *map, [number, of], [outer, row, col], &Fill { math: held, runs: &runs, values: &values });
                    number += 1;
                }
                staged.store(b, staged.map, [number, of], [outer, row, col], &Fill { math, runs: &runs, values: &values });
                number += 1;
            }
        }
    }
}
