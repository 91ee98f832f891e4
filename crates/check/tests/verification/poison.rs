//! Results that a launch does not write are found, of every type: nothing of an earlier run is left in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_device::{Device, DeviceError, DeviceInfo, Launch, open};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Along, Axes, GateFunction, Gemm, Operator, Problem, Reduce, Reduction};

/// The emulator. Once it is idle, launches leave all memory as it is.
struct Idle {
    device: Arc<dyn Device>,
    is_idle: AtomicBool,
}

impl Device for Idle {
    delegated!(device: compile memory sync time);
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        if self.is_idle.load(Ordering::SeqCst) { Ok(()) } else { self.device.launch(launches) }
    }
}

/// A problem of every type of C, without and with gaps between rows, and of every kind of other results.
fn problems() -> Vec<Problem> {
    use Scalar::*;
    let mut products = Vec::new();
    for dtype in [F64, F32, F16, BF16, E4M3, E5M2, E4M3Fnuz, E5M2Fnuz, I8, U8] {
        products.extend([Gemm::new(dtype, 21, 18, 12), Gemm::new(dtype, 9, 80, 12).ldc(83)]);
    }
    products.push(Gemm::new(BF16, 21, 18, 12).out_dtype(F32));
    products.push(Gemm::new(I8, 21, 18, 12).out_dtype(I8).scale(Along::M));
    products.push(Gemm::new(U8, 21, 18, 12).out_dtype(U8).scale(Along::M));
    products.extend([F32, F64].map(|dtype| Gemm::new(dtype, 21, 18, 12).complex()));
    let rows = Axes { n: true, ..Axes::default() };
    products.push(Gemm::new(F32, 21, 18, 12).reduce(Reduction::new(Operator::Max, rows)).drop_c());
    products.push(Gemm::new(F16, 21, 18, 12).gate(GateFunction::Silu).preactivations());
    let tensor = |dtype, operator| Reduce::new(dtype, &[6, 70], &[1]).op(operator).build().expect("a reduction").into();
    let tensors = [(F32, Operator::Sum), (BF16, Operator::Max), (F64, Operator::ArgMax), (I8, Operator::Sum)];
    let products = products.into_iter().map(|product| product.build().expect("a product").into());
    products.chain(tensors.map(|(dtype, operator)| tensor(dtype, operator))).collect()
}

/// How many elements were compared, and how many of them were never written.
fn counts(reason: &str) -> [u64; 2] {
    let number = |words: &str| {
        let before = reason.split_once(words).map_or("0", |(before, _)| before);
        before.rsplit([' ', ',']).next().and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    [number(" elements checked"), number(" NaN (never written")]
}

#[test]
fn results_that_are_not_written_are_found_in_every_type() {
    let idle = Arc::new(Idle { device: open("emu").expect("the emulator"), is_idle: AtomicBool::new(false) });
    let device: Arc<dyn Device> = idle.clone();
    for problem in problems() {
        let space = Space::new(&problem, &device.info().target).expect("a space");
        let plan = space.repair(&space.fallback()).expect("a plan");
        let resolved = space.resolve(&plan).expect("a legal plan");
        let program = resolved.generate(space.env().workspace_bytes).expect("a program");
        let compiled = compile(device.as_ref(), &program).expect("kernels");
        for with_beta in [false, true].into_iter().filter(|beta| !beta || problem.adds_old()) {
            let case = Case::new(&device, &problem, 7, test_factors(7, with_beta), Samples::All).expect("data");
            let verify = || case.verify(&program, &compiled, space.contraction(&plan), Depth::Quick, true).expect("a run");
            let right = verify();
            assert!(right.passed && right.checked > 5, "{problem}: {right:?}");
            // The buffers hold the right results. A second run writes nothing.
            idle.is_idle.store(true, Ordering::SeqCst);
            let stale = verify();
            idle.is_idle.store(false, Ordering::SeqCst);
            let reason = stale.reason.unwrap_or_default();
            assert!(!stale.passed && !stale.race, "{problem}, beta {with_beta}: results of the run before count as written");
            // Every value of an 8-bit integer is a number, and an index is none of NaN. With beta the old C is a number, too.
            let bits_for_none = !matches!(problem.out_dtype(), Scalar::I8 | Scalar::U8) && !reason.contains("of argmax");
            if bits_for_none && !with_beta {
                let [checked, missing] = counts(&reason);
                assert!(missing == checked && checked > 5, "{problem}: {reason}");
                assert!(stale.max_error.is_infinite() || problem.out_dtype() == Scalar::I32, "{problem}: {reason}");
            }
        }
    }
}
