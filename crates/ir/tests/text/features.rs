//! Features of dependencies: a build after the tests compiles nothing again, so every package of the build has the features that the tests give it.
//! A feature that only a development dependency asks for compiles the package, and all crates above it, twice. CI then takes minutes longer.

use crate::tools::skip;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Packages with their features, of the dependencies of these kinds. Cargo unites features over the whole workspace.
fn packages(kinds: &str) -> Option<BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["tree", "--offline", "--workspace", "--prefix", "none", "--no-dedupe", "--format", "{p} {f}", "--edges", kinds]);
    let output = cargo.current_dir(root).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.lines().map(str::to_string).collect())
}

#[test]
fn a_build_has_the_features_of_the_tests() {
    let [Some(built), Some(tested)] = ["normal,build", "normal,build,dev"].map(packages) else {
        return skip("cargo tree --offline", "run cargo fetch");
    };
    assert!(built.len() > 100, "{} packages", built.len());
    let others: Vec<&String> = built.difference(&tested).collect();
    assert!(
        others.is_empty(),
        "these packages have more features in tests: name the package as a dependency of a crate below, with the features that tests have, as \
         crates/emu/Cargo.toml does\n{others:#?}"
    );
}
