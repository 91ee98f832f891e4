//! Convolutions whose windows come by bulk copies in im2col mode, and their filters as boxes, in all directions: tiles that wrap rows and
//! samples, strides and dilations that divide nothing, corners and offsets of maps, on the emulator with every check.

use crate::support;

use support::{emulator, judge};
use tilewright_check::random::Pair;
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_problem::Problem;

fn plan(keys: &str) -> Plan {
    Constraint::parse(&format!("{keys}_UNI2_GAL1")).unwrap().apply(&Plan::default()).into()
}

/// Verifies a plan whose operands come in bulk in all parts; `windows` says of each operand of the first part whether it does in im2col mode.
fn verify(problem: &str, keys: &str, windows: [bool; 2]) {
    let problem = Problem::parse(problem).unwrap();
    for seed in [1, 2] {
        let device = emulator("emu:sm_90a", true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan = plan(keys);
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        let mode = |i: usize| r.spec.schedule.copies[i].tile().is_some_and(|tile| tile.map.im2col.is_some());
        assert_eq!([mode(0), mode(1)], windows, "{problem} {plan}");
        let failed = judge(&device, &Pair { seed, problem: problem.clone(), plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

fn refusal(problem: &str, keys: &str) -> String {
    let problem = Problem::parse(problem).unwrap();
    let space = Space::new(&problem, &emulator("emu:sm_90a", false, 0).info().target).unwrap();
    space.resolve(&plan(keys)).err().map_or(String::new(), |e| e.to_string())
}

const ROLES: &str = "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV4_PST3";

/// Planes of pixels that are no whole rows of 128 bytes: a sum over samples has zeros behind each plane, and both factors come in boxes as they lie.
#[test]
fn planes_of_pixels_with_zeros_behind_them() {
    for text in ["n3_g1_c72_k64_in10x12_fil1x1_st1x1_dil1x1_pb0x0_pe0x0", "n2_g2_c128_k128_in72_fil1_st1_dil1_pb0_pe0"] {
        let conv = format!("conv_bwdw_nchw_{text}_bias0_ws1048576_bf16");
        for keys in [
            ROLES,
            "A_MIC1_ACP2__B_MIC4_ACP2__C_MAC128_UNR128_PFG1_BUF2",
            "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV1_ICE2_SKS1",
        ] {
            verify(&conv, &format!("{keys}_BIM3"), [false, false]);
            assert!(refusal(&conv, keys).contains("_ACP2"), "{conv}: {}", refusal(&conv, keys));
        }
    }
}

#[test]
fn forward() {
    let conv = |text: &str| format!("conv_fwd_nhwc_{text}_bias0_ws0_bf16");
    for text in [
        "n3_g1_c64_k72_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1",
        "n2_g1_c64_k64_in5_fil3_st1_dil1_pb1_pe1",
        "n2_g1_c64_k64_in4x5x6_fil2x3x2_st1x2x1_dil1x1x2_pb1x1x0_pe0x1x1",
        // No padding, so that nothing bounds the windows; one pixel of output along a dimension.
        "n2_g1_c64_k64_in9x8_fil3x3_st2x1_dil1x2_pb0x0_pe0x0",
        "n2_g1_c64_k64_in9x8_fil3x3_st1x1_dil1x1_pb0x0_pe0x0",
        "n3_g1_c64_k64_in3x8_fil3x3_st1x1_dil1x1_pb0x1_pe0x0",
        // Pixels with a distance alone.
        "n3_g1_c128_k64_in9x11_fil1x1_st2x2_dil1x1_pb0x0_pe0x0",
        "n2_g1_c64_k64_in7x7_fil1x1_st2x2_dil1x1_pb3x3_pe3x3",
        // Stride and dilation of which neither divides the other, filters of two by five.
        "n2_g1_c64_k64_in13x17_fil2x5_st2x4_dil4x2_pb1x0_pe0x1",
        "n2_g1_c64_k64_in13x17_fil2x5_st4x2_dil2x3_pb1x0_pe0x1",
        "n2_g1_c64_k64_in13x17_fil2x5_st3x2_dil2x3_pb1x0_pe0x1",
        // Groups of whole rows of 128 bytes.
        "n2_g2_c128_k48_in6x5_fil3x3_st1x1_dil1x1_pb1x1_pe1x1",
    ] {
        // Pixels of all samples as rows, or of each: then those of one image row are a box.
        let one_row = ["in5_", "in3x8_"].iter().any(|size| text.contains(size));
        verify(&conv(text), &format!("{ROLES}_BIM1"), [true, false]);
        verify(&conv(text), "A_MIC1_ACP2__B_MIC4_ACP2__C_MAC128_UNR64_PFG1_BUF2", [!one_row, false]);
    }
    // Pixels as columns of instructions: tiles of 24.
    let swapped = "A_MIC1_ACP2__B_MIC3_ACP2__C_MAC128_UNR64_PFG2_BUF3_SWP1";
    verify(&conv("n3_g1_c64_k72_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1"), swapped, [false, true]);
    // Work-groups of a cluster copy parts of the pixels, and the last part begins beyond them.
    let cluster = "A_MIC1_CLU2_ACP2__B_MIC8_CLU2_ACP2__C_MAC128_UNR64_BUF3_LWV4";
    verify(&conv("n2_g1_c64_k128_in9x10_fil3x3_st1x1_dil1x1_pb1x1_pe1x1"), cluster, [true, false]);
    // Splits of k, f32 and its rows of 32 channels.
    verify(
        &conv("n1_g1_c64_k64_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1").replace("ws0", "ws1048576"),
        &format!("{ROLES}_ICE4_SKS1").replace("_PST3", ""),
        [true, false],
    );
    let tf32 = conv("n2_g1_c32_k64_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1").replace("bf16", "tf32");
    verify(&tf32, "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR32_BUF3_LWV4", [true, false]);
}

#[test]
fn backward_data() {
    let conv = |text: &str| format!("conv_bwdd_nhwc_{text}_bias0_ws0_f16");
    for (text, windows) in [
        ("n3_g1_c64_k64_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1", true),
        ("n2_g1_c64_k128_in9x8_fil3x2_st1x1_dil2x1_pb2x0_pe1x1", true),
        ("n3_g1_c64_k64_in9x8_fil3x3_st2x2_dil1x1_pb1x1_pe1x1", true),
        ("n3_g1_c64_k64_in9x8_fil1x1_st2x2_dil1x1_pb0x0_pe0x0", false),
        ("n2_g1_c64_k64_in13x17_fil2x5_st3x2_dil2x3_pb1x0_pe0x1", true),
        ("n2_g1_c64_k64_in2x9_fil3x3_st3x1_dil1x1_pb1x1_pe1x1", false),
        // Where the windows of a phase cover all output pixels, nothing bounds them, and taps follow each other in memory.
        ("n3_g1_c64_k128_in9x9_fil3x3_st2x2_dil1x1_pb1x1_pe1x1", true),
    ] {
        verify(&conv(text), ROLES, [windows, false]);
    }
}

/// Neighbouring groups as one block-diagonal product: windows come in bulk as those of one group would, the filter from its copy in
/// workspace or by load waves, and of a filter's gradient the blocks are stored, by each way that splits of the sum meet.
#[test]
fn groups_as_block_diagonal_products() {
    let eights = "n2_g16_c128_k128_in7x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let strided = "n2_g8_c128_k128_in7x6_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let depthwise = "n2_g64_c64_k64_in6x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let odd = "n2_g6_c30_k18_in6x7_fil3x2_st1x1_dil1x1_pb1x1_pe1x1";
    let bulk = "A_MIC1_ACP2__B_MIC8_ACP2_WOS1__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let weight = "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let waves = "A_MIC2_PAD8__B_MIC2_PAD8__C_UNI1_MAC128_UNR32_PFG1_BUF2_EDG1";
    let cases = [
        ("fwd", eights, "emu:sm_90a", format!("{bulk}_PST3")),
        ("fwd", depthwise, "emu:sm_90a", format!("{bulk}_CST1")),
        ("fwd", strided, "emu:sm_90a", format!("{}_PST3", bulk.replace("B_MIC8_ACP2_WOS1", "B_MIC8_ACP0"))),
        ("bwdd", eights, "emu:sm_90a", format!("{bulk}_CST1")),
        ("bwdd", strided, "emu:sm_90a", format!("{bulk}_PST5_CST1")),
        ("bwdw", eights, "emu:sm_90a", weight.into()),
        ("bwdw", strided, "emu:sm_90a", format!("{weight}_ICE3_SKS1_CST1")),
        ("bwdw", depthwise, "emu:sm_90a", format!("{weight}_ICE2_SKS2")),
        ("bwdw", odd, "emu:sm_80", format!("{waves}_ICE4_SKS1")),
        ("bwdw", odd, "emu:sm_80", format!("{waves}_SWP1")),
        ("fwd", odd, "emu:sm_80", waves.into()),
        ("bwdd", odd, "emu:sm_80", waves.into()),
        ("bwdw", odd, "emu:gfx900", "A_MIC2__B_MIC4__C_MAC64_UNR8_PFG1_BUF2_EDG1_CST1".into()),
    ];
    for (seed, (direction, text, device, keys)) in (0..).zip(cases) {
        let problem = Problem::parse(&format!("conv_{direction}_nhwc_{text}_bias0_ws1048576_f16")).unwrap();
        let device = emulator(device, true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan: Plan = Constraint::parse(&format!("{keys}_BIM2")).unwrap().apply(&Plan::default()).into();
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        let groups = if let Problem::Conv(conv) = &problem { conv.groups } else { 1 };
        assert!(r.contraction.g * 3 <= groups, "{problem}: {} products", r.contraction.g);
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

/// Groups of planes are channels of one map where a window has one row of taps, as one phase of this gradient has: boxes reach behind a group's channels, to
/// the end of the copy's lines, which nothing but the copy fills.
#[test]
fn lines_of_a_copy_are_zero_behind_a_groups_channels() {
    for (seed, filter) in (0..).zip(["3x3", "2x3", "3x2"]) {
        let text = format!("conv_bwdd_nchw_n1_g2_c44_k52_in6x20_fil{filter}_st2x1_dil1x1_pb1x1_pe0x0_bias0_ws1048576_tf32");
        let (problem, device) = (Problem::parse(&text).unwrap(), emulator("emu:sm_90a", true, seed));
        let keys = "A_MIC1_WOS3_ACP2__B_MIC1_WOS3_ACP2__C_MAC128_UNR32_BUF3_LWV4_BIM3_UNI2";
        let plan = Plan::from(Constraint::parse(keys).unwrap().apply(&Plan::default()));
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

/// Channels that are no whole rows of 128 bytes, padded under each tap: then windows come in bulk, in every direction, of one group or several,
/// with strides; and of a filter's gradient the columns that exist are stored. Of few channels a power of two, by units that read what threads
/// copy.
#[test]
fn channels_padded_under_each_tap() {
    let plain = "n2_g1_c72_k72_in7x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let strided = "n2_g1_c72_k72_in7x6_fil3x2_st2x1_dil1x2_pb1x1_pe1x1";
    let groups = "n2_g2_c80_k80_in5x6_fil2x3_st1x1_dil1x1_pb1x1_pe0x1";
    let few = "n2_g1_c3_k24_in9x8_fil5x3_st2x2_dil1x1_pb2x1_pe2x1";
    // Forty-eight groups, and 24, of one block-diagonal product.
    let depthwise = "n2_g96_c96_k96_in5x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let reduced = "n2_g24_c24_k24_in7x6_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let blocks = "A_MIC1_ACP2__B_MIC8_ACP2_WOS1__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let bulk = "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let columns = "A_MIC1_ACP2__B_MIC16_ACP2__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let waves = "A_MIC1_PAD8__B_MIC2_PAD8__C_UNI1_MAC64_UNR16_PFG1_BUF2_EDG1";
    let cases = [
        ("fwd", plain, "emu:sm_90a", format!("{bulk}_PST3_CST1")),
        ("fwd", groups, "emu:sm_90a", format!("{bulk}_ICE2_SKS2")),
        ("fwd", strided, "emu:sm_90a", format!("{bulk}_SWP1")),
        ("bwdd", plain, "emu:sm_90a", bulk.into()),
        ("bwdd", strided, "emu:sm_90a", format!("{bulk}_PST3")),
        ("bwdd", groups, "emu:sm_90a", format!("{bulk}_ICE2_SKS1")),
        ("bwdw", plain, "emu:sm_90a", format!("{columns}_PST3")),
        ("bwdw", strided, "emu:sm_90a", format!("{columns}_ICE3_SKS1")),
        ("bwdw", groups, "emu:sm_90a", columns.into()),
        ("fwd", depthwise, "emu:sm_90a", format!("{blocks}_PST3_CST1")),
        ("fwd", reduced, "emu:sm_90a", blocks.into()),
        ("bwdd", depthwise, "emu:sm_90a", blocks.into()),
        ("bwdd", reduced, "emu:sm_90a", format!("{blocks}_PST3")),
        ("bwdw", depthwise, "emu:sm_90a", format!("{columns}_ICE2_SKS1")),
        ("bwdw", reduced, "emu:sm_90a", columns.into()),
        ("fwd", few, "emu:sm_80", waves.into()),
        ("bwdd", few, "emu:gfx942", "A_MIC1_PAD8__B_MIC1_PAD8__C_UNI3_MAC256_UNR16_PFG1_BUF2_EDG1_CST1".into()),
        ("bwdw", few, "emu:sm_80", format!("{waves}_ICE2_SKS1")),
        ("bwdw", few, "emu:gfx900", "A_MIC2__B_MIC4__C_MAC64_UNR8_PFG1_BUF2_EDG1".into()),
    ];
    for (seed, (direction, text, device, keys)) in (0..).zip(cases) {
        let problem = Problem::parse(&format!("conv_{direction}_nhwc_{text}_bias0_ws1048576_f16")).unwrap();
        let device = emulator(device, true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let with = |form: &str| Plan::from(Constraint::parse(&format!("{keys}{form}")).unwrap().apply(&Plan::default()));
        let plan = with("_BIM3");
        space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        // Tensor maps exist of the padded windows alone.
        assert_eq!(space.resolve(&with("")).is_err(), text != few, "{problem}");
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

/// Tensors whose rows of channels are no multiples of 16 bytes, copied to workspace with padded rows and read from there through the view of
/// their windows: by bulk copies, by threads in vectors, by load waves; phases of a gradient, groups, three dimensions.
#[test]
fn tensors_copied_with_padded_rows() {
    let plain = "n2_g1_c36_k36_in7x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let strided = "n2_g1_c36_k36_in9x8_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let groups = "n2_g2_c72_k72_in5x6_fil2x3_st1x1_dil1x1_pb0x0_pe0x0";
    let solid = "n2_g1_c35_k35_in3x4x5_fil2x3x2_st1x2x1_dil1x1x2_pb1x1x0_pe0x1x1";
    let few = "n2_g1_c3_k24_in9x8_fil5x3_st2x2_dil1x1_pb2x1_pe2x1";
    let of_a = "A_MIC1_ACP2_WOS3__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let both = "A_MIC1_ACP2_WOS3__B_MIC8_ACP2_WOS1__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let columns = "A_MIC1_ACP2_WOS1__B_MIC16_ACP2_WOS3__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let copies = "A_MIC1_PLU1_LOR1_GLW4_ACP1_WOS3__B_MIC2_PAD8__C_UNI1_MAC64_UNR16_PFG1_BUF2_EDG1";
    let cases = [
        ("fwd", plain, "emu:sm_90a", format!("{both}_PST3_BIM3")),
        ("fwd", groups, "emu:sm_90a", format!("{}_BIM3", both.replace("UNR64", "UNR128"))),
        ("fwd", solid, "emu:sm_90a", format!("{both}_ICE2_SKS2_BIM3")),
        ("bwdd", plain, "emu:sm_90a", format!("{of_a}_FRA1_BIM3").replace("B_MIC8_ACP2", "B_MIC8_ACP2_WOS1")),
        ("bwdd", strided, "emu:sm_90a", format!("{both}_PST5_BIM3")),
        ("bwdd", strided, "emu:sm_90a", format!("{}_BIM3", both.replace("A_MIC1_ACP2", "A_MIC1_ACP0"))),
        ("bwdw", plain, "emu:sm_90a", format!("{columns}_BIM3")),
        ("bwdw", solid, "emu:sm_90a", format!("{columns}_ICE3_SKS1_BIM3")),
        ("fwd", few, "emu:sm_80", format!("{copies}_BIM3")),
        ("fwd", few, "emu:sm_80", format!("{}_BIM3", copies.replace("ACP1_", ""))),
        ("bwdw", few, "emu:gfx900", "A_MIC2__B_MIC4_WOS3__C_MAC64_UNR8_PFG1_BUF2_EDG1_BIM0".into()),
        ("fwd", groups, "emu:gfx942", "A_MIC1_PAD8_WOS3__B_MIC1_PAD8__C_UNI3_MAC256_UNR16_PFG1_BUF2_EDG1_BIM1".into()),
    ];
    for (seed, (direction, text, device, keys)) in (0..).zip(cases) {
        let problem = Problem::parse(&format!("conv_{direction}_nhwc_{text}_bias0_ws1048576_f16")).unwrap();
        let device = emulator(device, true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan = Plan::from(Constraint::parse(&keys).unwrap().apply(&Plan::default()));
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        // Rows of 80 bytes are as far apart as those of 128, none of which straddles two lines of a cache.
        let windows = r.spec.schedule.copies.iter().filter_map(|copy| copy.tile()).find(|tile| tile.map.im2col.is_some());
        let whole = |bytes: u64| bytes.is_multiple_of(128) || text == groups;
        assert!(windows.is_none_or(|tile| whole(tile.map.stride_bytes[0])), "{problem} {plan}");
        // Instructions without a product are left out: channels of a tap end before a k-tile does.
        let steps = r.spec.tiling.steps(r.contraction, 16).len() as u32;
        let padded = keys.contains("UNI2") && direction != "bwdw";
        assert_eq!(4 * steps, plan.k_tile / 16 * if padded { 3 } else { 4 }, "{problem} {plan}");
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
    let alone = of_a.replace("_UNI2", "");
    assert!(
        refusal("conv_fwd_nhwc_n1_g1_c64_k64_in4x4_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws0_bf16", &alone)
            .contains("multiples of 16 bytes")
    );
    assert!(refusal("tC0_tA1_tB0_colMaj1_m64_n64_k40_lda41_ldb64_ldc64_ws0_bf16", &alone).contains("WOS1"));
}

/// Tensors whose channels are planes, transposed to rows of channels in workspace and read from there through the view of their windows, whose
/// k runs over taps and then channels: all directions, in one to three dimensions; groups, phases of a gradient, planes that vectors divide
/// and others, channels that fill rows of 128 bytes and others.
#[test]
fn planes_of_channels_transposed() {
    let plain = "n2_g1_c64_k64_in8x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let odd = "n2_g1_c36_k40_in7x5_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let strided = "n2_g1_c64_k64_in9x8_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let inner = "n2_g1_c64_k64_in9x8_fil2x3_st2x1_dil1x1_pb0x0_pe0x0";
    let groups = "n2_g2_c128_k128_in5x6_fil2x3_st1x1_dil1x1_pb0x0_pe0x0";
    let line = "n2_g1_c64_k64_in24_fil5_st1_dil2_pb2_pe1";
    let solid = "n2_g1_c35_k35_in3x4x5_fil2x3x2_st1x2x1_dil1x1x2_pb1x1x0_pe0x1x1";
    let few = "n2_g1_c3_k24_in9x8_fil5x3_st2x2_dil1x1_pb2x1_pe2x1";
    let bulk = "A_MIC1_ACP2_WOS3__B_MIC8_ACP2_WOS3__C_MAC128_UNR64_BUF3_LWV4_UNI2_BIM3";
    let waves = "A_MIC2_WOS3_PAD8__B_MIC2_WOS3_PAD8__C_UNI1_MAC64_UNR16_PFG1_BUF2_EDG1_BIM3";
    let rows = "A_MIC2_WOS3__B_MIC4_WOS3__C_MAC64_UNR8_PFG1_BUF2_EDG1_BIM3";
    let cases = [
        ("fwd", plain, "emu:sm_90a", format!("{bulk}_SWP1_PST3_CST1")),
        ("fwd", plain, "emu:sm_90a", format!("{bulk}_CST1")),
        ("fwd", odd, "emu:sm_90a", format!("{bulk}_SWP1_CST1")),
        ("fwd", strided, "emu:sm_90a", format!("{bulk}_SWP1")),
        ("fwd", inner, "emu:sm_90a", format!("{bulk}_SWP1_ICE2_SKS2")),
        ("fwd", groups, "emu:sm_90a", format!("{bulk}_SWP1")),
        ("fwd", line, "emu:sm_90a", format!("{bulk}_SWP1_CST1")),
        ("fwd", solid, "emu:sm_90a", format!("{bulk}_SWP1")),
        ("fwd", few, "emu:sm_80", waves.into()),
        ("fwd", groups, "emu:gfx900", rows.into()),
        ("bwdd", plain, "emu:sm_90a", format!("{bulk}_SWP1_PST3_CST1")),
        ("bwdd", odd, "emu:sm_90a", format!("{bulk}_SWP1")),
        ("bwdd", strided, "emu:sm_90a", format!("{bulk}_SWP1_PST5")),
        ("bwdd", inner, "emu:sm_90a", bulk.into()),
        ("bwdd", groups, "emu:sm_90a", format!("{bulk}_SWP1_CST1")),
        ("bwdd", solid, "emu:sm_90a", format!("{bulk}_ICE3_SKS1")),
        ("bwdd", strided, "emu:sm_80", waves.into()),
        ("bwdw", plain, "emu:sm_90a", format!("{bulk}_ICE2_SKS1")),
        ("bwdw", odd, "emu:sm_90a", format!("{bulk}_PST3")),
        ("bwdw", strided, "emu:sm_90a", format!("{bulk}_SWP1")),
        ("bwdw", groups, "emu:sm_90a", bulk.into()),
        ("bwdw", solid, "emu:sm_90a", format!("{bulk}_ICE3_SKS1")),
        ("bwdw", plain, "emu:gfx942", "A_MIC1_PAD8_WOS3__B_MIC1_PAD8_WOS3__C_UNI3_MAC256_UNR16_PFG1_BUF2_EDG1_BIM3".into()),
    ];
    for (seed, (direction, text, device, keys)) in (0..).zip(cases) {
        let problem = Problem::parse(&format!("conv_{direction}_nchw_{text}_bias0_ws1048576_f16")).unwrap();
        let device = emulator(device, true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan = Plan::from(Constraint::parse(&keys).unwrap().apply(&Plan::default()));
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        // Phases of a gradient read the same copies, in one launch; one that a single tap reaches has copies and products of its own.
        if direction == "bwdd" && plan.unit == 2 && plan.splits == 1 {
            let most = if [strided, inner].contains(&text) { 4 } else { 2 };
            assert!(r.generate(1 << 20).unwrap().launches.len() <= most, "{problem} {plan}");
            assert!(r.rest.iter().all(|part| part.spec.tiling.unit == r.spec.tiling.unit), "{problem} {plan}");
        }
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

/// The gradient of a ReLU behind an input gradient: kept where the ReLU's result is above 0, in every way out and of every part, with and
/// without what beta leaves of C.
#[test]
fn masks_of_input_gradients() {
    let bulk = "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV4_UNI2";
    let waves = "A_MIC2_PAD8__B_MIC2_PAD8__C_UNI1_MAC128_UNR32_PFG1_BUF2_EDG1";
    let point = "nhwc_n3_g1_c64_k64_in9x8_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let strided = "nhwc_n3_g1_c64_k64_in9x8_fil1x1_st2x2_dil1x1_pb0x0_pe0x0";
    let planes = "nchw_n2_g2_c12_k8_in9x8_fil3x2_st2x1_dil1x1_pb1x1_pe1x0";
    let cases = [
        (point, "emu:sm_90a", format!("{bulk}_PST3_CST1")),
        (point, "emu:sm_90a", format!("{bulk}_ICE2_SKS2")),
        (point, "emu:sm_90a", format!("{bulk}_ICE2_SKS1")),
        (strided, "emu:sm_90a", format!("{bulk}_CST1")),
        (strided, "emu:sm_90a", format!("{bulk}_PST3")),
        (planes, "emu:sm_80", waves.into()),
        (planes, "emu:sm_80", format!("{waves}_SWP1")),
        (planes, "emu:gfx900", "A_MIC2__B_MIC2__C_MAC64_UNR8_PFG1_BUF2_EDG1_CST1".into()),
    ];
    for (seed, (text, device, keys)) in (0..).zip(cases) {
        for end in ["f16_mask1", "bf16_outf32_actrelu_mask1"] {
            let problem = Problem::parse(&format!("conv_bwdd_{text}_bias1_ws1048576_{end}")).unwrap();
            let device = emulator(device, true, seed);
            let plan: Plan = Constraint::parse(&keys).unwrap().apply(&Plan::default()).into();
            let failed = judge(&device, &Pair { seed, problem, plan });
            assert!(failed.is_none(), "{}", failed.unwrap_or_default());
        }
    }
}

/// Phases of a strided gradient are parts of one launch, whatever brings their operands and whichever way results leave; those without a
/// tap store zeros, or what beta leaves of C.
#[test]
fn phases_of_a_gradient_are_one_launch() {
    let wide = "n3_g1_c64_k64_in9x8_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let large = "n3_g1_c64_k64_in17x16_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let point = "n3_g1_c64_k64_in9x8_fil1x1_st2x2_dil1x1_pb0x0_pe0x0";
    let far = "n2_g1_c64_k64_in13x17_fil2x2_st3x4_dil1x3_pb1x0_pe0x1";
    let groups = "n2_g2_c16_k16_in9x8_fil3x1_st2x2_dil1x1_pb1x0_pe1x0";
    let bulk = "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV4";
    let cases = [
        // Persistent work-groups, whose number divides none of the parts; work-groups of one tile; those without roles.
        (wide, "emu:sm_90a", format!("{bulk}_PST5_UNI2")),
        (point, "emu:sm_90a", format!("{bulk}_PST5_UNI2")),
        (far, "emu:sm_90a", format!("{bulk}_UNI2_CST1")),
        (wide, "emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_PFG1_BUF3_UNI2_CST1_FRA1".into()),
        (point, "emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_PFG2_BUF3_PST3_UNI2_CST1".into()),
        // Clusters, sums of splits over one, splits that leave partial sums, load waves that write, operands in workspace.
        (large, "emu:sm_90a", format!("{}_PST4_UNI2_BIM1", bulk.replace("A_MIC1", "A_MIC1_CLU2"))),
        (wide, "emu:sm_90a", format!("{bulk}_UNI2_ICE2_SKS2")),
        (point, "emu:sm_90a", format!("{bulk}_UNI2_ICE2_SKS2_PST4")),
        (wide, "emu:sm_90a", format!("{bulk}_UNI2_ICE2_SKS1_BIM1")),
        (wide, "emu:sm_90a", format!("{}_UNI2_PST3", bulk.replace("A_MIC1_ACP2", "A_MIC1_ACP0"))),
        (point, "emu:sm_90a", format!("{}_UNI2_PST3", bulk.replace("A_MIC1_ACP2", "A_MIC1_ACP2_WOS1"))),
        // Other units and barriers of the work-group.
        (wide, "emu:sm_80", "A_MIC2_PAD8__B_MIC2_PAD8__C_UNI1_MAC128_UNR32_PFG1_BUF2_EDG1".into()),
        (groups, "emu:sm_80", "A_MIC1_PAD8__B_MIC1_PAD8__C_UNI1_MAC64_UNR16_PFG1_BUF2_EDG1_PST3".into()),
        (groups, "emu:gfx900", "A_MIC2__B_MIC2__C_MAC64_UNR8_PFG1_BUF2_FRA1_EDG1_LWV1".into()),
        (far, "emu:gfx942", "A_MIC2_PAD8__B_MIC2_PAD8__C_UNI3_MAC256_UNR32_PFG1_BUF2_EDG1_CST1".into()),
    ];
    for (seed, (text, device, keys)) in (0..).zip(cases) {
        let problem = Problem::parse(&format!("conv_bwdd_nhwc_{text}_bias0_ws1048576_f16")).unwrap();
        let device = emulator(device, true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let plan: Plan = Constraint::parse(&keys).unwrap().apply(&Plan::default()).into();
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        let parts = r.rest.len();
        assert!(parts > 0 && r.joined().count() == parts, "{problem} {plan}: {} of {parts}", r.joined().count());
        let program = r.generate(space.env().workspace_bytes).unwrap();
        let mains = program.launches.iter().filter(|l| program.kernels[l.kernel].name.starts_with(MAIN)).count();
        // Of many parts, eight together.
        assert_eq!(mains, (1 + parts).div_ceil(8), "{problem} {plan}");
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

#[test]
fn backward_weight() {
    let conv = |text: &str| format!("conv_bwdw_nhwc_{text}_bias0_ws1048576_bf16");
    for text in [
        "n3_g1_c64_k64_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1",
        "n3_g1_c128_k40_in9x7_fil3x2_st2x1_dil1x2_pb1x0_pe1x1",
        "n2_g1_c64_k64_in13x17_fil2x5_st3x2_dil2x3_pb1x0_pe0x1",
        "n3_g1_c64_k64_in8x8_fil1x1_st2x2_dil1x1_pb0x0_pe0x0",
    ] {
        verify(&conv(text), "A_MIC1_ACP2__B_MIC16_ACP2__C_MAC128_UNR64_BUF3_LWV4", [false, true]);
        verify(&conv(text), "A_MIC1_ACP2__B_MIC8_ACP2__C_MAC128_UNR64_BUF3_LWV4_ICE3_SKS1", [false, true]);
        // Work-groups of the same split share their pixels.
        let shared = "A_MIC1_ACP2__B_MIC8_ACP2_CLU2__C_MAC128_UNR64_BUF3_LWV4_ICE3_SKS1";
        if !text.contains("fil1x1") {
            verify(&conv(text), shared, [false, true]);
        }
    }
}

/// What windows cannot be is refused with its reason.
#[test]
fn refusals() {
    let conv = |text: &str| format!("conv_fwd_nhwc_{text}_bias0_ws0_bf16");
    for (text, why) in [
        ("n1_g1_c64_k64_in300x300_fil3x3_st1x1_dil100x100_pb130x130_pe1x1", "corners of"),
        ("n2_g1_c64_k64_in40x40_fil2x2_st9x9_dil1x1_pb1x1_pe1x1", "a step of 9"),
        ("n2_g1_c40_k64_in9x9_fil3x3_st1x1_dil1x1_pb1x1_pe1x1", "runs of 40 elements"),
        ("n2_g4_c32_k64_in9x9_fil1x1_st2x2_dil1x1_pb0x0_pe0x0", "does not divide k = 8"),
        ("n2_g1_c36_k64_in9x9_fil1x1_st2x2_dil1x1_pb0x0_pe0x0", "multiple of 16"),
    ] {
        let told = refusal(&conv(text), ROLES);
        assert!(told.contains(why), "{text}: {told}");
    }
    let told = refusal(&conv("n2_g1_c64_k64_in9x9_fil3x3_st1x1_dil1x1_pb1x1_pe1x1"), &ROLES.replace("UNR64", "UNR128"));
    assert!(told.contains("UNR128 does not divide k = 576"), "{told}");
}
