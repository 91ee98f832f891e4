//! Kernels on matrix units: a warpgroup's with bulk copies, a wave's with `ldmatrix`, AMD's.

use tilewright_ir::layout::Axis;
use tilewright_ir::*;

fn slice(b: &mut Builder, regs: RegId, first: i64) -> RegSlice {
    RegSlice { regs, first: b.int(first, Scalar::I32) }
}

/// One 64 x 128 tile of C = A B for row-major A and column-major B in bf16, k a multiple of 64: a warpgroup that loads in
/// bulk into two stages, and one that multiplies. C goes out in bulk too.
pub fn warpgroup_gemm() -> Kernel {
    const STAGES: u32 = 2;
    let mut b = Builder::new("warpgroup_gemm", 256);
    b.wave(32);
    // Room for two work-groups: 128 registers per thread at entry, shared out anew below.
    b.min_groups(2);
    let map = |rows: u64, tile: u32| TensorMap {
        scalar: Scalar::BF16,
        round_tf32: false,
        extent: vec![1024, rows],
        stride_bytes: vec![2048],
        tile: vec![64, tile],
        swizzle: Swizzle::B128,
        im2col: None,
    };
    let map_a = b.tensor_map("a", map(512, 64), "A, 512 x 1024");
    let map_b = b.tensor_map("b", map(640, 128), "B transposed, 640 x 1024");
    let out = TensorMap {
        scalar: Scalar::F32,
        round_tf32: false,
        extent: vec![640, 512],
        stride_bytes: vec![2560],
        tile: vec![128, 64],
        swizzle: Swizzle::None,
        im2col: None,
    };
    let map_c = b.tensor_map("c", out, "C, 512 x 640");
    let (size_a, size_b) = (64 * 128, 128 * 128);
    let tile_a = b.shared("tile_a", Scalar::BF16, size_a / 2 * STAGES, 0);
    let tile_b = b.shared("tile_b", Scalar::BF16, size_b / 2 * STAGES, size_a * STAGES);
    let end = (size_a + size_b) * STAGES;
    let staged = b.shared("staged", Scalar::F32, 64 * 128, end);
    let full = b.tx_barriers("full", STAGES, end + 64 * 128 * 4);
    let free = b.tx_barriers("free", STAGES, end + 64 * 128 * 4 + 8 * STAGES);
    let acc = b.regs("acc", Scalar::F32.ty(), 64);
    let lid = b.builtin(Builtin::LocalId);
    let lid = b.bind("lid", lid);
    let first = b.eq(lid, 0);
    let at = |barriers, index| TxRef { barriers, index };
    b.if_then(first, |b| {
        for i in 0..STAGES {
            let i = b.int(i.into(), Scalar::I32);
            b.bulk(BulkOp::Init { barrier: at(full, i), arrivals: 1 });
            b.bulk(BulkOp::Init { barrier: at(free, i), arrivals: 4 });
        }
        b.bulk(BulkOp::InitFence);
    });
    b.barrier();
    let (gx, gy) = (b.builtin(Builtin::GroupId(0)), b.builtin(Builtin::GroupId(1)));
    let n0 = b.mul(gx, 128);
    let m0 = b.mul(gy, 64);
    let position = |b: &mut Builder, t: ExprId| {
        let stage = b.rem(t, STAGES);
        let round = b.div(t, STAGES);
        (b.bind("stage", stage), b.rem(round, 2))
    };
    let load = b.block(|b| {
        b.bulk(BulkOp::Registers { count: 40, raise: false });
        let issues = b.eq(lid, 128);
        b.if_then(issues, |b| {
            b.for_range("t", 0, 16, Unroll::No, |b, t| {
                let (stage, parity) = position(b, t);
                let parity = b.sub(1, parity);
                b.bulk(BulkOp::Wait { barrier: at(free, stage), parity });
                b.bulk(BulkOp::Expect { barrier: at(full, stage), bytes: size_a + size_b });
                let k0 = b.mul(t, 64);
                for (tile, map, row, size) in [(tile_a, map_a, m0, size_a), (tile_b, map_b, n0, size_b)] {
                    let to = b.mul(stage, size / 2);
                    let to = b.mem(Base::Shared(tile), to);
                    b.bulk(BulkOp::Load { to, map, at: vec![k0, row], barrier: at(full, stage), peers: None });
                }
            });
        });
    });
    let math = b.block(|b| {
        b.bulk(BulkOp::Registers { count: 208, raise: true });
        let lane = b.rem(lid, 32);
        let leads = b.eq(lane, 0);
        b.for_range("t", 0, 16, Unroll::No, |b, t| {
            let (stage, parity) = position(b, t);
            b.bulk(BulkOp::Wait { barrier: at(full, stage), parity });
            b.matrix(MatrixOp::WarpgroupFence { acc, left: vec![] });
            for step in 0..4 {
                let mut tile = |array, size: u32| {
                    let byte = b.mul(stage, size);
                    let byte = b.add(byte, step * 32);
                    SharedTile { array, byte, swizzle: Swizzle::B128, k_contiguous: true, leading_bytes: 0, stride_bytes: 1024 }
                };
                let (left, right) = (tile(tile_a, size_a), tile(tile_b, size_b));
                let accumulate = if step == 0 { b.lt(0, t) } else { b.int(1, Scalar::Bool) };
                let acc = slice(b, acc, 0);
                let a = WarpgroupA::Shared(left);
                b.matrix(MatrixOp::Warpgroup { input: MatrixType::BF16, n: 128, a, b: right, acc, accumulate });
            }
            b.matrix(MatrixOp::WarpgroupCommit);
            b.matrix(MatrixOp::WarpgroupWait { pending: 0, acc });
            b.if_then(leads, |b| b.bulk(BulkOp::Arrive { barrier: at(free, stage) }));
        });
        let wave = b.div(lid, 32);
        let (quad, pair) = (b.div(lane, 4), b.rem(lane, 4));
        let row = b.mul(wave, 16);
        let row = b.add(row, quad);
        let row = b.mul(row, 128);
        let column = b.mul(pair, 2);
        let start = b.add(row, column);
        let start = b.bind("start", start);
        let sums = Mma::find(MathUnit::Warpgroup, MatrixType::BF16).expect("an instruction").c;
        for r in (0..64).step_by(2) {
            let (row, column) = (sums.at(Axis::Row, 0, r, 0), sums.at(Axis::Col, 0, r, 0));
            let to = b.add(start, row * 128 + column);
            let both = [b.reg(acc, r), b.reg(acc, r + 1)];
            let both = b.vector(&both);
            b.store(Base::Shared(staged), to, both, None);
        }
        b.bulk(BulkOp::ProxyFence);
        b.push(Stmt::Barrier(BarrierScope::Named { id: 1, threads: 128 }));
        b.if_then(first, |b| {
            let from = b.mem(Base::Shared(staged), 0);
            b.bulk(BulkOp::Store { from, map: map_c, at: vec![n0, m0] });
            b.bulk(BulkOp::StoreCommit);
            b.bulk(BulkOp::StoreWait { pending: 0 });
        });
    });
    let role = |name: &str, first_thread, body| Role { name: name.into(), first_thread, threads: 128, body };
    b.push(Stmt::Roles(vec![role("math", 0, math), role("load", 128, load)]));
    b.finish()
}

/// 16 x 8 of C = A B by one wave, A and B in f16 and row-major, k = 64: `ldmatrix`, transposed for B, then `mma`.
pub fn wave_gemm() -> Kernel {
    let mut b = Builder::new("wave_gemm", 32);
    b.wave(32);
    let x = b.buffer("a", Scalar::F16, Access::Read, "A, 16 x 64");
    let y = b.buffer("b", Scalar::F16, Access::Read, "B, 64 x 8");
    let z = b.buffer("c", Scalar::F32, Access::Write, "C, 16 x 8");
    // Rows of 64 and 8 elements of padding: no bank conflicts.
    let tile_a = b.shared("tile_a", Scalar::F16, 16 * 72, 0);
    let tile_b = b.shared("tile_b", Scalar::F16, 64 * 8, 16 * 72 * 2);
    let fragment_a = b.regs("fragment_a", Scalar::U32.ty(), 4);
    let fragment_b = b.regs("fragment_b", Scalar::U32.ty(), 2);
    let acc = b.regs("acc", Scalar::F32.ty(), 4);
    let lid = b.builtin(Builtin::LocalId);
    let lane = b.bind("lane", lid);
    b.for_range("i", 0, 4, Unroll::Full, |b, i| {
        let element = b.mul(i, 32);
        let element = b.add(element, lane);
        let (row, chunk) = (b.div(element, 8), b.rem(element, 8));
        let from = b.mul(element, 8);
        let v = b.load("v", Base::Buffer(x), from, 8, None);
        let to = b.mul(row, 72);
        let chunk = b.mul(chunk, 8);
        let to = b.add(to, chunk);
        b.store(Base::Shared(tile_a), to, v, None);
    });
    b.for_range("i", 0, 2, Unroll::Full, |b, i| {
        let element = b.mul(i, 32);
        let element = b.add(element, lane);
        let element = b.mul(element, 8);
        let v = b.load("v", Base::Buffer(y), element, 8, None);
        b.store(Base::Shared(tile_b), element, v, None);
    });
    b.barrier();
    let zero = b.zero(Scalar::F32.ty());
    b.for_range("r", 0, 4, Unroll::Full, |b, r| b.set_reg(acc, r, zero));
    b.for_range("k", 0, 4, Unroll::Full, |b, k| {
        let (row, half) = (b.rem(lane, 16), b.div(lane, 16));
        let from = b.mul(row, 72);
        let half = b.mul(half, 8);
        let from = b.add(from, half);
        let step = b.mul(k, 16);
        let from = b.add(from, step);
        let from = b.mem(Base::Shared(tile_a), from);
        let to = slice(b, fragment_a, 0);
        b.matrix(MatrixOp::LoadMatrix { to, count: 4, trans: false, from });
        let from = b.add(step, row);
        let from = b.mul(from, 8);
        let from = b.mem(Base::Shared(tile_b), from);
        let to = slice(b, fragment_b, 0);
        b.matrix(MatrixOp::LoadMatrix { to, count: 2, trans: true, from });
        let (a, bs, acc) = (slice(b, fragment_a, 0), slice(b, fragment_b, 0), slice(b, acc, 0));
        b.matrix(MatrixOp::Mma { input: MatrixType::F16, shape: MmaShape { m: 16, n: 8, k: 16 }, a, b: bs, acc });
    });
    let (quad, pair) = (b.div(lane, 4), b.rem(lane, 4));
    let start = b.mul(quad, 8);
    let pair = b.mul(pair, 2);
    let start = b.add(start, pair);
    let sums = Mma::find(MathUnit::Mma, MatrixType::F16).expect("an instruction").c;
    for r in 0..4 {
        let (row, column) = (sums.at(Axis::Row, 0, r, 0), sums.at(Axis::Col, 0, r, 0));
        let to = b.add(start, row * 8 + column);
        let v = b.reg(acc, r);
        b.store(Base::Buffer(z), to, v, None);
    }
    b.finish()
}

/// One AMD instruction on the second of two fragments, which stand in memory lane after lane.
pub fn amd_product(input: MatrixType, side: u32, k: u32) -> Kernel {
    let (m, n) = (side, side);
    let shape = MmaShape { m, n, k };
    let mut b = Builder::new(format!("mfma_{m}x{n}x{k}_{}", format!("{input:?}").to_lowercase()), 64);
    b.wave(64);
    let row = Mma::shaped(MathUnit::Mfma, input, shape).expect("an instruction");
    let held = row.a.held[0];
    let x = b.buffer("a", held, Access::Read, "left fragments");
    let y = b.buffer("b", held, Access::Read, "right fragments");
    let z = b.buffer("c", row.sum, Access::ReadWrite, "sums");
    let (count, sums) = (row.a.registers, m * n / 64);
    let [left, right] = ["left", "right"].map(|name| b.regs(name, held.ty(), 2 * count));
    let acc = b.regs("acc", row.sum.ty(), sums);
    let lane = b.builtin(Builtin::LocalId);
    for (regs, buffer, len) in [(left, x, 2 * count), (right, y, 2 * count), (acc, z, sums)] {
        for r in 0..len {
            let from = b.mul(lane, len);
            let from = b.add(from, r);
            let place = b.reg_place(regs, r);
            b.load_to(place, Base::Buffer(buffer), from, None);
        }
    }
    let (fa, fb) = (slice(&mut b, left, count.into()), slice(&mut b, right, count.into()));
    let sum = slice(&mut b, acc, 0);
    b.matrix(MatrixOp::Mfma { input, shape, a: fa, b: fb, acc: sum });
    for r in 0..sums {
        let to = b.mul(lane, sums);
        let to = b.add(to, r);
        let v = b.reg(acc, r);
        b.store(Base::Buffer(z), to, v, None);
    }
    b.finish()
}

/// Two work-groups each copy a half of a tile of 8 x 32 floats for both, exchange what they read, and add it up.
pub fn cluster_exchange() -> Kernel {
    let mut b = Builder::new("cluster_exchange", 64);
    b.wave(32);
    b.cluster(2);
    let map = TensorMap {
        scalar: Scalar::F32,
        round_tf32: false,
        extent: vec![32, 64],
        stride_bytes: vec![128],
        tile: vec![32, 4],
        swizzle: Swizzle::None,
        im2col: None,
    };
    let map = b.tensor_map("x", map, "64 x 32");
    let out = b.buffer("out", Scalar::F32, Access::Write, "64 x 4");
    let tile = b.shared("tile", Scalar::F32, 256, 0);
    let full = b.tx_barriers("full", 1, 1024);
    let free = b.tx_barriers("free", 1, 1032);
    let (lid, group) = (b.builtin(Builtin::LocalId), b.builtin(Builtin::GroupId(0)));
    let zero = b.int(0, Scalar::I32);
    let (full, free) = (TxRef { barriers: full, index: zero }, TxRef { barriers: free, index: zero });
    let rank = b.rem(group, 2);
    let rank = b.bind("rank", rank);
    let first = b.eq(lid, 0);
    b.if_then(first, |b| {
        b.bulk(BulkOp::Init { barrier: full, arrivals: 1 });
        b.bulk(BulkOp::Init { barrier: free, arrivals: 2 });
        b.bulk(BulkOp::InitFence);
    });
    b.push(Stmt::Barrier(BarrierScope::Cluster));
    b.if_then(first, |b| {
        b.bulk(BulkOp::Expect { barrier: full, bytes: 1024 });
        let to = b.mul(rank, 128);
        let to = b.mem(Base::Shared(tile), to);
        let row = b.mul(rank, 4);
        let both = b.int(3, Scalar::I32);
        b.bulk(BulkOp::Load { to, map, at: vec![zero, row], barrier: full, peers: Some(both) });
    });
    b.bulk(BulkOp::Wait { barrier: full, parity: zero });
    b.push(Stmt::Barrier(BarrierScope::Cluster));
    let at = b.mul(lid, 4);
    let other = b.sub(1, rank);
    let nothing = b.zero(Scalar::F32.vector(4));
    let theirs = b.declare("theirs", nothing);
    let mem = b.mem(Base::Shared(tile), at);
    b.push(Stmt::LoadPeer { place: Place::Var(theirs), mem, rank: other });
    let own = b.load("own", Base::Shared(tile), at, 4, None);
    let theirs = b.get(theirs);
    let sum = b.add(own, theirs);
    b.store(Base::Buffer(out), at, sum, None);
    let one_each = b.lt(lid, 2);
    b.if_then(one_each, |b| b.bulk(BulkOp::ArriveAt { barrier: free, rank: lid }));
    b.push(Stmt::Barrier(BarrierScope::Cluster));
    b.finish()
}
