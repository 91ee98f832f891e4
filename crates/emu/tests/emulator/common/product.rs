//! A product of a 64 x k and an 8 x k tile of f16 by one warpgroup: its data, its way out of registers, what must come of it, and kernels
//! of it that must fail.

use super::*;
use half::f16;
use tilewright_ir::layout::Axis;
use tilewright_ir::{ArgId, Base, ExprId, MathUnit, MatrixType, Mma, RegId};

/// Element k of line i of both factors: small whole numbers, whose products are exact.
pub fn value(i: usize, k: usize) -> f32 {
    ((i * 3 + k * 5) % 7) as f32 - 3.0
}

/// Factors of this depth, lines one after the other, and the result.
pub fn arguments(depth: usize) -> Vec<ArgValue> {
    let halves = |rows: usize| {
        let bytes = (0..rows * depth).flat_map(|x| f16::from_f32(value(x / depth, x % depth)).to_le_bytes());
        Buffer::from_bytes(&bytes.collect::<Vec<_>>())
    };
    vec![arg(&halves(64)), arg(&halves(8)), arg(&Buffer::new(64 * 8 * 4))]
}

/// Element x of the result.
pub fn expected(depth: usize, x: usize) -> f32 {
    (0..depth).map(|k| value(x / 8, k) * value(x % 8, k)).sum()
}

/// Stores a warpgroup's 64 x 8 sums, row by row.
pub fn store_sums(b: &mut Builder, thread: ExprId, sums: RegId, to: ArgId) {
    let (wave, lane) = (b.div(thread, 32), b.rem(thread, 32));
    let sums_at = Mma::find(MathUnit::Warpgroup, MatrixType::F16).expect("an instruction");
    for r in 0..4 {
        let (row, column) = (sums_at.c.at(Axis::Row, 0, r, 0), sums_at.c.at(Axis::Col, 0, r, 0));
        let (quad, pair) = (b.div(lane, 4), b.rem(lane, 4));
        let i = b.mul(wave, 16);
        let i = b.add(i, quad);
        let i = b.add(i, row);
        let i = b.mul(i, 8);
        let j = b.mul(pair, 2);
        let at = b.add(i, j);
        let at = b.add(at, column);
        let value = b.reg(sums, r);
        b.store(Base::Buffer(to), at, value, None);
    }
}

/// What a kernel fails with; it must fail in every order of waves, too.
pub fn failure(k: &Kernel, depth: usize, what: &str) -> EmuError {
    for seed in 0..6 {
        let options = Options { interleave: true, seed, ..checked() };
        assert!(tilewright_emu::run(k, [1; 3], &arguments(depth), &options).is_err(), "{what} passes with seed {seed}");
    }
    run(k, [1; 3], &arguments(depth)).expect_err(&format!("{what} passes"))
}
