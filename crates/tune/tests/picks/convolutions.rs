//! What the cost model picks for convolutions, with no measuring and no run.

use crate::{picked, space};
use tilewright_check::random::whole_run;
use tilewright_gen::plan::{Chiral, Key, Side};
use tilewright_problem::Problem;

fn depthwise(direction: &str, sizes: &str, dtype: &str) -> Problem {
    Problem::parse(&format!("conv_{direction}_nhwc_{sizes}_bias0_ws1048576_{dtype}")).unwrap()
}

/// The four parts of a strided input gradient read the same windows: each tensor is read once, and little more.
#[test]
fn parts_that_read_the_same_read_it_once() {
    let problem = depthwise("bwdd", "n128_g96_c96_k96_in112x112_fil3x3_st2x2_dil1x1_pb1x1_pe1x1", "f16");
    let Problem::Conv(conv) = &problem else { panic!("{problem}") };
    let picked = picked(&space(&problem, "sm_90a"));
    let once = 2.0 * (conv.input_len() + conv.output_len()) as f64;
    assert!(picked.estimate.dram_bytes < 1.1 * once, "{} {:?}", picked.plan, picked.estimate);
}

#[test]
fn searches_open_with_groups_as_columns() {
    for (direction, text) in [
        ("fwd", "n32_g144_c144_k144_in56x56_fil3x3_st1x1_dil1x1_pb1x1_pe1x1"),
        ("bwdd", "n32_g96_c96_k96_in112x112_fil3x3_st2x2_dil1x1_pb1x1_pe1x1"),
        ("bwdw", "n32_g144_c144_k144_in56x56_fil3x3_st1x1_dil1x1_pb1x1_pe1x1"),
    ] {
        let problem = depthwise(direction, text, "f16");
        let space = space(&problem, "sm_90a");
        let first = picked(&space);
        assert_eq!(first.plan.form, 4, "{problem} {}", first.plan);
        // Few sums over many pixels: threads of a work-group share those, and few partial sums leave it.
        assert_eq!(first.plan.slices > 1, direction == "bwdw", "{problem} {}", first.plan);
    }
}

#[test]
fn a_strided_gradient_in_planes_is_picked_without_copies() {
    let problem = "conv_bwdd_nchw_n32_g1_c256_k512_in64x64_fil1x1_st2x2_dil1x1_pb0x0_pe0x0_bias0_ws1073741824_bf16";
    let space = space(&Problem::parse(problem).unwrap(), "sm_90a");
    let picked = picked(&space);
    let program = space.resolve(&picked.plan).unwrap().generate(1 << 30).unwrap();
    assert_eq!(program.workspace_bytes, 0, "{}", picked.plan);
}

/// What the cost model picks for tensors whose channels are planes, on matrix units: transposed copies and what channels-last tensors have.
#[test]
fn planes_of_channels_are_picked_transposed() {
    let directions = [("fwd", 2), ("bwdd", 2), ("bwdw", 1)];
    for (direction, copies) in directions.into_iter().take(if whole_run() { 3 } else { 1 }) {
        let pick = |layout: &str| {
            let shape = "n32_g1_c256_k256_in100x100_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1073741824_bf16";
            let problem = Problem::parse(&format!("conv_{direction}_{layout}_{shape}")).unwrap();
            picked(&space(&problem, "sm_90a"))
        };
        let (planes, last) = (pick("nchw"), pick("nhwc"));
        let (plan, [us, bound]) = (planes.plan, [planes.estimate.total_us, last.estimate.total_us * 1.6]);
        let transposed = [Key::A(Chiral::Wos), Key::B(Chiral::Wos)].iter().filter(|key| plan.get(**key) == 3).count();
        eprintln!("{direction}: {plan} {:?} against {} {:?}", planes.estimate, last.plan, last.estimate);
        assert!(plan.form == 3 && transposed >= copies && us < bound, "{plan}: {us} us, at most {bound}");
    }
}

/// What the cost model picks for an H200 with no measuring: phases in one launch with nothing copied, groups together, and clusters for the
/// gradient of a filter whose few tiles read the same pixels.
#[test]
fn first_plans() {
    let pick = |text: &str| {
        let problem = Problem::parse(&format!("conv_{text}_dil1x1_pb1x1_pe1x1_bias0_ws1073741824_bf16")).unwrap();
        let space = space(&problem, "sm_90a");
        let plan = picked(&space).plan;
        (space, plan)
    };
    let (space, plan) = pick("bwdd_nhwc_n32_g1_c256_k256_in25x25_fil3x3_st2x2");
    let r = space.resolve(&plan).unwrap();
    assert_eq!((r.rest.len(), r.joined().count()), (3, 3), "{plan}");
    assert!(Side::ALL.into_iter().all(|side| plan.of(side).source == 0 && plan.of(side).copy == 2), "{plan}");
    let (_, plan) = pick("bwdd_nhwc_n32_g32_c256_k256_in50x50_fil3x3_st1x1");
    assert_eq!(plan.form, 2, "{plan}");
    // Channels that are no whole rows of 128 bytes, padded so that windows come in bulk.
    let (_, plan) = pick("bwdd_nhwc_n32_g1_c256_k2376_in25x25_fil3x3_st1x1");
    assert!(plan.form == 3 && plan.a.copy == 2, "{plan}");
    let (_, plan) = pick("bwdw_nhwc_n32_g1_c256_k256_in198x198_fil1x1_st1x1");
    assert!(Side::ALL.into_iter().any(|side| plan.of(side).cluster == 2), "{plan}");
}
