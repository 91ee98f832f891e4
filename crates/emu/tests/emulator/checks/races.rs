//! Races in shared and global memory, between arguments over one buffer, and with atomics.

use super::{lid, trial};
use crate::common::*;
use tilewright_emu::{Buffer, EmuError, Options};
use tilewright_ir::*;

/// Thread `l` writes `l`, reads `l ^ by` behind a barrier of some scope.
fn exchange(by: i64, scope: Option<BarrierScope>) -> Result<(), EmuError> {
    trial(64, |b, _, y| {
        let s = b.shared("tile", Scalar::F32, 64, 0);
        let l = lid(b);
        let one = b.float(1.0, Scalar::F32);
        b.store(Base::Shared(s), l, one, None);
        if let Some(scope) = scope {
            b.push(Stmt::Barrier(scope));
        }
        let other = b.binary(BinaryOp::Xor, l, by);
        let v = b.load("v", Base::Shared(s), other, 1, None);
        b.store(y, l, v, None);
    })
}

#[test]
fn shared_races_within_and_between_waves() {
    let both = BarrierScope::Named { id: 3, threads: 64 };
    // Threads of one wave need a barrier too.
    caught!(EmuError::Race { access: "read", other: "written", .. }, exchange(1, None));
    exchange(1, Some(BarrierScope::Wave)).unwrap();
    exchange(1, Some(BarrierScope::WorkGroup)).unwrap();
    exchange(1, Some(both)).unwrap();
    exchange(0, None).unwrap();
    // Across waves, a wave barrier or a named barrier of each wave alone does not help. In the order that runs, the race may
    // show as memory not written yet.
    caught!(EmuError::Race { .. } | EmuError::Uninitialised { .. }, exchange(32, Some(BarrierScope::Wave)));
    let alone = BarrierScope::Named { id: 3, threads: 32 };
    caught!(EmuError::Race { .. } | EmuError::Uninitialised { .. }, exchange(32, Some(alone)));
    exchange(32, Some(BarrierScope::WorkGroup)).unwrap();
    exchange(32, Some(both)).unwrap();
}

#[test]
fn shared_writes_race_with_reads_and_writes() {
    let after_read = |wait: bool| {
        trial(64, |b, _, y| {
            let s = b.shared("tile", Scalar::F32, 64, 0);
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            b.store(Base::Shared(s), l, one, None);
            b.barrier();
            let other = b.binary(BinaryOp::Xor, l, 1);
            let v = b.load("v", Base::Shared(s), other, 1, None);
            if wait {
                b.barrier();
            }
            b.store(Base::Shared(s), l, v, None);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::Race { access: "write", other: "read", .. }, after_read(false));
    after_read(true).unwrap();
    let same_place = |divisor: i64| {
        trial(64, |b, _, _| {
            let s = b.shared("tile", Scalar::F32, 64, 0);
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            let i = b.binary(BinaryOp::Div, l, divisor);
            b.store(Base::Shared(s), i, one, None);
        })
    };
    caught!(EmuError::Race { access: "write", other: "written", index: 0, .. }, same_place(2));
    same_place(1).unwrap();
}

/// Arrays over one another race by byte: halves of a word do not, a float over two halves does.
#[test]
fn races_are_by_byte() {
    let overlap = |wide: bool| {
        trial(64, |b, _, _| {
            let h = b.shared("halves", Scalar::F16, 128, 0);
            let f = b.shared("floats", Scalar::F32, 64, 0);
            let l = lid(b);
            let half = b.float(1.0, Scalar::F16);
            b.store(Base::Shared(h), l, half, None);
            if wide {
                let one = b.float(1.0, Scalar::F32);
                b.store(Base::Shared(f), l, one, None);
            }
        })
    };
    caught!(EmuError::Race { memory, .. } if memory == "floats", overlap(true));
    overlap(false).unwrap();
}

#[test]
fn global_races() {
    let k = |same: bool| {
        kernel(32, |b| {
            let y = b.buffer("y", Scalar::I32, Access::ReadWrite, "");
            let (l, g) = (lid(b), b.builtin(Builtin::GroupId(0)));
            let at = b.mul(g, if same { 0 } else { 32 });
            let at = b.add(at, l);
            b.store(Base::Buffer(y), at, g, None);
        })
    };
    for threads in [1, 4] {
        let options = Options { threads, ..checked() };
        let y = [arg(&Buffer::new(1024))];
        caught!(EmuError::Race { access: "write", .. }, tilewright_emu::run(&k(true), [8, 1, 1], &y, &options));
        tilewright_emu::run(&k(false), [8, 1, 1], &y, &options).unwrap();
    }
    let within = |wait: bool| {
        trial(64, |b, _, y| {
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            b.store(y, l, one, None);
            if wait {
                b.barrier();
            }
            let other = b.binary(BinaryOp::Xor, l, 1);
            let v = b.load("v", y, other, 1, None);
            let s = b.shared("tile", Scalar::F32, 64, 0);
            b.store(Base::Shared(s), l, v, None);
        })
    };
    caught!(EmuError::Race { memory, .. } if memory == "y", within(false));
    within(true).unwrap();
}

/// Two arguments that are one buffer are watched as one.
#[test]
fn races_through_aliased_arguments() {
    let k = kernel(32, |b| {
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let l = lid(b);
        let from = b.binary(BinaryOp::Xor, l, 1);
        let v = b.load("v", Base::Buffer(x), from, 1, None);
        b.store(Base::Buffer(y), l, v, None);
    });
    let x = f32s(&[1.0; 64]);
    caught!(EmuError::Race { .. }, run(&k, [1; 3], &[arg(&x), arg(&x)]));
    run(&k, [1; 3], &[arg(&x), at(&x, 128)]).unwrap();
}

#[test]
fn atomics_race_with_plain_accesses_only() {
    let trial = |wait: bool| {
        trial(64, |b, _, y| {
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            b.store(y, l, one, None);
            b.barrier();
            let zero = b.int(0, Scalar::I32);
            b.push(Stmt::Atomic { op: AtomicOp::Add, mem: MemRef { base: y, index: zero }, value: one, guard: None });
            if wait {
                b.barrier();
            }
            let first = b.binary(BinaryOp::Eq, l, 0);
            let v = b.load("v", y, 0, 1, Some(first));
            b.store(y, l, v, Some(first));
        })
    };
    caught!(EmuError::Race { access: "read", other: "updated atomically", .. }, trial(false));
    trial(true).unwrap();
}

#[test]
fn declared_access() {
    let k = |x: Access, y: Access| {
        kernel(32, |b| {
            let x = b.buffer("x", Scalar::F32, x, "");
            let y = b.buffer("y", Scalar::F32, y, "");
            let l = lid(b);
            let v = b.load("v", Base::Buffer(x), l, 1, None);
            b.store(Base::Buffer(y), l, v, None);
        })
    };
    let go = |x, y| run(&k(x, y), [1; 3], &[arg(&f32s(&[1.0; 32])), arg(&Buffer::new(128))]);
    caught!(EmuError::Invalid { what, .. } if what.contains("`x`"), go(Access::Write, Access::Write));
    caught!(EmuError::Invalid { what, .. } if what.contains("`y`"), go(Access::Read, Access::Read));
    go(Access::Read, Access::Write).unwrap();
    go(Access::ReadWrite, Access::ReadWrite).unwrap();
}
