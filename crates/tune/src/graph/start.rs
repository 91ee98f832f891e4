//! Where searches start: MIOpenGEMM's start ranges, random draws from them.

use super::{Graph, Reach};
use rand::Rng;
use rand::seq::IndexedRandom;
use tilewright_gen::plan::{Chiral, Common, Key, Keys, Part, Plan, derive};

impl Graph<'_> {
    /// Values that a random start draws a key from: MIOpenGEMM's start ranges; further keys at a few good values. A key
    /// that the constraint pins has that one.
    pub fn start_values(&self, key: Key) -> Vec<u32> {
        if let Some(value) = self.constraint.get(key) {
            return vec![value];
        }
        if self.reach == Reach::Classic && !key.info().is_classic() && key != Key::C(Common::Sks) {
            return vec![key.info().default];
        }
        let c = self.contraction;
        match key {
            Key::A(k) | Key::B(k) => self.start_chiral(k, key, if key.part() == Part::A { c.m } else { c.n }),
            Key::C(k) => self.start_common(k, key),
        }
    }

    fn start_chiral(&self, chiral: Chiral, key: Key, dim: u64) -> Vec<u32> {
        let of = |values: Vec<u32>| if values.is_empty() { vec![key.info().default] } else { values };
        match chiral {
            Chiral::Mic => self.start_micro(dim),
            Chiral::Pad => vec![1, 2],
            Chiral::Vew | Chiral::Acp | Chiral::Clu | Chiral::Glw => vec![key.info().default],
            Chiral::Frw => vec![0, 2, 4],
            Chiral::Plu | Chiral::Liw | Chiral::Miw | Chiral::Wos | Chiral::Lor => of(self.values(key)),
        }
    }

    /// Small problems start with small micro tiles too.
    fn start_micro(&self, dim: u64) -> Vec<u32> {
        let (m, n) = (self.contraction.m, self.contraction.n);
        let (area, least) = (m.saturating_mul(n), m.min(n));
        let mut values = vec![8, 6];
        for (edge, side, thin, more) in [(256, 400, 32, &[5, 4][..]), (128, 200, 16, &[3, 2]), (64, 100, 8, &[1])] {
            if dim < edge || area < side * side || least < thin {
                values.extend(more);
            }
        }
        values.retain(|v| u64::from(*v) <= dim);
        if values.is_empty() { vec![1] } else { values }
    }

    fn start_common(&self, common: Common, key: Key) -> Vec<u32> {
        let c = self.contraction;
        let info = key.info();
        match common {
            Common::Ice => vec![1],
            Common::Szt | Common::Ufo => vec![0],
            Common::Skw if c.m > 200 && c.n > 200 => {
                if self.env.wave == 32 {
                    vec![10, 11]
                } else {
                    vec![10]
                }
            }
            Common::Unr | Common::Gal | Common::Pun | Common::Iwi | Common::Mad | Common::Naw | Common::Skw => self.values(key),
            Common::Mac | Common::Afi | Common::Mia => self.values(key),
            // New plans sum in a fixed order.
            Common::Sks => vec![1],
            Common::Edg => vec![0, 1],
            Common::Pfg | Common::Stp | Common::Fra => vec![0, 1],
            Common::Buf => vec![1, 2],
            Common::Mvw if self.env.wave <= 1 => vec![1, 4, 8],
            _ => vec![info.default],
        }
    }

    /// A plan drawn evenly from the start values. It need not be derivable.
    pub fn random(&self, rng: &mut impl Rng) -> Plan {
        let keys = Key::all().fold(Keys::default(), |keys, key| match self.start_values(key).as_slice() {
            // Draws nothing: keys that do not vary leave those of others as they were.
            [only] => keys.with(key, *only),
            several => several.choose(rng).map_or(keys, |value| keys.with(key, *value)),
        });
        keys.into()
    }

    /// The first of up to `tries` random plans that derives and passes `admit` (a device fit, say).
    pub fn random_start(&self, rng: &mut impl Rng, tries: u32, admit: impl Fn(&Plan) -> bool) -> Option<Plan> {
        let derivable = |p: &Plan| derive(p, self.contraction, self.env).is_ok();
        (0..tries).map(|_| self.random(rng)).find(|p| derivable(p) && admit(p))
    }

    /// Random walk of `steps` moves over derivable plans: reaches every corner of the graph, not only start values.
    pub fn random_walk(&self, from: &Plan, steps: u32, rng: &mut impl Rng) -> Plan {
        let mut here = *from;
        for _ in 0..steps {
            let next = self.neighbours(&here);
            let Some(there) = next.choose(rng) else { return here };
            if derive(&there.plan, self.contraction, self.env).is_ok() {
                here = there.plan;
            }
        }
        here
    }
}
