//! The tables of `docs/performance.md` are what the records kept in `benchmarks/records` say.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../ir/tests/support/missing.rs"]
mod missing;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn benchmarks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks")
}

/// Rows of the tables that records give: one per set and one per case.
fn rows(records: &Path) -> Vec<String> {
    printed(Command::new(env!("CARGO_BIN_EXE_tilewright-bench")).arg("table").arg(records), "| set |")
}

/// Rows of the tables that a program prints, without their heads.
fn printed(program: &mut Command, head: &str) -> Vec<String> {
    let printed = program.output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let text = String::from_utf8(printed.stdout).unwrap();
    text.lines().filter(|line| line.starts_with("| ") && !line.starts_with(head)).map(String::from).collect()
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
    let kept = std::fs::read_dir(benchmarks().join("records")).into_iter().flatten().flatten().map(|entry| entry.path());
    for file in kept.filter(|file| file.extension().is_some_and(|e| e == "gz")) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let lacking = lacking(&rows(&file), &page);
        assert!(lacking.is_empty(), "docs/performance.md lacks rows of benchmarks/records/{name}:\n{}", lacking.join("\n"));
        assert!(
            page.contains(&format!("benchmarks/records/{name}")),
            "docs/performance.md does not name benchmarks/records/{name}"
        );
    }
    // A file that the page names is kept; NAME stands for any.
    for named in page.split("benchmarks/records/").skip(1).filter_map(|rest| rest.split_once(".jsonl.gz").map(|(name, _)| name)) {
        let file = benchmarks().join("records").join(format!("{named}.jsonl.gz"));
        assert!(named == "NAME" || file.is_file(), "docs/performance.md names {}, which is not there", file.display());
    }
}

/// What was measured beside PyTorch is printed by the script that measured it.
#[test]
fn tables_beside_torch_are_what_their_script_prints() {
    let python = std::env::var_os("TILEWRIGHT_PYTHON").unwrap_or_else(|| "python3".into());
    if let Err(e) = Command::new(&python).arg("--version").output() {
        return missing::missing(&format!("{}: {e}", python.to_string_lossy()));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/torch_reductions.py");
    let page = std::fs::read_to_string(docs().join("performance.md")).unwrap();
    let mut seen = 0;
    for kept in std::fs::read_dir(benchmarks().join("records/torch")).unwrap().flatten().map(|entry| entry.path()) {
        let rows = printed(Command::new(&python).arg(&script).arg("--table").arg(&kept), "| case |");
        let lacking = lacking(&rows, &page);
        assert!(lacking.is_empty(), "docs/performance.md lacks rows of {}:\n{}", kept.display(), lacking.join("\n"));
        seen += rows.len();
    }
    assert!(seen > 70, "{seen} rows");
}

/// Whoever has the device of a table starts from its plans, verified again there.
#[test]
fn kept_plans_are_tried_first_on_such_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.sqlite");
    let kept = benchmarks().join("records/gemm-cublaslt.jsonl.gz");
    let file = || {
        let command =
            [&["table", "--brief", "--records"].map(std::ffi::OsStr::new)[..], &[path.as_os_str(), kept.as_os_str()]].concat();
        let printed = Command::new(env!("CARGO_BIN_EXE_tilewright-bench")).args(command).output().unwrap();
        String::from_utf8_lossy(&printed.stderr).into_owned()
    };
    let told = file();
    let added: usize = told.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{told}"));
    assert!(added > 30, "{told}");
    let records = tilewright_tune::Records::open(&path).unwrap();
    offered(&records);
    // So do those that come with the Python package.
    let shipped = std::fs::File::open(docs().join("../crates/python/python/tilewright/h200.jsonl.gz")).unwrap();
    let records = tilewright_tune::Records::in_memory().unwrap();
    let mut lines = std::io::BufReader::new(flate2::read::GzDecoder::new(shipped));
    assert!(records.import(&mut lines, "h200.jsonl.gz").unwrap() > 300);
    offered(&records);
}

/// A plan of a table is a candidate on such a device with another driver, and on no other.
fn offered(records: &tilewright_tune::Records) {
    let problem = "tC0_tA0_tB1_colMaj0_m512_n512_k512_lda512_ldb512_ldc512_ws536870912_bf16";
    let target = tilewright_ir::Target::by_arch("sm_90a").unwrap();
    let space = tilewright_tune::space::Space::new(&tilewright_problem::Problem::parse(problem).unwrap(), &target).unwrap();
    let device =
        |name: &str| tilewright_tune::records::DeviceKey { name: name.into(), fingerprint: "sm_90a; another driver".into() };
    let plans = |name: &str| records.candidates(&space.key(), &device(name), 1).unwrap();
    assert_eq!(plans("NVIDIA H200 (CUDA)").len(), 1);
    assert!(plans("NVIDIA A100 (CUDA)").is_empty());
    assert!(records.best(&space.key(), &device("NVIDIA H200 (CUDA)"), tilewright_tune::records::GENERATOR).unwrap().is_none());
}
