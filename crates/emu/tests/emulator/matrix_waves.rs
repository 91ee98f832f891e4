//! Matrix instructions of single waves, on fragments laid out by hand.

use crate::common;
use common::*;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tilewright_emu::{Buffer, EmuError, Options};
use tilewright_ir::*;

fn a_value(i: usize, k: usize) -> f32 {
    ((i * 5 + k * 3) % 13) as f32 - 6.0
}
fn b_value(k: usize, j: usize) -> f32 {
    ((k * 7 + j * 2) % 11) as f32 - 5.0
}
fn c_value(i: usize, j: usize) -> f32 {
    (i * 100 + j) as f32
}
fn product(i: usize, j: usize, depth: usize) -> f32 {
    c_value(i, j) + (0..depth).map(|k| a_value(i, k) * b_value(k, j)).sum::<f32>()
}
fn halves(values: impl Iterator<Item = f32>) -> Buffer {
    Buffer::from_bytes(&values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect::<Vec<_>>())
}
/// Elements of a type, packed into words.
fn words(input: MatrixType, values: &[f32]) -> Vec<i32> {
    let bits = |v: &f32| match input {
        MatrixType::F16 => f16::from_f32(*v).to_bits() as u32,
        MatrixType::BF16 => bf16::from_f32(*v).to_bits() as u32,
        MatrixType::I8 => (*v as i8 as u8).into(),
        MatrixType::E4M3 => F8E4M3::from_f32(*v).to_bits().into(),
        MatrixType::E5M2 => F8E5M2::from_f32(*v).to_bits().into(),
        // The exponent's bias is larger by one.
        MatrixType::E4M3Fnuz => F8E4M3::from_f32(2.0 * *v).to_bits().into(),
        MatrixType::E5M2Fnuz => F8E5M2::from_f32(2.0 * *v).to_bits().into(),
        _ => v.to_bits(),
    };
    let each = |word: u64, v: &f32| word << (8 * input.bytes()) | u64::from(bits(v));
    values.chunks(4 / input.bytes() as usize).map(|c| c.iter().rev().fold(0, each) as i32).collect()
}

/// Loads both tiles through shared memory and `ldmatrix`; B is stored n by k, or k by n.
fn through_shared(k_by_n: bool) -> Kernel {
    kernel(64, |b| {
        b.wave(32);
        let [x, y] = ["a", "b"].map(|n| b.buffer(n, Scalar::F16, Access::Read, ""));
        let z = b.buffer("c", Scalar::F32, Access::ReadWrite, "");
        let s = b.shared("tile_a", Scalar::F16, 256, 0);
        let t = b.shared("tile_b", Scalar::F16, 128, 512);
        let [a, bs] = [("fa", 4), ("fb", 2)].map(|(n, len)| b.regs(n, Scalar::U32.ty(), len));
        let acc = b.regs("acc", Scalar::F32.ty(), 4);
        let lid = b.builtin(Builtin::LocalId);
        let at = b.mul(lid, 4);
        let v = b.load("v", Base::Buffer(x), at, 4, None);
        b.store(Base::Shared(s), at, v, None);
        let at = b.mul(lid, 2);
        let v = b.load("v", Base::Buffer(y), at, 2, None);
        b.store(Base::Shared(t), at, v, None);
        b.barrier();
        let zero = b.int(0, Scalar::I32);
        // Both waves do the same and write the same rows of their own copy of C.
        let lane = b.rem(lid, 32);
        let (row, column) = (b.rem(lane, 16), b.div(lane, 16));
        let row = b.mul(row, 16);
        let column = b.mul(column, 8);
        let from = b.add(row, column);
        let from = b.mem(Base::Shared(s), from);
        b.matrix(MatrixOp::LoadMatrix { to: RegSlice { regs: a, first: zero }, count: 4, trans: false, from });
        // The addresses of lanes 16.. do not count.
        let from = if k_by_n {
            b.mul(lane, 8)
        } else {
            let (row, half) = (b.rem(lane, 8), b.div(lane, 8));
            let row = b.mul(row, 16);
            let half = b.mul(half, 8);
            b.add(row, half)
        };
        let from = b.mem(Base::Shared(t), from);
        b.matrix(MatrixOp::LoadMatrix { to: RegSlice { regs: bs, first: zero }, count: 2, trans: k_by_n, from });
        let at = |b: &mut Builder, r: u32| {
            let (quad, pair, wave) = (b.div(lane, 4), b.rem(lane, 4), b.div(lid, 32));
            let row = b.add(quad, 8 * (r / 2));
            let row = b.mul(row, 8);
            let pair = b.mul(pair, 2);
            let at = b.add(row, pair);
            let wave = b.mul(wave, 128);
            let at = b.add(at, wave);
            b.add(at, r % 2)
        };
        for r in 0..4 {
            let at = at(b, r);
            let place = b.reg_place(acc, r);
            b.load_to(place, Base::Buffer(z), at, None);
        }
        let slice = |regs| RegSlice { regs, first: zero };
        b.matrix(MatrixOp::Mma {
            input: MatrixType::F16,
            shape: MmaShape { m: 16, n: 8, k: 16 },
            a: slice(a),
            b: slice(bs),
            acc: slice(acc),
        });
        for r in 0..4 {
            let at = at(b, r);
            let v = b.reg(acc, r);
            b.store(Base::Buffer(z), at, v, None);
        }
    })
}

#[test]
fn ldmatrix_feeds_mma() {
    for k_by_n in [false, true] {
        let k = through_shared(k_by_n);
        let make = || {
            let a = halves((0..256).map(|i| a_value(i / 16, i % 16)));
            let b = halves((0..128).map(|i| if k_by_n { b_value(i / 8, i % 8) } else { b_value(i % 16, i / 16) }));
            let c = f32s(&(0..256).map(|i| c_value(i / 8 % 16, i % 8)).collect::<Vec<_>>());
            vec![arg(&a), arg(&b), arg(&c)]
        };
        let got = everywhere(&k, [1; 3], make, |args| to_f32s(buffer(&args[2])));
        for (i, v) in got.iter().enumerate() {
            assert_eq!(*v, product(i / 8 % 16, i % 8, 16), "k by n: {k_by_n}, row {} column {}", i / 8 % 16, i % 8);
        }
        let counted = tilewright_emu::run(&k, [1; 3], &make(), &Options { count: true, ..checked() }).unwrap().counters;
        assert_eq!((counted.matrix, counted.flop), (2, 2 * 2 * 16 * 8 * 16));
    }
}

/// One wave multiplies fragments that stand in global memory register by register.
fn from_registers(
    wave: u32,
    [held, sum]: [Scalar; 2],
    op: impl FnOnce(RegSlice, RegSlice, RegSlice) -> MatrixOp,
    counts: [u32; 3],
) -> Kernel {
    kernel(wave, |b| {
        b.wave(wave);
        let [x, y] = ["a", "b"].map(|n| b.buffer(n, held, Access::Read, ""));
        let z = b.buffer("c", sum, Access::ReadWrite, "");
        let lid = b.builtin(Builtin::LocalId);
        let zero = b.int(0, Scalar::I32);
        let mut slices = Vec::new();
        for ((base, scalar), count) in [(x, held), (y, held), (z, sum)].into_iter().zip(counts) {
            let regs = b.regs("r", scalar.ty(), count);
            for r in 0..count {
                let at = b.mul(lid, count);
                let at = b.add(at, r);
                let place = b.reg_place(regs, r);
                b.load_to(place, Base::Buffer(base), at, None);
            }
            slices.push(RegSlice { regs, first: zero });
        }
        b.matrix(op(slices[0], slices[1], slices[2]));
        for r in 0..counts[2] {
            let at = b.mul(lid, counts[2]);
            let at = b.add(at, r);
            let v = b.reg(slices[2].regs, r);
            b.store(Base::Buffer(z), at, v, None);
        }
    })
}

#[test]
fn tf32_fragments_of_mma() {
    let k = from_registers(
        32,
        [Scalar::U32, Scalar::F32],
        |a, b, acc| MatrixOp::Mma { input: MatrixType::TF32, shape: MmaShape { m: 16, n: 8, k: 8 }, a, b, acc },
        [4, 2, 4],
    );
    let make = || {
        let lanes = |f: &dyn Fn(usize, usize) -> f32, n: usize| -> Vec<f32> { (0..32 * n).map(|i| f(i / n, i % n)).collect() };
        // A sliver below the 10 bits of mantissa is ignored.
        let a = lanes(&|l, r| f32::from_bits(a_value(l / 4 + 8 * (r % 2), l % 4 + 4 * (r / 2)).to_bits() | 0x1FFF), 4);
        let b = lanes(&|l, r| b_value(l % 4 + 4 * r, l / 4), 2);
        let c = lanes(&|l, r| c_value(l / 4 + 8 * (r / 2), 2 * (l % 4) + r % 2), 4);
        vec![arg(&i32s(&words(MatrixType::TF32, &a))), arg(&i32s(&words(MatrixType::TF32, &b))), arg(&f32s(&c))]
    };
    let got = everywhere(&k, [1; 3], make, |args| to_f32s(buffer(&args[2])));
    for (i, v) in got.iter().enumerate() {
        let (l, r) = (i / 4, i % 4);
        assert_eq!(*v, product(l / 4 + 8 * (r / 2), 2 * (l % 4) + r % 2, 8), "lane {l} register {r}");
    }
}

#[test]
fn f64_fragments_of_mma() {
    for depth in [8, 16] {
        let counts = [depth as u32 / 2, depth as u32 / 4, 4];
        let shape = MmaShape { m: 16, n: 8, k: depth as u32 };
        let op = |a, b, acc| MatrixOp::Mma { input: MatrixType::F64, shape, a, b, acc };
        let k = from_registers(32, [Scalar::F64; 2], op, counts);
        let make = || {
            let lanes = |f: &dyn Fn(usize, usize) -> f32, n: u32| -> Vec<f64> {
                let n = n as usize;
                (0..32 * n).map(|i| f64::from(f(i / n, i % n))).collect()
            };
            let a = lanes(&|l, r| a_value(l / 4 + 8 * (r % 2), l % 4 + 4 * (r / 2)), counts[0]);
            let b = lanes(&|l, r| b_value(l % 4 + 4 * r, l / 4), counts[1]);
            let c = lanes(&|l, r| c_value(l / 4 + 8 * (r / 2), 2 * (l % 4) + r % 2), counts[2]);
            [a, b, c].map(|x| arg(&f64s(&x))).to_vec()
        };
        let got = everywhere(&k, [1; 3], make, |args| to_f64s(buffer(&args[2])));
        for (i, v) in got.iter().enumerate() {
            let (l, r) = (i / 4, i % 4);
            let expected = product(l / 4 + 8 * (r / 2), 2 * (l % 4) + r % 2, depth);
            assert_eq!(*v, f64::from(expected), "depth {depth}, lane {l} register {r}");
        }
    }
}

/// Every row of the table but f64's, whose registers have two words.
#[test]
fn amd_fragments() {
    use MatrixType::*;
    let rows: Vec<&Mma> = mma::TABLE.iter().filter(|row| row.unit == MathUnit::Mfma && row.input != F64).collect();
    assert!(rows.len() > 30, "{} rows", rows.len());
    for row in rows {
        let (input, [side, depth]) = (row.input, [row.shape.m, row.shape.k].map(|x| x as usize));
        let [of_a, of_b] = input.factors();
        let per_lane = side * depth / 64;
        let (registers, sums) = (per_lane * input.bytes() as usize / 4, side * side / 64);
        let shape = MmaShape { m: side as u32, n: side as u32, k: depth as u32 };
        let op = |a, b, acc| MatrixOp::Mfma { input, shape, a, b, acc };
        let held = if input == F32 { Scalar::F32 } else { Scalar::U32 };
        let k = from_registers(64, [held, input.sum()], op, [registers as u32, registers as u32, sums as u32]);
        let place = |l: usize, r: usize| {
            if side == 32 { (8 * (r / 4) + 4 * (l / 32) + r % 4, l % 32) } else { (4 * (l / 16) + r, l % 16) }
        };
        let make = || {
            let element = |i: usize| (i / per_lane % side, i / per_lane / side * per_lane + i % per_lane);
            let a: Vec<f32> = (0..64 * per_lane).map(element).map(|(i, k)| a_value(i, k)).collect();
            let b: Vec<f32> = (0..64 * per_lane).map(element).map(|(j, k)| b_value(k, j)).collect();
            let c: Vec<f32> = (0..64 * sums).map(|i| place(i / sums, i % sums)).map(|(i, j)| c_value(i, j)).collect();
            let sums = if input == I8 { i32s(&c.iter().map(|x| *x as i32).collect::<Vec<_>>()) } else { f32s(&c) };
            vec![arg(&i32s(&words(of_a, &a))), arg(&i32s(&words(of_b, &b))), arg(&sums)]
        };
        let got = everywhere(&k, [1; 3], make, |args| match input {
            I8 => to_i32s(buffer(&args[2])).into_iter().map(|x| x as f32).collect(),
            _ => to_f32s(buffer(&args[2])),
        });
        for (n, v) in got.iter().enumerate() {
            let (i, j) = place(n / sums, n % sums);
            assert_eq!(*v, product(i, j, depth), "{input:?} {shape:?}: lane {} register {}", n / sums, n % sums);
        }
    }
}

#[test]
fn fragments_must_hold_values_and_waves_be_whole() {
    let mut k = from_registers(
        32,
        [Scalar::U32, Scalar::F32],
        |a, b, acc| MatrixOp::Mma { input: MatrixType::TF32, shape: MmaShape { m: 16, n: 8, k: 8 }, a, b, acc },
        [4, 2, 4],
    );
    let args = || [arg(&i32s(&[0; 128])), arg(&i32s(&[0; 64])), arg(&f32s(&[0.0; 128]))];
    run(&k, [1; 3], &args()).unwrap();
    // Without the load of a's last register.
    let loads: Vec<usize> = (0..k.body.len()).filter(|&i| matches!(k.body[i], Stmt::Load { .. })).collect();
    let load = k.body.remove(loads[3]);
    let error = run(&k, [1; 3], &args()).unwrap_err();
    assert!(matches!(&error, EmuError::Uninitialised { memory, index: 3, .. } if memory == "r"), "{error}");
    k.body.insert(loads[3], load);
    // Half of the wave multiplies.
    let at = k.body.iter().position(|s| matches!(s, Stmt::Matrix(_))).unwrap();
    let op = k.body.remove(at);
    let id = |e: Expr, ty: Type, k: &mut Kernel| {
        k.exprs.push((e, ty));
        ExprId(k.exprs.len() as u32 - 1)
    };
    let lane = id(Expr::Builtin(Builtin::LocalId), Scalar::I32.ty(), &mut k);
    let half = id(Expr::Int(16), Scalar::I32.ty(), &mut k);
    let cond = id(Expr::Binary(BinaryOp::Lt, lane, half), Scalar::Bool.ty(), &mut k);
    k.body.insert(at, Stmt::If { cond, then: vec![op], otherwise: vec![] });
    let error = run(&k, [1; 3], &args()).unwrap_err();
    assert!(matches!(error, EmuError::Divergent { scope: "wave", .. }), "{error}");
}
