//! Every check catches a kernel that breaks its rule and lets the mended kernel pass.

mod common;

use common::*;
use tilewright_emu::{ArgValue, Buffer, EmuError, Options};
use tilewright_ir::*;

fn lid(b: &mut Builder) -> ExprId {
    b.builtin(Builtin::LocalId)
}

/// A kernel of 64 threads over `x` (read) and `y` (written), waves of 32, and its run on fresh buffers of `n` floats.
fn trial(n: usize, f: impl FnOnce(&mut Builder, Base, Base)) -> Result<(), EmuError> {
    let k = kernel(64, |b| {
        b.wave(32);
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::ReadWrite, "");
        f(b, Base::Buffer(x), Base::Buffer(y));
    });
    let args = [arg(&f32s(&vec![1.0; n])), arg(&Buffer::new(n * 4))];
    let result = run(&k, [1; 3], &args);
    // A rule is broken or kept whatever the order of waves.
    for seed in 0..3 {
        let options = Options { interleave: true, seed, ..checked() };
        let again = tilewright_emu::run(&k, [1; 3], &[arg(&f32s(&vec![1.0; n])), arg(&Buffer::new(n * 4))], &options);
        assert_eq!(again.is_ok(), result.is_ok(), "seed {seed}: {again:?} {result:?}");
    }
    result.map(|_| ())
}

macro_rules! caught {
    ($pattern:pat $(if $guard:expr)?, $result:expr) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            other => panic!("not caught as {}: {other:?}", stringify!($pattern)),
        }
    };
}

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

#[test]
fn register_index() {
    let index = |i: i64| {
        trial(64, |b, _, y| {
            let r = b.regs("acc", Scalar::F32.ty(), 4);
            let one = b.float(1.0, Scalar::F32);
            b.for_range("i", 0, 4, Unroll::Full, |b, c| {
                let c = b.add(c, i);
                b.set_reg(r, c, one);
            });
            let l = lid(b);
            let v = b.reg(r, 3);
            b.store(y, l, v, None);
        })
    };
    caught!(EmuError::OutOfBounds { memory, index: 4, .. } if memory == "acc", index(1));
    caught!(EmuError::OutOfBounds { index: -1, .. }, index(-1));
    index(0).unwrap();
    let at_run_time = trial(64, |b, _, _| {
        let r = b.regs("acc", Scalar::F32.ty(), 4);
        let one = b.float(1.0, Scalar::F32);
        b.for_range("i", 0, 4, Unroll::No, |b, c| b.set_reg(r, c, one));
    });
    caught!(EmuError::Invalid { .. }, at_run_time);
}

#[test]
fn runaway_loops() {
    let k = kernel(32, |b| {
        let n = b.scalar_arg("n", Scalar::I32, "");
        b.for_range("outer", 0, n, Unroll::No, |b, _| {
            b.for_range("inner", 0, n, Unroll::No, |b, _| b.barrier());
        });
    });
    let options = Options { max_steps: 1000, ..checked() };
    match tilewright_emu::run(&k, [1; 3], &[ArgValue::I32(100_000)], &options) {
        Err(EmuError::Runaway { at, steps: 1000 }) => assert!(at.statement.contains("for inner"), "{at}"),
        other => panic!("{other:?}"),
    }
    tilewright_emu::run(&k, [1; 3], &[ArgValue::I32(30)], &options).unwrap();
}

#[test]
fn integer_overflow() {
    // Thread 63 reaches 2^31 first.
    let product = |factor: i64, limit: i64| {
        trial(64, |b, _, _| {
            let s = b.shared("tile", Scalar::I32, 64, 0);
            let l = lid(b);
            let active = b.binary(BinaryOp::Lt, l, limit);
            b.if_then(active, |b| {
                let v = b.mul(l, factor);
                b.store(Base::Shared(s), l, v, None);
            });
        })
    };
    caught!(EmuError::Overflow { ty: "i32", at } if at.thread == 63, product(34_100_000, 64));
    product(34_000_000, 64).unwrap();
    // Threads that are not there do not count.
    product(34_100_000, 63).unwrap();
    let wide = |start: i64| {
        let k = kernel(32, |b| {
            let y = b.buffer("y", Scalar::I64, Access::Write, "");
            let n = b.scalar_arg("n", Scalar::I64, "");
            let l = lid(b);
            let v = b.add(n, 1);
            b.store(Base::Buffer(y), l, v, None);
        });
        run(&k, [1; 3], &[arg(&Buffer::new(256)), ArgValue::I64(start)])
    };
    caught!(EmuError::Overflow { ty: "i64", .. }, wide(i64::MAX));
    wide(i64::MAX - 1).unwrap();
}

#[test]
fn division_by_zero() {
    let divide = |by: i32| {
        let k = kernel(40, |b| {
            let y = b.buffer("y", Scalar::I32, Access::Write, "");
            let n = b.scalar_arg("n", Scalar::I32, "");
            let l = lid(b);
            let v = b.binary(BinaryOp::Rem, l, n);
            let d = b.sub(l, by);
            let w = b.binary(BinaryOp::Div, v, d);
            b.store(Base::Buffer(y), l, w, None);
        });
        // Also without checks.
        let args = [arg(&Buffer::new(160)), ArgValue::I32(by)];
        tilewright_emu::run(&k, [1; 3], &args, &Options::fast())
    };
    caught!(EmuError::DivideByZero { at } if at.thread == 0, divide(0));
    caught!(EmuError::DivideByZero { at } if at.thread == 7, divide(7));
    divide(50).unwrap();
}

#[test]
fn launches_that_do_not_fit() {
    let k = kernel(32, |b| {
        b.buffer("x", Scalar::F32, Access::Read, "");
        b.scalar_arg("n", Scalar::I32, "");
    });
    let x = arg(&Buffer::new(64));
    let launch = |grid, args: &[ArgValue]| run(&k, grid, args);
    let n = ArgValue::I32(1);
    launch([1; 3], &[x.clone(), n.clone()]).unwrap();
    caught!(EmuError::Launch { .. }, launch([1, 0, 1], &[x.clone(), n.clone()]));
    caught!(EmuError::Launch { .. }, launch([1; 3], std::slice::from_ref(&x)));
    caught!(EmuError::Launch { .. }, launch([1; 3], &[n.clone(), x.clone()]));
    caught!(EmuError::Launch { .. }, launch([1; 3], &[x.clone(), ArgValue::I64(1)]));
    caught!(EmuError::Launch { .. }, launch([1; 3], &[at(&Buffer::new(64), 2), n.clone()]));
    caught!(EmuError::Launch { .. }, launch([1; 3], &[at(&Buffer::new(64), 68), n]));
}

/// An error says where and who, in words that a reader finds in the kernel.
#[test]
fn errors_name_their_place() {
    let error = trial(64, |b, x, y| {
        let l = lid(b);
        b.for_range("i", 0, 3, Unroll::No, |b, i| {
            let at = b.mul(i, 64);
            let at = b.add(at, l);
            let v = b.load("v", x, at, 1, None);
            b.store(y, l, v, None);
        });
    });
    let text = error.unwrap_err().to_string();
    for part in
        ["kernel `test`", "body[0].for[0]", "v = x[", "work-group (0, 0, 0)", "thread 0", "`x` has 64 elements", "index 64"]
    {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
}

/// Malformed kernels are refused, never run or panicked on.
#[test]
fn malformed_kernels() {
    let good = kernel(32, |b| {
        let y = b.buffer("y", Scalar::I32, Access::Write, "");
        let l = lid(b);
        let v = b.add(l, 1);
        b.store(Base::Buffer(y), l, v, None);
    });
    let broken = |f: &dyn Fn(&mut Kernel)| {
        let mut k = good.clone();
        f(&mut k);
        caught!(EmuError::Invalid { .. }, run(&k, [1; 3], &[arg(&Buffer::new(128))]));
    };
    broken(&|k| k.threads = 0);
    broken(&|k| k.body.push(Stmt::Let(VarId(9), ExprId(0))));
    broken(&|k| k.body.push(Stmt::If { cond: ExprId(0), then: vec![], otherwise: vec![] }));
    let store = |k: &mut Kernel, e: Expr| {
        k.exprs.push((e, Scalar::I32.ty()));
        let value = ExprId(k.exprs.len() as u32 - 1);
        if let Some(Stmt::Store { value: v, .. }) = k.body.last_mut() {
            *v = value;
        }
    };
    broken(&|k| store(k, Expr::Extract(ExprId(0), 1)));
    broken(&|k| store(k, Expr::Cast(ExprId(77))));
    broken(&|k| {
        let own = ExprId(k.exprs.len() as u32);
        store(k, Expr::Cast(own));
    });
    broken(&|k| {
        k.exprs.push((Expr::Float(1.0), Scalar::F32.ty()));
        let last = ExprId(k.exprs.len() as u32 - 1);
        store(k, Expr::Binary(BinaryOp::Add, ExprId(0), last));
    });
    broken(&|k| k.body.push(Stmt::Roles(vec![Role { name: "r".into(), first_thread: 0, threads: 16, body: vec![] }])));
}
