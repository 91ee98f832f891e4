//! What kernels compute: types, control flow, divergence, memory, waves.

use crate::common;
use common::*;
use half::{bf16, f16};
use tilewright_emu::{ArgValue, Buffer, Options};
use tilewright_ir::*;

fn lid(b: &mut Builder) -> ExprId {
    b.builtin(Builtin::LocalId)
}
fn gid(b: &mut Builder) -> ExprId {
    b.builtin(Builtin::GroupId(0))
}

/// y[i] = x[i] + s over odd sizes: the last work-group is partly idle, the work-group is no multiple of anything.
#[test]
fn guarded_tail_with_odd_work_groups() {
    for threads in [1, 7, 16, 100, 256] {
        let k = kernel(threads, |b| {
            let x = b.buffer("x", Scalar::F32, Access::Read, "");
            let y = b.buffer("y", Scalar::F32, Access::Write, "");
            let n = b.scalar_arg("n", Scalar::I32, "");
            let s = b.scalar_arg("s", Scalar::F32, "");
            let (g, l) = (gid(b), lid(b));
            let i = b.mul(g, threads);
            let i = b.add(i, l);
            let i = b.bind("i", i);
            let inside = b.binary(BinaryOp::Lt, i, n);
            let v = b.load("v", Base::Buffer(x), i, 1, Some(inside));
            let v = b.add(v, s);
            b.store(Base::Buffer(y), i, v, Some(inside));
        });
        let values: Vec<f32> = (0..333).map(|i| i as f32).collect();
        let groups = 333u32.div_ceil(threads);
        let make = || vec![arg(&f32s(&values)), arg(&Buffer::new(333 * 4)), ArgValue::I32(333), ArgValue::F32(0.5)];
        let out = everywhere(&k, [groups, 1, 1], make, |a| to_f32s(buffer(&a[1])));
        assert!(out.iter().enumerate().all(|(i, v)| *v == i as f32 + 0.5));
    }
}

#[test]
fn guarded_off_lanes_receive_zero() {
    let k = kernel(32, |b| {
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let l = lid(b);
        let few = b.binary(BinaryOp::Lt, l, 3);
        let v = b.load("v", Base::Buffer(x), l, 1, Some(few));
        b.store(Base::Buffer(y), l, v, None);
    });
    let out = everywhere(&k, [1; 3], || vec![arg(&f32s(&[5.0; 3])), arg(&Buffer::new(128))], |a| to_f32s(buffer(&a[1])));
    assert_eq!((out[2], &out[3..]), (5.0, &[0.0; 29][..]));
}

/// Collatz steps per thread: a divergent loop with a divergent branch in it.
#[test]
fn divergent_loops_and_branches() {
    let k = kernel(64, |b| {
        let y = b.buffer("y", Scalar::I32, Access::Write, "");
        let l = lid(b);
        let start = b.add(l, 1);
        let value = b.declare("value", start);
        let zero = b.int(0, Scalar::I32);
        let steps = b.declare("steps", zero);
        b.for_range("turn", 0, 200, Unroll::No, |b, _| {
            let v = b.get(value);
            let going = b.binary(BinaryOp::Ne, v, 1);
            b.if_then(going, |b| {
                let v = b.get(value);
                let odd = b.binary(BinaryOp::And, v, 1);
                let odd = b.binary(BinaryOp::Eq, odd, 1);
                b.if_else(
                    odd,
                    |b| {
                        let v = b.get(value);
                        let v = b.mul(v, 3);
                        let v = b.add(v, 1);
                        b.set(value, v);
                    },
                    |b| {
                        let v = b.get(value);
                        let v = b.binary(BinaryOp::Div, v, 2);
                        b.set(value, v);
                    },
                );
                let s = b.get(steps);
                let s = b.add(s, 1);
                b.set(steps, s);
            });
        });
        let s = b.get(steps);
        b.store(Base::Buffer(y), l, s, None);
    });
    let out = everywhere(&k, [1; 3], || vec![arg(&Buffer::new(256))], |a| to_i32s(buffer(&a[0])));
    let collatz = |mut v: i32| {
        let mut n = 0;
        while v != 1 {
            v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
            n += 1;
        }
        n
    };
    assert_eq!(out, (1..=64).map(collatz).collect::<Vec<_>>());
}

/// Each thread sums its own number of terms: bounds differ between threads, start and end, step 2.
#[test]
fn loop_bounds_per_thread() {
    let k = kernel(48, |b| {
        let y = b.buffer("y", Scalar::I32, Access::Write, "");
        let l = lid(b);
        let end = b.mul(l, 2);
        let zero = b.int(0, Scalar::I32);
        let sum = b.declare("sum", zero);
        b.for_range("i", l, end, Unroll::No, |b, i| {
            let s = b.get(sum);
            let s = b.add(s, i);
            b.set(sum, s);
        });
        let s = b.get(sum);
        b.store(Base::Buffer(y), l, s, None);
    });
    let out = everywhere(&k, [1; 3], || vec![arg(&Buffer::new(192))], |a| to_i32s(buffer(&a[0])));
    assert_eq!(out, (0..48).map(|l| (l..2 * l).sum::<i32>()).collect::<Vec<_>>());
}

/// Threads return at different places: top level, in a loop, in a branch; those that stay go on unharmed.
#[test]
fn returns_diverge() {
    let k = kernel(40, |b| {
        let y = b.buffer("y", Scalar::I32, Access::ReadWrite, "");
        let l = lid(b);
        let early = b.binary(BinaryOp::Lt, l, 5);
        b.if_then(early, |b| {
            let seven = b.int(7, Scalar::I32);
            b.store(Base::Buffer(y), l, seven, None);
            b.push(Stmt::Return);
        });
        b.for_range("i", 0, 20, Unroll::No, |b, i| {
            let now = b.binary(BinaryOp::Eq, l, i);
            b.if_then(now, |b| {
                b.store(Base::Buffer(y), l, i, None);
                b.push(Stmt::Return);
            });
        });
        b.for_range("i", 20, 30, Unroll::Full, |b, i| {
            let now = b.binary(BinaryOp::Eq, l, i);
            b.if_then(now, |b| {
                let v = b.mul(i, 10);
                b.store(Base::Buffer(y), l, v, None);
                b.push(Stmt::Return);
            });
        });
        let minus = b.int(-1, Scalar::I32);
        b.store(Base::Buffer(y), l, minus, None);
    });
    let out = everywhere(&k, [1; 3], || vec![arg(&Buffer::new(160))], |a| to_i32s(buffer(&a[0])));
    let want = (0..40).map(|l| match l {
        0..5 => 7,
        5..20 => l,
        20..30 => l * 10,
        _ => -1,
    });
    assert_eq!(out, want.collect::<Vec<_>>());
}

/// A return that all threads of a work-group take, by a scalar argument or by group.
#[test]
fn returns_of_whole_groups() {
    let k = kernel(32, |b| {
        let y = b.buffer("y", Scalar::I32, Access::ReadWrite, "");
        let n = b.scalar_arg("n", Scalar::I32, "");
        let g = gid(b);
        let l = lid(b);
        let at = b.mul(g, 32);
        let at = b.add(at, l);
        let out = b.binary(BinaryOp::Le, n, g);
        b.if_then(out, |b| b.push(Stmt::Return));
        b.barrier();
        b.store(Base::Buffer(y), at, g, None);
    });
    let make = || vec![arg(&i32s(&[-1; 128])), ArgValue::I32(3)];
    let out = everywhere(&k, [4, 1, 1], make, |a| to_i32s(buffer(&a[0])));
    assert_eq!((out[95], out[96]), (2, -1));
}

#[test]
fn storage_types_round_to_nearest_even() {
    let k = kernel(16, |b| {
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let h = b.buffer("h", Scalar::F16, Access::ReadWrite, "");
        let t = b.buffer("t", Scalar::BF16, Access::ReadWrite, "");
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let l = lid(b);
        let v = b.load("v", Base::Buffer(x), l, 1, None);
        let as_h = b.cast(v, Scalar::F16);
        b.store(Base::Buffer(h), l, as_h, None);
        let as_t = b.cast(v, Scalar::BF16);
        b.store(Base::Buffer(t), l, as_t, None);
        let h = b.load("hv", Base::Buffer(h), l, 1, None);
        let h = b.cast(h, Scalar::F32);
        let t = b.load("tv", Base::Buffer(t), l, 1, None);
        let t = b.cast(t, Scalar::F32);
        let sum = b.add(h, t);
        b.store(Base::Buffer(y), l, sum, None);
    });
    let values: Vec<f32> = (0..16).map(|i| 1.0 + (i as f32) * 0.12345).collect();
    let make = || vec![arg(&f32s(&values)), arg(&Buffer::new(32)), arg(&Buffer::new(32)), arg(&Buffer::new(64))];
    let read = |a: &[ArgValue]| (to_u16s(buffer(&a[1])), to_u16s(buffer(&a[2])), to_f32s(buffer(&a[3])));
    let (h, t, y) = everywhere(&k, [1; 3], make, read);
    for (i, &v) in values.iter().enumerate() {
        let (want_h, want_t) = (f16::from_f32(v), bf16::from_f32(v));
        assert_eq!((h[i], t[i]), (want_h.to_bits(), want_t.to_bits()));
        assert_eq!(y[i], want_h.to_f32() + want_t.to_f32());
    }
}

/// Vectors: loads, stores, swizzles that read what they overwrite, arithmetic by component, an offset argument.
type Function = fn(f64) -> f64;

/// Functions of one value, at both ends and in between; each lane of a vector by itself.
#[test]
fn functions() {
    let inputs = [-200.0f32, -9.5, -1.0, -1e-3, 0.0, 0.5, 3.0, 200.0];
    let tests: [(UnaryOp, Function); 7] = [
        (UnaryOp::Exp, f64::exp),
        (UnaryOp::Exp2, f64::exp2),
        (UnaryOp::Log2, f64::log2),
        (UnaryOp::Tanh, f64::tanh),
        (UnaryOp::Erf, libm::erf),
        (UnaryOp::Sqrt, f64::sqrt),
        (UnaryOp::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ];
    for (op, want) in tests {
        let k = kernel(4, |b| {
            let x = b.buffer("x", Scalar::F32, Access::Read, "");
            let y = b.buffer("y", Scalar::F32, Access::Write, "");
            let l = lid(b);
            let i = b.mul(l, 2);
            let v = b.load("v", Base::Buffer(x), i, 2, None);
            let v = b.unary(op, v);
            b.store(Base::Buffer(y), i, v, None);
        });
        let inputs = if matches!(op, UnaryOp::Sqrt | UnaryOp::Log2) { inputs.map(f32::abs) } else { inputs };
        let make = || vec![arg(&f32s(&inputs)), arg(&Buffer::new(32))];
        let out = everywhere(&k, [1, 1, 1], make, |a| to_f32s(buffer(&a[1])));
        for (x, y) in inputs.into_iter().zip(out) {
            let want = want(f64::from(x)) as f32;
            let close = (y - want).abs() <= 2e-7 * want.abs().max(f32::MIN_POSITIVE);
            assert!(close || y == want, "{op:?} of {x}: {y}, not {want}");
        }
    }
}

#[test]
fn vectors() {
    let k = kernel(8, |b| {
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let l = lid(b);
        let i = b.mul(l, 4);
        let r = b.regs("r", Scalar::F32.vector(4), 2);
        let place = b.reg_place(r, 1);
        b.load_to(place, Base::Buffer(x), i, None);
        let v = b.reg(r, 1);
        let parts: Vec<_> = [1, 2, 3, 0].map(|c| b.extract(v, c)).to_vec();
        let turned = b.vector(&parts);
        b.set_reg(r, 1, turned);
        let (v, w) = (b.reg(r, 1), b.reg(r, 1));
        let parts: Vec<_> = [3, 2, 1, 0].map(|c| b.extract(w, c)).to_vec();
        let back = b.vector(&parts);
        let sum = b.add(v, back);
        b.set_reg(r, 1, sum);
        let v = b.reg(r, 1);
        b.store(Base::Buffer(y), i, v, None);
    });
    let values: Vec<f32> = (0..40).map(|i| (i * i) as f32).collect();
    let make = || vec![at(&f32s(&values), 32), arg(&Buffer::new(128))];
    let out = everywhere(&k, [1; 3], make, |a| to_f32s(buffer(&a[1])));
    for (got, x) in out.chunks(4).zip(values[8..].chunks(4)) {
        assert_eq!(got, [x[1] + x[0], x[2] + x[3], x[3] + x[2], x[0] + x[1]]);
    }
}

/// 64-bit indices and values, cursors that move, on per-thread and shared positions.
#[test]
fn cursors_and_wide_types() {
    let k = kernel(32, |b| {
        let x = b.buffer("x", Scalar::F64, Access::Read, "");
        let y = b.buffer("y", Scalar::F64, Access::Write, "");
        let stride = b.scalar_arg("stride", Scalar::I64, "");
        let l = lid(b);
        let own = b.cursor("own", x, l);
        let all = b.cursor("all", x, 0);
        let zero = b.float(0.0, Scalar::F64);
        let sum = b.declare("sum", zero);
        b.for_range("i", 0i64, 4i64, Unroll::No, |b, _| {
            let u = b.load("u", Base::Cursor(own), 0, 1, None);
            let v = b.load("v", Base::Cursor(all), l, 1, None);
            let s = b.get(sum);
            let s = b.fma(u, v, s);
            b.set(sum, s);
            b.advance(own, stride);
            b.advance(all, stride);
        });
        let s = b.get(sum);
        b.store(Base::Buffer(y), l, s, None);
    });
    let bytes: Vec<u8> = (0..128).flat_map(|i| (i as f64).to_le_bytes()).collect();
    let make = || vec![arg(&Buffer::from_bytes(&bytes)), arg(&Buffer::new(256)), ArgValue::I64(32)];
    let out = everywhere(&k, [1; 3], make, |a| to_f64s(buffer(&a[1])));
    let want = |l: i32| (0..4).map(|i| ((l + 32 * i) as f64).powi(2)).sum::<f64>();
    assert_eq!(out, (0..32).map(want).collect::<Vec<_>>());
}

/// A wave sum by shuffles, for waves of 32 and 64, `F64` too.
#[test]
fn shuffles() {
    for (wave, scalar) in [(32, Scalar::F32), (64, Scalar::F32), (32, Scalar::F64)] {
        let k = kernel(128, |b| {
            b.wave(wave);
            let y = b.buffer("y", scalar, Access::Write, "");
            let l = lid(b);
            let first = b.cast(l, scalar);
            let sum = b.declare("sum", first);
            let mut step = wave / 2;
            while step > 0 {
                let v = b.get(sum);
                let got = b.declare("got", v);
                b.push(Stmt::Shuffle { place: Place::Var(got), value: v, kind: ShuffleKind::Xor(step) });
                let (v, g) = (b.get(sum), b.get(got));
                let s = b.add(v, g);
                b.set(sum, s);
                step /= 2;
            }
            let s = b.get(sum);
            b.store(Base::Buffer(y), l, s, None);
        });
        let make = || vec![arg(&Buffer::new(128 * scalar.bytes() as usize))];
        let out = everywhere(&k, [1; 3], make, |a| match scalar {
            Scalar::F64 => to_f64s(buffer(&a[0])),
            _ => to_f32s(buffer(&a[0])).into_iter().map(f64::from).collect(),
        });
        for (l, got) in out.iter().enumerate() {
            let first = l as u32 / wave * wave;
            assert_eq!(*got, (first..first + wave).sum::<u32>() as f64);
        }
    }
}

#[test]
fn shuffle_down_and_broadcast() {
    let k = kernel(32, |b| {
        b.wave(32);
        let y = b.buffer("y", Scalar::I32, Access::Write, "");
        let l = lid(b);
        for (i, kind) in [ShuffleKind::Down(3), ShuffleKind::Broadcast(9)].into_iter().enumerate() {
            let got = b.declare("got", l);
            b.push(Stmt::Shuffle { place: Place::Var(got), value: l, kind });
            let v = b.get(got);
            let at = b.add(l, i * 32);
            b.store(Base::Buffer(y), at, v, None);
        }
    });
    let out = everywhere(&k, [1; 3], || vec![arg(&Buffer::new(256))], |a| to_i32s(buffer(&a[0])));
    assert_eq!((out[0], out[28], out[29], out[31], out[40]), (3, 31, 29, 31, 9));
}

/// Sums over all work-groups by atomics, global and shared, in every type.
#[test]
fn atomics() {
    for scalar in [Scalar::I32, Scalar::F32, Scalar::F64] {
        let k = kernel(64, |b| {
            let y = b.buffer("y", scalar, Access::ReadWrite, "");
            let part = b.shared("part", scalar, 1, 0);
            let l = lid(b);
            let zero = b.zero(scalar.ty());
            let none = b.int(0, Scalar::I32);
            let first = b.binary(BinaryOp::Eq, l, 0);
            b.store(Base::Shared(part), 0, zero, Some(first));
            b.barrier();
            let value = b.cast(l, scalar);
            let mem = MemRef { base: Base::Shared(part), index: none };
            b.push(Stmt::Atomic { op: AtomicOp::Add, mem, value, guard: None });
            b.barrier();
            let sum = b.load("sum", Base::Shared(part), 0, 1, None);
            let mem = MemRef { base: Base::Buffer(y), index: none };
            b.push(Stmt::Atomic { op: AtomicOp::Add, mem, value: sum, guard: Some(first) });
            let one = b.int(1, Scalar::I32);
            let mem = MemRef { base: Base::Buffer(y), index: one };
            b.push(Stmt::Atomic { op: AtomicOp::Max, mem, value: sum, guard: Some(first) });
        });
        let make = || vec![arg(&Buffer::from_bytes(&vec![0; 2 * scalar.bytes() as usize]))];
        let out = everywhere(&k, [10, 2, 1], make, |a| match scalar {
            Scalar::F64 => to_f64s(buffer(&a[0])),
            Scalar::F32 => to_f32s(buffer(&a[0])).into_iter().map(f64::from).collect(),
            _ => to_i32s(buffer(&a[0])).into_iter().map(f64::from).collect(),
        });
        assert_eq!(out, [20.0 * 2016.0, 2016.0]);
    }
}

/// Matrix product through shared memory, one buffer, both waits in place.
fn tiled(n: i64, wait_first: bool, wait_last: bool) -> Kernel {
    let tile = 16i64;
    let mut b = Builder::new("tiled", 256);
    let args = ["a", "b"].map(|name| b.buffer(name, Scalar::F32, Access::Read, ""));
    let c = b.buffer("c", Scalar::F32, Access::Write, "");
    let parts = [0, 1].map(|i| b.shared(["a_tile", "b_tile"][i], Scalar::F32, 256, i as u32 * 1024));
    let l = lid(&mut b);
    let (y, x) = (b.binary(BinaryOp::Div, l, tile), b.binary(BinaryOp::Rem, l, tile));
    let (gx, gy) = (b.builtin(Builtin::GroupId(0)), b.builtin(Builtin::GroupId(1)));
    let (row, col) = (b.mul(gy, tile), b.mul(gx, tile));
    let (row, col) = (b.add(row, y), b.add(col, x));
    let acc = b.regs("acc", Scalar::F32.ty(), 1);
    let zero = b.float(0.0, Scalar::F32);
    b.set_reg(acc, 0, zero);
    b.for_range("t", 0, n / tile, Unroll::No, |b, t| {
        let k = b.mul(t, tile);
        let ka = b.add(k, x);
        let kb = b.add(k, y);
        let from_a = b.mul(row, n);
        let from_a = b.add(from_a, ka);
        let from_b = b.mul(kb, n);
        let from_b = b.add(from_b, col);
        for (i, from) in [from_a, from_b].into_iter().enumerate() {
            let v = b.load("v", Base::Buffer(args[i]), from, 1, None);
            b.store(Base::Shared(parts[i]), l, v, None);
        }
        if wait_first {
            b.barrier();
        }
        b.for_range("kk", 0, tile, Unroll::Full, |b, kk| {
            let at = b.mul(y, tile);
            let at = b.add(at, kk);
            let u = b.load("u", Base::Shared(parts[0]), at, 1, None);
            let at = b.mul(kk, tile);
            let at = b.add(at, x);
            let v = b.load("v", Base::Shared(parts[1]), at, 1, None);
            let product = b.mul(u, v);
            let z = b.reg(acc, 0);
            let z = b.add(z, product);
            b.set_reg(acc, 0, z);
        });
        if wait_last {
            b.barrier();
        }
    });
    let at = b.mul(row, n);
    let at = b.add(at, col);
    let v = b.reg(acc, 0);
    b.store(Base::Buffer(c), at, v, None);
    b.finish()
}

fn matrix(n: i64, salt: i64) -> Vec<f32> {
    (0..n * n).map(|i| ((i * 5 + salt) % 11 - 5) as f32).collect()
}

#[test]
fn matrix_product_through_shared_memory() {
    let n = 48;
    let (a, b) = (matrix(n, 1), matrix(n, 3));
    let k = tiled(n, true, true);
    let make = || vec![arg(&f32s(&a)), arg(&f32s(&b)), arg(&Buffer::new(a.len() * 4))];
    let out = everywhere(&k, [3, 3, 1], make, |x| to_f32s(buffer(&x[2])));
    let n = n as usize;
    for i in 0..n {
        for j in 0..n {
            let want: f32 = (0..n).map(|p| a[i * n + p] * b[p * n + j]).sum();
            assert_eq!(out[i * n + j], want);
        }
    }
}

/// Without checks, interleaving alone makes a missing barrier visible in the values.
#[test]
fn interleaving_shows_missing_barriers_in_values() {
    let n = 48;
    let (a, b) = (matrix(n, 1), matrix(n, 3));
    let product = |k: &Kernel, options: &Options| {
        let c = Buffer::new(a.len() * 4);
        tilewright_emu::run(k, [3, 3, 1], &[arg(&f32s(&a)), arg(&f32s(&b)), arg(&c)], options).unwrap();
        to_f32s(&c)
    };
    let right = product(&tiled(n, true, true), &Options::fast());
    for (first, last) in [(false, true), (true, false)] {
        let k = tiled(n, first, last);
        let shows = |seed| product(&k, &Options { interleave: true, seed, ..Options::fast() }) != right;
        assert!((0..5).any(shows), "waits {first} {last}");
        // And the race checks find it without interleaving.
        let args = [arg(&f32s(&a)), arg(&f32s(&b)), arg(&Buffer::new(a.len() * 4))];
        assert!(matches!(run(&k, [3, 3, 1], &args), Err(tilewright_emu::EmuError::Race { .. })));
    }
}
