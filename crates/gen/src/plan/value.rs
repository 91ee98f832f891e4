//! [`Plan`] and [`Constraint`] as values: a number per hyperparameter, and numbers for some of them.

use super::keys::{CHIRALS, COMMONS, Chiral, Common, Key};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use tilewright_problem::lower::ConvForm;

/// One value for every hyperparameter: what makes one kernel of a contraction different from another.
///
/// Comparing and hashing go by [`Plan::normal`]: two plans that differ only in keys without effect are equal. The text
/// form is in [`super::grammar`](mod@super::grammar), and is what is serialised.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Plan {
    a: [u32; CHIRALS],
    b: [u32; CHIRALS],
    c: [u32; COMMONS],
}

/// Values demanded of some hyperparameters, which need not be values that a search would visit. Its text form is a
/// partial plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Constraint {
    values: BTreeMap<Key, u32>,
}

/// A plan with every key at its default. Not derivable for every contraction.
impl Default for Plan {
    fn default() -> Plan {
        let mut plan = Plan { a: [0; CHIRALS], b: [0; CHIRALS], c: [0; COMMONS] };
        for key in Key::all() {
            plan.set(key, key.info().default);
        }
        plan
    }
}

impl Plan {
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
    /// This plan with one key changed.
    pub const fn with(mut self, key: Key, value: u32) -> Plan {
        self.set(key, value);
        self
    }
    /// This plan with one key of both factors changed.
    pub const fn with_both(self, key: Chiral, value: u32) -> Plan {
        self.with(Key::A(key), value).with(Key::B(key), value)
    }
    /// Keys in which two plans differ as written, in printing order.
    pub fn difference(&self, other: &Plan) -> Vec<Key> {
        Key::all().filter(|k| self.get(*k) != other.get(*k)).collect()
    }
    /// How a convolution is lowered for this plan (`BIM`).
    pub const fn conv_form(&self) -> ConvForm {
        match self.common(Common::Bim) {
            0 => ConvForm::PerSample,
            _ => ConvForm::Merged,
        }
    }
    /// Elements per read from shared memory: `FRW`, or `VEW` where that is 0.
    pub(super) fn fragment_width(&self, side: fn(Chiral) -> Key) -> u32 {
        match self.get(side(Chiral::Frw)) {
            0 => self.get(side(Chiral::Vew)),
            w => w,
        }
    }
}

impl PartialEq for Plan {
    fn eq(&self, other: &Plan) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Plan {}

impl Hash for Plan {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let n = self.normal();
        (n.a, n.b, n.c).hash(state);
    }
}

impl PartialOrd for Plan {
    fn partial_cmp(&self, other: &Plan) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Plan {
    fn cmp(&self, other: &Plan) -> Ordering {
        let (x, y) = (self.normal(), other.normal());
        (x.a, x.b, x.c).cmp(&(y.a, y.b, y.c))
    }
}

impl Constraint {
    /// No demands.
    pub fn none() -> Constraint {
        Constraint::default()
    }
    /// Demands exactly this plan.
    pub fn exactly(plan: &Plan) -> Constraint {
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
    /// The plan with the demanded values put in.
    pub fn apply(&self, plan: &Plan) -> Plan {
        self.iter().fold(*plan, |p, (key, value)| p.with(key, value))
    }
    /// True if the plan, as written, has every demanded value.
    pub fn allows(&self, plan: &Plan) -> bool {
        self.iter().all(|(key, value)| plan.get(key) == value)
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

    fn base() -> Plan {
        Plan::default()
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
            assert_eq!(x, y);
            assert_eq!(x.normal(), y);
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
            assert_ne!(x, y);
        }
    }

    #[test]
    fn load_tile_keys_are_inert_where_the_tile_leaves_no_choice() {
        // 16x16 threads, micro 1: a macro tile of 16 and a k-tile of 16 give each thread one element.
        let one = base().with_both(Chiral::Mic, 1);
        assert_eq!(one, one.with_both(Chiral::Plu, 1).with_both(Chiral::Liw, 1));
        assert_ne!(one, one.with_both(Chiral::Lor, 1));
        assert_ne!(base(), base().with_both(Chiral::Liw, 1));
        assert_ne!(base(), base().with_both(Chiral::Plu, 1));
    }

    #[test]
    fn normal_is_total_and_settles() {
        let odd = Plan { a: [0; CHIRALS], b: [u32::MAX; CHIRALS], c: [u32::MAX; COMMONS] };
        assert_eq!(odd.normal().normal(), odd);
        assert!(odd.normal().normal().difference(&odd.normal()).is_empty());
    }

    #[test]
    fn constraints_apply_and_allow() {
        let mut pin = Constraint::none();
        assert!(pin.allows(&base()));
        pin.pin(c(Unr), 24);
        assert!(!pin.allows(&base()) && pin.allows(&pin.apply(&base())));
        assert_eq!(pin.apply(&base()).difference(&base()), vec![c(Unr)]);
        assert!(Constraint::exactly(&base()).allows(&base()));
    }
}
