//! Counts what the waves of a real GPU would do: see [`crate::Counters`].
//!
//! Global accesses are counted in 32-byte sectors and 128-byte lines per wave access. Shared memory has 32 banks of 4 bytes. It
//! serves 32 lanes at a time for values up to 4 bytes, 16 for 8, 8 for 16 bytes. Wider values go as several accesses of 16 bytes.
//! A turn takes as many cycles as the busiest bank has different words to give.

use crate::access::Target;
use crate::code::{Address, Inst, Mem, Space, Work};
use crate::context::{Context, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use tilewright_ir::Scalar;
use tilewright_ir::layout::bank_cycles;

const SECTOR: i64 = 32;
const LINE: i64 = 128;
/// Widest shared access of one lane in one instruction.
const MAX_SHARED: usize = 16;

/// Counts a straight line of arithmetic.
pub(crate) fn arithmetic(launch: &Launch<'_>, team: &mut Team, ctx: &Context, work: &Work, mask: Slot) {
    let lanes = ctx.active(mask).count() as u64;
    let waves = waves(launch, ctx, mask);
    let c = &mut team.counters;
    c.flop += work.flop as u64 * lanes;
    c.fma += work.fma as u64 * waves;
    c.alu += work.alu as u64 * waves;
    c.uniform += work.uniform as u64;
}

/// Waves with a lane in the mask.
fn waves(launch: &Launch<'_>, ctx: &Context, mask: Slot) -> u64 {
    let wave = launch.code.wave as usize;
    let mut last = None;
    ctx.active(mask).filter(|l| last.replace(l / wave) != Some(l / wave)).count() as u64
}

/// Counts an operation on memory, or another that waves notice of each other.
pub(crate) fn memory(launch: &Launch<'_>, team: &mut Team, ctx: &Context, inst: &Inst) {
    let code = launch.code;
    match inst {
        Inst::Load { start, end } => {
            for m in &code.mems[*start as usize..*end as usize] {
                access(launch, team, ctx, m, false);
            }
        }
        Inst::Store(m) => access(launch, team, ctx, &code.mems[*m as usize], true),
        Inst::Atomic(_, m, _) => team.counters.atomics += waves(launch, ctx, code.mems[*m as usize].mask),
        Inst::AsyncCopy(c) => {
            let c = &code.copies[*c as usize];
            team.counters.async_copies += waves(launch, ctx, c.mask);
            let both = |l: &usize| ctx.bits(c.guard, l / LANES) >> (l % LANES) & 1 != 0;
            let lanes: Vec<usize> = ctx.active(c.mask).filter(both).collect();
            let t = global(launch, ctx, &c.src, c.scalar, c.lanes as usize, &lanes);
            team.counters.global_load_bytes += t.bytes;
            team.counters.global_load_sectors += t.sectors;
            team.counters.global_load_lines += t.lines;
        }
        Inst::Barrier(_, mask) => team.counters.barriers += waves(launch, ctx, *mask),
        Inst::Shuffle { mask, .. } => team.counters.shuffles += waves(launch, ctx, *mask),
        _ => {}
    }
}

fn access(launch: &Launch<'_>, team: &mut Team, ctx: &Context, m: &Mem, store: bool) {
    let waves = waves(launch, ctx, m.mask);
    let lanes: Vec<usize> = ctx.active(m.mask).collect();
    let n = m.values.len();
    match m.address.space {
        Space::Global(_) => {
            let t = global(launch, ctx, &m.address, m.scalar, n, &lanes);
            let c = &mut team.counters;
            let (ops, bytes, sectors, lines) = if store {
                (&mut c.global_stores, &mut c.global_store_bytes, &mut c.global_store_sectors, &mut c.global_store_lines)
            } else {
                (&mut c.global_loads, &mut c.global_load_bytes, &mut c.global_load_sectors, &mut c.global_load_lines)
            };
            *ops += waves;
            *bytes += t.bytes;
            *sectors += t.sectors;
            *lines += t.lines;
        }
        Space::Shared(_) => {
            let (cycles, ideal, bytes) = shared(launch, ctx, &m.address, m.scalar, n, &lanes);
            let c = &mut team.counters;
            *(if store { &mut c.shared_stores } else { &mut c.shared_loads }) += waves;
            c.shared_bytes += bytes;
            c.shared_cycles += cycles;
            c.bank_conflicts += cycles - ideal;
        }
        Space::Tx(_) => {}
    }
}

struct Traffic {
    bytes: u64,
    sectors: u64,
    lines: u64,
}

/// First byte of each lane's access, wave by wave.
fn starts(launch: &Launch<'_>, ctx: &Context, a: &Address, scalar: Scalar, n: usize, lanes: &[usize]) -> Vec<Vec<(usize, i64)>> {
    let Some(t) = Target::new(launch, a.space, scalar, n) else { return Vec::new() };
    let wave = launch.code.wave as usize;
    let mut out: Vec<Vec<(usize, i64)>> = vec![Vec::new(); ctx.lanes.div_ceil(wave)];
    let mut block = (usize::MAX, [0; LANES]);
    for &l in lanes {
        if block.0 != l / LANES {
            block = (l / LANES, ctx.addresses(a, l / LANES));
        }
        let byte = (t.base as i64).wrapping_add(block.1[l % LANES].wrapping_mul(t.size as i64));
        out[l / wave].push((l % wave, byte));
    }
    out
}

fn global(launch: &Launch<'_>, ctx: &Context, a: &Address, scalar: Scalar, n: usize, lanes: &[usize]) -> Traffic {
    let bytes = (scalar.bytes() as usize * n) as i64;
    let mut t = Traffic { bytes: lanes.len() as u64 * bytes as u64, sectors: 0, lines: 0 };
    for wave in starts(launch, ctx, a, scalar, n, lanes) {
        t.sectors += distinct(&wave, bytes, SECTOR);
        t.lines += distinct(&wave, bytes, LINE);
    }
    t
}

/// Different pieces of `unit` bytes that accesses of `bytes` touch.
fn distinct(wave: &[(usize, i64)], bytes: i64, unit: i64) -> u64 {
    let pieces = wave.iter().flat_map(|&(_, at)| at.div_euclid(unit)..=(at + bytes - 1).div_euclid(unit));
    let mut pieces: Vec<i64> = pieces.collect();
    pieces.sort_unstable();
    pieces.dedup();
    pieces.len() as u64
}

/// Cycles taken, cycles taken without conflicts, bytes.
fn shared(launch: &Launch<'_>, ctx: &Context, a: &Address, scalar: Scalar, n: usize, lanes: &[usize]) -> (u64, u64, u64) {
    let total = scalar.bytes() as usize * n;
    let part = total.min(MAX_SHARED);
    let (mut cycles, mut ideal) = (0, 0);
    for wave in starts(launch, ctx, a, scalar, n, lanes) {
        for piece in 0..total.div_ceil(part) {
            let at: Vec<(usize, i64)> = wave.iter().map(|&(l, b)| (l, b + (piece * part) as i64)).collect();
            let (c, i) = bank_cycles(&at, part);
            cycles += c;
            ideal += i;
        }
    }
    (cycles, ideal, (lanes.len() * total) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(stride: i64) -> Vec<(usize, i64)> {
        (0..32).map(|l| (l, l as i64 * stride)).collect()
    }

    #[test]
    fn sectors() {
        assert_eq!((distinct(&wave(4), 4, SECTOR), distinct(&wave(4), 4, LINE)), (4, 1));
        assert_eq!((distinct(&wave(128), 4, SECTOR), distinct(&wave(128), 4, LINE)), (32, 32));
        let shifted: Vec<_> = wave(4).into_iter().map(|(l, b)| (l, b + 4)).collect();
        assert_eq!(distinct(&shifted, 4, SECTOR), 5);
    }
}
