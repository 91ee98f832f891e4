//! The last tiles of persistent work-groups, split along k (`TSP`): right on the emulator with every unit, copy and exit, and never more than
//! the last rows of tiles.

use crate::support;

use support::verified;
use tilewright_gen::kernel::{Work, works};
use tilewright_gen::plan::{Constraint, Exit, Plan, Refusal, workspace_per_entry};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Activation, Along, Conv, Direction, Gemm, GemmBuilder, Order, Problem};

/// Warpgroups, single waves, multiply-adds; rings, work-group barriers, clusters; every exit.
const PLANS: [(&str, &str); 11] = [
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNR64_MAC128_SKW10_UNI2_PFG2_BUF3_LWV4_PST5_TSP2"),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNR64_MAC128_SKW10_UNI2_PFG2_BUF3_LWV4_PST5_TSP3_CST1"),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNR64_MAC128_SKW10_UNI2_PFG2_BUF4_LWV1_FRA1_PST5_TSP5_CST1_SWP1"),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2__C_UNR64_MAC256_SKW10_UNI2_PFG2_BUF4_FRA1_PST5_TSP2_CVW2"),
    ("emu:sm_90a", "A_MIC1_ACP2__B_MIC8_ACP2_CLU2__C_UNR64_MAC128_SKW10_UNI2_PFG2_BUF3_LWV4_PST10_TSP2_CST1"),
    ("emu:sm_90a", "A_MIC1_ACP2_CLU2__B_MIC4_ACP2__C_UNR64_MAC128_SKW10_UNI2_PFG2_BUF3_LWV4_PST10_TSP4_GAL3_NAW4"),
    ("emu:sm_90a", "A_MIC1_ACP0__B_MIC8_ACP0__C_UNR64_MAC128_SKW10_UNI2_PFG2_BUF3_LWV4_PST5_TSP2_CST1"),
    ("emu:sm_80", "A_MIC2__B_MIC4__C_UNR32_MAC128_UNI1_PFG2_BUF2_STP1_FRA1_EDG1_PST5_TSP2_GAL2"),
    ("emu:sm_80", "A_MIC2_WOS2__B_MIC4_WOS2__C_UNR32_MAC128_UNI1_PFG1_BUF2_EDG1_PST5_TSP3_CST1_LWV2"),
    ("emu:sm_80", "A_MIC8__B_MIC4__C_UNR16_MAC64_EDG1_PST5_TSP3_CST1_UFO1"),
    ("emu", "A_MIC4__B_MIC4_FRW4__C_UNR16_MAC64_EDG1_PST4_TSP2_CVW4"),
];

fn verify(device: &str, problem: &Problem, plan: &str, seed: u64) {
    let target = support::emulator(device, false, 0).info().target.clone();
    let space = Space::new(problem, &target).unwrap();
    let resolved = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
    let spec = space.resolve(&resolved).unwrap_or_else(|e| panic!("{plan}: {e}")).spec;
    assert!(spec.tiling.tail.is_some(), "{plan} splits no tile of {problem}");
    verified(device, problem, plan, (seed, false));
}

fn product(m: u64, n: u64, k: u64) -> GemmBuilder {
    Gemm::new(Scalar::F16, m, n, k)
}

#[test]
fn products_with_split_tails_are_right() {
    for (i, (device, plan)) in PLANS.iter().enumerate() {
        // Staged rows of C are contiguous, as vectors of columns are.
        let other = if ["CST1", "CVW"].iter().any(|key| plan.contains(key)) { Order::Row } else { Order::Col };
        for (order, trans) in [(Order::Row, (false, true)), (other, (true, false))] {
            let gemm = product(328, 200, 440).order(order).trans(trans.0, trans.1);
            verify(device, &gemm.build().unwrap().into(), plan, i as u64);
        }
    }
}

/// The second kernel has the epilogue of the split rows: bias, activation and residual.
#[test]
fn split_tails_have_the_whole_epilogue() {
    for (i, (device, plan)) in PLANS.iter().enumerate().step_by(3) {
        let gemm = product(328, 200, 440).order(Order::Row).trans(false, true);
        let gemm = gemm.bias(Along::N).activation(Activation::Gelu).residual();
        verify(device, &gemm.build().unwrap().into(), plan, i as u64);
    }
}

/// Entries of a batch share the last round.
#[test]
fn batches_with_split_tails_are_right() {
    for (i, (device, plan)) in PLANS.iter().enumerate().step_by(2) {
        let gemm = product(328, 136, 328).order(Order::Row).trans(false, true).batch(3);
        verify(device, &gemm.build().unwrap().into(), plan, i as u64);
    }
}

#[test]
fn convolutions_with_split_tails_are_right() {
    let plans = [
        ("emu:sm_90a", "A_MIC1_ACP0__B_MIC8_ACP2__C_UNR64_MAC128_UNI2_PFG2_BUF3_LWV4_PST5_TSP2_BIM1"),
        ("emu:sm_80", "A_MIC2__B_MIC2__C_UNR32_MAC128_UNI1_PFG1_BUF2_EDG1_PST5_TSP2_BIM1"),
    ];
    for (i, (device, plan)) in plans.iter().enumerate() {
        let conv = Conv::new(Scalar::F16, 3, 64, 48, &[11, 13], &[3, 3]).pad(&[1, 1], &[1, 1]);
        verify(device, &conv.build().unwrap().into(), plan, i as u64);
    }
}

fn resolved(problem: &Problem, keys: &str) -> Result<usize, Refusal> {
    let target = Target::by_arch("sm_90a").unwrap();
    let space = Space::new(problem, &target).unwrap();
    let base = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNR64_MAC256_SKW10_UNI2_PFG3_BUF4_LWV4_PST132";
    let plan = Plan::from(Constraint::parse(&format!("{base}_{keys}")).unwrap().apply(&Plan::default()));
    Ok(space.resolve(&plan)?.generate(space.env().workspace_bytes).unwrap().kernels.len())
}

/// 1536 rows and columns are 12 x 6 tiles of 128 x 256: less than a round. 5000 are 40 x 20: six rounds and a row of tiles more.
#[test]
fn only_rows_beyond_the_last_full_round_are_split() {
    let problem = |size| Problem::Gemm(product(size, size, size).build().unwrap());
    let target = Target::by_arch("sm_90a").unwrap();
    let space = Space::new(&problem(5000), &target).unwrap();
    let text = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNR64_MAC256_SKW10_UNI2_PFG2_BUF3_LWV4_CST1_PST132_TSP4";
    let plan = Plan::from(Constraint::parse(text).unwrap().apply(&Plan::default()));
    let spec = space.resolve(&plan).unwrap().spec;
    let tail = spec.tiling.tail.unwrap();
    let tile = [spec.tiling.a.macro_tile, spec.tiling.b.macro_tile].map(u64::from);
    let [rows, columns] = tile.map(|tile| 5000u64.div_ceil(tile));
    assert!(tail.first * columns <= rows * columns / 132 * 132 && (tail.first + 1) * columns > rows * columns / 132 * 132);
    let all = works(&spec, space.env().workspace_bytes, u64::MAX).unwrap();
    let (whole, split): (Vec<&Work>, Vec<&Work>) = all.iter().partition(|work| work.tile[0] < tail.first);
    assert_eq!(whole.len() as u64, tail.first * columns);
    assert_eq!(split.len() as u64, (rows - tail.first) * columns * 4);
    assert!(whole.iter().all(|work| work.k_tiles == 79) && split.iter().all(|work| work.k_tiles < 21));
    // Partial sums leave in bulk, as whole tiles do.
    assert!(matches!(spec.of_tail(&spec.c).unwrap().epilogue.exit, Exit::Bulk { .. }));
    // No work-group has two pieces more than another.
    let of = |group| all.iter().filter(|work| work.group == group).count();
    let counts: Vec<usize> = (0..132).map(of).collect();
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
    assert_eq!(resolved(&problem(1024), "TSP4"), Ok(1));
    assert_eq!(resolved(&problem(5000), "TSP4"), Ok(2));
}

/// With room for two of three batch entries' partial sums the tail has launches of its own, and its kernels have names of their own.
#[test]
fn a_tail_in_chunks_has_kernels_of_its_own() {
    let (device, plan) = PLANS[0];
    let gemm = product(328, 200, 440).order(Order::Row).trans(false, true).batch(3);
    let whole: Problem = gemm.clone().build().unwrap().into();
    let target = support::emulator(device, false, 0).info().target.clone();
    let keys = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
    let space = Space::new(&whole, &target).unwrap();
    let entry = workspace_per_entry(&space.resolve(&keys).unwrap().spec);
    let tight: Problem = gemm.workspace(2 * entry).build().unwrap().into();
    let space = Space::new(&tight, &target).unwrap();
    let program = space.resolve(&keys).unwrap().generate(2 * entry).unwrap();
    let names: Vec<&str> = program.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(names, ["tw_contract", "tw_contract_tail", "tw_sum_splits_tail"]);
    verify(device, &tight, plan, 1);
    // Without any workspace a repair leaves the tail whole.
    let none: Problem = product(328, 200, 440).order(Order::Row).trans(false, true).workspace(0).build().unwrap().into();
    let space = Space::new(&none, &target).unwrap();
    let repaired = space.repair(&keys).unwrap();
    assert_eq!((repaired.tail_splits, repaired.persistent), (1, keys.persistent));
}

/// The parts of a strided gradient fill each other's last round.
#[test]
fn problems_of_several_parts_have_no_tail() {
    let conv = Conv::new(Scalar::F16, 3, 64, 48, &[12, 12], &[3, 3]).stride(&[2, 2]).pad(&[1, 1], &[1, 1]);
    let problem: Problem = conv.direction(Direction::BackwardData).build().unwrap().into();
    let space = Space::new(&problem, &Target::by_arch("sm_80").unwrap()).unwrap();
    let keys = "A_MIC2__B_MIC2__C_UNR32_MAC128_UNI1_PFG1_BUF2_EDG1_PST2_BIM1";
    let plan = |text: &str| Plan::from(Constraint::parse(text).unwrap().apply(&Plan::default()));
    let [split, whole] = [format!("{keys}_TSP2"), keys.to_string()].map(|text| space.resolve(&plan(&text)).unwrap());
    assert!(split.rest.len() > 1 && split.spec.tiling.tail.is_none());
    assert_eq!(split.generate(1 << 30).unwrap(), whole.generate(1 << 30).unwrap());
    assert_eq!(space.admit(&plan(&format!("{keys}_TSP2"))), space.admit(&plan(keys)));
}

#[test]
fn what_needs_whole_tiles_is_refused() {
    let problem = Problem::Gemm(product(5000, 5000, 5000).build().unwrap());
    let why = |problem: &Problem, keys| resolved(problem, keys).unwrap_err().to_string();
    let reduced = Problem::Gemm(product(5000, 5000, 5000).reduce("max:n".parse().unwrap()).build().unwrap());
    assert!(why(&reduced, "TSP4").contains("reductions"), "{}", why(&reduced, "TSP4"));
    // Ping-pong warpgroups have no tail.
    assert_eq!(resolved(&problem, "TSP4_PNG1"), Ok(1));
    let short = Problem::Gemm(product(5000, 5000, 128).build().unwrap());
    assert!(why(&short, "TSP4").contains("fewer k-tiles"), "{}", why(&short, "TSP4"));
}
