//! Results of a matrix unit whose rows in memory suit no bulk store: through a staging buffer of each wave into stores of whole rows.
//!
//! A unit leaves each thread pairs of eight rows; stored as they are, a wave's store touches 16 bytes of every row (on an H200 that
//! moves 4 bytes per cycle and unit). Sums go into the staging buffer, each row's as far behind its start as the row begins behind a multiple of
//! 16 bytes in memory: what is aligned there is aligned here, and leaves in vectors of 16 bytes. A row's first and last vector may
//! belong to neighbours in part, and are stored element by element; what is left of a staging buffer's last vector waits for the staging buffer that
//! follows. What an epilogue adds to sums is added before the store, where neighbours in memory are neighbours again.

use crate::kernel::exit::fused::Start;
use crate::kernel::exit::out::{Out, OutArgs};
use crate::kernel::stages::ring::math_waves;
use crate::kernel::unit::Bands;
use crate::plan::{KernelSpec, STORE_ROWS, row_slab, row_slab_pitch};
use tilewright_ir::*;
use tilewright_problem::view::{G, ROW};

/// A wave's staging buffer: 16 rows of sums.
pub(crate) struct RowStore {
    slab: SharedId,
    /// First element of the wave's staging buffer.
    first: ExprId,
    columns: u32,
}

impl RowStore {
    /// `at` is the byte of shared memory from which the math waves have their staging buffers, for results of so many bytes, one wave after the
    /// other by the number of the `thread`'s.
    pub fn new(b: &mut Builder, spec: &KernelSpec, bytes: u32, at: u32, thread: ExprId) -> Self {
        let (columns, size) = row_slab(spec.tiling.b.micro, bytes);
        let waves = spec.teams() * math_waves(spec);
        let each = size / 4;
        let wave = b.value(thread / spec.tiling.wave_lanes);
        let slab = b.shared("slabs", Scalar::F32, each * waves, at);
        let rows = RowStore { slab, first: b.bind("slab", wave * each), columns };
        let lane = b.value(thread % spec.tiling.wave_lanes);
        rows.prepare(b, lane);
        rows
    }

    /// Writes what whole vectors touch of the staging buffer before all of it has been filled: the rows' first vector and their last.
    fn prepare(&self, b: &mut Builder, lane: ExprId) {
        let zeros = b.zero(Scalar::F32.vector(4));
        b.if_then(lane.lt(STORE_ROWS), |b| {
            let line = self.line(b, lane);
            for at in [0, 4, self.columns, self.columns + 4] {
                b.store(Base::Shared(self.slab), line + at, zeros, None);
            }
        });
    }

    /// Neighbours of a line.
    fn values(&self, b: &mut Builder, at: ExprId, count: u32) -> Vec<ExprId> {
        let width = count.min(4);
        let mut values = Vec::new();
        for part in (0..count).step_by(width as usize) {
            let value = b.load("sums", Base::Shared(self.slab), at + part, width, None);
            values.extend((0..width).map(|i| b.value(value.extract(i))));
        }
        values
    }

    fn line(&self, b: &mut Builder, row: ExprId) -> ExprId {
        b.value(self.first + row * row_slab_pitch(self.columns))
    }
}

/// How rows of results lie in memory.
struct RowForm {
    /// Results of one store: as many as 16 bytes hold, or as the start of C is aligned to.
    width: u32,
    /// Results from a multiple of that to the start of a row: what a row and a batch entry (or split) add. Both 0: every row starts
    /// at one.
    steps: [u32; 2],
}

impl RowForm {
    fn aligned(&self) -> bool {
        self.steps == [0, 0]
    }
    /// All rows begin where a pair may.
    fn pairs(&self) -> bool {
        self.steps.iter().all(|s| s.is_multiple_of(2))
    }
}

/// One staging buffer's place in the tile: its band of rows, its number along n and how many there are.
#[derive(Clone, Copy)]
struct Slab {
    block: u32,
    number: u32,
    of: u32,
}

impl Out<'_> {
    fn row_form(&self, rows: &RowStore) -> RowForm {
        let (width, strides) = match self.args {
            OutArgs::Partials { .. } => (4, Some([self.c.n, self.c.m * self.c.n])),
            _ => {
                // Counted from the tensor's first element, forwards.
                let shape = self.c.c.view.is_affine_box().filter(|s| s.base == 0);
                let forwards = |s: i64| u64::try_from(s).ok();
                let width = self.c.c.align.min(16) / self.c.c.scalar.bytes();
                (width, shape.and_then(|s| Some([forwards(s.strides[ROW])?, forwards(s.strides[G])?])))
            }
        };
        let plain = self.c.c.view.access.bounds.is_empty() || matches!(self.args, OutArgs::Partials { .. });
        let width = width.clamp(1, rows.columns);
        match strides.filter(|_| plain) {
            Some(strides) => RowForm { width, steps: strides.map(|s| (s % u64::from(width)) as u32) },
            None => RowForm { width: 1, steps: [0, 0] },
        }
    }

    /// Results from a multiple of the store's width to the start of a row of the macro tile.
    fn behind(&self, b: &mut Builder, form: &RowForm, row: ExprId) -> ExprId {
        let [of_row, of_entry] = form.steps;
        let start = self.at.m_start.value(b);
        let mut behind = b.value((start.cast(Scalar::I32) + row) % form.width * of_row);
        if of_entry > 0 {
            let entry = self.outer(b);
            behind = b.value(behind + (entry % i64::from(form.width)).cast(Scalar::I32) * of_entry);
        }
        b.value(behind % form.width)
    }

    /// The wave's results through its staging buffer.
    pub(crate) fn in_rows(&self, b: &mut Builder, math: &dyn Bands, rows: &RowStore, old: bool) {
        let (blocks, columns) = math.shape();
        let ([wave_row, wave_col], lane) = math.wave(b);
        let form = self.row_form(rows);
        let of = columns / rows.columns;
        for block in 0..blocks {
            let row = b.value(wave_row + (block * math.apart()));
            for number in 0..of {
                let slab = Slab { block, number, of };
                let col = b.value(wave_col + (number * rows.columns));
                // Nobody still reads what was there.
                b.push(Stmt::Barrier(BarrierScope::Wave));
                self.fill(b, math, rows, &form, slab, [row, lane]);
                b.push(Stmt::Barrier(BarrierScope::Wave));
                self.drain(b, rows, &form, slab, [row, col, lane], old);
                if !form.aligned() {
                    self.carry(b, rows, &form, slab, [row, col, lane], old);
                }
            }
        }
    }

    fn fill(&self, b: &mut Builder, math: &dyn Bands, rows: &RowStore, form: &RowForm, slab: Slab, [row, lane]: [ExprId; 2]) {
        for half in 0..2 {
            let own = b.value(lane / 4 + (half * 8));
            let mut line = rows.line(b, own);
            if !form.aligned() {
                let row = b.value(row + own);
                let behind = self.behind(b, form, row);
                line = b.value(line + behind);
            }
            let line = b.bind("slab_line", line + lane % 4 * 2);
            for j in 0..rows.columns / 8 {
                let values = math.pair(b, slab.block, slab.number * rows.columns / 8 + j, half);
                let at = b.value(line + (j * 8));
                if form.pairs() {
                    let value = b.vector(&values);
                    b.store(Base::Shared(rows.slab), at, value, None);
                } else {
                    for (e, value) in values.into_iter().enumerate() {
                        b.store(Base::Shared(rows.slab), at + e, value, None);
                    }
                }
            }
        }
    }

    fn drain(&self, b: &mut Builder, rows: &RowStore, form: &RowForm, slab: Slab, [row, col, lane]: [ExprId; 3], old: bool) {
        let width = form.width;
        let vectors = rows.columns / width;
        let steps = (STORE_ROWS * vectors).div_ceil(32);
        b.for_range("step", 0, steps, Unroll::No, |b, step| {
            let index = b.value(step * 32 + lane);
            let own = b.bind("slab_row", index / vectors);
            let vector = b.value(index % vectors);
            let element = b.bind("slab_element", vector * width);
            let line = rows.line(b, own);
            let at = b.value(line + element);
            let row = b.value(row + own);
            let mut col = b.value(col + element);
            // The first vector of the tile begins with what is not ours.
            let mut whole = None;
            let mut own_from = None;
            if !form.aligned() {
                let behind = self.behind(b, form, row);
                let behind = b.bind("behind", behind);
                col = b.value(col - behind);
                if slab.number == 0 {
                    let ours = b.value(behind.le(element));
                    whole = b.and_opt(whole, Some(ours));
                    own_from = Some(b.value(behind - element));
                }
            }
            let col = b.bind("first_column", col);
            let fits = self.within(b, col, width);
            whole = b.and_opt(whole, fits);
            let exists = (!(STORE_ROWS * vectors).is_multiple_of(32)).then(|| b.value(own.lt(STORE_ROWS)));
            let store = |b: &mut Builder| {
                let values = rows.values(b, at, width);
                let Some(whole) = whole else {
                    return self.put_from(b, [row, col], &values, old, Start::InMemory);
                };
                b.if_else(
                    whole,
                    |b| self.put_from(b, [row, col], &values, old, Start::InMemory),
                    |b| {
                        for (e, &value) in values.iter().enumerate() {
                            let col = b.value(col + e);
                            let inside = self.within(b, col, 1);
                            let ours = own_from.map(|from| b.value(from.le(e as u32)));
                            let guard = b.and_opt(inside, ours);
                            self.put_if(b, guard, [row, col], value, old);
                        }
                    },
                );
            };
            match exists {
                Some(exists) => b.if_then(exists, store),
                None => store(b),
            }
        });
    }

    /// What the rows have behind the staging buffer's last whole vector: kept for the next staging buffer, or stored behind the last.
    fn carry(&self, b: &mut Builder, rows: &RowStore, form: &RowForm, slab: Slab, [row, col, lane]: [ExprId; 3], old: bool) {
        let mine = b.bind("has_row", lane.lt(STORE_ROWS));
        let line = rows.line(b, lane);
        let end = b.value(line + rows.columns);
        if slab.number + 1 < slab.of {
            let width = form.width.min(4);
            let mut rest = Vec::new();
            for at in (0..form.width).step_by(width as usize) {
                rest.push(b.load("rest", Base::Shared(rows.slab), end + at, width, Some(mine)));
            }
            b.push(Stmt::Barrier(BarrierScope::Wave));
            for (n, value) in rest.into_iter().enumerate() {
                b.store(Base::Shared(rows.slab), line + (n as u32 * width), value, Some(mine));
            }
            return;
        }
        b.if_then(mine, |b| {
            let row = b.value(row + lane);
            let behind = self.behind(b, form, row);
            let behind = b.bind("behind", behind);
            let rest = rows.values(b, end, form.width);
            let col = b.value(col + rows.columns - behind);
            for e in 0..form.width - 1 {
                let col = b.value(col + e);
                let ours = b.value(behind.gt(e));
                let inside = self.within(b, col, 1);
                let guard = b.and_opt(Some(ours), inside);
                self.put_if(b, guard, [row, col], rest[e as usize], old);
            }
        });
    }

    fn put_if(&self, b: &mut Builder, guard: Option<ExprId>, place: [ExprId; 2], value: ExprId, old: bool) {
        let put = |b: &mut Builder| self.put_from(b, place, &[value], old, Start::InMemory);
        match guard {
            Some(guard) => b.if_then(guard, put),
            None => put(b),
        }
    }

    /// That this many columns from `col` of the macro tile on are columns of C; `None` where they always are.
    fn within(&self, b: &mut Builder, col: ExprId, count: u32) -> Option<ExprId> {
        if !self.overruns(1) && self.at.sizes[1].is_none() {
            return None;
        }
        let start = self.at.n_start.value(b);
        let last = b.value(start.cast(Scalar::I32) + col + (count - 1));
        Some(match self.at.sizes[1] {
            Some(columns) => b.value(last.lt(columns.cast(Scalar::I32))),
            None => b.value(last.lt(self.c.n as i64)),
        })
    }
}
