//! Interactions between work-groups of a cluster: cluster barriers, remote arrivals, multicast bulk loads, remote reads.
//!
//! Each work-group has its own clocks, and their rows cover the domains of all work-groups ([`crate::shadow`]). An arrival joins its row into
//! the other work-group's barrier. A cluster barrier joins the rows of all work-groups. Shared memory that another work-group has read may
//! be written only after the next cluster barrier; no other event orders these accesses.

use crate::EmuError;
use crate::access::{Target, Touch, get_shared};
use crate::code::{Bulk, Inst};
use crate::context::{Group, State, Team, Visit};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use crate::matrix::barrier::{self, LaneBarrier, WaveBarriers, by_wave, wave_lanes};
use crate::matrix::bulk::{self, BoxCopy};
use crate::matrix::state::Flight;
use crate::shadow::{Lanes, Row};

/// Number under which contexts wait for a cluster barrier.
pub(crate) const BARRIER: u8 = u8::MAX;

/// The context that runs an instruction.
#[derive(Clone, Copy)]
pub(crate) struct Issuer {
    /// Position of the work-group in its cluster.
    pub(crate) group: usize,
    /// Number of the context in the work-group.
    pub(crate) context: usize,
}

/// Runs the instruction that a context has come to; true if it has to wait.
pub(crate) fn run(launch: &Launch<'_>, groups: &mut [Group<'_>], by: Issuer) -> Result<bool, EmuError> {
    let ctx = &mut groups[by.group].contexts[by.context];
    let (inst, site) = (&launch.code.insts[ctx.pc], launch.code.sites[ctx.pc]);
    ctx.pc += 1;
    match inst {
        Inst::Barrier(_, mask) => cluster_barrier(launch, groups, by, *mask, site),
        Inst::LoadPeer(mem, rank) => load(launch, groups, by, *mem as usize, *rank).map(|()| false),
        Inst::Bulk(b, mask) => match &launch.code.bulks[*b as usize] {
            Bulk::ArriveAt { barrier, rank } => {
                let Group { contexts, team, .. } = &groups[by.group];
                let lanes = barrier::named(launch, team, &contexts[by.context], barrier, *mask, site)?;
                arrive(launch, groups, by, &lanes, *rank, site).map(|()| false)
            }
            op => multicast(launch, groups, by, op, *mask, site).map(|()| false),
        },
        _ => Ok(false),
    }
}

/// The work-group of a rank.
fn peer(launch: &Launch<'_>, team: &Team, rank: u32, site: u32, thread: u32) -> Result<usize, EmuError> {
    if rank < launch.code.cluster {
        return Ok(rank as usize);
    }
    let what = format!("there is no rank {} in a cluster of {}", rank as i32, launch.code.cluster);
    Err(EmuError::Peer { at: team.location(launch, site, thread), what })
}

/// Notes that a thread of `by` is using work-group `of`.
fn visit(groups: &mut [Group<'_>], of: usize, by: usize, thread: u32, site: u32) {
    if of == by {
        return;
    }
    let team = &groups[by].team;
    let domain = team.clocks.domain(thread);
    let new = Visit { rank: team.rank, thread, domain, epoch: team.clocks.now(domain), site };
    let visits = &mut groups[of].team.visits;
    match visits.iter_mut().find(|v| (v.rank, v.domain) == (new.rank, domain)) {
        Some(old) => *old = new,
        None => visits.push(new),
    }
}

/// A barrier of all threads of all work-groups.
fn cluster_barrier(launch: &Launch<'_>, groups: &mut [Group<'_>], by: Issuer, mask: Slot, site: u32) -> Result<bool, EmuError> {
    let Group { contexts, team, .. } = &mut groups[by.group];
    let ctx = &mut contexts[by.context];
    if let Some(lane) = ctx.missing(mask) {
        let at = team.location(launch, site, ctx.first + lane as u32);
        return Err(EmuError::Divergent { at, what: "barrier", scope: "cluster" });
    }
    ctx.state = State::Waiting { barrier: BARRIER, site };
    let waits = |s: State| matches!(s, State::Waiting { barrier: BARRIER, .. });
    if !groups.iter().all(|g| g.contexts.iter().all(|c| waits(c.state))) {
        return Ok(true);
    }
    let mut all = Row::default();
    for group in groups.iter_mut() {
        all.join(&group.team.clocks.together());
    }
    for group in groups.iter_mut() {
        group.team.clocks.cluster_barrier(&all);
        if let Some(shadow) = &mut group.team.shadow {
            shadow.cluster_barrier();
        }
        group.team.bounded(launch)?;
        group.contexts.iter_mut().for_each(|c| c.state = State::Ready);
    }
    Ok(false)
}

/// Arrives at barriers of others.
fn arrive(
    launch: &Launch<'_>,
    groups: &mut [Group<'_>],
    by: Issuer,
    lanes: &[LaneBarrier],
    rank: Slot,
    site: u32,
) -> Result<(), EmuError> {
    let Issuer { group: g, context: i } = by;
    for WaveBarriers { wave, lanes } in by_wave(launch, lanes) {
        let Group { contexts, team, .. } = &groups[g];
        let ctx = &contexts[i];
        let mut targets = Vec::new();
        for &LaneBarrier { lane, tx } in &lanes {
            let thread = ctx.first + lane as u32;
            let of = peer(launch, team, ctx.word(rank, lane), site, thread)?;
            barrier::usable_by_peer(launch, &groups[of].team, team, thread, tx, site)?;
            targets.push((of, tx, thread));
        }
        let whole = lanes.len() == wave_lanes(launch, ctx, wave);
        for &(of, _, thread) in &targets {
            visit(groups, of, g, thread, site);
        }
        let team = &mut groups[g].team;
        let threads: Vec<u32> = targets.iter().map(|t| t.2).collect();
        let Some(&first) = threads.first() else { continue };
        let domain = team.clocks.domain(first);
        let row = team.clocks.release(domain, if whole { Lanes::All } else { Lanes::Some(&threads) });
        team.bounded(launch)?;
        for (of, tx, thread) in targets {
            if !barrier::arrive_from_peer(launch, &mut groups[of].team, tx, &row)? {
                let what = format!("more arrivals than a phase of rank {of} expects");
                return Err(barrier::wrong(launch, &groups[g].team, site, thread, tx, what));
            }
        }
    }
    Ok(())
}

/// Issues bulk loads that several work-groups receive.
fn multicast(
    launch: &Launch<'_>,
    groups: &mut [Group<'_>],
    by: Issuer,
    op: &Bulk,
    mask: Slot,
    site: u32,
) -> Result<(), EmuError> {
    let Issuer { group: g, context: i } = by;
    let Bulk::Load { to, scalar, map, at, barrier, peers: Some(peers) } = op else { return Ok(()) };
    let Group { contexts, team, .. } = &groups[g];
    for LaneBarrier { lane, tx } in barrier::named(launch, team, &contexts[i], barrier, mask, site)? {
        let Group { contexts, team, .. } = &groups[g];
        let ctx = &contexts[i];
        let thread = ctx.first + lane as u32;
        let set = ctx.word(*peers, lane);
        let at: Vec<i64> = at.iter().map(|&s| i64::from(ctx.word(s, lane) as i32)).collect();
        let copy = BoxCopy { shared: to, scalar: *scalar, map: *map, at: &at };
        let to = bulk::start(launch, team, ctx, &copy, lane, site)?;
        if set == 0 {
            return Err(EmuError::Peer { at: team.location(launch, site, thread), what: "nobody receives the copy".into() });
        }
        let mut first = true;
        for rank in (0..32).filter(|r| set >> r & 1 != 0) {
            let by = &groups[g].team;
            let of = peer(launch, by, rank, site, thread)?;
            let owner = &groups[of].team;
            barrier::usable_by_peer(launch, owner, by, thread, tx, site)?;
            if !owner.tx[tx].fenced {
                let what = "a bulk load completes on it without an InitFence by the thread that initialised it";
                return Err(barrier::wrong(launch, by, site, thread, tx, what));
            }
            let epoch = owner.clocks.now(owner.clocks.domain(owner.agents.load(tx)));
            let flight = Flight { to, map: *map, at: at.clone(), tx, epoch, thread, site };
            if std::mem::take(&mut first) {
                bulk::read_global(launch, &mut groups[g].team, &flight)?;
            }
            let space = bulk::to_space(op);
            if of == g {
                bulk::start_copy(launch, &mut groups[g].team, None, flight, *scalar, space)?;
            } else {
                // Their clocks are read while its shadow changes.
                let by = groups[g].team.clocks.clone();
                bulk::start_copy(launch, &mut groups[of].team, Some(&by), flight, *scalar, space)?;
            }
        }
    }
    Ok(())
}

/// Reads other work-groups' shared memory.
fn load(launch: &Launch<'_>, groups: &mut [Group<'_>], by: Issuer, mem: usize, rank: Slot) -> Result<(), EmuError> {
    let Issuer { group: g, context: i } = by;
    let m = &launch.code.mems[mem];
    let Some(t) = Target::new(launch, m.address.space, m.scalar, m.values.len()) else { return Ok(()) };
    let by = groups[g].team.clocks.clone();
    let active: Vec<usize> = groups[g].contexts[i].active(m.mask).collect();
    for lane in active {
        let Group { contexts, team, .. } = &mut groups[g];
        let ctx = &contexts[i];
        let thread = ctx.first + lane as u32;
        let of = peer(launch, team, ctx.word(rank, lane), m.site, thread)?;
        let index = ctx.addresses(&m.address, lane / LANES)[lane % LANES];
        let touch = Touch { launch, site: m.site, thread, kind: crate::access::Kind::Read };
        let byte = touch.place(team, &t, index)?;
        let Group { team: owner, .. } = &mut groups[of];
        if let Some(shadow) = &mut owner.shadow {
            let done = match of == g {
                true => shadow.read(&owner.clocks, byte, t.size * t.lanes, thread),
                false => shadow.read_by_peer(&owner.clocks, byte, t.size * t.lanes, &by, thread),
            };
            done.map_err(|broken| touch.trouble(&groups[g].team, &t, broken))?;
        }
        visit(groups, of, g, thread, m.site);
        for (c, &slot) in m.values.iter().enumerate() {
            let value = get_shared(&groups[of].team.shared, byte + c * t.size, t.size);
            let files = &mut groups[g].contexts[i].files;
            match t.size {
                8 => files.r64.get_mut(slot)[lane / LANES].0[lane % LANES] = value,
                _ => files.r32.get_mut(slot)[lane / LANES].0[lane % LANES] = value as u32,
            }
        }
    }
    Ok(())
}

/// At the end of a cluster: nobody may have left while another one might still use its shared memory.
pub(crate) fn finish(launch: &Launch<'_>, groups: &[Group<'_>]) -> Result<(), EmuError> {
    if !launch.options.checks.shared_races {
        return Ok(());
    }
    for group in groups {
        for v in &group.team.visits {
            let Some(by) = groups.get(v.rank as usize) else { continue };
            if !group.team.clocks.anyone_knows_of(&by.team.clocks, v.thread, v.epoch) {
                let rank = group.team.rank;
                let what = format!("rank {rank} of the cluster may have ended by now: it does not wait for this access");
                return Err(EmuError::Peer { at: by.team.location(launch, v.site, v.thread), what });
            }
        }
    }
    Ok(())
}
