//! The Python package, put together from its sources and the library that this test was built with, and tried by Python's own tests: in a
//! virtual environment with numpy, on the emulator and on OpenCL where it is; those of `tilewright.torch` where torch is.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[path = "../../ir/tests/support/missing.rs"]
mod missing;
#[path = "../../ir/tests/support/pages.rs"]
mod pages;
#[path = "../../fleet/tests/support/postgres.rs"]
mod postgres;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn runs(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stderr).into_owned()),
        Ok(output) => {
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            Err(format!("{command:?}: {}\n{out}\n{err}", output.status))
        }
        Err(e) => Err(format!("{}: {e}", command.get_program().to_string_lossy())),
    }
}

/// A Python with numpy, and maybe torch: the one that `TILEWRIGHT_PYTHON` names, else that of a virtual environment made here, which stays
/// for the next time.
fn python() -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        if let Some(given) = std::env::var_os("TILEWRIGHT_PYTHON").filter(|p| !p.is_empty()) {
            return runs(Command::new(&given).args(["-c", "import numpy"])).map(|_| given.into());
        }
        let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("venv");
        let python = venv.join("bin/python");
        if runs(Command::new(&python).args(["-c", "import numpy"])).is_err() {
            runs(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
            runs(Command::new(&python).args(["-m", "pip", "install", "--quiet", "numpy"]))?;
        }
        Ok(python)
    });
    match made {
        Ok(python) => Some(python.clone()),
        Err(why) => {
            missing::missing(&format!("Python 3.9 or newer with venv, and numpy from its package index: {why}"));
            None
        }
    }
}

/// The package as `pip install` would put it.
fn installed(to: &Path) {
    let (from, to) = (package().join("python/tilewright"), to.join("tilewright"));
    std::fs::create_dir_all(&to).expect("a folder");
    for file in std::fs::read_dir(from).expect("the package").map(|f| f.expect("a file").path()) {
        if file.is_file() {
            std::fs::copy(&file, to.join(file.file_name().expect("a name"))).expect("a copy");
        }
    }
    let here = std::env::current_exe().expect("this test");
    let library = here.parent().expect("a folder").join("libtilewright_native.so");
    std::fs::copy(&library, to.join("_native.abi3.so")).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
}

fn tried(file: &str, only: &[&str], device: &str, python: impl AsRef<OsStr>) {
    tried_with(file, only, device, python, &[]);
}

/// A variable of the environment of Python's tests.
struct Variable {
    name: &'static str,
    value: String,
}

fn tried_with(file: &str, only: &[&str], device: &str, python: impl AsRef<OsStr>, more: &[Variable]) {
    let said = said_by(file, only, device, python, more);
    for why in skips(&said) {
        // These files' classes `Torch` run below with another Python.
        if why != "PyTorch is not here" || !OF_TORCH.contains(&file) {
            missing::skipped(&format!("{file}: {why}"));
        }
    }
}

/// What unittest says of tests that pass.
fn said_by(file: &str, only: &[&str], device: &str, python: impl AsRef<OsStr>, more: &[Variable]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    installed(folder.path());
    let mut command = Command::new(python);
    command.arg("-W").arg("error::ResourceWarning").arg(package().join("tests").join(file)).arg("--verbose").args(only);
    command.env("PYTHONPATH", folder.path()).env("TILEWRIGHT_TEST_DEVICE", device).env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(more.iter().map(|variable| (variable.name, &variable.value)));
    let said = runs(&mut command).unwrap_or_else(|e| panic!("{e}"));
    assert!(said.contains("\nOK"), "{said}");
    said
}

/// Files that run in part without torch. The rest is their class `Torch`.
const OF_TORCH: [&str; 3] = ["test_arrays.py", "test_bad_input.py", "test_every_argument.py"];

/// Why tests were skipped, as unittest says with `--verbose`.
fn skips(said: &str) -> BTreeSet<&str> {
    let reasons = said.lines().filter_map(|line| line.rsplit_once("... skipped ")?.1.get(1..));
    reasons.filter_map(|reason| reason.strip_suffix(['\'', '"'])).collect()
}

/// A test that skips itself makes unittest say OK, too.
#[test]
fn skips_are_seen() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("test_skips.py");
    let text = "import unittest\nclass Some(unittest.TestCase):\n    def test_one(self):\n        self.skipTest(\"there's no moon\")\n    \
                def test_other(self):\n        'Says more.'\n        self.skipTest('no sun')\nunittest.main()\n";
    std::fs::write(&file, text).expect("a file");
    let said = said_by(file.to_str().expect("a name"), &[], "emu", python, &[]);
    assert_eq!(skips(&said).into_iter().collect::<Vec<_>>(), ["no sun", "there's no moon"], "{said}");
}

/// Python's tests of these names, each a test of its own here: they run side by side.
macro_rules! scripts {
    ($($with:ident { $($name:ident: $file:literal $only:expr;)* })*) => {
        $($(#[test]
        fn $name() {
            if let Some(python) = $with() {
                tried($file, $only, "emu", python);
            }
        })*)*
    };
}

scripts! {
    python {
        arrays_on_the_emulator: "test_arrays.py" &[];
        bad_input_without_torch: "test_bad_input.py" &[];
        every_argument_without_torch: "test_every_argument.py" &[];
    }
    with_torch {
        torch_operators: "test_torch.py" &[];
        torch_arrays: "test_arrays.py" &["Torch"];
        torch_bad_input: "test_bad_input.py" &["Torch"];
        torch_every_argument: "test_every_argument.py" &["Torch"];
        torch_models: "test_torch_models.py" &[];
        torch_mlp: "test_torch_mlp.py" &[];
        torch_loss: "test_torch_loss.py" &[];
        torch_compiled_gates: "test_torch_compiled_gates.py" &[];
        torch_compiled_loss: "test_torch_compiled_loss.py" &[];
        torch_prepare: "test_torch_prepare.py" &[];
        torch_reductions: "test_torch_reductions.py" &[];
        torch_beside: "test_torch_beside.py" &[];
    }
}

#[test]
fn arrays_on_opencl() {
    let Some(python) = python() else { return };
    if !tilewright::list_devices().iter().any(|l| l.device.is_ok() && l.backend == tilewright::Backend::OpenCl) {
        return missing::missing("an OpenCL device");
    }
    // A driver that takes a second per kernel: a few of them.
    tried("test_arrays.py", &["Products.test_epilogue_and_out", "Tuning.test_what_is_tuned_is_found_again"], "opencl:0", python);
}

/// The Python that `TILEWRIGHT_TORCH_PYTHON` names, as `scripts/torch-without-gpu` makes one: nobody can be required to have torch.
fn with_torch() -> Option<PathBuf> {
    let given = std::env::var_os("TILEWRIGHT_TORCH_PYTHON").filter(|p| !p.is_empty());
    let python = given.map(PathBuf::from).or_else(python)?;
    if let Err(why) = runs(Command::new(&python).args(["-c", "import torch"])) {
        let last = why.trim_end().lines().last().unwrap_or_default();
        missing::skipped(&format!("PyTorch (scripts/torch-without-gpu, TILEWRIGHT_TORCH_PYTHON): {last}"));
        return None;
    }
    Some(python)
}

#[test]
fn torch_processes_and_pages() {
    let Some(python) = with_torch() else { return };
    processes_end(&python);
    tried("test_torch_cuda.py", &[], "emu", &python);
    pages_run(&python, true);
}

/// Processes that tune, load and run ours under torch end, as `clean_exits.py` counts on a GPU.
fn processes_end(python: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    installed(folder.path());
    let mut command = Command::new(python);
    command.arg(package().join("../bench/scripts/clean_exits.py")).arg("--tiny").arg("--out").arg(folder.path().join("exits"));
    command.args("--kinds decode,contexts --decode plain --count-scale 0.1 --jobs 2 --tune-seconds 1".split(' '));
    command.env("PYTHONPATH", folder.path());
    runs(&mut command).unwrap_or_else(|e| panic!("{e}"));
    let table = std::fs::read_to_string(folder.path().join("exits/exits.md")).expect("the table");
    assert!(table.contains("4 of 4 processes, 0 ended by a signal, 0 failed or suspect"), "{table}");
}

/// Shapes of torch tuned by the command, on several devices and in a fleet with a real server.
#[test]
fn torch_shapes_are_tuned_by_other_processes() {
    let Some(python) = with_torch() else { return };
    let here = std::env::current_exe().expect("this test");
    let command = here.ancestors().nth(2).expect("a folder").join("tilewright");
    if !command.exists() {
        return missing::missing("the command tilewright (cargo test --workspace builds it)");
    }
    let Some(server) = postgres::Postgres::start() else { return };
    let fleet = server.socket("owner");
    runs(Command::new(&command).args(["fleet", "init", &fleet])).unwrap_or_else(|e| panic!("{e}"));
    let command = Variable { name: "TILEWRIGHT_TEST_COMMAND", value: command.display().to_string() };
    let fleet = Variable { name: "TILEWRIGHT_TEST_FLEET", value: fleet };
    tried_with("test_torch_fleet.py", &[], "emu", python, &[command, fleet]);
    assert_eq!(server.sql("SELECT name, (SELECT count(*) FROM tw.task WHERE state = 'done') FROM tw.run"), "night|2");
}

/// The programs of the README, the package's page and the guides.
#[test]
fn the_pages_run() {
    let Some(python) = python() else { return };
    pages_run(&python, false);
}

/// Kernels that write out of bounds or hang, tuned and compared beside tensors: on OpenCL, where they run on this processor.
#[test]
fn torch_beside_wrong_kernels() {
    let Some(python) = with_torch() else { return };
    if !tilewright::list_devices().iter().any(|l| l.device.is_ok() && l.backend == tilewright::Backend::OpenCl) {
        return missing::missing("an OpenCL device");
    }
    tried("test_torch_harm.py", &[], "opencl:0", python);
}

/// A page's blocks are one program, at the lines where they stand in the page. Those that use torch, and what stands before them, need it.
fn pages_run(python: &Path, torch: bool) {
    let uses_torch = |b: &&pages::Block| b.text.contains("torch");
    let mut ran = 0;
    for page in pages::Page::of_users(&package().join("../..")) {
        let blocks = page.blocks();
        let blocks: Vec<&pages::Block> = blocks.iter().filter(|b| b.is("python", &["gpu", "build"])).collect();
        let with_torch = blocks.iter().any(uses_torch);
        let tried: Vec<&pages::Block> = match torch {
            true if !with_torch => continue,
            true => blocks,
            // Each block of a README begins anew; the guides' blocks go on from one another.
            false if page.name.ends_with(pages::README) => blocks.into_iter().filter(|b| !uses_torch(b)).collect(),
            false if with_torch => continue,
            false => blocks,
        };
        if tried.is_empty() {
            continue;
        }
        ran += 1;
        program_runs(python, &page.name, &tried, torch);
    }
    assert!(ran > 0, "no page has a program");
}

fn program_runs(python: &Path, page: &str, blocks: &[&pages::Block], torch: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    installed(folder.path());
    let mut program = String::new();
    for block in blocks {
        let lines = program.lines().count();
        program += &"\n".repeat(block.line - 1 - lines);
        program += &block.text;
    }
    // A traceback names the page and its lines.
    let file = folder.path().join(page.replace('/', "-"));
    std::fs::write(&file, program).expect("a file");
    let mut command = Command::new(python);
    command.arg(&file).env("PYTHONPATH", folder.path()).current_dir(folder.path());
    runs(command.env("TILEWRIGHT_RECORDS", folder.path().join("records.sqlite"))).unwrap_or_else(|e| panic!("{page}: {e}"));
    if torch && page.ends_with(pages::README) {
        // The recorded shapes are a case file of the command.
        let shapes = std::fs::read_to_string(folder.path().join("shapes.csv")).expect("the page's file of shapes");
        let cases = tilewright_problem::cases::parse("shapes.csv", "", shapes.as_bytes(), &Default::default()).expect("cases");
        assert!(cases.cases.len() >= 4 && cases.skipped.is_empty(), "{cases:?}");
    }
}
