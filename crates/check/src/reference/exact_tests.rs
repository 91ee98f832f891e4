//! What the exact reference finds, what that of random data cannot, and what both say of values beyond a type.

use super::element::{Element, put};
use super::*;
use tilewright_problem::{Conv, Gemm, Layout, Order, Problem};

/// A result summed in f32, term by term, and stored in C's type; `twist` gives how often each term of an element counts.
pub(super) fn run(data: &TestData, twist: impl Fn([u64; 3], u64) -> f32 + Sync) -> Vec<u8> {
    let mut out = data.c.bytes.clone();
    let oracle = Oracle::new(data);
    let [g, m, n, k] = oracle.extent;
    let (mut left, mut right) = (vec![0.0; k as usize], vec![0.0; k as usize]);
    for g in 0..g {
        for i in 0..m {
            oracle.left(g, i, 0, &mut left);
            for j in 0..n {
                oracle.right(g, j, 0, &mut right);
                let terms = (0u64..).zip(left.iter().zip(&right));
                let sum = terms.fold(0f32, |sum, (k, (x, y))| sum + twist([g, i, j], k) * (*x as f32 * *y as f32));
                let at = oracle.result_at(g, i, j);
                let old =
                    if data.factors.beta == 0.0 { 0.0 } else { data.factors.beta * value(data.c.scalar, &data.c.bytes, at) };
                let result = f64::from(data.factors.alpha as f32 * sum) + old + oracle.bias(g, i, j) + oracle.residual(g, i, j);
                store(data.c.scalar, &mut out, at, result);
            }
        }
    }
    out
}

pub(super) fn store(scalar: Scalar, bytes: &mut [u8], at: u64, result: f64) {
    fn one<E: Element>(bytes: &mut [u8], at: usize, result: f64) {
        put::<E>(&mut bytes[at * E::BYTES..][..E::BYTES], E::of(result));
    }
    match scalar {
        Scalar::F16 => one::<half::f16>(bytes, at as usize, result),
        Scalar::BF16 => one::<half::bf16>(bytes, at as usize, result),
        Scalar::F64 => one::<f64>(bytes, at as usize, result),
        _ => one::<f32>(bytes, at as usize, result),
    }
}

fn exact(problem: &Problem, seed: u64, with_beta: bool) -> Exact {
    let factors = Exact::factors(problem, with_beta);
    Exact::new(problem, seed, factors).unwrap()
}

/// Element of C's buffer minus one of its terms, for every element.
fn short_by_one_term(data: &TestData, whole: &[u8], k: u64, times: f64) -> Vec<u8> {
    let (mut out, oracle) = (whole.to_vec(), Oracle::new(data));
    let [_, m, n, _] = oracle.extent;
    let (mut x, mut y) = ([0.0], [0.0]);
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        oracle.left(0, i, k, &mut x);
        oracle.right(0, j, k, &mut y);
        let at = oracle.result_at(0, i, j);
        let now = value(data.c.scalar, &out, at) + times * data.factors.alpha * x[0] * y[0];
        store(data.c.scalar, &mut out, at, now);
    }
    out
}

#[test]
fn one_term_of_a_million_is_missed_by_the_bound_and_found_by_exact_totals() {
    const K: u64 = 1 << 20;
    let problem = Problem::Gemm(Gemm::new(Scalar::F32, 3, 3, K).order(Order::Col).trans(true, false).build().unwrap());
    let random = TestData::new(&problem, 5, 1.0, 0.0).unwrap();
    let bound = Reference::new(&random, Samples::All);
    let exact = exact(&problem, 5, false);
    let wholes = [run(&random, |_, _| 1.0), run(exact.data(), |_, _| 1.0)];
    assert!(bound.check(&wholes[0]).passed() && exact.check(&wholes[1]).passed());
    let mut found = [0, 0];
    for at in 0..40 {
        let (k, times) = (hash(3, at) % K, if at % 2 == 0 { -1.0 } else { 1.0 });
        found[0] += u32::from(!bound.check(&short_by_one_term(&random, &wholes[0], k, times)).passed());
        let verdict = exact.check(&short_by_one_term(exact.data(), &wholes[1], k, times));
        assert_eq!(verdict.wrong, verdict.checked, "every element shows it");
        found[1] += u32::from(!verdict.passed());
    }
    assert_eq!(found, [0, 40]);
}

#[test]
fn every_term_shows_in_every_element_of_any_product() {
    for bits in 0..64u32 {
        let bit = |i: u32| bits >> i & 1 == 1;
        let (dtype, out) = [
            (Scalar::F32, Scalar::F32),
            (Scalar::BF16, Scalar::BF16),
            (Scalar::F16, Scalar::F16),
            (Scalar::BF16, Scalar::F32),
            (Scalar::F16, Scalar::BF16),
            (Scalar::F64, Scalar::F64),
        ][(bits % 6) as usize];
        let (m, n, k) = (5, 4, if bit(4) { 37 } else { 1500 });
        let builder = Gemm::new(dtype, m, n, k).out_dtype(out).order(if bit(3) { Order::Row } else { Order::Col });
        let builder = builder.trans(bit(0), bit(1)).trans_c(bit(2)).batch(3).offsets(1, 2, 3);
        let builder = if bit(5) { builder.stride_a(0).lda(1511).bias(tilewright_problem::Along::N).residual() } else { builder };
        let problem = Problem::Gemm(builder.build().unwrap());
        let exact = exact(&problem, bits.into(), bit(4));
        let verdict = exact.check(&run(exact.data(), |_, _| 1.0));
        assert!(verdict.passed() && verdict.checked == 60, "{bits:06b} {problem}: {verdict}");
        for (k, times) in [(0, 0.0), (k / 2, 2.0), (k - 1, 0.0)] {
            let verdict = exact.check(&run(exact.data(), |_, at| if at == k { times } else { 1.0 }));
            assert!(verdict.wrong == 60, "{bits:06b} {problem}: {verdict}");
        }
        // In one element only.
        let verdict = exact.check(&run(exact.data(), |e, at| if at == 7 && e == [2, 4, 3] { 0.0 } else { 1.0 }));
        assert_eq!(verdict.wrong, 1, "{bits:06b} {problem}: {verdict}");
        assert_eq!(verdict.worst.unwrap().index, [2, 4, 3]);
    }
}

#[test]
fn batch_entries_that_overlap_in_memory_have_one_value() {
    for (a, b) in [(3, 60), (60, 3), (3, 3)] {
        let gemm = Gemm::new(Scalar::F32, 6, 7, 8).order(Order::Col).batch(3).stride_a(a).stride_b(b).build().unwrap();
        let exact = exact(&Problem::Gemm(gemm), 1, true);
        let verdict = exact.check(&run(exact.data(), |_, _| 1.0));
        assert!(verdict.passed() && verdict.checked == 126, "{verdict}");
        assert_eq!(exact.check(&run(exact.data(), |_, k| if k == 5 { 0.0 } else { 1.0 })).wrong, 126);
    }
}

#[test]
fn every_term_of_a_convolution_shows() {
    for bits in 0..16u32 {
        let bit = |i: u32| bits >> i & 1 == 1;
        let layout = if bit(0) { Layout::Nhwc } else { Layout::Nchw };
        let (groups, channels) = if bit(1) { (2, 12) } else { (1, 400) };
        let dtype = if bit(2) { Scalar::BF16 } else { Scalar::F32 };
        let conv = Conv::new(dtype, 3, channels, 6, &[6, 5], &[3, 2]).layout(layout).groups(groups).stride(&[2, 1]);
        let conv = conv.pad(&[1, 0], &[1, 1]);
        let conv = if bit(3) { conv.bias() } else { conv }.build().unwrap();
        let taps = 6;
        let problem = Problem::Conv(conv);
        let exact = exact(&problem, bits.into(), bit(3));
        let verdict = exact.check(&run(exact.data(), |_, _| 1.0));
        assert!(verdict.passed() && verdict.checked == 3 * 6 * 15, "{problem}: {verdict}");
        // The middle of the window always lies within the image, in the first and the last channel.
        for k in [2, channels / groups * taps - 4] {
            let verdict = exact.check(&run(exact.data(), |_, at| if at == k { 0.0 } else { 1.0 }));
            assert_eq!(verdict.wrong, verdict.checked, "{problem} {k}: {verdict}");
        }
    }
}

#[test]
fn large_convolutions_are_judged_at_pixels_spread_over_the_output() {
    let conv = Conv::new(Scalar::F32, 64, 512, 512, &[56, 56], &[3, 3]).pad(&[1, 1], &[1, 1]).build().unwrap();
    let (patterns, pixels) = integers::affordable(&conv, 1 << 28);
    assert!(patterns == [1, 4] && pixels == 3136, "{patterns:?} {pixels}");
    let (patterns, pixels) = integers::affordable(&conv, 1 << 20);
    assert!(patterns == [1, 2] && pixels == 64, "{patterns:?} {pixels}");
}

#[test]
fn values_beyond_the_type_of_c_are_infinite() {
    for (dtype, alpha) in [(Scalar::F16, 2e4), (Scalar::F32, 1e38), (Scalar::BF16, 1e38)] {
        let problem = Problem::Gemm(Gemm::new(dtype, 9, 9, 300).order(Order::Col).build().unwrap());
        let data = TestData::new(&problem, 5, alpha, 0.0).unwrap();
        let reference = Reference::new(&data, Samples::All);
        let right = run(&data, |_, _| 1.0);
        let value_of = |e: &Entry| value(data.c.scalar, &right, e.at);
        let infinite = reference.entries.iter().filter(|e| value_of(e).is_infinite()).count();
        assert!(infinite > 40, "{dtype}: {infinite}");
        let verdict = reference.check(&right);
        assert!(verdict.passed() && verdict.max_error.is_finite(), "{dtype}: {verdict}");
        let entry = reference.entries.iter().find(|e| value_of(e) == f64::INFINITY).unwrap();
        for wrong in [f64::NEG_INFINITY, 0.0, 1e4, f64::NAN] {
            let mut out = right.clone();
            store(data.c.scalar, &mut out, entry.at, wrong);
            assert!(!reference.check(&out).passed(), "{dtype} {wrong}");
        }
        let mut finite = reference.entries.iter().filter(|e| value_of(e).is_finite());
        let mut out = right.clone();
        store(data.c.scalar, &mut out, finite.next().unwrap().at, f64::INFINITY);
        assert!(!reference.check(&out).passed(), "{dtype}");
    }
}

#[test]
fn smooth_activations_of_an_overflow_are_what_ieee_says() {
    use tilewright_problem::Activation;
    let problem =
        Problem::Gemm(Gemm::new(Scalar::F32, 4, 4, 300).order(Order::Col).activation(Activation::Silu).build().unwrap());
    let data = TestData::new(&problem, 5, 3e38, 0.0).unwrap();
    let reference = Reference::new(&data, Samples::All);
    let mut out = data.c.bytes.clone();
    for e in &reference.entries {
        // x / (1 + exp(-x)) of minus infinity is infinity over infinity.
        let argument = match e.expected {
            x if x.abs() < f64::from(f32::MAX) && x > 0.0 => x,
            x if x > 0.0 => f64::INFINITY,
            _ => e.stepwise,
        };
        store(Scalar::F32, &mut out, e.at, argument);
    }
    assert!(reference.entries.iter().any(|e| e.stepwise.is_nan()));
    let verdict = reference.check(&out);
    assert!(verdict.passed(), "{verdict}");
}

#[test]
fn factors_beyond_the_type_of_the_accumulator_are_refused_by_name() {
    let problem = Problem::Gemm(Gemm::new(Scalar::F16, 4, 4, 4).order(Order::Col).build().unwrap());
    let refused = |alpha, beta| TestData::new(&problem, 1, alpha, beta).unwrap_err().to_string();
    let message = refused(1e39, 0.0);
    assert!(message.contains("alpha") && message.contains("f32") && message.contains("3.4"), "{message}");
    assert!(refused(1.0, -1e39).contains("beta"));
    assert!(refused(f64::NAN, 0.0).contains("alpha"));
    let double = Problem::Gemm(Gemm::new(Scalar::F64, 4, 4, 4).order(Order::Col).build().unwrap());
    assert!(TestData::new(&double, 1, 1e39, 0.0).is_ok());
}

#[test]
fn samples_touch_every_row_and_column_of_tiles() {
    // Few elements for so long sums: crossings alone leave out most tiles.
    let extent = [1, 8192, 4096, 1 << 20];
    let picked = picks(extent, Samples::default());
    assert!(picked[1].len() < 64, "{}", picked[1].len());
    for extent in [extent, [3, 100, 70_000, 1 << 14], [1, 1, 1 << 20, 1 << 10]] {
        let picked = picks(extent, Samples::default());
        let spots = diagonal(extent, &picked, 1 << 27);
        for tile in [64, 128, 200, 256] {
            for (axis, extent) in extent.iter().enumerate().skip(1).take(2) {
                let met: std::collections::BTreeSet<u64> = spots.iter().map(|spot| spot[axis] / tile).collect();
                assert_eq!(met.len() as u64, extent.div_ceil(tile), "{extent:?} {axis} {tile}");
            }
        }
        assert!(spots.iter().all(|s| s[0] < extent[0] && s[1] < extent[1] && s[2] < extent[2]));
        assert!(spots.len() as u64 * extent[3] <= 1 << 28, "{}", spots.len());
    }
    assert!(diagonal([2, 30, 30, 30], &picks([2, 30, 30, 30], Samples::default()), 1 << 27).is_empty());
}
