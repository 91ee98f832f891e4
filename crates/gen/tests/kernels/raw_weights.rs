//! Weights of 8 and 4 bits that copies bring to shared memory as memory has them, where lanes of mma.sync, or of warpgroups, make factors of what they
//! read: on the emulator, what is refused, and machine code.

use crate::inspected;
use crate::support;

use inspected::inspected;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::{draws_or, emulator, judge, verified_to};
use tilewright_check::random::{Pair, wave_unit_plan, whole_run};
use tilewright_check::verify::Depth;
use tilewright_device::inspect::Class;
use tilewright_gen::plan::{Chiral, Common, Constraint, Key, Keys, OperandKeys, Plan, Refusal, Side};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Activation, Along, Gemm, GemmBuilder, Order, Problem, Scale};

/// A product whose operands both lie along k.
fn weights(types: [Scalar; 2], (m, n, k): (u64, u64, u64)) -> GemmBuilder {
    Gemm::new(types[0], m, n, k).b_dtype(types[1]).order(Order::Col).trans(true, false)
}

/// Both operands by copies of these many elements and padding, and what else there is.
fn plan([glw_a, glw_b]: [u32; 2], [pad_a, pad_b]: [u32; 2], (mic_a, mic_b): (u32, u32), keys: &str) -> String {
    format!(
        "A_MIC{mic_a}_PAD{pad_a}_GLW{glw_a}_PLU1_ACP1__B_MIC{mic_b}_PAD{pad_b}_GLW{glw_b}_PLU1_ACP1__C_UNI1_MAC128_EDG1_{keys}"
    )
}

#[test]
fn lanes_convert_what_they_read() {
    let (i8s, i4s) = ([8, 16], [8, 32]);
    for (number, (device, types, glw, pad, keys)) in (0..).zip([
        ("emu:sm_80", [Scalar::F16, Scalar::I8], i8s, [2, 1], "UNR64_PFG2_BUF3"),
        ("emu:sm_80", [Scalar::BF16, Scalar::U8], i8s, [0, 0], "UNR64_PFG1_BUF2_FRA1"),
        ("emu:sm_90a", [Scalar::F16, Scalar::U8], [4, 8], [1, 1], "UNR32_PFG3_BUF4_ICE3_SKS1"),
        ("emu:sm_80", [Scalar::F16, Scalar::I4], i4s, [4, 1], "UNR128_PFG2_BUF3"),
        ("emu:sm_80", [Scalar::BF16, Scalar::I4], [8, 16], [1, 1], "UNR64_PFG2_BUF3_FRA1"),
        ("emu:sm_90a", [Scalar::BF16, Scalar::U4], i4s, [4, 1], "UNR128_PFG2_BUF3_LWV2"),
        ("emu:sm_80", [Scalar::F16, Scalar::U4], [2, 8], [0, 1], "UNR64_PFG1_BUF2_ICE2_SKS1_UKL1"),
    ]) {
        // The weights as the right operand, and as the left one: by hand in turn.
        let sides = [false, true].into_iter().enumerate();
        for (i, swapped) in sides.filter(|(i, _)| whole_run() || (number + i) % 2 == 0) {
            // Rows and terms that end within a tile.
            let (m, n, k) = [(80, 144, 512), (40, 200, 448), (16, 320, 704)][(number + i) % 3];
            let gemm = weights(types, (m, n, k)).batch(1 + i as u64).bias(Along::N);
            let gemm = if i == 0 { gemm.activation(Activation::Relu) } else { gemm.out_dtype(Scalar::F32).scale(Along::N) };
            let problem: Problem = gemm.build().unwrap().into();
            let text = if swapped {
                plan([glw[1], glw[0]], [pad[1], pad[0]], (2, 4), &format!("{keys}_SWP1"))
            } else {
                plan(glw, pad, (1, 4), keys)
            };
            verified_to(Depth::Thorough, device, &problem, &text, (number as u64, i == 0));
        }
    }
}

/// Weights as the left factor of a warpgroup, in registers; the other one from a copy in the order of their runs, or written so by load waves.
fn of_warpgroup(copied: bool, (mic_a, mic_b): (u32, u32), keys: &str) -> String {
    let b = if copied { "WOS1_ACP2" } else { "WOS0_ACP0" };
    format!("A_MIC{mic_a}_ACP2__B_MIC{mic_b}_{b}__C_UNI2_SWP1_{keys}")
}

#[test]
fn warpgroups_convert_what_they_read() {
    for (number, (types, scale, keys)) in (0..).zip([
        ([Scalar::F16, Scalar::I8], None, "UNR128_MAC128_PFG2_BUF3_LWV1_RGA2"),
        ([Scalar::BF16, Scalar::U8], None, "UNR64_MAC256_SKW10_PFG3_BUF4_LWV4_FRA1_RGA4"),
        ([Scalar::F16, Scalar::U8], Some(Scale::Line64), "UNR64_MAC128_PFG2_BUF3_LWV2_RGA4_PST3"),
        ([Scalar::BF16, Scalar::I8], Some(Scale::LineBlock), "UNR128_MAC128_PFG2_BUF3_LWV4_RGA2_ICE2_SKS2"),
        ([Scalar::BF16, Scalar::I4], Some(Scale::LineBlock), "UNR128_MAC256_SKW10_PFG3_BUF4_LWV4_RGA4_PST2_CST1"),
        ([Scalar::F16, Scalar::I4], None, "UNR128_MAC128_PFG3_BUF4_LWV8_FRA1_RGA2_ICE3_SKS1"),
        ([Scalar::F16, Scalar::U4], Some(Scale::LineBlock), "UNR128_MAC128_PFG1_BUF3_LWV4_RGA2_MGP2"),
        ([Scalar::BF16, Scalar::U4], None, "UNR256_MAC128_PFG1_BUF2_LWV4_RGA4"),
    ]) {
        let ways = [true, false].into_iter().enumerate();
        for (i, copied) in ways.filter(|(i, _)| (number + i) % 2 == 0) {
            // Rows and, where load waves write, terms that end within a tile.
            let (m, n, k) = [(16, 200, 512), (70, 144, 768), (1, 320, 256)][(number + i) % 3];
            let k = if copied || scale.is_some() { k } else { k - 32 };
            let gemm = weights(types, (m, n, k)).batch(1 + i as u64).bias(Along::N);
            let gemm = scale.map_or(gemm.clone(), |scale| gemm.scale_by(Along::N, scale));
            let problem: Problem = gemm.build().unwrap().into();
            let text = of_warpgroup(copied, (1 + number as u32 % 2, 1 + m as u32 / 9), keys);
            verified_to(Depth::Thorough, "emu:sm_90a", &problem, &text, (number as u64, i == 0));
        }
    }
}

#[test]
fn what_warpgroups_cannot_read_is_refused() {
    let tried = |gemm: GemmBuilder, plan: &str| {
        let problem: Problem = gemm.build().unwrap().into();
        let space = Space::new(&problem, &emulator("emu:sm_90a", false, 0).info().target).unwrap();
        let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
        space.resolve(&plan).map(|_| ()).map_err(|refusal| (refusal.to_string(), refusal))
    };
    let types = [Scalar::BF16, Scalar::I4];
    let good = of_warpgroup(true, (1, 2), "UNR128_MAC128_PFG2_BUF3_LWV4_RGA2");
    assert_eq!(tried(weights(types, (16, 256, 512)), &good), Ok(()));
    // The other factor in its own order, and a copy of runs that are not whole.
    let (words, refusal) = tried(weights(types, (16, 256, 512)), &good.replace("WOS1", "WOS0")).unwrap_err();
    assert_eq!(refusal, Refusal::RawOrder { acp: 2, wos: 0 });
    assert!(words.contains("B_WOS1 and B_ACP2") && words.contains("B_ACP0 and LWV4"), "{words}");
    assert_eq!(tried(weights(types, (16, 256, 544)), &good).unwrap_err().1, Refusal::RawOrder { acp: 2, wos: 1 });
    // Pairs of it that are no neighbours in memory.
    let written = of_warpgroup(false, (1, 2), "UNR128_MAC128_PFG2_BUF3_LWV4_RGA2");
    assert_eq!(tried(weights(types, (16, 256, 512)), &written), Ok(()));
    let wide = of_warpgroup(false, (1, 8), "UNR128_MAC128_PFG2_BUF3_LWV4_RGA2");
    let turned = tried(weights(types, (64, 256, 512)).trans(false, false), &wide).unwrap_err().1;
    assert_eq!(turned, Refusal::RawOrder { acp: 0, wos: 0 });
    // Weights along rows, without registers, and in k-tiles of less than 64 bytes.
    let (words, _) = tried(weights(types, (16, 256, 512)).trans(true, true), &good).unwrap_err();
    assert!(words.contains("lanes convert neighbours along k"), "{words}");
    let shared = tried(weights(types, (16, 256, 512)), &good.replace("RGA2", "RGA0")).unwrap_err().1;
    assert_eq!(shared, Refusal::Converted { acp: Key::A(Chiral::Acp), value: 2, scalar: Scalar::I4, factor: Scalar::BF16 });
    let shallow = tried(weights(types, (16, 256, 512)), &good.replace("UNR128", "UNR64")).unwrap_err().1;
    assert_eq!(shallow, Refusal::UnitDepth { k_tile: 64, unit: 128 });
}

/// Random sizes, tiles and schedules.
#[test]
fn random_plans_verify() {
    let mut pinned = Constraint::none();
    [Key::A(Chiral::Acp), Key::B(Chiral::Acp), Key::C(Common::Uni)].iter().for_each(|key| pinned.pin(*key, 1));
    let tried = |seed: u64| {
        let rng = &mut ChaCha8Rng::seed_from_u64(seed);
        let of = |rng: &mut ChaCha8Rng, all: &[Scalar]| *all.choose(rng).unwrap();
        let types = [of(rng, &[Scalar::F16, Scalar::BF16]), of(rng, &[Scalar::I8, Scalar::U8, Scalar::I4, Scalar::U4])];
        let k = if types[1].is_int4() { 32 * rng.random_range(1..12) } else { 16 * rng.random_range(1..16) };
        let gemm = weights(types, (rng.random_range(1..90), rng.random_range(1..90), k)).batch(rng.random_range(1..3));
        let problem: Problem = gemm.build().unwrap().into();
        let space = Space::new(&problem, &emulator("emu:sm_80", false, 0).info().target).unwrap();
        let space = space.with_atomics(true).constrained(&pinned);
        let drawn = wave_unit_plan(rng, 1);
        let swapped = drawn.swapped == 1;
        let copied = |keys: OperandKeys, scalar: Scalar, bytes: u32| OperandKeys {
            load_width: scalar.numbers_in(bytes),
            source: 0,
            load_along_k: 1,
            copy: 1,
            ..keys
        };
        let [a, b] = if swapped { [types[1], types[0]] } else { types };
        let widths = [0; 2].map(|_| *[4, 8, 16].choose(rng).unwrap());
        let ahead = drawn.ahead.max(1);
        let (a, b) = (copied(drawn.a, a, widths[0]), copied(drawn.b, b, widths[1]));
        let plan = space.repair(&Keys { a, b, stagger: 0, ahead, buffers: ahead + 1, ..*drawn })?;
        space.resolve(&plan).ok()?;
        assert!(Side::ALL.into_iter().all(|side| plan.of(side).copy == 1), "{plan}");
        let device = emulator("emu:sm_80", true, seed);
        Some(judge(&device, &Pair { seed, problem, plan }))
    };
    let count = draws_or(200, 80);
    let verdicts: Vec<Option<String>> = (0..count).into_par_iter().filter_map(tried).collect();
    let wrong: Vec<&String> = verdicts.iter().flatten().collect();
    assert!(wrong.is_empty(), "{} of {} failed, the first: {}", wrong.len(), verdicts.len(), wrong[0]);
    // Many a tile is shared out in no whole vectors.
    assert!(verdicts.len() as u64 >= count / 4, "{} pairs were legal", verdicts.len());
}

/// Groups of k have scales of their own.
#[test]
fn groups_are_scaled() {
    for (number, (types, glw, scale, keys)) in (0..).zip([
        ([Scalar::BF16, Scalar::I4], [8, 32], Scale::LineBlock, "UNR128_PFG2_BUF3"),
        ([Scalar::F16, Scalar::U4], [8, 16], Scale::Line64, "UNR64_PFG1_BUF2"),
        ([Scalar::BF16, Scalar::I8], [8, 16], Scale::LineBlock, "UNR64_PFG2_BUF3_ICE2_SKS1"),
        ([Scalar::F16, Scalar::I8], [8, 8], Scale::Line32, "UNR32_PFG2_BUF3"),
    ]) {
        for size in [(16, 144, 512), (80, 72, 256)] {
            let problem: Problem = weights(types, size).scale_by(Along::N, scale).build().unwrap().into();
            verified_to(Depth::Thorough, "emu:sm_80", &problem, &plan(glw, [2, 1], (1, 2), keys), (number, false));
        }
    }
}

#[test]
fn what_lanes_cannot_read_is_refused() {
    let tried = |gemm: GemmBuilder, plan: &str| {
        let problem: Problem = gemm.build().unwrap().into();
        let space = Space::new(&problem, &emulator("emu:sm_80", false, 0).info().target).unwrap();
        let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
        space.resolve(&plan).map(|_| ()).map_err(|refusal| (refusal.to_string(), refusal))
    };
    let acp = Key::B(Chiral::Acp);
    let good = plan([8, 32], [4, 1], (1, 4), "UNR64_PFG2_BUF3");
    let types = [Scalar::F16, Scalar::I4];
    assert_eq!(tried(weights(types, (64, 64, 256)), &good), Ok(()));
    // The other operand along rows.
    let (words, refusal) =
        tried(weights(types, (64, 64, 256)).trans(false, false), &good.replacen("PLU1", "PLU0", 1)).unwrap_err();
    assert_eq!(refusal, Refusal::RawLines { acp, lines: "A" });
    assert!(words.contains("operand A is not") && words.contains("use B_ACP0"), "{words}");
    // The weights themselves.
    let (_, refusal) = tried(weights(types, (64, 64, 256)).trans(true, true), &good.replace("32_PLU1", "32_PLU0")).unwrap_err();
    assert_eq!(refusal, Refusal::RawLines { acp, lines: "B" });
    // Two instructions share a word of eight weights.
    let shallow = tried(weights(types, (64, 64, 256)), &good.replace("UNR64", "UNR16").replace("GLW32", "GLW8")).unwrap_err().1;
    assert_eq!(shallow, Refusal::UnitSteps { uni: 1, k_tile: 16, depth: 32 });
    // Of f32, whose units read single elements, and without a matrix unit.
    let converted = |types: [Scalar; 2], plan: &str| tried(weights(types, (64, 64, 256)), plan).unwrap_err().1;
    let of = |factor: Scalar| Refusal::Converted { acp, value: 1, scalar: Scalar::I4, factor };
    let plain = "A_MIC4__B_MIC4_ACP1__C_MAC64_EDG1_UNR16_PFG1_BUF2";
    assert_eq!(converted(types, plain), of(Scalar::F16));
    assert_eq!(converted([Scalar::F32, Scalar::I4], plain), of(Scalar::F32));
    // Registers hold no vector of 32.
    let wide = good.replace("GLW32_PLU1_ACP1", "GLW32_PLU1_ACP0");
    let (words, refusal) = tried(weights(types, (64, 64, 256)), &wide).unwrap_err();
    assert_eq!(refusal, Refusal::VectorWide { key: Key::B(Chiral::Glw), width: 32 });
    assert!(words.contains("ACP1"), "{words}");
}

/// Weights come by copies of 16 bytes; a word of four or eight becomes pairs of floats by a permutation or a mask and one addition each.
#[test]
fn copies_bring_weights_and_lanes_convert_them() {
    for (types, glw, added) in [
        ([Scalar::F16, Scalar::I8], 16, "HADD2 "),
        ([Scalar::BF16, Scalar::I8], 16, "BF16_V2 "),
        ([Scalar::F16, Scalar::I4], 32, "HFMA2 "),
        ([Scalar::BF16, Scalar::I4], 32, "BF16_V2 "),
    ] {
        let problem: Problem = weights(types, (4096, 4096, 4096)).out_dtype(Scalar::F32).build().unwrap().into();
        let text = plan([8, glw], [if glw == 32 { 4 } else { 2 }, 1], (1, 4), "UNR128_PFG2_BUF3_UKL1");
        let Some(seen) = inspected(&problem, "sm_90a", &text) else { continue };
        let main = seen.main_loop().unwrap_or_else(|| panic!("{types:?}: no main loop"));
        eprintln!("{types:?}: {} registers, main loop {:?}", seen.usage.registers, main.counts);
        assert_eq!((seen.usage.spill_bytes, main.count(Class::Scratch)), (0, 0));
        assert!(seen.assembly.contains("LDGSTS.E.BYPASS.128") || seen.assembly.contains("LDGSTS.E.128"), "{types:?}");
        assert!(seen.assembly.contains(added) && !seen.assembly.contains("I2F"), "{types:?}");
        // Nothing goes to shared memory through registers.
        assert!(!seen.assembly.contains(" STS"), "{types:?}");
    }
}

/// Lanes of a warpgroup read runs of weights in whole vectors, and make pairs of floats of them between instructions that nobody waits for.
#[test]
fn lanes_of_warpgroups_convert_between_instructions() {
    for (types, run) in
        [([Scalar::F16, Scalar::I8], "LDS.128"), ([Scalar::BF16, Scalar::U8], "LDS.128"), ([Scalar::BF16, Scalar::I4], "LDS.64")]
    {
        let problem: Problem = weights(types, (64, 4096, 4096)).scale_by(Along::N, Scale::LineBlock).build().unwrap().into();
        let text = of_warpgroup(true, (1, 8), "UNR128_MAC128_PFG3_BUF4_LWV1_RGA4");
        let Some(seen) = inspected(&problem, "sm_90a", &text) else { continue };
        let main = seen.main_loop().unwrap_or_else(|| panic!("{types:?}: no main loop"));
        eprintln!("{types:?}: {} registers, main loop {:?}", seen.usage.registers, main.counts);
        assert_eq!((seen.usage.spill_bytes, main.count(Class::Scratch)), (0, 0));
        assert!(seen.assembly.contains(run) && !seen.assembly.contains("I2F"), "{types:?}");
        // Four sets of fragments: three steps' instructions may be unfinished.
        assert!(seen.assembly.contains("HGMMA") && seen.assembly.contains("WARPGROUP.DEPBAR.LE gsb0, 0x3"), "{types:?}");
    }
}
