//! The plan reference in docs/plans.md says what the registry says: same keys, same order, same facts.
//!
//! `UPDATE_DOCS=1 cargo test -p tilewright --test docs` rewrites the columns that come from the registry.

use std::path::PathBuf;
use tilewright_gen::plan::{Key, Part};

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/plans.md")
}

/// The registry's columns of one key's row.
fn facts(key: Key) -> String {
    let info = key.info();
    let meaning = info.meaning.replace('|', "\\|");
    format!("| {} | {meaning} | {} | {} | {} |", info.name, info.system, info.legal, info.default)
}

/// The document with the registry's columns filled in; the last column is the document's own.
fn filled(text: &str) -> String {
    let keys: Vec<Key> = Part::A.keys().into_iter().chain(Part::C.keys()).collect();
    let line = |line: &str| match keys.iter().find(|k| line.starts_with(&format!("| {} |", k.name()))) {
        Some(key) => {
            let own = line.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
            format!("{} {own} |", facts(*key))
        }
        None => line.to_string(),
    };
    text.lines().map(|l| line(l) + "\n").collect()
}

#[test]
fn plan_reference_is_in_step_with_the_registry() {
    let text = std::fs::read_to_string(path()).expect("docs/plans.md is there");
    let want = filled(&text);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path(), &want).expect("docs/plans.md can be written");
    } else {
        assert!(text == want, "docs/plans.md lags behind the registry: run this test with UPDATE_DOCS=1");
    }
    let rows: Vec<&str> = want.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| key")).collect();
    let keys: Vec<Key> = Part::A.keys().into_iter().chain(Part::C.keys()).collect();
    assert_eq!(rows.len(), keys.len(), "one row per key: add or remove rows by hand");
    for (row, key) in rows.iter().zip(keys) {
        assert!(row.starts_with(&facts(key)), "row of {} out of order", key.name());
        let cost = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        assert!(cost.len() > 5, "{}: say what it costs", key.name());
    }
}
