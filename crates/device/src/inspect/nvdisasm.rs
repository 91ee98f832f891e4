//! Finding and running `nvdisasm`, which shows a cubin's instructions.

use crate::DeviceError;
use crate::cuda::tool_folders;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const NAME: &str = "nvdisasm";

/// Looks in `TILEWRIGHT_NVDISASM`, then on `PATH`, then where CUDA and its Python packages put their programs.
fn find() -> Result<PathBuf, DeviceError> {
    let missing = |reason: String| DeviceError::Missing {
        what: "nvdisasm (NVIDIA's disassembler)".into(),
        reason,
        remedy: "install the CUDA toolkit, or `pip install nvidia-cuda-nvdisasm`, and put it on PATH or set TILEWRIGHT_NVDISASM \
                 to its path"
            .into(),
    };
    if let Some(path) = std::env::var_os("TILEWRIGHT_NVDISASM") {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(missing(format!("TILEWRIGHT_NVDISASM is {}, which is no file", path.display())))
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(tool_folders(&["cu13", "cuda_nvdisasm"]));
    let mut files = folders.map(|folder| folder.join(NAME));
    files.find(|file| file.is_file()).ok_or_else(|| missing("it was not found on PATH or beside NVIDIA's libraries".into()))
}

/// The instructions of a cubin with their encodings.
///
/// # Errors
/// [`DeviceError::Missing`] without nvdisasm, [`DeviceError::Io`] if it fails.
pub(super) fn disassemble(cubin: &[u8]) -> Result<String, DeviceError> {
    let program = find()?;
    let io = |what: &str, reason: String| DeviceError::Io { what: what.into(), reason };
    let folder = tempfile::tempdir().map_err(|e| io("a temporary folder", e.to_string()))?;
    let file = folder.path().join("kernel.cubin");
    std::fs::write(&file, cubin).map_err(|e| io(&file.display().to_string(), e.to_string()))?;
    let name = program.display().to_string();
    let output = Command::new(&program).args(["-hex", "-c"]).arg(&file).stdin(Stdio::null()).output();
    let output = output.map_err(|e| io(&name, e.to_string()))?;
    if !output.status.success() {
        return Err(io(&name, format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
