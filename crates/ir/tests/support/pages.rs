//! The project's pages (Markdown) as a test reads them: fenced blocks and the prose between them. Test files of other crates include this
//! file by its path.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};

/// The first page of the repository.
pub const README: &str = "README.md";
/// The page of the Python package in an index, which has no other file of the repository beside it.
pub const PACKAGE: &str = "crates/python/README.md";

/// A page of the project.
pub struct Page {
    /// Relative to the project's root: `docs/guide/c.md`.
    pub name: String,
    pub text: String,
}

/// A fenced block: what stands after the fence's opening, and its lines.
pub struct Block {
    pub info: String,
    /// The number of the block's first line in its page, from 1.
    pub line: usize,
    pub text: String,
}

impl Block {
    /// Whether it is of this language and has none of these words after it.
    pub fn is(&self, language: &str, without: &[&str]) -> bool {
        let mut words = self.info.split([' ', ',']);
        words.next() == Some(language) && !words.any(|w| without.contains(&w))
    }
}

impl Page {
    pub fn read(root: &Path, name: &str) -> Page {
        let path = root.join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Page { name: name.into(), text }
    }

    /// The README, the Python package's page and the guides, in order of their names.
    pub fn of_users(root: &Path) -> Vec<Page> {
        let guides = std::fs::read_dir(root.join("docs/guide")).into_iter().flatten().map(|f| f.expect("a file").path());
        let mut guides: Vec<PathBuf> = guides.filter(|f| f.extension().is_some_and(|e| e == "md")).collect();
        guides.sort();
        let name = |f: &PathBuf| format!("docs/guide/{}", f.file_name().expect("a name").to_string_lossy());
        let names = [README, PACKAGE].map(String::from).into_iter().chain(guides.iter().map(name));
        names.map(|name| Page::read(root, &name)).collect()
    }

    /// Lines with their numbers, and for each the block that it stands in; fences belong to none and are left out.
    fn lines(&self) -> Vec<(usize, &str, Option<Fence<'_>>)> {
        let mut lines = Vec::new();
        let mut fence: Option<Fence> = None;
        for (i, line) in self.text.lines().enumerate() {
            let bare = line.trim_start();
            match fence {
                None if bare.starts_with("```") => {
                    let ticks = bare.len() - bare.trim_start_matches('`').len();
                    fence = Some(Fence { info: bare[ticks..].trim(), line: i + 2, indent: line.len() - bare.len(), ticks });
                }
                Some(open) if bare.trim_end().len() >= open.ticks && bare.trim_end().bytes().all(|b| b == b'`') => fence = None,
                _ => lines.push((i + 1, line, fence)),
            }
        }
        lines
    }

    pub fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().into_iter().filter(|(_, _, fence)| fence.is_none()).map(|(number, line, _)| (number, line))
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (_, line, fence) in self.lines() {
            let Some(fence) = fence else { continue };
            if blocks.last().is_none_or(|b| b.line != fence.line) {
                blocks.push(Block { info: fence.info.into(), line: fence.line, text: String::new() });
            }
            let block = blocks.last_mut().expect("a block");
            block.text += line.get(fence.indent..).unwrap_or_default();
            block.text.push('\n');
        }
        blocks
    }

    /// Lines that stand in no block of this language.
    pub fn lines_outside(&self, language: &str) -> impl Iterator<Item = (usize, &str)> {
        let outside = move |fence: &Option<Fence>| fence.is_none_or(|f| f.info.split(' ').next() != Some(language));
        self.lines().into_iter().filter(move |(_, _, fence)| outside(fence)).map(|(number, line, _)| (number, line))
    }
}

/// How a block begins.
#[derive(Clone, Copy)]
struct Fence<'a> {
    info: &'a str,
    /// The block's first line.
    line: usize,
    indent: usize,
    ticks: usize,
}
