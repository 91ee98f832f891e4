//! Why a text is not a plan, where, and what to write instead.

use super::keys::{Key, Part};
use std::fmt;

/// What is wrong with a token.
///
/// ```
/// use tilewright_gen::plan::{Constraint, GrammarFault};
///
/// let fault = |text| Constraint::parse(text).map_err(|error| error.problem);
/// assert!(matches!(fault("A_MIC4_MIC8"), Err(GrammarFault::RepeatedKey(_))));
/// assert!(matches!(fault("A_MIC"), Err(GrammarFault::NotANumber(_))));
/// assert_eq!(fault("D_MIC4"), Err(GrammarFault::UnknownPart));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarFault {
    /// No part has such a key; the nearest of this part.
    UnknownKey(Part, Option<Key>),
    /// The key belongs to another part.
    WrongPart(Part, Key),
    /// The key was given before.
    RepeatedKey(Key),
    /// The part was given before.
    RepeatedPart(Part),
    /// A full plan lacks these.
    MissingKeys(Vec<Key>),
    /// The value is not one of the key's.
    OutOfRange(Key),
    /// What follows the key is not digits only.
    NotANumber(Key),
    /// A part without keys.
    EmptyPart(Part),
    /// A part that is not A, B or C.
    UnknownPart,
    /// Nothing between two underscores.
    EmptyToken,
    /// A comma separated text has this many parts instead of three.
    PartCount(usize),
    /// Quotes or braces do not match.
    Quotes,
    /// A phrase of a readable text that has no meaning.
    UnknownPhrase,
    /// A copy of a readable text that has no name.
    UnknownCopy,
    /// A tile that the grid of owners does not share evenly.
    UnevenTile,
    /// A readable text without a tile, where a whole plan is needed.
    NoTile,
}

/// A text that is not a plan or a constraint: names the token, where it stands, and the remedy.
///
/// ```
/// use tilewright_gen::plan::Constraint;
///
/// let error = Constraint::parse("A_MIC4__C_UNRR16").unwrap_err();
/// assert_eq!((error.token.as_str(), error.at), ("UNRR16", 10));
/// // The message names the place and the remedy.
/// assert!(error.to_string().starts_with("\"UNRR16\" at character 11: part C has no such key; did you mean UNR?"), "{error}");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError {
    /// The offending piece of the text.
    pub token: String,
    /// Its first byte within the text.
    pub at: usize,
    /// What is wrong with it.
    pub problem: GrammarFault,
}

impl GrammarError {
    pub(super) fn new(text: &str, at: usize, len: usize, problem: GrammarFault) -> GrammarError {
        let token = text.get(at..at + len).unwrap_or(text).to_string();
        GrammarError { token, at, problem }
    }
}

impl GrammarFault {
    /// The reason why `name` is no key of `part`.
    pub(super) fn unknown(part: Part, name: &str) -> GrammarFault {
        let elsewhere = [Part::C, Part::A].into_iter().filter(|p| *p != part).find_map(|p| Key::named(p, name));
        match elsewhere {
            Some(key) if Key::named(part, name).is_none() => GrammarFault::WrongPart(part, key),
            _ => GrammarFault::UnknownKey(part, nearest(part, name)),
        }
    }
}

/// The key of a part whose name is most like a word; `None` where nothing is alike.
fn nearest(part: Part, word: &str) -> Option<Key> {
    let word = word.to_uppercase();
    let scored = part.keys().into_iter().map(|k| (strsim::levenshtein(k.name(), &word), k));
    // Names have three letters: with two of them others, nothing is alike.
    scored.min().filter(|(d, _)| *d <= 1).map(|(_, k)| k)
}

fn names(part: Part) -> String {
    part.keys().into_iter().map(Key::name).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !matches!(self.problem, GrammarFault::MissingKeys(_)) {
            write!(f, "\"{}\" at character {}: ", self.token, self.at + 1)?;
        }
        match &self.problem {
            GrammarFault::UnknownKey(part, Some(near)) => {
                write!(f, "part {} has no such key; did you mean {}? Its keys are {}", part.name(), near.name(), names(*part))
            }
            GrammarFault::UnknownKey(part, None) => {
                write!(f, "part {} has no such key; its keys are {}", part.name(), names(*part))
            }
            GrammarFault::WrongPart(part, key) => {
                let right = if key.part() == Part::C { "part C" } else { "parts A and B" };
                write!(f, "{} is a key of {right}, not of part {}", key.name(), part.name())
            }
            GrammarFault::RepeatedKey(key) => write!(f, "{key} is given twice; keep one"),
            GrammarFault::RepeatedPart(part) => write!(f, "part {} is given twice; join both into one", part.name()),
            GrammarFault::MissingKeys(keys) => {
                let names: Vec<String> = keys.iter().map(Key::to_string).collect();
                write!(f, "not a full plan, missing keys: {}; add them, or use it as a constraint", names.join(" "))
            }
            GrammarFault::OutOfRange(key) => write!(f, "the value of {key} must be {}", one_of(*key)),
            GrammarFault::NotANumber(key) => {
                write!(f, "{} must be followed by digits only; its value is {}", key.name(), one_of(*key))
            }
            GrammarFault::EmptyPart(part) => {
                let p = part.name();
                write!(f, "part {p} has no keys; a part is written {p}_KEYvalue_KEYvalue, with single underscores")
            }
            GrammarFault::UnknownPart => f.write_str("a part starts with A_, B_ or C_, and parts are separated by __"),
            GrammarFault::EmptyToken => f.write_str("a key is missing here; keys are separated by one underscore, parts by two"),
            GrammarFault::PartCount(n) => write!(f, "{n} comma separated parts, where there must be three: A, B and C"),
            GrammarFault::UnknownPhrase => f.write_str(
                "no phrase of a plan; write for example `wgmma 128x256x64 on 2x1, tma+tma, 4 stages, cluster 2x1`, or a name of docs/reference/plans.md",
            ),
            GrammarFault::UnknownCopy => {
                f.write_str("copies are registers, async, tma, shifted-tma and halo, one for A and one for B: `tma+async`")
            }
            GrammarFault::UnevenTile => {
                f.write_str("the grid does not share the tile evenly; write another tile, or a grid such as `on 2x2` (m is a power of two)")
            }
            GrammarFault::NoTile => {
                f.write_str("not a full plan; begin with a tile such as `mma 128x128x32 on 2x2`, or use it as a constraint")
            }
            GrammarFault::Quotes => f.write_str("quotes or braces do not match; write {{{\"A keys\", \"B keys\", \"C keys\"}}}"),
        }
    }
}

impl std::error::Error for GrammarError {}

fn one_of(key: Key) -> String {
    match key.info().legal {
        legal @ super::keys::Legal::OneOf(_) => format!("one of {legal}"),
        legal => format!("{legal}"),
    }
}
