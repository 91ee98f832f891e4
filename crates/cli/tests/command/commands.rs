//! Every subcommand on the built-in device: what it prints, what it writes, how it ends.

use crate::{common, reference};
use common::{Bench, Ran};
use serde_json::Value;
use tilewright::{Context, Gemm, Options, Order, RecordsAt, Scalar};

pub fn a_first_tuned_kernel() {
    let bench = Bench::new();
    let ran = bench.run("tune gemm --m 64 --n 48 --k 32 --budget 6 --device emu");
    ran.ends(0);
    ran.says(&["gemm 64x48x32 f32 nn row on", "plan ", "(modelled)", "verified  yes", "6 in ", "source ", "records "]);
    let sources: Vec<_> = std::fs::read_dir(bench.path("sources")).expect("a folder of sources").flatten().collect();
    assert_eq!(sources.len(), 1);
    let source = std::fs::read_to_string(sources[0].path()).expect("a source");
    assert!(source.contains("__global__") && source.contains("Launches, in this order"));
    // What was tuned is found again: by bench, records and a second tune.
    let bench_line = bench.run("bench gemm --m 64 --n 48 --k 32 --device emu");
    bench_line.ends(0);
    bench_line.says(&["recorded", "modelled", "yes"]);
    let list = bench.run("records list");
    list.ends(0);
    list.says(&["6 trials", "modelled"]);
}

pub fn tuning_tells_everything_as_json() {
    let bench = Bench::new();
    let line = "tune conv --n 2 --c 3 --k 5 --size 9x8 --filter 3x3 --stride 2 --pad 0:1 --bias --layout nhwc --budget 5 --device emu:gfx942 --json";
    let ran = bench.run(line);
    ran.ends(0);
    assert_eq!(ran.err, "");
    let objects = ran.objects();
    assert_eq!(objects.len(), 1);
    let o = &objects[0];
    for field in ["problem", "device", "plan", "time_us", "time_kind", "verified", "max_error", "trials", "refused", "failed"] {
        assert!(!o[field].is_null(), "{field} in {o}");
    }
    assert_eq!(o["device"], "emu:gfx942");
    assert_eq!(o["time_kind"], "modelled");
    assert_eq!(o["verified"], true);
    assert_eq!(o["trials"], 5);
    assert!(o["problem"].as_str().is_some_and(|p| p.starts_with("conv_fwd_nhwc_n2_g1_c3_k5_in9x8_fil3x3_st2x2")));
    assert!(o["max_error"].as_f64().is_some_and(|e| e < 1e-5));
    assert!(o["time_us"].as_f64().is_some_and(|t| t > 0.0));
    let plan = o["plan"].as_str().expect("a plan");
    let problem = o["problem"].as_str().expect("a problem");
    bench.run(&format!("verify --problem {problem} --plan {plan} --device emu:gfx942")).ends(0);
}

pub fn host_code_beside_the_kernels() {
    let bench = Bench::new();
    let line = "emit gemm --m 96 --n 80 --k 64 --plan A_MIC2__B_MIC2__C_UNR8_ICE2";
    for (host, parts) in
        [("cuda", ["CUresult product(", "cuLaunchKernel("]), ("hip", ["hipError_t product(", "hipLaunchKernel("])]
    {
        let ran = bench.run(&format!("{line} --host {host} --name product"));
        ran.ends(0);
        ran.says(&["__global__", "product_load(", "#define product_workspace_bytes ", "int64_t lda,", "product_tw_contract"]);
        ran.says(&parts);
    }
    let ran = bench.run(&format!("{line} --host cuda"));
    assert!(ran.ends(0).contains("CUresult tilewright_gemm("));
    for (options, part) in [
        ("--host c --target hip", "--host is for kernels in CUDA C++, --target says HIP C++"),
        ("--host cuda --arch gfx942", "--arch gfx942 is not a target of CUDA"),
        ("--host hip --name 2nd", "host code of `2nd`: a name in C"),
        ("--name f", "--host"),
    ] {
        let ran = bench.run(&format!("{line} {options}"));
        assert_ne!(ran.code, Some(0), "{options}");
        assert!(ran.err.contains(part), "{options}: {}", ran.err);
    }
    let ran = bench.run(&format!("{line} --arch sm_90a --host c --out product.c --name product"));
    if !ran.misses_a_tool() {
        ran.ends(0);
        let text = std::fs::read_to_string(bench.path("product.c")).expect("a file");
        assert!(text.contains("static const uint64_t product_image_0[] = {") && !text.contains("__global__"));
    }
}

/// A bundle takes the plan that was measured on a device of its architecture, and the pick elsewhere.
pub fn a_bundle_of_recorded_shapes() {
    let bench = Bench::new();
    let tuned = "tC0_tA0_tB0_colMaj0_m64_n48_k32_lda32_ldb48_ldc48_ws0_f32";
    let picked = "tC0_tA0_tB0_colMaj0_m64_n48_k40_lda40_ldb48_ldc48_ws0_f32";
    std::fs::write(
        bench.path("shapes.csv"),
        format!("problem,set,reason\n{tuned},mm,\n,mm,no kernel\n{picked},mm,\n{tuned},mm,\n"),
    )
    .expect("a file");
    // As a device of the architecture would have recorded it.
    bench.run(&format!("tune --problem {tuned} --device emu:sm_90a --budget 3")).ends(0);
    bench.run("records export --out lines.jsonl").ends(0);
    let lines = std::fs::read_to_string(bench.path("lines.jsonl")).expect("lines").replace("\"modelled\"", "\"measured\"");
    let lines = lines.replace(tilewright_tune::records::MODEL, tilewright_tune::records::TIMING);
    std::fs::write(bench.path("lines.jsonl"), lines).expect("a file");
    bench.run("records import lines.jsonl --records gpu.sqlite").ends(0);
    let ran = bench.run("bundle --recorded-shapes shapes.csv --arch sm_90a --name two -o out --records gpu.sqlite");
    if ran.misses_a_tool() {
        return;
    }
    ran.ends(0);
    ran.says(&["measured on", "picked", "for 2 problems"]);
    assert!(ran.err.contains("not in the bundle: ") && ran.err.contains("no kernel"), "{}", ran.err);
    let manifest = std::fs::read_to_string(bench.path("out/manifest.json")).expect("the manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    assert_eq!((&manifest["arch"], manifest["problems"].as_array().map(Vec::len)), (&"sm_90a".into(), Some(2)));
    assert!(manifest["problems"][0]["time_us"].as_f64().is_some_and(|t| t > 0.0) && manifest["problems"][1]["time_us"].is_null());
    for file in ["two.h", "two.c", "two_0_0.cubin", "two_1_0.cubin"] {
        assert!(bench.path("out").join(file).exists(), "{file}");
    }
    for (line, part) in [
        ("bundle --recorded-shapes shapes.csv", "-o FOLDER"),
        ("bundle --recorded-shapes lines.jsonl -o out", "lines.jsonl"),
        ("bundle --recorded-shapes none.csv -o out", "none.csv"),
        ("bundle gemm --m 8 --n 8 --k 8 --arch gfx942 -o out", "for NVIDIA's architectures"),
        ("bundle gemm --m 8 --n 8 --k 8 --name 1 -o out", "a name in C"),
    ] {
        let ran = bench.run(line);
        assert!(matches!(ran.code, Some(1 | 2)) && ran.err.contains(part), "{line}: {}", ran.err);
    }
}

/// Three processes that Open MPI started tune a file's problems between them, and their records are brought together.
pub fn parts_of_a_file_and_their_records() {
    let bench = Bench::new();
    let sizes = [(16, 8), (24, 8), (32, 8), (40, 8)];
    let lines: String = sizes.iter().map(|(m, n)| format!("{m},{n},8\n")).collect();
    std::fs::write(bench.path("cases.csv"), format!("m,n,k\n{lines}")).expect("a file");
    let mut files = Vec::new();
    for rank in 0..3 {
        let file = bench.text(&format!("{rank}.sqlite"));
        let line = format!("tune --cases cases.csv --device emu --budget 2 --quiet --records {file}");
        let mut command = bench.command(&line);
        command.env("OMPI_COMM_WORLD_RANK", rank.to_string()).env("OMPI_COMM_WORLD_SIZE", "3");
        let ran = Ran::new(&line, command.output().expect("it starts"));
        ran.ends(0);
        let told = format!("part {} of 3 (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE): ", rank + 1);
        assert!(ran.err.contains(&told), "{}", ran.err);
        files.push(file);
    }
    let merged = bench.text("all.sqlite");
    let ran = bench.run(&format!("records merge {} --records {merged}", files.join(" ")));
    ran.ends(0);
    assert_eq!(ran.err.matches(" new records from ").count(), 3, "{}", ran.err);
    let list = bench.run(&format!("records list --records {merged} --json"));
    list.ends(0);
    assert_eq!(list.objects().len(), sizes.len());
    // Once more adds nothing; a file that is missing or none of ours changes nothing.
    let again = bench.run(&format!("records merge {} --records {merged}", files[0]));
    assert!(again.err.contains("0 new records"), "{}", again.err);
    std::fs::write(bench.path("text.sqlite"), "no records").expect("a file");
    for (wrong, part) in [("nothing.sqlite", "there is no records file yet"), ("text.sqlite", "no SQLite database")] {
        let other = bench.text("other.sqlite");
        let ran = bench.run(&format!("records merge {} {wrong} --records {other}", files[0]));
        ran.ends(1);
        assert!(ran.err.contains(part) && !bench.path("other.sqlite").exists(), "{}", ran.err);
    }
    bench.run("tune --cases cases.csv --part 5/4 --device emu").ends(2);
    let part = bench.run("tune --cases cases.csv --part 4/4 --device emu --budget 1 --json");
    part.ends(0);
    assert_eq!(part.objects().len(), 1);
}

pub fn pinned_keys_stay() {
    let bench = Bench::new();
    let ran =
        bench.run("tune gemm --m 96 --n 96 --k 64 --plan A_MIC2__C_UNR8_ICE2 --budget 4 --device emu --json --search random");
    ran.ends(0);
    let plan = ran.objects()[0]["plan"].as_str().expect("a plan").to_string();
    for part in ["A_MIC2_", "C_UNR8_", "_ICE2_"] {
        assert!(plan.contains(part), "{plan}");
    }
}

pub fn geometry_strings_and_verify() {
    let bench = Bench::new();
    let ran = bench.run("verify --problem tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32 --device emu --json");
    ran.ends(0);
    assert_eq!(ran.objects()[0]["verified"], true);
    let ran = bench
        .run("verify gemm --m 30 --n 20 --k 10 --dtype bf16 --batch 3 --stride-b 0 --trans tt --alpha 2 --beta -1 --device emu");
    ran.ends(0);
    ran.says(&["right: largest error"]);
}

pub fn complex_products_take_complex_factors() {
    let bench = Bench::new();
    let product = "gemm --m 30 --n 20 --k 10 --dtype complex64 --trans cn --alpha -0.5 --alpha-im 2 --beta-im -1.5";
    for plan in ["", " --plan B_WOS1__C_ICE2_SKS1"] {
        let ran = bench.run(&format!("verify {product}{plan} --device emu --json"));
        ran.ends(0);
        let o = &ran.objects()[0];
        assert!(o["problem"].as_str().is_some_and(|p| p.ends_with("_complex64_conja_alphaim_betaim")), "{o}");
        assert_eq!(o["verified"], true);
    }
    let ran = bench.run(&format!("emit {product} --arch sm_90a"));
    ran.says(&["alpha = alpha", "alpha_im = alpha_im", "beta_im = beta_im", "tw_scale_c", "(alpha * B)", "(beta * C)"]);
    // Told by its text alone, the problem is verified with imaginary parts as well.
    let text = "tC0_tA0_tB0_colMaj0_m9_n8_k7_lda7_ldb8_ldc8_ws0_complex128_betaim";
    let ran = bench.run(&format!("verify --problem {text} --device emu"));
    ran.ends(0);
    ran.says(&["right: largest error"]);
    let ran = bench.run(&format!("explain --problem {text} --device emu"));
    ran.says(&["a kernel ahead leaves in C"]);
}

pub fn large_problems_are_verified_reduced_on_the_emulator() {
    let bench = Bench::new();
    let ran = bench.run("verify gemm --m 4101 --n 4096 --k 4096 --device emu --json");
    ran.ends(0);
    let o = &ran.objects()[0];
    assert_eq!(o["verified"], true);
    assert!(o["verified_on"].as_str().is_some_and(|p| p.starts_with("tC0_") && !p.contains("m4101")), "{o}");
}

pub fn bench_times_several_cases_and_ends_with_their_mean() {
    let bench = Bench::new();
    std::fs::write(bench.path("cases.csv"), "m,n,k,trans_a,trans_b,order\n32,16,64,0,1,col\n16,16,16,1,0,col\n").expect("a file");
    let ran = bench.run(&format!("bench --cases {} --device emu", bench.text("cases.csv")));
    ran.ends(0);
    ran.says(&["gemm 32x16x64", "gemm 16x16x16", "picked", "geometric mean over 2 cases"]);
}

pub fn emitted_sources_look_like_their_language() {
    let bench = Bench::new();
    for (target, arch, parts) in [
        ("cuda", "sm_90a", &["extern \"C\" __global__", "__launch_bounds__", "blockIdx.x"][..]),
        ("hip", "gfx942", &["extern \"C\" __global__", "amdgpu_flat_work_group_size", "__builtin_amdgcn_workgroup_id_x"][..]),
        ("opencl", "gfx900", &["__kernel", "reqd_work_group_size", "get_group_id(0)"][..]),
    ] {
        let line = format!("emit gemm --m 100 --n 60 --k 500 --plan A_WOS1__C_ICE2_SKS1 --target {target} --arch {arch}");
        let ran = bench.run(&line);
        ran.ends(0);
        ran.says(parts);
        ran.says(&[
            "// Problem   tC0_tA0_tB0_colMaj0_m100_n60_k500",
            "// Plan      A_",
            "workspace  ",
            "  1. ",
            "  3. ",
            "alpha = alpha",
        ]);
        assert_eq!(ran.out.matches('{').count(), ran.out.matches('}').count(), "{target}");
        assert_eq!(ran.out, bench.run(&line).out, "{target}: twice the same");
    }
    // What is printed is what is planned for, be it an architecture in OpenCL C or the device that is named.
    bench.run("emit gemm --m 4096 --n 4096 --k 4096 --target opencl").ends(0);
    bench.run("emit gemm --m 4096 --n 4096 --k 4096 --target hip --device emu:gfx90a").says(&["// Planned   for gfx90a"]);
    bench.run("emit gemm --m 4096 --n 4096 --k 4096 --target cuda --device emu:gfx90a").says(&["// Planned   for sm_90a"]);
    let ran = bench.run("emit gemm --m 4096 --n 4096 --k 4096 --target opencl --device opencl:0");
    if !ran.misses_a_tool() {
        ran.ends(0);
        ran.says(&["// Planned   for generic", "__kernel"]);
        // Without a device or an architecture named, OpenCL C is for the device at hand.
        assert_eq!(bench.run("emit gemm --m 4096 --n 4096 --k 4096 --target opencl").out, ran.out);
    }
    let out = bench.text("folder/kernel.cu");
    bench.run(&format!("emit conv --n 2 --c 4 --k 8 --size 8 --filter 3 --pad 1 --target cuda --out {out}")).ends(0);
    assert!(std::fs::read_to_string(out).expect("the file").contains("A (input)"));
}

pub fn epilogues_on_every_command() {
    let bench = Bench::new();
    let problem = "gemm --m 70 --n 48 --k 40 --dtype bf16 --out-dtype f32 --bias m --activation gelu-tanh --residual";
    for device in ["emu:gfx900", "emu:gfx942", "emu:sm_80", "emu:sm_90a"] {
        let ran = bench.run(&format!("verify {problem} --beta 0.5 --device {device}"));
        ran.ends(0);
        ran.says(&["gemm 70x48x40 bf16 nn row to f32, bias m, gelutanh, residual", "right:"]);
    }
    let formula = "gelutanh(alpha * sum_k A[g,m,k] * B[g,k,n] + bias[m] + beta * C[g,m,n]) + residual[g,m,n]";
    bench.run(&format!("explain {problem} --device emu:sm_90a")).says(&[formula, "C in f32"]);
    for target in ["cuda", "hip", "opencl"] {
        let ran = bench.run(&format!("emit {problem} --target {target}"));
        ran.ends(0);
        assert!(ran.out.starts_with("// Plan picked by the cost model, not measured\n"), "{}", ran.out);
        ran.says(&[formula, "bias = bias, residual = residual", "bias       70 x f32, along m"]);
    }
    let scaled = "gemm --m 70 --n 48 --k 40 --dtype e4m3 --out-dtype bf16 --scales m,n";
    bench.run(&format!("verify {scaled} --beta 0.5 --device emu:sm_90a")).ends(0);
    let ran = bench.run(&format!("emit {scaled} --target cuda"));
    ran.says(&["scale[n] * scale[m] * alpha * sum_k", "scale_m    70 x f32; aligned to", "scale_n    48 x f32; aligned to"]);
    let unscaled = bench.run("verify gemm --m 9 --n 9 --k 9 --dtype i8 --out-dtype i32 --scales n --device emu:sm_80");
    assert!(unscaled.code != Some(0) && unscaled.err.contains("scales = n: i32 results"), "{}", unscaled.err);
    let centred = "gemm --m 70 --n 48 --k 40 --dtype u8 --b-dtype i8";
    for zeros in ["a", "m,b", "n,a --out-dtype bf16 --scales n --beta 0.5"] {
        bench.run(&format!("verify {centred} --zero-points {zeros} --device emu:sm_80")).ends(0);
    }
    let ran = bench.run(&format!("emit {centred} --zero-points m,b --target cuda"));
    ran.says(&[
        "sum_k",
        "- zero_b * sums[g,m] - zero_a[m] * (sums[g,n] - 40 * zero_b)",
        "zero_a     70 x i32",
        "zero_b     1 x i32",
    ]);
    let explained = bench.run(&format!("explain {centred} --zero-points m --device emu:sm_80"));
    explained.says(&["take zero points, times sums of the other factor over k", "zero points m"]);
    for (wrong, why) in [("--zero-points a,m", "zero points of A are given twice"), ("--zero-points k", "none of a, b, m, n")] {
        let ran = bench.run(&format!("verify {centred} {wrong} --device emu:sm_80"));
        assert!(ran.code == Some(2) && ran.err.contains(why), "{}", ran.err);
    }
    let floats = bench.run("verify gemm --m 9 --n 9 --k 9 --dtype f16 --zero-points b --device emu:sm_80");
    assert!(
        floats.code == Some(2) && floats.err.contains("zero_points = b: 8-bit integers have zero points, and A is f16"),
        "{}",
        floats.err
    );
    let conv =
        "conv --n 2 --c 8 --k 12 --size 9x8 --filter 3 --pad 1 --dtype f16 --out-dtype f32 --bias --activation silu --residual";
    for device in ["emu:gfx942", "emu:sm_90a"] {
        bench.run(&format!("verify {conv} --device {device}")).ends(0);
    }
    let ran = bench.run("verify gemm --m 9 --n 9 --k 9 --plan C_ICE2_SKS0 --activation relu --atomics --device emu:gfx900");
    ran.ends(1);
    assert!(
        ran.err.contains("relu is applied to the whole sum, and a split has only a part") && ran.err.contains("use SKS1 or ICE1"),
        "{}",
        ran.err
    );
}

pub fn explain_in_words_numbers_and_pictures() {
    let bench = Bench::new();
    let svg = bench.text("plan.svg");
    let ran =
        bench.run(&format!("explain gemm --m 1000 --n 900 --k 800 --plan A_MIC8__C_GAL3_UNR16 --device emu:gfx900 --svg {svg}"));
    ran.ends(0);
    ran.says(&[
        "A_MIC8",
        "C_GAL3",
        "C_UNR16",
        "macro tile",
        "work-groups",
        "shared memory",
        "registers",
        "modelled time",
        "figures: ",
    ]);
    let text = std::fs::read_to_string(&svg).expect("the figures");
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    for part in ["gemm 1000x900x800", "The main loop in time", "Numbers are work-groups", "A: m ", "each thread owns 8 × "] {
        assert!(text.contains(part), "{part}");
    }
    for (value, words) in [(0, "sum:k:a: two passes"), (1, "sum:k:a: in the main loop")] {
        let plan = format!("A_MIC4__B_MIC4__C_MAC64_UNR8_RDK{value}");
        bench
            .run(&format!("explain gemm --m 96 --n 64 --k 32 --reduce sum:k:a --plan {plan} --device emu:sm_90a"))
            .says(&[words]);
    }
    // Tails are of persistent work-groups, so the key has no effect alone.
    bench
        .run("explain gemm --m 256 --n 256 --k 256 --dtype bf16 --device emu:sm_90a --plan C_TSP4_PST0")
        .says(&["keys of --plan given, the others picked; without effect here: C_TSP4"]);
    let json = bench.run("explain gemm --m 100 --n 90 --k 80 --device emu --json");
    json.ends(0);
    let o: &Value = &json.objects()[0];
    assert_eq!(o["keys"].as_array().map(Vec::len), Some(tilewright_gen::plan::Key::all().count()));
    assert!(o["footprint"]["shared_bytes"].is_number() && o["model"]["total_us"].is_number());
}

/// Warpgroups with roles that take turns: who does what, and no word of keys that say nothing to them.
pub fn explain_tells_a_matrix_units_roles_and_fragments() {
    let bench = Bench::new();
    let keys = "A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_UNR64_MAC256_LWV4_PST132_PNG1_BUF4_CST1";
    let line = format!("explain gemm --m 2048 --n 2048 --k 512 --dtype bf16 --plan {keys} --device emu:sm_90a");
    let ran = bench.run(&line);
    ran.ends(0);
    ran.says(&[
        "warps 0-7 (threads 0-255)",
        "2 warpgroups take turns (ping-pong)",
        "thread 256 (warp 8) issues the TMA copies of A and B",
        "rows 0-15, 64-79; columns 0-127",
        "rows 1, 9, 65, 73; columns 2-3, 10-11, 18-19",
        "A tiles: 4 of 16384 bytes from byte 0",
        "full [4]: full after an arrival of the thread that copies and the 32768 bytes of its TMA copies",
        "128 x 128 per warpgroup",
        "132 of 384 threads for 256 pieces of work",
    ]);
    for inert in ["A_PLU", "B_MIW", "C_EDG", "C_STP", "C_BIM", "C_WVA", "per thread, 256"] {
        assert!(!ran.out.contains(&format!("  {inert}")), "{inert}: {}", ran.out);
    }
    let conv = "explain conv --n 2 --c 8 --k 12 --size 9x8 --filter 3 --pad 1 --layout nhwc --device emu";
    bench.run(conv).says(&["tensors in NHWC: m = output pixels", "n = output channels, k = 3 x 3 taps x 8 input channels"]);
    let objects = bench.run(&format!("{line} --json")).objects();
    let structure = &objects[0]["structure"];
    assert_eq!(structure["roles"][1]["waves"], serde_json::json!([8, 11]));
    assert_eq!(structure["waves"].as_array().map(Vec::len), Some(4), "the warps of a warpgroup");
    assert_eq!(structure["lanes"][1]["rows"], serde_json::json!([[1, 1], [9, 9], [65, 65], [73, 73]]));
}

pub fn devices_are_listed_with_what_is_missing() {
    let bench = Bench::new();
    let ran = bench.run("devices");
    ran.ends(0);
    ran.says(&["emu", "modelled"]);
    let objects = bench.run("devices --json").objects();
    assert!(objects.iter().any(|o| o["device"] == "emu" && o["time_kind"] == "modelled"));
    for o in objects {
        assert!(o["device"].is_string() || o["missing"].as_str().is_some_and(|m| m.len() > 20), "{o}");
    }
}

pub fn records_travel() {
    let bench = Bench::new();
    bench.run("tune gemm --m 32 --n 32 --k 32 --budget 3 --device emu").ends(0);
    let file = bench.text("records.jsonl");
    bench.run(&format!("records export --out {file}")).ends(0);
    let again = bench.run(&format!("records export --out {file}"));
    again.ends(1);
    assert!(again.err.contains("name another file"), "{}", again.err);
    let other = bench.text("other.sqlite");
    let ran = bench.run(&format!("records import {file} --records {other}"));
    ran.ends(0);
    assert!(ran.err.contains("3 new records"), "{}", ran.err);
    let shown = bench.run(&format!("records show --records {other}"));
    let shown = shown.ends(0);
    assert_eq!(shown.lines().count(), 5, "{shown}");
    assert!(shown.lines().nth(1).is_some_and(|line| line.starts_with("  state    verified  time")), "{shown}");
    let unsure = bench.run(&format!("records clear --records {other}"));
    unsure.ends(2);
    assert!(unsure.err.contains("would remove 3 records"), "{}", unsure.err);
    bench.run(&format!("records clear --yes --records {other}")).ends(0);
    assert_eq!(bench.run(&format!("records show --records {other}")).ends(0), "");
}

/// A row with a time that nobody measured is tried like any other plan: it is verified and timed first.
pub fn a_forged_record_does_not_win() {
    let bench = Bench::new();
    let line = "tune gemm --m 64 --n 48 --k 32 --device emu --json";
    let found = &bench.run(&format!("{line} --budget 20")).objects()[0];
    let (plan, honest) = (found["plan"].as_str().expect("a plan"), found["time_us"].as_f64().expect("a time"));
    bench.run("records export --out lines.jsonl").ends(0);
    let lines = std::fs::read_to_string(bench.path("lines.jsonl")).expect("lines");
    // The slowest plan, with a time of its own.
    let rows = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let slower = rows.filter(|row| row["trial"]["time_us"].as_f64() > Some(honest));
    let mut forged =
        slower.max_by(|x, y| x["trial"]["time_us"].as_f64().partial_cmp(&y["trial"]["time_us"].as_f64()).expect("times"));
    let forged = forged.as_mut().expect("a slower plan");
    forged["trial"]["time_us"] = 0.01.into();
    forged["trial"]["verified"] = "thorough".into();
    forged["verified_by"] = tilewright_tune::records::VERIFIER.into();
    std::fs::write(bench.path("forged.jsonl"), format!("{forged}\n")).expect("a file");
    bench.run("records import forged.jsonl --records other.sqlite").ends(0);
    let again = &bench.run(&format!("{line} --budget 20 --records other.sqlite")).objects()[0];
    assert!(again["time_us"].as_f64().is_some_and(|us| us > 0.5 * honest) && again["resumed"] == 0, "{again} beside {plan}");
    // A line that is no record is left out where that is asked for.
    std::fs::write(bench.path("mixed.jsonl"), format!("{forged}\n{{}}\n")).expect("a file");
    bench.run("records import mixed.jsonl --records third.sqlite").ends(1);
    let ran = bench.run("records import mixed.jsonl --skip-bad --records third.sqlite");
    ran.ends(0);
    assert!(ran.err.contains("1 new records") && ran.err.contains("1 line was left out: mixed.jsonl, line 2: "), "{}", ran.err);
}

/// Records of a tensor without elements are records like others; a row that is not understood is counted and nothing else.
pub fn records_of_empty_reductions_and_of_strange_rows() {
    let bench = Bench::new();
    bench.run("tune gemm --m 16 --n 16 --k 16 --budget 5 --device emu").ends(0);
    bench.run("tune reduce --shape 3x0x4 --over 1 --op max --device emu --budget 3").ends(0);
    bench.run("tune reduce --shape 0x5 --over 1 --op sum --device emu --budget 3").ends(0);
    assert_eq!(bench.run("records list --json").objects().len(), 3);
    bench.run("records export --out all.jsonl").ends(0);
    bench.run("records import all.jsonl --records other.sqlite").ends(0);
    bench.run("records merge other.sqlite --records third.sqlite").ends(0);
    assert!(!bench.path("all.jsonl.rejected").exists());
    bench.run("records clear --problem reduce --yes").ends(0);
    assert_eq!(bench.run("records list --json").objects().len(), 1);
    let strange = rusqlite::Connection::open(bench.path("third.sqlite")).expect("a file");
    strange.execute("UPDATE problems SET key = replace(key, '\"g\":', '\"q\":') WHERE name LIKE 'tC%'", []).expect("a change");
    drop(strange);
    let ran = bench.run("records list --json --records third.sqlite");
    ran.ends(0);
    assert_eq!(ran.objects().len(), 2);
    assert!(ran.err.contains("5 rows were not understood and are left as they are: first tC0"), "{}", ran.err);
    let ran = bench.run("records export --out some.jsonl --records third.sqlite");
    ran.ends(0);
    assert!(ran.err.contains("what was not understood is in some.jsonl.rejected"), "{}", ran.err);
    let rejected = std::fs::read_to_string(bench.path("some.jsonl.rejected")).expect("a file");
    assert_eq!(rejected.lines().count(), 5);
    // What was rejected before is in the way before anything is written.
    std::fs::remove_file(bench.path("some.jsonl")).expect("a file");
    let ran = bench.run("records export --out some.jsonl --records third.sqlite");
    ran.ends(1);
    assert!(ran.err.contains("some.jsonl.rejected: cannot be written") && ran.err.contains("name another file"), "{}", ran.err);
    assert!(!bench.path("some.jsonl").exists());
    std::fs::remove_file(bench.path("some.jsonl.rejected")).expect("a file");
    bench.run("records export --out some.jsonl --records third.sqlite").ends(0);
    bench.run("records clear --yes --records third.sqlite").ends(0);
    assert!(bench.run("records show --records third.sqlite").err.contains("5 rows were not understood"));
}

pub fn help_teaches_with_examples() {
    let bench = Bench::new();
    let ran = bench.run("--help");
    ran.ends(0);
    ran.says(&["Examples:", "tune gemm --m 1024", "devices"]);
    for word in ["tune", "bench", "verify", "emit", "explain"] {
        let ran = bench.run(&format!("{word} --help"));
        ran.ends(0);
        ran.says(&["Examples:", "gemm", "conv", "--device", "--problem", "--cases"]);
        let ran = bench.run(&format!("{word} gemm --help"));
        ran.says(&[
            "--m <SIZE>",
            "--trans",
            "Examples",
            "tilewright tune gemm",
            "Matrix product:",
            "Plan:",
            "Device and records:",
        ]);
        assert!(!["--problem <", "--cases <", "--set <"].iter().any(|refused| ran.out.contains(refused)), "{}", ran.out);
        let at = |text: &str| ran.out.find(text).expect(text);
        assert!(
            at("--m <SIZE>") < at("--plan <") && at("--plan <") < at("--device <"),
            "what the problem is stands first\n{}",
            ran.out
        );
        bench.run(&format!("{word} conv --help")).says(&["Examples", "tilewright tune conv", "Convolution:"]);
    }
    let short = bench.run("");
    short.ends(2);
    assert!(short.err.contains("Usage"), "{}", short.err);
}

/// On a processor with OpenCL and CLBlast; elsewhere the refusal is looked at.
pub fn a_comparison_with_a_library_is_told_recorded_and_drawn() {
    let bench = Bench::new();
    std::fs::write(bench.path("cases.csv"), "set,m,n,k\none,64,48,32\ntwo,100,50,70\n").expect("a file");
    let page = bench.text("page.html");
    let line = format!("bench --cases {} --device opencl:0 --against clblast --measure 100ms", bench.text("cases.csv"));
    let ran = bench.run(&format!("{line} --html {page} --json"));
    if ran.code != Some(0) {
        assert!(ran.err.contains("is not available"), "{}", ran.err);
        return common::missing::skipped(&ran.err);
    }
    let objects = ran.objects();
    assert_eq!(objects.len(), 2);
    let text = std::fs::read_to_string(page).expect("the page");
    for (o, set) in objects.iter().zip(["one", "two"]) {
        reference::agrees("bench --against", o);
        assert_eq!(o["set"], set);
        assert!(text.contains(o["case"].as_str().expect("a name")));
        let sides = o["sides"].as_array().expect("sides");
        assert_eq!((sides.len(), &sides[0]["name"], &sides[1]["name"]), (2, &"tilewright".into(), &"clblast".into()));
        for side in sides {
            assert!(side["correct"] == true && side["time"]["median_us"].as_f64().is_some_and(|us| us > 0.0), "{side}");
        }
        assert!(o["roof"]["tflops"].as_f64().is_some_and(|t| t > 0.0));
    }
    // Times of a busy machine scatter: a set without a steady pair has no mean, and the summary says so.
    let ran = bench.run(&line);
    ran.says(&["tilewright", "clblast"]);
    assert!(ran.out.contains("geometric mean") || ran.out.contains("not fit to publish"), "{}", ran.out);
}

pub fn steps_are_printed_where_wanted() {
    let bench = Bench::new();
    let line = "tune gemm --m 16 --n 16 --k 16 --budget 2 --device emu";
    assert_eq!(bench.run(line).err, "");
    let told = bench.run(&format!("{line} -v")).err;
    assert!(told.contains("INFO") && told.contains("device emu: tilewright emulator") && !told.contains("DEBUG"), "{told}");
    let told = bench.run("verify gemm --m 16 --n 16 --k 16 --device emu -vv").err;
    assert!(told.contains("the plan is recorded: A_") && told.contains("are ready after"), "{told}");
    let traced = bench.command(line).env("TILEWRIGHT_LOG", "trace").output().expect("it starts").stderr;
    assert!(String::from_utf8_lossy(&traced).contains("DEBUG"));
}

pub fn options_before_the_problem_mean_the_same_as_after_it() {
    let bench = Bench::new();
    let problem = "gemm --m 64 --n 64 --k 64";
    // The architecture says which language it is.
    let ran = bench.run(&format!("emit --arch gfx942 {problem}"));
    ran.ends(0);
    ran.says(&["// Planned   for gfx942", "__attribute__((global))"]);
    assert_eq!(bench.run(&format!("emit {problem} --arch gfx942 --target hip")).out, ran.out);
    bench.run(&format!("emit --arch sm_120a {problem}")).says(&["// Planned   for sm_120a", "__global__"]);
    // The only thing wrong here is the library that is not there, or the device.
    let ran = bench.run(&format!("bench --against cublaslt {problem} --html page.html --device emu"));
    ran.ends(2);
    assert!(ran.err.contains("choose cuda:0 or opencl:0"), "{}", ran.err);
    bench.run(&format!("verify {problem} --alpha -1.5e-3 --beta -1e-3 --device emu")).ends(0);
}

pub fn the_cache_of_binaries_is_listed_and_cleared() {
    let bench = Bench::new();
    let folder = bench.text("cache");
    assert_eq!(bench.run("cache path").ends(0).trim(), folder);
    bench.run("cache list").says(&["0 binaries, 0 bytes of at most 2 GiB"]);
    let entry = bench.path("cache").join("ab");
    std::fs::create_dir_all(&entry).expect("a folder");
    std::fs::write(entry.join("0".repeat(62)), [0; 3000]).expect("a file");
    std::fs::write(entry.join(".tmpkilled"), "half").expect("a file");
    std::fs::write(bench.path("cache").join("mine"), "dear").expect("a file");
    let o = &bench.run("cache list --json").objects()[0];
    assert_eq!((&o["binaries"], &o["bytes"]), (&1.into(), &3000.into()));
    let ran = bench.run("cache clear");
    ran.ends(0);
    assert!(ran.err.contains("1 binaries removed"), "{}", ran.err);
    assert!(entry.read_dir().expect("the folder").next().is_none() && bench.path("cache").join("mine").exists());
}

pub fn shells_are_given_completions() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish"] {
        let ran = bench.run(&format!("completions {shell}"));
        ran.ends(0);
        ran.says(&["tilewright", "tune", "activation"]);
    }
}

/// The file that README and docs name.
pub fn the_sample_of_a_case_file_runs() {
    let bench = Bench::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benchmarks/cases/cases.csv");
    let ran = bench.run(&format!("bench --cases {file} --set small --device emu"));
    ran.ends(0);
    ran.says(&["geometric mean over 3 cases"]);
}

/// Python's `explain` gives the library's text: the command says the same.
pub fn explain_is_the_text_of_the_library() {
    let bench = Bench::new();
    let ran = bench.run("explain gemm --m 100 --n 90 --k 80 --device emu");
    let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
    let operation = Context::with(options).unwrap().gemm(Gemm::new(Scalar::F32, 100, 90, 80).order(Order::Row)).unwrap();
    let (plan, origin) = operation.choice().unwrap();
    assert_eq!(ran.ends(0).trim_end(), operation.explanation(&plan).unwrap().text(origin.name()).trim_end());
}

/// `--ieee` refuses the plans and results whose NaN and infinities are not those of IEEE 754, and leaves others.
pub fn ieee_leaves_out_plans_that_break_it() {
    let bench = Bench::new();
    let conv = "conv --n 2 --c 32 --k 32 --groups 4 --size 7x7 --filter 3x3 --pad 1 --layout nhwc --dtype f16 --device emu:sm_80";
    bench.run(&format!("verify {conv} --plan C_BIM2")).ends(0);
    let refused = bench.run(&format!("verify {conv} --plan C_BIM2 --ieee"));
    refused.ends(1);
    assert!(refused.err.contains("differ from IEEE 754; use BIM0, BIM1 or BIM4"), "{}", refused.err);
    bench.run(&format!("verify {conv} --ieee")).ends(0);
    let gemm = "gemm --m 64 --n 64 --k 64 --device emu:sm_90a --ieee";
    let refused = bench.run(&format!("tune {gemm} --dtype e4m3 --out-dtype e4m3 --budget 2"));
    refused.ends(1);
    assert!(refused.err.contains("store results in f16, bf16 or f32"), "{}", refused.err);
    bench.run(&format!("tune {gemm} --dtype e4m3 --out-dtype f16 --budget 2")).ends(0);
    // On f32 units nothing is split.
    bench.run(&format!("verify {gemm} --dtype tf32x3 --plan C_UNI0")).ends(0);
}

/// Helps fit on a screen, begin with examples and name each option and type once.
pub fn helps_are_short_and_begin_with_examples() {
    let bench = Bench::new();
    for command in ["tune", "bench", "verify", "emit", "explain", "inspect", "bundle"] {
        for word in ["gemm", "glu", "conv", "reduce"] {
            let (short, long) = (bench.run(&format!("{command} {word} -h")), bench.run(&format!("{command} {word} --help")));
            let (short, long) = (short.ends(0), long.ends(0));
            assert!(short.lines().count() <= 80, "{command} {word} -h: {} lines", short.lines().count());
            assert!(long.lines().count() <= 220, "{command} {word} --help: {} lines", long.lines().count());
            assert!(short.find("Examples") < short.find("Options:") && short.contains("Examples"), "{short}");
            for once in ["Element types (--dtype):", "bfloat16, accumulated", "--dtype <"] {
                assert_eq!(long.matches(once).count(), 1, "{once}: {long}");
            }
        }
    }
    for command in ["", "tune", "records", "records import"] {
        assert!(bench.run(&format!("{command} -h")).ends(0).lines().count() <= 80, "{command}");
    }
    nothing_is_listed_twice(&bench);
    // Files of examples are in the repository.
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut named = 0;
    for command in ["", "tune", "bench", "bundle"] {
        let ran = bench.run(&format!("{command} --help"));
        for file in ran.ends(0).split_whitespace().filter(|word| word.contains('/') && word.ends_with(".csv")) {
            assert!(root.join(file).is_file(), "{command}: {file}");
            named += 1;
        }
    }
    assert!(named >= 4, "{named}");
}

/// No help of any command defines an option twice, and its list of element types has each name once.
fn nothing_is_listed_twice(bench: &Bench) {
    let option = regex::Regex::new(r"^ {2,6}(?:-(\w)(?:, +|\b))?(?:--([a-z0-9-]+))?").expect("a pattern");
    let mut commands = vec![String::new()];
    let (mut at, mut lists) = (0, 0);
    while let Some(command) = commands.get(at).cloned() {
        at += 1;
        let ran = bench.run(&format!("{command} --help"));
        let help = ran.ends(0);
        // The lines of examples, before the usage, may break at an option.
        let (_, defined) = help.split_once("\nUsage: ").expect("a usage");
        let mut options: Vec<&str> = defined
            .lines()
            .filter(|line| line.trim_start().starts_with('-'))
            .filter_map(|line| option.captures(line))
            .flat_map(|found| [found.get(1), found.get(2)].into_iter().flatten().map(|name| name.as_str()))
            .collect();
        assert!(options.contains(&"help") && options.contains(&"quiet"), "{command}: {options:?}");
        assert_eq!(twice(&mut options), [""; 0], "{command}: options are defined twice");
        if let Some((_, types)) = help.split_once("Element types (--dtype):\n") {
            let lines = types.lines().take_while(|line| line.starts_with("  "));
            let mut names: Vec<&str> =
                lines.filter_map(|line| line.trim().split("  ").next()).flat_map(|all| all.split(", ")).collect();
            assert!(names.contains(&"bf16") && names.contains(&"float32"), "{command}: {names:?}");
            assert_eq!(twice(&mut names), [""; 0], "{command}: element types are named twice");
            lists += 1;
        }
        let below = help.split_once("\nCommands:\n").map_or("", |(_, list)| list.split("\n\n").next().unwrap_or_default());
        let names = below.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        commands.extend(names.map(|name| format!("{command} {name}")));
    }
    assert!(commands.len() > 40 && lists >= 28, "{lists}: {commands:?}");
}

/// The words that occur twice, in order.
fn twice<'a>(words: &mut [&'a str]) -> Vec<&'a str> {
    words.sort_unstable();
    words.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
}

/// The names that users of numpy and torch have for types and functions.
pub fn types_and_functions_have_their_users_names() {
    let bench = Bench::new();
    let key = |options: &str| {
        let ran = bench.run(&format!("emit gemm --m 8 --n 8 --k 8 --arch sm_80 {options}"));
        ran.ends(0).split_whitespace().find(|word| word.starts_with("tC0_")).expect("a geometry").to_string()
    };
    for (one, same) in [
        ("--dtype f32", "--dtype float32"),
        ("--dtype f16", "--dtype half"),
        ("--dtype f16 --out-dtype f32", "--dtype fp16 --out-dtype float"),
        ("--dtype bf16", "--dtype bfloat16"),
        ("--dtype f64", "--dtype double"),
        ("--dtype i8 --b-dtype u8", "--dtype int8 --b-dtype uint8"),
        ("--dtype complex64", "--dtype cfloat"),
        ("--activation gelutanh", "--activation gelu-tanh"),
        ("--dtype tf32x3", "--dtype 3xtf32"),
        ("--activation gelutanh", "--activation gelu_tanh"),
        ("--activation hardswish", "--activation hard-swish"),
    ] {
        assert_eq!(key(one), key(same), "{same}");
    }
    let ran = bench.run("tune gemm -m 8 -n 8 -k 8");
    ran.ends(2);
    assert!(ran.err.contains("write it with two dashes: --m"), "{}", ran.err);
    bench
        .run("tune reduce --shape 3x4x4 --over 0,2 --op max --device emu --budget 1")
        .says(&["reduce 3x4x4 over 0,2, f32, max on"]);
    let ran = bench.run("tune reduce --shape 3x4x4 --over 0,2 --op prod --device emu --budget 1");
    assert!(ran.err.matches("the operators are").count() == 1 && ran.err.contains("`prod` is no operator"), "{}", ran.err);
}

/// Several sizes are several problems, with a table at the end, or as lines with commas.
pub fn ranges_of_sizes_and_tables() {
    let bench = Bench::new();
    let line = "gemm --m 16:48:16 --n 16 --k 8:16:8 --device emu";
    let ran = bench.run(&format!("tune {line} --budget 3"));
    let out = ran.ends(0);
    let head = out.lines().position(|line| line.starts_with("problem  ")).expect("a table");
    let rows: Vec<&str> = out.lines().skip(head + 1).take(6).collect();
    assert!(rows[0].starts_with("gemm 16x16x8 f32 nn row") && rows[5].starts_with("gemm 48x16x16 f32 nn row"), "{out}");
    assert!(rows.iter().all(|row| row.contains("modelled  3         yes")), "{out}");
    assert!(out.trim_end().lines().last().expect("a line").starts_with("geometric mean over 6 cases: "), "{out}");
    assert!(out.lines().take(6).all(|line| line.contains(" verified, 3 trials")), "{out}");
    for command in ["bench", "tune --budget 3"] {
        let ran = bench.run(&format!("{command} {line} --csv"));
        let mut reader = csv::Reader::from_reader(ran.ends(0).as_bytes());
        let at = reader.headers().expect("names").iter().position(|name| name == "time_us").expect("a column");
        let times = reader.records().map(|row| row.expect("a row")[at].parse::<f64>().expect("a time"));
        assert_eq!(times.filter(|us| *us > 0.0).count(), 6, "{command}");
    }
    // A time is shared: each problem gets its first picks.
    let ran = bench.run(&format!("tune {line} --budget 20ms --records shared.sqlite --json"));
    ran.ends(0);
    assert!(ran.objects().len() == 6 && ran.objects().iter().all(|o| o["verified"] == true && o["trials"].as_u64() > Some(0)));
    let ran = bench.run(&format!("tune {line} --total 1ms --records none.sqlite"));
    ran.ends(1);
    assert!(ran.err.contains("was not reached") && ran.err.contains("of 6 cases failed"), "{}", ran.err);
    bench.run(&format!("tune {line} --total 9s --budget 9s")).ends(2);
    let ran = bench.run("verify gemm --m 1:1000:1 --n 1:1000:1 --k 8");
    ran.ends(2);
    assert!(ran.err.contains("more than 10000 problems"), "{}", ran.err);
    let ran = bench.run("tune gemm --m 8:4:1 --n 8 --k 8");
    assert!(ran.err.contains("1024:4096:1024 for from, to, step"), "{}", ran.err);
}
