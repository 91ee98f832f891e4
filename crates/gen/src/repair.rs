//! From a plan that is refused to a legal one nearby: what each refusal suggests to change. Pinned keys stay as they are; where one
//! needs another, the other one moves.

use crate::plan::{Chiral, Common, Constraint, Key, Keys, Part, Plan, Refusal};
use crate::space::Space;

/// Changes before a plan is given up.
const STEPS: usize = 24;

impl Space {
    /// A nearby legal plan: each refusal is answered by a more modest choice, or, where that is pinned, by what the pinned key
    /// needs. `None` where that leads nowhere, which does not say that there is none.
    pub fn repair(&self, keys: &Keys) -> Option<Plan> {
        // Demanded values stay, also where other keys take their effect away for a while.
        let mut plan = self.constraint().apply(&self.admit(keys));
        for _ in 0..STEPS {
            let refusal = match self.resolve(&plan) {
                // Spelled canonically, a key of one value may be what a demanded one has no effect beside.
                Ok(_) => return Some(Plan::from(plan)).filter(|plan| self.constraint().allows(plan)),
                Err(refusal) => refusal,
            };
            let change = Change { constraint: self.constraint(), plan: &plan };
            let next = change.smaller_choice(&refusal).or_else(|| change.needed(&refusal))?;
            if Plan::from(next) == Plan::from(plan) {
                return None;
            }
            plan = next;
        }
        None
    }
}

/// A plan and what must stay of it.
struct Change<'a> {
    constraint: &'a Constraint,
    plan: &'a Keys,
}

impl Change<'_> {
    /// The plan with a value of a key, if the key is free and has another one.
    fn set(&self, key: Key, value: u32) -> Option<Keys> {
        (!self.constraint.pins(key) && self.plan.get(key) != value).then(|| self.plan.with(key, value))
    }
    /// The same of the first of several keys that can change.
    fn first(&self, changes: &[(Key, u32)]) -> Option<Keys> {
        changes.iter().find_map(|(key, value)| self.set(*key, *value))
    }
    /// The plan with half the value of a key.
    fn halved(&self, key: Key) -> Option<Keys> {
        (self.plan.get(key) > 1).then(|| self.set(key, self.plan.get(key) / 2)).flatten()
    }
    fn common(&self, key: Common, value: u32) -> Option<Keys> {
        self.set(Key::C(key), value)
    }

    /// A more modest choice.
    fn smaller_choice(&self, refusal: &Refusal) -> Option<Keys> {
        let plan = self.plan;
        match *refusal {
            Refusal::TileOverEdge { .. } | Refusal::PullBackRunTime { .. } => self.common(Common::Edg, 1),
            Refusal::NotContiguous { key, .. }
            | Refusal::VectorAlign { key, .. }
            | Refusal::VectorTile { key, .. }
            | Refusal::VectorEdge { key, .. }
            | Refusal::VectorRunTime { key, .. }
            | Refusal::VectorStagger { key, .. } => self.halved(key),
            Refusal::FragmentWidth { key, .. } | Refusal::OwnLoads { key, .. } => self.halved(key),
            Refusal::BulkBox { acp, .. } => {
                let wos = beside(acp, Chiral::Wos);
                // The tensor with padded rows is less to copy than its windows are.
                match plan.get(wos) {
                    0 => self.set(wos, 3),
                    3 => self.set(wos, 1),
                    _ => None,
                }
            }
            Refusal::PaddedRows { wos, .. } => self.set(wos, 1),
            Refusal::CopiedPairs { wos, .. } => self.set(wos, 0),
            Refusal::Grouped { key, .. } => self.set(key, key.info().default),
            Refusal::Shared { .. } if plan.common(Common::Uni) == 2 => {
                let buffers = plan.common(Common::Buf);
                if buffers > 2 { self.common(Common::Buf, buffers - 1) } else { None }
            }
            Refusal::AsyncAhead { .. } if plan.common(Common::Uni) == 2 => None,
            Refusal::AsyncAhead { acp, .. }
            | Refusal::AsyncBytes { acp, .. }
            | Refusal::AsyncAlongK { acp }
            | Refusal::AsyncAlongRows { acp, .. }
            | Refusal::Converted { acp, .. }
            | Refusal::RawLines { acp, .. } => self.set(acp, 0),
            Refusal::VectorWide { key, .. } => self.halved(key),
            Refusal::Signed { acp, value } => {
                // Bulk copies are of plans that are worth a copy.
                let copied = self.set(beside(acp, Chiral::Wos), 1);
                if value > 1 { copied.or_else(|| self.set(acp, 0)) } else { self.set(acp, 0).or(copied) }
            }
            Refusal::Halo { acp, .. } => self.set(acp, 1),
            Refusal::MathWidth { .. } => self.halved(Key::C(Common::Mvw)),
            Refusal::UnitSplits { .. } => self.unit(refusal),
            Refusal::WaveShape { .. } => self.common(Common::Wva, 0),
            Refusal::RoleWaves { .. } => self.common(Common::Lwv, 0),
            Refusal::Buffers { pfg, .. } => self.common(Common::Buf, pfg + 1),
            Refusal::FragmentsAhead { .. } | Refusal::PromotedInFlight { .. } => self.common(Common::Fra, 0),
            Refusal::ScaledParts { ufo: 1.., .. } => self.common(Common::Ufo, 0),
            Refusal::PromotedTile { every, .. } | Refusal::ScaledParts { every, .. } => self.common(Common::Unr, every),
            Refusal::AtomicsNotAllowed { .. } | Refusal::AtomicType { .. } => self.common(Common::Sks, 1),
            Refusal::ReduceAtomics { .. }
            | Refusal::ReduceAtomicType { .. }
            | Refusal::ReduceAtomicCount { .. }
            | Refusal::ReduceCluster { .. }
            | Refusal::ReduceFinished { .. }
            | Refusal::ReduceTicketParts => self.common(Common::Rdf, 0),
            Refusal::ReduceCarry { .. } => self.common(Common::Rdc, 0),
            Refusal::ReduceOperand { .. } => self.common(Common::Rdk, 0),
            Refusal::StoreUnit { .. } | Refusal::StoreAlign { .. } => self.halved(Key::C(Common::Cvw)),
            Refusal::Shared { .. } => self.halved(Key::C(Common::Unr)),
            Refusal::Workspace { .. } => {
                let wos = [Key::A(Chiral::Wos), Key::B(Chiral::Wos)].into_iter().find(|k| plan.get(*k) != 0);
                let fewer = plan.common(Common::Ice) / 2;
                wos.and_then(|k| self.set(k, 0)).or_else(|| self.common(Common::Ice, fewer).filter(|_| fewer > 0))
            }
            _ => None,
        }
    }

    /// What a pinned key needs of others; nothing where nothing is pinned.
    fn needed(&self, refusal: &Refusal) -> Option<Keys> {
        if self.constraint.is_none() {
            return None;
        }
        use Common::*;
        let c = |key: Common| Key::C(key);
        let at = |key: Common| self.plan.common(key);
        match *refusal {
            Refusal::Buffers { buf, .. } => self.common(Pfg, buf - 1),
            Refusal::AsyncAhead { acp, pfg, buf, .. } => self.ahead(acp, pfg, buf),
            Refusal::AsyncBytes { acp, scalar, .. } => self.set(beside(acp, Chiral::Glw), (4 / scalar.bytes()).max(1)),
            Refusal::AsyncAlongRows { acp, .. } => self.set(beside(acp, Chiral::Wos), 1),
            Refusal::AsyncAlongK { acp } => self.first(&[(beside(acp, Chiral::Glw), 1), (beside(acp, Chiral::Wos), 2)]),
            Refusal::FragmentsAhead { .. } if at(Uni) != 2 => self.common(Unr, 2 * at(Unr)),
            Refusal::MathWidth { width, micro, .. } => {
                let micro = micro.next_multiple_of(width);
                self.first(&[(Key::B(Chiral::Frw), width), (Key::B(Chiral::Mic), micro)])
            }
            Refusal::FragmentWidth { width, mic, micro, .. } => self.set(mic, micro.next_multiple_of(width)),
            Refusal::StoreUnit { width, dim, .. } => {
                let side = if dim == "n" { Key::B } else { Key::A };
                self.first(&[(side(Chiral::Frw), width), (c(Cst), 1)])
            }
            Refusal::TileOverEdge { mic, .. } => self.halved(mic).or_else(|| self.halved(c(Mac))),
            Refusal::VectorStagger { .. } => self.common(Ufo, 0),
            Refusal::VectorTile { key, .. } if key.part() != Part::C => self.set(beside(key, Chiral::Plu), 1),
            Refusal::NotContiguous { key, .. } | Refusal::VectorAlign { key, .. } if key.part() != Part::C => {
                self.set(beside(key, Chiral::Wos), 2)
            }
            Refusal::Stagger { .. } => self.common(Ufo, 0).or_else(|| self.halved(c(Unr))),
            Refusal::Strip { ice, .. } => self.first(&[(c(Gal), 1), (c(Naw), ice.max(4))]),
            Refusal::ThreadGrid { .. } => self.first(&[(c(Skw), 10), (c(Mac), 64)]),
            Refusal::RoleWaves { mac, wave, .. } if wave > 1 => self.common(Mac, mac.next_multiple_of(wave)),
            Refusal::AtomicsNotAllowed { .. } | Refusal::AtomicType { .. } => self.common(Ice, 1),
            Refusal::AtomicActivation { .. } | Refusal::AtomicZeroPoints { .. } => self.first(&[(c(Sks), 1), (c(Ice), 1)]),
            Refusal::Shared { .. } => {
                let [a, b] = [Key::A(Chiral::Mic), Key::B(Chiral::Mic)];
                let larger = if self.plan.get(a) > self.plan.get(b) { [a, b] } else { [b, a] };
                larger.into_iter().find_map(|key| self.halved(key)).or_else(|| self.halved(c(Mac)))
            }
            Refusal::Threads { .. } => self.halved(c(Mac)),
            Refusal::Registers { .. } => self.halved(Key::B(Chiral::Mic)).or_else(|| self.halved(Key::A(Chiral::Mic))),
            Refusal::ReduceCarry { gal, pst, .. } => self.first(&[(c(Gal), gal), (c(Pst), pst)]),
            Refusal::Unrolled { .. } => self.common(Ukl, 0).or_else(|| self.halved(c(Unr))),
            _ => self.unit(refusal),
        }
    }

    /// What runs ahead needs buffers to run into.
    fn ahead(&self, acp: Key, pfg: u32, buf: u32) -> Option<Keys> {
        let at = |key: Common| self.plan.common(key);
        // Instructions in flight hold the tile that they read.
        let held = if at(Common::Uni) == 2 { 1 + at(Common::Fra).min(1) } else { 1 };
        let tiles = if at(Common::Lwv) > 0 && at(Common::Uni) == 2 { 1 } else { pfg.max(1) };
        if pfg == 0
            && let Some(plan) = self.common(Common::Pfg, 1)
        {
            return Some(plan);
        }
        let others = [(Key::C(Common::Buf), tiles + held), (Key::C(Common::Pfg), buf.saturating_sub(held).max(1))];
        self.first(&others).or_else(|| self.first(&[(Key::C(Common::Fra), 0), (acp, 0)]))
    }

    /// What matrix units need.
    fn unit(&self, refusal: &Refusal) -> Option<Keys> {
        use Common::*;
        let c = |key: Common| Key::C(key);
        match *refusal {
            Refusal::UnitSteps { k_tile, depth, .. } => self.common(Unr, k_tile.next_multiple_of(depth)),
            Refusal::UnitDepth { k_tile, unit } => self.common(Unr, k_tile.next_multiple_of(unit)),
            Refusal::UnitThreads { mac, owners, .. } => self.first(&[(c(Mac), mac.next_multiple_of(owners)), (c(Skw), 10)]),
            Refusal::UnitColumns { .. } => self.set(Key::B(Chiral::Mic), 32),
            Refusal::UnitCopy { acp, value, .. } => self.set(acp, 2).or_else(|| self.common(Lwv, 4).filter(|_| value != 1)),
            Refusal::UnitSplits { rga, lwv, .. } => {
                let needs = [(c(Rga), 2, rga == 0), (c(Lwv), 4, lwv == 0)].into_iter().filter(|(.., needed)| *needed);
                let copies = [(Key::A(Chiral::Acp), 2), (Key::B(Chiral::Acp), 0)];
                self.first(&needs.map(|(key, value, _)| (key, value)).chain(copies).collect::<Vec<_>>())
            }
            Refusal::RawOrder { .. } => self.first(&[
                (Key::B(Chiral::Wos), 1),
                (Key::B(Chiral::Acp), 2),
                (Key::B(Chiral::Acp), 0),
                (Key::A(Chiral::Acp), 0),
            ]),
            Refusal::FragmentsWritten { .. } => self.first(&[(c(Rga), 0), (Key::A(Chiral::Acp), 2)]),
            Refusal::BulkUnit { acp, .. } => self.first(&[(acp, 0), (c(Uni), 2)]),
            Refusal::ShiftWaves { acp, .. } => self.first(&[(c(Lwv), 4), (acp, 2)]),
            Refusal::StagedRows => self.first(&[(c(Cst), 0), (c(Swp), 1 - self.plan.common(Swp).min(1))]),
            Refusal::Turns { mac, owners, .. } => {
                let at_least =
                    |key: Common, least: u32, value: u32| (self.plan.common(key) < least).then(|| self.common(key, value));
                let needs =
                    [at_least(Lwv, 1, 4), at_least(Pst, 1, 132), (mac < 2 * owners).then(|| self.common(Mac, 2 * owners))];
                needs.into_iter().flatten().flatten().next().or_else(|| self.common(Png, 0))
            }
            Refusal::Cluster { size, .. } => {
                let alone = [Key::A(Chiral::Clu), Key::B(Chiral::Clu)];
                let whole = self.plan.common(Pst).next_multiple_of(size.max(1));
                alone
                    .into_iter()
                    .find_map(|key| self.set(key, 1))
                    .or_else(|| self.first(&[(c(Sks), 1), (c(Pst), whole), (c(Pst), 0)]))
            }
            _ => None,
        }
    }
}

/// Another key of the same operand.
fn beside(key: Key, chiral: Chiral) -> Key {
    if key.part() == Part::B { Key::B(chiral) } else { Key::A(chiral) }
}
