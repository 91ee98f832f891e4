//! Makes the generator's fingerprint: a hash over what the sources of `ir` and `gen` say, so that records of another generator
//! are told from those of this one. Comments and white space do not count.

use std::path::{Path, PathBuf};

fn main() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for name in ["ir", "gen"] {
        let root = crates.join(name).join("src");
        println!("cargo::rerun-if-changed={}", root.display());
        let mut files = Vec::new();
        collect(&root, &mut files);
        files.sort();
        for file in files {
            // Another path or a file that cannot be read is another generator, not a failed build.
            hash.add(file.strip_prefix(&crates).unwrap_or(&file).to_string_lossy().as_bytes());
            for line in std::fs::read_to_string(&file).unwrap_or_default().lines().map(str::trim) {
                if !line.is_empty() && !line.starts_with("//") {
                    hash.add(line.as_bytes());
                }
            }
        }
    }
    println!("cargo::rustc-env=TILEWRIGHT_GENERATOR={}+{:016x}", env!("CARGO_PKG_VERSION"), hash.0);
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
