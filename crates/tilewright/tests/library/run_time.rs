//! Extents known only at launch: one kernel for every size up to the largest.

use tilewright::{
    Buckets, Constraint, Context, Dynamic, Error, Extent, Extents, Gemm, GemmBuilder, Operands, Options, Order, Plan, RecordsAt,
    Scalar, bf16,
};

fn context(device: &str) -> Context {
    let options = Options { device: Some(device.into()), records: RecordsAt::Memory, ..Options::default() };
    Context::with(options).expect("the emulator opens")
}

/// Small whole numbers: sums of their products are exact in every type used here.
fn numbers(count: u64) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + i / 5) % 9) as f32 - 4.0).collect()
}

const N: u64 = 40;
const K: u64 = 24;
const CAPACITY: u64 = 100;

fn rows_at_launch() -> GemmBuilder {
    Gemm::new(Scalar::F32, CAPACITY, N, K).order(Order::Row).dynamic(Dynamic { m: true, ..Dynamic::NONE })
}

/// Row-major C = A * B.
fn product(a: &[f32], b: &[f32], m: u64) -> Vec<f32> {
    let at = |i: u64, j: u64| (0..K).map(|l| a[(i * K + l) as usize] * b[(l * N + j) as usize]).sum();
    (0..m * N).map(|x| at(x / N, x % N)).collect()
}

pub fn one_kernel_runs_every_number_of_rows() {
    let context = context("emu:sm_90a");
    let operation = context.gemm(rows_at_launch()).expect("a problem");
    let (a, b) = (numbers(CAPACITY * K), numbers(K * N));
    let db = context.upload(&b).expect("memory");
    for m in [1, 7, 32, 33, 100] {
        // Buffers of just this many rows, and a row of C more that must stay.
        let da = context.upload(&a[..(m * K) as usize]).expect("memory");
        let mut c = context.upload(&vec![-99.0f32; ((m + 1) * N) as usize]).expect("memory");
        operation.run_with(Operands::new(&da, &db, &mut c).at(operation.extents().with(Extent::M, m))).expect("it runs");
        let c = c.download().expect("the result");
        assert_eq!(c[..(m * N) as usize], product(&a, &b, m), "m = {m}");
        assert!(c[(m * N) as usize..].iter().all(|x| *x == -99.0), "m = {m}: what follows was written");
        assert_eq!(context.programs(), 1);
    }
    assert!(operation.source().expect("a source").contains("each launch chooses 1 to 100 for m"));
}

pub fn one_kernel_runs_every_batch_and_both_sides() {
    let context = context("emu:gfx942");
    for (dynamic, order) in [
        (Dynamic { g: true, ..Dynamic::NONE }, Order::Row),
        (Dynamic { g: true, n: true, m: false }, Order::Col),
        (Dynamic { g: true, n: true, m: true }, Order::Col),
    ] {
        let gemm = Gemm::new(Scalar::F32, 20, 30, K).order(order).batch(6).dynamic(dynamic);
        let operation = context.gemm(gemm).expect("a problem");
        let plan = operation.plan().expect("a plan");
        let factors = tilewright_check::run::Factors::real(1.5, -0.5);
        let verified = operation.verify(&plan, 3, factors, tilewright_check::verify::Depth::Thorough, true).expect("it runs");
        assert!(verified.verification.passed, "{:?}", verified.verification);
        // The largest, and several others.
        assert!(verified.verification.checked > 20 * 30 * 6);
    }
}

/// Values of ones are counts: those of the launch, whatever extents it chooses and however parts of them meet.
pub fn reductions_are_those_of_the_launch() {
    let atomics =
        Options { allow_atomics: true, device: Some("emu:sm_90a".into()), records: RecordsAt::Memory, ..Options::default() };
    let context = Context::with(atomics).expect("the emulator opens");
    let all = Extents { g: 3, m: 40, n: 50 };
    let dynamic = |g, m, n| Dynamic { g, m, n };
    for plan in
        ["", "_RDF1", "_RDF2", "_RDF4", "_PST3_RDF1", "_ICE3_SKS1", "_ICE3_SKS1_RDF1", "_ICE2_SKS2_RDF5", "_ICE2_SKS0_RDF2"]
    {
        let atomic = ["RDF2", "RDF4"].iter().any(|key| plan.contains(key));
        let texts = if atomic {
            &["sum:n", "sum:m", "sum:bm", "sum:bmn"][..]
        } else {
            &["sum:n", "sum:m", "sum:bm", "absmax:bmn", "mean:mn", "var:n", "mean:bm", "argmin:n"]
        };
        for (chosen, at) in [
            (dynamic(false, true, false), Extents { m: 9, ..all }),
            (dynamic(true, false, true), Extents { g: 2, n: 33, ..all }),
            (dynamic(true, true, true), Extents { g: 1, m: 33, n: 17 }),
            (dynamic(true, true, true), all),
        ] {
            let gemm = Gemm::new(Scalar::F32, all.m, all.n, K).order(Order::Row).batch(all.g).dynamic(chosen).drop_c();
            let gemm = texts.iter().fold(gemm, |gemm, text| gemm.reduce(text.parse().expect("a reduction")));
            let operation = context.gemm(gemm).expect("a problem");
            let keys = Constraint::parse(&format!("A_MIC4__B_MIC4__C_MAC64_EDG1{plan}")).expect("a constraint");
            operation.set_plan(&Plan::from(keys.apply(&Plan::default()))).expect("a legal plan");
            // What the launch does not have is NaN.
            let ones = |exists: &dyn Fn(u64) -> bool, len: u64| -> Vec<f32> {
                (0..len).map(|i| if exists(i) { 1.0 } else { f32::NAN }).collect()
            };
            let a = ones(&|i| i / (all.m * K) < at.g && i / K % all.m < at.m, all.g * all.m * K);
            let b = ones(&|i| i / (all.n * K) < at.g && i % all.n < at.n, all.g * all.n * K);
            let (a, b) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
            let wanted = |text: &str| match text {
                "sum:n" => (at.g * at.m, K * at.n),
                "sum:m" => (at.g * at.n, K * at.m),
                "sum:bm" => (at.n, K * at.g * at.m),
                "sum:bmn" => (1, K * at.g * at.m * at.n),
                "absmax:bmn" => (1, K),
                "mean:mn" => (at.g, K),
                "mean:bm" => (at.n, K),
                _ => (at.g * at.m, 0),
            };
            let values = || texts.iter().filter(|text| **text != "argmin:n").map(|text| wanted(text));
            // A value more, which must stay.
            let mut out: Vec<_> =
                values().map(|(len, _)| context.upload(&vec![f32::NAN; len as usize + 1]).expect("memory")).collect();
            let mut indices = context.upload(&vec![-7i64; (at.g * at.m) as usize + 1]).expect("memory");
            let operands = out.iter_mut().fold(Operands::<f32, f32>::without_c(&a, &b), Operands::reduction);
            let operands = if atomic { operands } else { operands.reduction(&mut indices) };
            operation.run_with(operands.at(at)).expect("it runs");
            for (((len, value), out), text) in values().zip(&out).zip(texts) {
                let got = out.download().expect("values");
                let what = format!("{text} of {at:?} under {plan}");
                assert!(
                    got[..len as usize].iter().all(|x| (*x - value as f32).abs() <= 1e-6 * value as f32),
                    "{what}: {got:?} for {value}"
                );
                assert!(got[len as usize].is_nan(), "{what}: what follows was written");
            }
            let indices = indices.download().expect("indices");
            let last = indices.len() - 1;
            assert!(atomic || indices[..last].iter().all(|x| *x == 0), "{at:?} under {plan}: {indices:?}");
            assert_eq!(indices[last], -7);
        }
    }
}

pub fn sizes_beyond_the_declared_are_refused() {
    let context = context("emu:sm_90a");
    let operation = context.gemm(rows_at_launch()).expect("a problem");
    let (a, b) = (context.upload(&numbers(CAPACITY * K)).expect("memory"), context.upload(&numbers(K * N)).expect("memory"));
    let mut c = context.alloc::<f32>(CAPACITY * N).expect("memory");
    let mut refused = |at: Extents, part: &str| {
        let error = operation.run_with(Operands::new(&a, &b, &mut c).at(at)).expect_err("must be refused");
        assert!(matches!(error, Error::Bind(_)), "{error}");
        assert!(error.to_string().contains(part), "`{error}` lacks `{part}`");
    };
    let all = operation.extents();
    refused(all.with(Extent::M, 0), "m = 0: this kernel holds for 1 to 100");
    refused(all.with(Extent::M, 101), "m = 101: this kernel holds for 1 to 100");
    refused(all.with(Extent::N, 39), "n = 39: this kernel holds for 40 only");
    let short = context.upload(&numbers(10 * K)).expect("memory");
    let error = operation.run_with(Operands::new(&short, &b, &mut c).at(all.with(Extent::M, 11))).expect_err("too small");
    assert!(error.to_string().contains("operand A"), "{error}");
    operation.run_with(Operands::new(&short, &b, &mut c).at(all.with(Extent::M, 10))).expect("ten rows are there");
    // Pulled-back tiles need whole tiles.
    let pulled = Constraint::parse("C_EDG0").expect("a constraint");
    let error = context.gemm(rows_at_launch()).expect("a problem").constrained(&pulled).plan().expect_err("refused");
    assert!(error.to_string().contains("known only at launch"), "{error}");
}

pub fn buckets_compile_once_each() {
    let context = context("emu:sm_90a");
    let gemm = Gemm::new(Scalar::BF16, 256, 64, 64)
        .order(Order::Row)
        .trans(false, true)
        .out_dtype(Scalar::F32)
        .dynamic(Dynamic { m: true, ..Dynamic::NONE })
        .build()
        .expect("a problem");
    let buckets = Buckets::new(&context, &gemm, Extent::M, &[16, 64, 512]).expect("operations");
    let bounds: Vec<u64> = buckets.operations().map(|o| o.extents().m).collect();
    assert_eq!(bounds, [16, 64, 256]);
    let ones = |count: u64| context.upload(&vec![bf16::from_f32(1.0); count as usize]).expect("memory");
    let (x, w) = (ones(256 * 64), ones(64 * 64));
    for (m, programs) in [(1, 1), (16, 1), (200, 2), (17, 3), (64, 3), (256, 3), (5, 3)] {
        let mut y = context.upload(&vec![-1.0f32; 256 * 64]).expect("memory");
        buckets.run_with(Operands::new(&x, &w, &mut y).at(buckets.extents().with(Extent::M, m))).expect("it runs");
        let y = y.download().expect("the result");
        let (now, rest) = y.split_at(m as usize * 64);
        assert!(now.iter().all(|v| *v == 64.0) && rest.iter().all(|v| *v == -1.0), "m = {m}");
        assert_eq!(context.programs(), programs, "m = {m}");
    }
}

/// Rows known only at launch are columns of the swapped product: lines of C end where they always do, and leave by bulk stores. Lines
/// that end anywhere do not.
pub fn exchanged_products_store_in_bulk() {
    let context = context("emu:sm_90a");
    let keys = "A_MIC1_ACP2_WOS0_CLU1__B_MIC8_ACP2_WOS0_CLU1__C_UNI2_MAC128_UNR64_PFG1_BUF2_LWV4_ICE1_FRA0_PST3_PNG0_SWP1_CST1_RGA2_SKW10";
    let constraint = Constraint::parse(keys).expect("a constraint");
    for (dynamic, bulk) in [(Dynamic { m: true, ..Dynamic::NONE }, true), (Dynamic { n: true, ..Dynamic::NONE }, false)] {
        let gemm = Gemm::new(Scalar::BF16, 136, 72, 136).order(Order::Row).trans(false, true).dynamic(dynamic);
        let operation = context.gemm(gemm).expect("a problem").constrained(&constraint);
        if !bulk {
            let error = operation.plan().expect_err("refused");
            assert!(error.to_string().contains("CST1"), "{error}");
            continue;
        }
        let plan = operation.plan().expect("a plan");
        let factors = tilewright_check::run::Factors::real(1.5, 0.0);
        let verified = operation.verify(&plan, 3, factors, tilewright_check::verify::Depth::Thorough, true).expect("it runs");
        assert!(verified.verification.passed, "{:?}", verified.verification);
    }
}
