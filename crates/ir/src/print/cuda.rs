//! CUDA C++ for NVRTC and nvcc. Needs no header: what C++ lacks is inline PTX.

use super::dialect::{Arena, CopyText, Dialect, EarlyStart, Prelude, Space, Text, prec};
use super::{cpp, matrix};
use crate::{AtomicOp, BarrierScope, BinaryOp, Builtin, Kernel, Scalar, ShuffleKind, Target, Type, UnaryOp};

/// Static shared memory a CUDA kernel may declare; what is beyond comes with the launch.
const STATIC_SHARED_LIMIT: u32 = 48 << 10;

pub(super) struct Cuda;

/// The number in `sm_90a`; 0 if there is none.
fn compute_capability(target: &Target) -> u32 {
    target
        .arch
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect::<String>()
        .parse()
        .unwrap_or(0)
}

impl Dialect for Cuda {
    fn reserved(&self) -> &'static str {
        "threadIdx blockIdx blockDim gridDim warpSize min max fmin fmax fminf fmaxf fma fmaf exp expf tanh tanhf erf erff \
         sqrt sqrtf atomicAdd atomicMax atomicCAS dim3 int2 int4 float2 float4 uint2 uint4 double2"
    }
    fn start(&self, _: &Kernel, _: &mut Prelude) {}
    fn entry(&self, kernel: &Kernel, _: &Target, name: &str) -> String {
        // Registers move between waves only where the compiler knows how many there are at entry: bounds with both numbers.
        let groups = kernel.min_groups.max(u32::from(matrix::moves_registers(&kernel.body)));
        let groups = if groups > 0 { format!(", {groups}") } else { String::new() };
        let cluster = if kernel.cluster > 1 { format!(" __cluster_dims__({}, 1, 1)", kernel.cluster) } else { String::new() };
        format!("extern \"C\" __global__ void{cluster} __launch_bounds__({}{groups}) {name}", kernel.threads)
    }
    // Programmatic dependent launch came with sm_90, as clusters did.
    fn early(&self, target: &Target) -> Option<EarlyStart> {
        let wait = "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");";
        let let_begin = "asm volatile(\"griddepcontrol.launch_dependents;\");";
        target.features.cluster.then_some(EarlyStart { wait, let_begin })
    }
    fn inline(&self) -> &'static str {
        cpp::INLINE
    }
    fn arena(&self, name: &str, bytes: u32, align: u32) -> Arena {
        if bytes <= STATIC_SHARED_LIMIT {
            Arena::sized(format!("__shared__ __align__({align}) unsigned char {name}[{bytes}];"))
        } else {
            let text = format!("extern __shared__ __align__({align}) unsigned char {name}[]; // {bytes} bytes, given at launch");
            Arena { text, at_launch: true }
        }
    }

    fn scalar(&self, scalar: Scalar) -> &'static str {
        cpp::scalar(scalar)
    }
    /// A struct copied whole is one access of its size, up to the 16 bytes the hardware moves at once.
    fn vector(&self, ty: Type, prelude: &mut Prelude) -> String {
        let name = cpp::vector_name(ty);
        let (align, scalar, lanes) = (ty.bytes().min(16), cpp::scalar(ty.scalar), ty.lanes);
        let text = format!("struct __align__({align}) {name} {{ {scalar} s[{lanes}]; }};");
        prelude.types.insert(name.clone(), text);
        name
    }
    fn pointer(&self, _: Space, constant: bool, pointee: &str) -> String {
        cpp::pointer(constant, pointee)
    }
    /// Loads through a read-only pointer that nothing aliases may be moved anywhere, over every fence. Nothing is promised where
    /// a kernel has a fence, or writes to the same memory in another way.
    fn restrict(&self, fenced: bool) -> &'static str {
        if fenced { "" } else { "__restrict__" }
    }
    fn lane(&self, vector: &str, lane: u8) -> String {
        format!("{vector}.s[{lane}]")
    }
    fn vector_of(&self, ty: &str, lanes: u8, parts: &[String]) -> Text {
        match parts {
            [all] => cpp::braces(ty, &vec![all.clone(); lanes.into()]),
            _ => cpp::braces(ty, parts),
        }
    }
    fn vector_operators(&self) -> bool {
        false
    }
    fn vector_functions(&self) -> bool {
        false
    }
    /// Stores vectors of 8 and 16 bytes by inline PTX. NVIDIA's compiler otherwise splits a computed struct into one store per
    /// member, unless all members were loaded together or it understands the address. Starts of batch entries prevent this. The
    /// offset is part of the instruction, so that no address is computed for each store. CUDA 13.0's ptxas miscompiled 8 bytes as
    /// one 64-bit integer of four halves. The third half was lost (11 of 9,200 random pairs on an H200).
    fn store(&self, ty: Type, prelude: &mut Prelude) -> Option<String> {
        let bytes = ty.bytes();
        if ty.lanes == 1 || !matches!(bytes, 8 | 16) {
            return None;
        }
        let word = |n: u32| match ty.scalar {
            Scalar::F16 | Scalar::BF16 => Some(format!("(unsigned int)v.s[{}] << 16 | v.s[{}]", 2 * n + 1, 2 * n)),
            Scalar::F32 => Some(format!("__float_as_uint(v.s[{n}])")),
            Scalar::I32 | Scalar::U32 => Some(format!("(unsigned int)v.s[{n}]")),
            _ => None,
        };
        let words = (0..bytes / 4).map(word).collect::<Option<Vec<_>>>()?;
        let inputs: Vec<String> = words.iter().map(|w| format!("\"r\"({w})")).collect();
        let places: Vec<String> = (1..=words.len()).map(|i| format!("%{i}")).collect();
        let body = format!(
            "asm volatile(\"st.global.v{}.b32 [%0 + %{}], {{{}}};\" :: \"l\"(__cvta_generic_to_global(p)), {}, \"n\"(bytes) : \"memory\");",
            words.len(),
            words.len() + 1,
            places.join(", "),
            inputs.join(", ")
        );
        let name = cpp::vector_name(ty);
        let text = |_: &mut Prelude| {
            format!("template <int bytes> {} void tw_store_{name}({name}* p, {name} v) {{ {body} }}", cpp::INLINE)
        };
        Some(prelude.function(&format!("tw_store_{name}"), text))
    }
    fn convert_vector(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn long_suffix(&self) -> &'static str {
        "ll"
    }
    fn special(&self, scalar: Scalar, nan: bool) -> String {
        match (scalar, nan) {
            (Scalar::F64, false) => "__longlong_as_double(0x7ff0000000000000ll)",
            (Scalar::F64, true) => "__longlong_as_double(0x7ff8000000000000ll)",
            (_, false) => "__int_as_float(0x7f800000)",
            (_, true) => "__int_as_float(0x7fc00000)",
        }
        .into()
    }
    fn builtin(&self, builtin: Builtin) -> Text {
        let text = match builtin {
            Builtin::LocalId => "(int)threadIdx.x",
            Builtin::GroupId(0) => "(int)blockIdx.x",
            Builtin::GroupId(1) => "(int)blockIdx.y",
            Builtin::GroupId(_) => "(int)blockIdx.z",
        };
        Text::new(text, prec::UNARY)
    }

    /// Prints unary operations. The logistic function of `F32` is two hardware instructions: C's division alone takes eight and a branch.
    fn unary(&self, op: UnaryOp, scalar: Scalar, prelude: &mut Prelude) -> String {
        match (op, scalar) {
            (UnaryOp::Sigmoid, Scalar::F64) => prelude.function("tw_sigmoid_f64", |_| {
                format!("{} double tw_sigmoid_f64(double a) {{ return 1.0 / (1.0 + exp(-a)); }}", cpp::INLINE)
            }),
            (UnaryOp::Sigmoid, _) => prelude.function("tw_sigmoid_f32", |_| format!("{} {SIGMOID_F32}", cpp::INLINE)),
            // One instruction, where C's function scales what is below the least normal number.
            (UnaryOp::Exp2, Scalar::F32) => {
                let body = "float c; asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(c) : \"f\"(a)); return c;";
                prelude.function("tw_exp2_f32", |_| format!("{} float tw_exp2_f32(float a) {{ {body} }}", cpp::INLINE))
            }
            (UnaryOp::NearTf32, _) => prelude.function("tw_near_tf32", |_| {
                let body = "return __uint_as_float((__float_as_uint(a) + 0x1000u) & 0xffffe000u);";
                format!("{} float tw_near_tf32(float a) {{\n    {body}\n}}", cpp::INLINE)
            }),
            (UnaryOp::RoundTf32, _) => prelude.function("tw_tf32", |_| format!("{} {ROUND_TF32}", cpp::INLINE)),
            _ => cpp::math(op, scalar),
        }
    }
    fn min_max(&self, op: BinaryOp, scalar: Scalar, _: &mut Prelude) -> String {
        let stem = if op == BinaryOp::Min { "min" } else { "max" };
        if scalar.is_float() { format!("f{stem}{}", cpp::suffix(scalar)) } else { stem.into() }
    }
    /// One instruction from sm_80 on; f64 has none.
    fn with_nan(&self, op: BinaryOp, scalar: Scalar, target: &Target, prelude: &mut Prelude) -> String {
        let (word, stem, sign) = if op == BinaryOp::Minimum { ("minimum", "min", "<") } else { ("maximum", "max", ">") };
        let (name, ty) = (format!("tw_{word}_{scalar}"), cpp::scalar(scalar));
        let body = if scalar == Scalar::F32 && compute_capability(target) >= 80 {
            format!("float c; asm(\"{stem}.NaN.f32 %0, %1, %2;\" : \"=f\"(c) : \"f\"(a), \"f\"(b)); return c;")
        } else {
            format!("return a {sign} b || a != a ? a : b;")
        };
        prelude.function(&name, |_| format!("{} {ty} {name}({ty} a, {ty} b) {{ {body} }}", cpp::INLINE))
    }
    fn fma(&self, scalar: Scalar, _: &mut Prelude) -> String {
        format!("fma{}", cpp::suffix(scalar))
    }
    /// The bytes of a vector are members of a struct, which the compiler sees through: their word costs nothing.
    fn dot(&self, scalar: Scalar, [vector, int]: [&str; 2], prelude: &mut Prelude) -> String {
        let name = format!("tw_dot_{scalar}");
        let ty = if scalar == Scalar::I8 { "int" } else { "unsigned int" };
        prelude.function(&name, |_| {
            let word = |x: &str| {
                let byte = |i: u32| format!("(unsigned int)(unsigned char){} << {}", self.lane(x, i as u8), 8 * i);
                (0..4).map(byte).collect::<Vec<_>>().join(" | ")
            };
            format!(
                "{} {int} {name}({vector} a, {vector} b, {int} c) {{\n    const {ty} x = {}, y = {};\n    return __dp4a(x, y, ({ty})c);\n}}",
                cpp::INLINE,
                word("a"),
                word("b")
            )
        })
    }
    fn widen(&self, from: Scalar, target: &Target, prelude: &mut Prelude) -> String {
        let (name, body) = match from {
            from if from.is_fnuz() || from.is_float8() && compute_capability(target) < 89 => {
                let half = |prelude: &mut Prelude| self.widen(Scalar::F16, target, prelude);
                return cpp::widen_float8(cpp::INLINE, cpp::UNSIGNED, "__uint_as_float(", from, &half, prelude);
            }
            // Pairs become pairs of binary16.
            from if from.is_float8() => {
                let name = format!("tw_{from}_to_f32");
                return prelude.function(&name, |_| {
                    format!(
                        "{} float {name}(unsigned char a) {{\n    float f;\n    \
                         asm(\"{{ .reg .b32 pair; .reg .b16 low, high; cvt.rn.f16x2.{from}x2 pair, %1; mov.b32 {{low, high}}, pair; \
                         cvt.f32.f16 %0, low; }}\" : \"=f\"(f) : \"h\"((unsigned short)a));\n    return f;\n}}",
                        cpp::INLINE
                    )
                });
            }
            Scalar::BF16 => ("tw_bf16_to_f32", "return __uint_as_float((unsigned int)a << 16);"),
            _ => ("tw_f16_to_f32", "float f; asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(a)); return f;"),
        };
        prelude.function(name, |_| format!("{} float {name}(unsigned short a) {{ {body} }}", cpp::INLINE))
    }
    /// Bytes become the low bits of mantissas, two by a permutation, of numbers from which one addition takes what these bits stand on. So do halves of
    /// bytes, the other half of which a mask takes; where the upper one stays in its place, the number is 16 times as large.
    fn floats_of_bytes(
        &self,
        from: Type,
        to: Type,
        spelled: &[String; 2],
        target: &Target,
        prelude: &mut Prelude,
    ) -> Option<String> {
        // Whole words, or a single pair.
        let whole = from.lanes.is_multiple_of(4) || to.lanes == 2;
        let pairs: String = match (from.scalar, to.scalar) {
            _ if !whole || compute_capability(target) < 80 => return None,
            // 1024 and the byte, an i8 plus 128 of it.
            (Scalar::I8, Scalar::F16) => {
                "unsigned int d; asm(\"sub.f16x2 %0, %1, %2;\" : \"=r\"(d) : \"r\"(__byte_perm(w ^ 0x80808080u, 0x64646464u, i ? 0x4342 : 0x4140)), \"r\"(0x64806480u)); return d;".into()
            }
            (Scalar::U8, Scalar::F16) => {
                "unsigned int d; asm(\"sub.f16x2 %0, %1, %2;\" : \"=r\"(d) : \"r\"(__byte_perm(w, 0x64646464u, i ? 0x4342 : 0x4140)), \"r\"(0x64006400u)); return d;".into()
            }
            // 128 and the lower seven bits, less 128, or 256 where the eighth is set. Mask and bits in one instruction: compilers make two of them,
            // each with a constant of its own.
            (Scalar::I8, Scalar::BF16) => {
                "const unsigned int p = __byte_perm(w, 0u, i ? 0x4342 : 0x4140); unsigned int d, s; \
                 asm(\"lop3.b32 %0, %1, %2, %3, 0xea;\" : \"=r\"(d) : \"r\"(p), \"r\"(0x007f007fu), \"r\"(0x43004300u)); \
                 asm(\"lop3.b32 %0, %1, %2, %3, 0xea;\" : \"=r\"(s) : \"r\"(p), \"r\"(0x00800080u), \"r\"(0xc300c300u)); \
                 asm(\"fma.rn.bf16x2 %0, %1, %2, %3;\" : \"=r\"(d) : \"r\"(d), \"r\"(0x3f803f80u), \"r\"(s)); return d;".into()
            }
            // 128 and the lower seven bits, less 256, plus 128 or, where the eighth is set, 256.
            (Scalar::U8, Scalar::BF16) => {
                "const unsigned int p = __byte_perm(w, 0u, i ? 0x4342 : 0x4140); unsigned int d, s; \
                 asm(\"lop3.b32 %0, %1, %2, %3, 0xea;\" : \"=r\"(d) : \"r\"(p), \"r\"(0x007f007fu), \"r\"(0x43004300u)); \
                 asm(\"lop3.b32 %0, %1, %2, %3, 0xea;\" : \"=r\"(s) : \"r\"(p), \"r\"(0x00800080u), \"r\"(0x43004300u)); \
                 asm(\"fma.rn.bf16x2 %0, %1, %2, %3;\" : \"=r\"(d) : \"r\"(d), \"r\"(0x3f803f80u), \"r\"(0xc380c380u)); \
                 asm(\"fma.rn.bf16x2 %0, %1, %2, %3;\" : \"=r\"(d) : \"r\"(d), \"r\"(0x3f803f80u), \"r\"(s)); return d;".into()
            }
            (from, to) if from.is_int4() => halves_of_bytes(from, to)?,
            _ => return None,
        };
        let (name, inline, [bytes, floats]) = (format!("tw_{from}_to_{to}"), cpp::INLINE, spelled);
        let pair = format!("tw_{}_to_{}_pair", from.scalar, to.scalar);
        prelude.function(&pair, |_| format!("{inline} unsigned int {pair}(unsigned int w, int i) {{ {pairs} }}"));
        let (words, pairs) = (from.lanes / 4, to.lanes / 2);
        if words == 0 {
            // Of less than a word.
            let short = if from.lanes == 1 { "unsigned char" } else { "unsigned short" };
            return Some(prelude.function(&name, |_| {
                format!(
                    "{inline} {floats} {name}({bytes} a) {{\n    union {{ {bytes} v; {short} w; }} from;\n    \
                     union {{ unsigned int w; {floats} v; }} to;\n    from.v = a;\n    to.w = {pair}(from.w, 0);\n    return to.v;\n}}"
                )
            }));
        }
        let of_word = pairs / words;
        Some(prelude.function(&name, |_| {
            format!(
                "{inline} {floats} {name}({bytes} a) {{\n    union {{ {bytes} v; unsigned int w[{words}]; }} from;\n    \
                 union {{ unsigned int w[{pairs}]; {floats} v; }} to;\n    from.v = a;\n    #pragma unroll\n    \
                 for (int i = 0; i < {pairs}; i++) to.w[i] = {pair}(from.w[i / {of_word}], i % {of_word});\n    return to.v;\n}}"
            )
        }))
    }
    fn narrow(&self, to: Scalar, target: &Target, prelude: &mut Prelude) -> String {
        let (name, instruction) = match to {
            to if to.is_fnuz() || to.is_float8() && compute_capability(target) < 89 => {
                let as_bits = |float: &str| format!("__float_as_uint({float})");
                let unsigned = ["unsigned char", "unsigned int"];
                return cpp::narrow_float8(cpp::INLINE, unsigned, &as_bits, "__uint_as_float(", to, prelude);
            }
            to if to.is_float8() => {
                let name = format!("tw_f32_to_{to}");
                let body = format!(
                    "unsigned short h; asm(\"cvt.rn.satfinite.{to}x2.f32 %0, %1, %2;\" : \"=h\"(h) : \"f\"(0.0f), \"f\"(a)); \
                     return (unsigned char)h;"
                );
                return prelude.function(&name, |_| format!("{} unsigned char {name}(float a) {{ {body} }}", cpp::INLINE));
            }
            Scalar::BF16 if compute_capability(target) < 80 => {
                return cpp::narrow_bf16(cpp::INLINE, "unsigned short", "unsigned int", "__float_as_uint(a)", prelude);
            }
            Scalar::BF16 => ("tw_f32_to_bf16", "cvt.rn.bf16.f32"),
            _ => ("tw_f32_to_f16", "cvt.rn.f16.f32"),
        };
        let body = format!("unsigned short h; asm(\"{instruction} %0, %1;\" : \"=h\"(h) : \"f\"(a)); return h;");
        prelude.function(name, |_| format!("{} unsigned short {name}(float a) {{ {body} }}", cpp::INLINE))
    }

    fn barrier(&self, scope: BarrierScope, _: bool, _: &mut Prelude) -> String {
        match scope {
            BarrierScope::WorkGroup => "__syncthreads();".into(),
            BarrierScope::Wave => "__syncwarp();".into(),
            // Arrival releases, the wait acquires.
            BarrierScope::Cluster => {
                "asm volatile(\"barrier.cluster.arrive;\\n\\tbarrier.cluster.wait;\" ::: \"memory\");".into()
            }
            BarrierScope::ClusterStart => {
                "asm volatile(\"barrier.cluster.arrive.relaxed;\\n\\tbarrier.cluster.wait;\" ::: \"memory\");".into()
            }
            BarrierScope::Named { id, threads } => format!("asm volatile(\"bar.sync {id}, {threads};\" ::: \"memory\");"),
        }
    }
    fn atomic(&self, op: AtomicOp, scalar: Scalar, _: Space, address: &str, value: &str, prelude: &mut Prelude) -> String {
        match (op, scalar) {
            (AtomicOp::Add, Scalar::I64) => {
                format!("atomicAdd((unsigned long long*)({address}), (unsigned long long)({value}));")
            }
            (AtomicOp::Add, _) => format!("atomicAdd({address}, {value});"),
            (op, s) if s.is_int() => format!("atomic{}({address}, {value});", extreme(op)),
            (op, s) => {
                let (float, int, bits) = match s {
                    Scalar::F64 => ("double", "long long", "__double_as_longlong(a)"),
                    _ => ("float", "int", "__float_as_int(a)"),
                };
                let body = self.atomic_extreme(op, int, bits, &|op, signed| {
                    let int = if signed { int.to_string() } else { format!("unsigned {int}") };
                    format!("atomic{}(({int}*)p, ({int})bits);", extreme(op))
                });
                let name = format!("tw_atomic_{}_{s}", extreme(op).to_lowercase());
                prelude.function(&name, |_| format!("{} void {name}({float}* p, {float} a) {body}", cpp::INLINE));
                format!("{name}({address}, {value});")
            }
        }
    }
    fn fence(&self) -> Option<String> {
        Some("__threadfence();".into())
    }
    fn shuffle(&self, kind: ShuffleKind, _: Scalar, _: u32, value: &str, _: &mut Prelude) -> String {
        match kind {
            ShuffleKind::Xor(mask) => format!("__shfl_xor_sync(0xffffffffu, {value}, {mask})"),
            ShuffleKind::Down(delta) => format!("__shfl_down_sync(0xffffffffu, {value}, {delta})"),
            ShuffleKind::Broadcast(lane) => format!("__shfl_sync(0xffffffffu, {value}, {lane})"),
        }
    }
    /// 16 bytes go past the first-level cache (`cg`); smaller copies can only go through it (`ca`). A source size of 0
    /// fills the destination with zeros and reads nothing.
    fn async_copy(&self, copy: &CopyText, prelude: &mut Prelude) -> Option<String> {
        let CopyText { dst, src, bytes, guard } = copy;
        let path = if *bytes == 16 { "cg" } else { "ca" };
        let (suffix, param, operand, size) = match guard {
            Some(_) => ("_if", ", bool guard", format!(", \"r\"(guard ? {bytes} : 0)"), ", %2"),
            None => ("", "", String::new(), ""),
        };
        let name = prelude.function(&format!("tw_cp_async_{bytes}{suffix}"), |_| {
            format!(
                "{} void tw_cp_async_{bytes}{suffix}(void* dst, const void* src{param}) {{\n    \
                 unsigned int to = (unsigned int)__cvta_generic_to_shared(dst);\n    \
                 asm volatile(\"cp.async.{path}.shared.global [%0], [%1], {bytes}{size};\" :: \"r\"(to), \"l\"(src){operand});\n}}",
                cpp::INLINE
            )
        });
        Some(match guard {
            Some(guard) => format!("{name}({dst}, {src}, {guard});"),
            None => format!("{name}({dst}, {src});"),
        })
    }
    fn async_commit(&self) -> Option<String> {
        Some("asm volatile(\"cp.async.commit_group;\" ::: \"memory\");".into())
    }
    fn async_wait(&self, groups: u32) -> Option<String> {
        Some(format!("asm volatile(\"cp.async.wait_group {groups};\" ::: \"memory\");"))
    }
    /// Costs one idle instruction; memory accesses stay on their side of it.
    fn sched_hint(&self, _: u32, size: u32, _: &mut Prelude) -> Option<String> {
        (size == 0).then(|| "__syncwarp();".into())
    }
}

/// The body of a function from byte `i` of a word `w` to its two integers as a pair of floats of 16 bits. The byte is put into
/// both halves of a word. A mask leaves one half of it in each. A number's exponent is put on that half. With the sign bit
/// turned, a signed integer becomes an unsigned one that is 8 larger.
fn halves_of_bytes(from: Scalar, to: Scalar) -> Option<String> {
    let signed = from == Scalar::I4;
    // Bytes in both halves, mask, exponents (and signs), factor, addend. In binary16 ten bits hold a byte, and its upper half
    // stays in its place. In bfloat16 seven bits do not, and upper halves come from the word shifted by four.
    let (float, bytes, mask, bits, factor, added) = match (to, signed) {
        (Scalar::F16, true) => ("f16", "w, w, i * 0x1111", 0x00f0_000f, 0x6480_6408_u32, 0x2c00_3c00, 0xd480_e408_u32),
        (Scalar::F16, false) => ("f16", "w, w, i * 0x1111", 0x00f0_000f, 0x6400_6400, 0x2c00_3c00, 0xd400_e400),
        (Scalar::BF16, true) => ("bf16", "w, w >> 4, i * 0x0101 + 0x0400", 0x000f_000f, 0x4308_4308, 0x3f80_3f80, 0xc308_c308),
        (Scalar::BF16, false) => ("bf16", "w, w >> 4, i * 0x0101 + 0x0400", 0x000f_000f, 0x4300_4300, 0x3f80_3f80, 0xc300_c300),
        _ => return None,
    };
    Some(format!(
        "unsigned int d; asm(\"lop3.b32 %0, %1, %2, %3, 0x6a;\" : \"=r\"(d) : \"r\"(__byte_perm({bytes})), \"r\"({mask:#010x}u), \"r\"({bits:#010x}u)); \
         asm(\"fma.rn.{float}x2 %0, %1, %2, %3;\" : \"=r\"(d) : \"r\"(d), \"r\"({factor:#010x}u), \"r\"({added:#010x}u)); return d;"
    ))
}

/// The unit's own rounding: one instruction; where there is no such unit, half of the last place added to the bits.
const ROUND_TF32: &str = "float tw_tf32(float a) {
    unsigned int bits;
#if __CUDA_ARCH__ >= 800
    asm(\"cvt.rna.tf32.f32 %0, %1;\" : \"=r\"(bits) : \"f\"(a));
#else
    bits = __float_as_uint(a);
    if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & 0xffffe000u;
#endif
    return __uint_as_float(bits);
}";

/// 2^(-x log2 e) and a reciprocal, each to about 2^-22.
const SIGMOID_F32: &str = "float tw_sigmoid_f32(float a) {
    float e, s;
    asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(e) : \"f\"(a * -1.44269504f));
    asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(s) : \"f\"(1.0f + e));
    return s;
}";

/// What the function that keeps the larger or the smaller is called.
const fn extreme(op: AtomicOp) -> &'static str {
    if matches!(op, AtomicOp::Min) { "Min" } else { "Max" }
}
