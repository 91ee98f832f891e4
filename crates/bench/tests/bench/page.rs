//! The page of `table --html`, made from records that are invented for this test (`example.jsonl`).

use std::path::Path;
use std::process::Command;

#[test]
fn a_page_names_every_case_of_its_records() {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/example.jsonl");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let ran = Command::new(env!("CARGO_BIN_EXE_tilewright-bench"))
        .args(["table", "--brief", "--html"])
        .args([&page, &records])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    let lines = std::fs::read_to_string(records).unwrap();
    let mut cases = 0;
    for line in lines.lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let case = record["case"].as_str().unwrap();
        // The row of the plot, its points, the row of the table.
        assert!(page.matches(case).count() >= 4, "{case}");
        cases += 1;
    }
    assert_eq!(cases, 8);
    // A point of the first plot per valid pair; in the roofline one mark per valid time: ours round, the first library's square.
    assert_eq!(page.matches("times as long</title>").count(), 15);
    assert_eq!(page.matches("operations per byte</title>").count(), 8 + 8 + 7);
    assert!(page.contains("CUBLAS_STATUS_NOT_SUPPORTED") && page.contains("1755 to 1860 MHz"));
}

#[test]
fn a_file_that_holds_no_records_is_named() {
    let ran = Command::new(env!("CARGO_BIN_EXE_tilewright-bench")).args(["table", "/nonexistent.jsonl"]).output().unwrap();
    assert!(!ran.status.success() && String::from_utf8_lossy(&ran.stderr).contains("/nonexistent.jsonl"));
}
