//! Spells matrix instructions: for CUDA inline PTX, for HIP clang's builtins, one helper for each instruction and kind of operands.

use super::Printer;
use super::cpp::INLINE;
use super::dialect::prec;
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
    pub(super) fn without(&self, feature: &'static str) -> Fault {
        Fault::Missing {
            target: self.target.arch.clone(),
            feature,
            remedy: "its dialect cannot spell it; the target's features should not claim it",
        }
    }

    /// The first register of a slice, as a pointer.
    fn registers(&mut self, s: &RegSlice) -> String {
        let name = self.regs[s.regs.index()].clone();
        match self.kernel.as_int(s.first) {
            Some(0) => name,
            _ => format!("{name} + {}", self.expr(s.first).at(prec::PRODUCT)),
        }
    }

    /// How a helper takes a slice of so many 32-bit registers: the type that they are declared with, and its operands by number.
    fn operand(&self, name: &str, s: &RegSlice, count: u32) -> Operand {
        let scalar = self.kernel.regs[s.regs.index()].ty.scalar;
        let one = |i: u32| match scalar {
            Scalar::F32 => format!("\"r\"(__float_as_uint({name}[{i}]))"),
            _ => format!("\"{}\"({name}[{i}])", letter(scalar)),
        };
        let suffix = if scalar == Scalar::F32 { "_f32" } else { "" };
        Operand { param: format!("const {}* {name}", self.dialect.scalar(scalar)), inputs: (0..count).map(one).collect(), suffix }
    }

    /// A warpgroup instruction's description of an operand in shared memory: address and strides in units of 16 bytes.
    fn descriptor(&mut self, t: &SharedTile) -> String {
        let address = self.shared_address();
        self.prelude.function("tw_descriptor", |_| {
            format!(
                "{INLINE} unsigned long long tw_descriptor(const void* array, unsigned int byte, unsigned int low, unsigned int high) {{\n    \
                 return ((unsigned long long)high << 32) | (((({address}(array) + byte) & 0x3ffff) >> 4) | low);\n}}"
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
        format!("tw_descriptor({array}, {byte}, {low:#x}u, {high:#x}u)")
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
            MatrixOp::Mma { input, a, b, acc, .. } => {
                let Some(row) = Mma::of(op) else { return Err(self.without("a matrix instruction of this type")) };
                if row.sum == Scalar::F64 && !self.target.features.tall_f64 {
                    self.quarters_of_f64(row, [acc, a, b]);
                } else {
                    self.wave(row, input.factors().map(spelled), [acc, a, b]);
                }
            }
            MatrixOp::LoadMatrix { to, count, trans, from } => self.load_matrix(to, (*count).into(), *trans, from),
            MatrixOp::Warpgroup { input, n, a, b, acc, accumulate } => {
                let accumulate = self.expr(*accumulate).text;
                self.warpgroup(*input, *n, a, b, acc, &accumulate);
            }
            MatrixOp::WarpgroupFence { acc, left } => {
                self.pin(*acc);
                // The computation of a fragment must not slip past the fence.
                left.iter().for_each(|s| self.pin_fragment(s));
                let line = self.fixed("tw_wgmma_fence", "wgmma.fence.sync.aligned;", None);
                self.line(&line);
            }
            MatrixOp::WarpgroupCommit => {
                let line = self.fixed("tw_wgmma_commit", "wgmma.commit_group.sync.aligned;", None);
                self.line(&line);
            }
            MatrixOp::WarpgroupWait { pending, acc } => {
                let line = self.fixed("tw_wgmma_wait", "wgmma.wait_group.sync.aligned %0;", Some(*pending));
                self.line(&line);
                self.pin(*acc);
            }
            MatrixOp::Mfma { .. } => return Err(self.without("AMD matrix instructions")),
        }
        Ok(())
    }

    /// `ldmatrix`: 8 x 8 matrices of 16-bit elements, one register each.
    fn load_matrix(&mut self, to: &RegSlice, count: u32, trans: bool, from: &MemRef) {
        let address = self.shared_address();
        let scalar = self.kernel.regs[to.regs.index()].ty.scalar;
        let (trans, name) = if trans { (".trans", "_trans") } else { ("", "") };
        let suffix = if scalar == Scalar::F32 { "_f32" } else { "" };
        let places: Vec<String> = (0..count).map(|i| format!("%{i}")).collect();
        let outs: Vec<String> = (0..count).map(|i| format!("\"={}\"(to[{i}])", letter(scalar))).collect();
        let held = self.dialect.scalar(scalar);
        let name = format!("tw_ldmatrix_x{count}{name}{suffix}");
        let function = self.prelude.function(&name, |_| {
            format!(
                "{INLINE} void {name}({held}* to, const void* from) {{\n    \
                 asm volatile(\"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{}}}, [%{count}];\"\n        \
                 : {} : \"r\"({address}(from)) : \"memory\");\n}}",
                places.join(","),
                outs.join(", ")
            )
        });
        let (to, from) = (self.registers(to), self.address(from).0);
        self.line(&format!("{function}({to}, {from});"));
    }

    /// `mma.sync`: accumulators, left and right fragment. Registers may hold floats where the instruction wants their bits.
    fn wave(&mut self, row: &Mma, [left_ty, right_ty]: [&str; 2], [acc, a, b]: [&RegSlice; 3]) {
        let (MmaShape { m, n, k }, total, held) = (row.shape, ptx(row.sum), self.dialect.scalar(row.sum));
        let (left, right) = (self.operand("a", a, row.a.registers), self.operand("b", b, row.b.registers));
        let types = if left_ty == right_ty { left_ty.to_string() } else { format!("{left_ty}_{right_ty}") };
        let name =
            format!("tw_mma_m{m}n{n}k{k}_{types}{}{}", left.suffix, if left.suffix == right.suffix { "" } else { "_mixed" });
        let places = |first: u32, count: u32| numbered(first, count);
        let count = row.c.registers;
        let outs: Vec<String> = (0..count).map(|i| format!("\"+{}\"(acc[{i}])", letter(row.sum))).collect();
        let ins: Vec<String> = left.inputs.into_iter().chain(right.inputs).collect();
        let function = self.prelude.function(&name, |_| {
            let c = places(0, count);
            format!(
                "{INLINE} void {name}({held}* acc, {}, {}) {{\n    \
                 asm volatile(\"mma.sync.aligned.m{m}n{n}k{k}.row.col.{total}.{left_ty}.{right_ty}.{total} {{{c}}}, {{{}}}, {{{}}}, {{{c}}};\"\n        \
                 : {}\n        : {});\n}}",
                left.param,
                right.param,
                places(count, row.a.registers),
                places(count + row.a.registers, row.b.registers),
                outs.join(", "),
                ins.join(", ")
            )
        });
        let [acc, a, b] = [acc, a, b].map(|s| self.registers(s));
        self.line(&format!("{function}({acc}, {a}, {b});"));
    }

    /// An instruction of 16 rows and 8 or 16 k of doubles. It is made of four or eight instructions of 8 rows and 4 k, which use
    /// some of its registers.
    fn quarters_of_f64(&mut self, row: &Mma, slices: [&RegSlice; 3]) {
        let MmaShape { m, n, k } = row.shape;
        let name = format!("tw_mma_m{m}n{n}k{k}_f64");
        let function = self.prelude.function(&name, |_| {
            let quarter = |i: u32| {
                let (half, k) = (i % 2, i / 2);
                format!(
                    "\n    asm volatile(\"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {{%0,%1}}, {{%2}}, {{%3}}, {{%0,%1}};\"\n        \
                     : \"+d\"(acc[{}]), \"+d\"(acc[{}]) : \"d\"(a[{i}]), \"d\"(b[{k}]));",
                    2 * half,
                    2 * half + 1
                )
            };
            let quarters: String = (0..row.a.registers).map(quarter).collect();
            format!("{INLINE} void {name}(double* acc, const double* a, const double* b) {{{quarters}\n}}")
        });
        let [acc, a, b] = slices.map(|s| self.registers(s));
        self.line(&format!("{function}({acc}, {a}, {b});"));
    }

    fn mfma(&mut self, row: &Mma, slices: [&RegSlice; 3]) -> Result<(), Fault> {
        let (input, MmaShape { m, n, k }, registers) = (row.input, row.shape, row.a.registers);
        // What the builtin takes of a lane, the type of what it takes them from, and the end of its name.
        let vector = |element: &str, lanes: u32| format!("{element} operand __attribute__((ext_vector_type({lanes})))");
        // The name has both types of 8-bit floats. Instructions that take several formats have them as numbers in the arguments, with scales:
        // zeros mean none.
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
        let sums = m * n / 64;
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
                 typedef {total} sums __attribute__((ext_vector_type({sums})));\n    \
                 sums c;\n    \
                 #pragma unroll\n    \
                 for (int r = 0; r < {sums}; ++r) c[r] = acc[r];\n    \
                 c = __builtin_amdgcn_mfma_{scaled}{sum}_{m}x{n}x{k}{name}({}, {}, c, {last});\n    \
                 #pragma unroll\n    \
                 for (int r = 0; r < {sums}; ++r) acc[r] = c[r];\n}}",
                taken("a"),
                taken("b")
            )
        });
        let places = slices.map(|s| self.registers(s));
        self.line(&format!("{function}({});", places.join(", ")));
        Ok(())
    }

    /// Keeps the compiler from moving accesses to registers that an asynchronous instruction works on. A macro: in a function of its own the loop
    /// gives other machine code.
    fn pin(&mut self, acc: RegId) {
        let (name, array) = (self.regs[acc.index()].clone(), &self.kernel.regs[acc.index()]);
        let (len, held) = (array.len, letter(array.ty.scalar));
        let function = format!("TW_PIN_{}", array.ty.scalar.name().to_uppercase());
        self.prelude.function(&function, |_| {
            format!(
                "#define {function}(registers, count) _Pragma(\"unroll\") \\\n    \
                 for (int r = 0; r < (count); ++r) asm volatile(\"\" : \"+{held}\"((registers)[r]) :: \"memory\")"
            )
        });
        self.line(&format!("{function}({name}, {len});"));
    }

    /// The same for four registers of a fragment.
    fn pin_fragment(&mut self, s: &RegSlice) {
        let scalar = self.kernel.regs[s.regs.index()].ty.scalar;
        let (held, name) = (self.dialect.scalar(scalar), format!("tw_pin_fragment_{}", scalar.name()));
        let function = self.prelude.function(&name, |_| {
            let each: Vec<String> = (0..4).map(|i| format!("\"+{}\"(registers[{i}])", letter(scalar))).collect();
            let each = each.join(", ");
            format!("{INLINE} void {name}({held}* registers) {{\n    asm volatile(\"\" : {each} :: \"memory\");\n}}")
        });
        let registers = self.registers(s);
        self.line(&format!("{function}({registers});"));
    }

    /// `wgmma`: 64 rows of accumulators, an operand A in shared memory or registers, an operand B in shared memory.
    fn warpgroup(&mut self, input: MatrixType, n: u32, a: &WarpgroupA, b: &SharedTile, acc: &RegSlice, accumulate: &str) {
        let count = n / 2;
        let [left_ty, right_ty] = input.factors().map(spelled);
        let (total, held) = (ptx(input.sum()), letter(input.sum()));
        let k = 32 / input.bytes();
        let transposes = matches!(input, MatrixType::F16 | MatrixType::BF16);
        let descriptor = |name: &str| Operand {
            param: format!("unsigned long long {name}"),
            inputs: vec![format!("\"l\"({name})")],
            suffix: "",
        };
        let (left, left_given, left_flag, registers) = match a {
            WarpgroupA::Shared(t) => (descriptor("a"), self.descriptor(t), Some(!t.k_contiguous), ""),
            WarpgroupA::Regs(s) => (self.operand("a", s, 4), self.registers(s), None, "_a_in_registers"),
        };
        let (right, right_given) = (descriptor("b"), self.descriptor(b));
        // Integers have no signs to change.
        let mut flags = String::from(if input.sum() == Scalar::I32 { "p" } else { "p, 1, 1" });
        let mut along = String::new();
        if transposes {
            if let Some(flag) = left_flag {
                flags += &format!(", {}", u32::from(flag));
                along += if flag { "_a_along_m" } else { "" };
            }
            flags += &format!(", {}", u32::from(!b.k_contiguous));
            along += if b.k_contiguous { "" } else { "_b_along_n" };
        }
        let types = if left_ty == right_ty { left_ty.to_string() } else { format!("{left_ty}_{right_ty}") };
        let name = format!("tw_wgmma_m64n{n}k{k}_{types}{registers}{along}{}", left.suffix);
        let of_acc = self.dialect.scalar(input.sum());
        let function = self.prelude.function(&name, |_| {
            let lefts = left.inputs.len() as u32;
            let left_places = numbered(count, lefts);
            let left_places = if left_flag.is_none() && lefts > 1 { format!("{{{left_places}}}") } else { left_places };
            let outs: Vec<String> = (0..count).map(|i| format!("\"+{held}\"(acc[{i}])")).collect();
            let ins: Vec<String> = left.inputs.iter().chain(&right.inputs).cloned().collect();
            format!(
                "{INLINE} void {name}({of_acc}* acc, {}, {}, bool accumulate) {{\n    \
                 asm volatile(\"{{ .reg .pred p; setp.ne.b32 p, %{}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{total}.{left_ty}.{right_ty} \
                 {{{}}}, {left_places}, %{}, {flags}; }}\"\n        : {}\n        : {}, \"r\"((int)accumulate));\n}}",
                left.param,
                right.param,
                count + lefts + 1,
                numbered(0, count),
                count + lefts,
                outs.join(", "),
                ins.join(", ")
            )
        });
        let acc = self.registers(acc);
        self.line(&format!("{function}({acc}, {left_given}, {right_given}, {accumulate});"));
    }
}

/// An operand of a helper: its parameter, its inputs of inline assembly, and the end of the helper's name.
struct Operand {
    param: String,
    inputs: Vec<String>,
    suffix: &'static str,
}

/// Operands of inline assembly by their numbers.
fn numbered(first: u32, count: u32) -> String {
    (first..first + count).map(|i| format!("%{i}")).collect::<Vec<_>>().join(",")
}

/// How PTX names a type of sums.
pub(super) fn ptx(scalar: Scalar) -> &'static str {
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
pub(super) fn letter(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::F64 => "d",
        Scalar::F32 => "f",
        Scalar::I64 => "l",
        _ => "r",
    }
}
