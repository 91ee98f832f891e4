//! Smaller problems of the same kind: same layouts, alignments and tails, fewer whole tiles.
//!
//! An emulator cannot run a large problem for every candidate. A kernel goes through the same code on a problem with two
//! whole tiles and the same remainder in each direction as on one with two hundred.

use crate::space::Space;
use tilewright_gen::plan::{KernelSpec, Plan};
use tilewright_problem::{Conv, Gemm, Matrix, Problem, Residual};

/// Sizes keep their remainder by this, so that widths and alignments stay as they are.
const KEEP: u64 = 64;

/// The problem with at most `whole` whole tiles (and k-tiles per split) in each direction; `None` where it is that small
/// already, or where the smaller one would not be valid.
pub fn reduce(problem: &Problem, spec: &KernelSpec, whole: u64) -> Option<Problem> {
    let t = &spec.tiling;
    let depth = u64::from(t.k_tile) * u64::from(t.split_k.ways.max(1));
    let (tile_m, tile_n) = (u64::from(t.a.macro_tile), u64::from(t.b.macro_tile));
    let smaller = match problem {
        Problem::Gemm(gemm) => Problem::Gemm(reduce_gemm(gemm, [tile_m, tile_n, depth], whole)),
        Problem::Conv(conv) => Problem::Conv(reduce_conv(conv, [tile_m, tile_n, depth], whole)),
    };
    (smaller != *problem && smaller.validate().is_ok()).then_some(smaller)
}

/// Floating-point operations that an emulator may spend on verifying one candidate.
pub const EMULATED_FLOP: f64 = 1.5e8;

/// The largest of a few reduced problems, with its plans, on which `plan` (derived: `spec`) is legal and that takes about
/// [`EMULATED_FLOP`] operations or fewer; the smallest if even that takes more. `None` where the problem itself is small
/// enough, or cannot be reduced.
pub fn for_emulator(space: &Space, plan: &Plan, spec: &KernelSpec) -> Option<Space> {
    let problem = space.problem();
    if problem.flop() <= EMULATED_FLOP {
        return None;
    }
    let space_of = |small: Problem| {
        let small = Space::new(&small, space.target()).ok()?;
        Some(small.constrained(space.constraint()).with_atomics(space.env().allow_atomics))
    };
    let smaller = [3, 2, 1].iter().filter_map(|whole| reduce(problem, spec, *whole)).filter_map(space_of);
    let mut legal = smaller.filter(|s| s.resolve(plan).is_ok());
    let mut found = legal.next()?;
    for next in legal {
        if found.problem().flop() > EMULATED_FLOP {
            found = next;
        }
    }
    Some(found)
}

/// Fewer whole units, the same remainder.
fn cut(size: u64, unit: u64, whole: u64) -> u64 {
    let unit = unit.max(1);
    if size <= unit * (whole + 1) { size } else { unit * whole + size % unit }
}

/// The least value of at least `least` with the same remainder by [`KEEP`] as before, no more than before.
fn same_remainder(before: u64, least: u64) -> u64 {
    let up = least + (KEEP + before % KEEP - least % KEEP) % KEEP;
    up.min(before.max(least))
}

fn reduce_gemm(gemm: &Gemm, [tile_m, tile_n, depth]: [u64; 3], whole: u64) -> Gemm {
    let mut small = gemm.clone();
    small.m = cut(gemm.m, tile_m, whole);
    small.n = cut(gemm.n, tile_n, whole);
    small.k = cut(gemm.k, depth, whole);
    small.batch = gemm.batch.min(2);
    for index in 0..3 {
        let (line, lines) = small.lines(index);
        let old = *gemm.matrices()[index];
        let ld = same_remainder(old.ld, line);
        let span = (lines - 1) * ld + line;
        // Batch entries may be interleaved instead of one behind the other: then they keep their distance.
        let stride = if old.batch_stride == 0 || old.batch_stride < old.ld {
            old.batch_stride
        } else {
            same_remainder(old.batch_stride, span)
        };
        let batch_stride = if small.batch == 1 { 0 } else { stride };
        let new = Matrix { ld: if stride != 0 && stride < old.ld { old.ld } else { ld }, batch_stride, ..old };
        *[&mut small.a, &mut small.b, &mut small.c][index] = new;
    }
    if let Some(bias) = &mut small.bias {
        bias.batch_stride = if small.batch == 1 { 0 } else { bias.batch_stride };
    }
    let (line, lines) = small.lines(2);
    if let Some(residual) = &mut small.residual {
        // Read only: batch entries may lie as they do.
        let ld = same_remainder(residual.ld, line);
        let apart = if residual.batch_stride == 0 { 0 } else { same_remainder(residual.batch_stride, (lines - 1) * ld + line) };
        *residual = Residual { ld, batch_stride: if small.batch == 1 { 0 } else { apart } };
    }
    small
}

fn reduce_conv(conv: &Conv, [tile_m, tile_n, depth]: [u64; 3], whole: u64) -> Conv {
    let mut small = conv.clone();
    small.n = conv.n.min(2);
    small.groups = conv.groups.min(2);
    let taps: u64 = conv.filter.iter().product();
    // Channels in steps that keep the remainder of channels * taps by the depth of the k-tiles.
    let step = depth / gcd(depth, taps);
    let c = cut(conv.c_per_group(), step.max(1), (whole * depth / taps.max(1)).div_ceil(step.max(1)).max(1));
    let k = cut(conv.k_per_group(), tile_n, whole);
    (small.c, small.k) = (c * small.groups, k * small.groups);
    // Rows of the image go first, the line stays whole: vectors and halves of lines look as before.
    let wanted = tile_m * (whole + 1);
    for d in 0..conv.dims().saturating_sub(1) {
        let output = small.output();
        let others: u64 = output.iter().enumerate().filter(|(i, _)| *i != d).map(|(_, v)| v).product();
        let rows = wanted.div_ceil(others.max(1)).max(2);
        if rows < output[d] {
            small.input[d] = conv.input[d] - (output[d] - rows) * conv.stride[d];
        }
    }
    small
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::{Scalar, Target};

    fn check(problem: &Problem) -> Option<Problem> {
        let target = Target::by_arch("sm_90a").unwrap();
        let space = Space::new(problem, &target).unwrap();
        let plan = space.repair(&Plan::default()).unwrap();
        let spec = space.resolve(&plan).unwrap().spec;
        let small = reduce(problem, &spec, 2)?;
        assert!(small.flop() < problem.flop());
        assert!(Space::new(&small, &target).unwrap().resolve(&plan).is_ok(), "{small}");
        Some(small)
    }

    #[test]
    fn tails_and_alignment_stay() {
        let gemm = Gemm::new(Scalar::F32, 4099, 5001, 1023).lda(4104).offsets(4, 8, 0).build().unwrap();
        let Some(Problem::Gemm(small)) = check(&Problem::Gemm(gemm)) else { panic!("not reduced") };
        assert_eq!((small.m, small.n, small.k), (2 * 128 + 3, 2 * 128 + 9, 2 * 16 + 15));
        assert_eq!((small.a.ld % 64, small.a.offset, small.b.offset), (4104 % 64, 4, 8));
        assert_eq!(small.b.ld % 64, 1023 % 64);
    }

    #[test]
    fn batches_shrink_and_shared_operands_stay_shared() {
        let gemm = Gemm::new(Scalar::F32, 1024, 1024, 512).batch(64).stride_a(0).build().unwrap();
        let Some(Problem::Gemm(small)) = check(&Problem::Gemm(gemm)) else { panic!("not reduced") };
        assert_eq!((small.batch, small.a.batch_stride), (2, 0));
        assert!(small.c.batch_stride >= small.span(2) / 2);
    }

    #[test]
    fn small_problems_stay() {
        assert_eq!(check(&Problem::Gemm(Gemm::new(Scalar::F32, 300, 200, 40).build().unwrap())), None);
    }

    #[test]
    fn convolutions_shrink_in_every_direction() {
        let conv = Conv::new(Scalar::F32, 64, 128, 256, &[56, 56], &[3, 3]).pad(&[1, 1], &[1, 1]).build().unwrap();
        let Some(Problem::Conv(small)) = check(&Problem::Conv(conv)) else { panic!("not reduced") };
        assert_eq!((small.n, small.input[1]), (2, 56));
        assert!(small.c < 128 && small.input[0] < 56);
    }
}
