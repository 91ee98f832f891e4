//! Comparisons with vendor libraries: NVIDIA's against stand-ins that compute on host memory (`stub/`, compiled here), CLBlast itself
//! under OpenCL. The stand-in of the driver launches nothing, so that our side is wrong there, which is tested as well. A library's first
//! call of a kernel under a hold makes the row fail: each call must have run once before, unheld.

use crate::missing;
use missing::missing;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Folder with the stand-ins; `None` without a C compiler.
fn stubs() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stub");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stub");
        std::fs::create_dir_all(&folder).unwrap();
        for (file, library) in
            [("driver", "libcuda.so"), ("cublas", "libcublas.so"), ("cublaslt", "libcublasLt.so"), ("cudnn", "libcudnn.so")]
        {
            let mut cc = Command::new("cc");
            cc.args(["-std=c11", "-O1", "-D_POSIX_C_SOURCE=200809L", "-shared", "-fPIC", "-o"]).arg(folder.join(library));
            cc.arg(source.join(file).with_extension("c"));
            if file != "driver" {
                cc.arg(folder.join("libcuda.so"));
            }
            let built = match cc.output() {
                Ok(output) => output,
                Err(e) => {
                    missing(&format!("cc: {e}"));
                    return None;
                }
            };
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        Some(folder)
    };
    FOLDER.get_or_init(build).as_deref()
}

/// Runs the command with the stand-ins in place of NVIDIA's libraries, or without them; its records, `None` where something is missing.
fn bench(stubs: Option<&Path>, environment: &[(&str, &str)], args: &[&str]) -> Option<(Output, Vec<Value>)> {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("records.jsonl");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tilewright-bench"));
    command.args(args).args(["--pick", "--measure", "20ms", "--out"]).arg(&json).envs(environment.iter().copied());
    if let Some(stubs) = stubs {
        command.env("LD_LIBRARY_PATH", stubs).env_remove("TILEWRIGHT_CUDA_LIBS");
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let records = std::fs::read_to_string(&json).unwrap_or_default();
    // A tool is missing only where nothing ran: after a first record the same words are a fault.
    if records.is_empty() && (errors.contains("is not available") || errors.contains("was not found")) {
        missing(errors.trim());
        return None;
    }
    let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!records.is_empty(), "{errors}");
    Some((output, records))
}

/// A file of cases.
fn cases(folder: &Path, text: &str) -> String {
    let file = folder.join("cases.csv");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

fn side<'a>(record: &'a Value, name: &str) -> &'a Value {
    record["sides"].as_array().unwrap().iter().find(|s| s["name"] == name).unwrap()
}

/// A side that was right and measured.
fn is_right(record: &Value, name: &str) {
    let side = side(record, name);
    assert!(side["correct"] == true && side["failure"].is_null() && side["time"]["median_us"].as_f64() > Some(0.0), "{record}");
}

const PRODUCTS: &str = "set,dtype,trans_a,trans_b,batch,m,n,k\n";

/// Records of convolutions beside cuDNN's stand-in.
fn convolutions(environment: &[(&str, &str)], keys: &[String]) -> Option<Vec<Value>> {
    let problems = keys.iter().flat_map(|key| ["--problem", key.as_str()]);
    let args: Vec<&str> = ["conv"].into_iter().chain(problems).collect();
    bench(Some(stubs()?), environment, &args).map(|(_, records)| records)
}

#[test]
fn cublas_computes_every_kind_of_product() {
    let Some(stubs) = stubs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rows = "s,f32,0,1,1,33,17,29\ns,f32,1,0,3,16,17,20\ns,f64,1,1,1,20,24,28\ns,f64,0,0,2,8,9,10\ns,bf16,0,1,1,64,48,512\n\
                s,f16,1,0,2,33,18,512\n";
    let cases = cases(folder.path(), &format!("{PRODUCTS}{rows}"));
    let Some((output, records)) = bench(Some(stubs), &[], &["gemm", "--cases", &cases, "--against", "cublas"]) else { return };
    assert_eq!(records.len(), 6);
    for record in &records {
        is_right(record, "cublas");
        assert_eq!(side(record, "cublas")["version"], "13.1.0");
        // Kernels that do nothing are no winners.
        assert_eq!(side(record, "tilewright")["correct"], false, "{record}");
        assert_eq!(record["cache"], "cold");
        assert!(record["environment"]["source"].as_str().unwrap().contains("content "));
    }
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn cublas_computes_grouped_products_by_a_loop_and_by_one_call() {
    let Some(stubs) = stubs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let rows = "bf16,0,0,row,5,100,16,64\nf16,1,1,row,3,40,24,32\nf32,0,1,col,4,50,17,29\n";
    let cases = cases(folder.path(), &format!("dtype,trans_a,trans_b,order,groups,m,n,k\n{rows}"));
    // Groups of columns, and of terms.
    let columns = "tC0_tA0_tB1_colMaj0_m24_n90_k32_lda32_ldb32_ldc90_ws1000_f32_b4_sa768_sb0_sc0_groupn";
    let terms = "tC0_tA1_tB0_colMaj0_m24_n20_k90_lda24_ldb20_ldc20_ws1000_f32_b4_sa0_sb0_sc480_groupk";
    for which in [["--cases", &cases], ["--problem", columns], ["--problem", terms]] {
        let args = [&["gemm"], &which[..], &["--plain", "--against", "cublas,cublas-grouped,cublaslt"]].concat();
        let Some((_, records)) = bench(Some(stubs), &[], &args) else { return };
        assert_eq!(records.len(), if which[0] == "--cases" { 3 } else { 1 });
        for record in &records {
            is_right(record, "cublas");
            is_right(record, "cublas-grouped");
            assert!(side(record, "cublas")["note"].as_str().unwrap().ends_with(" calls, one for each group"), "{record}");
            let groups =
                |name: &str| side(record, name)["note"].as_str().unwrap().split(' ').find_map(|word| word.parse::<u64>().ok());
            assert_eq!(groups("cublas"), groups("cublas-grouped"));
            // The dense product of all rows, by us and by a library without groups.
            let dense = side(record, "tilewright plain");
            assert!(dense["note"].as_str().is_some_and(|note| note.starts_with("of tC0") && !note.contains("group")), "{dense}");
        }
        let key = records[0]["problem"].as_str().unwrap();
        assert!(which[0] == "--cases" || which[1].ends_with(&key[key.len() - 5..]), "{key}");
    }
}

#[test]
fn small_weights_are_compared_with_the_product_of_the_dequantised_matrix() {
    let Some(stubs) = stubs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cases = cases(folder.path(), "dtype,b_dtype,trans_b,m,n,k,scales\nbf16,i8,1,16,48,512,n1x128\n");
    let args = ["gemm", "--cases", &cases, "--against", "cublas"];
    let Some((_, records)) = bench(Some(stubs), &[], &args) else { return };
    let refused = side(&records[0], "cublas")["failure"].as_str().unwrap();
    assert!(refused.contains("--plain compares with bf16"), "{refused}");
    let Some((_, records)) = bench(Some(stubs), &[], &[&args[..], &["--plain"]].concat()) else { return };
    is_right(&records[0], "cublas plain");
    let note = side(&records[0], "cublas plain")["note"].as_str().unwrap();
    assert!(note.starts_with("of tC0") && note.ends_with("_bf16"), "{note}");
    // Weights and their scales are counted as they lie in memory.
    let bytes = 2 * 16 * 512 + 48 * 512 + 2 * 16 * 48 + 4 * 48 * 4;
    assert_eq!(records[0]["bytes"].as_f64(), Some(f64::from(bytes)));
}

#[test]
fn the_fastest_right_algorithm_of_cublaslt_is_kept() {
    let Some(stubs) = stubs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cases = cases(folder.path(), &format!("{PRODUCTS}s,bf16,0,1,1,64,48,512\ns,f16,1,0,2,33,18,512\n"));
    let args = ["gemm", "--cases", &cases, "--cache", "warm", "--against", "cublaslt,cublaslt-1g"];
    let Some((_, records)) = bench(Some(stubs), &[], &args) else { return };
    assert_eq!(records.len(), 2);
    for record in &records {
        assert_eq!(record["cache"], "warm");
        // Of what is offered without partial results in 16 bits the first drops the end of k; the next needs more workspace.
        is_right(record, "cublaslt");
        let note = side(record, "cublaslt")["note"].as_str().unwrap();
        assert_eq!(note, "heuristic result 2 of 3, 1 faster but wrong");
        assert_eq!(side(record, "cublaslt")["workspace"]["limit"], 128 << 20);
        is_right(record, "cublaslt-1g");
        let large = side(record, "cublaslt-1g");
        assert_eq!(large["workspace"]["limit"], 1 << 30);
        let note = large["note"].as_str().unwrap();
        assert!(note.contains("result 2 of 4, split-k 2, reduction: accumulator type"), "{note}");
        assert_eq!(large["workspace"]["used"], 200 << 20);
        assert!(large["max_error"].as_f64().is_some());
    }
    // Where none of the first eight is right, more are asked for.
    let Some((_, records)) = bench(Some(stubs), &[("STUB_LATE", "1")], &args) else { return };
    for record in &records {
        is_right(record, "cublaslt");
        assert!(side(record, "cublaslt")["note"].as_str().unwrap().starts_with("heuristic result 9 of 9"), "{record}");
    }
}

#[test]
fn cudnn_pays_for_no_padding_that_no_window_reads() {
    let key = |rest: &str| format!("conv_fwd_nchw_{rest}_ws1000_f32");
    // A zero behind that no window reads; groups with dilation and a bias; a pixel that no window reads.
    let keys = [
        key("n2_g1_c3_k4_in9x7_fil3x3_st2x2_dil1x1_pb0x0_pe1x1_bias1"),
        key("n2_g2_c4_k6_in8x8_fil3x3_st1x1_dil2x2_pb2x2_pe2x2_bias1"),
        key("n1_g1_c3_k4_in9x9_fil3x3_st2x2_dil1x1_pb1x1_pe0x0_bias0"),
    ];
    let Some(records) = convolutions(&[], &keys) else { return };
    assert_eq!(records.len(), 3);
    for record in &records {
        is_right(record, "cudnn");
        let cudnn = side(record, "cudnn");
        let note = cudnn["note"].as_str().unwrap();
        // Of the convolution calls one is faster and wrong; so is an engine of the graph interface, whose engine 3 is the fastest right way.
        assert!(
            note.starts_with("graph, engine 3 k0=3 k1=7 (heuristic a), of ") && note.contains("2 faster but wrong"),
            "{cudnn}"
        );
        assert_eq!(cudnn["workspace"]["limit"], 1 << 30);
        assert_eq!(side(record, "tilewright")["workspace"]["limit"], 1000);
    }
}

#[test]
fn a_way_that_takes_seconds_is_timed_no_further() {
    let Some(stubs) = stubs() else { return };
    let key = "conv_fwd_nchw_n1_g1_c4_k6_in8x8_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1000_f32";
    // The wrong algorithm is the slow one: where it has no samples, it is not passed over as a faster one.
    for (environment, passed_over) in [(&[][..], "2 faster but wrong"), (&[("STUB_SLOW_WAY", "1")], "1 faster but wrong")] {
        let Some((_, records)) = bench(Some(stubs), environment, &["conv", "--problem", key]) else { return };
        is_right(&records[0], "cudnn");
        let note = side(&records[0], "cudnn")["note"].as_str().unwrap();
        assert!(note.contains(passed_over), "{note}");
    }
}

#[test]
fn cudnn_computes_both_gradients() {
    let mut keys = Vec::new();
    for direction in ["bwdd", "bwdw"] {
        let key = |rest: &str| format!("conv_{direction}_nchw_{rest}_bias0_ws1000_f32");
        keys.push(key("n2_g1_c3_k4_in9x7_fil3x3_st2x2_dil1x1_pb1x1_pe1x1"));
        keys.push(key("n2_g2_c4_k6_in8x8_fil3x3_st1x1_dil2x2_pb2x2_pe2x2"));
    }
    // A pixel that no window reads: the filter's gradient does without it, the input's is zero there.
    keys.push("conv_bwdw_nchw_n1_g1_c3_k4_in9x9_fil3x3_st2x2_dil1x1_pb1x1_pe0x0_bias0_ws1000_f32".into());
    keys.push("conv_bwdd_nchw_n1_g1_c3_k4_in8x8_fil3x3_st2x2_dil1x1_pb1x0_pe0x1_bias0_ws1000_f32".into());
    let Some(records) = convolutions(&[], &keys) else { return };
    assert_eq!(records.len(), 6);
    for record in &records[..5] {
        is_right(record, "cudnn");
        let note = side(record, "cudnn")["note"].as_str().unwrap();
        assert!(note.starts_with("graph, engine 3 k0=3 k1=7") && note.contains("2 faster but wrong"), "{note}");
    }
    // Unlike padding at both ends: no call, but a graph.
    is_right(&records[5], "cudnn");
    // Without engines that compute exactly the calls are left.
    let Some(records) = convolutions(&[("STUB_TENSOR_CORES", "1")], &keys) else { return };
    for record in &records[..5] {
        is_right(record, "cudnn");
        let note = side(record, "cudnn")["note"].as_str().unwrap();
        assert!(note.starts_with("algorithm 0") && note.contains("1 faster but wrong"), "{note}");
    }
}

/// Every direction in one, two and three dimensions and in both layouts. Types and numbers of groups alternate.
fn every_kind_of_convolution() -> Vec<String> {
    let mut keys = Vec::new();
    for (l, layout) in ["nchw", "nhwc"].into_iter().enumerate() {
        for (n, direction) in ["fwd", "bwdd", "bwdw"].into_iter().enumerate() {
            for (d, sizes) in [
                "in17_fil3_st2_dil1_pb1_pe1",
                "in9x7_fil3x3_st1x1_dil2x1_pb2x1_pe2x1",
                "in5x4x6_fil3x2x3_st2x1x1_dil1x1x1_pb1x0x1_pe1x0x1",
            ]
            .into_iter()
            .enumerate()
            {
                let dtype = ["bf16", "f16", "f64"][(l + n + d) % 3];
                let channels = ["g1_c3_k4", "g2_c4_k6"][(l + d) % 2];
                keys.push(format!("conv_{direction}_{layout}_n2_{channels}_{sizes}_bias0_ws1000_{dtype}"));
            }
        }
    }
    keys
}

#[test]
fn cudnn_computes_every_type_layout_and_number_of_dimensions() {
    let keys = every_kind_of_convolution();
    let Some(records) = convolutions(&[], &keys) else { return };
    assert_eq!(records.len(), 18);
    for record in &records {
        is_right(record, "cudnn");
        let note = side(record, "cudnn")["note"].as_str().unwrap();
        // Tensor cores are allowed: that engine is the fastest.
        assert!(note.starts_with("graph, engine 0 k0=3 k1=7 (heuristic b), of "), "{record}");
    }
    // The convolution calls alone.
    let Some(records) = convolutions(&[("STUB_NO_GRAPH", "1")], &keys) else { return };
    for record in &records {
        is_right(record, "cudnn");
        let note = side(record, "cudnn")["note"].as_str().unwrap();
        assert!(!note.starts_with("graph") && note.ends_with(", of 2, 1 faster but wrong"), "{record}");
    }
}

#[test]
fn the_time_of_a_call_holds_no_host_time() {
    let Some(stubs) = stubs() else { return };
    let key = "conv_fwd_nchw_n2_g2_c4_k6_in8x8_fil3x3_st1x1_dil2x2_pb2x2_pe2x2_bias0_ws1000_f32";
    let args = ["conv", "--problem", key];
    // An idle device's clock runs on with the host's; a library's call keeps the host for 1 ms.
    for environment in [&[("STUB_HOST_TIME", "1")][..], &[("STUB_HOST_TIME", "1"), ("STUB_SLEEP", "1")]] {
        let Some((_, records)) = bench(Some(stubs), environment, &args) else { return };
        is_right(&records[0], "cudnn");
        let cudnn = side(&records[0], "cudnn");
        // What engine 3 spends, and the 1 us of the stand-in's event.
        let us = |name: &str| cudnn["time"][name].as_f64().unwrap();
        assert!((us("median_us") - 16.0).abs() < 0.5 && us("p90_us") < 17.0 && cudnn["wide"] == false, "{cudnn}");
    }
}

#[test]
fn a_hold_that_runs_out_of_time_makes_a_failed_row() {
    let Some(stubs) = stubs() else { return };
    let key = "conv_fwd_nchw_n2_g2_c4_k6_in8x8_fil3x3_st1x1_dil2x2_pb2x2_pe2x2_bias0_ws1000_f32";
    let Some((output, records)) = bench(Some(stubs), &[("STUB_EXPIRED", "1")], &["conv", "--problem", key]) else { return };
    let cudnn = side(&records[0], "cudnn");
    assert!(cudnn["time"].is_null() && cudnn["failure"].as_str().unwrap().contains("within 2 s"), "{cudnn}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn plans_under_several_constraints_are_compared() {
    let Some(stubs) = stubs() else { return };
    let key = "conv_bwdw_nhwc_n2_g1_c64_k64_in9x9_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1000_bf16";
    let args = ["conv", "--problem", key, "--no-cudnn", "--plan", "C_LWV4", "--also", "C_LWV0"];
    let Some((_, records)) = bench(Some(stubs), &[], &args) else { return };
    let plan = |name: &str| side(&records[0], name)["plan"].as_str().unwrap().to_string();
    assert!(plan("C_LWV4").contains("_LWV4") && !plan("C_LWV0").contains("_LWV"), "{}", records[0]);
    assert_eq!(records[0]["sides"].as_array().unwrap().len(), 2);
}

#[test]
fn unlike_padding_on_both_sides_goes_through_cudnns_graph() {
    let key = |rest: &str| format!("conv_fwd_nchw_{rest}_ws1000_f32");
    // More in front, as much is read behind as there is; less in front, with groups, dilation and a bias; two zeros behind of which one
    // is read.
    let keys = [
        key("n2_g1_c8_k8_in17x19_fil5x3_st1x1_dil1x1_pb2x2_pe1x1_bias0"),
        key("n2_g2_c4_k6_in9x8_fil3x3_st1x1_dil2x2_pb1x0_pe2x3_bias1"),
        key("n1_g1_c3_k4_in8x8_fil3x3_st2x2_dil1x1_pb0x0_pe2x2_bias0"),
    ];
    let Some(records) = convolutions(&[], &keys) else { return };
    assert_eq!(records.len(), 3);
    for record in &records {
        is_right(record, "cudnn");
        let cudnn = side(record, "cudnn");
        // The engine with tensor cores is faster, but not in f32; another one is wrong, and offered twice; a third needs 2 GiB.
        assert_eq!(cudnn["note"], "graph, engine 3 k0=3 k1=7 (heuristic a), of 3, 1 faster but wrong");
        assert_eq!((&cudnn["workspace"]["limit"], &cudnn["workspace"]["used"]), (&(1 << 30).into(), &4096.into()));
    }
    let Some(records) = convolutions(&[("STUB_TENSOR_CORES", "1")], &keys) else { return };
    for record in &records {
        let refused = side(record, "cudnn")["failure"].as_str().unwrap();
        let why = "of 1 engine configurations 1 compute less exactly than f32, 0 need more than 1024 MiB of workspace, 0 fail";
        assert!(refused.contains("unlike padding on both sides") && refused.ends_with(why), "{refused}");
    }
}

#[test]
fn clblast_and_kernels_of_ours_agree_under_opencl() {
    let folder = tempfile::tempdir().unwrap();
    let cases = cases(folder.path(), &format!("{PRODUCTS}s,f32,0,1,1,64,48,40\ns,f32,1,0,2,32,32,16\n"));
    for cache in ["cold", "warm"] {
        let args = ["gemm", "--device", "opencl:0", "--cases", &cases, "--cache", cache, "--against", "clblast"];
        let Some((output, records)) = bench(None, &[], &args) else { return };
        assert_eq!(records.len(), 2);
        for record in &records {
            is_right(record, "tilewright");
            is_right(record, "clblast");
            assert_eq!(record["cache"], cache);
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_plan_of_opencl_runs_through_cuda_as_well() {
    let Some(stubs) = stubs() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cases = cases(folder.path(), &format!("{PRODUCTS}s,f32,0,1,1,64,48,40\n"));
    // A processor takes larger tiles than a GPU has registers for.
    let args = ["opencl-vs-cuda", "--cases", &cases, "--other", "opencl:0", "--plan", "A_MIC4__B_MIC4"];
    let Some((_, records)) = bench(Some(stubs), &[], &args) else { return };
    assert_eq!(records.len(), 1);
    is_right(&records[0], "opencl:0");
    // Nothing was refused: the stand-in of the driver launches nothing, and that is all that is wrong.
    let cuda = side(&records[0], "cuda:0");
    assert!(cuda["failure"].as_str().is_some_and(|why| why.contains("NaN")), "{cuda}");
}
