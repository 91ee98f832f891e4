//! Names in printed source: legal, unique where they are visible, and as close to the wanted name as possible.

use std::collections::HashSet;

/// Words no C-family dialect lets us use, or that would confuse a reader.
const C_WORDS: &str = "alignas alignof and asm auto bool break case catch char class compl const constexpr continue default delete do double \
    else enum explicit export extern false float for friend goto half if inline int long main mutable namespace new not \
    operator or private protected public register restrict return short signed sizeof static struct switch template this \
    throw true try typedef typename union unsigned using virtual void volatile while xor";

/// Hands out names, scope by scope. A name may come again only in a scope that cannot see the first.
pub(super) struct Namer {
    reserved: HashSet<&'static str>,
    scopes: Vec<HashSet<String>>,
}

impl Namer {
    /// A namer that keeps off C's words and a dialect's own.
    pub fn new(dialect_words: &'static str) -> Self {
        let reserved = C_WORDS.split_whitespace().chain(dialect_words.split_whitespace()).collect();
        Namer { reserved, scopes: vec![HashSet::new()] }
    }
    /// Enters a nested scope.
    pub fn open(&mut self) {
        self.scopes.push(HashSet::new());
    }
    /// Leaves the innermost scope; its names become free.
    pub fn close(&mut self) {
        self.scopes.pop();
    }
    /// A name for the current scope: the wanted one, or the wanted one with the smallest free number.
    pub fn declare(&mut self, wanted: &str) -> String {
        let stem = legal(wanted);
        // `tw_...` and `f32x4` are the printer's own: its helpers and types.
        let stem = if stem.starts_with("tw_") || is_vector_type(&stem) { format!("v_{stem}") } else { stem };
        self.free(stem)
    }
    /// A name for the kernel itself, which may look like a helper's: the printer sees to it that it is none's.
    pub fn declare_entry(&mut self, wanted: &str) -> String {
        self.free(legal(wanted))
    }
    fn free(&mut self, stem: String) -> String {
        let mut name = stem.clone();
        let mut n = 0;
        while self.reserved.contains(name.as_str()) || self.scopes.iter().any(|s| s.contains(&name)) {
            n += 1;
            name = format!("{stem}_{n}");
        }
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.clone());
        }
        name
    }
}

/// The nearest legal identifier that is not the implementation's (leading or double underscore).
fn legal(wanted: &str) -> String {
    let mut name = String::with_capacity(wanted.len());
    for c in wanted.chars() {
        let c = if c.is_ascii_alphanumeric() { c } else { '_' };
        if !(c == '_' && name.ends_with('_')) {
            name.push(c);
        }
    }
    if name.is_empty() || name.starts_with(|c: char| c == '_' || c.is_ascii_digit()) {
        name.insert_str(0, if name.starts_with('_') { "v" } else { "v_" });
    }
    name
}

fn is_vector_type(name: &str) -> bool {
    let mut parts = name.splitn(2, 'x');
    let scalar = matches!(parts.next(), Some("f32" | "f64" | "i32" | "u32" | "i64" | "u16"));
    scalar && parts.next().is_some_and(|n| n.parse::<u8>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_legal_and_unique_where_visible() {
        let mut n = Namer::new("barrier");
        assert_eq!(n.declare("a"), "a");
        assert_eq!(n.declare("a"), "a_1");
        n.open();
        assert_eq!(n.declare("a"), "a_2");
        assert_eq!(n.declare("k"), "k");
        n.close();
        assert_eq!(n.declare("k"), "k");
        for (wanted, got) in [
            ("barrier", "barrier_1"),
            ("for", "for_1"),
            ("9 lives", "v_9_lives"),
            ("__x", "v_x"),
            ("", "v_"),
            ("tw_fma", "v_tw_fma"),
            ("f32x4", "v_f32x4"),
            ("f32xy", "f32xy"),
            ("größe", "gr_e"),
        ] {
            assert_eq!(n.declare(wanted), got);
        }
        assert_eq!(n.declare_entry("tw_gemm"), "tw_gemm");
    }
}
