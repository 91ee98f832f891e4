//! Which program the workers are.

use crate::DeviceError;
use crate::worker::{Workers, is_worker};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Names the program that workers are: a path to the command `tilewright`.
const VARIABLE: &str = "TILEWRIGHT_WORKER";
/// The argument that makes a worker of the command, and of a program that calls [`worker_main`]: a hidden subcommand.
pub const COMPILE_WORKER: &str = "compile-worker";

/// The running program calls [`worker_main`].
static OWN: AtomicBool = AtomicBool::new(false);

/// The program that workers are.
///
/// ```
/// use tilewright_device::{COMPILE_WORKER, Program};
///
/// // A plug-in names the program that its workers are; the program must call `compile_worker_main`.
/// let program = Program::new("/opt/bin/tilewright", [COMPILE_WORKER.into()]);
/// assert_ne!(program, Program::new("/opt/bin/tilewright", []));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    path: PathBuf,
    args: Vec<OsString>,
}

/// Makes a worker of this process where it was started as one, and then does not return. Call it first in `main`: workers are then this
/// same program, and no command is needed.
pub fn worker_main() {
    if std::env::args_os().nth(1).is_some_and(|a| a == COMPILE_WORKER) && is_worker() {
        crate::exit_now(crate::compile_worker_main());
    }
    OWN.store(true, Ordering::Relaxed);
}

impl Program {
    /// Workers are `path args...`, which must end in a call of [`crate::compile_worker_main`].
    pub fn new(path: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>) -> Program {
        Program { path: path.into(), args: args.into_iter().collect() }
    }

    /// The first of these programs:
    ///
    /// - the program that the environment variable `TILEWRIGHT_WORKER` names;
    /// - this program, where it called [`worker_main`];
    /// - the command `tilewright` beside the file that this code was loaded from, or in `../bin` of its folder;
    /// - the command `tilewright` in `PATH`.
    ///
    /// # Errors
    /// [`DeviceError::NoWorker`] if there is none.
    pub fn find(device: &str) -> Result<Program, DeviceError> {
        let command = |path: PathBuf| Program::new(path, [COMPILE_WORKER.into()]);
        if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            if !path.is_file() {
                let reason = format!("{VARIABLE} names {}, which is no file", path.display());
                return Err(DeviceError::NoWorker { device: device.into(), reason });
            }
            return Ok(command(path));
        }
        if OWN.load(Ordering::Relaxed)
            && let Ok(path) = std::env::current_exe()
        {
            return Ok(command(path));
        }
        let name = format!("tilewright{}", std::env::consts::EXE_SUFFIX);
        let beside = own_folder().into_iter().flat_map(|own| [own.join("../bin"), own].into_iter().rev());
        let folders = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
        let found = beside.chain(folders).map(|folder| folder.join(&name)).find(|path| path.is_file());
        found.map(command).ok_or_else(|| DeviceError::NoWorker {
            device: device.into(),
            reason: format!("there is no command `{name}` beside the library, in `../bin` of its folder or in PATH"),
        })
    }

    pub(super) fn workers(&self) -> Workers {
        Workers::new(&self.path, self.args.clone())
    }
}

/// Folder of the library or the program that holds this code.
fn own_folder() -> Option<PathBuf> {
    #[cfg(target_os = "linux")]
    {
        let address = own_folder as fn() -> Option<PathBuf> as usize;
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        if let Some(file) = maps.lines().find_map(|line| mapped(line, address)) {
            return file.parent().map(Path::to_path_buf);
        }
    }
    std::env::current_exe().ok()?.parent().map(Path::to_path_buf)
}

/// The file of a line of `/proc/self/maps`, if the address lies in it.
#[cfg(target_os = "linux")]
fn mapped(line: &str, address: usize) -> Option<PathBuf> {
    let (from, to) = line.split(' ').next()?.split_once('-')?;
    let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16));
    if !(from.ok()?..to.ok()?).contains(&address) {
        return None;
    }
    line.find('/').map(|at| PathBuf::from(&line[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_folder_of_this_code_is_known() {
        let here = std::env::current_exe().unwrap();
        assert_eq!(own_folder().as_deref(), here.parent());
        assert_eq!(mapped("1000-2000 r-xp 0 08:01 7   /a b/c.so", 0x1800), Some("/a b/c.so".into()));
        assert_eq!(mapped("1000-2000 r-xp 0 08:01 7   /a b/c.so", 0x2000), None);
        assert_eq!(mapped("1000-2000 r-xp 0 00:00 0", 0x1800), None);
    }
}
