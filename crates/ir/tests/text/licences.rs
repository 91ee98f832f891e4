//! Licences: every dependency may be linked into a program under `MIT OR Apache-2.0`, and every published crate describes itself.

use crate::tools::skip;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Licences that ask for no more than their own text beside a program.
const ALLOWED: [&str; 6] = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC", "Zlib", "Unicode-3.0"];

/// A package under another licence, and why it may stay.
const EXCEPTED: [(&str, &str); 2] = [
    // It covers its own files alone, which are unchanged; `directories` needs the package.
    ("option-ext", "MPL-2.0"),
    // Its third clause forbids advertising with the authors' names, which nobody does; passwords and TLS need the package.
    ("subtle", "BSD-3-Clause"),
];

/// The allowed licences that an expression of SPDX comes down to; `None` if it asks for another one.
/// Parentheses are dropped and every `AND` is held to be outermost, which accepts no expression that SPDX's precedence would refuse.
fn allowed(expression: &str) -> Option<BTreeSet<&str>> {
    let all = expression.split(" AND ").map(|part| {
        let any = part.split(" OR ").flat_map(|name| name.split('/')).map(|name| name.trim_matches(['(', ')', ' ']));
        any.filter(|name| ALLOWED.contains(name)).collect::<Vec<_>>()
    });
    all.map(|any| any.first().copied()).collect()
}

#[test]
fn expressions_of_licences_are_understood() {
    for good in
        ["MIT", "Unlicense/MIT", "GPL-3.0 OR Zlib", "(MIT OR Apache-2.0) AND Unicode-3.0", "Apache-2.0 WITH LLVM-exception"]
    {
        assert!(allowed(good).is_some(), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND MPL-2.0", "GPL-2.0 WITH Classpath-exception-2.0", ""] {
        assert!(allowed(bad).is_none(), "{bad}");
    }
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|o| o.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// All packages that this machine's builds use, as cargo describes them.
fn packages() -> Option<Vec<Value>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rustc = output(Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())).arg("-vV"))?;
    let host = rustc.lines().find_map(|l| l.strip_prefix("host: "))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["metadata", "--offline", "--format-version", "1", "--filter-platform", host]).current_dir(root);
    let mut metadata: Value = serde_json::from_str(&output(&mut cargo)?).ok()?;
    match metadata["packages"].take() {
        Value::Array(packages) => Some(packages),
        _ => None,
    }
}

#[test]
fn dependencies_have_allowed_licences() {
    let Some(packages) = packages() else { return skip("cargo metadata --offline", "run cargo fetch") };
    let (mut failures, mut used) = (Vec::new(), BTreeSet::new());
    for package in &packages {
        let (name, licence) = (package["name"].as_str().unwrap_or_default(), package["license"].as_str().unwrap_or_default());
        match allowed(licence) {
            Some(licences) => used.extend(licences),
            None if EXCEPTED.contains(&(name, licence)) => drop(used.insert(name)),
            None => failures.push(format!("{name}: {licence:?}")),
        }
    }
    assert!(packages.len() > 50, "{} packages", packages.len());
    assert!(failures.is_empty(), "licences that are not allowed:\n{}", failures.join("\n"));
    let unused: Vec<&str> = ALLOWED.into_iter().chain(EXCEPTED.map(|(name, _)| name)).filter(|x| !used.contains(x)).collect();
    assert!(unused.is_empty(), "no dependency needs {unused:?} any more");
}

/// A registry shows a description, keywords and categories; no two crates share a description.
#[test]
fn published_crates_describe_themselves() {
    let Some(packages) = packages() else { return skip("cargo metadata --offline", "run cargo fetch") };
    let ours = packages.iter().filter(|p| p["source"].is_null() && p["publish"].is_null());
    let (mut failures, mut described) = (Vec::new(), BTreeSet::new());
    for package in ours {
        let name = package["name"].as_str().unwrap_or_default();
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let mut needs = |holds: bool, what: &str| {
            if !holds {
                failures.push(format!("{name}: {what}"));
            }
        };
        needs(text("license") == "MIT OR Apache-2.0", "another licence");
        needs(described.insert(text("description")), "another crate's description");
        needs(package["keywords"].as_array().is_some_and(|k| (1..=5).contains(&k.len())), "1 to 5 keywords");
        needs(package["categories"].as_array().is_some_and(|c| (1..=5).contains(&c.len())), "1 to 5 categories");
        for dependency in package["dependencies"].as_array().into_iter().flatten().filter(|d| d["path"].is_string()) {
            let (to, version) = (&dependency["name"], dependency["req"].as_str());
            let development = dependency["kind"] == "dev";
            // Publishing drops a development dependency without a version, so none of them makes a cycle.
            needs(development == (version == Some("*")), &format!("version {version:?} of {to}, development: {development}"));
        }
    }
    assert!(described.len() > 10, "{} crates", described.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
