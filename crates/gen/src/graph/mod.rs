//! The search graph: plans one move apart. MIOpenGEMM's edges and coupled moves, and those of the further keys.

mod edges;
mod nearest;
mod reflect;
mod remedies;

pub use edges::{Edges, edges, priority, values};
pub use reflect::reflected;
pub use remedies::remedies;

use crate::plan::{Chiral, Common, Constraint, Env, Key, Keys, Plan, thread_grid};
use std::collections::HashSet;
use tilewright_problem::contraction::Contraction;

/// Which keys and edges a search follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reach {
    /// MIOpenGEMM's 27 hyperparameters and its graph, exactly.
    Classic,
    /// Every key, and edges to values beyond MIOpenGEMM's graph.
    #[default]
    Full,
}

/// The graph of plans that a search walks for one contraction.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'a> {
    /// What is computed.
    pub contraction: &'a Contraction,
    /// What legality reads besides.
    pub env: &'a Env,
    /// Keys that do not move.
    pub constraint: &'a Constraint,
    /// Which edges there are.
    pub reach: Reach,
    /// Values of `BIM` that the problem has: one, or more of a convolution.
    pub forms: [bool; 5],
}

/// A plan next to another. It need not be derivable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Where it leads.
    pub plan: Plan,
    /// Search priority: 1 early, 0 normal, -1 late.
    pub priority: i8,
}

/// Edges of `MAC` where m * n is at most 4096 (MIOpenGEMM's edge from 64 to itself left out).
const MAC_SMALL: Edges = &[
    (1, &[4, 16, 32, 64, 256]),
    (4, &[1, 16, 32, 64, 256]),
    (16, &[4, 32, 64, 256]),
    (32, &[4, 16, 64, 256]),
    (64, &[16, 32, 256]),
    (256, &[32, 64]),
];
const MAC_WAVE64: Edges = &[(64, &[256]), (256, &[64])];
const MAC_WAVE32: Edges = &[(32, &[64, 256]), (64, &[32, 128, 256]), (128, &[64, 256]), (256, &[64])];
const MAC_MORE: Edges = &[(64, &[128]), (128, &[64, 256, 512]), (256, &[128, 512]), (512, &[256, 128])];
/// Without waves any number of threads will do; MIOpenGEMM knows no such device.
const MAC_WAVELESS: Edges = &[
    (1, &[2, 4, 16]),
    (2, &[1, 4]),
    (4, &[1, 2, 8, 16]),
    (8, &[4, 16]),
    (16, &[1, 4, 8, 32, 64]),
    (32, &[16, 64]),
    (64, &[16, 32, 128, 256]),
    (128, &[64, 256]),
    (256, &[64, 128]),
];

/// Values that edges lead from, ascending.
fn values_of(edges: Edges) -> impl Iterator<Item = u32> {
    edges.iter().map(|(from, _)| *from)
}

/// Neighbours of a value; a value outside the graph is next to the nearest graph values below and above it.
fn step(tables: &[Edges], value: u32) -> Vec<u32> {
    let mut to = Vec::new();
    for (from, targets) in tables.iter().copied().flatten() {
        if *from == value {
            to.extend(targets.iter().copied().filter(|t| !to.contains(t)).collect::<Vec<_>>());
        }
    }
    if !tables.iter().copied().flatten().any(|(from, _)| *from == value) {
        let all = || tables.iter().copied().flat_map(values_of);
        to.extend(all().filter(|v| *v < value).max());
        to.extend(all().filter(|v| *v > value).min());
    }
    to
}

impl<'a> Graph<'a> {
    /// The full graph.
    pub fn new(contraction: &'a Contraction, env: &'a Env, constraint: &'a Constraint) -> Graph<'a> {
        Graph { contraction, env, constraint, reach: Reach::Full, forms: [true, false, false, false, false] }
    }

    fn tables(&self, key: Key) -> Vec<Edges> {
        let (classic, more) = edges(key);
        let full = self.reach == Reach::Full;
        if !full && !key.info().is_classic() {
            return Vec::new();
        }
        if key == Key::C(Common::Mac) {
            let small = self.contraction.m.saturating_mul(self.contraction.n) <= 4096;
            let base = match self.env.wave {
                0 | 1 => return vec![MAC_WAVELESS],
                _ if small => MAC_SMALL,
                2..=32 => MAC_WAVE32,
                _ => MAC_WAVE64,
            };
            return if full { vec![base, MAC_MORE] } else { vec![base] };
        }
        let moves = match key {
            Key::C(Common::Bim) => self.forms[1..].contains(&true),
            Key::A(Chiral::Wos) | Key::B(Chiral::Wos) => self.env.workspace_bytes > 0,
            Key::C(Common::Wva | Common::Lwv | Common::Hnt | Common::Mgp) => self.env.wave > 1,
            _ => true,
        };
        match (moves, full) {
            (false, _) => Vec::new(),
            (true, true) => vec![classic, more],
            (true, false) => vec![classic],
        }
    }

    /// Every value that the graph has for a key, ascending; empty where the key does not move.
    pub fn values(&self, key: Key) -> Vec<u32> {
        let mut values: Vec<u32> = self.tables(key).into_iter().flat_map(values_of).filter(|v| self.has(key, *v)).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Values next to a key's value, none where the constraint pins it.
    pub fn edges(&self, key: Key, value: u32) -> Vec<u32> {
        if self.constraint.pins(key) {
            return Vec::new();
        }
        step(&self.tables(key), value).into_iter().filter(|v| self.has(key, *v)).collect()
    }

    fn has(&self, key: Key, value: u32) -> bool {
        key != Key::C(Common::Bim) || self.forms.get(value as usize) == Some(&true)
    }

    /// Plans one move from this one, each once, none equal to it: one-key moves in registry order, then coupled moves.
    pub fn neighbours(&self, plan: &Keys) -> Vec<Move> {
        let plan = &self.constraint.apply(plan);
        let mut out =
            Moves { graph: self, home: Plan::from(plan).normalised(self.contraction), seen: HashSet::new(), moves: Vec::new() };
        for key in Key::all() {
            for value in self.edges(key, plan.get(key)) {
                out.push(plan.with(key, value), priority(key));
            }
        }
        self.opposed(plan, [Key::A(Chiral::Mic), Key::B(Chiral::Mic)], &mut out);
        self.opposed(plan, [Key::C(Common::Ufo), Key::C(Common::Pun)], &mut out);
        self.opposed(plan, [Key::C(Common::Unr), Key::C(Common::Ice)], &mut out);
        for mac in self.edges(Key::C(Common::Mac), plan.common(Common::Mac)) {
            self.rescaled(plan, &plan.with(Key::C(Common::Mac), mac), &mut out);
        }
        if self.reach == Reach::Full {
            self.full_moves(plan, &mut out);
        }
        out.moves
    }

    /// One key up, the other down.
    fn opposed(&self, plan: &Keys, [x, y]: [Key; 2], out: &mut Moves) {
        let priority = priority(x).max(priority(y));
        for vx in self.edges(x, plan.get(x)) {
            for vy in self.edges(y, plan.get(y)) {
                if (vx > plan.get(x)) != (vy > plan.get(y)) {
                    out.push(plan.with(x, vx).with(y, vy), priority);
                }
            }
        }
    }

    /// Another thread grid with one or both micro tiles rescaled so that the macro tile stays about the same.
    fn rescaled(&self, plan: &Keys, other: &Keys, out: &mut Moves) {
        let grid = |p: &Keys| thread_grid(p.common(Common::Mac), p.common(Common::Skw));
        let (Some(old), Some(new)) = (grid(plan), grid(other)) else { return };
        let scaled = |p: Keys, key: Key, old: u32, new: u32| {
            let target = plan.get(key) * old / new.max(1);
            let nearest = self.values(key).into_iter().min_by_key(|v| v.abs_diff(target.max(1)));
            nearest.filter(|_| !self.constraint.pins(key)).map_or(p, |v| p.with(key, v))
        };
        let a = scaled(*other, Key::A(Chiral::Mic), old.0, new.0);
        let both = scaled(a, Key::B(Chiral::Mic), old.1, new.1);
        let b = scaled(*other, Key::B(Chiral::Mic), old.1, new.1);
        for p in [both, a, b] {
            if p.difference(plan).len() > 1 {
                out.push(p, 1);
            }
        }
    }

    /// Coupled moves of the keys that MIOpenGEMM does not have.
    fn full_moves(&self, plan: &Keys, out: &mut Moves) {
        let c = |key: Common| Key::C(key);
        for skw in self.edges(c(Common::Skw), plan.common(Common::Skw)) {
            self.rescaled(plan, &plan.with(c(Common::Skw), skw), out);
        }
        // Both factors alike.
        for key in Chiral::ALL {
            let (a, b) = (plan.get(Key::A(key)), plan.get(Key::B(key)));
            if key != Chiral::Mic && a == b {
                for value in step(&self.tables(Key::A(key)), a) {
                    self.together(plan, &[(Key::A(key), value), (Key::B(key), value)], out);
                }
            }
        }
        // Schedules that make sense only as a whole.
        let (pfg, buf) = (plan.common(Common::Pfg), plan.common(Common::Buf));
        let schedule = |ahead, buffers, store| [(c(Common::Pfg), ahead), (c(Common::Buf), buffers), (c(Common::Stp), store)];
        for (ahead, buffers) in [(0, 1), (1, 1), (1, 2), (2, 3), (pfg + 1, buf + 1), (pfg.saturating_sub(1), buf.max(2) - 1)] {
            for store in [0, 1] {
                self.together(plan, &schedule(ahead, buffers, store), out);
            }
        }
        for ahead in 1..=3 {
            let mut copies = schedule(ahead, ahead + 1, 0).to_vec();
            copies.extend([(Key::A(Chiral::Acp), 1), (Key::B(Chiral::Acp), 1)]);
            self.together(plan, &copies, out);
        }
        for side in [Key::A as fn(Chiral) -> Key, Key::B] {
            let plu = 1 - plan.get(side(Chiral::Plu)).min(1);
            for width in self.values(side(Chiral::Glw)) {
                self.together(plan, &[(side(Chiral::Glw), width), (side(Chiral::Plu), plu)], out);
            }
            for width in self.edges(side(Chiral::Frw), plan.get(side(Chiral::Frw))) {
                self.together(plan, &[(side(Chiral::Frw), width), (c(Common::Cvw), width.min(4))], out);
            }
        }
        for width in [1, 4, 8, 16] {
            self.together(plan, &[(c(Common::Mvw), width), (Key::B(Chiral::Frw), width)], out);
        }
        // Clusters of splits end with their tile; clusters along one side or the other.
        let warpgroups = plan.common(Common::Uni) == 2;
        for ways in [2, 4, 8].into_iter().filter(|_| warpgroups) {
            let values = [(c(Common::Ice), ways), (c(Common::Sks), 2), (c(Common::Pst), 0)];
            self.together(plan, &values, out);
        }
        // Registers read rows of C of 32-bit operands in place, those of the one or of the other.
        let wide = warpgroups && self.contraction.a.factor().bytes() == 4;
        for sets in [2, 4].into_iter().filter(|_| wide) {
            let mut values = vec![(c(Common::Rga), sets), (Key::A(Chiral::Wos), 0)];
            self.together(plan, &values, out);
            values.extend([(Key::B(Chiral::Wos), 0), (c(Common::Swp), 1 - plan.common(Common::Swp).min(1))]);
            self.together(plan, &values, out);
        }
        // Slices that take as many k each as before.
        let (unr, lsu) = (plan.common(Common::Unr), plan.common(Common::Lsu));
        for slices in self.edges(c(Common::Lsu), lsu) {
            self.together(plan, &[(c(Common::Lsu), slices), (c(Common::Unr), (unr / lsu.max(1)).max(1) * slices)], out);
        }
        let (along_m, along_n) = (plan.get(Key::A(Chiral::Clu)), plan.get(Key::B(Chiral::Clu)));
        self.together(plan, &[(Key::A(Chiral::Clu), along_n), (Key::B(Chiral::Clu), along_m)], out);
        for width in [1, 2, 4] {
            self.together(plan, &[(c(Common::Cvw), width), (c(Common::Cst), 1 - plan.common(Common::Cst).min(1))], out);
        }
    }

    /// Several keys at once, if the constraint and the graph let all of them.
    fn together(&self, plan: &Keys, values: &[(Key, u32)], out: &mut Moves) {
        let free = |(key, value): &(Key, u32)| {
            plan.get(*key) == *value
                || (!self.constraint.pins(*key) && key.info().legal.contains(*value) && !self.tables(*key).is_empty())
        };
        if values.iter().all(free) {
            let moved = values.iter().fold(*plan, |p, (key, value)| p.with(*key, *value));
            let priority = moved.difference(plan).iter().map(|k| priority(*k)).max().unwrap_or(0);
            out.push(moved, priority);
        }
    }
}

struct Moves<'a> {
    graph: &'a Graph<'a>,
    home: Plan,
    seen: HashSet<Plan>,
    moves: Vec<Move>,
}

impl Moves<'_> {
    fn push(&mut self, mut plan: Keys, priority: i8) {
        // A split that may not add with atomics starts with a sum in workspace.
        let sks = Key::C(Common::Sks);
        let atomic = plan.common(Common::Ice) > 1 && plan.common(Common::Sks) == 0;
        if atomic && !self.graph.env.allow_atomics && !self.graph.constraint.pins(sks) {
            plan.set(sks, 1);
        }
        let plan = Plan::from(plan);
        let place = plan.normalised(self.graph.contraction);
        if place != self.home && self.seen.insert(place) {
            self.moves.push(Move { plan, priority });
        }
    }
}
