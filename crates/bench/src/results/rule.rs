//! The rule by which measured rows count in a published set.

use crate::record::{Record, Side};

/// One problem of a set after the rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Readable name of the case.
    pub case: String,
    /// Model of the card, without its number in the machine.
    pub device: String,
    /// Day of the last run.
    pub day: String,
    /// Samples of the last run are means of several runs, as its sides were wide.
    pub averaged: bool,
    /// Whether the row counts.
    pub verdict: Verdict,
}

/// Whether a row counts in means.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The vendor's time over ours: above 1, ours is faster.
    Counts(f64),
    /// A side scatters too much; its name.
    Wide(String),
    /// No run of the row is by the build that measured most of the set.
    Joined,
    /// A side is wrong or failed: its name and which of the two.
    Invalid(String),
}

/// The rows of one set, one for each problem, in order of appearance.
///
/// - Our time is that of the last run. The first side of a record is ours.
/// - The vendor's time is the smallest right one of all runs and all `baselines` on the same card model, with the same driver, library
///   version, mode and cache state as the last run.
/// - A set is one run. A row without any run by the build of most rows does not count.
/// - A row with a wide side does not count, nor does a row with a wrong or failed side.
pub fn rows(records: &[&Record], baselines: &[&str]) -> Vec<Row> {
    let mut problems: Vec<&str> = Vec::new();
    for record in records {
        if !problems.contains(&record.problem.as_str()) {
            problems.push(&record.problem);
        }
    }
    let build = build(records);
    let mut rows = Vec::new();
    for problem in problems {
        let mut runs: Vec<&Record> = records.iter().filter(|r| r.problem == problem).copied().collect();
        let joined = runs.iter().all(|run| run.environment.source != build);
        // Newest first. The sort is stable: of runs at the same second the later line is the newer one.
        runs.reverse();
        runs.sort_by(|x, y| y.environment.date.cmp(&x.environment.date));
        let Some(&last) = runs.first() else { continue };
        runs.retain(|run| origin(run) == origin(last));
        rows.push(Row {
            case: last.case.clone(),
            device: card(last).to_string(),
            day: last.environment.date.chars().take(10).collect(),
            averaged: last.sides.iter().filter_map(|side| side.time).any(|time| time.runs > 1),
            verdict: if joined { Verdict::Joined } else { verdict(&runs, baselines) },
        });
    }
    rows
}

/// The build that measured most records.
fn build<'a>(records: &[&'a Record]) -> &'a str {
    let count = |build: &str| records.iter().filter(|record| record.environment.source == build).count();
    records.iter().map(|record| record.environment.source.as_str()).max_by_key(|build| count(build)).unwrap_or_default()
}

/// Judges runs of one problem with one origin, the newest first.
fn verdict(runs: &[&Record], baselines: &[&str]) -> Verdict {
    let Some(ours) = runs.first().and_then(|last| last.sides.first()) else { return Verdict::Invalid("no side".into()) };
    let Some(time) = ours.valid_us() else { return Verdict::Invalid(fault(ours)) };
    let mut fastest: Option<(f64, &Side)> = None;
    let mut faults: Vec<String> = Vec::new();
    for name in baselines {
        let sides: Vec<&Side> = runs.iter().flat_map(|run| run.sides.iter().filter(|side| side.name == *name)).collect();
        let version = sides.first().map(|side| &side.version);
        for side in sides.iter().filter(|side| Some(&side.version) == version) {
            match side.valid_us() {
                Some(us) if fastest.is_none_or(|(least, _)| us < least) => fastest = Some((us, *side)),
                Some(_) => {}
                None => faults.push(fault(side)),
            }
        }
    }
    let Some((theirs, side)) = fastest else {
        return Verdict::Invalid(faults.into_iter().next().unwrap_or_else(|| "no vendor side".into()));
    };
    match [ours, side].into_iter().find(|side| is_wide(side)) {
        Some(wide) => Verdict::Wide(wide.name.clone()),
        None => Verdict::Counts(theirs / time),
    }
}

/// The times of a side scatter too much, by its mark or by its percentiles.
fn is_wide(side: &Side) -> bool {
    side.wide || side.time.is_some_and(|time| time.is_wide())
}

/// The name of a side without a valid time, and why it has none.
fn fault(side: &Side) -> String {
    format!("{} {}", side.name, if side.time.is_some() { "wrong" } else { "failed" })
}

/// The card model: `NVIDIA H200` of `cuda:1 (NVIDIA H200)`.
fn card(record: &Record) -> &str {
    let device = &record.environment.device;
    device.split_once(" (").and_then(|(_, name)| name.strip_suffix(')')).unwrap_or(device)
}

/// What two runs must share so that their vendor times may be compared, besides the library's version.
fn origin(record: &Record) -> (&str, &str, &str, &str) {
    // The compiler's version does not matter to the vendor's library.
    let fingerprint = record.environment.fingerprint.as_str();
    let driver = fingerprint.split(" NVRTC").next().unwrap_or(fingerprint);
    (card(record), driver, record.math.name(), record.cache.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;
    use crate::stats::Summary;
    use tilewright_device::CacheState;

    /// A run of one problem: day, our time, the vendor's.
    fn run(day: u32, ours: f64, theirs: f64) -> Record {
        let mut run = record("x", "case", Some(1.0));
        run.environment.date = format!("2026-11-{day:02}T00:00:00Z");
        run.environment.device = "cuda:0 (NVIDIA H200)".into();
        run.environment.fingerprint = "driver 1 CUDA 13.0 NVRTC 13.0".into();
        for (side, us) in run.sides.iter_mut().zip([ours, theirs]) {
            (side.time, side.version) = (Summary::of(&[us]), "13.1".into());
        }
        run
    }

    fn judged(runs: &[Record]) -> Row {
        let mut rows = rows(&runs.iter().collect::<Vec<_>>(), &["cublas", "cublaslt"]);
        assert_eq!(rows.len(), 1);
        rows.remove(0)
    }

    fn spread(side: &mut Side, median: f64, spread: f64) {
        side.time = Summary::of(&[median]).map(|time| Summary { p90_us: median + spread, ..time });
    }

    #[test]
    fn a_repeated_row_keeps_the_smallest_vendor_time_and_our_last() {
        // Our fastest run is not the last one; the vendor's fastest run is the first.
        let row = judged(&[run(1, 10.0, 8.0), run(3, 16.0, 12.0), run(2, 4.0, 9.0)]);
        assert_eq!(row.verdict, Verdict::Counts(0.5));
        assert_eq!((row.device.as_str(), row.day.as_str()), ("NVIDIA H200", "2026-11-03"));
        // Of one second, the later line is the last run.
        assert_eq!(judged(&[run(1, 10.0, 8.0), run(1, 16.0, 12.0)]).verdict, Verdict::Counts(0.5));
    }

    #[test]
    fn rows_of_averaged_samples_are_marked() {
        let mut averaged = run(2, 10.0, 9.0);
        assert!(!judged(&[averaged.clone()]).averaged);
        averaged.sides[1].time = averaged.sides[1].time.map(|time| Summary { runs: 4, ..time });
        assert!(judged(&[run(1, 10.0, 9.0), averaged.clone()]).averaged);
        assert!(!judged(&[averaged, run(3, 10.0, 9.0)]).averaged);
    }

    #[test]
    fn vendor_times_of_other_conditions_do_not_count() {
        let counts = |change: &dyn Fn(&mut Record)| {
            let mut old = run(1, 10.0, 5.0);
            change(&mut old);
            judged(&[old, run(2, 10.0, 10.0)]).verdict
        };
        assert_eq!(counts(&|_| {}), Verdict::Counts(0.5));
        assert_eq!(counts(&|r| r.environment.device = "cuda:3 (NVIDIA H200)".into()), Verdict::Counts(0.5));
        assert_eq!(counts(&|r| r.environment.fingerprint = "driver 1 CUDA 13.0 NVRTC 12.9".into()), Verdict::Counts(0.5));
        assert_eq!(counts(&|r| r.environment.device = "cuda:0 (NVIDIA H100)".into()), Verdict::Counts(1.0));
        assert_eq!(counts(&|r| r.environment.fingerprint = "driver 2 CUDA 13.0 NVRTC 13.0".into()), Verdict::Counts(1.0));
        assert_eq!(counts(&|r| r.sides[1].version = "13.0".into()), Verdict::Counts(1.0));
        assert_eq!(counts(&|r| r.math = tilewright_problem::Math::Tf32), Verdict::Counts(1.0));
        assert_eq!(counts(&|r| r.cache = CacheState::Warm), Verdict::Counts(1.0));
        assert_eq!(counts(&|r| r.sides[1].correct = Some(false)), Verdict::Counts(1.0));
        assert_eq!(counts(&|r| r.sides[1].name = "other".into()), Verdict::Counts(1.0));
    }

    #[test]
    fn rows_joined_from_another_run_are_left_out() {
        let of = |problem: &str, day: u32, build: &str| {
            let mut one = run(day, 10.0, 20.0);
            (one.problem, one.environment.source) = (problem.into(), build.into());
            one
        };
        // Row a was repeated by a later build; row c was measured by another build alone.
        let runs = [of("a", 1, "1"), of("a", 2, "2"), of("b", 1, "1"), of("c", 2, "2"), of("d", 1, "1")];
        let verdicts = rows(&runs.iter().collect::<Vec<_>>(), &["cublas"]).into_iter().map(|row| row.verdict);
        let counts = || Verdict::Counts(2.0);
        assert_eq!(verdicts.collect::<Vec<_>>(), [counts(), counts(), Verdict::Joined, counts()]);
    }

    #[test]
    fn the_fastest_right_baseline_counts() {
        let mut both = run(1, 10.0, 20.0);
        let mut second = both.sides[1].clone();
        (second.name, second.time) = ("cublaslt".into(), Summary::of(&[15.0]));
        both.sides.push(second);
        assert_eq!(judged(&[both.clone()]).verdict, Verdict::Counts(1.5));
        // A baseline that refuses the problem leaves the other.
        (both.sides[2].time, both.sides[2].correct) = (None, None);
        assert_eq!(judged(&[both.clone()]).verdict, Verdict::Counts(2.0));
        assert_eq!(rows(&[&both], &["cublaslt"])[0].verdict, Verdict::Invalid("cublaslt failed".into()));
    }

    #[test]
    fn wide_rows_are_left_out() {
        for side in [0, 1] {
            let wide = |median: f64, by: f64| {
                let mut one = run(1, 100.0, 100.0);
                for one in &mut one.sides {
                    one.time = Summary::of(&[median]);
                }
                spread(&mut one.sides[side], median, by);
                let name = one.sides[side].name.clone();
                judged(&[one]).verdict == Verdict::Wide(name)
            };
            assert!(wide(100.0, 10.1) && !wide(100.0, 9.9));
            // Below 10 us the limit is 1 us.
            assert!(wide(5.0, 1.1) && !wide(5.0, 0.9));
            let mut marked = run(1, 10.0, 10.0);
            marked.sides[side].wide = true;
            assert!(matches!(judged(&[marked]).verdict, Verdict::Wide(_)));
        }
        // A steady repeat does not replace a faster wide time of the vendor.
        let mut wide = run(1, 10.0, 8.0);
        wide.sides[1].wide = true;
        assert_eq!(judged(&[wide, run(2, 10.0, 9.0)]).verdict, Verdict::Wide("cublas".into()));
    }

    #[test]
    fn wrong_and_failed_rows_are_left_out_and_named() {
        let of = |side: usize, failed: bool| {
            let mut one = run(1, 10.0, 10.0);
            one.sides[side].correct = Some(false);
            if failed {
                one.sides[side].time = None;
            }
            // Our earlier right run does not help: ours is the last run.
            let runs = [run(1, 10.0, 10.0), one];
            judged(&runs[side..]).verdict
        };
        assert_eq!(of(0, false), Verdict::Invalid("tilewright wrong".into()));
        assert_eq!(of(0, true), Verdict::Invalid("tilewright failed".into()));
        assert_eq!(of(1, false), Verdict::Invalid("cublas wrong".into()));
        assert_eq!(of(1, true), Verdict::Invalid("cublas failed".into()));
        let alone = record("x", "case", Some(1.0));
        assert_eq!(rows(&[&alone], &["cudnn"])[0].verdict, Verdict::Invalid("no vendor side".into()));
    }
}
