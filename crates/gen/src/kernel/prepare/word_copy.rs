//! Copies of misaligned rows of 16-bit elements into rows that begin at multiples of 16 bytes.
//!
//! A thread loads the two aligned vectors that contain its part of a row and shifts the part into place: two loads replace eight.
//! A thread issues all its loads before it waits for the first. Elements of the next row in a row's last vector become zeros.
//! Two ends are copied element by element: the operand's last vector, and row ends that are known only at launch. A vector before the
//! operand's first element never leaves the buffer, because the start of the buffer is aligned.
//!
//! Expected on an H200 (4 TB/s): two operands of 4095 x 4095 move 134 MB in 34 us. Operands of 1000 x 1002 and 1002 x 1001 move 8
//! MB in 2 us and the launch.

use super::Copy;
use crate::kernel::elements::{THREADS, digits};
use crate::program::{Factor, Groups};
use tilewright_ir::affine::{Part, affine};
use tilewright_ir::*;
use tilewright_problem::view::{COL, ROW};

/// Bytes that the buffer of an operand copied this way has to be aligned to.
pub(crate) const BASE_ALIGN: u32 = 16;
/// Elements of a vector.
pub(crate) const WIDTH: u64 = 8;
/// Vectors of a thread, a stride of the whole work-group apart.
const VECTORS: u32 = 4;

/// Work-groups that copy this many vectors (a product).
pub(crate) fn groups(vectors: Vec<Factor>) -> Groups {
    Groups { factors: vectors, per: (THREADS * VECTORS).into(), most: None }
}

/// One vector of a thread.
struct Part16 {
    exists: ExprId,
    /// Its line ends within it.
    ends: Option<ExprId>,
    whole: ExprId,
    shift: ExprId,
    at: [ExprId; 3],
}

/// Emits the copy for the work-group with this number. `words` and `to_words` are source and destination as 32-bit words.
pub(crate) fn emit(b: &mut Builder, copy: &Copy, [words, to_words]: [ArgId; 2], group: ExprId, entries: u64) {
    let view = &copy.to.tensor.view;
    let by_row = view.stride(ROW) == Some(1);
    let (fast, slow) = if by_row { (ROW, COL) } else { (COL, ROW) };
    let ty = copy.ints.coord;
    let rows = copy.pieces(b, if by_row { WIDTH } else { 1 });
    let extents = match by_row {
        true => [rows, view.extent[slow].into(), 0.into()],
        false => [(view.extent[fast] / WIDTH).into(), rows, 0.into()],
    };
    let area = &extents[0] * &extents[1];
    let total = copy.total(b, area, entries);
    let first = b.bind("first", group.cast(ty) * i64::from(THREADS * VECTORS) + Builtin::LocalId.cast(ty));
    let end = copy.end(b);
    let end = b.bind("end", end);
    let pairs = Scalar::U32.vector(4);
    let (low, high) = (b.regs("low", pairs, VECTORS), b.regs("high", pairs, VECTORS));
    let parts: Vec<Part16> = (0..VECTORS)
        .map(|i| {
            let element = b.bind("element", first + i64::from(i * THREADS));
            let exists = b.value(element.lt(total));
            let d = digits(b, element, &extents);
            let along = b.bind("along", d[0] * (WIDTH as i64));
            let line = b.bind("line", d[1]);
            let (row, k) = if by_row { (along, line) } else { (line, along) };
            let at = copy.point(b, d[2], row, k);
            let index = affine(b, &copy.source.view.access.offset, &at, Part::Whole, Scalar::I64);
            let index = b.bind("index", copy.offset + index);
            let shift = b.bind("shift", (index & (WIDTH as i64 - 1)).cast(Scalar::I32));
            let start = b.bind("start", index - shift.cast(Scalar::I64));
            let line_end = b.value(along + (WIDTH as i64));
            let extent = copy.source.view.extent[fast];
            let (within, ends) = match copy.rows {
                Some(rows) if by_row => (b.value(line_end.le(rows)), None),
                _ if extent.is_multiple_of(WIDTH) => (b.value(line_end.le(extent as i64)), None),
                _ => (b.value(along.lt(extent as i64)), Some(b.value(line_end.gt(extent as i64)))),
            };
            let whole = b.bind("whole", exists.and((start + (2 * WIDTH as i64)).le(end).and(within)));
            let word = b.value(start >> 1);
            let place = b.reg_place(low, i);
            b.load_to(place, Base::Buffer(words), word, Some(whole));
            let both = b.value(whole.and(shift.gt(0)));
            let place = b.reg_place(high, i);
            b.load_to(place, Base::Buffer(words), word + 4, Some(both));
            Part16 { exists, ends, whole, shift, at: [d[2], row, k] }
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
                    let mut words = shifted(b, vectors, &shift);
                    if let Some(ends) = part.ends {
                        let elements = (copy.source.view.extent[fast] % WIDTH) as usize;
                        for (i, word) in words.iter_mut().enumerate().skip(elements / 2) {
                            let kept = if 2 * i < elements { b.value(*word & 0xffff) } else { b.int(0, Scalar::U32) };
                            *word = b.value(ends.select(kept, *word));
                        }
                    }
                    let value = b.vector(&words);
                    let index = copy.place(b, g, row, k);
                    b.store(Base::Buffer(to_words), index >> 1, value, None);
                },
                |b| copy.one_by_one(b, [g, row, k], by_row, WIDTH as u32),
            );
        });
    }
}

/// How far elements are shifted (0 to 7), as conditions under which a power of two of them is not passed over.
#[derive(Clone, Copy)]
pub(crate) struct Shift([ExprId; 3]);

impl Shift {
    /// Of an `I32` from 0 to 7.
    pub fn new(b: &mut Builder, shift: ExprId) -> Shift {
        Shift([4, 2, 1].map(|bit| b.bind("stays", (shift & bit).equals(0))))
    }
}

/// The eight 16-bit elements from `shift` on of two neighbouring vectors of them, each as four words.
pub(crate) fn shifted(b: &mut Builder, [low, high]: [ExprId; 2], Shift([four, two, one]): &Shift) -> Vec<ExprId> {
    let mut words: Vec<ExprId> = (0..8).map(|i| b.value(if i < 4 { low } else { high }.extract(i % 4))).collect();
    for (stays, words_on) in [(*four, 2), (*two, 1)] {
        words = (0..words.len() - words_on).map(|i| b.bind("word", stays.select(words[i], words[i + words_on]))).collect();
    }
    (0..4).map(|i| b.bind("word", (*one).select(words[i], (words[i] >> 16) | (words[i + 1] << 16)))).collect()
}
