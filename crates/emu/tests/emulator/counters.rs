//! The counters agree with counts made by hand.

use crate::common;
use common::*;
use tilewright_emu::{Buffer, Counters, Options};
use tilewright_ir::*;

fn counted(wave: u32, threads: u32, groups: u32, n: usize, f: impl FnOnce(&mut Builder, Base, Base)) -> Counters {
    let k = kernel(threads, |b| {
        b.wave(wave);
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::ReadWrite, "");
        f(b, Base::Buffer(x), Base::Buffer(y));
    });
    let args = [arg(&f32s(&vec![1.0; n])), arg(&f32s(&vec![0.0; n]))];
    let count = |interleave| {
        let options = Options { count: true, interleave, ..Options::fast() };
        tilewright_emu::run(&k, [groups, 1, 1], &args, &options).unwrap().counters
    };
    let (whole, by_wave) = (count(false), count(true));
    // Work is the same however waves are run, but for what is done once per context.
    assert_eq!(Counters { uniform: 0, ..whole }, Counters { uniform: 0, ..by_wave });
    whole
}

#[test]
fn global_transactions() {
    let read = |wave, lanes: u8, stride: i64| {
        counted(wave, 64, 2, 4096, |b, x, y| {
            let l = b.builtin(Builtin::LocalId);
            let i = b.mul(l, stride);
            let v = b.load("v", x, i, lanes as u32, None);
            let v = b.extract(v, 0);
            b.store(y, l, v, None);
        })
    };
    // Two groups of two waves.
    let c = read(32, 1, 1);
    assert_eq!((c.global_loads, c.global_load_bytes, c.global_load_sectors, c.global_load_lines), (4, 512, 16, 4));
    assert_eq!((c.global_stores, c.global_store_bytes, c.global_store_sectors, c.global_store_lines), (4, 512, 16, 4));
    let c = read(64, 1, 1);
    assert_eq!((c.global_loads, c.global_load_sectors, c.global_load_lines), (2, 16, 4));
    let c = read(32, 1, 32);
    assert_eq!((c.global_load_sectors, c.global_load_lines), (128, 128));
    let c = read(32, 4, 4);
    assert_eq!((c.global_loads, c.global_load_bytes, c.global_load_sectors, c.global_load_lines), (4, 2048, 64, 16));
}

#[test]
fn shared_cycles_and_conflicts() {
    let access = |wave, stride: i64, lanes: u8| {
        counted(wave, 64, 1, 64, |b, _, y| {
            let s = b.shared("tile", Scalar::F32, 64 * 36, 0);
            let l = b.builtin(Builtin::LocalId);
            let i = b.mul(l, stride);
            let one = b.float(1.0, Scalar::F32);
            let ones = b.splat(one, lanes);
            b.store(Base::Shared(s), i, ones, None);
            let v = b.load("v", Base::Shared(s), i, lanes as u32, None);
            let v = b.extract(v, 0);
            b.store(y, l, v, None);
        })
    };
    // (cycles, conflicts) of a store and a load, for each of two waves of 32.
    let cost = |c: Counters| (c.shared_loads, c.shared_stores, c.shared_cycles, c.bank_conflicts);
    assert_eq!(cost(access(32, 1, 1)), (2, 2, 4, 0));
    assert_eq!(cost(access(32, 2, 1)), (2, 2, 8, 4));
    assert_eq!(cost(access(32, 32, 1)), (2, 2, 128, 124));
    assert_eq!(cost(access(32, 33, 1)), (2, 2, 4, 0));
    assert_eq!(cost(access(32, 4, 4)), (2, 2, 16, 0));
    assert_eq!(cost(access(64, 1, 1)), (1, 1, 4, 0));
    assert_eq!(access(32, 4, 4).shared_bytes, 2 * 64 * 16);
}

#[test]
fn instructions_and_flop() {
    let c = counted(32, 96, 3, 96, |b, x, y| {
        let l = b.builtin(Builtin::LocalId);
        let v = b.load("v", x, l, 1, None);
        let acc = b.regs("acc", Scalar::F32.ty(), 2);
        let zero = b.float(0.0, Scalar::F32);
        b.set_reg(acc, 0, zero);
        b.set_reg(acc, 1, zero);
        b.for_range("i", 0, 10, Unroll::No, |b, _| {
            let z = b.reg(acc, 0);
            let z = b.fma(v, v, z);
            b.set_reg(acc, 0, z);
            let (z, product) = (b.reg(acc, 1), b.mul(v, v));
            let z = b.add(z, product);
            b.set_reg(acc, 1, z);
            b.barrier();
        });
        let (u, w) = (b.reg(acc, 0), b.reg(acc, 1));
        let u = b.sub(u, w);
        let u = b.bind("u", u);
        let one_wave = b.binary(BinaryOp::Lt, l, 32);
        b.store(y, l, u, Some(one_wave));
        let none = b.int(0, Scalar::I32);
        b.push(Stmt::Atomic { op: AtomicOp::Add, mem: MemRef { base: y, index: none }, value: u, guard: Some(one_wave) });
        let got = b.declare("got", u);
        b.push(Stmt::Shuffle { place: Place::Var(got), value: u, kind: ShuffleKind::Xor(1) });
    });
    let waves = 9;
    assert_eq!(c.flop, 3 * 96 * (10 * 4 + 1));
    assert_eq!(c.fma, waves * 20);
    assert_eq!((c.barriers, c.shuffles, c.atomics, c.global_stores), (waves * 10, waves, 3, 3));
    assert!(c.alu >= waves * 2, "subtraction and comparison");
}

#[test]
fn nothing_is_counted_unless_asked_for() {
    let k = kernel(32, |b| {
        let y = b.buffer("y", Scalar::I32, Access::Write, "");
        let l = b.builtin(Builtin::LocalId);
        b.store(Base::Buffer(y), l, l, None);
    });
    let report = run(&k, [5, 1, 1], &[arg(&Buffer::new(128))]);
    assert!(report.is_err(), "five groups write the same elements");
    let report = tilewright_emu::run(&k, [5, 1, 1], &[arg(&Buffer::new(128))], &Options::fast()).unwrap();
    assert_eq!((report.groups, report.counters), (5, Counters::default()));
}
