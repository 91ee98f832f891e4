//! Pairs of plan and problem that once went wrong, on the emulator with every check on.

use crate::support;

use support::emulator;
use tilewright_check::random::{Pair, verify};
use tilewright_gen::plan::Plan;
use tilewright_problem::Problem;

/// Verifies a pair with and without beta, waves in lockstep and interleaved.
fn passes(spec: &str, problem: &str, plan: &str) {
    for seed in [2, 3] {
        for interleave in [false, true] {
            let pair = Pair { seed, problem: Problem::parse(problem).unwrap(), plan: Plan::parse(plan).unwrap() };
            let verdict = verify(&emulator(spec, interleave, seed), &pair).unwrap_or_else(|e| panic!("{pair}: {e}"));
            assert!(verdict.passed, "{pair}: {:?}", verdict.reason);
        }
    }
}

/// The copy of a chunk filled the workspace of the whole batch.
#[test]
fn chunks_are_materialised_one_by_one() {
    passes(
        "emu:gfx900",
        "tC0_tA0_tB1_colMaj0_m72_n92_k4_lda20_ldb4_ldc92_ws14624_f32_b5_sa1440_sb0_sc6624_oa16_oc32",
        "A_MIC8_PAD1_PLU0_LIW1_MIW1_WOS2_VEW1_GLW2__B_MIC5_PAD0_PLU1_LIW1_MIW1_WOS2_VEW1_GLW1__C_UNR32_GAL1_PUN0_ICE2_IWI1_SZT0_MAD0_NAW64_UFO0_MAC128_SKW10_AFI1_MIA0_EDG1_SKS1_CST1_HNT1",
    );
    passes(
        "emu:sm_90a",
        "conv_fwd_nhwc_n4_g3_c18_k24_in4_fil1_st1_dil1_pb0_pe0_bias0_ws768_f16",
        "A_MIC2_PAD1_PLU0_LIW0_MIW0_WOS1_VEW1_GLW2_FRW2__B_MIC8_PAD1_PLU1_LIW1_MIW0_WOS0_VEW1_GLW2_FRW2__C_UNR24_GAL1_PUN1_ICE1_IWI0_SZT0_MAD1_NAW64_UFO0_MAC4_SKW9_AFI0_MIA0_CVW2_MGP2_BIM1",
    );
}

/// Copies beyond the last tile were still landing where results were staged, with roles and without.
#[test]
fn copies_land_before_results_are_staged() {
    passes(
        "emu:sm_90a",
        "tC1_tA1_tB0_colMaj1_m4_n8_k28_lda36_ldb32_ldc40_ws8388608_f64_b2_sa168_sb256_sc20_oc32",
        "A_MIC2_PAD2_PLU1_LIW0_MIW0_WOS0_VEW1_ACP1__B_MIC4_PAD1_PLU0_LIW0_MIW0_WOS1_VEW1_LOR1_GLW1__C_UNR6_GAL1_PUN0_ICE1_IWI0_SZT1_MAD1_NAW64_UFO0_MAC8_SKW10_AFI0_MIA0_EDG1_CST1_PFG2_BUF3_FRA2_HNT1",
    );
    passes(
        "emu:sm_90a",
        "tC0_tA1_tB0_colMaj0_m40_n28_k3_lda55_ldb36_ldc28_ws16777216_f32_oa6",
        "A_MIC1_PAD2_PLU0_LIW1_MIW0_WOS1_VEW1_GLW1_FRW1_ACP1__B_MIC6_PAD0_PLU0_LIW1_MIW0_WOS0_VEW1_LOR1_GLW1_FRW2__C_UNR4_GAL1_PUN0_ICE5_IWI1_SZT0_MAD0_NAW64_UFO0_MAC32_SKW10_AFI1_MIA1_SKS1_CVW2_CST1_PFG2_BUF3_LWV1_HNT1",
    );
}

/// B's tile started at a multiple of 16 bytes only, its fragments were read 32 bytes at a time.
#[test]
fn shared_tiles_are_aligned_to_their_vectors() {
    passes(
        "emu:sm_90a",
        "tC0_tA1_tB0_colMaj0_m7_n15_k13_lda7_ldb15_ldc25_ws8388608_f64_oa15_oc12",
        "A_MIC1_PAD3_PLU0_LIW1_MIW0_WOS0_VEW1__B_MIC12_PAD1_PLU0_LIW0_MIW0_WOS1_VEW1_FRW4__C_UNR10_GAL1_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC16_SKW9_AFI1_MIA1_EDG1_MGP2_UKL1_HNT1",
    );
}

/// A spatial dimension that lies in the padding for every output pixel: a condition that is constantly false.
#[test]
fn dimensions_inside_the_padding_are_zero() {
    passes(
        "emu:sm_90a",
        "conv_fwd_nhwc_n2_g2_c8_k24_in2x1x2_fil1x1x1_st2x2x2_dil3x1x3_pb2x1x0_pe1x0x2_bias1_ws4008_f64",
        "A_MIC1_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1_FRW1__B_MIC1_PAD3_PLU1_LIW0_MIW0_WOS1_VEW1_GLW2__C_UNR8_GAL3_PUN0_ICE1_IWI0_SZT0_MAD0_NAW16_UFO0_MAC8_SKW12_AFI0_MIA0_MGP1_PFG3_FRA2",
    );
    passes(
        "emu:sm_90a",
        "conv_fwd_nchw_n3_g1_c4_k24_in1x8x3_fil1x3x3_st2x1x2_dil3x1x1_pb1x0x0_pe0x1x1_bias0_ws67108864_f16",
        "A_MIC16_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__B_MIC2_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1_GLW1_FRW2__C_UNR24_GAL1_PUN1_ICE1_IWI0_SZT0_MAD1_NAW64_UFO0_MAC24_SKW12_AFI1_MIA1_EDG1_BIM1",
    );
}

/// Threads share the splits of an element where there are few elements: any number of splits, elements and batch entries.
#[test]
fn sums_of_many_splits() {
    for (m, n, k, ice) in [(7, 5, 150, 8), (33, 20, 700, 33), (64, 17, 300, 130), (3, 1, 2000, 250)] {
        let problem = format!("tC0_tA0_tB0_colMaj0_m{m}_n{n}_k{k}_lda{k}_ldb{n}_ldc{n}_ws16777216");
        let plan = format!(
            "A_MIC1_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1__B_MIC1_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1__C_UNR8_GAL1_PUN1_ICE{ice}_IWI0_SZT0_MAD1_NAW64_UFO0_MAC64_SKW10_AFI1_MIA0_EDG1_SKS1"
        );
        passes("emu:gfx900", &format!("{problem}_f32"), &plan);
        passes("emu:sm_90a", &format!("{problem}_f64_b3_sa{}_sb0_sc{}_biasn", m * k, m * n), &plan);
    }
}

/// A thread added up all terms of a sum one behind the other, and the reference those of an f64.
#[test]
fn long_sums_are_added_up_in_blocks() {
    passes(
        "emu:sm_90a",
        "reduce_in130328_over0_st1_o16_opsum_opmin_actgelutanh_ws67108864_f16",
        "A_MIC1_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__B_MIC1_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__C_UNR16_GAL1_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC1_SKW10_AFI1_MIA1",
    );
    passes(
        "emu:sm_90a",
        "reduce_in7843_over0_st1_o0_opsum_opsumsq_actsilu_ws67108864_f64",
        "A_MIC1_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__B_MIC1_PAD1_PLU0_LIW0_MIW0_WOS0_VEW1__C_UNR16_GAL1_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC64_SKW10_AFI1_MIA1_MGP2",
    );
    passes(
        "emu:sm_90a",
        "tC0_tA1_tB0_colMaj0_m1336_n72_k2_lda1344_ldb72_ldc216_ws245_f64_b3_sa2688_sb0_sc72_oa16_ob16_oc32_biasn_sbias79_actgelu_redsumsq:mn_noc",
        "A_MIC16_PAD1_PLU1_LIW0_MIW0_WOS0_VEW1_LOR1_GLW2_FRW8__B_MIC4_PAD1_PLU1_LIW1_MIW0_WOS0_VEW1_FRW4__C_UNR24_GAL1_PUN0_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC192_SKW10_AFI0_MIA0_CVW2_CST1_PFG2_BUF2_STP1_FRA1_HNT1_PST3",
    );
}

/// A part of a gradient that has no sums has no use for what its waves exchange: the shuffle was printed without a name.
#[test]
fn what_waves_exchange_for_nothing_is_not_printed() {
    let problem = "conv_bwdd_nhwc_n1_g3_c192_k192_in6x7x16_fil3x2x1_st1x2x4_dil3x1x2_pb1x0x2_pe2x0x0_bias1_ws67108864_f16_mask1";
    let plan = "A_MIC1_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2__B_MIC8_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2__C_UNR64_GAL2_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC256_SKW10_AFI1_MIA0_CST1_PFG4_BUF5_UNI2_PST2_RGA4";
    let target = tilewright_ir::Target::by_arch("sm_90a").unwrap();
    let space = tilewright_gen::space::Space::new(&Problem::parse(problem).unwrap(), &target).unwrap();
    let program = space.resolve(&Plan::parse(plan).unwrap()).unwrap().generate(1 << 30).unwrap();
    let texts: Vec<String> = program.kernels.iter().map(|k| tilewright_ir::print(k, &target).unwrap().text).collect();
    assert!(texts.iter().any(|text| text.contains("= __shfl_sync")));
    assert!(!texts.iter().flat_map(|text| text.lines()).any(|line| line.trim_start().starts_with('=')), "{texts:?}");
}

/// Parts of a gradient in one kernel, one of which leaves by bulk stores and one in rows: a wave came to its next part, and to staging
/// buffers of another size, while another still used its own.
#[test]
fn parts_in_one_kernel_have_staging_buffers_of_one_size() {
    passes(
        "emu:sm_90a",
        "conv_bwdd_nhwc_n1_g1_c32_k32_in4x2_fil1x3_st1x2_dil2x1_pb2x1_pe2x0_bias1_ws67108864_tf32x3",
        "A_MIC2_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2__B_MIC3_PAD1_PLU0_LIW0_MIW1_WOS1_VEW1__C_UNR32_GAL3_PUN1_ICE1_IWI0_SZT0_MAD0_NAW4_UFO0_MAC256_SKW10_AFI1_MIA0_CST1_PFG3_BUF4_LWV4_BIM1_UNI2_PST7_RGA2",
    );
    passes(
        "emu:sm_90a",
        "conv_bwdd_nhwc_n3_g1_c32_k32_in2_fil3_st2_dil1_pb2_pe1_bias1_ws67108864_tf32x3_outbf16",
        "A_MIC1_PAD1_PLU0_LIW0_MIW1_WOS1_VEW1_ACP2__B_MIC8_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1__C_UNR64_GAL1_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC256_SKW10_AFI1_MIA0_CST1_PFG1_BUF2_LWV1_BIM1_UNI2_RGA2",
    );
}

/// The copy with padded rows copied as many batch entries as there may be, not those of the launch.
#[test]
fn rows_are_padded_only_of_operands_of_known_size() {
    let problem = "tC0_tA1_tB1_colMaj1_m4_n5_k71_lda71_ldb10_ldc20_ws33554432_f16_outbf16_b3_sa0_sb710_sc200_gatehardswish";
    let padded = "A_MIC1_PAD2_PLU1_LIW1_MIW0_WOS1_VEW1__B_MIC2_PAD2_PLU0_LIW0_MIW0_WOS3_VEW1__C_UNR8_GAL1_PUN1_ICE1_IWI0_SZT0_MAD1_NAW64_UFO0_MAC8_SKW10_AFI0_MIA1_EDG1";
    passes("emu:sm_90a", problem, padded);
    let target = tilewright_ir::Target::by_arch("sm_90a").unwrap();
    let of_any_batch = Problem::parse(&format!("{problem}_dynb")).unwrap();
    let space = tilewright_gen::space::Space::new(&of_any_batch, &target).unwrap();
    let refusal = space.resolve(&Plan::parse(padded).unwrap()).map(|_| ()).unwrap_err().to_string();
    assert!(refusal.contains("known only at launch; use WOS1"), "{refusal}");
    passes("emu:sm_90a", &format!("{problem}_dynm_dynb"), &padded.replace("WOS3", "WOS1"));
}
