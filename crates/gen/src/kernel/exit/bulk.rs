//! Results of a matrix unit on their way through shared memory into bulk stores.
//!
//! Every wave has staging buffers of its own, 16 rows of at most 128 bytes, or as many columns of 16 rows where those are contiguous in C: it
//! writes its pairs there in the swizzled layout (no bank conflicts), and one lane issues a bulk store, which clips at the edges of C. Waves
//! never wait for each other, and the stores fly while the work-group goes on with its next tile.

use super::out::Out;
use crate::kernel::unit::Bands;
use crate::kernel::unit::wgmma::Warpgroup;
use crate::plan::{STORE_ROWS, StoreTile};
use tilewright_ir::affine::Coord;
use tilewright_ir::*;

/// A wave's staging buffers and the map its results go through.
pub(crate) struct StagedStore {
    tile: StoreTile,
    map: ArgId,
    slabs: SharedId,
    /// First element of the wave's first staging buffer.
    first: ExprId,
    scalar: Scalar,
    elected: ExprId,
    /// Staging buffers of each wave.
    slabs_each: u32,
}

impl StagedStore {
    /// `at` is the byte of shared memory from which `waves` waves have this many staging buffers each.
    pub fn new(
        b: &mut Builder,
        tile: StoreTile,
        map: ArgId,
        (at, waves, slabs_each): (u32, u32, u32),
        wave: ExprId,
        elected: ExprId,
    ) -> Self {
        let scalar = tile.map.scalar;
        let each = tile.slab_bytes() * slabs_each / scalar.bytes();
        let slabs = b.shared("slabs", scalar, each * waves, at);
        let first = b.bind("slab", wave * each);
        StagedStore { tile, map, slabs, first, scalar, elected, slabs_each }
    }

    /// Lines of a staging buffer are columns: rows are contiguous in C.
    pub fn by_rows(&self) -> bool {
        self.tile.by_rows
    }

    /// Columns of a staging buffer.
    pub fn columns(&self) -> u32 {
        self.tile.columns
    }

    /// Stores 16 rows of the wave from the given (outer, row, column) on. This is store `number` of `of` that the wave makes of a result
    /// tile, which chooses the staging buffer; `pair(j, half)` gives the two neighbours in columns `8 j + 2 (lane % 4)` of row `lane / 4 + 8 half`.
    pub fn store(
        &self,
        b: &mut Builder,
        lane: ExprId,
        (number, of): (u32, u32),
        [outer, row, col]: [ExprId; 3],
        mut pair: impl FnMut(&mut Builder, u32, u32) -> [ExprId; 2],
    ) {
        let bytes = self.scalar.bytes();
        let slab = (number % self.slabs_each) * self.tile.slab_bytes() / bytes;
        // A tile's first stores follow those of the tile before, whose last ones need not have ended with the last staging buffer.
        let odd = of % self.slabs_each;
        let pending = if number < odd { odd - 1 } else { self.slabs_each - 1 };
        b.if_then(self.elected, |b| b.bulk(BulkOp::StoreWait { pending }));
        b.push(Stmt::Barrier(BarrierScope::Wave));
        if self.tile.by_rows {
            self.fill_columns(b, lane, slab, &mut pair);
        } else {
            self.fill_rows(b, lane, slab, &mut pair);
        }
        b.bulk(BulkOp::ProxyFence);
        b.push(Stmt::Barrier(BarrierScope::Wave));
        b.if_then(self.elected, |b| {
            let from = b.mem(Base::Shared(self.slabs), self.first + slab);
            let row = b.value(row.cast(Scalar::I32));
            let col = b.value(col.cast(Scalar::I32));
            let mut at = if self.tile.by_rows { vec![row, col] } else { vec![col, row] };
            if self.tile.batched {
                at.push(b.value(outer.cast(Scalar::I32)));
            }
            b.bulk(BulkOp::Store { from, map: self.map, at });
            b.bulk(BulkOp::StoreCommit);
        });
    }

    /// Lines of the staging buffer are rows.
    fn fill_rows(&self, b: &mut Builder, lane: ExprId, slab: u32, pair: &mut impl FnMut(&mut Builder, u32, u32) -> [ExprId; 2]) {
        let bytes = self.scalar.bytes();
        let quad = b.value(lane / 4);
        let within = b.value(lane % 4);
        // Which 16-byte chunks of a row change places follows from the row: the same for rows 8 apart.
        let rows_per_line = 128 / self.tile.row_bytes();
        let chunks = self.tile.row_bytes() / 16;
        for half in 0..2 {
            for j in 0..self.tile.columns / 8 {
                let values = pair(b, j, half);
                // A pair lies within one chunk of 16 bytes.
                let pairs_per_chunk = 16 / (2 * bytes);
                let chunk = b.value(within / pairs_per_chunk + (j * 8 * bytes / 16));
                let chunk = if chunks > 1 { b.value(chunk ^ (quad / rows_per_line % chunks.max(1))) } else { chunk };
                let place = b.value(
                    self.first + (quad + (8 * half)) * self.tile.columns + (chunk * (16 / bytes) + within % pairs_per_chunk * 2),
                );
                let cast = values.map(|v| b.value(v.cast(self.scalar)));
                let value = b.vector(&cast);
                b.store(Base::Shared(self.slabs), place + slab, value, None);
            }
        }
    }

    /// Lines of the staging buffer are columns, 16 rows each. A lane's two columns follow each other in one 128-byte row of banks: where results
    /// have 32 bits, lanes of the upper rows write the second one first, so that no two lanes meet in a bank.
    fn fill_columns(
        &self,
        b: &mut Builder,
        lane: ExprId,
        slab: u32,
        pair: &mut impl FnMut(&mut Builder, u32, u32) -> [ExprId; 2],
    ) {
        let bytes = self.scalar.bytes();
        let quad = b.value(lane / 4);
        let within = b.value(lane % 4);
        let per_chunk = 16 / bytes;
        // Which chunks of a line change places follows from the column: the same for columns 8 apart.
        let turn = if bytes == 4 { within } else { b.value(within / 2) };
        let upper = (bytes == 4).then(|| {
            let upper = b.value(quad / 4);
            (b.bind("upper_rows", upper), b.value(upper.equals(1)))
        });
        let column = b.value(within * 2);
        for half in 0..2 {
            let row = b.value(quad + (8 * half));
            for j in 0..self.tile.columns / 8 {
                let mut values = pair(b, j, half).map(|v| b.value(v.cast(self.scalar)));
                if let Some((_, swapped)) = upper {
                    values = [b.value(swapped.select(values[1], values[0])), b.value(swapped.select(values[0], values[1]))];
                }
                for (e, value) in values.into_iter().enumerate() {
                    let own = match upper {
                        Some((upper, _)) => b.value(upper ^ (e as i64)),
                        None => b.int(e as i64, Scalar::I32),
                    };
                    let place = b.value(
                        self.first
                            + (((row / per_chunk) ^ turn) * per_chunk + row % per_chunk)
                            + (column + own + (j * 8)) * STORE_ROWS,
                    );
                    b.store(Base::Shared(self.slabs), place + slab, value, None);
                }
            }
        }
    }

    /// Before the work-group ends or its staging buffers are given up: nothing reads them any more.
    pub fn finish(&self, b: &mut Builder) {
        b.if_then(self.elected, |b| b.bulk(BulkOp::StoreWait { pending: 0 }));
    }
}

impl Out<'_> {
    /// The wave's results through its staging buffers of shared memory.
    pub fn in_bulk(&self, b: &mut Builder, math: &Warpgroup, staged: &StagedStore) {
        let (rows, columns) = math.shape();
        let ([wave_row, wave_col], lane) = math.wave(b);
        let m_start = self.at.m_start.value(b);
        let n_start = self.at.n_start.value(b);
        let outer = self.outer(b);
        let (mut number, of) = (0, rows * (columns / staged.columns()));
        for i in 0..rows {
            for s in 0..columns / staged.columns() {
                let row = b.value(m_start + (wave_row + (i * 64)).cast(self.ints.coord));
                let col = b.value(n_start + (wave_col + (s * staged.columns())).cast(self.ints.coord));
                staged.store(b, lane, (number, of), [outer, row, col], |b, j, half| {
                    let values = math.pair(b, i, s * staged.columns() / 8 + j, half);
                    let row = b.value(row + (lane / 4 + (half * 8)).cast(self.ints.coord));
                    let col = b.value(col + (lane % 4 * 2 + (j * 8)).cast(self.ints.coord));
                    // Neighbours along n are neighbours in memory, or have nothing to do with each other.
                    let run = if staged.by_rows() { 1 } else { 2 };
                    let mut results = Vec::new();
                    for (i, part) in values.chunks(run).enumerate() {
                        let col = b.value(col + i);
                        let (row, col) = (Coord::plain(b, row), Coord::plain(b, col));
                        results.extend(self.results(b, row, col, part));
                    }
                    [results[0], results[1]]
                });
                number += 1;
            }
        }
    }
}
