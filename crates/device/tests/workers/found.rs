//! Which program workers are: `TILEWRIGHT_WORKER`, the program itself, the command beside the library, the command in PATH.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tilewright_device::{COMPILE_WORKER, Program, worker_main};

/// The program in the place of one that uses the library: succeeds if its workers are the expected program, and says who they are else.
pub fn asks(is_own: bool) -> ! {
    if is_own {
        worker_main();
    }
    let expected = std::env::args_os().nth(2).map(|path| Program::new(path, [COMPILE_WORKER.into()]));
    match Program::find("opencl:0") {
        Ok(found) if Some(&found) == expected.as_ref() => std::process::exit(0),
        Ok(found) => eprintln!("{found:?}, not {expected:?}"),
        Err(e) => eprintln!("{e}"),
    }
    std::process::exit(1)
}

/// A link to this program in a folder `lib`, with commands `tilewright` at every place that is looked at.
///
/// A copy could not always be started: a child that another test forks meanwhile holds the copy open for writing until its exec.
struct Places {
    folder: PathBuf,
    _temporary: tempfile::TempDir,
}

impl Places {
    fn new() -> Places {
        let this = std::env::current_exe().unwrap();
        let temporary = tempfile::tempdir_in(this.parent().unwrap()).unwrap();
        let places = Places { folder: temporary.path().canonicalize().unwrap(), _temporary: temporary };
        for folder in ["lib", "bin", "empty", "first", "second", "named"] {
            std::fs::create_dir(places.folder.join(folder)).unwrap();
        }
        std::fs::hard_link(this, places.program()).unwrap();
        for folder in ["lib", "bin", "first", "second", "named"] {
            std::fs::write(places.command(folder), "").unwrap();
        }
        places
    }
    fn program(&self) -> PathBuf {
        self.folder.join("lib/program")
    }
    fn command(&self, folder: &str) -> PathBuf {
        self.folder.join(folder).join("tilewright")
    }
    fn remove(&self, folder: &str) {
        std::fs::remove_file(self.command(folder)).unwrap();
    }
    fn ask(&self, subcommand: &str, worker: Option<&Path>, expected: &Path) -> Output {
        let mut command = Command::new(self.program());
        let path = std::env::join_paths(["empty", "first", "second"].map(|name| self.folder.join(name))).unwrap();
        command.arg(subcommand).arg(expected).env("PATH", path).env_remove("TILEWRIGHT_WORKER");
        worker.map(|worker| command.env("TILEWRIGHT_WORKER", worker));
        command.output().unwrap()
    }
    fn finds(&self, subcommand: &str, worker: Option<&Path>, expected: &Path) {
        let output = self.ask(subcommand, worker, expected);
        assert!(output.status.success(), "{subcommand}: {}", String::from_utf8_lossy(&output.stderr));
    }
    fn refuses(&self, subcommand: &str, worker: Option<&Path>, parts: &[&str]) {
        let output = self.ask(subcommand, worker, Path::new(""));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && parts.iter().all(|part| said.contains(part)), "{subcommand}: {said}");
    }
}

pub fn the_program_of_workers_is_found_in_this_order() {
    let places = Places::new();
    let (named, program) = (places.command("named"), places.program());
    // The variable comes first. A name that is no file is refused, whatever else is there; an empty one counts as none.
    for subcommand in ["own-worker", "find-worker"] {
        places.finds(subcommand, Some(&named), &named);
        let nowhere = places.folder.join("nowhere");
        places.refuses(subcommand, Some(&nowhere), &["TILEWRIGHT_WORKER names", "nowhere, which is no file"]);
    }
    places.finds("own-worker", None, &program);
    places.finds("own-worker", Some(Path::new("")), &program);
    // Then the command beside the library, in `../bin` of its folder, and in the first folder of PATH that has it.
    places.finds("find-worker", None, &places.command("lib"));
    places.finds("find-worker", Some(Path::new("")), &places.command("lib"));
    places.remove("lib");
    places.finds("find-worker", None, &places.command("lib/../bin"));
    places.remove("bin");
    places.finds("find-worker", None, &places.command("first"));
    places.remove("first");
    places.finds("find-worker", None, &places.command("second"));
    places.remove("second");
    let missing = ["there is no command `tilewright` beside the library", "in PATH", "set TILEWRIGHT_WORKER"];
    places.refuses("find-worker", None, &missing);
    // A program that is its own worker needs none of them.
    places.finds("own-worker", None, &program);
}
