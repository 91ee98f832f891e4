//! Makes fingerprints of the sources that records depend on: one hash for each group of sources. Records of other sources have other
//! hashes. Comments and white space do not count.

use std::path::{Path, PathBuf};

/// Environment variable of the build, and the folders and files below `crates` that it covers.
const FINGERPRINTS: [(&str, &[&str]); 4] = [
    // What a plan's kernels are.
    ("GENERATOR", &["ir/src", "problem/src", "gen/src/kernel", "gen/src/plan", "gen/src/program.rs", "gen/src/space.rs"]),
    // How a kernel is compiled, launched and timed.
    ("TIMING", &["device/src", "check/src/run.rs", "tune/src/search/measure.rs"]),
    // How a time is modelled.
    ("MODEL", &["tune/src/model"]),
    // How a result is verified; on the emulator by whom.
    (
        "VERIFIER",
        &[
            "emu/src",
            "check/src/reference",
            "check/src/verify.rs",
            "check/src/verify",
            "check/src/run.rs",
            "check/src/reduce.rs",
            "check/src/spread.rs",
            "tune/src/look.rs",
            "tune/src/search/session.rs",
            "tune/src/search/session",
        ],
    ),
];

fn main() {
    // As it is now: the folder may have moved since this program was compiled.
    let crates = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    println!("cargo::rerun-if-changed=build.rs");
    for (name, sources) in FINGERPRINTS {
        // A published crate has no sources beside it, and its version names all of them.
        if !crates.join("ir/src").is_dir() {
            println!("cargo::rustc-env=TILEWRIGHT_{name}={}", env!("CARGO_PKG_VERSION"));
            continue;
        }
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        for source in sources {
            let root = crates.join(source);
            println!("cargo::rerun-if-changed={}", root.display());
            let mut files = Vec::new();
            collect(&root, &mut files);
            files.sort();
            for file in files {
                // Another path or a file that cannot be read is another source, not a failed build.
                hash.add(file.strip_prefix(&crates).unwrap_or(&file).to_string_lossy().as_bytes());
                for line in std::fs::read_to_string(&file).unwrap_or_default().lines().map(str::trim) {
                    if !line.is_empty() && !line.starts_with("//") {
                        hash.add(line.as_bytes());
                    }
                }
            }
        }
        println!("cargo::rustc-env=TILEWRIGHT_{name}={}+{:016x}", env!("CARGO_PKG_VERSION"), hash.0);
    }
}

/// The Rust files at or below a path.
fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() {
        files.extend(path.extension().is_some_and(|e| e == "rs").then(|| path.to_path_buf()));
    }
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        collect(&entry.path(), files);
    }
}

/// FNV-1a, 64 bits: the same on every machine and for every compiler.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        // A byte that no text holds keeps neighbours apart.
        for byte in bytes.iter().chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
