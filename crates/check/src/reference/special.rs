//! NaN, infinities and large magnitudes in an operand. The module makes test data with them, and compares results by the contract
//! of [`tilewright_gen::plan::special`], class by class.

use super::buffer::Buffer;
use super::data::TestData;
use super::element::{Element, hash, put, rounded, with_element};
use super::oracle::Oracle;
use super::{Entry, Mismatch, Reference, Samples, Tolerance, Verdict, largest, value, within};
use std::sync::Arc;
use tilewright_gen::plan::special::{Becomes, Contract};
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Direction, Problem, Quant};

/// Of so many stretches of k elements one has a special element.
const STRETCHES: u64 = 3;

/// Test data with special elements in one operand, and the results that the contract decides.
#[derive(Debug)]
pub struct Special {
    data: TestData,
    reference: Reference,
    contract: Contract,
    /// A mask stores zeros.
    masks: bool,
    /// An activation may make a zero of an infinity.
    activates: bool,
}

/// How many results a contract decides, by their class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Finite results, compared within the error bound of their own terms.
    pub finite: u64,
    /// Results that must be NaN.
    pub nan: u64,
    /// Results that must be infinity.
    pub above: u64,
    /// Results that must be minus infinity.
    pub below: u64,
    /// Results that may be of several classes, which are not compared.
    pub open: u64,
}

/// What a result must be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Must {
    Nan,
    /// This value, infinities included.
    Be(f64),
    /// A finite number within the bound.
    Near,
    Open,
}

impl Special {
    /// The data with special elements in an operand. `None` where it has no such elements (integers), where complex numbers or
    /// zero points mix several elements, and where results are not stored.
    pub fn of(data: &TestData, operand: Operand, contract: Contract, seed: u64, samples: Samples) -> Option<Special> {
        let problem = &data.problem;
        let centred = [Quant::ZeroA, Quant::ZeroB].into_iter().any(|quant| problem.quant_len(quant) > 0);
        if centred || problem.parts() > 1 || !problem.keeps_c() || matches!(problem, Problem::Reduce(_)) {
            return None;
        }
        // A tap of a convolution that meets padding, or the gap of a stride, is a zero or no term at all. Only the operand that has these gets special
        // elements.
        let beside = match problem {
            Problem::Conv(conv) if conv.direction == Direction::BackwardWeight => Operand::A,
            Problem::Conv(_) => Operand::B,
            _ => Operand::C,
        };
        if operand == beside {
            return None;
        }
        let k = problem.depth();
        let mut data = data.clone();
        let buffer = if operand == Operand::A { &mut data.a } else { &mut data.b };
        if !buffer.scalar.is_float() {
            return None;
        }
        *buffer = Arc::new(sprinkled(buffer, k, seed));
        let reference = Reference { tolerance: Tolerance::of_any_data(problem), ..Reference::new(&data, samples) };
        let (masks, activates) = (Oracle::new(&data).masks(), problem.activation().is_some());
        Some(Special { data, reference, contract, masks, activates })
    }

    /// The data.
    pub const fn data(&self) -> &TestData {
        &self.data
    }

    /// The classes of the results.
    pub fn classes(&self) -> Classes {
        let mut all = Classes::default();
        for entry in &self.reference.entries {
            let class = match self.must(entry) {
                Must::Open => &mut all.open,
                Must::Nan => &mut all.nan,
                Must::Be(x) if x == f64::INFINITY => &mut all.above,
                Must::Be(x) if x == f64::NEG_INFINITY => &mut all.below,
                Must::Be(_) | Must::Near => &mut all.finite,
            };
            *class += 1;
        }
        all
    }

    /// What the contract says of a result.
    fn must(&self, entry: &Entry) -> Must {
        let Reference { scalar, tolerance, .. } = &self.reference;
        let Entry { expected, scale, stepwise, open, .. } = *entry;
        let most = largest(scalar.accumulator());
        if open {
            return Must::Open;
        }
        if !scale.is_finite() {
            // A NaN or an infinity is among the terms.
            return match (stepwise.is_nan(), self.contract.infinity) {
                // NaN of NaN, and of infinities that IEEE 754 makes NaN of.
                (true, _) => Must::Nan,
                // A mask stores zeros whatever the sum is. A zero of the activation is NaN by this contract.
                (false, Becomes::Nan) if self.masks && stepwise == 0.0 => {
                    if self.activates {
                        Must::Open
                    } else {
                        Must::Near
                    }
                }
                (false, Becomes::Nan) => Must::Nan,
                // An activation gave a number.
                _ if stepwise.is_finite() => Must::Near,
                _ => Must::Be(rounded(*scalar, within(*scalar, stepwise))),
            };
        }
        if scale < most / 4.0 {
            let margin = tolerance.accumulate * scale + tolerance.round * expected.abs();
            let edges = [expected - margin, expected + margin].map(|x| rounded(*scalar, within(*scalar, x)));
            // Near the largest number of the type both are right; after an activation the bound may hold numbers of either sign.
            return match edges.map(f64::is_finite) {
                [true, true] => Must::Near,
                [false, false] if edges[0] == edges[1] => Must::Be(edges[0]),
                _ => Must::Open,
            };
        }
        // Whatever the order of the terms is, partial sums beyond the type have the sign of the result.
        let one_sign = scale - expected.abs() < most && expected.abs() > 2.0 * most;
        if one_sign && stepwise.is_infinite() {
            return Must::Be(rounded(*scalar, within(*scalar, stepwise)));
        }
        Must::Open
    }

    /// Judges C's buffer after a run.
    pub fn check(&self, after: &[u8]) -> Verdict {
        let Reference { scalar, tolerance, entries, .. } = &self.reference;
        let mut verdict = Verdict::default();
        for entry in entries {
            let must = self.must(entry);
            let actual = value(*scalar, after, entry.at);
            let expected = within(*scalar, entry.expected);
            let scale = if entry.scale.is_finite() { entry.scale } else { expected.abs() };
            let allowed = tolerance.accumulate * scale + tolerance.round * expected.abs() + tolerance.floor;
            let may_be_nan = [self.contract.nan, self.contract.infinity].contains(&Becomes::MaybeNan);
            let (right, expected) = match must {
                Must::Open => continue,
                _ if may_be_nan && actual.is_nan() => (true, f64::NAN),
                Must::Nan => (actual.is_nan(), f64::NAN),
                Must::Be(x) => (actual == x, x),
                Must::Near => ((actual - expected).abs() <= allowed, expected),
            };
            verdict.checked += 1;
            if !right {
                verdict.wrong += 1;
                verdict.worst.get_or_insert(Mismatch { index: entry.index, reduction: None, expected, actual, allowed });
            }
        }
        verdict
    }
}

/// A power of two whose sums of some hundred products stay finite in the type of the sums.
fn large(scalar: Scalar) -> f64 {
    let exponent = match scalar {
        Scalar::F64 => 1000,
        Scalar::F32 | Scalar::BF16 => 116,
        Scalar::F16 | Scalar::E5M2 | Scalar::E5M2Fnuz => 15,
        Scalar::E4M3Fnuz => 7,
        _ => 8,
    };
    2f64.powi(exponent)
}

/// The buffer with a special element in about one of `STRETCHES` stretches of k elements, eight at least where there are as many.
fn sprinkled(from: &Buffer, k: u64, seed: u64) -> Buffer {
    fn put_all<E: Element>(bytes: &mut [u8], places: &[usize], values: &[f64], infinity: Option<u64>) {
        // Types without infinities have their largest number in the place of one.
        for (&place, &value) in places.iter().zip(values.iter().cycle()) {
            let special = infinity.filter(|_| value.is_infinite()).map(|bits| bits | u64::from(value < 0.0) << 7);
            if let Some(element) = bytes.get_mut(place..place + E::BYTES) {
                put::<E>(element, special.unwrap_or_else(|| E::of(value)));
            }
        }
    }
    let mut to = from.clone();
    let size = from.scalar.bytes().max(1) as usize;
    let pieces: Vec<_> = from.pieces().ranges().collect();
    let elements = pieces.iter().map(|piece| piece.len() / size).sum::<usize>() as u64;
    let count = (elements / (STRETCHES * k.max(1))).clamp(8, 1 << 16).min(elements);
    let place = |mut n: usize| {
        pieces.iter().find_map(|piece| {
            let here = piece.len() / size;
            let found = (n < here).then(|| piece.start + n * size);
            n = n.saturating_sub(here);
            found
        })
    };
    let places: Vec<usize> = (0..count).filter_map(|i| place((hash(seed ^ 0x5bec, i) % elements.max(1)) as usize)).collect();
    let most = large(from.scalar);
    // Of 8-bit floats one type has infinities; rounding to it saturates.
    let infinity = (from.scalar == Scalar::E5M2).then_some(0x7c);
    let values = [f64::INFINITY, most, f64::NAN, -most, f64::NEG_INFINITY];
    with_element!(from.scalar, E => put_all::<E>(&mut to.bytes, &places, &values, infinity), ());
    to
}
