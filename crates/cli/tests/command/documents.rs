//! The project's pages as users read them: links resolve, pages keep their sizes, and what a page tells to type runs.

use crate::common;
use crate::pages;
use crate::waits;
use common::missing;
use pages::{Block, Page};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the project's root")
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern")
}

/// What git knows or would add, so that a page counts before its commit.
fn files() -> Option<BTreeSet<String>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    match git.output() {
        Ok(Output { status, stdout, .. }) if status.success() => {
            let names = String::from_utf8(stdout).expect("names in UTF-8");
            let there = |name: &&str| !name.is_empty() && root().join(name).exists();
            Some(names.split('\0').filter(there).map(String::from).collect())
        }
        _ => {
            missing::skipped("git, in a clone of the project");
            None
        }
    }
}

fn all_pages(files: &BTreeSet<String>) -> Vec<Page> {
    files.iter().filter(|f| f.ends_with(".md")).map(|f| Page::read(&root(), f)).collect()
}

pub fn none(failures: Vec<String>) {
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

// Links.

pub fn links_and_images_resolve() {
    let Some(files) = files() else { return };
    let pages = all_pages(&files);
    let anchors: BTreeMap<&str, BTreeSet<String>> = pages.iter().map(|p| (p.name.as_str(), anchors(p))).collect();
    let mut failures = Vec::new();
    let mut seen = 0;
    for page in &pages {
        for (line, link) in links(page) {
            seen += 1;
            let (path, anchor) = link.split_once('#').map_or((link.as_str(), None), |(path, anchor)| (path, Some(anchor)));
            let target = if path.is_empty() { Some(page.name.clone()) } else { joined(&page.name, path) };
            let folder = |t: &String| {
                t.is_empty() || files.range(format!("{t}/")..).next().is_some_and(|f| f.starts_with(&format!("{t}/")))
            };
            let Some(target) = target.filter(|t| files.contains(t) || folder(t)) else {
                failures.push(format!("{}:{line}: {link}: no such file in the project", page.name));
                continue;
            };
            let Some(anchor) = anchor else { continue };
            let found = match anchors.get(target.as_str()) {
                Some(known) => known.contains(anchor),
                None => regex(r"^L\d+(-L\d+)?$").is_match(anchor),
            };
            if !found {
                failures.push(format!("{}:{line}: {link}: {target} has no heading of this anchor", page.name));
            }
        }
    }
    assert!(seen > 50, "{seen} links");
    none(failures);
}

/// The notebook's first page lists each entry once, and no other.
pub fn the_notebook_lists_its_entries() {
    let Some(files) = files() else { return };
    let entries: Vec<&str> = files.iter().filter_map(|f| f.strip_prefix("notebook/")).filter(|f| *f != "README.md").collect();
    let mut listed: Vec<String> = links(&Page::read(&root(), "notebook/README.md")).into_iter().map(|(_, link)| link).collect();
    listed.sort();
    assert!(entries.len() > 40, "{} entries", entries.len());
    assert_eq!(listed, entries);
}

/// An index shows the Python package's page alone: a link or a name of a file of the repository would lead nowhere.
pub fn the_package_page_stands_alone() {
    let Some(files) = files() else { return };
    let project = std::fs::read_to_string(root().join("pyproject.toml")).expect("pyproject.toml");
    assert!(project.contains(&format!("readme = \"{}\"", pages::PACKAGE)), "the package has another page");
    let needs = |page: &Page| -> Vec<String> {
        let named = |word: &&str| word.contains('/') && files.contains(word.trim_matches(|c: char| !c.is_alphanumeric()));
        let words = page.text.lines().enumerate().flat_map(|(i, line)| line.split_whitespace().map(move |word| (i + 1, word)));
        let words = words.filter(|(_, word)| named(word)).map(|(line, word)| (line, word.to_string()));
        links(page).into_iter().chain(words).map(|(line, what)| format!("{}:{line}: {what}", page.name)).collect()
    };
    let text = "[a](b.md) <img src=\"c.svg\">\nrun `scripts/wheel`.\n[d](https://e.org) a/b\n";
    assert_eq!(needs(&Page { name: "x".into(), text: text.into() }), ["x:1: b.md", "x:1: c.svg", "x:2: `scripts/wheel`."]);
    none(needs(&Page::read(&root(), pages::PACKAGE)));
}

/// A page's relative links and images with their lines.
fn links(page: &Page) -> Vec<(usize, String)> {
    let code = regex("``.+?``|`[^`]*`");
    let link = regex(r#"\]\(<?([^)\s>]+)>?(?:\s+"[^"]*")?\)|^\[[^\]]+\]:\s*(\S+)|\b(?:src|srcset|href)="([^"\s]+)"#);
    let elsewhere = regex("^[a-z]+:");
    let mut found = Vec::new();
    for (number, line) in page.prose() {
        let line = code.replace_all(line, "");
        let targets = link.captures_iter(&line).filter_map(|c| c.iter().skip(1).flatten().next().map(|m| m.as_str().to_string()));
        found.extend(targets.filter(|t| !elsewhere.is_match(t)).map(|t| (number, t)));
    }
    found
}

/// A path of a link in this page, from the project's root; `None` outside of it.
fn joined(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The anchors that GitHub gives a page's headings, and those that the page gives itself.
fn anchors(page: &Page) -> BTreeSet<String> {
    let heading = regex(r"^#{1,6}\s+(.*?)\s*#*$");
    let own = regex(r#"\b(?:id|name)="([^"]+)""#);
    let mut anchors = BTreeSet::new();
    for (_, line) in page.prose() {
        anchors.extend(own.captures_iter(line).map(|c| c[1].to_string()));
        let Some(heading) = heading.captures(line) else { continue };
        let slug = slug(&heading[1]);
        let numbered = (1..).map(|n| format!("{slug}-{n}"));
        let free = std::iter::once(slug.clone()).chain(numbered).find(|s| !anchors.contains(s));
        anchors.extend(free);
    }
    anchors
}

fn slug(heading: &str) -> String {
    let link = regex(r"!?\[([^\]]*)\]\([^)]*\)");
    let text = link.replace_all(heading, "$1").to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

pub fn anchors_are_those_of_github() {
    let text = "# A, `b_c` & [d](e.md)\n## C++: 2 x 3\n## C++: 2 x 3\n```sh\n# no heading\n```\n<a id=\"own\"></a>\n";
    let page = Page { name: "a/b.md".into(), text: text.into() };
    let want = ["a-b_c--d", "c-2-x-3", "c-2-x-3-1", "own"].map(String::from);
    assert_eq!(anchors(&page), BTreeSet::from(want));
    assert_eq!(joined("a/b.md", "../c/./d.md").as_deref(), Some("c/d.md"));
    assert_eq!(joined("a/b.md", "../../c.md"), None);
}

// Sizes.

/// Text in pages that are meant for reading, in bytes.
const READING: usize = 200 << 10;

/// The parts of a notebook's entry, in order.
const ENTRY: [&str; 4] = ["**Question.**", "**Prediction", "**Measurement", "**Conclusion"];

pub fn pages_keep_their_sizes() {
    let Some(files) = files() else { return };
    let mut failures = Vec::new();
    let mut reading = 0;
    for page in all_pages(&files) {
        let folder = page.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        if !["notebook", "benchmarks"].contains(&folder) && page.name != "CHANGELOG.md" {
            reading += page.text.len();
        }
        if folder == "notebook" && page.name != "notebook/README.md" {
            let lines = page.text.lines().count();
            let missing: Vec<&str> = ENTRY.into_iter().filter(|part| !page.text.contains(part)).collect();
            if lines > 100 || !missing.is_empty() {
                failures.push(format!("{}: {lines} lines, 100 are meant; it lacks {missing:?}", page.name));
            }
        }
        let (least, most) = match (folder, page.name.as_str()) {
            (_, pages::README | "docs/internals/adding.md") => (0, 8192),
            (_, pages::PACKAGE) => (2 << 10, 4 << 10),
            ("docs/guide", "docs/guide/README.md") => continue,
            ("docs/guide", _) => (3 << 10, 8 << 10),
            (_, "docs/internals/architecture.md") => (0, 12_288),
            ("docs/internals", _) => (0, 8192),
            (_, "benchmarks/method.md") => (0, 6144),
            _ => continue,
        };
        if !(least..=most).contains(&page.text.len()) {
            failures.push(format!("{}: {} bytes; {least} to {most} are meant", page.name, page.text.len()));
        }
    }
    if reading > READING {
        failures.push(format!("pages for reading have {reading} bytes; at most {READING} are meant"));
    }
    let readme = Page::read(&root(), pages::README);
    for (line, row) in readme.prose().filter(|(_, line)| line.trim_start().starts_with('|')) {
        for cell in row.split('|').filter(|cell| cell.split_whitespace().count() > 12) {
            failures.push(format!("README.md:{line}: a cell of more than 12 words: {}", cell.trim()));
        }
    }
    none(failures);
}

/// A reader of the guides needs no plan key but those of an output.
pub fn guides_name_no_plan_keys() {
    let key = regex(r"\b[ABC]_[A-Z]{3}\d|\b[A-Z]{3}\d+_[A-Z]{3}\d");
    assert!(key.is_match("`A_MIC6`") && key.is_match("(PAD2_ACP1)") && !key.is_match("SM_90A F32_F16"));
    let mut failures = Vec::new();
    for page in Page::of_users(&root()).iter().filter(|p| p.name != pages::README) {
        for (line, text) in page.lines_outside("text").filter(|(_, text)| key.is_match(text)) {
            failures.push(format!("{}:{line}: a plan key: {}", page.name, text.trim()));
        }
    }
    none(failures);
}

// What a page tells to type.

/// A line of a shell block.
#[derive(PartialEq, Debug)]
enum Line {
    Run(String),
    /// It builds, installs or downloads: what it names must exist.
    Named(String),
}

/// The command as it runs here: the built one, for the one that cargo would build.
fn line_of(line: &str) -> Line {
    let built = regex(r"^cargo run (-q |--quiet |--release )*--bin tilewright -- ");
    if built.is_match(line) {
        return Line::Run(built.replace(line, "tilewright ").into_owned());
    }
    let not_run = ["cargo ", "pip ", "scripts/", ".ci/", "git ", "cc ", "./", "python3 -m venv "];
    let given = regex(r"^(\w+=\S*\s+)*");
    let part = |part: &str| not_run.iter().any(|word| given.replace(part.trim_start(), "").starts_with(word));
    if line.split("&&").any(part) { Line::Named(line.into()) } else { Line::Run(line.into()) }
}

/// A block's lines with their numbers; a line that `\` continues is one.
fn lines_of(block: &Block) -> Vec<(usize, Line)> {
    let mut lines = Vec::new();
    let mut whole = String::new();
    let mut first = block.line;
    for (i, line) in block.text.lines().enumerate() {
        whole += line;
        if line.ends_with('\\') {
            whole.push('\n');
            continue;
        }
        lines.push((first, line_of(&std::mem::take(&mut whole))));
        first = block.line + i + 1;
    }
    lines
}

/// The block's script at the lines where it stands in its page, without what is not run.
fn script(block: &Block) -> String {
    let mut script = "\n".repeat(block.line - 1);
    for (_, line) in lines_of(block) {
        match line {
            Line::Run(text) => script += &text,
            Line::Named(text) => script += &"\n".repeat(text.matches('\n').count()),
        }
        script.push('\n');
    }
    script
}

pub fn lines_are_run_or_named() {
    let text =
        "cargo run --release --bin tilewright -- devices\nX=1 cargo test \\\n  -p a\nb \\\n  c\npython3 x.py && pip install y\n";
    let block = Block { info: "sh".into(), line: 3, text: text.into() };
    assert_eq!(script(&block), "\n\ntilewright devices\n\n\nb \\\n  c\n\n");
    let named: Vec<usize> = lines_of(&block).iter().filter(|(_, l)| matches!(l, Line::Named(_))).map(|(n, _)| *n).collect();
    assert_eq!(named, [4, 8]);
}

/// What becomes of each page of users, side by side: their commands wait more than they compute.
pub fn side_by_side<T: Send>(each: impl Fn(&Page) -> T + Sync) -> Vec<T> {
    let pages = Mutex::new(Page::of_users(&root()).into_iter());
    let next = || pages.lock().expect("no thread panics with it").next();
    let runner = || std::iter::from_fn(next).map(|page| each(&page)).collect::<Vec<_>>();
    let (name, mut all) = (std::thread::current().name().unwrap_or("pages").to_string(), Vec::new());
    std::thread::scope(|scope| {
        // Messages name the test.
        let start = |_| std::thread::Builder::new().name(name.clone()).spawn_scoped(scope, runner).expect("a thread");
        let runners: Vec<_> = (0..2 * waits::cores()).map(start).collect();
        all.extend(runners.into_iter().flat_map(|runner| runner.join().expect("no check of a block panics")));
    });
    all
}

/// Each page's shell blocks, in order and in one folder of its own. Environment variables last from block to block.
pub fn shell_blocks_run() {
    let all = side_by_side(blocks_of);
    println!("{}", all.iter().flat_map(|page| page.not_run.clone()).collect::<String>());
    assert!(all.iter().any(|page| page.ran > 0), "no block was run");
    none(all.into_iter().flat_map(|page| page.failures).collect());
}

/// How the blocks of a page ran.
#[derive(Default)]
struct Blocks {
    ran: u32,
    not_run: Vec<String>,
    failures: Vec<String>,
}

fn blocks_of(page: &Page) -> Blocks {
    let mut all = Blocks::default();
    let folder = tempfile::tempdir().expect("a folder");
    prepare(folder.path());
    for block in page.blocks().iter().filter(|b| b.is("sh", &["gpu", "build", "cluster"])) {
        let lines = lines_of(block);
        for (line, text) in &lines {
            if let Line::Named(text) = text {
                all.not_run.push(format!("not run: {}:{line}: {text}\n", page.name));
            }
        }
        if lines.iter().all(|(_, l)| matches!(l, Line::Named(_))) {
            continue;
        }
        all.ran += 1;
        let output = bash(&script(block), folder.path()).output().expect("bash");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if output.status.success() {
            continue;
        }
        if err.contains("is not available") {
            // Nobody can be required to have a GPU; the other tools can be.
            let gpu = ["libcuda", "libamdhip"].iter().any(|l| err.contains(l));
            if gpu {
                missing::skipped(&err)
            } else {
                missing::missing(&err)
            }
            continue;
        }
        let at = regex(r"(?m)^failed at line (\d+)$").captures(&err).map_or(block.line.to_string(), |c| c[1].into());
        all.failures.push(format!("{}:{at}: {}\n{}{}", page.name, output.status, tail(&out), tail(&err)));
    }
    all
}

/// What a page's commands find: the case files of the project, as in its clone, and nothing else.
pub fn prepare(folder: &Path) {
    let to = folder.join("benchmarks/cases");
    std::fs::create_dir_all(&to).expect("a folder");
    for file in std::fs::read_dir(root().join("benchmarks/cases")).expect("case files").map(|f| f.expect("a file")) {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

/// Bash in this folder, which holds the user's files too; without a network where that is possible. A page waits for nothing: what runs
/// on is ended.
pub fn bash(script: &str, folder: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg("240");
    let no_network = Command::new("unshare").args(["-rn", "true"]).stderr(Stdio::null()).status().is_ok_and(|s| s.success());
    if no_network {
        command.args(["unshare", "-rn"]);
    }
    // All of it in the first line, so that the numbers of the others stay.
    let begin =
        "trap 'echo \"failed at line $LINENO\" >&2' ERR; trap 'export -p >.exported' EXIT; [[ ! -e .exported ]] || . ./.exported";
    let tool = Path::new(env!("CARGO_BIN_EXE_tilewright")).parent().expect("a folder");
    let mut path = vec![tool.to_path_buf()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    command.args(["bash", "-euo", "pipefail", "-c", &format!("{begin}; {script}")]).current_dir(folder).stdin(Stdio::null());
    command.env("PATH", std::env::join_paths(path).expect("a path")).env("HOME", folder);
    command.env("XDG_DATA_HOME", folder.join(".local/share")).env("XDG_CACHE_HOME", folder.join(".cache"));
    for variable in ["TILEWRIGHT_RECORDS", "TILEWRIGHT_CACHE", "TILEWRIGHT_LOG"] {
        command.env_remove(variable);
    }
    command
}

pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].iter().map(|l| format!("    {l}\n")).collect()
}

// What is not run, in any page: what it names exists.

pub fn packages_tests_and_scripts_exist() {
    let Some(files) = files() else { return };
    let names = Names::of_the_project();
    let mut failures = Vec::new();
    let mut seen = 0;
    // The notebook's entries are of their dates.
    for page in all_pages(&files).iter().filter(|p| !p.name.starts_with("notebook/")) {
        for (line, command) in commands(page) {
            seen += 1;
            failures.extend(
                names.unknown(&command, &files).into_iter().map(|what| format!("{}:{line}: {what}: {command}", page.name)),
            );
        }
    }
    assert!(seen > 0);
    none(failures);
}

/// Shell lines of a page that are not run, and commands in its prose.
fn commands(page: &Page) -> Vec<(usize, String)> {
    let blocks = page.blocks();
    let lines = blocks.iter().filter(|b| b.is("sh", &[])).flat_map(lines_of);
    let mut found: Vec<(usize, String)> = lines
        .filter_map(|(n, line)| match line {
            Line::Named(text) => Some((n, text)),
            Line::Run(_) => None,
        })
        .collect();
    let code = regex("`([^`]+)`");
    for (number, line) in page.prose() {
        let spans = code.captures_iter(line).map(|c| c[1].to_string());
        found.extend(spans.filter(|s| matches!(line_of(s), Line::Named(_))).map(|s| (number, s)));
    }
    found
}

/// Names of the workspace.
struct Names {
    packages: BTreeSet<String>,
    /// Of each kind: `test`, `bin`, `example`.
    targets: BTreeMap<String, BTreeSet<String>>,
    /// What `pip install '.[...]'` takes.
    extras: BTreeSet<String>,
}

impl Names {
    fn of_the_project() -> Names {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
        let output = cargo.output().expect("cargo metadata");
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let mut names = Names { packages: BTreeSet::new(), targets: BTreeMap::new(), extras: BTreeSet::new() };
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
        for package in metadata["packages"].as_array().expect("packages") {
            names.packages.insert(text(&package["name"]));
            for target in package["targets"].as_array().expect("targets") {
                names.targets.entry(text(&target["kind"][0])).or_default().insert(text(&target["name"]));
            }
        }
        let python = std::fs::read_to_string(root().join("pyproject.toml")).expect("pyproject.toml");
        let extras = python.split("[project.optional-dependencies]").nth(1).unwrap_or_default().lines().skip(1);
        names.extras = extras.take_while(|l| !l.is_empty()).filter_map(|l| Some(l.split_once('=')?.0.trim().into())).collect();
        names
    }

    /// What this command names and the project has not.
    fn unknown(&self, command: &str, files: &BTreeSet<String>) -> Vec<String> {
        let mut unknown = Vec::new();
        // `CRATE` and `MODULE` are for the reader to fill in.
        let filled = |name: &str| name.chars().any(|c| c.is_lowercase());
        for part in regex(r"&&|\s#\s").split(command) {
            if part.contains("cargo ") {
                for name in regex(r"(?:-p|--package)[ =](\S+)").captures_iter(part).map(|c| c[1].to_string()) {
                    if filled(&name) && !self.packages.contains(&name) {
                        unknown.push(format!("no package {name}"));
                    }
                }
                for kind in ["test", "bin", "example"] {
                    let targets = self.targets.get(kind).cloned().unwrap_or_default();
                    for name in regex(&format!(r"--{kind}[ =](\S+)")).captures_iter(part).map(|c| c[1].to_string()) {
                        if filled(&name) && !targets.contains(&name) {
                            unknown.push(format!("no {kind} {name}"));
                        }
                    }
                }
                for path in regex(r"--(?:path|manifest-path)[ =](?:\.\./tilewright/)?(\S+)").captures_iter(part) {
                    if !root().join(&path[1]).exists() {
                        unknown.push(format!("no {}", &path[1]));
                    }
                }
            }
            for extras in regex(r"(?:\.|tilewright)\[([\w,]+)\]").captures_iter(part).filter(|_| part.contains("pip ")) {
                unknown.extend(extras[1].split(',').filter(|e| !self.extras.contains(*e)).map(|e| format!("no extra {e}")));
            }
            for script in regex(r"(?:^|\s)(scripts/[\w./-]+|\.ci/[\w./-]+)").captures_iter(part) {
                if !files.contains(script[1].trim_end_matches('.')) {
                    unknown.push(format!("no script {}", &script[1]));
                }
            }
        }
        unknown
    }
}

pub fn names_that_do_not_exist_are_found() {
    let names = Names::of_the_project();
    let files = BTreeSet::from(["scripts/wheel".to_string()]);
    let unknown = |command: &str| names.unknown(command, &files);
    assert_eq!(unknown("cargo test -p tilewright-cli --test command documents && scripts/wheel x"), [""; 0]);
    assert_eq!(unknown("cargo test -p CRATE && pip install '.[numpy,torch]'"), [""; 0]);
    assert_eq!(unknown("cargo test -p tilewright-x --test y"), ["no package tilewright-x", "no test y"]);
    assert_eq!(
        unknown("cargo install --path crates/x && scripts/y && pip install '.[z]' 'tilewright[w]'"),
        ["no crates/x", "no script scripts/y", "no extra z", "no extra w"]
    );
}

/// Doc tests compile Rust blocks of the pages that the library includes.
pub fn the_library_compiles_rust_blocks() {
    let library = std::fs::read_to_string(root().join("crates/tilewright/src/lib.rs")).expect("the library");
    let with_rust = |p: &Page| p.blocks().iter().any(|b| b.is("rust", &[]));
    let included = |p: &Page| library.contains(&format!("include_str!(\"../../../{}\")", p.name));
    let pages = Page::of_users(&root());
    let rust: Vec<&Page> = pages.iter().filter(|p| with_rust(p)).collect();
    assert!(!rust.is_empty());
    none(
        rust.iter()
            .filter(|p| !included(p))
            .map(|p| format!("crates/tilewright/src/lib.rs does not include {}", p.name))
            .collect(),
    );
}
