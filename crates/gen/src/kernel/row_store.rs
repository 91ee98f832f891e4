//! Results of a matrix unit whose rows in memory suit no bulk store: through a slab of each wave into stores of whole rows.
//!
//! A unit leaves each thread pairs of eight rows; stored as they are, a wave's store touches 16 bytes of every row (on an H200 that
//! moves 4 bytes per cycle and unit). From the slab adjacent lanes store adjacent elements. Two 16-bit results share a store
//! also where rows begin at odd elements: such a row lies one element further in the slab.

use super::epilogue::Out;
use super::post::Start;
use super::warpgroup::Warpgroup;
use crate::plan::{ROW_SLAB_APART, STORE_ROWS};
use crate::view::{COL, G, ROW};
use tilewright_ir::*;

/// A wave's slab: 16 rows of sums.
pub(super) struct RowStore {
    slab: SharedId,
    /// First element of the wave's slab.
    first: ExprId,
    columns: u32,
}

impl RowStore {
    /// `at` is the byte of shared memory from which `waves` waves have their slabs of this many columns and bytes.
    pub fn new(b: &mut Builder, (columns, bytes): (u32, u32), (at, waves): (u32, u32), wave: ExprId) -> Self {
        let each = bytes / 4;
        let slab = b.shared("slabs", Scalar::F32, each * waves, at);
        let first = b.mul(wave, each);
        RowStore { slab, first: b.bind("slab", first), columns }
    }

    fn line(&self, b: &mut Builder, row: ExprId) -> ExprId {
        let line = b.mul(row, self.columns + ROW_SLAB_APART);
        b.add(self.first, line)
    }
}

/// How a row of results lies in memory.
struct RowForm {
    /// Results of one store.
    unit: u32,
    /// Stores begin at even elements only, and rows or batch entries may not: which of the two count.
    odd: Option<[bool; 2]>,
    /// The last store of a row may be cut by the edge.
    cut: bool,
}

impl Out<'_> {
    fn row_form(&self) -> RowForm {
        let c = &self.c.c;
        let plain = RowForm { unit: 1, odd: None, cut: false };
        if !self.stores_result() || c.scalar.bytes() != 2 || c.align < 4 {
            return plain;
        }
        let Some(shape) = c.view.is_affine_box() else { return plain };
        let odd = [shape.strides[ROW] % 2 != 0, shape.strides[G] % 2 != 0 && self.c.g > 1];
        let odd = odd.contains(&true).then_some(odd);
        // A row that begins at an odd element ends within a store where the others do not.
        RowForm { unit: 2, odd, cut: odd.is_some() || self.at.sizes[1].is_some() || !c.view.extent[COL].is_multiple_of(2) }
    }

    /// Whether a row of the macro tile begins at an odd element: 0 or 1.
    fn parity(&self, b: &mut Builder, [rows, entries]: [bool; 2], row: ExprId) -> ExprId {
        let mut parity = b.int(0, Scalar::I32);
        if rows {
            let start = self.at.m_start.value(b);
            let start = b.cast(start, Scalar::I32);
            let row = b.add(start, row);
            parity = b.add(parity, row);
        }
        if entries {
            let g = b.cast(self.at.g, Scalar::I32);
            parity = b.add(parity, g);
        }
        b.rem(parity, 2)
    }

    /// The wave's results through its slab.
    pub(super) fn in_rows(&self, b: &mut Builder, math: &Warpgroup, rows: &RowStore, old: bool) {
        let (blocks, columns) = math.shape();
        let ([wave_row, wave_col], lane) = math.wave(b);
        let form = self.row_form();
        for i in 0..blocks {
            for s in 0..columns / rows.columns {
                let row = b.add(wave_row, i * 64);
                let col = b.add(wave_col, s * rows.columns);
                // Nobody still reads what was there.
                b.push(Stmt::Barrier(BarrierScope::Wave));
                self.fill(b, math, rows, &form, (i, s), [row, lane]);
                b.push(Stmt::Barrier(BarrierScope::Wave));
                self.drain(b, rows, &form, [row, col], lane, old);
            }
        }
    }

    fn fill(
        &self,
        b: &mut Builder,
        math: &Warpgroup,
        rows: &RowStore,
        form: &RowForm,
        (i, s): (u32, u32),
        [row, lane]: [ExprId; 2],
    ) {
        let quad = b.div(lane, 4);
        let pair = b.rem(lane, 4);
        let pair = b.mul(pair, 2);
        for half in 0..2 {
            let own = b.add(quad, half * 8);
            let mut line = rows.line(b, own);
            if let Some(odd) = form.odd {
                let row = b.add(row, own);
                let parity = self.parity(b, odd, row);
                line = b.add(line, parity);
            }
            let line = b.add(line, pair);
            let line = b.bind("slab_line", line);
            for j in 0..rows.columns / 8 {
                let values = math.pair(b, i, s * rows.columns / 8 + j, half);
                let at = b.add(line, j * 8);
                if form.odd.is_some() {
                    for (e, value) in values.into_iter().enumerate() {
                        let at = b.add(at, e);
                        b.store(Base::Shared(rows.slab), at, value, None);
                    }
                } else {
                    let value = b.vector(&values);
                    b.store(Base::Shared(rows.slab), at, value, None);
                }
            }
        }
    }

    fn drain(&self, b: &mut Builder, rows: &RowStore, form: &RowForm, [row, col]: [ExprId; 2], lane: ExprId, old: bool) {
        let words = rows.columns / form.unit;
        b.for_range("step", 0, STORE_ROWS * words / 32, Unroll::No, |b, step| {
            let index = b.mul(step, 32);
            let index = b.add(index, lane);
            let own = b.div(index, words);
            let own = b.bind("slab_row", own);
            let word = b.rem(index, words);
            let element = b.mul(word, form.unit);
            let element = b.bind("slab_element", element);
            let line = rows.line(b, own);
            let line = b.add(line, element);
            let row = b.add(row, own);
            let parity = form.odd.map(|odd| {
                let parity = self.parity(b, odd, row);
                b.bind("parity", parity)
            });
            let first = match parity {
                Some(parity) => b.sub(element, parity),
                None => element,
            };
            let first = b.bind("first_element", first);
            let put = |b: &mut Builder, e: u32, count: u32| {
                let at = b.add(line, e);
                let value = b.load("sum", Base::Shared(rows.slab), at, count, None);
                let values: Vec<ExprId> = (0..count).map(|w| b.extract(value, w)).collect();
                let col = b.add(col, first);
                let col = b.add(col, e);
                let start = if form.odd.is_some() { Start::InMemory } else { Start::Multiple };
                self.put_from(b, [row, col], &values, old, start);
            };
            if parity.is_none() && !form.cut {
                return put(b, 0, form.unit);
            }
            let begun = parity.map(|_| b.le(0, first));
            let whole = form.cut.then(|| {
                let start = self.at.n_start.value(b);
                let start = b.cast(start, Scalar::I32);
                let last = b.add(start, col);
                let last = b.add(last, first);
                let last = b.add(last, 1);
                match self.at.sizes[1] {
                    Some(columns) => {
                        let columns = b.cast(columns, Scalar::I32);
                        b.lt(last, columns)
                    }
                    None => b.lt(last, self.c.n as i64),
                }
            });
            let Some(both) = b.and_opt(begun, whole) else { return };
            b.if_else(
                both,
                |b| put(b, 0, 2),
                |b| {
                    match begun {
                        Some(begun) => b.if_then(begun, |b| put(b, 0, 1)),
                        None => put(b, 0, 1),
                    }
                    put(b, 1, 1);
                },
            );
        });
        let Some(odd) = form.odd else { return };
        // The last element of lines that lie one further.
        let mine = b.lt(lane, STORE_ROWS);
        b.if_then(mine, |b| {
            let row = b.add(row, lane);
            let parity = self.parity(b, odd, row);
            let further = b.eq(parity, 1);
            b.if_then(further, |b| {
                let line = rows.line(b, lane);
                let at = b.add(line, rows.columns);
                let value = b.load("sum", Base::Shared(rows.slab), at, 1, None);
                let col = b.add(col, rows.columns - 1);
                self.put_from(b, [row, col], &[value], old, Start::InMemory);
            });
        });
    }
}
