//! A source that `emit` wrote and someone changed: verified, timed and inspected as it stands, and never recorded.

use crate::common;
use common::Bench;

/// Emits a small product's source with these options and gives its text.
fn emitted(bench: &Bench, options: &str) -> Option<String> {
    let ran = bench.run(&format!("emit gemm --m 32 --n 24 --k 40 {options}"));
    if ran.misses_a_tool() {
        return None;
    }
    Some(ran.ends(0).to_string())
}

/// Writes an edited source; the edit must have changed it.
fn write(bench: &Bench, name: &str, text: &str, from: &str, to: &str) {
    assert!(text.contains(from), "`{from}` is not in\n{text}");
    std::fs::write(bench.path(name), text.replace(from, to)).expect("the source is written");
}

pub fn an_edited_opencl_source_is_verified_timed_and_not_recorded() {
    let bench = Bench::new();
    let plan = "--plan A_MIC1__B_MIC1__C_MAC64_UNR8_ICE1 --device opencl";
    let Some(text) = emitted(&bench, plan) else { return };
    write(&bench, "right.cl", &text, "tw_fma_f32(beta, before, alpha * acc[0])", "alpha * acc[0] + beta * before");
    let ran = bench.run("verify --source right.cl");
    ran.ends(0);
    ran.says(&["plan (edited)", "source right.cl", "right: largest error"]);
    let ran = bench.run("bench --source right.cl --repeats 2 --json");
    ran.ends(0);
    let objects = ran.objects();
    assert_eq!((&objects[0]["origin"], &objects[0]["source"]), (&"edited".into(), &"right.cl".into()));
    assert_eq!((&objects[0]["time_kind"], &objects[0]["verified"]), (&"measured".into(), &true.into()));
    let list = bench.run("records list");
    assert!(!list.ends(0).contains("trial"), "an edited source was recorded: {}", list.out);
    // A wrong edit is caught.
    write(&bench, "wrong.cl", &text, "alpha * acc[0]", "alpha * (acc[0] + a[0] * b[0])");
    let ran = bench.run("verify --source wrong.cl");
    ran.ends(1);
    ran.says(&["WRONG"]);
    bench.run("bench --source wrong.cl --repeats 1").ends(1);
}

pub fn what_cannot_be_used_is_refused_in_the_terms_of_the_file() {
    let bench = Bench::new();
    let plan = "--plan A_MIC1__B_MIC1__C_MAC64_UNR8_ICE1 --device opencl";
    let Some(text) = emitted(&bench, plan) else { return };
    let line = text.lines().find(|l| l.starts_with("// tilewright-source ")).expect("a line for programs");
    for (from, to, code, parts) in [
        (line, "//", 2, &["keep the head"][..]),
        ("\"version\":1", "\"version\":7", 2, &["version 7", "emit the source anew"]),
        ("\"problem\":\"tC0", "\"problem\":\"tC9", 2, &["head is damaged"]),
        ("_MAC64_", "_MAC16_", 1, &["does not fit"]),
        ("tw_contract(", "my_kernel(", 1, &["`tw_contract` is missing"]),
        ("    float alpha,\n", "", 1, &["takes 7 arguments in place of 8"]),
        ("acc[0] = 0.0f;", "acc[0] = no_such_name;", 1, &["the compiler refuses it", "no_such_name", "\n"]),
    ] {
        write(&bench, "edited.cl", &text, from, to);
        let ran = bench.run("verify --source edited.cl");
        ran.ends(code);
        for part in parts {
            assert!(ran.err.contains(part), "{from} -> {to}: `{part}` is not in {}", ran.err);
        }
    }
    // The compiler counts lines as the file does.
    let wrong = std::fs::read_to_string(bench.path("edited.cl")).expect("the source");
    let number = 1 + wrong.lines().position(|l| l.contains("no_such_name")).expect("the edit");
    let err = bench.run("verify --source edited.cl").err;
    assert!(err.contains(&format!(":{number}:")), "line {number}: {err}");
    for (line, part) in [
        ("verify --source none.cl", "none.cl"),
        ("verify --source edited.cl --device emu", "--device opencl:0"),
        ("verify --source edited.cl --plan C_UNR8", "leave out"),
        ("verify --source edited.cl gemm --m 4 --n 4 --k 4", "leave out"),
        ("bench --source edited.cl --against clblast", "bench --source"),
    ] {
        let ran = bench.run(line);
        ran.ends(2);
        assert!(ran.err.contains(part), "{line}: {}", ran.err);
    }
}

pub fn an_edited_cuda_source_is_inspected() {
    let bench = Bench::new();
    let Some(text) = emitted(&bench, "--arch sm_80 --plan A_MIC4__B_MIC4__C_UNR8_MAC64_PFG0_UNI0_SKW10_ICE1") else { return };
    let inspect = "inspect --source edited.cu --json";
    write(&bench, "edited.cu", &text, "tilewright", "tilewright");
    let plain = bench.run(inspect);
    if plain.misses_a_tool() {
        return;
    }
    plain.ends(0);
    // A loop that stays a loop has fewer instructions than the one the compiler unrolls.
    write(&bench, "edited.cu", &text, "\n    for (int ", "\n    #pragma unroll 1\n    for (int ");
    let edited = bench.run(inspect);
    edited.ends(0);
    let (plain, edited) = (plain.objects(), edited.objects());
    assert_eq!((&edited[0]["origin"], &edited[0]["inspection"]["arch"]), (&"edited".into(), &"sm_80".into()));
    let instructions = |o: &serde_json::Value| o["inspection"]["loops"][0]["instructions"].as_u64();
    assert_ne!(instructions(&plain[0]), instructions(&edited[0]));
    write(&bench, "edited.cu", &text, "\n    for (int ", "\n    no_such_name = 1;\n    for (int ");
    let ran = bench.run(inspect);
    ran.ends(1);
    assert!(ran.err.contains("the compiler refuses it") && ran.err.contains("no_such_name"), "{}", ran.err);
}
