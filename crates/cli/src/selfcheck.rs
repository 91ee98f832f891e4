//! `tilewright selfcheck`: random pairs verified, ten shapes tuned, clocks and limits read, all of it in one file to send. Where a
//! kernel takes the device down, a new process goes on.

use crate::against::classify;
use crate::args::{PlaceArgs, PlanArgs, SelfcheckArgs};
use crate::error::CliError;
use crate::output::{file_name, human_bytes, human_rate, human_time, line, writable, write_file};
use crate::problem::{Case, plain};
use crate::progress::{CaseNumber, Progress, roof_us};
use crate::session;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;
use tilewright::{
    Activation, Along, Backend, CacheState, Context, Conv, DeviceInfo, DeviceKind, Gemm, Layout, Problem, ProblemError,
    RecordsAt, Scalar,
};
use tilewright_bench::values::Budget as Given;
use tilewright_bench::{Ended, Log, Monitor, Pairs, hand_over, left, verify_pairs};
use tilewright_tune::search::{Budget, Cancel, Event, Options};

/// Version of the report's JSON.
const VERSION: u32 = 1;
/// Pairs that did not pass which the report holds in full.
const MOST_FAILURES: usize = 20;

/// What is known so far: what a process leaves to the next.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct State {
    pairs: Pairs,
    /// The first pairs that did not pass.
    failures: Vec<Value>,
    /// All pairs are judged.
    judged: bool,
    /// One object for each shape that is done with.
    tuned: Vec<Value>,
    clocks_before: Option<Value>,
    seconds: f64,
}

/// Runs the whole check and writes the report, also of what failed.
pub fn run(args: &SelfcheckArgs, quiet: bool) -> Result<(), CliError> {
    let start = Instant::now();
    let mut state: State = left(args.go_on.as_deref()).map_err(classify)?;
    let before = state.seconds;
    // Recorded plans are nobody's business here, and nothing is recorded.
    let place = PlaceArgs { device: args.device.clone(), records: None };
    let plan = PlanArgs { plan: None, workspace: None, atomics: false, ieee: false };
    let context = session::open_with(&place, &plan, RecordsAt::Memory, CacheState::Cold)?;
    let info = context.info().clone();
    let path = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("selfcheck-{}.md", file_name(&info.name))));
    writable(&path).map_err(|e| CliError::usage(format!("--out {e}")))?;
    if !state.judged {
        if state.clocks_before.is_none() {
            line(&format!("selfcheck of {}: {}, {}", info.id, info.name, info.fingerprint))?;
            state.clocks_before = Some(clocks(&info));
        }
        let ended = pairs(args, &context, &mut state, quiet)?;
        state.judged = ended == Ended::Done;
        if state.judged {
            line(&format!("{} of {} pairs verified: {}", state.pairs.done(), args.pairs, state.pairs.summary()))?;
        }
    }
    let shapes = shapes(&info).map_err(CliError::failed)?;
    let shapes = &shapes[..args.shapes.min(shapes.len())];
    while state.judged && state.tuned.len() < shapes.len() {
        let nth = state.tuned.len();
        let number = CaseNumber { nth: nth + 1, of: shapes.len() };
        let tuned = tune(args, &context, &shapes[nth], number, quiet);
        line(&row(&tuned))?;
        state.tuned.push(tuned);
        if is_lost(&context) {
            break;
        }
    }
    state.seconds = before + start.elapsed().as_secs_f64();
    if !state.judged || (is_lost(&context) && state.tuned.len() < shapes.len()) {
        return Err(classify(hand_over(&state)));
    }
    let passed = state.pairs.verdict(args.seed).is_ok() || args.pairs == 0;
    let tuned = state.tuned.iter().filter(|t| t["verified"] == true).count();
    write_file(&path, &report(args, &info, &state, passed && tuned == shapes.len()))?;
    line(&format!("written: {}", path.display()))?;
    if let Some(log) = &args.log {
        Log::new(&info, &state.pairs, "all".into(), args.seed).write(log).map_err(classify)?;
    }
    match (passed, shapes.len() - tuned) {
        (true, 0) => Ok(()),
        (false, _) => Err(CliError::Told("pairs did not pass".into())),
        (true, missing) => Err(CliError::Told(format!("{missing} shapes have no verified kernel"))),
    }
}

/// The device cannot be used any more in this process.
fn is_lost(context: &Context) -> bool {
    context.sync().is_err_and(|e| matches!(&e, tilewright::Error::Device(d) if d.is_fatal()))
}

/// Verifies random pairs of problem and plan, from where an earlier process stopped.
fn pairs(args: &SelfcheckArgs, context: &Context, state: &mut State, quiet: bool) -> Result<Ended, CliError> {
    let shown = !quiet && std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(args.pairs), target);
    let style = ProgressStyle::with_template("[{bar:8}] {elapsed} {pos}/{len} pairs: {wide_msg}");
    bar.set_style(style.map_or_else(|_| ProgressStyle::default_bar(), |s| s.progress_chars("=> ")));
    bar.set_position(state.pairs.done());
    let failures = &mut state.failures;
    let ended = verify_pairs(context.device(), &mut state.pairs, args.seed, args.pairs, &mut |one, all| {
        bar.set_position(all.done());
        bar.set_message(all.summary());
        if !one.passed() && failures.len() < MOST_FAILURES {
            failures.push(json!(one));
            bar.println(format!("{}: {} {}: {}", one.outcome, one.problem, one.plan, one.reason.as_deref().unwrap_or_default()));
        }
        Ok(())
    });
    bar.finish_and_clear();
    ended.map_err(classify)
}

/// Tunes one shape; an object that says how it went.
fn tune(args: &SelfcheckArgs, context: &Context, case: &Case, number: CaseNumber, quiet: bool) -> Value {
    let budget = match args.budget {
        Given::Trials(trials) => Budget::trials(trials),
        Given::Time(time) => Budget::seconds(time.as_secs_f64()),
    };
    let progress = Progress::new(case, number, context.info(), Some(&budget), !quiet);
    let options = Options { budget, seed: args.seed, ..Options::default() };
    let outcome = context
        .operation(case.problem.clone())
        .and_then(|operation| operation.tune_with(&options, &Cancel::default(), &mut |event: &Event| progress.hear(event)));
    progress.finish();
    let (problem, title) = (case.problem.key(), &case.title);
    match outcome {
        Err(e) => json!({ "problem": problem, "title": title, "verified": false, "error": e.to_string() }),
        Ok(o) => json!({
            "problem": problem,
            "title": title,
            "plan": o.plan.to_string(),
            "time_us": o.time_us,
            "time_kind": o.time_kind.name(),
            "rate": human_rate(case.problem.flop(), o.time_us),
            "share_of_roof": roof_us(&case.problem, context.info()) / o.time_us,
            "verified": o.verified,
            "max_error": o.max_error,
            "tally": o.tally,
            "seconds": o.seconds,
            "ended": o.ended,
        }),
    }
}

/// A shape's object in a line.
fn row(tuned: &Value) -> String {
    let title = tuned["title"].as_str().unwrap_or_default();
    match tuned["error"].as_str() {
        Some(error) => format!("{title}: {}", crate::output::one_line(error)),
        None => format!(
            "{title}: {} ({}), {}, {:.0} % of roof{}",
            human_time(tuned["time_us"].as_f64().unwrap_or_default()),
            tuned["time_kind"].as_str().unwrap_or_default(),
            tuned["rate"].as_str().unwrap_or_default(),
            100.0 * tuned["share_of_roof"].as_f64().unwrap_or_default(),
            if tuned["verified"] == true { "" } else { ", NOT VERIFIED" },
        ),
    }
}

/// Clocks, temperature and power now, where the vendor's library tells: null elsewhere.
fn clocks(info: &DeviceInfo) -> Value {
    match (info.backend, info.id.split_once(':').and_then(|(_, n)| n.parse().ok())) {
        (Backend::Cuda, Some(number)) => json!(Monitor::open(number).map(|monitor| monitor.read())),
        (Backend::Hip, _) => amd_clocks(),
        _ => Value::Null,
    }
}

/// Levels of the clocks of every AMD GPU in the words of its kernel driver, the present one with a star. Null where the driver
/// names none.
fn amd_clocks() -> Value {
    let cards = std::fs::read_dir("/sys/class/drm").into_iter().flatten().flatten();
    let tell = |card: std::fs::DirEntry| {
        let read = |file: &str| std::fs::read_to_string(card.path().join("device").join(file)).ok();
        let clocks = json!({ "sclk": read("pp_dpm_sclk")?, "mclk": read("pp_dpm_mclk") });
        Some((card.file_name().to_string_lossy().into_owned(), clocks))
    };
    let cards: serde_json::Map<String, Value> = cards.filter_map(tell).collect();
    if cards.is_empty() { Value::Null } else { Value::Object(cards) }
}

/// The shapes that are tuned: products and convolutions of each type, large, small, narrow and batched. Processors and the emulator
/// get them smaller.
fn shapes(info: &DeviceInfo) -> Result<Vec<Case>, ProblemError> {
    use Scalar::{BF16, F16, F32, F64};
    let s = if matches!(info.kind, DeviceKind::Gpu | DeviceKind::Accelerator) { 1 } else { 8 };
    let image = |channels: u64, dtype| {
        Conv::new(dtype, 64 / s, channels, channels, &[56 / (s / 4).max(1), 56], &[3, 3]).pad(&[1, 1], &[1, 1])
    };
    let wide = if info.target.features.f64 { F64 } else { F32 };
    let products = [
        Gemm::new(F32, 4096 / s, 4096 / s, 4096 / s),
        Gemm::new(F32, 1024 / s, 1024 / s, 1024 / s).trans(false, true),
        Gemm::new(F16, 4096 / s, 4096 / s, 4096 / s).trans(false, true),
        Gemm::new(BF16, 4096 / s, 4096 / s, 4096 / s),
        Gemm::new(BF16, 16, 8192 / s, 8192 / s),
        Gemm::new(F32, 256 / s, 256 / s, 256 / s).batch(64),
        Gemm::new(F16, 2048 / s, 8192 / s, 2048 / s).out_dtype(F32).bias(Along::N).activation(Activation::GeluTanh).residual(),
        Gemm::new(wide, 1024 / s, 1024 / s, 1024 / s).trans(true, false),
    ];
    let convolutions = [image(64 / s * 2, F32), image(128 / s, F16).layout(Layout::Nhwc).bias().activation(Activation::Relu)];
    let products = products.into_iter().map(|p| Ok(plain(Problem::Gemm(p.build()?))));
    products.chain(convolutions.into_iter().map(|c| Ok(plain(Problem::Conv(c.build()?))))).collect()
}

/// The report: for people, then the same and more for programs.
fn report(args: &SelfcheckArgs, info: &DeviceInfo, state: &State, passed: bool) -> String {
    let (t, r) = (&info.target, &info.target.rates);
    let mut out = format!("# tilewright selfcheck of {}\n\n", info.name);
    let mut add = |text: String| out.push_str(&(text + "\n"));
    add(format!("{}\n", if passed { "**Passed.**" } else { "**Failed**: see below." }));
    add(format!("- tilewright {}, {} on {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH));
    add(format!("- device {}, {}, driver and compiler: {}", info.id, t.arch, info.fingerprint));
    add(format!("- {} units at {:.2} GHz, memory {:.0} GB/s, by its description", t.units, r.clock_ghz, r.dram_gbs));
    let l = &t.limits;
    add(format!(
        "- limits: {} threads and {} of shared memory per work-group, {} registers per thread, wave {}, {} of memory",
        l.max_threads,
        human_bytes(l.shared_per_group.into()),
        l.registers_per_thread,
        t.wave,
        human_bytes(info.memory_bytes)
    ));
    add(format!("- {:.0} s in all, seed {}", state.seconds, args.seed));
    add(format!("\n## Random pairs verified: {} of {}: {}\n", state.pairs.done(), args.pairs, state.pairs.summary()));
    for failure in &state.failures {
        let word = |key: &str| failure[key].as_str().unwrap_or_default().replace('\n', " ");
        add(format!("- {}: `--problem {} --plan {}`: {}", word("outcome"), word("problem"), word("plan"), word("reason")));
    }
    add(format!("\n## Shapes tuned: {}\n", state.tuned.len()));
    state.tuned.iter().for_each(|tuned| add(format!("- {}", row(tuned))));
    let value = json!({
        "selfcheck": VERSION,
        "tilewright": env!("CARGO_PKG_VERSION"),
        "system": format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        "passed": passed,
        "device": info,
        "clocks_before": state.clocks_before,
        "clocks_after": clocks(info),
        "seed": args.seed,
        "pairs": state.pairs,
        "failures": state.failures,
        "tuned": state.tuned,
        "seconds": state.seconds,
    });
    add(format!("\n## For programs\n\n```json\n{}\n```", serde_json::to_string_pretty(&value).unwrap_or_default()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_tells_what_failed_and_holds_it_for_programs() {
        let context = Context::open("emu").expect("the emulator");
        let args = SelfcheckArgs {
            device: None,
            pairs: 3,
            shapes: 1,
            budget: Given::Trials(1),
            seed: 1,
            out: None,
            log: None,
            go_on: None,
        };
        let failure = json!({ "outcome": "wrong", "problem": "tC0", "plan": "A_MIC1", "reason": "off by\none" });
        let tuned = json!({ "title": "gemm 8x8x8", "verified": false, "error": "no room" });
        let state = State { failures: vec![failure.clone()], tuned: vec![tuned], judged: true, ..State::default() };
        let text = report(&args, context.info(), &state, false);
        for part in ["**Failed**", "- wrong: `--problem tC0 --plan A_MIC1`: off by one", "- gemm 8x8x8: no room"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let json = text.split_once("```json\n").and_then(|(_, rest)| rest.split_once("\n```")).expect("JSON").0;
        let facts: Value = serde_json::from_str(json).expect("it parses");
        assert_eq!((&facts["passed"], &facts["failures"][0]), (&false.into(), &failure));
        // The state for the next process is read back.
        let state: State = serde_json::from_value(json!(state)).expect("a state");
        assert!(state.judged && state.failures.len() == 1);
    }

    #[test]
    fn shapes_are_problems_everywhere() {
        for device in ["emu", "emu:gfx942", "emu:sm_75"] {
            let context = Context::open(device).expect("the emulator");
            let mut info = context.info().clone();
            assert_eq!(shapes(&info).expect("shapes").len(), 10);
            info.kind = DeviceKind::Gpu;
            let large = shapes(&info).expect("shapes");
            assert!(large.iter().all(|case| case.problem.flop() > 1e8));
        }
    }
}
