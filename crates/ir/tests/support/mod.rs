//! Small kernels that between them use everything the language has, and the targets they are printed for.

#![allow(dead_code)] // each test file uses its part

pub mod matrix;

use tilewright_ir::*;

/// An OpenCL device without waves: what PoCL describes.
pub fn opencl() -> Target {
    let like = Target::by_arch("gfx900").expect("known");
    Target {
        arch: "generic".into(),
        dialect: Dialect::OpenCl,
        wave: 1,
        features: Features { f64: true, atomic64: true, ..Features::default() },
        ..like
    }
}

/// A built-in target.
pub fn target(arch: &str) -> Target {
    Target::by_arch(arch).expect("known architecture")
}

/// A built-in target spoken to in OpenCL C, with the waves the extension gives it.
pub fn target_in_opencl(arch: &str) -> Target {
    Target { dialect: Dialect::OpenCl, ..target(arch) }
}

/// C = alpha A B + beta C for row-major A (m x k), B (k x n), C (m x n) with k a multiple of 8 and m, n of 64: shared
/// tiles, a cursor per operand, vector loads and stores, 4 x 4 results per thread.
pub fn gemm() -> Kernel {
    let mut b = Builder::new("gemm_64x64x8", 256);
    b.doc("C = alpha A B + beta C, row-major, tiles of 64 x 64 x 8, 4 x 4 results per thread.");
    b.min_groups(2);
    let a = b.buffer("a", Scalar::F32, Access::Read, "A, m x k, row-major");
    let bm = b.buffer("b", Scalar::F32, Access::Read, "B, k x n, row-major");
    let c = b.buffer("c", Scalar::F32, Access::ReadWrite, "C, m x n, row-major");
    let n = b.scalar_arg("n", Scalar::I32, "columns of C");
    let k = b.scalar_arg("k", Scalar::I32, "length of the sum, a multiple of 8");
    let a_offset = b.scalar_arg("a_offset", Scalar::I64, "first element of A");
    let alpha = b.scalar_arg("alpha", Scalar::F32, "factor of the product");
    let beta = b.scalar_arg("beta", Scalar::F32, "factor of the old C");
    let tile_a = b.shared("tile_a", Scalar::F32, 64 * 8, 0);
    let tile_b = b.shared("tile_b", Scalar::F32, 8 * 64, 64 * 8 * 4);
    let acc = b.regs("acc", Scalar::F32.ty(), 16);
    let frag_a = b.regs("frag_a", Scalar::F32.ty(), 4);
    let frag_b = b.regs("frag_b", Scalar::F32.vector(4), 1);

    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let group_n = b.builtin(Builtin::GroupId(0));
    let group_m = b.builtin(Builtin::GroupId(1));
    let first_n = b.mul(group_n, 64);
    let first_n = b.bind("first_n", first_n);
    let first_m = b.mul(group_m, 64);
    let first_m = b.bind("first_m", first_m);
    let row = b.div(tid, 4);
    let column = b.rem(tid, 4);
    let column = b.mul(column, 2);
    let global_row = b.add(first_m, row);
    let start_a = b.mul(global_row, k);
    let start_a = b.add(start_a, column);
    let start_a = b.cast(start_a, Scalar::I64);
    let start_a = b.add(start_a, a_offset);
    let from_a = b.cursor("from_a", a, start_a);
    let row_b = b.div(tid, 32);
    let column_b = b.rem(tid, 32);
    let column_b = b.mul(column_b, 2);
    let start_b = b.mul(row_b, n);
    let start_b = b.add(start_b, first_n);
    let start_b = b.add(start_b, column_b);
    let from_b = b.cursor("from_b", bm, start_b);
    let to_a = b.mul(column, 64);
    let to_a = b.add(to_a, row);
    let to_a = b.bind("to_a", to_a);
    let to_b = b.mul(row_b, 64);
    let to_b = b.add(to_b, column_b);
    let to_b = b.bind("to_b", to_b);
    let my_m = b.div(tid, 16);
    let my_m = b.mul(my_m, 4);
    let my_m = b.bind("my_m", my_m);
    let my_n = b.rem(tid, 16);
    let my_n = b.mul(my_n, 4);
    let my_n = b.bind("my_n", my_n);
    let zero = b.float(0.0, Scalar::F32);
    b.for_range("i", 0, 16, Unroll::Full, |b, i| b.set_reg(acc, i, zero));

    let tiles = b.div(k, 8);
    b.for_range("tile", 0, tiles, Unroll::No, |b, _| {
        b.comment("fetch");
        let part_a = b.load("part_a", Base::Cursor(from_a), 0, 2, None);
        let part_b = b.load("part_b", Base::Cursor(from_b), 0, 2, None);
        b.advance(from_a, 8);
        let step_b = b.mul(n, 8);
        b.advance(from_b, step_b);
        b.barrier();
        b.comment("store, A transposed");
        for lane in 0..2 {
            let value = b.extract(part_a, lane);
            let at = b.add(to_a, 64 * lane);
            b.store(Base::Shared(tile_a), at, value, None);
        }
        b.store(Base::Shared(tile_b), to_b, part_b, None);
        b.barrier();
        b.for_range("step", 0, 8, Unroll::Full, |b, step| {
            let at = b.mul(step, 64);
            let at_a = b.add(at, my_m);
            for lane in 0..4 {
                let place = b.reg_place(frag_a, lane);
                let at = b.add(at_a, lane);
                b.load_to(place, Base::Shared(tile_a), at, None);
            }
            let at_b = b.add(at, my_n);
            let place = b.reg_place(frag_b, 0);
            b.load_to(place, Base::Shared(tile_b), at_b, None);
            b.for_range("y", 0, 4, Unroll::Full, |b, y| {
                for x in 0..4 {
                    let i = b.mul(y, 4);
                    let i = b.add(i, x);
                    let (u, v, w) = (b.reg(frag_a, y), b.reg(frag_b, 0), b.reg(acc, i));
                    let v = b.extract(v, x as u32);
                    let w = b.fma(u, v, w);
                    b.set_reg(acc, i, w);
                }
            });
        });
    });
    b.comment("epilogue");
    let row = b.add(first_m, my_m);
    let column = b.add(first_n, my_n);
    let keep = b.eq(beta, 0);
    b.for_range("y", 0, 4, Unroll::Full, |b, y| {
        let row = b.add(row, y);
        let at = b.mul(row, n);
        let at = b.add(at, column);
        let at = b.bind("at", at);
        let parts: Vec<ExprId> = (0..4)
            .map(|x| {
                let i = b.mul(y, 4);
                let i = b.add(i, x);
                b.reg(acc, i)
            })
            .collect();
        let sum = b.vector(&parts);
        let factor = b.splat(alpha, 4);
        let sum = b.mul(factor, sum);
        let sum = b.bind("sum", sum);
        b.if_else(
            keep,
            |b| b.store(Base::Buffer(c), at, sum, None),
            |b| {
                let old = b.load("old", Base::Buffer(c), at, 4, None);
                let factor = b.splat(beta, 4);
                let sum = b.fma(factor, old, sum);
                b.store(Base::Buffer(c), at, sum, None);
            },
        );
    });
    b.finish()
}

/// Copies with guards at the edge, one element and one vector per thread, in 64-bit indices.
pub fn guarded_copy() -> Kernel {
    let mut b = Builder::new("guarded_copy", 64);
    let from = b.buffer("from", Scalar::F32, Access::Read, "count elements");
    let to = b.buffer("to", Scalar::F32, Access::Write, "count elements, doubled");
    let count = b.scalar_arg("count", Scalar::I64, "elements");
    let tid = b.builtin(Builtin::LocalId);
    let group = b.builtin(Builtin::GroupId(0));
    let tid = b.cast(tid, Scalar::I64);
    let group = b.cast(group, Scalar::I64);
    let first = b.mul(group, 64);
    let first = b.add(first, tid);
    let first = b.mul(first, 4);
    let first = b.bind("first", first);
    let last = b.add(first, 4);
    let whole = b.le(last, count);
    let whole = b.bind("whole", whole);
    let values = b.load("values", Base::Buffer(from), first, 4, Some(whole));
    let twice = b.add(values, values);
    b.store(Base::Buffer(to), first, twice, Some(whole));
    let ragged = b.unary(UnaryOp::Not, whole);
    b.for_range("i", 0, 3, Unroll::Full, |b, i| {
        let i = b.cast(i, Scalar::I64);
        let at = b.add(first, i);
        let inside = b.lt(at, count);
        let mine = b.and(ragged, inside);
        let value = b.load("value", Base::Buffer(from), at, 1, Some(mine));
        let twice = b.add(value, value);
        b.store(Base::Buffer(to), at, twice, Some(mine));
    });
    b.finish()
}

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

/// Every atomic, on global and shared memory.
pub fn atomics() -> Kernel {
    let mut b = Builder::new("atomics", 64);
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let guard = b.lt(tid, 63);
    let hits = b.shared("hits", Scalar::F32, 4, 0);
    let zero = b.float(0.0, Scalar::F32);
    let first = b.lt(tid, 4);
    b.store(Base::Shared(hits), tid, zero, Some(first));
    b.barrier();
    for scalar in [Scalar::I32, Scalar::U32, Scalar::I64, Scalar::F32, Scalar::F64] {
        let buffer = b.buffer(&format!("to_{scalar}"), scalar, Access::ReadWrite, "sum and maximum");
        let value = b.cast(tid, scalar);
        for (i, op) in [AtomicOp::Add, AtomicOp::Max].into_iter().enumerate() {
            let mem = b.mem(Base::Buffer(buffer), i);
            b.push(Stmt::Atomic { op, mem, value, guard: Some(guard) });
            if scalar == Scalar::F32 {
                let mem = b.mem(Base::Shared(hits), i);
                b.push(Stmt::Atomic { op, mem, value, guard: None });
            }
        }
    }
    b.finish()
}

/// A sum over each wave by shuffles, for waves of the given width.
pub fn wave_sum(wave: u32) -> Kernel {
    let mut b = Builder::new("wave_sum", 128);
    b.wave(wave);
    let from = b.buffer("from", Scalar::F32, Access::Read, "one element per thread");
    let to = b.buffer("to", Scalar::F64, Access::Write, "one sum per wave");
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let mut sum = b.load("value", Base::Buffer(from), tid, 1, None);
    let mut step = wave / 2;
    while step > 0 {
        let other = b.kernel().vars.len() as u32;
        let kind = if step.is_multiple_of(2) { ShuffleKind::Xor(step) } else { ShuffleKind::Down(step) };
        let place = shuffled(&mut b, "other", Scalar::F32);
        b.push(Stmt::Shuffle { place: Place::Var(place), value: sum, kind });
        assert_eq!(place.0, other);
        let other = b.get(place);
        sum = b.add(sum, other);
        sum = b.bind("sum", sum);
        step /= 2;
    }
    let wide = b.cast(sum, Scalar::F64);
    let place = shuffled(&mut b, "wide", Scalar::F64);
    b.push(Stmt::Shuffle { place: Place::Var(place), value: wide, kind: ShuffleKind::Broadcast(0) });
    b.push(Stmt::Barrier(BarrierScope::Wave));
    b.push(Stmt::SchedHint { mask: 0x20, size: 1 });
    let wide = b.get(place);
    let lane = b.rem(tid, wave as i64);
    let first = b.eq(lane, 0);
    let at = b.div(tid, wave as i64);
    b.store(Base::Buffer(to), at, wide, Some(first));
    b.finish()
}

fn shuffled(b: &mut Builder, name: &str, scalar: Scalar) -> VarId {
    let zero = b.float(0.0, scalar);
    b.declare(name, zero)
}

/// One wave loads, one computes, through two buffers; both come to the barrier once per round and once before.
pub fn roles(wave: u32, named: bool) -> Kernel {
    let mut b = Builder::new("roles", 2 * wave);
    b.wave(wave);
    let from = b.buffer("from", Scalar::F32, Access::Read, "rounds x wave elements");
    let to = b.buffer("to", Scalar::F32, Access::Write, "one sum per lane");
    let rounds = b.scalar_arg("rounds", Scalar::I32, "rounds");
    let buffer = b.shared("buffer", Scalar::F32, 2 * wave, 0);
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let lane = b.rem(tid, wave as i64);
    let lane = b.bind("lane", lane);
    let scope = if named { BarrierScope::Named { id: 1, threads: 2 * wave } } else { BarrierScope::WorkGroup };
    let slot = |b: &mut Builder, round: ExprId| {
        let parity = b.rem(round, 2);
        let start = b.mul(parity, wave as i64);
        b.add(start, lane)
    };
    let load = b.block(|b| {
        b.for_range("round", 0, rounds, Unroll::No, |b, round| {
            let at = b.mul(round, wave as i64);
            let at = b.add(at, lane);
            let value = b.load("value", Base::Buffer(from), at, 1, None);
            let slot = slot(b, round);
            b.store(Base::Shared(buffer), slot, value, None);
            b.push(Stmt::Barrier(scope));
        });
    });
    let math = b.block(|b| {
        let zero = b.float(0.0, Scalar::F32);
        let sum = b.declare("sum", zero);
        b.for_range("round", 0, rounds, Unroll::No, |b, round| {
            b.push(Stmt::Barrier(scope));
            let slot = slot(b, round);
            let value = b.load("value", Base::Shared(buffer), slot, 1, None);
            let old = b.get(sum);
            let new = b.add(old, value);
            b.set(sum, new);
        });
        let sum = b.get(sum);
        b.store(Base::Buffer(to), lane, sum, None);
    });
    b.push(Stmt::Roles(vec![
        Role { name: "load".into(), first_thread: 0, threads: wave, body: load },
        Role { name: "math".into(), first_thread: wave, threads: wave, body: math },
    ]));
    b.finish()
}

/// Asynchronous copies two tiles ahead, guarded and not, through more shared memory than a kernel may declare.
pub fn async_copy() -> Kernel {
    let mut b = Builder::new("async_copy", 128);
    let from = b.buffer("from", Scalar::F16, Access::Read, "tiles x 1024 elements");
    let to = b.buffer("to", Scalar::F16, Access::Write, "sum of the tiles' first elements");
    let count = b.scalar_arg("count", Scalar::I32, "elements");
    let stages = b.shared("stages", Scalar::F16, 32 * 1024, 0);
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let at = b.mul(tid, 8);
    let at = b.bind("at", at);
    for stage in 0..2 {
        let from_at = b.add(at, 1024 * stage);
        let inside = b.lt(from_at, count);
        let (dst, src) = (b.mem(Base::Shared(stages), from_at), b.mem(Base::Buffer(from), from_at));
        b.push(Stmt::AsyncCopy { dst, src, lanes: 8, guard: Some(inside) });
        let small = b.add(from_at, 16 * 1024);
        let dst = b.mem(Base::Shared(stages), small);
        b.push(Stmt::AsyncCopy { dst, src, lanes: 2, guard: None });
        b.push(Stmt::AsyncCommit);
    }
    b.push(Stmt::AsyncWait(1));
    b.barrier();
    let value = b.load("value", Base::Shared(stages), at, 8, None);
    b.store(Base::Buffer(to), at, value, None);
    b.push(Stmt::AsyncWait(0));
    b.finish()
}

/// Writes to global memory that other threads of the group read behind a barrier.
pub fn global_exchange() -> Kernel {
    let mut b = Builder::new("global_exchange", 64);
    let data = b.buffer("data", Scalar::I32, Access::ReadWrite, "64 per group");
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    b.barrier();
    b.store(Base::Buffer(data), tid, tid, None);
    b.barrier();
    let mirror = b.sub(63, tid);
    let other = b.load("other", Base::Buffer(data), mirror, 1, None);
    b.barrier();
    b.store(Base::Buffer(data), tid, other, None);
    b.finish()
}

/// The fetch of an edge tile: two guarded vectors per round, summed.
pub fn edge_fetch() -> Kernel {
    let mut b = Builder::new("edge_fetch", 64);
    let from = b.buffer("from", Scalar::F32, Access::Read, "rows x columns elements");
    let to = b.buffer("to", Scalar::F32, Access::Write, "8 per thread");
    let rows = b.scalar_arg("rows", Scalar::I32, "rows");
    let columns = b.scalar_arg("columns", Scalar::I32, "columns, a multiple of 4");
    let acc = b.regs("acc", Scalar::F32.ty(), 8);
    let fetched = b.regs("fetched", Scalar::F32.vector(4), 2);
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    let zero = b.float(0.0, Scalar::F32);
    b.for_range("i", 0, 8, Unroll::Full, |b, i| b.set_reg(acc, i, zero));
    let start = b.mul(tid, columns);
    let cursor = b.cursor("cursor", from, start);
    let row_inside = b.lt(tid, rows);
    let row_inside = b.bind("row_inside", row_inside);
    let rounds = b.div(columns, 8);
    b.for_range("round", 0, rounds, Unroll::No, |b, round| {
        let column = b.mul(round, 8);
        b.for_range("i", 0, 2, Unroll::Full, |b, i| {
            let at = b.mul(i, 4);
            let here = b.add(column, at);
            let inside = b.lt(here, columns);
            let inside = b.and(row_inside, inside);
            let place = b.reg_place(fetched, i);
            b.load_to(place, Base::Cursor(cursor), at, Some(inside));
        });
        b.advance(cursor, 8);
        b.for_range("i", 0, 8, Unroll::Full, |b, i| {
            let v = b.div(i, 4);
            let v = b.reg(fetched, v);
            let parts: Vec<ExprId> = (0..4).map(|lane| b.extract(v, lane)).collect();
            let lane = b.rem(i, 4);
            let mut value = parts[3];
            for l in (0..3).rev() {
                let is = b.eq(lane, l);
                value = b.select(is, parts[l as usize], value);
            }
            let old = b.reg(acc, i);
            let new = b.add(old, value);
            b.set_reg(acc, i, new);
        });
    });
    b.for_range("i", 0, 8, Unroll::Full, |b, i| {
        let at = b.mul(tid, 8);
        let at = b.add(at, i);
        let value = b.reg(acc, i);
        b.store(Base::Buffer(to), at, value, None);
    });
    b.finish()
}

/// Rounds to TF32.
pub fn round_tf32() -> Kernel {
    let mut b = Builder::new("round_tf32", 64);
    let from = b.buffer("from", Scalar::F32, Access::Read, "64 elements");
    let to = b.buffer("to", Scalar::F32, Access::Write, "64 elements");
    let at = b.builtin(Builtin::LocalId);
    let x = b.load("x", Base::Buffer(from), at, 1, None);
    let rounded = b.unary(UnaryOp::RoundTf32, x);
    b.store(Base::Buffer(to), at, rounded, None);
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

/// Changes numbers anywhere in a kernel: handles, types' lanes, constants, thread counts.
pub fn scrambled(kernel: &Kernel, changes: &[(usize, i64)]) -> Option<Kernel> {
    fn numbers<'v>(v: &'v mut serde_json::Value, out: &mut Vec<&'v mut serde_json::Value>) {
        match v {
            serde_json::Value::Number(_) => out.push(v),
            serde_json::Value::Array(a) => a.iter_mut().for_each(|v| numbers(v, out)),
            serde_json::Value::Object(o) => o.values_mut().for_each(|v| numbers(v, out)),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(kernel).ok()?;
    let mut places = Vec::new();
    numbers(&mut value, &mut places);
    let n = places.len();
    for (at, to) in changes {
        *places[at % n] = (*to).into();
    }
    serde_json::from_value(value).ok()
}
