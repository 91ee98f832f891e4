//! Doubles on matrix units (mma.sync: m16n8k8 and m16n8k16, or m8n8k4 before sm_90; MFMA: 16x16x4): every way of loading and storing on the emulator with all checks, and what the
//! assembler makes of it. TF32 of swizzled panels, which lanes read in the same way.

use crate::missing;
use crate::support;

use support::verified;
use tilewright_device::inspect::inspect;
use tilewright_device::{DeviceError, Options};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Gemm, GemmBuilder, Math, Order, Problem};

const PLANS: [&str; 8] = [
    "A_MIC1_PAD1__B_MIC2_PAD1__C_UNI1_MAC64_UNR16_EDG1",
    "A_MIC2_PAD1__B_MIC2_PAD1__C_UNI1_MAC128_UNR16_PFG1_BUF2_STP1_EDG1_CVW2",
    "A_MIC1_PAD1_ACP1__B_MIC1_PAD1_ACP1__C_UNI1_MAC128_UNR32_PFG2_BUF3_FRA1_EDG1",
    "A_MIC1_PAD1__B_MIC3_PAD1__C_UNI1_MAC64_UNR32_ICE3_SKS1_EDG1_SWP1",
    "A_MIC2_PAD1__B_MIC1_PAD1__C_UNI1_MAC64_UNR16_PFG1_BUF2_LWV2_EDG1",
    "A_MIC1_PAD1__B_MIC2_PAD1__C_UNI1_MAC64_UNR16_EDG1_KIN1",
    "A_MIC1_PAD1_ACP1__B_MIC1_PAD1_ACP1__C_UNI1_MAC128_UNR32_PFG2_BUF3_FRA1_EDG1_KIN1",
    "A_MIC1_PAD1__B_MIC3_PAD1__C_UNI1_MAC64_UNR32_ICE3_SKS1_EDG1_SWP1_KIN1",
];

/// From the swizzled panels that TMA writes.
const BULK_PLANS: [&str; 9] = [
    "A_MIC1_ACP2__B_MIC2_ACP2__C_UNI1_MAC64_UNR16_PFG1_BUF2_EDG1",
    "A_MIC2_ACP2__B_MIC2_ACP2__C_UNI1_MAC128_UNR32_PFG2_BUF3_FRA1_LWV1_EDG1",
    "A_MIC1_ACP2__B_MIC4_ACP2__C_UNI1_MAC64_UNR48_PFG1_BUF2_LWV1_EDG1_UKL1",
    "A_MIC1_ACP2__B_MIC2_ACP2__C_UNI1_MAC64_UNR16_PFG1_BUF2_EDG1_KIN1",
    "A_MIC2_ACP2__B_MIC2_ACP2__C_UNI1_MAC128_UNR32_PFG2_BUF3_FRA1_LWV1_EDG1_KIN1",
    "A_MIC1_ACP2__B_MIC4_ACP2__C_UNI1_MAC64_UNR48_PFG1_BUF2_LWV1_EDG1_UKL1_KIN1",
    "A_MIC3_ACP2__B_MIC3_ACP2__C_UNI1_MAC64_SKW11_UNR32_PFG1_BUF2_LWV1_EDG1_FRA1",
    "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI1_MAC128_SKW11_UNR16_PFG2_BUF3_EDG1",
    "A_MIC2_ACP2__B_MIC1_ACP2__C_UNI1_MAC128_UNR32_PFG1_BUF2_EDG1_SWP1",
];

/// TF32 of panels: 8 to 64 columns, also those whose numbers carry within a panel.
const TF32_PLANS: [&str; 5] = [
    "A_MIC2_ACP2__B_MIC1_ACP2__C_UNI1_MAC128_SKW11_UNR32_PFG1_BUF2_EDG1",
    "A_MIC2_ACP2__B_MIC2_ACP2__C_UNI1_MAC64_SKW11_UNR64_PFG1_BUF2_EDG1_FRA1",
    "A_MIC2_ACP2__B_MIC3_ACP2__C_UNI1_MAC128_SKW11_UNR32_PFG1_BUF2_LWV1_EDG1_UKL1",
    "A_MIC2_ACP2__B_MIC4_ACP2__C_UNI1_MAC128_SKW11_UNR32_PFG2_BUF3_EDG1_SWP1",
    "A_MIC2_ACP2__B_MIC8_ACP2__C_UNI1_MAC128_SKW11_UNR32_PFG2_BUF3_EDG1_UKL1_FRA1",
];

/// By MFMA.
const WIDE_WAVES: [&str; 4] = [
    "A_MIC1_PAD1__B_MIC2_PAD1__C_UNI3_MAC64_UNR16_EDG1",
    "A_MIC2_PAD1__B_MIC4_PAD1__C_UNI3_MAC128_UNR16_PFG1_BUF2_STP1_FRA1_EDG1_CVW2",
    "A_MIC1_PAD1__B_MIC3_PAD1__C_UNI3_MAC64_UNR16_ICE3_SKS1_EDG1_SWP1",
    "A_MIC2_PAD1__B_MIC2_PAD1__C_UNI3_MAC128_UNR16_LWV1_PFG1_BUF2_PST3_CST1_EDG1",
];

fn verify(device: &str, gemm: GemmBuilder, plan: &str, seed: u64) {
    let problem: Problem = gemm.build().unwrap().into();
    verified(device, &problem, plan, (seed, false));
}

#[test]
fn doubles_multiply_right() {
    for (i, plan) in PLANS.iter().enumerate() {
        for (a, b) in [(false, false), (true, true)] {
            verify("emu:sm_80", Gemm::new(Scalar::F64, 70, 54, 66).order(Order::Row).trans(a, b), plan, i as u64);
        }
    }
}

#[test]
fn doubles_multiply_right_from_swizzled_panels() {
    for (i, plan) in BULK_PLANS.iter().enumerate() {
        for (a, b) in [(false, false), (false, true), (true, false)] {
            verify("emu:sm_90a", Gemm::new(Scalar::F64, 70, 54, 66).order(Order::Row).trans(a, b), plan, i as u64);
        }
    }
}

#[test]
fn tf32_multiplies_right_from_swizzled_panels() {
    for (i, plan) in TF32_PLANS.iter().enumerate() {
        for (a, b) in [(false, false), (false, true), (true, false)] {
            let gemm = Gemm::new(Scalar::F32, 72, 56, 68).order(Order::Row).trans(a, b).math(Math::Tf32);
            verify("emu:sm_90a", gemm, plan, i as u64);
        }
    }
}

#[test]
fn doubles_multiply_right_by_mfma() {
    for (i, plan) in WIDE_WAVES.iter().enumerate() {
        for ((a, b), arch) in [((false, false), "emu:gfx90a"), ((true, true), "emu:gfx942")] {
            verify(arch, Gemm::new(Scalar::F64, 70, 54, 66).order(Order::Row).trans(a, b), plan, i as u64);
        }
    }
}

#[test]
fn only_units_that_have_them_take_doubles() {
    let problem: Problem = Gemm::new(Scalar::F64, 256, 256, 256).build().unwrap().into();
    let space = Space::new(&problem, &Target::by_arch("sm_90a").unwrap()).unwrap();
    let plan = Plan::from(Constraint::parse("C_UNI2_MAC256_UNR16").unwrap().apply(&Plan::default()));
    assert!(matches!(space.resolve(&plan), Err(Refusal::UnitTypes { .. })), "{:?}", space.resolve(&plan).err());
}

/// Of two depths, a plan has the one that it asks for, as far as its k-tiles and its fragments allow.
#[test]
fn a_key_chooses_the_depth() {
    let problem: Problem = Gemm::new(Scalar::F64, 256, 256, 256).build().unwrap().into();
    let space = Space::new(&problem, &Target::by_arch("sm_90a").unwrap()).unwrap();
    let base = "A_MIC1_PAD1__B_MIC2_PAD1__C_UNI1_MAC64_EDG1";
    for (keys, depth) in [("UNR16", 8), ("UNR16_KIN1", 16), ("UNR24_KIN1", 8), ("UNR16_KIN1_PFG1_BUF2_FRA1", 8)] {
        let plan = Plan::from(Constraint::parse(&format!("{base}_{keys}")).unwrap().apply(&Plan::default()));
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        assert_eq!(r.spec.tiling.instruction.map(|row| row.shape.k), Some(depth), "{keys}");
    }
}

#[test]
fn assemblers_take_them() {
    let problem: Problem = Gemm::new(Scalar::F64, 1024, 1024, 1024).order(Order::Row).build().unwrap().into();
    let nvidia = [("sm_80", "DMMA.884"), ("sm_90a", "DMMA.16x8x8"), ("sm_100a", "DMMA"), ("sm_120a", "DMMA")];
    let nvidia = nvidia.map(|(arch, instruction)| (arch, PLANS[1], instruction));
    let deep = [("sm_80", PLANS[6], "DMMA.884"), ("sm_90a", PLANS[6], "DMMA.16x8x16"), ("sm_90a", BULK_PLANS[4], "DMMA.16x8x16")];
    let amd = ["gfx90a", "gfx942", "gfx950"].map(|arch| (arch, WIDE_WAVES[1], "v_mfma_f64_16x16x4"));
    for (arch, plan, instruction) in nvidia.into_iter().chain(deep).chain(amd) {
        let space = Space::new(&problem, &Target::by_arch(arch).unwrap()).unwrap();
        let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        let program = r.generate(space.env().workspace_bytes).unwrap();
        let kernel = program.kernels.iter().find(|k| k.name == MAIN).unwrap();
        match inspect(kernel, arch, None, &Options::default()) {
            Err(e @ DeviceError::Missing { .. }) => return missing::missing(&e.to_string()),
            seen => assert!(seen.unwrap().assembly.contains(instruction), "{arch}: no {instruction}"),
        }
    }
}
