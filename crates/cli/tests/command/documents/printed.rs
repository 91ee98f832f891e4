//! Text blocks of pages that show output: the command prints them today.

use crate::documents::{bash, root, tail};
use crate::pages::{self, Page};

/// Whether a printed line has the parts of a shown line, which `...` shortens, in their order.
fn shortened(shown: &str, printed: &str) -> bool {
    let mut rest = printed;
    shown.split("...").all(|part| {
        let found = rest.split_once(part.trim());
        rest = found.map_or("", |(_, after)| after);
        found.is_some()
    })
}

pub fn shortened_lines_keep_their_order() {
    assert!(shortened("  f(a, ..., c);", "f(a, b, c);") && shortened("}", "  }"));
    assert!(!shortened("f(a, ..., c);", "f(a, b);") && !shortened("c ... a", "a b c"));
}

/// The loop below the commands is one of the file that `emit` writes.
pub fn the_loop_of_the_readme_is_emitted() {
    let page = Page::read(&root(), pages::README);
    let blocks = page.blocks();
    let shown = blocks.iter().find(|b| b.info == "text" && b.text.contains("tw_barrier_wait")).expect("a loop");
    let above = blocks.iter().rfind(|b| b.line < shown.line && b.info == "sh").expect("commands above it");
    let emit = above.text.lines().find(|line| line.starts_with("tilewright emit ")).expect("a command that emits");
    let (_, file) = emit.split_once("--out ").expect("a file");
    let folder = tempfile::tempdir().expect("a folder");
    let output = bash(emit, folder.path()).output().expect("bash");
    assert!(output.status.success(), "{}", tail(&String::from_utf8_lossy(&output.stderr)));
    let source = std::fs::read_to_string(folder.path().join(file.trim())).expect("the source");
    let mut lines = source.lines();
    let mut shown = shown.text.lines().filter(|line| line.trim() != "...");
    let missing = shown.find(|line| !lines.any(|printed| shortened(line, printed)));
    assert_eq!(missing, None, "{file} lacks this line of README, or has it above the line before");
}

/// The guide's refusal is the message for the plan in it.
pub fn the_refusal_of_the_guide_is_printed() {
    let page = Page::read(&root(), "docs/guide/command.md");
    let blocks = page.blocks();
    let shown = blocks.iter().find(|b| b.info == "text" && b.text.contains("the nearest plan")).expect("a refusal");
    let plan = shown.text.split('`').nth(1).expect("a plan");
    let folder = tempfile::tempdir().expect("a folder");
    let explain = format!("tilewright explain gemm --m 64 --n 48 --k 32 --dtype bf16 --device emu --plan {plan}");
    let output = bash(&explain, folder.path()).output().expect("bash");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && shortened(&shown.text, &printed), "{}", tail(&printed));
}

/// The pictures of `docs/images` that show plans are those that `explain` draws; `cargo xtask pictures` renews them.
pub fn pictures_of_plans_are_drawn_today() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut old = Vec::new();
    let list = include_str!("../../../../xtask/pictures.txt").lines().filter(|line| line.contains(" | explain "));
    for (names, arguments) in list.filter_map(|line| line.split_once(" | ")) {
        let names: Vec<&str> = names.split(' ').collect();
        let to = |word: &str| match word {
            "FILE" => format!("{}.svg", names[0]),
            "FOLDER" => ".".to_string(),
            word => word.to_string(),
        };
        let command: Vec<String> = arguments.split(' ').map(to).collect();
        let output = bash(&format!("tilewright {}", command.join(" ")), folder.path()).output().expect("bash");
        assert!(output.status.success(), "{}", tail(&String::from_utf8_lossy(&output.stderr)));
        old.extend(names.into_iter().filter(|name| {
            let [drawn, kept] = [folder.path().to_path_buf(), root().join("docs/images")]
                .map(|folder| std::fs::read_to_string(folder.join(format!("{name}.svg"))).expect("a picture"));
            drawn != kept
        }));
    }
    assert!(old.is_empty(), "not as `explain` draws them: {old:?}; `cargo xtask pictures` draws them");
}
