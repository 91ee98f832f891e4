//! The search graph: MIOpenGEMM's edges, start ranges and coupled moves; the nearest legal plan; totality.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use tilewright_check::random::whole_run;
use tilewright_gen::graph::{Graph, Reach, reflected};
use tilewright_gen::kernel::generate;
use tilewright_gen::plan::*;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::lower::{ConvForm, lower};
use tilewright_problem::{Conv, Gemm, Layout, Order, Problem};
use tilewright_tune::search::Starts;

const ENV: Env = Env {
    workspace_bytes: 1 << 26,
    wave: 64,
    allow_atomics: true,
    ieee: false,
    shuffles: true,
    mfma: 0,
    dot: false,
    float8: tilewright_ir::Float8::None,
    straight: false,
};

fn gemm(m: u64, n: u64, k: u64) -> Contraction {
    lower(&Problem::Gemm(Gemm::new(Scalar::F32, m, n, k).order(Order::Col).build().unwrap()), ConvForm::PER_SAMPLE).unwrap().lead
}

fn classic<'a>(contraction: &'a Contraction, env: &'a Env, constraint: &'a Constraint) -> Graph<'a> {
    Graph { reach: Reach::Classic, ..Graph::new(contraction, env, constraint) }
}

#[test]
fn edges_of_threads_depend_on_wave_and_size() {
    let (large, small, free) = (gemm(1024, 1024, 64), gemm(64, 64, 64), Constraint::none());
    let mac = |c, wave, value| classic(c, &Env { wave, ..ENV }, &free).edges(Key::C(Common::Mac), value);
    assert_eq!(mac(&large, 64, 64), [256]);
    assert_eq!(mac(&large, 32, 32), [64, 256]);
    assert_eq!(mac(&large, 32, 128), [64, 256]);
    assert_eq!(mac(&small, 64, 64), [16, 32, 256]);
    assert_eq!(mac(&small, 32, 1), [4, 16, 32, 64, 256]);
    // A value outside the graph is next to those around it.
    assert_eq!(mac(&large, 32, 96), [64, 128]);
    let unr = classic(&large, &ENV, &free).edges(Key::C(Common::Unr), 24);
    assert_eq!(unr, [16, 32]);
}

#[test]
fn classic_edges_are_miopengemms() {
    let (c, free) = (gemm(1024, 1024, 64), Constraint::none());
    let graph = classic(&c, &ENV, &free);
    let edges = |key, value| graph.edges(key, value);
    assert_eq!(edges(Key::A(Chiral::Mic), 10), [8, 6, 5]);
    assert_eq!(edges(Key::A(Chiral::Vew), 1), [2]);
    assert_eq!(edges(Key::C(Common::Ice), 8), [1, 5, 7, 9, 11]);
    assert_eq!(edges(Key::C(Common::Unr), 64), [16, 32, 128]);
    assert_eq!(edges(Key::C(Common::Skw), 13), [12]);
    for key in Key::all().filter(|k| !k.info().is_classic()) {
        assert!(graph.values(key).is_empty(), "{key}");
    }
    let dry = Env { workspace_bytes: 0, ..ENV };
    assert!(classic(&c, &dry, &free).edges(Key::A(Chiral::Wos), 0).is_empty());
}

/// Random starts: enough that the mean depends little on the seed; a quarter of them outside of a whole run.
fn starts() -> u32 {
    if whole_run() { 400 } else { 100 }
}

/// The reference counted 43 to 51 neighbours of a random start on the mean, of which 35 to 39 derive. It had no workspace, so
/// its four moves of WOS did not derive; here they do.
#[test]
fn a_random_start_has_about_as_many_neighbours_as_miopengemm_finds() {
    let free = Constraint::none();
    for (m, n, k) in [(1024, 1024, 1024), (60, 60, 1024)] {
        for wave in [32, 64] {
            let (c, env) = (gemm(m, n, k), Env { wave, ..ENV });
            let graph = classic(&c, &env, &free);
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let (mut all, mut legal) = (0, 0);
            for _ in 0..starts() {
                let start = Starts::of(graph).start(&mut rng, 1_000_000, |_| true).unwrap();
                let moves = graph.neighbours(&start);
                all += moves.len();
                legal += moves.iter().filter(|x| derive(&x.plan, &c, &env).is_ok()).count();
            }
            let mean = |count: usize| count as f64 / f64::from(starts());
            assert!((43.0..52.0).contains(&mean(all)), "{m} {wave}: {}", mean(all));
            assert!((35.0..40.0).contains(&(mean(legal) - 4.0)), "{m} {wave}: {}", mean(legal));
        }
    }
}

#[test]
fn moves_are_distinct_effective_and_respect_pins() {
    let c = gemm(1024, 1000, 512);
    let pin = Constraint::parse("A_MIC8__C_UNR24_ICE1").unwrap();
    let graph = Graph::new(&c, &ENV, &pin);
    let start = Plan::from(pin.apply(&Plan::default()));
    let moves = graph.neighbours(&start);
    assert!(moves.len() > 60, "{}", moves.len());
    let distinct: HashSet<Plan> = moves.iter().map(|m| m.plan.normalised(&c)).collect();
    assert_eq!(distinct.len(), moves.len());
    assert!(moves.iter().all(|m| m.plan != start && pin.allows(&m.plan)));
    // Interleaving of a split that is not there is no move, the samples of a convolution neither.
    let alone = |key: Key| moves.iter().any(|m| m.plan.difference(&start) == [key]);
    assert!(!alone(Key::C(Common::Iwi)) && !alone(Key::C(Common::Bim)) && !alone(Key::C(Common::Sks)));
    assert!(alone(Key::C(Common::Gal)) && alone(Key::C(Common::Pfg)));
    assert!(Graph { forms: [true, true, false, false, false], ..graph }.neighbours(&start).iter().any(|m| m.plan.form == 1));
}

#[test]
fn coupled_moves() {
    let (c, free) = (gemm(1024, 1024, 1024), Constraint::none());
    let graph = classic(&c, &ENV, &free);
    let start = Plan::default();
    let moves = graph.neighbours(&start);
    let leads = |change: &str| {
        let to = Plan::from(Constraint::parse(change).unwrap().apply(&start));
        moves.iter().find(|m| m.plan == to).map(|m| m.priority)
    };
    assert_eq!(leads("A_MIC10__B_MIC6"), Some(1));
    assert_eq!(leads("A_MIC10__B_MIC10"), None);
    assert_eq!(leads("C_UFO1_PUN0"), Some(0));
    assert_eq!(leads("C_UNR8_ICE2"), Some(1));
    assert_eq!(leads("C_UNR32_ICE2"), None);
    // 64 threads in place of 256: an 8 x 8 grid wants micro tiles of 16, of which the graph's nearest is 10.
    assert_eq!(leads("A_MIC10__B_MIC10__C_MAC64"), Some(1));
    assert_eq!(leads("C_MAD1"), Some(-1));
    let strict = Env { allow_atomics: false, ..ENV };
    let split = classic(&c, &strict, &free).neighbours(&start);
    assert!(split.iter().filter(|m| m.plan.splits > 1).all(|m| m.plan.split_sum == 1));
}

#[test]
fn start_ranges() {
    let free = Constraint::none();
    let of = |m, n, key: Key| {
        let c = gemm(m, n, 64);
        let mut values = Starts::of(classic(&c, &ENV, &free)).values(key);
        values.sort_unstable();
        values
    };
    let mic = Key::A(Chiral::Mic);
    assert_eq!(of(1000, 1000, mic), [6, 8]);
    assert_eq!(of(300, 300, mic), [4, 5, 6, 8]);
    assert_eq!(of(150, 150, mic), [2, 3, 4, 5, 6, 8]);
    assert_eq!(of(50, 50, mic), [1, 2, 3, 4, 5, 6, 8]);
    assert_eq!(of(5, 5, mic), [1, 2, 3, 4, 5]);
    assert_eq!(of(1000, 1000, Key::C(Common::Skw)), [10]);
    assert_eq!(of(100, 1000, Key::C(Common::Skw)), [7, 8, 9, 10, 11, 12, 13]);
    assert_eq!(of(1000, 1000, Key::C(Common::Ice)), [1]);
    assert_eq!(of(1000, 1000, Key::A(Chiral::Pad)), [1, 2]);
    assert_eq!(of(1000, 1000, Key::A(Chiral::Vew)), [1]);
    assert_eq!(of(1000, 1000, Key::C(Common::Sks)), [1]);
    let pin = Constraint::parse("C_UNR24").unwrap();
    assert_eq!(Starts::of(classic(&gemm(64, 64, 64), &ENV, &pin)).values(Key::C(Common::Unr)), [24]);
}

#[test]
fn the_nearest_legal_plan_changes_little() {
    let free = Constraint::none();
    let c = gemm(100, 1024, 1024);
    let near = |c: &Contraction, change: &str, pin: &Constraint| {
        let plan = Plan::from(Constraint::parse(change).unwrap().apply(&Plan::default()));
        let found = Graph::new(c, &ENV, pin).nearest(&plan, 5000, |p| derive(p, c, &ENV).map(|_| ()));
        found.map(|p| p.difference(&plan))
    };
    // One key is enough, and the first to be tried is the micro tile.
    assert_eq!(near(&c, "", &free), Some(vec![Key::A(Chiral::Mic)]));
    assert_eq!(near(&c, "A_MIC6", &free).map(|k| k.len()), Some(0));
    assert_eq!(near(&c, "", &Constraint::parse("A_MIC8__C_MAC256").unwrap()).map(|k| k.len()), Some(1));
    let all = Constraint::exactly(&Plan::default());
    assert_eq!(near(&c, "", &all), None);
    assert_eq!(near(&gemm(512, 512, 512), "B_VEW4__C_BUF2", &free).map(|k| k.len()), Some(2));
    // One thread along n has nothing to interleave with.
    let found = near(&gemm(512, 512, 512), "C_MAC32_SKW7", &free);
    assert_eq!(found, Some(vec![Key::B(Chiral::Miw), Key::C(Common::Skw)]));
}

#[test]
fn the_generic_plan_always_derives_and_fits() {
    for m in [1, 7, 8, 99, 100, 1000, 5000] {
        for n in [1, 9, 100, 3000] {
            for k in [0, 1, 1000] {
                let mut c = gemm(m, n, 1.max(k));
                c.k = k;
                for arch in Target::known() {
                    let target = Target::by_arch(arch).unwrap();
                    let spec = derive(&generic(&c), &c, &Env::new(&target, 0)).unwrap();
                    fits(&spec, &target).unwrap();
                }
                let spec = derive(
                    &generic(&c),
                    &c,
                    &Env {
                        workspace_bytes: 0,
                        wave: 1,
                        allow_atomics: false,
                        ieee: false,
                        shuffles: false,
                        mfma: 0,
                        dot: false,
                        float8: tilewright_ir::Float8::None,
                        straight: true,
                    },
                );
                assert!(spec.is_ok());
            }
        }
    }
}

fn any_contraction() -> impl Strategy<Value = Contraction> {
    let scalar = prop_oneof![Just(Scalar::F32), Just(Scalar::F64), Just(Scalar::F16)];
    let gemm = (scalar, 1..300u64, 1..300u64, 1..300u64, any::<[bool; 2]>(), 0..9u64, 1..4u64, 0..5u64).prop_map(
        |(scalar, m, n, k, [ta, tb], pad, batch, offset)| {
            let (line_a, line_b) = (if ta { k } else { m }, if tb { n } else { k });
            let builder = Gemm::new(scalar, m, n, k).order(Order::Col).trans(ta, tb).batch(batch).offsets(offset, 0, offset);
            Problem::Gemm(builder.lda(line_a + pad).ldb(line_b + pad).ldc(m + pad).build().unwrap())
        },
    );
    let conv = (1..3u64, 1..40u64, 1..40u64, 5..12u64, any::<bool>()).prop_map(|(n, c, k, size, last)| {
        let layout = if last { Layout::Nhwc } else { Layout::Nchw };
        let conv = Conv::new(Scalar::F32, n, c, k, &[size, size], &[3, 3]).pad(&[1, 1], &[1, 1]).layout(layout);
        Problem::Conv(conv.build().unwrap())
    });
    (prop_oneof![gemm, conv], any::<bool>())
        .prop_map(|(problem, merged)| lower(&problem, if merged { ConvForm::MERGED } else { ConvForm::PER_SAMPLE }).unwrap().lead)
}

/// Plans with any legal values at all.
fn any_plan() -> impl Strategy<Value = Keys> {
    let values: Vec<BoxedStrategy<u32>> = Key::all()
        .map(|key| match key.info().legal {
            Legal::Range(low, high) => (low..=high).boxed(),
            Legal::OneOf(values) => proptest::sample::select(values).boxed(),
        })
        .collect();
    values.prop_map(|v| Key::all().zip(v).fold(Keys::default(), |p, (k, v)| p.with(k, v)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Derivation answers for every plan and says why not in words.
    #[test]
    fn derivation_is_total(plan in any_plan(), c in any_contraction(), wave in prop_oneof![Just(1u32), Just(32), Just(64)]) {
        let env = Env { wave, ..ENV };
        if let Err(refused) = derive(&plan, &c, &env) {
            prop_assert!(!refused.to_string().is_empty());
        }
    }

    /// Plans reached by a walk derive to kernels whose launch and shared memory are as counted, before and after
    /// normalising.
    #[test]
    fn what_derives_generates_as_counted(c in any_contraction(), seed in any::<u64>(), strict in any::<bool>()) {
        let target = Target::by_arch("sm_90a").unwrap();
        let env = Env { allow_atomics: !strict, ..Env::new(&target, 1 << 26) };
        let free = Constraint::none();
        let graph = Graph::new(&c, &env, &free);
        let plan = Starts::of(graph).walk(&generic(&c), 12, &mut ChaCha8Rng::seed_from_u64(seed));
        let spec = derive(&plan, &c, &env).unwrap();
        let program = generate(&spec, env.workspace_bytes).unwrap();
        let main = program.kernels.iter().find(|k| k.name == "tw_contract").unwrap();
        prop_assert_eq!(main.threads, spec.launch_threads());
        let index = program.kernels.iter().position(|k| k.name == "tw_contract");
        let groups: u64 = program.launches.iter().filter(|l| Some(l.kernel) == index).map(|l| l.grid.iter().map(|x| *x as u64).product::<u64>()).sum();
        prop_assert_eq!(groups, work_groups(&spec));
        prop_assert_eq!(program.kernels.len() as u32, counts(&spec).launches);
        // Keys that are called inert change nothing.
        let normal = plan.normalised(&c);
        let again = derive(&normal, &c, &env);
        prop_assert!(again.is_ok(), "{} -> {}: {:?}", plan, normal, again);
        prop_assert_eq!(normal.normalised(&c).difference(&normal), vec![]);
    }

    /// A reflected plan derives for the mirrored problem, with A and B swapped.
    #[test]
    fn reflection_mirrors_the_kernel(m in 1..400u64, n in 1..400u64, seed in any::<u64>()) {
        let (c, t) = (gemm(m, n, 64), {
            let gemm = Gemm::new(Scalar::F32, n, m, 64).order(Order::Col).trans(true, true).trans_c(true).build().unwrap();
            lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead
        });
        let free = Constraint::none();
        let plan = Starts::of(classic(&c, &ENV, &free)).walk(&generic(&c), 8, &mut ChaCha8Rng::seed_from_u64(seed));
        let spec = derive(&plan, &c, &ENV).unwrap();
        let mirror = derive(&reflected(&plan, 64).unwrap(), &t, &ENV).unwrap();
        prop_assert_eq!((&spec.tiling.a, &spec.tiling.b), (&mirror.tiling.b, &mirror.tiling.a));
        prop_assert_eq!((spec.tiling.threads_a, spec.tiling.threads_b), (mirror.tiling.threads_b, mirror.tiling.threads_a));
        // The second operand's tiles start at a multiple of their widest access: only that gap may differ.
        let gap = u64::from(shared_align(&spec.tiling.a, Scalar::F32).max(shared_align(&spec.tiling.b, Scalar::F32)));
        prop_assert!(spec.shared.bytes().abs_diff(mirror.shared.bytes()) < gap);
    }
}
