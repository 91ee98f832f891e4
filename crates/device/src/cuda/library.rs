//! Finding NVIDIA's run-time libraries: one that is loaded by path is found by name from then on.

use cudarc::driver::{result, sys};
use std::path::{Path, PathBuf};

/// Loads a library of this file name (`libnvrtc.so`, with or without a version behind it) from the folders in
/// `TILEWRIGHT_CUDA_LIBS` (joined by `:`) or else from well-known ones: CUDA's, and those of the Python packages
/// `nvidia/PACKAGE/lib` of the environments at hand. It stays loaded. False if there is none.
///
/// Libraries on the loader's own path need no preloading.
pub fn preload(name: &str, packages: &[&str]) -> bool {
    search(name, packages).is_some()
}

/// Folders of NVIDIA's driver that containers do not always put on the loader's path.
const DRIVER_FOLDERS: [&str; 4] = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// Loads NVIDIA's driver: by name, else from its usual folders. False if there is none.
pub(crate) fn load_driver() -> bool {
    // SAFETY: loading the driver's library runs its initialisers, which is what is wanted.
    let present = || unsafe { sys::is_culib_present() };
    present() || (DRIVER_FOLDERS.iter().any(|f| preload_from(Path::new(f), "libcuda.so").is_some()) && present())
}

/// Loads NVIDIA's driver, if there is one, and then its OpenCL beside it.
///
/// OpenCL's loader asks for a platform's library by name only; that, and what the library needs in turn, may be found only
/// once the driver is up. A process that has not used CUDA would then miss a platform that another one lists.
pub(crate) fn load_opencl() {
    if !load_driver() {
        return;
    }
    // The bindings keep the driver from here on. Should it not come up, its OpenCL tells the same.
    let _ = result::init();
    let usual = DRIVER_FOLDERS.iter().map(PathBuf::from);
    for folder in folder_of_loaded("libcuda.so").into_iter().chain(usual) {
        let file = folder.join("libnvidia-opencl.so.1");
        if file.exists() && load_for_all(&file) {
            return;
        }
    }
}

/// Folder of a library of this name that this process has loaded.
fn folder_of_loaded(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let file = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..]))).find(|f| is_library(f, name))?;
    file.parent().map(PathBuf::from)
}

/// Loads a library with its symbols visible to what is loaded later; it stays loaded.
#[cfg(unix)]
fn load_for_all(file: &Path) -> bool {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
    // SAFETY: loading the vendor's library runs its initialisers, which is what is wanted.
    let loaded = unsafe { Library::open(Some(file), RTLD_LAZY | RTLD_GLOBAL) };
    loaded.map(std::mem::forget).is_ok()
}

#[cfg(not(unix))]
fn load_for_all(file: &Path) -> bool {
    preload_from(file, "").is_some()
}

/// As [`preload`]; gives the file.
pub(crate) fn search(name: &str, packages: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os("TILEWRIGHT_CUDA_LIBS");
    let named = named.as_ref().into_iter().flat_map(std::env::split_paths);
    named.chain(places(packages, ["lib64", "lib"])).find_map(|folder| preload_from(&folder, name))
}

/// As [`search`], from a file or from one folder.
pub(crate) fn preload_from(path: &Path, name: &str) -> Option<PathBuf> {
    let files = if path.is_dir() {
        let mut files: Vec<_> = entries(path).into_iter().filter(|f| is_library(f, name)).collect();
        // The newest last in name stands first.
        files.sort();
        files.reverse();
        files
    } else {
        vec![path.to_path_buf()]
    };
    for file in files {
        // SAFETY: loading the vendor's library runs its initialisers, which is what is wanted.
        if let Ok(library) = unsafe { libloading::Library::new(&file) } {
            // It stays loaded: functions are looked up at any later time.
            std::mem::forget(library);
            return Some(file);
        }
    }
    None
}

/// `name`, `name.NN` or `name.NN.N`.
fn is_library(file: &Path, name: &str) -> bool {
    let file = file.file_name().unwrap_or_default().to_string_lossy();
    let tail = file.strip_prefix(name);
    let is_version = |v: &str| v.split('.').all(|n| n.parse::<u32>().is_ok());
    tail.is_some_and(|tail| tail.is_empty() || tail.strip_prefix('.').is_some_and(is_version))
}

/// Well-known folders that may hold a program of CUDA, likeliest first: beside a library that is named, CUDA's, those of the
/// Python packages `nvidia/PACKAGE/bin`.
pub(crate) fn tool_folders(packages: &[&str]) -> Vec<PathBuf> {
    let named = std::env::var_os("TILEWRIGHT_NVRTC").map(PathBuf::from);
    let beside = named.iter().flat_map(|path| path.ancestors().take(3)).map(|folder| folder.join("bin"));
    beside.chain(places(packages, ["bin", "bin"])).collect()
}

/// Well-known folders that may hold what is looked for, likeliest first. `within`: the folder's name in CUDA's own tree and in
/// Python packages.
fn places(packages: &[&str], within: [&str; 2]) -> Vec<PathBuf> {
    let [own, package] = within;
    let mut places = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = std::env::var_os(variable) {
            places.push(Path::new(&root).join(own));
        }
    }
    for root in entries(Path::new("/usr/local")) {
        if root.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cuda")) {
            places.push(root.join(own));
        }
    }
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    // The environment of the python that a shell would start.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).find(|folder| folder.join("python3").exists());
    prefixes.extend(python.and_then(|folder| folder.parent().map(PathBuf::from)));
    prefixes.extend(std::env::var_os("HOME").map(|h| Path::new(&h).join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    for prefix in prefixes {
        for python in entries(&prefix.join("lib")) {
            if !python.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")) {
                continue;
            }
            for site in ["site-packages", "dist-packages"] {
                places.extend(packages.iter().map(|p| python.join(site).join("nvidia").join(p).join(package)));
            }
        }
    }
    places
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_library_are_told_from_its_relatives() {
        let is = |file: &str| is_library(Path::new(file), "libcublas.so");
        assert!(is("/x/libcublas.so") && is("/x/libcublas.so.13") && is("/x/libcublas.so.13.1"));
        assert!(!is("/x/libcublasLt.so.13") && !is("/x/libcublas.so.alt") && !is("/x/libcublas.so13"));
    }

    #[test]
    fn what_is_not_there_is_not_loaded() {
        assert_eq!(preload_from(Path::new("/nonexistent"), "libcublas.so"), None);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libcublas.so.13"), b"no library").unwrap();
        assert_eq!(preload_from(folder.path(), "libcublas.so"), None);
    }
}
