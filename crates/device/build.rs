//! Makes the fingerprint by which a process knows a worker of the same build: the version, and a hash of the sources that print, compile,
//! launch and time kernels.

use std::path::{Path, PathBuf};

fn main() {
    let crates = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    println!("cargo::rerun-if-changed=build.rs");
    let mut build = env!("CARGO_PKG_VERSION").to_string();
    // A published crate has no sources beside it, and its version names all of them.
    if crates.join("ir/src").is_dir() {
        let mut files = Vec::new();
        for folder in ["ir/src", "device/src"] {
            println!("cargo::rerun-if-changed={}", crates.join(folder).display());
            collect(&crates.join(folder), &mut files);
        }
        files.sort();
        build.push_str(&format!("+{:016x}", hash(&crates, &files)));
    }
    println!("cargo::rustc-env=TILEWRIGHT_BUILD={build}");
}

/// The files below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}

/// FNV-1a, 64 bits, of names and contents: the same on every machine and for every compiler.
fn hash(crates: &Path, files: &[PathBuf]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut add = |bytes: &[u8]| {
        // A byte that no text holds keeps neighbours apart.
        for byte in bytes.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in files {
        add(file.strip_prefix(crates).unwrap_or(file).to_string_lossy().as_bytes());
        add(&std::fs::read(file).unwrap_or_default());
    }
    hash
}
