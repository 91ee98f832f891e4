//! The key of a tuning record: exactly the facts that legality reads of a problem, and what makes two problems near.

use serde::{Deserialize, Serialize};
use tilewright_gen::plan::Keys;
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_ir::affine::{Affine, Atom};
use tilewright_problem::contraction::{EpilogueOp, Gaps, LaunchExtents, Operand, Reduce, Signs, Tensor, Vector};
use tilewright_problem::lower::Parts;
use tilewright_problem::view::{Access, COL, ROW};
use tilewright_problem::{Activation, Dynamic, GateFunction, Math, Ragged};

/// Alignments beyond this many bytes open no wider access.
const ALIGN_CLASS_MAX: u32 = 64;

/// What legality reads of one operand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperandKey {
    /// Element type in memory.
    pub scalar: Scalar,
    /// Where elements live: strides, transposition and padding in one.
    pub access: Access,
    /// Alignment of element 0 in bytes: a power of two, at most 64.
    pub align: u32,
    /// Elements lie beyond the reach of 32-bit offsets.
    pub wide: bool,
    /// Which elements change their sign on their way to shared memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signs: Option<Signs>,
}

/// What legality reads of a vector that is added or multiplied.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BiasKey {
    /// Element type in memory.
    pub scalar: Scalar,
    /// One value per column (n) instead of per row (m).
    pub along_n: bool,
    /// Where values live.
    pub access: Access,
}

/// Exactly the facts that decide which plans are legal for a problem. Two problems with equal keys may share a plan.
///
/// ```
/// use tilewright_gen::space::Space;
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::{Gemm, Order};
/// use tilewright_tune::ProblemKey;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let key = |gemm: Gemm| Space::new(&gemm.into(), &target).map(|space| ProblemKey::of(&space));
/// let rows = Gemm::new(Scalar::F32, 64, 64, 64).order(Order::Row);
/// // The row-major product and the column-major one of the transposes are one problem.
/// let columns = Gemm::new(Scalar::F32, 64, 64, 64).order(Order::Col).trans(true, true).trans_c(true);
/// assert_eq!(key(rows.build()?)?, key(columns.build()?)?);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProblemKey {
    /// Batch extent.
    pub g: u64,
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Length of the sum.
    pub k: u64,
    /// Operand A.
    pub a: OperandKey,
    /// Operand B.
    pub b: OperandKey,
    /// Result.
    pub c: OperandKey,
    /// A and B of the second pair of factors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<Box<[OperandKey; 2]>>,
    /// With what precision f32 factors are multiplied.
    #[serde(default, skip_serializing_if = "Math::is_exact")]
    pub math: Math,
    /// Subtracted from factors: with their sums over k.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zero_points: Vec<BiasKey>,
    /// Multiply the sums.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<BiasKey>,
    /// Added to the result.
    pub bias: Option<BiasKey>,
    /// Applied to the scaled sums with bias and old result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// What makes results of pairs of sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<GateFunction>,
    /// Where the sums of both factors of a gate are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preactivations: Option<OperandKey>,
    /// Added last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residual: Option<OperandKey>,
    /// The residual is not added, but says where results are kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mask: bool,
    /// Computed of the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reductions: Vec<Reduce>,
    /// The result itself is not stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop_c: bool,
    /// Neighbours without a sum leave with each result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Gaps>,
    /// Batch entries are groups of rows or columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<BiasKey>,
    /// Batch entries are groups of terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k_ends: Option<BiasKey>,
    /// Extents known only at launch.
    #[serde(default, skip_serializing_if = "Dynamic::is_none")]
    pub dynamic: Dynamic,
    /// The old result is multiplied by a complex beta.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub turns_old: bool,
    /// Extents g, m, n, k of the problem's further parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rest: Vec<[u64; 4]>,
    /// Workspace the program may use, in bytes.
    pub workspace_bytes: u64,
    /// Results must be bitwise repeatable: no atomics.
    pub deterministic: bool,
    /// NaN, infinities and overflow become what IEEE 754 has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ieee: bool,
}

impl ProblemKey {
    /// The key of a space.
    pub fn of(space: &Space) -> Self {
        let env = space.env();
        let key = ProblemKey::new(space.parts(&Keys::default()), env.workspace_bytes, !env.allow_atomics);
        ProblemKey { ieee: env.ieee, ..key }
    }

    /// The key of a problem's parts under a workspace budget in bytes and a determinism demand.
    pub fn new(parts: &Parts, workspace_bytes: u64, deterministic: bool) -> Self {
        let contraction = &parts.lead;
        let operand = |t: &Tensor| OperandKey {
            scalar: t.scalar,
            access: t.view.access.clone(),
            align: t.align.clamp(1, ALIGN_CLASS_MAX),
            wide: t.len > i32::MAX as u64,
            signs: t.signs,
        };
        let vector = |x: &Vector| BiasKey { scalar: x.scalar, along_n: x.along_n, access: x.view.access.clone() };
        let ends = |of_terms: bool| match &contraction.launch {
            LaunchExtents::Grouped(x) if (x.of == Ragged::K) == of_terms => Some(vector(&x.ends)),
            _ => None,
        };
        ProblemKey {
            g: contraction.g,
            m: contraction.m,
            n: contraction.n,
            k: contraction.k,
            a: OperandKey { access: contraction.read_view().access.clone(), ..operand(&contraction.a) },
            b: operand(&contraction.b),
            c: operand(&contraction.c),
            second: contraction.second.as_ref().map(|second| Box::new([&second.a, &second.b].map(operand))),
            math: contraction.math,
            zero_points: contraction
                .centre()
                .iter()
                .flat_map(|x| x.iter())
                .flat_map(|x| [&x.zero, &x.totals])
                .map(vector)
                .collect(),
            scales: contraction.scales().chain(&contraction.block_scales).map(vector).collect(),
            bias: contraction.bias().map(vector),
            activation: contraction.activation().map(Activation::kind),
            gate: contraction.pairs().map(|pairs| pairs.gate.function),
            preactivations: contraction.preactivations().map(operand),
            residual: contraction.residual().map(operand),
            mask: contraction.epilogue.iter().any(|op| matches!(op, EpilogueOp::Mask(_))),
            reductions: contraction.all_reductions().cloned().collect(),
            drop_c: contraction.drop_c,
            gaps: contraction.gaps,
            ends: ends(false),
            k_ends: ends(true),
            dynamic: contraction.dynamic(),
            turns_old: contraction.turns_old(),
            rest: parts.rest.iter().map(|c| [c.g, c.m, c.n, c.k]).collect(),
            workspace_bytes,
            deterministic,
            ieee: false,
        }
    }

    /// The key as text: one line of JSON with a fixed field order. Equal keys have equal text.
    pub fn text(&self) -> String {
        // Plain structs of numbers, strings and lists always serialise; the empty text is never a valid key.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a key from its text.
    ///
    /// # Errors
    /// What is malformed, as text.
    pub fn parse(text: &str) -> Result<Self, String> {
        // An extent of 0 is a reduction of an empty tensor.
        let key: ProblemKey = serde_json::from_str(text).map_err(|e| e.to_string())?;
        for (name, o) in [("a", &key.a), ("b", &key.b), ("c", &key.c)] {
            if !o.align.is_power_of_two() || o.align > ALIGN_CLASS_MAX {
                return Err(format!("alignment {} of {name} is no power of two up to {ALIGN_CLASS_MAX}", o.align));
            }
        }
        Ok(key)
    }

    /// An operand by name.
    pub const fn operand(&self, operand: Operand) -> &OperandKey {
        match operand {
            Operand::A => &self.a,
            Operand::B => &self.b,
            Operand::C => &self.c,
        }
    }
}

/// How an operand lies in memory, as far as nearness cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Axis along which neighbours are adjacent: [`ROW`], [`COL`], or `None`.
    contiguous: Option<usize>,
    /// Offsets contain digits (a convolution's window).
    windowed: bool,
    /// Smallest other stride in elements: the leading dimension of a matrix.
    lead: i64,
}

impl Layout {
    fn of(access: &Access) -> Layout {
        let mut layout = Layout { contiguous: None, windowed: !access.bounds.is_empty(), lead: i64::MAX };
        for axis in [ROW, COL] {
            let step = finest(&access.offset, axis);
            if step == 1 && layout.contiguous.is_none() {
                layout.contiguous = Some(axis);
            } else if step > 0 {
                layout.lead = layout.lead.min(step);
            }
        }
        layout.windowed |= access.offset.has_digits();
        if layout.lead == i64::MAX {
            layout.lead = 1;
        }
        layout
    }
}

/// What an index of problems holds of a key: distances between problems of two families are none.
#[cfg(feature = "records")]
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    /// Layouts of the operands, as far as nearness demands that they are equal.
    pub family: String,
    /// Logarithms of the extents.
    pub k: f64,
    /// Rows.
    pub m: f64,
    /// Columns.
    pub n: f64,
    /// Batch.
    pub g: f64,
}

#[cfg(feature = "records")]
impl Shape {
    /// One number for the extents. Those of two shapes differ by no more than [`Shape::least_distance`].
    pub fn size(&self) -> f64 {
        self.k + self.m + self.n + 0.5 * self.g
    }

    /// No more than the [`distance`] of two problems of one family with these shapes, rounding aside.
    pub fn least_distance(&self, other: &Shape) -> f64 {
        let apart = |x: f64, y: f64| (x - y).abs();
        let sides = 2.0 * apart(self.m, other.m).max(apart(self.n, other.n));
        (apart(self.k, other.k) + sides + 0.5 * apart(self.g, other.g) - 1e-9).max(0.0)
    }
}

#[cfg(feature = "records")]
impl ProblemKey {
    pub(crate) fn shape(&self) -> Shape {
        let log = |v: u64| (v.max(1) as f64).log2();
        let of = |operand| {
            let layout = Layout::of(&self.operand(operand).access);
            let axis = match layout.contiguous {
                Some(ROW) => 'r',
                Some(_) => 'c',
                None => '-',
            };
            [axis, if layout.windowed { 'w' } else { '.' }]
        };
        let family = [Operand::A, Operand::B, Operand::C].into_iter().flat_map(of).collect();
        Shape { family, k: log(self.k), m: log(self.m), n: log(self.n), g: log(self.g) }
    }
}

/// Distance in elements between neighbours along an axis: the coefficient of its finest term, 0 if it has none.
fn finest(offset: &Affine, axis: usize) -> i64 {
    let step = |(atom, c): &(Atom, i64)| match atom {
        Atom::Axis(a) if *a == axis => Some(c.saturating_abs()),
        Atom::Digit { of, div: 1, .. } if of.uses(axis) => Some(c.saturating_abs().saturating_mul(finest(of, axis).max(1))),
        _ => None,
    };
    offset.terms.iter().filter_map(step).min().unwrap_or(0)
}

/// Distance between two problems, MIOpenGEMM's `Geometry::get_distance` made symmetric and dtype-aware. Smaller is nearer. `None`
/// where a plan of one says nothing about the other (layouts differ).
///
/// The unit is one doubling of a size. Convolutions are compared through their contractions.
pub fn distance(x: &ProblemKey, y: &ProblemKey) -> Option<f64> {
    let log = |v: u64| (v.max(1) as f64).log2();
    let (mx, nx, my, ny) = (log(x.m), log(x.n), log(y.m), log(y.n));
    let mut d = (log(x.k) - log(y.k)).abs() + ((mx - nx) - (my - ny)).abs() + ((mx + nx) - (my + ny)).abs();
    // A batch adds work-groups as m and n do, but shares nothing: half their weight.
    d += 0.5 * (log(x.g) - log(y.g)).abs();
    for operand in [Operand::A, Operand::B, Operand::C] {
        let (ox, oy) = (x.operand(operand), y.operand(operand));
        let (lx, ly) = (Layout::of(&ox.access), Layout::of(&oy.access));
        if lx.contiguous != ly.contiguous || lx.windowed != ly.windowed {
            return None;
        }
        let (ldx, ldy) = (lx.lead.unsigned_abs(), ly.lead.unsigned_abs());
        d += 0.2 * (log(ldx) - log(ldy)).abs();
        let mismatches = [2, 4, 8].iter().filter(|&&by| (ldx % by == 0) != (ldy % by == 0)).count()
            + [256, 512, 1024].iter().filter(|&&of| bank(ldx, of) != bank(ldy, of)).count()
            + usize::from(ox.align.min(16) != oy.align.min(16));
        d += 0.2 * mismatches as f64;
        if ox.scalar != oy.scalar {
            // Another type of the same size runs much alike; another size changes vector widths and shared memory.
            d += 0.5 + 1.5 * (log(ox.scalar.bytes_of(2)) - log(oy.scalar.bytes_of(2))).abs();
        }
    }
    for needed in workspace_steps(x) {
        // Mean of both views of the threshold keeps the distance symmetric.
        d += 0.1 * f64::from((x.workspace_bytes >= needed) != (y.workspace_bytes >= needed));
    }
    for needed in workspace_steps(y) {
        d += 0.1 * f64::from((x.workspace_bytes >= needed) != (y.workspace_bytes >= needed));
    }
    d += f64::from(x.deterministic != y.deterministic);
    // Other units compute, with tiles of their own.
    d += 4.0 * f64::from(x.math != y.math);
    // What happens to the sums costs little beside them, a residual as much as C.
    d += f64::from(x.bias.is_some() != y.bias.is_some()) * 0.2;
    d += f64::from(x.activation != y.activation) * 0.1 + f64::from(x.residual.is_some() != y.residual.is_some()) * 0.4;
    Some(d)
}

/// Where a leading dimension stands against the period of memory channels: distance to the nearest multiple, mod 4.
const fn bank(ld: u64, of: u64) -> u64 {
    let past = ld % of;
    let distance = if past < of - past { past } else { of - past };
    distance % 4
}

/// Workspace sizes at which further choices open: a copy of either operand, of both, and partial sums of two splits.
fn workspace_steps(p: &ProblemKey) -> [u64; 4] {
    let bytes = |rows: u64, cols: u64, s: Scalar| s.bytes_of(rows.saturating_mul(cols));
    let (a, b) = (bytes(p.m, p.k, p.a.scalar), bytes(p.n, p.k, p.b.scalar));
    let c = bytes(p.m, p.n, p.c.scalar.accumulator());
    [a, b, a.saturating_add(b), c.saturating_mul(2)].map(|v| v.saturating_mul(p.g))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tilewright_problem::view::G;

    fn matrix(scalar: Scalar, row: i64, col: i64) -> OperandKey {
        let offset = Affine::default()
            .plus(&Affine::axis(G), row.max(col) * 4096)
            .plus(&Affine::axis(ROW), row)
            .plus(&Affine::axis(COL), col);
        OperandKey { scalar, access: Access { offset, bounds: Vec::new() }, align: 16, wide: false, signs: None }
    }

    /// Column-major NN GEMM with tight leading dimensions.
    pub(crate) fn gemm(m: u64, n: u64, k: u64, scalar: Scalar) -> ProblemKey {
        ProblemKey {
            g: 1,
            m,
            n,
            k,
            a: matrix(scalar, 1, m as i64),
            b: matrix(scalar, k as i64, 1),
            c: matrix(scalar, 1, m as i64),
            second: None,
            math: Math::Exact,
            zero_points: Vec::new(),
            scales: Vec::new(),
            bias: None,
            activation: None,
            gate: None,
            preactivations: None,
            residual: None,
            mask: false,
            reductions: Vec::new(),
            gaps: None,
            drop_c: false,
            ends: None,
            k_ends: None,
            dynamic: Dynamic::NONE,
            turns_old: false,
            rest: Vec::new(),
            workspace_bytes: 0,
            deterministic: true,
            ieee: false,
        }
    }

    #[test]
    fn text_round_trips() {
        let key = gemm(100, 200, 300, Scalar::BF16);
        assert_eq!(ProblemKey::parse(&key.text()), Ok(key.clone()));
        // What older records do not know is absent from keys that do not need it.
        assert!(!key.text().contains("activation") && !key.text().contains("residual"));
        let more = ProblemKey { activation: Some(Activation::Silu), residual: Some(key.c.clone()), ..key.clone() };
        assert_eq!(ProblemKey::parse(&more.text()), Ok(more.clone()));
        let rounded = ProblemKey { math: Math::Tf32, ..gemm(100, 200, 300, Scalar::F32) };
        assert_eq!(ProblemKey::parse(&rounded.text()), Ok(rounded.clone()));
        assert!(!key.text().contains("math") && distance(&rounded, &gemm(100, 200, 300, Scalar::F32)) > Some(0.0));
        assert!(more.text() != key.text() && distance(&more, &key) > Some(0.0));
    }

    #[test]
    fn malformed_keys_are_refused() {
        let text = gemm(100, 200, 300, Scalar::F32).text();
        assert!(ProblemKey::parse(&text.replace("\"m\":100", "\"m\":-1")).unwrap_err().contains("-1"));
        assert!(ProblemKey::parse(&text.replace("\"align\":16", "\"align\":12")).unwrap_err().contains("alignment 12"));
        assert!(ProblemKey::parse(&text.replace("\"m\":100", "\"q\":100")).is_err());
        assert!(ProblemKey::parse("").is_err());
    }

    #[test]
    fn distance_is_a_symmetric_premetric() {
        let keys = [
            gemm(1000, 1000, 1000, Scalar::F32),
            gemm(1024, 1024, 1024, Scalar::F32),
            gemm(35, 8457, 2560, Scalar::F32),
            gemm(1024, 1024, 1024, Scalar::BF16),
            ProblemKey { workspace_bytes: 1 << 30, ..gemm(512, 512, 500_000, Scalar::F64) },
            ProblemKey { deterministic: false, ..gemm(7, 9, 11, Scalar::F64) },
        ];
        for x in &keys {
            assert_eq!(distance(x, x), Some(0.0));
            for y in &keys {
                let (there, back) = (distance(x, y).unwrap(), distance(y, x).unwrap());
                assert!((there - back).abs() < 1e-12);
                assert_eq!(there == 0.0, x == y);
            }
        }
    }

    #[test]
    fn nearer_sizes_and_types_are_nearer() {
        let x = gemm(1024, 1024, 1024, Scalar::F32);
        let d = |y: &ProblemKey| distance(&x, y).unwrap();
        assert!(d(&gemm(1024, 1024, 2048, Scalar::F32)) < d(&gemm(1024, 1024, 8192, Scalar::F32)));
        assert!(d(&gemm(1024, 1024, 2048, Scalar::F32)) < d(&gemm(1024, 1024, 2048, Scalar::F64)));
        assert!(d(&gemm(1024, 1024, 1024, Scalar::F16)) < d(&gemm(1024, 1024, 1024, Scalar::F64)) + 1e-9);
    }

    #[test]
    fn other_transposes_are_infinitely_far() {
        let x = gemm(64, 96, 128, Scalar::F32);
        let mut y = x.clone();
        y.a = matrix(Scalar::F32, 128, 1);
        assert_eq!(distance(&x, &y), None);
    }
}
