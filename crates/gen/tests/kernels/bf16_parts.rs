//! f32 as three or six products of bf16 numbers: right by every unit and way of loading, as accurate as the bounds say and no better than they
//! need to be.

use crate::support;

use support::verified;
use tilewright_check::random::whole_run;
use tilewright_check::reference::Tolerance;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Activation, Along, Conv, Direction, Gemm, GemmBuilder, Layout, Math, Order, Problem};

const BOTH: [Math; 2] = [Math::Bf16x3, Math::Bf16x6];
const TRANSPOSES: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

/// mma.sync: stores by all threads and by load waves, fragments ahead, splits of k.
const WAVES: [&str; 4] = [
    "A_MIC1_PAD1__B_MIC2_PAD1__C_UNI1_MAC64_UNR16_EDG1",
    "A_MIC2_PAD1__B_MIC3_PAD1__C_UNI1_MAC128_UNR32_PFG1_BUF2_STP1_FRA1_EDG1_UKL1",
    "A_MIC1_PAD1__B_MIC1_PAD1__C_UNI1_MAC128_UNR32_PFG2_BUF2_STP2_FRA1_EDG1_ICE3_SKS1_SWP1",
    "A_MIC2_PAD1__B_MIC1_PAD1__C_UNI1_MAC64_UNR16_PFG1_BUF2_LWV2_EDG1_PST3",
];

/// wgmma: panels that all threads store, and that load waves write.
const GROUPS: [&str; 4] = [
    "A_MIC1__B_MIC8__C_UNI2_MAC128_UNR64_PFG1_BUF2_EDG1",
    "A_MIC1__B_MIC8__C_UNI2_MAC128_UNR64_BUF2_PFG1_LWV4",
    "A_MIC2__B_MIC8__C_UNI2_MAC128_UNR64_BUF2_PFG1_LWV1_ICE2_SKS1",
    "A_MIC1_WOS1__B_MIC8__C_UNI2_MAC128_UNR64_BUF3_PFG2_LWV4_PST2_FRA1_SWP1",
];

/// MFMA: blocks of 32 x 32 and of 16 x 16.
const MFMA: [&str; 2] = [
    "A_MIC2_PAD1__B_MIC4_PAD1__C_UNI3_MAC128_UNR32_PFG1_BUF2_STP1_FRA1_EDG1",
    "A_MIC1_PAD1__B_MIC3_PAD1__C_UNI3_MAC64_UNR16_EDG1",
];

fn gemm((m, n, k): (u64, u64, u64), math: Math) -> GemmBuilder {
    Gemm::new(Scalar::F32, m, n, k).order(Order::Row).math(math)
}

fn problem(gemm: GemmBuilder) -> Problem {
    gemm.build().unwrap().into()
}

#[test]
fn waves_multiply_right() {
    for (i, plan) in (0u64..).zip(WAVES) {
        for (seed, (a, b)) in (i..).zip(TRANSPOSES) {
            let math = BOTH[(seed % 2) as usize];
            let gemm = gemm((71, 53, 67), math).trans(a, b).batch(2).activation(Activation::Gelu).bias(Along::N);
            verified("emu:sm_80", &problem(gemm), plan, (seed, true));
        }
    }
}

#[test]
fn warpgroups_multiply_right() {
    for (i, plan) in GROUPS.iter().enumerate() {
        for (j, (a, b)) in TRANSPOSES.into_iter().enumerate() {
            // Rows of whole vectors, and rows that begin anywhere.
            let sizes = [(72, 56, 72), (71, 53, 67)].into_iter().enumerate();
            for (_, size) in sizes.filter(|(s, _)| whole_run() || (i / 2 + j / 2 + s) % 2 == 0) {
                verified("emu:sm_90a", &problem(gemm(size, BOTH[(i + j) % 2]).trans(a, b)), plan, (1, true));
            }
        }
    }
}

#[test]
fn mfma_multiplies_right() {
    for plan in MFMA {
        for (i, (a, b)) in TRANSPOSES.into_iter().enumerate() {
            for (math, device) in [(BOTH[i % 2], "emu:gfx942"), (BOTH[1 - i % 2], "emu:gfx950")] {
                verified(device, &problem(gemm((71, 53, 67), math).trans(a, b)), plan, (4, true));
            }
        }
    }
}

#[test]
fn convolutions_multiply_right() {
    let plans = [("emu:sm_80", WAVES[1]), ("emu:sm_90a", GROUPS[0]), ("emu:sm_90a", GROUPS[1]), ("emu:gfx942", MFMA[0])];
    for (turn, direction) in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight].into_iter().enumerate() {
        for (i, layout) in [Layout::Nchw, Layout::Nhwc].into_iter().enumerate() {
            let conv = Conv::new(Scalar::F32, 2, 12, 10, &[7, 6], &[3, 2]).layout(layout).direction(direction).groups(2);
            let conv = conv.stride(&[2, 1]).pad(&[1, 1], &[1, 1]).math(BOTH[i]).build().unwrap();
            for (_, (device, plan)) in plans.into_iter().enumerate().filter(|(p, _)| whole_run() || (turn + i + p) % 2 == 0) {
                verified(device, &conv.clone().into(), plan, (2, false));
            }
        }
    }
}

/// Complex numbers, whose parts change signs on the way to shared memory.
#[test]
fn complex_numbers_multiply_right() {
    for math in BOTH {
        let gemm = problem(gemm((37, 29, 35), math).complex().conj(true, false).trans(true, false));
        verified("emu:sm_80", &gemm, WAVES[1], (3, true));
        verified("emu:sm_90a", &gemm, GROUPS[1], (3, true));
    }
}

/// Three parts add up to the operand, which is reduced in the product's main loop.
#[test]
fn operands_are_reduced_from_their_parts() {
    for (device, plan) in [("emu:sm_80", WAVES[1]), ("emu:sm_90a", GROUPS[0]), ("emu:sm_90a", GROUPS[1]), ("emu:gfx942", MFMA[0])]
    {
        let gemm = gemm((72, 56, 72), Math::Bf16x6).trans(false, true);
        let gemm = ["sum:k:a", "max:k:a", "absmax:k:b"].iter().fold(gemm, |gemm, text| gemm.reduce(text.parse().unwrap()));
        verified(device, &problem(gemm), &format!("{plan}_RDK1"), (6, true));
    }
}

/// Multiply-adds compute f32 itself.
#[test]
fn multiply_adds_serve_as_well() {
    let plan = "A_MIC4__B_MIC4__C_MAC64_EDG1";
    let error = |math| verified("emu:gfx900", &problem(gemm((70, 54, 66), math)), plan, (4, true)).finite_error().unwrap();
    assert_eq!([error(Math::Bf16x3), error(Math::Bf16x6)], [error(Math::Exact); 2]);
}

/// The greatest errors of many short sums: within the bound, and beyond that of the way with more parts, so that a part or a product that is missing
/// shows. Without small parts errors are more than those of TF32, which keeps three bits more of each factor.
#[test]
fn errors_are_those_of_the_parts() {
    let of = |math| problem(gemm((96, 80, 4), math));
    let error = |math, (device, plan)| verified(device, &of(math), plan, (3, false)).finite_error().unwrap();
    let bound = |math| Tolerance::of(&of(math)).accumulate;
    let rounded = error(Math::Tf32, ("emu:sm_80", WAVES[1]));
    for place in [("emu:sm_80", WAVES[1]), ("emu:sm_90a", GROUPS[0]), ("emu:sm_90a", GROUPS[1]), ("emu:gfx942", MFMA[0])] {
        let [three, six] = BOTH.map(|math| error(math, place));
        println!("bf16x3 {three:.1e}, bf16x6 {six:.1e}, tf32 {rounded:.1e}: {}", place.1);
        assert!(six < bound(Math::Bf16x6) && bound(Math::Bf16x6) < three, "{six:e}, {three:e}");
        assert!(three < bound(Math::Bf16x3) && bound(Math::Bf16x3) < rounded, "{three:e}, {rounded:e}");
    }
}

/// Over long sums as accurate as f32, or a little less.
#[test]
fn six_products_are_nearly_as_accurate_as_f32() {
    let error = |math, place: (&str, &str)| {
        verified(place.0, &problem(gemm((96, 80, 320), math)), place.1, (3, false)).finite_error().unwrap()
    };
    let exact = error(Math::Exact, ("emu:sm_80", "A_MIC4__B_MIC4__C_MAC64_EDG1"));
    for place in [("emu:sm_80", WAVES[1]), ("emu:sm_90a", GROUPS[1]), ("emu:gfx942", MFMA[0])] {
        let [three, six] = BOTH.map(|math| error(math, place));
        println!("f32 {exact:.1e}, bf16x6 {six:.1e}, bf16x3 {three:.1e}: {}", place.1);
        assert!(six < 4.0 * exact && six < three, "f32 {exact:e}, bf16x6 {six:e}, bf16x3 {three:e}");
    }
}

/// Copies that do not read what they move cannot split it, and a reduction of an operand needs all of its bits.
#[test]
fn what_a_plan_cannot_do_is_refused() {
    let refused = |math, arch: &str, plan: &str, told: &str| {
        let gemm = problem(gemm((128, 128, 128), math).reduce("sum:k:a".parse().unwrap()));
        let space = Space::new(&gemm, &Target::by_arch(arch).unwrap()).unwrap();
        let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
        let refusal = space.resolve(&plan).map(|_| ()).expect_err(&plan.to_string()).to_string();
        assert!(refusal.contains(told), "{refusal}");
    };
    refused(Math::Bf16x3, "sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_MAC128_UNR64_BUF2_PFG1_LWV1", "f32");
    refused(Math::Bf16x6, "sm_80", "A_MIC1_PAD1_ACP1__B_MIC1_PAD1_ACP1__C_UNI1_MAC128_UNR32_PFG2_BUF3_EDG1", "f32");
    refused(Math::Bf16x3, "sm_80", "A_MIC1_PAD1__B_MIC2_PAD1__C_UNI1_MAC64_UNR16_EDG1_RDK1", "16 bits");
}
