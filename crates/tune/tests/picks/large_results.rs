//! Results of more than 32 MiB: a look sees what was not written, although the device writes the poison itself.

use std::sync::Arc;
use tilewright_check::reference::Samples;
use tilewright_check::run::{Factors, compile};
use tilewright_check::verify::{Case, Depth, Verification};
use tilewright_device::{Device, Options, open_with};
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;
use tilewright_ir::{Base, Block, Scalar, Stmt};
use tilewright_problem::{Gemm, Order, Problem};
use tilewright_tune::search::pick;

/// A quick look at a result of eight rows in 56 MiB, by a program that was changed.
fn look(change: impl FnOnce(&mut Program)) -> Verification {
    let device: Arc<dyn Device> = open_with("emu:sm_80", &Options::default()).expect("the emulator opens");
    let gemm = Gemm::new(Scalar::F32, 8, 20, 12).order(Order::Row).ldc(2 << 20);
    let problem: Problem = gemm.build().expect("a problem").into();
    let space = Space::new(&problem, &device.info().target).expect("a space");
    let plan = pick(&*device, &space).expect("a plan");
    let found = space.resolve(&plan).expect("it is legal");
    let mut program = found.generate(space.env().workspace_bytes).expect("it generates");
    change(&mut program);
    let compiled = compile(&*device, &program).expect("it compiles");
    let case = Case::new(&device, &problem, 3, Factors::default(), Samples::default()).expect("test data");
    case.verify(&program, &compiled, found.contraction, Depth::Quick, true).expect("it runs")
}

/// Takes the stores to global memory out of a block and those within it.
fn remove_stores(block: &mut Block) {
    block.retain(|s| !matches!(s, Stmt::Store { mem, .. } if !matches!(mem.base, Base::Shared(_))));
    for s in block {
        match s {
            Stmt::For { body, .. } => remove_stores(body),
            Stmt::If { then, otherwise, .. } => [then, otherwise].into_iter().for_each(remove_stores),
            Stmt::Roles(roles) => roles.iter_mut().for_each(|r| remove_stores(&mut r.body)),
            _ => {}
        }
    }
}

#[test]
fn what_is_not_written_is_seen() {
    let right = look(|_| ());
    assert!(right.passed && right.checked == 160, "{right:?}");
    let wrong = look(|program| remove_stores(&mut program.kernels.last_mut().expect("a kernel").body));
    assert!(!wrong.passed && wrong.max_error.is_infinite(), "{wrong:?}");
}
