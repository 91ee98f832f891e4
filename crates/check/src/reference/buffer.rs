//! One buffer before and after a run: where elements lie, what they are filled with, and the guards between them.

use super::element::{Element, hash, put, with_element, zeroed};
use super::groups::Groups;
use super::integers::{Integers, added};
use rayon::prelude::*;
use std::ops::Range;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::lower::BUFFER_ALIGN;
use tilewright_problem::{Along, Gemm, Order, Problem, ProblemError, Quant, Ragged, Role};

/// Least bytes before and after every tensor that no kernel may write; a multiple of the alignment plans count on.
pub const GUARD_BYTES: u64 = BUFFER_ALIGN as u64;
/// Most rows of a tile: a tile that lies beside C instead of at its edge reaches so far.
const TILE_ROWS: u64 = 256;
/// Widest guard of a small tensor, and of any.
const WIDE_GUARDS: Range<u64> = 64 << 10..4 << 20;

/// Places of A, B and C in their buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins {
    /// Bytes before and after each that no kernel may write: a multiple of [`GUARD_BYTES`].
    pub guard: u64,
    /// Alignments of their first elements in bytes, powers of two: the first elements lie at addresses of just these alignments. `None`: where the
    /// problem's offsets put them.
    pub starts: Option<[u64; 3]>,
}

impl Default for Margins {
    fn default() -> Margins {
        Margins { guard: GUARD_BYTES, starts: None }
    }
}

impl Margins {
    /// Guards as wide as a tile, for a device that does not see accesses outside of a buffer. A guard has 256 rows of C, between
    /// 64 KiB and 4 MiB. It has at most a quarter of C where that is more than 64 KiB.
    pub fn as_wide_as_a_tile(problem: &Problem) -> Margins {
        let (pitch, bytes) = match problem {
            Problem::Gemm(gemm) => {
                let lines = Lines::matrix(gemm, 2);
                (gemm.out_dtype.bytes_of(gemm.c.ld * gemm.parts()), gemm.out_dtype.bytes_of(lines.span()))
            }
            Problem::Conv(conv) => {
                let (elements, rows) = (conv.operand(Operand::C).1, conv.n.max(1));
                (conv.out_dtype.bytes_of(elements / rows), conv.out_dtype.bytes_of(elements))
            }
            Problem::Reduce(_) => (0, 0),
        };
        let most = (bytes / 4).clamp(WIDE_GUARDS.start, WIDE_GUARDS.end);
        let wanted = pitch.saturating_mul(TILE_ROWS).clamp(WIDE_GUARDS.start, most);
        Margins { guard: wanted.next_multiple_of(GUARD_BYTES), starts: None }
    }

    /// Where operand 0 = A, 1 = B, 2 = C lies whose element 0 is `offset` elements after the start of its memory.
    pub(super) fn place(&self, index: usize, scalar: Scalar, offset: u64) -> Place {
        let beyond = self.starts.map_or(0, |starts| shift(scalar.bytes_of(offset), starts[index]));
        let unit = u64::from(scalar.bytes()).max(1);
        let more = if beyond.is_multiple_of(unit) { beyond / unit * u64::from(scalar.numbers()) } else { 0 };
        Place { front: self.guard, offset: offset.saturating_add(more), back: self.guard }
    }
}

/// Bytes from `from` to the next address that is a multiple of `align`, and of no greater power of two below [`GUARD_BYTES`].
fn shift(from: u64, align: u64) -> u64 {
    if align >= GUARD_BYTES {
        return from.next_multiple_of(GUARD_BYTES) - from;
    }
    let (align, within) = (align.max(1), from % (2 * align.max(1)));
    (3 * align - within) % (2 * align)
}

/// Place of a tensor in its buffer: bytes before and after it, and elements before its element 0 that belong to its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub front: u64,
    pub offset: u64,
    pub back: u64,
}

impl Place {
    /// Of vectors, and of what starts its buffer.
    pub const FIRST: Place = Place { front: 0, offset: 0, back: GUARD_BYTES };
}

/// The content of a device buffer before a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Element type.
    pub scalar: Scalar,
    /// All bytes, guards included, little-endian.
    pub bytes: Vec<u8>,
    /// Position of the tensor's element 0 in the buffer, in elements: the offset to launch with.
    pub start: u64,
    /// The contiguous pieces that hold the tensor's elements.
    lines: Lines,
}

/// Equal contiguous pieces at two regular distances; positions in elements from the tensor's element 0, of complex ones in their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    line: u64,
    lines: u64,
    ld: u64,
    batch: u64,
    batch_stride: u64,
}

impl Lines {
    pub fn dense(len: u64) -> Lines {
        Lines { line: len, lines: 1, ld: len, batch: 1, batch_stride: 0 }
    }
    pub fn matrix(gemm: &Gemm, index: usize) -> Lines {
        let x = gemm.matrices()[index];
        let (line, lines) = gemm.lines(index);
        Lines::strided(line, lines, x.ld, gemm.batch, x.batch_stride).of_parts(gemm.parts())
    }
    /// The same in parts of elements.
    fn of_parts(self, parts: u64) -> Lines {
        let Lines { line, lines, ld, batch, batch_stride } = self;
        Lines { line: line * parts, lines, ld: ld * parts, batch, batch_stride: batch_stride * parts }
    }
    fn strided(mut line: u64, mut lines: u64, ld: u64, batch: u64, batch_stride: u64) -> Lines {
        let mut batch = if batch_stride == 0 { 1 } else { batch };
        // Where nothing lies between lines or matrices, they are one piece.
        if lines == 1 || ld == line {
            (line, lines) = (line * lines, 1);
            if batch > 1 && batch_stride == line {
                (line, batch) = (line * batch, 1);
            }
        }
        let ld = if lines == 1 { line } else { ld };
        Lines { line, lines, ld, batch, batch_stride }
    }
    /// Elements of a tensor that is read beside the operands, such as a bias.
    pub fn added(problem: &Problem, role: Role) -> Lines {
        match (role, problem) {
            (Role::Bias, Problem::Gemm(gemm)) => {
                let length = if gemm.bias.is_some_and(|x| x.along == Along::M) { gemm.m } else { gemm.product_columns() };
                Lines::strided(length, 1, length, gemm.batch, gemm.bias.map_or(0, |x| x.batch_stride))
            }
            (Role::Residual, Problem::Gemm(gemm)) => match gemm.residual {
                Some(x) => {
                    let (line, lines) = gemm.lines(2);
                    Lines::strided(line, lines, x.ld, gemm.batch, x.batch_stride).of_parts(gemm.parts())
                }
                None => Lines::dense(0),
            },
            (Role::Up, Problem::Gemm(gemm)) => Lines::matrix(gemm, 1),
            (Role::A2 | Role::B2, Problem::Gemm(gemm)) => match gemm.second_product() {
                Some(second) => Lines::matrix(&second, usize::from(role == Role::B2)),
                None => Lines::dense(0),
            },
            (Role::Bias, _) => Lines::dense(problem.bias_len()),
            (Role::Residual, _) => Lines::dense(problem.residual_len()),
            _ => Lines::dense(role.quant().map_or(0, |quant| problem.quant_len(quant))),
        }
    }
    fn span(&self) -> u64 {
        (self.batch - 1) * self.batch_stride + (self.lines - 1) * self.ld + self.line
    }
    /// Start of every piece.
    fn starts(self) -> impl Iterator<Item = u64> {
        (0..self.batch).flat_map(move |b| (0..self.lines).map(move |l| b * self.batch_stride + l * self.ld))
    }
}

/// A byte that a kernel had no right to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what}: byte {byte} of the buffer ({element} elements from the tensor's first) was overwritten: {before:#04x} became {after:#04x}"
)]
pub struct Damage {
    /// Which buffer.
    pub what: String,
    /// Position in bytes.
    pub byte: u64,
    /// The same in elements, counted from the tensor's element 0.
    pub element: i64,
    /// Value before the run.
    pub before: u8,
    /// Value after it.
    pub after: u8,
}

/// Positions of a tensor's elements in its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    start: u64,
    scalar: Scalar,
    lines: Lines,
}

impl Pieces {
    /// Byte ranges of the contiguous pieces.
    pub(super) fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let bytes = self.scalar.bytes_of(self.lines.line) as usize;
        self.lines.starts().map(move |at| {
            let from = self.scalar.bytes_of(self.start + at) as usize;
            from..from + bytes
        })
    }
}

/// What elements are filled with.
#[derive(Clone, Copy)]
pub(super) enum Fill<'a> {
    Random(u64),
    Integers(&'a Integers, Operand),
    /// Those of a gated product's up weights.
    UpIntegers(&'a Integers),
    /// Those of an operand of the second pair of factors.
    SecondIntegers(&'a Integers, Operand),
    /// +-1 and +-2.
    Added(u64),
    /// -128 to 127.
    Bytes(u64),
    Poison,
}

impl Fill<'_> {
    /// The same for quantisation parameters: zero points are about as large as the numbers they are subtracted from.
    pub const fn of(self, quant: Quant) -> Self {
        match (self, quant) {
            (Fill::Random(seed), Quant::ZeroA | Quant::ZeroB) => Fill::Bytes(seed),
            (other, _) => other,
        }
    }
    /// Its seed, and whether it is that of random numbers.
    pub const fn seed(&self) -> (u64, bool) {
        match *self {
            Fill::Random(seed) => (seed, true),
            Fill::Added(seed) | Fill::Bytes(seed) => (seed, false),
            Fill::Integers(..) | Fill::UpIntegers(_) | Fill::SecondIntegers(..) | Fill::Poison => (0, false),
        }
    }
}

impl Buffer {
    pub(super) fn new(what: &str, scalar: Scalar, place: Place, lines: Lines, fill: Fill<'_>) -> Result<Buffer, ProblemError> {
        let front = place.front / u64::from(scalar.bytes()).max(1) * u64::from(scalar.numbers());
        let start = front.saturating_add(place.offset);
        let len = scalar.bytes_of(start.saturating_add(lines.span())).saturating_add(place.back);
        let mut buffer = Buffer { scalar, bytes: zeroed(what, len)?, start, lines };
        let gaps = buffer.gaps();
        with_element!(scalar, E => write::<E>(&mut buffer.bytes, start, lines, &gaps, fill), {});
        Ok(buffer)
    }
    /// Operand B of the product without its gate (`wide`). It has the columns of this buffer, which has the gate's weights, then
    /// the columns of the up weights, without gaps.
    pub(super) fn joined(&self, up: &Buffer, gated: &Gemm, wide: &Gemm) -> Result<Buffer, ProblemError> {
        let scalar = self.scalar;
        let mut all = Buffer::new("B", scalar, Place::FIRST, Lines::matrix(wide, 1), Fill::Poison)?;
        let (line, lines) = gated.lines(1);
        let columns_are_lines = gated.b.trans != (gated.order == Order::Col);
        let batch = if gated.b.batch_stride == 0 { 1 } else { gated.batch };
        let further = if columns_are_lines { lines * wide.b.ld } else { line };
        for (half, of) in (0..).zip([self, up]) {
            for (b, l) in (0..batch).flat_map(|b| (0..lines).map(move |l| (b, l))) {
                let from = scalar.bytes_of(of.start + b * gated.b.batch_stride + l * gated.b.ld) as usize;
                let to = scalar.bytes_of(all.start + b * wide.b.batch_stride + l * wide.b.ld + half * further) as usize;
                let bytes = scalar.bytes_of(line) as usize;
                if let (Some(to), Some(from)) = (all.bytes.get_mut(to..to + bytes), of.bytes.get(from..from + bytes)) {
                    to.copy_from_slice(from);
                }
            }
        }
        Ok(all)
    }
    /// C: poison if it is not read.
    pub(super) fn result(problem: &Problem, read: bool, fill: Fill<'_>, margins: Margins) -> Result<Buffer, ProblemError> {
        let fill = if read { fill } else { Fill::Poison };
        let place = |scalar, offset| margins.place(2, scalar, offset);
        match problem {
            Problem::Gemm(gemm) => {
                let (scalar, offset) = (gemm.out_dtype, gemm.c.offset * gemm.parts());
                Buffer::new("C", scalar, place(scalar, offset), Lines::matrix(gemm, 2), fill)
            }
            Problem::Conv(conv) => {
                let (name, len) = conv.operand(Operand::C);
                Buffer::new(name, conv.out_dtype, place(conv.out_dtype, 0), Lines::dense(len), fill)
            }
            Problem::Reduce(reduce) => Buffer::new("C", reduce.dtype, place(reduce.dtype, 0), Lines::dense(1), fill),
        }
    }
    /// Matrix 0 = A, 1 = B, 2 = C of a grouped product. Only elements before the end of the last group count: nothing else may be
    /// written, and terms after it are NaNs.
    pub(super) fn within_groups(mut self, problem: &Problem, groups: &Groups, matrix: usize) -> Buffer {
        let Problem::Gemm(gemm) = problem else { return self };
        let (of, end) = (groups.of, groups.end());
        if matrix == of.owned() || (matrix < 2 && of != Ragged::K) {
            return self;
        }
        let there = match of {
            Ragged::M => Gemm { m: end, ..gemm.clone() },
            Ragged::N => Gemm { n: end, ..gemm.clone() },
            Ragged::K => Gemm { k: end, ..gemm.clone() },
        };
        self.lines = Lines::matrix(&there, matrix);
        if matrix < 2 {
            let gaps = self.gaps();
            with_element!(self.scalar, E => guard::<E>(&mut self.bytes, &gaps), {});
        }
        self
    }
    /// Byte ranges outside of the tensor's elements, in ascending order: what no kernel may change.
    pub fn gaps(&self) -> Vec<Range<usize>> {
        let mut pieces: Vec<Range<usize>> = self.pieces().ranges().collect();
        // Batch entries may be interleaved.
        pieces.sort_unstable_by_key(|piece| piece.start);
        let mut end = 0;
        let tail = std::iter::once(self.bytes.len()..self.bytes.len());
        pieces
            .into_iter()
            .chain(tail)
            .filter_map(|piece| {
                let gap = end..piece.start;
                end = end.max(piece.end);
                (!gap.is_empty()).then_some(gap)
            })
            .collect()
    }
    /// Where the tensor's elements lie.
    pub(super) fn pieces(&self) -> Pieces {
        Pieces { start: self.start, scalar: self.scalar, lines: self.lines }
    }
    pub(super) fn check_guards(&self, what: &str, after: &[u8]) -> Result<(), Damage> {
        let part = |bytes: &[u8], gap: &Range<usize>| bytes.get(gap.clone()).unwrap_or_default().to_vec();
        let changed = |gap: &Range<usize>| self.bytes.get(gap.clone()) != after.get(gap.clone());
        match self.gaps().into_iter().find(changed) {
            None => Ok(()),
            Some(gap) => Err(self.damage(what, gap.start, &part(&self.bytes, &gap), &part(after, &gap))),
        }
    }
    pub(super) fn check_equal(&self, what: &str, after: &[u8]) -> Result<(), Damage> {
        if self.bytes == after { Ok(()) } else { Err(self.damage(what, 0, &self.bytes, after)) }
    }
    /// The first difference between bytes from `first` on.
    fn damage(&self, what: &str, first: usize, before: &[u8], after: &[u8]) -> Damage {
        let differs = before.iter().zip(after).position(|(x, y)| x != y);
        let at = differs.unwrap_or(before.len().min(after.len()));
        let byte = first + at;
        Damage {
            what: what.to_string(),
            byte: byte as u64,
            element: byte as i64 / i64::from(self.scalar.bytes()) * i64::from(self.scalar.numbers()) - self.start as i64,
            before: before.get(at).copied().unwrap_or(0),
            after: after.get(at).copied().unwrap_or(0),
        }
    }
}

/// Fills the gaps between elements with a NaN that differs from byte position to byte position.
fn guard<E: Element>(bytes: &mut [u8], gaps: &[Range<usize>]) {
    // Guards are NaNs whose low byte counts, so that a copy of one guard over another shows.
    let guard = |first: usize, part: &mut [u8]| {
        for (position, element) in (first as u64..).zip(part.chunks_exact_mut(E::BYTES)) {
            put::<E>(element, E::guard(position));
        }
    };
    for gap in gaps {
        let (first, part) = (gap.start / E::BYTES, &mut bytes[gap.clone()]);
        if part.len() <= E::BYTES << 14 {
            guard(first, part);
        } else {
            part.par_chunks_mut(E::BYTES << 14).enumerate().for_each(|(chunk, part)| guard(first + (chunk << 14), part));
        }
    }
}

/// Fills a buffer: elements as asked, and the gaps between them.
fn write<E: Element>(bytes: &mut [u8], start: u64, lines: Lines, gaps: &[Range<usize>], fill: Fill<'_>) {
    guard::<E>(bytes, gaps);
    let whole = [-2.0, -1.0, 0.0, 1.0, 2.0].map(E::of);
    let integer = |value: i8| whole[(value + 2).clamp(0, 4) as usize];
    let size = |elements: u64| elements as usize / E::NUMBERS * E::BYTES;
    for b in 0..lines.batch {
        let first = start + b * lines.batch_stride;
        let from = size(first);
        let to = from + size((lines.lines - 1) * lines.ld + lines.line);
        let Some(matrix) = bytes.get_mut(from..to) else { continue };
        matrix.par_chunks_mut(size(lines.ld).max(1)).enumerate().for_each(|(l, part)| {
            let line = part.len().min(size(lines.line));
            part[..line].par_chunks_mut(E::BYTES << 14).enumerate().for_each(|(chunk, part)| {
                let within = (chunk as u64 * E::NUMBERS as u64) << 14;
                let position = b * lines.batch_stride + l as u64 * lines.ld + within;
                let elements = part.chunks_exact_mut(E::BYTES);
                match fill {
                    Fill::Random(seed) => {
                        let position = (position..).step_by(E::NUMBERS);
                        elements.zip(position).for_each(|(e, at)| put::<E>(e, E::random(hash(seed, at))));
                    }
                    Fill::Bytes(seed) => {
                        let byte = |at| f64::from((hash(seed, at) >> 56) as u8 as i8);
                        elements.zip(position..).for_each(|(e, at)| put::<E>(e, E::of(byte(at))));
                    }
                    Fill::Added(seed) => elements.zip(position..).for_each(|(e, at)| put::<E>(e, integer(added(seed, at)))),
                    Fill::Poison => elements.for_each(|e| put::<E>(e, E::poison())),
                    Fill::Integers(integers, _) | Fill::UpIntegers(integers) | Fill::SecondIntegers(integers, _) => {
                        let mut values = vec![0; elements.len() * E::NUMBERS];
                        let first = (b * lines.lines + l as u64) * lines.line + within;
                        match fill {
                            Fill::Integers(_, operand) => integers.elements(operand, first, &mut values),
                            Fill::SecondIntegers(_, operand) => integers.second_elements(operand, first, &mut values),
                            _ => integers.up_elements(first, &mut values),
                        }
                        let values: Vec<u64> = values.into_iter().map(integer).collect();
                        elements.zip(values.chunks(E::NUMBERS)).for_each(|(e, values)| put::<E>(e, E::together(values)));
                    }
                }
            });
        });
    }
}

/// So many bytes after a workspace, which no kernel may write.
pub fn workspace_guard(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (hash(7, i) & 0xff) as u8).collect()
}

/// Checks the guard of `of` bytes after a workspace of so many bytes after a run.
///
/// # Errors
/// [`Damage`] names the first byte that changed.
pub fn check_workspace(bytes: u64, of: u64, guard: &[u8]) -> Result<(), Damage> {
    let damage = workspace_guard(of).into_iter().enumerate().find_map(|(i, before)| {
        let after = guard.get(i).copied();
        (after != Some(before)).then(|| {
            let byte = bytes + i as u64;
            Damage { what: "workspace".to_string(), byte, element: byte as i64, before, after: after.unwrap_or(0) }
        })
    });
    damage.map_or(Ok(()), Err)
}
