//! Reductions of results through the library: values that have gone wrong elsewhere, and what is refused.

use tilewright::{
    Along, Axes, Buffer, Constraint, Context, Conv, Direction, Element, Error, Gemm, GemmBuilder, Layout, Operands, Operation,
    Operator, Options, Order, Plan, RecordsAt, Reduce, Reduction, Scalar,
};

/// The built-in device, or the one that `TILEWRIGHT_TEST_DEVICE` names.
fn context() -> Context {
    let device = std::env::var("TILEWRIGHT_TEST_DEVICE").unwrap_or_else(|_| "emu:gfx942".into());
    let options = Options { device: Some(device), records: RecordsAt::Memory, allow_atomics: true, ..Options::default() };
    Context::with(options).expect("the emulator opens")
}

/// The operation under the plan that has these keys, and no other but their first values: nothing is searched.
fn under(op: Operation, plan: &str) -> Operation {
    let plan = Constraint::parse(plan).expect("a constraint").apply(&Plan::default());
    op.set_plan(&Plan::from(plan)).expect("a legal plan");
    op
}

const M: usize = 45;
const N: usize = 70;
const K: usize = 5;

/// Operators of one component over rows, columns and all, for a product of this problem; sums in the place of means, which atomics do not
/// combine.
fn all(gemm: GemmBuilder, atomics: bool) -> (GemmBuilder, Vec<Reduction>) {
    let axes = [Axes { n: true, ..Axes::default() }, Axes { m: true, ..Axes::default() }];
    let list: Vec<Reduction> = Operator::ALL
        .into_iter()
        .take(6)
        .map(|operator| if atomics && operator == Operator::Mean { Operator::Sum } else { operator })
        .zip(axes.into_iter().cycle())
        .map(|(operator, over)| Reduction::new(operator, over))
        .chain([Reduction::new(Operator::Sum, "mn".parse().expect("axes"))])
        .chain([Reduction::new(Operator::Max, axes[1])])
        .collect();
    (list.iter().copied().fold(gemm, GemmBuilder::reduce), list)
}

/// C = A B + bias of every reduction, with the plan's keys demanded, C stored or not; and what is expected of each from C.
fn run(a: &[f32], b: &[f32], bias: f32, plan: &str, drop: bool) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let context = context();
    let gemm = Gemm::new(Scalar::F32, M as u64, N as u64, K as u64).order(Order::Row).bias(Along::N);
    let atomics = ["RDF2", "RDF3", "RDF4"].iter().any(|key| plan.contains(key));
    let (gemm, list) = all(if drop { gemm.drop_c() } else { gemm }, atomics);
    let op = under(context.gemm(gemm).expect("a problem"), plan);
    let (da, db) = (context.upload(a).expect("memory"), context.upload(b).expect("memory"));
    let bias = context.upload(&[bias; N]).expect("memory");
    let sizes = |r: &Reduction| (if r.over.m { 1 } else { M }) * (if r.over.n { 1 } else { N });
    let mut buffers: Vec<_> = list.iter().map(|r| context.upload(&vec![f32::NAN; sizes(r)]).expect("memory")).collect();
    let mut c = context.alloc::<f32>((M * N) as u64).expect("memory");
    let operands = if drop { Operands::without_c(&da, &db) } else { Operands::new(&da, &db, &mut c) };
    op.run_with(buffers.iter_mut().fold(operands.bias(&bias), Operands::reduction)).expect("it runs");
    let got = buffers.iter().map(|x| x.download().expect("values")).collect();
    let first = bias.download().expect("the bias")[0];
    let element = |i: usize, j: usize| (0..K).map(|l| a[i * K + l] * b[l * N + j]).sum::<f32>() + first;
    let want = list.iter().map(|r| {
        let mut values = vec![r.operator.identity(); sizes(r)];
        for (i, j) in (0..M).flat_map(|i| (0..N).map(move |j| (i, j))) {
            let at = match (r.over.m, r.over.n) {
                (true, true) => 0,
                (true, false) => j,
                _ => i,
            };
            values[at] = r.operator.combine(values[at], r.operator.element(f64::from(element(i, j)), 0));
        }
        let count = (M * N / sizes(r)) as u64;
        values.into_iter().map(|x| r.operator.finish(x, count) as f32).collect()
    });
    (got, want.collect())
}

/// Tiles over the edge, pulled back from it, and larger than the result; more splits than k-tiles, which another kernel adds up; finished by
/// the last work-group, and by atomics behind each of their stages.
const PLANS: [&str; 10] = [
    "A_MIC4__B_MIC4__C_MAC64_EDG1",
    "A_MIC4__B_MIC4__C_MAC64_EDG0",
    "A_MIC8__B_MIC8__C_MAC256_EDG1",
    "A_MIC4__B_MIC4__C_MAC64_EDG1_ICE3_SKS1",
    "A_MIC4__B_MIC4__C_MAC64_EDG0_RDF1",
    "A_MIC4__B_MIC4__C_MAC64_EDG1_ICE3_SKS1_RDF1",
    "A_MIC2__B_MIC2__C_MAC64_EDG1_PST3_RDF1",
    "A_MIC4__B_MIC4__C_MAC64_EDG0_RDF2",
    "A_MIC4__B_MIC4__C_MAC64_EDG0_RDF3",
    "A_MIC4__B_MIC4__C_MAC64_EDG1_ICE3_SKS1_RDF4",
];

/// Those whose order is fixed, for operators that no atomic combines.
fn ordered() -> impl Iterator<Item = &'static str> {
    PLANS.into_iter().filter(|plan| !plan.contains("RDF") || plan.contains("RDF1"))
}

/// Two runs give the same bits, in whichever order work-groups come to their end.
pub fn fixed_orders_repeat() {
    let a: Vec<f32> = (0..M * K).map(|i| (i as f32 * 0.37).sin()).collect();
    let b: Vec<f32> = (0..K * N).map(|i| (i as f32 * 0.73).cos() * 1e3).collect();
    for plan in ordered() {
        let bits = || run(&a, &b, 0.1, plan, true).0.into_iter().map(|x| x.into_iter().map(f32::to_bits).collect::<Vec<_>>());
        let first: Vec<_> = bits().collect();
        assert!(bits().eq(first), "{plan}");
    }
}

/// What is largest and smallest does not depend on the order: the same bits under every plan.
pub fn extremes_are_the_same_under_every_plan() {
    let a: Vec<f32> = (0..M * K).map(|i| (i as f32 * 0.37).sin()).collect();
    let b: Vec<f32> = (0..K * N).map(|i| (i as f32 * 0.73).cos() * 1e3).collect();
    let bits = |plan: &str| -> Vec<Vec<u32>> {
        let (_, list) = all(Gemm::new(Scalar::F32, M as u64, N as u64, K as u64), plan.contains("RDF"));
        let extreme = |r: &Reduction| matches!(r.operator, Operator::Max | Operator::Min | Operator::AbsMax);
        let got = run(&a, &b, 0.1, plan, true).0.into_iter().zip(list).filter(|(_, r)| extreme(r));
        got.map(|(values, _)| values.into_iter().map(f32::to_bits).collect()).collect()
    };
    let first = bits(PLANS[0]);
    assert_eq!(first.len(), 4);
    PLANS[1..].iter().for_each(|plan| assert_eq!(bits(plan), first, "{plan}"));
}

/// A second run begins with what the first one left in results, workspace and tickets.
pub fn runs_follow_each_other_without_clearing() {
    let context = context();
    for plan in PLANS {
        let gemm = Gemm::new(Scalar::F32, M as u64, N as u64, K as u64).order(Order::Row).drop_c();
        let reduced = ["sum:n", "max:m", "sum:mn"].map(|text| text.parse::<Reduction>().expect("a reduction"));
        let op = under(context.gemm(reduced.into_iter().fold(gemm, GemmBuilder::reduce)).expect("a problem"), plan);
        let mut out = [M, N, 1].map(|len| context.upload(&vec![f32::NAN; len]).expect("memory"));
        // Smaller from run to run, so that a maximum of before would show.
        for factor in [3.0, 2.0, -1.0] {
            let (a, b) = (context.upload(&[factor; M * K]).expect("memory"), context.upload(&[1f32; K * N]).expect("memory"));
            op.run_with(out.iter_mut().fold(Operands::<f32, f32>::without_c(&a, &b), Operands::reduction)).expect("it runs");
            let (each, got) = (factor * K as f32, out.each_ref().map(|x| x.download().expect("values")));
            let want = [vec![each * N as f32; M], vec![each; N], vec![each * (M * N) as f32]];
            assert_eq!(got, want, "{plan}, factor {factor}");
        }
    }
}

/// Zeros of either sign are equal: none is larger than another, and the first of them is found.
pub fn zeros_of_either_sign_are_equal() {
    let context = context();
    for signs in [[-0.0f32, -0.0], [0.0, -0.0], [-0.0, 0.0]] {
        let zeros: Vec<f32> = (0..7 * 300).map(|i| signs[usize::from(i % 3 > 0)]).collect();
        let tensor = context.upload(&zeros).expect("memory");
        for plan in ["C_RDF0", "C_ICE3_RDF1", "C_ICE3_RDF2", "C_ICE3_RDF4"] {
            let reduce = Reduce::new(Scalar::F32, &[7, 300], &[1]);
            let list = [Operator::Max, Operator::Min, Operator::AbsMax, Operator::Sum];
            let op = under(context.reduce(list.into_iter().fold(reduce, |reduce, op| reduce.op(op))).expect("a problem"), plan);
            let mut out: Vec<_> = list.iter().map(|_| context.upload(&[7f32; 7]).expect("memory")).collect();
            op.run_with(out.iter_mut().fold(Operands::<f32, f32>::of(&tensor), Operands::reduction)).expect("it runs");
            out.iter().for_each(|x| assert_eq!(x.download().expect("values"), [0.0; 7], "{signs:?} {plan}"));
        }
        let reduce = Reduce::new(Scalar::F32, &[7, 300], &[1]).op(Operator::ArgMax).op(Operator::ArgMin);
        let op = under(context.reduce(reduce).expect("a problem"), "C_ICE3");
        let mut out: Vec<_> = (0..2).map(|_| context.upload(&[9i64; 7]).expect("memory")).collect();
        op.run_with(out.iter_mut().fold(Operands::<f32, f32>::of(&tensor), Operands::reduction)).expect("it runs");
        out.iter().for_each(|x| assert_eq!(x.download().expect("indices"), [0; 7], "{signs:?}"));
    }
}

/// rocMLIR's products: 128 x 64 by 64 x 256 over either axis, sums of each type and maxima, beside a tensor that is added. Their tests let
/// sums of bf16 be off by 400; here all are exact.
pub fn products_of_rocmlir() {
    let context = context();
    let axes = |text: &str| text.parse::<Reduction>().expect("a reduction");
    for dtype in [Scalar::F32, Scalar::F16, Scalar::BF16] {
        for plan in ["C_RDF0", "C_RDF1", "C_RDF2"] {
            let gemm = Gemm::new(dtype, 128, 256, 64).order(Order::Row).residual();
            let gemm = ["sum:n", "sum:m", "max:n", "max:m"].into_iter().fold(gemm, |gemm, text| gemm.reduce(axes(text)));
            let plan = format!("A_MIC4__B_MIC4__{plan}_MAC64_EDG1");
            let op = under(context.gemm(gemm).expect("a problem"), &plan);
            let mut out: Vec<_> = [128, 256, 128, 256].map(|len| context.upload(&vec![f32::NAN; len]).expect("memory")).into();
            // 2^-6 in every factor's type, so that each result is 64 * 2^-6 + 1.
            macro_rules! run {
                ($one:expr, $part:expr) => {{
                    let (a, b) = (context.upload(&vec![$one; 128 * 64]).expect("memory"), context.upload(&vec![$part; 64 * 256]));
                    let residual = context.upload(&vec![$one; 128 * 256]).expect("memory");
                    let mut c = context.upload(&vec![$one; 128 * 256]).expect("memory");
                    let b = b.expect("memory");
                    let operands = Operands::new(&a, &b, &mut c).residual(&residual);
                    op.run_with(out.iter_mut().fold(operands, Operands::reduction)).expect("it runs");
                }};
            }
            match dtype {
                Scalar::F32 => run!(1f32, 0.015625f32),
                Scalar::F16 => run!(half::f16::from_f32(1.0), half::f16::from_f32(0.015625)),
                _ => run!(half::bf16::from_f32(1.0), half::bf16::from_f32(0.015625)),
            }
            let got: Vec<Vec<f32>> = out.iter().map(|x| x.download().expect("values")).collect();
            let want: [Vec<f32>; 4] = [vec![512.0; 128], vec![256.0; 256], vec![2.0; 128], vec![2.0; 256]];
            assert_eq!(got, want, "{dtype} {plan}");
        }
    }
}

fn agree(what: &str, (got, want): (Vec<Vec<f32>>, Vec<Vec<f32>>)) {
    for (number, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let near = (got - want).abs() <= 1e-4 * want.abs() || got == want || (got.is_nan() && want.is_nan());
            assert!(near, "{what}: value {i} of reduction {number} is {got} instead of {want}");
        }
    }
}

/// Every element is 1: sums are counts, exactly, in which a row that counts twice or not at all shows.
pub fn counts_are_exact() {
    for plan in PLANS {
        let mut a = vec![0.0; M * K];
        (0..M).for_each(|i| a[i * K] = 1.0);
        let (got, want) = run(&a, &vec![1.0; K * N], 0.0, plan, false);
        assert_eq!(got[0], want[0], "{plan}: sums over n");
        assert_eq!(got[6], [(M * N) as f32], "{plan}: the sum of all");
        agree(plan, (got, want));
    }
}

/// What has states of several components, of products of these factors.
fn indices_and_moments(a: &[f32], b: &[f32], plan: &str) {
    const LIST: [&str; 8] =
        ["argmax:n", "argmin:m", "argmax:mn", "argmin:n:i32", "logsumexp:n", "logsumexp:m", "var:n", "var:mn"];
    let (context, axes) = (context(), |text: &str| text.parse::<Reduction>().expect("a reduction"));
    let gemm = Gemm::new(Scalar::F32, M as u64, N as u64, K as u64).order(Order::Row).drop_c();
    let gemm = LIST.into_iter().fold(gemm, |gemm, text| gemm.reduce(axes(text)));
    let op = under(context.gemm(gemm).expect("a problem"), plan);
    let (da, db) = (context.upload(a).expect("memory"), context.upload(b).expect("memory"));
    let mut wide: Vec<_> = [M, N, 1].map(|len| context.upload(&vec![-1i64; len]).expect("memory")).into();
    let mut narrow = context.upload(&[-1i32; M]).expect("memory");
    let mut values: Vec<_> = [M, N, M, 1].map(|len| context.upload(&vec![9e9f32; len]).expect("memory")).into();
    let operands = wide.iter_mut().fold(Operands::<f32, f32>::without_c(&da, &db), Operands::reduction).reduction(&mut narrow);
    op.run_with(values.iter_mut().fold(operands, Operands::reduction)).expect("it runs");
    let mut got: Vec<Vec<f64>> = wide.iter().map(|x| x.download().expect("values").iter().map(|x| *x as f64).collect()).collect();
    got.push(narrow.download().expect("values").iter().map(|x| f64::from(*x)).collect());
    got.extend(values.iter().map(|x| x.download().expect("values").iter().map(|x| f64::from(*x)).collect::<Vec<_>>()));
    for (text, got) in LIST.into_iter().zip(got) {
        let (r, element) = (axes(text), |i: usize, j: usize| (0..K).map(|l| a[i * K + l] * b[l * N + j]).sum::<f32>());
        let [rows, columns] = [(r.over.m, M), (r.over.n, N)].map(|(over, extent)| if over { (1, extent) } else { (extent, 1) });
        for at in 0..rows.0 * columns.0 {
            let (i, j) = (at / columns.0, at % columns.0);
            let all = (0..rows.1 * columns.1).map(|e| element(i + e / columns.1, j + e % columns.1));
            let all = (0..).zip(all).map(|(e, x)| r.operator.element(f64::from(x), e));
            let state = all.fold(r.operator.identity(), |x, y| r.operator.combine(x, y));
            let (want, got) = (r.operator.finish(state, (rows.1 * columns.1) as u64), got[at]);
            let near = (got - want).abs() <= 1e-5 * want.abs() || got == want || (got.is_nan() && want.is_nan());
            assert!(near && (got == want || !r.operator.indexes()), "{plan}: {at} of {text} is {got} instead of {want}");
        }
    }
}

/// Blocks that tiles divide, that divide tiles, and that do neither, of rows, columns and both, in one work-group's tile and across many,
/// in the order of blocks whichever operand is the first.
pub fn blocks_of_rows_and_columns() {
    let [m, n, k] = [48usize, 80, 6];
    const LIST: [&str; 7] = ["sum:n16", "sum:n10", "sumsq:m3n20", "absmax:m24", "min:mn40", "max:m16n", "mean:n2"];
    let (context, axes) = (context(), |text: &str| text.parse::<Reduction>().expect("a reduction"));
    let a: Vec<f32> = (0..m * k).map(|i| ((i * 5) % 9) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..k * n).map(|i| ((i * 7) % 11) as f32 - 4.0).collect();
    let element = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum::<f32>();
    // Tiles pulled back from the edge, tiles of forty rows, splits of k with tickets, and atomics.
    for (plan, swap) in [(PLANS[1], "_SWP1"), ("A_MIC5__B_MIC8__C_MAC64_EDG1", ""), (PLANS[5], ""), (PLANS[7], "_SWP1")] {
        // Tickets need whole blocks in a tile, atomics sums or maxima.
        let kept = |text: &&str| match plan.split_once("RDF") {
            Some((_, "1")) => ["sum:n16", "max:m16n", "mean:n2"].contains(text),
            Some(_) => !text.starts_with("mean"),
            None => true,
        };
        let list: Vec<&str> = LIST.into_iter().filter(kept).collect();
        let gemm = Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).order(Order::Row).drop_c();
        let gemm = list.iter().fold(gemm, |gemm, text| gemm.reduce(axes(text)));
        let plan = format!("{plan}{swap}");
        let op = under(context.gemm(gemm).expect("a problem"), &plan);
        let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
        let each: Vec<[usize; 2]> = list
            .iter()
            .map(|text| {
                let over = axes(text).over;
                let each = |over: bool, block: u64, all: usize| {
                    if !over {
                        1
                    } else if block == 0 {
                        all
                    } else {
                        block as usize
                    }
                };
                [each(over.m, over.blocks[0], m), each(over.n, over.blocks[1], n)]
            })
            .collect();
        let poison = |[rows, columns]: &[usize; 2]| context.upload(&vec![f32::NAN; m / rows * (n / columns)]).expect("memory");
        let mut out: Vec<_> = each.iter().map(poison).collect();
        op.run_with(out.iter_mut().fold(Operands::<f32, f32>::without_c(&da, &db), Operands::reduction)).expect(&plan);
        for ((text, [rows, columns]), got) in list.iter().zip(each).zip(out) {
            let (r, got) = (axes(text), got.download().expect("values"));
            for (at, got) in got.into_iter().enumerate() {
                let (i, j) = (at / (n / columns) * rows, at % (n / columns) * columns);
                let all = (0..rows * columns).map(|e| f64::from(element(i + e / columns, j + e % columns)));
                let state = all.fold(r.operator.identity(), |x, y| r.operator.combine(x, r.operator.element(y, 0)));
                let want = r.operator.finish(state, (rows * columns) as u64) as f32;
                assert_eq!(got, want, "{plan}: {at} of {text}");
            }
        }
    }
}

/// rocMLIR's statistics of GroupNorm: per sample, over groups of ten channels and all pixels, beside the result and with split-k.
pub fn groups_of_channels_are_counted() {
    let context = context();
    let [n, c, k, size] = [2usize, 4, 20, 8];
    for (layout, plan) in [(Layout::Nchw, "C_RDF0"), (Layout::Nhwc, "C_ICE2_SKS1"), (Layout::Nhwc, "C_RDF2")] {
        let conv =
            Conv::new(Scalar::F32, n as u64, c as u64, k as u64, &[size as u64; 2], &[3; 2]).pad(&[1; 2], &[1; 2]).layout(layout);
        let conv = ["sum:mn10", "sumsq:mn10"].iter().fold(conv, |conv, text| conv.reduce(text.parse().expect("a reduction")));
        let op = under(context.conv(conv).expect("a problem"), &format!("A_MIC4__B_MIC4__{plan}_MAC64_EDG1"));
        let ones = |len: usize| context.upload(&vec![1f32; len]).expect("memory");
        let (x, w, mut y) = (ones(n * c * size * size), ones(k * c * 9), ones(n * k * size * size));
        let mut out = [ones(n * 2), ones(n * 2)];
        op.run_with(out.iter_mut().fold(Operands::new(&x, &w, &mut y), Operands::reduction)).expect("it runs");
        // Taps inside along a line: 2 at either end, 3 between.
        let taps = |power: i32| (0..size).map(|i| if i == 0 || i == size - 1 { 2f32 } else { 3.0 }.powi(power)).sum::<f32>();
        let want = [1, 2].map(|power| vec![10.0 * (taps(power) * taps(power)) * (c as f32).powi(power); n * 2]);
        assert_eq!(out.map(|x| x.download().expect("values")), want, "{} {plan}", layout.name());
    }
}

/// Blocks that are none are refused by name.
pub fn blocks_that_do_not_divide_are_refused() {
    let context = context();
    for (text, part) in
        [("sum:n7", "blocks of 7 do not divide n, of which there are 80"), ("sum:m100", "blocks of 100 do not divide m")]
    {
        let refused = context.gemm(Gemm::new(Scalar::F32, 48, 80, 4).reduce(text.parse().expect("a reduction"))).expect_err(text);
        assert!(refused.to_string().contains(part), "{refused}");
    }
}

/// Ties give the first, whatever tile or split has them; so does NaN. Rows of one infinity, and a variance about a large mean.
pub fn first_of_the_largest_and_infinite_rows() {
    let ones = (vec![1.0f32; M * K], vec![1.0f32; K * N]);
    for plan in ordered() {
        let ties = |len: usize, by: usize| (0..len).map(|i| ((i * by) % 7) as f32 - 3.0).collect::<Vec<f32>>();
        indices_and_moments(&ties(M * K, 5), &ties(K * N, 11), plan);
        let (mut a, mut b) = ones.clone();
        for (row, value) in [(3, f32::NAN), (17, f32::NEG_INFINITY), (18, f32::INFINITY), (44, 2f32.powi(12))] {
            a[row * K + 2] = value;
        }
        indices_and_moments(&a, &b, plan);
        (b[3 * N + 9], b[2 * N + N - 1], b[N + 30]) = (f32::NAN, f32::NAN, f32::INFINITY);
        indices_and_moments(&ones.0, &b, plan);
    }
}

/// Where tiles reach beyond 2^31 elements, indices have 64 bits on their way.
pub fn indices_have_as_many_bits_as_tiles_reach() {
    let (context, n) = (context(), 1usize << 18);
    let mut b: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
    (b[200_001], b[200_777]) = (5000.0, 5000.0);
    let gemm = Gemm::new(Scalar::F32, 1, n as u64, 1).order(Order::Row).drop_c();
    let op = context.gemm(gemm.reduce("argmax:mn".parse().expect("a reduction"))).expect("a problem");
    let (a, b) = (context.upload(&[1f32]).expect("memory"), context.upload(&b).expect("memory"));
    let mut at = context.upload(&[-1i64]).expect("memory");
    op.run_with(Operands::<f32, f32>::without_c(&a, &b).reduction(&mut at)).expect("it runs");
    assert_eq!(at.download().expect("an index"), [200_001]);
}

/// A convolution of ones with one tap: sums over samples and pixels are counts of all groups' channels, whatever the layout; sums over
/// pixels alone keep the samples apart.
pub fn channels_of_convolutions_are_counted() {
    let context = context();
    let [n, groups, c, k, size] = [3usize, 2, 3, 5, 7];
    let axes = |text: &str| text.parse::<Reduction>().expect("a reduction");
    for (layout, drop) in [(Layout::Nchw, false), (Layout::Nhwc, true)] {
        let (input, filter) = ([size as u64; 2], [1; 2]);
        let conv = Conv::new(Scalar::F32, n as u64, (groups * c) as u64, (groups * k) as u64, &input, &filter).layout(layout);
        let conv = conv.groups(groups as u64).reduce(axes("sum:bm")).reduce(axes("sumsq:bm")).reduce(axes("mean:m"));
        let op = context.conv(if drop { conv.drop_c() } else { conv }).expect("a problem");
        let ones = |len: usize| context.upload(&vec![1f32; len]).expect("memory");
        let (x, w) = (ones(n * groups * c * size * size), ones(groups * k * c));
        let mut y = context.alloc::<f32>((n * groups * k * size * size) as u64).expect("memory");
        let mut out: Vec<_> = [1, 1, n].map(|each| ones(each * groups * k)).into();
        let operands = if drop { Operands::without_c(&x, &w) } else { Operands::new(&x, &w, &mut y) };
        op.run_with(out.iter_mut().fold(operands, Operands::reduction)).expect("it runs");
        let got: Vec<Vec<f32>> = out.iter().map(|x| x.download().expect("values")).collect();
        let count = (n * size * size) as f32;
        let want = [vec![c as f32 * count; groups * k], vec![(c * c) as f32 * count; groups * k], vec![c as f32; n * groups * k]];
        agree(layout.name(), (got, want.into()));
    }
}

/// rocMLIR's shapes and more, of ones, over each axis and over all: counts are exact, whatever the plan.
pub fn tensors_by_themselves_are_counted() {
    let context = context();
    let large = &[1000, 250, 100][..];
    for shape in [&[2, 12, 12][..], &[200, 100], &[10, 30, 20], &[2, 3, 40], &[1], &[4099], &[3, 1, 5], large] {
        let len = shape.iter().product::<u64>();
        let ones = context.upload(&vec![1f32; len as usize]).expect("memory");
        let each = (0..shape.len()).map(|axis| vec![axis]).chain([(0..shape.len()).collect()]);
        // Of the largest the axis that is theirs.
        for over in each.take(if shape == large { 1 } else { 4 }) {
            let count: u64 = over.iter().map(|axis| shape[*axis]).product();
            let plan = if over == [0] { "C_ICE3" } else { "" };
            let problem = Reduce::new(Scalar::F32, shape, &over).op(Operator::Sum).op(Operator::Min);
            let op = under(context.reduce(problem).expect("a problem"), plan);
            let poison = vec![f32::NAN; (len / count) as usize];
            let mut out = [context.upload(&poison).expect("memory"), context.upload(&poison).expect("memory")];
            op.run_with(out.iter_mut().fold(Operands::<f32, f32>::of(&ones), Operands::reduction)).expect("it runs");
            let got = out.iter().map(|x| x.download().expect("values"));
            let want = [count as f32, 1.0].map(|x| vec![x; poison.len()]);
            assert_eq!(got.collect::<Vec<_>>(), want, "{shape:?} over {over:?} {plan}");
        }
    }
}

/// Lines that start at every place between multiples of a vector, in whole and in shares: elements before and behind a line are none of it, and
/// where all are the least the first is the largest.
pub fn lines_that_start_anywhere() {
    let context = context();
    for n in [4u64, 5, 6, 7, 30, 33, 67, 130, 257] {
        const ROWS: u64 = 9;
        for (value, best) in [(1.0, n - 1), (f32::NEG_INFINITY, 0)] {
            let mut values = vec![value; (ROWS * n) as usize];
            // The neighbours of a line are larger than its own.
            values.iter_mut().enumerate().filter(|(i, _)| *i as u64 / n % 3 == 1).for_each(|(_, x)| *x = 7.0);
            (0..ROWS).filter(|_| best > 0).for_each(|row| values[(row * n + best) as usize] += 1.0);
            let tensor = context.upload(&values).expect("memory");
            for plan in ["C_ICE1", "C_ICE3", "C_ICE2"] {
                let plan = format!("A_MIC2__B_MIC8_MIW1_FRW4__{plan}_MAC16_SKW11");
                let problem = Reduce::new(Scalar::F32, &[ROWS, n], &[1]).op(Operator::Max).op(Operator::ArgMax);
                let op = under(context.reduce(problem).expect("a problem"), &plan);
                let mut most = context.upload(&[f32::NAN; ROWS as usize]).expect("memory");
                let mut at = context.upload(&[-1i64; ROWS as usize]).expect("memory");
                op.run_with(Operands::<f32, f32>::of(&tensor).reduction(&mut most).reduction(&mut at)).expect("it runs");
                let rows = || (0..ROWS).map(|row| if row % 3 == 1 { 7.0 } else { value } + if best > 0 { 1.0 } else { 0.0 });
                assert_eq!(most.download().expect("values"), rows().collect::<Vec<f32>>(), "{n} {plan}");
                assert_eq!(at.download().expect("values"), [best as i64; ROWS as usize], "{n} {plan}");
            }
        }
    }
}

/// Values over an empty axis are what operators know of no element, whatever the plan; where an axis that is kept is empty, there are none.
pub fn empty_axes_have_identities() {
    fn check<T: Element>(context: &Context, (shape, over): (&[u64], &[usize]), wanted: &[(Operator, f64)]) {
        let left: u64 = (0..shape.len()).filter(|axis| !over.contains(axis)).map(|axis| shape[axis]).product();
        let tensor = context.upload::<T>(&[]).expect("a buffer");
        for plan in ["", "C_ICE3", "C_ICE3_RDF1"] {
            let problem = wanted.iter().fold(Reduce::new(T::SCALAR, shape, over), |all, (operator, _)| all.op(*operator));
            let op = context.reduce(problem).expect("a problem");
            let keys = Constraint::parse(plan).expect("a constraint").apply(&Plan::default());
            if plan.contains("RDF") {
                op.set_plan(&Plan::from(keys)).expect_err("nothing is to finish");
                continue;
            }
            op.set_plan(&Plan::from(keys)).expect("a legal plan");
            let poison = vec![77f32; left as usize];
            let mut out: Vec<_> = wanted.iter().map(|_| context.upload(&poison).expect("memory")).collect();
            op.run_with(out.iter_mut().fold(Operands::<T, T>::of(&tensor), Operands::reduction)).expect("it runs");
            for ((operator, identity), out) in wanted.iter().zip(&out) {
                let got = out.download().expect("values");
                let same = |x: &f32| *x == *identity as f32 || (x.is_nan() && identity.is_nan());
                assert!(got.len() as u64 == left && got.iter().all(same), "{operator} of {shape:?} over {over:?}: {got:?}");
            }
        }
    }
    let (none, most) = (f64::NAN, f64::INFINITY);
    let all = [
        (Operator::Sum, 0.0),
        (Operator::Mean, none),
        (Operator::SumSq, 0.0),
        (Operator::Max, -most),
        (Operator::Min, most),
        (Operator::AbsMax, 0.0),
        (Operator::LogSumExp, -most),
        (Operator::Var, none),
        (Operator::Norm2, 0.0),
    ];
    let context = context();
    for (shape, over) in [(&[6u64, 0, 50][..], &[1usize][..]), (&[0, 7, 300], &[0, 2]), (&[0, 3], &[0, 1]), (&[0, 2, 0], &[0])] {
        for some in all.chunks(5) {
            check::<f32>(&context, (shape, over), some);
            check::<half::f16>(&context, (shape, over), some);
        }
    }
    for over in [&[0][..], &[2], &[0, 2]] {
        all.chunks(5).for_each(|some| check::<f32>(&context, (&[4, 0, 6], over), some));
    }
    // Of integers the ends of i32, whatever they are added up and stored in.
    let tensor = context.upload::<i32>(&[]).expect("a buffer");
    let ends = Reduce::new(Scalar::I32, &[3, 0], &[1]).op(Operator::Max).op_in(Operator::Min, Scalar::I32);
    let (mut max, mut min) = (context.upload(&[7i64; 3]).expect("memory"), context.upload(&[7i32; 3]).expect("memory"));
    let op = context.reduce(ends).expect("a problem");
    op.run_with(Operands::<i32, i32>::of(&tensor).reduction(&mut max).reduction(&mut min)).expect("it runs");
    assert_eq!(max.download().expect("values"), [i64::from(i32::MIN); 3]);
    assert_eq!(min.download().expect("values"), [i32::MAX; 3]);
    let index = Reduce::new(Scalar::F32, &[3, 0], &[1]).op(Operator::ArgMax);
    let refused = context.reduce(index).expect_err("an index of nothing").to_string();
    assert!(refused.contains("an empty axis (shape 3x0) has no element to name; leave argmax out"), "{refused}");
}

/// Sums of integers are exact beyond 32 bits, their low bits where i32 is asked for; the ends of the type are found.
pub fn integers_wrap_where_said() {
    let context = context();
    let mut values: Vec<i32> = (0..600).map(|i| i32::MAX - (i % 7) * 1000).collect();
    (values[77], values[300], values[599]) = (i32::MIN, i32::MAX, i32::MIN);
    let tensor = context.upload(&values).expect("memory");
    for plan in ["", "C_ICE3"] {
        let reduce = Reduce::new(Scalar::I32, &[2, 300], &[1]).op(Operator::Sum).op_in(Operator::Sum, Scalar::I32);
        let reduce = reduce.op(Operator::Max).op_in(Operator::Min, Scalar::I32).op(Operator::ArgMin);
        let op = under(context.reduce(reduce).expect("a problem"), plan);
        let mut wide: Vec<_> = (0..3).map(|_| context.upload(&[7i64; 2]).expect("memory")).collect();
        let mut narrow: Vec<_> = (0..2).map(|_| context.upload(&[7i32; 2]).expect("memory")).collect();
        let ([sum, max, at], [low, min]) = (&mut wide[..], &mut narrow[..]) else { panic!("five") };
        let operands =
            Operands::<i32, i32>::of(&tensor).reduction(sum).reduction(low).reduction(max).reduction(min).reduction(at);
        op.run_with(operands).expect("it runs");
        let halves = [&values[..300], &values[300..]];
        let sums = halves.map(|half| half.iter().map(|x| i64::from(*x)).sum::<i64>());
        assert!(sums[0] > 1 << 32);
        assert_eq!(wide[0].download().expect("values"), sums);
        assert_eq!(narrow[0].download().expect("values"), sums.map(|sum| sum as i32));
        assert_eq!(wide[1].download().expect("values"), halves.map(|half| i64::from(*half.iter().max().expect("some"))));
        assert_eq!(narrow[1].download().expect("values"), [i32::MIN; 2]);
        assert_eq!(wide[2].download().expect("values"), [77, 299]);
        let scaled = op.run_with(Operands::<i32, i32>::of(&tensor).alpha(2.0).reduction(&mut wide[0]));
        assert!(scaled.is_err(), "integers are not scaled");
    }
}

/// Sums of 8-bit integers are exact, in i32 or in i64, and the ends of their types are found, in whole vectors and beside their ends.
pub fn integers_of_8_bits() {
    fn check<T: Element + Ord + Into<i64>>(values: &[T], shape: [u64; 2]) {
        let context = context();
        let tensor = context.upload(values).expect("memory");
        let rows = || values.chunks_exact(shape[1] as usize);
        let of = |f: fn(&[T]) -> i64| rows().map(f).collect::<Vec<i64>>();
        let sums = of(|row| row.iter().map(|x| (*x).into()).sum());
        let most = of(|row| row.iter().max().map_or(0, |x| (*x).into()));
        let least = of(|row| (0..row.len()).min_by_key(|i| row[*i]).map_or(0, |i| i as i64));
        for plan in ["", "C_ICE3", "C_ICE3_RDF1"] {
            let constraint = Constraint::parse(plan).expect("a constraint");
            let reduce = |sum: Option<Scalar>| {
                let reduce = Reduce::new(T::SCALAR, &shape, &[1]);
                let reduce = sum.map_or(reduce.clone().op(Operator::Sum), |sum| reduce.op_in(Operator::Sum, sum));
                context
                    .reduce(reduce.op_in(Operator::Max, Scalar::I32).op(Operator::ArgMin))
                    .expect("a problem")
                    .constrained(&constraint)
            };
            let poison = |_| context.upload(&vec![7i32; shape[0] as usize]).expect("memory");
            let [mut short, mut max] = [0, 1].map(poison);
            let [mut long, mut at] = [0, 1].map(|_| context.upload(&vec![7i64; shape[0] as usize]).expect("memory"));
            let operands = Operands::<T, T>::of(&tensor).reduction(&mut short).reduction(&mut max).reduction(&mut at);
            reduce(None).run_with(operands).expect("it runs");
            let operands = Operands::<T, T>::of(&tensor).reduction(&mut long).reduction(&mut max).reduction(&mut at);
            reduce(Some(Scalar::I64)).run_with(operands).expect("it runs");
            let wide = |x: &Buffer<i32>| x.download().expect("values").into_iter().map(i64::from).collect::<Vec<_>>();
            assert_eq!((wide(&short), wide(&max)), (sums.clone(), most.clone()), "{plan}");
            assert_eq!(
                (long.download().expect("sums"), at.download().expect("indices")),
                (sums.clone(), least.clone()),
                "{plan}"
            );
        }
    }
    let bits: Vec<u8> = (0..3 * 1024).map(|i| (i * 37 % 251 + i / 200) as u8).collect();
    check::<u8>(&bits, [3, 1024]);
    check::<i8>(&bits[..5 * 77].iter().map(|x| *x as i8).collect::<Vec<_>>(), [5, 77]);
}

/// All results are negative, so that zeros beyond the edge would be the largest.
pub fn what_does_not_exist_is_no_zero() {
    let a: Vec<f32> = (0..M * K).map(|i| ((i * 7) % 5) as f32 - 2.0).collect();
    let b: Vec<f32> = (0..K * N).map(|i| ((i * 5) % 7) as f32 - 3.0).collect();
    for plan in PLANS {
        for drop in [false, true] {
            agree(plan, run(&a, &b, -1e4, plan, drop));
            agree(plan, run(&a, &b, 1e4, plan, drop));
        }
    }
}

/// One NaN reaches the values of its row and column alone; infinities are the largest and the smallest.
pub fn nan_and_infinities_arrive() {
    let (a, b) = (vec![1.0f32; M * K], vec![1.0f32; K * N]);
    for plan in &PLANS[1..] {
        for special in [f32::NAN, f32::NEG_INFINITY, f32::INFINITY] {
            let mut row = a.clone();
            row[17 * K + 2] = special;
            let (got, want) = run(&row, &b, 0.0, plan, true);
            let special_rows = got[0].iter().filter(|x| !x.is_finite()).count();
            assert_eq!(special_rows, 1, "{plan}: {special}");
            agree(plan, (got, want));
            let mut column = b.clone();
            column[3 * N + N - 1] = special;
            agree(plan, run(&a, &column, 0.0, plan, true));
        }
    }
}

pub fn what_is_missing_is_named() {
    let context = context();
    let sum = Reduction::new(Operator::Sum, Axes { n: true, ..Axes::default() });
    let op = context.gemm(Gemm::new(Scalar::F32, 4, 4, 4).reduce(sum).drop_c()).expect("a problem");
    let a = context.upload(&[1.0f32; 16]).expect("memory");
    let refused = op.run_with(Operands::<f32, f32>::without_c(&a, &a)).expect_err("no memory for the sums");
    assert!(refused.to_string().contains("a buffer for each reduction"), "{refused}");
    let mut wrong = context.upload(&[0.0f64; 4]).expect("memory");
    let refused = op.run_with(Operands::<f32, f32>::without_c(&a, &a).reduction(&mut wrong)).expect_err("f64");
    assert!(matches!(refused, Error::Dtype { operand: "reduction", .. }), "{refused}");
    let mut values = context.upload(&[0.0f32; 4]).expect("memory");
    let refused = op.run_with(Operands::<f32, f32>::without_c(&a, &a).reduction(&mut values).beta(1.0)).expect_err("beta");
    assert!(refused.to_string().contains("neither stored nor read"), "{refused}");
    let refused = op.run_with(Operands::<f32, f32>::without_c(&a, &a).reduction(&mut values));
    assert!(refused.is_ok());
    assert_eq!(values.download().expect("values"), [16.0; 4]);
}

/// Operands over k, beside a result that is stored or not, whichever way they are stored: sums of ones are the length, exactly.
pub fn operands_over_k_are_counted() {
    let context = context();
    let (m, n, k) = (45usize, 70usize, 300usize);
    let of = |text: &str| text.parse::<Reduction>().expect("a reduction");
    for (order, trans, drop) in
        [(Order::Row, (false, true), false), (Order::Row, (true, false), true), (Order::Col, (true, true), false)]
    {
        let gemm = Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).order(order).trans(trans.0, trans.1);
        let gemm = ["sum:k:a", "max:n", "sumsq:k:b", "mean:k:a:bf16"].iter().fold(gemm, |gemm, text| gemm.reduce(of(text)));
        let op = context.gemm(if drop { gemm.drop_c() } else { gemm }).expect("a problem");
        let op = under(op, "A_MIC4__B_MIC4__C_MAC64_EDG1_RDF1");
        let (a, b) = (context.upload(&vec![1f32; m * k]).expect("memory"), context.upload(&vec![3f32; k * n]).expect("memory"));
        let mut c = context.alloc::<f32>((m * n) as u64).expect("memory");
        let mut out = [m, m, n].map(|len| context.upload(&vec![f32::NAN; len]).expect("memory"));
        let mut mean = context.upload(&vec![half::bf16::NAN; m]).expect("memory");
        let operands = if drop { Operands::without_c(&a, &b) } else { Operands::new(&a, &b, &mut c) };
        op.run_with(out.iter_mut().fold(operands, Operands::reduction).reduction(&mut mean)).expect("it runs");
        let got = out.each_ref().map(|x| x.download().expect("values"));
        assert_eq!(got, [vec![300.0; m], vec![900.0; m], vec![2700.0; n]], "{order:?} {trans:?}");
        assert_eq!(mean.download().expect("values"), vec![half::bf16::ONE; m]);
    }
}

/// The gradient of the bias beside that of the filter: the output's gradient over samples and pixels, of each channel of each group.
pub fn gradients_of_the_bias_are_counted() {
    let context = context();
    for layout in [Layout::Nchw, Layout::Nhwc] {
        let conv = Conv::new(Scalar::F32, 3, 4, 6, &[7, 5], &[3, 3]).pad(&[1, 1], &[1, 1]).groups(2).layout(layout);
        let conv = conv.direction(Direction::BackwardWeight).reduce("sum:k:a".parse().expect("a reduction"));
        let op = context.conv(conv).expect("a problem");
        let (pixels, channels) = (35usize, 6usize);
        let at = |i: usize| if layout == Layout::Nchw { i / pixels % channels } else { i % channels };
        let gradient: Vec<f32> = (0..3 * pixels * channels).map(|i| at(i) as f32 + 1.0).collect();
        let (gradient, input) =
            (context.upload(&gradient).expect("memory"), context.upload(&vec![1f32; 3 * 4 * 35]).expect("memory"));
        let mut filter = context.alloc::<f32>(6 * 2 * 9).expect("memory");
        let mut bias = context.upload(&[f32::NAN; 6]).expect("memory");
        op.run_with(Operands::new(&gradient, &input, &mut filter).reduction(&mut bias)).expect("it runs");
        let want: Vec<f32> = (1..=6).map(|channel| (3 * 35 * channel) as f32).collect();
        assert_eq!(bias.download().expect("values"), want, "{layout:?}");
    }
}

/// The forward pass of a loss: logsumexp and sum of each row of limited logits, which are not stored.
pub fn a_linear_cross_entropy_gives_losses() {
    let (rows, words, k, softcap) = (13usize, 37usize, 6usize, 2.5f32);
    let numbers = |count: usize, by: usize| (0..count).map(|i| (i * by % 23) as f32 / 8.0 - 1.25).collect::<Vec<f32>>();
    let (x, w, bias) = (numbers(rows * k, 7), numbers(words * k, 5), numbers(words, 3));
    let context = context();
    let loss = Gemm::linear_cross_entropy(Scalar::F32, rows as u64, words as u64, k as u64).bias(Along::N);
    let op = context.gemm(loss.softcap(softcap.try_into().expect("a limit"))).expect("a problem");
    let [dx, dw, db] = [&x, &w, &bias].map(|values| context.upload(values).expect("memory"));
    let [mut most, mut total] = [0, 1].map(|_| context.upload(&vec![f32::NAN; rows]).expect("memory"));
    op.run_with(Operands::<f32, f32>::without_c(&dx, &dw).bias(&db).reduction(&mut most).reduction(&mut total)).expect("it runs");
    let (most, total) = (most.download().expect("values"), total.download().expect("values"));
    for i in 0..rows {
        let of = |j: usize| (0..k).map(|l| f64::from(x[i * k + l]) * f64::from(w[j * k + l])).sum::<f64>() + f64::from(bias[j]);
        let logits: Vec<f64> = (0..words).map(|j| f64::from(softcap) * (of(j) / f64::from(softcap)).tanh()).collect();
        let want = [logits.iter().map(|z| z.exp()).sum::<f64>().ln(), logits.iter().sum()];
        for (got, want) in [most[i], total[i]].into_iter().zip(want) {
            assert!((f64::from(got) - want).abs() < 1e-4, "row {i}: {got}, {want} expected");
        }
    }
}

pub fn operands_that_cannot_be_reduced_are_named() {
    let gemm = |text: &str, drop: bool| {
        let gemm = Gemm::new(Scalar::F32, 8, 8, 8).reduce(text.parse().expect("a reduction"));
        let gemm = if drop { gemm.drop_c() } else { gemm };
        gemm.build().map_err(|e| e.to_string()).expect_err(text)
    };
    for (text, drop, part) in [
        ("argmax:k:a", false, "reduce the operand's tensor in a call of its own"),
        ("sum:k:b:stored", false, "a reduction of an operand has neither indices nor `stored`"),
        ("sum:k:a", true, "nothing is left of a product without C"),
    ] {
        let message = gemm(text, drop);
        assert!(message.contains(part), "{text}: {message}");
    }
    let forward = Conv::new(Scalar::F32, 1, 4, 4, &[7, 5], &[3, 3]).reduce("sum:k:b".parse().expect("a reduction")).build();
    let message = forward.expect_err("windows").to_string();
    assert!(message.contains("reduce other tensors in a call of their own"), "{message}");
}
