//! Random products whose batch entries are groups of rows, of columns or of terms.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_problem::{Along, Dynamic, Gemm, Problem, Ragged};

/// How many groups there are.
const GROUPS: [u64; 8] = [1, 2, 3, 4, 5, 8, 13, 40];

/// The same product with groups in the place of its batch, drawn from a pair's seed: all of them, or some. As it is where it has what groups do not go
/// with.
pub(super) fn grouped(problem: Problem, seed: u64, all: bool) -> Problem {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x9_0e45);
    let Problem::Gemm(gemm) = &problem else { return problem };
    if !all && rng.random_bool(0.88) {
        return problem;
    }
    let along = if rng.random_bool(0.75) { Ragged::M } else { Ragged::N };
    let groups = *GROUPS.choose(&mut rng).unwrap_or(&2);
    let along = if rng.random_bool(0.35) { Ragged::K } else { along };
    let of = drawn(gemm.clone(), along, groups);
    if of.validate().is_ok() { Problem::Gemm(of) } else { problem }
}

fn drawn(mut gemm: Gemm, of: Ragged, groups: u64) -> Gemm {
    (gemm.grouped, gemm.dynamic) = (Some(of), Dynamic::NONE);
    for index in 0..3 {
        let (_, lines) = gemm.lines(index);
        let matrix = [&mut gemm.a, &mut gemm.b, &mut gemm.c];
        let Some(matrix) = matrix.into_iter().nth(index) else { continue };
        // Entries that lay side by side in each line lie one after the other.
        let apart = matrix.batch_stride.max(matrix.ld * lines);
        matrix.batch_stride = if groups > 1 && index == of.owned() { apart } else { 0 };
    }
    if let Some(bias) = &mut gemm.bias {
        let length = if bias.along == Along::M { gemm.m } else { gemm.n };
        let each = groups > 1 && of != bias.along.into() && bias.batch_stride > 0;
        bias.batch_stride = if each { bias.batch_stride.max(length) } else { 0 };
    }
    let (_, lines) = gemm.lines(2);
    if let Some(residual) = &mut gemm.residual {
        let each = groups > 1 && of == Ragged::K && residual.batch_stride > 0;
        residual.batch_stride = if each { residual.batch_stride.max(residual.ld * lines) } else { 0 };
    }
    Gemm { batch: groups, ..gemm }
}
