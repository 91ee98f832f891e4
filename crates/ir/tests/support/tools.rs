//! Compilers that need no device. Where one is missing a test says so in one line and passes, unless
//! `TILEWRIGHT_REQUIRE_TOOLS=1` demands it. `TILEWRIGHT_KEEP=folder` keeps what was compiled for inspection.

#[path = "missing.rs"]
mod missing;

use cudarc::nvrtc::{result as nvrtc, sys};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use tilewright_ir::*;

/// Called where a tool is missing.
pub fn skip(tool: &str, remedy: &str) {
    missing::missing(&format!("no {tool}: {remedy}"));
}

/// clang as a command: `TILEWRIGHT_CLANG`, else clang 22; `None` if it does not start.
fn clang_command() -> Option<Command> {
    let tool = std::env::var_os("TILEWRIGHT_CLANG").unwrap_or_else(|| "clang-22".into());
    if Command::new(&tool).arg("--version").output().is_err() {
        skip(&tool.to_string_lossy(), "install clang 22");
        return None;
    }
    Some(Command::new(tool))
}

/// Where compiler inputs and outputs go.
struct Folder {
    path: PathBuf,
    _temporary: Option<tempfile::TempDir>,
}

fn folder() -> Folder {
    match std::env::var_os("TILEWRIGHT_KEEP") {
        Some(path) => {
            std::fs::create_dir_all(&path).expect("TILEWRIGHT_KEEP is a folder one can make");
            Folder { path: path.into(), _temporary: None }
        }
        None => {
            let temporary = tempfile::tempdir().expect("a temporary folder");
            Folder { path: temporary.path().into(), _temporary: Some(temporary) }
        }
    }
}

/// Compiles a kernel for an AMD device with clang; gives the assembly, or `None` if there is no clang.
pub fn clang(kernel: &Kernel, target: &Target) -> Option<String> {
    let mut command = clang_command()?;
    let source = print(kernel, target).unwrap_or_else(|e| panic!("{e}"));
    let folder = folder();
    let extension = if target.dialect == Dialect::Hip { "hip" } else { "cl" };
    let input = folder.path.join(format!("{}_{}.{extension}", kernel.name, target.arch));
    let output = input.with_extension(format!("{extension}.s"));
    std::fs::write(&input, &source.text).expect("the source is written");
    if target.dialect == Dialect::Hip {
        command
            .args(["-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "-Wall", "-Werror"])
            .arg(format!("--offload-arch={}", target.arch));
    } else {
        command
            .args(["-x", "cl", "-cl-std=CL1.2", "--target=amdgcn-amd-amdhsa", "-nogpulib"])
            .arg(format!("-mcpu={}", target.arch));
        // What the device's compiler would link: without it even get_local_id is a call and nothing can be measured.
        if let Some(library) = libclc() {
            command.args(["-Xclang", "-mlink-builtin-bitcode", "-Xclang"]).arg(library);
        }
    }
    command.args(["-O3", "-S", "-o"]).arg(&output).arg(&input);
    let done = command.output().expect("clang runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{} for {}: {said}\n{}", kernel.name, target.arch, source.text);
    Some(std::fs::read_to_string(output).expect("clang wrote assembly"))
}

/// Compiles and runs a C++ program on this machine; gives what it printed, or `None` if there is no clang.
pub fn run_on_host(program: &str) -> Option<String> {
    let mut command = clang_command()?;
    let folder = folder();
    let (input, binary) = (folder.path.join("host.cpp"), folder.path.join("host"));
    std::fs::write(&input, program).expect("the program is written");
    let flags = ["--driver-mode=g++", "-O2", "-nostdinc++", "-nostdlib++", "-o"];
    let built = command.args(flags).arg(&binary).arg(&input).arg("-lm").output();
    let built = built.expect("clang runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = Command::new(&binary).output().expect("the program runs");
    Some(String::from_utf8_lossy(&run.stdout).into_owned())
}

fn libclc() -> Option<&'static str> {
    let path = "/usr/lib/clc/amdgcn-amd-amdhsa.bc";
    Path::new(path).exists().then_some(path)
}

/// What NVRTC made of a kernel.
pub struct Cubin {
    /// What the compiler said, with ptxas' account of registers and spills.
    pub log: String,
    /// The binary.
    pub binary: Vec<u8>,
}

/// NVRTC is asked by one thread at a time.
static NVRTC: Mutex<()> = Mutex::new(());

/// Compiles a kernel for an NVIDIA device; `None` if there is no NVRTC.
pub fn nvrtc(kernel: &Kernel, target: &Target) -> Option<Cubin> {
    let _turn = NVRTC.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(path) = std::env::var_os("TILEWRIGHT_NVRTC") {
        // The library itself, or its folder, as everywhere else.
        let named = PathBuf::from(path);
        let path = if named.is_dir() { named.join("libnvrtc.so.13") } else { named };
        // NVRTC opens its builtins by name, which is found if it is loaded already.
        let folder = path.parent().and_then(|folder| folder.read_dir().ok());
        let builtins = folder.into_iter().flatten().filter_map(|f| Some(f.ok()?.path()));
        let is_builtins = |p: &PathBuf| p.to_string_lossy().contains("libnvrtc-builtins.so");
        for library in builtins.filter(is_builtins).chain([path.clone()]) {
            // SAFETY: loading NVIDIA's library runs its initialisers, as linking to it would. It stays loaded, so that the
            // next search by name finds it.
            let loaded = unsafe { libloading::Library::new(&library) };
            match loaded {
                Ok(loaded) => std::mem::forget(loaded),
                Err(e) => {
                    skip("NVRTC", &format!("{}: {e}", library.display()));
                    return None;
                }
            }
        }
    }
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        skip("NVRTC", "put libnvrtc.so.13 on LD_LIBRARY_PATH or name it in TILEWRIGHT_NVRTC");
        return None;
    }
    let source = print(kernel, target).unwrap_or_else(|e| panic!("{e}"));
    let text = CString::new(source.text.as_str()).expect("source holds no zero byte");
    let options = [format!("--gpu-architecture={}", target.arch), "--ptxas-options=-v".into()];
    let program = nvrtc::create_program(&text, None).expect("NVRTC makes a program");
    // SAFETY: the program lives until it is destroyed below, the buffer has the size NVRTC asked for.
    let (compiled, log, binary) = unsafe {
        let compiled = nvrtc::compile_program(program, &options);
        let log = nvrtc::get_program_log(program).expect("a log");
        let log = CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned();
        let mut size = 0;
        let mut binary = Vec::new();
        if compiled.is_ok() {
            sys::nvrtcGetCUBINSize(program, &mut size).result().expect("a size");
            binary = vec![0u8; size];
            sys::nvrtcGetCUBIN(program, binary.as_mut_ptr().cast()).result().expect("a binary");
        }
        nvrtc::destroy_program(program).expect("the program goes");
        (compiled, log, binary)
    };
    if std::env::var_os("TILEWRIGHT_KEEP").is_some() {
        let base = folder().path.join(format!("{}_{}", kernel.name, target.arch));
        std::fs::write(base.with_extension("cu"), &source.text).expect("the source is written");
        std::fs::write(base.with_extension("cubin"), &binary).expect("the binary is written");
    }
    assert!(compiled.is_ok(), "{} for {}: {log}\n{}", kernel.name, target.arch, source.text);
    assert!(!log.contains("warning"), "{} for {}: {log}", kernel.name, target.arch);
    Some(Cubin { log, binary })
}

/// The instructions of a binary, or `None` if there is no nvdisasm: named in `TILEWRIGHT_NVDISASM`, beside NVRTC, or on the path.
pub fn nvdisasm(cubin: &Cubin) -> Option<String> {
    let named = std::env::var_os("TILEWRIGHT_NVDISASM").map(PathBuf::from);
    let beside = std::env::var_os("TILEWRIGHT_NVRTC").map(|p| PathBuf::from(p).join("../bin/nvdisasm")).filter(|p| p.is_file());
    let tool = named.or(beside).unwrap_or_else(|| "nvdisasm".into());
    if Command::new(&tool).arg("--version").output().is_err() {
        skip("nvdisasm", "put it on PATH or name it in TILEWRIGHT_NVDISASM");
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("kernel.cubin");
    std::fs::write(&file, &cubin.binary).expect("the binary is written");
    let done = Command::new(tool).arg("-c").arg(&file).output().expect("nvdisasm runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}
