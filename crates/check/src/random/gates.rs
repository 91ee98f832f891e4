//! Random gated products.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_problem::{Dynamic, Gate, GateFunction, Gemm, Problem, ZeroPoints};

/// The same product with a gate, whose B has the same columns and whose C half of them, drawn from a pair's seed: all of them, or some. As it is
/// where it has what a gate does not go with.
pub(super) fn gated(problem: Problem, seed: u64, all: bool) -> Problem {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6a_7e00);
    let Problem::Gemm(gemm) = &problem else { return problem };
    if !all && rng.random_bool(0.9) {
        return problem;
    }
    let function = *GateFunction::ALL.choose(&mut rng).unwrap_or(&GateFunction::Silu);
    let gate = Some(Gate { function, up_first: rng.random_bool(0.3) });
    let dynamic = Dynamic { n: false, ..gemm.dynamic };
    let plain = Gemm { activation: None, zero_points: ZeroPoints::default(), dynamic, n: gemm.n / 2, ..gemm.clone() };
    let of = Gemm { gate, ..plain };
    if of.validate().is_ok() { Problem::Gemm(of) } else { problem }
}
