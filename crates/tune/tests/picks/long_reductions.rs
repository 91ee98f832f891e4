//! Reductions of tensors whose rows are few, many, long or ragged: the plan that is tried first must be good, because a short search of a
//! tensor of a GiB tries few others. Nothing runs here. What an H200 has measured of the same shapes judges the cost model and the first plan
//! (`benchmarks/records/torch/alone.jsonl.gz`).

use std::io::BufRead;
use tilewright_gen::plan::{Plan, work_groups};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Problem, Reduce, operator};
use tilewright_tune::model::Picker;
use tilewright_tune::search::{Descent, Proposal, Searcher};

/// Sizes of the kept and the reduced axis.
const SHAPES: [[u64; 2]; 5] = [[1, 1 << 28], [64, 1 << 22], [1 << 22, 64], [1 << 20, 17], [333, 77777]];
/// The model's time of the best plan over its measured time, at least and at most. Short ragged rows model above what was measured.
const OFF: std::ops::Range<f64> = 0.8..1.7;
/// The first plan's time over the best that was measured, at most.
const FIRST: f64 = 1.15;

/// What was measured of a case: the best plan that a search found, and its time.
#[derive(serde::Deserialize)]
struct Measured {
    case: String,
    ours_us: f64,
    plan: String,
}

fn measured() -> Vec<Measured> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benchmarks/records/torch/alone.jsonl.gz");
    let lines = std::io::BufReader::new(flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap()));
    lines.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

fn space(dtype: Scalar, shape: [u64; 2], name: &str) -> Space {
    let reduce = Reduce::new(dtype, &shape, &[1]).reduction(operator(name).unwrap()).build().unwrap();
    Space::new(&Problem::Reduce(reduce), &Target::by_arch("sm_90a").unwrap()).unwrap()
}

/// Work-groups of a plan.
fn groups(space: &Space, plan: &Plan) -> u64 {
    let resolved = space.resolve(plan).unwrap();
    work_groups(&resolved.spec)
}

fn first(searcher: &mut Descent) -> Plan {
    match searcher.propose() {
        Proposal::Try(plan) => plan,
        other => panic!("{other:?} in place of a plan"),
    }
}

#[test]
fn the_first_plan_is_near_the_best_that_was_measured() {
    let rows = measured();
    let mut judged = 0;
    for (dtype, names) in [(Scalar::F32, ["sum", "argmax"]), (Scalar::BF16, ["max", "sum"])] {
        for (shape, name) in SHAPES.into_iter().flat_map(|shape| names.map(|name| (shape, name))) {
            let case = format!("{dtype} {}x{} {name} over columns", shape[0], shape[1]);
            let row = rows.iter().find(|row| row.case == case).unwrap_or_else(|| panic!("{case} was not measured"));
            let space = space(dtype, shape, name);
            let picker = Picker::new(&space);
            let best = Plan::parse(&row.plan).unwrap();
            let of_best = picker.estimate(&best).unwrap_or_else(|| panic!("{case}: {best} is refused")).total_us;
            let off = of_best / row.ours_us;
            assert!(OFF.contains(&off), "{case}: {of_best:.1} us modelled, {:.1} measured: {best}", row.ours_us);
            // The model's error on this shape is known now, and is taken out of the first plan's time.
            let first = first(&mut Descent::new(&space, 1, &[]));
            let beside = picker.estimate(&first).unwrap().total_us / off / row.ours_us;
            assert!(beside <= FIRST, "{case}: {beside:.2} of the best measured time, {:.1} us of {best}: {first}", row.ours_us);
            judged += 1;
        }
    }
    assert_eq!(judged, 2 * 2 * SHAPES.len());
}

#[test]
fn the_first_plan_spreads_over_the_device() {
    for (dtype, names) in [(Scalar::F32, ["sum", "argmax"]), (Scalar::BF16, ["max", "logsumexp"])] {
        for (shape, name) in SHAPES.into_iter().flat_map(|shape| names.map(|name| (shape, name))) {
            let space = space(dtype, shape, name);
            let plan = first(&mut Descent::new(&space, 1, &[]));
            // Whole clusters.
            let cluster = space.resolve(&plan).unwrap().spec.tiling.cluster.size();
            let (groups, units) = (groups(&space, &plan), u64::from(space.target().units / cluster * cluster));
            assert!(groups >= units, "{dtype} {shape:?} {name}: {groups} work-groups on {units} compute units: {plan}");
        }
    }
}

/// A plan of another problem, or of an earlier version, comes behind those that the model takes for far better, and is not forgotten.
#[test]
fn plans_that_were_good_elsewhere_do_not_go_before_better_ones() {
    let space = space(Scalar::F32, SHAPES[0], "sum");
    let good = first(&mut Descent::new(&space, 1, &[]));
    let one: Plan = space.repair(&good.but(|keys| keys.splits = 1)).unwrap();
    assert_eq!(groups(&space, &one), 1);
    let mut searcher = Descent::new(&space, 1, &[one]);
    assert_eq!(first(&mut searcher), good);
    let mut rest = std::iter::repeat_with(|| searcher.propose()).take(40);
    assert!(rest.any(|next| matches!(next, Proposal::Try(plan) if plan == one)));
    // One that is as good comes first.
    let near = space.repair(&good.but(|keys| keys.splits = 528)).unwrap();
    assert_eq!(first(&mut Descent::new(&space, 1, &[near])), near);
}
