//! Exact runs compare every element of a small problem, of every kind whose sums are computed one by one.

use tilewright_check::random::{self, Recipe};
use tilewright_check::reference::Exact;
use tilewright_ir::Target;
use tilewright_problem::{Direction, Problem, Ragged};

/// The kinds.
const KINDS: [&str; 4] = ["input gradient", "filter gradient", "block scales", "groups of k"];

/// The kind of a problem, as a place of [`KINDS`].
fn kind(problem: &Problem) -> Option<usize> {
    match problem {
        Problem::Conv(conv) => match conv.direction {
            Direction::Forward => None,
            Direction::BackwardData => Some(0),
            Direction::BackwardWeight => Some(1),
        },
        Problem::Gemm(gemm) if gemm.scales.of_blocks() => Some(2),
        Problem::Gemm(gemm) if matches!(gemm.grouped, Some(Ragged::K)) => Some(3),
        _ => None,
    }
}

#[test]
fn exact_runs_of_small_problems_are_complete() {
    let target = Target::by_arch("sm_90a").expect("a known architecture");
    let recipes = [Recipe::convolutions(), Recipe::formats(), Recipe::grouped()];
    let mut count = [0; KINDS.len()];
    for pair in recipes.iter().flat_map(|recipe| (0..120).filter_map(|seed| random::pair(&target, recipe, seed))) {
        let problem = pair.problem;
        let extents = problem.result_shape().extents;
        let elements = extents.g * extents.m * extents.n;
        let Some(kind) = kind(&problem).filter(|_| problem.keeps_c() && elements <= 1 << 14) else { continue };
        let exact = Exact::new(&problem, 5, Exact::factors(&problem, false)).expect("test data");
        // What the buffer holds before a run is wrong, and compared all the same.
        let verdict = exact.check(&exact.data().c.bytes);
        assert_eq!(verdict.checked, elements, "{}: {problem}", KINDS[kind]);
        assert!(verdict.wrong > 0, "{problem}: {verdict:?}");
        count[kind] += 1;
    }
    assert!(count.iter().all(|&count| count > 5), "{KINDS:?}: {count:?}");
}
