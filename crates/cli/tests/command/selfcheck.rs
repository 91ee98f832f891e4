//! `selfcheck`: one file with everything, for people and for programs.

use crate::{common, reference};
use common::Bench;
use serde_json::Value;

/// The JSON of a report.
fn facts(report: &str) -> Value {
    let (_, rest) = report.split_once("```json\n").expect("JSON in the report");
    serde_json::from_str(rest.split_once("\n```").expect("its end").0).expect("it parses")
}

pub fn a_short_check_of_every_kind_of_device() {
    for (device, kind, pairs) in [("emu", "modelled", 6), ("opencl", "measured", 2)] {
        let bench = Bench::new();
        let ran = bench
            .run(&format!("selfcheck --device {device} --pairs {pairs} --shapes 1 --budget 1 --out report.md --log log.json"));
        if ran.misses_a_tool() {
            return;
        }
        ran.ends(0);
        ran.says(&[&format!("{pairs} of {pairs} pairs verified: {pairs} passed"), "% of roof", "written: report.md"]);
        let report = std::fs::read_to_string(bench.path("report.md")).expect("a report");
        assert!(report.starts_with("# tilewright selfcheck of") && report.contains("**Passed.**"), "{report}");
        let facts = facts(&report);
        reference::agrees("selfcheck", &facts);
        assert_eq!((&facts["passed"], &facts["pairs"]["counts"]["passed"]), (&true.into(), &pairs.into()));
        assert!(facts["device"]["target"]["limits"]["shared_per_group"].as_u64() > Some(0), "{facts}");
        let log = std::fs::read_to_string(bench.path("log.json")).expect("a log");
        let log: Value = serde_json::from_str(&log).expect("it parses");
        assert_eq!((&log["pairs"], &log["passed"], &log["wrong"]), (&pairs.into(), &pairs.into(), &0.into()), "{log}");
        let covered = log["covered"].as_object().expect("counts by kind, instruction and type");
        assert_eq!(covered.values().filter_map(Value::as_u64).sum::<u64>(), pairs, "{log}");
        assert!(
            ["device", "driver", "source", "date"].iter().all(|name| log[name].as_str().is_some_and(|s| !s.is_empty())),
            "{log}"
        );
        let tuned = facts["tuned"].as_array().expect("tuned shapes");
        assert_eq!(tuned.len(), 1);
        for one in tuned {
            assert_eq!((&one["verified"], &one["time_kind"]), (&true.into(), &kind.into()));
        }
        assert!(!bench.path("records.sqlite").exists(), "selfcheck has recorded something");
    }
}

pub fn what_is_wrong_is_told_before_any_work() {
    let bench = Bench::new();
    bench.run("selfcheck --device emu --pairs 1 --out /dev/null/report.md").ends(2);
    bench.run("selfcheck --device emu:none --pairs 1").ends(2);
}
