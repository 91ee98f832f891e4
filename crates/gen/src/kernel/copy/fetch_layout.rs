//! Division of a tile of rows among producer threads. It gives the rows and vectors of a thread, the start and shift of a vector
//! in memory, and its position in shared memory.

use crate::plan::{FetchShape, LINE_CLASSES as CLASSES};
use tilewright_ir::*;

/// Lanes that share a row of 128 bytes.
const ROW_LANES: u32 = 8;
/// Words of a row, and of a vector.
pub(crate) const ROW_WORDS: u32 = 32;
/// See [`ROW_WORDS`].
pub(crate) const VECTOR_WORDS: u32 = 4;

/// Positions of the vectors of a tile, and their threads.
pub(crate) struct Spread {
    pub shape: FetchShape,
    /// Position among the producer threads.
    pub thread: ExprId,
    /// Rows of the tile.
    pub lines: u32,
}

/// Shift of a class of rows.
#[derive(Clone, Copy)]
pub(crate) struct Shift {
    /// Whole words, 0 to 3.
    pub words: ExprId,
    /// The rest: 0 or 16 bits; `None` where elements are whole words.
    pub bits: Option<ExprId>,
}

/// Where a vector is.
pub(crate) struct Spot {
    /// Word of a buffer where it belongs.
    pub to: ExprId,
    /// False in threads that have no such vector.
    pub exists: Option<ExprId>,
}

impl Spread {
    /// Some threads have fewer vectors in a round than others.
    pub fn ragged(&self) -> bool {
        let s = &self.shape;
        let even = (s.column_blocks * s.line_blocks).is_multiple_of(s.parts);
        !even || !(self.lines / CLASSES).is_multiple_of(s.lines)
    }

    pub fn wave(&self, b: &mut Builder) -> ExprId {
        b.value(self.thread / WARP)
    }

    /// The thread's vector within its row of 128 bytes.
    pub fn vector(&self, b: &mut Builder) -> ExprId {
        b.value(self.thread % ROW_LANES)
    }

    /// Position of the thread's row of 128 bytes among those of an instruction: along the columns, and among lines.
    pub fn sub(&self, b: &mut Builder) -> [ExprId; 2] {
        let row = b.value(self.thread % WARP / ROW_LANES);
        [b.value(row % self.shape.columns), b.value(row / self.shape.columns)]
    }

    /// The class of a round, the part of its rows that is this wave's, and whether there is such.
    pub fn class(&self, b: &mut Builder, round: ExprId) -> (ExprId, ExprId, Option<ExprId>) {
        let wave = self.wave(b);
        let s = &self.shape;
        if s.waves <= CLASSES {
            let class = b.value(wave + round * s.waves);
            let exists = (!CLASSES.is_multiple_of(s.waves)).then(|| b.value(class.lt(CLASSES)));
            let none = b.int(0, Scalar::I32);
            return (class, none, exists);
        }
        let class = b.value(wave % CLASSES);
        let part = b.value(wave / CLASSES);
        let exists = (s.waves != s.parts * CLASSES).then(|| b.value(part.lt(s.parts)));
        (class, part, exists)
    }

    /// Vector `i` of the thread in a round.
    pub fn spot(&self, b: &mut Builder, round: ExprId, i: ExprId) -> Spot {
        let s = &self.shape;
        let (class, part, mut exists) = self.class(b, round);
        let [sub_column, sub_line] = self.sub(b);
        let block = b.value(i * s.parts + part);
        let (column, of_class) = match (s.column_blocks, s.line_blocks) {
            (1, _) => (b.int(0, Scalar::I32), block),
            (_, 1) => (block, b.int(0, Scalar::I32)),
            _ => (b.value(block / s.line_blocks), b.value(block % s.line_blocks)),
        };
        if !(s.column_blocks * s.line_blocks).is_multiple_of(s.parts) {
            b.and_also(&mut exists, block.lt(s.column_blocks * s.line_blocks));
        }
        let line = b.value((of_class * s.lines + sub_line) * CLASSES + class);
        let all = self.lines;
        if !(all / CLASSES).is_multiple_of(s.lines) {
            b.and_also(&mut exists, line.lt(all));
        }
        let column = b.value(column * s.columns + sub_column);
        let vector = self.vector(b);
        // The swizzle; a line's number modulo 8 is its class.
        let to = b.value(column * (all * ROW_WORDS) + line * ROW_WORDS + (vector ^ class) * VECTOR_WORDS);
        Spot { to, exists }
    }

    /// Words of a buffer between a round's first vector and its `i`th.
    pub fn place_of(&self, i: u32) -> i64 {
        let s = &self.shape;
        let (column, line) = (i / s.line_blocks, i % s.line_blocks);
        i64::from((line * s.lines * CLASSES + column * s.columns * self.lines) * ROW_WORDS)
    }
}

impl Shift {
    /// Of so many elements (an `I32`) of this many bytes, less than a vector of them.
    pub fn new(b: &mut Builder, elements: ExprId, bytes: u32) -> Shift {
        let per_word = 4 / bytes.min(4);
        let words = if bytes < 4 { elements >> i64::from(per_word.trailing_zeros()) } else { elements * (bytes / 4) };
        let whole = b.bind("shift_words", words);
        let bits = (bytes < 4).then(|| b.bind("shift_bits", (elements % per_word * (8 * bytes)).cast(Scalar::I64)));
        Shift { words: whole, bits }
    }

    /// Words from an aligned vector to the one that most of an output lies in, and to the half of its neighbour.
    pub fn sources(&self, b: &mut Builder, scalar: Scalar) -> [ExprId; 2] {
        let far = b.value(self.words.ge(2));
        let (none, two, four) = (b.int(0, scalar), b.int(2, scalar), b.int(4, scalar));
        [b.value(far.select(four, none)), b.value(far.select(two, four))]
    }

    /// Runs the body once for each case of whole words, in a branch of its own: with what shifts a vector and its neighbour's half.
    pub fn cases(&self, b: &mut Builder, body: impl Fn(&mut Builder, &dyn Fn(&mut Builder, [ExprId; 2]) -> ExprId)) {
        let case = |b: &mut Builder, words: u8| {
            body(b, &|b, [own, near]| {
                let own: Vec<ExprId> = (0..4).map(|i| b.value(own.extract(i))).collect();
                let near: Vec<ExprId> = (0..2).map(|i| b.value(near.extract(i))).collect();
                let line = if words < 2 { [own, near].concat() } else { [near, own].concat() };
                // From the neighbour's half on in the one direction, up to it in the other.
                halves(b, &line[usize::from(words % 2)..], self.bits)
            });
        };
        let inner = |b: &mut Builder, low: u8| {
            b.if_else(self.words.equals(i64::from(low)), |b| case(b, low), |b| case(b, low + 1));
        };
        b.if_else(self.words.ge(2), |b| inner(b, 2), |b| inner(b, 0));
    }
}

/// The words that begin `bits` (0 to 24, an `I64`; `None`: 0) within each of five neighbouring words. Each word is one shift of a
/// pair of registers.
fn halves(b: &mut Builder, words: &[ExprId], bits: Option<ExprId>) -> ExprId {
    let Some(bits) = bits else { return b.vector(&words[..4]) };
    let wide: Vec<ExprId> = words.iter().map(|w| b.value((*w).cast(Scalar::I64))).collect();
    let out: Vec<ExprId> =
        wide.windows(2).take(4).map(|pair| b.bind("word", (((pair[1] << 32) | pair[0]) >> bits).cast(Scalar::U32))).collect();
    b.vector(&out)
}
