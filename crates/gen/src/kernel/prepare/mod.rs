//! Helper kernels that copy an operand, seen through its view, into its workspace layout.
//!
//! Stores are coalesced: threads walk in the order of the copy. Where the original is contiguous in the other direction, small
//! squares are transposed in registers, and loaded and stored in whole vectors. Where vectors are not aligned, tiles are
//! transposed in shared memory so that loads are coalesced too. Two operands may be copied by one launch: the work-groups of the
//! second follow those of the first.

use crate::kernel::arguments::{Arguments, Bound, BoundKernel};
use crate::kernel::change::Change;
use crate::kernel::elements::{self, THREADS, digits, elements};
use crate::kernel::input::{Input, Ints, exists};
mod word_copy;

use crate::plan::{fetched_by_lines, reach};
use crate::program::{Binding, Factor, Groups};
use tilewright_ir::affine::{Coord, Part, affine};
use tilewright_ir::*;
use tilewright_problem::Extents;
use tilewright_problem::contraction::{Operand, Tensor};
use tilewright_problem::view::{COL, G, ROW, View};

/// Tile of a transposing copy: one wave's width along the original's lines, two along the copy's.
const TILE_READ: u32 = 32;
const TILE_WRITTEN: u32 = 64;

/// The directions of the lines of a copy and of its original, where they differ. Threads that walk along the copy would stride
/// through the original.
#[derive(Clone, Copy)]
struct Turn {
    written: usize,
    read: usize,
}

impl Turn {
    /// Sizes (or positions) along the copy's lines and the original's as those of rows and k.
    fn rows_and_k<T>(self, written: T, read: T) -> [T; 2] {
        if self.written == ROW { [written, read] } else { [read, written] }
    }
}

fn turn(source: &Tensor, to: &View) -> Option<Turn> {
    let row_fast = to.stride(ROW) == Some(1) || to.stride(ROW).is_none();
    let (written, read) = if row_fast { (ROW, COL) } else { (COL, ROW) };
    let turned = lines_along(source, read) && !lines_along(source, written);
    turned.then_some(Turn { written, read })
}

/// Whether neighbours along this axis are neighbours in memory: one by one or, in the expanded factor of a complex product, pair by pair.
fn lines_along(source: &Tensor, axis: usize) -> bool {
    let mut point = [0; 3];
    point[axis] = 2;
    let [first, third] = [[0; 3], point].map(|at| source.view.access.at(at));
    let pairs = source.signs.is_some() && first.zip(third).is_some_and(|(first, third)| third - first == 2);
    source.view.stride(axis) == Some(1) || pairs
}

/// Shape of the 32 lanes that transpose neighbouring squares: lanes along rows of the copy, and along rows of the original. They write
/// 128 bytes of a row and read 64 bytes of a row.
const SQUARES: [u32; 2] = [8, 4];
/// Squares of a work-group, in the same order.
const BLOCK: [u32; 2] = [16, THREADS / 16];
/// Bytes of the widest access.
const WIDEST: u32 = 16;

/// Elements along each side of the squares that are transposed in registers, where both memories allow such vectors.
fn square(source: &Tensor, input: &Input) -> Option<u32> {
    let to = &input.tensor;
    let Turn { written, read } = turn(source, &to.view).filter(|_| source.view.access.bounds.is_empty())?;
    // Lines of rows may end anywhere where rows are known only at launch.
    if read == ROW && input.rows.is_some() {
        return None;
    }
    let lines = [(&source.view, read), (&to.view, COL), (&to.view, ROW)];
    [WIDEST, WIDEST / 2].into_iter().map(|bytes| bytes / source.scalar.bytes()).find(|&width| {
        width > 1
            && lines.iter().all(|(view, axis)| view.extent[*axis].is_multiple_of(width.into()))
            && reach::vector_width(source, read, width) >= width
            && reach::vector_width(to, written, width) >= width
    })
}

/// Elements that the copy's widest access moves from the source.
pub(crate) fn source_width(source: &Tensor, to: &Input) -> u32 {
    square(source, to).unwrap_or(1)
}

/// Elements of a line that a thread copies and stores at once. They are a whole vector where lines of the copy are padded to
/// vectors. They are one element where finding an element costs more than moving it.
fn line_width(source: &Tensor, to: &Tensor) -> u32 {
    let width = WIDEST / source.scalar.bytes();
    let fast =
        [COL, ROW].into_iter().find(|axis| to.view.stride(*axis) == Some(1) && to.view.stride(COL + ROW - *axis).is_some());
    let plain = source.view.is_affine_box().is_some();
    match fast {
        Some(axis)
            if plain && to.view.extent[axis].is_multiple_of(width.into()) && reach::vector_width(to, axis, width) >= width =>
        {
            width
        }
        _ => 1,
    }
}

/// Rows and k of a work-group's tile, where tiles are transposed.
fn tile(source: &Tensor, to: &Input) -> Option<[u32; 2]> {
    let turn = turn(source, &to.tensor.view)?;
    let [written, read] = square(source, to).map_or([TILE_WRITTEN, TILE_READ], |width| BLOCK.map(|squares| squares * width));
    Some(turn.rows_and_k(written, read))
}

/// Work-groups of the copy of `entries` batch entries.
pub(crate) fn groups(source: &Tensor, to: &Input, entries: Factor) -> Groups {
    let view = &to.tensor.view;
    let [_, rows, k] = view.extent;
    // Pieces of so many rows.
    let pieces = |of: u64, more: u64| match to.rows {
        Some(extent) => Factor::Steps { extent, more, of },
        None => Factor::Fixed(rows.div_ceil(of)),
    };
    if let Some([tile_rows, tile_k]) = tile(source, to) {
        let factors = vec![pieces(tile_rows.into(), to.padding_rows()), Factor::Fixed(k.div_ceil(tile_k.into())), entries];
        return Groups { factors, per: 1, most: None };
    }
    let width = u64::from(line_width(source, &to.tensor));
    let factors = match (view.stride(ROW), to.rows) {
        // Whole panels.
        (None, Some(_)) => {
            let of = u64::from(to.tiling.macro_tile);
            vec![pieces(of, 0), Factor::Fixed(of * k), entries]
        }
        // One panel.
        (Some(1), Some(_)) if to.padding_rows() > 0 => vec![Factor::Fixed(rows / width * k), entries],
        (Some(1), _) => vec![pieces(width, 0), Factor::Fixed(k), entries],
        _ => vec![pieces(1, 0), Factor::Fixed(k / width), entries],
    };
    if by_words(source, &to.tensor) { word_copy::groups(factors) } else { elements::groups(factors) }
}

/// True if the copy reads the source in aligned vectors of words.
fn by_words(source: &Tensor, to: &Tensor) -> bool {
    let fast = if to.view.stride(ROW) == Some(1) { ROW } else { COL };
    let vectors = source.scalar.bytes() == 2 && u64::from(line_width(source, to)) == word_copy::WIDTH;
    vectors && turn(source, &to.view).is_none() && fetched_by_lines(source, fast)
}

/// Bytes that the source's buffer has to be aligned to, whatever its first element is.
pub(crate) fn base_align(source: &Tensor, to: &Input) -> Option<u32> {
    by_words(source, &to.tensor).then_some(word_copy::BASE_ALIGN)
}

pub(crate) struct Copy<'a> {
    pub source: &'a Tensor,
    pub to: &'a Input,
    from: ArgId,
    pub offset: ExprId,
    /// How elements change.
    change: Option<Change>,
    dest: ArgId,
    /// First batch entry and number of entries, of a chunked batch or one that is known only at launch.
    chunk: Option<(ExprId, ExprId)>,
    /// Rows, where they are known only at launch.
    pub rows: Option<ExprId>,
    pub ints: Ints,
    /// Number of this work-group among those of the copy.
    group: ExprId,
}

/// An operand's copy in workspace.
#[derive(Clone, Copy)]
pub(crate) struct OperandCopy<'a> {
    /// The original.
    pub source: &'a Tensor,
    pub to: &'a Input,
    /// Its first byte in workspace.
    pub region: u64,
}

/// Copies operands into their workspace layouts, all in one grid. Elements that do not exist become zero.
pub(crate) fn materialise(parts: &[OperandCopy], chunked: bool) -> BoundKernel {
    let letter = |to: &Input| if to.operand == Operand::A { "a" } else { "b" };
    let names: String = parts.iter().map(|part| letter(part.to)).collect();
    let mut b = Builder::new(format!("tw_materialise_{names}"), THREADS);
    let (b, mut args) = (&mut b, Arguments::default());
    let copies: Vec<(Copy, Option<[ArgId; 2]>)> = parts
        .iter()
        .map(|&OperandCopy { source, to, region }| {
            let operand = letter(to);
            let named = |what: &str| if parts.len() > 1 { format!("{operand}_{what}") } else { what.to_owned() };
            let view = &to.tensor.view;
            b.doc(format!(
                "copies operand {operand} into workspace: {} rows x {} k x {} batch entries",
                view.extent[ROW],
                view.extent[COL],
                entries(to)
            ));
            let (read, written) = (Binding::Buffer(to.operand), Binding::Workspace(region));
            let from = args.buffer(b, operand, source.scalar, Access::Read, "source operand", read);
            let doc = "first element of the source in its buffer";
            let offset = args.scalar(b, &named("offset"), Scalar::I64, doc, Binding::Offset(to.operand));
            let change = Change::declare(b, &mut args, source);
            let dest = args.buffer(b, &named("to"), source.scalar, Access::Write, "workspace", written);
            let words = by_words(source, &to.tensor).then(|| {
                let name = named(&format!("{operand}_words"));
                let words = args.buffer(b, &name, Scalar::U32, Access::Read, "source operand, as words", read);
                let doc = "workspace, as words";
                [words, args.buffer(b, &named("to_words"), Scalar::U32, Access::Write, doc, written)]
            });
            let chunk = (chunked && to.chunk_local).then(|| {
                let first = args.scalar(b, &named("g_first"), Scalar::I64, "first batch entry of this launch", Bound::First);
                (first, args.scalar(b, &named("entries"), Scalar::I64, "batch entries of this launch", Bound::Entries))
            });
            let ints = Ints::new(false, &[to.tensor.len, source.len], &[to.tensor.len, source.len]);
            let group = b.builtin(Builtin::GroupId(0));
            let rows = to.rows.map(|extent| {
                let doc = "rows of the operand in this launch";
                let rows = args.scalar(b, &named(extent.name()), Scalar::I32, doc, Binding::Extent(extent));
                b.value(rows.cast(ints.coord))
            });
            (Copy { source, to, from, offset, change, dest, chunk, rows, ints, group }, words)
        })
        .collect();
    match copies.as_slice() {
        [(first, first_words), (second, second_words)] => {
            // No extent of theirs is known only at launch.
            let none = Extents { g: 0, m: 0, n: 0 };
            let before = groups(first.source, first.to, Factor::Fixed(entries(first.to))).count(&none) as i64;
            let group = b.builtin(Builtin::GroupId(0));
            let second = Copy { group: b.value(group - before), ..*second };
            b.if_else(group.lt(before), |b| first.emit(b, *first_words), |b| second.emit(b, *second_words));
        }
        copies => copies.iter().for_each(|(copy, words)| copy.emit(b, *words)),
    }
    BoundKernel { kernel: std::mem::replace(b, Builder::new("", 0)).finish(), args }
}

/// Batch entries of the whole copy: of the operand where it has some of its own, or planes of its tensor.
pub(crate) fn entries(to: &Input) -> u64 {
    if to.tensor.view.access.offset.uses(G) { to.tensor.view.extent[G] } else { 1 }
}

impl Copy<'_> {
    fn emit(&self, b: &mut Builder, words: Option<[ArgId; 2]>) {
        let view = &self.to.tensor.view;
        if let Some(words) = words {
            word_copy::emit(b, self, words, self.group, entries(self.to));
        } else if let Some(turn) = turn(self.source, view) {
            match square(self.source, self.to) {
                Some(width) => self.turned(b, turn, width),
                None => self.transposed(b, turn),
            }
        } else {
            self.straight(b, entries(self.to));
        }
    }

    /// Coordinates of the original's element (g, row, k), g counted from the chunk's first.
    pub fn point(&self, b: &mut Builder, g: ExprId, row: ExprId, k: ExprId) -> [Coord; 3] {
        let g = match self.chunk {
            Some((first, _)) => b.value(first.cast(self.ints.coord) + g),
            None => g,
        };
        [Coord::plain(b, g), Coord::plain(b, row), Coord::plain(b, k)]
    }

    /// How much there is to copy of each of this launch's `entries` of the batch, where one has this many pieces.
    pub fn total(&self, b: &mut Builder, pieces: Ex, entries: u64) -> ExprId {
        let ty = self.ints.coord;
        let entries = match self.chunk {
            Some((_, entries)) => entries.cast(ty),
            None => entries.into(),
        };
        let total = entries * pieces;
        match total.as_int() {
            None => b.bind("total", total),
            Some(total) => b.int(total, ty),
        }
    }

    /// Pieces of so many rows that this launch copies.
    pub fn pieces(&self, b: &mut Builder, of: u64) -> Ex {
        let view = &self.to.tensor.view;
        match self.rows {
            // One panel, which is whole, too.
            Some(rows) if view.stride(ROW) != Some(1) || self.to.padding_rows() == 0 => {
                b.bind("pieces", (rows + (of as i64 - 1)) / (of as i64)).into()
            }
            _ => (view.extent[ROW] / of).into(),
        }
    }

    /// Offset just past the source's last element in this launch.
    pub fn end(&self, b: &mut Builder) -> ExprId {
        if self.rows.is_none() && self.chunk.is_none() {
            return b.value(self.offset + (self.source.len as i64));
        }
        let [entries, rows, k] = self.source.view.extent;
        let ty = self.ints.coord;
        let last = |b: &mut Builder, value: Option<ExprId>, most: u64| match value {
            Some(value) => b.value(value.cast(ty) - 1),
            None => b.int(most as i64 - 1, ty),
        };
        let g = last(b, self.chunk.map(|c| c.1), if self.chunk.is_some() { 1 } else { entries });
        let (row, k) = (last(b, self.rows, rows), last(b, None, k));
        let at = self.point(b, g, row, k);
        let index = affine(b, &self.source.view.access.offset, &at, Part::Whole, Scalar::I64);
        b.value(self.offset + (index + 1))
    }

    /// Loads the original's elements (g, row, k) and on along k.
    fn load(&self, b: &mut Builder, g: ExprId, row: ExprId, k: ExprId, lanes: u32) -> ExprId {
        let at = self.point(b, g, row, k);
        let exists = valid(b, &self.source.view, &at, self.rows, self.ints);
        let index = affine(b, &self.source.view.access.offset, &at, Part::Whole, Scalar::I64);
        let value = b.load("value", Base::Buffer(self.from), self.offset + index, lanes, exists);
        let Some(change) = self.change else { return value };
        let changed = change.at(b, &at, self.ints.coord);
        let other = changed.other.map(|apart| {
            let index = b.value(index + apart.cast(Scalar::I64));
            b.load("other", Base::Buffer(self.from), self.offset + index, lanes, exists)
        });
        change.apply(b, changed.bits, value, other)
    }

    /// Where the element is in the copy.
    pub fn place(&self, b: &mut Builder, g: ExprId, row: ExprId, k: ExprId) -> ExprId {
        let at = [Coord::plain(b, g), Coord::plain(b, row), Coord::plain(b, k)];
        affine(b, &self.to.tensor.view.access.offset, &at, Part::Whole, self.ints.offset)
    }

    fn store(&self, b: &mut Builder, g: ExprId, row: ExprId, k: ExprId, value: ExprId, guard: Option<ExprId>) {
        let index = self.place(b, g, row, k);
        b.store(Base::Buffer(self.dest), index, value, guard);
    }

    /// In the order of the copy: element by element, or vectors of a line. The elements of a vector are loaded one by one,
    /// wherever the original's lines start.
    fn straight(&self, b: &mut Builder, entries: u64) {
        let view = &self.to.tensor.view;
        let width = line_width(self.source, &self.to.tensor);
        let by_row = view.stride(ROW) == Some(1);
        let ty = self.ints.coord;
        let packed = view.stride(ROW).is_none();
        let macro_tile = u64::from(self.to.tiling.macro_tile);
        // Rows, or panels of them.
        let unit = match (packed, by_row) {
            (true, _) => macro_tile,
            (false, true) => width.into(),
            (false, false) => 1,
        };
        let pieces = self.pieces(b, unit);
        let along_k = Ex::from(view.extent[COL] / if by_row { 1 } else { u64::from(width) });
        let area = &pieces * (&along_k * if packed { macro_tile } else { 1 });
        let total = self.total(b, area, entries);
        elements(b, self.group, total, ty, |b, element| {
            let (row, k, g) = if packed {
                let d = digits(b, element, &[macro_tile.into(), along_k.clone(), pieces.clone(), 0.into()]);
                (b.value(d[2] * (macro_tile as i64) + d[0]), d[1], d[3])
            } else if view.stride(ROW) == Some(1) {
                let d = digits(b, element, &[pieces.clone(), along_k.clone(), 0.into()]);
                (d[0], d[1], d[2])
            } else {
                let d = digits(b, element, &[along_k.clone(), pieces.clone(), 0.into()]);
                (d[1], d[0], d[2])
            };
            let (row, k) = if by_row { (b.value(row * width), k) } else { (row, b.value(k * width)) };
            let row = b.bind("row", row);
            let k = b.bind("k", k);
            self.one_by_one(b, [g, row, k], by_row, width);
        });
    }

    /// Elements of a line, loaded one by one and stored at once.
    pub fn one_by_one(&self, b: &mut Builder, [g, row, k]: [ExprId; 3], by_row: bool, width: u32) {
        let parts: Vec<ExprId> = (0..i64::from(width))
            .map(|i| {
                let (row, k) = if by_row { (b.value(row + i), k) } else { (row, b.value(k + i)) };
                self.load(b, g, row, k, 1)
            })
            .collect();
        let value = b.vector(&parts);
        self.store(b, g, row, k, value, None);
    }

    /// First row, first k and batch entry of this work-group's tile.
    fn corner(&self, b: &mut Builder, [rows, k]: [u32; 2]) -> (ExprId, ExprId, ExprId) {
        let view = &self.to.tensor.view;
        let down = match self.rows {
            None => view.extent[ROW].div_ceil(rows.into()).into(),
            Some(all) => b.bind("blocks", (all + (i64::from(rows) - 1 + self.to.padding_rows() as i64)) / rows).into(),
        };
        let blocks = [view.extent[COL].div_ceil(k.into()).into(), down, 0.into()];
        let group = b.value(self.group.cast(self.ints.coord));
        let d = digits(b, group, &blocks);
        let first_k = b.bind("first_k", d[0] * i64::from(k));
        let first_row = b.bind("first_row", d[1] * i64::from(rows));
        (first_row, first_k, b.bind("g", d[2]))
    }

    /// Condition under which a position of a tile is inside the copy; `None` where tiles never overrun it.
    fn inside(&self, b: &mut Builder, positions: [(ExprId, usize, u32); 2]) -> Option<ExprId> {
        let view = &self.to.tensor.view;
        let mut guard = None;
        for (position, axis, size) in positions {
            if !view.extent[axis].is_multiple_of(size.into()) || (axis == ROW && self.rows.is_some()) {
                b.and_also(&mut guard, position.lt(view.extent[axis] as i64));
            }
        }
        guard
    }

    /// Square by square: each thread reads `width` of the original's lines as far and writes them the other way round.
    fn turned(&self, b: &mut Builder, turn: Turn, width: u32) {
        let ty = self.ints.coord;
        let size = BLOCK.map(|squares| squares * width);
        let (first_row, first_k, g) = self.corner(b, turn.rows_and_k(size[0], size[1]));
        let local = b.builtin(Builtin::LocalId);
        // Squares stand side by side in blocks of SQUARES, and those within the tile.
        let [along, down] = SQUARES;
        let d = digits(b, local, &[along, down, BLOCK[0] / along, u32::MAX].map(Ex::from));
        let [written, read] =
            [(d[0], d[2], along), (d[1], d[3], down)].map(|(near, far, count)| b.value(((far * count + near) * width).cast(ty)));
        let [row, k] = turn.rows_and_k(written, read);
        let row = b.bind("row", first_row + row);
        let k = b.bind("k", first_k + k);
        let lines: Vec<ExprId> = (0..width)
            .map(|i| {
                let [row_on, k_on] = turn.rows_and_k(i64::from(i), 0);
                let row = b.value(row + row_on);
                let k = b.value(k + k_on);
                self.load(b, g, row, k, width)
            })
            .collect();
        let [rows, ks] = turn.rows_and_k(size[0], size[1]);
        let guard = self.inside(b, [(row, ROW, rows), (k, COL, ks)]);
        for lane in 0..width {
            let parts: Vec<ExprId> = lines.iter().map(|line| b.value((*line).extract(lane))).collect();
            let value = b.vector(&parts);
            let [row_on, k_on] = turn.rows_and_k(0, i64::from(lane));
            let row = b.value(row + row_on);
            let k = b.value(k + k_on);
            self.store(b, g, row, k, value, guard);
        }
    }

    /// Tile by tile: read along the original's lines, written along the copy's.
    fn transposed(&self, b: &mut Builder, turn: Turn) {
        let ty = self.ints.coord;
        // One element more per line keeps both directions free of bank conflicts.
        let pitch = TILE_WRITTEN + 1;
        let tile = b.shared("tile", self.source.scalar, pitch * TILE_READ, 0);
        let size = turn.rows_and_k(TILE_WRITTEN, TILE_READ);
        let (first_row, first_k, g) = self.corner(b, size);
        let local = b.builtin(Builtin::LocalId);
        let passes = TILE_READ * TILE_WRITTEN / THREADS;
        let at_of = |b: &mut Builder, written: ExprId, read: ExprId| {
            let x = b.value(written.cast(ty));
            let y = b.value(read.cast(ty));
            let [row, k] = turn.rows_and_k(x, y);
            (b.value(first_row + row), b.value(first_k + k))
        };
        let lane = b.value(local % TILE_READ);
        for pass in 0..passes {
            let within = b.value(local / TILE_READ + (pass * (THREADS / TILE_READ)));
            let (row, k) = at_of(b, within, lane);
            let value = self.load(b, g, row, k, 1);
            b.store(Base::Shared(tile), lane * pitch + within, value, None);
        }
        b.barrier();
        let lane = b.value(local % TILE_WRITTEN);
        for pass in 0..passes {
            let within = b.value(local / TILE_WRITTEN + (pass * (THREADS / TILE_WRITTEN)));
            let value = b.load("turned", Base::Shared(tile), within * pitch + lane, 1, None);
            let (row, k) = at_of(b, lane, within);
            let guard = self.inside(b, [(row, ROW, size[0]), (k, COL, size[1])]);
            self.store(b, g, row, k, value, guard);
        }
    }
}

/// Condition under which an element of a view exists; `None` where it always does within the extents.
fn valid(b: &mut Builder, view: &View, at: &[Coord; 3], rows: Option<ExprId>, ints: Ints) -> Option<ExprId> {
    let mut guard = exists(b, view, at, ints.coord, None);
    for axis in [ROW, COL] {
        // The copy may have more rows (whole panels) or more k (whole vectors) than the source.
        let value = at[axis].value(b);
        let inside = match rows {
            Some(rows) if axis == ROW => b.value(value.lt(rows)),
            _ => b.value(value.lt(view.extent[axis] as i64)),
        };
        guard = b.and_opt(guard, Some(inside));
    }
    guard
}
