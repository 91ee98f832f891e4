//! Edits that make a strange input from a valid one.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Numbers at the ends of types, and beyond them.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "1",
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "1e400",
    "NaN",
    "007",
];

/// The same as numbers of structures and files.
const WHOLE: [i64; 14] = [0, 1, 2, 3, 8, 16, -1, i32::MIN as i64, i32::MAX as i64, 1 << 20, 1 << 32, 1 << 40, i64::MIN, i64::MAX];

/// Lengths of very long repeats.
const LENGTHS: [usize; 4] = [2, 17, 1000, 100_000];

/// The largest input.
const LARGEST: usize = 1 << 20;

/// A position as a share of a length, in units of 2^-32.
#[derive(Clone, Copy, Debug)]
pub struct Share(u32);

impl Share {
    /// One of `count` positions from 0.
    fn of(self, count: usize) -> usize {
        ((count as u128 * u128::from(self.0)) >> 32) as usize
    }
}

/// One edit. Positions are shares of what is there, so that each edit fits every input.
#[derive(Clone, Debug)]
pub enum Edit {
    /// Flips bits of a byte.
    Flip { at: Share, bits: u8 },
    /// Replaces a byte by one that occurs in texts.
    Put { at: Share, byte: u8 },
    /// Removes some bytes.
    Remove { at: Share, count: usize },
    /// Removes everything from here on.
    Cut { at: Share },
    /// Repeats some bytes.
    Repeat { at: Share, count: usize, times: usize },
    /// Replaces a number of a text, or a byte where there is none, by a number at the end of a type.
    Number { at: Share, value: &'static str },
    /// As `Number`, by a small number.
    Small { at: Share, value: u32 },
    /// Replaces a word by a word of a valid input.
    Word { at: Share, input: Share, from: Share },
    /// Goes on with the end of a valid input.
    Splice { at: Share, input: Share, from: Share },
    /// Replaces a number of 4 or 8 bytes, counted from the end.
    Whole { at: Share, value: i64, wide: bool },
    /// Puts a number of a protocol buffer of 64 bits.
    Varint { at: Share, last: u8 },
}

/// An input: a valid one and its edits.
#[derive(Clone, Debug)]
pub struct Recipe {
    start: Share,
    edits: Vec<Edit>,
}

fn share() -> impl Strategy<Value = Share> {
    any::<u32>().prop_map(Share)
}

fn edit() -> impl Strategy<Value = Edit> {
    let marks = select(&b"_-:;,.=+*/x0123456789abkmnABC{}[]()\"'\\ \n\t\0\x7f\xff\xc3"[..]);
    prop_oneof![
        2 => (share(), 1..=255_u8).prop_map(|(at, bits)| Edit::Flip { at, bits }),
        2 => (share(), marks).prop_map(|(at, byte)| Edit::Put { at, byte }),
        2 => (share(), 1..20_usize).prop_map(|(at, count)| Edit::Remove { at, count }),
        1 => share().prop_map(|at| Edit::Cut { at }),
        1 => (share(), 1..20_usize, select(&LENGTHS[..])).prop_map(|(at, count, times)| Edit::Repeat { at, count, times }),
        5 => (share(), select(&NUMBERS[..])).prop_map(|(at, value)| Edit::Number { at, value }),
        5 => (share(), 0..300_u32).prop_map(|(at, value)| Edit::Small { at, value }),
        6 => (share(), share(), share()).prop_map(|(at, input, from)| Edit::Word { at, input, from }),
        2 => (share(), share(), share()).prop_map(|(at, input, from)| Edit::Splice { at, input, from }),
        3 => (share(), select(&WHOLE[..]), any::<bool>()).prop_map(|(at, value, wide)| Edit::Whole { at, value, wide }),
        1 => (share(), 0..=127_u8).prop_map(|(at, last)| Edit::Varint { at, last }),
    ]
}

/// Inputs with up to eight edits, mostly one: those pass a reader's first checks.
pub fn recipe() -> impl Strategy<Value = Recipe> {
    let edits = prop_oneof![4 => vec(edit(), 1), 2 => vec(edit(), 2..4), 1 => vec(edit(), 0..8)];
    (share(), edits).prop_map(|(start, edits)| Recipe { start, edits })
}

impl Recipe {
    /// The input. At least one valid input is needed.
    pub fn input(&self, valid: &[Vec<u8>]) -> Vec<u8> {
        let mut input = valid[self.start.of(valid.len())].clone();
        for edit in &self.edits {
            edit.apply(&mut input, valid);
            input.truncate(LARGEST);
        }
        input
    }
}

/// A part of an input.
type Span = std::ops::Range<usize>;

/// The first run of bytes of a kind that contains a position or follows it.
fn run(input: &[u8], at: usize, of: fn(&u8) -> bool) -> Option<Span> {
    let start = at + input.get(at..)?.iter().position(of)?;
    let start = start - input[..start].iter().rev().take_while(|b| of(b)).count();
    Some(start..start + input[start..].iter().take_while(|b| of(b)).count())
}

fn in_word(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric()
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>, valid: &[Vec<u8>]) {
        // A position may be the end.
        let place = |at: &Share, input: &[u8]| at.of(input.len() + 1);
        let span = |start: usize, count: usize, input: &[u8]| start..input.len().min(start + count);
        match self {
            Edit::Flip { at, bits } => {
                let at = place(at, input);
                input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= bits);
            }
            Edit::Put { at, byte } => {
                let at = place(at, input);
                input.splice(span(at, 1, input), [*byte]);
            }
            Edit::Remove { at, count } => {
                let at = place(at, input);
                input.drain(span(at, *count, input));
            }
            Edit::Cut { at } => input.truncate(place(at, input)),
            Edit::Repeat { at, count, times } => {
                let span = span(place(at, input), *count, input);
                let repeated = input[span.clone()].repeat(*times);
                input.splice(span, repeated);
            }
            Edit::Number { at, value } => number(input, place(at, input), value),
            Edit::Small { at, value } => number(input, place(at, input), &value.to_string()),
            Edit::Word { at, input: other, from } => {
                let (at, other) = (place(at, input), &valid[other.of(valid.len())]);
                let word = run(other, place(from, other), in_word).map_or(&[][..], |word| &other[word]);
                let old = run(input, at, in_word).unwrap_or(at..at);
                input.splice(old, word.iter().copied());
            }
            Edit::Splice { at, input: other, from } => {
                let other = &valid[other.of(valid.len())];
                input.truncate(place(at, input));
                input.extend_from_slice(&other[place(from, other)..]);
            }
            Edit::Whole { at, value, wide } => {
                let width = if *wide { 8 } else { 4 };
                let end = input.len() - width * at.of(input.len() / width);
                let bytes = value.to_le_bytes();
                input.splice(end.saturating_sub(width)..end, bytes[..width].iter().copied());
            }
            Edit::Varint { at, last } => {
                let at = place(at, input);
                input.splice(span(at, 1, input), [[0xff; 8].as_slice(), &[*last]].concat());
            }
        }
    }
}

fn number(input: &mut Vec<u8>, at: usize, value: &str) {
    let old = run(input, at, u8::is_ascii_digit).unwrap_or(at..at);
    input.splice(old, value.bytes());
}

#[test]
fn edits_change_numbers_words_and_ends() {
    let valid = [b"ab12_c3 d".to_vec()];
    let changed = |edit: Edit| {
        let mut input = valid[0].clone();
        edit.apply(&mut input, &valid);
        String::from_utf8_lossy(&input).into_owned()
    };
    let (first, middle, last) = (Share(0), Share(1 << 31), Share(u32::MAX));
    assert_eq!(changed(Edit::Number { at: first, value: "1e400" }), "ab1e400_c3 d");
    assert_eq!(changed(Edit::Number { at: last, value: "0" }), "ab12_c3 d0");
    assert_eq!(changed(Edit::Word { at: middle, input: first, from: last }), "ab12_ d");
    assert_eq!(changed(Edit::Word { at: first, input: first, from: middle }), "c3_c3 d");
    assert_eq!(changed(Edit::Repeat { at: first, count: 2, times: 2 }), "abab12_c3 d");
    assert_eq!(changed(Edit::Whole { at: first, value: 0x6465_6667, wide: false }), "ab12_gfed");
    assert_eq!(changed(Edit::Remove { at: first, count: 100 }), "");
    assert_eq!(changed(Edit::Splice { at: middle, input: first, from: first }), "ab12_ab12_c3 d");
}
