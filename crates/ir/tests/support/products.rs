//! Kernels as generators build them: a whole product, copies and fetches at edges.

use tilewright_ir::*;

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

/// Four products of bytes at a time, of each thread.
pub fn dot_products(scalar: Scalar) -> Kernel {
    let mut b = Builder::new(format!("dot_{scalar}"), 64);
    let x = b.buffer("a", scalar, Access::Read, "four of each thread");
    let y = b.buffer("b", scalar, Access::Read, "likewise");
    let z = b.buffer("c", Scalar::I32, Access::ReadWrite, "sums");
    let lane = b.builtin(Builtin::LocalId);
    let at = b.mul(lane, 4);
    let [p, q] = [x, y].map(|buffer| b.load("four", Base::Buffer(buffer), at, 4, None));
    let old = b.load("old", Base::Buffer(z), lane, 1, None);
    let sum = b.fma(p, q, old);
    b.store(Base::Buffer(z), lane, sum, None);
    b.finish()
}
