//! An example for each public type: those that the roots of the library, of problems, of plans and of the kernel language export.
//!
//! A user who looks a type up reads how to get a value of it. The test reads the text of the files: it follows `pub use` lines to where a
//! type is declared, in other crates of the workspace as well, and looks for a code block that runs in the type's doc comment.

use super::floors::{crates, expand, sources};
use regex::Regex;
use std::collections::BTreeMap;

/// Modules with the types that users name: crate, and module within it.
const ROOTS: [(&str, &[&str]); 4] = [("tilewright", &[]), ("problem", &[]), ("gen", &["plan"]), ("ir", &[])];

/// Types without an example, each with the reason.
const WITHOUT: &[(&str, &str)] = &[];

#[test]
fn public_types_have_an_example() {
    let workspace = Workspace::read();
    let (mut without, mut excused) = (Vec::new(), Vec::new());
    for (name, module) in ROOTS {
        let root = Place { of: name.into(), module: module.iter().map(|m| m.to_string()).collect() };
        let types = workspace.exported(&root);
        assert!(types.len() > 20, "the reader finds only {} types in {name}", types.len());
        for ty in types.into_iter().filter(|ty| !ty.example) {
            match WITHOUT.iter().position(|(known, _)| *known == ty.name) {
                Some(place) => excused.push(place),
                None => without.push(format!("{}: {}", ty.file, ty.name)),
            }
        }
    }
    without.sort();
    without.dedup();
    assert!(without.is_empty(), "add an example to the doc comment of each of these types:\n{}", without.join("\n"));
    let unused: Vec<_> = (0..WITHOUT.len()).filter(|place| !excused.contains(place)).map(|place| WITHOUT[place].0).collect();
    assert!(unused.is_empty(), "these types have an example or are not exported, strike them from WITHOUT: {unused:?}");
}

/// The reader tells code that runs from other blocks, and follows attributes and macros.
#[test]
fn examples_are_found() {
    let text = "/// A pair.\n///\n/// ```\n/// assert!(true);\n/// ```\n#[serde(\n    default,\n)]\npub struct Pair;\n\n\
                /// A list.\n/// ```text\n/// a, b\n/// ```\npub enum List {\n    Pair,\n}\n\n\
                made!(\n    /// One.\n    ///\n    /// ```\n    /// f();\n    /// ```\n    One,\n    /// Two.\n    Two\n);\n\
                pub type Three = u32;\n";
    let found: Vec<_> = Reader::new().declared(text).into_iter().map(|ty| (ty.name, ty.example)).collect();
    let expected = [("Pair", true), ("List", false), ("One", true), ("Two", false), ("Three", false)];
    assert_eq!(found, expected.map(|(name, example)| (name.to_string(), example)));
}

/// A module of a crate.
#[derive(Clone)]
struct Place {
    of: String,
    module: Vec<String>,
}

/// A type that a module exports.
struct Exported {
    name: String,
    /// Declares it.
    file: String,
    example: bool,
}

/// The modules of all crates.
struct Workspace {
    modules: BTreeMap<String, BTreeMap<Vec<String>, Source>>,
    export: Regex,
}

/// A file with the types that it declares.
struct Source {
    file: String,
    text: String,
    types: Vec<Declared>,
}

/// A declared type, and whether its doc comment has an example.
struct Declared {
    name: String,
    example: bool,
}

impl Workspace {
    fn read() -> Workspace {
        let reader = Reader::new();
        let mut modules: BTreeMap<String, BTreeMap<Vec<String>, Source>> = BTreeMap::new();
        for folder in std::fs::read_dir(crates()).unwrap().map(|e| e.unwrap().path()).filter(|f| f.join("src").is_dir()) {
            let (name, src) = (folder.file_name().unwrap().to_str().unwrap().to_string(), folder.join("src"));
            let mut files = Vec::new();
            sources(&src, &mut files);
            for path in files {
                let within = path.strip_prefix(&src).unwrap();
                let mut module: Vec<String> = within.with_extension("").iter().map(|c| c.to_str().unwrap().into()).collect();
                if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                    module.pop();
                }
                let (file, text) = (format!("crates/{name}/src/{}", within.display()), std::fs::read_to_string(&path).unwrap());
                let types = reader.declared(&text);
                modules.entry(name.clone()).or_default().insert(module, Source { file, text, types });
            }
        }
        Workspace { modules, export: Regex::new(r"(?m)^pub use ([^;]+);").unwrap() }
    }

    fn source(&self, at: &Place) -> Option<&Source> {
        self.modules.get(&at.of)?.get(&at.module)
    }

    /// The types that a module exports from other modules.
    fn exported(&self, at: &Place) -> Vec<Exported> {
        let mut all = Vec::new();
        for (from, name) in self.exports(at) {
            let of_module = || self.source(&from).into_iter().flat_map(|source| &source.types).map(|ty| ty.name.clone());
            let names: Vec<String> = if name == "*" { of_module().collect() } else { vec![name] };
            // Constants and functions have other letters.
            let types = names.iter().filter(|n| n.starts_with(char::is_uppercase) && n.contains(char::is_lowercase));
            for name in types {
                let found = self.find(&from, name);
                if found.is_empty() {
                    let file = format!("{}, whose declaration was not found", from.module.join("/"));
                    all.push(Exported { name: name.clone(), file, example: false });
                }
                all.extend(found);
            }
        }
        all
    }

    /// What the `pub use` lines of a module take from modules of the workspace: the module, and a name or `*`.
    fn exports(&self, at: &Place) -> Vec<(Place, String)> {
        let text = self.source(at).map_or("", |source| &source.text);
        let paths = self.export.captures_iter(text).flat_map(|found| expand(&found[1]));
        let split = paths.filter_map(|mut path| path.pop().map(|name| (path, name)));
        split.filter_map(|(path, name)| Some((self.place(at, &path)?, name))).collect()
    }

    /// The module that a path names; `None` outside of the workspace.
    fn place(&self, at: &Place, path: &[String]) -> Option<Place> {
        let (first, rest) = path.split_first()?;
        let (of, mut module) = match (first.as_str(), first.strip_prefix("tilewright_")) {
            (_, Some(other)) => (other.to_string(), Vec::new()),
            ("crate", _) => (at.of.clone(), Vec::new()),
            _ => (at.of.clone(), at.module.iter().cloned().chain([first.clone()]).collect()),
        };
        module.extend(rest.iter().cloned());
        self.modules.get(&of)?.contains_key(&module).then_some(Place { of, module })
    }

    /// A type that a module declares or exports: in each of several files where a feature chooses one of them.
    fn find(&self, at: &Place, name: &str) -> Vec<Exported> {
        let Some(source) = self.source(at) else { return Vec::new() };
        if let Some(ty) = source.types.iter().find(|ty| ty.name == name) {
            return vec![Exported { name: name.into(), file: source.file.clone(), example: ty.example }];
        }
        let further = self.exports(at).into_iter().filter(|(_, other)| other == name || other == "*");
        further.flat_map(|(from, _)| self.find(&from, name)).collect()
    }
}

/// Finds declarations in the text of a file.
struct Reader {
    public: Regex,
    of_macro: Regex,
    call: Regex,
}

impl Reader {
    fn new() -> Reader {
        let regex = |text: &str| Regex::new(text).unwrap();
        Reader {
            public: regex(r"^pub (?:struct|enum|union|trait|type) (\w+)"),
            of_macro: regex(r"^ {4}(?:struct |enum )?([A-Z]\w*)\b"),
            call: regex(r"^\w+!\s*[({]$"),
        }
    }

    /// The public types that a file declares, in macro calls as well.
    fn declared(&self, text: &str) -> Vec<Declared> {
        let lines: Vec<&str> = text.lines().collect();
        let (mut all, mut in_call) = (Vec::new(), false);
        for (place, line) in lines.iter().enumerate() {
            in_call = self.call.is_match(line) || in_call && !line.starts_with([')', '}']);
            let above = || place > 0 && lines[place - 1].trim_start().starts_with("///");
            let made = self.of_macro.captures(line).filter(|_| in_call && above());
            if let Some(name) = self.public.captures(line).or(made) {
                all.push(Declared { name: name[1].into(), example: has_example(&lines[..place]) });
            }
        }
        all
    }
}

/// Whether the doc comment at the end of these lines has a block of code that runs. Attributes may follow it.
fn has_example(lines: &[&str]) -> bool {
    let mut fences = Vec::new();
    let mut in_attribute = false;
    for line in lines.iter().rev().map(|line| line.trim_start()) {
        if let Some(text) = line.strip_prefix("///") {
            fences.extend(text.trim_start().strip_prefix("```"));
            continue;
        }
        in_attribute = !line.starts_with("#[") && (in_attribute || line == ")]");
        if !in_attribute && !line.starts_with("#[") {
            break;
        }
    }
    // The last fence closes a block, the one before it opens it.
    fences.chunks(2).any(|block| matches!(block, ["", "" | "rust"]))
}
