//! Prepared operations on memory of others: here of this process, which the emulator and OpenCL copy in and out.

use tilewright::{
    Addresses, Along, Context, Conv, Direction, Dynamic, Error, Extent, Factors, Gemm, Operands, Operation, Options, Prepared,
    RecordsAt, Role, Scalar, Stream,
};
use tilewright_problem::contraction::Operand;

fn context() -> Context {
    let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
    Context::with(options).expect("the emulator opens")
}

fn address<T>(data: &[T]) -> u64 {
    data.as_ptr() as u64
}

fn numbers(count: usize, step: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * step) % 7) as f32 - 3.0).collect()
}

pub fn prepared_operations_go_to_any_thread() {
    const fn shared<T: Send + Sync>() {}
    shared::<(Context, Operation, Prepared, Addresses, Stream)>();

    let context = context();
    let operation = context.gemm(Gemm::new(Scalar::F32, 33, 20, 17)).expect("a problem");
    let prepared = operation.prepare().expect("it compiles");
    let run = |seed: usize| {
        let (a, b, mut c) = (numbers(33 * 17, seed), numbers(17 * 20, 3), vec![f32::NAN; 33 * 20]);
        let addresses = Addresses::operands([address(&a), address(&b), c.as_mut_ptr() as u64]);
        // SAFETY: the vectors are as large as the problem says and live until the launch, which copies, returns.
        unsafe { prepared.launch(Stream::default(), &addresses, Factors::default(), None) }.expect("it runs");
        (a, b, c)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..5).map(|seed| scope.spawn(move || run(seed))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    });
    for (a, b, c) in results {
        let (a, b) = (context.upload(&a).expect("memory"), context.upload(&b).expect("memory"));
        let mut expected = context.alloc::<f32>(33 * 20).expect("memory");
        let plan = operation.run(&a, &b, &mut expected, 1.0, 0.0).expect("it runs");
        assert_eq!((c, plan), (expected.download().expect("values"), prepared.plan()));
    }
}

pub fn leading_dimensions_bias_and_old_values_are_those_of_the_caller() {
    let gemm = Gemm::new(Scalar::F32, 2, 3, 2).ldc(5).bias(Along::N);
    let prepared = context().gemm(gemm).expect("a problem").prepare().expect("it compiles");
    let (a, b, bias) = ([1.0f32, 0.0, 0.0, 2.0], [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [10.0f32, 20.0, 30.0]);
    let mut c = [1.0f32, 1.0, 1.0, -7.0, -7.0, 2.0, 2.0, 2.0];
    let addresses = Addresses::operands([address(&a), address(&b), c.as_mut_ptr() as u64]).with(Role::Bias, address(&bias));
    // SAFETY: the arrays are as large as the problem says and outlive the launch, which copies.
    unsafe { prepared.launch(Stream::default(), &addresses, Factors::real(1.0, 100.0), None) }.expect("it runs");
    assert_eq!(c, [111.0, 122.0, 133.0, -7.0, -7.0, 218.0, 230.0, 242.0]);
}

pub fn extents_of_a_launch_touch_no_more_than_they_say() {
    let gemm = Gemm::new(Scalar::F32, 32, 2, 3).dynamic(Dynamic { m: true, ..Dynamic::NONE });
    let operation = context().gemm(gemm).expect("a problem");
    let prepared = operation.prepare().expect("it compiles");
    let (x, weight, mut y) = ([1.0f32; 7 * 3], [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0f32; 14]);
    let addresses = Addresses::operands([address(&x), address(&weight), y.as_mut_ptr() as u64]);
    let launch = |m| {
        let at = prepared.extents().with(Extent::M, m);
        // SAFETY: seven rows are there; a launch that asks for more is refused.
        unsafe { prepared.launch(Stream::default(), &addresses, Factors::default(), Some(at)) }
    };
    launch(7).expect("it runs");
    assert_eq!(y.to_vec(), [9.0, 12.0].repeat(7));
    assert!(matches!(launch(33), Err(Error::Bind(_))));
}

pub fn what_is_missing_is_named() {
    let prepared = context().gemm(Gemm::new(Scalar::F32, 4, 4, 4).residual()).expect("a problem").prepare().expect("it compiles");
    let x = [0.0f32; 16];
    let whole = Addresses::operands([address(&x); 3]).with(Role::Residual, address(&x));
    for (addresses, what) in [
        (whole.with(Role::A, 0), "operand A"),
        (whole.with(Role::C, 0), "operand C"),
        (whole.with(Role::Residual, 0), "residual"),
    ] {
        // SAFETY: nothing is touched: an address is missing.
        let refused = unsafe { prepared.launch(Stream::default(), &addresses, Factors::default(), None) };
        let text = refused.expect_err("an address is missing").to_string();
        assert!(text.contains(what), "{text}");
    }
}

/// In every direction; products whose matrices lie in each other's gaps run.
pub fn a_result_that_overlaps_a_factor_is_refused() {
    let context = context();
    let launch = |prepared: &Prepared, memory: &mut [f32], [a, b, c]: [usize; 3]| {
        let first = memory.as_mut_ptr() as u64;
        let [a, b, c] = [a, b, c].map(|at| first + 4 * at as u64);
        // SAFETY: each begins so early in the memory that all of it is there; the launch copies.
        unsafe { prepared.launch(Stream::default(), &Addresses::operands([a, b, c]), Factors::default(), None) }
    };
    let mut memory = numbers(1024, 3);
    for direction in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight] {
        let conv = Conv::new(Scalar::F32, 2, 4, 4, &[4, 4], &[3, 3]).pad(&[1, 1], &[1, 1]).direction(direction);
        let prepared = context.conv(conv.clone()).expect("a problem").prepare().expect("it compiles");
        let conv = conv.build().expect("a problem");
        let [a, b] = [Operand::A, Operand::B].map(|operand| conv.operand(operand).1 as usize);
        let of_c = conv.operand(Operand::C).1 as usize;
        // C right behind both, and by one element into B, or A.
        launch(&prepared, &mut memory, [0, a, a + b]).expect("they are apart");
        for (places, part) in
            [([0, a, a + b - 1], "operand B"), ([of_c - 1, of_c - 1 + a, 0], "operand A"), ([0, a, 0], "operand A")]
        {
            let refused = launch(&prepared, &mut memory, places).expect_err("they overlap").to_string();
            assert!(refused.contains(&format!("operand C overlaps that of {part}")), "{direction:?}: {refused}");
            assert!(refused.contains("give operand C separate memory"), "{refused}");
        }
    }
    // Columns of one matrix, of which each operand has some.
    let gemm = Gemm::new(Scalar::F32, 4, 4, 4).lda(12).ldb(12).ldc(12);
    let prepared = context.gemm(gemm).expect("a problem").prepare().expect("it compiles");
    launch(&prepared, &mut memory, [0, 4, 8]).expect("no element is another's");
}

pub fn a_preparation_holds_for_the_alignment_it_was_asked_for() {
    let context = context();
    let operation = context.gemm(Gemm::new(Scalar::F16, 64, 64, 64)).expect("a problem");
    let aligned = operation.prepare().expect("it compiles");
    assert!(aligned.alignments().iter().any(|&bytes| bytes > 2), "{:?}", aligned.alignments());
    let anywhere = operation.prepare_for([2; 3]).expect("a fallback");
    assert!(anywhere.alignments().iter().all(|&bytes| bytes <= 2), "{:?}", anywhere.alignments());
    // The same that a run with an odd first element takes.
    let operands = context.upload(&vec![tilewright::f16::ONE; 64 * 64 + 1]).expect("memory");
    let mut c = context.alloc::<tilewright::f16>(64 * 64 + 1).expect("memory");
    let ran = operation.run_with(Operands::new(operands.at(1), operands.at(1), c.at_mut(1))).expect("it runs");
    assert!(ran != aligned.plan());
}
