//! The header against the library, and the examples compiled and run: with the shared and the static library, on the emulator and on
//! OpenCL where it is.

use crate::missing;
use crate::pages;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tilewright_c::{NAMES, TwCall, TwConv, TwGemm, TwMemory, TwOperands, TwOptions, TwReduce};

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn header() -> String {
    std::fs::read_to_string(package().join("include/tilewright.h")).expect("the header")
}

fn output(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            missing::missing(&format!("{} (apt install gcc g++ pkg-config cmake)", command.get_program().to_string_lossy()));
            None
        }
        Err(e) => panic!("{command:?}: {e}"),
    }
}

fn succeeds(command: &mut Command) -> Option<String> {
    let output = output(command)?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    Some(out.into_owned())
}

/// Where the libraries that this test was built with stand.
fn built() -> PathBuf {
    let here = std::env::current_exe().expect("this test");
    here.parent().expect("a folder").into()
}

#[test]
fn every_function_of_the_library_stands_in_the_header() {
    let header = header();
    let declared: BTreeSet<&str> =
        header.lines().filter(|l| !l.starts_with([' ', '/', '*'])).filter_map(|l| word(l.split_once('(')?.0)).collect();
    let mut defined = BTreeSet::new();
    let sources: Vec<String> = std::fs::read_dir(package().join("src"))
        .expect("sources")
        .map(|f| std::fs::read_to_string(f.expect("a file").path()).expect("text"))
        .collect();
    for source in &sources {
        let after = source.split("#[unsafe(no_mangle)]").skip(1);
        defined.extend(after.filter_map(|text| word(text.split('(').next()?)));
    }
    assert!(defined.len() > 20, "{defined:?}");
    assert_eq!(declared, defined);

    fn word(text: &str) -> Option<&str> {
        text.rsplit([' ', '*', '\n']).next().filter(|w| w.starts_with("tw_"))
    }
}

#[test]
fn structures_and_numbers_are_those_of_the_header() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut text = String::from("#include <tilewright.h>\n");
    for (name, size) in [
        ("tw_options", size_of::<TwOptions>()),
        ("tw_gemm", size_of::<TwGemm>()),
        ("tw_conv", size_of::<TwConv>()),
        ("tw_reduce", size_of::<TwReduce>()),
        ("tw_operands", size_of::<TwOperands>()),
        ("tw_memory", size_of::<TwMemory>()),
        ("tw_call", size_of::<TwCall>()),
    ] {
        text += &format!("_Static_assert(sizeof({name}) == {size}, \"{name}\");\n");
    }
    macro_rules! offsets {
        ($text:ident, $c:literal, $rust:ty, $($field:ident)*) => {
            $($text += &format!("_Static_assert(offsetof({}, {}) == {}, \"{}\");\n",
                $c, stringify!($field), std::mem::offset_of!($rust, $field), stringify!($field));)*
        };
    }
    offsets!(text, "tw_options", TwOptions, device records workspace trials atomics ieee reserved);
    offsets!(text, "tw_gemm", TwGemm, m lda ldr batch stride_a stride_r dtype out_dtype order math trans_a trans_b bias activation residual dynamic_m dynamic_batch reduce drop_c scale_m scale_n zero_a zero_b grouped b_dtype conj_a conj_b alpha_im beta_im gate up_first gate_limit gate_slope interleaved preactivations separate_up softcap k2 lda2);
    offsets!(text, "tw_conv", TwConv, n groups input filter stride dilation pad_begin pad_end dims direction layout dtype out_dtype math bias activation residual mask drop_c reduce);
    offsets!(text, "tw_reduce", TwReduce, shape strides over dims dtype activation ops);
    offsets!(text, "tw_operands", TwOperands, a b c bias residual workspace alpha beta extents reductions scale_m scale_n zero_a zero_b ends alpha_im beta_im);
    offsets!(text, "tw_memory", TwMemory, role address);
    offsets!(text, "tw_call", TwCall, memories count alpha beta alpha_im beta_im extents);
    for (number, name) in NAMES.iter().enumerate() {
        text += &format!("_Static_assert({} == {number}, \"status\");\n", name.to_str().expect("a name"));
    }
    let file = folder.path().join("header.c");
    std::fs::write(&file, text).expect("a file");
    let mut cc = Command::new("gcc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"]).arg(package().join("include"));
    succeeds(cc.arg(&file));
    // Programs need no more than C99.
    let mut cc = Command::new("gcc");
    cc.args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-x", "c"]);
    succeeds(cc.arg(package().join("include/tilewright.h")));
}

#[test]
fn examples_run_with_the_installed_libraries() {
    let prefix = tempfile::tempdir().expect("a folder");
    let prefix = prefix.path();
    succeeds(Command::new(package().join("../../scripts/install-c")).arg(prefix).arg(built()));
    let flags = |which: &[&str]| {
        let mut command = Command::new("pkg-config");
        let found = succeeds(command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(which).arg("tilewright"))?;
        Some(found.split_whitespace().map(String::from).collect::<Vec<_>>())
    };
    let strict = ["-Wall", "-Wextra", "-pedantic", "-Werror"];
    let (Some(shared), Some(include)) = (flags(&["--cflags", "--libs"]), flags(&["--cflags"])) else { return };
    let [c, reductions, cpp] = ["gemm.c", "reduce.c", "conv.cpp"].map(|file| package().join("examples").join(file));

    let (gemm, reduce) = (prefix.join("gemm"), prefix.join("reduce"));
    let compiled = |from: &Path, to: &Path| {
        let mut cc = Command::new("gcc");
        cc.arg("-std=c11").args(strict).arg(from).args(&shared).arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
        succeeds(cc.arg("-o").arg(to))
    };
    let conv = prefix.join("conv");
    let mut cxx = Command::new("g++");
    cxx.arg("-std=c++11").args(strict).arg(&cpp).args(&include).arg(prefix.join("lib/libtilewright.a"));
    cxx.args(["-lpthread", "-ldl", "-lm"]);
    if compiled(&c, &gemm).is_none() || compiled(&reductions, &reduce).is_none() || succeeds(cxx.arg("-o").arg(&conv)).is_none() {
        return;
    }
    let needed = succeeds(Command::new("objdump").arg("-p").arg(&gemm)).unwrap_or_default();
    assert!(needed.contains("libtilewright.so.0"), "the program looks for the library under another name:\n{needed}");

    let first = of_first(prefix, &shared);
    run(&[&gemm, &reduce, &conv, &first[0], &first[1], &first[2]]);
}

/// The programs of version 0.1.0, compiled with the header of that version and linked with the installed libraries.
fn of_first(prefix: &Path, shared: &[String]) -> [PathBuf; 3] {
    let folder = package().join("tests/v0_1_0");
    ["gemm.c", "reduce.c", "conv.cpp"].map(|file| {
        let program = prefix.join(format!("first-{}", file.split('.').next().expect("a name")));
        let (compiler, standard) = if file.ends_with("cpp") { ("g++", "-std=c++11") } else { ("gcc", "-std=c99") };
        let mut cc = Command::new(compiler);
        cc.args([standard, "-I"]).arg(&folder).arg(folder.join(file)).arg("-o").arg(&program);
        if file.ends_with("cpp") {
            cc.arg(prefix.join("lib/libtilewright.a")).args(["-lpthread", "-ldl", "-lm"]);
        } else {
            cc.args(shared).arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
        }
        succeeds(&mut cc);
        program
    })
}

/// Programs of version 0.1.0 run with this library because layouts and numbers are the same in both headers.
#[test]
fn layouts_of_the_first_version_are_those_of_the_header() {
    let first = package().join("tests/v0_1_0");
    for header in [first.clone(), package().join("include")] {
        let mut cc = Command::new("gcc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"]).arg(header);
        succeeds(cc.arg(first.join("layout.c")));
    }
}

/// The programs of the README and of the guides, compiled as the examples are, and run; what is no program is compiled alone.
#[test]
fn blocks_of_the_pages_compile_and_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path();
    succeeds(Command::new(package().join("../../scripts/install-c")).arg(prefix).arg(built()));
    let (source, program) = (prefix.join("block.c"), prefix.join("block"));
    let mut programs = 0;
    for page in pages::Page::of_users(&package().join("../..")) {
        for block in page.blocks().iter().filter(|b| b.is("c", &[])) {
            let whole = block.text.contains("int main");
            let mut text = format!("#line {} \"{}\"\n{}", block.line, page.name, block.text);
            if !block.text.contains("#include") {
                text = format!("#include <tilewright.h>\nvoid block(void);\nvoid block(void) {{\n{text}\n}}\n");
            }
            std::fs::write(&source, text).expect("a file");
            let mut cc = Command::new("gcc");
            cc.args(["-std=c11", "-Wall", "-Werror", "-I"]).arg(prefix.join("include")).arg(&source);
            if !whole {
                succeeds(cc.args(["-Wno-unused", "-fsyntax-only"]));
                continue;
            }
            cc.arg("-L").arg(prefix.join("lib")).arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
            if succeeds(cc.arg("-ltilewright").arg("-o").arg(&program)).is_none() {
                return;
            }
            programs += 1;
            if block.is("c", &["gpu"]) {
                succeeds(Command::new(&program).env("TILEWRIGHT_RECORDS", prefix.join("records.sqlite")).current_dir(prefix));
            }
        }
    }
    assert!(programs > 0, "no page has a program");
}

/// A project of somebody else's, which `find_package` shows both libraries.
#[test]
fn examples_run_with_what_cmake_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (prefix, build) = (folder.path().join("prefix"), folder.path().join("build"));
    succeeds(Command::new(package().join("../../scripts/install-c")).arg(&prefix).arg(built()));
    let configured = |asked: &str| {
        let mut cmake = Command::new("cmake");
        cmake.arg("-S").arg(package().join("examples")).arg("-B").arg(&build);
        cmake.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display())).arg(format!("-DTILEWRIGHT_VERSION={asked}"));
        cmake
    };
    if succeeds(&mut configured(env!("CARGO_PKG_VERSION"))).is_none() {
        return;
    }
    succeeds(Command::new("cmake").arg("--build").arg(&build));
    let needed = |program: &str| succeeds(Command::new("objdump").arg("-p").arg(build.join(program))).unwrap_or_default();
    assert!(needed("gemm").contains("libtilewright.so.0"), "{}", needed("gemm"));
    assert!(!needed("conv").contains("libtilewright"), "{}", needed("conv"));
    run(&[&build.join("gemm"), &build.join("reduce"), &build.join("conv")]);

    let refuses = |asked: &str, says: &str| {
        let refused = output(&mut configured(asked)).expect("cmake, which ran");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.replace(['\n', ' '], "").contains(&says.replace(' ', "")), "{said}");
    };
    // Another version is not taken, and cmake says which there is.
    refuses("99.0", &format!("version: {}", env!("CARGO_PKG_VERSION")));
    // Where cargo-c puts what.
    for (from, to) in [("lib/cmake", "share/cmake"), ("lib", "x86_64"), ("x86_64", "lib/x86_64")] {
        let to = prefix.join(to);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        std::fs::rename(prefix.join(from), to).expect("another place");
    }
    std::fs::remove_dir_all(&build).expect("what was built");
    succeeds(&mut configured(""));
    succeeds(Command::new("cmake").arg("--build").arg(&build).args(["--target", "reduce", "conv"]));
    run(&[&build.join("reduce"), &build.join("conv")]);
    std::fs::remove_file(prefix.join("lib/x86_64/libtilewright.a")).expect("what was installed");
    refuses("", "install them again");
}

/// A program without TILEWRIGHT_WORKER, and without the command in PATH: its worker is the command that was installed with the library.
#[test]
fn the_installed_command_is_the_worker() {
    if !tilewright::list_devices().iter().any(|l| l.device.is_ok() && l.backend == tilewright::Backend::OpenCl) {
        return missing::missing("an OpenCL device");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let [from, prefix, program] = ["built", "prefix", "gemm"].map(|name| folder.path().join(name));
    std::fs::create_dir(&from).expect("a folder");
    for library in ["libtilewright_c.so", "libtilewright_c.a"] {
        std::os::unix::fs::symlink(built().join(library), from.join(library)).expect("a link");
    }
    worker().persist(from.join("tilewright")).expect("a script");
    succeeds(Command::new(package().join("../../scripts/install-c")).arg(&prefix).arg(&from));
    let mut cc = Command::new("gcc");
    cc.arg("-I").arg(prefix.join("include")).arg(package().join("examples/gemm.c")).arg("-L").arg(prefix.join("lib"));
    cc.arg("-ltilewright").arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    if succeeds(cc.arg("-o").arg(&program)).is_none() {
        return;
    }
    let run = || {
        let mut command = Command::new(&program);
        command.arg("opencl:0").env_remove("TILEWRIGHT_WORKER").env("PATH", "/usr/bin:/bin");
        command
    };
    assert!(succeeds(&mut run()).is_some_and(|said| said.lines().last().is_some_and(|last| last.starts_with("ok"))));
    std::fs::remove_file(prefix.join("bin/tilewright")).expect("it was installed");
    let refused = output(&mut run()).expect("a program");
    let said = [refused.stdout, refused.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(!refused.status.success() && said.contains("no command `tilewright`"), "{said}");
}

/// This test program as the worker of what the examples tune: a script that starts it so.
///
/// `install` writes the script: a child that another test forks could hold a file of this process open, and an open script does not start.
fn worker() -> tempfile::TempPath {
    let this = std::env::current_exe().expect("this test");
    let mut text = tempfile::NamedTempFile::new().expect("a file");
    writeln!(text, "#!/bin/sh\nexec '{}' examples::is_a_worker --exact --nocapture", this.display()).expect("a script");
    let script = tempfile::NamedTempFile::new().expect("a file").into_temp_path();
    let mut install = Command::new("install");
    install.arg("-m755").arg(text.path()).arg(&script);
    assert!(install.status().expect("install").success());
    script
}

/// A worker where the program was started as one; else there is nothing to test.
#[test]
fn is_a_worker() {
    if std::env::var_os("TILEWRIGHT_COMPILE_ANSWERS").is_some() {
        tilewright::exit_now(tilewright::compile_worker_main());
    }
}

/// Runs programs on the emulator, and on OpenCL where it is.
fn run(programs: &[&Path]) {
    let opencl = tilewright::list_devices().iter().any(|l| l.device.is_ok() && l.backend == tilewright::Backend::OpenCl);
    if !opencl {
        missing::missing("an OpenCL device: the C examples run on the emulator alone");
    }
    let worker = &worker();
    for device in ["emu"].into_iter().chain(opencl.then_some("opencl:0")) {
        for program in programs {
            let said = succeeds(Command::new(program).arg(device).env("TILEWRIGHT_WORKER", worker)).unwrap_or_default();
            // Programs of version 0.1.0 say "as it should" where later ones say what is refused.
            let refuses = ["is refused: ", "as it should: "].iter().any(|words| said.contains(words));
            assert!(said.lines().last().is_some_and(|last| last.starts_with("ok")) && refuses, "{said}");
        }
    }
}
