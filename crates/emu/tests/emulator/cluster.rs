//! Clusters: work-groups that copy for each other, arrive at each other's barriers and read each other's shared memory. Each rule
//! can be broken by itself.

use crate::common;
use common::*;
use tilewright_emu::{ArgValue, EmuError, Options};
use tilewright_ir::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Break {
    Nothing,
    /// The cluster meets before the barriers are initialised, not behind.
    EarlyMeet,
    /// Readers release their own buffer only; a peer that copies into it does not ask.
    OwnReleaseOnly,
    /// What was read may still be on its way to registers when a buffer is released.
    NoReadFence,
    /// The copying thread leaves while its peer may still arrive.
    NoDrain,
    /// Sums are read before the cluster has met.
    NoMeetBeforeRead,
    /// They are overwritten before it has met again.
    OverwriteEarly,
    /// One of the two does not copy its half.
    OneSided,
    /// A rank that does not exist.
    BadRank,
    /// Too many bytes are expected.
    ManyBytes,
    /// The peer's phase counts one arrival more than there are.
    SpareArrival,
}

const GROUPS: u32 = 2;
const TILES: u32 = 5;
const STAGES: u32 = 2;
/// Rows of a stage; each work-group copies a half.
const ROWS: u32 = 8;

/// Wave 0 adds up columns of what both waves 1 of the cluster copy; sums are exchanged at the end.
fn kernel_of(broken: Break) -> Kernel {
    let is = |b: Break| b == broken;
    kernel(64, |b| {
        b.wave(32);
        b.cluster(GROUPS);
        let half = ROWS / GROUPS;
        let map = TensorMap {
            scalar: Scalar::F32,
            round_tf32: false,
            extent: vec![32, u64::from(2 * TILES * ROWS)],
            stride_bytes: vec![128],
            tile: vec![32, half],
            swizzle: Swizzle::None,
            im2col: None,
        };
        let x = b.tensor_map("x", map, "");
        let out = b.buffer("out", Scalar::F32, Access::Write, "");
        let stage = 32 * ROWS;
        let tile = b.shared("tile", Scalar::F32, stage * STAGES, 0);
        let sums = b.shared("sums", Scalar::F32, 32, stage * STAGES * 4);
        let full = b.tx_barriers("full", STAGES, stage * STAGES * 4 + 128);
        let free = b.tx_barriers("free", STAGES, stage * STAGES * 4 + 128 + 8 * STAGES);
        let (lid, group) = (b.builtin(Builtin::LocalId), b.builtin(Builtin::GroupId(0)));
        let rank = b.rem(group, GROUPS);
        let cluster = b.div(group, GROUPS);
        let at = |barriers, index| TxRef { barriers, index };
        let meet = Stmt::Barrier(BarrierScope::Cluster);
        if is(Break::EarlyMeet) {
            b.push(meet.clone());
        }
        let first = b.eq(lid, 0);
        b.if_then(first, |b| {
            for i in 0..STAGES {
                let i = b.int(i.into(), Scalar::I32);
                b.bulk(BulkOp::Init { barrier: at(full, i), arrivals: 1 });
                let readers = if is(Break::OwnReleaseOnly) { 1 } else { GROUPS };
                b.bulk(BulkOp::Init { barrier: at(free, i), arrivals: readers });
            }
            b.bulk(BulkOp::InitFence);
        });
        if is(Break::EarlyMeet) {
            b.barrier();
        } else {
            b.push(meet.clone());
        }
        let read = b.block(|b| {
            let zero = b.float(0.0, Scalar::F32);
            let sum = b.declare("sum", zero);
            b.for_range("t", 0, TILES, Unroll::No, |b, t| {
                let (i, round) = (b.rem(t, STAGES), b.div(t, STAGES));
                let parity = b.rem(round, 2);
                b.bulk(BulkOp::Wait { barrier: at(full, i), parity });
                let from = b.mul(i, stage);
                let from = b.add(from, lid);
                for row in 0..ROWS {
                    let from = b.add(from, 32 * row);
                    let value = b.load("value", Base::Shared(tile), from, 1, None);
                    let more = b.get(sum);
                    let more = b.add(more, value);
                    b.set(sum, more);
                }
                if !is(Break::NoReadFence) {
                    b.bulk(BulkOp::ProxyFence);
                }
                b.push(Stmt::Barrier(BarrierScope::Wave));
                let releases = b.lt(lid, if is(Break::OwnReleaseOnly) { 1 } else { GROUPS });
                b.if_then(releases, |b| {
                    let to = match broken {
                        Break::OwnReleaseOnly => rank,
                        Break::BadRank => b.add(lid, 1),
                        _ => lid,
                    };
                    b.bulk(BulkOp::ArriveAt { barrier: at(free, i), rank: to });
                    if is(Break::SpareArrival) {
                        b.bulk(BulkOp::ArriveAt { barrier: at(free, i), rank: to });
                    }
                });
            });
            let own = b.get(sum);
            b.store(Base::Shared(sums), lid, own, None);
            if !is(Break::NoMeetBeforeRead) {
                b.push(meet.clone());
            }
            let other = b.sub(1, rank);
            let place = b.declare("theirs", zero);
            let mem = b.mem(Base::Shared(sums), lid);
            b.push(Stmt::LoadPeer { place: Place::Var(place), mem, rank: other });
            let theirs = b.get(place);
            if is(Break::OverwriteEarly) {
                b.store(Base::Shared(sums), lid, zero, None);
            }
            b.push(meet.clone());
            let three = b.float(3.0, Scalar::F32);
            let result = b.fma(three, own, theirs);
            let to = b.mul(group, 32);
            let to = b.add(to, lid);
            b.store(Base::Buffer(out), to, result, None);
        });
        let copy = b.block(|b| {
            let issues = b.eq(lid, 32);
            b.if_then(issues, |b| {
                let drained = if is(Break::NoDrain) { TILES } else { TILES + STAGES };
                b.for_range("t", 0, drained, Unroll::No, |b, t| {
                    let (i, round) = (b.rem(t, STAGES), b.div(t, STAGES));
                    let parity = b.rem(round, 2);
                    let parity = b.sub(1, parity);
                    b.bulk(BulkOp::Wait { barrier: at(free, i), parity });
                    let exists = b.lt(t, TILES);
                    b.if_then(exists, |b| {
                        let bytes = stage * 4 + if is(Break::ManyBytes) { 16 } else { 0 };
                        b.bulk(BulkOp::Expect { barrier: at(full, i), bytes });
                        let mine = b.mul(rank, half);
                        let to = b.mul(i, stage);
                        let lines = b.mul(mine, 32);
                        let to = b.add(to, lines);
                        let to = b.mem(Base::Shared(tile), to);
                        let row = b.mul(cluster, TILES);
                        let row = b.add(row, t);
                        let row = b.mul(row, ROWS);
                        let row = b.add(row, mine);
                        let zero = b.int(0, Scalar::I32);
                        let all = b.int((1 << GROUPS) - 1, Scalar::I32);
                        let load = BulkOp::Load { to, map: x, at: vec![zero, row], barrier: at(full, i), peers: Some(all) };
                        if is(Break::OneSided) {
                            let first = b.eq(rank, 0);
                            b.if_then(first, |b| b.bulk(load));
                        } else {
                            b.bulk(load);
                        }
                    });
                });
            });
            if !is(Break::NoMeetBeforeRead) {
                b.push(meet.clone());
            }
            // Without a wait for the last arrivals nobody may learn of them at the end either.
            b.push(meet.clone());
        });
        let role = |name: &str, first_thread, body| Role { name: name.into(), first_thread, threads: 32, body };
        b.push(Stmt::Roles(vec![role("read", 0, read), role("copy", 32, copy)]));
    })
}

fn arguments() -> Vec<ArgValue> {
    let x: Vec<f32> = (0..32 * 2 * TILES * ROWS).map(|i| (i % 29) as f32 - 7.0).collect();
    vec![arg(&f32s(&x)), arg(&tilewright_emu::Buffer::new(4 * 32 * 4))]
}

fn expected() -> Vec<f32> {
    (0..4u32)
        .flat_map(|group| {
            (0..32).map(move |l| {
                let first = group / GROUPS * TILES * ROWS;
                let sum: f32 = (first..first + TILES * ROWS).map(|row| ((row * 32 + l) % 29) as f32 - 7.0).sum();
                4.0 * sum
            })
        })
        .collect()
}

/// What all checks say, over several orders of the waves.
fn failures(broken: Break) -> Vec<EmuError> {
    let k = kernel_of(broken);
    let mut modes = vec![checked()];
    modes.extend((0..12).map(|seed| Options { interleave: true, seed, ..checked() }));
    modes.iter().filter_map(|o| tilewright_emu::run(&k, [4, 1, 1], &arguments(), o).err()).collect()
}

macro_rules! caught {
    ($broken:ident, $pattern:pat $(if $guard:expr)?) => {
        let failures = failures(Break::$broken);
        assert!(!failures.is_empty(), "{} is not caught", stringify!($broken));
        for f in failures {
            match f {
                $pattern $(if $guard)? => {}
                other => panic!("{} is not caught as {}: {other}", stringify!($broken), stringify!($pattern)),
            }
        }
    };
}

#[test]
fn work_groups_copy_for_each_other() {
    let k = kernel_of(Break::Nothing);
    validate(&k, &Target::by_arch("sm_90a").unwrap()).unwrap();
    let out = everywhere(&k, [4, 1, 1], arguments, |args| to_f32s(buffer(&args[1])));
    assert_eq!(out, expected());
}

#[test]
fn what_was_read_has_arrived_before_it_is_overwritten() {
    caught!(NoReadFence, EmuError::Unread { ref memory, .. } if memory == "tile");
}

#[test]
fn barriers_of_peers_are_set_up_before_they_are_used() {
    caught!(EarlyMeet, EmuError::TxBarrier { what, .. } if what.contains("cluster barrier"));
    // It is so in every order.
    assert_eq!(failures(Break::EarlyMeet).len(), 13);
}

#[test]
fn stages_of_peers_are_free_before_they_are_overwritten() {
    caught!(OwnReleaseOnly, EmuError::Race { .. } | EmuError::TxBarrier { .. });
    assert_eq!(failures(Break::OwnReleaseOnly).len(), 13);
}

#[test]
fn sums_are_read_between_two_meetings() {
    caught!(NoMeetBeforeRead, EmuError::Race { .. } | EmuError::Uninitialised { .. });
    caught!(OverwriteEarly, EmuError::Race { .. });
    assert!(failures(Break::OverwriteEarly).iter().any(|e| e.to_string().contains("another work-group of the cluster")));
}

#[test]
fn what_never_comes_is_a_deadlock() {
    caught!(OneSided, EmuError::Deadlock { waiting, .. } if waiting.contains("rank 1"));
    caught!(ManyBytes, EmuError::Deadlock { .. });
}

#[test]
fn ranks_and_arrivals_are_counted() {
    caught!(BadRank, EmuError::Peer { what, .. } if what.contains("rank 2"));
    caught!(SpareArrival, EmuError::TxBarrier { .. } | EmuError::Race { .. } | EmuError::Deadlock { .. } | EmuError::Peer { .. });
}

#[test]
fn grids_are_whole_clusters() {
    let failed = run(&kernel_of(Break::Nothing), [3, 1, 1], &arguments()).unwrap_err();
    assert!(matches!(&failed, EmuError::Launch { what, .. } if what.contains("clusters of 2")), "{failed}");
}

/// Without the exchange at the end: the wait for the last arrivals alone keeps a work-group there.
#[test]
fn a_work_group_outlives_its_peers_arrivals() {
    let strip = |broken| {
        let mut k = kernel_of(broken);
        let Some(Stmt::Roles(roles)) = k.body.last_mut() else { panic!() };
        for role in roles {
            role.body.retain(|s| !matches!(s, Stmt::Barrier(BarrierScope::Cluster) | Stmt::LoadPeer { .. }));
        }
        k
    };
    for seed in 0..8 {
        let options = Options { interleave: true, seed, ..checked() };
        tilewright_emu::run(&strip(Break::Nothing), [4, 1, 1], &arguments(), &options).unwrap();
        let failed = tilewright_emu::run(&strip(Break::NoDrain), [4, 1, 1], &arguments(), &options).unwrap_err();
        assert!(matches!(&failed, EmuError::Peer { what, .. } if what.contains("may have ended")), "{failed}");
    }
}

#[test]
fn the_validator_asks_for_meetings() {
    let broken = |change: fn(&mut Kernel)| {
        let mut k = kernel_of(Break::Nothing);
        change(&mut k);
        validate(&k, &Target::by_arch("sm_90a").unwrap()).unwrap_err().to_string()
    };
    let text = broken(|k| k.body.retain(|s| !matches!(s, Stmt::Barrier(BarrierScope::Cluster))));
    assert!(text.contains("before a cluster barrier"), "{text}");
    let text = broken(|k| k.cluster = 0);
    assert!(text.contains("needs a kernel with clusters"), "{text}");
    let text = broken(|k| {
        let Some(Stmt::Roles(roles)) = k.body.last_mut() else { return };
        roles[0].body.push(Stmt::Return);
    });
    assert!(text.contains("returns"), "{text}");
    let text = broken(|k| {
        let Some(Stmt::Roles(roles)) = k.body.last_mut() else { return };
        for role in roles {
            let last = role.body.iter().rposition(|s| matches!(s, Stmt::Barrier(BarrierScope::Cluster)));
            last.map(|i| role.body.remove(i));
        }
    });
    assert!(text.contains("without a later cluster barrier"), "{text}");
    let refused = validate(&kernel_of(Break::Nothing), &Target::by_arch("sm_80").unwrap()).unwrap_err();
    assert!(refused.to_string().contains("clusters"), "{refused}");
}
