//! Measures the emulator: a tiled f32 matrix product through shared memory, 256 threads with 8x8 results each.
//!
//! `cargo run --release -p tilewright-emu --example throughput [-- THREADS]` prints GFLOP/s without and with checks.
//! "Per core" divides by the processor time of the calling thread, so it is for one thread.

use std::time::Instant;
use tilewright_emu::{ArgValue, Buffer, Checks, Options, Program};
use tilewright_ir::{Access, Base, BinaryOp, Builder, Builtin, Kernel, Scalar, Unroll};

const TILE: u32 = 128;
const STEP: u32 = 8;
const MICRO: u32 = 8;
const THREADS: u32 = 256;

/// C (n x n, row-major) = A^T B with A and B k-major, n and k multiples of the tile.
fn kernel(n: i64, k: i64, lanes: u32) -> Kernel {
    let mut b = Builder::new("gemm", THREADS);
    let a_arg = b.buffer("a", Scalar::F32, Access::Read, "A, k x n");
    let b_arg = b.buffer("b", Scalar::F32, Access::Read, "B, k x n");
    let c_arg = b.buffer("c", Scalar::F32, Access::Write, "C, n x n");
    let tile = STEP * TILE;
    let shared = [b.shared("a_tile", Scalar::F32, tile, 0), b.shared("b_tile", Scalar::F32, tile, tile * 4)];
    let acc = b.regs("acc", Scalar::F32.ty(), MICRO * MICRO);
    let frag_ty = Scalar::F32.vector(lanes as u8);
    let frags = [b.regs("a_frag", frag_ty, MICRO / lanes), b.regs("b_frag", frag_ty, MICRO / lanes)];

    let lid = b.builtin(Builtin::LocalId);
    let zero = b.zero(Scalar::F32.ty());
    for i in 0..MICRO * MICRO {
        b.set_reg(acc, i, zero);
    }
    let micro = [b.binary(BinaryOp::Div, lid, TILE / MICRO), b.binary(BinaryOp::Rem, lid, TILE / MICRO)];
    let mut origin = Vec::new();
    for (d, name) in ["row", "col"].into_iter().enumerate() {
        let g = b.builtin(Builtin::GroupId(d as u8));
        let at = b.mul(g, TILE);
        origin.push(b.bind(name, at));
    }
    let own: Vec<_> = micro
        .iter()
        .zip(["own_row", "own_col"])
        .map(|(&m, name)| {
            let at = b.mul(m, MICRO);
            b.bind(name, at)
        })
        .collect();
    // Each thread copies 4 consecutive elements of each tile.
    let per_row = TILE / 4;
    let load_k = b.binary(BinaryOp::Div, lid, per_row);
    let load_i = b.binary(BinaryOp::Rem, lid, per_row);
    let load_i = b.mul(load_i, 4);
    let to = b.mul(load_k, TILE);
    let to = b.add(to, load_i);
    let to = b.bind("to", to);
    let from_k = b.mul(load_k, n);
    let mut cursors = Vec::new();
    for (d, arg) in [a_arg, b_arg].into_iter().enumerate() {
        let from = b.add(from_k, origin[d]);
        let from = b.add(from, load_i);
        let from = b.cast(from, Scalar::I64);
        cursors.push(b.cursor(["a_at", "b_at"][d], arg, from));
    }
    b.for_range("tile", 0i64, k / STEP as i64, Unroll::No, |b, _| {
        for d in 0..2 {
            let v = b.load(["a_in", "b_in"][d], Base::Cursor(cursors[d]), 0, 4, None);
            b.store(Base::Shared(shared[d]), to, v, None);
            b.advance(cursors[d], n * STEP as i64);
        }
        b.barrier();
        b.for_range("kk", 0, STEP, Unroll::Full, |b, kk| {
            for d in 0..2 {
                b.for_range("i", 0, MICRO / lanes, Unroll::Full, |b, i| {
                    let row = b.mul(kk, TILE);
                    let at = b.add(row, own[d]);
                    let step = b.mul(i, lanes);
                    let at = b.add(at, step);
                    let place = b.reg_place(frags[d], i);
                    b.load_to(place, Base::Shared(shared[d]), at, None);
                });
            }
            for i in 0..MICRO {
                for j in 0..MICRO {
                    let x = b.reg(frags[0], i / lanes);
                    let x = b.extract(x, i % lanes);
                    let y = b.reg(frags[1], j / lanes);
                    let y = b.extract(y, j % lanes);
                    let z = b.reg(acc, i * MICRO + j);
                    let z = b.fma(x, y, z);
                    b.set_reg(acc, i * MICRO + j, z);
                }
            }
        });
        b.barrier();
    });
    for i in 0..MICRO {
        for j in 0..MICRO {
            let row = b.add(origin[0], own[0]);
            let row = b.add(row, i);
            let at = b.mul(row, n);
            let col = b.add(origin[1], own[1]);
            let at = b.add(at, col);
            let at = b.add(at, j);
            let v = b.reg(acc, i * MICRO + j);
            b.store(Base::Buffer(c_arg), at, v, None);
        }
    }
    b.finish()
}

/// Time all threads of this process have spent on cores, in seconds (Linux; elsewhere the time of day). On a busy machine this
/// says more about the emulator than the time that went by.
fn cpu_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let spent = tasks.filter_map(|t| {
        let text = std::fs::read_to_string(t.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    match spent.sum::<f64>() {
        0.0 => std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |t| t.as_secs_f64()),
        ns => ns / 1e9,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(1), |t| t.parse())?;
    let (n, k) = (512i64, 512i64);
    let value = |i: i64, salt: i64| ((i * 7 + salt) % 13 - 6) as f32;
    let fill = |salt| (0..n * k).flat_map(|i| value(i, salt).to_le_bytes()).collect::<Vec<_>>();
    let (a, bb) = (fill(1), fill(5));
    for lanes in [1, 4] {
        for (name, checks) in [("checks off", Checks::none()), ("checks on", Checks::all())] {
            let options = Options { checks, threads, ..Options::default() };
            let kernel = kernel(n, k, lanes);
            let start = Instant::now();
            let program = Program::new(&kernel, &options)?;
            let lowering = start.elapsed();
            let c = Buffer::new((n * n * 4) as usize);
            let args = [Buffer::from_bytes(&a), Buffer::from_bytes(&bb), c.clone()];
            let args = args.map(|buffer| ArgValue::Buffer { buffer, offset: 0 });
            let groups = (n / TILE as i64) as u32;
            let (mut best, mut best_cpu) = (f64::MAX, f64::MAX);
            for _ in 0..8 {
                let (start, cpu) = (Instant::now(), cpu_seconds());
                program.run([groups, groups, 1], &args)?;
                best = best.min(start.elapsed().as_secs_f64());
                best_cpu = best_cpu.min(cpu_seconds() - cpu);
            }
            let out = c.to_vec();
            for (i, j) in [(0, 0), (1, 200), (n - 1, n - 2)] {
                let want: f32 = (0..k).map(|p| value(p * n + i, 1) * value(p * n + j, 5)).sum();
                let at = ((i * n + j) * 4) as usize;
                let got = f32::from_le_bytes([out[at], out[at + 1], out[at + 2], out[at + 3]]);
                assert_eq!(got, want, "C[{i}, {j}]");
            }
            let gflop = 2.0 * (n * n * k) as f64 / 1e9;
            // Threads that have ended are not in the sum, so it is for one thread.
            let per_core = if threads == 1 { format!(", {:.2} per core", gflop / best_cpu) } else { String::new() };
            println!(
                "{name:10}  fragments of {lanes}  {:7.2} GFLOP/s on {threads} threads{per_core}, lowered in {lowering:.1?}",
                gflop / best
            );
        }
    }
    Ok(())
}
