//! Every public method, called with what the library itself exports: no type of another crate is needed.

use tilewright::{
    Audience, Backend, Buckets, Budget, Cache, CacheState, Cancel, Candidate, Constraint, Context, Conv, Depth, DeviceError,
    DeviceKind, DeviceOptions, Dialect, Dynamic, Ended, Error, Event, Extent, Factors, Gemm, Layout, Math, NativeHandles,
    Operands, Operation, Options, Order, Origin, Outcome, Plan, Problem, RecordsAt, RivalTime, Scalar, SearchOptions,
    SharedBudget, Slice, SliceMut, Standing, Strategy, Target, TimeKind, Times, Timing, Trials, TuneError, Verified, Wanted,
    default_records, list_devices, remedies,
};

fn context() -> Context {
    let device_options = DeviceOptions { cache: Cache::disabled(), ..DeviceOptions::default() };
    let options = Options {
        device: Some("emu:sm_90a".into()),
        device_options,
        records: RecordsAt::Memory,
        workspace: Some(1 << 20),
        allow_atomics: false,
        ieee: false,
        cache: CacheState::Cold,
        trials: Trials::InProcess,
    };
    Context::with(options).expect("the emulator opens")
}

pub fn a_context_tells_what_it_is() {
    let context = context();
    let info = context.info();
    assert_eq!((info.backend, info.kind, info.target.dialect), (Backend::Emulator, DeviceKind::Emulated, Dialect::Cuda));
    assert!(info.target.features.warpgroup && info.target.limits.max_threads == 1024 && info.target.rates.clock_ghz > 0.5);
    assert_eq!(context.device().info().id, "emu:sm_90a");
    assert!(!context.device().native().is_some_and(|native| matches!(native.handles(), NativeHandles::Cuda { .. })));
    assert_eq!(context.records().list(&Default::default()).expect("records").len(), 0);
    assert!(matches!(Context::open("toaster"), Err(Error::Device(DeviceError::BadSpec { .. }))));
    assert!(list_devices().iter().any(|l| l.backend == Backend::Emulator && l.device.is_ok()));
    assert!(default_records().ends_with("records.sqlite") || std::env::var_os("TILEWRIGHT_RECORDS").is_some());
    context.sync().expect("nothing runs");
}

pub fn a_search_with_all_options() {
    let context = context();
    let gemm = Gemm::new(Scalar::F32, 48, 32, 40).math(Math::Exact).order(Order::Row);
    let operation = context.gemm(gemm).expect("a problem");
    let options = SearchOptions {
        budget: Budget::trials(4),
        strategy: Strategy::Random,
        seed: 7,
        factors: Factors::real(2.0, 1.0),
        starts: operation.candidates(1).iter().map(|c: &Candidate| c.plan).collect(),
        ..SearchOptions::default()
    };
    let mut trials = 0;
    let outcome: Outcome = operation
        .tune_with(&options, &Cancel::default(), &mut |event| {
            if let Event::Trial { tally, .. } = event {
                trials = tally.trials;
            }
        })
        .expect("a plan");
    assert_eq!((trials, outcome.tally.trials, outcome.time_kind, outcome.ended), (4, 4, TimeKind::Modelled, Ended::Budget));
    assert_eq!(operation.choice().expect("a plan"), (outcome.plan, Origin::Tuned));
    let Verified { verification, on } =
        operation.verify(&outcome.plan, 3, options.factors, Depth::Thorough, true).expect("it runs");
    assert!(verification.passed && on.is_none());
    let Times { samples, kind } = operation.time(&outcome.plan, options.factors, 3).expect("a time");
    assert!(samples.len() == 1 && kind == TimeKind::Modelled && Timing::default().cache == CacheState::Cold);
    assert!(operation.source().expect("a source").contains("__global__"));
    let amd = Target::by_arch("gfx942").expect("known");
    let elsewhere = context.operation_for(operation.problem().clone(), &amd).expect("a problem");
    let plan = elsewhere.plan().expect("a plan");
    assert!(elsewhere.source_of(&plan, &amd).expect("a source").contains("gfx942"));
    assert!(elsewhere.space().resolve(&plan).is_ok() && operation.context().programs() > 0);
}

/// Keeps the numbers of operations that have a plan, and whether they run with it by then.
struct Settled<'a> {
    operations: &'a [Operation],
    origins: Vec<(usize, Origin)>,
}

impl Audience for Settled<'_> {
    fn hear(&mut self, _: usize, _: &Event, _: &Standing) {}
    fn settled(&mut self, number: usize, result: &Result<Outcome, TuneError>, standing: &Standing) -> Vec<RivalTime> {
        assert!(result.is_ok() && standing.problems == 2);
        self.origins.push((number, self.operations[number].choice().expect("a plan").1));
        Vec::new()
    }
}

pub fn several_operations_share_a_budget() {
    let context = context();
    let gemm = |m| context.gemm(Gemm::new(Scalar::F32, m, 32, 40)).expect("a problem");
    let operations = [gemm(32), gemm(64)];
    let impossible = gemm(48).constrained(&Constraint::parse("C_UNI3").expect("a constraint"));
    let wanted: Vec<Wanted<'_>> = operations.iter().map(Wanted::new).collect();
    let budget = SharedBudget { budget: Budget::trials(10), reach_all: false };
    let mut settled = Settled { operations: &operations, origins: Vec::new() };
    let campaign = context.tune_all(&wanted, Some(budget), &Cancel::default(), &mut settled).expect("a device");
    for number in [0, 1] {
        assert!(settled.origins.contains(&(number, Origin::Tuned)), "{:?}", settled.origins);
        let outcome = campaign.outcomes[number].as_ref().expect("reached").as_ref().expect("a plan");
        assert_eq!(operations[number].plan().expect("a plan"), outcome.plan);
    }
    // One that has no plan says why.
    let none =
        Wanted { options: SearchOptions { budget: Budget::trials(2), ..SearchOptions::default() }, ..Wanted::new(&impossible) };
    let campaign = context.tune_all(&[none], None, &Cancel::default(), &mut Silent).expect("a device");
    assert!(matches!(campaign.outcomes[..], [Some(Err(Error::NoPlan { .. }))]), "{:?}", campaign.outcomes);
}

/// Hears nothing.
struct Silent;

impl Audience for Silent {
    fn hear(&mut self, _: usize, _: &Event, _: &Standing) {}
    fn settled(&mut self, _: usize, _: &Result<Outcome, TuneError>, _: &Standing) -> Vec<RivalTime> {
        Vec::new()
    }
}

pub fn plans_set_and_refused() {
    let context = context();
    let operation = context.operation(Problem::parse("tC0_tA0_tB0_colMaj0_m64_n64_k64_lda64_ldb64_ldc64_ws0_f32").expect("text"));
    let operation = operation.expect("a problem").constrained(&Constraint::parse("C_MAC64").expect("a constraint"));
    let prepared = operation.prepare().expect("it compiles").plan();
    assert_eq!((context.programs(), prepared.threads), (1, 64));
    let wrong: Plan = prepared.but(|keys| keys.a.micro = 63).into();
    assert!(matches!(operation.set_plan(&wrong), Err(Error::Refused(refusal)) if !remedies(&refusal).is_empty()));
    let near = operation.nearest(&wrong).expect("a plan");
    operation.set_plan(&near).expect("legal");
    assert_eq!(operation.choice().expect("a plan").1, Origin::Given);
    assert!(operation.tune(Budget::trials(1)).expect("a plan").verified);
    let impossible = context.gemm(Gemm::new(Scalar::F32, 8, 8, 8)).expect("a problem");
    let impossible = impossible.constrained(&Constraint::parse("C_UNI3").expect("a constraint"));
    assert!(matches!(impossible.plan(), Err(Error::NoPlan { .. })), "{:?}", impossible.plan());
}

pub fn memory_by_name_and_by_slice() {
    let context = context();
    let conv = Conv::new(Scalar::F32, 1, 2, 3, &[4, 4], &[3, 3]).pad(&[1, 1], &[1, 1]).layout(Layout::Nhwc);
    let operation = context.conv(conv).expect("a problem");
    let input = context.upload(&[1.0f32; 33]).expect("memory");
    let filter = context.upload(&[0.5f32; 54]).expect("memory");
    let mut output = context.alloc::<f32>(48).expect("memory");
    assert!(output.len() == 48 && !output.is_empty() && output.memory().bytes() == 192);
    output.write(&[9.0; 48]).expect("room");
    let (from, to): (Slice<'_, f32>, SliceMut<'_, f32>) = (input.at(1), output.at_mut(0));
    operation.run(from, &filter, to, 1.0, 0.0).expect("it runs");
    assert_eq!(output.download().expect("the result")[0], 4.0);
}

pub fn extents_at_launch() {
    let context = context();
    let gemm = Gemm::new(Scalar::F32, 32, 8, 8).dynamic(Dynamic { m: true, ..Dynamic::NONE }).build().expect("a problem");
    let buckets = Buckets::new(&context, &gemm, Extent::M, &[8]).expect("buckets");
    assert_eq!((buckets.operations().count(), buckets.extents().m), (2, 32));
    let at = buckets.extents().with(Extent::M, 5);
    assert_eq!(buckets.operation(&at).extents().m, 8);
    let (a, b) = (context.upload(&[1.0f32; 40]).expect("memory"), context.upload(&[1.0f32; 64]).expect("memory"));
    let mut c = context.alloc::<f32>(40).expect("memory");
    buckets.run_with(Operands::new(&a, &b, &mut c).alpha(0.5).beta(0.0).at(at)).expect("it runs");
    assert_eq!(c.download().expect("the result"), [4.0; 40]);
}

/// C transposed = B transposed times A transposed, on the same memory: what was tuned one way serves the other way.
pub fn a_product_told_in_the_other_order_is_found() {
    for (dtype, plan) in [(Scalar::F32, "C_UNI0_MVW1_MAC64"), (Scalar::BF16, "C_UNI1"), (Scalar::BF16, "C_UNI2")] {
        let context = context();
        let constraint = Constraint::parse(plan).expect("a constraint");
        // Row-major A (m x k) times B (stored n x k) is column-major B times A: B stored k x n is what is transposed there.
        let row = Gemm::new(dtype, 96, 160, 64).trans(false, true);
        let column = Gemm::new(dtype, 160, 96, 64).trans(true, false).order(Order::Col);
        let tuned = context.gemm(row.clone()).expect("a problem").constrained(&constraint);
        let found = tuned.tune(Budget::trials(2)).expect("a plan").plan;
        assert_eq!(context.gemm(row.clone()).expect("a problem").choice().expect("a plan"), (found, Origin::Recorded));
        assert_eq!(row.build().expect("a problem").in_other_order(), column.clone().build().expect("a problem"));
        let operation = context.gemm(column).expect("a problem");
        let (plan, origin) = operation.choice().expect("a plan");
        assert_eq!(origin, Origin::Recorded, "{dtype} {plan}");
        let verified = operation.verify(&plan, 1, Factors::default(), Depth::Thorough, true).expect("it runs");
        assert!(verified.verification.passed, "{:?}", verified.verification.reason);
    }
}

pub fn memory_of_another_context_is_refused() {
    let (here, there) = (context(), context());
    let operation = here.gemm(Gemm::new(Scalar::F32, 4, 4, 4)).expect("a problem");
    let (mine, theirs) = (here.upload(&[1.0f32; 16]).expect("memory"), there.upload(&[1.0f32; 16]).expect("memory"));
    let mut c = here.alloc::<f32>(16).expect("memory");
    let e = operation.run(&mine, &theirs, &mut c, 1.0, 0.0).expect_err("B is of another context");
    assert!(matches!(e, Error::OtherContext { operand: "B" }), "{e}");
    let clone = here.clone().upload(&[1.0f32; 16]).expect("memory");
    operation.run(&mine, &clone, &mut c, 1.0, 0.0).expect("clones share memory");
}
