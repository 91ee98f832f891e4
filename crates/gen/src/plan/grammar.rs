//! The text form of plans and constraints: MIOpenGEMM's grammar, with values checked and repetitions refused.
//!
//! ```text
//! text := part ("__" part)*                       concatenated form, what is printed
//!       | {{{"sub", "sub", "sub"}}}               A, B, C as MIOpenGEMM prints them; braces and quotes may be left out
//! part := ("A" | "B" | "C") "_" sub
//! sub  := KEY DIGITS ("_" KEY DIGITS)*
//! ```
//! A text that begins with a small letter is in the readable form instead ([`Keys::readable`]). A full plan names all 27 keys of
//! MIOpenGEMM in any order. Other keys have their defaults where they are left out, and are printed only where they differ from
//! their defaults. A constraint names any of the keys, `""` none.

use super::grammar_error::{GrammarError, GrammarFault};
use super::keys::{CHIRALS, COMMONS, Key, Keys, Part};
use super::readable::{self, Misread, Reading};
use super::value::{Constraint, Plan};
use std::fmt;
use std::str::FromStr;

impl Keys {
    /// Reads the text of a full plan, keys without effect as they are written.
    pub fn parse(text: &str) -> Result<Keys, GrammarError> {
        if readable::is_readable(text) {
            let reading = read_phrases(text)?;
            let keys = reading.named.apply(&Keys::default());
            let fault = || GrammarError::new(text, 0, text.len(), GrammarFault::NoTile);
            return if reading.whole { Ok(keys) } else { Err(fault()) };
        }
        let values = read(text)?;
        let missing: Vec<Key> = Key::all().filter(|k| k.info().is_classic() && values.0[k.index()].is_none()).collect();
        if !missing.is_empty() {
            return Err(GrammarError::new(text, 0, text.trim().len(), GrammarFault::MissingKeys(missing)));
        }
        let mut keys = Keys::default();
        values.named().for_each(|(key, value)| keys.set(key, value));
        Ok(keys)
    }
}

impl Plan {
    /// Reads a full plan.
    pub fn parse(text: &str) -> Result<Plan, GrammarError> {
        Keys::parse(text).map(Plan::from)
    }
}

impl Constraint {
    /// Reads a partial plan; `""` demands nothing.
    pub fn parse(text: &str) -> Result<Constraint, GrammarError> {
        if readable::is_readable(text) {
            let Reading { named, whole } = read_phrases(text)?;
            return Ok(if whole { Constraint::exactly(&named.apply(&Keys::default())) } else { named });
        }
        let mut constraint = Constraint::none();
        read(text)?.named().for_each(|(key, value)| constraint.pin(key, value));
        Ok(constraint)
    }
}

fn read_phrases(text: &str) -> Result<Reading, GrammarError> {
    readable::read(text).map_err(|Misread { phrase, fault }| {
        // A phrase is a piece of the text.
        let at = phrase.as_ptr() as usize - text.as_ptr() as usize;
        GrammarError::new(text, at, phrase.len(), fault)
    })
}

/// A part's keys and values to print: MIOpenGEMM's keys always, others where they differ from their default.
fn printed(plan: &Keys, part: Part) -> Vec<(Key, u32)> {
    let shown = |k: &Key| k.info().is_classic() || plan.get(*k) != k.info().default;
    part.keys().into_iter().filter(shown).map(|k| (k, plan.get(k))).collect()
}

fn sub(values: &[(Key, u32)]) -> String {
    let tokens: Vec<String> = values.iter().map(|(k, v)| format!("{}{v}", k.name())).collect();
    tokens.join("_")
}

/// The concatenated form, keys in registry order.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = Part::ALL.map(|part| sub(&printed(self, part)));
        write!(f, "A_{a}__B_{b}__C_{c}")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

/// The concatenated form, keys in registry order, parts without demands left out.
impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = Part::ALL.map(|part| (part, self.iter().filter(|(k, _)| k.part() == part).collect::<Vec<_>>()));
        let shown: Vec<String> =
            parts.iter().filter(|(_, v)| !v.is_empty()).map(|(part, v)| format!("{}_{}", part.name(), sub(v))).collect();
        f.write_str(&shown.join("__"))
    }
}

impl FromStr for Plan {
    type Err = GrammarError;
    fn from_str(text: &str) -> Result<Plan, GrammarError> {
        Plan::parse(text)
    }
}

impl FromStr for Constraint {
    type Err = GrammarError;
    fn from_str(text: &str) -> Result<Constraint, GrammarError> {
        Constraint::parse(text)
    }
}

impl TryFrom<String> for Plan {
    type Error = GrammarError;
    fn try_from(text: String) -> Result<Plan, GrammarError> {
        Plan::parse(&text)
    }
}

impl TryFrom<String> for Constraint {
    type Error = GrammarError;
    fn try_from(text: String) -> Result<Constraint, GrammarError> {
        Constraint::parse(&text)
    }
}

impl From<Plan> for String {
    fn from(plan: Plan) -> String {
        plan.to_string()
    }
}

impl From<Constraint> for String {
    fn from(constraint: Constraint) -> String {
        constraint.to_string()
    }
}

/// The values that a text names, by [`Key::index`]: records hold plans by the hundred thousand, and each is read.
struct Values([Option<u32>; 2 * CHIRALS + COMMONS]);

impl Values {
    fn named(&self) -> impl Iterator<Item = (Key, u32)> {
        Key::all().zip(self.0).filter_map(|(key, value)| Some((key, value?)))
    }
}

/// Reads either form; every key at most once.
fn read(text: &str) -> Result<Values, GrammarError> {
    let mut values = Values([None; 2 * CHIRALS + COMMONS]);
    if text.contains([',', '"', '{', '}']) {
        for (part, at, sub) in three_subs(text)? {
            if !sub.is_empty() {
                read_sub(text, part, at, sub, &mut values)?;
            }
        }
        return Ok(values);
    }
    let start = text.len() - text.trim_start().len();
    let body = text.trim();
    if body.is_empty() {
        return Ok(values);
    }
    let mut seen = Vec::new();
    let mut at = start;
    for piece in body.split("__") {
        let fail = |problem| Err(GrammarError::new(text, at, piece.len(), problem));
        let (letter, sub) = piece.split_once('_').unwrap_or((piece, ""));
        let Some(part) = Part::ALL.into_iter().find(|p| p.name() == letter) else {
            return fail(if piece.is_empty() { GrammarFault::EmptyToken } else { GrammarFault::UnknownPart });
        };
        if sub.is_empty() {
            return fail(GrammarFault::EmptyPart(part));
        }
        if seen.contains(&part) {
            return fail(GrammarFault::RepeatedPart(part));
        }
        seen.push(part);
        read_sub(text, part, at + letter.len() + 1, sub, &mut values)?;
        at += piece.len() + 2;
    }
    Ok(values)
}

/// Splits `{{{"..", "..", ".."}}}` into its parts and where each starts.
fn three_subs(text: &str) -> Result<Vec<(Part, usize, &str)>, GrammarError> {
    let outside = |c: char| c.is_whitespace() || c == '{' || c == ';';
    let body = text.trim_start_matches(outside);
    let start = text.len() - body.len();
    let body = body.trim_end_matches(|c: char| c.is_whitespace() || c == '}' || c == ';');
    let pieces: Vec<&str> = body.split(',').collect();
    if pieces.len() != 3 {
        return Err(GrammarError::new(text, start, body.len(), GrammarFault::PartCount(pieces.len())));
    }
    let mut subs = Vec::new();
    let mut at = start;
    for (part, piece) in Part::ALL.into_iter().zip(pieces) {
        let begin = at + piece.len() - piece.trim_start().len();
        let word = piece.trim();
        let inner = match (word.strip_prefix('"'), word.ends_with('"')) {
            (Some(rest), true) if !rest.is_empty() => (begin + 1, &rest[..rest.len() - 1]),
            (None, false) => (begin, word),
            _ => return Err(GrammarError::new(text, begin, word.len(), GrammarFault::Quotes)),
        };
        if inner.1.contains(['"', '{', '}']) {
            return Err(GrammarError::new(text, begin, word.len(), GrammarFault::Quotes));
        }
        subs.push((part, inner.0, inner.1));
        at += piece.len() + 1;
    }
    Ok(subs)
}

fn read_sub(text: &str, part: Part, start: usize, sub: &str, values: &mut Values) -> Result<(), GrammarError> {
    let (mut at, mut keys) = (start, part.keys());
    for token in sub.split('_') {
        let read = read_token(part, &mut keys, token);
        let (key, value) = read.map_err(|problem| GrammarError::new(text, at, token.len(), problem))?;
        if values.0[key.index()].replace(value).is_some() {
            return Err(GrammarError::new(text, at, token.len(), GrammarFault::RepeatedKey(key)));
        }
        at += token.len() + 1;
    }
    Ok(())
}

/// Reads a key and its value. It rotates the part's keys so that the key after it comes first, as this is mostly the next one.
fn read_token(part: Part, keys: &mut [Key], token: &str) -> Result<(Key, u32), GrammarFault> {
    if token.is_empty() {
        return Err(GrammarFault::EmptyToken);
    }
    let letters = token.find(|c: char| !c.is_alphabetic()).unwrap_or(token.len());
    let (name, digits) = token.split_at(letters);
    let Some(place) = keys.iter().position(|k| k.name() == name) else {
        return Err(GrammarFault::unknown(part, name));
    };
    let key = keys[place];
    keys.rotate_left(place + 1);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(GrammarFault::NotANumber(key));
    }
    match digits.parse::<u32>() {
        Ok(value) if key.info().legal.contains(value) => Ok((key, value)),
        _ => Err(GrammarFault::OutOfRange(key)),
    }
}
