//! Transaction barriers, as `mbarrier` of PTX: a phase completes when all arrivals and all bytes that it expects have come.

use super::state::Barrier;
use crate::EmuError;
use crate::code::{Address, Space};
use crate::context::{Context, State, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use crate::shadow::{Lanes, Row};

/// What an operation does to a barrier.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Arrive,
    Expect(u32),
}

/// Bytes that a phase may expect (`mbarrier`'s range).
const MAX_BYTES: i64 = (1 << 20) - 1;

/// Name of a barrier, for messages.
pub(crate) fn name(launch: &Launch<'_>, number: usize) -> String {
    let mut rest = number;
    for t in &launch.code.tx_barriers {
        if rest < t.len as usize {
            return format!("{}[{rest}]", t.name);
        }
        rest -= t.len as usize;
    }
    String::new()
}

/// The barrier that a lane names.
#[derive(Clone, Copy)]
pub(crate) struct LaneBarrier {
    pub(crate) lane: usize,
    /// Number of the barrier among all.
    pub(crate) tx: usize,
}

/// The barriers that the lanes of a wave name.
pub(crate) struct WaveBarriers {
    pub(crate) wave: usize,
    pub(crate) lanes: Vec<LaneBarrier>,
}

/// The barrier that each active lane names.
pub(crate) fn named(
    launch: &Launch<'_>,
    team: &Team,
    ctx: &Context,
    a: &Address,
    mask: Slot,
    site: u32,
) -> Result<Vec<LaneBarrier>, EmuError> {
    let Space::Tx(array) = a.space else { return Ok(Vec::new()) };
    let first: u32 = launch.code.tx_barriers.iter().take(array).map(|t| t.len).sum();
    let len = launch.code.tx_barriers.get(array).map_or(0, |t| t.len);
    let mut out = Vec::new();
    let mut block = (usize::MAX, [0; LANES]);
    for lane in ctx.active(mask) {
        if block.0 != lane / LANES {
            block = (lane / LANES, ctx.addresses(a, lane / LANES));
        }
        let index = block.1[lane % LANES];
        if !(0..i64::from(len)).contains(&index) {
            let at = team.location(launch, site, ctx.first + lane as u32);
            return Err(EmuError::OutOfBounds { at, memory: launch.name(a.space), index, lanes: 1, len: len.into() });
        }
        out.push(LaneBarrier { lane, tx: first as usize + index as usize });
    }
    Ok(out)
}

pub(crate) fn wrong(launch: &Launch<'_>, team: &Team, site: u32, thread: u32, tx: usize, what: impl Into<String>) -> EmuError {
    EmuError::TxBarrier { at: team.location(launch, site, thread), barrier: name(launch, tx), what: what.into() }
}

/// Makes barriers.
pub(crate) fn init(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &Context,
    lanes: &[LaneBarrier],
    arrivals: u32,
    site: u32,
) -> Result<(), EmuError> {
    for &LaneBarrier { lane, tx } in lanes {
        let thread = ctx.first + lane as u32;
        if team.tx[tx].made.is_some() {
            return Err(wrong(launch, team, site, thread, tx, "it is initialised twice: one thread does so, once"));
        }
        let epoch = team.clocks.now(team.clocks.domain(thread));
        team.tx[tx] = Barrier { made: Some((thread, epoch)), arrivals, missing: arrivals, ..Barrier::default() };
    }
    Ok(())
}

/// Makes the barriers that the active lanes initialised visible to bulk copies.
pub(crate) fn init_fence(team: &mut Team, threads: &[u32]) {
    for b in &mut team.tx {
        if b.made.is_some_and(|(t, _)| threads.contains(&t)) {
            b.fenced = true;
        }
    }
}

/// A thread may use a barrier once it is initialised, which must be ordered before.
pub(crate) fn usable(launch: &Launch<'_>, team: &Team, thread: u32, tx: usize, site: u32) -> Result<(), EmuError> {
    let Some((maker, epoch)) = team.tx[tx].made else {
        return Err(wrong(launch, team, site, thread, tx, "it is used before it is initialised"));
    };
    let checked = launch.options.checks.shared_races;
    if checked && !team.clocks.ordered(thread, team.clocks.domain(maker), maker, epoch) {
        let what = format!("thread {maker} initialised it with no work-group barrier between");
        return Err(wrong(launch, team, site, thread, tx, what));
    }
    Ok(())
}

/// The same check for a thread of work-group `by` and the barrier of another work-group, `team`.
pub(crate) fn usable_by_peer(
    launch: &Launch<'_>,
    team: &Team,
    by: &Team,
    thread: u32,
    tx: usize,
    site: u32,
) -> Result<(), EmuError> {
    let rank = team.rank;
    let Some((maker, epoch)) = team.tx[tx].made else {
        let what = format!("that of rank {rank} is used before it is initialised: a cluster barrier between");
        return Err(wrong(launch, by, site, thread, tx, what));
    };
    let checked = launch.options.checks.shared_races;
    if checked && !by.clocks.ordered_at(thread, &team.clocks, team.clocks.domain(maker), maker, epoch) {
        let what = format!("thread {maker} of rank {rank} initialised it with no cluster barrier between");
        return Err(wrong(launch, by, site, thread, tx, what));
    }
    Ok(())
}

/// One arrival of a thread of another work-group, which publishes this; false if none is missing.
pub(crate) fn arrive_from_peer(launch: &Launch<'_>, team: &mut Team, tx: usize, row: &Row) -> Result<bool, EmuError> {
    let b = &mut team.tx[tx];
    if b.missing == 0 {
        return Ok(false);
    }
    b.arriving.join(row);
    b.missing -= 1;
    complete_phase(launch, team, tx)?;
    Ok(true)
}

/// Arrives, once per lane.
pub(crate) fn arrive(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &Context,
    lanes: &[LaneBarrier],
    step: Step,
    site: u32,
) -> Result<(), EmuError> {
    for WaveBarriers { wave, lanes: group } in by_wave(launch, lanes) {
        let threads: Vec<u32> = group.iter().map(|of| ctx.first + of.lane as u32).collect();
        for (&LaneBarrier { tx, .. }, &thread) in group.iter().zip(&threads) {
            usable(launch, team, thread, tx, site)?;
            let b = &mut team.tx[tx];
            if b.missing == 0 {
                let what = format!("more than the {} arrivals that a phase expects", b.arrivals);
                return Err(wrong(launch, team, site, thread, tx, what));
            }
            if let Step::Expect(bytes) = step {
                b.bytes += i64::from(bytes);
                if b.bytes > MAX_BYTES {
                    let what = format!("a phase expects {} bytes: up to {MAX_BYTES} are possible", b.bytes);
                    return Err(wrong(launch, team, site, thread, tx, what));
                }
            }
        }
        // What the lanes did is published once, by all of them, then each arrives.
        let whole = group.len() == wave_lanes(launch, ctx, wave);
        let domain = team.clocks.domain(threads.first().copied().unwrap_or(ctx.first));
        let row = team.clocks.release(domain, if whole { Lanes::All } else { Lanes::Some(&threads) });
        for (&LaneBarrier { tx, .. }, &thread) in group.iter().zip(&threads) {
            let b = &mut team.tx[tx];
            if b.missing == 0 {
                let what = format!("more than the {} arrivals that a phase expects", b.arrivals);
                return Err(wrong(launch, team, site, thread, tx, what));
            }
            b.arriving.join(&row);
            b.missing -= 1;
            complete_phase(launch, team, tx)?;
        }
    }
    team.bounded(launch)
}

/// Bytes of a copy have come.
pub(crate) fn deliver(launch: &Launch<'_>, team: &mut Team, tx: usize, bytes: u32, epoch: u32) -> Result<(), EmuError> {
    let row = team.clocks.only(team.agents.load(tx), epoch);
    let b = &mut team.tx[tx];
    b.bytes -= i64::from(bytes);
    b.arriving.join(&row);
    complete_phase(launch, team, tx)
}

/// Ends the current phase if nothing is missing.
fn complete_phase(launch: &Launch<'_>, team: &mut Team, tx: usize) -> Result<(), EmuError> {
    let b = &mut team.tx[tx];
    if b.missing > 0 || b.bytes != 0 {
        return Ok(());
    }
    if let Some(late) = team.in_flight.iter().find(|l| l.tx == tx) {
        let what = "its phase completes while this copy is in flight: the bytes expected are not those of the copies";
        return Err(wrong(launch, team, late.site, late.thread, tx, what));
    }
    let row = std::mem::take(&mut b.arriving);
    b.published.join(&row);
    b.missing = b.arrivals;
    b.phase += 1;
    team.clocks.close(team.clocks.domain(team.agents.load(tx)));
    team.woken = true;
    Ok(())
}

/// Waits for phases; true if some lane has to go on waiting.
pub(crate) fn wait(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    lanes: &[LaneBarrier],
    parity: Slot,
    site: u32,
) -> Result<bool, EmuError> {
    for &LaneBarrier { lane, tx } in lanes {
        let thread = ctx.first + lane as u32;
        usable(launch, team, thread, tx, site)?;
        let parity = ctx.word(parity, lane);
        if parity > 1 {
            return Err(wrong(launch, team, site, thread, tx, format!("the parity of a phase is 0 or 1, not {}", parity as i32)));
        }
        if team.tx[tx].is_waited_for(parity) {
            ctx.state = State::Phase { tx, parity, site };
            return Ok(true);
        }
    }
    for WaveBarriers { wave, lanes: group } in by_wave(launch, lanes) {
        let threads: Vec<u32> = group.iter().map(|of| ctx.first + of.lane as u32).collect();
        let whole = group.len() == wave_lanes(launch, ctx, wave);
        for &LaneBarrier { lane, tx } in &group {
            let thread = ctx.first + lane as u32;
            let row = std::mem::take(&mut team.tx[tx].published);
            let domain = team.clocks.domain(thread);
            team.clocks.acquire(domain, if whole { Lanes::All } else { Lanes::Some(&threads) }, &row);
            team.tx[tx].published = row;
        }
    }
    Ok(false)
}

/// Arrivals and bytes that a phase still waits for.
pub(crate) fn describe(launch: &Launch<'_>, team: &Team, tx: usize, parity: u32) -> String {
    let b = &team.tx[tx];
    let name = name(launch, tx);
    format!("`{name}` for its phase of parity {parity} ({} arrivals and {} bytes missing)", b.missing, b.bytes)
}

/// Lanes by wave of the context.
pub(crate) fn by_wave(launch: &Launch<'_>, lanes: &[LaneBarrier]) -> Vec<WaveBarriers> {
    let mut out: Vec<WaveBarriers> = Vec::new();
    for &LaneBarrier { lane, tx } in lanes {
        let wave = lane / launch.code.wave as usize;
        match out.last_mut() {
            Some(of) if of.wave == wave => of.lanes.push(LaneBarrier { lane, tx }),
            _ => out.push(WaveBarriers { wave, lanes: vec![LaneBarrier { lane, tx }] }),
        }
    }
    out
}

pub(crate) fn wave_lanes(launch: &Launch<'_>, ctx: &Context, wave: usize) -> usize {
    let width = launch.code.wave as usize;
    width.min(ctx.lanes - wave * width)
}
