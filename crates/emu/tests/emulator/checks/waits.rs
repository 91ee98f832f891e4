//! Barriers of groups, waves and roles, and asynchronous copies.

use super::{lid, trial};
use crate::common::*;
use tilewright_emu::{Buffer, EmuError, Options};
use tilewright_ir::*;

#[test]
fn divergent_barriers() {
    let inside = |limit: i64| {
        trial(64, |b, _, _| {
            let l = lid(b);
            let some = b.binary(BinaryOp::Lt, l, limit);
            b.if_then(some, |b| b.barrier());
        })
    };
    caught!(EmuError::Divergent { what: "barrier", at, .. } if at.thread == 40, inside(40));
    // Whole waves that skip it stop the work-group as well.
    caught!(EmuError::Divergent { .. } | EmuError::Deadlock { .. }, inside(32));
    inside(64).unwrap();
    let returned = |limit: i64| {
        trial(64, |b, _, _| {
            let l = lid(b);
            let some = b.binary(BinaryOp::Lt, l, limit);
            b.if_then(some, |b| b.push(Stmt::Return));
            b.barrier();
        })
    };
    caught!(EmuError::Divergent { at, .. } if at.thread == 0, returned(3));
    returned(0).unwrap();
}

#[test]
fn divergent_shuffles_and_wave_barriers() {
    for shuffle in [true, false] {
        let inside = |limit: i64| {
            trial(64, |b, _, _| {
                let l = lid(b);
                let some = b.binary(BinaryOp::Lt, l, limit);
                b.if_then(some, |b| {
                    if shuffle {
                        let got = b.declare("got", l);
                        b.push(Stmt::Shuffle { place: Place::Var(got), value: l, kind: ShuffleKind::Xor(1) });
                    } else {
                        b.push(Stmt::Barrier(BarrierScope::Wave));
                    }
                });
            })
        };
        caught!(EmuError::Divergent { scope: "wave", at, .. } if at.thread == 20, inside(20));
        inside(32).unwrap();
    }
}

fn roles(b: &mut Builder, first: impl FnOnce(&mut Builder), second: impl FnOnce(&mut Builder)) {
    let (first, second) = (b.block(first), b.block(second));
    b.push(Stmt::Roles(vec![
        Role { name: "load".into(), first_thread: 0, threads: 32, body: first },
        Role { name: "math".into(), first_thread: 32, threads: 32, body: second },
    ]));
}
fn barriers(n: usize) -> impl FnOnce(&mut Builder) {
    move |b| (0..n).for_each(|_| b.barrier())
}
fn named(ids: &[u8], threads: u32) -> impl FnOnce(&mut Builder) {
    move |b| ids.iter().for_each(|&id| b.push(Stmt::Barrier(BarrierScope::Named { id, threads })))
}

#[test]
fn roles_with_unequal_barrier_counts_deadlock() {
    let counts = |a, c| trial(64, |b, _, _| roles(b, barriers(a), barriers(c)));
    match counts(3, 2) {
        Err(EmuError::Deadlock { waiting, at }) => {
            assert!(waiting.contains("threads 0..32 wait at barrier 0") && waiting.contains("threads 32..64 have ended"));
            assert!(at.statement.contains("load"), "{at}");
        }
        other => panic!("{other:?}"),
    }
    counts(3, 3).unwrap();
}

#[test]
fn named_barriers() {
    let order = |a: &[u8], c: &[u8]| trial(64, |b, _, _| roles(b, named(a, 64), named(c, 64)));
    caught!(EmuError::Deadlock { .. }, order(&[1, 2], &[2, 1]));
    order(&[1, 2], &[1, 2]).unwrap();
    let counts = |a: u32, c: u32| trial(64, |b, _, _| roles(b, named(&[1], a), named(&[1], c)));
    caught!(EmuError::Deadlock { .. } | EmuError::BarrierCount { .. }, counts(64, 32));
    caught!(EmuError::BarrierCount { id: 1, .. }, counts(48, 48));
    counts(64, 64).unwrap();
    counts(32, 32).unwrap();
    let id = |id: u8| trial(64, |b, _, _| roles(b, named(&[id], 64), named(&[id], 64)));
    caught!(EmuError::BarrierCount { id: 0, .. }, id(0));
    id(16).unwrap();
}

/// Producer and consumer over one buffer, "full" and "empty" as named barriers; each of the waits may be left out.
fn pipeline(full: bool, empty: bool) -> Result<Vec<f32>, EmuError> {
    let k = kernel(64, |b| {
        b.wave(32);
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let s = b.shared("tile", Scalar::F32, 32, 0);
        let l = lid(b);
        let lane = b.binary(BinaryOp::Rem, l, 32);
        let wait = |b: &mut Builder, id, really| {
            if really {
                b.push(Stmt::Barrier(BarrierScope::Named { id, threads: 64 }));
            }
        };
        roles(
            b,
            |b| {
                b.for_range("i", 0, 6, Unroll::No, |b, i| {
                    let at = b.mul(i, 32);
                    let at = b.add(at, lane);
                    let v = b.load("v", Base::Buffer(x), at, 1, None);
                    b.store(Base::Shared(s), lane, v, None);
                    wait(b, 1, full);
                    wait(b, 2, empty);
                });
            },
            |b| {
                let zero = b.float(0.0, Scalar::F32);
                let sum = b.declare("sum", zero);
                b.for_range("i", 0, 6, Unroll::No, |b, _| {
                    wait(b, 1, full);
                    let other = b.binary(BinaryOp::Xor, lane, 5);
                    let v = b.load("v", Base::Shared(s), other, 1, None);
                    let t = b.get(sum);
                    let t = b.add(t, v);
                    b.set(sum, t);
                    wait(b, 2, empty);
                });
                let t = b.get(sum);
                b.store(Base::Buffer(y), lane, t, None);
            },
        );
    });
    let values: Vec<f32> = (0..192).map(|i| i as f32).collect();
    let mut results = Vec::new();
    for seed in 0..6 {
        let options = Options { interleave: seed > 0, seed, ..checked() };
        let y = Buffer::new(128);
        tilewright_emu::run(&k, [1; 3], &[arg(&f32s(&values)), arg(&y)], &options)?;
        results.push(to_f32s(&y));
    }
    assert!(results.iter().all(|r| *r == results[0]));
    Ok(results.swap_remove(0))
}

#[test]
fn producer_and_consumer() {
    let sums = pipeline(true, true).unwrap();
    let want = |l: i32| (0..6).map(|i| (i * 32 + (l ^ 5)) as f32).sum::<f32>();
    assert_eq!(sums, (0..32).map(want).collect::<Vec<_>>());
    for (full, empty) in [(false, true), (true, false), (false, false)] {
        caught!(EmuError::Race { .. } | EmuError::Uninitialised { .. }, pipeline(full, empty));
    }
}

/// How a copy is waited for.
#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Nothing,
    Barrier,
    Copy,
    Both,
    Uncommitted,
}

fn copied(wait: Wait, by: i64) -> Result<(), EmuError> {
    trial(64, |b, x, y| {
        let s = b.shared("tile", Scalar::F32, 64, 0);
        let l = lid(b);
        let (dst, src) = (b.mem(Base::Shared(s), l), b.mem(x, l));
        b.push(Stmt::AsyncCopy { dst, src, lanes: 1, guard: None });
        if wait != Wait::Uncommitted {
            b.push(Stmt::AsyncCommit);
        }
        if matches!(wait, Wait::Copy | Wait::Both | Wait::Uncommitted) {
            b.push(Stmt::AsyncWait(0));
        }
        if matches!(wait, Wait::Barrier | Wait::Both) {
            b.barrier();
        }
        let from = b.binary(BinaryOp::Xor, l, by);
        let v = b.load("v", Base::Shared(s), from, 1, None);
        b.store(y, l, v, None);
    })
}

#[test]
fn async_copies_must_be_waited_for() {
    caught!(EmuError::InFlight { access: "read", .. }, copied(Wait::Nothing, 0));
    caught!(EmuError::InFlight { .. }, copied(Wait::Barrier, 1));
    caught!(EmuError::InFlight { .. }, copied(Wait::Uncommitted, 0));
    caught!(EmuError::Race { .. } | EmuError::InFlight { .. }, copied(Wait::Copy, 1));
    copied(Wait::Copy, 0).unwrap();
    copied(Wait::Both, 1).unwrap();
}

/// Two copies in flight, two buffers: waiting for all but one makes the first readable only.
#[test]
fn async_groups() {
    let groups = |left: u32, read: u32| {
        trial(128, |b, x, y| {
            let parts = [0, 1].map(|i| b.shared(["one", "two"][i], Scalar::F32, 64, i as u32 * 256));
            let l = lid(b);
            for (i, &s) in parts.iter().enumerate() {
                let from = b.add(l, i * 64);
                let (dst, src) = (b.mem(Base::Shared(s), l), b.mem(x, from));
                b.push(Stmt::AsyncCopy { dst, src, lanes: 1, guard: None });
                b.push(Stmt::AsyncCommit);
            }
            b.push(Stmt::AsyncWait(left));
            b.barrier();
            let v = b.load("v", Base::Shared(parts[read as usize]), l, 1, None);
            b.store(y, l, v, None);
        })
    };
    groups(1, 0).unwrap();
    caught!(EmuError::InFlight { memory, .. } if memory == "two", groups(1, 1));
    groups(0, 1).unwrap();
}

/// A copy issued over a tile that others still read, and a source changed while it is read.
#[test]
fn async_copies_respect_other_accesses() {
    let reuse = |wait: bool| {
        trial(64, |b, x, y| {
            let s = b.shared("tile", Scalar::F32, 64, 0);
            let l = lid(b);
            let other = b.binary(BinaryOp::Xor, l, 1);
            let (dst, src) = (b.mem(Base::Shared(s), l), b.mem(x, l));
            for turn in 0..2 {
                b.push(Stmt::AsyncCopy { dst, src, lanes: 1, guard: None });
                b.push(Stmt::AsyncCommit);
                b.push(Stmt::AsyncWait(0));
                b.barrier();
                let v = b.load("v", Base::Shared(s), other, 1, None);
                b.store(y, l, v, None);
                if wait && turn == 0 {
                    b.barrier();
                }
            }
        })
    };
    caught!(EmuError::Race { access: "write", other: "read", .. }, reuse(false));
    reuse(true).unwrap();
    let source = |wait: bool| {
        trial(64, |b, _, y| {
            let s = b.shared("tile", Scalar::F32, 64, 0);
            let l = lid(b);
            let one = b.float(1.0, Scalar::F32);
            b.store(y, l, one, None);
            let (dst, src) = (b.mem(Base::Shared(s), l), b.mem(y, l));
            b.push(Stmt::AsyncCopy { dst, src, lanes: 1, guard: None });
            b.push(Stmt::AsyncCommit);
            if wait {
                b.push(Stmt::AsyncWait(0));
            }
            b.store(y, l, one, None);
            b.push(Stmt::AsyncWait(0));
        })
    };
    caught!(EmuError::InFlight { memory, access: "overwritten", .. } if memory == "y", source(false));
    source(true).unwrap();
}

/// Where the guard is false, zeros arrive and the source may be anywhere.
#[test]
fn guarded_async_copies_fill_with_zeros() {
    let k = kernel(32, |b| {
        let x = b.buffer("x", Scalar::F16, Access::Read, "");
        let y = b.buffer("y", Scalar::F16, Access::Write, "");
        let s = b.shared("tile", Scalar::F16, 256, 0);
        let l = lid(b);
        let i = b.mul(l, 8);
        let few = b.binary(BinaryOp::Lt, l, 3);
        let (dst, src) = (b.mem(Base::Shared(s), i), b.mem(Base::Buffer(x), i));
        b.push(Stmt::AsyncCopy { dst, src, lanes: 8, guard: Some(few) });
        b.push(Stmt::AsyncCommit);
        b.push(Stmt::AsyncWait(0));
        let v = b.load("v", Base::Shared(s), i, 8, None);
        b.store(Base::Buffer(y), i, v, None);
    });
    let x: Vec<u8> = (0..24u16).flat_map(|i| (i + 1).to_le_bytes()).collect();
    let make = || vec![arg(&Buffer::from_bytes(&x)), arg(&Buffer::new(512))];
    let out = everywhere(&k, [1; 3], make, |a| to_u16s(buffer(&a[1])));
    assert_eq!(out[..24], (1..=24).collect::<Vec<u16>>());
    assert!(out[24..].iter().all(|&v| v == 0));
}
