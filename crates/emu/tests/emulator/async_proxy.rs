//! Ordinary accesses beside those of warpgroup instructions and bulk copies: fences, registers in flight, barriers misused.

use crate::common;
use common::product::*;
use common::*;
use tilewright_emu::{Buffer, EmuError};
use tilewright_ir::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Break {
    Nothing,
    NoFence,
    /// The fence comes before the writes.
    EarlyFence,
    /// The last wave does not fence.
    OneWaveDoesNot,
    NoBarrier,
    /// A sum is overwritten before it is waited for.
    WrittenInFlight,
    /// Another instruction with other registers begins before the first is waited for.
    OtherShape,
    /// One wave multiplies less often.
    OneWaveMissing,
    /// The address differs between waves.
    OtherAddress,
}

/// A warpgroup brings a 64 x 16 and an 8 x 16 tile of f16 to shared memory itself, by stores or asynchronous copies, and
/// multiplies them.
fn own_tiles(copies: bool, broken: Break) -> Kernel {
    kernel(128, |b| {
        b.wave(32);
        let x = b.buffer("a", Scalar::F16, Access::Read, "");
        let y = b.buffer("b", Scalar::F16, Access::Read, "");
        let z = b.buffer("c", Scalar::F32, Access::Write, "");
        let s = b.shared("tile_a", Scalar::F16, 1024, 0);
        let t = b.shared("tile_b", Scalar::F16, 128, 2048);
        let sums = b.regs("sums", Scalar::F32.ty(), 8);
        let lid = b.builtin(Builtin::LocalId);
        let zero = b.int(0, Scalar::I32);
        let yes = b.int(1, Scalar::Bool);
        if broken == Break::EarlyFence {
            b.bulk(BulkOp::ProxyFence);
        }
        // Chunks of 8 elements; chunk c of row r stands at 8 rows x c, then row by row.
        let bring = |b: &mut Builder, from: ArgId, to: SharedId, rows: u32, guard: Option<ExprId>| {
            let (row, chunk) = (b.div(lid, 2), b.rem(lid, 2));
            let source = b.mul(lid, 8);
            let row = b.mul(row, 8);
            let column = b.mul(chunk, rows * 8);
            let target = b.add(row, column);
            if copies {
                let (dst, src) = (b.mem(Base::Shared(to), target), b.mem(Base::Buffer(from), source));
                let copy = |b: &mut Builder| b.push(Stmt::AsyncCopy { dst, src, lanes: 8, guard: None });
                match guard {
                    Some(g) => b.if_then(g, copy),
                    None => copy(b),
                }
            } else {
                let v = b.load("v", Base::Buffer(from), source, 8, guard);
                b.store(Base::Shared(to), target, v, guard);
            }
        };
        bring(b, x, s, 64, None);
        let few = b.lt(lid, 16);
        bring(b, y, t, 8, Some(few));
        if copies {
            b.push(Stmt::AsyncCommit);
            b.push(Stmt::AsyncWait(0));
        }
        match broken {
            Break::NoFence | Break::EarlyFence => {}
            Break::OneWaveDoesNot => {
                let early = b.lt(lid, 96);
                b.if_then(early, |b| b.bulk(BulkOp::ProxyFence));
            }
            _ => b.bulk(BulkOp::ProxyFence),
        }
        if broken != Break::NoBarrier {
            b.barrier();
        }
        let tile = |array, rows: u32, byte| SharedTile {
            array,
            byte,
            swizzle: Swizzle::None,
            k_contiguous: true,
            leading_bytes: rows * 16,
            stride_bytes: 128,
        };
        let no = b.int(0, Scalar::Bool);
        let wave = b.div(lid, 32);
        let byte = if broken == Break::OtherAddress { b.mul(wave, 0x10) } else { zero };
        let multiply = |b: &mut Builder, first: u32, accumulate| {
            let first = b.int(first.into(), Scalar::I32);
            b.matrix(MatrixOp::Warpgroup {
                input: MatrixType::F16,
                n: 8,
                a: WarpgroupA::Shared(tile(s, 64, byte)),
                b: tile(t, 8, zero),
                acc: RegSlice { regs: sums, first },
                accumulate,
            });
        };
        b.matrix(MatrixOp::WarpgroupFence { acc: sums, left: vec![] });
        multiply(b, 0, no);
        if broken == Break::OneWaveMissing {
            let early = b.lt(wave, 3);
            b.if_then(early, |b| multiply(b, 0, yes));
        } else {
            multiply(b, if broken == Break::OtherShape { 2 } else { 0 }, if broken == Break::OtherShape { no } else { yes });
        }
        b.matrix(MatrixOp::WarpgroupCommit);
        if broken == Break::WrittenInFlight {
            let value = b.float(0.0, Scalar::F32);
            b.set_reg(sums, 3, value);
        }
        b.matrix(MatrixOp::WarpgroupWait { pending: 0, acc: sums });
        store_sums(b, lid, sums, z);
    })
}

#[test]
fn tiles_of_ordinary_writes() {
    for copies in [false, true] {
        let got = everywhere(&own_tiles(copies, Break::Nothing), [1; 3], || arguments(16), |args| to_f32s(buffer(&args[2])));
        for (x, v) in got.iter().enumerate() {
            let expected = expected(16, x);
            assert_eq!(*v, 2.0 * expected, "row {} column {}, copies: {copies}", x / 8, x % 8);
        }
    }
}

fn broken(copies: bool, which: Break) -> EmuError {
    failure(&own_tiles(copies, which), 16, &format!("{which:?}"))
}

#[test]
fn warpgroup_instructions_see_fenced_writes_only() {
    for copies in [false, true] {
        for which in [Break::NoFence, Break::EarlyFence, Break::OneWaveDoesNot] {
            let error = broken(copies, which);
            assert!(matches!(&error, EmuError::Unfenced { memory, .. } if memory == "tile_a"), "{which:?}: {error}");
        }
        let error = broken(copies, Break::NoBarrier);
        assert!(matches!(&error, EmuError::Race { .. } | EmuError::Uninitialised { .. }), "{error}");
    }
}

#[test]
fn registers_in_flight_are_left_alone() {
    let error = broken(false, Break::WrittenInFlight);
    assert!(matches!(&error, EmuError::Registers { index: 3, what, .. } if what.contains("written")), "{error}");
    let error = broken(false, Break::OtherShape);
    assert!(matches!(&error, EmuError::Registers { index: 2, what, .. } if what.contains("another shape")), "{error}");
}

#[test]
fn warpgroups_go_together() {
    let error = broken(false, Break::OneWaveMissing);
    assert!(matches!(&error, EmuError::Divergent { scope: "warpgroup", .. }), "{error}");
    let error = broken(false, Break::OtherAddress);
    assert!(matches!(&error, EmuError::Divergent { what: "operand address", .. }), "{error}");
}

/// One wave, a barrier and a box of 64 floats that is loaded into memory that the wave used before.
fn reloaded(f: impl Fn(&mut Builder, &str)) -> Result<(), EmuError> {
    let k = kernel(32, |b| {
        b.wave(32);
        let map = TensorMap {
            scalar: Scalar::F32,
            round_tf32: false,
            extent: vec![32, 2],
            stride_bytes: vec![128],
            tile: vec![32, 2],
            swizzle: Swizzle::None,
            im2col: None,
        };
        let x = b.tensor_map("x", map, "");
        let out = b.buffer("out", Scalar::F32, Access::Write, "");
        let s = b.shared("tile", Scalar::F32, 64, 0);
        let bars = b.tx_barriers("full", 2, 256);
        let lid = b.builtin(Builtin::LocalId);
        let zero = b.int(0, Scalar::I32);
        let barrier = TxRef { barriers: bars, index: zero };
        let first = b.eq(lid, 0);
        b.if_then(first, |b| {
            b.bulk(BulkOp::Init { barrier, arrivals: 1 });
            f(b, "init");
            b.bulk(BulkOp::InitFence);
        });
        b.barrier();
        let one = b.float(1.0, Scalar::F32);
        b.store(Base::Shared(s), lid, one, None);
        f(b, "written");
        b.barrier();
        b.if_then(first, |b| {
            f(b, "issue");
            b.bulk(BulkOp::Expect { barrier, bytes: 256 });
            let to = b.mem(Base::Shared(s), 0);
            b.bulk(BulkOp::Load { to, map: x, at: vec![zero, zero], barrier, peers: None });
        });
        b.bulk(BulkOp::Wait { barrier, parity: zero });
        f(b, "waited");
        let v = b.load("v", Base::Shared(s), lid, 1, None);
        b.store(Base::Buffer(out), lid, v, None);
    });
    let x = f32s(&(0..64).map(|i| i as f32).collect::<Vec<_>>());
    let out = Buffer::new(128);
    let result = run(&k, [1; 3], &[arg(&x), arg(&out)]).map(|_| ());
    if result.is_ok() {
        assert_eq!(to_f32s(&out), (0..32).map(|i| i as f32).collect::<Vec<_>>());
    }
    result
}

fn first_barrier(b: &mut Builder) -> TxRef {
    TxRef { barriers: TxId(0), index: b.int(0, Scalar::I32) }
}

#[test]
fn bulk_loads_over_ordinary_writes() {
    reloaded(|b, at| {
        if at == "written" {
            b.bulk(BulkOp::ProxyFence);
        }
    })
    .unwrap();
    let error = reloaded(|_, _| {}).unwrap_err();
    assert!(matches!(&error, EmuError::Unfenced { memory, .. } if memory == "tile"), "{error}");
}

#[test]
fn barriers_misused() {
    let error = |place: &'static str, f: &dyn Fn(&mut Builder)| {
        let result = reloaded(|b, at| {
            if at == "written" {
                b.bulk(BulkOp::ProxyFence);
            }
            if at == place {
                f(b);
            }
        });
        match result {
            Err(EmuError::TxBarrier { what, .. }) => what,
            Err(EmuError::Deadlock { waiting, .. }) => waiting,
            Err(EmuError::OutOfBounds { memory, index, .. }) => format!("{memory}[{index}]"),
            other => panic!("{place}: {other:?}"),
        }
    };
    let again = |b: &mut Builder| {
        let barrier = first_barrier(b);
        b.bulk(BulkOp::Init { barrier, arrivals: 1 });
    };
    assert!(error("init", &again).contains("initialised twice"));
    let too_many = |b: &mut Builder| {
        let barrier = first_barrier(b);
        b.bulk(BulkOp::Expect { barrier, bytes: 256 });
    };
    assert!(error("issue", &too_many).contains("more than the 1 arrivals"));
    let too_much = |b: &mut Builder| {
        let barrier = first_barrier(b);
        b.bulk(BulkOp::Expect { barrier, bytes: 1 << 20 });
    };
    assert!(error("issue", &too_much).contains("up to 1048575"));
    let parity = |b: &mut Builder| {
        let (barrier, parity) = (first_barrier(b), b.int(2, Scalar::I32));
        b.bulk(BulkOp::Wait { barrier, parity });
    };
    assert!(error("waited", &parity).contains("0 or 1, not 2"));
    let next_phase = |b: &mut Builder| {
        let (barrier, parity) = (first_barrier(b), b.int(1, Scalar::I32));
        b.bulk(BulkOp::Wait { barrier, parity });
    };
    assert!(error("waited", &next_phase).contains("1 arrivals and 0 bytes missing"));
    let outside = |b: &mut Builder| {
        let barrier = TxRef { barriers: TxId(0), index: b.int(2, Scalar::I32) };
        b.bulk(BulkOp::Arrive { barrier });
    };
    assert_eq!(error("waited", &outside), "full[2]");
}
