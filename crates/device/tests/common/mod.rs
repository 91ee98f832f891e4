//! Small kernels that touch each part of the kernel language, and the means to run them on any device.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::Write;
use tilewright_device::{Buffer, Device, DeviceError, Launch, LaunchArg};
use tilewright_ir::{Access, AtomicOp, Base, BinaryOp, Builder, Builtin, ExprId, Kernel, Scalar, Stmt, UnaryOp, Unroll};

/// An argument of a case.
pub enum Arg {
    /// A buffer with content, compared afterwards.
    Data(Vec<u8>),
    /// A buffer of bytes 0xEE, compared afterwards.
    Out(usize),
    /// A scalar.
    Scalar(LaunchArg),
}

/// A kernel with its data.
pub struct Case {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub args: Vec<Arg>,
    /// Relative error allowed per f32 output; 0 demands equal bytes.
    pub tolerance: f32,
}

/// The value, or one visible line and `None` where a tool is missing and not required.
pub fn tool<T>(what: &str, result: Result<T, DeviceError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e @ (DeviceError::Missing { .. } | DeviceError::NoSuchDevice { .. })) => {
            assert!(std::env::var_os("TILEWRIGHT_REQUIRE_TOOLS").is_none_or(|v| v != "1"), "{what} is required: {e}");
            skipped(&format!("{what}: {e}"));
            None
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

/// Says so where the test harness, which keeps what `eprintln` prints, does not hide it.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Compiles, runs and reads back all buffers.
pub fn run(device: &dyn Device, case: &Case) -> Result<Vec<Vec<u8>>, DeviceError> {
    let kernel = device.compile(&case.kernel)?;
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut args = Vec::new();
    for arg in &case.args {
        args.push(match arg {
            Arg::Data(data) => {
                let buffer = device.alloc(data.len() as u64)?;
                device.write(&buffer, 0, data)?;
                buffers.push(buffer.clone());
                LaunchArg::Buffer(buffer)
            }
            Arg::Out(bytes) => {
                let buffer = device.alloc(*bytes as u64)?;
                device.fill(&buffer, 0xEE)?;
                buffers.push(buffer.clone());
                LaunchArg::Buffer(buffer)
            }
            Arg::Scalar(scalar) => scalar.clone(),
        });
    }
    device.launch(&[Launch { kernel, grid: case.grid, args }])?;
    device.sync()?;
    buffers
        .iter()
        .map(|buffer| {
            let mut data = vec![0; buffer.bytes() as usize];
            device.read(buffer, 0, &mut data)?;
            Ok(data)
        })
        .collect()
}

/// Demands that a device gives what another gave.
pub fn compare(case: &Case, got: &[Vec<u8>], want: &[Vec<u8>], device: &str) {
    let name = &case.kernel.name;
    assert_eq!(got.len(), want.len());
    for (n, (got, want)) in got.iter().zip(want).enumerate() {
        if case.tolerance == 0.0 {
            let at = got.iter().zip(want).position(|(a, b)| a != b);
            assert_eq!(at, None, "{name} on {device}: buffer {n} differs from this byte on");
            continue;
        }
        let (got, want) = (floats(got), floats(want));
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let fine = g.to_bits() == w.to_bits() || (g - w).abs() <= case.tolerance * w.abs().max(1e-3);
            assert!(fine, "{name} on {device}: buffer {n} element {i} is {g}, not {w}");
        }
    }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Numbers in (-2, 2) that look random.
pub fn noise(n: usize) -> Vec<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..n).map(|_| next()).collect()
}

/// Global index of the thread, for groups of `threads`.
fn global(b: &mut Builder, threads: u32) -> ExprId {
    let (group, local) = (b.builtin(Builtin::GroupId(0)), b.builtin(Builtin::LocalId));
    let start = b.mul(group, threads);
    let i = b.add(start, local);
    b.bind("i", i)
}

/// All cases that every back end must run.
pub fn cases() -> Vec<Case> {
    vec![
        copy(),
        tail(),
        tile(),
        atomics(),
        shared_atomics(),
        halves(),
        vectors(),
        product(),
        cursors(),
        doubles(),
        functions(),
        scalars(),
    ]
}

fn copy() -> Case {
    let mut b = Builder::new("copy", 64);
    let x = b.buffer("x", Scalar::F32, Access::Read, "source");
    let y = b.buffer("y", Scalar::F32, Access::Write, "destination");
    let i = global(&mut b, 64);
    let v = b.load("v", Base::Buffer(x), i, 1, None);
    b.store(Base::Buffer(y), i, v, None);
    Case { kernel: b.finish(), grid: [5, 1, 1], args: vec![Arg::Data(bytes(&noise(320))), Arg::Out(320 * 4)], tolerance: 0.0 }
}

/// Loads and stores under a guard; what lies beyond must stay as it was.
fn tail() -> Case {
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
fn tile() -> Case {
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
fn atomics() -> Case {
    let mut b = Builder::new("atomics", 64);
    let f = b.buffer("f", Scalar::F32, Access::ReadWrite, "sums");
    let n = b.buffer("n", Scalar::I32, Access::ReadWrite, "sums and maxima");
    let i = global(&mut b, 64);
    let slot = b.rem(i, 7);
    let v = b.cast(i, Scalar::F32);
    atomic(&mut b, AtomicOp::Add, Base::Buffer(f), slot, v);
    let high = b.add(slot, 7);
    atomic(&mut b, AtomicOp::Max, Base::Buffer(f), high, v);
    atomic(&mut b, AtomicOp::Add, Base::Buffer(n), slot, i);
    atomic(&mut b, AtomicOp::Max, Base::Buffer(n), high, i);
    let args = vec![Arg::Data(bytes(&[1.0; 14])), Arg::Data(vec![0; 14 * 4])];
    Case { kernel: b.finish(), grid: [10, 1, 1], args, tolerance: 0.0 }
}

fn shared_atomics() -> Case {
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

/// 16-bit floats to f32 and back, with rounding, overflow, subnormal numbers and infinities.
fn halves() -> Case {
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
fn vectors() -> Case {
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

/// A product of matrices: 32 x 32, each thread a 2 x 2 tile in registers, operands through shared memory.
fn product() -> Case {
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

/// A cursor that walks through a buffer.
fn cursors() -> Case {
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

fn doubles() -> Case {
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

fn functions() -> Case {
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
fn scalars() -> Case {
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

/// Rows and columns of what [`boxes`] copies from, elements between its rows, and the box.
pub const BOX_FROM: (u64, u64, u64) = (10, 100, 104);
/// Rows and columns of the box.
pub const BOX: (u32, u32) = (8, 32);

/// A bulk copy of a box into more shared memory than a kernel may declare, awaited by other waves, with registers moved between
/// them. Work-group i copies the box whose first row is 4 i and whose first column is 20 i.
pub fn boxes() -> Kernel {
    use tilewright_ir::{BulkOp, Role, Swizzle, TensorMap, TxRef};
    let ((rows, columns, stride), (high, wide)) = (BOX_FROM, BOX);
    let mut b = Builder::new("boxes", 256);
    b.wave(32);
    let map = TensorMap {
        scalar: Scalar::F32,
        round_tf32: false,
        extent: vec![columns, rows],
        stride_bytes: vec![4 * stride],
        tile: vec![wide, high],
        swizzle: Swizzle::None,
    };
    let bytes = map.tile_bytes();
    let map = b.tensor_map("map", map, "a matrix by rows");
    let to = b.buffer("to", Scalar::F32, Access::Write, "a box per work-group");
    let tile = b.shared("tile", Scalar::F32, high * wide, 60 << 10);
    let arrived = b.tx_barriers("arrived", 1, (60 << 10) + bytes);
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let group = b.builtin(Builtin::GroupId(0));
    let zero = b.int(0, Scalar::I32);
    let barrier = TxRef { barriers: arrived, index: zero };
    let first = b.eq(tid, 0);
    b.if_then(first, |b| {
        b.bulk(BulkOp::Init { barrier, arrivals: 1 });
        b.bulk(BulkOp::InitFence);
    });
    b.barrier();
    let load = b.block(|b| {
        b.bulk(BulkOp::Registers { count: 40, raise: false });
        b.if_then(first, |b| {
            b.bulk(BulkOp::Expect { barrier, bytes });
            let (x, y) = (b.mul(group, 20), b.mul(group, 4));
            let to = b.mem(Base::Shared(tile), 0);
            b.bulk(BulkOp::Load { to, map, at: vec![x, y], barrier, peers: None });
        });
    });
    let math = b.block(|b| {
        b.bulk(BulkOp::Registers { count: 232, raise: true });
        b.bulk(BulkOp::Wait { barrier, parity: zero });
        let at = b.sub(tid, 128);
        let out = b.mul(group, i64::from(high * wide));
        for part in 0..high * wide / 128 {
            let from = b.add(at, i64::from(128 * part));
            let value = b.load("value", Base::Shared(tile), from, 1, None);
            let to_at = b.add(out, from);
            b.store(Base::Buffer(to), to_at, value, None);
        }
    });
    b.push(Stmt::Roles(vec![
        Role { name: "load".into(), first_thread: 0, threads: 128, body: load },
        Role { name: "math".into(), first_thread: 128, threads: 128, body: math },
    ]));
    b.finish()
}
