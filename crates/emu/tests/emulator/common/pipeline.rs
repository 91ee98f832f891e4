//! A warp-specialised product C = A * B^T as a hand-built kernel: one role loads tiles by bulk copies, one multiplies, a ring of
//! transaction barriers between them. Each rule it keeps can be broken by itself.

use super::*;
use half::{bf16, f16};
use tilewright_ir::*;

/// Which rule to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    Nothing,
    /// The multiplying role does not wait for the loads.
    NoFullWait,
    /// It waits for the phase before.
    WrongPhase,
    /// One lane of each wave waits, the others go on.
    OneLaneWaits,
    /// The loading role does not wait for the readers.
    NoEmptyWait,
    /// Readers arrive before their instructions have read.
    EarlyArrive,
    /// Readers never arrive.
    NoArrive,
    /// Too few bytes are expected.
    FewBytes,
    /// Sums are read before the last instruction is waited for.
    NoLastWait,
    /// No fence before the first instruction.
    NoFence,
    /// No InitFence.
    NoInitFence,
    /// No barrier after the initialisation.
    NoInitBarrier,
    /// A barrier is never initialised.
    NoInit,
    /// Nobody waits for the last loads.
    SpareLoad,
}

/// What to build.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub input: MatrixType,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Columns of a tile; rows are 64.
    pub tile_n: u32,
    pub stages: u32,
    pub swizzle: Swizzle,
    /// A is stored k by m, m contiguous.
    pub a_transposed: bool,
    /// B is stored k by n, n contiguous.
    pub b_transposed: bool,
    /// A comes from registers.
    pub a_in_registers: bool,
    pub broken: Break,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            input: MatrixType::F16,
            m: 100,
            n: 56,
            k: 200,
            tile_n: 32,
            stages: 2,
            swizzle: Swizzle::B128,
            a_transposed: false,
            b_transposed: false,
            a_in_registers: false,
            broken: Break::Nothing,
        }
    }
}

const CONSUMERS: u32 = 128;

/// Bytes of a stored row: a multiple of 16.
fn pitch(shape: &Shape, elements: u32) -> u64 {
    u64::from((elements * shape.input.bytes()).next_multiple_of(16))
}

impl Shape {
    /// k of one stage: a row of the swizzle where k is contiguous.
    fn depth(&self) -> u32 {
        if self.a_transposed || self.b_transposed { 32 } else { self.swizzle.row_bytes().max(32) / self.input.bytes() }
    }
    fn map(&self, rows: u32, tile_rows: u32, transposed: bool) -> TensorMap {
        let row = self.swizzle.row_bytes() / self.input.bytes();
        let (extent, tile, stride) = if transposed {
            (vec![rows.into(), self.k.into()], vec![row, self.depth()], pitch(self, rows))
        } else {
            (vec![self.k.into(), rows.into()], vec![row, tile_rows], pitch(self, self.k))
        };
        TensorMap {
            scalar: self.input.storage(),
            round_tf32: false,
            extent,
            stride_bytes: vec![stride],
            tile,
            swizzle: self.swizzle,
            im2col: None,
        }
    }
    pub fn grid(&self) -> [u32; 3] {
        [self.m.div_ceil(64), self.n.div_ceil(self.tile_n), 1]
    }

    /// The kernel: arguments a, b (tensor maps), c (f32, row after row).
    pub fn kernel(&self) -> Kernel {
        let s = *self;
        let (bytes, depth) = (s.input.bytes(), s.depth());
        let row = s.swizzle.row_bytes() / bytes;
        let broken = |b: Break| s.broken == b;
        kernel(256, |b| {
            b.wave(32);
            // Room for two work-groups: 128 registers per thread at entry, shared out anew below.
            // Wide tiles need what two work-groups would leave them too little of.
            let moves = s.tile_n <= 128;
            b.min_groups(if moves { 2 } else { 1 });
            let map_a = b.tensor_map("a", s.map(s.m, 64, s.a_transposed), "");
            let map_b = b.tensor_map("b", s.map(s.n, s.tile_n, s.b_transposed), "");
            let c = b.buffer("c", Scalar::F32, Access::Write, "");
            let (size_a, size_b) = (64 * depth * bytes, s.tile_n * depth * bytes);
            let stage_a = size_a.next_multiple_of(1024);
            let stage_b = size_b.next_multiple_of(1024);
            let tile_a = b.shared("tile_a", s.input.storage(), stage_a / bytes * s.stages, 0);
            let tile_b = b.shared("tile_b", s.input.storage(), stage_b / bytes * s.stages, stage_a * s.stages);
            let end = (stage_a + stage_b) * s.stages;
            let full = b.tx_barriers("full", s.stages, end);
            let empty = b.tx_barriers("empty", s.stages, end + 8 * s.stages);
            let sums = b.regs("sums", Scalar::F32.ty(), s.tile_n / 2);
            let own = s.a_in_registers.then(|| {
                let words = b.shared("words", Scalar::U32, stage_a / 4 * s.stages, 0);
                (words, b.regs("fragment", Scalar::U32.ty(), 4))
            });
            let lid = b.builtin(Builtin::LocalId);
            let zero = b.int(0, Scalar::I32);
            let at = |array: TxId, index: ExprId| TxRef { barriers: array, index };
            let is_first = b.eq(lid, 0);
            b.if_then(is_first, |b| {
                for i in 0..s.stages {
                    let i_ = b.int(i.into(), Scalar::I32);
                    if !(broken(Break::NoInit) && i == 1) {
                        b.bulk(BulkOp::Init { barrier: at(full, i_), arrivals: 1 });
                    }
                    b.bulk(BulkOp::Init { barrier: at(empty, i_), arrivals: CONSUMERS / 32 });
                }
                if !broken(Break::NoInitFence) {
                    b.bulk(BulkOp::InitFence);
                }
            });
            if !broken(Break::NoInitBarrier) {
                b.barrier();
            }
            let tiles = s.k.div_ceil(depth);
            let (gx, gy) = (b.builtin(Builtin::GroupId(0)), b.builtin(Builtin::GroupId(1)));
            let m0 = b.mul(gx, 64);
            let n0 = b.mul(gy, s.tile_n);

            // The role that loads: its first thread issues.
            let load = b.block(|b| {
                if moves {
                    b.bulk(BulkOp::Registers { count: 40, raise: false });
                }
                let issues = b.eq(lid, CONSUMERS);
                b.if_then(issues, |b| {
                    let loads = if broken(Break::SpareLoad) { tiles + 1 } else { tiles };
                    b.for_range("t", 0, loads, Unroll::No, |b, t| {
                        let stage = b.rem(t, s.stages);
                        let round = b.div(t, s.stages);
                        let parity = b.rem(round, 2);
                        let parity = b.sub(1, parity);
                        if !broken(Break::NoEmptyWait) {
                            b.bulk(BulkOp::Wait { barrier: at(empty, stage), parity });
                        }
                        let expected = if broken(Break::FewBytes) { size_a } else { size_a + size_b };
                        b.bulk(BulkOp::Expect { barrier: at(full, stage), bytes: expected });
                        let k0 = b.mul(t, depth);
                        for (array, map, rows0, rows, stage_bytes, transposed) in [
                            (tile_a, map_a, m0, 64, stage_a, s.a_transposed),
                            (tile_b, map_b, n0, s.tile_n, stage_b, s.b_transposed),
                        ] {
                            let first = b.mul(stage, stage_bytes / bytes);
                            // Boxes are a swizzle's row wide: several side by side where the contiguous direction is longer.
                            let boxes = if transposed { rows / row } else { depth / row };
                            for i in 0..boxes {
                                let to = b.add(first, i * row * if transposed { depth } else { rows });
                                let to = b.mem(Base::Shared(array), to);
                                let coordinates =
                                    if transposed { vec![b.add(rows0, i * row), k0] } else { vec![b.add(k0, i * row), rows0] };
                                b.bulk(BulkOp::Load { to, map, at: coordinates, barrier: at(full, stage), peers: None });
                            }
                        }
                    });
                });
            });

            // The role that multiplies.
            let multiply = b.block(|b| {
                if moves {
                    b.bulk(BulkOp::Registers { count: 208, raise: true });
                }
                let lane = b.rem(lid, 32);
                let leads = b.eq(lane, 0);
                b.for_range("t", 0, tiles, Unroll::No, |b, t| {
                    let stage = b.rem(t, s.stages);
                    let round = b.div(t, s.stages);
                    let parity = b.rem(round, 2);
                    let parity = if broken(Break::WrongPhase) { b.sub(1, parity) } else { parity };
                    match s.broken {
                        Break::NoFullWait => {}
                        Break::OneLaneWaits => b.if_then(leads, |b| b.bulk(BulkOp::Wait { barrier: at(full, stage), parity })),
                        _ => b.bulk(BulkOp::Wait { barrier: at(full, stage), parity }),
                    }
                    let arrive = |b: &mut Builder| {
                        if !broken(Break::NoArrive) {
                            b.if_then(leads, |b| b.bulk(BulkOp::Arrive { barrier: at(empty, stage) }));
                        }
                    };
                    if broken(Break::EarlyArrive) {
                        arrive(b);
                    }
                    if !broken(Break::NoFence) {
                        b.matrix(MatrixOp::WarpgroupFence { acc: sums, left: vec![] });
                    }
                    for step in 0..depth * bytes / 32 {
                        let tile = |b: &mut Builder, array, rows: u32, stage_bytes: u32, transposed: bool| {
                            let from = b.mul(stage, stage_bytes);
                            let none = s.swizzle == Swizzle::None;
                            let (offset, leading, stride) = match (transposed, none) {
                                // Patterns of 8 rows follow one another; without a swizzle, columns of 16 bytes are apart.
                                (false, false) => (step * 32, 0, 8 * s.swizzle.row_bytes()),
                                (false, true) => (step * 2 * rows * 16, rows * 16, 128),
                                (true, false) => {
                                    (step * 16 * s.swizzle.row_bytes(), depth * row * bytes, 8 * s.swizzle.row_bytes())
                                }
                                (true, true) => (step * 16 * 16, 128, depth * 16),
                            };
                            let byte = b.add(from, offset);
                            SharedTile {
                                array,
                                byte,
                                swizzle: s.swizzle,
                                k_contiguous: !transposed,
                                leading_bytes: leading,
                                stride_bytes: stride,
                            }
                        };
                        let left = if let Some((words, fragment)) = own {
                            registers(b, &s, (words, fragment), stage, stage_a, step);
                            b.matrix(MatrixOp::WarpgroupFence { acc: sums, left: vec![] });
                            WarpgroupA::Regs(RegSlice { regs: fragment, first: zero })
                        } else {
                            WarpgroupA::Shared(tile(b, tile_a, 64, stage_a, s.a_transposed))
                        };
                        let right = tile(b, tile_b, s.tile_n, stage_b, s.b_transposed);
                        let accumulate = if step == 0 { b.binary(BinaryOp::Lt, 0, t) } else { b.int(1, Scalar::Bool) };
                        b.matrix(MatrixOp::Warpgroup {
                            input: s.input,
                            n: s.tile_n,
                            a: left,
                            b: right,
                            acc: RegSlice { regs: sums, first: zero },
                            accumulate,
                        });
                        if s.a_in_registers {
                            b.matrix(MatrixOp::WarpgroupCommit);
                            b.matrix(MatrixOp::WarpgroupWait { pending: 0, acc: sums });
                        }
                    }
                    b.matrix(MatrixOp::WarpgroupCommit);
                    let last = tiles - 1;
                    if broken(Break::NoLastWait) {
                        let more = b.lt(t, last);
                        b.if_then(more, |b| b.matrix(MatrixOp::WarpgroupWait { pending: 0, acc: sums }));
                    } else {
                        b.matrix(MatrixOp::WarpgroupWait { pending: 0, acc: sums });
                    }
                    if s.a_in_registers {
                        // All lanes have read: the one that arrives speaks for them.
                        b.push(Stmt::Barrier(BarrierScope::Wave));
                    }
                    if !broken(Break::EarlyArrive) {
                        arrive(b);
                    }
                });
                let tid = b.rem(lid, CONSUMERS);
                for r in 0..s.tile_n / 2 {
                    // Accumulators of `MathUnit::Warpgroup` in the table, in the kernel's words.
                    let wave = b.div(tid, 32);
                    let row0 = b.mul(wave, 16);
                    let in_wave = b.rem(tid, 32);
                    let quad = b.div(in_wave, 4);
                    let row0 = b.add(row0, quad);
                    let row_ = b.add(row0, 8 * (r / 2 % 2));
                    let pair = b.rem(in_wave, 4);
                    let column = b.mul(pair, 2);
                    let column = b.add(column, 8 * (r / 4) + r % 2);
                    let (i, j) = (b.add(m0, row_), b.add(n0, column));
                    let (in_m, in_n) = (b.lt(i, s.m), b.lt(j, s.n));
                    let guard = b.and(in_m, in_n);
                    let index = b.mul(i, s.n);
                    let index = b.add(index, j);
                    let value = b.reg(sums, r);
                    b.store(Base::Buffer(c), index, value, Some(guard));
                }
            });
            let role = |name: &str, first, body| Role { name: name.into(), first_thread: first, threads: CONSUMERS, body };
            b.push(Stmt::Roles(vec![role("math", 0, multiply), role("load", CONSUMERS, load)]));
        })
    }

    /// Host matrices (rows by k), arguments for them with a poisoned result, and the product.
    pub fn arguments(&self) -> (Vec<ArgValue>, Vec<f32>) {
        let value = |i: u32, k: u32, salt: u32| ((i * 7 + k * 13 + salt) % 11) as f32 - 5.0;
        let host = |rows: u32, transposed: bool, salt: u32| {
            let (outer, inner) = if transposed { (self.k, rows) } else { (rows, self.k) };
            let mut bytes = vec![0xFF; pitch(self, inner) as usize * outer as usize];
            for (o, line) in bytes.chunks_exact_mut(pitch(self, inner) as usize).enumerate() {
                for i in 0..inner as usize {
                    let (r, k) = if transposed { (i, o) } else { (o, i) };
                    let v = value(r as u32, k as u32, salt);
                    match self.input {
                        MatrixType::F16 => line[2 * i..2 * i + 2].copy_from_slice(&f16::from_f32(v).to_le_bytes()),
                        MatrixType::BF16 => line[2 * i..2 * i + 2].copy_from_slice(&bf16::from_f32(v).to_le_bytes()),
                        _ => line[4 * i..4 * i + 4].copy_from_slice(&v.to_le_bytes()),
                    }
                }
            }
            Buffer::from_bytes(&bytes)
        };
        let (a, b) = (host(self.m, self.a_transposed, 1), host(self.n, self.b_transposed, 4));
        let c = Buffer::new((self.m * self.n * 4) as usize);
        let product = |i: u32, j: u32| (0..self.k).map(|k| value(i, k, 1) * value(j, k, 4)).sum::<f32>();
        let expected = (0..self.m).flat_map(|i| (0..self.n).map(move |j| (i, j))).map(|(i, j)| product(i, j)).collect();
        (vec![arg(&a), arg(&b), arg(&c)], expected)
    }
}

/// Loads this thread's part of A from the swizzled tile, seen as words, into registers.
fn registers(b: &mut Builder, s: &Shape, (words, fragment): (SharedId, RegId), stage: ExprId, stage_bytes: u32, step: u32) {
    let lid = b.builtin(Builtin::LocalId);
    let tid = b.rem(lid, CONSUMERS);
    let (wave, lane) = (b.div(tid, 32), b.rem(tid, 32));
    let first = b.mul(stage, stage_bytes);
    for r in 0..4 {
        let row = b.mul(wave, 16);
        let quad = b.div(lane, 4);
        let row = b.add(row, quad);
        let row = b.add(row, 8 * (r % 2));
        let pair = b.rem(lane, 4);
        let k = b.mul(pair, 4);
        let k = b.add(k, step * 32 + 16 * (r / 2));
        let line = b.mul(row, s.swizzle.row_bytes());
        let byte = b.add(line, k);
        let shifted = b.binary(BinaryOp::Shr, byte, 7);
        let bits = b.binary(BinaryOp::And, shifted, i64::from(s.swizzle.row_bytes() / 16 - 1));
        let bits = b.mul(bits, 16);
        let byte = b.binary(BinaryOp::Xor, byte, bits);
        let byte = b.add(first, byte);
        let index = b.div(byte, 4);
        let place = b.reg_place(fragment, r);
        b.load_to(place, Base::Shared(words), index, None);
    }
}
