//! Finding NVIDIA's run-time libraries: one that is loaded by path is found by name from then on.

use cudarc::driver::{result, sys};
use std::path::{Path, PathBuf};

/// Loads a library that consists of several files, in order of dependence, the library itself last. False if no folder has it.
///
/// A file name may have a version after it (`libcublasLt.so.12`). All files, and further ones of the library (`libcudnn_*.so`), come from
/// one folder, because two installations cannot be mixed. The folders are those of `TILEWRIGHT_CUDA_LIBS` (joined by `:`), or else
/// CUDA's own and `nvidia/PACKAGE/lib` of the Python environments that are found. The files stay loaded.
///
/// Libraries on the loader's own path need no preloading.
pub fn preload(files: &[&str], packages: &[&str]) -> bool {
    search(files, packages).is_some()
}

/// The folders that this process has loaded files of a library from (`libcudnn`: the library and its parts).
pub fn folders_of_loaded(stem: &str) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let of_library = |file: &&Path| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.strip_prefix(stem).is_some_and(|tail| tail.starts_with(['.', '_']))
    };
    let mut folders: Vec<PathBuf> = files.filter(of_library).filter_map(|f| f.parent().map(PathBuf::from)).collect();
    folders.sort();
    folders.dedup();
    folders
}

/// Folders of NVIDIA's driver that containers do not always put on the loader's path.
const DRIVER_FOLDERS: [&str; 4] = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// Loads NVIDIA's driver: by name, else from its usual folders. False if there is none.
pub(crate) fn load_driver() -> bool {
    // SAFETY: loading the driver's library runs its initialisers, which is what is wanted.
    let present = || unsafe { sys::is_culib_present() };
    present() || (DRIVER_FOLDERS.iter().any(|f| preload_from(Path::new(f), "libcuda.so").is_some()) && present())
}

/// Loads NVIDIA's driver, if there is one, and then its OpenCL library.
///
/// OpenCL's loader looks a platform's library up by name only. The loader may find the library and its dependencies only after the driver
/// is loaded. Without this call, a process that has not used CUDA would miss the platform.
pub(crate) fn load_opencl() {
    if !load_driver() {
        return;
    }
    // The bindings keep the driver from here on. Should it not come up, its OpenCL tells the same.
    let _ = result::init();
    let usual = DRIVER_FOLDERS.iter().map(PathBuf::from);
    for folder in folders_of_loaded("libcuda").into_iter().chain(usual) {
        let file = folder.join("libnvidia-opencl.so.1");
        if file.exists() && load_for_all(&file) {
            return;
        }
    }
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

/// As [`preload`]; gives the library's file.
pub(crate) fn search(files: &[&str], packages: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os("TILEWRIGHT_CUDA_LIBS");
    let named = named.as_ref().into_iter().flat_map(std::env::split_paths);
    named.chain(places(packages, ["lib64", "lib"])).find_map(|folder| load_whole(&folder, files))
}

/// Loads what one folder holds of a library, whole or not at all.
fn load_whole(folder: &Path, files: &[&str]) -> Option<PathBuf> {
    let (library, known) = files.split_last()?;
    let there = entries(folder);
    let newest = |name: &str| there.iter().rfind(|f| is_library(f, name)).cloned();
    let own = newest(library)?;
    // Parts that nobody named, as later versions have them: before the library, too, which asks for them by name.
    let part = format!("{}_", library.trim_end_matches(".so"));
    let names = there.iter().filter_map(|f| f.file_name()?.to_str()).filter(|f| f.starts_with(&part));
    let mut unknown: Vec<&str> = names.filter_map(|f| f.find(".so").map(|at| &f[..at + 3])).collect();
    unknown.retain(|name| !known.contains(name));
    unknown.dedup();
    let parts = known.iter().chain(&unknown).filter_map(|name| newest(name));
    // SAFETY: loading the vendor's libraries runs their initialisers, which is what is wanted.
    let load = |file: PathBuf| unsafe { libloading::Library::new(file) };
    let loaded = parts.chain([own.clone()]).map(load).collect::<Result<Vec<_>, _>>().ok()?;
    // They stay loaded: functions are looked up at any later time.
    loaded.into_iter().for_each(std::mem::forget);
    Some(own)
}

/// Loads a library from a file or from one folder.
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
    fn versions_of_a_library_are_distinguished_from_its_relatives() {
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

    /// A library that does nothing; false, with a word, where there is no C compiler.
    fn build(file: &Path) -> bool {
        let built = std::process::Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(file).status();
        match built {
            Ok(status) => assert!(status.success()),
            Err(e) => {
                crate::missing::missing(&format!("cc: {e}"));
                return false;
            }
        }
        true
    }

    /// Of two installations and two broken ones, the whole of the first that is whole is loaded, and nothing else.
    #[test]
    fn a_library_comes_from_one_folder_whole() {
        let root = tempfile::tempdir().unwrap();
        let place = |folder: &str, name: &str| {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
            root.path().join(folder).join(name)
        };
        let there = [
            ("headless", "libtwset_ops.so.9"),
            ("broken", "libtwset_ops.so.9"),
            ("broken", "libtwset.so.9"),
            ("first", "libtwset_ops.so.9"),
            ("first", "libtwset_new.so.9"),
            ("first", "libtwset.so.9"),
            ("second", "libtwset_ops.so.9"),
            ("second", "libtwset_cnn.so.9"),
            ("second", "libtwset.so.9"),
        ];
        if !there.into_iter().all(|(folder, name)| build(&place(folder, name))) {
            return;
        }
        std::fs::write(place("broken", "libtwset_cnn.so.9"), b"no library").unwrap();
        let files = ["libtwset_ops.so", "libtwset_cnn.so", "libtwset.so"];
        let folders = ["headless", "broken", "first", "second"].map(|f| root.path().join(f));
        let found = folders.iter().find_map(|folder| load_whole(folder, &files));
        assert_eq!(found, Some(place("first", "libtwset.so.9")));
        assert_eq!(folders_of_loaded("libtwset"), [root.path().join("first")]);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(["_ops", "_new", ""].iter().all(|part| maps.contains(&format!("/first/libtwset{part}.so.9"))));
    }
}
