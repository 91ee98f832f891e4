//! Kernels of arithmetic: operators, conversions, functions, constants.

use tilewright_ir::*;

/// Every conversion, activation and operator worth spelling, on scalars and vectors.
pub fn arithmetic() -> Kernel {
    let mut b = Builder::new("arithmetic", 64);
    let half = b.buffer("half", Scalar::F16, Access::Read, "8 per thread");
    let brain = b.buffer("brain", Scalar::BF16, Access::ReadWrite, "8 per thread");
    let to = b.buffer("to", Scalar::F16, Access::Write, "8 per thread");
    let wide = b.buffer("wide", Scalar::F64, Access::ReadWrite, "2 per thread");
    let long = b.buffer("long", Scalar::I64, Access::ReadWrite, "1 per thread");
    let bits = b.buffer("bits", Scalar::U32, Access::ReadWrite, "1 per thread");
    let scale = b.scalar_arg("scale", Scalar::F32, "factor");
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let at = b.mul(tid, 8);
    let at = b.bind("at", at);
    let x = b.load("x", Base::Buffer(half), at, 8, None);
    let y = b.load("y", Base::Buffer(brain), at, 8, None);
    let x = b.cast(x, Scalar::F32);
    let x = b.bind("xf", x);
    let y = b.cast(y, Scalar::F32);
    let y = b.bind("yf", y);
    let s = b.splat(scale, 8);
    let z = b.fma(x, s, y);
    let z = b.binary(BinaryOp::Max, z, s);
    let z = b.unary(UnaryOp::Tanh, z);
    let z = b.sub(z, y);
    let z = b.bind("z", z);
    let narrow = b.cast(z, Scalar::F16);
    b.store(Base::Buffer(to), at, narrow, None);
    let narrow = b.cast(z, Scalar::BF16);
    b.store(Base::Buffer(brain), at, narrow, None);

    let one = b.extract(z, 0);
    let erf = b.unary(UnaryOp::Erf, one);
    let exp = b.unary(UnaryOp::Exp, erf);
    let root = b.unary(UnaryOp::Sqrt, exp);
    let low = b.float(f64::NEG_INFINITY, Scalar::F32);
    let root = b.binary(BinaryOp::Max, root, low);
    let tenth = b.float(0.1, Scalar::F32);
    let root = b.binary(BinaryOp::Div, root, tenth);
    let minus = b.unary(UnaryOp::Neg, root);
    let minus = b.unary(UnaryOp::Neg, minus);
    let narrow = b.cast(minus, Scalar::F16);
    let none = b.float(1.0, Scalar::F16);
    let positive = b.lt(0, one);
    let narrow = b.select(positive, narrow, none);
    b.store(Base::Buffer(to), tid, narrow, None);

    let pair_at = b.mul(tid, 2);
    let pair = b.load("pair", Base::Buffer(wide), pair_at, 2, None);
    let pair = b.fma(pair, pair, pair);
    let pair = b.unary(UnaryOp::Sqrt, pair);
    let single = b.cast(pair, Scalar::F32);
    let whole = b.cast(single, Scalar::I32);
    let whole = b.bind("whole", whole);
    let pair = b.cast(whole, Scalar::F64);
    b.store(Base::Buffer(wide), pair_at, pair, None);

    let part = b.extract(whole, 1);
    let four = b.int(4, Scalar::I32);
    let least = b.binary(BinaryOp::Min, part, four);
    let shifted = b.binary(BinaryOp::Shl, tid, 3);
    let mixed = b.binary(BinaryOp::Xor, shifted, least);
    let mixed = b.binary(BinaryOp::And, mixed, 255);
    let sum = b.add(mixed, tid);
    let shifted = b.binary(BinaryOp::Shr, sum, 1);
    let far = b.cast(shifted, Scalar::I64);
    let huge = b.int(1 << 40, Scalar::I64);
    let far = b.sub(far, huge);
    let (p, q) = (b.lt(tid, 7), b.eq(part, 3));
    let r = b.binary(BinaryOp::Or, p, q);
    let r = b.and(r, q);
    let far = b.select(r, far, 0);
    b.store(Base::Buffer(long), tid, far, None);
    let nested = b.sub(part, 1);
    let nested = b.sub(tid, nested);
    let nested = b.sub(nested, part);
    let nested = b.mul(nested, part);
    let nested = b.cast(nested, Scalar::U32);
    b.store(Base::Buffer(bits), tid, nested, None);
    b.finish()
}

/// Rounds to TF32, and what is left of that.
pub fn round_tf32() -> Kernel {
    let mut b = Builder::new("round_tf32", 64);
    let from = b.buffer("from", Scalar::F32, Access::Read, "64 elements");
    let to = b.buffer("to", Scalar::F32, Access::Write, "128 elements");
    let at = b.builtin(Builtin::LocalId);
    let x = b.load("x", Base::Buffer(from), at, 1, None);
    let rounded = b.unary(UnaryOp::RoundTf32, x);
    let near = b.unary(UnaryOp::NearTf32, x);
    let rest = b.sub(x, near);
    let both = b.vector(&[rounded, rest]);
    let at = b.mul(at, 2);
    b.store(Base::Buffer(to), at, both, None);
    b.finish()
}

/// The logistic function of scalars and vectors.
pub fn sigmoid(scalar: Scalar) -> Kernel {
    let mut b = Builder::new("sigmoid", 64);
    let from = b.buffer("from", scalar, Access::Read, "128 elements");
    let to = b.buffer("to", scalar, Access::Write, "128 elements");
    let tid = b.builtin(Builtin::LocalId);
    let at = b.mul(tid, 2);
    let x = b.load("x", Base::Buffer(from), at, 2, None);
    let both = b.unary(UnaryOp::Sigmoid, x);
    let first = b.extract(x, 0);
    let one = b.unary(UnaryOp::Sigmoid, first);
    let last = b.extract(both, 1);
    let sum = b.mul(first, one);
    let pair = b.vector(&[sum, last]);
    b.store(Base::Buffer(to), at, pair, None);
    b.finish()
}

/// Powers of two and logarithms to that base.
pub fn powers(scalar: Scalar) -> Kernel {
    let mut b = Builder::new("powers", 64);
    let from = b.buffer("from", scalar, Access::Read, "64 elements");
    let to = b.buffer("to", scalar, Access::Write, "64 elements");
    let tid = b.builtin(Builtin::LocalId);
    let x = b.load("x", Base::Buffer(from), tid, 1, None);
    let power = b.unary(UnaryOp::Exp2, x);
    let back = b.unary(UnaryOp::Log2, power);
    b.store(Base::Buffer(to), tid, back, None);
    b.finish()
}

/// Constants that are easily misspelt.
pub fn literals() -> Kernel {
    let mut b = Builder::new("literals", 64);
    let single = b.buffer("single", Scalar::F32, Access::Write, "7 elements");
    let double = b.buffer("double", Scalar::F64, Access::Write, "5 elements");
    let int = b.buffer("int", Scalar::I32, Access::Write, "2 elements");
    let long = b.buffer("long", Scalar::I64, Access::Write, "2 elements");
    let word = b.buffer("word", Scalar::U32, Access::Write, "1 element");
    for (i, v) in [0.1, -0.0, 1e30, 1e-45, f64::INFINITY, f64::NEG_INFINITY, f64::NAN].into_iter().enumerate() {
        let v = b.float(v, Scalar::F32);
        b.store(Base::Buffer(single), i, v, None);
    }
    for (i, v) in [0.1, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN].into_iter().enumerate() {
        let v = b.float(v, Scalar::F64);
        b.store(Base::Buffer(double), i, v, None);
    }
    for (buffer, scalar, values) in [
        (int, Scalar::I32, [i32::MIN.into(), -7]),
        (long, Scalar::I64, [i64::MIN, i64::MAX]),
        (word, Scalar::U32, [u32::MAX.into(), 0]),
    ] {
        for (i, v) in values.into_iter().enumerate() {
            let v = b.int(v, scalar);
            b.store(Base::Buffer(buffer), i, v, None);
        }
    }
    let tid = b.builtin(Builtin::LocalId);
    let least = b.int(i32::MIN.into(), Scalar::I32);
    let apart = b.sub(tid, least);
    let apart = b.sub(apart, -7);
    b.store(Base::Buffer(int), tid, apart, None);
    b.finish()
}
