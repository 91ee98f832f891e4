//! Kernels whose threads work together: atomics, shuffles, roles, asynchronous copies.

use tilewright_ir::*;

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
        let buffer = b.buffer(&format!("to_{scalar}"), scalar, Access::ReadWrite, "sum, maximum and minimum");
        let value = b.cast(tid, scalar);
        for (i, op) in [AtomicOp::Add, AtomicOp::Max, AtomicOp::Min].into_iter().enumerate() {
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
