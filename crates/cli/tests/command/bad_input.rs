//! Bad input: each named, with a remedy, with its exit code (2 for wrong use, 1 for a job that cannot be done).

use crate::common;
use common::Bench;

pub fn every_refusal_names_the_input_and_the_remedy() {
    let bench = Bench::new();
    let file = |name: &str, text: &str| {
        std::fs::write(bench.path(name), text).expect("a file");
        bench.text(name)
    };
    let foreign = file("foreign.sqlite", "this is no records file, it is a text that somebody holds dear");
    let short = file("short.csv", "m,n,k,trans_a,trans_b,order\n32,16,64,0,1,col\n32,x,64,0,1,col\n");
    let good = file("good.csv", "m,n,k\n8,8,8\n");
    let mixed = file("mixed.csv", "set,dtype,m,n,k,reduce\nmine,f32,8,8,8,\nother,i8,8,8,8,max:n\n");
    let column = file("column.csv", "m,n,q\n1,2,3\n");
    let empty = file("empty.csv", "");
    let lines = file("lines.jsonl", "{\"no\": \"record\"}\n");
    let small = "--m 8 --n 8 --k 8";
    let table: Vec<(String, i32, &str)> = vec![
        // Sizes.
        ("tune gemm --m 0 --n 8 --k 8".into(), 2, "at least 1"),
        ("tune gemm --m -5 --n 8 --k 8".into(), 2, "must not be negative"),
        ("tune gemm --m 8 --n 8".into(), 2, "--k"),
        ("tune gemm --m 99999999999999999999 --n 8 --k 8".into(), 2, "too large"),
        ("tune gemm --m 4000000000 --n 4000000000 --k 4000000000".into(), 2, "64-bit address space"),
        (format!("tune gemm {small} --lda 3"), 2, "needs at least 8"),
        ("tune reduce --shape 4x0 --over 1 --op argmax".into(), 2, "no element to name; leave argmax out"),
        ("explain reduce --shape 6x0 --over 1 --op sum --device emu".into(), 2, "an axis of size 0 leaves no element to read"),
        (format!("tune gemm {small} --batch 2 --stride-c 1"), 2, "batch entries of C overlap"),
        (format!("tune gemm {small} --groups 2 --batch 2"), 2, "--batch"),
        (format!("tune gemm {small} --ragged k"), 2, "--groups"),
        (format!("tune gemm {small} --groups 2 --ragged q"), 2, "[possible values: m, n, k]"),
        (format!("tune gemm {small} --groups 2 --stride-c 64"), 2, "the rows of all groups lie in one matrix"),
        (format!("tune gemm {small} --groups 2 --ragged k --stride-b 64"), 2, "the terms of all groups lie in one matrix"),
        (format!("verify gemm {small} --groups 2 --ragged k --device emu --plan C_UNR4_UFO1_EDG1"), 1, "use UFO0"),
        (format!("verify gemm {small} --groups 2 --ragged k --device emu --plan A_WOS1__C_EDG1"), 1, "use WOS0"),
        (format!("tune gemm {small} --groups 2 --dynamic n"), 2, "a grouped product with n known only at launch"),
        (format!("tune gemm {small} --groups 2 --reduce max:n"), 2, "reduce it in a second call"),
        (format!("verify gemm {small} --groups 2 --device emu --plan C_ICE2_SKS1_EDG1"), 1, "use ICE1, or SKS2 with PST0"),
        (format!("verify gemm {small} --groups 2 --device emu --plan A_WOS1__C_EDG1"), 1, "use WOS0"),
        (format!("verify gemm {small} --groups 2 --device emu --plan C_EDG0"), 1, "EDG0"),
        (
            format!("tune gemm {small} --dtype f33"),
            2,
            "possible values: f32, f64, f16, bf16, tf32, tf32x3, bf16x3, bf16x6, e4m3, e5m2,",
        ),
        (format!("tune gemm {small} --dtype f64 --b-dtype i8"), 2, "i4 and u4 with f16, bf16 or f32"),
        (format!("tune gemm {small} --dtype i4"), 2, "4-bit integers are weights beside f16, bf16 or f32"),
        (
            "tune gemm --m 4 --n 5 --k 6 --dtype bf16 --b-dtype i4".to_string(),
            2,
            "share a byte along n: it must be even; pad with zeros",
        ),
        (format!("tune gemm {small} --dtype tf32 --b-dtype i8"), 2, "multiplied in f32 itself"),
        (
            format!(
                "verify gemm {small} --dtype bf16 --b-dtype i8 --device emu:sm_80 --plan A_ACP0__B_ACP1__C_SWP0_PFG1_BUF2_UNI0"
            ),
            1,
            "cannot convert i8 to bf16, because it bypasses registers; use ACP0",
        ),
        (
            format!("verify gemm {small} --dtype bf16 --b-dtype i8 --device emu:sm_80 --plan A_ACP0__B_ACP1__C_SWP0_PFG1_BUF2"),
            1,
            "both operands must be contiguous along k; operand B is not; use B_ACP0, or GLW of an operand that is contiguous along k",
        ),
        (format!("tune gemm {small} --trans nx"), 2, "n (as it is), t (transposed), c (conjugate transpose)"),
        (format!("tune gemm {small} --trans ntn"), 2, "must be two letters, of A and of B"),
        (format!("tune gemm {small} --trans cn"), 2, "give the dtype complex64 or complex128"),
        (format!("tune gemm {small} --dtype complex64 --b-dtype f16"), 2, "leave it out"),
        (format!("tune gemm {small} --dtype complex64 --out-dtype f16"), 2, "results of complex products have the factors' type"),
        (format!("tune gemm {small} --dtype complex128 --bias n"), 2, "add it as a residual"),
        (format!("tune gemm {small} --dtype complex64 --activation relu"), 2, "apply it to the stored result"),
        (format!("tune gemm {small} --dtype complex64 --reduce max:n"), 2, "reduce the stored result's real and imaginary parts"),
        (format!("tune gemm {small} --dtype complex64 --dynamic m"), 2, "make an operation for each size"),
        (format!("tune gemm {small} --dtype complex64 --groups 2"), 2, "make a product of each group"),
        ("tune conv --n 1 --c 2 --k 2 --size 8 --filter 3 --dtype complex64".into(), 2, "real and imaginary parts separately"),
        ("tune reduce --shape 4x4 --over 1 --op sum --dtype complex128".into(), 2, "of matrix products"),
        (
            format!(
                "verify gemm {small} --dtype complex64 --device emu --plan A_MIC4_PAD0_ACP1__B_ACP1_WOS0__C_SWP0_PFG1_BUF2_EDG1"
            ),
            1,
            "use ACP0, or WOS1",
        ),
        ("tune --problem tC0_tA0_tB0_colMaj1_m5_n5_k5_lda5_ldb5_ldc5_ws0_f64_conja".into(), 2, "give a complex dtype"),
        (
            "tune --problem tC0_tA0_tB0_colMaj1_m5_n5_k5_lda5_ldb5_ldc5_ws0_f64_alphaim".into(),
            2,
            "alpha and beta of a product of type f64 are real",
        ),
        (format!("verify gemm {small} --alpha-im 2"), 2, "--alpha-im: alpha and beta of a product of type f32 are real"),
        (
            format!("emit gemm {small} --dtype bf16 --beta-im -0.5"),
            2,
            "--beta-im: alpha and beta of a product of type bf16 are real",
        ),
        (format!("verify gemm {small} --dtype complex64 --beta-im inf"), 2, "finite"),
        (format!("tune gemm {small} --alpha inf"), 2, "finite"),
        (format!("tune gemm {small} --beta x"), 2, "write 1, -0.5 or 2e-3"),
        (format!("verify gemm {small} --seed x"), 2, "no whole number"),
        (format!("tune gemm {small} --device emu --out {good}"), 2, "name another"),
        ("tune conv --n 1 --c 4 --k 4 --size 4x4 --filter 9x9".into(), 2, "filter"),
        ("tune conv --n 1 --c 4 --k 6 --size 4x4 --filter 3 --groups 4".into(), 2, "groups"),
        ("tune conv --n 1 --c 4 --k 6 --size 4y4 --filter 3".into(), 2, "sizes are joined by x, e.g. 3x3"),
        // Which problem.
        ("tune".into(), 2, "no problem is given"),
        ("tune gem".into(), 2, "gemm"),
        ("tune --problem x gemm --m 8 --n 8 --k 8".into(), 2, "given twice"),
        (format!("tune gemm {small} --problem x"), 2, "--problem"),
        (format!("tune --set llm gemm {small}"), 2, "--cases"),
        ("tune --problem tC0_tA0_tB0_colMaj1_m5".into(), 2, "missing"),
        ("tune --problem tC0_tA0_tB0_colMaj1_m5_m6_n5_k5_lda5_ldb5_ldc5_ws0_f32".into(), 2, "twice"),
        ("tune --problem tC0_tA0_tB0_colMaj1_m5_n5_k5_lda4_ldb5_ldc5_ws0_f32".into(), 2, "lda = 4"),
        (format!("tune --cases {} --device emu", bench.text("absent.csv")), 2, "absent.csv"),
        (format!("tune --cases {short} --device emu"), 2, "line 3"),
        (format!("tune --cases {column} --device emu"), 2, "column.csv"),
        (format!("tune --cases {empty} --device emu"), 2, "empty.csv"),
        (format!("tune --cases {good} --set nothing"), 2, "its sets are good"),
        (format!("tune --cases {mixed} --set other --device emu"), 1, "1 of 1 cases failed"),
        (format!("emit --cases {mixed} --set other"), 2, "a product of integers is not supported"),
        ("tune --set llm".into(), 2, "--cases"),
        // Comparisons.
        (format!("bench gemm {small} --against mkl"), 2, "cublaslt"),
        (format!("bench gemm {small} --against cublaslt --device emu"), 2, "choose cuda:0 or opencl:0"),
        (format!("bench gemm {small} --against cublaslt --beta 1"), 2, "beta = 0, not alpha = 1, beta = 1"),
        (format!("bench gemm {small} --dtype complex64 --against cublas --alpha-im 2"), 2, "alpha_im = 2"),
        (format!("bench gemm {small} --html page.html --device emu"), 2, "--against"),
        (format!("bench gemm {small} --against cublas --measure 30"), 2, "write 500ms"),
        // Plans.
        (format!("tune gemm {small} --budget -5s"), 2, "must be longer than 0"),
        (format!("emit gemm {small} --target hip --arch sm_90a"), 2, "not a target of HIP: take --target cuda"),
        (format!("tune gemm {small} --plan A_FOO3"), 2, "no such key; its keys are MIC"),
        (format!("tune gemm {small} --plan A_MIK3"), 2, "did you mean MIC?"),
        (format!("tune gemm {small} --plan A_MIC3_MIC4"), 2, "given twice"),
        (format!("tune gemm {small} --plan A_MIC999"), 2, "must be 1 to 64"),
        (format!("tune gemm {small} --plan A_UNR8"), 2, "key of part C"),
        (format!("tune gemm {small} --plan C_GAL4"), 2, "must be 1 to 3"),
        (
            format!("verify gemm {small} --plan C_MAC7_SKW12 --device emu"),
            1,
            "move SKW toward 10; the nearest plan that fits is A_",
        ),
        (format!("tune gemm {small} --plan C_MAC7_SKW12 --device emu"), 1, "no legal plan was found for tC0_"),
        (
            "explain gemm --m 512 --n 512 --k 100 --dtype bf16 --device emu:sm_80 --plan A_ACP4__C_UNI1_UNR64_PFG1_BUF2".into(),
            1,
            "A_ACP4: UNR64 does not divide k = 100; use another ACP; the nearest plan that fits is A_",
        ),
        (
            format!(
                "verify gemm {small} --device emu --plan A_MIC8_PAD0_PLU0_LIW0_MIW0_WOS0_VEW4__B_MIC8_PAD0_PLU0_LIW0_MIW0_WOS0_VEW4__\
                 C_UNR16_GAL1_PUN0_ICE1_IWI0_SZT0_MAD0_NAW64_UFO0_MAC256_SKW10_AFI0_MIA0"
            ),
            1,
            "the nearest plan that fits is A_",
        ),
        // Devices.
        (format!("tune gemm {small} --device toaster"), 2, "`toaster` is not a device"),
        (format!("tune gemm {small} --device emu:sm_1"), 2, "sm_1"),
        (format!("tune gemm {small} --device opencl:999"), 1, "opencl:999"),
        (format!("emit gemm {small} --target cuda --arch gfx942"), 2, "--target hip"),
        (format!("emit gemm {small} --target cuda --arch sm_7"), 2, "there are sm_75"),
        // Options.
        (format!("tune gemm {small} --budget 0"), 2, "at least 1"),
        (format!("tune gemm {small} --budget soon"), 2, "30s"),
        (format!("tune gemm {small} --workspace lots"), 2, "256M"),
        (format!("tune gemm {small} --search everywhere"), 2, "descent"),
        (format!("tune gemm {small} --cache hot"), 2, "write cold or warm"),
        // Before anything is measured, so before the device is asked for a library.
        (
            format!("bench --device emu --against cublas --html /proc/none/page.html gemm {small}"),
            2,
            "--html /proc/none/page.html",
        ),
        (format!("tune gemm {small} --frobnicate"), 2, "--frobnicate"),
        // Records.
        (format!("tune gemm {small} --device emu --records {foreign}"), 1, "not a tilewright records file"),
        (format!("records list --records {}", bench.text("none.sqlite")), 1, "there is no records file yet"),
        (format!("records import {lines}"), 1, "lines.jsonl, line 1"),
        (format!("records import {}", bench.text("none.jsonl")), 2, "none.jsonl"),
    ];
    for (line, code, part) in &table {
        let ran = bench.run(line);
        assert_eq!(ran.code, Some(*code), "{line}\n{}{}", ran.out, ran.err);
        assert!(ran.err.contains(part), "{line}: `{part}` is not in\n{}", ran.err);
        assert!(!ran.err.contains("panicked"), "{line}\n{}", ran.err);
        // What the command line's parser says has its usage below; other errors are one line.
        assert!(ran.err.contains("--help") || ran.err.lines().count() <= 2, "{line}\n{}", ran.err);
    }
    let kept = std::fs::read_to_string(&foreign).expect("the foreign file");
    assert_eq!(kept, "this is no records file, it is a text that somebody holds dear", "nothing is lost");
}

/// Whatever is handed over: a message of bearable length, and log lines that a file can hold.
pub fn messages_stay_short_and_plain() {
    let bench = Bench::new();
    let (digits, text) = ("9".repeat(100_000), "x".repeat(100_000));
    for line in [
        format!("verify gemm --m {digits} --n 8 --k 8 --device emu"),
        format!("verify gemm --m 8 --n 8 --k 8 --device {text}"),
        format!("verify gemm --m 8 --n 8 --k 8 --device emu --plan A_{text}"),
        format!("tune --problem {text}"),
        text,
    ] {
        let ran = bench.run(&line);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
        assert!((20..3000).contains(&ran.err.len()), "{} bytes: {:.300}", ran.err.len(), ran.err);
    }
    let logged = bench.run("-vv verify gemm --m 8 --n 8 --k 8 --device emu");
    logged.ends(0);
    assert!(logged.err.contains("the plan is picked") && !logged.err.contains('\u{1b}'), "{:?}", logged.err);
}

pub fn a_failed_case_does_not_stop_the_others() {
    let bench = Bench::new();
    std::fs::write(bench.path("cases.csv"), "m,n,k,trans_a,trans_b,order\n32,32,32,0,0,col\n2,2,2,0,0,col\n32,32,16,0,0,col\n")
        .expect("a file");
    // Pulled-back tiles of 16 x 16 do not fit a 2 x 2 result.
    let plan = "A_MIC2__B_MIC2__C_MAC64_SKW10_EDG0";
    let ran = bench.run(&format!("tune --cases {} --plan {plan} --budget 2 --device emu --json", bench.text("cases.csv")));
    ran.ends(1);
    assert!(ran.err.contains("1 of 3 cases failed"), "{}", ran.err);
    let verified: Vec<bool> = ran.objects().iter().map(|o| o["verified"] == true).collect();
    assert_eq!(verified, [true, false, true]);
    assert!(ran.objects()[1]["error"].as_str().is_some_and(|e| !e.is_empty()));
}

#[cfg(unix)]
pub fn a_closed_pipe_is_no_failure() {
    let bench = Bench::new();
    let mut child = bench
        .command("emit gemm --m 64 --n 64 --k 64 --target cuda")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(0));
    bench.run("tune gemm --m 16 --n 16 --k 16 --budget 4 --device emu").ends(0);
    let mut export = bench.command("records export").stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    drop(export.stdout.take());
    assert_eq!(export.wait().expect("it ends").code(), Some(0));
}
