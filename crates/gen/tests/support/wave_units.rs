//! Random products for matrix units of single waves (`UNI1`, `UNI3`), and plans whose operands come in bulk.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use tilewright_check::random::{epilogue, out_dtype};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Math, Order, Problem};

/// One of a few.
fn one<T: Copy>(rng: &mut ChaCha8Rng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

/// A product with edges everywhere; of `units`, 8 stands for lines at multiples of 16 bytes.
pub fn product(rng: &mut ChaCha8Rng, unit_number: u32, units: &[u64]) -> Problem {
    let unit = one(rng, units);
    let mut extent = |most: u64| unit * rng.random_range(1..most / unit);
    let (m, n, k) = (extent(180), extent(180), extent(140));
    let single = if unit_number == 1 { Math::Tf32 } else { Math::Exact };
    let exact = |dtype| (dtype, Math::Exact);
    let types = [Scalar::F16, Scalar::BF16, Scalar::F64].map(exact);
    let split = [Math::Tf32x3, Math::Bf16x3, Math::Bf16x6].map(|math| (Scalar::F32, math));
    let types = [&types[..], &[(Scalar::F32, single)], &split].concat();
    let (dtype, math) = one(rng, &types);
    let gemm =
        Gemm::new(dtype, m, n, k).order(Order::Col).math(math).trans(rng.random(), rng.random()).batch(one(rng, &[1, 1, 2, 3]));
    let gemm = gemm.out_dtype(out_dtype(rng, dtype)).order(one(rng, &[Order::Row, Order::Col]));
    epilogue(rng, gemm, unit).unwrap().build().unwrap().into()
}

/// A plan whose operands come by bulk copies, one of them at least, for multiply-adds, mma.sync or wgmma; legal or nearly so.
pub fn piped(rng: &mut ChaCha8Rng, unit: u32) -> Plan {
    let mut text = String::new();
    let alone = rng.random_range(0..2);
    let turns = rng.random_bool(0.2);
    // Only TMA does without load waves.
    let other = one(rng, &[2, 2, 0, 1, 3]);
    let load_waves = if turns || other != 2 { one(rng, &[1, 2, 4, 4]) } else { one(rng, &[0, 0, 1, 2, 4]) };
    for (i, side) in ["A", "B"].into_iter().enumerate() {
        let mic = one(rng, [&[2, 4, 4, 8][..], &[1, 2, 2, 4, 3], &[1, 1, 2, 4, 8]][unit as usize]);
        text += &format!(
            "{side}_MIC{mic}_MIW{}_VEW{}_GLW{}_PLU1_LIW{}_WOS{}_ACP{}_CLU{}__",
            rng.random_range(0..2),
            one(rng, &[1, 2, 4]),
            one(rng, &[0, 4, 8, 8]),
            rng.random_range(0..2),
            one(rng, &[0, 0, 0, 1]),
            if i == alone { 2 } else { other },
            one(rng, &[1, 1, 1, 2]),
        );
    }
    let (ways, buffers) = (one(rng, &[1, 1, 1, 2, 3]), rng.random_range(2..5u32));
    text += &format!(
        "C_UNI{unit}_UNR{}_MAC{}_SKW{}_PFG{}_BUF{buffers}_FRA{}_LWV{}_SWP{}_GAL{}_ICE{ways}_SKS1_UKL{}_AFI{}_PST{}_PNG{}_CST{}",
        one(rng, &[32, 64, 64]),
        if turns { 256 } else { one(rng, &[64, 128, 128, 256]) },
        one(rng, &[9, 10, 11]),
        buffers - 1,
        rng.random_range(0..2),
        load_waves,
        rng.random_range(0..2),
        one(rng, &[1, 2, 3]),
        rng.random_range(0..2),
        rng.random_range(0..2),
        if turns { one(rng, &[2, 4]) } else { one(rng, &[0, 0, 2, 4]) },
        u32::from(turns),
        rng.random_range(0..2),
    );
    Constraint::parse(&text).unwrap().apply(&Plan::default()).into()
}
