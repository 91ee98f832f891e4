//! Operands and results of more than 2^32 elements: every unit's offsets are 64 bits wide where they must be. The emulator's memory
//! takes only what is touched of them.

use std::sync::Arc;
use tilewright_check::run::{Buffers, Factors, bind, compile};
use tilewright_device::{Buffer, Device, Options, open_with};
use tilewright_gen::plan::Constraint;
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Order, Problem};
use tilewright_tune::search::pick;

/// Rows, columns and depth: two tiles and a bit of most plans.
const M: usize = 70;
const N: usize = 40;
const K: usize = 48;
/// Elements from one row to the next: row 32 begins beyond 2^32.
const APART: u64 = (1 << 27) + 64;

fn value(row: usize, column: usize) -> i32 {
    ((row * 7 + column * 3) % 5) as i32 - 2
}

/// Rows of a matrix whose rows stand far apart.
fn far_apart(device: &dyn Device, rows: usize, columns: usize, bytes: &dyn Fn(i32) -> Vec<u8>) -> Buffer {
    let size = bytes(0).len() as u64;
    let memory = device.alloc(((rows as u64 - 1) * APART + columns as u64) * size).expect("memory that nobody touches");
    for row in 0..rows {
        let line: Vec<u8> = (0..columns).flat_map(|column| bytes(value(row, column))).collect();
        device.write(&memory, row as u64 * APART * size, &line).expect("a row is written");
    }
    memory
}

fn runs(arch: &str, dtype: Scalar, constraint: &str) {
    let device: Arc<dyn Device> = open_with(&format!("emu:{arch}"), &Options::default()).expect("the emulator opens");
    let gemm = Gemm::new(dtype, M as u64, N as u64, K as u64).order(Order::Row).lda(APART).ldb(APART).ldc(APART);
    let problem: Problem = gemm.out_dtype(Scalar::F32).build().expect("a problem").into();
    let space = Space::new(&problem, &device.info().target).expect("a space");
    let space = space.constrained(&Constraint::parse(constraint).expect("a constraint"));
    let plan = pick(&*device, &space).expect("a plan");
    let found = space.resolve(&plan).expect("it is legal");
    let program = found.generate(space.env().workspace_bytes).expect("it generates");
    let compiled = compile(&*device, &program).expect("it compiles");
    let bytes = |x: i32| match dtype {
        Scalar::F16 => half::f16::from_f32(x as f32).to_le_bytes().to_vec(),
        Scalar::BF16 => half::bf16::from_f32(x as f32).to_le_bytes().to_vec(),
        _ => (x as f32).to_le_bytes().to_vec(),
    };
    let workspace = (program.workspace_bytes > 0).then(|| device.alloc(program.workspace_bytes).expect("workspace"));
    let buffers = Buffers {
        a: far_apart(&*device, M, K, &bytes),
        b: far_apart(&*device, K, N, &bytes),
        c: device.alloc(((M as u64 - 1) * APART + N as u64) * 4).expect("memory that nobody touches"),
        added: Default::default(),
        reductions: Vec::new(),
        workspace,
        offsets: [0; 3],
    };
    let at = found.contraction.extents();
    let launches = bind(&program, &compiled, found.contraction, &buffers, Factors::default(), &at).expect("it binds");
    device.launch(&launches).unwrap_or_else(|e| panic!("{arch} {plan}: {e}"));
    for row in 0..M {
        let mut line = [0; 4 * N];
        device.read(&buffers.c, row as u64 * APART * 4, &mut line).expect("a row is read");
        for (column, bytes) in line.chunks_exact(4).enumerate() {
            let want: i32 = (0..K).map(|k| value(row, k) * value(k, column)).sum();
            let have = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            assert_eq!(have, want as f32, "{arch} {plan}: row {row}, column {column}");
        }
    }
}

#[test]
fn fused_multiply_add() {
    runs("sm_80", Scalar::F32, "C_UNI0");
}

#[test]
fn matrix_units_of_waves() {
    runs("sm_80", Scalar::F16, "C_UNI1");
    runs("gfx942", Scalar::F16, "C_UNI3");
}

#[test]
fn matrix_units_of_warpgroups() {
    // In bulk, through registers of load waves, and in bulk to staging.
    for copies in ["A_ACP2__B_ACP2__C_UNI2", "A_ACP0__B_ACP2__C_UNI2", "A_ACP3__B_ACP2__C_UNI2"] {
        runs("sm_90a", Scalar::BF16, copies);
    }
}

#[test]
fn partial_sums_in_workspace() {
    runs("sm_80", Scalar::F16, "C_UNI1_ICE3_SKS1");
}
