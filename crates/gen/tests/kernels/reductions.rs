//! Reductions of results, on the emulator with all checks: 3,000 random tuples of operator, axes, types, unit, tiling, schedule, finish and
//! problem, on every unit; and values that go wrong elsewhere.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many random pairs there are of each kind, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use support::wave_units::product;
use support::{Run, draws, emulator, judge, number};
use tilewright_check::random::{Pair, Recipe, pair, reduced, tensor, wave_unit_plan};
use tilewright_gen::plan::{Constraint, Finish, KernelSpec, Plan, Split, Stage};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Operator, Order, Problem, Reduce};

fn random(recipe: Recipe, devices: &[&str], count: u64) {
    Run { devices, recipe: Recipe { reductions: true, ..recipe }, count, interleave: true }.all_pass();
}

#[test]
fn on_multiply_adds() {
    random(Recipe::emulated(), &["emu:sm_90a", "emu:gfx900"], 400);
}

#[test]
fn in_every_schedule() {
    random(Recipe::schedules(), &["emu:sm_90a", "emu:gfx942"], 400);
}

#[test]
fn on_warpgroups() {
    random(Recipe::units(), &["emu:sm_90a"], 300);
}

/// Convolutions alone, of which gradients with a stride are several parts that have elements of the same values.
#[test]
fn on_convolutions() {
    let names = ["parts", "empty phases", "parts by atomics", "indices over parts"];
    let recipe = Recipe { reductions: true, ..Recipe::convolutions() };
    let devices = &["emu:sm_90a", "emu:gfx942", "emu:sm_80"];
    Run { devices, recipe, count: 400, interleave: true }.all_pass_with(
        |space, pair| {
            let (parts, resolved) =
                (space.parts(&pair.plan), space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}")));
            let c = resolved.contraction;
            let shared = c.reductions().any(|r| c.shares_values(r));
            [
                shared && parts.iter().count() > 1,
                shared && parts.iter().any(|part| part.k == 0),
                shared && resolved.spec.epilogue.finish.stage().is_some(),
                shared && c.reductions().any(|r| r.operator.indexes()),
            ]
        },
        &names,
    );
}

/// Values of gradients of which each phase has another number of taps, or none, in every operator; ties of the largest in several parts.
#[test]
fn of_gradients_with_a_stride() {
    let reductions = ["sum:m", "mean:bmn", "argmax:bm", "argmin:mn", "var:bmn", "logsumexp:mn", "max:mn3", "argmax:bmn"];
    let shapes = [
        "bwdd_nhwc_n2_g1_c6_k5_in9x10_fil3x3_st2x2_dil1x1_pb1x1_pe1x1",
        "bwdd_nchw_n3_g2_c6_k4_in7x8_fil1x1_st2x3_dil1x1_pb0x0_pe0x0",
        "bwdd_nhwc_n1_g1_c3_k4_in13_fil5_st3_dil2_pb2_pe1",
        "bwdd_nchw_n2_g1_c3_k2_in8x6_fil2x2_st2x2_dil1x1_pb0x0_pe0x0",
    ];
    shapes.into_par_iter().for_each(|shape| {
        let problem = Problem::parse(&format!("conv_{shape}_f32")).unwrap();
        let Problem::Conv(mut conv) = problem else { panic!("{shape}") };
        conv.reductions = reductions.map(|text| text.parse().unwrap()).to_vec();
        for (drop, swapped, bim) in [(false, 0, 0), (true, 1, 0), (true, 0, 1)] {
            conv.drop_c = drop;
            // Over samples alone there is no merged form of.
            let merged = |r: &tilewright_problem::Reduction| bim == 0 || (r.over.g && r.over.m);
            let all = conv.reductions.iter().copied().filter(merged).collect();
            let problem = Problem::Conv(tilewright_problem::Conv { reductions: all, ..conv.clone() });
            let device = emulator("emu:sm_90a", true, 3);
            let space = Space::new(&problem, &device.info().target).unwrap();
            let keys = format!("A_MIC2__B_MIC2__C_MAC16_UNR4_EDG1_SWP{swapped}_BIM{bim}");
            let plan = Plan::from(Constraint::parse(&keys).unwrap().apply(&Plan::default()));
            space.resolve(&plan).unwrap_or_else(|e| panic!("{problem}: {e}"));
            for seed in [0, 3] {
                assert_eq!(judge(&device, &Pair { seed, problem: problem.clone(), plan }), None, "{keys}");
            }
        }
    });
}

/// What the pairs above are to meet is among what is drawn.
#[test]
fn every_way_out_is_drawn() {
    type Is = fn(&Pair, &KernelSpec) -> bool;
    let conv: (&str, Is) = ("convolutions", |pair, _| matches!(pair.problem, Problem::Conv(_)));
    let workspace: (&str, Is) = ("splits through workspace", |_, spec| spec.epilogue.split == Split::Workspace);
    let cluster: (&str, Is) = ("splits in clusters", |_, spec| spec.epilogue.split == Split::Cluster);
    let staged: (&str, Is) =
        ("splits in clusters, staged", |_, spec| spec.epilogue.split == Split::Cluster && spec.epilogue.exit.staged());
    let persistent: (&str, Is) = ("persistent work-groups", |_, spec| spec.tiling.persistent > 0);
    let ping_pong: (&str, Is) = ("ping-pong", |_, spec| spec.teams() > 1);
    let ticket: (&str, Is) = ("tickets", |_, spec| spec.epilogue.finish == Finish::Ticket);
    let element: (&str, Is) = ("an atomic for each element", |_, spec| spec.epilogue.finish == Finish::Atomic(Stage::Element));
    let tree: (&str, Is) = ("trees before atomics", |_, spec| spec.epilogue.finish == Finish::Atomic(Stage::Group));
    let wave: (&str, Is) = ("waves before atomics", |_, spec| spec.epilogue.finish == Finish::Atomic(Stage::Wave));
    let in_clusters: (&str, Is) =
        ("values that work-groups of a cluster combine", |_, spec| spec.epilogue.finish == Finish::Cluster);
    let blocks: (&str, Is) = ("blocks", |pair, _| pair.problem.reductions().iter().any(|r| r.over.in_blocks()));
    let carried: (&str, Is) = ("reductions that go on from tile to tile", |_, spec| spec.epilogue.carry);
    let functions: (&str, Is) =
        ("functions of elements", |pair, _| pair.problem.reductions().iter().any(|r| r.function.is_some()));
    let finishes = [ticket, element, tree, wave, blocks, functions, carried];
    for (recipe, device, mut ways) in [
        (Recipe::emulated(), "emu:gfx900", vec![conv, workspace, persistent]),
        (Recipe::units(), "emu:sm_90a", vec![conv, workspace, cluster, staged, persistent, ping_pong, in_clusters]),
    ] {
        let (recipe, target) = (Recipe { reductions: true, ..recipe }, emulator(device, false, 0).info().target.clone());
        let drawn = (0..720).into_par_iter().filter_map(|seed| pair(&target, &recipe, seed));
        let drawn = drawn.filter_map(|pair| {
            let spec = Space::new(&pair.problem, &target).ok()?.resolve(&pair.plan).ok()?.spec.spec;
            Some((pair, spec))
        });
        let drawn: Vec<(Pair, KernelSpec)> = drawn.collect();
        ways.extend(finishes);
        for (what, is) in ways {
            let count = drawn.iter().filter(|(pair, spec)| is(pair, spec)).count();
            assert!(count > 2, "{count} of {} on {device}: {what}", drawn.len());
        }
    }
}

/// Tensors by themselves.
#[test]
fn of_tensors() {
    let count = draws(400);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let outcomes: Vec<Option<String>> = (first..first + count)
        .into_par_iter()
        .filter_map(|seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let problem = tensor(&mut rng, 240).unwrap();
            let device = emulator(["emu:sm_90a", "emu:gfx942", "emu:gfx900"][seed as usize % 3], rng.random(), seed);
            let space = Space::new(&problem, &device.info().target).unwrap().with_atomics(true);
            let plan = tilewright_check::random::plan(&space, &Recipe { long_code: false, ..Recipe::emulated() }, seed);
            let plan = plan.unwrap_or_else(|| space.fallback());
            Some(judge(&device, &Pair { seed, problem, plan }))
        })
        .collect();
    let failed: Vec<&String> = outcomes.iter().flatten().collect();
    assert!(
        failed.is_empty(),
        "{} of {count}:\n{}",
        failed.len(),
        failed.iter().take(8).map(|s| s.as_str()).collect::<Vec<_>>().join("\n")
    );
}

/// Vectors of lines that start at no multiple of 16 bytes, on tiles of several steps and of more than a line, in every operator.
#[test]
fn lines_that_start_anywhere() {
    let devices = ["emu:sm_90a", "emu:gfx942"];
    let lines = [(Scalar::BF16, 8), (Scalar::F32, 4), (Scalar::I8, 16), (Scalar::F64, 2)];
    let all = lines.into_par_iter().flat_map(|line| [17u64, 51, 333, 1031].into_par_iter().map(move |n| (line, n)));
    all.for_each(|((dtype, width), n)| {
        for (number, keys) in ["ICE1", "ICE3", "ICE2_RDF1", "ICE4_RDF5"].into_iter().enumerate() {
            let list: &[Operator] = match dtype {
                Scalar::I8 => &[Operator::Sum, Operator::Max, Operator::ArgMin],
                _ => &[Operator::Sum, Operator::Var, Operator::ArgMax, Operator::LogSumExp],
            };
            let tensor = Reduce::new(dtype, &[23, n], &[1]).offset(u64::from(width) * 3);
            let problem: Problem = list.iter().fold(tensor, |tensor, op| tensor.op(*op)).build().unwrap().into();
            let device = emulator(devices[number % 2], true, n);
            let space = Space::new(&problem, &device.info().target).unwrap();
            let keys = format!("A_MIC2__B_MIC{}_MIW1_FRW{width}__C_MAC32_SKW11_{keys}", 2 * width);
            let plan = Plan::from(Constraint::parse(&keys).unwrap().apply(&Plan::default()));
            // Clusters are some targets' alone, and nothing is left to finish of a line that one work-group has.
            let Ok(resolved) = space.resolve(&plan) else {
                assert!(keys.contains("RDF"), "{problem} {keys}");
                continue;
            };
            let loads = resolved.spec.element_loads(resolved.contraction);
            assert_eq!((loads.shifted, loads.width()), (true, width), "{problem} {keys}");
            for seed in [1, 3] {
                assert_eq!(judge(&device, &Pair { seed, problem: problem.clone(), plan }), None, "{keys}");
            }
        }
    });
}

#[test]
fn on_units_of_waves() {
    let count = draws(300);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    for (unit, device) in [(1, "emu:sm_80"), (3, "emu:gfx942")] {
        let outcomes: Vec<Option<String>> = (first..first + count)
            .into_par_iter()
            .filter_map(|seed| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let problem = product(&mut rng, unit, &[1, 8]);
                let (problem, plan) = (reduced(&mut rng, &problem), wave_unit_plan(&mut rng, unit));
                let device = emulator(device, rng.random(), seed);
                let space = Space::new(&problem, &device.info().target).unwrap().with_atomics(true);
                let plan = space.repair(&Plan::from(plan.but(|keys| keys.finish = rng.random_range(0..6))))?;
                Some(judge(&device, &Pair { seed, problem, plan }))
            })
            .collect();
        let failed: Vec<&String> = outcomes.iter().flatten().collect();
        assert!(failed.is_empty(), "{}", failed.iter().take(5).map(|s| s.as_str()).collect::<Vec<_>>().join("\n"));
        assert!(outcomes.len() as u64 > count / 4, "{} of {count} are legal", outcomes.len());
    }
}

/// Tiles overhang on both sides, or are pulled back, and each work-group takes several: it leaves one part of a value for all of them.
#[test]
fn work_groups_add_up_their_own_tiles() {
    const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_UNR8";
    const PING_PONG: &str = "A_MIC1_ACP2__B_MIC4_ACP2__C_UNI2_MAC256_UNR64_PFG2_BUF3_LWV4_PNG1";
    let cases = [
        // 7 x 11 tiles; the parts of each value.
        ("emu:gfx900", Scalar::F32, FMA, "EDG0_PST14_GAL2", ["sum:n", "argmax:n", "var:n"], 2),
        ("emu:gfx900", Scalar::F32, FMA, "EDG1_PST7_GAL2", ["sum:n", "argmin:n", "logsumexp:n"], 1),
        ("emu:gfx900", Scalar::F32, FMA, "EDG0_PST22_GAL1_RDF1", ["mean:m", "argmax:m", "absmax:m"], 2),
        ("emu:sm_90a", Scalar::F32, FMA, "EDG0_PST5_GAL3_LWV2_RDF2", ["sum:mn", "max:mn", "sumsq:mn"], 5),
        // 4 x 11 tiles, of two teams.
        ("emu:sm_90a", Scalar::BF16, PING_PONG, "PST4_GAL2", ["sum:n", "argmax:n", "logsumexp:n"], 2),
        ("emu:sm_90a", Scalar::BF16, PING_PONG, "PST3_GAL3_RDF1", ["sum:mn", "argmax:mn", "var:mn"], 6),
    ];
    cases.into_par_iter().for_each(|(device, scalar, head, keys, list, parts)| {
        let gemm = Gemm::new(scalar, 200, 330, 72).order(Order::Row).trans(false, true).out_dtype(Scalar::F32);
        let gemm = list.iter().fold(gemm, |gemm, text| gemm.reduce(text.parse().unwrap()));
        let problem: Problem = gemm.build().unwrap().into();
        let device = emulator(device, true, 7);
        let space = Space::new(&problem, &device.info().target).unwrap().with_atomics(true);
        let plan = |more: &str| Plan::from(Constraint::parse(&format!("{head}_{keys}{more}")).unwrap().apply(&Plan::default()));
        let resolved = space.resolve(&plan("_RDC1")).unwrap_or_else(|e| panic!("{head}_{keys}: {e}"));
        let all = resolved.contraction.reductions().map(|r| resolved.spec.partials(resolved.contraction, r).parts);
        assert_eq!(all.collect::<Vec<_>>(), [parts; 3], "{head}_{keys}");
        assert_eq!(judge(&device, &Pair { seed: 1, problem: problem.clone(), plan: plan("_RDC1") }), None);
    });
}

/// Splits of a tile, neighbouring tiles and shares of a tensor's columns that are a cluster leave one part of a value, or the value itself.
#[test]
fn clusters_combine_their_values() {
    const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_UNR8";
    const UNIT: &str = "C_UNI2_MAC128_UNR64_PFG2_BUF3_LWV4";
    let side = |clusters: [u32; 2]| format!("A_MIC1_ACP2_CLU{}__B_MIC4_ACP2_CLU{}__{UNIT}", clusters[0], clusters[1]);
    let axes = ["sum:n", "argmax:m", "logsumexp:mn"];
    let cases = [
        // 7 x 11 tiles; the parts of each value.
        (Scalar::F32, format!("{FMA}_EDG1_ICE3_SKS2"), axes, [11, 7, 77]),
        (Scalar::F32, format!("{FMA}_EDG0_ICE2_SKS2_LWV2"), axes, [11, 7, 77]),
        // 4 x 11 tiles, of which clusters have whole numbers.
        (Scalar::BF16, side([1, 4]), axes, [3, 4, 12]),
        (Scalar::BF16, side([2, 2]), axes, [6, 2, 12]),
        (Scalar::BF16, format!("{}_ICE2_SKS2", side([1, 2])), axes, [6, 4, 24]),
        (Scalar::BF16, format!("{}_PST8_GAL2", side([1, 2])), axes, [6, 4, 24]),
        (Scalar::BF16, format!("{}_PST8_GAL2_RDC1", side([1, 2])), ["sum:n", "argmax:n", "var:n"], [1; 3]),
    ];
    cases.into_par_iter().for_each(|(scalar, keys, list, parts)| {
        let gemm = Gemm::new(scalar, 200, 330, 72).order(Order::Row).trans(false, true).out_dtype(Scalar::F32);
        let gemm = list.iter().fold(gemm, |gemm, text| gemm.reduce(text.parse().unwrap()));
        in_clusters(gemm.build().unwrap().into(), &keys, parts);
    });
    let tensor = ["sum", "argmax", "logsumexp"].into_iter().fold(Reduce::new(Scalar::F32, &[5, 3000], &[1]), |tensor, name| {
        tensor.reduction(tilewright_problem::operator(name).unwrap())
    });
    in_clusters(tensor.build().unwrap().into(), "A_MIC2__B_MIC4__C_MAC64_ICE4", [1; 3]);
}

/// The problem under a plan whose clusters reduce, checked, with so many parts of each value.
fn in_clusters(problem: Problem, keys: &str, parts: [u64; 3]) {
    let device = emulator("emu:sm_90a", true, 7);
    let space = Space::new(&problem, &device.info().target).unwrap();
    let plan = Plan::from(Constraint::parse(&format!("{keys}_RDF5")).unwrap().apply(&Plan::default()));
    let resolved = space.resolve(&plan).unwrap_or_else(|e| panic!("{keys}: {e}"));
    let all = resolved.contraction.reductions().map(|r| resolved.spec.partials(resolved.contraction, r).parts);
    assert_eq!(all.collect::<Vec<_>>(), parts, "{keys}");
    assert_eq!(judge(&device, &Pair { seed: 1, problem, plan }), None, "{keys}");
}

/// Where tiles that follow each other have different values, the plan is refused with one that has not.
#[test]
fn tiles_of_other_values_are_refused() {
    let gemm = Gemm::new(Scalar::F32, 200, 330, 72).reduce("sum:n".parse().unwrap()).build().unwrap();
    let space = Space::new(&gemm.into(), &tilewright_ir::Target::by_arch("gfx900").unwrap()).unwrap();
    let refusal = |keys: &str| {
        let plan = Constraint::parse(&format!("A_MIC4__B_MIC4__C_MAC64_UNR8_RDC1_{keys}")).unwrap().apply(&Plan::default());
        space.resolve(&plan).err().map(|e| e.to_string()).unwrap_or_default()
    };
    for (keys, why, instead) in [
        ("PST14_GAL1", "the next tile belongs to other values", "use GAL2_PST14,"),
        ("PST16_GAL2", "no multiple of the tiles", "use GAL2_PST14,"),
        ("PST77_GAL2", "no work-group has a second tile", "use GAL2_PST70,"),
    ] {
        let text = refusal(keys);
        assert!(text.contains(why) && text.contains(instead), "{keys}: {text}");
    }
    assert_eq!(refusal("PST14_GAL2"), "");
}
