//! Random products of complex numbers.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_problem::{Complex, Dynamic, Gemm, Problem, Scales};

/// The same product of complex numbers, drawn from a pair's seed. Only some products with operands that can be parts of complex
/// numbers are taken. Options that do not go with complex numbers are removed.
pub(super) fn complex(problem: Problem, seed: u64) -> Problem {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xc0_3b1e);
    let Problem::Gemm(gemm) = &problem else { return problem };
    if rng.random_bool(0.6) {
        return problem;
    }
    let (conj_a, conj_b) = (rng.random(), rng.random());
    let (alpha_im, beta_im) = (rng.random_bool(0.6), rng.random_bool(0.6));
    let complex = Some(Complex { conj_a, conj_b, alpha_im, beta_im });
    let plain = Gemm { bias: None, activation: None, scales: Scales::default(), dynamic: Dynamic::NONE, ..gemm.clone() };
    let of = Gemm { complex, out_dtype: gemm.dtype, ..plain };
    if of.validate().is_ok() { Problem::Gemm(of) } else { problem }
}
