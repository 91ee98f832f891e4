//! Bounds, alignment, and memory and registers that nobody has written.

use super::{lid, trial};
use crate::common::*;
use tilewright_emu::{ArgValue, Buffer, EmuError};
use tilewright_ir::*;

#[test]
fn global_bounds() {
    let reach = |by: i64| {
        trial(64, |b, x, y| {
            let l = lid(b);
            let i = b.add(l, by);
            let v = b.load("v", x, i, 1, None);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::OutOfBounds { memory, index: 64, len: 64, at, .. } if memory == "x" && at.thread == 63, reach(1));
    caught!(EmuError::OutOfBounds { index: -1, .. }, reach(-1));
    reach(0).unwrap();
}

#[test]
fn cursor_and_store_bounds() {
    let reach = |by: i64| {
        trial(64, |b, x, y| {
            let (Base::Buffer(x), l) = (x, lid(b)) else { return };
            let at = b.cursor("at", x, l);
            b.advance(at, by);
            let v = b.load("v", Base::Cursor(at), 0, 1, None);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::OutOfBounds { index: 64, .. }, reach(1));
    reach(0).unwrap();
    let write = |by: i64| {
        trial(64, |b, _, y| {
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            let i = b.add(l, by);
            b.store(y, i, one, None);
        })
    };
    caught!(EmuError::OutOfBounds { memory, .. } if memory == "y", write(3));
    write(0).unwrap();
}

#[test]
fn shared_bounds() {
    let reach = |len: u32| {
        trial(64, |b, _, y| {
            // Another array behind it: the bounds are the array's, not those of all shared memory.
            let s = b.shared("tile", Scalar::F32, len, 0);
            b.shared("behind", Scalar::F32, 64, len * 4);
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            b.store(Base::Shared(s), l, one, None);
            b.barrier();
            let v = b.load("v", Base::Shared(s), l, 1, None);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::OutOfBounds { memory, index: 63, len: 63, .. } if memory == "tile", reach(63));
    reach(64).unwrap();
}

/// Vector bounds count every element moved.
#[test]
fn vector_bounds() {
    let reach = |n: usize| {
        trial(n, |b, x, y| {
            let l = lid(b);
            let i = b.mul(l, 2);
            let v = b.load("v", x, i, 2, None);
            b.store(y, i, v, None);
        })
    };
    caught!(EmuError::OutOfBounds { lanes: 2, index: 126, .. }, reach(127));
    reach(128).unwrap();
}

#[test]
fn alignment() {
    let shifted = |by: i64| {
        trial(260, |b, x, y| {
            let l = lid(b);
            let i = b.mul(l, 4);
            let from = b.add(i, by);
            let v = b.load("v", x, from, 4, None);
            b.store(y, i, v, None);
        })
    };
    caught!(EmuError::Misaligned { byte: 8, size: 16, .. }, shifted(2));
    shifted(4).unwrap();
    let shared = |by: u32| {
        trial(256, |b, _, y| {
            let s = b.shared("tile", Scalar::F32, 256, by);
            let l = lid(b);
            let i = b.mul(l, 4);
            let one = b.float(1.0, Scalar::F32);
            let ones = b.splat(one, 4);
            b.store(Base::Shared(s), i, ones, None);
            let v = b.load("v", Base::Shared(s), i, 4, None);
            b.store(y, i, v, None);
        })
    };
    caught!(EmuError::Misaligned { memory, .. } if memory == "tile", shared(8));
    shared(16).unwrap();
}

/// The offset of an argument counts.
#[test]
fn alignment_of_arguments() {
    let k = kernel(8, |b| {
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let l = lid(b);
        let i = b.mul(l, 2);
        let v = b.load("v", Base::Buffer(x), i, 2, None);
        b.store(Base::Buffer(y), i, v, None);
    });
    let x = f32s(&[1.0; 20]);
    caught!(EmuError::Misaligned { .. }, run(&k, [1; 3], &[at(&x, 4), arg(&Buffer::new(64))]));
    run(&k, [1; 3], &[at(&x, 8), arg(&Buffer::new(64))]).unwrap();
}

#[test]
fn uninitialised_registers() {
    let whole = |init: bool| {
        trial(64, |b, _, y| {
            let l = lid(b);
            let r = b.regs("acc", Scalar::F32.ty(), 2);
            if init {
                let zero = b.float(0.0, Scalar::F32);
                b.set_reg(r, 1, zero);
            }
            let v = b.reg(r, 1);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::Uninitialised { memory, index: 1, .. } if memory == "acc", whole(false));
    whole(true).unwrap();
    // Assigned by some threads, or by a loop that may not run.
    let partly = |limit: i64, reads: i64| {
        trial(64, |b, _, y| {
            let l = lid(b);
            let r = b.regs("acc", Scalar::F32.ty(), 1);
            let few = b.binary(BinaryOp::Lt, l, limit);
            let one = b.float(1.0, Scalar::F32);
            b.if_then(few, |b| b.set_reg(r, 0, one));
            let some = b.binary(BinaryOp::Lt, l, reads);
            b.if_then(some, |b| {
                let v = b.reg(r, 0);
                b.store(y, l, v, None);
            });
        })
    };
    caught!(EmuError::Uninitialised { at, .. } if at.thread == 40, partly(40, 41));
    partly(40, 40).unwrap();
    let looped = |times: i32| {
        let k = kernel(32, |b| {
            let y = b.buffer("y", Scalar::F32, Access::Write, "");
            let n = b.scalar_arg("n", Scalar::I32, "");
            let l = lid(b);
            let r = b.regs("acc", Scalar::F32.ty(), 1);
            b.for_range("i", 0, n, Unroll::No, |b, _| {
                let one = b.float(1.0, Scalar::F32);
                b.set_reg(r, 0, one);
            });
            let v = b.reg(r, 0);
            b.store(Base::Buffer(y), l, v, None);
        });
        run(&k, [1; 3], &[arg(&Buffer::new(128)), ArgValue::I32(times)])
    };
    caught!(EmuError::Uninitialised { .. }, looped(0));
    looped(1).unwrap();
}

#[test]
fn uninitialised_memory() {
    let shared = |written: i64| {
        trial(64, |b, _, y| {
            let s = b.shared("tile", Scalar::F32, 64, 0);
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            let few = b.binary(BinaryOp::Lt, l, written);
            b.store(Base::Shared(s), l, one, Some(few));
            b.barrier();
            let v = b.load("v", Base::Shared(s), l, 1, None);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::Uninitialised { memory, index: 50, .. } if memory == "tile", shared(50));
    shared(64).unwrap();
    let global = |first: bool| {
        trial(64, |b, _, y| {
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            if first {
                b.store(y, l, one, None);
            }
            let v = b.load("v", y, l, 1, None);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::Uninitialised { memory, index: 0, .. } if memory == "y", global(false));
    global(true).unwrap();
}

/// What an earlier work-group wrote to shared memory is gone.
#[test]
fn shared_memory_starts_fresh_in_every_work_group() {
    let k = kernel(32, |b| {
        let s = b.shared("tile", Scalar::F32, 32, 0);
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let (l, g) = (lid(b), b.builtin(Builtin::GroupId(0)));
        let first = b.binary(BinaryOp::Eq, g, 0);
        let one = b.float(1.0, Scalar::F32);
        b.if_then(first, |b| b.store(Base::Shared(s), l, one, None));
        let v = b.load("v", Base::Shared(s), l, 1, None);
        b.if_then(first, |b| b.store(Base::Buffer(y), l, v, None));
    });
    let y = [arg(&Buffer::new(128))];
    run(&k, [1; 3], &y).unwrap();
    caught!(EmuError::Uninitialised { at, .. } if at.group == [1, 0, 0], run(&k, [2, 1, 1], &y));
}
