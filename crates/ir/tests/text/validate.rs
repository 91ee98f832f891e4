//! The validator names what is wrong and where, accepts what is right, and survives everything.

use crate::support;

use proptest::prelude::*;
use support::*;
use tilewright_ir::*;

fn refusal(kernel: &Kernel, target: &Target) -> Invalid {
    validate(kernel, target).expect_err("the kernel is refused")
}

/// A kernel of 64 threads made by `f`, which is given a readable and a writable f32 buffer and the thread's position.
fn small(f: impl FnOnce(&mut Builder, ArgId, ArgId, ExprId)) -> Kernel {
    let mut b = Builder::new("small", 64);
    b.wave(32);
    let from = b.buffer("from", Scalar::F32, Access::Read, "");
    let to = b.buffer("to", Scalar::F32, Access::ReadWrite, "");
    let tid = b.builtin(Builtin::LocalId);
    let tid = b.bind("tid", tid);
    f(&mut b, from, to, tid);
    b.finish()
}

/// Expects a small kernel to be malformed, with this in the message.
fn malformed(message: &str, f: impl FnOnce(&mut Builder, ArgId, ArgId, ExprId)) {
    let invalid = refusal(&small(f), &target("sm_80"));
    assert!(!invalid.fault.is_refusal(), "{invalid}");
    let text = invalid.to_string();
    assert!(text.contains(message), "{text}");
    assert!(text.starts_with("kernel `small`, "), "{text}");
}

fn fine(f: impl FnOnce(&mut Builder, ArgId, ArgId, ExprId)) {
    validate(&small(f), &target("sm_80")).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn products_of_bytes() {
    validate(&dot_products(Scalar::U8), &target("gfx906")).unwrap_or_else(|e| panic!("{e}"));
    for target in [target("gfx900"), opencl()] {
        let said = refusal(&dot_products(Scalar::I8), &target).to_string();
        assert!(said.contains("dot products of four bytes") && said.contains("use multiply-adds"), "{said}");
    }
    malformed("four integers of 8 bits", |b, _, to, tid| {
        let bytes = b.buffer("bytes", Scalar::I8, Access::Read, "");
        let pair = b.load("pair", Base::Buffer(bytes), tid, 2, None);
        let zero = b.int(0, Scalar::I32);
        let sum = b.fma(pair, pair, zero);
        let sum = b.cast(sum, Scalar::F32);
        b.store(Base::Buffer(to), tid, sum, None);
    });
}

#[test]
fn every_kernel_of_the_tests_is_fine_where_it_belongs() {
    for (kernel, arch) in [
        (gemm(), "gfx900"),
        (guarded_copy(), "sm_75"),
        (arithmetic(), "gfx950"),
        (atomics(), "sm_90a"),
        (wave_sum(32), "sm_80"),
        (roles(64, false), "gfx942"),
        (roles(32, true), "sm_75"),
        (async_copy(), "sm_90a"),
        (edge_fetch(), "gfx90a"),
    ] {
        validate(&kernel, &target(arch)).unwrap_or_else(|e| panic!("{arch}: {e}"));
    }
}

#[test]
fn a_fault_names_its_place() {
    let kernel = small(|b, from, _, tid| {
        b.for_range("k", 0, 4, Unroll::No, |b, k| {
            let at = b.add(tid, k);
            let one = b.float(1.0, Scalar::F32);
            b.store(Base::Buffer(from), at, one, None);
        });
    });
    let text = refusal(&kernel, &target("sm_80")).to_string();
    assert_eq!(text, "kernel `small`, body[1] for [0] store: `from` is declared as read only, and is written");
}

#[test]
fn types_are_checked() {
    malformed("cast one", |b, _, to, tid| {
        let wide = b.int(1, Scalar::I64);
        let sum = b.add(tid, wide);
        b.store(Base::Buffer(to), sum, tid, None);
    });
    malformed("i32 is stored to f32 memory", |b, _, to, tid| b.store(Base::Buffer(to), tid, tid, None));
    malformed("a condition is a bool", |b, from, _, tid| {
        b.load("x", Base::Buffer(from), tid, 1, Some(tid));
    });
    malformed("vectors have 2, 4, 8 or 16 lanes", |b, from, _, tid| {
        b.load("x", Base::Buffer(from), tid, 3, None);
    });
    malformed("a storage type", |b, _, _, tid| {
        let half = b.buffer("half", Scalar::F16, Access::Read, "");
        let x = b.load("x", Base::Buffer(half), tid, 1, None);
        let y = b.add(x, x);
        b.bind("y", y);
    });
    malformed("from and to f32 only", |b, _, _, tid| {
        let x = b.cast(tid, Scalar::BF16);
        b.bind("x", x);
    });
    malformed("bool has no vectors", |b, from, _, tid| {
        let x = b.load("x", Base::Buffer(from), tid, 4, None);
        let y = b.lt(x, x);
        let y = b.extract(y, 0);
        b.bind("y", y);
    });
    malformed("Rem is not defined on f32", |b, from, _, tid| {
        let x = b.load("x", Base::Buffer(from), tid, 1, None);
        let y = b.rem(x, x);
        b.bind("y", y);
    });
    malformed("the integer 4294967296 is no i32", |b, _, _, tid| {
        let y = b.add(tid, 1i64 << 32);
        b.bind("y", y);
    });
}

#[test]
fn names_are_bound_before_use_and_in_scope() {
    malformed("`late` is used before it is bound", |b, _, _, tid| {
        let early = b.kernel().vars.len() as u32 + 1;
        let block = b.block(|b| {
            let late = b.add(tid, 1);
            let late = b.bind("early", late);
            let late = b.add(late, 1);
            b.bind("late", late);
        });
        let late = b.get(VarId(early));
        let two = b.add(late, 1);
        b.bind("use", two);
        block.into_iter().for_each(|s| b.push(s));
    });
    malformed("`inner` is used after its block has ended", |b, _, _, tid| {
        let mut kept = tid;
        b.for_range("k", 0, 4, Unroll::No, |b, k| {
            let inner = b.add(k, tid);
            kept = b.bind("inner", inner);
        });
        let next = b.add(kept, 1);
        b.bind("next", next);
    });
    malformed("no mutable variable", |b, _, _, tid| {
        let Expr::Var(v) = *b.kernel().expr(tid) else { return };
        b.set(v, tid);
    });
    malformed("cursor `p` is not placed here", |b, from, _, tid| {
        let block = b.block(|b| {
            b.cursor("p", from, tid);
        });
        b.load("x", Base::Cursor(CursorId(0)), 0, 1, None);
        block.into_iter().for_each(|s| b.push(s));
    });
}

#[test]
fn registers_are_indexed_by_constants() {
    let fill = |unroll| {
        move |b: &mut Builder, _: ArgId, _: ArgId, tid: ExprId| {
            let r = b.regs("r", Scalar::I32.ty(), 8);
            b.for_range("i", 0, 4, unroll, |b, i| {
                let at = b.mul(i, 2);
                let at = b.bind("at", at);
                b.set_reg(r, at, tid);
            });
        }
    };
    fine(fill(Unroll::Full));
    fine(fill(Unroll::Silent));
    malformed("`r` is indexed at run time", fill(Unroll::No));
    malformed("`r` is indexed at run time", fill(Unroll::By(2)));
    malformed("`r` has 8 elements, none at 8", |b, _, _, tid| {
        let r = b.regs("r", Scalar::I32.ty(), 8);
        b.set_reg(r, 8, tid);
    });
    malformed("needs constant bounds", |b, _, _, tid| {
        b.for_range("i", 0, tid, Unroll::Full, |b, i| {
            b.bind("j", i);
        });
    });
}

#[test]
fn barriers_are_met_by_all_threads() {
    malformed("in a branch that depends on the thread", |b, _, _, tid| {
        let cond = b.lt(tid, 32);
        b.if_then(cond, |b| b.barrier());
    });
    malformed("in a branch that depends on the thread", |b, _, _, tid| {
        b.for_range("i", 0, tid, Unroll::No, |b, _| b.barrier());
    });
    // A variable that only some threads change is each thread's own, also before the change in a loop.
    malformed("in a branch that depends on the thread", |b, _, _, tid| {
        let zero = b.int(0, Scalar::I32);
        let one = b.int(1, Scalar::I32);
        let flag = b.declare("flag", zero);
        b.for_range("i", 0, 4, Unroll::No, |b, _| {
            let value = b.get(flag);
            let set = b.eq(value, 0);
            b.if_then(set, |b| b.barrier());
            let mine = b.lt(tid, 7);
            b.if_then(mine, |b| b.set(flag, one));
        });
    });
    fine(|b, _, _, _| {
        let group = b.builtin(Builtin::GroupId(0));
        let first = b.eq(group, 0);
        b.if_then(first, |b| b.barrier());
    });
    malformed("a part of a wave", |b, _, _, tid| {
        let cond = b.lt(tid, 16);
        b.if_then(cond, |b| b.push(Stmt::Barrier(BarrierScope::Wave)));
    });
    fine(|b, _, _, tid| {
        let cond = b.lt(tid, 32);
        b.if_then(cond, |b| b.push(Stmt::Barrier(BarrierScope::Wave)));
    });
    malformed("a thread returns before a possible barrier", |b, _, _, tid| {
        let cond = b.lt(tid, 32);
        b.if_then(cond, |b| b.push(Stmt::Return));
        b.barrier();
    });
    fine(|b, _, _, tid| {
        b.barrier();
        let cond = b.lt(tid, 32);
        b.if_then(cond, |b| b.push(Stmt::Return));
    });
}

fn two_roles(split: [u32; 2], load: impl FnOnce(&mut Builder), math: impl FnOnce(&mut Builder)) -> Kernel {
    small(|b, _, _, _| {
        let (load, math) = (b.block(load), b.block(math));
        b.push(Stmt::Roles(vec![
            Role { name: "load".into(), first_thread: 0, threads: split[0], body: load },
            Role { name: "math".into(), first_thread: split[0], threads: split[1], body: math },
        ]));
    })
}

#[test]
fn roles_share_out_the_threads_and_meet_equally_often() {
    let sm_80 = target("sm_80");
    let refused = |kernel: Kernel, message: &str| {
        let text = refusal(&kernel, &sm_80).to_string();
        assert!(text.contains(message), "{text}");
    };
    let rounds = |n: i64| {
        move |b: &mut Builder| {
            b.for_range("round", 0, n, Unroll::No, |b, _| b.barrier());
        }
    };
    validate(&two_roles([32, 32], rounds(3), |b| (0..3).for_each(|_| b.barrier())), &sm_80).unwrap_or_else(|e| panic!("{e}"));
    refused(two_roles([32, 32], rounds(3), rounds(4)), "3 times, role `math` 4 times: the group would hang");
    refused(two_roles([32, 16], rounds(3), rounds(3)), "have 48 threads in all, and the work-group has 64");
    refused(two_roles([16, 48], rounds(3), rounds(3)), "no whole number of waves of 32");
    let unknown = |b: &mut Builder| {
        let group = b.builtin(Builtin::GroupId(0));
        b.for_range("round", 0, group, Unroll::No, |b, _| b.barrier());
    };
    validate(&two_roles([32, 32], unknown, unknown), &sm_80).unwrap_or_else(|e| panic!("{e}"));
    refused(two_roles([32, 32], unknown, |_| {}), "would hang");
}

#[test]
fn targets_refuse_what_they_lack() {
    let feature = |kernel: &Kernel, target: &Target| match refusal(kernel, target).fault {
        Fault::Missing { feature, .. } => feature,
        other => panic!("{other}"),
    };
    let old = target("sm_80");
    let old = Target { features: Features { async_copy: false, ..old.features }, ..old };
    assert_eq!(feature(&async_copy(), &old), "asynchronous copies");
    assert_eq!(feature(&roles(64, true), &target("gfx942")), "named barriers");
    assert_eq!(feature(&roles(32, false), &opencl()), "roles");
    assert_eq!(feature(&wave_sum(32), &opencl()), "shuffles");
    assert_eq!(feature(&wave_sum(32), &target("gfx942")), "waves of the width the kernel is built for");
    let plain = Target { features: Features { f64: true, ..Features::default() }, ..opencl() };
    assert_eq!(feature(&atomics(), &plain), "64-bit atomics");
    let single = Target { features: Features::default(), ..opencl() };
    assert_eq!(feature(&arithmetic(), &single), "f64");
    let mut wide = gemm();
    wide.threads = 2048;
    let Fault::Limit { used: 2048, limit: 1024, .. } = refusal(&wide, &target("sm_80")).fault else { panic!("threads") };
    let mut deep = async_copy();
    deep.shared[0].len = 1 << 20;
    let Fault::Limit { used, .. } = refusal(&deep, &target("sm_80")).fault else { panic!("shared memory") };
    assert_eq!(used, 2 << 20);
}

#[test]
fn expressions_that_explode_in_print_are_refused() {
    malformed("bind its parts to names", |b, _, to, tid| {
        let mut x = b.cast(tid, Scalar::F32);
        for _ in 0..40 {
            x = b.add(x, x);
        }
        b.store(Base::Buffer(to), tid, x, None);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_panics(
        which in 0usize..8,
        changes in prop::collection::vec((any::<usize>(), prop_oneof![0i64..80, Just(-1), Just(u32::MAX.into())]), 1..4),
    ) {
        let kernels = [gemm, guarded_copy, arithmetic, atomics, edge_fetch, async_copy, || roles(32, true), || wave_sum(32)];
        if let Some(kernel) = scrambled(&kernels[which](), &changes) {
            for target in [target("sm_80"), target("gfx942"), opencl()] {
                match (validate(&kernel, &target), print(&kernel, &target)) {
                    (Ok(()), printed) => prop_assert!(printed.is_ok()),
                    (Err(invalid), printed) => prop_assert_eq!(Err(invalid), printed),
                }
            }
        }
    }
}
