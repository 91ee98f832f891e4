//! Launches that begin while those before them may still run: what they reach before they have waited.

use crate::common;
use common::*;
use tilewright_emu::{ArgValue, Buffer, EmuError, Options, Program, Queue};
use tilewright_ir::*;

const N: u32 = 64;

/// What a thread does: reads its element of one argument, or writes it.
#[derive(Clone, Copy)]
enum Do {
    Read(usize),
    Write(usize),
    Add(usize),
    /// Reads by an asynchronous copy.
    Copy(usize),
    Wait,
}

/// A kernel over three buffers, of which it may write those it does write.
fn steps(name: &str, steps: &[Do], precedes: bool) -> Kernel {
    let mut b = Builder::new(name, N);
    let written = |i: usize| steps.iter().any(|s| matches!(s, Do::Write(j) | Do::Add(j) if *j == i));
    let access = |i| if written(i) { Access::ReadWrite } else { Access::Read };
    let buffers: Vec<_> = (0..3).map(|i| b.buffer(&format!("x{i}"), Scalar::F32, access(i), "")).collect();
    let kept = b.shared("kept", Scalar::F32, N, 0);
    let lid = b.builtin(Builtin::LocalId);
    let one = b.float(1.0, Scalar::F32);
    for step in steps {
        match *step {
            Do::Read(i) => {
                let value = b.load("value", Base::Buffer(buffers[i]), lid, 1, None);
                b.store(Base::Shared(kept), lid, value, None);
            }
            Do::Write(i) => b.store(Base::Buffer(buffers[i]), lid, one, None),
            Do::Add(i) => {
                let mem = b.mem(Base::Buffer(buffers[i]), lid);
                b.push(Stmt::Atomic { op: AtomicOp::Add, mem, value: one, guard: None });
            }
            Do::Copy(i) => {
                let (dst, src) = (b.mem(Base::Shared(kept), lid), b.mem(Base::Buffer(buffers[i]), lid));
                b.push(Stmt::AsyncCopy { dst, src, lanes: 1, guard: None });
                b.push(Stmt::AsyncCommit);
                b.push(Stmt::AsyncWait(0));
            }
            Do::Wait => b.push(Stmt::LaunchWait),
        }
    }
    let follows = steps.iter().any(|s| matches!(s, Do::Wait));
    Kernel { follows, precedes, ..b.finish() }
}

/// Runs kernels one behind the other on the same three buffers.
fn run_all(kernels: &[Kernel]) -> Result<(), EmuError> {
    let mut outcome = None;
    for interleave in [false, true] {
        let options = Options { interleave, ..checked() };
        let args: Vec<ArgValue> = (0..3).map(|_| arg(&f32s(&[0.0; N as usize]))).collect();
        let mut queue = Queue::default();
        let result = kernels.iter().try_for_each(|kernel| {
            let program = Program::new(kernel, &options).expect("it is well formed");
            queue.run(&program, [1; 3], &args).map(|_| ())
        });
        assert!(outcome.as_ref().is_none_or(|before: &Result<(), EmuError>| before.is_ok() == result.is_ok()));
        outcome = Some(result);
    }
    outcome.expect("it ran")
}

fn early(result: Result<(), EmuError>, access: &str, memory: &str, kernel: &str) {
    match result {
        Err(EmuError::Early { access: a, memory: m, kernel: k, .. }) => assert_eq!((a, &*m, &*k), (access, memory, kernel)),
        other => panic!("not caught: {other:?}"),
    }
}

#[test]
fn what_the_launch_before_writes_is_read_behind_the_wait() {
    let first = steps("first", &[Do::Write(0)], true);
    let second = |order: &[Do]| run_all(&[first.clone(), steps("second", order, false)]);
    second(&[Do::Wait, Do::Read(0), Do::Write(1)]).unwrap();
    // What it does not write may be read at any time.
    second(&[Do::Read(2), Do::Wait, Do::Read(0)]).unwrap();
    early(second(&[Do::Read(0), Do::Wait]), "read", "x0", "first");
    early(second(&[Do::Copy(0), Do::Wait]), "read", "x0", "first");
    early(second(&[Do::Write(0), Do::Wait]), "write", "x0", "first");
    early(second(&[Do::Add(0), Do::Wait]), "atomic", "x0", "first");
}

#[test]
fn what_the_launch_before_reads_is_written_behind_the_wait() {
    // Where the launch before only reads a buffer, any write is refused: what it read is not known.
    let first = steps("first", &[Do::Read(1), Do::Write(0)], true);
    run_all(&[first.clone(), steps("second", &[Do::Wait, Do::Write(1)], false)]).unwrap();
    early(run_all(&[first, steps("second", &[Do::Write(1), Do::Wait], false)]), "write", "x1", "first");
}

/// A launch that has not waited lets the next one begin: that one may overtake launches further back.
#[test]
fn launches_further_back_may_still_run() {
    let first = steps("first", &[Do::Write(0)], true);
    let third = steps("third", &[Do::Read(0), Do::Wait, Do::Write(2)], false);
    let second = |precedes| steps("second", &[Do::Wait, Do::Write(1)], precedes);
    early(run_all(&[first.clone(), second(true), third.clone()]), "read", "x0", "first");
    // The third begins behind the second's end, which has waited for the first's.
    run_all(&[first.clone(), second(false), third.clone()]).unwrap();
    // So does the second here.
    let ordinary = steps("second", &[Do::Write(1)], true);
    run_all(&[first.clone(), ordinary, third.clone()]).unwrap();
    // Nothing runs before the first launch of a queue.
    run_all(&[third]).unwrap();
}

#[test]
fn kernels_wait_once_where_they_may_begin_early() {
    let fault = |kernel: Kernel| Program::new(&kernel, &checked()).expect_err("it is not well formed").to_string();
    let twice = steps("twice", &[Do::Wait, Do::Wait], false);
    assert!(fault(twice).contains("one LaunchWait"));
    let never = Kernel { follows: true, ..steps("never", &[Do::Read(0)], false) };
    assert!(fault(never).contains("one LaunchWait"));
    let idle = Kernel { follows: false, ..steps("idle", &[Do::Wait], false) };
    assert!(fault(idle).contains("follows"));
    // Made to follow, it waits before what it reads.
    let plain = steps("plain", &[Do::Read(0)], false);
    let first = steps("first", &[Do::Write(0)], true);
    run_all(&[first.clone(), plain.clone().following()]).unwrap();
    let mut late = plain.following();
    let at = late.body.iter().position(|s| *s == Stmt::LaunchWait).expect("it waits");
    let wait = late.body.remove(at);
    late.body.push(wait);
    early(run_all(&[first, late]), "read", "x0", "first");
}

/// Boxes of bulk copies are looked at like anything else.
#[test]
fn bulk_copies_wait_too() {
    let args = [arg(&f32s(&[0.0; 1024])), arg(&Buffer::new(4096))];
    let writer = kernel(32, |b| {
        let x = b.buffer("x", Scalar::F32, Access::Write, "");
        let _ = b.buffer("y", Scalar::F32, Access::Write, "");
        let (lid, one) = (b.builtin(Builtin::LocalId), b.float(1.0, Scalar::F32));
        // Row 2 of 32 elements.
        let at = b.add(lid, 64);
        b.store(Base::Buffer(x), at, one, None);
    });
    let writer = Kernel { name: "writer".into(), precedes: true, ..writer };
    let copies = |row: i64, waits_first: bool| {
        let mut k = kernel(32, |b| {
            b.wave(32);
            let (extent, stride_bytes, tile) = (vec![32, 32], vec![128], vec![32, 1]);
            let map = TensorMap {
                scalar: Scalar::F32,
                round_tf32: false,
                extent,
                stride_bytes,
                tile,
                swizzle: Swizzle::None,
                im2col: None,
            };
            let map = b.tensor_map("map", map, "");
            let y = b.buffer("y", Scalar::F32, Access::Write, "");
            let tile = b.shared("tile", Scalar::F32, 32, 0);
            let arrived = b.tx_barriers("arrived", 1, 128);
            let zero = b.int(0, Scalar::I32);
            let barrier = TxRef { barriers: arrived, index: zero };
            let lid = b.builtin(Builtin::LocalId);
            let first = b.eq(lid, 0);
            let row = b.int(row, Scalar::I32);
            b.if_then(first, |b| {
                b.bulk(BulkOp::Init { barrier, arrivals: 1 });
                b.bulk(BulkOp::InitFence);
            });
            b.barrier();
            b.if_then(first, |b| {
                b.bulk(BulkOp::Expect { barrier, bytes: 128 });
                let to = b.mem(Base::Shared(tile), zero);
                b.bulk(BulkOp::Load { to, map, at: vec![zero, row], barrier, peers: None });
            });
            b.bulk(BulkOp::Wait { barrier, parity: zero });
            let value = b.load("value", Base::Shared(tile), lid, 1, None);
            b.store(Base::Buffer(y), lid, value, None);
        });
        k.follows = true;
        let at = if waits_first { 0 } else { k.body.len() - 1 };
        k.body.insert(at, Stmt::LaunchWait);
        let mut queue = Queue::default();
        for k in [&writer, &k] {
            let program = Program::new(k, &checked())?;
            queue.run(&program, [1; 3], &args)?;
        }
        Ok(())
    };
    copies(2, true).unwrap();
    copies(1, false).unwrap();
    early(copies(2, false), "read", "map", "writer");
}
