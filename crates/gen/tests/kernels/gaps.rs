//! Results that leave with neighbours which have no sum (`Contraction::gaps`): input gradients whose stride is more than the filter's reach along
//! the lines of planes, on the emulator with every check, by every way out.

use crate::support;

use support::{emulator, judge};
use tilewright_check::random::{Pair, whole_run};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_problem::Problem;

/// Verifies a plan, of whose first part each result leaves with so many neighbours.
fn verify(device: &str, problem: &str, keys: &str, together: u32) {
    let problem = Problem::parse(problem).unwrap();
    let plan = Plan::from(Constraint::parse(keys).unwrap().apply(&Plan::default()));
    for seed in [1, 2] {
        let device = emulator(device, true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap().with_atomics(true);
        let resolved = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        assert_eq!(resolved.contraction.stored_together(), together, "{problem}");
        let failed = judge(&device, &Pair { seed, problem: problem.clone(), plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

#[test]
fn every_way_out_fills_gaps() {
    let conv = |text: &str, dtype: &str| format!("conv_bwdd_nchw_{text}_bias0_ws1048576_{dtype}");
    let plain = "n2_g1_c40_k72_in6x8_fil1x1_st2x2_dil1x1_pb0x0_pe0x0";
    // By hand a third of the ways of each problem, others of each.
    let tried = |number: usize| whole_run() || number.is_multiple_of(3);
    for (case, (text, together)) in (0..).zip([
        (plain, 2),
        // Padding moves the phase that has taps; vectors of four, and of three elements one by one.
        ("n2_g2_c12_k8_in5x6_fil1x1_st1x2_dil1x1_pb0x1_pe0x1", 2),
        ("n1_g1_c9_k5_in7x8_fil3x1_st2x4_dil1x1_pb1x2_pe1x1", 4),
        ("n2_g1_c8_k4_in4x9_fil1x1_st3x3_dil1x1_pb0x1_pe0x0", 3),
        ("n2_g1_c6_k10_in10_fil1_st2_dil1_pb0_pe1", 2),
        ("n1_g1_c8_k4_in2x3x4_fil2x1x1_st1x2x2_dil1x1x1_pb1x0x0_pe0x0x0", 2),
        // Dilation with a divisor in common with the stride.
        ("n1_g1_c8_k4_in8x8_fil3x3_st2x2_dil2x2_pb0x0_pe0x0", 2),
        // Lines that end between two results, and a phase with taps beside another one.
        ("n2_g1_c6_k10_in9_fil1_st2_dil1_pb0_pe1", 1),
        ("n2_g1_c6_k10_in9_fil2_st3_dil1_pb0_pe1", 1),
    ]) {
        let ways = ["BIM0", "BIM1", "ICE2_SKS1", "CST1", "PST3"].map(|more| format!("A_MIC2__B_MIC2__C_MAC32_EDG1_{more}"));
        let ways = ways.iter().flat_map(|plan| ["f32", "bf16"].map(|dtype| (dtype, plan.as_str())));
        let ways = ways.chain([
            ("f32", "A_MIC2__B_MIC2__C_MAC32_EDG1_ICE2_SKS0"),
            ("f16", "A_MIC1__B_MIC2__C_UNI1_MAC64_SKW10_UNR16_EDG1_CVW1"),
            ("f16", "A_MIC1__B_MIC2__C_UNI1_MAC64_SKW10_UNR16_EDG1_CVW1_SWP1_BIM1"),
        ]);
        for (_, (dtype, plan)) in ways.enumerate().filter(|(way, _)| tried(case + way)) {
            verify("emu:sm_80", &conv(text, dtype), plan, together);
        }
    }
    // Tensors that are added or mask, and what the old result adds to all of them.
    for more in ["bias1_res1", "bias0_mask1", "bias1_actrelu"] {
        let problem = format!("conv_bwdd_nchw_{plain}_{more}_ws1048576_f32");
        verify("emu:sm_80", &problem, "A_MIC2__B_MIC2__C_MAC32_EDG1", 2);
        verify("emu:sm_80", &problem, "A_MIC2__B_MIC2__C_MAC32_EDG1_ICE2_SKS1", 2);
    }
    let bulk = "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_UNR64_BUF3_PFG2_LWV4_CVW1";
    let planes = "n2_g1_c64_k64_in8x16_fil1x1_st2x2_dil1x1_pb0x0_pe0x0";
    for more in ["MAC128_PST3", "MAC128_PST3_SWP1", "MAC256_PST4_PNG1"] {
        verify("emu:sm_90a", &conv(planes, "bf16"), &format!("{bulk}_{more}"), 2);
    }
}
