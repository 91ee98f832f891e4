//! Windows of a whole result tile in shared memory (`ACP4`), each element copied once, on the emulator with every check: all directions that
//! have windows, tiles that wrap rows and samples, strides, dilations, padding of every kind, either side of the product.

use crate::support;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::{draws_or, emulator, judge, number};
use tilewright_check::random::{Pair, whole_run};
use tilewright_gen::plan::{Constraint, Halo, Plan};
use tilewright_gen::space::Space;
use tilewright_problem::Problem;

fn plan(keys: &str) -> Plan {
    Constraint::parse(keys).unwrap().apply(&Plan::default()).into()
}

/// Lines of a tile's windows, of each operand that has them.
fn lines(problem: &Problem, plan: &Plan) -> Result<[Option<u32>; 2], String> {
    let space = Space::new(problem, &emulator("emu:sm_80", false, 0).info().target).unwrap();
    let resolved = space.resolve(plan).map_err(|e| e.to_string())?;
    Ok(resolved.spec.schedule.copies.each_ref().map(|copy| copy.halo().map(|halo| halo.lines())))
}

fn verify(problem: &str, keys: &str, sides: [bool; 2]) {
    let (problem, plan) = (Problem::parse(problem).unwrap(), plan(keys));
    let found = lines(&problem, &plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
    assert_eq!(found.map(|lines| lines.is_some()), sides, "{problem} {plan}");
    for seed in [1, 2] {
        let device = emulator("emu:sm_80", true, seed);
        let failed = judge(&device, &Pair { seed, problem: problem.clone(), plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
}

const ROWS: &str = "A_MIC2_ACP4__B_MIC4_ACP1_GLW8_PLU1__C_UNI1_MAC64_SKW10_UNR32_PFG2_BUF3_EDG1";

#[test]
fn windows_are_copied_once() {
    let conv = |direction: &str, text: &str| format!("conv_{direction}_nhwc_{text}_bias0_ws1048576_f16");
    for text in [
        "n3_g1_c32_k32_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1",
        "n3_g1_c64_k40_in5x6_fil3x2_st1x1_dil1x2_pb1x0_pe0x2",
        "n2_g1_c32_k32_in13x11_fil3x5_st2x3_dil1x1_pb1x2_pe0x1",
        "n2_g1_c32_k32_in9x8_fil3x3_st1x1_dil1x1_pb0x0_pe0x0",
        "n2_g1_c32_k32_in3x3_fil3x3_st1x1_dil1x1_pb3x3_pe3x3",
        "n2_g1_c64_k32_in11_fil4_st1_dil2_pb3_pe2",
        "n2_g1_c32_k32_in3x4x5_fil2x3x2_st1x1x1_dil1x1x1_pb1x1x0_pe0x1x1",
    ] {
        for direction in ["fwd", "bwdd"].into_iter().filter(|d| *d == "fwd" || !text.contains("st2x3")) {
            let text = if direction == "bwdd" { text.replace("k40", "k32") } else { text.to_string() };
            for form in ["BIM0", "BIM1"] {
                // Filters' rows are neighbours in memory for one, their sums for the other.
                let keys = if direction == "bwdd" { ROWS.replace("PLU1", "PLU0") } else { ROWS.into() };
                verify(&conv(direction, &text), &format!("{keys}_{form}"), [true, false]);
            }
        }
    }
    // Splits of k, persistent work-groups, load waves, the other operand through registers, fragments ahead, written-out k-steps.
    let problem = conv("fwd", "n3_g1_c64_k48_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1");
    for more in ["ICE3_SKS1", "ICE2_SKS1_IWI1", "PST3", "LWV2", "FRA1", "FRA1_PST2_LWV1", "UKL1", "CST1", "CST1_PST2"] {
        verify(&problem, &format!("{ROWS}_BIM1_{more}"), [true, false]);
    }
    verify(&problem, &format!("{}_BIM1_FRA1", ROWS.replace("ACP1", "ACP0")), [true, false]);
    // k-tiles of several taps, and of all.
    for unr in [64, 192, 576] {
        verify(&problem, &format!("{}_BIM1_UKL1", ROWS.replace("UNR32", &format!("UNR{unr}"))), [true, false]);
    }
    // Pixels as columns.
    let swapped = "A_MIC2_ACP1_GLW8_PLU1__B_MIC5_ACP4__C_UNI1_MAC64_SKW11_UNR32_PFG1_BUF2_EDG1_SWP1_BIM1";
    verify(&problem, swapped, [false, true]);
    // A strided gradient has parts, whose work-groups go from one to the next; and bytes.
    let strided = conv("bwdd", "n2_g1_c32_k32_in9x8_fil3x3_st2x2_dil1x1_pb1x1_pe1x1");
    let across = ROWS.replace("PLU1", "PLU0");
    verify(&strided, &format!("{across}_BIM1"), [true, false]);
    verify(&strided, &format!("{across}_BIM1_PST2"), [true, false]);
}

/// A plan asks for no more alignment than its copies of windows have: lines that start at multiples of 8 bytes.
#[test]
fn windows_ask_for_their_own_alignment() {
    let problem = "tC0_tA0_tB1_colMaj0_m1_n16_k32_lda128_ldb48_ldc64_ws67108864_u8_outu8_b4_sa32_sb0_sc16_oa8_ob32";
    let keys = "A_MIC2_PAD1_ACP4__B_MIC2_PAD0_WOS1__C_UNR32_ICE2_IWI1_MAC32_EDG1_SKS1_CST1_PFG2_BUF3_UNI1_PST3";
    verify(problem, keys, [true, false]);
}

#[test]
fn groups_with_blocks_of_zeros() {
    let conv = |direction: &str, text: &str| format!("conv_{direction}_nhwc_{text}_bias0_ws1048576_f16");
    let plan = "A_MIC2_ACP4__B_MIC8_ACP1_GLW4_PLU1__C_UNI1_MAC64_SKW10_UNR64_PFG2_BUF3_EDG1_BIM2";
    for (case, (text, width, depth)) in (0..).zip([
        ("n2_g32_c128_k128_in7x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1", 4, 64),
        ("n2_g8_c128_k128_in7x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1", 8, 64),
        ("n2_g4_c128_k128_in7x6_fil3x3_st2x2_dil1x1_pb1x1_pe1x1", 8, 64),
        ("n2_g16_c64_k128_in7x6_fil3x3_st1x1_dil1x1_pb1x1_pe1x1", 4, 32),
    ]) {
        let plan = plan.replace("GLW4", &format!("GLW{width}")).replace("UNR64", &format!("UNR{depth}"));
        let directions = ["fwd", "bwdd"].into_iter().enumerate();
        for (turn, direction) in directions.filter(|(_, d)| *d == "fwd" || !text.contains("st2x2")) {
            // Of gradients columns are neighbours.
            let plan = if direction == "bwdd" { plan.replace("PLU1", "PLU0") } else { plan.clone() };
            let schedules = ["", "_UKL1", "_FRA1", "_UKL1_PST2"].into_iter().enumerate();
            for (_, more) in schedules.filter(|(i, _)| whole_run() || (case + turn + i) % 2 == 0) {
                verify(&conv(direction, text), &format!("{plan}{more}"), [true, false]);
            }
        }
    }
}

/// Rows that are read together meet in no bank, whatever the stride.
#[test]
fn strided_rows_meet_in_no_bank() {
    for (channels, stride, padded, least) in
        [(16, 1, 1, 1), (32, 1, 1, 1), (64, 1, 1, 1), (32, 2, 2, 1), (64, 2, 2, 1), (128, 2, 2, 1), (32, 4, 4, 1)]
    {
        let text =
            format!("conv_fwd_nhwc_n2_g1_c{channels}_k32_in33x17_fil3x3_st1x{stride}_dil1x1_pb1x1_pe1x1_bias0_ws1048576_f16");
        let problem = Problem::parse(&text).unwrap();
        let space = Space::new(&problem, &emulator("emu:sm_80", false, 0).info().target).unwrap();
        for (pad, times) in [(1, padded), (0, least)] {
            let keys = format!("A_MIC2_PAD{pad}_ACP4__B_MIC4_ACP1_GLW8_PLU1__C_UNI1_MAC64_SKW10_UNR16_PFG2_BUF3_EDG1_BIM1");
            let resolved = space.resolve(&plan(&keys)).unwrap();
            let (passes, fewest) = resolved.spec.schedule.copies[0].halo().unwrap().passes();
            assert_eq!(passes, times * fewest, "{channels} channels, stride {stride}, PAD{pad}");
        }
    }
}

/// One of a few.
fn one<T: Copy>(rng: &mut ChaCha8Rng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// A convolution of 1 to 3 dimensions whose channels are whole steps of the instructions.
fn convolution(rng: &mut ChaCha8Rng) -> String {
    let direction = one(rng, &["fwd", "fwd", "bwdd"]);
    let (groups, of_group) = one(rng, &[(1, 16), (1, 32), (1, 48), (2, 16), (2, 32), (3, 16), (8, 4), (16, 8), (8, 16)]);
    let filters = groups * one(rng, &[of_group, of_group, 8]);
    let (channels, filters) = if direction == "bwdd" { (filters, groups * of_group) } else { (groups * of_group, filters) };
    let dims = one(rng, &[1, 2, 2, 2, 3]);
    let mut join = |values: &[u64]| (0..dims).map(|_| one(rng, values).to_string()).collect::<Vec<_>>().join("x");
    let (sizes, taps) = (join(&[4, 5, 6, 7, 8, 9]), join(&[1, 2, 3, 3, 3]));
    let (steps, apart) = (join(&[1, 1, 1, 2]), join(&[1, 1, 1, 2]));
    let (before, behind) = (join(&[0, 1, 1, 2]), join(&[0, 1, 1, 2]));
    let (samples, scalar) = (rng.random_range(1..5), one(rng, &["f16", "bf16", "f16"]));
    format!(
        "conv_{direction}_nhwc_n{samples}_g{groups}_c{channels}_k{filters}_in{sizes}_fil{taps}_st{steps}_dil{apart}_pb{before}_pe{behind}_bias{}_ws1048576_{scalar}",
        rng.random_range(0..2)
    )
}

/// A plan for it, legal or nearly so.
fn windows(rng: &mut ChaCha8Rng) -> Plan {
    let (ahead, swapped) = (rng.random_range(1..4u32), rng.random_bool(0.2));
    let (of, other) = (if swapped { "B" } else { "A" }, if swapped { "A" } else { "B" });
    let mut text = format!(
        "{of}_MIC{}_PAD{}_ACP4_WOS{}__{other}_MIC{}_PAD1_ACP{}_GLW{}_PLU{}_LOR{}_WOS{}__",
        one(rng, &[1, 2, 3]),
        one(rng, &[0, 1, 1, 2]),
        one(rng, &[0, 0, 3]),
        one(rng, &[1, 2, 4, 8]),
        one(rng, &[0, 1, 1, 4]),
        one(rng, &[1, 2, 4, 8]),
        rng.random_range(0..2),
        rng.random_range(0..2),
        one(rng, &[0, 0, 1]),
    );
    if swapped {
        // Parts of a plan stand in order.
        let parts: Vec<&str> = text.trim_end_matches('_').split("__").collect();
        text = format!("{}__{}__", parts[1], parts[0]);
    }
    let ways = one(rng, &[1, 1, 1, 2, 3]);
    text += &format!(
        "C_UNI1_UNR{}_MAC{}_SKW{}_PFG{ahead}_BUF{}_STP{}_FRA{}_LWV{}_SWP{}_BIM{}_CVW{}_GAL{}_ICE{ways}_IWI{}_SKS1_EDG{}_UKL{}_AFI{}_PST{}_CST{}",
        one(rng, &[16, 32, 48, 64, 96, 144]),
        one(rng, &[32, 64, 128]),
        one(rng, &[9, 10, 11]),
        ahead + 1,
        rng.random_range(0..3),
        one(rng, &[0, 0, 1, 2]),
        one(rng, &[0, 0, 0, 1, 2]),
        u32::from(swapped),
        one(rng, &[0, 1, 2, 2, 3]),
        one(rng, &[1, 2]),
        one(rng, &[1, 2, 3]),
        rng.random_range(0..2),
        u32::from(rng.random_bool(0.8)),
        rng.random_range(0..2),
        rng.random_range(0..2),
        one(rng, &[0, 0, 1, 3]),
        rng.random_range(0..2),
    );
    Constraint::parse(&text).unwrap().apply(&Plan::default()).into()
}

#[test]
fn random_windows() {
    // Windows of groups as columns are rare.
    let count = draws_or(600, 300);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let outcomes: Vec<([bool; 7], Option<String>)> = (first..first + count)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            // A filter longer than what it runs over is no problem.
            let problem = Problem::parse(&convolution(&mut rng)).ok()?;
            let device = emulator("emu:sm_80", rng.random(), seed);
            let space = Space::new(&problem, &device.info().target).unwrap();
            let plan = space.repair(&windows(&mut rng))?;
            let resolved = space.resolve(&plan).ok()?;
            let spec = &resolved.spec;
            let halo = spec.schedule.copies.iter().any(|copy| copy.halo().is_some());
            let permuted = |halo: &Halo| halo.layout().is_permuted();
            let kinds = [
                halo,
                spec.schedule.copies.iter().filter_map(|copy| copy.halo()).any(permuted),
                halo && spec.tiling.swapped,
                halo && spec.tiling.blocks(&spec.c).is_some(),
                halo && spec.tiling.split_k.ways > 1,
                halo && spec.schedule.roles.is_some(),
                halo && resolved.joined().count() > 0,
            ];
            halo.then(|| (kinds, judge(&device, &Pair { seed, problem, plan })))
        })
        .collect();
    let failed: Vec<&String> = outcomes.iter().filter_map(|o| o.1.as_ref()).collect();
    let kinds = [0, 1, 2, 3, 4, 5, 6].map(|i| outcomes.iter().filter(|o| o.0[i]).count() as u64);
    eprintln!("of {count} pairs {kinds:?} have windows, permuted, as columns, beside blocks, with splits, load waves, parts");
    let shown = failed.iter().take(5).map(|s| s.as_str()).collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "{} failed:\n{shown}", failed.len());
    assert!(kinds[0] > count / 5 && kinds[1..].iter().all(|n| *n > count / 150), "{kinds:?} of {count}");
}
