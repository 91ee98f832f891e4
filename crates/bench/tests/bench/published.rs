//! What `benchmarks` publishes is what `tilewright-bench results` generates from the records kept there.

use crate::missing;
use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files that the command writes.
const GENERATED: [&str; 5] = ["results.md", "speed-light.svg", "speed-dark.svg", "overview-light.svg", "overview-dark.svg"];

fn benchmarks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks")
}

/// What a program prints; it must succeed.
fn printed(program: &mut Command) -> String {
    let printed = program.output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    String::from_utf8(printed.stdout).unwrap()
}

/// Writes the generated files into a folder.
fn generate(folder: &Path) {
    printed(Command::new(env!("CARGO_BIN_EXE_tilewright-bench")).args(["results", "--folder"]).arg(folder));
}

/// Record files below `benchmarks/records`.
fn kept() -> BTreeSet<String> {
    let names = std::fs::read_dir(benchmarks().join("records")).unwrap().map(|entry| entry.unwrap());
    names.filter(|entry| entry.path().is_file()).map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// `UPDATE_RESULTS=1` renews the page and the plots.
#[test]
fn page_and_plots_are_what_the_command_generates() {
    if std::env::var_os("UPDATE_RESULTS").is_some() {
        generate(&benchmarks());
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("records")).unwrap();
    for name in kept() {
        std::fs::copy(benchmarks().join("records").join(&name), folder.path().join("records").join(&name)).unwrap();
    }
    std::fs::copy(benchmarks().join("sets.csv"), folder.path().join("sets.csv")).unwrap();
    generate(folder.path());
    for name in GENERATED {
        let made = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let kept = std::fs::read_to_string(benchmarks().join(name)).unwrap_or_default();
        assert!(made == kept, "benchmarks/{name} is not what `tilewright-bench results` writes; renew it: UPDATE_RESULTS=1");
    }
    let page = std::fs::metadata(folder.path().join("results.md")).unwrap().len();
    assert!(page <= 12 << 10, "benchmarks/results.md has {page} bytes");
}

/// Cells of the rows of a page's tables that have so many columns.
fn rows(page: &str, columns: usize) -> Vec<Vec<String>> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
    let tables = page.lines().filter(|line| line.starts_with('|'));
    tables.map(cells).filter(|row| row.len() == columns).collect()
}

/// Each figure of README is one of results.md, rounded; counts of cases are the same.
#[test]
fn figures_of_readme_are_those_of_the_results() {
    let page = |name: &str| std::fs::read_to_string(benchmarks().join(name)).unwrap();
    let results = rows(&page("results.md"), 12);
    // Two digits of README and three of the page are each rounded from the same ratio.
    let near = |x: &str, y: &str| x.parse().ok().zip(y.parse().ok()).is_some_and(|(x, y): (f64, f64)| (x - y).abs() < 0.0056);
    let readme: Vec<Vec<String>> = rows(&page("../README.md"), 7).into_iter().filter(|row| row[0].starts_with('`')).collect();
    assert_eq!(readme.len(), 5);
    for row in readme {
        let name = row[0].split('`').nth(1).unwrap();
        let same = |of: &&Vec<String>| {
            let [set, cases, mean, worst, slower, device, date] = [1, 4, 7, 8, 9, 10, 11].map(|column| of[column].as_str());
            let measured = near(&row[3], mean) && near(&row[4], worst) && row[6] == format!("{device}, {date}");
            set.starts_with(name) && measured && row[2] == cases && row[5] == slower
        };
        assert!(results.iter().any(|of| same(&of)), "README's row is in no row of results.md: {row:?}");
    }
}

#[test]
fn every_record_file_is_in_sets_csv_and_the_reverse() {
    let mut sets = csv::Reader::from_path(benchmarks().join("sets.csv")).unwrap();
    let column = sets.headers().unwrap().iter().position(|name| name == "records").unwrap();
    let listed: BTreeSet<String> = sets.records().map(|row| row.unwrap()[column].to_string()).collect();
    assert_eq!(listed, kept());
}

/// N of the sets of `cases/formats.csv` is the number of its cases, and every recorded problem is one of them.
#[test]
fn the_list_of_number_formats_has_every_recorded_problem() {
    let list = benchmarks().join("cases/formats.csv");
    let list = tilewright_problem::cases::read(&list, &tilewright_problem::cases::CaseOptions::default()).unwrap();
    assert_eq!(list.skipped, []);
    let mut sets = csv::Reader::from_path(benchmarks().join("sets.csv")).unwrap();
    let rows: Vec<csv::StringRecord> = sets.records().map(Result::unwrap).collect();
    for (file, set) in [("f64", "f64"), ("fp8", "fp8"), ("int8", "int8"), ("tf32x3", "x3")] {
        let listed: BTreeSet<String> = list.cases.iter().filter(|case| case.set == set).map(|case| case.problem.key()).collect();
        let name = format!("{file}.jsonl.gz");
        let row = rows.iter().find(|row| row[1] == name).unwrap();
        assert_eq!(row[6], listed.len().to_string(), "{row:?}");
        let packed = std::fs::File::open(benchmarks().join("records").join(name)).unwrap();
        for line in std::io::BufReader::new(flate2::read::MultiGzDecoder::new(packed)).lines() {
            let record: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert!(listed.contains(record["problem"].as_str().unwrap()), "{}", record["case"]);
        }
    }
}

/// What was measured beside PyTorch is printed by the script that measured it.
#[test]
fn records_beside_torch_are_printed_by_their_script() {
    let python = std::env::var_os("TILEWRIGHT_PYTHON").unwrap_or_else(|| "python3".into());
    if let Err(e) = Command::new(&python).arg("--version").output() {
        return missing::missing(&format!("{}: {e}", python.to_string_lossy()));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/torch_reductions.py");
    let mut rows = 0;
    for kept in std::fs::read_dir(benchmarks().join("records/torch")).unwrap().map(|entry| entry.unwrap().path()) {
        let text = printed(Command::new(&python).arg(&script).arg("--table").arg(&kept));
        let of = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| case |")).count();
        assert!(of > 0, "{}: no row", kept.display());
        rows += of;
    }
    assert!(rows > 70, "{rows} rows");
}

/// Runs tests of `scripts` in Python, with the interpreter that has PyTorch where one is named, and gives their output if they ran.
fn in_python(script: &str) -> Option<String> {
    let named = ["TILEWRIGHT_TORCH_PYTHON", "TILEWRIGHT_PYTHON"].into_iter().filter_map(std::env::var_os);
    let python = named.into_iter().find(|python| !python.is_empty()).unwrap_or_else(|| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let tried = match Command::new(&python).arg(&script).output() {
        Ok(tried) => tried,
        Err(e) => {
            missing::missing(&format!("{}: {e}", python.to_string_lossy()));
            return None;
        }
    };
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    assert!(tried.status.success(), "{said}");
    Some(said)
}

/// Scripts that compare with PyTorch leave out sides that are wrong, wide or timed with the host.
#[test]
fn scripts_count_right_and_steady_sides() {
    let Some(said) = in_python("test_sides.py") else { return };
    assert!(said.contains("Ran 5 tests"), "{said}");
    if said.contains("... skipped '") {
        missing::skipped("PyTorch (scripts/torch-without-gpu, TILEWRIGHT_TORCH_PYTHON): ties of indices");
    }
}

/// They time calls while the device sleeps, for 2 s at most.
#[test]
fn scripts_hold_the_device_until_a_call_is_queued() {
    let Some(said) = in_python("test_held.py") else { return };
    assert!(said.contains("Ran 7 tests"), "{said}");
}

/// A user of a device of a table starts from the plans of the table, verified again there.
#[test]
fn kept_plans_are_tried_first_on_such_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.sqlite");
    let kept = benchmarks().join("records/gemm-cublaslt.jsonl.gz");
    let command =
        [&["table", "--brief", "--records"].map(std::ffi::OsStr::new)[..], &[path.as_os_str(), kept.as_os_str()]].concat();
    let printed = Command::new(env!("CARGO_BIN_EXE_tilewright-bench")).args(command).output().unwrap();
    let report = String::from_utf8_lossy(&printed.stderr).into_owned();
    let added: usize = report.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{report}"));
    assert!(added > 30, "{report}");
    offered(&tilewright_tune::Records::open(&path).unwrap());
    // The plans that come with the Python package are offered too.
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/python/tilewright/h200.jsonl.gz");
    let records = tilewright_tune::Records::in_memory().unwrap();
    let mut lines = std::io::BufReader::new(flate2::read::GzDecoder::new(std::fs::File::open(shipped).unwrap()));
    assert!(records.import(&mut lines, "h200.jsonl.gz").unwrap() > 300);
    offered(&records);
}

/// A plan of a table is a candidate on such a device with another driver, and on no other.
fn offered(records: &tilewright_tune::Records) {
    let problem = "tC0_tA0_tB1_colMaj0_m512_n512_k512_lda512_ldb512_ldc512_ws536870912_bf16";
    let target = tilewright_ir::Target::by_arch("sm_90a").unwrap();
    let space = tilewright_gen::space::Space::new(&tilewright_problem::Problem::parse(problem).unwrap(), &target).unwrap();
    let device =
        |name: &str| tilewright_tune::records::DeviceKey { name: name.into(), fingerprint: "sm_90a; another driver".into() };
    let plans = |name: &str| records.candidates(&tilewright_tune::ProblemKey::of(&space), &device(name), 1).unwrap();
    assert_eq!(plans("NVIDIA H200 (CUDA)").len(), 1);
    assert!(plans("NVIDIA A100 (CUDA)").is_empty());
    assert!(
        records
            .best(&tilewright_tune::ProblemKey::of(&space), &device("NVIDIA H200 (CUDA)"), tilewright_tune::records::GENERATOR)
            .unwrap()
            .is_none()
    );
}
