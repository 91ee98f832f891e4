//! Generated sources compile without warnings: no variable that nothing reads, in any dialect.

use crate::missing;

use std::io::Write;
use std::process::{Command, Stdio};
use tilewright_check::random::{Recipe, pair};
use tilewright_device::{DeviceError, Options, cuda};
use tilewright_gen::space::Space;
use tilewright_ir::{Dialect, Features, Kernel, Target, print};

/// The kernels of random pairs of a recipe on a target.
fn kernels(target: &Target, recipe: &Recipe, count: u64) -> Vec<(String, Kernel)> {
    let mut kernels = Vec::new();
    for pair in (0..).filter_map(|seed| pair(target, recipe, seed)).take(count as usize) {
        let space = Space::new(&pair.problem, target).unwrap().with_atomics(true);
        let found = space.resolve(&pair.plan).unwrap();
        let program = found.generate(space.env().workspace_bytes).unwrap();
        kernels.extend(program.kernels.into_iter().map(|kernel| (pair.to_string(), kernel)));
    }
    kernels
}

#[test]
fn nvrtc_has_no_warnings() {
    for (arch, recipe, count) in [("sm_80", Recipe::schedules(), 4), ("sm_90a", Recipe::units(), 3)] {
        for (pair, kernel) in kernels(&Target::by_arch(arch).unwrap(), &recipe, count) {
            let made = match cuda::compile(&kernel, arch, &Options::default()) {
                Err(e @ DeviceError::Missing { .. }) => return missing::missing(&e.to_string()),
                made => made.unwrap_or_else(|e| panic!("{arch} {pair}: {e}")),
            };
            assert!(!made.log.contains("warning"), "{arch} {pair}: {}", made.log);
        }
    }
}

/// What clang says of a source, as an error where it warns; `None` without clang.
fn clang(kernel: &Kernel, target: &Target) -> Option<String> {
    let clang = std::env::var_os("TILEWRIGHT_CLANG").unwrap_or_else(|| "clang-22".into());
    let arch = &target.arch;
    let dialect: Vec<String> = match target.dialect {
        Dialect::OpenCl => {
            ["-x", "cl", "-cl-std=CL1.2", "--target=amdgcn-amd-amdhsa", &format!("-mcpu={arch}")].map(String::from).into()
        }
        _ => ["-x", "hip", "--cuda-device-only", "-nogpuinc", &format!("--offload-arch={arch}")].map(String::from).into(),
    };
    let mut command = Command::new(&clang);
    command.args(dialect).args(["-nogpulib", "-Wall", "-Werror", "-fsyntax-only", "-"]);
    let Ok(mut child) = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        missing::missing(&format!("no {}: install clang 22", clang.to_string_lossy()));
        return None;
    };
    let source = print(kernel, target).unwrap();
    child.stdin.take().unwrap().write_all(source.text.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    Some(if done.status.success() { String::new() } else { String::from_utf8_lossy(&done.stderr).into_owned() })
}

#[test]
fn clang_has_no_warnings() {
    let known = |arch| Target::by_arch(arch).unwrap();
    let features = Features { f64: true, atomic64: true, ..Features::default() };
    let opencl = Target { dialect: Dialect::OpenCl, features, ..known("gfx900") };
    for (target, recipe) in
        [(known("gfx900"), Recipe::schedules()), (known("gfx942"), Recipe::device()), (opencl, Recipe::schedules())]
    {
        for (pair, kernel) in kernels(&target, &recipe, 24) {
            match clang(&kernel, &target) {
                Some(said) => assert_eq!(said, "", "{} {pair}", target.arch),
                None => return,
            }
        }
    }
}
