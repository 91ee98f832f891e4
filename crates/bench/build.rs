//! Makes the fingerprint that records carry: a hash over all sources of the workspace and the versions of its dependencies, so that a
//! table says by what it was measured, whether that was committed or not. Equal trees have equal fingerprints on every machine.

use std::path::{Path, PathBuf};

fn main() {
    // Asked for when this runs: one compiled for another checkout, in a target folder that both share, would look there.
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    // A published crate has no sources beside it, and its version names all of them.
    if !root.join("crates/ir/src").is_dir() {
        println!("cargo::rustc-env=TILEWRIGHT_SOURCE={}", env!("CARGO_PKG_VERSION"));
        return;
    }
    let mut files = vec![root.join("Cargo.toml"), root.join("Cargo.lock")];
    for member in std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        files.extend(["Cargo.toml", "build.rs"].map(|name| member.path().join(name)).into_iter().filter(|file| file.exists()));
        println!("cargo::rerun-if-changed={}", member.path().join("src").display());
        collect(&member.path().join("src"), &mut files);
    }
    assert!(files.len() > 100, "{}: no sources there to fingerprint", root.display());
    files.sort();
    // FNV-1a, 64 bits.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        // A byte that no text holds keeps neighbours apart.
        for byte in bytes.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for file in &files {
        if !file.to_string_lossy().contains("/src/") {
            println!("cargo::rerun-if-changed={}", file.display());
        }
        add(file.strip_prefix(&root).unwrap_or(file).to_string_lossy().as_bytes());
        add(&std::fs::read(file).unwrap_or_default());
    }
    println!("cargo::rustc-env=TILEWRIGHT_SOURCE={} (content {hash:016x})", env!("CARGO_PKG_VERSION"));
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}
