//! What a look takes: bounded for every plan of every problem, whatever its size.

use std::path::Path;
use tilewright_check::random::{self, Recipe};
use tilewright_device::DeviceKind;
use tilewright_gen::plan::{Plan, generic};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::cases::{self, CaseOptions};
use tilewright_problem::{Conv, Direction, Gemm, Operator, Problem, Reduce};
use tilewright_tune::look::{Cost, LIMIT, subject};

fn target() -> Target {
    Target::by_arch("sm_90a").expect("a known architecture")
}

/// What looks at plans of a space take on a GPU; plans that do not apply are left out.
fn costs(space: &Space, plans: impl IntoIterator<Item = Plan>) -> Vec<Cost> {
    let cost = |plan: Plan| Cost::of(&subject(space, &plan), &plan, DeviceKind::Gpu).ok();
    plans.into_iter().filter_map(cost).collect()
}

fn bounded(name: &str, costs: &[Cost]) {
    for cost in costs {
        assert!(cost.flop <= LIMIT.flop && cost.bytes <= LIMIT.bytes, "{name}: {cost:?}");
    }
}

#[test]
fn published_problems_are_looked_at_within_the_limit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/cases");
    let (mut plans, mut large) = (0, 0);
    for file in std::fs::read_dir(folder).expect("the case files").map(|file| file.expect("a file").path()) {
        let (name, text) = (file.display().to_string(), std::fs::read(&file).expect("a case file"));
        let found = cases::parse(&name, "", &text, &CaseOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        for case in found.cases.iter().step_by(5) {
            let space = Space::new(&case.problem, &target()).unwrap_or_else(|e| panic!("{}: {e}", case.problem));
            let scalar = generic(space.contraction(&Plan::default()));
            let costs = costs(&space, [space.fallback(), scalar]);
            bounded(&case.problem.key(), &costs);
            (plans, large) = (plans + costs.len(), large + usize::from(case.problem.flop() > LIMIT.flop));
        }
    }
    assert!(plans > 80 && large > 10, "{plans} plans, {large} large problems");
}

/// Many batch entries, groups, samples, channels and elements.
#[test]
fn odd_sizes_are_looked_at_within_the_limit() {
    let gemm = |m, n, k| Gemm::new(Scalar::F16, m, n, k);
    let conv = |n, c, k, groups| Conv::new(Scalar::F32, n, c, k, &[56, 56], &[3, 3]).groups(groups).pad(&[1, 1], &[1, 1]);
    let reduce = |shape: &[u64], over: &[usize]| Reduce::new(Scalar::F32, shape, over).op(Operator::Sum).build();
    let problems = [
        gemm(16, 16, 16).batch(1_000_000).build().map(Problem::Gemm),
        gemm(300, 200, 100).batch(50_000).build().map(Problem::Gemm),
        gemm(1, 1, 1 << 30).build().map(Problem::Gemm),
        gemm(1 << 30, 1, 8).build().map(Problem::Gemm),
        gemm(3, 1 << 24, 3).batch(64).build().map(Problem::Gemm),
        gemm(200_000, 200_000, 200_000).build().map(Problem::Gemm),
        conv(100_000, 8, 8, 1).build().map(Problem::Conv),
        conv(64, 8192, 8192, 8192).build().map(Problem::Conv),
        conv(64, 8192, 8192, 1).direction(Direction::BackwardWeight).build().map(Problem::Conv),
        conv(4096, 64, 64, 8).direction(Direction::BackwardData).build().map(Problem::Conv),
        reduce(&[1 << 31], &[0]).map(Problem::Reduce),
        reduce(&[1 << 16, 1 << 16], &[1]).map(Problem::Reduce),
        reduce(&[1 << 16, 3, 1 << 14], &[0, 2]).map(Problem::Reduce),
    ];
    for problem in problems {
        let problem = problem.expect("a problem");
        let space = Space::new(&problem, &target()).unwrap_or_else(|e| panic!("{problem}: {e}"));
        let scalar = generic(space.contraction(&Plan::default()));
        let costs = costs(&space, [space.fallback(), scalar]);
        assert!(!costs.is_empty(), "{problem}");
        bounded(&problem.key(), &costs);
    }
}

/// The lines of the problem that runs lie close together.
#[test]
fn leading_dimensions_cost_no_memory() {
    for [ld, stride] in [[1 << 31, 1 << 35], [1 << 33, 1 << 37]] {
        let problem = Gemm::new(Scalar::F32, 8, 6, 4).lda(ld).ldc(ld).batch(2).stride_a(stride).build().expect("a problem");
        let space = Space::new(&Problem::Gemm(problem), &target()).expect("a space");
        let costs = costs(&space, [space.fallback()]);
        assert!(costs.len() == 1 && costs[0].bytes < 1 << 20, "{costs:?}");
    }
}

#[test]
fn random_plans_are_looked_at_within_the_limit() {
    let recipes = [Recipe::emulated(), Recipe::convolutions(), Recipe::formats(), Recipe::grouped(), Recipe::units()];
    let mut plans = 0;
    for pair in recipes.iter().flat_map(|recipe| (0..40).filter_map(|seed| random::pair(&target(), recipe, seed))) {
        let Ok(space) = Space::new(&pair.problem, &target()) else { continue };
        let costs = costs(&space, [pair.plan]);
        bounded(&pair.problem.key(), &costs);
        plans += costs.len();
    }
    assert!(plans > 100, "{plans} plans");
}
