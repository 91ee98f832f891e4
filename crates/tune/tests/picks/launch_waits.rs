//! Kernels that begin while the launch before them still runs wait in time: moved behind what they protect, every wait of a generated
//! program is missed by the emulator.

use std::sync::Arc;
use tilewright_check::reference::Samples;
use tilewright_check::run::{Factors, compile};
use tilewright_check::verify::Case;
use tilewright_device::{Device, DeviceError, Options, open_with};
use tilewright_emu::EmuError;
use tilewright_gen::plan::Constraint;
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Stmt};
use tilewright_problem::{Gemm, Order, Problem};
use tilewright_tune::search::pick;

/// Runs the program of a plan, changed, on test data.
fn run(arch: &str, dtype: Scalar, constraint: &str, change: impl FnOnce(&mut Program)) -> Result<(), DeviceError> {
    let device: Arc<dyn Device> = open_with(&format!("emu:{arch}"), &Options::default()).expect("the emulator opens");
    let problem: Problem = Gemm::new(dtype, 72, 40, 96).order(Order::Row).build().expect("a problem").into();
    let space = Space::new(&problem, &device.info().target).expect("a space");
    let constraint = Constraint::parse(constraint).expect("a constraint");
    let space = space.constrained(&constraint);
    let plan = pick(&*device, &space).unwrap_or_else(|| panic!("{arch}: no plan satisfies {constraint}"));
    let found = space.resolve(&plan).expect("it is legal");
    let mut program = found.generate(space.env().workspace_bytes).expect("it generates");
    change(&mut program);
    let compiled = compile(&*device, &program)?;
    let factors = Factors::real(1.5, 0.5);
    let case = Case::new(&device, &problem, 1, factors, Samples::default()).expect("test data");
    let workspace = (program.workspace_bytes > 0).then(|| device.alloc(program.workspace_bytes)).transpose()?;
    let launches = case.bind(&program, &compiled, found.contraction, workspace).expect("it binds");
    device.launch(&launches)
}

/// Every kernel of a program that waits, as (number, statements behind the wait).
fn waiting(program: &Program) -> Vec<usize> {
    let waits = |k: &tilewright_ir::Kernel| k.body.contains(&Stmt::LaunchWait);
    (0..program.kernels.len()).filter(|&i| waits(&program.kernels[i])).collect()
}

#[test]
fn every_wait_is_needed() {
    let cases = [
        // A and B are copied into workspace, partial sums are added up behind the main kernel.
        ("sm_80", Scalar::F16, "A_WOS1__B_WOS2__C_UNI1_ICE2_SKS1"),
        ("sm_80", Scalar::F32, "A_WOS1__C_UNI0_ICE3_SKS1"),
        ("sm_90a", Scalar::BF16, "A_WOS1__C_UNI2_ICE2_SKS1"),
    ];
    for (arch, dtype, plan) in cases {
        let mut found = Vec::new();
        run(arch, dtype, plan, |program| found = waiting(program)).unwrap_or_else(|e| panic!("{arch} {plan}: {e}"));
        assert!(found.len() >= 2, "{arch} {plan}: {found:?} wait");
        for kernel in found {
            let late = run(arch, dtype, plan, |program| {
                let body = &mut program.kernels[kernel].body;
                body.retain(|s| *s != Stmt::LaunchWait);
                body.push(Stmt::LaunchWait);
            });
            let missed = matches!(&late, Err(DeviceError::Emulation { error, .. }) if matches!(**error, EmuError::Early { .. }));
            assert!(missed, "{arch} {plan}, kernel {kernel}: {late:?}");
        }
    }
}
