//! What plans derive to, and every reason for which they are refused.

use std::collections::HashSet;
use tilewright_gen::plan::*;
use tilewright_ir::layout::Axis;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::lower::{ConvForm, lower};
use tilewright_problem::{Conv, Gemm, Layout, Order, Problem};

const ENV: Env = Env {
    workspace_bytes: 1 << 30,
    wave: 64,
    allow_atomics: true,
    ieee: false,
    shuffles: true,
    mfma: 0,
    dot: false,
    float8: tilewright_ir::Float8::None,
    straight: false,
};

fn gemm(m: u64, n: u64, k: u64, trans: &str) -> Contraction {
    let (a, b) = (trans.starts_with('t'), trans.ends_with('t'));
    lower(&Problem::Gemm(Gemm::new(Scalar::F32, m, n, k).order(Order::Col).trans(a, b).build().unwrap()), ConvForm::PER_SAMPLE)
        .unwrap()
        .lead
}

/// MIC8 both, PAD1, MIW1, UNR16, GAL3, NAW64, MAC256, SKW10 with some keys changed.
fn plan(change: &str) -> Plan {
    Constraint::parse(change).unwrap().apply(&Plan::default()).into()
}

fn refusal(change: &str, c: &Contraction) -> Refusal {
    derive(&plan(change), c, &ENV).unwrap_err()
}

/// Whether the message ends with what to do.
fn has_remedy(refused: &Refusal) -> bool {
    let text = refused.to_string();
    let remedy = text.rsplit_once("; ").map_or("", |(_, remedy)| remedy);
    ["use ", "change ", "move ", "raise "].iter().any(|verb| remedy.starts_with(verb))
}

/// The reference's worked example: demokernels, 1000 x 2000 x 3000, MIC 8 and 6, UNR8, ICE2, MAC256, copies of both.
#[test]
fn worked_example() {
    let c = gemm(1000, 2000, 3000, "nn");
    let spec = derive(&plan("A_MIC8_WOS1__B_MIC6_WOS1__C_UNR8_ICE2"), &c, &ENV).unwrap();
    let t = &spec.tiling;
    assert_eq!((t.a.macro_tile, t.b.macro_tile), (128, 96));
    assert_eq!((t.a.load_row, t.a.load_k, t.b.load_row, t.b.load_k), (4, 1, 3, 1));
    assert_eq!(spec.shared.bytes(), (1032 + 776) * 4);
    assert_eq!(work_groups(&spec), 336);
    assert_eq!((t.a.source, t.b.source), (Source::Copy, Source::Copy));
    assert_eq!(t.order, GroupOrder::Strips(5));
    assert_eq!(counts(&spec).k_tiles, 188);
    // Lines of 1000 and 3000 elements padded to odd multiples of 128 bytes, and two regions aligned to 512 bytes.
    assert_eq!(workspace_per_entry(&spec), 4 * (1056 * 3000 + 3040 * 2000) + 2 * 512);
}

/// Every field of a spec that a key of MIOpenGEMM's sets.
#[test]
fn classic_keys_arrive() {
    let c = gemm(1024, 1024, 1024, "nt");
    let text = "A_MIC4_PAD2_PLU1_LIW1_MIW0_WOS2_VEW4__B_MIC8_PAD0_PLU0_LIW0_MIW1_WOS0_VEW2__\
                C_UNR32_GAL1_PUN0_ICE4_IWI1_SZT1_MAD1_NAW16_UFO1_MAC64_SKW9_AFI0_MIA1";
    let spec = derive(&Plan::parse(text).unwrap(), &c, &ENV);
    // PLU1 lays A's load tile along k, which leaves no vector of 4 across.
    assert!(matches!(spec, Err(Refusal::VectorTile { width: 4, length: 1, along_k: false, .. })), "{spec:?}");
    let spec = derive(&Plan::parse(&text.replace("PLU1", "PLU0")).unwrap(), &c, &ENV).unwrap();
    let t = &spec.tiling;
    assert_eq!((t.threads_a, t.threads_b, t.k_tile), (16, 4, 32));
    let a = OperandTiling {
        micro: 4,
        macro_tile: 64,
        pad: 8,
        load_row: 32,
        load_k: 1,
        load_interleave: true,
        load_order: Along::K,
        load_width: 4,
        load_along: Along::Row,
        store_width: 4,
        fragment_width: 4,
        micro_interleave: false,
        shared_along: Along::Row,
        source: Source::Packed,
        fragment_sets: 0,
        raw: None,
        split: None,
        shared_parts: 1,
    };
    assert_eq!(t.a, a);
    assert_eq!((t.b.macro_tile, t.b.pad, t.b.load_width, t.b.micro_interleave, t.b.source), (32, 0, 2, true, Source::InPlace));
    assert_eq!(t.order, GroupOrder::ColumnsFastest);
    assert_eq!(t.split_k, SplitK { ways: 4, interleave: true });
    assert!(t.k_stagger && t.micro_b_fastest);
    assert_eq!((t.edge_m, t.edge_n, t.wave_a, t.math_width), (Edge::PullBack, Edge::PullBack, 0, 1));
    let style = Style {
        pragma_unroll: false,
        wide_index: true,
        mad: true,
        a_first: false,
        min_groups: 0,
        unroll_k: false,
        straight: false,
    };
    assert_eq!(spec.style, style);
    assert_eq!(
        spec.epilogue,
        Epilogue {
            split: Split::Atomic,
            exit: Exit::Direct { width: 1 },
            shuffles: false,
            finish: Finish::Kernel,
            carry: false,
            operands: false
        }
    );
    let loop_of_miopengemm = Schedule {
        fetch_ahead: 0,
        buffers: 1,
        store: StorePoint::AtOnce,
        fragments_ahead: 0,
        math_in_flight: None,
        promoted: None,
        copies: [Transport::Registers, Transport::Registers],
        second: None,
        roles: None,
        hints: false,
    };
    assert_eq!(spec.schedule, loop_of_miopengemm);
}

#[test]
fn further_keys_arrive() {
    let c = gemm(1024, 1024, 1024, "nn");
    let change = "A_VEW4_ACP1_LOR1__B_VEW4_GLW4_PLU1_FRW8__\
                  C_UNR32_ICE2_SKS1_EDG1_CVW4_WVA8_MVW4_MGP2_UKL1_PFG2_BUF3_STP1_FRA1_LWV4_HNT1";
    let spec = derive(&plan(change), &c, &ENV).unwrap();
    let t = &spec.tiling;
    assert_eq!((t.a.load_order, t.a.load_width, t.a.load_along), (Along::Row, 4, Along::Row));
    assert_eq!((t.b.load_width, t.b.load_along, t.b.store_width, t.b.fragment_width, t.b.pad), (4, Along::K, 1, 8, 8));
    assert_eq!((t.wave_a, t.wave_lanes, t.math_width, t.edge_m), (8, 64, 4, Edge::Predicate));
    let s = &spec.schedule;
    // Load waves have no math to store after.
    assert_eq!((s.fetch_ahead, s.buffers, s.store, s.fragments_ahead), (2, 3, StorePoint::AtOnce, 1));
    assert_eq!((&s.copies, s.hints), (&[Transport::Async, Transport::Registers], true));
    assert_eq!(s.roles, Some(RoleSplit { load_threads: 256, math_threads: 256, teams: 1, registers: None }));
    assert_eq!(spec.launch_threads(), 512);
    assert_eq!(
        spec.epilogue,
        Epilogue {
            split: Split::Workspace,
            exit: Exit::Direct { width: 4 },
            shuffles: false,
            finish: Finish::Kernel,
            carry: false,
            operands: false
        }
    );
    // Fragments read ahead write the k-steps out: UKL says nothing there.
    assert_eq!((spec.style.min_groups, spec.style.unroll_k), (2, false));
}

/// Load threads load every element of a tile once, threads compute every element of the result tile once, whatever the order.
#[test]
fn threads_share_tiles_without_rest() {
    let c = gemm(1024, 1024, 1024, "nn");
    for change in [
        "C_UNR16",
        "A_MIW0_LIW1__B_LIW1__C_MIA1_SKW11",
        "A_VEW4_ACP1_LOR1__B_VEW4_GLW4_PLU1_FRW8__C_UNR32_EDG1_WVA8_PFG2_BUF3_LWV4",
        "A_MIC4__B_MIC4_MIW0__C_WVA8_MIA1_MAC128_LWV2",
    ] {
        let spec = derive(&plan(change), &c, &ENV).unwrap();
        let t = &spec.tiling;
        let mut computed = HashSet::new();
        for thread in 0..i64::from(t.math_threads()) {
            let id = |to| t.grid().at(to, &[(Axis::Thread, thread)]);
            let along = |o: &OperandTiling, to| -> Vec<i64> {
                let own = |e: u32| o.micro_tile().at(Axis::Row, &[(Axis::Thread, id(to)), (Axis::Element, e.into())]);
                (0..o.micro).map(own).collect()
            };
            let columns = along(&t.b, Axis::Col);
            for row in along(&t.a, Axis::Row) {
                computed.extend(columns.iter().map(|column| (row, *column)));
            }
        }
        let (rows, columns) = (i64::from(t.a.macro_tile), i64::from(t.b.macro_tile));
        assert_eq!(computed.len() as i64, rows * columns, "{change}");
        assert!(computed.iter().all(|(r, c)| (0..rows).contains(r) && (0..columns).contains(c)), "{change}");
        for o in [&t.a, &t.b] {
            let share = o.share(t.k_tile);
            assert_eq!(share.extent(Axis::Thread), u64::from(spec.load_threads()), "{change}");
            let [threads, vectors, elements] = [Axis::Thread, Axis::Vector, Axis::Element].map(|a| share.extent(a) as i64);
            let mut loaded = HashSet::new();
            for index in 0..threads * vectors * elements {
                let (thread, vector, element) = (index / (vectors * elements), index / elements % vectors, index % elements);
                let point = [(Axis::Thread, thread), (Axis::Vector, vector), (Axis::Element, element)];
                assert!(loaded.insert((share.at(Axis::Row, &point), share.at(Axis::K, &point))), "{change}");
            }
            assert_eq!(loaded.len() as u32, o.macro_tile * t.k_tile, "{change}");
            assert!(loaded.iter().all(|(r, k)| *r < o.macro_tile.into() && *k < t.k_tile.into()), "{change}");
        }
    }
}

#[test]
fn padding_keeps_rows_aligned() {
    let c = gemm(1024, 1024, 1024, "nt");
    let pads = |change: &str| {
        let t = derive(&plan(change), &c, &ENV).unwrap().spec.tiling;
        (t.a.pad, t.b.pad)
    };
    assert_eq!(pads("A_VEW4_PAD2__B_VEW2_PAD1"), (8, 2));
    assert_eq!(pads("A_FRW4_PAD2__B_GLW2_PAD1"), (8, 2));
    assert_eq!(pads("A_FRW2_GLW4_VEW8_PAD1__B_PAD0"), (4, 0));
}

#[test]
fn staged_stores_need_no_adjacent_fragments() {
    let c = gemm(1024, 1024, 1024, "nn");
    assert!(matches!(refusal("C_CVW4", &c), Refusal::StoreUnit { width: 4, dim: "m", units: 1 }));
    assert_eq!(derive(&plan("A_FRW4__C_CVW4"), &c, &ENV).unwrap().epilogue.exit.width(), 4);
    let staged = derive(&plan("C_CVW4_CST1"), &c, &ENV).unwrap();
    assert!(staged.epilogue.exit.staged() && staged.epilogue.exit.width() == 4);
}

#[test]
fn vectors_follow_alignment() {
    let odd = |lda: u64, offset: u64, m: u64| {
        let gemm = Gemm::new(Scalar::F32, m, 512, 512).order(Order::Col).lda(lda).offsets(offset, 0, 0).build().unwrap();
        lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead
    };
    assert!(derive(&plan("A_VEW4"), &odd(516, 0, 512), &ENV).is_ok());
    for (c, allowed) in [(odd(514, 0, 512), 2), (odd(515, 0, 512), 1), (odd(516, 2, 512), 2), (odd(516, 3, 512), 1)] {
        match refusal("A_VEW4", &c) {
            Refusal::VectorAlign { width: 4, allowed: found, key: Key::A(Chiral::Vew) } => assert_eq!(found, allowed),
            other => panic!("{other}"),
        }
    }
    // LIW1 does not excuse an odd leading dimension, as it does for MIOpenGEMM, whose kernels then fault.
    assert!(matches!(refusal("A_VEW2_LIW1", &odd(515, 0, 512)), Refusal::VectorAlign { .. }));
    // The pulled-back last tile, and a predicated one, start or end inside a vector.
    let ragged = odd(516, 0, 514);
    for change in ["A_VEW4", "A_VEW4__C_EDG1"] {
        assert!(matches!(refusal(change, &ragged), Refusal::VectorEdge { dim: "m", extent: 514, .. }));
    }
    assert!(derive(&plan("A_VEW2"), &ragged, &ENV).is_ok());
    // Panels and copies mend all of this, copies except the edge.
    assert!(derive(&plan("A_VEW4_WOS2"), &odd(515, 3, 514), &ENV).is_ok());
    assert!(derive(&plan("A_VEW4_WOS1"), &odd(515, 3, 512), &ENV).is_ok());
}

#[test]
fn wide_loads_follow_the_contiguous_direction() {
    let c = gemm(512, 512, 512, "nn");
    assert!(matches!(refusal("B_VEW2", &c), Refusal::NotContiguous { key: Key::B(Chiral::Vew), along_k: false, .. }));
    let spec = derive(&plan("B_GLW4_PLU1"), &c, &ENV).unwrap();
    assert_eq!((spec.tiling.b.load_along, spec.tiling.b.store_width), (Along::K, 1));
    assert!(matches!(refusal("B_GLW4_PLU1__C_UFO1", &c), Refusal::VectorStagger { .. }));
    let tail = gemm(512, 512, 508, "nn");
    assert!(derive(&plan("B_GLW4_PLU1"), &tail, &ENV).is_ok());
    let gemm = Gemm::new(Scalar::F32, 512, 512, 510).order(Order::Col).ldb(512).build().unwrap();
    let tail = lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead;
    assert!(matches!(refusal("B_GLW4_PLU1", &tail), Refusal::VectorEdge { dim: "k", extent: 510, .. }));
}

/// In place, an NHWC convolution's input is contiguous along k in runs of its channels.
#[test]
fn convolutions_load_vectors_where_their_views_allow() {
    let conv = |layout, c| {
        let conv = Conv::new(Scalar::F32, 2, c, 64, &[16, 16], &[3, 3]).pad(&[1, 1], &[1, 1]).layout(layout).build().unwrap();
        lower(&Problem::Conv(conv), ConvForm::PER_SAMPLE).unwrap().lead
    };
    let change = "A_MIC4_GLW4_PLU1__B_MIC4__C_UNR16_MAC64_EDG1";
    let contiguous = conv(Layout::Nhwc, 32);
    let spec = derive(&plan(change), &contiguous, &ENV).unwrap();
    assert_eq!((spec.tiling.a.load_width, spec.tiling.a.load_along), (4, Along::K));
    assert!(derive(&plan(change), &conv(Layout::Nhwc, 6), &ENV).is_err());
    let refused = derive(&plan(change), &conv(Layout::Nchw, 32), &ENV).unwrap_err();
    assert!(
        matches!(refused, Refusal::NotContiguous { .. } | Refusal::VectorAlign { .. } | Refusal::VectorTile { .. }),
        "{refused}"
    );
    assert!(derive(&plan("A_MIC4_WOS2_VEW4__B_MIC4__C_UNR16_MAC64_EDG1"), &conv(Layout::Nchw, 32), &ENV).is_ok());
}

#[test]
fn every_refusal_of_derive() {
    use Refusal as R;
    let c = gemm(1024, 1024, 1024, "nt");
    let small = gemm(100, 1024, 1024, "nt");
    let k8 = gemm(1024, 1024, 8, "nt");
    type Is = fn(&Refusal) -> bool;
    let cases: [(&str, &Contraction, Is, &str); 21] = [
        ("C_MAC32_SKW7", &c, |r| matches!(r, R::ThreadGrid { mac: 32, skw: 7 }), "MAC32_SKW7"),
        ("A_MIC64__C_MAC1024_SKW5", &c, |r| matches!(r, R::TileOverEdge { .. }), "EDG0"),
        ("A_MIC64__C_MAC1024_SKW0_EDG1", &c, |r| matches!(r, R::ThreadGrid { .. }), "SKW0"),
        ("", &small, |r| matches!(r, R::TileOverEdge { macro_tile: 128, extent: 100, .. }), "along m"),
        (
            "A_MIC7__C_UNR1",
            &c,
            |r| matches!(r, R::LoadShare { macro_tile: 112, k_tile: 1, threads: 256, .. }),
            "256 loading threads",
        ),
        (
            "A_MIC1_WOS2__C_MAC1_UNR8",
            &c,
            |r| matches!(r, R::PackShare { macro_tile: 1, .. }),
            "A_WOS2: a packed tile of 1 x UNR8 elements is no multiple of 64",
        ),
        ("C_UFO1", &k8, |r| matches!(r, R::Stagger { k: 8, k_tile: 16 }), "UFO1"),
        ("C_NAW3_ICE4", &c, |r| matches!(r, R::Strip { naw: 3, ice: 4 }), "NAW3 / ICE4"),
        (
            "A_MIC6_VEW4__C_UNR32",
            &c,
            |r| matches!(r, R::FragmentWidth { width: 4, micro: 6, .. }),
            "A_VEW4 does not divide A_MIC6",
        ),
        ("A_FRW16__C_EDG1", &c, |r| matches!(r, R::FragmentWidth { key: Key::A(Chiral::Frw), .. }), "A_FRW16"),
        ("A_ACP1", &c, |r| matches!(r, R::AsyncAhead { pfg: 0, buf: 1, .. }), "A_ACP1"),
        ("B_ACP1__C_PFG1_BUF1", &c, |r| matches!(r, R::AsyncAhead { pfg: 1, buf: 1, .. }), "PFG1_BUF1"),
        ("A_ACP1_VEW8__C_PFG1_BUF2_UNR32", &c, |r| matches!(r, R::AsyncBytes { bytes: 32, .. }), "32 bytes"),
        ("C_MVW4", &c, |r| matches!(r, R::MathWidth { width: 4, fragment: 1, .. }), "MVW4"),
        ("C_WVA64", &c, |r| matches!(r, R::WaveShape { wva: 64, wave: 64, .. }), "WVA64"),
        ("C_LWV1_MAC32", &c, |r| matches!(r, R::RoleWaves { mac: 32, .. }), "LWV1"),
        ("C_BUF2", &c, |r| matches!(r, R::Buffers { pfg: 0, buf: 2 }), "BUF2: PFG0 uses at most 1"),
        ("C_PFG1_BUF3", &c, |r| matches!(r, R::Buffers { pfg: 1, buf: 3 }), "at most 2"),
        ("C_UNR1_FRA1", &c, |r| matches!(r, R::FragmentsAhead { fra: 1, k_steps: 1 }), "of 1 k-steps"),
        ("C_CVW2", &c, |r| matches!(r, R::StoreUnit { width: 2, .. }), "CST1"),
        ("C_MAC3_SKW10", &c, |r| matches!(r, R::ThreadGrid { .. }), "MAC3"),
    ];
    for (change, c, is, words) in cases {
        let refused = refusal(change, c);
        assert!(is(&refused), "{change}: {refused:?}");
        assert!(refused.to_string().contains(words) && has_remedy(&refused), "{change}: {refused}");
    }
    let out = derive(&Plan::default().but(|keys| keys.order = 9), &c, &ENV).unwrap_err();
    assert_eq!(out.to_string(), "C_GAL9: legal values are 1 to 3");
    let huge = derive(&Plan::default().but(|keys| keys.a.micro = u32::MAX), &c, &ENV).unwrap_err();
    assert!(matches!(huge, R::Value { .. }));
    let mut empty = gemm(8, 8, 8, "nn");
    empty.n = 0;
    assert!(matches!(refusal("", &empty), R::Empty { n: 0, .. }));
    let large = refusal("B_MIC64__C_MAC1024_SKW20_EDG1", &c);
    assert!(matches!(large, R::TileTooLarge { .. } | R::ThreadGrid { .. }), "{large}");
}

#[test]
fn workspace_atomics_and_types() {
    let c = gemm(1024, 1024, 1024, "nt");
    let tight = Env { workspace_bytes: 1000, ..ENV };
    for change in ["A_WOS1", "B_WOS2", "C_ICE2_SKS1"] {
        let refused = derive(&plan(change), &c, &tight).unwrap_err();
        assert!(matches!(refused, Refusal::Workspace { available: 1000, .. }), "{refused}");
        assert!(derive(&plan(change), &c, &ENV).is_ok());
    }
    let strict = Env { allow_atomics: false, ..ENV };
    let refused = derive(&plan("C_ICE2"), &c, &strict).unwrap_err();
    assert!(matches!(refused, Refusal::AtomicsNotAllowed { ice: 2 }));
    assert!(refused.to_string().contains("SKS1"));
    assert!(derive(&plan("C_ICE2_SKS1"), &c, &strict).is_ok());
    let half = Gemm::new(Scalar::F16, 1024, 1024, 1024).order(Order::Col).trans(false, true).build().unwrap();
    let half = lower(&Problem::Gemm(half), ConvForm::PER_SAMPLE).unwrap().lead;
    assert!(matches!(refusal("C_ICE2", &half), Refusal::AtomicType { scalar: Scalar::F16, .. }));
    // Work-groups of a cluster read each other's sums 16 bytes at a time.
    let wide = refusal("B_FRW8__C_ICE2_SKS2_MVW8", &gemm(64, 64, 64, "nt"));
    assert!(matches!(wide, Refusal::Cluster { size: 2, .. }), "{wide}");
    assert!(matches!(refusal("A_ACP1__C_PFG1_BUF2", &half), Refusal::AsyncBytes { bytes: 2, .. }));
    assert!(derive(&plan("A_ACP1_VEW2__C_PFG1_BUF2"), &half, &ENV).is_ok());
    assert!(matches!(refusal("A_ACP1_GLW4_PLU1__C_PFG1_BUF2", &gemm(1024, 1024, 1024, "tt")), Refusal::AsyncAlongK { .. }));
}

#[test]
fn stores_of_c_in_vectors_need_aligned_lines() {
    let c = |ldc: u64, m: u64| {
        let gemm = Gemm::new(Scalar::F32, m, 512, 512).order(Order::Col).ldc(ldc).build().unwrap();
        lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead
    };
    assert!(matches!(refusal("A_FRW4__C_CVW4", &c(514, 512)), Refusal::StoreAlign { width: 4, allowed: 2 }));
    let refused = refusal("A_FRW4__C_CVW4_EDG1", &c(516, 514));
    assert!(matches!(refused, Refusal::VectorEdge { key: Key::C(Common::Cvw), dim: "m", .. }), "{refused}");
    // Partial sums in workspace do not care for C's lines.
    assert!(derive(&plan("A_FRW4__C_CVW4_ICE2_SKS1"), &c(514, 512), &ENV).is_ok());
    // With atomics, results are added one by one.
    assert_eq!(derive(&plan("C_CVW4_ICE2"), &c(512, 512), &ENV).unwrap().epilogue.exit.width(), 1);
}

#[test]
fn what_does_not_fit_a_device() {
    let c = gemm(4096, 4096, 4096, "nt");
    let target = |arch: &str| Target::by_arch(arch).unwrap();
    let on = |change: &str, c: &Contraction, target: &Target| {
        let env = Env { allow_atomics: true, ..Env::new(target, 1 << 30) };
        fits(&derive(&plan(change), c, &env).unwrap(), target)
    };
    let hopper = target("sm_90a");
    let fine = on("", &c, &hopper).unwrap();
    assert_eq!((fine.threads, fine.shared_bytes), (256, 2 * 129 * 16 * 4));
    assert!((90..=128).contains(&fine.registers), "{fine:?}");
    assert_eq!(fine.groups_per_unit, 2);

    let refused = on("C_MAC1024_LWV1", &c, &hopper).unwrap_err();
    assert_eq!(refused.to_string(), "1056 threads (MAC, LWV), and a work-group has at most 1024; use a smaller MAC or LWV");
    assert!(matches!(on("C_UNR256", &c, &hopper), Err(Refusal::Shared { bytes: 264192, .. })));
    assert!(matches!(on("A_MIC16__B_MIC16", &c, &hopper), Err(Refusal::Registers { max: 255, .. })));
    assert!(matches!(on("C_MAC1024", &c, &hopper), Err(Refusal::Registers { max: 64, .. })));
    // 128 k-steps of 8 x 8 are written out twice or as a loop.
    let long = on("C_MAC64_UNR128_FRA1_PFG3_BUF2", &c, &hopper).unwrap_err();
    assert!(matches!(long, Refusal::Unrolled { count: 16_384.., .. }) && long.to_string().contains("UKL"), "{long}");
    assert!(on("C_MAC64_UNR128_PFG3_BUF2", &c, &hopper).is_ok());
    assert!(on("C_MAC1024_UNR32", &gemm(4096, 4096, 4096, "nt"), &hopper).is_err());
    let turing = target("sm_75");
    let refused = on("A_ACP1__C_PFG1_BUF2", &c, &turing).unwrap_err();
    assert_eq!(refused.to_string(), "ACP1: the device has no asynchronous copies; use ACP0");
    let mut plain = hopper.clone();
    plain.features.roles = false;
    let refused = on("C_LWV1", &c, &plain).unwrap_err();
    assert!(matches!(refused, Refusal::Feature { .. }) && has_remedy(&refused), "{refused}");
    plain.features.f64 = false;
    let double = Gemm::new(Scalar::F64, 512, 512, 512).order(Order::Col).build().unwrap();
    let double = lower(&Problem::Gemm(double), ConvForm::PER_SAMPLE).unwrap().lead;
    let refused = on("A_MIC4__B_MIC4", &double, &plain).unwrap_err();
    assert!(matches!(refused, Refusal::Feature { .. }) && has_remedy(&refused), "{refused}");
    plain.limits.max_grid[0] = 100;
    assert!(matches!(on("", &c, &plain), Err(Refusal::Groups { groups: 1024, max: 100 })));
}

#[test]
fn staging_takes_room() {
    let c = gemm(1024, 1024, 1024, "nt");
    let spec = |change: &str| derive(&plan(change), &c, &ENV).unwrap();
    let sets = |change: &str| staging_sets(&spec(change).schedule);
    assert_eq!((sets(""), sets("C_PFG1_BUF2"), sets("C_PFG2_BUF1"), sets("C_PFG2_BUF2")), (1, 1, 2, 2));
    assert_eq!((sets("C_PFG1"), sets("C_PFG4_BUF3"), sets("A_ACP1__B_ACP1__C_PFG3_BUF4")), (1, 3, 1));
    assert_eq!(spec("C_PFG1_BUF2").shared.bytes(), 2 * spec("").shared.bytes());
    // The staging buffer of results lies over the operands' tiles, which are smaller here.
    assert_eq!(spec("C_UNR1_CST1_MAC64").shared.bytes(), (64 + 4) * 8 * 4);
    assert_eq!(spec("C_CST1").shared.bytes(), spec("").shared.bytes());
    let target = Target::by_arch("sm_90a").unwrap();
    let registers = |change: &str| {
        let spec = derive(&plan(change), &c, &Env::new(&target, 0)).unwrap();
        fits(&spec, &target).unwrap().registers
    };
    assert_eq!(registers("C_FRA1"), registers("") + 16);
    assert!(registers("C_LWV4_PFG1_BUF2") < registers("C_PFG1_BUF2"));
}

#[test]
fn counts_of_a_square_product() {
    let c = gemm(1024, 1024, 1024, "nt");
    let spec = derive(&plan(""), &c, &ENV).unwrap();
    let n = counts(&spec);
    let (cube, square) = (1024f64.powi(3), 1024f64.powi(2));
    assert_eq!((n.flop, n.flop_done, n.useful()), (2.0 * cube, 2.0 * cube, 1.0));
    assert_eq!(n.dram_bytes, 3.0 * square * 4.0);
    // Every element of A is loaded once per column of tiles, every element of B once per row of tiles.
    assert_eq!(n.loaded_bytes, 2.0 * 8.0 * square * 4.0);
    assert_eq!((n.shared_written, n.shared_read), (n.loaded_bytes, 2.0 * cube / 8.0 * 4.0));
    assert_eq!((n.groups, n.threads, n.k_tiles, n.launches), (64, 256, 64, 1));
    let each = n.per_k_tile;
    assert_eq!(
        (each.math, each.fragment_reads, each.global_loads, each.shared_stores, each.barriers),
        (1024.0, 256.0, 16.0, 16.0, 2.0)
    );
    let split = counts(&derive(&plan("A_WOS1_VEW4__C_ICE2_SKS1"), &c, &ENV).unwrap());
    assert_eq!((split.launches, split.groups, split.k_tiles), (3, 128, 32));
    assert_eq!(split.loaded_bytes, n.loaded_bytes);
    assert_eq!(split.dram_bytes, n.dram_bytes + 2.0 * (square + 2.0 * square) * 4.0);
    let edge = gemm(100, 100, 100, "nt");
    let n = counts(&derive(&plan("C_EDG1"), &edge, &ENV).unwrap());
    assert_eq!(n.flop_done, 2.0 * 128.0 * 128.0 * 112.0);
}
