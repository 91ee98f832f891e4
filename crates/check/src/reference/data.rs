//! Test data: seeded inputs, poisoned outputs, and memory around and between tensors that must come back untouched.

use super::element::{Element, hash, put, with_element, zeroed};
use super::groups::{Groups, drawn};
use super::integers::{Integers, added};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::lower::BUFFER_ALIGN;
use tilewright_problem::{Along, Factors, Gemm, PerRole, Problem, ProblemError, Quant, Ragged, Role, RoleMemory};

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
    /// Guards as wide as a tile, for a device that does not see accesses outside of a buffer: 256 rows of C, between 64 KiB and 4 MiB, at most a
    /// quarter of C where that is more than 64 KiB.
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
    fn place(&self, index: usize, scalar: Scalar, offset: u64) -> Place {
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
struct Place {
    front: u64,
    offset: u64,
    back: u64,
}

impl Place {
    /// Of vectors, and of what starts its buffer.
    const FIRST: Place = Place { front: 0, offset: 0, back: GUARD_BYTES };
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
    /// Contiguous pieces the tensor's elements lie in.
    lines: Lines,
}

/// Equal contiguous pieces at two regular distances; positions in elements from the tensor's element 0, of complex ones in their parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lines {
    line: u64,
    lines: u64,
    ld: u64,
    batch: u64,
    batch_stride: u64,
}

impl Lines {
    fn dense(len: u64) -> Lines {
        Lines { line: len, lines: 1, ld: len, batch: 1, batch_stride: 0 }
    }
    fn matrix(gemm: &Gemm, index: usize) -> Lines {
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
    fn added(problem: &Problem, role: Role) -> Lines {
        match (role, problem) {
            (Role::Bias, Problem::Gemm(gemm)) => {
                let length = if gemm.bias.is_some_and(|x| x.along == Along::M) { gemm.m } else { gemm.n };
                Lines::strided(length, 1, length, gemm.batch, gemm.bias.map_or(0, |x| x.batch_stride))
            }
            (Role::Residual, Problem::Gemm(gemm)) => match gemm.residual {
                Some(x) => {
                    let (line, lines) = gemm.lines(2);
                    Lines::strided(line, lines, x.ld, gemm.batch, x.batch_stride).of_parts(gemm.parts())
                }
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

/// What the buffers of one problem hold before a run, and the factors to run with.
#[derive(Clone, Debug, PartialEq)]
pub struct TestData {
    /// The problem.
    pub problem: Problem,
    /// alpha and beta, exact in the accumulator's type.
    pub factors: Factors,
    /// Places of A, B and C in their buffers.
    pub margins: Margins,
    /// Operand A; a convolution's input or output gradient.
    pub a: Arc<Buffer>,
    /// Operand B; a convolution's filter, or the input that a filter gradient is computed from.
    pub b: Arc<Buffer>,
    /// Result: NaN everywhere if beta is 0, random otherwise.
    pub c: Buffer,
    /// Tensors that are read beside the operands, each starting at element 0 of its buffer.
    pub added: PerRole<Option<Arc<Buffer>>>,
    /// Values of the reductions, NaN everywhere, each starting at element 0 of its buffer.
    pub reductions: Vec<Buffer>,
}

/// The number of a role's random values: 0 to 2 are those of A, B and C.
fn tag(role: Role) -> Option<u64> {
    match role {
        Role::Bias => Some(3),
        Role::Residual => Some(4),
        other => other.quant().map(|quant| 5 + quant as u64),
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

impl TestData {
    /// Buffers for a problem. The seed decides every input value: uniform in [-1, 1), exact in the element type. `alpha` and
    /// `beta` are rounded to the accumulator's type.
    ///
    /// # Errors
    /// [`ProblemError`] of [`Problem::validate`], or if the buffers do not fit this machine's memory.
    pub fn new(problem: &Problem, seed: u64, alpha: f64, beta: f64) -> Result<TestData, ProblemError> {
        TestData::with(problem, seed, Factors::real(alpha, beta))
    }
    /// The same with factors that may be complex.
    ///
    /// # Errors
    /// As [`TestData::new`], and those of [`Factors::check`].
    pub fn with(problem: &Problem, seed: u64, factors: Factors) -> Result<TestData, ProblemError> {
        TestData::within(problem, seed, factors, Margins::default())
    }
    /// The same in buffers with other margins.
    ///
    /// # Errors
    /// As [`TestData::with`].
    pub fn within(problem: &Problem, seed: u64, factors: Factors, margins: Margins) -> Result<TestData, ProblemError> {
        TestData::filled(problem, factors, margins, |tag| Fill::Random(hash(seed, tag)))
    }
    /// The same of small integers: those of `integers` in A and B, +-1 and +-2 in C (if beta is not 0), bias and residual.
    pub(super) fn of_integers(
        problem: &Problem,
        integers: &Integers,
        seed: u64,
        factors: Factors,
        margins: Margins,
    ) -> Result<TestData, ProblemError> {
        TestData::filled(problem, factors, margins, |tag| match tag {
            0 => Fill::Integers(integers, Operand::A),
            1 => Fill::Integers(integers, Operand::B),
            _ => Fill::Added(hash(seed, tag)),
        })
    }
    /// The same inputs for other factors, with a C of its own: what [`TestData::with`] makes of these arguments.
    ///
    /// # Errors
    /// As [`TestData::with`].
    pub fn with_factors(&self, seed: u64, factors: Factors) -> Result<TestData, ProblemError> {
        self.with_result(factors, Fill::Random(hash(seed, 2)))
    }
    /// The same of small integers.
    pub(super) fn with_integer_factors(&self, seed: u64, factors: Factors) -> Result<TestData, ProblemError> {
        self.with_result(factors, Fill::Added(hash(seed, 2)))
    }
    fn with_result(&self, factors: Factors, fill: Fill<'_>) -> Result<TestData, ProblemError> {
        let problem = &self.problem;
        let factors = exact(problem, factors)?;
        let c = Buffer::result(problem, factors.reads_old(), fill, self.margins)?;
        let c = match self.groups() {
            Some(groups) => c.within_groups(problem, &groups, 2),
            None => c,
        };
        Ok(TestData { factors, c, ..self.clone() })
    }

    /// Buffers with A, B, C, bias, residual and quantisation parameters filled by `fill` of 0 to 8.
    fn filled<'a>(
        problem: &Problem,
        factors: Factors,
        margins: Margins,
        fill: impl Fn(u64) -> Fill<'a>,
    ) -> Result<TestData, ProblemError> {
        problem.validate()?;
        let factors = exact(problem, factors)?;
        let c = Buffer::result(problem, factors.reads_old(), fill(2), margins)?;
        let (a, b) = match problem {
            Problem::Gemm(gemm) => {
                let matrix = |index: usize| {
                    let (offset, fill) = (gemm.matrices()[index].offset * gemm.parts(), fill(index as u64));
                    let scalar = gemm.scalar(index);
                    let place = margins.place(index, scalar, offset);
                    Buffer::new(["A", "B"][index], scalar, place, Lines::matrix(gemm, index), fill)
                };
                (matrix(0)?, matrix(1)?)
            }
            Problem::Conv(conv) => {
                let tensor = |operand, fill| {
                    let (name, len) = conv.operand(operand);
                    let place = margins.place(operand as usize, problem.dtype(), 0);
                    Buffer::new(name, problem.dtype(), place, Lines::dense(len), fill)
                };
                (tensor(Operand::A, fill(0))?, tensor(Operand::B, fill(1))?)
            }
            Problem::Reduce(reduce) => {
                let [a, b] = [(0, reduce.offset), (1, 0)].map(|(index, offset)| margins.place(index, reduce.dtype, offset));
                let a = Buffer::new("A", reduce.dtype, a, Lines::dense(reduce.len()), fill(0))?;
                (a, Buffer::new("B", reduce.dtype, b, Lines::dense(1), fill(1))?)
            }
        };
        let (a, b) = (Arc::new(a), Arc::new(b));
        let mut data =
            TestData { problem: problem.clone(), factors, margins, a, b, c, added: PerRole::default(), reductions: Vec::new() };
        for RoleMemory { role, scalar, .. } in problem.memories() {
            let Some(tag) = tag(role) else { continue };
            let fill = role.quant().map_or(fill(tag), |quant| fill(tag).of(quant));
            let mut values = Buffer::new(role.words(), scalar, Place::FIRST, Lines::added(problem, role), fill)?;
            if let (Role::Ends, Problem::Gemm(gemm)) = (role, problem) {
                let (seed, random) = fill.seed();
                let ends = drawn(gemm, seed, random);
                values.bytes.chunks_exact_mut(4).zip(ends).for_each(|(bytes, end)| bytes.copy_from_slice(&end.to_le_bytes()));
            }
            data.added.set(role, Some(Arc::new(values)));
        }
        if let Some(groups) = data.groups() {
            let beyond =
                |buffer: &Arc<Buffer>, index: usize| Arc::new(Buffer::clone(buffer).within_groups(problem, &groups, index));
            (data.a, data.b) = (beyond(&data.a, 0), beyond(&data.b, 1));
            data.c = data.c.within_groups(problem, &groups, 2);
        }
        for (number, reduction) in problem.reductions().iter().enumerate() {
            let (scalar, lines) = (reduction.scalar(problem.accumulator()), Lines::dense(data.reduction_len(number)));
            data.reductions.push(Buffer::new("reduction", scalar, Place::FIRST, lines, Fill::Poison)?);
        }
        Ok(data)
    }
    /// Where the groups of a grouped product end.
    pub fn ends(&self) -> Option<Vec<u64>> {
        self.groups().map(|groups| groups.ends().to_vec())
    }
    /// Where rows or columns belong to groups.
    pub(super) fn groups(&self) -> Option<Groups> {
        let ends = self.added.given_to(Role::Ends);
        Groups::new(&self.problem, ends.map(|buffer| &*buffer.bytes))
    }
    /// Values of the reduction with this number.
    pub(super) fn reduction_len(&self, number: usize) -> u64 {
        self.problem.reductions().get(number).map_or(0, |reduction| self.problem.result_shape().left(reduction.over))
    }
    /// The buffer of an operand.
    pub fn buffer(&self, operand: Operand) -> &Buffer {
        match operand {
            Operand::A => &self.a,
            Operand::B => &self.b,
            Operand::C => &self.c,
        }
    }
    /// Checks that an operand's buffer is as a kernel must leave it: A and B unchanged, C unchanged outside of its elements.
    ///
    /// # Errors
    /// [`Damage`] names the first byte that changed.
    pub fn check_untouched(&self, operand: Operand, after: &[u8]) -> Result<(), Damage> {
        let buffer = self.buffer(operand);
        match operand {
            Operand::A => buffer.check_equal("A", after),
            Operand::B => buffer.check_equal("B", after),
            Operand::C if !self.problem.keeps_c() => buffer.check_equal("C, which is not to be stored", after),
            Operand::C => buffer.check_guards("C", after),
        }
    }
    /// Checks that the memory around the values of reductions is unchanged.
    ///
    /// # Errors
    /// [`Damage`] names the first byte that changed.
    pub fn check_around_reductions(&self, after: &[Vec<u8>]) -> Result<(), Damage> {
        self.reductions.iter().zip(after).try_for_each(|(buffer, after)| buffer.check_guards("reduction", after))
    }
    /// Checks that a buffer that is read beside the operands is unchanged; trivially true without one.
    ///
    /// # Errors
    /// [`Damage`] names the first byte that changed.
    pub fn check_added_untouched(&self, role: Role, after: &[u8]) -> Result<(), Damage> {
        self.added.given_to(role).map_or(Ok(()), |buffer| buffer.check_equal(role.words(), after))
    }
}

/// Where a tensor's elements lie in its buffer.
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

#[derive(Clone, Copy)]
enum Fill<'a> {
    Random(u64),
    Integers(&'a Integers, Operand),
    /// +-1 and +-2.
    Added(u64),
    /// -128 to 127.
    Bytes(u64),
    Poison,
}

impl Fill<'_> {
    /// The same for quantisation parameters: zero points are about as large as the numbers they are subtracted from.
    const fn of(self, quant: Quant) -> Self {
        match (self, quant) {
            (Fill::Random(seed), Quant::ZeroA | Quant::ZeroB) => Fill::Bytes(seed),
            (other, _) => other,
        }
    }
    /// Its seed, and whether it is that of random numbers.
    const fn seed(&self) -> (u64, bool) {
        match *self {
            Fill::Random(seed) => (seed, true),
            Fill::Added(seed) | Fill::Bytes(seed) => (seed, false),
            Fill::Integers(..) | Fill::Poison => (0, false),
        }
    }
}

/// Factors as a kernel gets them, of a problem that is made for such.
fn exact(problem: &Problem, factors: Factors) -> Result<Factors, ProblemError> {
    factors.check(problem)?;
    let Factors { alpha, beta, alpha_im, beta_im } = factors;
    let [alpha_im, beta_im] = [factor(problem, "alpha_im", alpha_im)?, factor(problem, "beta_im", beta_im)?];
    Ok(Factors { alpha: factor(problem, "alpha", alpha)?, beta: factor(problem, "beta", beta)?, alpha_im, beta_im })
}

/// A factor as a kernel gets it: rounded to the type of the sums, which must hold it.
fn factor(problem: &Problem, name: &str, value: f64) -> Result<f64, ProblemError> {
    if name == "beta" && value != 0.0 && !problem.keeps_c() {
        return Err(ProblemError::value(name, value, "C is neither stored nor read; use 0, or store C"));
    }
    let accumulator = problem.accumulator();
    if !accumulator.is_float() {
        // Integers are not scaled.
        return Ok(if name == "alpha" { 1.0 } else { 0.0 });
    }
    let rounded = if accumulator == Scalar::F32 { f64::from(value as f32) } else { value };
    if rounded.is_finite() {
        return Ok(rounded);
    }
    let reason = if value.is_finite() {
        format!("does not fit {accumulator}, the type that sums are scaled in; the largest is {:e}", f32::MAX)
    } else {
        "a result cannot be verified with a factor that is no number; give a finite one".into()
    };
    Err(ProblemError::value(name, format!("{value:e}"), reason))
}

impl Buffer {
    fn new(what: &str, scalar: Scalar, place: Place, lines: Lines, fill: Fill<'_>) -> Result<Buffer, ProblemError> {
        let front = place.front / u64::from(scalar.bytes()).max(1) * u64::from(scalar.numbers());
        let start = front.saturating_add(place.offset);
        let len = scalar.bytes_of(start.saturating_add(lines.span())).saturating_add(place.back);
        let mut buffer = Buffer { scalar, bytes: zeroed(what, len)?, start, lines };
        let gaps = buffer.gaps();
        with_element!(scalar, E => write::<E>(&mut buffer.bytes, start, lines, &gaps, fill), {});
        Ok(buffer)
    }
    /// C: poison if it is not read.
    fn result(problem: &Problem, read: bool, fill: Fill<'_>, margins: Margins) -> Result<Buffer, ProblemError> {
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
    /// Matrix 0 = A, 1 = B, 2 = C of a grouped product, of which only what lies before the end of the last group counts as elements: nothing else may
    /// be written, and terms after it are NaNs.
    fn within_groups(mut self, problem: &Problem, groups: &Groups, matrix: usize) -> Buffer {
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
    fn check_guards(&self, what: &str, after: &[u8]) -> Result<(), Damage> {
        let part = |bytes: &[u8], gap: &Range<usize>| bytes.get(gap.clone()).unwrap_or_default().to_vec();
        let changed = |gap: &Range<usize>| self.bytes.get(gap.clone()) != after.get(gap.clone());
        match self.gaps().into_iter().find(changed) {
            None => Ok(()),
            Some(gap) => Err(self.damage(what, gap.start, &part(&self.bytes, &gap), &part(after, &gap))),
        }
    }
    fn check_equal(&self, what: &str, after: &[u8]) -> Result<(), Damage> {
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
                    Fill::Integers(integers, operand) => {
                        let mut values = vec![0; elements.len() * E::NUMBERS];
                        integers.elements(operand, (b * lines.lines + l as u64) * lines.line + within, &mut values);
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

#[cfg(test)]
mod tests {
    use super::super::element::value;
    use super::*;
    use tilewright_problem::Order;

    fn data(beta: f64) -> TestData {
        let gemm = Gemm::new(Scalar::F16, 5, 4, 3)
            .order(Order::Col)
            .ldc(7)
            .batch(2)
            .stride_c(40)
            .stride_a(0)
            .offsets(1, 2, 3)
            .build()
            .unwrap();
        TestData::new(&Problem::Gemm(gemm), 11, 0.5, beta).unwrap()
    }

    #[test]
    fn buffers_hold_data_where_elements_are_and_nan_elsewhere() {
        let data = data(0.3);
        assert_eq!(data.factors.beta, f64::from(0.3f32));
        assert_eq!((data.a.start, data.b.start, data.c.start), (129, 130, 131));
        let finite: Vec<u64> =
            (0..data.c.bytes.len() as u64 / 2).filter(|&i| value(Scalar::F16, &data.c.bytes, i).is_finite()).collect();
        let expected: Vec<u64> =
            (0..2).flat_map(|b| (0..4).flat_map(move |l| (0..5).map(move |i| 131 + 40 * b + 7 * l + i))).collect();
        assert_eq!(finite, expected);
        assert_eq!(data, super::tests::data(0.3));
    }

    #[test]
    fn outputs_are_poisoned_where_beta_is_zero() {
        let data = data(0.0);
        assert!((0..data.c.bytes.len() as u64 / 2).all(|i| value(Scalar::F16, &data.c.bytes, i).is_nan()));
        assert!((0..15).all(|i| value(Scalar::F16, &data.a.bytes, 129 + i).is_finite()));
    }

    #[test]
    fn damage_is_found() {
        let data = data(0.0);
        let inside = |element: u64| {
            let mut bytes = data.c.bytes.clone();
            bytes[((data.c.start + element) * 2) as usize] ^= 1;
            data.check_untouched(Operand::C, &bytes)
        };
        assert_eq!(inside(0), Ok(()));
        assert_eq!(inside(40 + 7 + 4), Ok(()));
        assert_eq!(inside(5).unwrap_err().element, 5);
        assert_eq!(inside(40 + 3 * 7 + 5).unwrap_err().element, 66);
        let mut bytes = data.c.bytes.clone();
        bytes[0] ^= 1;
        assert_eq!(data.check_untouched(Operand::C, &bytes).unwrap_err().element, -131);
        let mut bytes = data.a.bytes.clone();
        bytes[260] ^= 1;
        assert!(data.check_untouched(Operand::A, &bytes).unwrap_err().to_string().contains("A: byte 260"));
        assert!(data.check_untouched(Operand::B, &data.b.bytes[2..]).is_err());
    }

    #[test]
    fn gaps_are_all_but_the_elements() {
        let data = data(0.0);
        // Lines of 5, 7 apart, matrices 40 apart, from element 131 on; the last line ends at element 131 + 40 + 3 * 7 + 5.
        let of = |elements: Range<usize>| elements.start * 2..elements.end * 2;
        let mut expected = vec![of(0..131)];
        for first in [131, 171] {
            expected.extend((0..3).map(|l| of(first + 7 * l + 5..first + 7 * (l + 1))));
            expected.push(of(first + 26..if first == 131 { 171 } else { 197 + 128 }));
        }
        assert_eq!(data.c.gaps(), expected);
        // Interleaved batch entries leave none between them.
        let gemm = Gemm::new(Scalar::F32, 2, 3, 1).order(Order::Col).ldc(4).batch(2).stride_c(2).build().unwrap();
        let data = TestData::new(&Problem::Gemm(gemm), 1, 1.0, 0.0).unwrap();
        assert_eq!(data.c.gaps(), [0..256, 256 + 48..512 + 48]);
    }

    #[test]
    fn other_factors_share_the_inputs() {
        let (first, other) = (data(0.0), data(0.3));
        let with = first.with_factors(11, Factors::real(0.5, 0.3)).unwrap();
        assert!(Arc::ptr_eq(&with.a, &first.a) && Arc::ptr_eq(&with.b, &first.b));
        assert_eq!(with, other);
    }

    #[test]
    fn the_guard_of_a_workspace() {
        let mut guard = workspace_guard(512);
        assert_eq!(check_workspace(100, 512, &guard), Ok(()));
        guard[303] ^= 1;
        assert_eq!(check_workspace(100, 512, &guard).unwrap_err().byte, 403);
        assert!(check_workspace(100, 512, &workspace_guard(90)).is_err());
    }

    /// Element 0 lies at an address of just the alignment, in all types, wherever the problem's offset is; guards are as wide as asked.
    #[test]
    fn tensors_lie_where_they_are_to() {
        for (scalar, size) in [(Scalar::F64, 8), (Scalar::F32, 4), (Scalar::BF16, 2), (Scalar::E4M3, 1)] {
            for offset in [0, 1, 3, 8, 77] {
                for starts in [[8u64, 16, 64], [256, 8, 128], [32, 256, 8]] {
                    let gemm = Gemm::new(scalar, 9, 7, 5).offsets(offset, offset, offset).build().unwrap();
                    let (problem, factors) = (Problem::Gemm(gemm), Factors::real(1.0, 0.5));
                    let margins = Margins { guard: 1024, starts: Some(starts) };
                    let data = TestData::within(&problem, 3, factors, margins).unwrap();
                    for (operand, align) in [Operand::A, Operand::B, Operand::C].into_iter().zip(starts) {
                        let buffer = data.buffer(operand);
                        let at = buffer.start * u64::from(buffer.scalar.bytes());
                        let found = 1 << at.trailing_zeros().min(8);
                        assert_eq!(found, align, "{scalar} {operand:?} of {size} bytes, offset {offset}");
                        let gaps = buffer.gaps();
                        assert!(gaps[0].len() >= 1024 && gaps[gaps.len() - 1].len() == 1024, "{gaps:?}");
                    }
                    // The values are the same.
                    let plain = TestData::with(&problem, 3, factors).unwrap();
                    let first = |data: &TestData| value(scalar, &data.a.bytes, data.a.start);
                    assert_eq!(first(&data), first(&plain));
                }
            }
        }
    }

    #[test]
    fn guards_are_as_wide_as_a_tile() {
        let guard = |m, n| Margins::as_wide_as_a_tile(&Problem::Gemm(Gemm::new(Scalar::F32, m, n, 5).build().unwrap())).guard;
        assert_eq!(guard(64, 64), 64 << 10);
        assert_eq!(guard(2048, 300), 256 * 4 * 300);
        assert_eq!(guard(1 << 14, 1 << 14), 4 << 20);
        assert_eq!(guard(1, 1 << 20), 1 << 20);
    }
}
