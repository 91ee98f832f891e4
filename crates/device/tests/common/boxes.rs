//! A kernel of bulk copies, which only some devices run.

use tilewright_ir::{Access, Base, Builder, Builtin, Kernel, Scalar, Stmt};

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
        im2col: None,
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
