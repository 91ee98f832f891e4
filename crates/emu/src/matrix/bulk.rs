//! Bulk copies: boxes of tensors between global and shared memory, moved by an engine beside the threads.
//!
//! Where checks or interleaving ask for it loads land at once or later, as the seed decides, at the latest when nobody can go on.
//! A store's bytes are taken at once, which is one of the legal outcomes. The race checks see that its source stays untouched
//! until it is waited for.

use super::barrier::{self, LaneBarrier, Step};
use super::state::Flight;
use crate::EmuError;
use crate::access::{Kind, Target, Touch, get_shared, set_shared};
use crate::code::{Address, Bulk, Space};
use crate::context::{Context, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use crate::shadow::{AGENTS, Clocks, Lanes};
use rand::Rng;
use tilewright_ir::{Im2col, Scalar, Swizzle, TensorMap};

/// True if loads may land late.
fn late(launch: &Launch<'_>) -> bool {
    launch.options.checks.shared_races || launch.options.interleave
}

/// Runs an operation; true if the context has to wait, and to come back to it.
pub(crate) fn run(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    op: &Bulk,
    mask: Slot,
    site: u32,
) -> Result<bool, EmuError> {
    let barriers = |team: &Team, ctx: &Context, a: &Address| barrier::named(launch, team, ctx, a, mask, site);
    let threads = |ctx: &Context| ctx.active(mask).map(|l| ctx.first + l as u32).collect::<Vec<_>>();
    match op {
        Bulk::Init { barrier, arrivals } => {
            let lanes = barriers(team, ctx, barrier)?;
            barrier::init(launch, team, ctx, &lanes, *arrivals, site)?;
        }
        Bulk::InitFence => barrier::init_fence(team, &threads(ctx)),
        Bulk::Expect { barrier, bytes } => {
            let lanes = barriers(team, ctx, barrier)?;
            barrier::arrive(launch, team, ctx, &lanes, Step::Expect(*bytes), site)?;
        }
        Bulk::Arrive { barrier } => {
            let lanes = barriers(team, ctx, barrier)?;
            barrier::arrive(launch, team, ctx, &lanes, Step::Arrive, site)?;
        }
        Bulk::Wait { barrier, parity } => {
            let lanes = barriers(team, ctx, barrier)?;
            return barrier::wait(launch, team, ctx, &lanes, *parity, site);
        }
        // [`crate::cluster`] runs what reaches other work-groups.
        Bulk::ArriveAt { .. } => {}
        Bulk::Load { to, scalar, map, at, barrier, .. } => {
            for LaneBarrier { lane, tx } in barriers(team, ctx, barrier)? {
                let thread = ctx.first + lane as u32;
                barrier::usable(launch, team, thread, tx, site)?;
                if !team.tx[tx].fenced {
                    let what = "a bulk load completes on it without an InitFence by the thread that initialised it";
                    return Err(barrier::wrong(launch, team, site, thread, tx, what));
                }
                let at: Vec<i64> = at.iter().map(|&s| i64::from(ctx.word(s, lane) as i32)).collect();
                let to = start(launch, team, ctx, &BoxCopy { shared: to, scalar: *scalar, map: *map, at: &at }, lane, site)?;
                let epoch = team.clocks.now(team.clocks.domain(team.agents.load(tx)));
                load(launch, team, Flight { to, map: *map, at, tx, epoch, thread, site }, *scalar, to_space(op))?;
            }
        }
        Bulk::Store { from, scalar, map, at } => {
            let lanes: Vec<usize> = ctx.active(mask).collect();
            for lane in lanes {
                let thread = ctx.first + lane as u32;
                let at: Vec<i64> = at.iter().map(|&s| i64::from(ctx.word(s, lane) as i32)).collect();
                let copy = BoxCopy { shared: from, scalar: *scalar, map: *map, at: &at };
                let from = start(launch, team, ctx, &copy, lane, site)?;
                store(&Touch { launch, site, thread, kind: Kind::Write }, team, &copy, from)?;
            }
        }
        Bulk::StoreCommit => {
            for wave in waves(launch, ctx, mask) {
                team.clocks.close(team.clocks.domain(team.agents.store(wave)));
            }
            team.bounded(launch)?;
        }
        Bulk::StoreWait { pending } => {
            for wave in waves(launch, ctx, mask) {
                let agent = team.clocks.domain(team.agents.store(wave));
                let done = team.clocks.now(agent).saturating_sub(pending.saturating_add(1));
                let row = team.clocks.only(team.agents.store(wave), done);
                let domain = team.clocks.domain(wave * launch.code.wave);
                let of_wave = |t: &u32| *t / launch.code.wave == wave;
                let threads: Vec<u32> = threads(ctx).into_iter().filter(of_wave).collect();
                // One lane that waits keeps it to itself until its wave meets.
                let whole = threads.len() == launch.code.wave.min(launch.code.threads - wave * launch.code.wave) as usize;
                team.clocks.acquire(domain, if whole { Lanes::All } else { Lanes::Some(&threads) }, &row);
            }
        }
        Bulk::ProxyFence => {
            for wave in waves(launch, ctx, mask) {
                let domain = team.clocks.domain(wave * launch.code.wave);
                let of_wave = |t: &u32| *t / launch.code.wave == wave;
                let threads: Vec<u32> = threads(ctx).into_iter().filter(of_wave).collect();
                team.clocks.proxy_fence(domain, &threads);
            }
            team.bounded(launch)?;
        }
    }
    Ok(false)
}

/// Where the shared side of a copy is.
pub(crate) const fn to_space(op: &Bulk) -> Space {
    match op {
        Bulk::Load { to: a, .. } | Bulk::Store { from: a, .. } => a.space,
        _ => Space::Tx(0),
    }
}

/// Waves with a lane in a mask.
fn waves(launch: &Launch<'_>, ctx: &Context, mask: Slot) -> Vec<u32> {
    let mut waves: Vec<u32> = ctx.active(mask).map(|l| (ctx.first + l as u32) / launch.code.wave).collect();
    waves.dedup();
    waves
}

fn tensor<'a>(launch: &'a Launch<'_>, map: usize) -> Option<&'a TensorMap> {
    launch.maps.get(map)?.as_ref()
}

/// One lane's copy of a box.
#[derive(Clone, Copy)]
pub(crate) struct BoxCopy<'a> {
    /// Start of the box in shared memory.
    pub(crate) shared: &'a Address,
    /// Type of the shared array.
    pub(crate) scalar: Scalar,
    /// Number of the tensor map among the arguments.
    pub(crate) map: usize,
    /// Coordinates of the box in the tensor, the contiguous dimension first.
    pub(crate) at: &'a [i64],
}

/// The first shared byte of a lane's copy, checked: the whole box within the array, aligned to the swizzle's pattern.
pub(crate) fn start(
    launch: &Launch<'_>,
    team: &Team,
    ctx: &Context,
    copy: &BoxCopy<'_>,
    lane: usize,
    site: u32,
) -> Result<usize, EmuError> {
    let BoxCopy { shared: a, scalar, map: name, at: coordinates } = *copy;
    let index = ctx.addresses(a, lane / LANES)[lane % LANES];
    let (Some(t), Some(map)) = (Target::new(launch, a.space, scalar, 1), tensor(launch, name)) else { return Ok(0) };
    // On an H200 a copy that begins elsewhere along the contiguous dimension is an illegal instruction.
    let column = coordinates.first().copied().unwrap_or(0).saturating_mul(t.size as i64);
    if launch.options.checks.alignment && column % 16 != 0 {
        let (at, memory) = (team.location(launch, site, ctx.first + lane as u32), launch.name(Space::Global(name)));
        return Err(EmuError::Misaligned { at, memory, byte: column as u64, size: 16 });
    }
    if let Some(windows) = &map.im2col
        && let Some(what) = window_fault(map, windows, coordinates)
    {
        let (at, memory) = (team.location(launch, site, ctx.first + lane as u32), launch.name(Space::Global(name)));
        return Err(EmuError::Window { at, memory, start: coordinates.to_vec(), what });
    }
    let lanes = u64::from(map.tile_bytes()).div_ceil(t.size as u64);
    let at = || team.location(launch, site, ctx.first + lane as u32);
    if index < 0 || (index as u64).saturating_add(lanes) > t.len {
        return Err(EmuError::OutOfBounds { at: at(), memory: launch.name(a.space), index, lanes: lanes as u32, len: t.len });
    }
    let byte = t.base + index as usize * t.size;
    let pattern = match map.swizzle {
        Swizzle::None => 128,
        s => s.row_bytes() * 8,
    };
    if launch.options.checks.alignment && !byte.is_multiple_of(pattern as usize) {
        return Err(EmuError::Misaligned { at: at(), memory: launch.name(a.space), byte: byte as u64, size: pattern });
    }
    Ok(byte)
}

/// A run of consecutive elements of a box along its innermost dimension, within the tensor.
struct Run {
    /// Element of the box the run starts at.
    first: usize,
    /// Byte of global memory, from the tensor's first.
    byte: usize,
    len: usize,
}

/// What is wrong with where a copy in im2col mode starts.
fn window_fault(map: &TensorMap, windows: &Im2col, at: &[i64]) -> Option<&'static str> {
    let (spatial, rank) = (windows.lower.len(), map.extent.len());
    let (origins, offsets) = (&at[1..=spatial], &at[rank..]);
    let outside = |d: usize| {
        let from_lower = origins[d] - i64::from(windows.lower[d]);
        let last = map.extent[d + 1] as i64 - 1 + i64::from(windows.upper[d]) - i64::from(windows.lower[d]);
        !(0..=last).contains(&from_lower) || from_lower % i64::from(windows.step[d]) != 0
    };
    if (0..spatial).any(outside) {
        return Some("windows have no origin there");
    }
    let beyond = offsets.iter().any(|offset| !(0..=Im2col::offsets(spatial)).contains(offset));
    beyond.then_some("an offset is out of range")
}

/// The pixels of a copy in im2col mode: position and sample of each, in their order.
fn pixels(map: &TensorMap, windows: &Im2col, at: &[i64]) -> Vec<Vec<i64>> {
    let (spatial, rank) = (windows.lower.len(), map.extent.len());
    let (mut origin, mut out) = (at[1..rank].to_vec(), Vec::new());
    for _ in 0..map.tile[1] {
        let shifted = origin.iter().enumerate().map(|(d, x)| x + at.get(rank + d).filter(|_| d < spatial).unwrap_or(&0));
        out.push(shifted.collect());
        let wrapped = (0..spatial).all(|d| {
            origin[d] += i64::from(windows.step[d]);
            let beyond = origin[d] >= map.extent[d + 1] as i64 + i64::from(windows.upper[d]);
            if beyond {
                origin[d] = windows.lower[d].into();
            }
            beyond
        });
        origin[spatial] += i64::from(wrapped);
    }
    out
}

/// The rows of a copy: coordinates along all dimensions but the innermost, in their order.
fn rows(map: &TensorMap, at: &[i64]) -> Vec<Vec<i64>> {
    if let Some(windows) = &map.im2col {
        return pixels(map, windows, at);
    }
    let rows: usize = map.tile[1..].iter().map(|&t| t as usize).product();
    let row = |mut rest: usize| {
        let sides = map.tile.iter().zip(at).skip(1);
        let place = |(&tile, &at): (&u32, &i64)| {
            let x = at + (rest % tile as usize) as i64;
            rest /= tile as usize;
            x
        };
        sides.map(place).collect()
    };
    (0..rows).map(row).collect()
}

/// The runs of a box that lie within the tensor.
fn runs(map: &TensorMap, at: &[i64]) -> Vec<Run> {
    let inner = map.tile[0] as usize;
    let size = map.scalar.bytes() as usize;
    let skip = at[0].saturating_neg().clamp(0, inner as i64);
    let stop = (map.extent[0] as i64).saturating_sub(at[0]).clamp(0, inner as i64);
    let mut out = Vec::new();
    if skip >= stop {
        return out;
    }
    for (row, place) in rows(map, at).into_iter().enumerate() {
        let inside = place.iter().zip(&map.extent[1..]).all(|(x, &extent)| (0..extent as i64).contains(x));
        if inside {
            let steps = place.iter().zip(&map.stride_bytes).map(|(&x, &stride)| x as usize * stride as usize);
            let byte = (at[0] + skip) as usize * size + steps.sum::<usize>();
            out.push(Run { first: row * inner + skip as usize, byte, len: (stop - skip) as usize });
        }
    }
    out
}

/// Bytes of global memory that a box covers: of each run, the first from the tensor's, and how many.
pub(crate) fn spans(launch: &Launch<'_>, map: usize, at: &[i64]) -> impl Iterator<Item = (usize, usize)> {
    let found = tensor(launch, map).map(|t| (runs(t, at), t.scalar.bytes() as usize));
    found.into_iter().flat_map(|(runs, size)| runs.into_iter().map(move |r| (r.byte, r.len * size)))
}

/// Checks the global side of a copy, element by element.
fn check_global(touch: &Touch<'_>, team: &mut Team, map: usize, runs: &[Run]) -> Result<(), EmuError> {
    let checks = &touch.launch.options.checks;
    let Some(tensor) = tensor(touch.launch, map) else { return Ok(()) };
    let Some(t) = Target::new(touch.launch, Space::Global(map), tensor.scalar, 1) else { return Ok(()) };
    if !checks.initialised && !checks.global_races {
        return Ok(());
    }
    for run in runs {
        for i in 0..run.len {
            touch.check(team, &t, (run.byte / t.size + i) as i64)?;
        }
    }
    Ok(())
}

/// Issues a load.
fn load(launch: &Launch<'_>, team: &mut Team, f: Flight, scalar: Scalar, space: Space) -> Result<(), EmuError> {
    read_global(launch, team, &f)?;
    start_copy(launch, team, None, f, scalar, space)
}

/// The global side of a load, on behalf of the thread that issues it.
pub(crate) fn read_global(launch: &Launch<'_>, team: &mut Team, f: &Flight) -> Result<(), EmuError> {
    let Some(map) = tensor(launch, f.map) else { return Ok(()) };
    let touch = Touch { launch, site: f.site, thread: f.thread, kind: Kind::Read };
    check_global(&touch, team, f.map, &runs(map, &f.at))?;
    if launch.options.count {
        team.counters.async_copies += 1;
        team.counters.global_load_bytes += u64::from(map.tile_bytes());
    }
    Ok(())
}

/// The shared side of a load into a work-group, issued by one of its threads or by one of the work-group with these clocks.
pub(crate) fn start_copy(
    launch: &Launch<'_>,
    team: &mut Team,
    by: Option<&Clocks>,
    f: Flight,
    scalar: Scalar,
    space: Space,
) -> Result<(), EmuError> {
    let Some(map) = tensor(launch, f.map) else { return Ok(()) };
    if let Some(shadow) = &mut team.shadow {
        let (agent, bytes) = (team.agents.load(f.tx), map.tile_bytes() as usize);
        let done = match by {
            None => shadow.write_by(&team.clocks, f.to, bytes, agent, f.thread),
            Some(by) => shadow.write_by_peer(&team.clocks, f.to, bytes, agent, by, f.thread),
        };
        if let (Err(broken), Some(t)) = (done, Target::new(launch, space, scalar, 1)) {
            let touch = Touch { launch, site: f.site, thread: f.thread, kind: Kind::Write };
            return Err(touch.trouble(team, &t, broken));
        }
    }
    team.tx[f.tx].loaded = Some((f.epoch, f.thread, f.site));
    if late(launch) && team.rng.random() {
        team.in_flight.push(f);
        return Ok(());
    }
    finish_copy(launch, team, &f)
}

/// Lets one of the loads in flight land; false if there is none.
pub(crate) fn finish_one_copy(launch: &Launch<'_>, team: &mut Team) -> Result<bool, EmuError> {
    if team.in_flight.is_empty() {
        return Ok(false);
    }
    let i = team.rng.random_range(0..team.in_flight.len());
    let flight = team.in_flight.swap_remove(i);
    finish_copy(launch, team, &flight)?;
    Ok(true)
}

/// Moves the bytes of a load and tells its barrier.
fn finish_copy(launch: &Launch<'_>, team: &mut Team, f: &Flight) -> Result<(), EmuError> {
    let Some(map) = tensor(launch, f.map) else { return Ok(()) };
    let Some(bound) = launch.buffers.get(f.map).and_then(|b| b.as_ref()) else { return Ok(()) };
    let size = map.scalar.bytes() as usize;
    let (bytes, place) = (map.tile_bytes() as usize, |byte: usize| map.swizzle.apply(byte as u32) as usize);
    let runs = runs(map, &f.at);
    if runs.iter().map(|r| r.len).sum::<usize>() * size < bytes {
        for at in (0..bytes).step_by(4) {
            set_shared(&mut team.shared, place(f.to + at), 4, 0);
        }
    }
    for run in runs {
        let (to, from) = (f.to + run.first * size, bound.offset + run.byte);
        // Whole words where both sides allow it.
        let step = if size == 2 && to % 4 == 0 && from % 4 == 0 && run.len % 2 == 0 { 4 } else { size };
        for at in (0..run.len * size).step_by(step) {
            let mut value = bound.cells.get(from + at, step);
            if map.round_tf32 {
                value = round_tf32(value as u32).into();
            }
            set_shared(&mut team.shared, place(to + at), step, value);
        }
    }
    barrier::deliver(launch, team, f.tx, bytes as u32, f.epoch)
}

/// Rounds to the nearest float with 10 bits of mantissa, ties to even.
fn round_tf32(bits: u32) -> u32 {
    if f32::from_bits(bits).is_finite() { (bits.wrapping_add(0xFFF + (bits >> 13 & 1))) & 0xFFFF_E000 } else { bits }
}

/// Runs a store of the box at byte `from` of shared memory. `touch` is its write of global memory.
fn store(touch: &Touch<'_>, team: &mut Team, copy: &BoxCopy<'_>, from: usize) -> Result<(), EmuError> {
    let Touch { launch, site, thread, .. } = *touch;
    let bound = launch.buffers.get(copy.map).and_then(|b| b.as_ref());
    let (Some(tensor), Some(bound)) = (tensor(launch, copy.map), bound) else { return Ok(()) };
    let bytes = tensor.tile_bytes() as usize;
    let runs = runs(tensor, copy.at);
    let size = tensor.scalar.bytes() as usize;
    if let Some(shadow) = &mut team.shadow {
        let agent = team.agents.store(thread / launch.code.wave);
        // Bytes that fall outside the tensor are not asked for.
        for run in &runs {
            let (first, end) = (from + run.first * size, from + (run.first + run.len) * size);
            for chunk in first / 16..end.div_ceil(16) {
                let part = (chunk * 16).max(first)..(chunk * 16 + 16).min(end);
                let place = tensor.swizzle.apply(part.start as u32) as usize;
                let done = shadow.read_by(&team.clocks, place, part.len(), agent, &[thread]);
                if let (Err(broken), Some(t)) = (done, Target::new(launch, copy.shared.space, copy.scalar, 1)) {
                    return Err(Touch { kind: Kind::Read, ..*touch }.trouble(team, &t, broken));
                }
            }
        }
    }
    let wave = thread / launch.code.wave;
    let epoch = team.clocks.now(team.clocks.domain(team.agents.store(wave)));
    if let Some(last) = team.stored.get_mut(wave as usize) {
        *last = Some((epoch, thread, site));
    }
    check_global(touch, team, copy.map, &runs)?;
    clear_tail(touch, team, copy, &runs)?;
    for run in &runs {
        for i in 0..run.len {
            let place = tensor.swizzle.apply((from + (run.first + i) * size) as u32) as usize;
            bound.cells.set(bound.offset + run.byte + i * size, size, get_shared(&team.shared, place, size));
        }
    }
    if launch.options.count {
        team.counters.async_copies += 1;
        team.counters.global_store_bytes += bytes as u64;
    }
    Ok(())
}

/// Bytes of global memory that a store clears after a run. If the tensor's last column cuts the box, the bytes up to the next multiple of
/// 16 were seen to become zero on an H200.
fn cleared(map: &TensorMap, at: &[i64], run: &Run) -> std::ops::Range<usize> {
    let cut = at[0].saturating_add(i64::from(map.tile[0])) > map.extent[0] as i64;
    let end = run.byte + run.len * map.scalar.bytes() as usize;
    end..if cut { end.next_multiple_of(16) } else { end }
}

/// Writes what a store clears beside what it is asked for.
fn clear_tail(touch: &Touch<'_>, team: &mut Team, copy: &BoxCopy<'_>, runs: &[Run]) -> Result<(), EmuError> {
    let Some(tensor) = tensor(touch.launch, copy.map) else { return Ok(()) };
    let Some(t) = Target::new(touch.launch, Space::Global(copy.map), tensor.scalar, 1) else { return Ok(()) };
    let Some(bound) = t.bound else { return Ok(()) };
    for byte in runs.iter().flat_map(|run| cleared(tensor, copy.at, run).step_by(t.size)) {
        let place = touch.check(team, &t, (byte / t.size) as i64)?;
        bound.cells.set(place, t.size, 0);
    }
    Ok(())
}

/// At the end of a work-group: every load must have been waited for by somebody.
pub(crate) fn finish(launch: &Launch<'_>, team: &mut Team) -> Result<(), EmuError> {
    while finish_one_copy(launch, team)? {}
    if !launch.options.checks.shared_races {
        return Ok(());
    }
    let loads = team.tx.iter().enumerate().map(|(tx, b)| (team.agents.load(tx), b.loaded));
    let stores = team.stored.iter().enumerate().map(|(wave, last)| (team.agents.store(wave as u32), *last));
    for (agent, last) in loads.chain(stores) {
        let Some((epoch, thread, site)) = last else { continue };
        if !team.clocks.anyone_knows(agent, epoch) {
            let what = team.agents.names(launch.code).swap_remove((agent - AGENTS) as usize);
            return Err(EmuError::Unfinished { at: team.location(launch, site, thread), what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            scalar: Scalar::F32,
            round_tf32: false,
            extent: vec![10, 3],
            stride_bytes: vec![48],
            tile: vec![4, 2],
            swizzle: Swizzle::None,
            im2col: None,
        }
    }

    fn found(at: &[i64]) -> Vec<(usize, usize, usize)> {
        runs(&map(), at).iter().map(|r| (r.first, r.byte, r.len)).collect()
    }

    #[test]
    fn boxes_are_clipped() {
        assert_eq!(found(&[4, 1]), [(0, 64, 4), (4, 112, 4)]);
        assert_eq!(found(&[8, 2]), [(0, 128, 2)]);
        assert_eq!(found(&[-1, -1]), [(5, 0, 3)]);
        assert_eq!(found(&[10, 0]), []);
        assert_eq!(found(&[-4, 0]), []);
        assert_eq!(found(&[0, 3]), []);
    }

    #[test]
    fn windows_wrap_rows_and_samples() {
        // 2 samples of 3 x 4 pixels of 8 channels. Windows of 3 x 3 have a step of 2 along the first dimension and padding of 1.
        let map = TensorMap {
            extent: vec![8, 4, 3, 2],
            stride_bytes: vec![32, 128, 384],
            tile: vec![4, 5],
            im2col: Some(Im2col { lower: vec![-1, -1], upper: vec![-2, -1], step: vec![2, 1] }),
            ..map()
        };
        // Origins: w of -1, 1; h of -1, 0, 1. From (w 1, h 0, n 0) on, tap (s 0, r 2): the rows below, and sample 1.
        let bytes = |at: &[i64]| runs(&map, at).iter().map(|r| (r.first / 4, r.byte)).collect::<Vec<_>>();
        assert_eq!(bytes(&[4, 1, 0, 0, 0, 2]), [(0, 16 + 32 + 256), (4, 16 + 384 + 128 + 32)]);
        // Tap (s 2, r 0) of the same. Origins are 1 + 2, -1 + 2 of rows 0, 1, 1; then sample 1, whose first row is padding.
        assert_eq!(bytes(&[0, 1, 0, 0, 2, 0]), [(0, 96), (1, 32 + 128), (2, 96 + 128)]);
        // Beyond the last sample nothing is read, and a wrapped row within it starts at the lower corner again.
        assert_eq!(bytes(&[0, -1, -1, 2, 1, 1]), []);
        assert_eq!(bytes(&[0, -1, 1, 1, 1, 1]), [(0, 384 + 256), (1, 384 + 256 + 64)]);
        let fault = |at: &[i64]| window_fault(&map, map.im2col.as_ref().unwrap(), at);
        assert_eq!(fault(&[0, 1, 1, 9, 2, 2]), None);
        assert!(fault(&[0, 0, 0, 0, 0, 0]).is_some() && fault(&[0, 3, 0, 0, 0, 0]).is_some());
        assert!(fault(&[0, 1, 2, 0, 0, 0]).is_some() && fault(&[0, 1, 0, 0, 0, -1]).is_some());
    }

    #[test]
    fn rows_that_end_within_sixteen_bytes_clear_what_follows() {
        let cleared_bytes = |at: &[i64]| runs(&map(), at).iter().map(|r| cleared(&map(), at, r).len()).collect::<Vec<_>>();
        assert_eq!(cleared_bytes(&[8, 0]), [8, 8]);
        assert_eq!(cleared_bytes(&[7, 2]), [8]);
        assert_eq!(cleared_bytes(&[4, 1]), [0, 0]);
    }

    #[test]
    fn tf32_keeps_ten_bits() {
        let round = |x: f32| f32::from_bits(round_tf32(x.to_bits()));
        let ulp = f32::powi(2.0, -10);
        assert_eq!(round(1.0 + ulp * 0.49), 1.0);
        assert_eq!(round(1.0 + ulp * 0.5), 1.0);
        assert_eq!(round(1.0 + ulp * 1.5), 1.0 + 2.0 * ulp);
        assert_eq!(round(-1.0 - ulp * 0.51), -1.0 - ulp);
        assert!(round(f32::INFINITY).is_infinite() && round(f32::NAN).is_nan());
    }
}
