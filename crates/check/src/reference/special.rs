//! NaN, infinities and large magnitudes in an operand: test data that contain them, and what each way of multiplying may make of them.
//!
//! | way | NaN in an operand | infinity in an operand | a result beyond the type of C |
//! |---|---|---|---|
//! | exact, tf32, promoted, narrow weights | NaN | infinity, NaN where IEEE 754 has it | infinity; 8-bit types: the largest number |
//! | tf32x3, bf16x3, bf16x6 | NaN | NaN in place of infinity, because the parts of an infinity are an infinity and a NaN | as above |
//!
//! Plans that merge groups of channels into block-diagonal products (`BIM2`, `BIM3`) have no such contract: there a NaN or an infinity of one group
//! reaches the results of others, because it is multiplied by zeros.
//!
//! The special operand is the one that a convolution pads: a zero of the padding times an infinity of the other operand is NaN.

use super::buffer::Buffer;
use super::data::TestData;
use super::element::{Element, hash, put, with_element};
use super::oracle::Oracle;
use super::{Reference, Samples, Verdict};
use std::sync::Arc;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Direction, Math, Problem, Quant};

/// A row of so many has a special element.
const ROWS: u64 = 3;

/// Whether a problem's arithmetic gives NaN in place of an infinity of its operands.
pub(super) fn loses_infinities(problem: &Problem) -> bool {
    matches!(problem.math(), Math::Tf32x3 | Math::Bf16x3 | Math::Bf16x6)
}

/// Test data with special elements in one operand, and what results from them.
#[derive(Debug)]
pub struct Special {
    data: TestData,
    reference: Reference,
}

impl Special {
    /// The same data with special elements; `None` for problems that have no contract for them: integers, complex numbers, zero points, and
    /// results that are not stored.
    pub fn of(data: &TestData, seed: u64, samples: Samples) -> Option<Special> {
        let problem = &data.problem;
        let centred = [Quant::ZeroA, Quant::ZeroB].into_iter().any(|quant| problem.quant_len(quant) > 0);
        if centred || problem.parts() > 1 || !problem.keeps_c() || matches!(problem, Problem::Reduce(_)) {
            return None;
        }
        let padded = match problem {
            Problem::Conv(conv) if conv.direction == Direction::BackwardWeight => Operand::B,
            _ => Operand::A,
        };
        let k = Oracle::new(data).extent[3];
        let mut data = data.clone();
        let operand = if padded == Operand::A { &mut data.a } else { &mut data.b };
        if !operand.scalar.is_float() {
            return None;
        }
        *operand = Arc::new(sprinkled(operand, k, seed));
        let reference = Reference::new(&data, samples);
        Some(Special { data, reference })
    }

    /// The data.
    pub const fn data(&self) -> &TestData {
        &self.data
    }

    /// Judges C's buffer after a run.
    pub fn check(&self, after: &[u8]) -> Verdict {
        self.reference.check(after)
    }
}

/// A magnitude whose sums of some hundred terms stay finite in the type of the sums.
fn large(scalar: Scalar) -> f64 {
    match scalar {
        Scalar::F64 => 2f64.powi(1000),
        Scalar::F32 | Scalar::BF16 => 2f64.powi(118),
        Scalar::F16 => 65504.0,
        Scalar::E5M2 | Scalar::E5M2Fnuz => 57344.0,
        Scalar::E4M3Fnuz => 240.0,
        _ => 448.0,
    }
}

/// The buffer with a special element in about one of `ROWS` stretches of k elements, three at least where there are as many.
fn sprinkled(from: &Buffer, k: u64, seed: u64) -> Buffer {
    fn put_all<E: Element>(bytes: &mut [u8], places: &[usize], values: &[f64]) {
        // Types without infinities have a NaN or a largest number in their place.
        for (&place, &value) in places.iter().zip(values.iter().cycle()) {
            if let Some(element) = bytes.get_mut(place..place + E::BYTES) {
                put::<E>(element, E::of(value));
            }
        }
    }
    let mut to = from.clone();
    let size = from.scalar.bytes().max(1) as usize;
    let pieces: Vec<_> = from.pieces().ranges().collect();
    let elements = pieces.iter().map(|piece| piece.len() / size).sum::<usize>() as u64;
    let count = (elements / (ROWS * k.max(1))).clamp(3, 1 << 16).min(elements);
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
    let values = [f64::INFINITY, most, f64::NAN, -most, f64::NEG_INFINITY];
    with_element!(from.scalar, E => put_all::<E>(&mut to.bytes, &places, &values), ());
    to
}
