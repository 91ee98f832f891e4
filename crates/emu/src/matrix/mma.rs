//! Matrix instructions of single waves: `mma.sync` and `ldmatrix` of NVIDIA, `v_mfma` of AMD.

use super::operand::element;
use super::places::Places;
use super::short;
use crate::EmuError;
use crate::access::{Kind, Target, Touch, get_shared};
use crate::code::{Matrix, MatrixLoad, WaveProduct};
use crate::context::{Context, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::Launch;
use tilewright_ir::{MatrixType, MmaShape, Scalar};

/// Lanes of a wave of NVIDIA.
const WAVE: usize = 32;

/// Runs an instruction on every wave of a context that has its lanes in the mask. Waves take part wholly or not at all.
pub(crate) fn run(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    op: &Matrix,
    mask: Slot,
    site: u32,
) -> Result<(), EmuError> {
    let width = if let Matrix::Wave(product) = op { product.row.lanes() as usize } else { WAVE };
    if launch.code.wave as usize != width || !ctx.lanes.is_multiple_of(width) {
        let what =
            format!("a matrix instruction needs whole waves of {width}, not {} threads by {}", ctx.lanes, launch.code.wave);
        return Err(EmuError::Unsupported { kernel: launch.code.name.clone(), what });
    }
    for first in (0..ctx.lanes).step_by(width) {
        if ctx.bits(mask, first / LANES) == 0 {
            continue;
        }
        match op {
            Matrix::Wave(product) => {
                if product.row.sum == Scalar::F64 {
                    multiply_doubles(ctx, first, product);
                } else {
                    multiply(launch, ctx, first, product);
                }
                if launch.options.count {
                    let MmaShape { m, n, k } = product.row.shape;
                    team.counters.matrix += 1;
                    team.counters.flop += 2 * u64::from(m * n * k);
                }
            }
            Matrix::Load(op) => load(launch, team, ctx, first, op, site)?,
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Visits the elements of a fragment: row (of B: column), k, value. `bits` gives register r of a lane.
pub(super) fn visit(
    input: MatrixType,
    places: &Places,
    lanes: usize,
    bits: impl Fn(usize, usize) -> u32,
    mut put: impl FnMut(usize, usize, f32),
) {
    let (registers, elements) = places.held();
    for lane in 0..lanes {
        for r in 0..registers {
            let held = bits(r, lane);
            for e in 0..elements {
                let (row, k) = places.at(lane, r, e);
                put(row, k, element(input, held, e));
            }
        }
    }
}

/// Adds the product of two fragments to the accumulators of the wave that starts at a lane. Each addition is rounded once, in the
/// order of k.
fn multiply(launch: &Launch<'_>, ctx: &mut Context, first: usize, product: &WaveProduct) {
    let WaveProduct { row, maps, a, b, .. } = product;
    let (m, n, depth) = (row.shape.m as usize, row.shape.n as usize, row.shape.k as usize);
    let lanes = row.lanes() as usize;
    let (mut left, mut right, mut accumulators) = (vec![0f32; m * depth], vec![0f32; n * depth], vec![0u32; m * n]);
    let [of_a, of_b] = row.input.factors();
    visit(of_a, &maps.a, lanes, |r, lane| ctx.word(a[r], first + lane), |i, k, value| left[i * depth + k] = value);
    visit(of_b, &maps.b, lanes, |r, lane| ctx.word(b[r], first + lane), |j, k, value| right[k * n + j] = value);
    each_sum(ctx, first, product, |i, j, bits| accumulators[i * n + j] = *bits);
    short::multiply(launch.level, row, &mut accumulators, &left, &right, n);
    each_sum(ctx, first, product, |i, j, bits| *bits = accumulators[i * n + j]);
}

/// [`multiply`] of doubles, with one rounding per multiply-add as the unit has it.
fn multiply_doubles(ctx: &mut Context, first: usize, product: &WaveProduct) {
    let WaveProduct { row, maps, a, b, acc } = product;
    let (m, n, depth) = (row.shape.m as usize, row.shape.n as usize, row.shape.k as usize);
    let (mut left, mut right) = (vec![0f64; m * depth], vec![0f64; n * depth]);
    for (lane, at) in (first..first + row.lanes() as usize).enumerate() {
        let held = |slot: Slot| f64::from_bits(ctx.files.r64.block(slot, at / LANES).0[at % LANES]);
        for (places, slots, out) in [(&maps.a, a, &mut left), (&maps.b, b, &mut right)] {
            for (r, &slot) in slots.iter().enumerate() {
                let (i, k) = places.at(lane, r, 0);
                out[i * depth + k] = held(slot);
            }
        }
    }
    for (lane, at) in (first..first + row.lanes() as usize).enumerate() {
        for (r, &slot) in acc.iter().enumerate() {
            let (i, j) = maps.c.at(lane, r, 0);
            let factors = left[i * depth..][..depth].iter().zip(&right[j * depth..][..depth]);
            let bits = &mut ctx.files.r64.get_mut(slot)[at / LANES].0[at % LANES];
            *bits = factors.fold(f64::from_bits(*bits), |sum, (x, y)| x.mul_add(*y, sum)).to_bits();
        }
    }
}

/// Visits every accumulator of a wave: row, column, bits.
fn each_sum(ctx: &mut Context, first: usize, product: &WaveProduct, mut visit: impl FnMut(usize, usize, &mut u32)) {
    for (r, &slot) in product.acc.iter().enumerate() {
        for (lane, at) in (first..first + product.row.lanes() as usize).enumerate() {
            let (row, column) = product.maps.c.at(lane, r, 0);
            visit(row, column, &mut ctx.files.r32.get_mut(slot)[at / LANES].0[at % LANES]);
        }
    }
}

/// `ldmatrix`: 8 x 8 matrices of 16-bit elements, whose rows the lanes point at.
fn load(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    first: usize,
    op: &MatrixLoad,
    site: u32,
) -> Result<(), EmuError> {
    let MatrixLoad { to, trans, from, scalar } = op;
    let lanes = 16 / scalar.bytes() as usize;
    let Some(t) = Target::new(launch, from.space, *scalar, lanes) else { return Ok(()) };
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
            let bits = if *trans { at(c, r) | at(c + 1, r) << 16 } else { at(r, c) | at(r, c + 1) << 16 };
            let lane = first + lane;
            ctx.files.r32.get_mut(slot)[lane / LANES].0[lane % LANES] = bits;
        }
    }
    Ok(())
}
