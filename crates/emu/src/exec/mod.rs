//! Runs the contexts of one work-group, instruction by instruction, switching between them where they wait.

mod early;
mod sync;
mod uses;

use crate::access::{self, lane_values};
use crate::cluster::{self, Issuer};
use crate::code::{Inst, RegElement};
use crate::context::{Context, Group, State, Team};
use crate::copies;
use crate::counters;
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use crate::matrix::{barrier as tx, bulk, mma, warpgroup};
use crate::op::FaultKind;
use crate::{Counters, EmuError};
use rand::Rng;
use tilewright_ir::{BarrierScope, ShuffleKind};

/// Runs work-groups one after another (clusters of them at once), keeping their storage.
pub(crate) struct Worker<'a> {
    launch: &'a Launch<'a>,
    /// Those of a cluster, by rank.
    groups: Vec<Group<'a>>,
}

/// Why a context stopped running.
enum Stop {
    /// Waits, or is done.
    Blocked,
    /// Its turn is over.
    Turn,
    /// Has come to an instruction that reaches other work-groups of the cluster.
    Peers,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(launch: &'a Launch<'a>) -> Worker<'a> {
        Worker { launch, groups: (0..launch.code.cluster).map(|rank| Group::new(launch, rank)).collect() }
    }
    /// Work counted so far.
    pub(crate) fn counters(&self) -> Counters {
        let mut all = Counters::default();
        self.groups.iter().for_each(|g| all.add(&g.team.counters));
        all
    }

    /// Runs one cluster, by default one work-group.
    pub(crate) fn run(&mut self, number: u64) -> Result<(), EmuError> {
        let first = number * self.groups.len() as u64;
        for (number, group) in (first..).zip(&mut self.groups) {
            group.reset(number);
        }
        let interleave = self.launch.options.interleave;
        loop {
            let mut ready = 0;
            for group in &mut self.groups {
                group.wake()?;
                ready += group.ready().count();
            }
            if ready == 0 {
                if self.finish_one_copy()? {
                    continue;
                }
                break;
            }
            let Some(first) = self.groups.first_mut() else { break };
            let mut pick = if interleave { first.team.rng.random_range(0..ready) } else { 0 };
            let turn = if interleave { first.team.rng.random_range(1..=8) } else { u32::MAX };
            let mut found = None;
            for (g, group) in self.groups.iter().enumerate() {
                let here = group.ready().count();
                if pick < here {
                    found = group.ready().nth(pick).map(|context| Issuer { group: g, context });
                    break;
                }
                pick -= here;
            }
            let Some(next) = found else { break };
            loop {
                match self.groups[next.group].turn(next.context, turn)? {
                    Stop::Blocked => break,
                    Stop::Turn => {}
                    Stop::Peers => {
                        if cluster::run(self.launch, &mut self.groups, next)? {
                            break;
                        }
                    }
                }
                if interleave {
                    break;
                }
            }
        }
        if let Some((group, stuck)) = self.groups.iter().find_map(|g| Some((g, g.unfinished()?))) {
            return Err(self.deadlock(group, stuck));
        }
        for group in &mut self.groups {
            bulk::finish(self.launch, &mut group.team)?;
        }
        cluster::finish(self.launch, &self.groups)
    }

    /// Lets one bulk load land where nobody can go on; false if there is none.
    fn finish_one_copy(&mut self) -> Result<bool, EmuError> {
        for group in &mut self.groups {
            if bulk::finish_one_copy(self.launch, &mut group.team)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn deadlock(&self, group: &Group<'_>, stuck: &Context) -> EmuError {
        let mut waiting = Vec::new();
        for group in &self.groups {
            let head = if self.groups.len() > 1 { format!("rank {}: ", group.team.rank) } else { String::new() };
            waiting.push(format!("{head}{}", group.waiting()));
        }
        let site = match stuck.state {
            State::Waiting { site, .. } | State::Phase { site, .. } | State::Warpgroup { site } => site,
            State::Ready | State::Done => 0,
        };
        let at = group.team.location(self.launch, site, stuck.first);
        EmuError::Deadlock { at, waiting: waiting.join("; ") }
    }
}

impl<'a> Group<'a> {
    fn new(launch: &'a Launch<'a>, rank: u32) -> Group<'a> {
        let code = launch.code;
        // Threads run in lockstep as far as their roles agree; wave by wave where waves may overtake one another.
        let single = launch.options.interleave || code.uses.waves_apart;
        let starts: Vec<u32> = if single {
            (0..code.threads).step_by(code.wave as usize).collect()
        } else {
            std::iter::once(0).chain(code.uses.splits.iter().copied()).collect()
        };
        let ends = starts.iter().skip(1).copied().chain([code.threads]);
        let contexts = starts.iter().zip(ends).map(|(&s, e)| Context::new(launch, s, e - s)).collect();
        Group { launch, contexts, team: Team::new(launch, rank) }
    }
    fn reset(&mut self, number: u64) {
        self.team.reset(self.launch, number);
        for c in &mut self.contexts {
            c.reset(self.launch, self.team.id);
        }
    }
    /// Contexts that can go on.
    fn ready(&self) -> impl Iterator<Item = usize> {
        (0..self.contexts.len()).filter(|&i| self.contexts[i].state == State::Ready)
    }
    /// A context that has not ended.
    fn unfinished(&self) -> Option<&Context> {
        self.contexts.iter().find(|c| c.state != State::Done)
    }

    /// Lets a bulk load land now and then, and asks the contexts again that wait for a phase if one has completed.
    fn wake(&mut self) -> Result<(), EmuError> {
        if !self.team.in_flight.is_empty() && self.team.rng.random_ratio(1, 4) {
            bulk::finish_one_copy(self.launch, &mut self.team)?;
        }
        if std::mem::take(&mut self.team.woken) {
            for c in self.contexts.iter_mut().filter(|c| matches!(c.state, State::Phase { .. })) {
                c.state = State::Ready;
            }
        }
        Ok(())
    }

    /// Who waits for what.
    fn waiting(&self) -> String {
        let range = |c: &Context| format!("threads {}..{}", c.first, c.first as usize + c.lanes);
        let at = |site: u32| self.launch.code.statements.get(site as usize).map_or("", |s| s);
        let waiting = self.contexts.iter().map(|c| match c.state {
            State::Waiting { barrier: cluster::BARRIER, site } => {
                format!("{} wait at the cluster barrier, {}", range(c), at(site))
            }
            State::Waiting { barrier, site } => {
                let a = self.team.barriers[barrier as usize];
                format!("{} wait at barrier {barrier} ({} of {} threads there), {}", range(c), a.arrived, a.needed, at(site))
            }
            State::Phase { tx, parity, site } => {
                format!("{} wait at {}, {}", range(c), tx::describe(self.launch, &self.team, tx, parity), at(site))
            }
            State::Warpgroup { site } => format!("{} wait for the rest of their warpgroup, {}", range(c), at(site)),
            State::Ready | State::Done => format!("{} have ended", range(c)),
        });
        waiting.collect::<Vec<_>>().join("; ")
    }

    /// Runs a context for so many memory operations or barriers, or until it waits.
    fn turn(&mut self, i: usize, mut left: u32) -> Result<Stop, EmuError> {
        let launch = self.launch;
        let code = launch.code;
        let team = &mut self.team;
        let count = launch.options.count;
        loop {
            let ctx = &mut self.contexts[i];
            let pc = ctx.pc;
            let (inst, site) = (&code.insts[pc], code.sites[pc]);
            if is_visible(inst) {
                if left == 0 {
                    return Ok(Stop::Turn);
                }
                left -= 1;
                if count {
                    counters::memory(launch, team, ctx, inst);
                }
            }
            if !ctx.poison.is_empty() {
                uses::used(launch, team, ctx, inst, site)?;
            }
            if !ctx.ahead.is_empty() {
                early::reaches(launch, team, ctx, inst, site)?;
            }
            ctx.pc += 1;
            match inst {
                Inst::Alu { start, end, work, mask } => {
                    if count {
                        counters::arithmetic(launch, team, ctx, work, *mask);
                    }
                    arithmetic(launch, team, ctx, *start as usize, *end as usize)?;
                }
                Inst::Load { start, end } => access::load(launch, team, ctx, &code.mems[*start as usize..*end as usize])?,
                Inst::Store(m) => access::store(launch, team, ctx, &code.mems[*m as usize], site)?,
                Inst::Atomic(op, m, to) => access::atomic(launch, team, ctx, *op, &code.mems[*m as usize], *to, site)?,
                Inst::Fence(mask) => {
                    for lane in ctx.active(*mask) {
                        team.order.fence(team.number, ctx.first + lane as u32, &mut team.clocks);
                    }
                }
                Inst::AsyncCopy(c) => copies::issue(launch, team, ctx, &code.copies[*c as usize], site)?,
                Inst::AsyncCommit(mask) => copies::commit(launch, ctx, *mask),
                Inst::AsyncWait(n, mask) => copies::wait(launch, team, ctx, *n, *mask),
                Inst::Shuffle { kind, wide, from, to, mask } => {
                    whole_waves(launch, team, ctx, *mask, site, "shuffle")?;
                    shuffle(ctx, code.wave as usize, *kind, *wide, *from, *to);
                }
                Inst::Written { flag, mask, of } => written(launch, team, ctx, *flag, *mask, *of, site)?,
                Inst::Settled { mask, of, write } => {
                    warpgroup::settled(launch, team, ctx, *mask, *of, *write, site)?;
                }
                Inst::LoadPeer(..) | Inst::Barrier(BarrierScope::Cluster | BarrierScope::ClusterStart, _) => {
                    ctx.pc = pc;
                    return Ok(Stop::Peers);
                }
                Inst::Bulk(b, _) if code.bulks[*b as usize].reaches_peers() => {
                    ctx.pc = pc;
                    return Ok(Stop::Peers);
                }
                Inst::Bulk(b, mask) => {
                    if bulk::run(launch, team, ctx, &code.bulks[*b as usize], *mask, site)? {
                        ctx.pc = pc;
                        return Ok(Stop::Blocked);
                    }
                }
                Inst::Matrix(m, mask) => {
                    let op = &code.matrices[*m as usize];
                    whole_waves(launch, team, ctx, *mask, site, "matrix operation")?;
                    if warpgroup::is_collective(op) {
                        ctx.pc = pc;
                        if !self.warpgroup_instruction(i, op, site)? {
                            return Ok(Stop::Blocked);
                        }
                        return Ok(Stop::Turn);
                    }
                    warpgroup::alone(launch, team, ctx, op);
                    mma::run(launch, team, ctx, op, *mask, site)?;
                }
                Inst::LaunchWait(mask) => ctx.waited(*mask),
                Inst::Jump(_) | Inst::Again(_) | Inst::JumpIfZero(..) | Inst::JumpIfNone(..) | Inst::Role(_) => {
                    jump(launch, team, ctx, inst, site)?;
                }
                Inst::Barrier(scope, mask) => {
                    if self.barrier(i, *scope, *mask, site)? {
                        return Ok(Stop::Blocked);
                    }
                    return Ok(Stop::Turn);
                }
                Inst::End => {
                    ctx.state = State::Done;
                    return Ok(Stop::Blocked);
                }
            }
        }
    }
}

/// Goes where an instruction says.
#[inline]
fn jump(launch: &Launch<'_>, team: &mut Team, ctx: &mut Context, inst: &Inst, site: u32) -> Result<(), EmuError> {
    let target = match inst {
        Inst::Jump(to) => Some(*to),
        Inst::Again(to) => {
            team.steps += 1;
            let steps = launch.options.max_steps;
            if steps > 0 && team.steps > steps {
                return Err(EmuError::Runaway { at: team.location(launch, site, ctx.first), steps });
            }
            Some(*to)
        }
        Inst::JumpIfZero(flag, to) => (ctx.files.r32.block(*flag, 0).0[0] == 0).then_some(*to),
        Inst::JumpIfNone(mask, to) => (!ctx.any(*mask)).then_some(*to),
        Inst::Role(table) => {
            let roles = &launch.code.roles[*table as usize];
            let own = roles.iter().find(|b| (b.first_thread..b.first_thread + b.threads).contains(&ctx.first));
            own.map(|own| own.target)
        }
        _ => None,
    };
    if let Some(target) = target {
        ctx.pc = target as usize;
    }
    Ok(())
}

/// Operations that other contexts can notice.
const fn is_visible(inst: &Inst) -> bool {
    matches!(
        inst,
        Inst::Load { .. }
            | Inst::Store(_)
            | Inst::Atomic(..)
            | Inst::Fence(_)
            | Inst::AsyncCopy(_)
            | Inst::LoadPeer(..)
            | Inst::AsyncWait(..)
            | Inst::Barrier(..)
            | Inst::Shuffle { .. }
            | Inst::Bulk(..)
            | Inst::Matrix(..)
    )
}

/// Runs a straight line of arithmetic, dealing with the lanes that fault.
fn arithmetic(launch: &Launch<'_>, team: &Team, ctx: &mut Context, start: usize, end: usize) -> Result<(), EmuError> {
    let code = launch.code;
    let ops = &code.alu[start..end];
    let mut from = 0;
    while from < ops.len() {
        // One by one while some value is poison.
        let careful = !ctx.poison.is_empty();
        let upto = if careful { from + 1 } else { ops.len() };
        if careful {
            uses::propagate_poison(ctx, &ops[from]);
        }
        let Some(fault) = launch.level.run(&mut ctx.files, &ops[..upto], from) else {
            from = upto;
            continue;
        };
        let (op, site) = (ops[fault.op], code.alu_sites[start + fault.op]);
        if fault.kind != FaultKind::DivideByZero {
            uses::faulted(ctx, &op, &fault, site);
        } else if let Some(lane) = ctx.guilty(&fault, op.c, op.d) {
            return Err(EmuError::DivideByZero { at: team.location(launch, site, ctx.first + lane as u32) });
        }
        from = fault.op + 1;
    }
    Ok(())
}

/// Each wave must be in the mask wholly or not at all.
fn whole_waves(
    launch: &Launch<'_>,
    team: &Team,
    ctx: &Context,
    mask: Slot,
    site: u32,
    what: &'static str,
) -> Result<(), EmuError> {
    if !mask.is_some() {
        return Ok(());
    }
    let wave = launch.code.wave as usize;
    let active: Vec<usize> = ctx.active(mask).collect();
    for first in (0..ctx.lanes).step_by(wave) {
        let lanes = first..(first + wave).min(ctx.lanes);
        let there = active.iter().filter(|l| lanes.contains(l)).count();
        if there > 0
            && there < lanes.len()
            && let Some(absent) = lanes.clone().find(|l| !active.contains(l))
        {
            let at = team.location(launch, site, ctx.first + absent as u32);
            return Err(EmuError::Divergent { at, what, scope: "wave" });
        }
    }
    Ok(())
}

fn shuffle(ctx: &mut Context, wave: usize, kind: ShuffleKind, wide: bool, from: Slot, to: Slot) {
    let mut values = Vec::with_capacity(ctx.files.blocks * LANES);
    for b in 0..ctx.files.blocks {
        values.extend(lane_values(ctx, from, wide, b));
    }
    for lane in 0..ctx.lanes {
        let (base, own) = (lane / wave * wave, lane % wave);
        let other = match kind {
            ShuffleKind::Xor(mask) => own ^ mask as usize,
            ShuffleKind::Down(delta) => own + delta as usize,
            ShuffleKind::Broadcast(l) => l as usize,
        };
        // A lane outside the wave, or missing from a last, shorter wave, gives nothing.
        let source = if other < wave && base + other < ctx.lanes { base + other } else { lane };
        if wide {
            ctx.files.r64.get_mut(to)[lane / LANES].0[lane % LANES] = values[source];
        } else {
            ctx.files.r32.get_mut(to)[lane / LANES].0[lane % LANES] = values[source] as u32;
        }
    }
}

fn written(
    launch: &Launch<'_>,
    team: &Team,
    ctx: &Context,
    flag: Slot,
    mask: Slot,
    of: RegElement,
    site: u32,
) -> Result<(), EmuError> {
    for b in 0..ctx.files.blocks {
        let unwritten = ctx.bits(mask, b) & !ctx.bits(flag, b);
        if unwritten != 0 {
            let thread = ctx.first + (b * LANES) as u32 + unwritten.trailing_zeros();
            let memory = launch.code.reg_names.get(of.reg as usize).cloned().unwrap_or_default();
            return Err(EmuError::Uninitialised { at: team.location(launch, site, thread), memory, index: of.element.into() });
        }
    }
    Ok(())
}
