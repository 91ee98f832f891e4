//! Where searches start: MIOpenGEMM's start ranges, random draws from them.

use rand::Rng;
use rand::seq::IndexedRandom;
use tilewright_gen::graph::{Graph, Reach};
use tilewright_gen::plan::{Common, Key, Keys, Part, Plan, Start, derive};

/// Draws plans of a graph.
#[derive(Clone, Copy, Debug)]
pub struct Starts<'a> {
    graph: Graph<'a>,
}

impl<'a> Starts<'a> {
    /// Draws plans of this graph.
    pub const fn of(graph: Graph<'a>) -> Starts<'a> {
        Starts { graph }
    }

    /// Values that a random start draws a key from: MIOpenGEMM's start ranges; further keys at a few good values. A key
    /// that the constraint pins has that one.
    pub fn values(&self, key: Key) -> Vec<u32> {
        if let Some(value) = self.graph.constraint.get(key) {
            return vec![value];
        }
        if self.graph.reach == Reach::Classic && !key.info().is_classic() && key != Key::C(Common::Sks) {
            return vec![key.info().default];
        }
        let c = self.graph.contraction;
        let info = key.info();
        let values = match info.start {
            Start::Micro => self.micro(if key.part() == Part::A { c.m } else { c.n }),
            Start::Graph => self.graph.values(key),
            Start::Of(values) => values.to_vec(),
            Start::Waveless(values) if self.graph.env.wave <= 1 => values.to_vec(),
            Start::Skew if c.m > 200 && c.n > 200 => {
                if self.graph.env.wave == 32 {
                    vec![10, 11]
                } else {
                    vec![10]
                }
            }
            Start::Skew => self.graph.values(key),
            Start::Default | Start::Waveless(_) => Vec::new(),
        };
        if values.is_empty() { vec![info.default] } else { values }
    }

    /// Small problems start with small micro tiles too.
    fn micro(&self, dim: u64) -> Vec<u32> {
        let (m, n) = (self.graph.contraction.m, self.graph.contraction.n);
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

    /// A plan drawn evenly from the start values. It need not be derivable.
    pub fn random(&self, rng: &mut impl Rng) -> Plan {
        let keys = Key::all().fold(Keys::default(), |keys, key| match self.values(key).as_slice() {
            // Draws nothing: keys that do not vary leave those of others as they were.
            [only] => keys.with(key, *only),
            several => several.choose(rng).map_or(keys, |value| keys.with(key, *value)),
        });
        keys.into()
    }

    /// The first of up to `tries` random plans that derives and passes `admit` (a device fit, say).
    pub fn start(&self, rng: &mut impl Rng, tries: u32, admit: impl Fn(&Plan) -> bool) -> Option<Plan> {
        let derivable = |p: &Plan| derive(p, self.graph.contraction, self.graph.env).is_ok();
        (0..tries).map(|_| self.random(rng)).find(|p| derivable(p) && admit(p))
    }

    /// Random walk of `steps` moves over derivable plans: reaches every corner of the graph, not only start values.
    pub fn walk(&self, from: &Plan, steps: u32, rng: &mut impl Rng) -> Plan {
        let mut here = *from;
        for _ in 0..steps {
            let next = self.graph.neighbours(&here);
            let Some(there) = next.choose(rng) else { return here };
            if derive(&there.plan, self.graph.contraction, self.graph.env).is_ok() {
                here = there.plan;
            }
        }
        here
    }
}
