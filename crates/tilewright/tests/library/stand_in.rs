//! A CUDA driver that runs nothing and writes down what it is told (`driver.c`), built into a folder where the loader may find it.

use crate::missing;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tilewright::{CacheState, Context, Gemm, Operation, Options, RecordsAt, Scalar};
use tilewright_tune::ProblemKey;
use tilewright_tune::look::subject;
use tilewright_tune::records::{Look, State};
use tilewright_tune::search::device_key;

/// Where its source is.
pub fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host")
}

/// What a command says; `None`, with a word, where it is not installed.
pub fn said(command: &mut Command) -> Option<String> {
    match command.output() {
        Ok(output) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (out, err) = (text(&output.stdout), text(&output.stderr));
            assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
            Some(out)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            missing::missing(&format!("{} (apt install gcc g++)", command.get_program().to_string_lossy()));
            None
        }
        Err(e) => panic!("{command:?}: {e}"),
    }
}

/// The folder that it is in; `None`, with a word, where it cannot be built or kernels do not compile.
pub fn driver() -> Option<TempDir> {
    let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
    let operation =
        Context::with(options).expect("the emulator opens").gemm(Gemm::new(Scalar::F32, 16, 16, 16)).expect("a product");
    let kernel = operation.program(&operation.plan().expect("a plan")).expect("a program").kernels.remove(0);
    if let Err(e) = tilewright_device::cuda::compile(&kernel, "sm_90a", &tilewright_device::Options::default()) {
        missing::missing(&e.to_string());
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut cc = Command::new("gcc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    said(cc.arg(here().join("driver.c")).arg("-o").arg(folder.path().join("libcuda.so.1")))?;
    for name in ["libcuda.so", "libcuda.so.13"] {
        std::fs::copy(folder.path().join("libcuda.so.1"), folder.path().join(name)).expect("a copy");
    }
    Some(folder)
}

/// Records a passed look at an operation's plan. The driver runs nothing, so no plan would pass a look of its own.
pub fn trust(operation: &Operation) {
    let (context, plan) = (operation.context(), operation.plan().expect("a plan"));
    let space = subject(operation.space(), &plan);
    let look = Look { plan: plan.to_string(), state: State::Ok, reason: None };
    let device = device_key(context.info(), CacheState::Cold);
    context.records().add_look(&ProblemKey::of(&space), &space.problem().key(), &device, &look).expect("records");
}
