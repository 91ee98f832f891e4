//! Verification on the emulator: right programs pass, wrong ones are caught and named.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tilewright_check::reduce::for_emulator;
use tilewright_check::reference::Samples;
use tilewright_check::run::{BindError, compile};
use tilewright_check::verify::{Case, Depth, Verification, VerifyError, sizes, test_factors};
use tilewright_device::{Device, DeviceError, DeviceInfo, Launch, LaunchArg, open};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::program::{Binding, Program};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Conv, Extents, Gemm, Order, Problem};

struct Setup {
    device: Arc<dyn Device>,
    space: Space,
    plan: Plan,
    case: Case,
}

fn setup(problem: &Problem, with_beta: bool) -> Setup {
    let device = open("emu").unwrap();
    let space = Space::new(problem, &device.info().target).unwrap();
    let plan = space.repair(&space.fallback()).unwrap();
    let case = Case::new(&device, problem, 7, test_factors(7, with_beta), Samples::All).unwrap();
    Setup { device, space, plan, case }
}

impl Setup {
    fn program(&self) -> Program {
        let r = self.space.resolve(&self.plan).unwrap();
        r.generate(self.space.env().workspace_bytes).unwrap()
    }
    fn verify(&self, program: &Program) -> Result<Verification, VerifyError> {
        let compiled = compile(self.device.as_ref(), program)?;
        self.case.verify(program, &compiled, self.space.contraction(&self.plan), Depth::Thorough, true)
    }
}

fn gemm() -> Problem {
    Problem::Gemm(Gemm::new(Scalar::F32, 37, 29, 19).order(Order::Col).lda(41).offsets(3, 0, 5).build().unwrap())
}

#[test]
fn right_programs_pass_with_and_without_beta() {
    let conv = Conv::new(Scalar::F32, 2, 4, 6, &[9, 8], &[3, 3]).groups(2).pad(&[1, 0], &[1, 2]).bias().build().unwrap();
    for problem in [gemm(), Problem::Conv(conv)] {
        for with_beta in [false, true] {
            let s = setup(&problem, with_beta);
            let v = s.verify(&s.program()).unwrap();
            assert!(v.passed && v.max_error < 1e-5 && v.checked > 500, "{problem} {with_beta} {v:?}");
        }
    }
}

#[test]
fn a_wrong_factor_is_caught() {
    let s = setup(&gemm(), true);
    let mut program = s.program();
    for launch in &mut program.launches {
        for arg in &mut launch.args {
            if *arg == Binding::Beta {
                *arg = Binding::Alpha;
            }
        }
    }
    let v = s.verify(&program).unwrap();
    assert!(!v.passed && !v.race && v.max_error > 1e-3, "{v:?}");
    assert!(v.reason.unwrap().contains("wrong"));
}

#[test]
fn a_missing_work_group_is_caught() {
    let s = setup(&gemm(), false);
    let mut program = s.program();
    program.launches[0].grid[0] -= 1;
    let v = s.verify(&program).unwrap();
    assert!(!v.passed && v.max_error.is_infinite(), "{v:?}");
    assert!(v.reason.unwrap().contains("NaN"));
}

#[test]
fn misaligned_operands_are_refused_by_name() {
    let s = setup(&gemm(), false);
    let mut program = s.program();
    program.alignments.push(tilewright_gen::program::Alignment { operand: Operand::A, bytes: 16 });
    match s.verify(&program) {
        Err(VerifyError::Bind(BindError::Misaligned { operand: Operand::A, actual: 4, needed: 16 })) => {}
        other => panic!("{other:?}"),
    }
}

/// The emulator, except that every launch leaves another number in the middle of the largest buffer it touches last.
struct Racing(Arc<dyn Device>, AtomicU32);

impl Device for Racing {
    delegated!(0: compile memory sync time);
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.0.launch(launches)?;
        let mut buffers =
            launches.iter().flat_map(|l| &l.args).filter_map(|a| if let LaunchArg::Buffer(b) = a { Some(b) } else { None });
        if let Some(buffer) = buffers.next_back() {
            let value = f32::from_bits(0x3f80_0000 + self.1.fetch_add(1, Ordering::Relaxed));
            // Element (0, 0) of C: 256 bytes of guard, then the offset of 5 elements.
            self.0.write(buffer, 256 + 5 * 4, &value.to_le_bytes())?;
        }
        Ok(())
    }
}

#[test]
fn an_error_that_moves_is_a_race() {
    let problem = gemm();
    let device: Arc<dyn Device> = Arc::new(Racing(open("emu").unwrap(), AtomicU32::new(0)));
    let space = Space::new(&problem, &device.info().target).unwrap();
    let plan = space.repair(&space.fallback()).unwrap();
    let case = Case::new(&device, &problem, 7, test_factors(7, false), Samples::All).unwrap();
    let s = Setup { device, space, plan, case };
    let v = s.verify(&s.program()).unwrap();
    assert!(!v.passed && v.race, "{v:?}");
    assert!(v.reason.unwrap().starts_with("race: "));
}

#[test]
fn operands_of_more_than_2_to_31_elements_are_verified_with_offsets_as_wide() {
    let device = open("emu").unwrap();
    let gemm = |dtype, k: u64| {
        let gemm = Gemm::new(dtype, 70_000, 300, k).order(tilewright_problem::Order::Row).trans(false, true);
        Problem::Gemm(gemm.batch(2).stride_b(0).build().unwrap())
    };
    let plans = [
        (gemm(Scalar::F32, 40_001), "C_MAC64"),
        (gemm(Scalar::BF16, 40_960), "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_MAC128_UNR64_PFG1_BUF2_LWV4_PST132"),
    ];
    for (problem, text) in plans {
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan = space.repair(&Constraint::parse(text).unwrap().apply(&Plan::default())).unwrap();
        let spec = space.resolve(&plan).unwrap().spec;
        let reduced = for_emulator(&space, &plan, &spec).unwrap();
        let contraction = reduced.space.contraction(&reduced.plan);
        // Each batch entry by itself reaches beyond 32 bits.
        assert!(contraction.a.len > 3 << 31 && reduced.compact.is_some(), "{}", reduced.title());
        let resolved = reduced.space.resolve(&reduced.plan).unwrap();
        let program = resolved.generate(reduced.space.env().workspace_bytes).unwrap();
        let compiled = compile(device.as_ref(), &program).unwrap();
        for with_beta in [false, true] {
            let case = Case::reduced(&device, &reduced, None, 7, test_factors(7, with_beta), Samples::All).unwrap();
            let v = case.verify(&program, &compiled, contraction, Depth::Thorough, true).unwrap();
            assert!(v.passed, "{}: {v:?}", reduced.title());
        }
    }
}

/// Extents of a launch are moved to 1 and beyond a tile's edge one by one, beside the largest of the others.
#[test]
fn extents_of_a_launch_are_moved_one_by_one() {
    let text = "tC0_tA0_tB0_colMaj0_m300_n200_k16_lda16_ldb200_ldc200_ws0_f32_b5_sa4800_sb3200_sc60000_dynm_dynn_dynb";
    let problem = Problem::parse(text).unwrap();
    let space = Space::new(&problem, &open("emu").unwrap().info().target).unwrap();
    let plan = space.repair(&space.fallback()).unwrap();
    let resolved = space.resolve(&plan).unwrap();
    let (rows, columns) = resolved.spec.tiling.macro_tile();
    let all = sizes(resolved.contraction, &resolved.spec);
    let largest = resolved.contraction.extents();
    for of in [1, u64::from(rows) + 1] {
        assert!(all.contains(&Extents { m: of.min(largest.m), ..largest }), "m {of}: {all:?}");
    }
    for of in [1, u64::from(columns) + 1] {
        assert!(all.contains(&Extents { n: of.min(largest.n), ..largest }), "n {of}: {all:?}");
    }
    for of in [1, 4] {
        assert!(all.contains(&Extents { g: of, ..largest }), "batch {of}: {all:?}");
    }
    assert!(!all.contains(&largest));
}
