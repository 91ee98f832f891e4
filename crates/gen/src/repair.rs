//! From a plan that is refused to a legal one nearby: what each refusal suggests to change. Pinned keys stay as they are; where one
//! needs another, the other one moves.

use crate::plan::{Constraint, Key, Keys, OperandKeys, Part, Plan, Refusal, Side};
use crate::space::{Repaired, Space};
use tilewright_ir::mma::Reads;

/// Changes before a plan is given up.
const STEPS: usize = 24;

impl Space {
    /// A nearby legal plan: each refusal is answered by a more modest choice, or, where that is pinned, by what the pinned key
    /// needs. `None` where that leads nowhere, which does not say that there is none.
    pub fn repair(&self, keys: &Keys) -> Option<Plan> {
        Some(self.repaired(keys)?.plan)
    }

    /// The plan of [`Space::repair`] and what it means.
    pub fn repaired(&self, keys: &Keys) -> Option<Repaired<'_>> {
        // Demanded values stay, also where other keys take their effect away for a while.
        let mut plan = self.constraint().apply(&self.admit(keys));
        for _ in 0..STEPS {
            let refusal = match self.resolve(&plan) {
                Ok(resolved) => {
                    let spelled = Plan::from(plan);
                    // Spelled canonically, a key of one value may be what a demanded one has no effect beside.
                    let allowed = self.constraint().allows(&spelled);
                    let resolved = if *spelled == plan { Some(resolved) } else { self.resolve(&spelled).ok() };
                    return resolved.filter(|_| allowed).map(|resolved| Repaired { plan: spelled, resolved });
                }
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
    /// The plan with a change, if it changes keys that are free.
    fn to(&self, change: impl FnOnce(&mut Keys)) -> Option<Keys> {
        let next = self.plan.but(change);
        let free = || self.constraint.is_none() || !next.difference(self.plan).iter().any(|key| self.constraint.pins(*key));
        (next != *self.plan && free()).then_some(next)
    }
    /// The same of the operand that a key belongs to.
    fn operand(&self, key: Key, change: impl FnOnce(&mut OperandKeys)) -> Option<Keys> {
        self.to(|p| change(p.of_mut(side(key))))
    }
    fn set(&self, key: Key, value: u32) -> Option<Keys> {
        self.to(|p| p.set(key, value))
    }
    /// The plan with half the value of a key.
    fn halved(&self, key: Key) -> Option<Keys> {
        (self.plan.get(key) > 1).then(|| self.set(key, self.plan.get(key) / 2)).flatten()
    }

    /// A more modest choice.
    fn smaller_choice(&self, refusal: &Refusal) -> Option<Keys> {
        let plan = self.plan;
        match *refusal {
            Refusal::TileOverEdge { .. } | Refusal::PullBackRunTime { .. } => self.to(|p| p.predicate = 1),
            Refusal::NotContiguous { key, .. }
            | Refusal::VectorAlign { key, .. }
            | Refusal::VectorTile { key, .. }
            | Refusal::VectorEdge { key, .. }
            | Refusal::VectorRunTime { key, .. }
            | Refusal::VectorStagger { key, .. } => self.halved(key),
            Refusal::FragmentWidth { key, .. } | Refusal::OwnLoads { key, .. } => self.halved(key),
            Refusal::BulkBox { acp, .. } => match plan.of(side(acp)).source {
                // The tensor with padded rows is less to copy than its windows are.
                0 => self.operand(acp, |o| o.source = 3),
                3 => self.operand(acp, |o| o.source = 1),
                _ => None,
            },
            Refusal::Pairs { .. } => self
                .to(|p| p.swapped = 0)
                .or_else(|| self.to(|p| p.b.interleave_micro = 0))
                .or_else(|| self.to(|p| p.math_width = 1))
                .or_else(|| self.to(|p| p.split_sum = if p.splits > 1 { 1 } else { p.split_sum }))
                .or_else(|| self.to(|p| p.predicate = 1)),
            Refusal::PaddedRows { wos, .. } => self.set(wos, 1),
            Refusal::CopiedPairs { wos, .. } => self.set(wos, 0),
            Refusal::Grouped { key, .. } | Refusal::TwoTensors { key, .. } => self.set(key, key.info().default),
            // Without copies a pipeline's tiles come from producers, which run ahead as well.
            Refusal::AsyncAhead { acp, .. } => self.set(acp, 0).filter(|p| !p.has_pipeline()),
            Refusal::AsyncBytes { acp, .. }
            | Refusal::AsyncAlongK { acp }
            | Refusal::AsyncAlongRows { acp, .. }
            | Refusal::Converted { acp, .. }
            | Refusal::RawLines { acp, .. } => self.set(acp, 0),
            Refusal::VectorWide { key, .. } => self.halved(key),
            Refusal::Signed { acp, value } => {
                // Bulk copies are of plans that are worth a copy.
                let copied = self.operand(acp, |o| o.source = 1);
                if value > 1 { copied.or_else(|| self.set(acp, 0)) } else { self.set(acp, 0).or(copied) }
            }
            Refusal::Halo { acp, .. } => self.set(acp, 1),
            Refusal::MathWidth { .. } => self.to(|p| halve(&mut p.math_width)),
            Refusal::UnitSplits { .. } => self.unit(refusal),
            Refusal::WaveShape { .. } => self.to(|p| p.wave_shape = 0),
            Refusal::RoleWaves { .. } => self.to(|p| p.producers = 0),
            Refusal::Buffers { pfg, .. } => self.to(|p| p.buffers = pfg + 1),
            Refusal::FragmentsAhead { .. } | Refusal::PromotedInFlight { .. } => self.to(|p| p.fragments_ahead = 0),
            Refusal::ScaledParts { ufo: 1.., .. } => self.to(|p| p.stagger = 0),
            Refusal::PromotedTile { every, .. } | Refusal::ScaledParts { every, .. } => self.to(|p| p.k_tile = every),
            Refusal::AtomicsNotAllowed { .. } | Refusal::AtomicType { .. } => self.to(|p| p.split_sum = 1),
            Refusal::NotIeee { .. } => {
                let whole = (self.plan.splits > 1).then(|| self.to(|p| p.split_sum = 1)).flatten();
                whole.or_else(|| self.to(|p| p.form = 0)).or_else(|| self.to(|p| p.unit = 0))
            }
            Refusal::ReduceAtomics { .. }
            | Refusal::ReduceAtomicType { .. }
            | Refusal::ReduceAtomicCount { .. }
            | Refusal::ReduceCluster { .. }
            | Refusal::ReduceFinished { .. }
            | Refusal::ReduceTicketParts => self.to(|p| p.finish = 0),
            Refusal::ReduceCarry { .. } => self.to(|p| p.carry = 0),
            Refusal::ReduceOperand { .. } => self.to(|p| p.reduce_operands = 0),
            Refusal::StoreUnit { .. } | Refusal::StoreAlign { .. } => self.to(|p| halve(&mut p.store_width)),
            Refusal::Shared { .. } => match plan.family().reads {
                // K-tiles fill the rows of panels: a stage is what the plan can spare.
                Reads::Panels if plan.buffers > 2 => self.to(|p| p.buffers -= 1),
                Reads::Panels => None,
                Reads::Vectors | Reads::Fragments => self.to(|p| halve(&mut p.k_tile)),
            },
            Refusal::Workspace { .. } if plan.tail_splits > 1 => self.to(|p| p.tail_splits = 1),
            Refusal::Workspace { .. } => {
                let copied = Side::ALL.into_iter().find(|side| plan.of(*side).source != 0);
                let in_place = copied.and_then(|side| self.to(|p| p.of_mut(side).source = 0));
                in_place.or_else(|| self.to(|p| halve(&mut p.splits)))
            }
            _ => None,
        }
    }

    /// What a pinned key needs of others; nothing where nothing is pinned.
    fn needed(&self, refusal: &Refusal) -> Option<Keys> {
        if self.constraint.is_none() {
            return None;
        }
        let plan = self.plan;
        match *refusal {
            Refusal::Buffers { buf, .. } => self.to(|p| p.ahead = buf - 1),
            Refusal::AsyncAhead { acp, pfg, buf, .. } => self.ahead(acp, pfg, buf),
            Refusal::AsyncBytes { acp, scalar, .. } => self.operand(acp, |o| o.load_width = (4 / scalar.bytes()).max(1)),
            Refusal::AsyncAlongRows { acp, .. } => self.operand(acp, |o| o.source = 1),
            Refusal::AsyncAlongK { acp } => {
                self.operand(acp, |o| o.load_width = 1).or_else(|| self.operand(acp, |o| o.source = 2))
            }
            Refusal::FragmentsAhead { .. } if plan.family().in_flight == 0 => self.to(|p| p.k_tile *= 2),
            Refusal::MathWidth { width, micro, .. } => {
                let micro = micro.next_multiple_of(width);
                self.to(|p| p.b.read_width = width).or_else(|| self.to(|p| p.b.micro = micro))
            }
            Refusal::FragmentWidth { width, mic, micro, .. } => self.set(mic, micro.next_multiple_of(width)),
            Refusal::StoreUnit { width, dim, .. } => {
                let side = if dim == "n" { Side::B } else { Side::A };
                self.to(|p| p.of_mut(side).read_width = width).or_else(|| self.to(|p| p.staged = 1))
            }
            Refusal::TileOverEdge { mic, .. } => self.halved(mic).or_else(|| self.to(|p| halve(&mut p.threads))),
            Refusal::VectorStagger { .. } => self.to(|p| p.stagger = 0),
            Refusal::VectorTile { key, .. } if key.part() != Part::C => self.operand(key, |o| o.load_along_k = 1),
            Refusal::NotContiguous { key, .. } | Refusal::VectorAlign { key, .. } if key.part() != Part::C => {
                self.operand(key, |o| o.source = 2)
            }
            Refusal::Stagger { .. } => self.to(|p| p.stagger = 0).or_else(|| self.to(|p| halve(&mut p.k_tile))),
            Refusal::Strip { ice, .. } => self.to(|p| p.order = 1).or_else(|| self.to(|p| p.strip_groups = ice.max(4))),
            Refusal::ThreadGrid { .. } => self.to(|p| p.skew = 10).or_else(|| self.to(|p| p.threads = 64)),
            Refusal::RoleWaves { mac, wave, .. } if wave > 1 => self.to(|p| p.threads = mac.next_multiple_of(wave)),
            Refusal::AtomicsNotAllowed { .. } | Refusal::AtomicType { .. } => self.to(|p| p.splits = 1),
            Refusal::AtomicActivation { .. } | Refusal::AtomicZeroPoints { .. } | Refusal::AtomicGate { .. } => {
                self.to(|p| p.split_sum = 1).or_else(|| self.to(|p| p.splits = 1))
            }
            Refusal::Shared { .. } => {
                let larger = if plan.a.micro > plan.b.micro { [Side::A, Side::B] } else { [Side::B, Side::A] };
                larger.into_iter().find_map(|side| self.smaller(side)).or_else(|| self.to(|p| halve(&mut p.threads)))
            }
            Refusal::Threads { .. } => self.to(|p| halve(&mut p.threads)),
            Refusal::Registers { .. } => self.smaller(Side::B).or_else(|| self.smaller(Side::A)),
            Refusal::ReduceCarry { gal, pst, .. } => self.to(|p| p.order = gal).or_else(|| self.to(|p| p.persistent = pst)),
            Refusal::Unrolled { .. } => self.to(|p| p.unroll_k = 0).or_else(|| self.to(|p| halve(&mut p.k_tile))),
            _ => self.unit(refusal),
        }
    }

    /// Half the micro tile along one side.
    fn smaller(&self, side: Side) -> Option<Keys> {
        self.to(|p| halve(&mut p.of_mut(side).micro))
    }

    /// What runs ahead needs buffers to run into.
    fn ahead(&self, acp: Key, pfg: u32, buf: u32) -> Option<Keys> {
        let plan = self.plan;
        let held = plan.held_stages();
        if pfg == 0
            && let Some(plan) = self.to(|p| p.ahead = 1)
        {
            return Some(plan);
        }
        self.to(|p| p.buffers = plan.least_stages())
            .or_else(|| self.to(|p| p.ahead = buf.saturating_sub(held).max(1)))
            .or_else(|| self.to(|p| p.fragments_ahead = 0))
            .or_else(|| self.set(acp, 0))
    }

    /// What matrix units need.
    fn unit(&self, refusal: &Refusal) -> Option<Keys> {
        match *refusal {
            Refusal::UnitSteps { k_tile, depth, .. } => self.to(|p| p.k_tile = k_tile.next_multiple_of(depth)),
            Refusal::UnitDepth { k_tile, unit } => self.to(|p| p.k_tile = k_tile.next_multiple_of(unit)),
            Refusal::UnitThreads { mac, owners, .. } => {
                self.to(|p| p.threads = mac.next_multiple_of(owners)).or_else(|| self.to(|p| p.skew = 10))
            }
            Refusal::UnitColumns { .. } => self.to(|p| p.b.micro = 32),
            Refusal::UnitCopy { acp, value, .. } => {
                self.set(acp, 2).or_else(|| self.to(|p| p.producers = 4).filter(|_| value != 1))
            }
            Refusal::UnitSplits { rga, lwv, .. } => {
                let sets = || (rga == 0).then(|| self.to(|p| p.register_sets = 2)).flatten();
                let waves = || (lwv == 0).then(|| self.to(|p| p.producers = 4)).flatten();
                let copies = || self.to(|p| p.a.copy = 2).or_else(|| self.to(|p| p.b.copy = 0));
                sets().or_else(waves).or_else(copies)
            }
            Refusal::RawOrder { .. } => self
                .to(|p| p.b.source = 1)
                .or_else(|| self.to(|p| p.b.copy = 2))
                .or_else(|| self.to(|p| p.b.copy = 0))
                .or_else(|| self.to(|p| p.a.copy = 0)),
            Refusal::FragmentsWritten { .. } => self.to(|p| p.register_sets = 0).or_else(|| self.to(|p| p.a.copy = 2)),
            Refusal::BulkUnit { acp, .. } => self.set(acp, 0).or_else(|| self.to(|p| p.unit = 2)),
            Refusal::ShiftWaves { acp, .. } => self.to(|p| p.producers = 4).or_else(|| self.set(acp, 2)),
            Refusal::StagedRows => self.to(|p| p.staged = 0).or_else(|| self.to(Keys::turn)),
            Refusal::Turns { mac, owners, .. } => {
                let waves = || self.to(|p| p.producers = if p.producers < 1 { 4 } else { p.producers });
                let stay = || self.to(|p| p.persistent = if p.persistent < 1 { 132 } else { p.persistent });
                let teams = || (mac < 2 * owners).then(|| self.to(|p| p.threads = 2 * owners)).flatten();
                waves().or_else(stay).or_else(teams).or_else(|| self.to(|p| p.ping_pong = 0))
            }
            Refusal::Cluster { size, .. } => {
                let alone = Side::ALL.into_iter().find_map(|side| self.to(|p| p.of_mut(side).cluster = 1));
                let whole = self.plan.persistent.next_multiple_of(size.max(1));
                alone
                    .or_else(|| self.to(|p| p.split_sum = 1))
                    .or_else(|| self.to(|p| p.persistent = whole))
                    .or_else(|| self.to(|p| p.persistent = 0))
            }
            Refusal::Tail { .. } => self.to(|p| p.tail_splits = 1),
            _ => None,
        }
    }
}

/// The operand that a key belongs to.
fn side(key: Key) -> Side {
    if key.part() == Part::B { Side::B } else { Side::A }
}

fn halve(value: &mut u32) {
    *value = (*value / 2).max(1);
}
