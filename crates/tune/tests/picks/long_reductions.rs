//! Reductions of tensors by themselves whose rows are few, many, long or ragged: the plan that is tried first must be good, because of
//! tensors of a GiB a short search sees few others. Nothing runs here; times are the cost model's.

use tilewright_gen::plan::{Plan, work_groups};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Problem, Reduce, operator};
use tilewright_tune::model::Picker;
use tilewright_tune::search::{Descent, Proposal, Searcher};

/// Sizes of the kept and the reduced axis.
const SHAPES: [[u64; 2]; 5] = [[1, 1 << 28], [64, 1 << 22], [1 << 22, 64], [1 << 20, 17], [333, 77777]];
/// Bytes per microsecond that copies reach on an H200.
const COPIED: f64 = 4.3e6;

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
fn the_first_plan_spreads_over_the_device() {
    for (dtype, names) in [(Scalar::F32, ["sum", "argmax"]), (Scalar::BF16, ["max", "logsumexp"])] {
        for (shape, name) in SHAPES.into_iter().flat_map(|shape| names.map(|name| (shape, name))) {
            let space = space(dtype, shape, name);
            let plan = first(&mut Descent::new(&space, 1, &[]));
            // Whole clusters.
            let cluster = space.resolve(&plan).unwrap().spec.tiling.cluster.size();
            let (groups, units) = (groups(&space, &plan), u64::from(space.target().units / cluster * cluster));
            assert!(groups >= units, "{dtype} {shape:?} {name}: {groups} work-groups on {units} compute units: {plan}");
            let floor = (shape[0] * shape[1] * u64::from(dtype.bytes())) as f64 / COPIED;
            let modelled = Picker::new(&space).estimate(&plan).unwrap().total_us;
            // Bytes on their way and lines of few bytes count as they were measured, so that tensors of short lines model above the bandwidth of copies.
            let short = shape[1] * u64::from(dtype.bytes()) <= 128;
            let most = if floor > 90.0 { if short { 1.3 * floor } else { 1.15 * floor } } else { floor + 12.0 };
            assert!(modelled <= most, "{dtype} {shape:?} {name}: {modelled:.1} us modelled, {floor:.1} at least: {plan}");
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
