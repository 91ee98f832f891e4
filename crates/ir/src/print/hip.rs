//! HIP C++ for hiprtc, hipcc and plain clang. Needs no header: what headers would give are clang's builtins.

use super::cpp;
use super::dialect::{Arena, CopyText, Dialect, Prelude, Space, Text, prec};
use crate::{AtomicOp, BarrierScope, BinaryOp, Builtin, Kernel, Scalar, ShuffleKind, Target, Type, UnaryOp};

pub(super) struct Hip;

/// Wave slots of the narrowest SIMD we know: asking for more would be refused.
const MAX_WAVES_PER_SIMD: u32 = 8;
/// SIMDs of a compute unit, among which its waves are dealt.
const SIMDS_PER_UNIT: u32 = 4;

/// Spelled by the HIP headers, which hiprtc brings along and plain clang does not.
const HEADER_WORDS: [(&str, &str); 4] = [
    ("__global__", "__attribute__((global))"),
    ("__device__", "__attribute__((device))"),
    ("__shared__", "__attribute__((shared))"),
    ("__forceinline__", "inline __attribute__((always_inline))"),
];

impl Dialect for Hip {
    fn reserved(&self) -> &'static str {
        "threadIdx blockIdx blockDim gridDim warpSize min max fma exp tanh erf sqrt dim3 float4"
    }
    fn start(&self, _: &Kernel, prelude: &mut Prelude) {
        for (word, meaning) in HEADER_WORDS {
            prelude.lines.insert(word.into(), format!("#ifndef {word}\n#define {word} {meaning}\n#endif"));
        }
    }
    fn entry(&self, kernel: &Kernel, target: &Target, name: &str) -> String {
        let threads = kernel.threads;
        let group_waves = threads.div_ceil(target.wave.max(1));
        let waves = kernel.min_groups.saturating_mul(group_waves).div_ceil(SIMDS_PER_UNIT).min(MAX_WAVES_PER_SIMD);
        let room = if waves > 0 { format!(" __attribute__((amdgpu_waves_per_eu({waves})))") } else { String::new() };
        format!("extern \"C\" __global__ __attribute__((amdgpu_flat_work_group_size({threads}, {threads}))){room} void {name}")
    }
    fn inline(&self) -> &'static str {
        cpp::INLINE
    }
    fn arena(&self, name: &str, bytes: u32, align: u32) -> Arena {
        Arena::sized(format!("__shared__ __attribute__((aligned({align}))) unsigned char {name}[{bytes}];"))
    }

    fn scalar(&self, scalar: Scalar) -> &'static str {
        cpp::scalar(scalar)
    }
    fn vector(&self, ty: Type, prelude: &mut Prelude) -> String {
        let name = cpp::vector_name(ty);
        let text = format!("typedef {} {name} __attribute__((ext_vector_type({})));", cpp::scalar(ty.scalar), ty.lanes);
        prelude.types.insert(name.clone(), text);
        name
    }
    fn pointer(&self, _: Space, constant: bool, pointee: &str) -> String {
        cpp::pointer(constant, pointee)
    }
    fn restrict(&self, _: bool) -> &'static str {
        "__restrict__"
    }
    fn lane(&self, vector: &str, lane: u8) -> String {
        format!("{vector}[{lane}]")
    }
    fn vector_of(&self, ty: &str, _: u8, parts: &[String]) -> Text {
        match parts {
            [all] => Text::new(format!("({ty})({all})"), prec::UNARY),
            _ => cpp::braces(ty, parts),
        }
    }
    fn vector_operators(&self) -> bool {
        true
    }
    fn vector_functions(&self) -> bool {
        false
    }
    fn convert_vector(&self, to: &str, value: &str) -> Option<String> {
        Some(format!("__builtin_convertvector({value}, {to})"))
    }

    fn long_suffix(&self) -> &'static str {
        "ll"
    }
    fn special(&self, scalar: Scalar, nan: bool) -> String {
        let f = cpp::suffix(scalar);
        if nan { format!("__builtin_nan{f}(\"\")") } else { format!("__builtin_inf{f}()") }
    }
    fn builtin(&self, builtin: Builtin) -> Text {
        let text = match builtin {
            Builtin::LocalId => "(int)__builtin_amdgcn_workitem_id_x()",
            Builtin::GroupId(0) => "(int)__builtin_amdgcn_workgroup_id_x()",
            Builtin::GroupId(1) => "(int)__builtin_amdgcn_workgroup_id_y()",
            Builtin::GroupId(_) => "(int)__builtin_amdgcn_workgroup_id_z()",
        };
        Text::new(text, prec::UNARY)
    }
    /// Read from the wave's first lane, so that the compiler knows that the whole wave takes one branch.
    fn role_thread(&self) -> String {
        "__builtin_amdgcn_readfirstlane((int)__builtin_amdgcn_workitem_id_x())".into()
    }

    /// `F32` functions are written out where clang's builtin would call a library. Those of `F64` come from the device
    /// library that hiprtc and hipcc link.
    fn unary(&self, op: UnaryOp, scalar: Scalar, prelude: &mut Prelude) -> String {
        match (op, scalar) {
            (UnaryOp::Sqrt | UnaryOp::Abs, _) | (UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Log2, Scalar::F32) => {
                format!("__builtin_{}", cpp::math(op, scalar))
            }
            (UnaryOp::Sigmoid, Scalar::F64) => {
                let exp = self.unary(UnaryOp::Exp, scalar, prelude);
                prelude.function("tw_sigmoid_f64", |_| {
                    format!("{} double tw_sigmoid_f64(double a) {{ return 1.0 / (1.0 + {exp}(-a)); }}", cpp::INLINE)
                })
            }
            (UnaryOp::NearTf32, _) => prelude.function("tw_near_tf32", |_| NEAR_TF32.into()),
            (UnaryOp::RoundTf32, _) => prelude.function("tw_tf32", |_| ROUND_TF32.into()),
            (UnaryOp::Sigmoid, _) => prelude.function("tw_sigmoid_f32", |_| SIGMOID_F32.into()),
            (_, Scalar::F64) => {
                let name = format!("__ocml_{}_f64", cpp::math(op, scalar));
                prelude.function(&name, |_| format!("extern \"C\" __device__ __attribute__((const)) double {name}(double);"))
            }
            (UnaryOp::Tanh, _) => prelude.function("tw_tanh_f32", |_| TANH_F32.into()),
            _ => prelude.function("tw_erf_f32", |_| ERF_F32.into()),
        }
    }
    fn min_max(&self, op: BinaryOp, scalar: Scalar, prelude: &mut Prelude) -> String {
        let (stem, sign) = if op == BinaryOp::Min { ("min", "<") } else { ("max", ">") };
        if scalar.is_float() {
            return format!("__builtin_f{stem}{}", cpp::suffix(scalar));
        }
        let (name, ty) = (format!("tw_{stem}_{scalar}"), cpp::scalar(scalar));
        prelude.function(&name, |_| format!("{} {ty} {name}({ty} a, {ty} b) {{ return a {sign} b ? a : b; }}", cpp::INLINE))
    }
    fn fma(&self, scalar: Scalar, _: &mut Prelude) -> String {
        format!("__builtin_fma{}", cpp::suffix(scalar))
    }
    fn dot(&self, scalar: Scalar, [vector, int]: [&str; 2], prelude: &mut Prelude) -> String {
        let name = format!("tw_dot_{scalar}");
        let (ty, sign) = if scalar == Scalar::I8 { ("int", "s") } else { ("unsigned int", "u") };
        let word = |x: &str| format!("__builtin_bit_cast({ty}, {x})");
        let body = format!("return __builtin_amdgcn_{sign}dot4({}, {}, ({ty})c, false);", word("a"), word("b"));
        prelude.function(&name, |_| format!("{} {int} {name}({vector} a, {vector} b, {int} c) {{ {body} }}", cpp::INLINE))
    }
    fn widen(&self, from: Scalar, target: &Target, prelude: &mut Prelude) -> String {
        let (name, value) = match from {
            from if from.is_float8() && target.features.float8.takes(from) => {
                let format = if matches!(from, Scalar::E4M3 | Scalar::E4M3Fnuz) { "fp8" } else { "bf8" };
                let name = format!("tw_{from}_to_f32");
                let body = format!("return __builtin_amdgcn_cvt_f32_{format}((int)a, 0);");
                return prelude.function(&name, |_| format!("{} float {name}(unsigned char a) {{ {body} }}", cpp::INLINE));
            }
            from if from.is_float8() => {
                let as_float = "__builtin_bit_cast(float, ";
                return cpp::widen_float8(cpp::INLINE, cpp::UNSIGNED, as_float, from, &half_to_f32, prelude);
            }
            Scalar::BF16 => ("tw_bf16_to_f32", "__builtin_bit_cast(float, (unsigned int)a << 16)"),
            _ => return half_to_f32(prelude),
        };
        prelude.function(name, |_| format!("{} float {name}(unsigned short a) {{ return {value}; }}", cpp::INLINE))
    }
    fn narrow(&self, to: Scalar, target: &Target, prelude: &mut Prelude) -> String {
        // The conversion saturates in one of the wave's modes alone.
        if to.is_float8() && target.features.float8.takes(to) {
            let (format, most) = match to {
                Scalar::E4M3 => ("fp8", "448.0f"),
                Scalar::E4M3Fnuz => ("fp8", "240.0f"),
                _ => ("bf8", "57344.0f"),
            };
            let name = format!("tw_f32_to_{to}");
            return prelude.function(&name, |_| {
                format!(
                    "{} unsigned char {name}(float a) {{\n    \
                     const float within = a != a ? a : __builtin_fminf(__builtin_fmaxf(a, -{most}), {most});\n    \
                     return (unsigned char)__builtin_amdgcn_cvt_pk_{format}_f32(within, within, 0, false);\n}}",
                    cpp::INLINE
                )
            });
        }
        if to.is_float8() {
            let as_bits = |float: &str| format!("__builtin_bit_cast(unsigned int, {float})");
            let unsigned = ["unsigned char", "unsigned int"];
            return cpp::narrow_float8(cpp::INLINE, unsigned, &as_bits, "__builtin_bit_cast(float, ", to, prelude);
        }
        if to == Scalar::BF16 {
            return cpp::narrow_bf16(
                cpp::INLINE,
                "unsigned short",
                "unsigned int",
                "__builtin_bit_cast(unsigned int, a)",
                prelude,
            );
        }
        let value = "__builtin_bit_cast(unsigned short, (_Float16)a)";
        prelude
            .function("tw_f32_to_f16", |_| format!("{} unsigned short tw_f32_to_f16(float a) {{ return {value}; }}", cpp::INLINE))
    }

    fn barrier(&self, scope: BarrierScope, _: bool, prelude: &mut Prelude) -> String {
        let (name, reach, wait) = match scope {
            BarrierScope::Wave => ("tw_wave_barrier", "wavefront", "__builtin_amdgcn_wave_barrier"),
            // Named barriers are refused by the validator: no known target of this dialect claims them.
            BarrierScope::WorkGroup | BarrierScope::Named { .. } | BarrierScope::Cluster | BarrierScope::ClusterStart => {
                ("tw_barrier", "workgroup", "__builtin_amdgcn_s_barrier")
            }
        };
        let name = prelude.function(name, |_| {
            format!(
                "{} void {name}() {{\n    \
                 __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"{reach}\");\n    \
                 {wait}();\n    \
                 __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"{reach}\");\n}}",
                cpp::INLINE
            )
        });
        format!("{name}();")
    }
    fn atomic(&self, op: AtomicOp, scalar: Scalar, space: Space, address: &str, value: &str, prelude: &mut Prelude) -> String {
        let scope = match space {
            Space::Global => "__HIP_MEMORY_SCOPE_AGENT",
            Space::Shared => "__HIP_MEMORY_SCOPE_WORKGROUP",
        };
        match op {
            AtomicOp::Add => format!("__hip_atomic_fetch_add({address}, {value}, __ATOMIC_RELAXED, {scope});"),
            op if scalar.is_int() => {
                format!("__hip_atomic_fetch_{}({address}, {value}, __ATOMIC_RELAXED, {scope});", extreme(op))
            }
            op => {
                let (float, int) = if scalar == Scalar::F64 { ("double", "long long") } else { ("float", "int") };
                let bits = format!("__builtin_bit_cast({int}, a)");
                let body = self.atomic_extreme(op, int, &bits, &|op, signed| {
                    let int = if signed { int.to_string() } else { format!("unsigned {int}") };
                    format!("__hip_atomic_fetch_{}(({int}*)p, ({int})bits, __ATOMIC_RELAXED, {scope});", extreme(op))
                });
                let name = format!("tw_atomic_{}_{scalar}_{}", extreme(op), space.word());
                prelude.function(&name, |_| format!("{} void {name}({float}* p, {float} a) {body}", cpp::INLINE));
                format!("{name}({address}, {value});")
            }
        }
    }
    fn fence(&self) -> Option<String> {
        Some("__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, \"agent\");".into())
    }
    /// Lanes of a row of 16 exchange by data-parallel primitives, which move registers. One lane's value comes to all through a
    /// scalar register. Others exchange through the shared memory's crossbar.
    fn shuffle(&self, kind: ShuffleKind, scalar: Scalar, wave: u32, value: &str, prelude: &mut Prelude) -> String {
        let ty = cpp::scalar(scalar);
        if let ShuffleKind::Xor(mask) = kind
            && let Some(controls) = row_exchange(mask)
        {
            let one = |half: &str| {
                controls.iter().fold(half.to_string(), |value, control| {
                    format!("__builtin_amdgcn_mov_dpp({value}, {control:#x}, 0xf, 0xf, true)")
                })
            };
            let (name, body) = (format!("tw_row_xor{mask}_{scalar}"), self.moved(scalar, prelude, &one));
            prelude.function(&name, |_| format!("{} {ty} {name}({ty} a) {{ {body} }}", cpp::INLINE));
            return format!("{name}({value})");
        }
        let lane = "tw_lane()";
        let (name, from, body) = match kind {
            ShuffleKind::Broadcast(source) => {
                let one = |half: &str| format!("__builtin_amdgcn_readlane({half}, from)");
                (format!("tw_lane_of_{scalar}"), source.to_string(), self.moved(scalar, prelude, &one))
            }
            ShuffleKind::Xor(_) | ShuffleKind::Down(_) => {
                prelude.function("tw_lane", |_| {
                    let body = "return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));";
                    format!("{} int tw_lane() {{ {body} }}", cpp::INLINE)
                });
                let from = match kind {
                    ShuffleKind::Down(delta) => format!("{lane} + {delta} < {wave} ? {lane} + {delta} : {lane}"),
                    ShuffleKind::Xor(mask) | ShuffleKind::Broadcast(mask) => format!("{lane} ^ {mask}"),
                };
                let one = |half: &str| format!("__builtin_amdgcn_ds_bpermute(from << 2, {half})");
                (format!("tw_shuffle_{scalar}"), from, self.moved(scalar, prelude, &one))
            }
        };
        prelude.function(&name, |_| format!("{} {ty} {name}({ty} a, int from) {{ {body} }}", cpp::INLINE));
        format!("{name}({value}, {from})")
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
    fn sched_hint(&self, mask: u32, size: u32, _: &mut Prelude) -> Option<String> {
        Some(match size {
            0 => format!("__builtin_amdgcn_sched_barrier({mask:#x});"),
            _ => format!("__builtin_amdgcn_sched_group_barrier({mask:#x}, {size}, 0);"),
        })
    }
}

/// Controls of the data-parallel primitives, one after the other. They give each lane the value of the lane with a number that
/// differs in these bits. They are permutations of four lanes, and rows of 16 mirrored in halves, mirrored or rotated by half.
/// `None` where there are no such controls.
fn row_exchange(mask: u32) -> Option<&'static [u32]> {
    Some(match mask {
        1 => &[0xb1],
        2 => &[0x4e],
        3 => &[0x1b],
        // Mirrored in halves, lane 7 - i; and back within four.
        4 => &[0x141, 0x1b],
        7 => &[0x141],
        8 => &[0x128],
        15 => &[0x140],
        _ => return None,
    })
}

/// Half of the last place is added to the bits, and what lies below dropped; infinities and NaN stay.
const ROUND_TF32: &str = "static __device__ __forceinline__ float tw_tf32(float a) {
    const unsigned int bits = __builtin_bit_cast(unsigned int, a);
    if ((bits & 0x7f800000u) == 0x7f800000u) return a;
    return __builtin_bit_cast(float, (bits + 0x1000u) & 0xffffe000u);
}";

/// The same of what is no NaN.
const NEAR_TF32: &str = "static __device__ __forceinline__ float tw_near_tf32(float a) {
    return __builtin_bit_cast(float, (__builtin_bit_cast(unsigned int, a) + 0x1000u) & 0xffffe000u);
}";

/// The hardware's reciprocal, to one unit in the last place.
const SIGMOID_F32: &str = "static __device__ __forceinline__ float tw_sigmoid_f32(float a) {
    return __builtin_amdgcn_rcpf(1.0f + __builtin_exp2f(a * -1.44269504f));
}";

/// From e^(-2|x|), which cannot overflow; near zero, where that cancels, the Taylor series. Error below 3e-7 relative.
const TANH_F32: &str = "static __device__ __forceinline__ float tw_tanh_f32(float a) {
    float x = __builtin_fabsf(a), s = a * a;
    float t = __builtin_expf(-2.0f * x);
    float large = __builtin_copysignf((1.0f - t) / (1.0f + t), a);
    float small = a + a * s * (-0.33333333f + s * (0.13333333f + s * (-0.053968254f + s * 0.021869488f)));
    return x < 0.3f ? small : large;
}";

/// Polynomials through the Chebyshev nodes of erf(x)/x in x^2 on [0, 1] and of -log(1 - erf(x)) on [1, 4]; 1 in `F32`
/// beyond. Error below 2e-7 relative.
const ERF_F32: &str = "static __device__ __forceinline__ float tw_erf_f32(float a) {
    float x = __builtin_fminf(__builtin_fabsf(a), 4.0f), s = a * a;
    float p = 7.8758749e-05f;
    p = __builtin_fmaf(p, s, -8.0168643e-04f);
    p = __builtin_fmaf(p, s, 5.1890872e-03f);
    p = __builtin_fmaf(p, s, -2.6854211e-02f);
    p = __builtin_fmaf(p, s, 1.1283594e-01f);
    p = __builtin_fmaf(p, s, -3.7612626e-01f);
    p = __builtin_fmaf(p, s, 1.1283791f);
    float q = 1.3272362e-05f;
    q = __builtin_fmaf(q, x, -3.1693702e-04f);
    q = __builtin_fmaf(q, x, 3.4323514e-03f);
    q = __builtin_fmaf(q, x, -2.2604773e-02f);
    q = __builtin_fmaf(q, x, 1.0328112e-01f);
    q = __builtin_fmaf(q, x, 6.3914126e-01f);
    q = __builtin_fmaf(q, x, 1.1258936f);
    q = __builtin_fmaf(q, x, 7.6589780e-04f);
    float large = a == a ? __builtin_copysignf(1.0f - __builtin_expf(-q), a) : a;
    return x < 1.0f ? a * p : large;
}";

impl Hip {
    /// The body of a function that moves the words of `a` to other lanes.
    fn moved(&self, scalar: Scalar, prelude: &mut Prelude, word: &dyn Fn(&str) -> String) -> String {
        let ty = cpp::scalar(scalar);
        if scalar.bytes() < 8 {
            return format!("return __builtin_bit_cast({ty}, {});", word("__builtin_bit_cast(int, a)"));
        }
        let pair = self.vector(Scalar::I32.vector(2), prelude);
        let [low, high] = ["half[0]", "half[1]"].map(word);
        format!("{pair} half = __builtin_bit_cast({pair}, a); return __builtin_bit_cast({ty}, {pair}{{{low}, {high}}});")
    }
}

/// What the function that keeps the larger or the smaller is called.
const fn extreme(op: AtomicOp) -> &'static str {
    if matches!(op, AtomicOp::Min) { "min" } else { "max" }
}

fn half_to_f32(prelude: &mut Prelude) -> String {
    let value = "(float)__builtin_bit_cast(_Float16, a)";
    prelude.function("tw_f16_to_f32", |_| format!("{} float tw_f16_to_f32(unsigned short a) {{ return {value}; }}", cpp::INLINE))
}
