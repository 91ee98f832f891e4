//! Loading an operand's tile: global memory to staging registers to shared memory, or asynchronous copies.
//!
//! Each loading thread owns a load tile of `load_row x load_k` elements of the macro tile, in vectors of `load_width`. If k is a plain stride,
//! a pointer moves with the k-tiles. Any other view is evaluated per k-tile: its parts that do not depend on k are computed before the loop.
//!
//! Between staging registers and shared memory, elements are converted to the type of the math or split into parts, each with its own tile.
//! Parts of complex numbers are negated if the product needs it. Two 4-bit elements share a byte: vectors have whole bytes, and a load of a
//! single element records its half.

use super::memory::Memory;
use crate::kernel::change::Change;
use crate::kernel::input::{Input, Ints, entry_start, in_memory};
use crate::kernel::tile::shared::SharedTile;
use crate::plan::Along;
use tilewright_ir::affine::{Affine, Coord, Part, affine, in_range};
use tilewright_ir::layout::Axis;
use tilewright_ir::*;
use tilewright_problem::FactorParts;
use tilewright_problem::contraction::{Operand, Tensor};
use tilewright_problem::view::{COL, G, ROW};

/// One vector of a thread's load tile: constant distance from the thread's first element.
#[derive(Clone, Copy)]
struct Vector {
    row: i64,
    k: i64,
}

/// Parts of an access that are fixed before the k loop, for one distinct row distance.
struct RowPart {
    row: i64,
    coord: Coord,
    offset: ExprId,
    bounds: Vec<ExprId>,
    guard: Option<ExprId>,
    /// Not 0: the second tensor has the row, where the operand is two.
    second: Option<ExprId>,
}

/// Where loads start in the second tensor of an operand that is two.
struct Second {
    /// Moves as the first one's does.
    cursor: CursorId,
    /// Of single elements that are halves of bytes, the half of the thread's first element.
    half: Option<ExprId>,
}

/// Which halves of bytes single elements are.
struct Halves {
    /// Of the thread's first element.
    first: ExprId,
    /// Of those in staging.
    stage: RegId,
}

/// How elements in staging change, for each of them.
struct Staged {
    change: Change,
    bits: RegId,
    /// The other parts of their numbers, where they are needed.
    others: Option<RegId>,
}

/// One place along k: what all loads there have in common.
struct KPart {
    k: i64,
    point: Coord,
    guard: Option<ExprId>,
    offset: ExprId,
    bounds: Vec<ExprId>,
}

/// Loads one operand.
pub(crate) struct Loader<'a> {
    input: &'a Input,
    pub shared: SharedTile,
    stage: RegId,
    halves: Option<Halves>,
    /// Of those in staging, how they change.
    changed: Option<Staged>,
    vectors: Vec<Vector>,
    rows: Vec<RowPart>,
    /// Moves with the k-tiles when the view's k part is a plain stride.
    cursor: CursorId,
    second: Option<Second>,
    /// Elements from one k to the next, when that is all there is to k.
    k_stride: Option<i64>,
    g: Coord,
    /// First k of this thread within the k-tile.
    k_thread: ExprId,
    /// Where its vectors go in a stage: values and what is to be added to them.
    places: Vec<(ExprId, i64)>,
    asynchronous: bool,
    ints: Ints,
    name: &'static str,
}

/// Which k of a partial tile exist.
#[derive(Clone, Copy)]
pub(crate) struct KLimit {
    /// The tile may start below zero.
    pub below_zero: bool,
    /// The first k that does not exist.
    pub end: ExprId,
}

/// What a loader needs from the kernel around it.
pub(crate) struct LoadContext {
    /// What the operand is read through.
    pub source: Memory,
    /// Position among the loading threads.
    pub thread: ExprId,
    /// First row of the macro tile.
    pub row_start: Coord,
    /// Batch coordinate.
    pub g: Coord,
    /// First k of this work-group.
    pub k_begin: ExprId,
    /// Staging register sets.
    pub sets: u32,
    /// Number of tiles along this operand's rows.
    pub tiles: u64,
    /// How many rows there are, where that is known only at launch, or differs from tile to tile.
    pub rows: Option<ExprId>,
    /// The loader of the first pair of factors, whose staging registers serve the second pair, too.
    pub staging: Option<RegId>,
}

impl LoadContext {
    /// Row of the operand at which a thread starts.
    fn row(&self, b: &mut Builder, row_thread: ExprId, ints: Ints) -> Coord {
        let local = b.value(self.row_start.local + row_thread.cast(ints.coord));
        Coord { local, ..self.row_start }
    }
}

impl<'a> Loader<'a> {
    /// Declares registers, computes what does not change in the loop.
    pub fn new(
        b: &mut Builder,
        input: &'a Input,
        shared: SharedTile,
        cx: &LoadContext,
        k_tile: u32,
        asynchronous: bool,
        ints: Ints,
    ) -> Self {
        let t = &input.tiling;
        let name = match (input.operand, cx.staging) {
            (Operand::A, None) => "a",
            (Operand::A, Some(_)) => "a2",
            (_, None) => "b",
            (_, Some(_)) => "b2",
        };
        let share = t.share(k_tile);
        let thread = [(Axis::Thread, cx.thread)];
        let row_thread = share.emit(b, Axis::Row, &thread, Scalar::I32);
        let row_thread = b.bind(&format!("{name}_load_row"), row_thread);
        let k_thread = share.emit(b, Axis::K, &thread, Scalar::I32);
        let k_thread = b.bind(&format!("{name}_load_k"), k_thread);
        let distance = |vector: i64| {
            let at = |to: Axis| share.at(to, &[(Axis::Vector, vector)]);
            Vector { row: at(Axis::Row), k: at(Axis::K) }
        };
        let vectors: Vec<Vector> = (0..share.extent(Axis::Vector) as i64).map(distance).collect();
        let scalar = input.tensor.scalar;
        let lanes = t.load_width.div_ceil(scalar.numbers()) as u8;
        let stage = match cx.staging {
            Some(stage) => stage,
            None if asynchronous => RegId(u32::MAX),
            None => b.regs(&format!("{name}_stage"), scalar.vector(lanes), cx.sets * vectors.len() as u32),
        };
        let each = pieces(input, &shared);
        let part = t.load_width / each;
        let part_of = |v: &Vector, i: u32| match shared.along {
            Along::Row => Vector { row: v.row + i64::from(i * part), ..*v },
            Along::K => Vector { k: v.k + i64::from(i * part), ..*v },
        };
        let parts: Vec<Vector> = vectors.iter().flat_map(|v| (0..each).map(move |i| part_of(v, i))).collect();
        // Two elements of 4 bits are at a position, and lie along k.
        let each = i64::from(t.elements());
        let at_positions: Vec<Vector> = parts.iter().map(|v| Vector { k: v.k / each, ..*v }).collect();
        let k_position = b.value(k_thread / each);
        let places = places(b, name, &shared, [row_thread, k_position], &at_positions);
        let rows = row_parts(b, name, input, cx, row_thread, &vectors, ints);
        let k_stride = input.tensor.view.access.offset.stride(COL);
        let from = |b: &mut Builder, first| start(b, input, cx, first, [row_thread, k_thread], ints);
        let start = from(b, cx.source.offset);
        let halved = !t.load_width.is_multiple_of(scalar.numbers());
        let second = cx.source.up.map(|buffer| {
            let from = from(b, None);
            let half = halved.then(|| b.bind("up_half", from & 1));
            let from = in_memory(b, &input.tensor, from);
            Second { cursor: b.cursor("up_from", buffer, from), half }
        });
        let halves = halved.then(|| Halves {
            first: b.bind(&format!("{name}_half"), start & 1),
            stage: b.regs(&format!("{name}_halves"), Scalar::I64.ty(), cx.sets * vectors.len() as u32),
        });
        let changed = cx.source.change.filter(|_| !asynchronous).map(|change| {
            let count = cx.sets * vectors.len() as u32;
            let bits = b.regs(&format!("{name}_negative"), Scalar::I32.ty(), count);
            let others = change.reads_other().then(|| b.regs(&format!("{name}_others"), scalar.vector(lanes), count));
            Staged { change, bits, others }
        });
        let start = in_memory(b, &input.tensor, start);
        let cursor = b.cursor(&format!("{name}_from"), cx.source.buffer, start);
        Loader {
            input,
            shared,
            stage,
            halves,
            changed,
            vectors,
            rows,
            cursor,
            second,
            k_stride,
            g: cx.g,
            k_thread,
            places,
            asynchronous,
            ints,
            name,
        }
    }

    /// The registers that vectors wait in.
    pub fn staging(&self) -> RegId {
        self.stage
    }
    /// True if this operand is copied asynchronously.
    pub fn is_async(&self) -> bool {
        self.asynchronous
    }

    /// What the loads this far along k from the tile's start have in common.
    fn k_part(&self, b: &mut Builder, start: Coord, k: i64, valid: Option<ExprId>, range: Option<KLimit>) -> KPart {
        let (access, mixed) = (&self.input.tensor.view.access, self.mixed());
        let local = b.value(start.local + self.k_thread.cast(self.ints.coord));
        let point = Coord { local, ..start }.shifted(b, k);
        let guard = match range {
            Some(KLimit { below_zero, end }) => {
                let value = point.value(b);
                let below = b.value(value.lt(end));
                if below_zero { Some(b.value(value.ge(0).and(below))) } else { Some(below) }
            }
            None => valid,
        };
        let guard = guard.map(|g| b.bind(&format!("{}_k{k}_valid", self.name), g));
        let zero = b.int(0, self.ints.coord);
        let nowhere = Coord::plain(b, zero);
        let at = [self.g, nowhere, point];
        let offset = match self.k_stride {
            Some(stride) => b.int(k * stride, wide_enough(k * stride)),
            None if mixed => zero,
            None => {
                let value = affine(b, &access.offset, &at, Part::Using(COL), self.ints.offset);
                b.bind(&format!("{}_k{k}", self.name), value)
            }
        };
        let mut bounds = Vec::new();
        for (i, bound) in access.bounds.iter().enumerate() {
            bounds.push(if bound.value.uses(COL) && !mixed {
                let value = affine(b, &bound.value, &at, Part::Using(COL), self.ints.coord);
                b.bind(&format!("{}_k{k}_bound{i}", self.name), value)
            } else {
                zero
            });
        }
        KPart { k, point, guard, offset, bounds }
    }

    /// Fetches the k-tile that starts at `k` into staging set `set`, or starts its copy into shared buffer `buffer`
    /// (element offset). `valid`: the tile exists at all. `range`: given when a
    /// tile may be partial.
    pub fn fetch(&self, b: &mut Builder, k: Coord, valid: Option<ExprId>, range: Option<KLimit>, set: u32, buffer: ExprId) {
        let t = &self.input.tiling;
        let lanes = t.load_width;
        let count = self.vectors.len() as u32;
        let access = &self.input.tensor.view.access;
        let mixed = self.mixed();
        let mut parts: Vec<KPart> = Vec::new();
        for v in &self.vectors {
            if parts.iter().all(|p| p.k != v.k) {
                let part = self.k_part(b, k, v.k, valid, range);
                parts.push(part);
            }
        }
        for (i, v) in self.vectors.iter().enumerate() {
            let (Some(row), Some(kp)) = (self.rows.iter().find(|r| r.row == v.row), parts.iter().find(|p| p.k == v.k)) else {
                continue;
            };
            let mut guard = b.and_opt(row.guard, kp.guard);
            let at = [self.g, row.coord, kp.point];
            for (i, bound) in access.bounds.iter().enumerate().filter(|(_, bound)| bound.value.uses(COL)) {
                let value = if mixed {
                    affine(b, &bound.value, &at, Part::Whole, self.ints.coord)
                } else {
                    b.value(row.bounds[i] + kp.bounds[i])
                };
                let inside = in_range(b, value, bound.low, bound.high);
                guard = b.and_opt(guard, Some(inside));
            }
            let k_offset = match self.k_stride {
                None if mixed => affine(b, &access.offset, &at, Part::Using(COL), self.ints.offset),
                _ => kp.offset,
            };
            let mut index = self.sum(b, row.offset, k_offset);
            if let Some(halves) = &self.halves {
                let of_second = self.second.as_ref().and_then(|second| second.half).zip(row.second);
                let first = match of_second {
                    Some((half, second)) => b.value(second.equals(0).select(halves.first, half)),
                    None => halves.first,
                };
                index = self.sum(b, index, first);
                b.set_reg(halves.stage, set * count + i as u32, index & 1);
            }
            let base = Base::Cursor(self.cursor);
            if let Some(Staged { change, bits, others }) = &self.changed {
                let changed = change.at(b, &at, self.ints.coord);
                b.set_reg(*bits, set * count + i as u32, changed.bits);
                if let (Some(others), Some(apart)) = (others, changed.other) {
                    let other = self.sum(b, index, apart);
                    let place = b.reg_place(*others, set * count + i as u32);
                    b.load_to(place, base, other, guard);
                }
            }
            let index = in_memory(b, &self.input.tensor, index);
            if self.asynchronous {
                let (place, further) = self.places[i];
                let at = b.value(buffer + place + further);
                let dst = b.mem(Base::Shared(self.shared.array), at);
                let lanes = lanes / self.input.tensor.scalar.numbers();
                self.read_row(b, row, |b, base| {
                    let src = b.mem(base, index);
                    b.push(Stmt::AsyncCopy { dst, src, lanes: lanes as u8, guard });
                });
            } else {
                let place = b.reg_place(self.stage, set * count + i as u32);
                self.read_row(b, row, |b, base| b.load_to(place, base, index, guard));
            }
        }
    }

    /// Reads from the tensor that has the row.
    fn read_row(&self, b: &mut Builder, row: &RowPart, read: impl Fn(&mut Builder, Base)) {
        let own = Base::Cursor(self.cursor);
        match (&self.second, row.second) {
            (Some(second), Some(of_row)) => {
                b.if_else(of_row.equals(0), |b| read(b, own), |b| read(b, Base::Cursor(second.cursor)));
            }
            _ => read(b, own),
        }
    }

    /// Moves the pointer to the next k-tile of this work-group.
    ///
    /// With a condition, only where that holds.
    pub fn advance(&self, b: &mut Builder, k_step: i64, condition: Option<ExprId>) {
        let Some(stride) = self.k_stride.filter(|stride| *stride != 0) else { return };
        let by = b.int(k_step * stride / i64::from(self.input.tensor.scalar.numbers()), Scalar::I64);
        let by = match condition {
            Some(condition) => b.value(condition.select(by, 0)),
            None => by,
        };
        for cursor in std::iter::once(self.cursor).chain(self.second.as_ref().map(|second| second.cursor)) {
            b.advance(cursor, by);
        }
    }

    /// Sum of two distances whose types may differ.
    fn sum(&self, b: &mut Builder, x: ExprId, y: ExprId) -> ExprId {
        let wide = [x, y].iter().any(|&e| b.ty(e).scalar == Scalar::I64);
        let ty = if wide { Scalar::I64 } else { Scalar::I32 };
        b.value(x.cast(ty) + y.cast(ty))
    }

    /// Number of separate stores of one k-tile, for spreading them.
    pub fn pieces(&self) -> usize {
        self.vectors.len()
    }

    /// Stores pieces `from..to` of staging set `set` into the shared buffer at element offset `buffer`.
    pub fn store(&self, b: &mut Builder, set: u32, buffer: ExprId, from: usize, to: usize) {
        let count = self.vectors.len() as u32;
        for i in from..to.min(self.vectors.len()) {
            let value = b.reg(self.stage, set * count + i as u32);
            let mut value = converted(b, &self.input.tensor, value, self.shared.parts);
            if let Some(halves) = &self.halves {
                let upper = b.reg(halves.stage, set * count + i as u32);
                value = b.value(upper.ge(1).select(value.extract(1), value.extract(0)));
            }
            if let Some(Staged { change, bits, others }) = &self.changed {
                let bits = b.reg(*bits, set * count + i as u32);
                let other = others.map(|others| b.reg(others, set * count + i as u32));
                value = change.apply(b, bits, value, other);
            }
            let values = match self.input.tiling.split.filter(|_| self.shared.parts > 1) {
                Some(of) => split(b, &of, value, self.input.tiling.load_width),
                None => vec![value],
            };
            for (part, value) in (0..).zip(values) {
                let buffer = b.value(buffer + self.shared.part(part));
                self.store_vector(b, i, buffer, value);
            }
        }
    }

    /// Stores a vector in the tile that begins here.
    fn store_vector(&self, b: &mut Builder, i: usize, buffer: ExprId, value: ExprId) {
        let t = &self.input.tiling;
        let base = Base::Shared(self.shared.array);
        let each = pieces(self.input, &self.shared);
        if each > 1 {
            let lanes = t.load_width / each;
            for (piece, (place, further)) in (0..each).zip(&self.places[i * each as usize..]) {
                let part: Vec<ExprId> = (0..lanes).map(|lane| b.value(value.extract(piece * lanes + lane))).collect();
                let part = b.vector(&part);
                b.store(base, buffer + *place + *further, part, None);
            }
            return;
        }
        let (place, further) = self.places[i];
        let at = b.value(buffer + place + further);
        if t.load_along == self.shared.along || t.load_width == 1 {
            b.store(base, at, value, None);
            return;
        }
        for lane in 0..t.load_width {
            b.store(base, at + (lane * self.shared.pitch), value.extract(lane), None);
        }
    }

    /// Some digit mixes row and k, so that their parts cannot be computed apart.
    fn mixed(&self) -> bool {
        let access = &self.input.tensor.view.access;
        let mixes = |f: &Affine| f.terms.iter().any(|(a, _)| a.uses(COL) && (a.uses(ROW) || a.uses(G)));
        mixes(&access.offset) || access.bounds.iter().any(|x| mixes(&x.value))
    }
}

/// Stores of a loaded vector where neighbours of 16 bytes lie apart.
fn pieces(input: &Input, shared: &SharedTile) -> u32 {
    let t = &input.tiling;
    let along = t.load_along == shared.along && shared.is_permuted();
    if along { (t.load_width * input.tensor.factor().bytes()).div_ceil(16).max(1) } else { 1 }
}

/// A loaded vector of elements in the type in which they are multiplied; as it is where it is to be split into several.
pub(super) fn converted(b: &mut Builder, tensor: &Tensor, value: ExprId, parts: u32) -> ExprId {
    match tensor.factor.filter(|_| parts == 1) {
        Some(factor) => b.bind("factor", value.cast(factor)),
        None => value,
    }
}

/// The parts of a loaded vector of so many elements: the nearest numbers of the type, the nearest to what these leave, and so on. The last of parts
/// that are as wide as elements is all that is left.
pub(super) fn split(b: &mut Builder, split: &FactorParts, value: ExprId, width: u32) -> Vec<ExprId> {
    let mut rest: Vec<Ex> = (0..width).map(|i| value.extract(i)).collect();
    let mut parts = Vec::new();
    for part in 1..=split.parts {
        let near: Vec<ExprId> = match split.as_wide() {
            true if part == split.parts => rest.iter().map(|x| b.value(x.clone())).collect(),
            true => rest.iter().map(|x| b.value(x.clone().unary(UnaryOp::NearTf32))).collect(),
            false => rest.iter().map(|x| b.bind("near", x.clone().cast(split.input.storage()))).collect(),
        };
        if part < split.parts {
            let left = rest.iter().zip(&near).map(|(x, near)| x.clone() - near.cast(Scalar::F32));
            let left: Vec<Ex> = left.collect();
            rest = left.into_iter().map(|x| if split.as_wide() { b.value(x) } else { b.bind("left", x) }.into()).collect();
        }
        parts.push(b.vector(&near));
    }
    parts
}

/// Where a thread's vectors go in a stage: a value and what is to be added to it.
fn places(b: &mut Builder, name: &str, shared: &SharedTile, [row, k]: [ExprId; 2], vectors: &[Vector]) -> Vec<(ExprId, i64)> {
    if shared.is_permuted() {
        let places = vectors.iter().enumerate().map(|(i, v)| {
            let row = b.value(row + v.row);
            let k = b.value(k + v.k);
            let at = shared.at(b, row, k);
            (b.bind(&format!("{name}_store_at{i}"), at), 0)
        });
        return places.collect();
    }
    let (row_stride, k_stride) = shared.strides();
    let first = b.bind(&format!("{name}_store_at"), k * k_stride + row * row_stride);
    vectors.iter().map(|v| (first, v.k * i64::from(k_stride) + v.row * i64::from(row_stride))).collect()
}

/// What is fixed before the loop for each distinct row of a thread's vectors.
fn row_parts(
    b: &mut Builder,
    name: &str,
    input: &Input,
    cx: &LoadContext,
    row_thread: ExprId,
    vectors: &[Vector],
    ints: Ints,
) -> Vec<RowPart> {
    let access = &input.tensor.view.access;
    let k_zero = b.int(0, ints.coord);
    let nowhere = Coord::plain(b, k_zero);
    let overrun = input.rows_overrun(cx.tiles) || (cx.rows.is_some() && !input.ends_anywhere());
    let mut rows: Vec<RowPart> = Vec::new();
    for v in vectors {
        if rows.iter().any(|r| r.row == v.row) {
            continue;
        }
        let coord = cx.row(b, row_thread, ints).shifted(b, v.row);
        let point = [cx.g, coord, nowhere];
        let mut guard = overrun.then(|| {
            let row = coord.value(b);
            match cx.rows {
                Some(rows) => b.value(row.lt(rows)),
                None => b.value(row.lt(input.tensor.view.extent[ROW] as i64)),
            }
        });
        let offset = match access.offset.stride(ROW) {
            Some(stride) => b.int(v.row * stride, wide_enough(v.row * stride)),
            None => {
                let terms = access.offset.terms.iter().filter(|(a, _)| a.uses(ROW) && !a.uses(COL)).cloned().collect();
                let value = affine(b, &Affine { terms, constant: 0 }, &point, Part::Whole, ints.offset);
                b.bind(&format!("{name}_row{}", v.row), value)
            }
        };
        let mut bounds = Vec::new();
        for (i, bound) in access.bounds.iter().enumerate() {
            let value = affine(b, &bound.value, &point, Part::Without(COL), ints.coord);
            if bound.value.uses(COL) {
                bounds.push(b.bind(&format!("{name}_row{}_bound{i}", v.row), value));
            } else {
                let inside = in_range(b, value, bound.low, bound.high);
                guard = b.and_opt(guard, Some(inside));
                bounds.push(value);
            }
        }
        let guard = guard.map(|g| b.bind(&format!("{name}_row{}_valid", v.row), g));
        let second = input.up.as_ref().map(|form| {
            let second = affine(b, form, &point, Part::Whole, ints.coord);
            b.bind(&format!("{name}_row{}_second", v.row), second)
        });
        rows.push(RowPart { row: v.row, coord, offset, bounds, guard, second });
    }
    rows
}

/// Where the pointer starts in a buffer in which the operand begins there: everything that is fixed, in 64 bits.
fn start(
    b: &mut Builder,
    input: &Input,
    cx: &LoadContext,
    first: Option<ExprId>,
    [row_thread, k_thread]: [ExprId; 2],
    ints: Ints,
) -> ExprId {
    let offset = &input.tensor.view.access.offset;
    let mut start = entry_start(b, &input.tensor, cx.g);
    if let Some(first) = first {
        start = b.value(first + start);
    }
    if let Some(stride) = offset.stride(ROW) {
        let row = cx.row(b, row_thread, ints).value(b);
        start = b.value(start + row.cast(Scalar::I64) * stride);
    }
    if let Some(stride) = offset.stride(COL) {
        start = b.value(start + (cx.k_begin.cast(Scalar::I64) + k_thread.cast(Scalar::I64)) * stride);
    }
    start
}

/// Smallest index type that holds a distance.
fn wide_enough(distance: i64) -> Scalar {
    if i32::try_from(distance).is_ok() { Scalar::I32 } else { Scalar::I64 }
}
