//! The readable text of a plan: `wgmma 128x256x64 on 2x1, tma+tma, 4 stages, cluster 2x1, 4 producers`.
//!
//! ```text
//! text   := phrase ("," phrase)* ["," "..."]
//! phrase := UNIT ROWSxCOLUMNSxDEPTH ["on" MxN]     math unit, macro tile and k-tile, grid of owners (threads, waves, warpgroups)
//!         | COPY "+" COPY                          how A and B reach shared memory
//!         | N "stages"                             buffers, with loads N - 1 k-tiles ahead
//!         | "cluster" MxN
//!         | NAME | "no" NAME                       a bit by its readable name
//!         | N NAME | NAME "=" VALUE                any other key; operands' names begin with "A." or "B.", or name both
//! ```
//! A text with a tile is a whole plan: keys that it does not name have their defaults. A text without a tile, or one that ends in `...`, is a
//! constraint. One reader gives phrases their meaning. The printer checks each phrase with it, so that no text loses a key.

use super::grammar_error::GrammarFault;
use super::grid::thread_grid;
use super::keys::{Chiral, Common, Key, Keys, Legal, Part, Side};
use super::value::Constraint;
use tilewright_ir::mma::{Family, Owner};

/// Short names of math units, by `UNI`.
const UNITS: [&str; 4] = ["fma", "mma", "wgmma", "mfma"];
/// Names of copies, by `ACP`.
const COPIES: [&str; 5] = ["registers", "async", "tma", "shifted-tma", "halo"];
/// What a text ends in where the search chooses the rest.
const REST: &str = "...";

/// The keys that a readable text names.
pub(super) struct Reading {
    pub named: Constraint,
    /// Keys without a name have their defaults.
    pub whole: bool,
}

/// Why a phrase has no meaning, and which.
pub(super) struct Misread<'a> {
    pub phrase: &'a str,
    pub fault: GrammarFault,
}

/// Returns whether a text is in this form, not in the form of keys, which begins with a capital or a quote.
pub(super) fn is_readable(text: &str) -> bool {
    let text = text.trim_start();
    let first = text.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    first || ["A.", "B.", REST].iter().any(|start| text.starts_with(start))
}

/// Reads a readable text.
pub(super) fn read(text: &str) -> Result<Reading, Misread<'_>> {
    let mut reading = Reading { named: Constraint::none(), whole: false };
    let phrases: Vec<&str> = text.split(',').map(str::trim).collect();
    let alternating = phrases.contains(&"ping-pong");
    for phrase in &phrases {
        if *phrase == REST {
            continue;
        }
        let values = meaning(phrase, alternating).map_err(|fault| Misread { phrase, fault })?;
        for value in values {
            if reading.named.pins(value.key) {
                return Err(Misread { phrase, fault: GrammarFault::RepeatedKey(value.key) });
            }
            reading.named.pin(value.key, value.value);
        }
        reading.whole |= tile(phrase).is_some();
    }
    reading.whole &= !phrases.contains(&REST);
    Ok(reading)
}

impl Keys {
    /// The readable text of a whole plan, which [`Plan::parse`](super::Plan::parse) reads back.
    ///
    /// ```
    /// use tilewright_gen::plan::{Keys, Plan};
    ///
    /// let plan: Plan = "mma 128x128x32 on 2x2, async+async, 3 stages".parse()?;
    /// assert_eq!((plan.unit, plan.threads, plan.a.micro, plan.buffers), (1, 128, 4, 3));
    /// assert_eq!(Plan::parse(&plan.readable())?, plan);
    /// # Ok::<(), tilewright_gen::plan::GrammarError>(())
    /// ```
    pub fn readable(&self) -> String {
        let mut said = Keys::default();
        let alternating = self.ping_pong == 1;
        // A plan whose owners have no grid, which is refused, has keys only.
        let Some(tile) = self.tile_phrase() else { return self.to_string() };
        let copies = COPIES.get(self.a.copy as usize).zip(COPIES.get(self.b.copy as usize)).map(|(a, b)| format!("{a}+{b}"));
        let stages = format!("{} stages", self.buffers);
        let cluster = format!("cluster {}x{}", self.a.cluster, self.b.cluster);
        let mut phrases = Vec::new();
        for phrase in [Some(tile), copies, Some(stages), Some(cluster)].into_iter().flatten() {
            let values = meaning(&phrase, alternating).unwrap_or_default();
            let right = !values.is_empty() && values.iter().all(|v| self.get(v.key) == v.value);
            match (right, phrases.is_empty()) {
                (false, true) => return self.to_string(),
                (true, first) if first || values.iter().any(|v| said.get(v.key) != v.value) => {
                    values.iter().for_each(|v| said.set(v.key, v.value));
                    phrases.push(phrase);
                }
                _ => {}
            }
        }
        for key in said.difference(self) {
            let value = self.get(key);
            let alike = |own: Chiral| {
                [Side::A, Side::B].iter().all(|side| self.of(*side).value(own) == value && said.of(*side).value(own) != value)
            };
            match key {
                // Said together with that of A.
                Key::B(own) if alike(own) => {}
                Key::A(own) if !alike(own) => phrases.push(named("A.", key, value)),
                Key::B(_) => phrases.push(named("B.", key, value)),
                Key::A(_) | Key::C(_) => phrases.push(named("", key, value)),
            }
        }
        phrases.join(", ")
    }

    /// The unit, the tile and the grid of owners; `None` where owners have no grid.
    fn tile_phrase(&self) -> Option<String> {
        let (family, unit) = (Family::numbered(self.unit)?, UNITS.get(self.unit as usize)?);
        let (m, n) = if self.ping_pong == 1 { (1, 1) } else { thread_grid(self.threads / family.lanes, self.skew)? };
        let rows = m.checked_mul(self.a.micro)?.checked_mul(family.block.rows)?;
        let columns = n.checked_mul(self.b.micro)?.checked_mul(family.block.columns)?;
        let grid = if self.ping_pong == 1 { String::new() } else { format!(" on {m}x{n}") };
        Some(format!("{unit} {rows}x{columns}x{}{grid}", self.k_tile))
    }
}

/// A key by its readable name, with its value.
fn named(side: &str, key: Key, value: u32) -> String {
    let alias = key.info().alias.replace('_', "-");
    match (is_bit(key), value) {
        (true, 1) => format!("{side}{alias}"),
        (true, 0) => format!("no {side}{alias}"),
        _ if alias.ends_with('s') && key.part() == Part::C => format!("{value} {alias}"),
        _ => format!("{side}{alias}={value}"),
    }
}

fn is_bit(key: Key) -> bool {
    key.info().legal == Legal::OneOf(&[0, 1])
}

/// A key and the value that a phrase gives it.
struct Value {
    key: Key,
    value: u32,
}

/// What a phrase says. With ping-pong, a tile belongs to one warpgroup.
fn meaning(phrase: &str, alternating: bool) -> Result<Vec<Value>, GrammarFault> {
    if let Some(tile) = tile(phrase) {
        return tile.values(alternating);
    }
    let value = |key, value| Value { key, value };
    let words: Vec<&str> = phrase.split_whitespace().collect();
    if let [copies] = words[..]
        && let Some((a, b)) = copies.split_once('+')
    {
        let number = |name: &str| COPIES.iter().position(|copy| *copy == name).map(|n| n as u32).ok_or(GrammarFault::UnknownCopy);
        let key = |side: Side| side.key(Chiral::Acp);
        return Ok(vec![value(key(Side::A), number(a)?), value(key(Side::B), number(b)?)]);
    }
    match words[..] {
        ["cluster", size] => {
            let [m, n] = numbers(size).ok_or(GrammarFault::UnknownPhrase)?;
            checked([(Side::A.key(Chiral::Clu), m), (Side::B.key(Chiral::Clu), n)])
        }
        [count, "stages"] => {
            let count: u32 = count.parse().ok().filter(|n| *n > 0).ok_or(GrammarFault::UnknownPhrase)?;
            checked([Common::Buf, Common::Pfg].map(Key::C).into_iter().zip([count, count - 1]))
        }
        ["no", name] => keys_named(name, 0, is_bit),
        [count, name] => keys_named(name, count.parse().map_err(|_| GrammarFault::UnknownPhrase)?, |key| !is_bit(key)),
        [name] => match name.split_once('=') {
            Some((name, digits)) => keys_named(name, digits.parse().map_err(|_| GrammarFault::UnknownPhrase)?, |_| true),
            None => keys_named(name, 1, is_bit),
        },
        _ => Err(GrammarFault::UnknownPhrase),
    }
}

fn checked(values: impl IntoIterator<Item = (Key, u32)>) -> Result<Vec<Value>, GrammarFault> {
    let legal = |(key, value): (Key, u32)| {
        if key.info().legal.contains(value) { Ok(Value { key, value }) } else { Err(GrammarFault::OutOfRange(key)) }
    };
    values.into_iter().map(legal).collect()
}

/// Keys with a readable name: one of the plan, or those of one operand or of both.
fn keys_named(name: &str, value: u32, fits: impl Fn(Key) -> bool) -> Result<Vec<Value>, GrammarFault> {
    let name = name.replace('-', "_");
    let (part, alias) = match name.split_once('.') {
        Some(("A", alias)) => (Some(Part::A), alias),
        Some(("B", alias)) => (Some(Part::B), alias),
        _ => (None, name.as_str()),
    };
    let right = |key: &Key| key.info().alias == alias && part.is_none_or(|part| key.part() == part) && fits(*key);
    let keys: Vec<Key> = Key::all().filter(right).collect();
    if keys.is_empty() { Err(GrammarFault::UnknownPhrase) } else { checked(keys.into_iter().map(|key| (key, value))) }
}

/// The unit and the tile of a phrase.
struct TilePhrase {
    family: &'static Family,
    tile: [u32; 3],
    grid: Option<[u32; 2]>,
}

/// Numbers between `x`.
fn numbers<const N: usize>(text: &str) -> Option<[u32; N]> {
    let numbers: Option<Vec<u32>> = text.split('x').map(|n| n.parse().ok().filter(|n| *n > 0)).collect();
    numbers?.try_into().ok()
}

fn tile(phrase: &str) -> Option<TilePhrase> {
    let words: Vec<&str> = phrase.split_whitespace().collect();
    let (unit, tile, grid) = match words[..] {
        [unit, tile] => (unit, tile, None),
        [unit, tile, "on", grid] => (unit, tile, Some(numbers(grid)?)),
        _ => return None,
    };
    let unit = UNITS.iter().position(|name| *name == unit)?;
    Some(TilePhrase { family: Family::numbered(unit as u32)?, tile: numbers(tile)?, grid })
}

impl TilePhrase {
    fn values(&self, alternating: bool) -> Result<Vec<Value>, GrammarFault> {
        let (family, [rows, columns, k_tile]) = (self.family, self.tile);
        let [m, n] = match self.grid {
            _ if alternating => [1, 1],
            Some(grid) => grid,
            None => match family.owner {
                Owner::Thread => [16, 16],
                Owner::Wave => [2, 2],
                Owner::Warpgroup => [(rows / family.block.rows).clamp(1, 2), 1],
            },
        };
        let owners = m.checked_mul(n).ok_or(GrammarFault::UnevenTile)?;
        let micro = |extent: u32, owners: u32, block: u32| {
            let step = owners.checked_mul(block).filter(|step| extent.is_multiple_of(*step)).ok_or(GrammarFault::UnevenTile)?;
            Ok(extent / step)
        };
        let (a, b) = (micro(rows, m, family.block.rows)?, micro(columns, n, family.block.columns)?);
        let skew = (0..=20).find(|skew| thread_grid(owners, *skew) == Some((m, n))).ok_or(GrammarFault::UnevenTile)?;
        let mut values = checked([
            (Side::A.key(Chiral::Mic), a),
            (Side::B.key(Chiral::Mic), b),
            (Key::C(Common::Uni), family.number),
            (Key::C(Common::Unr), k_tile),
        ])?;
        // Teams that alternate are as many as there are threads for.
        if !alternating {
            let threads = owners.checked_mul(family.lanes).ok_or(GrammarFault::UnevenTile)?;
            values.extend(checked([(Key::C(Common::Mac), threads), (Key::C(Common::Skw), skew)])?);
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::*;

    fn plan(text: &str) -> Plan {
        Plan::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> =
            Chiral::ALL.iter().map(|k| k.info().alias).chain(Common::ALL.iter().map(|k| k.info().alias)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(!names.contains(&"stages") && UNITS.iter().chain(&COPIES).all(|word| !names.contains(word)));
    }

    #[test]
    fn the_usual_words() {
        let text = "wgmma 64x256x64, tma+tma, 4 stages, cluster 2x1, 4 producers, persistent=264, ping-pong";
        let made = plan(text);
        let values = (made.unit, made.a.micro, made.b.micro, made.k_tile, made.threads, made.a.copy, made.b.copy, made.buffers);
        assert_eq!(values, (2, 1, 32, 64, 256, 2, 2, 4));
        assert_eq!((made.a.cluster, made.b.cluster, made.producers, made.persistent, made.ping_pong), (2, 1, 4, 264, 1));
        assert_eq!(made.readable(), text);
    }

    #[test]
    fn every_legal_value_survives() {
        for key in Key::all() {
            for value in key.info().values() {
                for base in [Keys::default(), *plan("wgmma 128x256x64, tma+tma, 4 stages, 4 producers")] {
                    let keys = base.with(key, value);
                    assert_eq!(Keys::parse(&keys.readable()), Ok(keys), "{key}{value}: {}", keys.readable());
                }
            }
        }
    }

    #[test]
    fn a_text_without_a_tile_or_with_dots_is_a_constraint() {
        let some = Constraint::parse("tma+tma, 4 stages").unwrap();
        assert_eq!(some.to_string(), "A_ACP2__B_ACP2__C_PFG3_BUF4");
        let open = Constraint::parse("mma 64x64x32, ...").unwrap();
        assert!(open.pins(Key::C(Common::Unr)) && !open.pins(Key::C(Common::Buf)));
        assert!(Constraint::parse("mma 64x64x32").unwrap().pins(Key::C(Common::Buf)));
        assert!(Plan::parse("tma+tma, 4 stages").is_err() && Plan::parse("mma 64x64x32, ...").is_err());
    }

    #[test]
    fn faults_name_the_phrase() {
        let cases = [
            ("fma 100x128x16", "fma 100x128x16"),
            ("mma 64x64x32, tma+smoke", "tma+smoke"),
            ("mma 64x64x32, 99 stages", "99 stages"),
            ("mma 64x64x32, 2 stages, buffers=2", "buffers=2"),
            ("mma 64x64x32, colour=2", "colour=2"),
        ];
        for (text, token) in cases {
            let error = Plan::parse(text).unwrap_err();
            assert_eq!((error.token.as_str(), error.at), (token, text.find(token).unwrap()), "{error}");
        }
    }
}
