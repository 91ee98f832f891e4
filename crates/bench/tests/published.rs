//! The tables of `docs/performance.md` are what the records kept in `docs/records` say.

use std::path::{Path, PathBuf};
use std::process::Command;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Rows of the tables that records give: one per set and one per case.
fn rows(records: &Path) -> Vec<String> {
    let printed = Command::new(env!("CARGO_BIN_EXE_tilewright-bench")).arg("table").arg(records).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let text = String::from_utf8(printed.stdout).unwrap();
    text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| set |")).map(String::from).collect()
}

/// Rows that a page does not have.
fn lacking(rows: &[String], page: &str) -> Vec<String> {
    rows.iter().filter(|row| !page.lines().any(|line| line.trim_end() == row.trim_end())).cloned().collect()
}

#[test]
fn a_row_that_is_not_printed_is_noticed() {
    let rows = rows(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/example.jsonl"));
    assert!(rows.len() > 8, "{rows:?}");
    let page = rows.join("\n");
    assert_eq!(lacking(&rows, &page), Vec::<String>::new());
    // One digit of one time.
    let changed = page.replacen("194.7", "194.8", 1);
    assert_eq!(lacking(&rows, &changed).len(), 1, "{page}");
}

#[test]
fn tables_are_what_the_kept_records_say() {
    let page = std::fs::read_to_string(docs().join("performance.md")).unwrap();
    let kept = std::fs::read_dir(docs().join("records")).into_iter().flatten().flatten().map(|entry| entry.path());
    for file in kept.filter(|file| file.extension().is_some_and(|e| e == "gz")) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let lacking = lacking(&rows(&file), &page);
        assert!(lacking.is_empty(), "docs/performance.md lacks rows of docs/records/{name}:\n{}", lacking.join("\n"));
        assert!(page.contains(&format!("docs/records/{name}")), "docs/performance.md does not name docs/records/{name}");
    }
    // A file that the page names is kept; NAME stands for any.
    for named in page.split("docs/records/").skip(1).filter_map(|rest| rest.split_once(".jsonl.gz").map(|(name, _)| name)) {
        let file = docs().join("records").join(format!("{named}.jsonl.gz"));
        assert!(named == "NAME" || file.is_file(), "docs/performance.md names {}, which is not there", file.display());
    }
}
