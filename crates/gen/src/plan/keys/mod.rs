//! The table of keys: one row per hyperparameter, with its name, field, legal values, default, meaning, readers and neighbours.
//!
//! [`operand`](mod@operand) and [`whole`] hold the rows. A row also makes the field of [`Keys`] that holds the key's value, so
//! that code reads `plan.k_tile`. Texts, the search and generated pages read the row. [`super::derive`](mod@super::derive) gives
//! the values effect.

/// Makes the enum of keys, the struct of their values, and the table of rows.
macro_rules! rows {
    (
        $(#[$of_enum:meta])* enum $keys:ident;
        $(#[$of_struct:meta])* struct $values:ident { $($(#[$of_part:meta])* $part:ident: $type:ty),* };
        const $count:ident;
        $($key:ident $field:ident { name: $name:literal, meaning: $meaning:literal, $($column:tt)* })*
    ) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $keys {
            $(#[doc = $meaning] $key,)*
        }

        $(#[$of_struct])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $values {
            $($(#[$of_part])* pub $part: $type,)*
            $(#[doc = $meaning] pub $field: u32,)*
        }

        /// Number of keys in the table.
        pub const $count: usize = $keys::ALL.len();

        impl $keys {
            /// In printing order.
            pub const ALL: &[$keys] = &[$($keys::$key),*];
            const ROWS: &[KeyInfo] = &[
                $(KeyInfo { name: $name, alias: stringify!($field), meaning: $meaning, $($column)* ..KeyInfo::PLAIN },)*
            ];

            /// Its row of the table.
            pub const fn info(self) -> &'static KeyInfo {
                &$keys::ROWS[self as usize]
            }
        }

        impl $values {
            /// The value of one of these keys.
            pub const fn value(&self, key: $keys) -> u32 {
                match key {
                    $($keys::$key => self.$field,)*
                }
            }
            /// Keys with other values than their defaults. Picks ask hundreds of thousands of times: comparing each field with a constant is
            /// faster than a lookup of each key.
            pub(in crate::plan) fn changed(&self) -> impl Iterator<Item = $keys> + use<> {
                const { assert!($count <= 64) };
                let mut set = 0u64;
                $(set |= u64::from(self.$field != const { $keys::$key.info().default }) << ($keys::$key as u32);)*
                ones(set).map(|place| $keys::ALL[place])
            }
            /// The place of its value.
            pub const fn value_mut(&mut self, key: $keys) -> &mut u32 {
                match key {
                    $($keys::$key => &mut self.$field,)*
                }
            }
        }

        /// Every key at its default.
        impl Default for $values {
            fn default() -> $values {
                $values { $($part: Default::default(),)* $($field: $keys::$key.info().default,)* }
            }
        }
    };
}

/// The places of the ones of a word, ascending.
fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = word.trailing_zeros();
        word &= word.wrapping_sub(1);
        (place < 64).then_some(place as usize)
    })
}

pub mod operand;
mod shape;
pub mod whole;

pub use operand::{CHIRALS, Chiral, OperandKeys};
use serde::{Deserialize, Serialize};
pub(super) use shape::{HALO, Shape};
use std::fmt;
pub use whole::{COMMONS, Common, Keys};

/// One of the three parts of a plan's text.
///
/// ```
/// use tilewright_gen::plan::{Key, Part};
///
/// // A key that both operands have: part A's and part B's are two keys.
/// let [a, b] = [Part::A, Part::B].map(|part| Key::named(part, "MIC").expect("a key"));
/// assert_ne!(a, b);
/// assert_eq!((a.part().name(), Key::named(Part::C, "MIC")), ("A", None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// Operand A.
    A,
    /// Operand B.
    B,
    /// The rest.
    C,
}

/// A key together with its part of the plan.
///
/// ```
/// use tilewright_gen::plan::{Key, Part, Plan};
///
/// let key = Key::named(Part::C, "UNR").expect("a key");
/// assert_eq!((key.info().alias, key.to_string().as_str()), ("k_tile", "C_UNR"));
/// // The value of a plan, and the plan with another.
/// let plan = Plan::default();
/// assert_eq!(plan.with(key, 32).get(key), 32);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Key {
    /// Of operand A.
    A(Chiral),
    /// Of operand B.
    B(Chiral),
    /// Of the plan as a whole.
    C(Common),
}

/// One of the two operands, whose keys exist once for each.
///
/// ```
/// use tilewright_gen::plan::{Chiral, Key, Plan, Side};
///
/// let plan = Plan::parse("fma 128x64x16 on 16x16")?;
/// // Rows and columns of a thread.
/// assert_eq!(Side::ALL.map(|side| plan.of(side).micro), [8, 4]);
/// assert_eq!(Side::B.key(Chiral::Mic), Key::B(Chiral::Mic));
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Operand A.
    A,
    /// Operand B.
    B,
}

/// Where a key was first described.
///
/// ```
/// use tilewright_gen::plan::{Key, System};
///
/// let classic = Key::all().filter(|key| key.info().system == System::MiOpenGemm).count();
/// assert_eq!(classic, 27);
/// assert_eq!(System::ComposableKernel.to_string(), "Composable Kernel");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum System {
    /// One of MIOpenGEMM's 27 hyperparameters.
    MiOpenGemm,
    /// AMD's Tensile (rocBLAS).
    Tensile,
    /// TVM's double-buffer schedules.
    Tvm,
    /// Composable Kernel's wavelet pipeline.
    ComposableKernel,
    /// NVIDIA's CUTLASS.
    Cutlass,
    /// AMD's rocMLIR.
    RocMlir,
    /// SOFIE's batched convolutions.
    Sofie,
    /// tilewright's own.
    Tilewright,
}

/// The values a parser takes. What a problem or a device takes is asked later.
///
/// ```
/// use tilewright_gen::plan::{Key, Legal, Part};
///
/// let legal = |name| Key::named(Part::C, name).map(|key| key.info().legal).expect("a key");
/// assert!(legal("UNI").contains(2) && !legal("UNI").contains(9));
/// assert_eq!(Legal::OneOf(&[1, 2, 4]).to_string(), "1, 2, 4");
/// assert_eq!(Legal::Range(1, 64).to_string(), "1 to 64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Legal {
    /// Inclusive range.
    Range(u32, u32),
    /// Exactly these, ascending.
    OneOf(&'static [u32]),
}

/// A value and its neighbours in the search, ascending by value.
///
/// ```
/// use tilewright_gen::plan::{Edges, Key, Part};
///
/// let edges: Edges = Key::named(Part::C, "UNR").expect("a key").info().near;
/// // A search goes from a k-tile of 16 to deeper and shallower ones.
/// let (_, neighbours) = edges.iter().find(|(value, _)| *value == 16).expect("a value");
/// assert!(neighbours.contains(&8) && neighbours.contains(&32));
/// ```
pub type Edges = &'static [(u32, &'static [u32])];

/// Edges of a bit.
pub(super) const BIT_EDGES: Edges = &[(0, &[1]), (1, &[0])];

/// Values that a random start draws a key from.
///
/// ```
/// use tilewright_gen::plan::{Key, Part, Start};
///
/// // Random starts draw micro tiles that suit the extents.
/// assert_eq!(Key::named(Part::A, "MIC").expect("a key").info().start, Start::Micro);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The default alone.
    Default,
    /// Every value of the search graph.
    Graph,
    /// These.
    Of(&'static [u32]),
    /// These, on devices without waves.
    Waveless(&'static [u32]),
    /// Micro tiles that suit the extents.
    Micro,
    /// Thread grids that suit the extents.
    Skew,
}

/// Where a search moves a key.
///
/// ```
/// use tilewright_gen::plan::{Key, Moves, Part};
///
/// let moves = |part, name| Key::named(part, name).map(|key| key.info().moves);
/// // Copies need workspace; only convolutions have several forms.
/// assert_eq!(moves(Part::A, "WOS"), Some(Moves::Workspace));
/// assert_eq!(moves(Part::C, "BIM"), Some(Moves::Forms));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// Everywhere.
    Always,
    /// Where the device has waves.
    Waves,
    /// Where there is workspace.
    Workspace,
    /// Where the problem has several forms.
    Forms,
    /// Everywhere, to numbers of threads that suit the device.
    Threads,
}

/// Kinds of kernels, as bits of [`KeyInfo::kinds`]: products with tiles in shared memory.
pub(super) const PRODUCT: u8 = 1;
/// Standalone reductions.
pub(super) const ELEMENTS: u8 = 2;
/// Products with operands in registers only.
pub(super) const OWN_LOADS: u8 = 4;

/// A row of the table: all there is to know about a key.
///
/// ```
/// use tilewright_gen::plan::{Key, Part};
///
/// let info = Key::named(Part::C, "BUF").expect("a key").info();
/// assert_eq!((info.alias, info.default), ("buffers", 1));
/// assert!(!info.meaning.is_empty() && info.values().contains(&3));
/// // tilewright's own: a classic plan has no such key.
/// assert!(!info.is_classic());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct KeyInfo {
    /// Three upper-case letters.
    pub name: &'static str,
    /// Its readable name, also the field of [`Keys`] or [`OperandKeys`].
    pub alias: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What it costs and when it pays.
    pub cost: &'static str,
    /// Where it comes from.
    pub system: System,
    /// What the parser takes.
    pub legal: Legal,
    /// The value when a plan does not name the key. For the keys of other systems it reproduces MIOpenGEMM's behaviour.
    pub default: u32,
    /// Kinds of kernels that read it.
    pub(super) kinds: u8,
    /// Whether a product of this shape reads it.
    pub(super) read: fn(&Shape) -> bool,
    /// Neighbours of values in the search: for MIOpenGEMM's keys those of MIOpenGEMM's graph. Those of `MAC` depend on the device.
    pub near: Edges,
    /// Further neighbours, which an extended search follows.
    pub further: Edges,
    /// Search priority: 1 early, 0 normal, -1 late.
    pub priority: i8,
    /// Where random starts begin.
    pub start: Start,
    /// Where a search moves it.
    pub moves: Moves,
}

impl Keys {
    /// The keys of one operand.
    pub const fn of(&self, side: Side) -> &OperandKeys {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }
    /// The same, to change.
    pub const fn of_mut(&mut self, side: Side) -> &mut OperandKeys {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }
    /// Changes the keys of both operands.
    pub fn both(&mut self, change: impl Fn(&mut OperandKeys)) {
        change(&mut self.a);
        change(&mut self.b);
    }
    /// The same with some changes.
    pub fn but(mut self, change: impl FnOnce(&mut Keys)) -> Keys {
        change(&mut self);
        self
    }
}

impl Side {
    /// Both, A first.
    pub const ALL: [Side; 2] = [Side::A, Side::B];

    /// The operand's own of a key.
    pub const fn key(self, key: Chiral) -> Key {
        match self {
            Side::A => Key::A(key),
            Side::B => Key::B(key),
        }
    }
}

impl Legal {
    /// True if the value may be written.
    pub fn contains(self, value: u32) -> bool {
        match self {
            Legal::Range(low, high) => (low..=high).contains(&value),
            Legal::OneOf(values) => values.contains(&value),
        }
    }
}

impl fmt::Display for Legal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Legal::Range(low, high) => write!(f, "{low} to {high}"),
            Legal::OneOf(values) => {
                for (i, v) in values.iter().enumerate() {
                    let separator = if i == 0 { "" } else { ", " };
                    write!(f, "{separator}{v}")?;
                }
                Ok(())
            }
        }
    }
}

impl KeyInfo {
    /// A bit of tilewright's own, 0 by default, that every product reads.
    const PLAIN: KeyInfo = KeyInfo {
        name: "",
        alias: "",
        meaning: "",
        cost: "Free.",
        system: System::Tilewright,
        legal: Legal::OneOf(&[0, 1]),
        default: 0,
        kinds: PRODUCT,
        read: |_| true,
        near: BIT_EDGES,
        further: &[],
        priority: 0,
        start: Start::Default,
        moves: Moves::Always,
    };

    /// The values that the key may have; of a wide range, its ends and those that a search visits.
    pub fn values(&self) -> Vec<u32> {
        match self.legal {
            Legal::OneOf(values) => values.to_vec(),
            Legal::Range(first, last) if last - first < 16 => (first..=last).collect(),
            Legal::Range(first, last) => {
                self.near.iter().chain(self.further).map(|(value, _)| *value).chain([first, last]).collect()
            }
        }
    }
    /// True for one of MIOpenGEMM's 27 hyperparameters: a full text must name it.
    pub fn is_classic(&self) -> bool {
        self.system == System::MiOpenGemm
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::MiOpenGemm => "MIOpenGEMM",
            System::Tensile => "Tensile",
            System::Tvm => "TVM",
            System::ComposableKernel => "Composable Kernel",
            System::Cutlass => "CUTLASS",
            System::RocMlir => "rocMLIR",
            System::Sofie => "SOFIE",
            System::Tilewright => "tilewright",
        })
    }
}

impl Part {
    /// In printing order.
    pub const ALL: [Part; 3] = [Part::A, Part::B, Part::C];

    /// `A`, `B` or `C`.
    pub const fn name(self) -> &'static str {
        match self {
            Part::A => "A",
            Part::B => "B",
            Part::C => "C",
        }
    }
    /// The part's keys, in printing order.
    pub fn keys(self) -> Vec<Key> {
        match self {
            Part::A => Chiral::ALL.iter().map(|k| Key::A(*k)).collect(),
            Part::B => Chiral::ALL.iter().map(|k| Key::B(*k)).collect(),
            Part::C => Common::ALL.iter().map(|k| Key::C(*k)).collect(),
        }
    }
}

impl Key {
    /// Every key, in printing order.
    pub fn all() -> impl Iterator<Item = Key> {
        let a = Chiral::ALL.iter().map(|k| Key::A(*k));
        let b = Chiral::ALL.iter().map(|k| Key::B(*k));
        a.chain(b).chain(Common::ALL.iter().map(|k| Key::C(*k)))
    }
    /// Its place among all keys, in printing order.
    pub(super) const fn index(self) -> usize {
        match self {
            Key::A(k) => k as usize,
            Key::B(k) => CHIRALS + k as usize,
            Key::C(k) => 2 * CHIRALS + k as usize,
        }
    }
    /// A key by part and name; `None` if the part has no such key.
    pub fn named(part: Part, name: &str) -> Option<Key> {
        part.keys().into_iter().find(|k| k.name() == name)
    }
    /// Its row of the table.
    pub const fn info(self) -> &'static KeyInfo {
        match self {
            Key::A(k) | Key::B(k) => k.info(),
            Key::C(k) => k.info(),
        }
    }
    /// Three letters, without the part.
    pub const fn name(self) -> &'static str {
        self.info().name
    }
    /// The key's part of the plan.
    pub const fn part(self) -> Part {
        match self {
            Key::A(_) => Part::A,
            Key::B(_) => Part::B,
            Key::C(_) => Part::C,
        }
    }
}

/// `A_MIC`, as messages and constraints name it.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.part().name(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_key_order() {
        for key in Key::all() {
            let variant = match key {
                Key::A(k) | Key::B(k) => format!("{k:?}"),
                Key::C(k) => format!("{k:?}"),
            };
            assert_eq!(variant.to_uppercase(), key.name());
        }
        assert_eq!(Key::all().filter(|k| k.info().is_classic()).count(), 27);
        assert_eq!(Key::all().count(), 2 * CHIRALS + COMMONS);
    }

    #[test]
    fn defaults_and_neighbours_are_legal() {
        for key in Key::all() {
            let info = key.info();
            assert!(info.legal.contains(info.default), "{key}");
            for (from, to) in info.near.iter().chain(info.further) {
                assert!(info.legal.contains(*from), "{key}{from}");
                assert!(to.iter().all(|v| info.legal.contains(*v) && v != from), "{key}{from} -> {to:?}");
            }
        }
    }
}
