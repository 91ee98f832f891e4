//! Copies of lines that begin anywhere into lines that begin at 16 bytes, for 16-bit elements.
//!
//! A thread reads the two aligned vectors that its part of a line lies in and shifts it into place: one access where there
//! would be eight. The vectors of a thread are all asked for before the first is waited for. What an aligned vector would touch
//! behind the operand's last element, and the end of a line, is copied element by element; before its first element a vector
//! reaches at most to the start of the buffer, which therefore has to be aligned itself.
//!
//! Expected on an H200 (4 TB/s): two operands of 4095 x 4095 move 134 MB, 34 us; 1000 x 1002 and 1002 x 1001 move 8 MB, 2 us and
//! the launch.

use super::helpers::{THREADS, digits, number, times};
use super::materialise::Copy;
use crate::program::{Factor, Groups};
use tilewright_ir::affine::{Part, affine};
use tilewright_ir::*;
use tilewright_problem::view::{COL, ROW};

/// Bytes that the buffer of an operand copied this way has to be aligned to.
pub(super) const BASE_ALIGN: u32 = 16;
/// Elements of a vector.
pub(super) const WIDTH: u64 = 8;
/// Vectors of a thread, a stride of the whole work-group apart.
const VECTORS: u32 = 4;

/// Work-groups that copy this many vectors (a product).
pub(super) fn groups(vectors: Vec<Factor>) -> Groups {
    Groups { factors: vectors, per: (THREADS * VECTORS).into(), most: None }
}

/// One vector of a thread.
struct Part16 {
    exists: ExprId,
    whole: ExprId,
    shift: ExprId,
    at: [ExprId; 3],
}

/// Emits the copy for the work-group with this number. `words` and `to_words` are source and destination as 32-bit words.
pub(super) fn emit(b: &mut Builder, copy: &Copy, [words, to_words]: [ArgId; 2], group: ExprId, entries: u64) {
    let view = &copy.to.tensor.view;
    let by_row = view.stride(ROW) == Some(1);
    let (fast, slow) = if by_row { (ROW, COL) } else { (COL, ROW) };
    let ty = copy.ints.coord;
    let rows = copy.pieces(b, if by_row { WIDTH } else { 1 });
    let extents = match by_row {
        true => [rows, number(view.extent[slow]), number(0)],
        false => [number(view.extent[fast] / WIDTH), rows, number(0)],
    };
    let area = times(b, extents[0], extents[1]);
    let total = copy.total(b, area, entries);
    let group = b.cast(group, ty);
    let first = b.mul(group, i64::from(THREADS * VECTORS));
    let local = b.builtin(Builtin::LocalId);
    let local = b.cast(local, ty);
    let first = b.add(first, local);
    let first = b.bind("first", first);
    let end = copy.end(b);
    let end = b.bind("end", end);
    let pairs = Scalar::U32.vector(4);
    let (low, high) = (b.regs("low", pairs, VECTORS), b.regs("high", pairs, VECTORS));
    let parts: Vec<Part16> = (0..VECTORS)
        .map(|i| {
            let element = b.add(first, i64::from(i * THREADS));
            let element = b.bind("element", element);
            let exists = b.lt(element, total);
            let d = digits(b, element, &extents);
            let along = b.mul(d[0], WIDTH as i64);
            let along = b.bind("along", along);
            let line = b.bind("line", d[1]);
            let (row, k) = if by_row { (along, line) } else { (line, along) };
            let at = copy.point(b, d[2], row, k);
            let index = affine(b, &copy.source.view.access.offset, &at, Part::Whole, Scalar::I64);
            let index = b.add(copy.offset, index);
            let index = b.bind("index", index);
            let shift = b.binary(BinaryOp::And, index, WIDTH as i64 - 1);
            let shift = b.cast(shift, Scalar::I32);
            let shift = b.bind("shift", shift);
            let wide = b.cast(shift, Scalar::I64);
            let start = b.sub(index, wide);
            let start = b.bind("start", start);
            let reach = b.add(start, 2 * WIDTH as i64);
            let inside = b.le(reach, end);
            let line_end = b.add(along, WIDTH as i64);
            let within = match copy.rows {
                Some(rows) if by_row => b.le(line_end, rows),
                _ => b.le(line_end, copy.source.view.extent[fast] as i64),
            };
            let whole = b.and(inside, within);
            let whole = b.and(exists, whole);
            let whole = b.bind("whole", whole);
            let word = b.binary(BinaryOp::Shr, start, 1);
            let place = b.reg_place(low, i);
            b.load_to(place, Base::Buffer(words), word, Some(whole));
            let shifted = b.lt(0, shift);
            let both = b.and(whole, shifted);
            let word = b.add(word, 4);
            let place = b.reg_place(high, i);
            b.load_to(place, Base::Buffer(words), word, Some(both));
            Part16 { exists, whole, shift, at: [d[2], row, k] }
        })
        .collect();
    for (i, part) in parts.iter().enumerate() {
        let [g, row, k] = part.at;
        b.if_then(part.exists, |b| {
            b.if_else(
                part.whole,
                |b| {
                    let vectors = [b.reg(low, i as u32), b.reg(high, i as u32)];
                    let shift = Shift::new(b, part.shift);
                    let value = shifted(b, vectors, &shift);
                    let index = copy.place(b, g, row, k);
                    let word = b.binary(BinaryOp::Shr, index, 1);
                    b.store(Base::Buffer(to_words), word, value, None);
                },
                |b| copy.one_by_one(b, [g, row, k], by_row, WIDTH as u32),
            );
        });
    }
}

/// How far elements are shifted (0 to 7), as conditions under which a power of two of them is not passed over.
#[derive(Clone, Copy)]
pub(super) struct Shift([ExprId; 3]);

impl Shift {
    /// Of an `I32` from 0 to 7.
    pub fn new(b: &mut Builder, shift: ExprId) -> Shift {
        Shift([4, 2, 1].map(|bit| {
            let bit = b.binary(BinaryOp::And, shift, bit);
            let stays = b.eq(bit, 0);
            b.bind("stays", stays)
        }))
    }
}

/// The eight 16-bit elements from `shift` on of two neighbouring vectors of them, each as four words.
pub(super) fn shifted(b: &mut Builder, [low, high]: [ExprId; 2], Shift([four, two, one]): &Shift) -> ExprId {
    let mut words: Vec<ExprId> = (0..8).map(|i| b.extract(if i < 4 { low } else { high }, i % 4)).collect();
    for (stays, words_on) in [(*four, 2), (*two, 1)] {
        words = (0..words.len() - words_on)
            .map(|i| {
                let word = b.select(stays, words[i], words[i + words_on]);
                b.bind("word", word)
            })
            .collect();
    }
    let out: Vec<ExprId> = (0..4)
        .map(|i| {
            let right = b.binary(BinaryOp::Shr, words[i], 16);
            let left = b.binary(BinaryOp::Shl, words[i + 1], 16);
            let half = b.binary(BinaryOp::Or, right, left);
            let word = b.select(*one, words[i], half);
            b.bind("word", word)
        })
        .collect();
    b.vector(&out)
}

/// The words that begin `bits` (0 or 16, an `I64`) within each of five neighbouring words: each of them one shift of a pair of registers.
pub(super) fn halves(b: &mut Builder, words: &[ExprId], bits: ExprId) -> ExprId {
    let wide: Vec<ExprId> = words.iter().map(|w| b.cast(*w, Scalar::I64)).collect();
    let out: Vec<ExprId> = wide
        .windows(2)
        .take(4)
        .map(|pair| {
            let high = b.binary(BinaryOp::Shl, pair[1], 32);
            let both = b.binary(BinaryOp::Or, high, pair[0]);
            let word = b.binary(BinaryOp::Shr, both, bits);
            let word = b.cast(word, Scalar::U32);
            b.bind("word", word)
        })
        .collect();
    b.vector(&out)
}
