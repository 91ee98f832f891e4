//! Warpgroup instructions that read their left operand from registers: fragments in two sets, one read by an instruction in flight while
//! the other is filled; each rule that this takes can be broken by itself.

use crate::common;
use common::product::*;
use common::*;
use tilewright_emu::EmuError;
use tilewright_ir::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Break {
    Nothing,
    /// The second step fills the set that the first one's instruction reads.
    SameSet,
    /// The third step fills the first set again without having waited.
    NoWait,
    /// No fence behind the second step's fragments.
    NoFence,
}

/// Steps of 16 along k; the first two of them again and again.
const STEPS: u32 = 4;

/// A warpgroup multiplies a 64 x 32 tile of f16 by an 8 x 32 one, [`STEPS`] / 2 times over. `matrices`: fragments come by `ldmatrix`,
/// else word by word.
fn in_turn(matrices: bool, broken: Break) -> Kernel {
    kernel(128, |b| {
        b.wave(32);
        let x = b.buffer("a", Scalar::F16, Access::Read, "");
        let y = b.buffer("b", Scalar::F16, Access::Read, "");
        let z = b.buffer("c", Scalar::F32, Access::Write, "");
        let rows = b.shared("rows", Scalar::F16, 2048, 0);
        let words = b.shared("words", Scalar::U32, 1024, 0);
        let columns = b.shared("columns", Scalar::F16, 256, 4096);
        let sums = b.regs("sums", Scalar::F32.ty(), 4);
        let fragments = b.regs("fragments", Scalar::U32.ty(), 8);
        let lid = b.builtin(Builtin::LocalId);
        let zero = b.int(0, Scalar::I32);
        // A row after row, 32 elements each; of B chunk c of row r stands at 8 rows x c, then row by row.
        let at = b.mul(lid, 16);
        for half in 0..2 {
            let at = b.add(at, 8 * half);
            let v = b.load("v", Base::Buffer(x), at, 8, None);
            b.store(Base::Shared(rows), at, v, None);
        }
        let few = b.lt(lid, 32);
        let at = b.mul(lid, 8);
        let v = b.load("v", Base::Buffer(y), at, 8, Some(few));
        let (row, chunk) = (b.div(lid, 4), b.rem(lid, 4));
        let (row, chunk) = (b.mul(row, 8), b.mul(chunk, 64));
        let to = b.add(row, chunk);
        b.store(Base::Shared(columns), to, v, Some(few));
        b.bulk(BulkOp::ProxyFence);
        b.barrier();
        let (wave, lane) = (b.div(lid, 32), b.rem(lid, 32));
        for step in 0..STEPS {
            let set = if broken == Break::SameSet { 0 } else { 4 * (step % 2) };
            let part = step % 2;
            let first = b.int(set.into(), Scalar::I32);
            let slice = RegSlice { regs: fragments, first };
            if matrices {
                let (within, matrix) = (b.rem(lane, 8), b.div(lane, 8));
                let (low, high) = (b.rem(matrix, 2), b.div(matrix, 2));
                let (row, down, k) = (b.mul(wave, 16), b.mul(low, 8), b.mul(high, 8));
                let row = b.add(row, down);
                let row = b.add(row, within);
                let row = b.mul(row, 32);
                let at = b.add(row, k);
                let at = b.add(at, 16 * part);
                let from = b.mem(Base::Shared(rows), at);
                b.matrix(MatrixOp::LoadMatrix { to: slice, count: 4, trans: false, from });
            } else {
                for r in 0..4 {
                    let (row, quad, pair) = (b.mul(wave, 16), b.div(lane, 4), b.rem(lane, 4));
                    let row = b.add(row, quad);
                    let row = b.add(row, 8 * (r % 2));
                    let row = b.mul(row, 16);
                    let at = b.add(row, pair);
                    let at = b.add(at, 8 * part + 4 * (r / 2));
                    let place = b.reg_place(fragments, set + r);
                    b.load_to(place, Base::Shared(words), at, None);
                }
            }
            if broken != Break::NoFence || step != 1 {
                b.matrix(MatrixOp::WarpgroupFence { acc: sums, left: vec![slice] });
            }
            let byte = b.int((part * 256).into(), Scalar::I32);
            let accumulate = b.int(i64::from(step > 0), Scalar::Bool);
            b.matrix(MatrixOp::Warpgroup {
                input: MatrixType::F16,
                n: 8,
                a: WarpgroupA::Regs(slice),
                b: SharedTile {
                    array: columns,
                    byte,
                    swizzle: Swizzle::None,
                    k_contiguous: true,
                    leading_bytes: 128,
                    stride_bytes: 128,
                },
                acc: RegSlice { regs: sums, first: zero },
                accumulate,
            });
            b.matrix(MatrixOp::WarpgroupCommit);
            if broken != Break::NoWait {
                b.matrix(MatrixOp::WarpgroupWait { pending: 1, acc: sums });
            }
        }
        b.matrix(MatrixOp::WarpgroupWait { pending: 0, acc: sums });
        store_sums(b, lid, sums, z);
    })
}

#[test]
fn sets_in_turn() {
    for matrices in [false, true] {
        let got = everywhere(&in_turn(matrices, Break::Nothing), [1; 3], || arguments(32), |args| to_f32s(buffer(&args[2])));
        for (x, v) in got.iter().enumerate() {
            let expected = expected(32, x);
            assert_eq!(*v, (STEPS / 2) as f32 * expected, "row {} column {}, matrices: {matrices}", x / 8, x % 8);
        }
    }
}

fn broken(matrices: bool, which: Break) -> EmuError {
    failure(&in_turn(matrices, which), 32, &format!("{which:?}"))
}

#[test]
fn fragments_stay_until_they_are_waited_for() {
    for matrices in [false, true] {
        for which in [Break::SameSet, Break::NoWait] {
            match broken(matrices, which) {
                EmuError::Registers { memory, what, .. } if memory == "fragments" && what.contains("it is written while") => {}
                other => panic!("{which:?}, matrices: {matrices}: {other}"),
            }
        }
        match broken(matrices, Break::NoFence) {
            EmuError::Registers { memory, what, .. } if memory == "fragments" && what.contains("WarpgroupFence") => {}
            other => panic!("no fence, matrices: {matrices}: {other}"),
        }
    }
}
