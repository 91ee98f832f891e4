//! What orders work-groups of a launch: fences around atomics that give what was there before.

use crate::common::*;
use tilewright_emu::{Buffer, EmuError};
use tilewright_ir::*;

const GROUPS: u32 = 5;
const THREADS: u32 = 64;

/// Every thread leaves a number; the work-group that comes last, as a ticket tells, adds all of them up. Without one of the four things
/// that order this, numbered from 0, where one is named.
fn last_adds_up(without: Option<usize>) -> Result<Vec<f32>, EmuError> {
    let has = |what: usize| without != Some(what);
    let k = kernel(THREADS, |b| {
        let parts = b.buffer("parts", Scalar::F32, Access::Exchange, "");
        let ticket = b.buffer("ticket", Scalar::I32, Access::ReadWrite, "");
        let y = b.buffer("y", Scalar::F32, Access::Write, "");
        let seen = b.shared("seen", Scalar::I32, 1, 0);
        let (l, g) = (b.builtin(Builtin::LocalId), b.builtin(Builtin::GroupId(0)));
        let own = b.value(g * THREADS + l);
        b.store(Base::Buffer(parts), own, own.cast(Scalar::F32), None);
        if has(0) {
            b.barrier();
        }
        b.if_then(l.equals(0), |b| {
            if has(1) {
                b.push(Stmt::Fence);
            }
            let before = b.fetch_add("before", Base::Buffer(ticket), 0, 1);
            if has(2) {
                b.push(Stmt::Fence);
            }
            b.store(Base::Shared(seen), 0, before, None);
        });
        if has(3) {
            b.barrier();
        }
        let before = b.load("seen_here", Base::Shared(seen), 0, 1, None);
        b.if_then(before.equals(GROUPS - 1), |b| {
            let zero = b.float(0.0, Scalar::F32);
            let sum = b.declare("sum", zero);
            b.for_range("i", 0, GROUPS, Unroll::No, |b, i| {
                let part = b.load("part", Base::Buffer(parts), i * THREADS + l, 1, None);
                b.set(sum, sum + part);
            });
            b.store(Base::Buffer(y), l, sum, None);
        });
    });
    let (parts, ticket, y) = (Buffer::new(4 * (GROUPS * THREADS) as usize), i32s(&[0]), Buffer::new(4 * THREADS as usize));
    run(&k, [GROUPS, 1, 1], &[arg(&parts), arg(&ticket), arg(&y)])?;
    Ok(to_f32s(&y))
}

#[test]
fn the_last_work_group_sees_all_parts() {
    let expected: Vec<f32> = (0..THREADS).map(|l| (0..GROUPS).map(|g| (g * THREADS + l) as f32).sum()).collect();
    assert_eq!(last_adds_up(None).unwrap(), expected);
}

#[test]
fn a_fence_or_barrier_that_is_missing_is_noticed() {
    for what in 0..3 {
        caught!(EmuError::Race { access: "read", other: "written", .. }, last_adds_up(Some(what)));
    }
    caught!(EmuError::Race { .. } | EmuError::Uninitialised { .. }, last_adds_up(Some(3)));
}
