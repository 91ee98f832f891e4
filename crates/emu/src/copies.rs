//! Asynchronous copies from global to shared memory.
//!
//! Where checks or interleaving ask for it they really are asynchronous. Each lane's bytes arrive either at once or only when
//! they are waited for, as the seed decides. Otherwise they arrive at once, which is one of the legal outcomes.

use crate::EmuError;
use crate::access::{Kind, Target, Touch, set_shared};
use crate::code::Copy;
use crate::context::{Context, Pending, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use crate::shadow::{GlobalShadow, Toucher};
use rand::Rng;

/// True if copies may land late.
fn late(launch: &Launch<'_>) -> bool {
    launch.options.checks.shared_races || launch.options.interleave
}

/// Issues a copy.
pub(crate) fn issue(launch: &Launch<'_>, team: &mut Team, ctx: &mut Context, c: &Copy, site: u32) -> Result<(), EmuError> {
    let (Some(to), Some(from)) = (
        Target::new(launch, c.dst.space, c.scalar, c.lanes as usize),
        Target::new(launch, c.src.space, c.scalar, c.lanes as usize),
    ) else {
        return Ok(());
    };
    let bytes = to.size * to.lanes;
    for block in 0..ctx.files.blocks {
        let (active, reads) = (ctx.bits(c.mask, block), ctx.bits(c.guard, block));
        let (dst, src) = (ctx.addresses(&c.dst, block), ctx.addresses(&c.src, block));
        for l in (0..LANES).filter(|l| active >> l & 1 != 0) {
            let lane = block * LANES + l;
            let thread = ctx.first + lane as u32;
            let touch = |kind| Touch { launch, site, thread, kind };
            let source = match (reads >> l & 1 != 0, c.src.space) {
                (true, crate::code::Space::Global(arg)) => Some((arg, touch(Kind::Read).check(team, &from, src[l])?)),
                _ => None,
            };
            let start = touch(Kind::Write).check(team, &to, dst[l])?;
            let mut p = Pending { lane, group: ctx.committed[lane], to: start, bytes, from: source, landed: false };
            if !late(launch) {
                finish_copy(launch, team, &p, to.size);
                continue;
            }
            if team.rng.random() {
                finish_copy(launch, team, &p, to.size);
                p.landed = true;
            }
            if launch.options.checks.shared_races
                && let Some(shadow) = &mut team.shadow
            {
                shadow.launch(start, bytes, thread);
            }
            if let Some((shadow, byte)) = source_shadow(launch, &p) {
                shadow.launched(Toucher { group: team.number, thread, clocks: &team.clocks, order: &team.order }, byte, bytes);
            }
            ctx.pending.push(p);
        }
    }
    Ok(())
}

/// Closes the current group of the lanes in a mask.
pub(crate) fn commit(launch: &Launch<'_>, ctx: &mut Context, mask: Slot) {
    if late(launch) {
        let lanes: Vec<usize> = ctx.active(mask).collect();
        for l in lanes {
            ctx.committed[l] += 1;
        }
    }
}

/// Waits until at most `groups` groups of the lanes in a mask are unfinished.
pub(crate) fn wait(launch: &Launch<'_>, team: &mut Team, ctx: &mut Context, groups: u32, mask: Slot) {
    if ctx.pending.is_empty() {
        return;
    }
    let mut waits = vec![false; ctx.lanes];
    ctx.active(mask).for_each(|l| waits[l] = true);
    for p in std::mem::take(&mut ctx.pending) {
        if !waits[p.lane] || p.group as u64 + groups as u64 >= ctx.committed[p.lane] as u64 {
            ctx.pending.push(p);
            continue;
        }
        let thread = ctx.first + p.lane as u32;
        if !p.landed {
            finish_copy(launch, team, &p, p.from.map_or(4, |(arg, _)| element(launch, arg) as usize));
        }
        if let Some((shadow, byte)) = source_shadow(launch, &p) {
            shadow.landed(Toucher { group: team.number, thread, clocks: &team.clocks, order: &team.order }, byte, p.bytes);
        }
        if let Some(shadow) = &mut team.shadow {
            shadow.finish_copy(&team.clocks, p.to, p.bytes, thread);
        }
    }
}

/// What watches a copy's source, and the first byte there.
fn source_shadow<'a>(launch: &'a Launch<'_>, p: &Pending) -> Option<(&'a GlobalShadow, usize)> {
    let (arg, byte) = p.from?;
    Some((launch.buffers.get(arg)?.as_ref()?.shadow.as_deref()?, byte))
}

/// Bytes per element of a buffer argument.
fn element(launch: &Launch<'_>, arg: usize) -> i64 {
    match launch.code.args.get(arg).map(|a| &a.kind) {
        Some(tilewright_ir::ArgKind::Buffer { scalar, .. }) => scalar.bytes() as i64,
        _ => 4,
    }
}

/// Moves the bytes.
fn finish_copy(launch: &Launch<'_>, team: &mut Team, p: &Pending, size: usize) {
    for at in (0..p.bytes).step_by(size) {
        let value = match p.from {
            None => 0,
            Some((arg, byte)) => match launch.buffers.get(arg).and_then(|b| b.as_ref()) {
                Some(b) => b.cells.get(byte + at, size),
                None => 0,
            },
        };
        set_shared(&mut team.shared, p.to + at, size, value);
    }
}
