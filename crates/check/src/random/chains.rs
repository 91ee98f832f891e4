//! Random links of chains: gated products, the product of a linear cross-entropy, and products of two pairs of factors.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_problem::{
    Activation, Along, Axes, BiasVector, Dynamic, Gate, GateFunction, Gemm, Operator, Problem, Real, Reduction, Residual,
    SecondPair, ZeroPoints,
};

/// Which links of chains are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chain {
    /// One product in ten has a gate.
    Seldom,
    /// Gated products alone.
    Gated,
    /// Products of linear cross-entropies alone: rows of logits become their logsumexp and their sum, or exponentials for its
    /// gradient.
    Loss,
    /// Products of two pairs of factors alone.
    Pairs,
}

/// The problem as the link of a chain, drawn from a pair's seed. `None` if it cannot be one that is asked for.
pub(super) fn linked(problem: Problem, seed: u64, chain: Chain) -> Option<Problem> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6a_7e00);
    let link = match (&problem, chain) {
        (Problem::Gemm(gemm), Chain::Loss) => loss(&mut rng, gemm),
        (Problem::Gemm(gemm), Chain::Pairs) => paired(&mut rng, gemm),
        (Problem::Gemm(_), Chain::Seldom) if rng.random_bool(0.9) => None,
        (Problem::Gemm(gemm), _) => gated(&mut rng, gemm),
        _ => None,
    };
    link.map(Problem::Gemm).or((chain == Chain::Seldom).then_some(problem))
}

/// The product of a loss, forward or for its gradient. `None` if a field excludes one.
fn loss(rng: &mut ChaCha8Rng, gemm: &Gemm) -> Option<Gemm> {
    let softcap = Real::try_from(rng.random_range(0.5..40.0f32)).ok().map(Activation::Softcap);
    let softcap = softcap.filter(|_| rng.random_bool(0.4));
    let along = |along: Along| Some(BiasVector { along, batch_stride: 0 });
    let plain = Gemm { residual: None, zero_points: ZeroPoints::default(), dynamic: Dynamic::default(), ..gemm.clone() };
    let rows = Axes { n: true, ..Axes::default() };
    let drawn = if rng.random_bool(0.6) {
        let reductions = [Operator::LogSumExp, Operator::Sum].map(|operator| Reduction::new(operator, rows)).to_vec();
        let bias = along(Along::N).filter(|_| rng.random_bool(0.3));
        Gemm { reductions, bias, activation: softcap, drop_c: rng.random_bool(0.8), ..plain }
    } else {
        // The bias is each row's negative logsumexp.
        Gemm { bias: along(Along::M), activation: Some(Activation::Exp), ..plain }
    };
    drawn.validate().is_ok().then_some(drawn)
}

/// The product with a second pair of factors, as a low-rank update has one. `None` if a field excludes one.
fn paired(rng: &mut ChaCha8Rng, gemm: &Gemm) -> Option<Gemm> {
    let mut drawn =
        Gemm { zero_points: ZeroPoints::default(), batch: 1, dynamic: Dynamic { g: false, ..gemm.dynamic }, ..gemm.clone() };
    for matrix in [&mut drawn.a, &mut drawn.b, &mut drawn.c] {
        matrix.batch_stride = 0;
    }
    drawn.bias = drawn.bias.map(|bias| BiasVector { batch_stride: 0, ..bias });
    drawn.residual = drawn.residual.map(|residual| Residual { batch_stride: 0, ..residual });
    // Ranks are multiples of 8 as often as not, and a few are longer than a k-tile.
    let k = if rng.random_bool(0.2) { rng.random_range(1..200) } else { rng.random_range(1..40) };
    let k = if rng.random() { u64::next_multiple_of(k, 8) } else { k };
    drawn.second = Some(SecondPair { k, lda: 0, ldb: 0 });
    let tight = drawn.second_product()?;
    let mut ld = |index: usize| {
        let line = tight.lines(index).0;
        if rng.random_bool(0.6) { line.next_multiple_of(8) + 8 * rng.random_range(0..2) } else { line + rng.random_range(0..9) }
    };
    drawn.second = Some(SecondPair { k, lda: ld(0), ldb: ld(1) });
    drawn.validate().is_ok().then_some(drawn)
}

/// The product with a gate. B keeps its columns, C has half of them. `None` if a field excludes a gate.
fn gated(rng: &mut ChaCha8Rng, gemm: &Gemm) -> Option<Gemm> {
    let function = *GateFunction::ALL.choose(rng).unwrap_or(&GateFunction::Silu);
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
    [rng.random_bool(0.4), false].map(of).into_iter().find(|of| of.validate().is_ok())
}
