//! Warpgroup instructions (`wgmma`): four waves multiply a 64 x K by a K x n tile, read from shared memory, into their registers.
//!
//! The product is there at once; that nobody looks before it is waited for is checked. Products of the input types are exact in f32,
//! sums are rounded once per addition, in the order of k.

use super::operand::{K_BYTES, Reader, Rows};
use super::places::Maps;
use super::short;
use crate::EmuError;
use crate::code::{Held, Left, Matrix, RegElement, WarpgroupProduct};
use crate::context::{Context, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;

/// Waves of a warpgroup.
pub(crate) const WAVES: usize = 4;
/// Rows of a tile.
const ROWS: usize = 64;
/// Lanes of a wave.
const WAVE: usize = 32;

/// True for operations that the four waves run together.
pub(crate) const fn is_collective(op: &Matrix) -> bool {
    matches!(op, Matrix::Warpgroup(_) | Matrix::Commit)
}

/// A fence or wait of one wave.
pub(crate) fn alone(launch: &Launch<'_>, team: &mut Team, ctx: &mut Context, op: &Matrix) {
    match op {
        Matrix::Fence => ctx.works.fence(),
        Matrix::Wait { pending } => {
            ctx.works.wait(*pending);
            let agent = team.clocks.domain(team.agents.warpgroup(ctx.first / (WAVES * WAVE) as u32));
            let done = team.clocks.now(agent).saturating_sub(pending.saturating_add(1));
            for wave in (ctx.first..ctx.first + ctx.lanes as u32).step_by(launch.code.wave as usize) {
                team.clocks.learn(team.clocks.domain(wave), agent, done);
                team.clocks.consumed(team.clocks.domain(wave));
            }
        }
        _ => {}
    }
}

/// An instruction that all waves of a warpgroup have come to.
pub(crate) fn together(
    launch: &Launch<'_>,
    team: &mut Team,
    waves: &mut [Context],
    op: &Matrix,
    site: u32,
) -> Result<(), EmuError> {
    let number = waves.first().map_or(0, |w| w.first / (WAVES * WAVE) as u32);
    match op {
        Matrix::Commit => {
            waves.iter_mut().for_each(|w| w.works.close());
            team.clocks.close(team.clocks.domain(team.agents.warpgroup(number)));
            team.bounded(launch)
        }
        Matrix::Warpgroup(product) => {
            if launch.options.checks.shared_races {
                hold(launch, team, waves, &product.held, site)?;
            }
            // The last lane stands for its wave: what an elected first one alone knows does not count.
            let issuers: Vec<u32> = waves.iter().map(|w| w.first + w.lanes as u32 - 1).collect();
            let reader = Reader { launch, site, agent: team.agents.warpgroup(number), issuers: &issuers };
            multiply(&reader, team, waves, product)
        }
        _ => Ok(()),
    }
}

fn hold(launch: &Launch<'_>, team: &Team, waves: &mut [Context], held: &[Held], site: u32) -> Result<(), EmuError> {
    for w in waves {
        if let Some((h, what)) = w.works.start(held) {
            let memory = launch.code.reg_names.get(h.reg as usize).cloned().unwrap_or_default();
            return Err(EmuError::Registers { at: team.location(launch, site, w.first), memory, index: h.first, what });
        }
    }
    Ok(())
}

/// A value that all threads of a warpgroup must agree on.
fn agreed(reader: &Reader<'_>, team: &Team, waves: &[Context], slot: Slot, what: &'static str) -> Result<u32, EmuError> {
    let value = |w: &Context, lane: usize| w.word(slot, lane);
    let Some(first) = waves.first().map(|w| value(w, 0)) else { return Ok(0) };
    for w in waves {
        if let Some(lane) = (0..w.lanes).find(|&l| value(w, l) != first) {
            let at = team.location(reader.launch, reader.site, w.first + lane as u32);
            return Err(EmuError::Divergent { at, what, scope: "warpgroup" });
        }
    }
    Ok(first)
}

fn multiply(reader: &Reader<'_>, team: &mut Team, waves: &mut [Context], op: &WarpgroupProduct) -> Result<(), EmuError> {
    let WarpgroupProduct { row, maps, b, acc, .. } = op;
    let n = op.n as usize;
    let depth = K_BYTES / row.input.bytes() as usize;
    let [of_a, of_b] = row.input.factors();
    let mut left = vec![0f32; ROWS * depth];
    match &op.a {
        Left::Shared(t) => {
            let byte = agreed(reader, team, waves, t.byte, "operand address")? as i32;
            let rows = Rows { byte: byte.into(), rows: ROWS, k_first: false };
            reader.tile(team, of_a, t, rows, &mut left)?;
        }
        Left::Regs(regs) => {
            super::mma::visit(
                of_a,
                &maps.a,
                waves.len() * WAVE,
                |r, lane| waves[lane / WAVE].word(regs[r], lane % WAVE),
                |row, k, value| left[row * depth + k] = value,
            );
        }
    }
    let byte = agreed(reader, team, waves, b.byte, "operand address")? as i32;
    let mut right = vec![0f32; n * depth];
    reader.tile(team, of_b, b, Rows { byte: byte.into(), rows: n, k_first: true }, &mut right)?;
    let mut accumulators = vec![0u32; ROWS * n];
    if agreed(reader, team, waves, op.accumulate, "accumulate flag")? != 0 {
        each_sum(waves, maps, acc, |row, column, bits| accumulators[row * n + column] = *bits);
    }
    short::multiply(reader.launch.level, row, &mut accumulators, &left, &right, n);
    each_sum(waves, maps, acc, |row, column, bits| *bits = accumulators[row * n + column]);
    if reader.launch.options.count {
        let c = &mut team.counters;
        c.matrix += WAVES as u64;
        c.flop += 2 * (ROWS * n * depth) as u64;
    }
    Ok(())
}

/// Visits every accumulator of a warpgroup: row, column, bits.
fn each_sum(waves: &mut [Context], maps: &Maps, acc: &[Slot], mut visit: impl FnMut(usize, usize, &mut u32)) {
    for (w, wave) in waves.iter_mut().enumerate() {
        for (r, &slot) in acc.iter().enumerate() {
            for (b, block) in wave.files.r32.get_mut(slot).iter_mut().enumerate() {
                for (l, bits) in block.0.iter_mut().enumerate() {
                    let lane = w * WAVE + b * LANES + l;
                    let (row, column) = maps.c.at(lane, r, 0);
                    visit(row, column, bits);
                }
            }
        }
    }
}

/// Runs an ordinary access to registers that warpgroup instructions use too.
pub(crate) fn settled(
    launch: &Launch<'_>,
    team: &Team,
    ctx: &mut Context,
    mask: Slot,
    of: RegElement,
    write: bool,
    site: u32,
) -> Result<(), EmuError> {
    let Some(lane) = ctx.active(mask).next() else { return Ok(()) };
    match ctx.works.touch(of.reg, of.element, write) {
        None => Ok(()),
        Some(what) => {
            let memory = launch.code.reg_names.get(of.reg as usize).cloned().unwrap_or_default();
            let at = team.location(launch, site, ctx.first + lane as u32);
            Err(EmuError::Registers { at, memory, index: of.element, what })
        }
    }
}
