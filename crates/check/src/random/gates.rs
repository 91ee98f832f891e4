//! Random gated products.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_problem::{Dynamic, Gate, GateFunction, Gemm, Problem, Real, ZeroPoints};

/// The product with a gate, drawn from a pair's seed: always if `all`, else one in ten. B keeps its columns, C has half of them. A product with a
/// field that excludes a gate stays as it is.
pub(super) fn gated(problem: Problem, seed: u64, all: bool) -> Problem {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6a_7e00);
    let Problem::Gemm(gemm) = &problem else { return problem };
    if !all && rng.random_bool(0.9) {
        return problem;
    }
    let function = *GateFunction::ALL.choose(&mut rng).unwrap_or(&GateFunction::Silu);
    let mut gate = Gate { up_first: rng.random_bool(0.3), ..Gate::new(function) };
    if function == GateFunction::Clamped && rng.random() {
        // Many sums are beyond the limit.
        let [limit, slope] = [rng.random_range(0.25..2.0f32), rng.random_range(0.5..3.0)].map(Real::try_from);
        (gate.limit, gate.slope) = (limit.unwrap_or(Gate::LIMIT), slope.unwrap_or(Gate::SLOPE));
    }
    gate.interleaved = rng.random_bool(0.3);
    gate.separate_up = rng.random_bool(0.3);
    if gate.separate_up {
        (gate.up_first, gate.interleaved) = (false, false);
    }
    let dynamic = Dynamic { n: false, ..gemm.dynamic };
    let plain = Gemm { activation: None, zero_points: ZeroPoints::default(), dynamic, n: gemm.n / 2, ..gemm.clone() };
    let of = |preactivations: bool| Gemm { gate: Some(gate), preactivations, ..plain.clone() };
    let legal = [rng.random_bool(0.4), false].map(of).into_iter().find(|of| of.validate().is_ok());
    legal.map_or(problem, Problem::Gemm)
}
