//! The floors of the workspace: no crate imports one that stands above it, and no files of a crate import each other in a circle.
//!
//! Read from the text of `Cargo.toml` files and of the `use` lines and paths in every crate's `src`, tests left out. What a module
//! and its own children take from each other is not counted. Stands in the lowest crate because it needs none of them.

use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Which crates each crate may depend on. A new crate needs a line of its own.
const FLOORS: [(&str, &[&str]); 15] = [
    ("ir", &[]),
    ("emu", &["ir"]),
    ("problem", &["ir"]),
    ("gen", &["ir", "problem"]),
    ("device", &["ir", "emu"]),
    ("check", &["ir", "problem", "gen", "device"]),
    ("tune", &["ir", "problem", "gen", "device", "check"]),
    ("tilewright", &["ir", "problem", "gen", "device", "check", "tune"]),
    ("c", &["tilewright"]),
    ("python", &["tilewright"]),
    ("bench", &["ir", "problem", "gen", "device", "check", "tune"]),
    ("onnx", &["ir", "problem"]),
    ("fleet", &[]),
    ("cli", &["ir", "problem", "gen", "device", "check", "tune", "tilewright", "bench", "onnx", "fleet"]),
    ("xtask", &["ir", "problem", "gen"]),
];

/// Circles that are known: crate, and the files a circle may consist of. A line goes as soon as no circle is left among its files.
const KNOWN: &[(&str, &[&str])] = &[];

type Module = Vec<String>;

pub(crate) fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn crates_depend_on_lower_ones_only() {
    let floors: BTreeMap<_, _> = FLOORS.into_iter().collect();
    let dependency = Regex::new(r"(?m)^tilewright(?:-(\w+))?\s*[.=]").unwrap();
    let mut seen = BTreeSet::new();
    for entry in std::fs::read_dir(crates()).unwrap().map(|e| e.unwrap().path()).filter(|p| p.join("Cargo.toml").exists()) {
        let name = entry.file_name().unwrap().to_str().unwrap().to_string();
        let allowed = floors.get(name.as_str()).unwrap_or_else(|| panic!("crate {name} has no line in FLOORS"));
        let manifest = read(&entry.join("Cargo.toml"));
        // Tests may use what they like: sections other than `[dependencies]` do not count.
        let section = manifest.split("\n[").find(|s| s.starts_with("dependencies]")).unwrap_or_default();
        for found in dependency.captures_iter(section) {
            let lower = found.get(1).map_or("tilewright", |m| m.as_str());
            assert!(allowed.contains(&lower), "crates/{name}/Cargo.toml: {name} may not depend on {lower}, only on {allowed:?}");
        }
        seen.insert(name);
    }
    assert_eq!(seen.len(), FLOORS.len(), "FLOORS names a crate that does not exist");
}

#[test]
fn files_form_no_circles() {
    let (mut unknown, mut used) = (Vec::new(), vec![false; KNOWN.len()]);
    for (name, _) in FLOORS {
        for circle in circles(&crates().join(name).join("src")) {
            match KNOWN.iter().position(|(k, files)| *k == name && circle.iter().all(|f| files.contains(&f.as_str()))) {
                Some(index) => used[index] = true,
                None => unknown.push(format!("crates/{name}/src: {} import each other in a circle", circle.join(", "))),
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    let gone: Vec<_> = KNOWN.iter().zip(used).filter(|(_, used)| !used).map(|(line, _)| line).collect();
    assert!(gone.is_empty(), "no circle is left among these files, strike the line from KNOWN: {gone:?}");
}

/// Every file and folder of the sources that a page of `docs/internals` names exists.
#[test]
fn internals_name_files_that_exist() {
    let root = crates().join("..");
    let named = Regex::new(r"`((?:crates|docs|scripts)/[^`\s]+|[\w/]+/\w+\.rs)`").unwrap();
    let mut lost = BTreeSet::new();
    for folder in ["docs/internals", "docs/internals/decisions"] {
        for page in std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
            let text = read(&page);
            let absent = named.captures_iter(&text).filter(|found| !root.join(&found[1]).exists());
            lost.extend(absent.map(|found| format!("{}: {} does not exist", page.display(), &found[1])));
        }
    }
    assert!(lost.is_empty(), "name the file that took its place: {lost:#?}");
}

/// The reader finds circles, tells re-exports from what they stand for, and leaves families alone.
#[test]
fn circles_are_found() {
    let root = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::Bee;");
    write("a.rs", "use crate::{Bee, c};\npub struct Ay;");
    write("b/mod.rs", "mod child;\npub struct Bee;\nuse child::Child;\n#[cfg(test)]\nmod tests { use crate::a::Ay; }");
    write("b/child.rs", "use super::Bee; // use crate::a::Ay;\npub struct Child;");
    write("c.rs", "pub fn f() {}");
    assert_eq!(circles(root.path()), Vec::<Vec<String>>::new());
    write("c.rs", "pub fn f() -> crate::a::Ay { todo!() }");
    assert_eq!(circles(root.path()), [["a", "c"]]);
    write("b/child.rs", "use super::super::{c::{self as sea}};");
    write("c.rs", "use crate::b::{child::Child};");
    assert_eq!(circles(root.path()), [["b/child", "c"]]);
}

/// Every file under a folder, tests left out.
pub(crate) fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if name != "tests" {
                sources(&path, out);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            out.push(path);
        }
    }
}

/// The paths of a use tree, `{`nested`}` ones spelled out.
pub(crate) fn expand(tree: &str) -> Vec<Module> {
    let tree = tree.trim();
    let words = |text: &str| -> Module { text.split("::").map(|w| w.trim().to_string()).filter(|w| !w.is_empty()).collect() };
    let Some(open) = tree.find('{').filter(|_| tree.ends_with('}')) else {
        return vec![words(tree.split(" as ").next().unwrap_or(tree))];
    };
    let prefix = words(&tree[..open]);
    let (mut out, mut depth, mut current) = (Vec::new(), 0i32, String::new());
    for c in tree[open + 1..tree.len() - 1].chars().chain([',']) {
        if c == ',' && depth == 0 {
            for end in expand(&std::mem::take(&mut current)).into_iter().filter(|end| !end.is_empty()) {
                let end = if end == ["self"] { Vec::new() } else { end };
                out.push(prefix.iter().cloned().chain(end).collect());
            }
        } else {
            depth += i32::from(c == '{') - i32::from(c == '}');
            current.push(c);
        }
    }
    out
}

/// The modules of a crate: what each re-exports from its children, and what each declares.
struct Modules {
    text: BTreeMap<Module, String>,
    exports: BTreeMap<Module, Vec<(String, Module)>>,
    declared: BTreeMap<Module, BTreeSet<String>>,
}

fn child(at: &Module, name: &str) -> Module {
    at.iter().cloned().chain([name.to_string()]).collect()
}

impl Modules {
    fn read(src: &Path) -> Modules {
        let (mut files, mut text) = (Vec::new(), BTreeMap::new());
        sources(src, &mut files);
        let comment = Regex::new("//.*").unwrap();
        for file in files {
            let mut module: Module =
                file.strip_prefix(src).unwrap().with_extension("").iter().map(|c| c.to_str().unwrap().to_string()).collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            let whole = read(&file);
            let code = whole.split("#[cfg(test)]").next().unwrap_or_default();
            text.insert(module, comment.replace_all(code, "").into_owned());
        }
        let item = Regex::new(r"pub(?:\([a-z]+\))? (?:const )?(?:fn|struct|enum|trait|type|const|static) (\w+)").unwrap();
        let export = Regex::new(r"pub(?:\([a-z]+\))? use (\w+)::(\{[^}]*\}|\*|\w+);").unwrap();
        let word = Regex::new(r"\w+|\*").unwrap();
        let (mut exports, mut declared) = (BTreeMap::new(), BTreeMap::new());
        for (module, code) in &text {
            declared.insert(module.clone(), item.captures_iter(code).map(|c| c[1].to_string()).collect());
            let mut names = Vec::new();
            for found in export.captures_iter(code) {
                let from = child(module, &found[1]);
                if text.contains_key(&from) {
                    names.extend(word.find_iter(&found[2]).map(|name| (name.as_str().to_string(), from.clone())));
                }
            }
            exports.insert(module.clone(), names);
        }
        Modules { text, exports, declared }
    }

    /// The module that a path from `at` names, or whose item it names.
    fn resolve(&self, mut at: Module, path: &[String]) -> Module {
        for name in path {
            let next = child(&at, name);
            if self.text.contains_key(&next) {
                at = next;
                continue;
            }
            let exports = self.exports.get(&at).map_or(&[][..], |e| e);
            let by_name = exports.iter().rev().find(|(n, _)| n == name && n != "*");
            let by_star = || exports.iter().find(|(n, from)| n == "*" && self.declared[from].contains(name));
            return by_name.or_else(by_star).map_or(at, |(_, from)| from.clone());
        }
        at
    }

    /// Which modules each module takes something from, its own family aside.
    fn imports(&self) -> BTreeMap<&Module, BTreeSet<&Module>> {
        let import = Regex::new(r"\buse ([^;]+);").unwrap();
        let absolute = Regex::new(r"\b(?:crate|super|self)(?:::\w+)+").unwrap();
        let relative = Regex::new(r"\b([a-z_]\w*)::(\w+)").unwrap();
        let mut graph: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
        for (module, code) in &self.text {
            let mut paths: Vec<Module> = import.captures_iter(code).flat_map(|c| expand(&c[1])).collect();
            let split = |path: &str| path.split("::").map(str::to_string).collect::<Module>();
            paths.extend(absolute.find_iter(code).map(|m| split(m.as_str())));
            let own = |path: &Module| self.text.contains_key(&child(module, &path[0]));
            paths.extend(relative.find_iter(code).map(|m| split(m.as_str())).filter(own));
            for path in paths.into_iter().filter(|p| !p.is_empty()) {
                let ups = path.iter().take_while(|w| *w == "super").count();
                let (start, rest) = match path[0].as_str() {
                    "crate" => (Vec::new(), &path[1..]),
                    "super" => (module[..module.len().saturating_sub(ups)].to_vec(), &path[ups..]),
                    "self" => (module.clone(), &path[1..]),
                    name if self.text.contains_key(&child(module, name)) => (module.clone(), &path[..]),
                    _ => continue,
                };
                let target = self.resolve(start, rest);
                let family = target.starts_with(module) || module.starts_with(&target);
                if let Some((target, _)) = self.text.get_key_value(&target).filter(|_| !family) {
                    graph.entry(module).or_default().insert(target);
                }
            }
        }
        graph
    }
}

/// Groups of files of which each reaches each by imports.
fn circles(src: &Path) -> Vec<Vec<String>> {
    let modules = Modules::read(src);
    let graph = modules.imports();
    let reach = |from: &Module| -> BTreeSet<Module> {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(at) = next.pop() {
            for &to in graph.get(at).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<Module>> = modules.text.keys().map(|m| (m, reach(m))).collect();
    let mut found = BTreeSet::new();
    for (module, far) in &reached {
        let circle: Vec<String> = far
            .iter()
            .filter(|other| reached[other].contains(*module))
            .map(|m| if m.is_empty() { "lib".to_string() } else { m.join("/") })
            .collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}
