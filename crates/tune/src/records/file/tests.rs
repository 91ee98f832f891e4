//! Records: round trips, refusals, recovery and nearness.

use super::*;
use crate::key::tests::gemm;
use crate::records::rows::LAST;
use crate::records::{Bad, Exported, Listing, Look, MODEL, Record, State, TIMING, TimeKind, Unread};
use std::io::Write as _;
use tilewright_check::verify::Depth;
use tilewright_ir::Scalar;

pub(in crate::records) const GENERATOR: &str = "0.1.0";

pub(in crate::records) fn device() -> DeviceKey {
    DeviceKey { name: "Test GPU".into(), fingerprint: "driver 1".into() }
}

pub(in crate::records) fn timed(plan: &str, us: f64, at: i64) -> Trial {
    Trial { verified: Some(Depth::Thorough), max_error: Some(1e-7), at, ..Trial::timed(plan, us, TimeKind::Measured) }
}

pub(in crate::records) fn filled(records: &Records) {
    let key = gemm(64, 64, 64, Scalar::F32);
    records.add(&key, "gemm 64", &device(), GENERATOR, &timed("slow", 9.0, 1)).unwrap();
    records.add(&key, "gemm 64", &device(), GENERATOR, &timed("fast", 5.0, 2)).unwrap();
    let wrong = Trial { at: 3, max_error: Some(0.5), ..Trial::unmeasured("wrong", State::Wrong, "error 0.5") };
    records.add(&key, "gemm 64", &device(), GENERATOR, &wrong).unwrap();
    let unverified = Trial { at: 4, ..Trial::timed("unverified", 1.0, TimeKind::Measured) };
    records.add(&key, "gemm 64", &device(), GENERATOR, &unverified).unwrap();
    let big = gemm(4096, 4096, 4096, Scalar::F32);
    records.add(&big, "gemm 4096", &device(), GENERATOR, &timed("big", 2000.0, 5)).unwrap();
}

/// What SQLite does to answer a query.
pub(in crate::records) fn steps(records: &Records, sql: &str) -> Vec<String> {
    let c = records.lock();
    let mut statement = c.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let unbound = vec![rusqlite::types::Null; statement.parameter_count()];
    let steps = statement.query_map(rusqlite::params_from_iter(unbound), |r| r.get("detail")).unwrap();
    steps.collect::<rusqlite::Result<_>>().unwrap()
}

#[test]
fn the_best_is_the_fastest_verified_and_survives_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/records.db");
    filled(&Records::open(&path).unwrap());
    let records = Records::open(&path).unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, "fast");
    assert_eq!(records.trials(&key, &device(), GENERATOR).unwrap().len(), 4);
    assert_eq!(records.best(&key, &device(), "0.2.0").unwrap(), None);
    let newer = DeviceKey { fingerprint: "driver 2".into(), ..device() };
    assert_eq!(records.best(&key, &newer, GENERATOR).unwrap(), None);
    assert_eq!(records.best(&ProblemKey { deterministic: false, ..key }, &device(), GENERATOR).unwrap(), None);
}

#[test]
fn a_file_that_may_not_be_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("100% sure?#1.db");
    filled(&Records::open(&path).unwrap());
    let records = Records::of(path.clone(), schema::read_only(&path).unwrap());
    assert_eq!(records.list(&Filter::default()).unwrap().len(), 5);
    let key = gemm(64, 64, 64, Scalar::F32);
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, "fast");
    let refused = records.add(&key, "gemm 64", &device(), GENERATOR, &timed("more", 1.0, 9)).unwrap_err().to_string();
    assert!(refused.contains("readonly") && refused.contains("may be written"), "{refused}");
}

#[test]
fn a_plan_found_wrong_later_is_not_the_best() {
    let records = Records::in_memory().unwrap();
    filled(&records);
    let key = gemm(64, 64, 64, Scalar::F32);
    records.add(&key, "", &device(), GENERATOR, &Trial::unmeasured("fast", State::Wrong, "a race")).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, "slow");
}

#[test]
fn a_plan_found_wrong_before_is_not_the_best_either() {
    let records = Records::in_memory().unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    records.add(&key, "", &device(), GENERATOR, &Trial::unmeasured("liar", State::Wrong, "a race")).unwrap();
    records.add(&key, "", &device(), GENERATOR, &timed("liar", 1.0, 1)).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap(), None);
}

#[test]
fn a_quick_look_makes_no_best_and_a_thorough_one_does() {
    let records = Records::in_memory().unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    let quick = Trial { verified: Some(Depth::Quick), ..timed("plan", 1.0, 7) };
    records.add(&key, "", &device(), GENERATOR, &quick).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap(), None);
    let exported = |records: &Records| {
        let mut text = Vec::new();
        records.export(&Filter::default(), &mut text).unwrap();
        with_plans(text)
    };
    let other = Records::in_memory().unwrap();
    other.import(&mut exported(&records).as_bytes(), "quick").unwrap();
    records.record_depth(&key, "", &device(), GENERATOR, &timed("plan", 2.0, 9)).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap(), timed("plan", 1.0, 7));
    assert_eq!(records.trials(&key, &device(), GENERATOR).unwrap().len(), 1);
    // The trial is the same one, and nobody verified it there.
    assert_eq!(other.import(&mut exported(&records).as_bytes(), "thorough").unwrap(), 0);
    assert_eq!(other.best(&key, &device(), GENERATOR).unwrap(), None);
    records.record_depth(&key, "", &device(), GENERATOR, &timed("unknown", 0.5, 9)).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, "unknown");
}

#[test]
fn what_ends_twice_within_a_millisecond_is_recorded_twice() {
    let records = Records::in_memory().unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    records.add(&key, "", &device(), GENERATOR, &timed("plan", 1.0, 7)).unwrap();
    let wrong = Trial { at: 7, ..Trial::unmeasured("plan", State::Wrong, "wrong with beta") };
    records.add(&key, "", &device(), GENERATOR, &wrong).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap(), None);
    assert_eq!(records.trials(&key, &device(), GENERATOR).unwrap().len(), 2);
}

#[test]
fn lines_of_format_1_are_read() {
    let records = Records::in_memory().unwrap();
    filled(&records);
    let mut text = Vec::new();
    records.export(&Filter::default(), &mut text).unwrap();
    let new = with_plans(text);
    let old = new
        .replace("\"tilewright\":2", "\"tilewright\":1")
        .replace("\"thorough\"", "true")
        .replace("\"verified\":null", "\"verified\":false");
    assert_ne!(old, new);
    let target = Records::in_memory().unwrap();
    assert_eq!(target.import(&mut old.as_bytes(), "old.jsonl").unwrap(), 5);
    let depths: Vec<_> = target.list(&Filter::default()).unwrap().iter().map(|r| r.trial.verified).collect();
    assert_eq!(depths, [Some(Depth::Quick), Some(Depth::Quick), None, None, Some(Depth::Quick)]);
}

#[test]
fn measured_wins_over_modelled() {
    let records = Records::in_memory().unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    let modelled = Trial { verified: Some(Depth::Thorough), ..Trial::timed("dream", 0.1, TimeKind::Modelled) };
    records.add(&key, "", &device(), GENERATOR, &modelled).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, "dream");
    records.add(&key, "", &device(), GENERATOR, &timed("real", 5.0, 1)).unwrap();
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, "real");
}

#[test]
fn nearest_orders_by_distance_and_device() {
    let records = Records::in_memory().unwrap();
    filled(&records);
    let other = DeviceKey { name: "Other GPU".into(), ..device() };
    records.add(&gemm(2048, 2048, 2048, Scalar::F32), "gemm 2048", &other, GENERATOR, &timed("foreign", 1.0, 9)).unwrap();
    let near = records.nearest(&gemm(2048, 2048, 2048, Scalar::F32), &device(), GENERATOR, 10).unwrap();
    let plans: Vec<&str> = near.iter().map(|n| n.plan.as_str()).collect();
    assert_eq!(plans, ["foreign", "big", "fast"]);
    assert_eq!(near[0].distance, 2.0);
    assert_eq!(records.nearest(&gemm(64, 64, 64, Scalar::F32), &device(), GENERATOR, 1).unwrap()[0].plan, "fast");
}

/// What a search asks for at its start walks an index, however many trials and problems there are.
#[test]
fn lookups_of_a_search_walk_an_index() {
    let records = Records::in_memory().unwrap();
    filled(&records);
    let explained = |sql: &str| steps(&records, sql);
    let fixed = [CANDIDATES, shapes::UP, shapes::DOWN, shapes::PLANS, LAST].map(String::from);
    for sql in [own_trials(), best_trials()].into_iter().chain(fixed) {
        let steps = explained(&sql);
        assert!(steps.iter().any(|step| step.starts_with("SEARCH")), "{sql}: {steps:?}");
        assert!(!steps.iter().any(|step| step.starts_with("SCAN")), "{sql}: {steps:?}");
    }
    // Of a plan only its own rows.
    let plan = "plan_hash=?";
    assert!(
        explained(LAST).iter().any(|step| step.contains(plan))
            && explained(&best_trials()).iter().any(|step| step.contains(plan))
    );
    for sql in [shapes::UP, shapes::DOWN] {
        assert!(explained(sql).iter().all(|step| !step.contains("TEMP B-TREE")), "{sql}");
    }
}

/// The index gives the plans that a look at all problems gives.
#[test]
fn the_nearest_by_the_index_are_the_nearest_of_all() {
    use rand::{Rng, SeedableRng};
    let records = Records::in_memory().unwrap();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let mut draw = |types: usize| {
        let mut extent = || (1u64 << rng.random_range(3..14)) | (rng.random_range(0..4u64) * 8);
        let (m, n, k) = (extent(), extent(), extent());
        ProblemKey { g: 1 << rng.random_range(0..4u32), ..gemm(m, n, k, [Scalar::F32, Scalar::F16][rng.random_range(0..types)]) }
    };
    let mut seen = std::collections::HashSet::new();
    let all: Vec<ProblemKey> = (0..400).map(|_| draw(2)).filter(|key| seen.insert(key.text())).collect();
    for (at, key) in all.iter().enumerate() {
        let there = DeviceKey { name: if at % 5 == 0 { "Other GPU".into() } else { device().name }, ..device() };
        let mut trial = timed(&format!("plan{at}"), 1.0, at as i64);
        // Some were never found right.
        trial.verified = (at % 7 != 0).then_some(Depth::Quick);
        records.add(key, &format!("gemm {at}"), &there, GENERATOR, &trial).unwrap();
    }
    for _ in 0..40 {
        let wanted = draw(2);
        let mut expected: Vec<f64> = all
            .iter()
            .enumerate()
            .filter(|(at, _)| at % 7 != 0)
            .filter_map(|(at, key)| Some(crate::key::distance(&wanted, key)? + if at % 5 == 0 { 2.0 } else { 0.0 }))
            .collect();
        expected.sort_by(f64::total_cmp);
        let near = records.nearest(&wanted, &device(), GENERATOR, 8).unwrap();
        let found: Vec<f64> = near.iter().map(|near| near.distance).collect();
        assert_eq!(found, expected[..8]);
    }
    assert!(records.nearest(&draw(1), &device(), GENERATOR, 0).unwrap().is_empty());
}

/// Lines with plans in place of the words that stand for them.
fn with_plans(text: Vec<u8>) -> String {
    use tilewright_gen::plan::Plan;
    let mut text = String::from_utf8(text).unwrap();
    for (number, word) in ["slow", "fast", "wrong", "unverified", "big", "plan"].into_iter().enumerate() {
        let plan = Plan::default().but(|keys| keys.k_tile = 8 << number);
        text = text.replace(&format!("\"plan\":\"{word}\""), &format!("\"plan\":\"{plan}\""));
    }
    text
}

#[test]
fn lines_round_trip_and_import_is_idempotent() {
    let (from, to) = (Records::in_memory().unwrap(), Records::in_memory().unwrap());
    filled(&from);
    let mut text = Vec::new();
    assert_eq!(from.export(&Filter::default(), &mut text).unwrap(), Exported { written: 5, unread: Vec::new() });
    let text = with_plans(text);
    assert_eq!(to.import(&mut text.as_bytes(), "lines").unwrap(), 5);
    assert_eq!(to.import(&mut text.as_bytes(), "lines").unwrap(), 0);
    // A second export gives the same lines: the records lost their claims at the first import.
    let exported = |records: &Records| {
        let mut lines = Vec::new();
        records.export(&Filter::default(), &mut lines).unwrap();
        String::from_utf8(lines).unwrap()
    };
    let third = Records::in_memory().unwrap();
    assert_eq!(third.merge(&to).unwrap().added, 5);
    assert_eq!(exported(&third), exported(&to));
    let best = Filter { problem: Some("64".into()), verified: Some(Depth::Quick), ..Filter::default() };
    assert_eq!(to.list(&best).unwrap().len(), 2);
}

#[test]
fn import_names_the_line_and_imports_nothing() {
    let records = Records::in_memory().unwrap();
    filled(&records);
    let mut text = Vec::new();
    records.export(&Filter::default(), &mut text).unwrap();
    let good = with_plans(text);
    let first = good.lines().next().unwrap();
    let plan = first.split("\"plan\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let bad = [
        ("{", "no JSON object"),
        ("[1]", "no JSON object"),
        ("{\"a\":1}", "`tilewright`"),
        (&first.replace("\"tilewright\":2", "\"tilewright\":7"), "format 7"),
        (&first.replace("\"state\":\"ok\"", "\"state\":\"fine\""), "fine"),
        (&first.replace("\"time_us\":9.0", "\"time_us\":-9.0"), "time_us -9"),
        (&first.replace("\"time_us\":9.0", "\"time_us\":null"), "stand together"),
        (&first.replace("\"state\":\"ok\"", "\"state\":\"wrong\""), "no time_us"),
        (&first.replace("\"verified\":\"thorough\"", "\"verified\":\"deep\""), "verified is none of"),
        (&first.replace("\"m\":64", "\"m\":-1"), "-1"),
        (&first.replace("\"time_us\":9.0", "\"time_us\":9.0,\"x\":1"), "x"),
        (&first.replace("\"time_us\":9.0", "\"time_us\":1e-300"), "time_us 1e-300 is not plausible"),
        (&first.replace("\"time_us\":9.0", "\"time_us\":1e300"), "not plausible"),
        (&first.replace(plan, "A_nonsense"), "plan A_nonsense: "),
    ];
    for (line, want) in bad {
        let target = Records::in_memory().unwrap();
        let text = format!("{first}\n\n{line}\n");
        let e = target.import(&mut text.as_bytes(), "my.jsonl").unwrap_err();
        let message = e.to_string();
        assert!(message.starts_with("my.jsonl, line 3: ") && message.contains(want), "{message}");
        assert!(message.ends_with("; nothing was imported") && target.list(&Filter::default()).unwrap().is_empty());
        let imported = target.import_with(&mut text.as_bytes(), "my.jsonl", Bad::Skip).unwrap();
        assert_eq!((imported.added, imported.skipped.len()), (1, 1));
        assert!(!imported.skipped[0].to_string().contains("nothing was imported"));
    }
}

/// The rows of a file that cannot be read stay in it, are counted, and keep nobody from the others.
#[test]
fn a_row_that_cannot_be_read_condemns_no_other() {
    let records = Records::in_memory().unwrap();
    filled(&records);
    records
        .lock()
        .execute_batch(
            "UPDATE problems SET key = replace(key, '\"m\":4096', '\"q\":4096') WHERE name = 'gemm 4096'; \
             UPDATE trials SET verified = 7 WHERE plan = 'fast'",
        )
        .unwrap();
    let all = Filter::default();
    let listing = records.listing(&all).unwrap();
    let plans: Vec<&str> = listing.records.iter().map(|r| r.trial.plan.as_str()).collect();
    assert_eq!(plans, ["slow", "wrong", "unverified"]);
    let reasons: Vec<&str> = listing.unread.iter().map(|u| u.reason.as_str()).collect();
    assert!(reasons[0].starts_with("7 is not a depth") && reasons[1].contains("unknown field `q`"), "{reasons:?}");
    let row: serde_json::Value = serde_json::from_str(&listing.unread[1].line).unwrap();
    assert_eq!((&row["plan"], &row["name"], &row["time_us"]), (&"big".into(), &"gemm 4096".into(), &2000.0.into()));
    let summary = Unread::summary(&listing.unread).unwrap();
    assert!(summary.starts_with("2 rows were not understood and are left as they are: first gemm 64: 7 is"), "{summary}");
    let one = Unread::summary(&listing.unread[1..]).unwrap();
    assert!(one.starts_with("1 row was not understood and is left as it is: gemm 4096: its problem key is malformed"), "{one}");
    // A filter names them as it names others.
    let big = Filter { problem: Some("4096".into()), ..all.clone() };
    assert_eq!(records.listing(&big).unwrap().unread, listing.unread[1..]);
    let mut lines = Vec::new();
    let exported = records.export(&all, &mut lines).unwrap();
    assert_eq!((exported.written, exported.unread.len()), (3, 2));
    // A search sees the others.
    let key = gemm(64, 64, 64, Scalar::F32);
    assert_eq!(records.trials(&key, &device(), GENERATOR).unwrap().len(), 3);
    assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, "slow");
    let to = Records::in_memory().unwrap();
    let merged = to.merge(&records).unwrap();
    // The words in place of plans are none that lines may hold.
    assert_eq!((merged.added, merged.skipped.len(), merged.unread.len()), (0, 3, 2));
    assert_eq!(records.remove(&all).unwrap(), 3);
    assert_eq!(records.listing(&all).unwrap(), Listing { records: Vec::new(), unread: listing.unread });
}

/// Nobody wins by what a file says of it.
#[test]
fn an_imported_row_is_a_candidate_and_no_more() {
    let from = Records::in_memory().unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    let plan = tilewright_gen::plan::Plan::default().to_string();
    let forged = timed(&plan, 0.01, 1);
    from.add(&key, "gemm 64", &device(), GENERATOR, &forged).unwrap();
    assert_eq!(from.best(&key, &device(), GENERATOR).unwrap(), Some(forged));
    let mut lines = Vec::new();
    from.export(&Filter::default(), &mut lines).unwrap();
    let (imported, merged) = (Records::in_memory().unwrap(), Records::in_memory().unwrap());
    assert_eq!(imported.import(&mut lines.as_slice(), "lines").unwrap(), 1);
    assert_eq!(merged.merge(&from).unwrap().added, 1);
    for records in [&imported, &merged] {
        assert_eq!(records.best(&key, &device(), GENERATOR).unwrap(), None);
        assert_eq!(records.trials(&key, &device(), GENERATOR).unwrap(), []);
        assert_eq!(records.candidates(&key, &device(), 8).unwrap(), [plan.as_str()]);
        assert!(records.list(&Filter::default()).unwrap().iter().all(Record::is_stale));
        assert_eq!(records.best_imported(&key, &device(), GENERATOR).unwrap().unwrap().plan, plan);
    }
    assert_eq!(from.best_imported(&key, &device(), GENERATOR).unwrap(), None);
    // Its own records come back as they are.
    assert_eq!(from.import(&mut lines.as_slice(), "lines").unwrap(), 0);
    assert_eq!(from.best(&key, &device(), GENERATOR).unwrap().unwrap().plan, plan);
    // A plan that was wrong elsewhere is not the best here.
    from.add(&key, "gemm 64", &device(), GENERATOR, &Trial::unmeasured(&plan, State::Wrong, "a race")).unwrap();
    imported.add(&key, "gemm 64", &device(), GENERATOR, &timed(&plan, 5.0, 2)).unwrap();
    assert!(imported.best(&key, &device(), GENERATOR).unwrap().is_some());
    imported.merge(&from).unwrap();
    assert_eq!(imported.best(&key, &device(), GENERATOR).unwrap(), None);
}

#[test]
fn foreign_and_damaged_files_are_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let refuse = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let e = Records::open(&path).unwrap_err();
        assert!(e.to_string().contains(name), "{e}");
        assert_eq!(std::fs::read(&path).unwrap(), content, "{name} was changed");
        e
    };
    assert!(matches!(refuse("notes.txt", b"dear diary"), RecordsError::Foreign { .. }));
    assert!(matches!(refuse("short.db", b"SQLite format 3\0"), RecordsError::Damaged { .. }));

    let other = folder.path().join("other.db");
    let c = Connection::open(&other).unwrap();
    c.execute_batch("CREATE TABLE t(x)").unwrap();
    drop(c);
    assert!(matches!(refuse("other2.db", &std::fs::read(&other).unwrap()), RecordsError::Foreign { .. }));

    let ours = folder.path().join("ours.db");
    let records = Records::open(&ours).unwrap();
    for at in 0..400 {
        records.add(&gemm(64, 64, 64, Scalar::F32), "", &device(), GENERATOR, &timed("p", 1.0, at)).unwrap();
    }
    drop(records);
    let whole = std::fs::read(&ours).unwrap();
    assert!(whole.len() > 4 * 4096);
    assert!(matches!(refuse("cut.db", &whole[..whole.len() / 2]), RecordsError::Damaged { .. }));
    let mut garbled = whole.clone();
    garbled[4096..3 * 4096].fill(0xa5);
    assert!(matches!(refuse("garbled.db", &garbled), RecordsError::Damaged { .. }));
    let mut newer = whole.clone();
    newer[60..64].copy_from_slice(&99u32.to_be_bytes());
    assert!(matches!(refuse("newer.db", &newer), RecordsError::Newer { found: 99, .. }));
    assert!(matches!(Records::open(folder.path()).unwrap_err(), RecordsError::Foreign { .. }));
    let mut empty = std::fs::File::create(folder.path().join("empty.db")).unwrap();
    empty.flush().unwrap();
    assert!(Records::open(folder.path().join("empty.db")).is_ok());
}

fn states(records: &Records) -> Vec<(String, State)> {
    let trials = records.trials(&gemm(64, 64, 64, Scalar::F32), &device(), GENERATOR).unwrap();
    trials.into_iter().map(|t| (t.plan, t.state)).collect()
}

/// How a process that holds records ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Killed,
    Crashed,
}

/// Processes that use one records file.
struct Processes {
    folder: tempfile::TempDir,
}

impl Processes {
    fn start(&self, plans: &[&str]) -> Records {
        let records = Records::open(self.folder.path().join("r.db")).unwrap();
        for plan in plans {
            records.begin(&gemm(64, 64, 64, Scalar::F32), "", &device(), GENERATOR, plan).unwrap();
        }
        records
    }
    /// The files of those that live or were killed.
    fn files(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().path());
        files.filter(|p| p.to_string_lossy().contains("-alive-")).collect()
    }
    /// Ends the one that was started last, without its own doing.
    fn end(&self, records: Records, before: &[PathBuf], end: End) {
        let file = self.files().into_iter().find(|f| !before.contains(f)).unwrap();
        if matches!(end, End::Crashed) {
            records.crash_file().unwrap().unwrap().write_all(tilewright_device::CRASHED).unwrap();
        }
        let text = std::fs::read(&file).unwrap();
        drop(records);
        std::fs::write(file, text).unwrap();
    }
}

#[test]
fn only_what_took_its_process_down_twice_counts_as_hung() {
    for (end, times, hung) in [(End::Killed, 9, 0), (End::Crashed, 1, 0), (End::Crashed, 2, 1)] {
        let processes = Processes { folder: tempfile::tempdir().unwrap() };
        let other = processes.start(&["alive"]);
        let mut found = 0;
        for _ in 0..times {
            let before = processes.files();
            let process = processes.start(&["done", "running", "unlucky"]);
            process.add(&gemm(64, 64, 64, Scalar::F32), "", &device(), GENERATOR, &timed("done", 1.0, 1)).unwrap();
            assert_eq!(other.recover().unwrap(), 0);
            processes.end(process, &before, end);
            found += other.recover().unwrap();
            // A later process gets to the end of it.
            let next = processes.start(&["unlucky"]);
            next.add(&gemm(64, 64, 64, Scalar::F32), "", &device(), GENERATOR, &timed("unlucky", 2.0, 2)).unwrap();
        }
        assert_eq!((found, other.recover().unwrap(), processes.files().len()), (hung, 0, 1), "{end:?} {times}");
        let mut of = states(&other);
        of.retain(|(plan, _)| plan == "running");
        assert_eq!(of, vec![("running".to_string(), State::Hung); hung], "{end:?} {times}");
        let marks: i64 = other.lock().query_row("SELECT count(*) FROM inflight WHERE plan = 'alive'", [], |r| r.get(0)).unwrap();
        assert_eq!(marks, 1);
    }
}

/// Who begins a plan again before anybody has looked counts a crash as well, and not a kill.
#[test]
fn a_plan_that_begins_again_keeps_what_it_did() {
    for (end, downs) in [(End::Killed, 0), (End::Crashed, 1)] {
        let processes = Processes { folder: tempfile::tempdir().unwrap() };
        let process = processes.start(&["running"]);
        processes.end(process, &[], end);
        let next = processes.start(&["running"]);
        let counted: i64 = next.lock().query_row("SELECT deaths FROM inflight", [], |r| r.get(0)).unwrap();
        assert_eq!(counted, downs, "{end:?}");
    }
}

#[test]
fn what_other_sources_say_does_not_hold_any_more() {
    let records = Records::in_memory().unwrap();
    filled(&records);
    let key = gemm(64, 64, 64, Scalar::F32);
    let current = records.trials(&key, &device(), GENERATOR).unwrap();
    let best = || records.best(&key, &device(), GENERATOR).unwrap().map(|t| t.plan);
    let set = |column: &str, by: Option<&str>| {
        let c = records.lock();
        c.execute("INSERT INTO sources(text) SELECT ?1 WHERE ?1 IS NOT NULL ON CONFLICT DO NOTHING", [by]).unwrap();
        c.execute(&format!("UPDATE trials SET {column} = (SELECT id FROM sources WHERE text = ?1)"), [by]).unwrap();
    };
    // Another verifier: times hold, verdicts do not.
    set("verified_by", Some("other"));
    let trials = records.trials(&key, &device(), GENERATOR).unwrap();
    let plans: Vec<&str> = trials.iter().map(|t| t.plan.as_str()).collect();
    assert_eq!(plans, ["slow", "fast", "unverified"]);
    assert!(trials.iter().all(|t| t.verified.is_none()) && best().is_none());
    // Another way to time, or a row from before anybody asked.
    for by in [Some("other"), None] {
        set("verified_by", Some(VERIFIER));
        set("timed_by", by);
        assert_eq!((records.trials(&key, &device(), GENERATOR).unwrap(), best()), (Vec::new(), None));
    }
    assert!(records.list(&Filter::default()).unwrap().iter().all(Record::is_stale));
    // They are still the plans to try first, on other drivers as well.
    let newer = DeviceKey { fingerprint: "driver 2".into(), ..device() };
    assert_eq!(records.candidates(&key, &newer, 8).unwrap(), ["fast", "slow"]);
    assert_eq!(records.candidates(&key, &DeviceKey { name: "Other GPU".into(), ..device() }, 8).unwrap(), [""; 0]);
    set("timed_by", Some(TIMING));
    assert_eq!(records.trials(&key, &device(), GENERATOR).unwrap(), current);
    // The cost model vouches for modelled times, and nothing else does.
    let modelled = Trial { verified: Some(Depth::Thorough), ..Trial::timed("dream", 0.1, TimeKind::Modelled) };
    let records = Records::in_memory().unwrap();
    records.add(&key, "", &device(), GENERATOR, &modelled).unwrap();
    let by: String =
        records.lock().query_row("SELECT s.text FROM trials t JOIN sources s ON s.id = t.timed_by", [], |r| r.get(0)).unwrap();
    assert_eq!(by, MODEL);
    assert!(MODEL != TIMING && TIMING != VERIFIER && VERIFIER != crate::records::GENERATOR);
}

#[test]
fn two_connections_write_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.db");
    let key = gemm(64, 64, 64, Scalar::F32);
    std::thread::scope(|s| {
        for writer in 0..4 {
            let (path, key) = (&path, &key);
            s.spawn(move || {
                let records = Records::open(path).unwrap();
                for at in 0..50 {
                    records.add(key, "", &device(), GENERATOR, &timed(&format!("w{writer}"), 1.0, at)).unwrap();
                }
            });
        }
    });
    assert_eq!(Records::open(&path).unwrap().trials(&key, &device(), GENERATOR).unwrap().len(), 200);
}

/// Looks hold for the build, the device and the plan; a search's verdicts of this build count, and claims of other sources do not.
#[test]
fn a_look_is_kept_and_a_verdict_of_a_search_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.db");
    let records = Records::open(&path).unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    let now = crate::records::GENERATOR;
    let known = |records: &Records, plan: &str| records.look(&key, &device(), plan).unwrap().map(|look| look.passed());
    let look = |plan: &str, state| Look { plan: plan.into(), state, reason: (state != State::Ok).then(|| "why".into()) };
    for (plan, state) in
        [("right", State::Ok), ("wrong", State::Wrong), ("wrong", State::Ok), ("hung", State::Ok), ("hung", State::Hung)]
    {
        records.add_look(&key, "gemm 64", &device(), &look(plan, state)).unwrap();
    }
    records.add(&key, "gemm 64", &device(), now, &timed("searched", 1.0, 1)).unwrap();
    records.add(&key, "gemm 64", &device(), now, &Trial { verified: Some(Depth::Quick), ..timed("quick", 1.0, 2) }).unwrap();
    records.add(&key, "gemm 64", &device(), "older", &timed("stale", 1.0, 3)).unwrap();
    records.add(&key, "gemm 64", &device(), now, &Trial::unmeasured("race", State::Wrong, "a race")).unwrap();
    drop(records);
    let records = Records::open(&path).unwrap();
    for (plan, passed) in [
        ("right", Some(true)),
        ("wrong", Some(false)),
        ("hung", Some(false)),
        ("searched", Some(true)),
        ("race", Some(false)),
        ("quick", None),
        ("stale", None),
        ("unknown", None),
    ] {
        assert_eq!(known(&records, plan), passed, "{plan}");
        let (other, newer) = (gemm(64, 64, 65, Scalar::F32), DeviceKey { fingerprint: "driver 2".into(), ..device() });
        assert_eq!(records.look(&other, &device(), plan).unwrap(), None);
        assert_eq!(records.look(&key, &newer, plan).unwrap(), None);
    }
    // Another build has not looked.
    records.lock().execute("UPDATE looks SET build = 'another'", []).unwrap();
    assert_eq!(["right", "wrong"].map(|plan| known(&records, plan)), [None, None]);
    assert_eq!(records.looks(&Filter::default()).unwrap(), []);
    // Nobody's looks and verdicts travel with a file.
    let plan = tilewright_gen::plan::Plan::default().to_string();
    records.add(&key, "gemm 64", &device(), now, &timed(&plan, 1.0, 4)).unwrap();
    let merged = Records::in_memory().unwrap();
    assert_eq!(merged.merge(&records).unwrap().added, 1);
    assert_eq!([&records, &merged].map(|records| known(records, &plan)), [Some(true), None]);
    records.add_look(&key, "gemm 64", &device(), &look("right", State::Ok)).unwrap();
    assert_eq!(records.looks(&Filter::default()).unwrap().len(), 1);
    records.remove(&Filter { problem: Some("another".into()), ..Filter::default() }).unwrap();
    assert_eq!(records.looks(&Filter::default()).unwrap().len(), 1);
    records.remove(&Filter { problem: Some("gemm".into()), ..Filter::default() }).unwrap();
    assert_eq!(records.looks(&Filter::default()).unwrap(), []);
}

#[test]
fn removing_takes_what_the_filter_names_and_nothing_else() {
    let records = Records::in_memory().unwrap();
    let key = gemm(64, 64, 64, Scalar::F32);
    for (name, at) in [("small", 1), ("small", 2), ("large", 3)] {
        let key = if name == "large" { gemm(640, 64, 64, Scalar::F32) } else { key.clone() };
        records.add(&key, name, &device(), GENERATOR, &timed("p", 1.0, at)).unwrap();
    }
    let small = Filter { problem: Some("small".into()), ..Filter::default() };
    assert_eq!(records.remove(&small).unwrap(), 2);
    let left = records.list(&Filter::default()).unwrap();
    assert_eq!(left.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["large"]);
}

/// What a search asks for at its start. It reads its own trials by the index and without a sort, and of the others only the
/// verified ones.
#[test]
fn a_search_starts_without_looking_at_all_trials() {
    let folder = tempfile::tempdir().unwrap();
    let records = Records::open(folder.path().join("r.db")).unwrap();
    filled(&records);
    let own = steps(&records, &own_trials());
    assert!(own.iter().any(|s| s.contains("SEARCH t") && s.contains("problem=? AND device=? AND generator=?")), "{own:?}");
    assert!(!own.iter().any(|s| s.contains("TEMP B-TREE") || s.starts_with("SCAN")), "{own:?}");
    for sql in [CANDIDATES, shapes::PLANS] {
        let steps = steps(&records, sql);
        assert!(steps.iter().any(|s| s.contains(" t USING INDEX verified")), "{steps:?}");
    }
}

#[test]
fn the_best_of_each_problem_are_kept() {
    let records = Records::in_memory().unwrap();
    let device = DeviceKey { name: "GPU".into(), fingerprint: "1".into() };
    for (n, problem) in [gemm(64, 64, 64, Scalar::F32), gemm(64, 64, 32, Scalar::F32)].iter().enumerate() {
        for (at, (plan, us, verified)) in
            [("slow", 9.0, Some(Depth::Thorough)), ("fast", 1.0, None), ("second", 2.0, None), ("third", 3.0, None)]
                .into_iter()
                .enumerate()
        {
            let trial = Trial { verified, at: at as i64, ..Trial::timed(plan, us, TimeKind::Measured) };
            records.add(problem, &format!("p{n}"), &device, GENERATOR, &trial).unwrap();
        }
        for (plan, state) in [("bad", State::Failed), ("wrong", State::Wrong), ("hung", State::Hung)] {
            records.add(problem, &format!("p{n}"), &device, GENERATOR, &Trial::unmeasured(plan, state, "why")).unwrap();
        }
    }
    let journal = records.journal().unwrap();
    assert_eq!(records.prune(2).unwrap(), 4);
    for n in 0..2 {
        let kept = records.list(&Filter { problem: Some(format!("p{n}")), ..Filter::default() }).unwrap();
        let mut plans: Vec<&str> = kept.iter().map(|r| r.trial.plan.as_str()).collect();
        plans.sort_unstable();
        assert_eq!(plans, ["fast", "hung", "second", "slow", "wrong"]);
    }
    assert_ne!(records.journal().unwrap(), journal);
    assert_eq!(records.prune(2).unwrap(), 0);
}

/// A plan of usual length takes 400 bytes with its place in all indexes, whether other trials have it or not.
#[test]
fn a_trial_is_small() {
    let records = Records::in_memory().unwrap();
    let count = 4000;
    for nth in 0..count {
        let key = gemm(64 + nth % 40, 64, 64, Scalar::F32);
        let plan = format!(
            "A_MIC8_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2_CLU2__B_MIC16_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2__C_UNR{nth}_GAL1_PUN1_ICE66_\
             IWI0_SZT0_MAD0_NAW64_UFO0_MAC256_SKW11_AFI1_MIA0_SKS1_CST1_PFG1_BUF2_LWV4_UNI2"
        );
        records.add(&key, "gemm", &device(), crate::records::GENERATOR, &timed(&plan, 5.0, 1_764_000_000_000)).unwrap();
    }
    let bytes: u64 = records
        .read(|c| c.query_row("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size", [], |r| r.get(0)))
        .unwrap();
    assert!(bytes / count < 400, "{}", bytes / count);
}

/// More problems than are kept in memory at a time, one after the other and again.
#[test]
fn files_of_many_problems_are_carried_whole() {
    let (from, to) = (Records::in_memory().unwrap(), Records::in_memory().unwrap());
    let plan = tilewright_gen::plan::Plan::default().to_string();
    let count = 600;
    for at in 0..count {
        let key = gemm(64 + at as u64 % 300, 64, 64, Scalar::F32);
        from.add(&key, &format!("gemm {}", key.m), &device(), GENERATOR, &timed(&plan, 5.0, at)).unwrap();
    }
    let merged = to.merge(&from).unwrap();
    assert_eq!((merged.added, merged.skipped, merged.unread), (600, Vec::new(), Vec::new()));
    let names = |records: &Records| -> Vec<(String, u64, i64)> {
        let all = records.list(&Filter::default()).unwrap();
        all.into_iter().map(|record| (record.name, record.problem.m, record.trial.at)).collect()
    };
    assert_eq!(names(&to), names(&from));
    assert_eq!(to.problems().unwrap().len(), 300);
    // What was imported is near at once.
    let near = to.nearest(&gemm(100, 64, 64, Scalar::F32), &device(), GENERATOR, 1).unwrap();
    assert_eq!((near[0].distance, near[0].problem.as_str()), (0.0, "gemm 100"));
}
