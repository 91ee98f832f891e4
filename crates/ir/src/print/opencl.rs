//! OpenCL C 1.2, with extensions only where a kernel needs them.

use super::cpp;
use super::dialect::{Arena, CopyText, Dialect, Prelude, Space, Text, prec};
use crate::{ArgKind, AtomicOp, BarrierScope, BinaryOp, Builtin, Kernel, Scalar, ShuffleKind, Stmt, Target, Type, UnaryOp};

pub(super) struct OpenCl;

const INLINE: &str = "static inline";
const SCHED_BARRIER: &str = "#define tw_sched_barrier(mask)
#ifdef __has_builtin
#if __has_builtin(__builtin_amdgcn_sched_barrier)
#undef tw_sched_barrier
#define tw_sched_barrier(mask) __builtin_amdgcn_sched_barrier(mask)
#endif
#endif";

const APART: &str = "#ifdef POCL_DEVICE_ADDRESS_BITS
#define tw_apart() __asm__ volatile (\"\")
#else
#define tw_apart()
#endif";

fn enable(extension: &str, prelude: &mut Prelude) {
    prelude.lines.insert(extension.into(), format!("#ifdef {extension}\n#pragma OPENCL EXTENSION {extension} : enable\n#endif"));
}

const fn qualifier(space: Space) -> &'static str {
    match space {
        Space::Global => "__global",
        Space::Shared => "__local",
    }
}

impl Dialect for OpenCl {
    fn reserved(&self) -> &'static str {
        // Keywords, types, macros, and the functions that printed code calls: a variable of their name would hide them.
        "kernel global local constant read_only write_only read_write uniform pipe generic uchar ushort uint ulong size_t \
         ptrdiff_t event_t sampler_t NAN INFINITY float2 float4 float8 float16 int2 int4 double2 double4 ushort2 ushort4 \
         ushort8 min max fmin fmax fma mad exp tanh erf sqrt barrier"
    }
    fn start(&self, kernel: &Kernel, prelude: &mut Prelude) {
        let scalars = kernel.exprs.iter().map(|(_, ty)| ty.scalar).chain(kernel.args.iter().map(|a| match a.kind {
            ArgKind::Buffer { scalar, .. } | ArgKind::Scalar(scalar) => scalar,
            ArgKind::TensorMap(ref map) => map.scalar,
        }));
        if scalars.chain(kernel.vars.iter().map(|v| v.ty.scalar)).any(|s| s == Scalar::F64) {
            enable("cl_khr_fp64", prelude);
        }
    }
    fn entry(&self, kernel: &Kernel, _: &Target, name: &str) -> String {
        let waves = if shuffles(&kernel.body) {
            let wave = kernel.wave;
            format!("\n#ifdef cl_intel_required_subgroup_size\n__attribute__((intel_reqd_sub_group_size({wave})))\n#endif\n")
        } else {
            " ".into()
        };
        format!("__kernel __attribute__((reqd_work_group_size({}, 1, 1))){waves}void {name}", kernel.threads)
    }
    fn repeats(&self) -> bool {
        false
    }
    fn inline(&self) -> &'static str {
        INLINE
    }
    fn arena(&self, name: &str, bytes: u32, align: u32) -> Arena {
        Arena::sized(format!("__local uchar {name}[{bytes}] __attribute__((aligned({align})));"))
    }

    fn scalar(&self, scalar: Scalar) -> &'static str {
        match scalar {
            Scalar::Bool => "bool",
            Scalar::I8 => "char",
            Scalar::I32 => "int",
            Scalar::U32 => "uint",
            Scalar::I64 => "long",
            Scalar::F16 | Scalar::BF16 => "ushort",
            Scalar::U8 | Scalar::I4 | Scalar::U4 => "uchar",
            Scalar::E4M3 | Scalar::E5M2 | Scalar::E4M3Fnuz | Scalar::E5M2Fnuz => "uchar",
            Scalar::F32 => "float",
            Scalar::F64 => "double",
        }
    }
    fn vector(&self, ty: Type, _: &mut Prelude) -> String {
        format!("{}{}", self.scalar(ty.scalar), ty.lanes)
    }
    fn pointer(&self, space: Space, constant: bool, pointee: &str) -> String {
        format!("{} {}{pointee}*", qualifier(space), if constant { "const " } else { "" })
    }
    fn restrict(&self, _: bool) -> &'static str {
        "restrict"
    }
    fn lane(&self, vector: &str, lane: u8) -> String {
        format!("{vector}.s{lane:x}")
    }
    fn vector_of(&self, ty: &str, _: u8, parts: &[String]) -> Text {
        Text::new(format!("({ty})({})", parts.join(", ")), prec::UNARY)
    }
    fn vector_operators(&self) -> bool {
        true
    }
    fn vector_functions(&self) -> bool {
        true
    }
    fn convert_vector(&self, to: &str, value: &str) -> Option<String> {
        Some(format!("convert_{to}({value})"))
    }

    fn long_suffix(&self) -> &'static str {
        "L"
    }
    fn special(&self, scalar: Scalar, nan: bool) -> String {
        let name = if nan { "NAN" } else { "INFINITY" };
        if scalar == Scalar::F64 { format!("((double){name})") } else { name.into() }
    }
    fn builtin(&self, builtin: Builtin) -> Text {
        let text = match builtin {
            Builtin::LocalId => "(int)get_local_id(0)".into(),
            Builtin::GroupId(dimension) => format!("(int)get_group_id({dimension})"),
        };
        Text::new(text, prec::UNARY)
    }

    /// The logistic function is a macro, which serves vectors as well.
    fn unary(&self, op: UnaryOp, scalar: Scalar, prelude: &mut Prelude) -> String {
        match (op, scalar) {
            (UnaryOp::Sigmoid, Scalar::F64) => {
                prelude.function("tw_sigmoid_f64", |_| "#define tw_sigmoid_f64(a) (1.0 / (1.0 + exp(-(a))))".into())
            }
            (UnaryOp::Sigmoid, _) => {
                prelude.function("tw_sigmoid_f32", |_| "#define tw_sigmoid_f32(a) (1.0f / (1.0f + exp(-(a))))".into())
            }
            (UnaryOp::NearTf32, _) => prelude.function("tw_near_tf32", |_| {
                format!("{INLINE} float tw_near_tf32(float a) {{\n    return as_float((as_uint(a) + 0x1000u) & 0xffffe000u);\n}}")
            }),
            // Infinities and NaN stay; the others take half of the last place and lose what lies below.
            (UnaryOp::RoundTf32, _) => prelude.function("tw_tf32", |_| {
                format!(
                    "{INLINE} float tw_tf32(float a) {{\n    const uint bits = as_uint(a);\n    \
                     return (bits & 0x7f800000u) == 0x7f800000u ? a : as_float((bits + 0x1000u) & 0xffffe000u);\n}}"
                )
            }),
            _ => cpp::math(op, Scalar::F64),
        }
    }
    fn min_max(&self, op: BinaryOp, scalar: Scalar, _: &mut Prelude) -> String {
        let stem = if op == BinaryOp::Min { "min" } else { "max" };
        if scalar.is_float() { format!("f{stem}") } else { stem.into() }
    }
    /// `fma` where the device says that it is fast, or where clang compiles for an x86 that has the instruction (PoCL does not
    /// define the OpenCL macro). Elsewhere `fma` is a library call that costs an order of magnitude. An expression that the
    /// compiler may contract takes its place: there, the product may be rounded.
    fn fma(&self, scalar: Scalar, prelude: &mut Prelude) -> String {
        let (name, fast) = match scalar {
            Scalar::F64 => ("tw_fma_f64", "FP_FAST_FMA"),
            _ => ("tw_fma_f32", "FP_FAST_FMAF"),
        };
        let text = format!(
            "#if defined({fast}) || defined(__FMA__)\n#define {name} fma\n#else\n#define {name}(a, b, c) ((a) * (b) + (c))\n#endif"
        );
        prelude.lines.insert(name.into(), text);
        name.into()
    }
    /// The packed form, which every device with the extension has; plain products where its compiler does not know it in this version of the
    /// language.
    fn dot(&self, scalar: Scalar, [vector, int]: [&str; 2], prelude: &mut Prelude) -> String {
        let name = format!("tw_dot_{scalar}");
        let kind = if scalar == Scalar::I8 { "ss_int" } else { "uu_uint" };
        let plain: Vec<String> = (0..4).map(|i| format!("{} * {}", self.lane("a", i), self.lane("b", i))).collect();
        prelude.function(&name, |_| {
            format!(
                "{INLINE} {int} {name}({vector} a, {vector} b, {int} c) {{\n\
                 #if defined(cl_khr_integer_dot_product) || defined(__opencl_c_integer_dot_product_input_4x8bit_packed)\n    \
                 return c + ({int})dot_4x8packed_{kind}(as_uint(a), as_uint(b));\n\
                 #else\n    return c + {};\n#endif\n}}",
                plain.join(" + ")
            )
        })
    }
    fn widen(&self, from: Scalar, _: &Target, prelude: &mut Prelude) -> String {
        let (name, value) = match from {
            from if from.is_float8() => {
                let unsigned = ["uchar", "ushort", "uint"];
                return cpp::widen_float8(INLINE, unsigned, "as_float(", from, &half_to_f32, prelude);
            }
            Scalar::BF16 => ("tw_bf16_to_f32", "as_float((uint)a << 16)"),
            _ => return half_to_f32(prelude),
        };
        prelude.function(name, |_| format!("{INLINE} float {name}(ushort a) {{ return {value}; }}"))
    }
    fn narrow(&self, to: Scalar, _: &Target, prelude: &mut Prelude) -> String {
        if to.is_float8() {
            let as_bits = |float: &str| format!("as_uint({float})");
            return cpp::narrow_float8(INLINE, ["uchar", "uint"], &as_bits, "as_float(", to, prelude);
        }
        if to == Scalar::BF16 {
            return cpp::narrow_bf16(INLINE, "ushort", "uint", "as_uint(a)", prelude);
        }
        let body = "ushort h; vstore_half_rte(a, 0, (__private half*)&h); return h;";
        prelude.function("tw_f32_to_f16", |_| format!("{INLINE} ushort tw_f32_to_f16(float a) {{ {body} }}"))
    }

    fn barrier(&self, scope: BarrierScope, global: bool, prelude: &mut Prelude) -> String {
        let flags = if global { "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE" } else { "CLK_LOCAL_MEM_FENCE" };
        match scope {
            BarrierScope::Wave => {
                enable("cl_khr_subgroups", prelude);
                "sub_group_barrier(CLK_LOCAL_MEM_FENCE);".into()
            }
            // Named barriers are refused by the validator: no known target of this dialect claims them.
            BarrierScope::WorkGroup | BarrierScope::Named { .. } | BarrierScope::Cluster | BarrierScope::ClusterStart => {
                format!("barrier({flags});")
            }
        }
    }
    /// Separates a branch from a barrier. PoCL 3.1 wrongly treats a branch right after a barrier in a loop as uniform, if the loop may run zero times.
    fn barrier_separator(&self, prelude: &mut Prelude) -> Option<&'static str> {
        prelude.lines.insert("tw_apart".into(), APART.into());
        Some("tw_apart();")
    }
    fn atomic(&self, op: AtomicOp, scalar: Scalar, space: Space, address: &str, value: &str, prelude: &mut Prelude) -> String {
        let word = match op {
            AtomicOp::Add => "add",
            AtomicOp::Max => "max",
            AtomicOp::Min => "min",
        };
        if scalar == Scalar::I64 {
            enable(if op == AtomicOp::Add { "cl_khr_int64_base_atomics" } else { "cl_khr_int64_extended_atomics" }, prelude);
            return format!("atom_{word}({address}, {value});");
        }
        if scalar.is_int() {
            return format!("atomic_{word}({address}, {value});");
        }
        let (name, qualifier) = (format!("tw_atomic_{word}_{scalar}_{}", space.word()), qualifier(space));
        if op != AtomicOp::Add {
            let (float, int, stem) = match scalar {
                Scalar::F64 => {
                    enable("cl_khr_int64_extended_atomics", prelude);
                    ("double", "long", "atom")
                }
                _ => ("float", "int", "atomic"),
            };
            let body = self.atomic_extreme(op, int, &format!("as_{int}(a)"), &|op, signed| {
                let int = if signed { int.to_string() } else { format!("unsigned {int}") };
                let word = if op == AtomicOp::Min { "min" } else { "max" };
                format!("{stem}_{word}((volatile {qualifier} {int}*)p, ({int})bits);")
            });
            prelude.function(&name, |_| format!("{INLINE} void {name}({qualifier} {float}* p, {float} a) {body}"));
            return format!("{name}({address}, {value});");
        }
        // OpenCL C 1.2 adds no floats: memory is compared and exchanged.
        let (float, bits, exchange) = match scalar {
            Scalar::F64 => {
                enable("cl_khr_int64_base_atomics", prelude);
                ("double", "ulong", "atom_cmpxchg")
            }
            _ => ("float", "uint", "atomic_cmpxchg"),
        };
        prelude.function(&name, |_| {
            format!(
                "{INLINE} void {name}({qualifier} {float}* p, {float} a) {{\n    \
                 volatile {qualifier} {bits}* q = (volatile {qualifier} {bits}*)p;\n    \
                 {bits} seen = *q, old, want;\n    \
                 do {{\n        \
                 old = seen;\n        \
                 want = as_{bits}(as_{float}(old) + a);\n        \
                 if (want == old) return;\n        \
                 seen = {exchange}(q, old, want);\n    \
                 }} while (seen != old);\n}}"
            )
        });
        format!("{name}({address}, {value});")
    }
    fn fence(&self) -> Option<String> {
        None
    }
    fn shuffle(&self, kind: ShuffleKind, scalar: Scalar, wave: u32, value: &str, prelude: &mut Prelude) -> String {
        enable("cl_khr_subgroups", prelude);
        match kind {
            ShuffleKind::Xor(mask) => {
                enable("cl_khr_subgroup_shuffle", prelude);
                format!("sub_group_shuffle_xor({value}, {mask}u)")
            }
            ShuffleKind::Broadcast(lane) => format!("sub_group_broadcast({value}, {lane}u)"),
            // `sub_group_shuffle_down` leaves lanes that reach beyond the wave undefined; we promise their own value.
            ShuffleKind::Down(delta) => {
                enable("cl_khr_subgroup_shuffle", prelude);
                let (name, ty) = (format!("tw_shuffle_down_{scalar}"), self.scalar(scalar));
                let body =
                    "uint to = get_sub_group_local_id() + delta; return sub_group_shuffle(a, to < wave ? to : to - delta);";
                prelude.function(&name, |_| format!("{INLINE} {ty} {name}({ty} a, uint delta, uint wave) {{ {body} }}"));
                format!("{name}({value}, {delta}u, {wave}u)")
            }
        }
    }
    fn async_copy(&self, _: &CopyText, _: &mut Prelude) -> Option<String> {
        None
    }
    fn async_commit(&self) -> Option<String> {
        None
    }
    fn async_wait(&self, _: u32) -> Option<String> {
        None
    }
    /// Only AMD's compiler has such a fence.
    fn sched_hint(&self, mask: u32, size: u32, prelude: &mut Prelude) -> Option<String> {
        if size > 0 {
            return None;
        }
        prelude.lines.insert("tw_sched_barrier".into(), SCHED_BARRIER.into());
        Some(format!("tw_sched_barrier({mask:#x});"))
    }
}

fn shuffles(block: &[Stmt]) -> bool {
    block.iter().any(|s| match s {
        Stmt::Shuffle { .. } => true,
        Stmt::For { body, .. } => shuffles(body),
        Stmt::If { then, otherwise, .. } => shuffles(then) || shuffles(otherwise),
        Stmt::Roles(roles) => roles.iter().any(|r| shuffles(&r.body)),
        _ => false,
    })
}

fn half_to_f32(prelude: &mut Prelude) -> String {
    let value = "vload_half(0, (const __private half*)&a)";
    prelude.function("tw_f16_to_f32", |_| format!("{INLINE} float tw_f16_to_f32(ushort a) {{ return {value}; }}"))
}
