//! The printed text and the launches of 1,120 random pairs of problem and plan, pinned by hash in `pinned_text.txt`: a change that is
//! meant to move code only must leave every hash as it is.
//!
//! Each line holds target, problem, plan (keys that differ from their default), hash of the source text, hash of the launches with their
//! bindings. The pairs stand in the file, so that the net does not change with the drawing of random pairs or with legality.
//!
//! - `UPDATE_PINNED=hashes cargo test -p tilewright-gen --test kernels pinned_text` renews the hashes of the same pairs;
//! - `UPDATE_PINNED=pairs` draws the pairs anew as well;
//! - `PINNED_OUT=folder` writes each pair's text and launches to `folder/<line>.txt`, to be compared before and after a change.

use crate::support;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::fmt::Write as _;
use std::path::Path;
use support::wave_units;
use tilewright_check::random::{Recipe, pair, wave_unit_plan};
use tilewright_gen::plan::{Constraint, Key, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{Dialect, Features, Target, print};
use tilewright_problem::Problem;

/// Where the pairs stand, with their hashes.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pinned_text.txt");

/// What is drawn for a target.
enum Draw {
    /// Any pair of a recipe.
    Any(Recipe),
    /// Plans of a matrix unit of single waves.
    Wave(u32),
}

/// Targets, what is drawn for them, how many.
fn draws() -> Vec<(&'static str, Draw, usize)> {
    let any = |target, recipe, count| (target, Draw::Any(recipe), count);
    vec![
        any("sm_75", Recipe::emulated(), 60),
        any("sm_80", Recipe::device(), 40),
        any("sm_80", Recipe::schedules(), 60),
        any("sm_90a", Recipe::emulated(), 60),
        any("sm_90a", Recipe::schedules(), 40),
        any("gfx900", Recipe::emulated(), 60),
        any("gfx900", Recipe::schedules(), 40),
        any("gfx942", Recipe::device(), 30),
        any("opencl", Recipe::short_code(), 60),
        any("opencl:gfx900", Recipe::emulated(), 40),
        ("sm_80", Draw::Wave(1), 100),
        ("sm_90a", Draw::Wave(1), 40),
        ("gfx90a", Draw::Wave(3), 40),
        ("gfx942", Draw::Wave(3), 60),
        ("gfx950", Draw::Wave(3), 40),
        any("sm_90a", Recipe::units(), 230),
        any("sm_80", Recipe::formats(), 40),
        any("sm_90a", Recipe::formats(), 40),
        any("gfx942", Recipe::formats(), 40),
    ]
}

/// A built-in target, or one spoken to in OpenCL C: a processor without waves, or an architecture.
fn target(name: &str) -> Target {
    let known = |arch| Target::by_arch(arch).expect("known architecture");
    let features = Features { f64: true, atomic64: true, ..Features::default() };
    match name.split_once(':') {
        Some((_, arch)) => Target { dialect: Dialect::OpenCl, features, ..known(arch) },
        None if name == "opencl" => Target { dialect: Dialect::OpenCl, features, wave: 1, ..known("gfx900") },
        None => known(name),
    }
}

fn space(problem: &Problem, target: &Target) -> Space {
    Space::new(problem, target).expect("the problem lowers").with_atomics(true)
}

/// A pair of a kind that is legal on the target, if the seed leads to one.
fn drawn(target: &Target, draw: &Draw, seed: u64) -> Option<(Problem, Plan)> {
    match draw {
        Draw::Any(recipe) => pair(target, recipe, seed).map(|p| (p.problem, p.plan)),
        Draw::Wave(unit) => {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (problem, plan) = (wave_units::product(&mut rng, *unit, &[1, 8]), wave_unit_plan(&mut rng, *unit));
            let plan = space(&problem, target).repair(&plan)?;
            Some((problem, plan))
        }
    }
}

/// Keys of the plan that differ from their default.
fn keys(plan: &Plan) -> Constraint {
    let mut keys = Constraint::none();
    for key in Key::all().filter(|k| plan.get(*k) != k.info().default) {
        keys.pin(key, plan.get(key));
    }
    keys
}

/// Source text of all kernels, and the launches.
fn printed(name: &str, problem: &str, plan: &str) -> Result<(String, String), String> {
    let target = target(name);
    let problem = Problem::parse(problem).map_err(|e| e.to_string())?;
    let plan = Plan::from(Constraint::parse(plan).map_err(|e| e.to_string())?.apply(&Plan::default()));
    let space = space(&problem, &target);
    let resolved = space.resolve(&plan).map_err(|refusal| format!("refused: {refusal}"))?;
    let mut program = resolved.generate(space.env().workspace_bytes).map_err(|e| format!("not generated: {e}"))?;
    let mut text = String::new();
    for kernel in std::mem::take(&mut program.kernels) {
        let source = print(&kernel, &target).map_err(|e| format!("not printed: {e}"))?;
        let _ = writeln!(text, "// {} {}\n{}", source.entry, source.dynamic_shared_bytes, source.text);
    }
    Ok((text, serde_json::to_string_pretty(&program).map_err(|e| e.to_string())?))
}

/// FNV-1a of 64 bits: the same in every release of the standard library.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A line of the file without its hashes.
type Pinned = [String; 3];

/// The pairs drawn anew.
fn redrawn() -> Vec<Pinned> {
    // Each kind has seeds of its own: two targets of one recipe would draw the same pairs.
    let one = |(kind, (name, draw, count)): (u64, (&'static str, Draw, usize))| {
        let target = target(name);
        let pairs = (kind * 10_000..).filter_map(|seed| drawn(&target, &draw, seed)).take(count);
        pairs.map(|(problem, plan)| [name.into(), problem.to_string(), keys(&plan).to_string()]).collect::<Vec<Pinned>>()
    };
    (0..).zip(draws()).flat_map(one).collect()
}

/// The line of a pair with the hashes of what it is printed as now.
fn line(number: usize, pinned: &Pinned) -> Result<String, String> {
    let [name, problem, plan] = pinned;
    let (text, launches) = printed(name, problem, plan).map_err(|why| format!("{name} {problem} {plan}: {why}"))?;
    if let Some(folder) = std::env::var_os("PINNED_OUT") {
        let path = Path::new(&folder).join(format!("{:04}.txt", number + 1));
        let head = format!("{name} {problem}\n{plan}");
        std::fs::write(path, format!("// {head}\n{text}\n{launches}\n")).map_err(|e| e.to_string())?;
    }
    Ok(format!("{}\t{:016x}\t{:016x}", pinned.join("\t"), hash(&text), hash(&launches)))
}

#[test]
fn printed_text_and_launches_are_as_pinned() {
    let update = std::env::var("UPDATE_PINNED").ok();
    let file = std::fs::read_to_string(FILE).unwrap_or_default();
    let pairs: Vec<Pinned> = if update.as_deref() == Some("pairs") {
        redrawn()
    } else {
        let fields = |line: &str| line.split('\t').take(3).map(String::from).collect::<Vec<_>>().try_into();
        file.lines().map(|line| fields(line).expect("three fields")).collect()
    };
    let now: Vec<Result<String, String>> = pairs.par_iter().enumerate().map(|(i, p)| line(i, p)).collect();
    if update.is_some() {
        let lines: Result<Vec<String>, String> = now.into_iter().collect();
        return std::fs::write(FILE, lines.unwrap().join("\n") + "\n").unwrap();
    }
    assert_eq!(pairs.len(), 1120, "pairs in {FILE}");
    let changed: Vec<String> = (1..)
        .zip(file.lines().zip(now))
        .filter_map(|(number, (pinned, now))| match now {
            Ok(now) if now == pinned => None,
            Ok(now) => Some(format!("line {number}: {now}")),
            Err(why) => Some(format!("line {number}: {why}")),
        })
        .collect();
    assert!(
        changed.is_empty(),
        "{} of {} programs are not printed or launched as pinned (if that is meant, renew the hashes: UPDATE_PINNED=hashes), among them:\n{}",
        changed.len(),
        pairs.len(),
        changed[..changed.len().min(8)].join("\n")
    );
}
