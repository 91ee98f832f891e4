//! Depthwise convolutions whose groups are columns of one product (`BIM4`): each thread loads what it multiplies, in vectors of neighbouring
//! groups, and what taps of neighbouring pixels share once. In all directions, on the emulator with every check.

use crate::support;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::{emulator, judge};
use tilewright_check::random::Pair;
use tilewright_gen::plan::{Constraint, Keys, Plan, Transport};
use tilewright_gen::space::Space;
use tilewright_ir::{Target, print};
use tilewright_problem::Problem;
use tilewright_problem::contraction::ResultSource;

fn text(direction: &str, sizes: &str, dtype: &str) -> String {
    format!("conv_{direction}_nhwc_{sizes}_bias0_ws1048576_{dtype}")
}

fn problem(direction: &str, sizes: &str, dtype: &str) -> Problem {
    Problem::parse(&text(direction, sizes, dtype)).unwrap()
}

fn plan(keys: &str) -> Plan {
    Constraint::parse(&format!("{keys}_BIM4")).unwrap().apply(&Plan::default()).into()
}

fn space(problem: &Problem, arch: &str) -> Space {
    Space::new(problem, &Target::by_arch(arch).unwrap()).unwrap()
}

/// Loads of a thread in a k-tile: of the factor that each column has of its own, of the other.
fn loads(problem: &Problem, keys: &str) -> [(usize, u32); 2] {
    let space = space(problem, "sm_90a");
    let resolved = space.resolve(&plan(keys)).unwrap_or_else(|e| panic!("{problem} {keys}: {e}"));
    resolved.spec.schedule.copies.each_ref().map(|copy| match copy {
        Transport::Own(loads) => (loads.places.len(), loads.width),
        _ => (0, 0),
    })
}

const LAYER: &str = "n2_g16_c16_k16_in7x8_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";

#[test]
fn what_taps_share_is_loaded_once() {
    let thread = "A_MIC4__B_MIC8__C_MAC32_UNR9";
    // Four pixels of a line have six columns of the window in three lines, and nine taps of eight channels.
    assert_eq!(loads(&problem("fwd", LAYER, "f16"), thread), [(18, 8), (9, 8)]);
    let packed = "A_MIC4__B_MIC8_WOS2__C_MAC32_UNR9";
    assert_eq!(loads(&problem("fwd", LAYER, "f16"), packed), [(18, 8), (9, 8)]);
    // Taps of eight groups lie side by side, a line of them of each group does not.
    assert_eq!(loads(&problem("fwd", LAYER, "f16"), "A_MIC4__B_MIC8__C_MAC32_UNR3")[1], (24, 1));
    assert_eq!(loads(&problem("fwd", LAYER, "f16"), "A_MIC4__B_MIC4__C_MAC32_UNR9")[1], (9, 4));
    assert_eq!(loads(&problem("bwdd", LAYER, "f16"), packed), [(18, 8), (9, 8)]);
    // Nine columns of three lines with stride 2; a line of taps at a time.
    let strided = "n2_g16_c16_k16_in7x16_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    assert_eq!(loads(&problem("fwd", strided, "f16"), packed)[0].0, 27);
    assert_eq!(loads(&problem("fwd", LAYER, "f16"), "A_MIC4__B_MIC8__C_MAC32_UNR3")[0].0, 6);
    // Of a filter's gradient a line of taps over four pixels.
    assert_eq!(loads(&problem("bwdw", LAYER, "f16"), "A_MIC3__B_MIC8__C_MAC32_UNR4"), [(6, 8), (4, 8)]);
    assert_eq!(loads(&problem("bwdw", LAYER, "f16"), "A_MIC9__B_MIC8__C_MAC32_UNR4"), [(18, 8), (4, 8)]);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let refusal =
        |problem: &Problem, keys: &str| space(problem, "sm_90a").resolve(&plan(keys)).map(|_| ()).unwrap_err().to_string();
    let layer = problem("fwd", LAYER, "f16");
    let odd = problem("fwd", "n2_g9_c9_k9_in7x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1", "f16");
    for (problem, keys, expected) in [
        (&odd, "A_MIC1__B_MIC8__C_UNR9", "B_MIC8 with BIM4: the width of a thread must divide the number of groups"),
        (&layer, "A_MIC1__B_MIC16__C_UNR9", "B_MIC16 with BIM4: a thread loads its groups as one vector"),
        (&layer, "A_MIC3__B_MIC8__C_UNR9", "A_MIC3 with BIM4: the rows of a thread must divide m"),
        (&layer, "A_MIC14__B_MIC8__C_UNR9", "A_MIC14 with BIM4: a thread's rows are at uneven distances"),
        (&layer, "A_MIC4__B_MIC8__C_UNR2", "C_UNR2 with BIM4: the k-tile must divide k"),
        (&layer, "A_MIC1__B_MIC8__C_UNR9_LSU2", "C_LSU2 with BIM4: slices take equal parts of a k-tile"),
        (&layer, "A_MIC1__B_MIC8__C_UNR9_PFG2", "C_PFG2 with BIM4: registers hold"),
        (
            &layer,
            "A_MIC1__B_MIC8__C_UNR9_LSU3_ICE2_SKS2",
            "C_LSU3 with BIM4: the reductions of slices and of a cluster (SKS2) use the same shared memory",
        ),
        (&layer, "A_MIC1__B_MIC8__C_UNR64_UNI2_MAC128", "C_UNI2 with BIM4: matrix instructions"),
    ] {
        let found = refusal(problem, keys).replace("UNI2 with", "C_UNI2 with").replace("C_C_", "C_");
        assert!(found.starts_with(expected), "{keys}: {found}");
    }
    // Several channels in a group, or channels first, have no such form.
    for text in ["nhwc_n2_g4_c8_k8", "nchw_n2_g8_c8_k8"] {
        let text = format!("conv_fwd_{text}_in7x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws0_f16");
        let space = space(&Problem::parse(&text).unwrap(), "sm_90a");
        assert!(space.contractions().iter().all(|(form, c)| *form != 4 && c.source == ResultSource::Product), "{text}");
    }
}

#[test]
fn all_directions_verify() {
    let strided = "n2_g24_c24_k24_in9x8_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let dilated = "n3_g8_c8_k8_in13x9_fil5x2_st1x2_dil2x1_pb3x0_pe1x1";
    let line = "n2_g10_c10_k10_in23_fil4_st1_dil1_pb3_pe0";
    let solid = "n2_g6_c6_k6_in3x4x6_fil3x3x3_st1x1x2_dil1x1x1_pb1x1x1_pe1x1x0";
    let cases = [
        ("fwd", LAYER, "f16", "emu:sm_90a", "A_MIC4__B_MIC8__C_MAC32_UNR9_MIA1_CVW8"),
        ("fwd", LAYER, "bf16", "emu:sm_90a", "A_MIC8__B_MIC8_WOS2__C_MAC64_SKW12_UNR3_MIA1_CVW4_MAD1"),
        ("fwd", LAYER, "f32", "emu:sm_80", "A_MIC4__B_MIC4_WOS1__C_MAC64_UNR9_CVW4_GAL2"),
        ("fwd", LAYER, "f64", "emu:gfx942", "A_MIC2__B_MIC2__C_MAC64_UNR9_CVW2"),
        ("fwd", strided, "f16", "emu:sm_80", "A_MIC2__B_MIC8__C_MAC96_UNR64_MIA1_CVW8"),
        ("fwd", strided, "f16", "emu:sm_90a", "A_MIC4__B_MIC8__C_MAC32_UNR1_ICE3_SKS1_CVW4"),
        ("fwd", strided, "f16", "emu:sm_90a", "A_MIC4__B_MIC8__C_MAC32_UNR3_ICE2_SKS2_SZT1"),
        ("fwd", dilated, "f16", "emu:sm_90a", "A_MIC5__B_MIC4__C_MAC64_UNR10_MIA1"),
        ("fwd", line, "f16", "emu:gfx900", "A_MIC1__B_MIC2__C_MAC64_UNR4_CVW2"),
        ("fwd", solid, "f16", "emu:sm_90a", "A_MIC3__B_MIC2__C_MAC32_UNR27"),
        ("bwdd", LAYER, "f16", "emu:sm_90a", "A_MIC4__B_MIC8_WOS2__C_MAC32_UNR9_MIA1_CVW8"),
        // Phases with four taps, two and one: one launch.
        ("bwdd", strided, "f16", "emu:sm_90a", "A_MIC4__B_MIC8__C_MAC32_UNR64_MIA1_CVW8"),
        ("bwdd", "n2_g8_c8_k8_in6x8_fil1x1_st2x2_dil1x1_pb0x0_pe0x0", "f16", "emu:sm_80", "A_MIC1__B_MIC8__C_MAC32_UNR1_CVW8"),
        ("bwdd", dilated, "bf16", "emu:sm_90a", "A_MIC1__B_MIC8__C_MAC32_UNR64_CVW8"),
        ("bwdd", solid, "f32", "emu:sm_90a", "A_MIC3__B_MIC2__C_MAC32_UNR27_CVW2"),
        ("bwdw", LAYER, "f16", "emu:sm_90a", "A_MIC3__B_MIC8__C_MAC32_SKW11_UNR4_ICE5_SKS1_MIA1"),
        ("bwdw", LAYER, "f32", "emu:sm_80", "A_MIC9__B_MIC4__C_MAC8_UNR8_ICE3_SKS1_IWI1"),
        ("bwdw", strided, "f16", "emu:sm_90a", "A_MIC1__B_MIC8__C_MAC64_UNR4_ICE2_SKS2"),
        ("bwdw", strided, "bf16", "emu:gfx942", "A_MIC3__B_MIC4__C_MAC64_UNR1"),
        ("bwdw", dilated, "f16", "emu:sm_90a", "A_MIC2__B_MIC2_WOS1__C_MAC64_UNR5"),
        ("bwdw", line, "f16", "emu:sm_90a", "A_MIC4__B_MIC2__C_MAC64_UNR1_ICE2_SKS1"),
        // Slices of the work-group share its k-tiles: as many as waves, several in a wave, more than a thread has stores.
        ("bwdw", LAYER, "f16", "emu:sm_90a", "A_MIC9__B_MIC8__C_MAC2_SKW11_UNR28_LSU7_ICE4_SKS1_MIA1"),
        ("bwdw", LAYER, "f32", "emu:sm_80", "A_MIC3__B_MIC4__C_MAC16_SKW10_UNR56_LSU14_MIA1"),
        ("bwdw", strided, "bf16", "emu:gfx942", "A_MIC3__B_MIC4__C_MAC24_SKW10_UNR8_LSU2_ICE5_SKS1_IWI1"),
        ("bwdw", solid, "f16", "emu:sm_90a", "A_MIC1__B_MIC2__C_MAC96_SKW8_UNR12_LSU4"),
        ("fwd", LAYER, "f16", "emu:sm_90a", "A_MIC4__B_MIC8__C_MAC32_SKW11_UNR9_LSU3_CVW8_MIA1"),
        // What the next k-tile reads is loaded under the math of this one; more splits than k-tiles.
        ("bwdw", LAYER, "f16", "emu:sm_90a", "A_MIC9__B_MIC4__C_MAC4_SKW11_UNR16_LSU4_ICE3_SKS1_MIA1_PFG1"),
        ("bwdw", strided, "bf16", "emu:gfx942", "A_MIC3__B_MIC4__C_MAC24_SKW10_UNR4_ICE20_SKS1_PFG1"),
        ("fwd", LAYER, "f16", "emu:sm_80", "A_MIC4__B_MIC8_WOS2__C_MAC64_SKW12_UNR3_MIA1_CVW8_PFG1"),
        ("bwdd", strided, "f16", "emu:sm_90a", "A_MIC4__B_MIC8__C_MAC32_UNR64_MIA1_CVW8_PFG1"),
    ];
    for (seed, (direction, text, dtype, device, keys)) in (0..).zip(cases) {
        let (problem, device, plan) = (problem(direction, text, dtype), emulator(device, true, seed), plan(keys));
        let space = Space::new(&problem, &device.info().target).unwrap();
        let resolved = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        assert!(
            matches!(resolved.contraction.source, ResultSource::OwnOperands(_))
                && (resolved.footprint.shared_bytes == 0) != (plan.split_sum == 2 || plan.slices > 1)
        );
        if direction == "bwdd" && text == strided {
            assert_eq!((resolved.rest.len(), resolved.joined().count()), (3, 3), "{plan}");
        }
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

/// The four parts of a strided input gradient read the same windows: work-groups side by side take a tile of each, and memory is read once.
#[test]
fn parts_that_read_the_same_take_turns() {
    let target = Target::by_arch("sm_90a").unwrap();
    let turns = |input: &str| {
        let problem = problem("bwdd", &format!("n3_g16_c16_k16_in{input}_fil3x3_st2x2_dil1x1_pb1x1_pe1x1"), "f16");
        let (space, plan) = (space(&problem, "sm_90a"), plan("A_MIC4__B_MIC8__C_MAC32_UNR64_MIA1_CVW8"));
        let resolved = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        assert_eq!(resolved.joined().count(), 3);
        let program = resolved.generate(0).unwrap();
        let text = print(program.kernels.last().unwrap(), &target).unwrap().text;
        let failed = judge(&emulator("emu:sm_90a", true, 1), &Pair { seed: 1, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
        text.contains("piece = group_id % 4")
    };
    // Where one part has more tiles than another, they come one after the other.
    assert!(turns("8x16") && !turns("17x16"));
}

/// A depthwise problem of one to three dimensions, strides and dilations that divide nothing.
fn any_problem(rng: &mut ChaCha8Rng) -> Option<Problem> {
    let dims = *[1, 2, 2, 2, 3].choose(rng).unwrap();
    let mut list = |low: u32, high: u32| {
        let all: Vec<String> = (0..dims).map(|_| rng.random_range(low..=high).to_string()).collect();
        all.join("x")
    };
    let [input, filter, stride, dilation, begin, end] =
        [(4, 9), (1, 4), (1, 3), (1, 2), (0, 2), (0, 2)].map(|(low, high)| list(low, high));
    let groups = *[2, 3, 4, 8, 8, 16, 24].choose(rng).unwrap();
    let n = rng.random_range(1..=3);
    let direction = ["fwd", "bwdd", "bwdw"].choose(rng).unwrap();
    let dtype = ["f16", "f16", "bf16", "f32"].choose(rng).unwrap();
    let sizes = format!("n{n}_g{groups}_c{groups}_k{groups}_in{input}_fil{filter}_st{stride}_dil{dilation}_pb{begin}_pe{end}");
    // A filter larger than the padded input is refused.
    Problem::parse(&text(direction, &sizes, dtype)).ok()
}

#[test]
fn random_pairs_verify() {
    let (mut seen, mut halo, mut split, mut sliced) = (0, 0, 0, 0);
    for seed in 0..300u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let Some(problem) = any_problem(&mut rng) else { continue };
        let device = emulator(["emu:sm_80", "emu:sm_90a", "emu:gfx942"].choose(&mut rng).unwrap(), true, seed);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let mut one = |values: &[u32]| *values.choose(&mut rng).unwrap();
        let keys = Keys::default().but(|keys| {
            keys.form = 4;
            keys.threads = one(&[16, 32, 64, 96]);
            keys.skew = one(&[8, 9, 10, 11, 12, 13]);
            keys.k_tile = one(&[1, 2, 4, 8, 16, 64]);
            keys.slices = one(&[1, 1, 2, 4]);
            keys.ahead = one(&[0, 1]);
            keys.splits = one(&[1, 1, 2, 3]);
            keys.split_sum = one(&[1, 1, 2]);
            keys.store_width = one(&[1, 2, 4, 8]);
            keys.order = one(&[1, 2, 3]);
            keys.along_n = one(&[0, 1]);
            keys.explicit_fma = one(&[0, 1]);
            keys.wide_index = one(&[0, 0, 1]);
            keys.interleave_splits = one(&[0, 1]);
            keys.a.micro = one(&[1, 2, 3, 4, 8]);
            keys.b.micro = one(&[1, 2, 4, 8, 8]);
            keys.b.source = one(&[0, 1, 2]);
        });
        let Some(plan) = space.repair(&keys).filter(|plan| plan.form == 4) else { continue };
        let resolved = space.resolve(&plan).unwrap();
        let Transport::Own(loads) = &resolved.spec.schedule.copies[0] else { panic!("{problem} {plan}") };
        let t = &resolved.spec.tiling;
        seen += 1;
        halo += usize::from((loads.places.len() as u32) < t.a.micro * t.k_tile);
        split += usize::from(t.split_k.ways > 1);
        sliced += usize::from(t.slices > 1);
        let failed = judge(&device, &Pair { seed, problem, plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
    assert!(
        seen > 100 && halo > 20 && split > 20 && sliced > 20,
        "{seen} pairs, {halo} with shared taps, {split} with splits, {sliced} with slices"
    );
}
