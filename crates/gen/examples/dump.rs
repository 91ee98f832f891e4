use tilewright_gen::{contraction::*, kernel::generate, plan::*, view::*};
use tilewright_ir::*;
fn t(sr: i64, sc: i64, ext: [u64; 3], len: u64) -> Tensor {
    let mut f = Affine::constant(0);
    f = f.plus(&Affine::axis(ROW), sr).plus(&Affine::axis(COL), sc);
    Tensor { scalar: Scalar::F32, view: View { extent: ext, access: Access { offset: f, bounds: vec![] } }, align: 256, len }
}
fn main() {
    let (m, n, k) = (4096u64, 4096u64, 4096u64);
    let a: Vec<String> = std::env::args().collect();
    let num = |i: usize, d: u32| a.get(i).and_then(|s| s.parse().ok()).unwrap_or(d);
    let (pfg, buf, stp, fra) = (num(1, 0), num(2, 1), num(3, 1), num(4, 0));
    let along_k = num(5, 0) == 1;
    let (mi, unr) = (num(6, 8), num(7, 16));
    let op = |micro: u32| {
        let mt = micro * 16;
        let l = mt * unr / 256;
        OperandTiling {
            micro,
            macro_tile: mt,
            pad: 4,
            load_row: if along_k { l / 4 } else { 4 },
            load_k: if along_k { 4 } else { l / 4 },
            load_interleave: true,
            load_order: if along_k { Along::K } else { Along::Row },
            load_width: 4,
            load_along: if along_k { Along::K } else { Along::Row },
            store_width: if along_k { 1 } else { 4 },
            fragment_width: 4,
            micro_interleave: true,
            source: Source::InPlace,
        }
    };
    let c = Contraction {
        g: 1,
        m,
        n,
        k,
        a: if along_k { t(k as i64, 1, [1, m, k], m * k) } else { t(1, m as i64, [1, m, k], m * k) },
        b: if along_k { t(k as i64, 1, [1, n, k], n * k) } else { t(1, n as i64, [1, n, k], n * k) },
        c: t(1, m as i64, [1, m, n], m * n),
        bias: None,
    };
    let spec = KernelSpec {
        tiling: Tiling {
            a: op(8),
            b: op(mi),
            k_tile: unr,
            threads_a: 16,
            threads_b: 16,
            micro_b_fastest: false,
            wave_a: 8,
            wave_lanes: 32,
            math_width: 1,
            order: GroupOrder::Strips(8),
            split_k: SplitK { ways: 1, interleave: false },
            edge_m: Edge::PullBack,
            edge_n: Edge::PullBack,
            k_stagger: false,
        },
        schedule: Schedule {
            fetch_ahead: pfg,
            buffers: buf,
            store: [StorePoint::AtOnce, StorePoint::AfterMath, StorePoint::Spread][stp as usize % 3],
            fragments_ahead: fra,
            async_a: stp == 3,
            async_b: stp == 3,
            roles: None,
            hints: false,
        },
        epilogue: Epilogue { split_sum: SplitSum::Workspace, store_width: 4, staged: false },
        style: Style { pragma_unroll: true, wide_index: false, mad: true, a_first: true, min_groups: 2, unroll_k: true },
    };
    let p = generate(&c, &spec, 1 << 30).unwrap();
    let target = Target::by_arch("sm_90a").unwrap();
    for k in &p.kernels {
        if let Err(e) = validate(k, &target) {
            eprintln!("INVALID {e}");
        }
        println!("{}", print(k, &target).unwrap().text);
    }
}
