//! Plans whose load waves shift lines from staging (`ACP3`): both directions, every distance between lines, every number of load waves,
//! edges on all sides, under every kind of schedule, on the emulator with all checks.

use crate::support;

use tilewright_check::random::whole_run;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_device::{Options, open_with};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, GemmBuilder, Order, Problem};

fn product(m: u64, n: u64, k: u64) -> GemmBuilder {
    Gemm::new(if n.is_multiple_of(2) { Scalar::BF16 } else { Scalar::F16 }, m, n, k).order(Order::Row)
}

/// Verifies the plan under two interleavings.
fn verify(gemm: GemmBuilder, plan: &str) {
    let problem: Problem = gemm.build().unwrap().into();
    for seed in [1, 2] {
        let mut options = Options::default();
        (options.emulator.threads, options.emulator.interleave, options.emulator.seed) = (1, true, seed);
        let device = open_with("emu:sm_90a", &options).unwrap();
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan = Plan::from(Constraint::parse(&format!("{plan}_UNI2_GAL1")).unwrap().apply(&Plan::default()));
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        assert!(r.spec.schedule.slots() >= 2, "{plan}");
        let program = r.generate(space.env().workspace_bytes).unwrap();
        let compiled = compile(device.as_ref(), &program).unwrap_or_else(|e| panic!("{plan}: {e}"));
        let case = Case::new(&device, &problem, 5, test_factors(5, false), Samples::All).unwrap();
        let verdict = case.verify(&program, &compiled, space.contraction(&plan), Depth::Quick, false);
        let verdict = verdict.unwrap_or_else(|e| panic!("{plan} of {problem}: {e}"));
        assert!(verdict.passed, "{plan} of {problem}: {:?}", verdict.reason);
    }
}

/// What the plan is refused with.
fn refusal(gemm: GemmBuilder, plan: &str) -> String {
    let problem: Problem = gemm.build().unwrap().into();
    let space = Space::new(&problem, &support::emulator("emu:sm_90a", false, 0).info().target).unwrap();
    let plan = Plan::from(Constraint::parse(&format!("{plan}_UNI2_GAL1")).unwrap().apply(&Plan::default()));
    space.resolve(&plan).err().map_or(String::new(), |e| e.to_string())
}

/// Lines of both operands begin 1, 2, 4 and 7 elements further each; the ends of k, of rows and of columns lie within a tile.
#[test]
fn every_distance_and_number_of_waves() {
    // By hand one direction of B for each.
    for (i, modulo) in [0, 1, 2, 4, 7].into_iter().enumerate() {
        for (j, waves) in [1, 4, 8].into_iter().enumerate() {
            let (n, k) = (136 + modulo, 200 + modulo);
            // Lines of A along k; of B along rows, and along k.
            if whole_run() || (i + j) % 2 == 0 {
                verify(product(150, n, k), &format!("A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV{waves}"));
            }
            if whole_run() || (i + j) % 2 == 1 {
                let plan = format!("A_MIC1_ACP3__B_MIC6_ACP3__C_MAC256_UNR64_BUF2_LWV{waves}_PST3");
                verify(product(150, n, k).trans(false, true), &plan);
            }
        }
    }
    verify(product(150, 137, 201).trans(true, false), "A_MIC1_ACP3__B_MIC8_ACP0__C_MAC128_UNR64_BUF3_LWV2_PST2");
}

/// Schedules, splits and epilogues; wide tiles, whose lines take several boxes; deep k-tiles; one operand by itself.
#[test]
fn every_schedule() {
    let odd = || product(136, 281, 443);
    let plans = [
        "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV4_PST3_CST1",
        "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC256_UNR64_BUF4_LWV4_PST1_PNG1_FRA1_CST1",
        "A_MIC1_ACP3__B_MIC16_ACP3__C_MAC128_UNR128_BUF2_LWV8_PST2",
        "A_MIC1_ACP3__B_MIC32_ACP3__C_MAC128_UNR64_BUF3_LWV4_PST2_FRA1",
        "A_MIC1_WOS1_ACP2__B_MIC32_ACP3__C_MAC256_UNR64_BUF2_LWV4_PST2",
        "A_MIC1_WOS1_ACP2__B_MIC24_ACP3__C_MAC256_UNR64_BUF2_LWV8_PST2",
        "A_MIC1_ACP3__B_MIC8_WOS1_ACP2__C_MAC128_UNR192_BUF2_LWV2_ICE2_SKS1",
        "A_MIC1_ACP3__B_MIC8_ACP0__C_MAC128_UNR64_BUF3_LWV4_ICE3_IWI1_SKS1_PST4",
        "A_MIC1_ACP0__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV8_ICE2_SKS2",
        "A_MIC2_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF2_LWV4_MGP2",
        "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF2_LWV4_ICE17_SKS1",
        "A_MIC1_ACP3_CLU2__B_MIC8_WOS1_ACP2__C_MAC128_UNR64_BUF3_LWV4_PST4",
        "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV4_PST3_SWP1",
    ];
    for (_, plan) in plans.into_iter().enumerate().filter(|(number, _)| support::runs(*number)) {
        verify(odd(), plan);
        let other = plan.replace("B_MIC24", "B_MIC16");
        verify(odd().trans(false, true), &other);
    }
}

/// Batch entries, an operand that all of them share, leading dimensions beyond the rows, operands that begin elsewhere.
#[test]
fn batches() {
    for plan in ["A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV4_PST3", "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV8"]
    {
        // Entries at multiples of 8: 72 * 201 and 201 * 136, and those of a shared operand.
        verify(product(72, 136, 201).batch(3), plan);
        let shared = product(72, 137, 201).batch(3);
        assert!(refusal(shared, plan).contains("batch stride"));
    }
}

/// What cannot be shifted is refused, and says why.
#[test]
fn refusals() {
    let odd = || product(136, 281, 443);
    for (gemm, plan, why) in [
        (odd(), "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3", "LWV0"),
        (odd(), "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV3", "LWV4"),
        (odd(), "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV16", "LWV4"),
        (odd(), "A_MIC1_ACP3__B_MIC8_ACP3_WOS1__C_MAC128_UNR64_BUF3_LWV4", "rows of a workspace copy are aligned"),
        (odd(), "A_MIC1_ACP3_CLU2__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV4", "cluster"),
        (product(136, 281, 5), "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV4", "8 classes of misaligned rows"),
        (odd(), "A_MIC1_ACP3__B_MIC8_ACP3__C_MAC128_UNR64_BUF3_LWV4_PST2_ICE17_SKS1", "k-tile"),
    ] {
        let refusal = refusal(gemm, plan);
        assert!(refusal.contains(why), "{plan}: {refusal}");
    }
}
