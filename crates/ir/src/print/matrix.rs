//! Spells matrix instructions, transaction barriers and bulk copies: for CUDA inline PTX, for HIP clang's builtins, one small
//! helper per operation.

use super::Printer;
use super::cpp::INLINE;
use crate::kernel::any;
use crate::*;

/// Bytes that shared memory must start at a multiple of: patterns of swizzled rows repeat every 1024.
pub(super) fn arena_alignment(kernel: &Kernel) -> u32 {
    let maps = kernel.args.iter().any(|a| matches!(a.kind, ArgKind::TensorMap(_)));
    let bulk = maps || !kernel.tx_barriers.is_empty();
    if bulk || any(&kernel.body, &|s| matches!(s, Stmt::Matrix(MatrixOp::Warpgroup { .. }))) { 1024 } else { 128 }
}

/// True if waves change their share of registers.
pub(super) fn moves_registers(body: &Block) -> bool {
    any(body, &|s| matches!(s, Stmt::Bulk(BulkOp::Registers { .. })))
}

impl Printer<'_> {
    fn without(&self, feature: &'static str) -> Fault {
        Fault::Missing {
            target: self.target.arch.clone(),
            feature,
            remedy: "its dialect cannot spell it; the target's features should not claim it",
        }
    }

    fn slice(&mut self, s: &RegSlice, count: u32) -> Vec<String> {
        let name = self.regs[s.regs.index()].clone();
        match self.kernel.as_int(s.first) {
            Some(first) => (0..i64::from(count)).map(|i| format!("{name}[{}]", first + i)).collect(),
            None => {
                let first = self.expr(s.first).text;
                (0..count).map(|i| format!("{name}[{first} + {i}]")).collect()
            }
        }
    }

    fn shared_address(&mut self) -> String {
        self.prelude.function("tw_shared", |_| {
            format!("{INLINE} unsigned int tw_shared(const void* p) {{ return (unsigned int)__cvta_generic_to_shared(p); }}")
        })
    }

    /// A warpgroup instruction's description of an operand in shared memory: address and strides in units of 16 bytes.
    fn descriptor(&mut self, t: &SharedTile) -> String {
        let address = self.shared_address();
        self.prelude.function("tw_descriptor", |_| {
            format!(
                "{INLINE} unsigned long long tw_descriptor(unsigned int address, unsigned int low, unsigned int high) {{\n    \
                 return ((unsigned long long)high << 32) | (((address & 0x3ffff) >> 4) | low);\n}}"
            )
        });
        let layout = match t.swizzle {
            Swizzle::None => 0u32,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        };
        let low = (t.leading_bytes >> 4) << 16;
        let high = (t.stride_bytes >> 4) | (layout << 30);
        let array = self.shared[t.array.index()].clone();
        let byte = self.expr(t.byte).text;
        format!("tw_descriptor({address}({array}) + ({byte}), {low:#x}u, {high:#x}u)")
    }

    pub(super) fn matrix(&mut self, op: &MatrixOp) -> Result<(), Fault> {
        if let (MatrixOp::Mfma { a, b, acc, .. }, Dialect::Hip) = (op, self.target.dialect) {
            let Some(row) = Mma::of(op) else { return Err(self.without("a matrix instruction of this shape")) };
            return self.mfma(row, [acc, a, b]);
        }
        if self.target.dialect != Dialect::Cuda {
            return Err(self.without("matrix instructions in this dialect"));
        }
        match op {
            MatrixOp::Mma { input, a, b, acc } => {
                let Some(row) = Mma::of(op) else { return Err(self.without("a matrix instruction of this type")) };
                if row.sum == Scalar::F64 && !self.target.features.tall_f64 {
                    self.quarters_of_f64(row, [acc, a, b]);
                } else {
                    self.wave(row, input.factors().map(spelled), [acc, a, b]);
                }
            }
            MatrixOp::LoadMatrix { to, count, trans, from } => {
                let address = self.shared_address();
                let regs = self.slice(to, (*count).into());
                let from = self.address(from).0;
                let places: Vec<String> = (0..*count).map(|i| format!("%{i}")).collect();
                let held = if self.holds_floats(to) { "f" } else { "r" };
                let outs: Vec<String> = regs.iter().map(|r| format!("\"={held}\"({r})")).collect();
                let trans = if *trans { ".trans" } else { "" };
                self.line(&format!(
                    "asm volatile(\"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%{count}];\" : {} : \
                     \"r\"({address}({from})) : \"memory\");",
                    places.join(","),
                    outs.join(", ")
                ));
            }
            MatrixOp::Warpgroup { input, n, a, b, acc, accumulate } => self.warpgroup(*input, *n, a, b, acc, *accumulate),
            MatrixOp::WarpgroupFence { acc, left } => {
                self.pin(*acc);
                // The computation of a fragment must not move below the fence.
                for s in left {
                    let held = if self.holds_floats(s) { "f" } else { "r" };
                    let regs: Vec<String> = self.slice(s, 4).iter().map(|r| format!("\"+{held}\"({r})")).collect();
                    self.line(&format!("asm volatile(\"\" : {} :: \"memory\");", regs.join(", ")));
                }
                self.line("asm volatile(\"wgmma.fence.sync.aligned;\" ::: \"memory\");");
            }
            MatrixOp::WarpgroupCommit => self.line("asm volatile(\"wgmma.commit_group.sync.aligned;\" ::: \"memory\");"),
            MatrixOp::WarpgroupWait { pending, acc } => {
                self.line(&format!("asm volatile(\"wgmma.wait_group.sync.aligned {pending};\" ::: \"memory\");"));
                self.pin(*acc);
            }
            MatrixOp::Mfma { .. } => return Err(self.without("AMD matrix instructions")),
        }
        Ok(())
    }

    fn holds_floats(&self, s: &RegSlice) -> bool {
        self.kernel.regs[s.regs.index()].ty.scalar == Scalar::F32
    }

    /// `mma.sync`: accumulators, left and right fragment. Registers may hold floats where the instruction wants their bits.
    fn wave(&mut self, row: &Mma, [left_ty, right_ty]: [&str; 2], slices: [&RegSlice; 3]) {
        let (sum, held) = (letter(row.sum), if row.sum == Scalar::F64 { "d" } else { "r" });
        let mut places = 0..;
        let mut list = |registers: &[String]| {
            let names: Vec<String> = registers.iter().zip(&mut places).map(|(_, i)| format!("%{i}")).collect();
            names.join(",")
        };
        let [acc, a, b] = slices;
        let accumulators = self.slice(acc, row.c.registers);
        let factors = [(a, row.a.registers), (b, row.b.registers)].map(|(s, count)| (self.slice(s, count), self.holds_floats(s)));
        let (c, [left, right]) = (list(&accumulators), [list(&factors[0].0), list(&factors[1].0)]);
        let outs: Vec<String> = accumulators.iter().map(|r| format!("\"+{sum}\"({r})")).collect();
        let ins = factors.iter().flat_map(|(registers, float)| registers.iter().map(move |r| (r, *float)));
        let ins: Vec<String> = ins.map(|(r, float)| if float { bits(r) } else { format!("\"{held}\"({r})") }).collect();
        let ((m, n, k), sum) = (row.shape, ptx(row.sum));
        self.line(&format!(
            "asm volatile(\"mma.sync.aligned.m{m}n{n}k{k}.row.col.{sum}.{left_ty}.{right_ty}.{sum} {{{c}}}, {{{left}}}, {{{right}}}, {{{c}}};\" : {} : {});",
            outs.join(", "),
            ins.join(", ")
        ));
    }

    /// The instruction of 16 rows and 8 k of doubles by four of 8 rows and 4 k, whose registers are some of its own.
    fn quarters_of_f64(&mut self, row: &Mma, [acc, a, b]: [&RegSlice; 3]) {
        let (acc, a, b) = (self.slice(acc, row.c.registers), self.slice(a, row.a.registers), self.slice(b, row.b.registers));
        for (i, left) in a.iter().enumerate() {
            let (half, k) = (i % 2, i / 2);
            self.line(&format!(
                "asm volatile(\"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {{%0,%1}}, {{%2}}, {{%3}}, {{%0,%1}};\" : \
                 \"+d\"({}), \"+d\"({}) : \"d\"({left}), \"d\"({}));",
                acc[2 * half],
                acc[2 * half + 1],
                b[k]
            ));
        }
    }

    fn mfma(&mut self, row: &Mma, slices: [&RegSlice; 3]) -> Result<(), Fault> {
        let (input, (m, n, k), registers) = (row.input, row.shape, row.a.registers);
        // What the builtin takes of a lane, the type of what it takes them from, and the end of its name.
        let vector = |element: &str, lanes: u32| format!("{element} operand __attribute__((ext_vector_type({lanes})))");
        // 8-bit formats of both operands are in the instruction's name, or are numbers in the arguments of instructions with several formats. The
        // latter instructions also have scales; zeros mean no scales.
        let wide = input.factors().map(|one| matches!(one, MatrixType::E5M2 | MatrixType::E5M2Fnuz));
        let names = wide.map(|wide| if wide { "_bf8" } else { "_fp8" }).concat();
        let (operand, element, name) = match (input, registers) {
            (MatrixType::F16, 2) => (vector("_Float16", 4), "unsigned int", "f16"),
            (MatrixType::F16, _) => (vector("_Float16", 8), "unsigned int", "_f16"),
            (MatrixType::BF16, 2) => (vector("short", 4), "unsigned int", "bf16_1k"),
            (MatrixType::BF16, _) => (vector("__bf16", 8), "unsigned int", "_bf16"),
            (MatrixType::I8, 1) => ("int operand".into(), "unsigned int", "i8"),
            (MatrixType::I8, 2) => ("long operand".into(), "unsigned int", "_i8"),
            (MatrixType::I8, _) => (vector("int", registers), "unsigned int", "_i8"),
            (float, 8) if float.storage().is_float8() => (vector("int", registers), "unsigned int", "_f8f6f4"),
            (float, _) if float.storage().is_float8() => ("long operand".into(), "unsigned int", names.as_str()),
            (MatrixType::F64, _) => (String::new(), "double", "f64"),
            (MatrixType::TF32 | MatrixType::F32, _) => (String::new(), "float", "f32"),
            _ => return Err(self.without("matrix instructions of these types")),
        };
        let several = registers == 8;
        let function = format!("tw_mfma_{m}x{n}x{k}_{}", if several { &names[1..] } else { name.trim_start_matches('_') });
        let (scaled, last) = match several {
            true => ("scale_", format!("{}, {}, 0, 0, 0, 0", u8::from(wide[0]), u8::from(wide[1]))),
            false => ("", "0, 0, 0".into()),
        };
        let acc_count = m * n / 64;
        let taken = |x: &str| match (operand.is_empty(), registers) {
            (true, _) => format!("{x}[0]"),
            (_, 1) => format!("(operand){x}[0]"),
            _ => {
                let words: Vec<String> = (0..registers).map(|r| format!("{x}[{r}]")).collect();
                format!("__builtin_bit_cast(operand, (words){{{}}})", words.join(", "))
            }
        };
        let (sum, total) = match row.sum {
            Scalar::F64 => ("f64", "double"),
            Scalar::I32 => ("i32", "int"),
            _ => ("f32", "float"),
        };
        self.prelude.function(&function, |_| {
            let mut types = String::new();
            if registers > 1 {
                types += &format!("    typedef unsigned int words __attribute__((ext_vector_type({registers})));\n");
            }
            if !operand.is_empty() {
                types += &format!("    typedef {operand};\n");
            }
            format!(
                "{INLINE} void {function}({total}* acc, const {element}* a, const {element}* b) {{\n{types}    \
                 typedef {total} sums __attribute__((ext_vector_type({acc_count})));\n    \
                 sums c;\n    \
                 #pragma unroll\n    \
                 for (int r = 0; r < {acc_count}; ++r) c[r] = acc[r];\n    \
                 c = __builtin_amdgcn_mfma_{scaled}{sum}_{m}x{n}x{k}{name}({}, {}, c, {last});\n    \
                 #pragma unroll\n    \
                 for (int r = 0; r < {acc_count}; ++r) acc[r] = c[r];\n}}",
                taken("a"),
                taken("b")
            )
        });
        let places = slices.map(|s| {
            let name = self.regs[s.regs.index()].clone();
            match self.kernel.as_int(s.first) {
                Some(0) => name,
                _ => format!("{name} + ({})", self.expr(s.first).text),
            }
        });
        self.line(&format!("{function}({});", places.join(", ")));
        Ok(())
    }

    /// Keeps the compiler from moving accesses to registers that an asynchronous instruction works on.
    fn pin(&mut self, acc: RegId) {
        let name = self.regs[acc.index()].clone();
        let (len, held) = (self.kernel.regs[acc.index()].len, letter(self.kernel.regs[acc.index()].ty.scalar));
        self.line("#pragma unroll");
        self.line(&format!("for (int r = 0; r < {len}; ++r) asm volatile(\"\" : \"+{held}\"({name}[r]) :: \"memory\");"));
    }

    fn warpgroup(&mut self, input: MatrixType, n: u32, a: &WarpgroupA, b: &SharedTile, acc: &RegSlice, accumulate: ExprId) {
        let count = n / 2;
        let acc = self.slice(acc, count);
        let [left_ty, right_ty] = input.factors().map(spelled);
        let (sum, held) = (ptx(input.sum()), letter(input.sum()));
        let k = 32 / input.bytes();
        let outputs: Vec<String> = (0..count).map(|i| format!("%{i}")).collect();
        let mut next = count;
        let mut take = || {
            next += 1;
            format!("%{}", next - 1)
        };
        let transposes = matches!(input, MatrixType::F16 | MatrixType::BF16);
        let (left, left_in, left_flag) = match a {
            WarpgroupA::Shared(t) => {
                let d = self.descriptor(t);
                (take(), vec![format!("\"l\"({d})")], Some(!t.k_contiguous))
            }
            WarpgroupA::Regs(s) => {
                let regs = self.slice(s, 4);
                let names: Vec<String> = regs.iter().map(|_| take()).collect();
                let float = self.holds_floats(s);
                let ins = regs.iter().map(|r| if float { bits(r) } else { format!("\"r\"({r})") }).collect();
                (format!("{{{}}}", names.join(",")), ins, None)
            }
        };
        let right = self.descriptor(b);
        let right_place = take();
        let scale = take();
        // Integers have no signs to change.
        let mut flags = String::from(if input.sum() == Scalar::I32 { "p" } else { "p, 1, 1" });
        if transposes {
            if let Some(flag) = left_flag {
                flags += &format!(", {}", u32::from(flag));
            }
            flags += &format!(", {}", u32::from(!b.k_contiguous));
        }
        let accumulate = self.expr(accumulate).text;
        let outs: Vec<String> = acc.iter().map(|r| format!("\"+{held}\"({r})")).collect();
        let mut ins = left_in;
        ins.push(format!("\"l\"({right})"));
        ins.push(format!("\"r\"((int)({accumulate}))"));
        self.line(&format!(
            "asm volatile(\"{{ .reg .pred p; setp.ne.b32 p, {scale}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sum}.{left_ty}.{right_ty} \
             {{{}}}, {left}, {right_place}, {flags}; }}\" : {} : {});",
            outputs.join(","),
            outs.join(", "),
            ins.join(", ")
        ));
    }

    fn tx(&mut self, t: &TxRef) -> String {
        let address = self.shared_address();
        let name = self.tx_names[t.barriers.0 as usize].clone();
        let index = self.expr(t.index).text;
        format!("{address}({name} + ({index}))")
    }

    fn coordinates(&mut self, at: &[ExprId], first: usize) -> (String, String) {
        let places: Vec<String> = (0..at.len()).map(|i| format!("%{}", first + i)).collect();
        let ins: Vec<String> = at.iter().map(|e| format!("\"r\"({})", self.expr(*e).text)).collect();
        (places.join(","), ins.join(", "))
    }

    /// A read of another work-group's shared memory.
    pub(super) fn load_peer(&mut self, place: Place, mem: &MemRef, rank: ExprId) -> Result<(), Fault> {
        if self.target.dialect != Dialect::Cuda {
            return Err(self.without("clusters in this dialect"));
        }
        let ty = self.kernel.place_ty(place);
        let name = self.type_name(ty);
        let lanes = u32::from(ty.lanes);
        let (scalar, held, loaded) = (ty.scalar, letter(ty.scalar), ptx(ty.scalar));
        let function = self.prelude.function(&format!("tw_peer_{scalar}x{lanes}"), |_| {
            let part = |i: u32| if lanes == 1 { "value".to_string() } else { format!("value.s[{i}]") };
            let outs: Vec<String> = (0..lanes).map(|i| format!("\"={held}\"({})", part(i))).collect();
            let places: Vec<String> = (0..lanes).map(|i| format!("%{i}")).collect();
            let (vector, places) = match lanes {
                1 => (String::new(), places.join("")),
                _ => (format!(".v{lanes}"), format!("{{{}}}", places.join(","))),
            };
            format!(
                "{INLINE} {name} tw_peer_{scalar}x{lanes}(unsigned int address, unsigned int rank) {{\n    \
                 {name} value;\n    \
                 asm volatile(\"{{ .reg .b32 peer; mapa.shared::cluster.u32 peer, %{lanes}, %{}; ld.shared::cluster{vector}.{loaded} {places}, [peer]; }}\"\n        \
                 : {} : \"r\"(address), \"r\"(rank) : \"memory\");\n    \
                 return value;\n}}",
                lanes + 1,
                outs.join(", ")
            )
        });
        let address = self.shared_address();
        let at = self.address(mem).0;
        let rank = self.expr(rank).text;
        self.put(place, &format!("{function}({address}({at}), {rank})"));
        Ok(())
    }

    /// A bulk copy of a box to shared memory. Coordinates beyond the map's dimensions are offsets of its im2col mode.
    fn bulk_load(&mut self, to: &MemRef, map_arg: ArgId, at: &[ExprId], barrier: &TxRef, peers: Option<ExprId>) -> String {
        let address = self.shared_address();
        let to = self.address(to).0;
        let map = self.args[map_arg.index()].clone();
        let barrier = self.tx(barrier);
        let rank = match self.kernel.args.get(map_arg.index()).map(|arg| &arg.kind) {
            Some(ArgKind::TensorMap(map)) => map.extent.len().min(at.len()),
            _ => at.len(),
        };
        let (at, offsets) = at.split_at(rank);
        let (places, mut ins) = self.coordinates(at, 3);
        let mut used = 3 + rank;
        let (mut mode, mut shift) = ("tile", String::new());
        if !offsets.is_empty() {
            mode = "im2col";
            let places: Vec<String> = (0..offsets.len()).map(|i| format!("%{}", used + i)).collect();
            shift = format!(", {{{}}}", places.join(","));
            for offset in offsets {
                ins += &format!(", \"h\"((unsigned short)({}))", self.expr(*offset).text);
            }
            used += offsets.len();
        }
        let (way, mask, mask_in) = match peers {
            None => ("", String::new(), String::new()),
            Some(peers) => {
                let mask = self.expr(peers).text;
                (".multicast::cluster", format!(", %{used}"), format!(", \"h\"((unsigned short)({mask}))"))
            }
        };
        format!(
            "asm volatile(\"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes{way} [%0], [%1, \
             {{{places}}}], [%2]{shift}{mask};\" :: \"r\"({address}({to})), \"l\"(&{map}), \"r\"({barrier}), {ins}{mask_in} : \
             \"memory\");"
        )
    }

    pub(super) fn bulk(&mut self, op: &BulkOp) -> Result<(), Fault> {
        if self.target.dialect != Dialect::Cuda {
            return Err(self.without("bulk copies in this dialect"));
        }
        let line = match op {
            BulkOp::Init { barrier, arrivals } => {
                let at = self.tx(barrier);
                format!("asm volatile(\"mbarrier.init.shared::cta.b64 [%0], {arrivals};\" :: \"r\"({at}) : \"memory\");")
            }
            BulkOp::InitFence => "asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");".into(),
            BulkOp::Expect { barrier, bytes } => {
                let at = self.tx(barrier);
                format!(
                    "asm volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], {bytes};\" :: \"r\"({at}) : \"memory\");"
                )
            }
            BulkOp::Arrive { barrier } => {
                let at = self.tx(barrier);
                format!("asm volatile(\"mbarrier.arrive.shared::cta.b64 _, [%0];\" :: \"r\"({at}) : \"memory\");")
            }
            // Ordered within the work-group only: what a buffer's release says is that its reads are over. An arrival that releases
            // to the cluster waits for all memory of the device first, with every k-tile.
            BulkOp::ArriveAt { barrier, rank } => {
                let at = self.tx(barrier);
                let rank = self.expr(*rank).text;
                format!(
                    "asm volatile(\"{{ .reg .b32 peer; mapa.shared::cluster.u32 peer, %0, %1; mbarrier.arrive.shared::cluster.b64 \
                     _, [peer]; }}\" :: \"r\"({at}), \"r\"({rank}) : \"memory\");"
                )
            }
            BulkOp::Wait { barrier, parity } => {
                let wait = self.prelude.function("tw_tx_wait", |_| {
                    format!(
                        "{INLINE} void tw_tx_wait(unsigned int barrier, unsigned int parity) {{\n    \
                         unsigned int done;\n    \
                         do {{\n        \
                         asm volatile(\"{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }}\"\n            \
                         : \"=r\"(done) : \"r\"(barrier), \"r\"(parity) : \"memory\");\n    \
                         }} while (!done);\n}}"
                    )
                });
                let at = self.tx(barrier);
                format!("{wait}({at}, {});", self.expr(*parity).text)
            }
            BulkOp::Load { to, map, at, barrier, peers } => self.bulk_load(to, *map, at, barrier, *peers),
            BulkOp::Store { from, map, at } => {
                let address = self.shared_address();
                let from = self.address(from).0;
                let map = self.args[map.index()].clone();
                let (places, ins) = self.coordinates(at, 2);
                format!(
                    "asm volatile(\"cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group [%1, {{{places}}}], [%0];\" :: \
                     \"r\"({address}({from})), \"l\"(&{map}), {ins} : \"memory\");",
                    at.len()
                )
            }
            BulkOp::StoreCommit => "asm volatile(\"cp.async.bulk.commit_group;\" ::: \"memory\");".into(),
            BulkOp::StoreWait { pending } => {
                format!("asm volatile(\"cp.async.bulk.wait_group.read {pending};\" ::: \"memory\");")
            }
            BulkOp::ProxyFence => "asm volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");".into(),
            BulkOp::Registers { count, raise } => {
                let way = if *raise { "inc" } else { "dec" };
                format!("asm volatile(\"setmaxnreg.{way}.sync.aligned.u32 {count};\");")
            }
        };
        self.line(&line);
        Ok(())
    }
}

/// An input of inline assembly: a float's bits.
fn bits(register: &str) -> String {
    format!("\"r\"(__float_as_uint({register}))")
}

/// How PTX names a type of sums.
fn ptx(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::I32 => "s32",
        Scalar::I64 => "s64",
        _ => scalar.name(),
    }
}

/// How PTX names a type of factors.
fn spelled(input: MatrixType) -> &'static str {
    if input == MatrixType::I8 { "s8" } else { input.name() }
}

/// The constraint of a register of this type in inline assembly.
fn letter(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::F64 => "d",
        Scalar::F32 => "f",
        Scalar::I64 => "l",
        _ => "r",
    }
}
