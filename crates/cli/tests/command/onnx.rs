//! `tune --onnx`: a model's problems are tuned, recorded and reported, of models made here and of two from Python packages (`scripts/onnx-check` tunes
//! all of them); files that are no models are refused by name.

use crate::common;
use crate::small_model;
use common::Bench;
use small_model::model;

pub fn a_model_is_tuned_and_reported() {
    let bench = Bench::new();
    std::fs::write(bench.path("small.onnx"), model()).expect("a file");
    let ran = bench.run("tune --onnx small.onnx --dim batch=24 --device emu --budget 3 --json");
    ran.ends(0);
    let objects = ran.objects();
    assert_eq!(objects.len(), 1, "two equal layers are one problem");
    assert!(objects[0]["problem"].as_str().is_some_and(|p| p.contains("_m24_n16_k16_")), "{}", objects[0]);
    assert!(ran.err.contains("not tuned: <third> (LSTM)") && ran.err.contains("report: small.html"), "{}", ran.err);
    let page = std::fs::read_to_string(bench.path("small.html")).expect("the page");
    let [plan, readable] = ["plan", "readable"].map(|name| objects[0][name].as_str().expect("a plan"));
    for part in [
        "&lt;first&gt;, &lt;second&gt;",
        "2 x, ",
        "24x16x16 f32",
        readable,
        plan,
        "100.0 %",
        "modelled",
        "LSTM",
        "2 layers, 1 different",
        "<th class=\"num\">rate</th>",
        "FLOP/s</td>",
        "aria-label=\"roofline\"",
    ] {
        assert!(page.contains(part), "the page does not say `{part}`:\n{page}");
    }
    assert!(!page.contains("<first>"), "names are not escaped");
    // The floor of 24x16x16 f32: its multiply-adds or its bytes at the device's rates, and the time in floors.
    let device = tilewright::Context::open("emu").expect("the emulator").info().target.clone();
    let (multiply_adds, bytes) = (f64::from(24 * 16 * 16), f64::from(4 * (24 * 16 + 16 * 16 + 24 * 16)));
    let rates = [device.rates.f32_fma * f64::from(device.units) * device.rates.clock_ghz, device.rates.dram_gbs];
    let floor = (multiply_adds / rates[0] * 1e-3).max(bytes / rates[1] * 1e-3);
    let times = objects[0]["time_us"].as_f64().expect("a time") / floor;
    let cells = format!("<td class=\"num\">{floor:.3} us</td><td class=\"num\">{times:.2}</td><td class=\"num\">100.0 %</td>");
    assert!(floor < 1.0 && page.contains(&cells), "{cells}\n{page}");
    assert!(page.contains("<th class=\"num\">floor</th>") && page.contains(&format!(", {times:.2} times their floor")), "{page}");
    // It was recorded, as any problem.
    bench.run("records list").says(&["_m24_n16_k16_", "3 trials"]);

    std::fs::write(bench.path("cut.onnx"), &model()[..100]).expect("a file");
    for (options, part) in [
        ("--onnx small.onnx", "small.onnx: free dimensions: batch (x.0); give each a size: --dim batch=N"),
        ("--onnx small.onnx --dim depth=2", "has no dimension depth"),
        ("--onnx small.onnx --dim batch=0", "write NAME=N"),
        ("--onnx small.onnx --dim batch=2 --onnx-dtype tf32", "tf32"),
        ("--onnx cut.onnx --dim batch=2", "cut.onnx: not a sound ONNX model"),
        ("--onnx none.onnx", "none.onnx: cannot be read"),
        ("--onnx small.onnx --cases cases.csv", "given twice"),
        ("--dim batch=2 --cases cases.csv", "--onnx"),
    ] {
        let ran = bench.run(&format!("tune {options} --device emu --budget 1"));
        assert!(ran.code == Some(2) && ran.err.contains(part), "{options}: {:?} {}", ran.code, ran.err);
    }
}

/// One candidate for each problem of a model in a folder that a variable names; as many problems as it has, and each is verified.
fn tunes(variable: &str, package: &str, file: &str, dims: &str, [problems, layers]: [usize; 2]) {
    let Some(folder) = std::env::var_os(variable).filter(|folder| !folder.is_empty()) else {
        return common::missing::skipped(&format!("{file} of the Python package {package} ({variable})"));
    };
    let (bench, path) = (Bench::new(), std::path::Path::new(&folder).join(file));
    let ran = bench.run(&format!("tune --onnx {} {dims} --device emu --budget 1 --json", path.display()));
    ran.ends(0);
    let objects = ran.objects();
    let unverified: Vec<_> = objects.iter().filter(|o| o["verified"] != true).collect();
    assert!(unverified.is_empty(), "{unverified:?}");
    assert!(!ran.err.contains("not tuned"), "{}", ran.err);
    // The page has the model's name, whatever dots are in that.
    let page = std::fs::read_to_string(bench.path(&file.replace(".onnx", ".html"))).expect("the page");
    assert!(page.contains(&format!("{layers} layers, {problems} different problems")), "{page}");
    assert_eq!((objects.len(), page.contains("no verified plan")), (problems, false), "{page}");
}

/// One of the nine light models.
pub fn a_light_model_tunes() {
    tunes("TILEWRIGHT_ONNX_MODELS", "onnx", "light_squeezenet.onnx", "", [19, 27]);
}

/// One that people use, with free batch, height and width: convolutions, products and reductions.
pub fn a_model_with_free_dimensions_tunes() {
    let dims = "--dim x.0=1 --dim x.2=48 --dim x.3=32";
    tunes("TILEWRIGHT_ONNX_FREE", "rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", dims, [40, 63]);
}
