//! [`Plan`] and [`Constraint`] as values: the keys with effect, and numbers for some keys.

use super::keys::{Key, Keys};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Deref;
use tilewright_problem::Oriented;
use tilewright_problem::contraction::Contraction;

/// All choices for one kernel: a value for every key, where keys without effect are at one canonical value. So equal plans give equal kernels
/// and have equal texts ([`super::grammar`](mod@super::grammar)). Plans are serialised as their text.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Plan};
///
/// let plan: Plan = Constraint::parse("A_MIC4__C_UNR32_IWI1")?.apply(&Plan::default()).into();
/// assert_eq!((plan.a.micro, plan.k_tile), (4, 32));
/// // IWI says how splits of k share k; without a split (ICE1) it has no effect and is at its canonical value.
/// assert_eq!(plan.interleave_splits, 0);
/// // Its text names it completely.
/// assert_eq!(Plan::parse(&plan.to_string())?, plan);
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Plan(Keys);

impl From<Keys> for Plan {
    fn from(keys: Keys) -> Plan {
        Plan(keys.normal())
    }
}

impl From<&Keys> for Plan {
    fn from(keys: &Keys) -> Plan {
        Plan(keys.normal())
    }
}

/// A plan's keys are read as such; changed, they make another plan.
impl Deref for Plan {
    type Target = Keys;
    fn deref(&self) -> &Keys {
        &self.0
    }
}

/// Not derivable for every contraction.
impl Default for Plan {
    fn default() -> Plan {
        Plan::from(Keys::default())
    }
}

/// A set of plans. A pick asks it for tens of thousands of plans. Hashing the hundred numbers of each with a key of the process
/// takes an eighth of a pick.
///
/// ```
/// use tilewright_gen::plan::{Plan, Plans};
///
/// let mut seen = Plans::default();
/// assert!(seen.insert(Plan::parse("fma 64x64x16 on 16x16")?));
/// // Equal plans have several texts.
/// assert!(!seen.insert(Plan::parse("fma 64x64x16 on 16x16, 1 stages")?));
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
pub type Plans = HashSet<Plan, BuildHasherDefault<PlanHasher>>;

/// Hashes the numbers of a plan: a multiplication each.
///
/// ```
/// use std::hash::{BuildHasher, BuildHasherDefault};
/// use tilewright_gen::plan::{Plan, PlanHasher};
///
/// let hash = |text| Plan::parse(text).map(|plan| BuildHasherDefault::<PlanHasher>::default().hash_one(plan));
/// // No key of the process takes part: the numbers are the same in every run.
/// assert_eq!(hash("fma 64x64x16 on 16x16")?, hash("fma 64x64x16 on 16x16")?);
/// assert_ne!(hash("fma 64x64x16 on 16x16")?, hash("fma 64x64x32 on 16x16")?);
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanHasher(u64);

impl Hasher for PlanHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }
    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0.rotate_left(5) ^ u64::from(number)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    // A table takes the lowest bits, into which few numbers reach.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

/// What computes, and which factor is on its left.
///
/// ```
/// use tilewright_gen::plan::Plan;
///
/// let way = |text| Plan::parse(text).map(|plan| plan.way());
/// // Tiles differ, the unit does not.
/// assert_eq!(way("mma 64x64x32 on 2x2")?, way("mma 128x64x32 on 2x2")?);
/// assert_ne!(way("mma 64x64x32 on 2x2")?, way("fma 64x64x32 on 16x16")?);
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    unit: u32,
    swapped: u32,
}

/// How threads share a tile, and the tile's rows.
///
/// ```
/// use tilewright_gen::plan::Plan;
///
/// let class = |text| Plan::parse(text).map(|plan| plan.tile_shape().class);
/// // Plans of a class differ in columns and schedule; with more rows a plan is of another class.
/// assert_eq!(class("mma 64x64x32 on 2x2")?, class("mma 64x128x16 on 2x2, async+async, 3 stages")?);
/// assert_ne!(class("mma 64x64x32 on 2x2")?, class("mma 128x64x32 on 2x2")?);
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileClass {
    way: Way,
    ping_pong: u32,
    threads: u32,
    skew: u32,
    rows: u32,
}

/// The shape of a tile of C and of its threads' parts.
///
/// ```
/// use tilewright_gen::plan::Plan;
///
/// let shape = |text| Plan::parse(text).map(|plan| plan.tile_shape());
/// // The depth of a k-tile is no part of a tile's shape; its columns are.
/// assert_eq!(shape("mma 64x64x32 on 2x2")?, shape("mma 64x64x16 on 2x2")?);
/// assert_ne!(shape("mma 64x64x32 on 2x2")?, shape("mma 64x128x32 on 2x2")?);
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TileShape {
    /// All but the columns.
    pub class: TileClass,
    columns: u32,
}

/// Values that some keys must have; a search chooses the other keys. Its text is a partial plan, and a value need not be one that a search
/// would visit.
///
/// ```
/// use tilewright_gen::plan::{Chiral, Constraint, Key, Plan};
///
/// let constraint = Constraint::parse("A_MIC4__C_UNR24")?;
/// assert!(constraint.pins(Key::A(Chiral::Mic)));
/// assert!(!constraint.pins(Key::B(Chiral::Mic)));
/// assert!(!constraint.allows(&Plan::default()));
/// # Ok::<(), tilewright_gen::plan::GrammarError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Constraint {
    values: BTreeMap<Key, u32>,
}

impl Keys {
    /// The value of a key.
    pub const fn get(&self, key: Key) -> u32 {
        match key {
            Key::A(k) => self.a.value(k),
            Key::B(k) => self.b.value(k),
            Key::C(k) => self.value(k),
        }
    }
    /// Sets a key. The value is not checked: [`super::derive`](fn@super::derive) refuses what is not legal.
    pub const fn set(&mut self, key: Key, value: u32) {
        let place = match key {
            Key::A(k) => self.a.value_mut(k),
            Key::B(k) => self.b.value_mut(k),
            Key::C(k) => self.value_mut(k),
        };
        *place = value;
    }
    /// Keys that are not at their defaults, in printing order.
    pub(super) fn all_changed(&self) -> impl Iterator<Item = Key> {
        self.a.changed().map(Key::A).chain(self.b.changed().map(Key::B)).chain(self.changed().map(Key::C))
    }
    /// The same with one key changed.
    pub const fn with(mut self, key: Key, value: u32) -> Keys {
        self.set(key, value);
        self
    }
    /// Changes to the other orientation: the kernel of the transposed product.
    pub fn turn(&mut self) {
        self.swapped = 1 - self.swapped.min(1);
    }
    /// What computes, and in which orientation.
    pub const fn way(&self) -> Way {
        Way { unit: self.unit, swapped: self.swapped }
    }
    /// The shape of a tile.
    pub const fn tile_shape(&self) -> TileShape {
        let (way, ping_pong, threads, skew, rows) = (self.way(), self.ping_pong, self.threads, self.skew, self.a.micro);
        TileShape { class: TileClass { way, ping_pong, threads, skew, rows }, columns: self.b.micro }
    }
    /// The contraction as this plan's kernel computes it.
    pub fn orient<'c>(&self, c: &'c Contraction) -> Oriented<'c> {
        c.oriented(self.swapped == 1, self.family().unit)
    }
    /// Keys in which two differ, in printing order.
    pub fn difference(&self, other: &Keys) -> Vec<Key> {
        Key::all().filter(|k| self.get(*k) != other.get(*k)).collect()
    }
}

impl Constraint {
    /// No demands.
    pub fn none() -> Constraint {
        Constraint::default()
    }
    /// Demands exactly this plan.
    pub fn exactly(plan: &Keys) -> Constraint {
        Constraint { values: Key::all().map(|k| (k, plan.get(k))).collect() }
    }
    /// True if nothing is demanded.
    pub fn is_none(&self) -> bool {
        self.values.is_empty()
    }
    /// The value demanded of a key.
    pub fn get(&self, key: Key) -> Option<u32> {
        self.values.get(&key).copied()
    }
    /// True if a value is demanded of the key: a search must not move it.
    pub fn pins(&self, key: Key) -> bool {
        self.values.contains_key(&key)
    }
    /// Demands a value.
    pub fn pin(&mut self, key: Key, value: u32) {
        self.values.insert(key, value);
    }
    /// The demands, in printing order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, u32)> + '_ {
        self.values.iter().map(|(k, v)| (*k, *v))
    }
    /// The same keys with the demanded values put in.
    pub fn apply(&self, keys: &Keys) -> Keys {
        self.iter().fold(*keys, |p, (key, value)| p.with(key, value))
    }
    /// True if the plan has every demanded value, or the key has no effect on it.
    pub fn allows(&self, plan: &Plan) -> bool {
        self.values.is_empty() || Plan::from(self.apply(plan)) == *plan
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::{Common, OperandKeys, Part};
    use super::*;

    fn base() -> Keys {
        Keys::default()
    }

    #[test]
    fn keys_without_effect_do_not_tell_plans_apart() {
        let both = |change: fn(&mut Keys), also: fn(&mut Keys)| [base().but(change), base().but(change).but(also)];
        let same = [
            both(|p| p.splits = 1, |p| p.interleave_splits = 1),
            both(|p| p.split_sum = 0, |p| p.split_sum = 1),
            both(|p| (p.order, p.strip_groups) = (1, 16), |p| p.strip_groups = 64),
            both(|p| p.store_point = 0, |p| p.store_point = 1),
            both(|p| p.a.vector = 2, |p| p.a.read_width = 2),
            both(|p| p.a.micro = 1, |p| p.a.interleave_micro = 0),
            both(|p| p.splits = 4, |p| p.store_width = 4),
        ];
        for [x, y] in same {
            assert_eq!(Plan::from(x), Plan::from(y));
        }
    }

    #[test]
    fn keys_with_effect_do() {
        let both = |change: fn(&mut Keys), also: fn(&mut Keys)| [base().but(change), base().but(change).but(also)];
        let different = [
            both(|p| p.splits = 2, |p| p.interleave_splits = 1),
            both(|p| (p.order, p.strip_groups) = (3, 16), |p| p.strip_groups = 64),
            both(|p| (p.ahead, p.buffers) = (1, 2), |p| p.store_point = 1),
            both(|p| (p.splits, p.split_sum) = (4, 1), |p| p.store_width = 4),
        ];
        for [x, y] in different {
            assert_ne!(Plan::from(x), Plan::from(y));
        }
    }

    #[test]
    fn load_tile_keys_are_inert_where_the_tile_leaves_no_choice() {
        // 16x16 threads, micro 1: a macro tile of 16 and a k-tile of 16 give each thread one element.
        let one = base().but(|p| p.both(|o| o.micro = 1));
        let shaped = |o: &mut OperandKeys| (o.load_along_k, o.interleave_loads) = (1, 1);
        assert_eq!(one.normal(), one.but(|p| p.both(shaped)).normal());
        assert_ne!(one.normal(), one.but(|p| p.both(|o| o.load_rows_first = 1)).normal());
        assert_ne!(base().normal(), base().but(|p| p.both(|o| o.interleave_loads = 1)).normal());
        assert_ne!(base().normal(), base().but(|p| p.both(|o| o.load_along_k = 1)).normal());
    }

    #[test]
    fn normal_is_total_and_settles() {
        let most = Key::all().fold(base(), |keys, key| keys.with(key, u32::MAX));
        let odd = Part::A.keys().into_iter().fold(most, |keys, key| keys.with(key, 0));
        assert_eq!(odd.normal().normal(), odd.normal());
    }

    #[test]
    fn constraints_apply_and_allow() {
        let mut pin = Constraint::none();
        let plan = Plan::default();
        assert!(pin.allows(&plan));
        pin.pin(Key::C(Common::Unr), 24);
        assert!(!pin.allows(&plan) && pin.allows(&pin.apply(&plan).into()));
        assert_eq!(pin.apply(&plan).difference(&plan), vec![Key::C(Common::Unr)]);
        assert!(Constraint::exactly(&plan).allows(&plan));
        // Where to store is no question without loads that run ahead.
        pin = Constraint::none();
        pin.pin(Key::C(Common::Stp), 1);
        assert!(pin.allows(&plan) && !pin.allows(&plan.but(|p| (p.ahead, p.buffers) = (1, 2)).into()));
    }
}
