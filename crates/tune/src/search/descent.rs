//! Descent over the neighbour graph: MIOpenGEMM's search, made right.
//!
//! A first-improvement hill climb: the first neighbour faster by 0.2 % becomes the centre at once and its neighbours the front.
//! It has four things that MIOpenGEMM's lacks:
//!
//! - starts come from the cost model and the records;
//! - fronts are tried in the order of their modelled times (by priority first, as there);
//! - nothing is tried twice in any descent;
//! - a restart may also step away from the best plan so far.

use super::random::draw;
use super::{Proposal, Searcher, Starts, THRESHOLD};
use crate::model::{Candidate, Picker, sort};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use tilewright_gen::plan::{Keys, Plan};
use tilewright_gen::space::Space;
use tilewright_problem::contraction::Contraction;

/// Plans from the cost model that the first descent compares before it moves.
const OPENING: usize = 16;
/// Plans among them with another value of a choice, such as the copy method, than the best plan has.
const WAYS: usize = 4;
/// Plans kept for later descents.
const RESERVE: usize = 60;
/// Neighbours of a descent that are tried by priority before the model's order rules.
const BY_PRIORITY: usize = 20;
/// Picks that stand for a problem at first: the best three come within a few per cent of a search's end.
pub(super) const FIRST_PICKS: usize = 3;
/// Draws before a restart is given up.
const TRIES: usize = 300;

/// The hill climb with restarts.
pub struct Descent<'a> {
    space: &'a Space,
    picker: Picker<'a>,
    rng: ChaCha8Rng,
    /// The best of what was tried, and its time in microseconds.
    best: Option<(Plan, f64)>,
    given: HashSet<Plan>,
    front: VecDeque<Plan>,
    pending: HashSet<Plan>,
    /// Centre of the current descent.
    centre: Option<(Plan, f64)>,
    /// The front holds starts to compare, not neighbours.
    opening: bool,
    reserve: VecDeque<Plan>,
    seeds: Vec<Plan>,
    /// The best plans of different tiles.
    picks: Vec<Plan>,
    /// The modelled time from which on a plan is not worth an early look.
    far_us: f64,
    descents: usize,
    tried_in_descent: usize,
}

impl<'a> Descent<'a> {
    /// A descent over a space that starts with the given plans (recorded ones, the user's) and the cost model's best.
    pub fn new(space: &'a Space, seed: u64, starts: &[Plan]) -> Self {
        let picker = Picker::new(space);
        let ranked = picker.pick(usize::MAX);
        let seeds = ranked.iter().take(200).map(|c| c.plan).collect();
        let mut reserve = diverse(&ranked, OPENING + RESERVE);
        // What was good elsewhere may be hopeless here, and a short search sees the first few plans only.
        let starts: Vec<Plan> = starts.iter().filter_map(|p| space.repair(p)).collect();
        let far_us = far(&ranked);
        let near = |plan: &Plan| picker.estimate(plan).is_some_and(|e| e.total_us <= far_us);
        let (starts, hopeless) = starts.into_iter().partition::<Vec<Plan>, _>(near);
        let mut front = VecDeque::from(starts);
        let known = front.len();
        front.extend(opening(&mut reserve));
        let picks = front.iter().skip(known).take(FIRST_PICKS).copied().collect();
        // Early enough for a short search to see them.
        for (n, plan) in recipes(space, front.iter().skip(known).copied().take(OPENING / 4)).into_iter().enumerate() {
            front.insert((known + 2 * (n + 1)).min(front.len()), plan);
        }
        // Where an operand is a convolution's windows, what the ways to get them cost is modelled worst: one plan of each comes first.
        let windows = ranked.first().is_some_and(|c| windowed(space.contraction(&c.plan)));
        let sources = if windows { other_ways(&ranked, sources) } else { Vec::new() };
        for (n, plan) in sources.into_iter().enumerate() {
            front.insert((known + n + 1).min(front.len()), plan);
        }
        let others = [
            other_ways(&ranked, operands),
            other_ways(&ranked, |p| p.finish),
            other_ways(&ranked, |p| p.carry),
            other_ways(&ranked, |p| p.reduce_operands),
            other_ways(&ranked, clusters),
            other_ways(&ranked, Keys::way),
        ]
        .concat();
        for (n, plan) in others.into_iter().enumerate() {
            front.insert((known + 2 * (n + 1)).min(front.len()), plan);
        }
        front.extend(hopeless);
        front.extend(space.repair(&space.fallback()).filter(|_| front.is_empty()));
        Descent {
            space,
            picker,
            rng: ChaCha8Rng::seed_from_u64(seed),
            best: None,
            given: HashSet::new(),
            front,
            pending: HashSet::new(),
            centre: None,
            opening: true,
            reserve,
            seeds,
            picks,
            far_us,
            descents: 1,
            tried_in_descent: 0,
        }
    }

    /// Makes the neighbours of a plan the front.
    fn expand_neighbours(&mut self, centre: Plan) {
        let (picker, neighbours) = (&self.picker, self.space.neighbours(&centre));
        let near: Vec<Option<Candidate>> = neighbours.par_iter().map(|n| picker.repaired(&n.plan)).collect();
        let mut priorities: HashMap<Plan, i8> = HashMap::new();
        let mut ranked = Vec::new();
        for (neighbour, candidate) in neighbours.iter().zip(near) {
            let Some(candidate) = candidate.filter(|candidate| !self.given.contains(&candidate.plan)) else { continue };
            let priority = priorities.entry(candidate.plan).or_insert_with(|| {
                ranked.push(candidate);
                neighbour.priority
            });
            *priority = (*priority).max(neighbour.priority);
        }
        sort(&mut ranked);
        // The model cannot tell all neighbours apart: a little noise keeps it from always taking the same ones first.
        let mut scored: Vec<(f64, Plan)> =
            ranked.iter().map(|c| (c.estimate.total_us * self.rng.random_range(0.97..1.03), c.plan)).collect();
        scored.sort_by(|x, y| x.0.total_cmp(&y.0));
        let least = scored.first().map_or(0.0, |s| s.0);
        let by_priority = BY_PRIORITY.saturating_sub(self.tried_in_descent);
        // Plans that the model finds hopeless wait, whatever their priority.
        let (mut early, late) = scored.into_iter().partition::<Vec<_>, _>(|s| s.0 < 1.5 * least);
        if by_priority > 0 {
            early.sort_by_key(|s| -priorities.get(&s.1).copied().unwrap_or(0));
        }
        self.front = early.into_iter().chain(late).map(|s| s.1).collect();
    }

    /// Begins another descent; false if nothing new can be found.
    fn restart(&mut self) -> bool {
        for _ in 0..TRIES {
            let start = match self.descents % 3 {
                1 => self.reserve.pop_front().or_else(|| self.perturb()),
                2 => self.perturb(),
                _ => draw(self.space, &self.seeds, &mut self.rng),
            };
            self.descents += 1;
            if let Some(plan) = start.filter(|p| !self.given.contains(p)) {
                self.front = VecDeque::from([plan]);
                self.centre = None;
                self.opening = true;
                self.tried_in_descent = 0;
                return true;
            }
        }
        false
    }

    /// Something to try while results are outstanding: the model's next tilings.
    fn while_waiting(&mut self) -> Option<Plan> {
        while let Some(plan) = self.reserve.pop_front() {
            if !self.given.contains(&plan) {
                return Some(plan);
            }
        }
        None
    }

    /// A few random steps away from the best.
    fn perturb(&mut self) -> Option<Plan> {
        let (best, _) = self.best?;
        let steps = self.rng.random_range(2..6);
        self.space.repair(&Starts::of(self.space.graph(&best)).walk(&best, steps, &mut self.rng))
    }
}

/// Forms of plans that measure better than they model. They have short k-tiles, with fragments read ahead over their end. One
/// form has an unrolled loop with few enough registers for a second work-group. The other has fences around the loads.
fn recipes(space: &Space, plans: impl Iterator<Item = Plan>) -> Vec<Plan> {
    if space.target().wave <= 1 {
        return Vec::new();
    }
    let unrolled = |p: Keys| Keys { unroll_k: 1, min_groups: 2, fences: 0, ..p };
    let fenced = |p: Keys| Keys { unroll_k: 0, min_groups: 0, fences: 1, ..p };
    let made = plans.filter(|plan| plan.ahead > 0).enumerate().filter_map(|(number, plan)| {
        let short = Keys { k_tile: 8, fragments_ahead: 1, ..*plan };
        space.repair(&if number.is_multiple_of(2) { unrolled(short) } else { fenced(short) })
    });
    made.collect()
}

/// How operands come to be multiplied: what copies and units lose there the cost model judges worst.
fn operands(p: &Keys) -> [u32; 5] {
    [p.unit, p.a.copy, p.b.copy, p.a.source, p.b.source]
}

/// Clusters: the cost model underrates the gain of shared reads where memory is the limit. On an H100 a filter gradient of a 1x1
/// filter took 188 us with clusters of two and 212 us without. Modelled were 240 and 212.
fn clusters(p: &Keys) -> [u32; 2] {
    [p.a.cluster, p.b.cluster]
}

/// Where operands come from: in place, or copied in one way or another, in the form of the problem that suits it.
fn sources(p: &Keys) -> [u32; 3] {
    [p.form, p.a.source, p.b.source]
}

/// True if an operand is read through windows.
fn windowed(c: &Contraction) -> bool {
    [&c.a, &c.b].iter().any(|tensor| tensor.view.is_affine_box().is_none())
}

/// The modelled time from which on a plan is not worth an early look: the model is seldom so wrong.
fn far(ranked: &[Candidate]) -> f64 {
    ranked.first().map_or(f64::INFINITY, |c| 2.0 * c.estimate.total_us)
}

/// The best plan of each other way than the best plan's, where the cost model does not think it far slower.
fn other_ways<T: Eq + Hash>(ranked: &[Candidate], way: impl Fn(&Keys) -> T) -> Vec<Plan> {
    let mut ways = HashSet::new();
    let most = far(ranked);
    let fresh = ranked.iter().filter(|c| c.estimate.total_us <= most && ways.insert(way(&c.plan)));
    fresh.skip(1).take(WAYS).map(|c| c.plan).collect()
}

/// The best plans whose tiles differ from each other, best first.
fn diverse(ranked: &[Candidate], count: usize) -> VecDeque<Plan> {
    let shape = |p: &Keys| [p.a.micro, p.b.micro, p.threads, p.skew, p.splits, p.a.source, p.b.source, p.fragments_ahead, p.form];
    let mut shapes = HashSet::new();
    let fresh = ranked.iter().filter(|c| shapes.insert(shape(&c.plan)));
    fresh.take(count).map(|c| c.plan).collect()
}

/// Takes the plans that the first descent compares from the reserve: one plan of each of the best tiles, then the next best plans.
fn opening(reserve: &mut VecDeque<Plan>) -> Vec<Plan> {
    /// Different tiles at the start.
    const TILES: usize = 12;
    let mut tiles = HashSet::new();
    let mut first = Vec::new();
    let mut others = VecDeque::new();
    for plan in reserve.drain(..) {
        if first.len() < TILES && tiles.insert(plan.tile_shape()) {
            first.push(plan);
        } else {
            others.push_back(plan);
        }
    }
    let more = others.len().min(OPENING - first.len());
    first.extend(others.drain(..more));
    *reserve = others;
    first
}

impl Searcher for Descent<'_> {
    fn propose(&mut self) -> Proposal {
        loop {
            while let Some(plan) = self.front.pop_front() {
                if self.given.insert(plan) {
                    self.pending.insert(plan);
                    self.tried_in_descent += 1;
                    return Proposal::Try(plan);
                }
            }
            if self.opening && self.centre.is_none() && self.descents == 1 {
                // All starts were in the records: go on from the best of those.
                self.centre = self.best;
            }
            match self.centre {
                // Slow candidates of the opening need not be waited for: a better one among them moves the centre later.
                Some((centre, _)) if self.opening => {
                    self.opening = false;
                    self.expand_neighbours(centre);
                }
                _ if !self.pending.is_empty() => match self.while_waiting() {
                    Some(plan) => self.front.push_back(plan),
                    None => return Proposal::Wait,
                },
                _ => {
                    if !self.restart() {
                        return Proposal::Done;
                    }
                }
            }
        }
    }

    fn report(&mut self, plan: &Plan, time_us: Option<f64>) {
        if !self.pending.is_empty() {
            self.pending.remove(plan);
        }
        self.given.insert(*plan);
        let Some(time) = time_us else { return };
        if self.best.is_none_or(|(_, best)| time < best) {
            self.best = Some((*plan, time));
        }
        if self.centre.is_none_or(|(_, best)| time < THRESHOLD * best) {
            self.centre = Some((*plan, time));
            if !self.opening {
                self.expand_neighbours(*plan);
            }
        }
    }

    fn picks_first(&mut self) {
        for plan in self.picks.iter().rev() {
            self.front.push_front(*plan);
        }
    }

    fn start_from(&mut self, plans: &[Plan]) {
        let legal: Vec<Plan> = plans.iter().filter_map(|plan| self.space.repair(plan)).collect();
        for plan in legal.into_iter().rev().filter(|plan| !self.given.contains(plan)) {
            if self.picker.estimate(&plan).is_some_and(|e| e.total_us <= self.far_us) {
                self.front.push_front(plan);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_gen::plan::Key;
    use tilewright_ir::{Scalar, Target};
    use tilewright_problem::{Gemm, Order, Problem};

    fn space() -> Space {
        let problem = Problem::Gemm(Gemm::new(Scalar::F32, 512, 384, 256).order(Order::Col).build().unwrap());
        Space::new(&problem, &Target::by_arch("sm_90a").unwrap()).unwrap()
    }

    /// A landscape that disagrees with the model: how far the plan is from a secret one.
    fn landscape(plan: &Plan, secret: &Plan) -> f64 {
        let far = |k: Key| (f64::from(plan.get(k) + 1).ln() - f64::from(secret.get(k) + 1).ln()).abs();
        100.0 + Key::all().map(far).sum::<f64>()
    }

    #[test]
    fn it_climbs_a_landscape_the_model_does_not_know() {
        let s = space();
        let mut secret = tilewright_gen::plan::Keys::default();
        secret.a.micro = 4;
        secret.b.micro = 6;
        secret.k_tile = 8;
        let secret = s.repair(&secret).unwrap();
        let mut d = Descent::new(&s, 3, &[]);
        let (mut first, mut best, mut seen) = (f64::INFINITY, f64::INFINITY, HashSet::new());
        for trial in 0..600 {
            let Proposal::Try(plan) = d.propose() else { panic!("nothing to try") };
            assert!(s.resolve(&plan).is_ok() && seen.insert(plan), "{plan}");
            let time = landscape(&plan, &secret);
            best = best.min(time);
            if trial < OPENING {
                first = first.min(time);
            }
            d.report(&plan, Some(time));
        }
        assert!(best - 100.0 < 0.5 * (first - 100.0), "from {first} to {best}");
    }

    #[test]
    fn recorded_trials_are_not_proposed_and_seed_the_centre() {
        let s = space();
        let mut first = Descent::new(&s, 1, &[]);
        let mut recorded = Vec::new();
        for _ in 0..40 {
            let Proposal::Try(plan) = first.propose() else { panic!("nothing to try") };
            first.report(&plan, Some(100.0 + recorded.len() as f64));
            recorded.push(plan);
        }
        let mut again = Descent::new(&s, 1, &[]);
        for (i, plan) in recorded.iter().enumerate() {
            again.report(plan, Some(100.0 + i as f64));
        }
        for _ in 0..40 {
            let Proposal::Try(plan) = again.propose() else { panic!("nothing to try") };
            assert!(!recorded.contains(&plan));
            again.report(&plan, Some(1000.0));
        }
        assert_eq!(again.centre.map(|c| c.0), Some(recorded[0]));
    }

    #[test]
    fn it_survives_candidates_without_a_time() {
        let s = space();
        let mut d = Descent::new(&s, 1, &[]);
        for _ in 0..60 {
            match d.propose() {
                Proposal::Try(plan) => d.report(&plan, None),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn it_waits_for_outstanding_results_only_when_it_must() {
        let s = space();
        let mut d = Descent::new(&s, 1, &[]);
        let mut out = Vec::new();
        while let Proposal::Try(plan) = d.propose() {
            out.push(plan);
        }
        assert!((3..=OPENING + OPENING / 4 + OPENING / 3 + RESERVE).contains(&out.len()));
        assert_eq!(d.propose(), Proposal::Wait);
        d.report(&out[0], Some(50.0));
        assert!(matches!(d.propose(), Proposal::Try(_)), "the other starts need not be waited for");
    }
}
