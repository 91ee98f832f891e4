//! AMD without AMD: printed HIP or OpenCL through clang, and what the result tells of registers, LDS and occupancy.
//!
//! No kernel runs here. This is how code for architectures that are not at hand is checked, and what `inspect` shows.

use crate::DeviceError;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tilewright_ir::{Dialect, Kernel, Source, Target};

/// Longest time one run of clang may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A clang that can compile for AMD's GPUs.
#[derive(Clone, Debug)]
pub struct Clang {
    program: PathBuf,
    /// OpenCL's built-in functions as bitcode, for the OpenCL dialect.
    libclc: Option<PathBuf>,
}

/// What a kernel uses, as the code object's metadata tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Vector registers per lane, accumulation registers included where the file is shared.
    pub vgprs: u32,
    /// Accumulation registers per lane.
    pub agprs: u32,
    /// Scalar registers per wave.
    pub sgprs: u32,
    /// Vector registers that did not fit.
    pub vgpr_spills: u32,
    /// Scalar registers that did not fit.
    pub sgpr_spills: u32,
    /// LDS per work-group in bytes.
    pub lds_bytes: u32,
    /// Scratch per lane in bytes.
    pub private_bytes: u32,
    /// Most threads per work-group.
    pub max_threads: u32,
    /// Lanes per wave.
    pub wave: u32,
    /// Waves per SIMD that registers and LDS leave room for.
    pub waves_per_simd: u32,
}

/// A kernel compiled for an AMD architecture.
#[derive(Clone, Debug)]
pub struct AmdCode {
    /// What was compiled.
    pub source: Source,
    /// Assembly with metadata.
    pub assembly: String,
    /// What it uses.
    pub usage: Usage,
    /// What the compiler said, remarks on resources included.
    pub log: String,
}

impl Clang {
    /// Finds clang: `TILEWRIGHT_CLANG`, else the newest of the usual names that knows gfx950 (clang 20 and newer).
    ///
    /// # Errors
    /// [`DeviceError::Missing`].
    pub fn find() -> Result<Clang, DeviceError> {
        let missing = |reason: String| DeviceError::Missing {
            what: "clang for AMD GPUs".into(),
            reason,
            remedy: "`apt install clang-22 lld-22 libclc-22` (20 or newer), or set TILEWRIGHT_CLANG to its path".into(),
        };
        if let Some(path) = std::env::var_os("TILEWRIGHT_CLANG") {
            let program = PathBuf::from(path);
            return match version(&program) {
                Some(major) => Ok(Clang { program, libclc: libclc(major) }),
                None => Err(missing(format!("TILEWRIGHT_CLANG is {}, which is no clang", program.display()))),
            };
        }
        let names = (20..=26).rev().map(|n| format!("clang-{n}")).chain(["clang".into(), "/opt/rocm/llvm/bin/clang".into()]);
        for name in names {
            if let Some(major @ 20..) = version(Path::new(&name)) {
                return Ok(Clang { program: name.into(), libclc: libclc(major) });
            }
        }
        Err(missing("no clang of version 20 or later was found, neither as clang-20 to clang-26 nor as clang".into()))
    }

    /// Compiles a kernel for an architecture (`gfx942`) as HIP C++ or OpenCL C.
    ///
    /// # Errors
    /// [`DeviceError::BadSpec`] for an unknown architecture or dialect, [`DeviceError::Invalid`],
    /// [`DeviceError::Compile`], [`DeviceError::CompileTimeout`], [`DeviceError::Missing`] without libclc (OpenCL).
    pub fn compile(&self, kernel: &Kernel, arch: &str, dialect: Dialect) -> Result<AmdCode, DeviceError> {
        let device = format!("clang:{arch}");
        let bad = |reason: &str| DeviceError::BadSpec { spec: device.clone(), reason: reason.into() };
        let known = Target::by_arch(arch).filter(|t| t.dialect == Dialect::Hip);
        let target = Target { dialect, ..known.ok_or_else(|| bad("no description of this architecture is built in"))? };
        let source = tilewright_ir::print(kernel, &target)
            .map_err(|e| DeviceError::Invalid { device: device.clone(), invalid: Box::new(e) })?;
        let (suffix, flags) = match dialect {
            Dialect::Hip => {
                let offload = format!("--offload-arch={arch}");
                // Kernels alone, as a compiler at run time takes them.
                let rtc = "-D__HIPCC_RTC__";
                let flags = ["-x", "hip", "--cuda-device-only", &offload, "-nogpuinc", "-nogpulib", "-std=c++17", rtc];
                ("hip", flags.map(String::from).to_vec())
            }
            Dialect::OpenCl => {
                let Some(libclc) = &self.libclc else {
                    return Err(DeviceError::Missing {
                        what: "libclc (OpenCL's built-in functions for AMD)".into(),
                        reason: "amdgcn-amd-amdhsa.bc was not found".into(),
                        remedy: "`apt install libclc-22`, or set TILEWRIGHT_LIBCLC to that file".into(),
                    });
                };
                let (cpu, libclc) = (format!("-mcpu={arch}"), libclc.display().to_string());
                let target = "--target=amdgcn-amd-amdhsa";
                let link = ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", &libclc];
                let flags = ["-x", "cl", "-cl-std=CL1.2", target, &cpu, "-nogpulib"];
                ("cl", flags.iter().chain(&link).map(|s| s.to_string()).collect())
            }
            Dialect::Cuda => return Err(bad("AMD's GPUs are spoken to in HIP or OpenCL")),
        };
        let directory = tempfile::tempdir().map_err(|e| io("a temporary folder", &e))?;
        let input = directory.path().join(format!("kernel.{suffix}"));
        let output = directory.path().join("kernel.s");
        std::fs::write(&input, &source.text).map_err(|e| io(&input.display().to_string(), &e))?;
        let mut command = Command::new(&self.program);
        command.args(flags).args(["-O3", "-S", "-Rpass-analysis=kernel-resource-usage", "-o"]).arg(&output).arg(&input);
        let log = self.run(command, &device, &source.entry)?;
        let assembly = std::fs::read_to_string(&output).map_err(|e| io(&output.display().to_string(), &e))?;
        let usage = usage(&assembly, &log, &source.entry).ok_or_else(|| DeviceError::Compile {
            device,
            entry: source.entry.clone(),
            log: "the assembly holds no metadata for the kernel".into(),
        })?;
        Ok(AmdCode { source, assembly, usage, log })
    }

    /// Assembles and links a code object (needs lld beside clang).
    ///
    /// # Errors
    /// [`DeviceError::Compile`] with the linker's words.
    pub fn link(&self, code: &AmdCode, arch: &str) -> Result<Vec<u8>, DeviceError> {
        let directory = tempfile::tempdir().map_err(|e| io("a temporary folder", &e))?;
        let (input, output) = (directory.path().join("kernel.s"), directory.path().join("kernel.hsaco"));
        std::fs::write(&input, &code.assembly).map_err(|e| io(&input.display().to_string(), &e))?;
        let mut command = Command::new(&self.program);
        command.args(["--target=amdgcn-amd-amdhsa", &format!("-mcpu={arch}"), "-o"]).arg(&output).arg(&input);
        self.run(command, &format!("clang:{arch}"), &code.source.entry)?;
        std::fs::read(&output).map_err(|e| io(&output.display().to_string(), &e))
    }

    /// Runs a command under the limit; gives what it said.
    fn run(&self, mut command: Command, device: &str, entry: &str) -> Result<String, DeviceError> {
        let program = self.program.display().to_string();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| io(&program, &e))?;
        let pipe = child.stderr.take();
        let reader = std::thread::spawn(move || {
            let mut said = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut said);
            }
            String::from_utf8_lossy(&said).into_owned()
        });
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|e| io(&program, &e))? {
                break status;
            }
            if start.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                return Err(DeviceError::CompileTimeout { device: device.into(), entry: entry.into(), limit: LIMIT });
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let log = reader.join().unwrap_or_default();
        if status.success() {
            return Ok(log);
        }
        Err(DeviceError::Compile { device: device.into(), entry: entry.into(), log: format!("{program}: {status}\n{log}") })
    }
}

fn io(what: &str, e: &std::io::Error) -> DeviceError {
    DeviceError::Io { what: what.into(), reason: e.to_string() }
}

/// Major version of a clang, if the program is one.
fn version(program: &Path) -> Option<u32> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let tail = &text[text.find("clang version ")? + "clang version ".len()..];
    tail.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Where distributions put libclc; bitcode must not be newer than the clang that reads it.
fn libclc(major: u32) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("TILEWRIGHT_LIBCLC") {
        return Some(path.into());
    }
    let file = "amdgcn-amd-amdhsa.bc";
    let places = [
        format!("/usr/lib/llvm-{major}/share/clc"),
        format!("/usr/lib/llvm-{major}/lib/clc"),
        "/usr/lib/clc".into(),
        "/usr/share/clc".into(),
        "/usr/local/share/clc".into(),
    ];
    places.iter().map(|p| Path::new(p).join(file)).find(|p| p.exists())
}

/// Reads the metadata of one kernel out of assembly, and its occupancy out of the remarks.
fn usage(assembly: &str, log: &str, entry: &str) -> Option<Usage> {
    let kernels = &assembly[assembly.find("amdhsa.kernels:")?..];
    let kernels = &kernels[..kernels.find("\namdhsa.").unwrap_or(kernels.len())];
    // Each kernel is an item of a YAML list; items of inner lists are indented further.
    let item = kernels.split("\n  - ").skip(1).find(|item| field(item, ".name") == Some(entry))?;
    let number = |key| field(item, key).and_then(|v| v.parse().ok());
    let mut usage = Usage {
        vgprs: number(".vgpr_count")?,
        agprs: number(".agpr_count").unwrap_or(0),
        sgprs: number(".sgpr_count")?,
        vgpr_spills: number(".vgpr_spill_count")?,
        sgpr_spills: number(".sgpr_spill_count")?,
        lds_bytes: number(".group_segment_fixed_size")?,
        private_bytes: number(".private_segment_fixed_size")?,
        max_threads: number(".max_flat_workgroup_size")?,
        wave: number(".wavefront_size")?,
        waves_per_simd: 0,
    };
    let of_kernel = &log[log.find(&format!("Function Name: {entry} "))?..];
    let occupancy = &of_kernel[of_kernel.find("Occupancy [waves/SIMD]: ")? + "Occupancy [waves/SIMD]: ".len()..];
    usage.waves_per_simd = occupancy.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(usage)
}

/// A field of the item itself: its arguments, which have fields of the same names, are indented further.
fn field<'a>(item: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = item.lines();
    let own = lines.next().into_iter().chain(lines.filter_map(|line| line.strip_prefix("    ")));
    own.filter_map(|line| line.strip_prefix(key)?.strip_prefix(':')).next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSEMBLY: &str = "\t.amdgpu_metadata\n---\namdhsa.kernels:\n  - .agpr_count:     4\n    .args:\n      - .offset:         0\n        .name:           gemm\n    .group_segment_fixed_size: 64\n    .max_flat_workgroup_size: 256\n    .name:           other\n    .private_segment_fixed_size: 0\n    .sgpr_count:     1\n    .sgpr_spill_count: 0\n    .vgpr_count:     1\n    .vgpr_spill_count: 0\n    .wavefront_size: 64\n  - .agpr_count:     8\n    .group_segment_fixed_size: 8192\n    .max_flat_workgroup_size: 64\n    .name:           gemm\n    .private_segment_fixed_size: 16\n    .sgpr_count:     27\n    .sgpr_spill_count: 1\n    .vgpr_count:     59\n    .vgpr_spill_count: 2\n    .wavefront_size: 64\namdhsa.target:   amdgcn-amd-amdhsa--gfx942\n";
    const LOG: &str = "remark: Function Name: other [-R]\nremark:     Occupancy [waves/SIMD]: 8 [-R]\nremark: Function Name: gemm [-R]\nremark:     Occupancy [waves/SIMD]: 5 [-R]\n";

    #[test]
    fn reads_the_right_kernel() {
        let want = Usage {
            vgprs: 59,
            agprs: 8,
            sgprs: 27,
            vgpr_spills: 2,
            sgpr_spills: 1,
            lds_bytes: 8192,
            private_bytes: 16,
            max_threads: 64,
            wave: 64,
            waves_per_simd: 5,
        };
        assert_eq!(usage(ASSEMBLY, LOG, "gemm"), Some(want));
        assert_eq!(usage(ASSEMBLY, LOG, "gem"), None);
        assert_eq!(usage("", LOG, "gemm"), None);
    }
}
