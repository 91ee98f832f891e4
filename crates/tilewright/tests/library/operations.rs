//! Operations on a device: plan, run, fall back, refuse.

use tilewright::{
    Activation, Along, Constraint, Context, Conv, Direction, Element, Error, F8E4M3, F8E5M2, GateFunction, Gemm, Operands,
    Options, Order, Origin, Plan, Ragged, RecordsAt, Scalar, ZeroPoint, bf16,
};

/// The built-in device, or the one that `TILEWRIGHT_TEST_DEVICE` names.
fn context() -> Context {
    let device = std::env::var("TILEWRIGHT_TEST_DEVICE").unwrap_or_else(|_| "emu:gfx942".into());
    let options = Options { device: Some(device), records: RecordsAt::Memory, ..Options::default() };
    Context::with(options).expect("the emulator opens")
}

/// Small whole numbers: sums of their products are exact in every type used here.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7 + i / 5) % 9) as f32 - 4.0).collect()
}

/// Row-major C = A * B.
fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    (0..m * n).map(|at| (0..k).map(|l| a[at / n * k + l] * b[l * n + at % n]).sum()).collect()
}

pub fn odd_sizes_with_beta() {
    let context = context();
    let (m, n, k) = (67, 45, 33);
    let (a, b, old) = (numbers(m * k), numbers(k * n), numbers(m * n));
    let op = context.gemm(Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).order(Order::Row)).expect("a problem");
    let mut c = context.upload(&old).expect("memory");
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    op.run(&da, &db, &mut c, 2.0, -1.0).expect("it runs");
    let mark = context.mark().expect("a point behind it");
    mark.wait().expect("it is done");
    assert!(mark.is_passed().expect("it is done"));
    let want: Vec<f32> = product(&a, &b, m, n, k).iter().zip(&old).map(|(p, o)| 2.0 * p - o).collect();
    assert_eq!(c.download().expect("the result"), want);
    assert_eq!(op.choice().expect("a plan").1, Origin::Picked);
}

/// With a scale of both tensors as alpha; B's type is its own.
pub fn products_of_two_8_bit_floats() {
    let context = context();
    let (m, n, k) = (19, 24, 33);
    let (a, b) = (numbers(m * k), numbers(k * n));
    let gemm = Gemm::new(Scalar::E4M3, m as u64, n as u64, k as u64).b_dtype(Scalar::E5M2);
    let op = context.gemm(gemm).expect("a problem");
    let da = context.upload(&a.iter().map(|v| F8E4M3::from_f32(*v)).collect::<Vec<_>>()).expect("memory");
    let db = context.upload(&b.iter().map(|v| F8E5M2::from_f32(*v)).collect::<Vec<_>>()).expect("memory");
    let mut c = context.alloc::<f32>((m * n) as u64).expect("memory");
    op.run_with(Operands::new(&da, &db, &mut c).alpha(0.25)).expect("it runs");
    let want: Vec<f32> = product(&a, &b, m, n, k).iter().map(|p| 0.25 * p).collect();
    assert_eq!(c.download().expect("the result"), want);
    let refused = op.run(&da, &da, &mut c, 1.0, 0.0).expect_err("another type");
    assert!(matches!(refused, Error::Dtype { operand: "B", have: Scalar::E4M3, need: Scalar::E5M2 }), "{refused}");
}

/// Sums of integers are exact in i32, of the ends of both types and whatever the sign; floats of them are scaled.
pub fn products_of_8_bit_integers() {
    let context = context();
    let (m, n, k) = (19usize, 24usize, 133usize);
    let a: Vec<i8> = (0..m * k).map(|i| if i < k { i8::MIN } else { (i * 89 % 256) as u8 as i8 }).collect();
    let b: Vec<u8> = (0..k * n).map(|i| if i % n == 0 { u8::MAX } else { (i * 57 % 256) as u8 }).collect();
    let sum = |row: usize, column: usize| (0..k).map(|i| i32::from(a[row * k + i]) * i32::from(b[i * n + column])).sum::<i32>();
    let want: Vec<i32> = (0..m * n).map(|i| sum(i / n, i % n)).collect();
    assert_eq!(want[0], -128 * 255 * k as i32);
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let gemm = || Gemm::new(Scalar::I8, m as u64, n as u64, k as u64).b_dtype(Scalar::U8).order(Order::Row);
    for plan in ["", "C_ICE3_SKS1"] {
        let op = context.gemm(gemm()).expect("a problem").constrained(&Constraint::parse(plan).expect("a constraint"));
        let mut c = context.alloc::<i32>((m * n) as u64).expect("memory");
        op.run_with(Operands::new(&da, &db, &mut c)).expect("it runs");
        assert_eq!(c.download().expect("the result"), want);
        let refused = op.run_with(Operands::new(&da, &db, &mut c).alpha(2.0)).expect_err("a factor");
        assert!(refused.to_string().contains("not scaled"), "{refused}");
        let op = context.gemm(gemm().out_dtype(Scalar::F32).activation(Activation::Relu)).expect("a problem");
        let op = op.constrained(&Constraint::parse(plan).expect("a constraint"));
        let mut c = context.upload(&vec![4f32; m * n]).expect("memory");
        op.run_with(Operands::new(&da, &db, &mut c).alpha(0.25).beta(2.0)).expect("it runs");
        let scaled: Vec<f32> = want.iter().map(|sum| (0.25 * *sum as f32 + 8.0).max(0.0)).collect();
        assert_eq!(c.download().expect("the result"), scaled);
        // To the nearest, halves to the even one, and to the ends of the type.
        let op = context.gemm(gemm().out_dtype(Scalar::I8)).expect("a problem");
        let op = op.constrained(&Constraint::parse(plan).expect("a constraint"));
        let mut c = context.upload(&vec![5i8; m * n]).expect("memory");
        op.run_with(Operands::new(&da, &db, &mut c).alpha(2f64.powi(-11)).beta(0.5)).expect("it runs");
        let rounded: Vec<i8> = want.iter().map(|sum| (*sum as f32 * 2f32.powi(-11) + 2.5).round_ties_even() as i8).collect();
        assert!(rounded.contains(&i8::MIN) && rounded.iter().any(|x| x.unsigned_abs() < 100));
        assert_eq!(c.download().expect("the result"), rounded);
    }
}

/// Zero points are taken from the factors, exactly: one for each row of A, one for all of B.
pub fn zero_points_of_8_bit_integers() {
    let context = context();
    let (m, n, k) = (19usize, 24usize, 133usize);
    let a: Vec<u8> = (0..m * k).map(|i| (i * 89 % 256) as u8).collect();
    let b: Vec<i8> = (0..k * n).map(|i| (i * 57 % 256) as u8 as i8).collect();
    let (rows, all) = ((0..m as i32).map(|row| 7 * row - 3).collect::<Vec<i32>>(), [-128i32]);
    let term =
        |row: usize, i: usize, column: usize| (i32::from(a[row * k + i]) - rows[row]) * (i32::from(b[i * n + column]) - all[0]);
    let want: Vec<i32> = (0..m * n).map(|at| (0..k).map(|i| term(at / n, i, at % n)).sum()).collect();
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let (of_a, of_b) = (context.upload(&rows).expect("memory"), context.upload(&all).expect("memory"));
    let gemm = || Gemm::new(Scalar::U8, m as u64, n as u64, k as u64).b_dtype(Scalar::I8).order(Order::Row);
    let centred = gemm().zero_point(Along::M, ZeroPoint::Each).zero_point(Along::N, ZeroPoint::Tensor);
    for plan in ["", "C_ICE3_SKS1", "C_SWP1"] {
        let op = context.gemm(centred.clone()).expect("a problem").constrained(&Constraint::parse(plan).expect("a constraint"));
        let mut c = context.alloc::<i32>((m * n) as u64).expect("memory");
        let given = Operands::new(&da, &db, &mut c).zero_points(Along::M, &of_a).zero_points(Along::N, &of_b);
        op.run_with(given).expect("it runs");
        assert_eq!(c.download().expect("the result"), want, "{plan}");
    }
    let op = context.gemm(gemm().zero_point(Along::M, ZeroPoint::Each)).expect("a problem");
    let mut c = context.alloc::<i32>((m * n) as u64).expect("memory");
    let refused = op.run_with(Operands::new(&da, &db, &mut c)).expect_err("none are given");
    assert!(refused.to_string().contains("zero points of A"), "{refused}");
    let refused = op.run_with(Operands::new(&da, &db, &mut c).zero_points(Along::M, &of_b)).expect_err("one is too few");
    assert!(refused.to_string().contains("zero points of A") && refused.to_string().contains("76"), "{refused}");
    let both = Operands::new(&da, &db, &mut c).zero_points(Along::M, &of_a).zero_points(Along::N, &of_b);
    let refused = op.run_with(both).expect_err("the problem has none of B");
    assert!(matches!(refused, Error::Unwanted { what: "zero points of B", .. }), "{refused}");
}

/// Every row by its group's factor, whatever the groups' sizes, which the launch does not know; rows of no group untouched.
pub fn rows_of_groups_are_multiplied_by_their_factors() {
    let context = context();
    let (m, n, k, groups) = (70, 24, 40, 4);
    let (a, b) = (numbers(m * k), numbers(groups * k * n));
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let grouped = || Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).grouped(Along::M, groups as u64);
    let op = context.gemm(grouped()).expect("a problem");
    for ends in [[20, 20, 41, 70], [0, 0, 0, 70], [70, 70, 70, 70], [1, 2, 3, 4], [0, 0, 0, 0], [0, 33, 33, 34]] {
        let before: Vec<f32> = (0..m * n).map(|at| at as f32 + 0.5).collect();
        let mut c = context.upload(&before).expect("memory");
        let told = context.upload::<i32>(&ends).expect("memory");
        op.run_with(Operands::new(&da, &db, &mut c).ends(&told)).expect("it runs");
        let group = |row: usize| ends.iter().position(|end| row < *end as usize);
        let want: Vec<f32> = (0..m)
            .flat_map(|row| match group(row) {
                Some(g) => product(&a[row * k..][..k], &b[g * k * n..][..k * n], 1, n, k),
                None => before[row * n..][..n].to_vec(),
            })
            .collect();
        assert_eq!(c.download().expect("the result"), want, "{ends:?}");
    }
    let mut c = context.alloc::<f32>((m * n) as u64).expect("memory");
    let refused = op.run_with(Operands::new(&da, &db, &mut c)).expect_err("no ends are given");
    assert!(refused.to_string().contains("ends of groups"), "{refused}");
    let few = context.upload(&[70_i32]).expect("memory");
    let refused = op.run_with(Operands::new(&da, &db, &mut c).ends(&few)).expect_err("one is too few");
    assert!(refused.to_string().contains("ends of groups") && refused.to_string().contains("16"), "{refused}");
    let plain = context.gemm(Gemm::new(Scalar::F32, m as u64, n as u64, k as u64)).expect("a problem");
    let refused = plain.run_with(Operands::new(&da, &db, &mut c).ends(&few)).expect_err("the problem has no groups");
    assert!(matches!(refused, Error::Unwanted { what: "ends of groups", .. }), "{refused}");
}

/// A sum for each group of terms, zeros for a group without any, and beta * C is added to both.
pub fn terms_of_groups_are_summed_apart() {
    let context = context();
    let (m, n, k, groups) = (24, 20, 70, 4);
    let (a, b) = (numbers(m * k), numbers(k * n));
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let grouped = Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).grouped(Ragged::K, groups as u64);
    let op = context.gemm(grouped).expect("a problem");
    for ends in [[20, 20, 41, 70], [0, 0, 0, 70], [70, 70, 70, 70], [1, 2, 3, 4], [0, 0, 0, 0], [0, 33, 33, 34]] {
        let mut c = context.upload(&vec![1f32; groups * m * n]).expect("memory");
        let told = context.upload::<i32>(&ends).expect("memory");
        op.run_with(Operands::new(&da, &db, &mut c).ends(&told).beta(2.0)).expect("it runs");
        let mut begin = 0;
        let want: Vec<f32> = ends
            .iter()
            .flat_map(|end| {
                let (first, end) = (begin, *end as usize);
                begin = end;
                let left: Vec<f32> = (0..m).flat_map(|row| a[row * k + first..row * k + end].to_vec()).collect();
                let sums = product(&left, &b[first * n..end * n], m, n, end - first);
                sums.into_iter().map(|sum| sum + 2.0).collect::<Vec<f32>>()
            })
            .collect();
        assert_eq!(c.download().expect("the result"), want, "{ends:?}");
    }
}

/// Work on a device runs in one order, whichever thread it comes from: partial sums of one run are not those of another.
pub fn threads_share_a_context_and_its_workspace() {
    let context = context();
    let (m, n, k) = (24, 40, 96);
    let constraint = Constraint::parse("C_ICE4_SKS1").expect("a constraint");
    let gemm = Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).order(Order::Row);
    let op = context.gemm(gemm).expect("a problem").constrained(&constraint);
    let b = numbers(k * n);
    let db = context.upload(&b).expect("memory");
    let wrong = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let a: Vec<f32> = numbers(m * k).iter().map(|x| x * (thread + 1) as f32).collect();
            let (da, want) = (context.upload(&a).expect("memory"), product(&a, &b, m, n, k));
            (0..5)
                .filter(|_| {
                    let mut c = context.alloc::<f32>((m * n) as u64).expect("memory");
                    op.run(&da, &db, &mut c, 1.0, 0.0).expect("it runs");
                    c.download().expect("the result") != want
                })
                .count()
        };
        let threads: Vec<_> = (0..8).map(|t| scope.spawn(move || run(t))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).sum::<usize>()
    });
    assert_eq!(wrong, 0, "of 40 results");
}

/// Two products of one layer: the bias of each column for all, a residual for each; in both of C's places.
pub fn bias_activation_and_residual() {
    let context = context();
    let (m, n, k) = (19, 24, 16);
    let (a, b, bias, residual) = (numbers(2 * m * k), numbers(k * n), numbers(n), numbers(2 * m * n));
    let gemm = Gemm::new(Scalar::BF16, m as u64, n as u64, k as u64).order(Order::Row).batch(2).stride_b(0);
    let gemm = gemm.out_dtype(Scalar::F32).bias(Along::N).activation(Activation::Relu).residual();
    let op = context.gemm(gemm).expect("a problem");
    let halves = |x: &[f32]| context.upload(&x.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>()).expect("memory");
    let (da, db) = (halves(&a), halves(&b));
    let (added, shortcut) = (context.upload(&bias).expect("memory"), context.upload(&residual).expect("memory"));
    let old = vec![3.0f32; 2 * m * n];
    for beta in [0.0, 0.5] {
        let mut c = context.upload(&old).expect("memory");
        let operands = Operands::new(&da, &db, &mut c).alpha(0.5).beta(beta).bias(&added).residual(&shortcut);
        op.run_with(operands).expect("it runs");
        let want: Vec<f32> = (0..2)
            .flat_map(|g| product(&a[g * m * k..][..m * k], &b, m, n, k))
            .enumerate()
            .map(|(at, sum)| (0.5 * sum + bias[at % n] + beta as f32 * 3.0).max(0.0) + residual[at])
            .collect();
        assert_eq!(c.download().expect("the result"), want, "beta {beta}");
    }
    let mut c = context.upload(&old).expect("memory");
    let missing = op.run_with(Operands::new(&da, &db, &mut c).residual(&shortcut)).expect_err("no bias").to_string();
    assert!(missing.contains("a bias vector") && missing.contains("none was given"), "{missing}");
    let plain = context.gemm(Gemm::new(Scalar::BF16, 19, 24, 16).order(Order::Col).out_dtype(Scalar::F32)).expect("a problem");
    let unwanted = plain.run_with(Operands::new(&da, &db, &mut c).bias(&added)).expect_err("no such operand").to_string();
    assert!(unwanted.starts_with("bias is given") && unwanted.contains("leave it out"), "{unwanted}");
    let source = op.source().expect("a source");
    for line in [
        "relu(alpha * sum over k of",
        "bias       24 x f32, along n",
        "residual   912 x f32, element (g, m, n) at 456 g + 24 m + 1 n",
    ] {
        assert!(source.contains(line), "{line} is missing in\n{}", &source[..2000]);
    }
}

pub fn an_odd_offset_falls_back_to_narrow_accesses() {
    let context = context();
    let (m, n, k) = (64, 64, 32);
    let (a, b) = (numbers(m * k), numbers(k * n));
    let wide = Constraint::parse("A_VEW4__B_VEW4__C_CVW4").expect("a constraint");
    let op = context
        .gemm(Gemm::new(Scalar::F32, 64, 64, 32).order(Order::Col).trans(false, true))
        .expect("a problem")
        .constrained(&wide);
    let want = {
        // Column-major, B transposed: A is m x k by columns, B is n x k by columns.
        let mut c = vec![0.0; m * n];
        for (i, j, l) in (0..m).flat_map(|i| (0..n).flat_map(move |j| (0..k).map(move |l| (i, j, l)))) {
            c[j * m + i] += a[l * m + i] * b[l * n + j];
        }
        c
    };
    let shifted = |data: &[f32]| context.upload(&[&[f32::NAN], data].concat()).expect("memory");
    let (aligned_a, aligned_b) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let (odd_a, odd_b) = (shifted(&a), shifted(&b));
    let mut c = context.upload(&vec![f32::NAN; m * n + 1]).expect("memory");
    let ran = op.run(&aligned_a, &aligned_b, &mut c, 1.0, 0.0).expect("it runs");
    assert_eq!(ran, op.plan().expect("a plan"));
    assert_eq!(c.download().expect("the result")[..m * n], want);
    let ran = op.run(odd_a.at(1), odd_b.at(1), c.at_mut(1), 1.0, 0.0).expect("it runs all the same");
    assert_ne!(ran, op.plan().expect("a plan"));
    assert_eq!(c.download().expect("the result")[1..], want);
    // Kernels are kept: a second run compiles nothing.
    let programs = context.programs();
    op.run(odd_a.at(1), odd_b.at(1), c.at_mut(1), 1.0, 0.0).expect("it runs");
    assert_eq!(context.programs(), programs);
}

pub fn every_storage_type() {
    fn check<T: Element>(from: fn(f32) -> T, to: fn(T) -> f32) {
        let context = context();
        let (a, b) = (numbers(20 * 12), numbers(12 * 16));
        let convert = |x: &[f32]| x.iter().map(|v| from(*v)).collect::<Vec<T>>();
        let op = context.gemm(Gemm::new(T::SCALAR, 20, 16, 12).order(Order::Row)).expect("a problem");
        let (da, db) = (context.upload(&convert(&a)).expect("memory"), context.upload(&convert(&b)).expect("memory"));
        let mut c = context.alloc::<T>(320).expect("memory");
        op.run(&da, &db, &mut c, 1.0, 0.0).expect("it runs");
        let got: Vec<f32> = c.download().expect("the result").into_iter().map(to).collect();
        assert_eq!(got, product(&a, &b, 20, 16, 12), "{}", T::SCALAR);
    }
    check::<f32>(|v| v, |v| v);
    check::<f64>(f64::from, |v| v as f32);
    check::<bf16>(bf16::from_f32, bf16::to_f32);
    check::<tilewright::f16>(tilewright::f16::from_f32, tilewright::f16::to_f32);
}

pub fn a_convolution_in_place_and_materialised() {
    let context = context();
    let (image, filter) = (numbers(2 * 3 * 25), numbers(4 * 3 * 9));
    let mut want = vec![0.0f32; 2 * 4 * 25];
    for (at, out) in want.iter_mut().enumerate() {
        let (n, k, y, x) = (at / 100, at / 25 % 4, at / 5 % 5, at % 5);
        for (c, r, s) in (0..3).flat_map(|c| (0..3).flat_map(move |r| (0..3).map(move |s| (c, r, s)))) {
            let (h, w) = (y + r, x + s);
            if (1..6).contains(&h) && (1..6).contains(&w) {
                *out += image[((n * 3 + c) * 5 + h - 1) * 5 + w - 1] * filter[((k * 3 + c) * 3 + r) * 3 + s];
            }
        }
    }
    for plan in ["A_WOS0__C_BIM0", "A_WOS0__C_BIM1", "A_WOS1__C_BIM0", "A_WOS2__C_BIM0"] {
        let conv = Conv::new(Scalar::F32, 2, 3, 4, &[5, 5], &[3, 3]).pad(&[1, 1], &[1, 1]);
        let op = context.conv(conv).expect("a problem").constrained(&Constraint::parse(plan).expect("a constraint"));
        let (input, weights) = (context.upload(&image).expect("memory"), context.upload(&filter).expect("memory"));
        let mut output = context.alloc::<f32>(200).expect("memory");
        op.run(&input, &weights, &mut output, 1.0, 0.0).unwrap_or_else(|e| panic!("{plan}: {e}"));
        assert_eq!(output.download().expect("the result"), want, "{plan}");
    }
}

pub fn gradients_of_a_strided_convolution_accumulate() {
    let context = context();
    let (image, filter, gradient) = (numbers(2 * 3 * 49), numbers(4 * 3 * 9), numbers(2 * 4 * 16));
    // What is there already.
    let (mut of_image, mut of_filter) = (numbers(image.len() + 2), numbers(filter.len() + 2));
    let (old_image, old_filter) = (of_image.clone(), of_filter.clone());
    for (at, dy) in gradient.iter().enumerate() {
        let (n, k, y, x) = (at / 64, at / 16 % 4, at / 4 % 4, at % 4);
        for (c, r, s) in (0..3).flat_map(|c| (0..3).flat_map(move |r| (0..3).map(move |s| (c, r, s)))) {
            let (h, w) = (2 * y + r, 2 * x + s);
            if (1..8).contains(&h) && (1..8).contains(&w) {
                let (pixel, tap) = (((n * 3 + c) * 7 + h - 1) * 7 + w - 1, ((k * 3 + c) * 3 + r) * 3 + s);
                of_image[pixel + 1] += dy * filter[tap];
                of_filter[tap + 1] += dy * image[pixel];
            }
        }
    }
    let up = |data: &[f32]| context.upload(data).expect("memory");
    let conv = || Conv::new(Scalar::F32, 2, 3, 4, &[7, 7], &[3, 3]).stride(&[2, 2]).pad(&[1, 1], &[1, 1]);
    for (direction, factor, old, want) in
        [(Direction::BackwardData, &filter, old_image, of_image), (Direction::BackwardWeight, &image, old_filter, of_filter)]
    {
        let op = context.conv(conv().direction(direction)).expect("a problem");
        let mut result = up(&old);
        // An odd element to begin at: a narrower plan, in all parts.
        op.run(&up(&gradient), &up(factor), result.at_mut(1), 1.0, 1.0).expect("it runs");
        let mut got = result.download().expect("the result");
        let last = got.len() - 1;
        assert_eq!((got[0], got[last]), (old[0], old[last]), "{direction:?}: memory around it");
        (got[0], got[last]) = (want[0], want[last]);
        assert_eq!(got, want, "{direction:?}");
    }
}

pub fn refusals_name_the_input() {
    let context = context();
    let op = context.gemm(Gemm::new(Scalar::F32, 8, 8, 8).order(Order::Col)).expect("a problem");
    let (small, right) = (context.alloc::<f32>(10).expect("memory"), context.alloc::<f32>(64).expect("memory"));
    let mut c = context.alloc::<f32>(64).expect("memory");
    let e = op.run(&small, &right, &mut c, 1.0, 0.0).expect_err("A is too small");
    assert!(e.to_string().contains("operand A holds 40 bytes, 256 are needed"), "{e}");
    let double = context.alloc::<f64>(64).expect("memory");
    let mut result = context.alloc::<f64>(64).expect("memory");
    let e = op.run(&double, &double, &mut result, 1.0, 0.0).expect_err("wrong type");
    assert!(matches!(e, Error::Dtype { have: Scalar::F64, need: Scalar::F32, .. }), "{e}");
    let e = context.gemm(Gemm::new(Scalar::F32, 8, 0, 8).order(Order::Col)).expect_err("impossible");
    assert!(e.to_string().contains("n = 0"), "{e}");
    let e = op.set_plan(&Plan::default().but(|keys| keys.both(|o| o.micro = 64)).into()).expect_err("too large");
    assert!(matches!(e, Error::Refused(_)), "{e}");
    assert!(Context::open("cuda:17x").is_err());
}

pub fn sources_stand_alone_in_every_language() {
    for (device, part) in [("emu:sm_90a", "__global__"), ("emu:gfx942", "__attribute__((global))")] {
        let options = Options { device: Some(device.into()), records: RecordsAt::Memory, ..Options::default() };
        let context = Context::with(options).expect("the emulator opens");
        let split = Constraint::parse("A_WOS1__B_WOS2__C_ICE3_SKS1").expect("a constraint");
        let op = context.gemm(Gemm::new(Scalar::BF16, 70, 50, 300).order(Order::Col)).expect("a problem").constrained(&split);
        let source = op.source().expect("a source");
        assert!(source.contains(part), "{device}");
        for part in ["// Problem", "Launches, in this order", "  3. ", "workspace + ", "C[g,m,n]"] {
            assert!(source.contains(part), "{device}: {part}");
        }
        let lines: Vec<&str> = source.lines().filter(|l| l.starts_with("static ") || l.starts_with("typedef ")).collect();
        let unique: std::collections::HashSet<&&str> = lines.iter().collect();
        assert_eq!(unique.len(), lines.len(), "{device}: a helper is written twice");
    }
}

/// A gated product of alternating columns that stores its pre-activations.
pub fn gated_products_and_their_preactivations() {
    let context = context();
    let (m, n, k) = (21usize, 14usize, 9usize);
    let (a, b) = (numbers(m * k), numbers(k * 2 * n));
    let gemm = Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).gate(GateFunction::Linear).interleaved(true);
    let op = context.gemm(gemm.preactivations()).expect("a problem");
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let mut c = context.upload(&vec![0.0_f32; m * n]).expect("memory");
    let mut sums = context.upload(&vec![0.0_f32; 2 * m * n]).expect("memory");
    op.run_with(Operands::new(&da, &db, &mut c).preactivations(&mut sums)).expect("it runs");
    let want = product(&a, &b, m, 2 * n, k);
    assert_eq!(sums.download().expect("the sums"), want);
    assert_eq!(c.download().expect("the result"), want.chunks_exact(2).map(|x| x[0] * x[1]).collect::<Vec<_>>());
    let missing = op.run_with(Operands::new(&da, &db, &mut c)).expect_err("no memory").to_string();
    assert!(missing.contains("pre-activations") && missing.contains("none was given"), "{missing}");
    let mut few = context.upload(&vec![0.0_f32; 2 * m * n - 1]).expect("memory");
    let small = op.run_with(Operands::new(&da, &db, &mut c).preactivations(&mut few)).expect_err("too small").to_string();
    assert!(small.contains("pre-activations holds 2348 bytes, 2352 are needed"), "{small}");
    // The weights as two tensors.
    let gemm = Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).gate(GateFunction::Linear).separate_up(true);
    let op = context.gemm(gemm).expect("a problem");
    let halves = [0, 1].map(|part| b.iter().skip(part).step_by(2).copied().collect::<Vec<f32>>());
    let [gate, up] = halves.map(|half| context.upload(&half).expect("memory"));
    op.run_with(Operands::new(&da, &gate, &mut c).up(&up)).expect("it runs");
    assert_eq!(c.download().expect("the result"), want.chunks_exact(2).map(|x| x[0] * x[1]).collect::<Vec<_>>());
    let missing = op.run_with(Operands::new(&da, &gate, &mut c)).expect_err("no memory").to_string();
    assert!(missing.contains("up weights") && missing.contains("none was given"), "{missing}");
}

/// A low-rank update in the same sums, and inputs of two tensors side by side.
pub fn products_of_two_pairs_of_factors() {
    let context = context();
    let (m, n, k, rank) = (21usize, 14usize, 9usize, 3usize);
    let (a, b, a2, b2) = (numbers(m * k), numbers(k * n), numbers(m * rank + 1), numbers(rank * n));
    let gemm = |rank: usize| Gemm::new(Scalar::F32, m as u64, n as u64, k as u64).k2(rank as u64);
    let op = context.gemm(gemm(rank)).expect("a problem");
    let [da, db, da2, db2] = [&a, &b, &a2, &b2].map(|x| context.upload(x).expect("memory"));
    let mut c = context.upload(&vec![0.0_f32; m * n]).expect("memory");
    op.run_with(Operands::new(&da, &db, &mut c).second(&da2, &db2)).expect("it runs");
    let sums = product(&a, &b, m, n, k).into_iter().zip(product(&a2, &b2, m, n, rank));
    assert_eq!(c.download().expect("the result"), sums.map(|(x, y)| x + y).collect::<Vec<_>>());
    let missing = op.run_with(Operands::new(&da, &db, &mut c)).expect_err("no memory").to_string();
    assert!(missing.contains("operand A of the second pair") && missing.contains("none was given"), "{missing}");
    let small = op.run_with(Operands::new(&da, &db, &mut c).second(&da2, &da2)).map(|_| ());
    assert!(small.is_ok(), "64 elements suffice for B2: {small:?}");
    let few = context.upload(&numbers(m * rank - 1)).expect("memory");
    let small = op.run_with(Operands::new(&da, &db, &mut c).second(&few, &db2)).expect_err("too small").to_string();
    assert!(small.contains("operand A of the second pair holds 248 bytes, 252 are needed"), "{small}");
}

/// Complex numbers from any element on; the conjugate transpose of A; a result beside the old one.
pub fn products_of_complex_numbers() {
    let context = context();
    let (m, n, k) = (19usize, 24usize, 13usize);
    let complex = |count: usize, seed: usize| -> Vec<[f64; 2]> {
        (0..count).map(|i| [((i * 7 + seed) % 9) as f64 - 4.0, ((i * 5 + seed) % 7) as f64 - 3.0]).collect()
    };
    // A lies as k x m.
    let (a, b, old) = (complex(k * m, 1), complex(k * n + 1, 2), complex(m * n, 3));
    let gemm = || Gemm::new(Scalar::F64, m as u64, n as u64, k as u64).trans(true, false).conj(true, false);
    let op = context.gemm(gemm()).expect("a problem");
    let (da, db) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
    let mut c = context.upload(&old).expect("memory");
    op.run(&da, db.at(1), &mut c, 2.0, -1.0).expect("it runs");
    let want = |i: usize| {
        let sum = (0..k).fold([0.0, 0.0], |sum, l| {
            let ([x, y], [u, v]) = (a[l * m + i / n], b[1 + l * n + i % n]);
            [sum[0] + x * u + y * v, sum[1] + x * v - y * u]
        });
        [0, 1].map(|part| 2.0 * sum[part] - old[i][part])
    };
    assert_eq!(c.download().expect("the result"), (0..m * n).map(want).collect::<Vec<_>>());
    // Memory without room for a copy of a factor.
    let tight = context.gemm(gemm().workspace(0)).expect("a problem");
    let mut again = context.upload(&old).expect("memory");
    tight.run(&da, db.at(1), &mut again, 2.0, -1.0).expect("it runs");
    assert_eq!(again.download().expect("the result"), c.download().expect("the result"));
    // A complex alpha and beta, of operations made for them.
    let mut turned = context.upload(&old).expect("memory");
    let operands = Operands::new(&da, db.at(1), &mut turned).alpha(2.0).alpha_im(-1.0).beta(-1.0).beta_im(3.0);
    let made = |alpha_im: bool, beta_im: bool| context.gemm(gemm().imaginary(alpha_im, beta_im)).expect("a problem");
    made(true, true).run_with(operands).expect("it runs");
    let times = |[p, q]: [f64; 2], [x, y]: [f64; 2]| [p * x - q * y, p * y + q * x];
    let want = |i: usize| {
        let twice = want(i);
        let sum = [0, 1].map(|part| (twice[part] + old[i][part]) / 2.0);
        let (product, old) = (times([2.0, -1.0], sum), times([-1.0, 3.0], old[i]));
        [product[0] + old[0], product[1] + old[1]]
    };
    assert_eq!(turned.download().expect("the result"), (0..m * n).map(want).collect::<Vec<_>>());
    let refused = op.run_with(Operands::new(&da, &db, &mut c).alpha_im(1.0)).expect_err("a real alpha").to_string();
    assert!(refused.contains("alpha_im = 1e0") && refused.contains("(in its text: alphaim)"), "{refused}");
    let refused = made(true, false).run_with(Operands::new(&da, &db, &mut c).beta_im(0.5)).expect_err("a real beta").to_string();
    assert!(refused.contains("beta_im = 5e-1"), "{refused}");
    let numbers = context.upload(&vec![1.0f64; 2 * k * n]).expect("memory");
    let refused = op.run_with(Operands::new(&da, &numbers, &mut c)).expect_err("numbers").to_string();
    assert!(refused.contains("operand B holds f64, the problem has complex128"), "{refused}");
    let single = context.upload(&[[1.0f32; 2]; 24 * 13]).expect("memory");
    let refused = op.run_with(Operands::new(&da, &single, &mut c)).expect_err("other parts");
    assert!(matches!(refused, Error::Dtype { operand: "B", have: Scalar::F32, need: Scalar::F64 }), "{refused}");
}
