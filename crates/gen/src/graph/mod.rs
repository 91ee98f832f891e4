//! The search graph: plans one move apart. MIOpenGEMM's edges and coupled moves, and those of the further keys.

mod nearest;
mod reflect;
mod remedies;

pub use reflect::reflected;
pub use remedies::remedies;

use crate::plan::{Chiral, Common, Constraint, Edges, Env, Key, Keys, Moves, OperandKeys, Plan, Plans, Side, thread_grid};
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
        let (info, full) = (key.info(), self.reach == Reach::Full);
        let moves = match info.moves {
            Moves::Forms => self.forms[1..].contains(&true),
            Moves::Workspace => self.env.workspace_bytes > 0,
            Moves::Waves => self.env.wave > 1,
            Moves::Always | Moves::Threads => true,
        };
        if !moves || !full && !info.is_classic() {
            return Vec::new();
        }
        let (near, further) = match info.moves {
            Moves::Threads => self.threads(),
            _ => (info.near, info.further),
        };
        if full { vec![near, further] } else { vec![near] }
    }

    /// Edges of the number of threads.
    fn threads(&self) -> (Edges, Edges) {
        let small = self.contraction.m.saturating_mul(self.contraction.n) <= 4096;
        match self.env.wave {
            0 | 1 => (MAC_WAVELESS, &[]),
            _ if small => (MAC_SMALL, MAC_MORE),
            2..=32 => (MAC_WAVE32, MAC_MORE),
            _ => (MAC_WAVE64, MAC_MORE),
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
        key.info().moves != Moves::Forms || self.forms.get(value as usize) == Some(&true)
    }

    /// Plans one move from this one, each once, none equal to it: one-key moves in registry order, then coupled moves.
    pub fn neighbours(&self, plan: &Keys) -> Vec<Move> {
        let plan = &self.constraint.apply(plan);
        let mut out =
            Found { graph: self, home: Plan::from(plan).normalised(self.contraction), seen: Plans::default(), moves: Vec::new() };
        for key in Key::all() {
            for value in self.edges(key, plan.get(key)) {
                out.push(plan.with(key, value), key.info().priority);
            }
        }
        self.opposed(plan, Side::ALL.map(|side| side.key(Chiral::Mic)), &mut out);
        self.opposed(plan, [Common::Ufo, Common::Pun].map(Key::C), &mut out);
        self.opposed(plan, [Common::Unr, Common::Ice].map(Key::C), &mut out);
        for threads in self.edges(Key::C(Common::Mac), plan.threads) {
            self.rescaled(plan, &Keys { threads, ..*plan }, &mut out);
        }
        if self.reach == Reach::Full {
            self.full_moves(plan, &mut out);
        }
        out.moves
    }

    /// One key up, the other down.
    fn opposed(&self, plan: &Keys, [x, y]: [Key; 2], out: &mut Found) {
        let priority = x.info().priority.max(y.info().priority);
        for vx in self.edges(x, plan.get(x)) {
            for vy in self.edges(y, plan.get(y)) {
                if (vx > plan.get(x)) != (vy > plan.get(y)) {
                    out.push(plan.with(x, vx).with(y, vy), priority);
                }
            }
        }
    }

    /// Another thread grid with one or both micro tiles rescaled so that the macro tile stays about the same.
    fn rescaled(&self, plan: &Keys, other: &Keys, out: &mut Found) {
        let grid = |p: &Keys| thread_grid(p.threads, p.skew);
        let (Some(old), Some(new)) = (grid(plan), grid(other)) else { return };
        let scaled = |p: Keys, side: Side, old: u32, new: u32| {
            let (key, target) = (side.key(Chiral::Mic), plan.of(side).micro * old / new.max(1));
            let nearest = self.values(key).into_iter().min_by_key(|v| v.abs_diff(target.max(1)));
            nearest.filter(|_| !self.constraint.pins(key)).map_or(p, |v| p.with(key, v))
        };
        let a = scaled(*other, Side::A, old.0, new.0);
        let both = scaled(a, Side::B, old.1, new.1);
        let b = scaled(*other, Side::B, old.1, new.1);
        for p in [both, a, b] {
            if p.difference(plan).len() > 1 {
                out.push(p, 1);
            }
        }
    }

    /// Coupled moves of the keys that MIOpenGEMM does not have.
    fn full_moves(&self, plan: &Keys, out: &mut Found) {
        for skew in self.edges(Key::C(Common::Skw), plan.skew) {
            self.rescaled(plan, &Keys { skew, ..*plan }, out);
        }
        // Both factors alike.
        for key in Chiral::ALL.iter().copied().filter(|key| *key != Chiral::Mic && plan.a.value(*key) == plan.b.value(*key)) {
            for value in step(&self.tables(Key::A(key)), plan.a.value(key)) {
                self.together(plan, |p| p.both(|o| *o.value_mut(key) = value), out);
            }
        }
        self.schedules(plan, out);
        for side in Side::ALL {
            let own = *plan.of(side);
            let load_along_k = flipped(own.load_along_k);
            for load_width in self.values(side.key(Chiral::Glw)) {
                self.together(plan, |p| *p.of_mut(side) = OperandKeys { load_width, load_along_k, ..own }, out);
            }
            for width in self.edges(side.key(Chiral::Frw), own.read_width) {
                let change = |p: &mut Keys| (p.of_mut(side).read_width, p.store_width) = (width, width.min(4));
                self.together(plan, change, out);
            }
        }
        for width in [1, 4, 8, 16] {
            self.together(plan, |p| (p.math_width, p.b.read_width) = (width, width), out);
        }
        // Clusters of splits end with their tile; clusters along one side or the other.
        let family = plan.family();
        for splits in family.cluster_splits.iter().copied() {
            self.together(plan, |p| *p = Keys { splits, split_sum: 2, persistent: 0, ..*p }, out);
        }
        // Persistent for the sake of a split tail.
        if plan.tail_splits > 1 {
            self.together(plan, |p| (p.persistent, p.tail_splits) = (0, 1), out);
        }
        // Registers read rows of C in place, those of the one operand or of the other.
        let by_registers = family.registers_read_more(self.contraction.a.factor().bytes());
        for sets in [2, 4].into_iter().filter(|_| by_registers) {
            self.together(plan, |p| (p.register_sets, p.a.source) = (sets, 0), out);
            let change = |p: &mut Keys| {
                (p.register_sets, p.a.source, p.b.source) = (sets, 0, 0);
                p.turn();
            };
            self.together(plan, change, out);
        }
        // Deep instructions in the registers of fragments that were read ahead.
        let deep = |p: &mut Keys| (p.deep_instruction, p.fragments_ahead) = (flipped(p.deep_instruction), p.deep_instruction);
        self.together(plan, deep, out);
        // Slices that take as many k each as before.
        for slices in self.edges(Key::C(Common::Lsu), plan.slices) {
            let k_tile = (plan.k_tile / plan.slices.max(1)).max(1) * slices;
            self.together(plan, |p| (p.slices, p.k_tile) = (slices, k_tile), out);
        }
        self.together(plan, |p| (p.a.cluster, p.b.cluster) = (plan.b.cluster, plan.a.cluster), out);
        for width in [1, 2, 4] {
            self.together(plan, |p| (p.store_width, p.staged) = (width, flipped(p.staged)), out);
        }
    }

    /// Schedules that make sense only as a whole.
    fn schedules(&self, plan: &Keys, out: &mut Found) {
        let (here, stages) = (plan.ahead, plan.buffers);
        for (ahead, buffers) in
            [(0, 1), (1, 1), (1, 2), (2, 3), (here + 1, stages + 1), (here.saturating_sub(1), stages.max(2) - 1)]
        {
            for store_point in [0, 1] {
                self.together(plan, |p| *p = Keys { ahead, buffers, store_point, ..*p }, out);
            }
        }
        for ahead in 1..=3 {
            let change = |p: &mut Keys| {
                *p = Keys { ahead, buffers: ahead + 1, store_point: 0, ..*p };
                p.both(|o| o.copy = 1);
            };
            self.together(plan, change, out);
        }
    }

    /// Several keys at once, if the constraint and the graph let all of them.
    fn together(&self, plan: &Keys, change: impl FnOnce(&mut Keys), out: &mut Found) {
        let moved = plan.but(change);
        let changed = moved.difference(plan);
        let free = |key: &Key| {
            !self.constraint.pins(*key) && key.info().legal.contains(moved.get(*key)) && !self.tables(*key).is_empty()
        };
        if changed.iter().all(free) {
            out.push(moved, changed.iter().map(|key| key.info().priority).max().unwrap_or(0));
        }
    }
}

/// The other value of a bit.
fn flipped(bit: u32) -> u32 {
    1 - bit.min(1)
}

struct Found<'a> {
    graph: &'a Graph<'a>,
    home: Plan,
    seen: Plans,
    moves: Vec<Move>,
}

impl Found<'_> {
    fn push(&mut self, mut plan: Keys, priority: i8) {
        // A split that may not add with atomics starts with a sum in workspace.
        let sks = Key::C(Common::Sks);
        let atomic = plan.splits > 1 && plan.split_sum == 0;
        if atomic && !self.graph.env.allow_atomics && !self.graph.constraint.pins(sks) {
            plan.split_sum = 1;
        }
        let plan = Plan::from(plan);
        let place = plan.normalised(self.graph.contraction);
        if place != self.home && self.seen.insert(place) {
            self.moves.push(Move { plan, priority });
        }
    }
}
