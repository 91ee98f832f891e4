//! Names instead of tuples: how many tuple types stand in the signatures, fields and aliases of all crates.
//!
//! A tuple of two numbers says nothing at its call site; a struct with two fields does. The count may only fall. It leaves out tests, tuple
//! types inside of function bodies, and the arguments of function types.

use super::floors::{crates, sources};
use regex::Regex;

/// Most tuple types. Lower it with every one that goes.
const MOST: usize = 366;

#[test]
fn tuple_types_are_few() {
    let (reader, mut found) = (Reader::new(), Vec::new());
    for entry in std::fs::read_dir(crates()).unwrap().map(|e| e.unwrap().path().join("src")).filter(|src| src.is_dir()) {
        let mut files = Vec::new();
        sources(&entry, &mut files);
        for file in files {
            let of_file = reader.tuple_types(&std::fs::read_to_string(&file).unwrap());
            found.extend(of_file.into_iter().map(|tuple| format!("{}: {tuple}", file.display())));
        }
    }
    let count = found.len();
    assert!(count <= MOST, "{count} tuple types, at most {MOST}: name the parts in a struct\n{}", found.join("\n"));
}

/// The reader finds tuple types where they count, and nothing else.
#[test]
fn tuple_types_are_found() {
    let text = r#"
        // fn comment(a: (u32, u32)) {}
        const TEXT: &str = "fn text(a: (u32, u32)) {}";
        pub fn one<T: Into<u32>>((a, b): (u32, T), f: impl Fn(u32, u32) -> u32) -> Result<(u8, u8), ()> { let x: (u32, u32) = (1, 2); }
        struct Pair { pub field: Vec<(usize, &'static str)>, plain: [u32; 2] }
        struct Unit(u32, u32);
        enum Either { Left((u8, u8)), Right { at: (u16, u16) } }
        type Alias<'a> = (&'a str, u32);
        fn two() { list.map(|(i, x): (usize, &u32)| i).map(|x| call(x, 1)) }
        #[cfg(test)]
        mod tests { fn three(a: (u32, u32)) {} }
    "#;
    let expected = ["(u32, T)", "(u8, u8)", "(usize, &'static str)", "(u8, u8)", "(u16, u16)", "(&'a str, u32)", "(usize, &u32)"];
    assert_eq!(Reader::new().tuple_types(text), expected);
}

/// Finds tuple types in the text of a file.
struct Reader {
    /// Comments, texts and letters.
    silent: Regex,
    item: Regex,
    result: Regex,
    alias: Regex,
    closure: Regex,
}

impl Reader {
    fn new() -> Reader {
        let regex = |text: &str| Regex::new(text).unwrap();
        Reader {
            silent: regex(r##"(?s)//[^\n]*|r#".*?"#|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])'"##),
            item: regex(r"\b(fn|struct|enum)\s+\w+\s*"),
            result: regex(r"^\s*(->[^{;]*)"),
            alias: regex(r"\btype\s+\w+(?:<[^>=]*>)?\s*(=[^;]*);"),
            closure: regex(r"\|[^|;{}]*(:\s*&?\([^()|]*,[^()|]*\))[^|;{}]*\|"),
        }
    }

    /// The tuple types in a file's signatures, fields and aliases.
    fn tuple_types(&self, source: &str) -> Vec<String> {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code = self.silent.replace_all(code, " ");
        self.regions(&code).into_iter().flat_map(tuples).collect()
    }

    /// The parts of a text that consist of patterns and types.
    fn regions<'c>(&self, code: &'c str) -> Vec<&'c str> {
        let mut all = Vec::new();
        for found in self.item.captures_iter(code) {
            let mut at = found.get(0).unwrap().end();
            if code[at..].starts_with('<') {
                at = close(code, at) + 1;
            }
            at += code[at..].len() - code[at..].trim_start().len();
            if !code[at..].starts_with(['(', '{']) {
                continue;
            }
            let end = close(code, at);
            all.push(&code[at + 1..end]);
            if let Some(result) = self.result.captures(&code[end + 1..]).filter(|_| &found[1] == "fn") {
                all.push(result.get(1).unwrap().as_str().split(" where ").next().unwrap_or_default());
            }
        }
        all.extend(self.alias.captures_iter(code).map(|found| found.get(1).unwrap().as_str()));
        all.extend(self.closure.captures_iter(code).map(|found| found.get(1).unwrap().as_str()));
        all
    }
}

/// The place of the bracket that closes the one at `open`.
fn close(text: &str, open: usize) -> usize {
    let opens = text[open..].chars().next().unwrap_or(' ');
    let closes = match opens {
        '(' => ')',
        '{' => '}',
        _ => '>',
    };
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text[open..].char_indices() {
        let arrow = c == '>' && matches!(before, '-' | '=');
        depth += i32::from(c == opens) - i32::from(c == closes && !arrow);
        if depth == 0 {
            return open + at;
        }
        before = c;
    }
    text.len() - 1
}

/// The tuple types among patterns and types: what stands in brackets, has a comma, and is neither a pattern nor a list of arguments.
fn tuples(region: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (open, _) in region.match_indices('(') {
        let before = region[..open].trim_end();
        let end = close(region, open);
        let after = region[end + 1..].trim_start();
        let pattern = after.starts_with(':') && !after.starts_with("::");
        // A name before it: the arguments of a function type, or the fields of a variant.
        let word = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let lifetime = before[..before.len() - word.len()].ends_with('\'');
        let named = before.ends_with('>') && !before.ends_with("->") || !(word.is_empty() || lifetime || word == "mut");
        if pattern || named {
            continue;
        }
        let inner = &region[open + 1..end];
        let (mut depth, mut parts) = (0, 1);
        for c in inner.chars() {
            depth += i32::from(matches!(c, '(' | '[' | '{' | '<')) - i32::from(matches!(c, ')' | ']' | '}' | '>'));
            parts += i32::from(c == ',' && depth == 0);
        }
        if parts > 1 {
            all.push(region[open..=end].split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    all
}
