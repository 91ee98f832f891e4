//! [`Keys`], [`Plan`] and [`Constraint`] as values: a number per hyperparameter, those with effect, and numbers for some of them.

use super::keys::{CHIRALS, COMMONS, Chiral, Common, Key};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Deref;

/// One value for every hyperparameter, as written: keys without effect among them. What a text says and what a search puts together; a
/// [`Plan`] is made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Keys {
    a: [u32; CHIRALS],
    b: [u32; CHIRALS],
    c: [u32; COMMONS],
}

/// All choices for one kernel: a value for every key, where keys without effect are at one canonical value. So equal plans give equal kernels
/// and have equal texts ([`super::grammar`](mod@super::grammar)). Plans are serialised as their text.
///
/// ```
/// use tilewright_gen::plan::{Chiral, Common, Constraint, Key, Plan};
///
/// let plan: Plan = Constraint::parse("A_MIC4__C_UNR32_IWI1")?.apply(&Plan::default()).into();
/// assert_eq!(plan.get(Key::A(Chiral::Mic)), 4);
/// assert_eq!(plan.common(Common::Unr), 32);
/// // IWI says how splits of k share k; without a split (ICE1) it has no effect and is at its canonical value.
/// assert_eq!(plan.common(Common::Iwi), 0);
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

/// Every key at its default.
impl Default for Keys {
    fn default() -> Keys {
        let mut plan = Keys { a: [0; CHIRALS], b: [0; CHIRALS], c: [0; COMMONS] };
        for key in Key::all() {
            plan.set(key, key.info().default);
        }
        plan
    }
}

impl Keys {
    /// The value of a key.
    pub const fn get(&self, key: Key) -> u32 {
        match key {
            Key::A(k) => self.a[k as usize],
            Key::B(k) => self.b[k as usize],
            Key::C(k) => self.c[k as usize],
        }
    }
    /// The value of a key of the whole plan.
    pub const fn common(&self, key: Common) -> u32 {
        self.c[key as usize]
    }
    /// Sets a key. The value is not checked: [`super::derive`](fn@super::derive) refuses what is not legal.
    pub const fn set(&mut self, key: Key, value: u32) {
        match key {
            Key::A(k) => self.a[k as usize] = value,
            Key::B(k) => self.b[k as usize] = value,
            Key::C(k) => self.c[k as usize] = value,
        }
    }
    /// The same with one key changed.
    pub const fn with(mut self, key: Key, value: u32) -> Keys {
        self.set(key, value);
        self
    }
    /// The same with some keys of the whole plan changed.
    pub fn with_each<const N: usize>(self, values: [(Common, u32); N]) -> Keys {
        values.into_iter().fold(self, |plan, (key, value)| plan.with(Key::C(key), value))
    }
    /// The same with one key of both factors changed.
    pub const fn with_both(self, key: Chiral, value: u32) -> Keys {
        self.with(Key::A(key), value).with(Key::B(key), value)
    }
    /// Keys in which two differ, in printing order.
    pub fn difference(&self, other: &Keys) -> Vec<Key> {
        Key::all().filter(|k| self.get(*k) != other.get(*k)).collect()
    }
    /// Elements per read from shared memory: `FRW`, or `VEW` where that is 0.
    pub(super) fn fragment_width(&self, side: fn(Chiral) -> Key) -> u32 {
        match self.get(side(Chiral::Frw)) {
            0 => self.get(side(Chiral::Vew)),
            w => w,
        }
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
    /// Both constraints' demands; where both speak of a key, the other's holds.
    pub fn and(&self, other: &Constraint) -> Constraint {
        let mut sum = self.clone();
        sum.values.extend(other.iter());
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Common::*;

    fn base() -> Keys {
        Keys::default()
    }
    fn c(key: Common) -> Key {
        Key::C(key)
    }

    #[test]
    fn keys_without_effect_do_not_tell_plans_apart() {
        let same = [
            (base().with(c(Ice), 1).with(c(Iwi), 0), base().with(c(Ice), 1).with(c(Iwi), 1)),
            (base().with(c(Sks), 0), base().with(c(Sks), 1)),
            (base().with(c(Gal), 1).with(c(Naw), 16), base().with(c(Gal), 1).with(c(Naw), 64)),
            (base().with(c(Stp), 0), base().with(c(Stp), 1)),
            (base().with(Key::A(Chiral::Vew), 2), base().with(Key::A(Chiral::Vew), 2).with(Key::A(Chiral::Frw), 2)),
            (base().with(Key::A(Chiral::Mic), 1).with(Key::A(Chiral::Miw), 0), base().with(Key::A(Chiral::Mic), 1)),
            (base().with(c(Ice), 4).with(c(Cvw), 4), base().with(c(Ice), 4)),
        ];
        for (x, y) in same {
            assert_eq!(Plan::from(x), Plan::from(y));
        }
    }

    #[test]
    fn keys_with_effect_do() {
        let different = [
            (base().with(c(Ice), 2).with(c(Iwi), 0), base().with(c(Ice), 2).with(c(Iwi), 1)),
            (base().with(c(Gal), 3).with(c(Naw), 16), base().with(c(Gal), 3).with(c(Naw), 64)),
            (base().with(c(Pfg), 1).with(c(Buf), 2), base().with(c(Pfg), 1).with(c(Buf), 2).with(c(Stp), 1)),
            (base().with(c(Ice), 4).with(c(Sks), 1).with(c(Cvw), 4), base().with(c(Ice), 4).with(c(Sks), 1)),
        ];
        for (x, y) in different {
            assert_ne!(Plan::from(x), Plan::from(y));
        }
    }

    #[test]
    fn load_tile_keys_are_inert_where_the_tile_leaves_no_choice() {
        // 16x16 threads, micro 1: a macro tile of 16 and a k-tile of 16 give each thread one element.
        let one = base().with_both(Chiral::Mic, 1);
        assert_eq!(one.normal(), one.with_both(Chiral::Plu, 1).with_both(Chiral::Liw, 1).normal());
        assert_ne!(one.normal(), one.with_both(Chiral::Lor, 1).normal());
        assert_ne!(base().normal(), base().with_both(Chiral::Liw, 1).normal());
        assert_ne!(base().normal(), base().with_both(Chiral::Plu, 1).normal());
    }

    #[test]
    fn normal_is_total_and_settles() {
        let odd = Keys { a: [0; CHIRALS], b: [u32::MAX; CHIRALS], c: [u32::MAX; COMMONS] };
        assert_eq!(odd.normal().normal(), odd.normal());
    }

    #[test]
    fn constraints_apply_and_allow() {
        let mut pin = Constraint::none();
        let plan = Plan::default();
        assert!(pin.allows(&plan));
        pin.pin(c(Unr), 24);
        assert!(!pin.allows(&plan) && pin.allows(&pin.apply(&plan).into()));
        assert_eq!(pin.apply(&plan).difference(&plan), vec![c(Unr)]);
        assert!(Constraint::exactly(&plan).allows(&plan));
        // Where to store is no question without loads that run ahead.
        pin = Constraint::none();
        pin.pin(c(Stp), 1);
        assert!(pin.allows(&plan) && !pin.allows(&plan.with(c(Pfg), 1).with(c(Buf), 2).into()));
    }
}
