//! MIOpenGEMM's main kernel as a list of what each thread does, written from its documentation, for plans of its 27
//! hyperparameters. What our kernels do is compared with it.
//!
//! It differs from MIOpenGEMM on purpose in three things: the last k-tile is a whole one whose elements beyond k are zero (theirs
//! runs fewer k-steps), split k-tiles are dealt out with that tile counted, and packed panels are whole tiles with rows of zeros
//! at the edge (theirs are pulled back).

use super::trace::{Event, Touch};
use tilewright_gen::plan::{OperandKeys, Plan};

/// A column-major product with A stored m x k and B stored n x k: both contiguous across k. No tails along k unless `UFO`.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub plan: Plan,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    /// Leading dimensions of A, B (in workspace, where `WOS` is 1) and C.
    pub ld: [i64; 3],
}

/// What one thread does per k-tile: elements loaded as (row, k) in the whole matrix, whether they exist, and where they are
/// put; then fragment reads and multiply-adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub loads: Vec<Event>,
    pub shares: Vec<Event>,
    pub fragments: Vec<Event>,
    pub math: Vec<Event>,
}

struct Side {
    name: &'static str,
    /// Threads along this side, this thread's place among them.
    threads: i64,
    place: i64,
    /// Tile of the group, first row as loaded, first row that is its own.
    start: i64,
    owned: i64,
    tile: i64,
    extent: i64,
    ld: i64,
    get: [i64; 7],
}

impl Model {
    /// Threads along A and B.
    pub fn grid(&self) -> (i64, i64) {
        let mac = i64::from(self.plan.threads);
        let log = 63 - i64::from(mac.leading_zeros());
        let (mut a, mut b) = (1 << ((log + 1) / 2), mac / (1 << ((log + 1) / 2)));
        for _ in 10..self.plan.skew {
            (a, b) = (a / 2, b * 2);
        }
        for _ in self.plan.skew..10 {
            (a, b) = (a * 2, b / 2);
        }
        (a, b)
    }

    /// Macro tile along A and B.
    pub fn tile(&self) -> (i64, i64) {
        let (a, b) = self.grid();
        (a * i64::from(self.plan.a.micro), b * i64::from(self.plan.b.micro))
    }

    /// Work-groups along A and B.
    pub fn groups(&self) -> (i64, i64) {
        let (a, b) = self.tile();
        ((self.m + a - 1) / a, (self.n + b - 1) / b)
    }

    /// All work-groups.
    pub fn all_groups(&self) -> i64 {
        self.groups().0 * self.groups().1 * i64::from(self.plan.splits)
    }

    /// Tile (a, b) and part of the split of a work-group.
    pub fn place(&self, group: i64) -> (i64, i64, i64) {
        let (ga, gb) = self.groups();
        let (z, id) = (group % i64::from(self.plan.splits), group / i64::from(self.plan.splits));
        let (a, b) = match self.plan.order {
            1 => (id / gb, id % gb),
            2 => (id % ga, id / ga),
            _ => {
                let width = (i64::from(self.plan.strip_groups) / i64::from(self.plan.splits)).isqrt();
                let strip = id / (width * ga);
                let here = width.min(gb - strip * width);
                let within = id - strip * width * ga;
                (within / here, strip * width + within % here)
            }
        };
        (a, b, z)
    }

    /// First k of every k-tile of a work-group.
    pub fn k_starts(&self, group: i64) -> Vec<i64> {
        let (a, b, z) = self.place(group);
        let (depth, ways) = (i64::from(self.plan.k_tile), i64::from(self.plan.splits));
        let offset = if self.plan.stagger == 1 { (13 * a + 7 * b) % depth } else { 0 };
        let total = (self.k + offset + depth - 1) / depth;
        let mine = total / ways + i64::from(z < total % ways);
        let tiles = (0..mine)
            .map(|i| if self.plan.interleave_splits == 1 { i * ways + z } else { z * (total / ways) + z.min(total % ways) + i });
        tiles.map(|t| t * depth - offset).collect()
    }

    fn sides(&self, group: i64, thread: i64) -> [Side; 2] {
        let ((na, nb), (ta, tb), (ga, gb, _)) = (self.grid(), self.tile(), self.place(group));
        let (ia, ib) = if self.plan.along_n == 0 { (thread % na, thread / na) } else { (thread / nb, thread % nb) };
        let side = |name, keys: &OperandKeys, threads, place, index: i64, tile: i64, extent: i64, ld| {
            let get =
                [keys.micro, keys.pad, keys.load_along_k, keys.interleave_loads, keys.interleave_micro, keys.source, keys.vector];
            // Packed panels are whole tiles: nothing is pulled back.
            let packed = keys.source == 2;
            let owned = index * tile;
            let start = if packed { owned } else { owned.min(extent - tile) };
            Side { name, threads, place, start, owned, tile, extent, ld, get: get.map(i64::from) }
        };
        [side("a", &self.plan.a, na, ia, ga, ta, self.m, self.ld[0]), side("b", &self.plan.b, nb, ib, gb, tb, self.n, self.ld[1])]
    }

    /// What a thread does in the main loop, k-tile by k-tile, and where it stores its results.
    pub fn run(&self, group: i64, thread: i64) -> (Vec<Step>, Vec<Event>) {
        let sides = self.sides(group, thread);
        let steps = self.k_starts(group).into_iter().map(|k| self.step(&sides, thread, k)).collect();
        let [a, b] = &sides;
        let mut stores = Vec::new();
        for i in 0..a.get[0] {
            for j in 0..b.get[0] {
                let (row, col) = (a.start + a.micro(i), b.start + b.micro(j));
                if (a.owned..a.extent).contains(&row) && (b.owned..b.extent).contains(&col) {
                    let touch = Touch { memory: "c".into(), index: row + col * self.ld[2], lanes: 1 };
                    stores.push(if self.plan.splits > 1 { Event::Atomic(touch) } else { Event::Store(touch) });
                }
            }
        }
        (steps, stores)
    }

    fn step(&self, sides: &[Side; 2], thread: i64, k: i64) -> Step {
        let depth = i64::from(self.plan.k_tile);
        let order: [&Side; 2] = if self.plan.a_first == 1 { [&sides[0], &sides[1]] } else { [&sides[1], &sides[0]] };
        let mut step = Step::default();
        for side in order {
            let (loads, shares) = side.load(thread, i64::from(self.plan.threads), depth, k, self.k);
            step.loads.extend(loads);
            step.shares.extend(shares);
        }
        let (ma, mb) = (sides[0].get[0], sides[1].get[0]);
        for kk in 0..depth {
            order.iter().for_each(|side| step.fragments.extend(side.fragments(kk)));
            let fused = self.plan.explicit_fma == 1;
            let mut math = |x: i64, y: i64| step.math.push(Event::Math { fused, at: x * mb + y, x, y });
            if self.plan.a_first == 1 {
                (0..ma).for_each(|x| (0..mb).for_each(|y| math(x, y)));
            } else {
                (0..mb).for_each(|y| (0..ma).for_each(|x| math(x, y)));
            }
        }
        step
    }
}

impl Side {
    /// Row of the macro tile of the i-th result of this thread.
    fn micro(&self, i: i64) -> i64 {
        let [mic, _, _, _, interleaved, _, vector] = self.get;
        if interleaved == 1 { (self.place + i / vector * self.threads) * vector + i % vector } else { self.place * mic + i }
    }

    fn pitch(&self) -> i64 {
        self.tile + self.get[6] * self.get[1]
    }

    /// Load tile of a thread: across k, along k.
    fn load_tile(&self, threads: i64, depth: i64) -> (i64, i64) {
        let each = self.tile * depth / threads;
        let along =
            |length: i64, other: i64| (1..=length).rev().find(|d| length % d == 0 && each % d == 0 && each / d <= other).unwrap();
        if self.get[2] == 1 {
            let pll = along(depth, self.tile);
            (each / pll, pll)
        } else {
            let perp = along(self.tile, depth);
            (perp, each / perp)
        }
    }

    fn load(&self, thread: i64, threads: i64, depth: i64, k: i64, end: i64) -> (Vec<Event>, Vec<Event>) {
        let [.., interleaved, _, workspace, vector] = self.get;
        let (perp, pll) = self.load_tile(threads, depth);
        let (tiles_perp, tiles_pll) = (self.tile / perp, depth / pll);
        // Adjacent threads walk along k first.
        let (pll_id, perp_id) = (thread % tiles_pll, thread / tiles_pll);
        let (mut loads, mut shares) = (Vec::new(), Vec::new());
        for p in 0..pll {
            for i in 0..perp / vector {
                let (row, kk) = if interleaved == 1 {
                    ((perp_id + i * tiles_perp) * vector, pll_id + p * tiles_pll)
                } else {
                    (perp_id * perp + i * vector, pll_id * pll + p)
                };
                let at = match workspace {
                    2 => (self.owned / self.tile * end + k + kk) * self.tile + row,
                    _ => self.start + row + (k + kk) * self.ld,
                };
                let exists = (0..end).contains(&(k + kk));
                let touch = |memory: String, index| Touch { memory, index, lanes: vector as u32 };
                loads.push(if exists { Event::Load(touch(self.name.into(), at)) } else { Event::Zero });
                shares.push(Event::Share(touch(format!("smem_{}", self.name), kk * self.pitch() + row)));
            }
        }
        (loads, shares)
    }

    fn fragments(&self, kk: i64) -> Vec<Event> {
        let [mic, .., vector] = self.get;
        let read = |i| Touch {
            memory: format!("smem_{}", self.name),
            index: kk * self.pitch() + self.micro(i * vector),
            lanes: vector as u32,
        };
        (0..mic / vector).map(|i| Event::Fragment(read(i))).collect()
    }
}
