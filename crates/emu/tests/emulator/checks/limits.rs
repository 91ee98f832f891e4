//! Indices, loops, integers and launches out of bounds; what errors say.

use super::{lid, trial};
use crate::common::*;
use tilewright_emu::{ArgValue, Buffer, EmuError, Options};
use tilewright_ir::*;

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
    caught!(EmuError::Overflow { ty: "i32", at, .. } if at.thread == 63, product(34_100_000, 64));
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

/// Lanes beyond an edge may compute anything as long as nobody uses it.
#[test]
fn overflow_counts_where_it_is_used() {
    // Row `l` of 100 million elements each; from row 22 on the index leaves 31 bits.
    let rows = |inside: i64, body: &dyn Fn(&mut Builder, Base, ExprId, ExprId)| {
        trial(64, |b, _, y| {
            let l = lid(b);
            let index = b.mul(l, 100_000_000);
            let index = b.bind("index", index);
            let guard = b.binary(BinaryOp::Lt, l, inside);
            body(b, y, index, guard);
        })
    };
    let guarded = |inside: i64| {
        rows(inside, &|b, y, index, guard| {
            // Stored where it is inside, into the first elements.
            let l = lid(b);
            let value = b.cast(index, Scalar::F32);
            b.store(y, l, value, Some(guard));
        })
    };
    guarded(22).unwrap();
    caught!(EmuError::Overflow { ty: "i32", at, used } if at.thread == 22 && used.contains("y["), guarded(23));
    let chosen = |inside: i64| {
        rows(inside, &|b, y, index, guard| {
            let l = lid(b);
            let value = b.select(guard, index, l);
            let value = b.cast(value, Scalar::F32);
            b.store(y, l, value, None);
        })
    };
    chosen(22).unwrap();
    caught!(EmuError::Overflow { at, .. } if at.thread == 22, chosen(23));
    // A condition that is false already does not ask.
    let both = |inside: i64| {
        rows(inside, &|b, y, index, guard| {
            let l = lid(b);
            let positive = b.binary(BinaryOp::Le, 0, index);
            let both = b.and(guard, positive);
            let value = b.cast(l, Scalar::F32);
            b.store(y, l, value, Some(both));
        })
    };
    both(22).unwrap();
    caught!(EmuError::Overflow { at, .. } if at.thread == 22, both(23));
    // What decides is used, what is overwritten is not.
    let decides = rows(22, &|b, y, index, _| {
        let positive = b.binary(BinaryOp::Le, 0, index);
        b.if_then(positive, |b| {
            let (l, one) = (lid(b), b.float(1.0, Scalar::F32));
            b.store(y, l, one, None);
        });
    });
    caught!(EmuError::Overflow { at, .. } if at.thread == 22, decides);
    let overwritten = rows(22, &|b, y, index, _| {
        let name = b.declare("name", index);
        let l = lid(b);
        b.set(name, l);
        let value = b.get(name);
        let value = b.cast(value, Scalar::F32);
        b.store(y, l, value, None);
    });
    overwritten.unwrap();
}
