//! Printed source is accepted by the real compilers, without headers, and becomes the code it is meant to become.

use crate::support;
use crate::tools;

use support::*;
use tilewright_ir::*;

fn everywhere() -> Vec<Kernel> {
    vec![
        gemm(),
        guarded_copy(),
        edge_fetch(),
        literals(),
        arithmetic(),
        atomics(),
        global_exchange(),
        sigmoid(Scalar::F32),
        powers(Scalar::F32),
        round_tf32(),
    ]
}

#[test]
fn hip_compiles_without_headers_or_library() {
    for arch in ["gfx900", "gfx90a", "gfx942", "gfx950"] {
        for kernel in everywhere().into_iter().chain([wave_sum(64), roles(64, false)]) {
            let Some(assembly) = tools::clang(&kernel, &target(arch)) else { return };
            assert!(!assembly.contains("s_swappc"), "{} for {arch} calls a function", kernel.name);
            assert!(!assembly.contains("flat_load"), "{} for {arch} does not know where its memory is", kernel.name);
            no_scratch(&kernel, arch, &assembly);
        }
    }
}

#[test]
fn opencl_compiles_for_amd() {
    for arch in ["gfx900", "gfx90a", "gfx942", "gfx950"] {
        for kernel in everywhere() {
            let Some(assembly) = tools::clang(&kernel, &target_in_opencl(arch)) else { return };
            assert!(assembly.contains(&kernel.name));
        }
    }
}

#[test]
fn vectors_move_whole_on_amd() {
    let Some(assembly) = tools::clang(&gemm(), &target("gfx942")) else { return };
    for instruction in ["global_load_dwordx2", "ds_read_b128", "ds_write_b64", "global_store_dwordx4"] {
        assert!(assembly.contains(instruction), "{instruction} is missing in\n{assembly}");
    }
}

fn no_scratch(kernel: &Kernel, arch: &str, assembly: &str) {
    let scratch: Vec<&str> = assembly.lines().filter(|l| l.contains(".private_segment_fixed_size:")).collect();
    assert!(!scratch.is_empty() && scratch.iter().all(|l| l.trim().ends_with(" 0")), "{} for {arch}: {scratch:?}", kernel.name);
}

#[test]
fn cuda_compiles_without_headers() {
    for arch in ["sm_75", "sm_80", "sm_90a"] {
        let target = target(arch);
        let mut kernels = everywhere();
        kernels.extend([wave_sum(32), roles(32, false), roles(32, true)]);
        if target.features.async_copy {
            kernels.push(async_copy());
        }
        for kernel in kernels {
            let Some(cubin) = tools::nvrtc(&kernel, &target) else { return };
            assert!(!cubin.binary.is_empty());
            for line in ["0 bytes stack frame", "0 bytes spill stores"] {
                assert!(cubin.log.contains(line), "{} for {arch}: {}", kernel.name, cubin.log);
            }
        }
    }
}

/// The instructions of a binary must contain these.
fn contains(cubin: &tools::Cubin, instructions: &[&str]) {
    let Some(listing) = tools::nvdisasm(cubin) else { return };
    for instruction in instructions {
        assert!(listing.contains(instruction), "{instruction} is missing in\n{listing}");
    }
}

#[test]
fn warpgroup_instructions_and_bulk_copies_compile() {
    let Some(cubin) = tools::nvrtc(&matrix::warpgroup_gemm(), &target("sm_90a")) else { return };
    for line in ["0 bytes stack frame", "0 bytes spill stores"] {
        assert!(cubin.log.contains(line), "{}", cubin.log);
    }
    let instructions =
        ["HGMMA.64x128x16.F32.BF16", "UTMALDG.2D", "UTMASTG.2D", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "SYNCS.ARRIVE", "USETMAXREG"];
    contains(&cubin, &instructions);
}

#[test]
fn clusters_compile() {
    let Some(cubin) = tools::nvrtc(&matrix::cluster_exchange(), &target("sm_90a")) else { return };
    contains(&cubin, &["UTMALDG.2D.MULTICAST", "UCGABAR_ARV", "UCGABAR_WAIT"]);
}

#[test]
fn instructions_of_waves_compile() {
    for arch in ["sm_80", "sm_90a"] {
        let Some(cubin) = tools::nvrtc(&matrix::wave_gemm(), &target(arch)) else { return };
        assert!(cubin.log.contains("0 bytes stack frame"), "{}", cubin.log);
        contains(&cubin, &["HMMA.16816.F32", "LDSM.16.M88.4", "LDSM.16.MT88.2"]);
    }
}

#[test]
fn amd_matrix_instructions_compile() {
    use MatrixType::*;
    let all = [
        (F16, 32, 8, "v_mfma_f32_32x32x8"),
        (F16, 16, 16, "v_mfma_f32_16x16x16"),
        (BF16, 32, 8, "v_mfma_f32_32x32x8"),
        (BF16, 16, 16, "v_mfma_f32_16x16x16"),
        (F32, 32, 2, "v_mfma_f32_32x32x2"),
        (F32, 16, 4, "v_mfma_f32_16x16x4"),
        (F64, 16, 4, "v_mfma_f64_16x16x4"),
    ];
    let deep = [
        (F16, 32, 16, "v_mfma_f32_32x32x16_f16"),
        (F16, 16, 32, "v_mfma_f32_16x16x32_f16"),
        (BF16, 32, 16, "v_mfma_f32_32x32x16_bf16"),
        (BF16, 16, 32, "v_mfma_f32_16x16x32_bf16"),
    ];
    // Those of bytes are others on each, of which gfx950 has gfx942's as well.
    let bytes = [
        (I8, 32, 8, "v_mfma_i32_32x32x8", "gfx90a"),
        (I8, 16, 16, "v_mfma_i32_16x16x16", "gfx90a"),
        (I8, 32, 16, "v_mfma_i32_32x32x16_i8", "gfx942 gfx950"),
        (I8, 16, 32, "v_mfma_i32_16x16x32_i8", "gfx942 gfx950"),
        (I8, 32, 32, "v_mfma_i32_32x32x32_i8", "gfx950"),
        (I8, 16, 64, "v_mfma_i32_16x16x64_i8", "gfx950"),
    ];
    let everywhere = all.into_iter().map(|(input, side, k, name)| (input, side, k, name, "gfx90a gfx942 gfx950"));
    let deep = deep.into_iter().map(|(input, side, k, name)| (input, side, k, name, "gfx950"));
    let listed: Vec<_> = everywhere.chain(deep).chain(bytes).collect();
    // Kernels of 8-bit floats are compiled by the tests of `tilewright-gen`.
    for row in mma::TABLE.iter().filter(|row| row.unit == MathUnit::Mfma && !row.input.storage().is_float8()) {
        let shape = row.shape;
        assert!(
            listed.iter().any(|(input, side, k, ..)| (*input, *side, *k) == (row.input, shape.m, shape.k)),
            "no {row:?} here"
        );
    }
    for (input, side, k, instruction, has) in listed {
        for arch in ["gfx90a", "gfx942", "gfx950"] {
            let (kernel, target) = (matrix::amd_product(input, side, k), target(arch));
            if !has.contains(arch) {
                assert!(
                    matches!(print(&kernel, &target), Err(e) if e.to_string().contains("depth")),
                    "{arch} has no {instruction}"
                );
                continue;
            }
            let Some(assembly) = tools::clang(&kernel, &target) else { return };
            assert!(assembly.contains(instruction), "{instruction} is missing for {arch} in\n{assembly}");
            no_scratch(&kernel, arch, &assembly);
        }
    }
}

#[test]
fn dot_products_compile() {
    for (scalar, nvidia, amd) in [(Scalar::I8, "IDP.4A.S8.S8", "_i32_i8"), (Scalar::U8, "IDP.4A.U8.U8", "v_dot4_u32_u8")] {
        let kernel = dot_products(scalar);
        for arch in ["gfx906", "gfx90a", "gfx942", "gfx950"] {
            let Some(assembly) = tools::clang(&kernel, &target(arch)) else { return };
            assert!(assembly.contains("v_dot4") && assembly.contains(amd), "{arch}: {assembly}");
        }
        // Plain products where the compiler knows no other.
        let opencl = Target { features: Features { dot: true, ..opencl().features }, arch: "gfx900".into(), ..opencl() };
        let Some(assembly) = tools::clang(&kernel, &opencl) else { return };
        assert!(!assembly.contains("s_swappc"), "{assembly}");
        for arch in ["sm_75", "sm_90a"] {
            let Some(cubin) = tools::nvrtc(&kernel, &target(arch)) else { return };
            contains(&cubin, &[nvidia]);
        }
    }
}

/// What HIP gets written out instead of a library's function is right: run on the host, against its C library.
#[test]
fn written_out_functions_are_accurate() {
    let text = print(&arithmetic(), &target("gfx942")).unwrap_or_else(|e| panic!("{e}")).text;
    let function = |name: &str| {
        let start = text.find(name).and_then(|at| text[..at].rfind("static")).unwrap_or_else(|| panic!("no {name}"));
        let end = text[start..].find("\n}").unwrap_or_else(|| panic!("{name} does not end"));
        text[start..start + end + 2].to_owned()
    };
    let program = format!(
        r#"#define __device__
#define __forceinline__ inline
extern "C" int printf(const char*, ...);
{}
{}
{}
template <class F, class G> double worst(F f, G g) {{
    double worst = 0;
    for (unsigned bits = 0x33000000u; bits < 0x42000000u; bits += 257) {{
        float x = __builtin_bit_cast(float, bits);
        double right = g(x), error = __builtin_fabs((f(x) - right) / right), odd = __builtin_fabs(f(-x) + f(x));
        if (!(error <= worst)) worst = error;
        if (!(odd <= worst)) worst = odd;
    }}
    return worst;
}}
int main() {{
    printf("tanh %g\n", worst([](float x) {{ return tw_tanh_f32(x); }}, [](double x) {{ return __builtin_tanh(x); }}));
    printf("erf %g\n", worst([](float x) {{ return tw_erf_f32(x); }}, [](double x) {{ return __builtin_erf(x); }}));
    float nan = __builtin_nanf("");
    printf("nan %d\n", tw_tanh_f32(nan) != tw_tanh_f32(nan) && tw_erf_f32(nan) != tw_erf_f32(nan));
    for (unsigned bits = 0; bits < 0xffff0000u; bits += 0x1fff) {{
        printf("bf16 %u %u\n", bits, (unsigned)tw_f32_to_bf16(__builtin_bit_cast(float, bits)));
    }}
}}
"#,
        function("tw_tanh_f32(float"),
        function("tw_erf_f32(float"),
        function("tw_f32_to_bf16(float")
    );
    let Some(said) = tools::run_on_host(&program) else { return };
    let value = |name: &str| {
        let line = said.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {said}"));
        line.trim().parse::<f64>().unwrap_or_else(|e| panic!("{line}: {e}"))
    };
    assert!(value("tanh ") < 4e-7, "tanh is off by {}", value("tanh "));
    assert!(value("erf ") < 4e-7, "erf is off by {}", value("erf "));
    assert_eq!(value("nan "), 1.0);
    let mut seen = 0;
    for line in said.lines().filter_map(|l| l.strip_prefix("bf16 ")) {
        let (bits, got) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (bits, got): (u32, u16) = (bits.parse().unwrap_or(0), got.parse().unwrap_or(0));
        let right = half::bf16::from_f32(f32::from_bits(bits));
        assert!(right.is_nan() && half::bf16::from_bits(got).is_nan() || right.to_bits() == got, "{bits:#x}: {got:#x}");
        seen += 1;
    }
    assert!(seen > 100_000);
}
