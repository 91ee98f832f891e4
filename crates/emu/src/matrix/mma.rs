//! Matrix instructions of single waves: `mma.sync` and `ldmatrix` of NVIDIA, `v_mfma` of AMD.

use super::operand::element;
use crate::EmuError;
use crate::access::{Kind, Target, Touch, get_shared};
use crate::code::{Address, Matrix};
use crate::context::{Context, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use tilewright_ir::{FragmentLayout, MatrixType, Scalar};

/// Lanes of a wave of NVIDIA.
const WAVE: usize = 32;
/// Lanes of a wave of AMD.
const AMD_WAVE: usize = 64;

/// Runs an instruction on every wave of a context that has its lanes in the mask. Waves take part wholly or not at all.
pub(crate) fn run(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    op: &Matrix,
    mask: Slot,
    site: u32,
) -> Result<(), EmuError> {
    let width = if matches!(op, Matrix::Mfma { .. }) { AMD_WAVE } else { WAVE };
    if launch.code.wave as usize != width || !ctx.lanes.is_multiple_of(width) {
        let what =
            format!("a matrix instruction needs whole waves of {width}, not {} threads by {}", ctx.lanes, launch.code.wave);
        return Err(EmuError::Unsupported { kernel: launch.code.name.clone(), what });
    }
    for first in (0..ctx.lanes).step_by(width) {
        if ctx.bits(mask, first / LANES) == 0 {
            continue;
        }
        let (m, n, k) = match op {
            Matrix::Mma { input, a, b, acc } => mma(ctx, first, *input, (a, b), acc),
            Matrix::Load { to, trans, from, scalar } => {
                load(launch, team, ctx, first, (to, *trans), (from, *scalar), site)?;
                (0, 0, 0)
            }
            Matrix::Mfma { input, shape, a, b, acc } => mfma(ctx, first, (*input, *shape), (a, b), acc),
            _ => return Ok(()),
        };
        if launch.options.count {
            team.counters.matrix += u64::from(m > 0);
            team.counters.flop += 2 * (m * n * k) as u64;
        }
    }
    Ok(())
}

/// Visits the left fragment of `mma.m16n8k{16,8}`: row, k, value. `bits` gives register r of a lane.
pub(super) fn left(input: MatrixType, bits: impl Fn(usize, usize) -> u32, mut visit: impl FnMut(usize, usize, f32)) {
    let pair = 4 / input.bytes() as usize;
    for lane in 0..WAVE {
        for r in 0..4 {
            for h in 0..pair {
                let k = pair * (lane % 4) + h + 4 * pair * (r / 2);
                visit(lane / 4 + 8 * (r % 2), k, element(input, bits(r, lane), h));
            }
        }
    }
}

fn mma(ctx: &mut Context, first: usize, input: MatrixType, (a, b): (&[Slot], &[Slot]), acc: &[Slot]) -> (usize, usize, usize) {
    let pair = 4 / input.bytes() as usize;
    let depth = 8 * pair;
    let mut l = [0f32; 16 * 16];
    left(input, |r, lane| ctx.word(a[r], first + lane), |row, k, value| l[row * depth + k] = value);
    let mut right = [0f32; 8 * 16];
    for lane in 0..WAVE {
        for (r, &slot) in b.iter().enumerate() {
            let bits = ctx.word(slot, first + lane);
            for h in 0..pair {
                right[lane / 4 * depth + pair * (lane % 4) + h + 4 * pair * r] = element(input, bits, h);
            }
        }
    }
    sum(ctx, (first, WAVE), FragmentLayout::Mma16x8, acc, |row, column| {
        (0..depth).map(|k| l[row * depth + k] * right[column * depth + k]).collect()
    });
    (16, 8, depth)
}

fn mfma(
    ctx: &mut Context,
    first: usize,
    (input, (m, n, depth)): (MatrixType, (u32, u32, u32)),
    (a, b): (&[Slot], &[Slot]),
    acc: &[Slot],
) -> (usize, usize, usize) {
    let (side, depth) = (m as usize, depth as usize);
    let pair = 4 / input.bytes() as usize;
    let per_lane = a.len() * pair;
    // Lane l holds `per_lane` consecutive elements along k of row (column) l % side.
    let fragment = |ctx: &Context, slots: &[Slot]| {
        let mut out = vec![0f32; side * depth];
        for lane in 0..AMD_WAVE {
            for (r, &slot) in slots.iter().enumerate() {
                let bits = ctx.word(slot, first + lane);
                for h in 0..pair {
                    out[lane % side * depth + lane / side * per_lane + r * pair + h] = element(input, bits, h);
                }
            }
        }
        out
    };
    let (l, r) = (fragment(ctx, a), fragment(ctx, b));
    let layout = if side == 32 { FragmentLayout::Mfma32x32 } else { FragmentLayout::Mfma16x16 };
    sum(ctx, (first, AMD_WAVE), layout, acc, |row, column| {
        (0..depth).map(|k| l[row * depth + k] * r[column * depth + k]).collect()
    });
    (side, n as usize, depth)
}

/// Adds products to every accumulator of a wave.
fn sum(
    ctx: &mut Context,
    (first, width): (usize, usize),
    layout: FragmentLayout,
    acc: &[Slot],
    products: impl Fn(usize, usize) -> Vec<f32>,
) {
    for (r, &slot) in acc.iter().enumerate() {
        for lane in 0..width {
            let (row, column) = layout.position(lane as u32, r as u32);
            let at = first + lane;
            let bits = &mut ctx.files.r32.get_mut(slot)[at / LANES].0[at % LANES];
            let total = products(row as usize, column as usize).into_iter().fold(f32::from_bits(*bits), |s, p| s + p);
            *bits = total.to_bits();
        }
    }
}

/// `ldmatrix`: 8 x 8 matrices of 16-bit elements, whose rows the lanes point at.
fn load(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    first: usize,
    (to, trans): (&[Slot], bool),
    (from, scalar): (&Address, Scalar),
    site: u32,
) -> Result<(), EmuError> {
    let lanes = 16 / scalar.bytes() as usize;
    let Some(t) = Target::new(launch, from.space, scalar, lanes) else { return Ok(()) };
    for (matrix, &slot) in to.iter().enumerate() {
        let mut rows = [0usize; 8];
        for (row, start) in rows.iter_mut().enumerate() {
            let lane = first + matrix * 8 + row;
            let index = ctx.addresses(from, lane / LANES)[lane % LANES];
            let touch = Touch { launch, site, thread: ctx.first + lane as u32, kind: Kind::Read };
            *start = touch.check(team, &t, index)?;
        }
        for lane in 0..WAVE {
            let at = |row: usize, column: usize| get_shared(&team.shared, rows[row] + 2 * column, 2) as u32;
            let (r, c) = (lane / 4, 2 * (lane % 4));
            let bits = if trans { at(c, r) | at(c + 1, r) << 16 } else { at(r, c) | at(r, c + 1) << 16 };
            let lane = first + lane;
            ctx.files.r32.get_mut(slot)[lane / LANES].0[lane % LANES] = bits;
        }
    }
    Ok(())
}
