//! The reference against textbook loops, and what a verdict lets pass.

use super::element::{Element, put};
use super::exact_tests::{run, store};
use super::*;
use tilewright_problem::{Complex, Conv, Gemm, Layout, Order, Problem, Role};

fn gemm(dtype: Scalar, m: u64, n: u64, k: u64) -> Problem {
    Problem::Gemm(Gemm::new(dtype, m, n, k).order(Order::Col).trans(true, false).ldc(m + 3).offsets(1, 2, 3).build().unwrap())
}

#[test]
fn right_results_pass_and_one_missing_term_does_not() {
    for (dtype, k) in [(Scalar::F32, 1), (Scalar::F32, 300), (Scalar::F32, 4096), (Scalar::F16, 200), (Scalar::BF16, 64)] {
        for (alpha, beta) in [(1.0, 0.0), (-0.7, 0.4)] {
            let data = TestData::new(&gemm(dtype, 23, 17, k), 5, alpha, beta).unwrap();
            let reference = Reference::new(&data, Samples::All);
            let verdict = reference.check(&run(&data, |_, _| 1.0));
            assert!(verdict.passed() && verdict.checked == 23 * 17, "{dtype} {k}: {verdict}");
            let verdict = reference.check(&run(&data, |_, at| if at == k / 2 { 0.0 } else { 1.0 }));
            assert!(!verdict.passed(), "{dtype} {k}: {verdict}");
            assert!(verdict.to_string().contains("wrong"));
        }
    }
}

#[test]
fn long_dot_products_stay_well_within_the_tolerance() {
    let data = TestData::new(&gemm(Scalar::F32, 40, 40, 50_000), 5, 1.0, 0.0).unwrap();
    let reference = Reference::new(&data, Samples::All);
    let verdict = reference.check(&run(&data, |_, _| 1.0));
    assert!(verdict.passed());
    // The constant of the tolerance is not exhausted either.
    assert!(verdict.max_error < 0.5 * Tolerance::of(&data.problem).accumulate, "{verdict}");
}

#[test]
fn nan_never_passes() {
    let data = TestData::new(&gemm(Scalar::F32, 300, 300, 30), 5, 1.0, 0.0).unwrap();
    let reference = Reference::new(&data, Samples::Budget(100_000));
    assert!(reference.len() < 4000);
    assert!(!reference.check(&data.c.bytes).passed());
    let mut out = run(&data, |_, _| 1.0);
    assert!(reference.check(&out).passed());
    // An element that was not sampled.
    let sampled = |at: u64| reference.entries.iter().any(|e| e.at == at);
    let at = (0..300).map(|i| data.c.start + 303 * 150 + i).find(|&at| !sampled(at)).unwrap();
    store(Scalar::F32, &mut out, at, f64::NAN);
    let verdict = reference.check(&out);
    assert_eq!((verdict.not_a_number, verdict.wrong, verdict.passed()), (1, 0, false));
    assert!(!reference.check(&out[..out.len() / 2]).passed());
    assert!(!reference.check(&[]).passed());
    store(Scalar::F32, &mut out, reference.entries[0].at, f64::INFINITY);
    assert!(reference.check(&out).max_error.is_infinite());
}

#[test]
fn samples_reach_every_part() {
    for (extent, count) in [(1, 1), (10, 3), (1000, 16), (7, 7), (1 << 40, 5)] {
        let picked = spread(extent, count, 9);
        assert_eq!(picked.len() as u64, count);
        assert!(picked.is_sorted_by(|a, b| a < b));
        assert_eq!((picked[0], *picked.last().unwrap() == extent - 1), (0, true));
    }
    let [g, rows, columns] = picks([1, 8192, 8192, 8192], Samples::default());
    assert!(g.len() == 1 && rows.len() >= 128 && columns.len() >= 128);
    assert!(rows.windows(2).all(|w| w[1] - w[0] <= 128), "every macro tile is met");
    let [g, rows, columns] = picks([1024, 3136, 64, 576], Samples::default());
    assert!(g.len() > 30 && columns.len() == 64 && rows.len() > 30);
    let [_, rows, columns] = picks([1, 64, 64, 1 << 40], Samples::default());
    assert!(rows.len() >= 2 && columns.len() >= 2);
}

/// All loops of a two-dimensional convolution written out, through nothing but the documented layouts.
#[test]
fn convolution_is_the_textbook_one() {
    for layout in [Layout::Nchw, Layout::Nhwc] {
        let (n, c, k, groups, h, w, r, s) = (2, 6, 4, 2, 7, 5, 3, 2);
        let conv = Conv::new(Scalar::F32, n, c, k, &[h, w], &[r, s])
            .layout(layout)
            .groups(groups)
            .stride(&[2, 1])
            .dilation(&[1, 2])
            .pad(&[2, 0], &[1, 3])
            .bias()
            .build()
            .unwrap();
        let (ho, wo) = (conv.output()[0], conv.output()[1]);
        assert_eq!((ho, wo), (4, 6));
        let data = TestData::new(&Problem::Conv(conv), 3, 1.0, 0.0).unwrap();
        let read = |buffer: &Buffer, i: u64| value(Scalar::F32, &buffer.bytes, buffer.start + i);
        let place = |n: u64, c: u64, y: u64, x: u64, channels: u64, height: u64, width: u64| match layout {
            Layout::Nchw => ((n * channels + c) * height + y) * width + x,
            Layout::Nhwc => ((n * height + y) * width + x) * channels + c,
        };
        let mut out = data.c.bytes.clone();
        for b in 0..n {
            for o in 0..k {
                for y in 0..ho {
                    for x in 0..wo {
                        let mut sum = read(data.added.given_to(Role::Bias).unwrap(), o);
                        for i in 0..c / groups {
                            for dy in 0..r {
                                for dx in 0..s {
                                    let iy = (y * 2 + dy) as i64 - 2;
                                    let ix = (x + 2 * dx) as i64;
                                    if iy >= 0 && iy < h as i64 && ix < w as i64 {
                                        let channel = o / (k / groups) * (c / groups) + i;
                                        sum += read(&data.a, place(b, channel, iy as u64, ix as u64, c, h, w))
                                            * read(&data.b, place(o, i, dy, dx, c / groups, r, s));
                                    }
                                }
                            }
                        }
                        let at = data.c.start + place(b, o, y, x, k, ho, wo);
                        store(Scalar::F32, &mut out, at, sum);
                    }
                }
            }
        }
        let verdict = Reference::new(&data, Samples::All).check(&out);
        assert!(verdict.passed() && verdict.checked == n * k * ho * wo, "{verdict}");
    }
}

#[test]
fn products_are_the_textbook_ones() {
    for bits in 0..16u32 {
        let bit = |i: u32| bits >> i & 1 == 1;
        let (m, n, k, ld) = (4, 3, 5, 9);
        let order = if bit(3) { Order::Row } else { Order::Col };
        let builder = Gemm::new(Scalar::F64, m, n, k).order(order).trans(bit(0), bit(1)).trans_c(bit(2));
        let gemm = builder.lda(ld).ldb(ld).ldc(ld).batch(2).stride_b(0).stride_c(50).build().unwrap();
        let data = TestData::new(&Problem::Gemm(gemm.clone()), 3, 2.0, -1.0).unwrap();
        // Element (i, j) of a matrix that is used untransposed if `trans` is false.
        let place = |i: u64, j: u64, trans: bool| if trans == (order == Order::Col) { i * ld + j } else { i + j * ld };
        let read = |buffer: &Buffer, i: u64| value(Scalar::F64, &buffer.bytes, buffer.start + i);
        let mut out = data.c.bytes.clone();
        for g in 0..2 {
            for i in 0..m {
                for j in 0..n {
                    let product = |l: u64| {
                        read(&data.a, g * gemm.a.batch_stride + place(i, l, bit(0))) * read(&data.b, place(l, j, bit(1)))
                    };
                    let at = g * 50 + place(i, j, bit(2));
                    let sum = 2.0 * (0..k).map(product).sum::<f64>() - read(&data.c, at);
                    let at = (data.c.start + at) as usize;
                    put::<f64>(&mut out[at * f64::BYTES..][..f64::BYTES], sum.to_bits());
                }
            }
        }
        let verdict = Reference::new(&data, Samples::All).check(&out);
        assert!(verdict.passed() && verdict.max_error < 1e-15, "{bits:04b}: {verdict}");
        assert_eq!(data.check_untouched(tilewright_problem::contraction::Operand::C, &out), Ok(()));
    }
}

/// Complex products written out with complex numbers, on random data and on small integers.
#[test]
fn complex_products_are_the_textbook_ones() {
    for bits in 0..256u32 {
        let bit = |i: u32| bits >> i & 1 == 1;
        let (m, n, k, ld) = (4, 3, 5, 9);
        let order = if bit(3) { Order::Row } else { Order::Col };
        let builder = Gemm::new(Scalar::F64, m, n, k).conj(bit(4), bit(5)).order(order).trans(bit(0), bit(1)).trans_c(bit(2));
        let builder = builder.lda(ld).ldb(ld).ldc(ld).batch(2).stride_b(0).stride_c(50).offsets(1, 2, 3).residual();
        let gemm = builder.imaginary(bit(6), bit(7)).build().unwrap();
        let place = |i: u64, j: u64, trans: bool| if trans == (order == Order::Col) { i * ld + j } else { i + j * ld };
        // The product of `data`, as C's buffer holds it.
        let run = |data: &TestData| {
            let read = |buffer: &Buffer, i: u64, conj: bool| {
                let part = |part: u64| value(Scalar::F64, &buffer.bytes, buffer.start + 2 * i + part);
                (part(0), if conj { -part(1) } else { part(1) })
            };
            let mut out = data.c.bytes.clone();
            for (g, i, j) in (0..2).flat_map(|g| (0..m).flat_map(move |i| (0..n).map(move |j| (g, i, j)))) {
                let at = g * 50 + place(i, j, bit(2));
                let mut sum = (0.0, 0.0);
                for l in 0..k {
                    let (x, y) = read(&data.a, g * gemm.a.batch_stride + place(i, l, bit(0)), bit(4));
                    let (u, v) = read(&data.b, place(l, j, bit(1)), bit(5));
                    sum = (sum.0 + x * u - y * v, sum.1 + x * v + y * u);
                }
                let added = read(data.added.given_to(Role::Residual).unwrap(), at, false);
                let old = if data.factors.beta == 0.0 { (0.0, 0.0) } else { read(&data.c, at, false) };
                let Factors { alpha, beta, alpha_im, beta_im } = data.factors;
                let times = |(p, q): (f64, f64), (x, y): (f64, f64)| [p * x - q * y, p * y + q * x];
                let (product, old) = (times((alpha, alpha_im), sum), times((beta, beta_im), old));
                for (part, added) in [added.0, added.1].into_iter().enumerate() {
                    let at = data.c.start as usize + 2 * at as usize + part;
                    let result = product[part] + old[part] + added;
                    put::<f64>(&mut out[at * f64::BYTES..][..f64::BYTES], result.to_bits());
                }
            }
            out
        };
        let problem = Problem::Gemm(gemm.clone());
        let im = |is: bool, value: f64| if is { value } else { 0.0 };
        let factors = Factors { alpha_im: im(bit(6), -0.5), beta_im: im(bit(7), 3.0), ..Factors::real(2.0, -1.0) };
        let data = TestData::with(&problem, 3, factors).unwrap();
        let out = run(&data);
        let verdict = Reference::new(&data, Samples::All).check(&out);
        assert!(verdict.passed() && verdict.max_error < 1e-15 && verdict.checked == 48, "{bits:06b}: {verdict}");
        assert_eq!(data.check_untouched(tilewright_problem::contraction::Operand::C, &out), Ok(()));
        for with_beta in [false, true] {
            let factors = Exact::factors(&problem, with_beta);
            assert_eq!((factors.alpha_im != 0.0, factors.beta_im != 0.0), (bit(6), bit(7) && with_beta));
            let exact = Exact::new(&problem, 7, factors).unwrap();
            let verdict = exact.check(&run(exact.data()));
            assert!(verdict.passed() && verdict.max_error == 0.0 && verdict.checked == 48, "{bits:06b}: {verdict}");
            let other = |problem: Gemm, factors: Factors| {
                let another = Exact::new(&Problem::Gemm(problem), 7, factors).unwrap();
                assert!(!another.check(&run(exact.data())).passed(), "{bits:08b} {factors:?}");
            };
            let conj = |conj_a: bool| Gemm { complex: gemm.complex.map(|c| Complex { conj_a, ..c }), ..gemm.clone() };
            other(conj(!bit(4)), factors);
            if bit(6) {
                other(gemm.clone(), Factors { alpha_im: -factors.alpha_im, ..factors });
            }
            if factors.beta_im != 0.0 {
                other(gemm.clone(), Factors { beta_im: -factors.beta_im, ..factors });
            }
        }
    }
}
