//! Epilogue of a matrix unit whose result rows suit no bulk store: each wave stores whole rows through a staging buffer.
//!
//! A unit leaves each thread few neighbours of many rows (mma.sync and wgmma: pairs of eight). A wave that stores them directly
//! touches 16 bytes of every row; on an H200 that moves 4 bytes per cycle and unit. Accumulators therefore go to the staging
//! buffer. Each row keeps its offset from a multiple of 16 bytes, so both sides have the same alignment and vectors of 16 bytes
//! are stored. A row's first and last vector may contain elements of neighbours and are stored element by element. The rest of
//! a staging buffer's last vector waits for the next staging buffer. The epilogue operations are applied before the store,
//! where neighbours in memory are neighbours again.

use super::Epilogue;
use crate::kernel::exit::operations::Start;
use crate::kernel::exit::out::{Out, Target};
use crate::kernel::exit::owners::Share;
use crate::kernel::unit::accumulators::Accumulators;
use crate::plan::reach::vector_width;
use crate::plan::{Edge, ROW_VECTOR, RowStaging, STORE_ROWS};
use tilewright_ir::*;
use tilewright_problem::view::{COL, G, ROW};

/// Two steps of a loop over a staging buffer in flight. There are many such loops. Without a limit NVIDIA's compiler unrolls them
/// into more code and addresses than registers hold (4095^3 in bf16 spilled 112 bytes). One step at a time waits for shared
/// memory (3072 x 1500 x 1023 in bf16 took 29.4 us, 28.2 with two steps).
const STEPS: Unroll = Unroll::By(2);

/// A wave's staging buffer: 16 rows of sums.
pub(crate) struct RowStore {
    array: SharedId,
    /// First element of the wave's staging buffer.
    first: ExprId,
    staging: RowStaging,
}

impl RowStore {
    /// Declares the consumer warps' staging buffers, one warp after the other.
    pub fn new(b: &mut Builder, e: &Epilogue) -> Self {
        let (staging, lanes) = (e.spec.row_staging(e.c), e.spec.tiling.wave_lanes);
        let each = staging.bytes() / staging.scalar.bytes();
        let wave = b.value(e.thread / lanes);
        let array = e.staging_array(b, staging.scalar);
        let rows = RowStore { array, first: b.bind("smem_c_at", wave * each), staging };
        if e.c.k > 0 || !e.args.reducers.is_empty() {
            let lane = b.value(e.thread % lanes);
            rows.prepare(b, lane);
        }
        rows
    }

    /// Elements of 16 bytes.
    const fn vector(&self) -> u32 {
        16 / self.staging.scalar.bytes()
    }

    /// Writes what whole vectors touch of the staging buffer before all of it has been filled: the rows' first vector and
    /// their last.
    fn prepare(&self, b: &mut Builder, lane: ExprId) {
        let (width, columns) = (self.vector(), self.staging.columns);
        let zeros = b.zero(self.staging.scalar.vector(width as u8));
        b.if_then(lane.lt(STORE_ROWS), |b| {
            let line = self.line(b, lane);
            for at in (0..ROW_VECTOR).chain(columns..columns + ROW_VECTOR).step_by(width as usize) {
                b.store(Base::Shared(self.array), line + at, zeros, None);
            }
        });
    }

    /// Neighbours of a line.
    fn values(&self, b: &mut Builder, at: ExprId, count: u32) -> Vec<ExprId> {
        let width = count.min(self.vector());
        let mut values = Vec::new();
        for part in (0..count).step_by(width as usize) {
            let value = b.load("partial", Base::Shared(self.array), at + part, width, None);
            values.extend((0..width).map(|i| b.value(value.extract(i))));
        }
        values
    }

    fn line(&self, b: &mut Builder, row: ExprId) -> ExprId {
        b.value(self.first + row * self.staging.pitch())
    }
}

/// The lines of a staging buffer in the macro tile: first row, rows from one to the next, first column; and who this lane is.
struct Lines {
    row: ExprId,
    apart: u32,
    col: ExprId,
    lane: ExprId,
}

impl Lines {
    fn row(&self, b: &mut Builder, line: ExprId) -> ExprId {
        b.value(self.row + line * self.apart)
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
    /// All rows begin where so many neighbours may.
    fn allows(&self, neighbours: u32) -> bool {
        self.steps.iter().all(|s| s.is_multiple_of(neighbours))
    }
    /// Most neighbours of a vector that never crosses the ends of a row of `columns` results.
    fn store_width(&self, columns: Option<u64>) -> u32 {
        let ends = |n: u32| columns.is_some_and(|c| c.is_multiple_of(n.into()));
        (1..=self.width).rev().find(|&n| self.width.is_multiple_of(n) && self.allows(n) && ends(n)).unwrap_or(1)
    }
}

/// A wave's staging buffer and the layout of its rows.
struct RowExit<'r> {
    rows: &'r RowStore,
    form: RowForm,
}

/// Takes the first element's place in the vector and the row's offset from a multiple. Returns where in its row the vector begins, and whether
/// the elements are the row's.
type Which<'w> = &'w dyn Fn(&mut Builder, ExprId, ExprId) -> (ExprId, ExprId);

/// A vector of each row that is stored in parts.
struct RowPart<'w> {
    /// Nothing is stored from this column on.
    end: Option<ExprId>,
    steps: Unroll,
    which: Which<'w>,
}

/// One staging buffer's place in the tile, with the first row of its band. Among the band's buffers that the work-group stores it
/// has the start along n, this buffer's number and the count.
#[derive(Clone, Copy)]
struct BufferPlace {
    band: u32,
    from: u32,
    number: u32,
    of: u32,
}

impl Out<'_> {
    fn row_form(&self, rows: &RowStore) -> RowForm {
        let (width, strides) = match self.e.args.target {
            Target::Partials { .. } => (rows.vector(), Some([self.e.c.n, self.e.c.m * self.e.c.n])),
            _ => {
                // Counted from the tensor's first element, forwards.
                let shape = self.e.c.c.view.is_affine_box().filter(|s| s.base == 0);
                let forwards = |s: i64| u64::try_from(s).ok();
                let width = (self.e.c.c.align.min(16) / self.e.c.c.scalar.bytes()).min(ROW_VECTOR);
                (width, shape.and_then(|s| Some([forwards(s.strides[ROW])?, forwards(s.strides[G])?])))
            }
        };
        // Which elements of a vector a tile owns that is pulled back, each asks for itself.
        let pulled = self.e.inputs[1].edge == Edge::PullBack && self.overruns(1);
        let plain = self.e.c.c.view.access.bounds.is_empty() || matches!(self.e.args.target, Target::Partials { .. });
        let width = width.clamp(1, rows.staging.columns);
        match strides.filter(|_| plain && !pulled) {
            Some(strides) => RowForm { width, steps: strides.map(|s| (s % u64::from(width)) as u32) },
            // Rows that are no plain stride apart, as those of a phase of a gradient, begin at multiples of what their view says.
            None if plain && !pulled => RowForm { width: vector_width(&self.e.c.c, COL, width), steps: [0, 0] },
            None => RowForm { width: 1, steps: [0, 0] },
        }
    }

    /// Results from a multiple of the store's width to the start of a row of the macro tile.
    fn misalignment(&self, b: &mut Builder, form: &RowForm, row: ExprId) -> ExprId {
        let [of_row, of_entry] = form.steps;
        let start = self.at.m_start.value(b);
        let mut misalignment = b.value((start.cast(Scalar::I32) + row) % form.width * of_row);
        if of_entry > 0 {
            let entry = self.outer(b);
            misalignment = b.value(misalignment + (entry % i64::from(form.width)).cast(Scalar::I32) * of_entry);
        }
        b.value(misalignment % form.width)
    }

    /// The wave's results through its staging buffer: all that it holds, or its work-group's share.
    pub(super) fn in_rows(&self, b: &mut Builder, math: &Accumulators, rows: &RowStore, share: Option<&Share>) {
        let exit = RowExit { rows, form: self.row_form(rows) };
        let across = self.e.spec.tiling.b.micro / rows.staging.columns;
        for (first, band) in (0..).step_by(across as usize).zip(math.bands()) {
            let row = b.value(math.first[0] + band);
            let all = 0..across;
            let runs = share.map_or_else(|| vec![all], |share| share.fills_within(first..first + across));
            let buffers = runs.into_iter().flat_map(|run| {
                let (from, of) = (run.start, run.end - run.start);
                (0..of).map(move |number| BufferPlace { band, from, number, of })
            });
            for buffer in buffers {
                let col = b.value(math.first[1] + ((buffer.from + buffer.number) * rows.staging.columns));
                // All lanes must have read the previous rows before they are overwritten.
                b.push(Stmt::Barrier(BarrierScope::Wave));
                self.fill(b, math, &exit, buffer, row);
                b.push(Stmt::Barrier(BarrierScope::Wave));
                let lines = Lines { row, apart: math.apart(), col, lane: math.lane };
                self.drain(b, &exit, buffer, &lines);
                if !exit.form.aligned() {
                    self.carry(b, &exit, buffer, &lines);
                }
            }
        }
    }

    fn fill(&self, b: &mut Builder, math: &Accumulators, exit: &RowExit, buffer: BufferPlace, row: ExprId) {
        let RowExit { rows, form } = exit;
        let first = (buffer.from + buffer.number) * rows.staging.columns;
        let runs = math.in_band(buffer.band, first..first + rows.staging.columns);
        self.make(b, math, Some(&runs));
        let mut at = None;
        for run in runs {
            let line = match at.filter(|(of, _)| *of == run.row) {
                Some((_, line)) => line,
                None => {
                    let [own, col] = math.lane_in_band(b, 1);
                    let own = b.value(own + run.row);
                    let mut line = rows.line(b, own);
                    if !form.aligned() {
                        let row = b.value(row + own * math.apart());
                        let misalignment = self.misalignment(b, form, row);
                        line = b.value(line + misalignment);
                    }
                    b.bind("staging_line", line + col)
                }
            };
            at = Some((run.row, line));
            let values = math.values(b, &run);
            let at = b.value(line + run.col);
            let width = if form.allows(run.len()) { run.len().min(rows.vector()) } else { 1 };
            for (i, part) in (0..).zip(values.chunks(width as usize)) {
                let value = b.vector(part);
                b.store(Base::Shared(rows.array), at + i * width, value, None);
            }
        }
    }

    fn drain(&self, b: &mut Builder, exit: &RowExit, buffer: BufferPlace, lines: &Lines) {
        let RowExit { rows, form } = exit;
        let (width, lanes) = (form.width, self.e.spec.tiling.wave_lanes);
        let vectors = rows.staging.columns / width;
        let steps = (STORE_ROWS * vectors).div_ceil(lanes);
        b.for_range("step", 0, steps, STEPS, |b, step| {
            let index = b.value(step * lanes + lines.lane);
            let own = b.bind("staging_row", index / vectors);
            let vector = b.value(index % vectors);
            let element = b.bind("staging_at", vector * width);
            let line = rows.line(b, own);
            let at = b.value(line + element);
            let row = lines.row(b, own);
            let mut col = b.value(lines.col + element);
            // The first vector of the tile begins with what is not ours.
            let mut whole = None;
            if !form.aligned() {
                let misalignment = self.misalignment(b, form, row);
                let misalignment = b.bind("after", misalignment);
                col = b.value(col - misalignment);
                if buffer.number == 0 {
                    b.and_also(&mut whole, misalignment.le(element));
                }
            }
            let col = b.bind("first_column", col);
            let fits = self.within(b, col, width);
            whole = b.and_opt(whole, fits);
            let exists = (!(STORE_ROWS * vectors).is_multiple_of(lanes)).then(|| b.value(own.lt(STORE_ROWS)));
            let guard = b.and_opt(whole, exists);
            b.if_given(guard, |b| {
                let values = rows.values(b, at, width);
                self.by_beta(b, |b, old| self.put_from(b, [row, col], &values, old, Start::InMemory));
            });
        });
        if width == 1 {
            return;
        }
        let ends = self.end(b);
        if !form.aligned() && buffer.number == 0 {
            let which: Which =
                &|b, element, misalignment| (b.int(0, Scalar::I32), b.value(element.ge(misalignment).and(misalignment.gt(0))));
            self.part(b, exit, lines, &RowPart { end: ends, steps: STEPS, which });
        }
        let Some(end) = ends.filter(|_| !self.ends_with_vectors(exit)) else { return };
        // Of most tiles no row ends here.
        let row_ends = b.value((end - lines.col).lt(rows.staging.columns));
        b.if_then(row_ends, |b| {
            let which: Which = &|b, _, misalignment| {
                // Elements of the line that are columns of C.
                let count = b.bind("count", end - lines.col + misalignment);
                let first = b.bind("first", count / width * width);
                let mut ends_here = b.value(count.gt(0).and(count.lt(rows.staging.columns)));
                if !form.aligned() && buffer.number == 0 {
                    // Where a row begins within a vector, that vector has been stored.
                    let rest = b.value(misalignment.equals(0).select(1, first));
                    ends_here = b.value(ends_here.and(rest.gt(0)));
                }
                (first, ends_here)
            };
            // Rare, and there once for each staging buffer: one step at a time is less to compile.
            self.part(b, exit, lines, &RowPart { end: ends, steps: Unroll::By(1), which });
        });
    }

    /// Stores a row's elements of one of its vectors; neighbouring lanes store neighbouring elements, because sequential
    /// stores would be one transaction each. A lane stores as many elements as the beginnings and ends of rows have together.
    fn part(&self, b: &mut Builder, exit: &RowExit, lines: &Lines, part: &RowPart) {
        let (RowExit { rows, form }, RowPart { end, steps, which }) = (exit, part);
        let lanes = self.e.spec.tiling.wave_lanes;
        let each = form.store_width(self.at.sizes[1].is_none().then_some(self.e.c.n));
        let parts = form.width / each;
        b.for_range("step", 0, (STORE_ROWS * parts).div_ceil(lanes), *steps, |b, step| {
            let index = b.value(step * lanes + lines.lane);
            let own = b.bind("staging_row", index / parts);
            let element = b.bind("staging_at", index % parts * each);
            let row = lines.row(b, own);
            let misalignment = if form.aligned() { b.int(0, Scalar::I32) } else { self.misalignment(b, form, row) };
            let misalignment = b.bind("after", misalignment);
            let (first, is_own) = which(b, element, misalignment);
            let col = b.bind("column", lines.col + first + element - misalignment);
            let mut guard = Some(is_own);
            if let Some(end) = *end {
                b.and_also(&mut guard, col.lt(end));
            }
            if !(STORE_ROWS * parts).is_multiple_of(lanes) {
                b.and_also(&mut guard, own.lt(STORE_ROWS));
            }
            let line = rows.line(b, own);
            let at = b.value(line + first + element);
            b.if_given(guard, |b| {
                let values = rows.values(b, at, each);
                self.by_beta(b, |b, old| self.put_from(b, [row, col], &values, old, Start::InMemory));
            });
        });
    }

    /// The elements of the rows after the staging buffer's last whole vector: kept for the next staging buffer, or stored
    /// after the last.
    fn carry(&self, b: &mut Builder, exit: &RowExit, buffer: BufferPlace, lines: &Lines) {
        let RowExit { rows, form } = exit;
        let mine = b.bind("has_row", lines.lane.lt(STORE_ROWS));
        let line = rows.line(b, lines.lane);
        let end = b.value(line + rows.staging.columns);
        if buffer.number + 1 < buffer.of {
            let width = form.width.min(rows.vector());
            let mut rest = Vec::new();
            for at in (0..form.width).step_by(width as usize) {
                rest.push(b.load("rest", Base::Shared(rows.array), end + at, width, Some(mine)));
            }
            b.push(Stmt::Barrier(BarrierScope::Wave));
            for (n, value) in rest.into_iter().enumerate() {
                b.store(Base::Shared(rows.array), line + (n as u32 * width), value, Some(mine));
            }
            return;
        }
        let end = self.end(b);
        let which: Which =
            &|b, element, misalignment| (b.int(rows.staging.columns.into(), Scalar::I32), b.value(element.lt(misalignment)));
        self.part(b, exit, lines, &RowPart { end, steps: STEPS, which });
    }

    /// That this many columns from `col` of the macro tile on are columns of C; `None` where they always are.
    fn within(&self, b: &mut Builder, col: ExprId, count: u32) -> Option<ExprId> {
        let end = self.end(b)?;
        Some(b.value((col + (count - 1)).lt(end)))
    }

    /// That each row of C ends where a vector does.
    fn ends_with_vectors(&self, exit: &RowExit) -> bool {
        let (width, b) = (exit.form.width, &self.e.spec.tiling.b);
        let tiles = b.macro_tile.is_multiple_of(width) && b.micro.is_multiple_of(width);
        exit.form.aligned() && tiles && self.at.sizes[1].is_none() && self.e.c.n.is_multiple_of(width.into())
    }

    /// Columns of C from the macro tile's first on; `None` where there are never fewer than the tile's.
    fn end(&self, b: &mut Builder) -> Option<ExprId> {
        let may = self.overruns(1) && self.e.inputs[1].edge == Edge::Predicate;
        if !may && self.at.sizes[1].is_none() {
            return None;
        }
        let start = self.at.n_start.value(b);
        let columns = match self.at.sizes[1] {
            Some(columns) => columns.cast(Scalar::I32),
            None => Ex::int(self.e.c.n as i64, Scalar::I32),
        };
        Some(b.bind("columns", columns - start.cast(Scalar::I32)))
    }
}
