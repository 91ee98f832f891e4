//! Cases of arithmetic: types, vectors, functions, scalar arguments.

use super::{Arg, Case, bytes, global, noise};
use tilewright_device::LaunchArg;
use tilewright_ir::{Access, Base, BinaryOp, Builder, Builtin, Scalar, UnaryOp};

/// 16-bit floats to f32 and back, with rounding, overflow, subnormal numbers and infinities.
pub(super) fn halves() -> Case {
    let mut b = Builder::new("halves", 64);
    let h = b.buffer("h", Scalar::F16, Access::Read, "binary16");
    let g = b.buffer("g", Scalar::BF16, Access::Read, "bfloat16");
    let x = b.buffer("x", Scalar::F32, Access::Read, "to be narrowed");
    let wide = b.buffer("wide", Scalar::F32, Access::Write, "h + g");
    let nh = b.buffer("nh", Scalar::F16, Access::Write, "x narrowed");
    let ng = b.buffer("ng", Scalar::BF16, Access::Write, "x narrowed");
    let i = global(&mut b, 64);
    let hv = b.load("hv", Base::Buffer(h), i, 1, None);
    let gv = b.load("gv", Base::Buffer(g), i, 1, None);
    let (hf, gf) = (b.cast(hv, Scalar::F32), b.cast(gv, Scalar::F32));
    let sum = b.add(hf, gf);
    b.store(Base::Buffer(wide), i, sum, None);
    let xv = b.load("xv", Base::Buffer(x), i, 1, None);
    let (xh, xg) = (b.cast(xv, Scalar::F16), b.cast(xv, Scalar::BF16));
    b.store(Base::Buffer(nh), i, xh, None);
    b.store(Base::Buffer(ng), i, xg, None);
    let small: Vec<f32> = noise(128);
    let f16s = small.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
    let bf16s = small.iter().rev().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
    let mut xs = small.clone();
    let special = [
        0.0,
        -0.0,
        65504.0,
        65519.9,
        65520.0,
        1e-7,
        -6e-8,
        2e-8,
        1e-5,
        f32::INFINITY,
        3.0e38,
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
    ];
    xs[..special.len()].copy_from_slice(&special);
    let args = vec![Arg::Data(f16s), Arg::Data(bf16s), Arg::Data(bytes(&xs)), Arg::Out(512), Arg::Out(256), Arg::Out(256)];
    Case { kernel: b.finish(), grid: [2, 1, 1], args, tolerance: 0.0 }
}

/// Vectors of 4 f32 and 8 f16, lane by lane and whole.
pub(super) fn vectors() -> Case {
    let mut b = Builder::new("vectors", 32);
    let x = b.buffer("x", Scalar::F32, Access::Read, "4 per thread");
    let h = b.buffer("h", Scalar::F16, Access::ReadWrite, "8 per thread, turned around");
    let y = b.buffer("y", Scalar::F32, Access::Write, "4 per thread");
    let i = global(&mut b, 32);
    let at = b.mul(i, 4);
    let v = b.load("v", Base::Buffer(x), at, 4, None);
    let two = b.float(2.0, Scalar::F32);
    let twos = b.splat(two, 4);
    let w = b.mul(v, twos);
    let w = b.bind("w", w);
    let parts: Vec<_> = (0..4).rev().map(|l| b.extract(w, l)).collect();
    let turned = b.vector(&parts);
    b.store(Base::Buffer(y), at, turned, None);
    let at = b.mul(i, 8);
    let hv = b.load("hv", Base::Buffer(h), at, 8, None);
    let parts: Vec<_> = (0..8).rev().map(|l| b.extract(hv, l)).collect();
    let turned = b.vector(&parts);
    b.store(Base::Buffer(h), at, turned, None);
    let halves = noise(512).iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
    let args = vec![Arg::Data(bytes(&noise(256))), Arg::Data(halves), Arg::Out(1024)];
    Case { kernel: b.finish(), grid: [2, 1, 1], args, tolerance: 0.0 }
}

pub(super) fn doubles() -> Case {
    let mut b = Builder::new("doubles", 64);
    let x = b.buffer("x", Scalar::F64, Access::ReadWrite, "scaled in place");
    let alpha = b.scalar_arg("alpha", Scalar::F64, "factor");
    let i = global(&mut b, 64);
    let v = b.load("v", Base::Buffer(x), i, 1, None);
    let w = b.mul(v, alpha);
    b.store(Base::Buffer(x), i, w, None);
    let data = noise(128).iter().flat_map(|&v| (f64::from(v) / 3.0).to_le_bytes()).collect();
    let args = vec![Arg::Data(data), Arg::Scalar(LaunchArg::F64(1.0 / 7.0))];
    Case { kernel: b.finish(), grid: [2, 1, 1], args, tolerance: 0.0 }
}

pub(super) fn functions() -> Case {
    let mut b = Builder::new("functions", 64);
    let x = b.buffer("x", Scalar::F32, Access::Read, "arguments");
    let y = b.buffer("y", Scalar::F32, Access::Write, "6 results each");
    let i = global(&mut b, 64);
    let v = b.load("v", Base::Buffer(x), i, 1, None);
    let square = b.mul(v, v);
    let zero = b.float(0.0, Scalar::F32);
    let results = [
        b.unary(UnaryOp::Exp, v),
        b.unary(UnaryOp::Tanh, v),
        b.unary(UnaryOp::Erf, v),
        b.unary(UnaryOp::Sqrt, square),
        b.binary(BinaryOp::Max, v, zero),
        b.unary(UnaryOp::Neg, v),
    ];
    for (n, value) in results.into_iter().enumerate() {
        let at = b.mul(i, 6);
        let at = b.add(at, n);
        b.store(Base::Buffer(y), at, value, None);
    }
    Case { kernel: b.finish(), grid: [2, 1, 1], args: vec![Arg::Data(bytes(&noise(128))), Arg::Out(128 * 24)], tolerance: 1e-5 }
}

/// Every kind of scalar argument, and a grid of three dimensions.
pub(super) fn scalars() -> Case {
    let mut b = Builder::new("scalars", 32);
    let y = b.buffer("y", Scalar::F32, Access::Write, "one number per thread");
    let i32_arg = b.scalar_arg("p", Scalar::I32, "negative");
    let i64_arg = b.scalar_arg("q", Scalar::I64, "beyond 32 bits");
    let f32_arg = b.scalar_arg("r", Scalar::F32, "float");
    let f64_arg = b.scalar_arg("s", Scalar::F64, "double");
    let [gx, gy, gz] = [0, 1, 2].map(|d| b.builtin(Builtin::GroupId(d)));
    let at = b.mul(gz, 3);
    let at = b.add(at, gy);
    let at = b.mul(at, 2);
    let at = b.add(at, gx);
    let at = b.mul(at, 32);
    let local = b.builtin(Builtin::LocalId);
    let at = b.add(at, local);
    let at = b.bind("at", at);
    let shifted = b.binary(BinaryOp::Shr, i64_arg, 32);
    let high = b.cast(shifted, Scalar::I32);
    let ints = b.add(high, i32_arg);
    let ints = b.add(ints, at);
    let ints = b.cast(ints, Scalar::F32);
    let double = b.cast(f64_arg, Scalar::F32);
    let floats = b.add(f32_arg, double);
    let all = b.add(ints, floats);
    b.store(Base::Buffer(y), at, all, None);
    let scalars = [LaunchArg::I32(-5), LaunchArg::I64(7 << 32 | 3), LaunchArg::F32(0.25), LaunchArg::F64(0.5)];
    let args = std::iter::once(Arg::Out(2 * 3 * 2 * 32 * 4)).chain(scalars.map(Arg::Scalar)).collect();
    Case { kernel: b.finish(), grid: [2, 3, 2], args, tolerance: 0.0 }
}
