//! Bulk stores: boxes out of shared memory, clipped, swizzled, waited for, and fenced against ordinary writes.

use crate::common;
use common::*;
use tilewright_emu::{Buffer, EmuError, Options};
use tilewright_ir::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Break {
    Nothing,
    /// No proxy fence at all.
    NoFence,
    /// The issuing thread fences, behind the barrier: right too.
    IssuerFences,
    /// The writers fence, but there is no barrier before the store.
    NoBarrier,
    /// Shared memory is overwritten without waiting for the store.
    NoWait,
    /// The issuing thread waits, the others do not hear of it.
    NoBarrierAfterWait,
    /// Nobody waits for the last store.
    NoLastWait,
    /// The second store begins at column 7.
    OddColumn,
}

const COLUMNS: u32 = 20;
const ROWS: u32 = 12;

/// Two waves write a box of 8 x 32 floats twice; thread 0 stores it at (-8, 0), then at (8, 8): both stick out.
fn kernel_of(broken: Break, swizzle: Swizzle) -> Kernel {
    kernel(64, |b| {
        b.wave(32);
        let map = TensorMap {
            scalar: Scalar::F32,
            round_tf32: false,
            extent: vec![COLUMNS.into(), ROWS.into()],
            stride_bytes: vec![u64::from(COLUMNS) * 4],
            tile: vec![32, 8],
            swizzle,
            im2col: None,
        };
        let out = b.tensor_map("out", map, "");
        let tile = b.shared("tile", Scalar::F32, 256, 0);
        let lid = b.builtin(Builtin::LocalId);
        let issuer = b.eq(lid, 0);
        let second = if broken == Break::OddColumn { 7 } else { 8 };
        for (round, corner) in [(0, (-8, 0)), (1, (second, 8))] {
            for i in 0..4 {
                let element = b.add(lid, 64 * i);
                let value = b.add(element, 1000 * round);
                let value = b.cast(value, Scalar::F32);
                let at = match swizzle {
                    Swizzle::None => element,
                    _ => {
                        // Rows of 128 bytes: the 16-byte chunk is xor-ed with the row.
                        let row = b.div(element, 32);
                        let row = b.mul(row, 4);
                        b.binary(BinaryOp::Xor, element, row)
                    }
                };
                b.store(Base::Shared(tile), at, value, None);
            }
            if !matches!(broken, Break::NoFence | Break::IssuerFences) {
                b.bulk(BulkOp::ProxyFence);
            }
            if broken != Break::NoBarrier {
                b.barrier();
            }
            b.if_then(issuer, |b| {
                if broken == Break::IssuerFences {
                    b.bulk(BulkOp::ProxyFence);
                }
                let from = b.mem(Base::Shared(tile), 0);
                let at = vec![b.int(corner.0, Scalar::I32), b.int(corner.1, Scalar::I32)];
                b.bulk(BulkOp::Store { from, map: out, at });
                b.bulk(BulkOp::StoreCommit);
                if broken != Break::NoWait && !(broken == Break::NoLastWait && round == 1) {
                    b.bulk(BulkOp::StoreWait { pending: 0 });
                }
            });
            if broken != Break::NoBarrierAfterWait {
                b.barrier();
            }
        }
    })
}

fn out() -> Buffer {
    f32s(&[-1.0; (COLUMNS * ROWS) as usize])
}

#[test]
fn boxes_are_clipped_and_swizzled() {
    for swizzle in [Swizzle::None, Swizzle::B128] {
        for broken in [Break::Nothing, Break::IssuerFences] {
            let k = kernel_of(broken, swizzle);
            let got = everywhere(&k, [1; 3], || vec![arg(&out())], |args| to_f32s(buffer(&args[0])));
            for (i, v) in got.iter().enumerate() {
                let (row, column) = (i as u32 / COLUMNS, i as u32 % COLUMNS);
                let expected = match (row, column) {
                    (8.., 8..) => 1000 + (row - 8) * 32 + column - 8,
                    (..8, _) => row * 32 + column + 8,
                    _ => {
                        assert_eq!(*v, -1.0, "row {row} column {column} of {swizzle:?}");
                        continue;
                    }
                };
                assert_eq!(*v, expected as f32, "row {row} column {column} of {swizzle:?}");
            }
        }
    }
}

fn broken(which: Break) -> EmuError {
    let k = kernel_of(which, Swizzle::B128);
    for seed in 0..8 {
        let options = Options { interleave: true, seed, ..checked() };
        assert!(tilewright_emu::run(&k, [1; 3], &[arg(&out())], &options).is_err(), "{which:?} passes with seed {seed}");
    }
    run(&k, [1; 3], &[arg(&out())]).expect_err(&format!("{which:?} passes"))
}

#[test]
fn ordinary_writes_are_fenced() {
    let error = broken(Break::NoFence);
    assert!(matches!(&error, EmuError::Unfenced { memory, .. } if memory == "tile"), "{error}");
    let error = broken(Break::NoBarrier);
    assert!(matches!(&error, EmuError::Race { other: "written", .. } | EmuError::Uninitialised { .. }), "{error}");
}

#[test]
fn sources_stay_until_they_are_waited_for() {
    let error = broken(Break::NoWait);
    assert!(matches!(&error, EmuError::Race { who, access: "write", .. } if who.contains("bulk store")), "{error}");
    // The second wave may write before the store or after: whoever comes second is told.
    let error = broken(Break::NoBarrierAfterWait);
    assert!(matches!(&error, EmuError::Race { memory, .. } if memory == "tile"), "{error}");
    let error = broken(Break::NoLastWait);
    assert!(matches!(&error, EmuError::Unfinished { what, .. } if what.contains("bulk store")), "{error}");
}

#[test]
fn copies_begin_at_multiples_of_16_bytes() {
    let error = broken(Break::OddColumn);
    assert!(matches!(&error, EmuError::Misaligned { memory, byte: 28, size: 16, .. } if memory == "out"), "{error}");
}

#[test]
fn tensor_maps_must_fit_their_buffers() {
    let k = kernel_of(Break::Nothing, Swizzle::B128);
    let small = Buffer::new((COLUMNS * ROWS * 4 - 1) as usize);
    let error = run(&k, [1; 3], &[arg(&small)]).unwrap_err();
    assert!(matches!(&error, EmuError::Launch { what, .. } if what.contains("beyond the buffer")), "{error}");
    let error = run(&k, [1; 3], &[at(&Buffer::new(4096), 8)]).unwrap_err();
    assert!(matches!(&error, EmuError::Launch { what, .. } if what.contains("multiple of 16")), "{error}");
}

/// Stores a box of 8 x 4 floats at (0, 0) of a tensor of fewer columns, in lines of 8.
fn cut_at(columns: u64) -> Kernel {
    kernel(32, |b| {
        b.wave(32);
        let map = TensorMap {
            scalar: Scalar::F32,
            round_tf32: false,
            extent: vec![columns, 4],
            stride_bytes: vec![32],
            tile: vec![8, 4],
            swizzle: Swizzle::None,
            im2col: None,
        };
        let out = b.tensor_map("out", map, "");
        let tile = b.shared("tile", Scalar::F32, 32, 0);
        let lid = b.builtin(Builtin::LocalId);
        let value = b.cast(lid, Scalar::F32);
        b.store(Base::Shared(tile), lid, value, None);
        b.bulk(BulkOp::ProxyFence);
        b.barrier();
        let issuer = b.eq(lid, 0);
        b.if_then(issuer, |b| {
            let from = b.mem(Base::Shared(tile), 0);
            let at = vec![b.int(0, Scalar::I32), b.int(0, Scalar::I32)];
            b.bulk(BulkOp::Store { from, map: out, at });
            b.bulk(BulkOp::StoreCommit);
            b.bulk(BulkOp::StoreWait { pending: 0 });
        });
    })
}

/// As an H200 does it: lines that end within 16 bytes lose what follows them.
#[test]
fn stores_end_at_sixteen_bytes() {
    let rows = |columns: u64| everywhere(&cut_at(columns), [1; 3], || vec![arg(&f32s(&[-1.0; 32]))], |a| to_f32s(buffer(&a[0])));
    let line = |got: &[f32]| got[8..16].to_vec();
    assert_eq!(line(&rows(4)), [8.0, 9.0, 10.0, 11.0, -1.0, -1.0, -1.0, -1.0]);
    assert_eq!(line(&rows(5)), [8.0, 9.0, 10.0, 11.0, 12.0, 0.0, 0.0, 0.0]);
    // The last line's end is cleared, too, be it in the buffer or not.
    let error = run(&cut_at(5), [1; 3], &[arg(&f32s(&[-1.0; 29]))]).unwrap_err();
    assert!(matches!(&error, EmuError::OutOfBounds { .. }), "{error}");
}

/// Two work-groups that store to the same elements race, as ordinary stores would.
#[test]
fn stores_of_work_groups_may_not_overlap() {
    let error = run(&kernel_of(Break::Nothing, Swizzle::None), [2, 1, 1], &[arg(&out())]).unwrap_err();
    assert!(matches!(&error, EmuError::Race { memory, .. } if memory == "out"), "{error}");
}
