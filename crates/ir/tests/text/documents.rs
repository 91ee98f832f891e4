//! The README stays short: its size, the length of its table cells, and the screens that it must have.

use std::path::Path;

/// At most 8 KB, no table cell over 12 words, and a block for each interface.
#[test]
fn the_readme_is_short() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(readme.len() <= 8192, "{} bytes", readme.len());
    for fence in ["```sh\n", "```text\n", "```python\n", "```rust\n", "```c\n"] {
        assert!(readme.contains(fence), "no block {fence}");
    }
    let rows: Vec<&str> = outside_of_blocks(&readme).into_iter().filter(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 7, "the table of figures has five rows: {rows:?}");
    for cell in rows.iter().flat_map(|row| row.split('|')) {
        assert!(cell.split_whitespace().count() <= 12, "more than 12 words: {cell}");
    }
}

/// Lines that are not within a fenced block.
fn outside_of_blocks(text: &str) -> Vec<&str> {
    let mut inside = false;
    let outside = |line: &&str| {
        let fence = line.starts_with("```");
        inside ^= fence;
        !inside && !fence
    };
    text.lines().filter(outside).collect()
}

#[test]
fn blocks_are_left_out() {
    assert_eq!(outside_of_blocks("a\n```c\n| b |\n```\n| c |"), ["a", "| c |"]);
}
