//! Whatever a search writes into records is read by every way out of them, over problems of all kinds.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tilewright_check::random;
use tilewright_check::verify::Depth;
use tilewright_device::{CacheState, open};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Activation, Complex, Gemm, Operator, Problem, Reduce};
use tilewright_tune::records::{Bad, DeviceKey, Filter, GENERATOR, State, TimeKind, Trial};
use tilewright_tune::search::{Budget, Cancel, Options, device_key, tune};
use tilewright_tune::{ProblemKey, Records};

/// Random problems of every recipe with a plan of each, and random tensors.
fn drawn(target: &Target) -> Vec<(Problem, Plan)> {
    use random::Recipe;
    let kinds = Recipe { reductions: true, ..Recipe::emulated() };
    let products = [Recipe::emulated(), kinds, Recipe::convolutions(), Recipe::formats(), Recipe::grouped(), Recipe::units()];
    let recipes: Vec<Recipe> = products.into_iter().chain([Recipe::gated(), Recipe::losses()]).collect();
    let seeds = recipes.iter().flat_map(|recipe| (0..25).map(move |seed| (recipe, seed)));
    let pairs = seeds.filter_map(|(recipe, seed)| random::pair(target, recipe, seed)).map(|pair| (pair.problem, pair.plan));
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let tensors = (0..200).filter_map(|seed| {
        let problem = random::tensor(&mut rng, 60).ok()?;
        let plan = random::plan(&Space::new(&problem, target).ok()?, &Recipe::emulated(), seed)?;
        Some((problem, plan))
    });
    pairs.chain(tensors).collect()
}

/// Everything that a trial can say.
fn trial(rng: &mut ChaCha8Rng, plan: &Plan, at: i64) -> Trial {
    let plan = plan.to_string();
    let ended = [State::Refused, State::Failed, State::Wrong, State::Hung];
    if rng.random_bool(0.4) {
        let state = ended[rng.random_range(0..ended.len())];
        let max_error = (state == State::Wrong).then_some(0.5);
        return Trial { at, max_error, ..Trial::unmeasured(&plan, state, "two\nlines, \"quoted\" µs") };
    }
    let kind = if rng.random_bool(0.5) { TimeKind::Measured } else { TimeKind::Modelled };
    let verified = [None, Some(Depth::Quick), Some(Depth::Thorough)][rng.random_range(0..3)];
    Trial { at, verified, max_error: verified.map(|_| 1e-7), ..Trial::timed(&plan, rng.random_range(1.0..1e6), kind) }
}

/// Every way out of a file gives what is in it.
fn reads_everything(records: &Records, count: usize) {
    let all = Filter::default();
    let listing = records.listing(&all).unwrap();
    assert_eq!((listing.records.len(), listing.unread), (count, Vec::new()));
    let mut lines = Vec::new();
    let exported = records.export(&all, &mut lines).unwrap();
    assert_eq!((exported.written, exported.unread.len()), (count, 0));
    let imported = Records::in_memory().unwrap();
    assert_eq!(imported.import(&mut lines.as_slice(), "lines").unwrap(), count);
    assert_eq!(imported.import_with(&mut lines.as_slice(), "lines", Bad::Skip).unwrap().added, 0);
    let merged = Records::in_memory().unwrap();
    let report = merged.merge(records).unwrap();
    assert_eq!((report.added, report.skipped, report.unread), (count, Vec::new(), Vec::new()));
    assert_eq!(merged.list(&all).unwrap(), imported.list(&all).unwrap());
    for record in &listing.records {
        records.trials(&record.problem, &record.device, GENERATOR).unwrap();
        records.best(&record.problem, &record.device, GENERATOR).unwrap();
        records.nearest(&record.problem, &record.device, GENERATOR, 3).unwrap();
    }
    assert_eq!(records.remove(&all).unwrap(), count);
    assert_eq!(records.list(&all).unwrap(), []);
}

#[test]
fn records_of_every_problem_are_read() {
    let target = Target::by_arch("sm_90a").unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let records = Records::in_memory().unwrap();
    let device = DeviceKey { name: "GPU \"x\"".into(), fingerprint: "sm_90a; driver 1".into() };
    let drawn = drawn(&target);
    let empty = |problem: &Problem| matches!(problem, Problem::Reduce(r) if r.shape.contains(&0));
    assert!(drawn.len() > 300 && drawn.iter().any(|(problem, _)| empty(problem)), "{}", drawn.len());
    let count =
        |is: fn(&Gemm) -> bool| drawn.iter().filter(|(problem, _)| matches!(problem, Problem::Gemm(gemm) if is(gemm))).count();
    let separate = count(|gemm| gemm.gate.is_some_and(|gate| gate.separate_up));
    let summed = count(|gemm| gemm.reductions.iter().any(|reduction| reduction.operator == Operator::LogSumExp));
    let links = [count(|gemm| gemm.gate.is_some()), count(|gemm| gemm.preactivations), separate, summed];
    let losses = [
        count(|gemm| gemm.activation == Some(Activation::Exp)),
        count(|gemm| matches!(gemm.activation, Some(Activation::Softcap(_)))),
    ];
    assert!(links.into_iter().chain(losses).all(|count| count > 2), "{links:?} {losses:?}");
    for (at, (problem, plan)) in drawn.iter().enumerate() {
        let trial = trial(&mut rng, plan, at as i64);
        let space = Space::new(problem, &target).unwrap().with_atomics(true);
        records.add(&ProblemKey::of(&space), &problem.key(), &device, GENERATOR, &trial).unwrap();
    }
    reads_everything(&records, drawn.len());
}

/// Reductions of tensors without elements are tuned like others.
#[test]
fn a_search_of_nothing_leaves_records_that_are_read() {
    let device = open("emu").unwrap();
    for (shape, over) in [(&[3, 0, 4][..], &[1][..]), (&[0, 5], &[1]), (&[0, 5], &[0]), (&[64, 0], &[0, 1]), (&[0], &[0])] {
        let problem = Problem::Reduce(Reduce::new(Scalar::F32, shape, over).op(Operator::Max).build().unwrap());
        let space = Space::new(&problem, &device.info().target).unwrap();
        let records = Records::in_memory().unwrap();
        let options = Options { budget: Budget::trials(3), ..Options::default() };
        let outcome = tune(&device, &space, Some(&records), &options, &Cancel::default(), &mut |_| ()).unwrap();
        assert!(outcome.verified, "{problem}");
        let found = records.best(&ProblemKey::of(&space), &device_key(device.info(), CacheState::Cold), GENERATOR).unwrap();
        assert_eq!(found.map(|t| t.plan), Some(outcome.plan.to_string()));
        let count = records.list(&Filter::default()).unwrap().len();
        assert!(count > 0);
        reads_everything(&records, count);
    }
}

/// A build before the normal form knew the number of k-tiles recorded a kernel that this one does not make.
#[test]
fn a_record_whose_kernel_the_normal_form_changes_is_timed_again() {
    let device = open("emu:sm_80").unwrap();
    let problem = Problem::Gemm(Gemm::new(Scalar::F32, 64, 64, 32).build().unwrap());
    let space = Space::new(&problem, &device.info().target).unwrap();
    let pinned = Constraint::parse("A_ACP1__B_ACP1__C_UNR32_PFG1_BUF2").unwrap();
    let new = space.repair(&space.clone().constrained(&pinned).fallback()).unwrap();
    let old = Plan::parse(&new.to_string().replace("PFG1_BUF2", "PFG3_BUF4")).unwrap();
    assert_eq!((old.normalised(space.contraction(&old)), old == new), (new, false));
    let (records, key) = (Records::in_memory().unwrap(), ProblemKey::of(&space));
    let there = device_key(device.info(), CacheState::Cold);
    let fast = Trial { verified: Some(Depth::Thorough), ..Trial::timed(&old.to_string(), 1e-3, TimeKind::Modelled) };
    records.add(&key, &problem.key(), &there, "older", &fast).unwrap();
    let options = Options { budget: Budget::trials(4), ..Options::default() };
    let outcome = tune(&device, &space, Some(&records), &options, &Cancel::default(), &mut |_| ()).unwrap();
    let trials = records.trials(&key, &there, GENERATOR).unwrap();
    let again = trials.iter().find(|trial| trial.plan == new.to_string());
    assert!(again.is_some_and(|trial| trial.time_us > Some(1e-3)), "{trials:?}");
    assert!(trials.iter().all(|trial| trial.plan != old.to_string()) && outcome.time_us > 1e-3, "{outcome:?}");
}

#[test]
fn conjugates_and_complex_factors_have_keys_of_their_own() {
    let target = Target::by_arch("sm_80").unwrap();
    let mut keys: Vec<String> = Vec::new();
    for bits in 0..16u32 {
        let bit = |i: u32| bits >> i & 1 == 1;
        let gemm = Gemm {
            complex: Some(Complex { conj_a: bit(0), conj_b: bit(1), alpha_im: bit(2), beta_im: bit(3) }),
            ..Gemm::new(Scalar::F32, 8, 8, 8).build().unwrap()
        };
        keys.push(ProblemKey::of(&Space::new(&gemm.into(), &target).unwrap()).text());
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 16);
}
