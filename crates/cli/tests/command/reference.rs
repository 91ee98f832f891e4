//! The tables of the reference page beside what the command prints: no field is missing there, and none is made up.

#[allow(dead_code, reason = "the page prints the rest")]
#[path = "../../src/reference.rs"]
mod tables;

use crate::common::{Bench, Ran};
use serde_json::Value;
use std::collections::BTreeSet;
use tables::{FIELDS, OBJECTS, PROBLEM_COMMANDS};

type Names = BTreeSet<String>;

fn names<'a>(of: impl IntoIterator<Item = &'a str>) -> Names {
    of.into_iter().map(String::from).collect()
}

/// Keys of an object.
fn keys(object: &Value) -> Names {
    names(object.as_object().expect("an object").keys().map(String::as_str))
}

/// The fields of an object of [`OBJECTS`].
fn listed(command: &str) -> Names {
    let found = OBJECTS.iter().find(|object| object.command == command).expect("a row of OBJECTS");
    names(found.fields.iter().copied())
}

/// Asserts that an object has the fields of the page.
pub fn agrees(command: &str, object: &Value) {
    assert_eq!(keys(object), listed(command), "fields of {command}, and those of crates/cli/src/reference.rs");
}

/// Keys of all objects of these runs.
fn printed(runs: &[Ran]) -> Names {
    runs.iter().flat_map(Ran::objects).flat_map(|object| keys(&object)).collect()
}

pub fn fields_of_problems_are_those_of_the_page() {
    let bench = Bench::new();
    for command in PROBLEM_COMMANDS.iter().copied() {
        let more = if command == "tune" { " --budget 2" } else { "" };
        let device = if command == "inspect" { "" } else { " --device emu:gfx942" };
        let line = |plan: &str| format!("{command} gemm --m 40 --n 40 --k 64{device}{more}{plan} --json");
        // A plan that does not fit: three of the commands print the reason as an object.
        let runs = [bench.run(&line("")), bench.run(&line(" --plan C_UNI2"))];
        if runs[0].misses_a_tool() {
            continue;
        }
        runs[0].ends(0);
        runs[1].ends(1);
        let rows = FIELDS.iter().filter(|row| row.commands.contains(&command));
        let page = names(rows.flat_map(|row| row.names).copied());
        assert_eq!(printed(&runs), page, "fields of {command}, and those of FIELDS in crates/cli/src/reference.rs");
    }
}

pub fn fields_of_other_objects_are_those_of_the_page() {
    let bench = Bench::new();
    bench.run("tune gemm --m 16 --n 16 --k 16 --budget 1 --device emu").ends(0);
    for command in ["devices", "records list", "cache list"] {
        let ran = bench.run(&format!("{command} --json"));
        ran.ends(0);
        assert_eq!(printed(&[ran]), listed(command), "fields of {command}, and those of OBJECTS in crates/cli/src/reference.rs");
    }
}
