//! Cases of memory: copies, guards, shared tiles, atomics, cursors, a product of matrices.

use super::{Arg, Case, bytes, global, noise};
use tilewright_device::LaunchArg;
use tilewright_ir::{Access, AtomicOp, Base, Builder, Builtin, ExprId, Scalar, Stmt, Unroll};

/// No arguments, no body.
pub(super) fn nothing() -> Case {
    Case { kernel: Builder::new("nothing", 32).finish(), grid: [1, 1, 1], args: Vec::new(), tolerance: 0.0 }
}

pub(super) fn copy() -> Case {
    let mut b = Builder::new("copy", 64);
    let x = b.buffer("x", Scalar::F32, Access::Read, "source");
    let y = b.buffer("y", Scalar::F32, Access::Write, "destination");
    let i = global(&mut b, 64);
    let v = b.load("v", Base::Buffer(x), i, 1, None);
    b.store(Base::Buffer(y), i, v, None);
    Case { kernel: b.finish(), grid: [5, 1, 1], args: vec![Arg::Data(bytes(&noise(320))), Arg::Out(320 * 4)], tolerance: 0.0 }
}

/// Loads and stores under a guard; what lies beyond must stay as it was.
pub(super) fn tail() -> Case {
    let mut b = Builder::new("tail", 64);
    let x = b.buffer("x", Scalar::F32, Access::Read, "source of n numbers");
    let y = b.buffer("y", Scalar::F32, Access::Write, "destination");
    let n = b.scalar_arg("n", Scalar::I32, "numbers");
    let i = global(&mut b, 64);
    let inside = b.lt(i, n);
    let v = b.load("v", Base::Buffer(x), i, 1, Some(inside));
    let one = b.float(1.0, Scalar::F32);
    let w = b.add(v, one);
    let last = b.add(n, 3);
    let near = b.lt(i, last);
    b.store(Base::Buffer(y), i, w, Some(near));
    let args = vec![Arg::Data(bytes(&noise(100))), Arg::Out(200 * 4), Arg::Scalar(LaunchArg::I32(100))];
    Case { kernel: b.finish(), grid: [2, 1, 1], args, tolerance: 0.0 }
}

/// Turns a tile around in shared memory, several times over.
pub(super) fn tile() -> Case {
    let mut b = Builder::new("tile", 128);
    let x = b.buffer("x", Scalar::F32, Access::Read, "source");
    let y = b.buffer("y", Scalar::F32, Access::Write, "destination");
    let t = b.shared("t", Scalar::F32, 128, 0);
    let (i, local) = (global(&mut b, 128), b.builtin(Builtin::LocalId));
    let v = b.load("v", Base::Buffer(x), i, 1, None);
    let sum = b.declare("sum", v);
    b.for_range("turn", 0, 3, Unroll::No, |b, _| {
        let now = b.get(sum);
        b.store(Base::Shared(t), local, now, None);
        b.barrier();
        let minus = b.int(127, Scalar::I32);
        let other = b.sub(minus, local);
        let w = b.load("w", Base::Shared(t), other, 1, None);
        b.barrier();
        let now = b.get(sum);
        let next = b.add(now, w);
        b.set(sum, next);
    });
    let sum = b.get(sum);
    b.store(Base::Buffer(y), i, sum, None);
    Case { kernel: b.finish(), grid: [3, 1, 1], args: vec![Arg::Data(bytes(&noise(384))), Arg::Out(384 * 4)], tolerance: 0.0 }
}

fn atomic(b: &mut Builder, op: AtomicOp, base: Base, index: ExprId, value: ExprId) {
    let mem = b.mem(base, index);
    b.push(Stmt::Atomic { op, mem, value, guard: None });
}

/// Whole numbers, so that the order of additions does not matter.
pub(super) fn atomics() -> Case {
    let mut b = Builder::new("atomics", 64);
    let f = b.buffer("f", Scalar::F32, Access::ReadWrite, "sums");
    let n = b.buffer("n", Scalar::I32, Access::ReadWrite, "sums and maxima");
    let i = global(&mut b, 64);
    let slot = b.rem(i, 7);
    let v = b.cast(i, Scalar::F32);
    let negative = b.value(v.unary(tilewright_ir::UnaryOp::Neg));
    atomic(&mut b, AtomicOp::Add, Base::Buffer(f), slot, v);
    let high = b.add(slot, 7);
    atomic(&mut b, AtomicOp::Max, Base::Buffer(f), high, v);
    let low = b.add(slot, 14);
    atomic(&mut b, AtomicOp::Min, Base::Buffer(f), low, negative);
    atomic(&mut b, AtomicOp::Add, Base::Buffer(n), slot, i);
    atomic(&mut b, AtomicOp::Max, Base::Buffer(n), high, i);
    let args = vec![Arg::Data(bytes(&[1.0; 21])), Arg::Data(vec![0; 14 * 4])];
    Case { kernel: b.finish(), grid: [10, 1, 1], args, tolerance: 0.0 }
}

pub(super) fn shared_atomics() -> Case {
    let mut b = Builder::new("shared_atomics", 64);
    let y = b.buffer("y", Scalar::F32, Access::Write, "one sum per group");
    let t = b.shared("t", Scalar::F32, 4, 0);
    let (local, group) = (b.builtin(Builtin::LocalId), b.builtin(Builtin::GroupId(0)));
    let zero = b.float(0.0, Scalar::F32);
    let few = b.lt(local, 4);
    b.store(Base::Shared(t), local, zero, Some(few));
    b.barrier();
    let (slot, v) = (b.rem(local, 4), b.cast(local, Scalar::F32));
    atomic(&mut b, AtomicOp::Add, Base::Shared(t), slot, v);
    b.barrier();
    b.if_then(few, |b| {
        let sum = b.load("sum", Base::Shared(t), local, 1, None);
        let row = b.mul(group, 4);
        let at = b.add(row, local);
        b.store(Base::Buffer(y), at, sum, None);
    });
    Case { kernel: b.finish(), grid: [3, 1, 1], args: vec![Arg::Out(48)], tolerance: 0.0 }
}

/// A cursor that walks through a buffer.
pub(super) fn cursors() -> Case {
    let mut b = Builder::new("cursors", 64);
    let x = b.buffer("x", Scalar::F32, Access::Read, "8 x 64");
    let y = b.buffer("y", Scalar::F32, Access::Write, "sums of columns");
    let offset = b.scalar_arg("offset", Scalar::I64, "first number");
    let local = b.builtin(Builtin::LocalId);
    let wide = b.cast(local, Scalar::I64);
    let start = b.add(offset, wide);
    let at = b.cursor("at", x, start);
    let zero = b.float(0.0, Scalar::F32);
    let sum = b.declare("sum", zero);
    b.for_range("k", 0, 8, Unroll::No, |b, _| {
        let v = b.load("v", Base::Cursor(at), 0, 1, None);
        let old = b.get(sum);
        let new = b.add(old, v);
        b.set(sum, new);
        b.advance(at, 64);
    });
    let sum = b.get(sum);
    b.store(Base::Buffer(y), local, sum, None);
    let args = vec![Arg::Data(bytes(&noise(520))), Arg::Out(256), Arg::Scalar(LaunchArg::I64(8))];
    Case { kernel: b.finish(), grid: [1, 1, 1], args, tolerance: 0.0 }
}

/// A product of matrices: 32 x 32, each thread a 2 x 2 tile in registers, operands through shared memory.
pub(super) fn product() -> Case {
    const N: u32 = 32;
    let mut b = Builder::new("product", 256);
    b.doc("c = a * b for 32 x 32 matrices in rows");
    let a = b.buffer("a", Scalar::F32, Access::Read, "32 x 32");
    let c = b.buffer("b", Scalar::F32, Access::Read, "32 x 32");
    let out = b.buffer("c", Scalar::F32, Access::Write, "32 x 32");
    let sa = b.shared("sa", Scalar::F32, N * N, 0);
    let sb = b.shared("sb", Scalar::F32, N * N, N * N * 4);
    let acc = b.regs("acc", Scalar::F32.ty(), 4);
    let local = b.builtin(Builtin::LocalId);
    let at = b.mul(local, 4);
    let at = b.bind("at", at);
    for (global, shared, name) in [(a, sa, "va"), (c, sb, "vb")] {
        let v = b.load(name, Base::Buffer(global), at, 4, None);
        b.store(Base::Shared(shared), at, v, None);
    }
    let zero = b.float(0.0, Scalar::F32);
    b.for_range("e", 0, 4, Unroll::Full, |b, e| b.set_reg(acc, e, zero));
    b.barrier();
    let (row, col) = (b.div(local, 16), b.rem(local, 16));
    let (row, col) = (b.mul(row, 2), b.mul(col, 2));
    let (row, col) = (b.bind("row", row), b.bind("col", col));
    b.for_range("k", 0, N as i32, Unroll::By(4), |b, k| {
        b.for_range("i", 0, 2, Unroll::Full, |b, i| {
            let r = b.add(row, i);
            let ra = b.mul(r, N);
            let ra = b.add(ra, k);
            let av = b.load("av", Base::Shared(sa), ra, 1, None);
            b.for_range("j", 0, 2, Unroll::Full, |b, j| {
                let kb = b.mul(k, N);
                let cb = b.add(col, j);
                let kb = b.add(kb, cb);
                let bv = b.load("bv", Base::Shared(sb), kb, 1, None);
                let e = b.mul(i, 2);
                let e = b.add(e, j);
                let old = b.reg(acc, e);
                let new = b.fma(av, bv, old);
                b.set_reg(acc, e, new);
            });
        });
    });
    b.for_range("i", 0, 2, Unroll::Full, |b, i| {
        b.for_range("j", 0, 2, Unroll::Full, |b, j| {
            let r = b.add(row, i);
            let r = b.mul(r, N);
            let c = b.add(col, j);
            let to = b.add(r, c);
            let e = b.mul(i, 2);
            let e = b.add(e, j);
            let v = b.reg(acc, e);
            b.store(Base::Buffer(out), to, v, None);
        });
    });
    let (x, y) = (noise(2048)[..1024].to_vec(), noise(2048)[1024..].to_vec());
    let args = vec![Arg::Data(bytes(&x)), Arg::Data(bytes(&y)), Arg::Out(4096)];
    // A device without fused multiply-add rounds twice.
    Case { kernel: b.finish(), grid: [1, 1, 1], args, tolerance: 1e-4 }
}
