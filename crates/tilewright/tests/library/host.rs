//! Host code against our own launches: both go to a driver that writes down what it is told, and must tell it the same.

use crate::missing;
use crate::stand_in;
use std::path::{Path, PathBuf};
use std::process::Command;
use tilewright::{
    Addresses, Along, Bundled, Constraint, Context, Conv, Direction, Dynamic, Emission, Error, Extent, Factors, GateFunction,
    Gemm, Host, HostCode, Images, Layout, Operation, Operator, Options, Order, Plan, Problem, RecordsAt, Reduce, Reduction, Role,
    Scalar, Stream, Target, ZeroPoint, bundle,
};
use tilewright_ir::{ArgKind, Dialect};

use stand_in::{here, said};

fn context(device: &str) -> Result<Context, Error> {
    Context::with(Options { device: Some(device.into()), records: RecordsAt::Memory, ..Options::default() })
}

/// Products and convolutions whose picks on an H200 use every way of launching.
fn operations(context: &Context) -> Vec<Operation> {
    let gemm = |gemm| context.gemm(gemm).expect("a product");
    let conv = |direction, stride| {
        let conv = Conv::new(Scalar::BF16, 8, 64, 64, &[28, 28], &[3, 3]).direction(direction).layout(Layout::Nhwc);
        context.conv(conv.pad(&[1, 1], &[1, 1]).stride(&[stride, stride])).expect("a convolution")
    };
    let several = |direction| {
        let conv = Conv::new(Scalar::F32, 2, 16, 16, &[14, 14], &[3, 3]).direction(direction);
        conv.pad(&[1, 1], &[1, 1]).stride(&[2, 2])
    };
    let told = |text: &str| text.parse::<Reduction>().expect("a reduction");
    let dynamic = Dynamic { m: true, ..Dynamic::NONE };
    vec![
        // Sums of splits meet in workspace, behind an early launch.
        gemm(Gemm::new(Scalar::BF16, 1024, 1024, 512).bias(Along::N).residual())
            .constrained(&Constraint::parse("C_ICE4_SKS1").expect("a constraint")),
        gemm(Gemm::new(Scalar::F32, 96, 80, 64).imaginary(true, true).residual()),
        gemm(Gemm::new(Scalar::BF16, 500, 501, 499)),
        gemm(Gemm::new(Scalar::E4M3, 256, 192, 128).out_dtype(Scalar::BF16).scale(Along::M).scale(Along::N)),
        gemm(Gemm::new(Scalar::I8, 256, 192, 128).zero_point(Along::M, ZeroPoint::Each).zero_point(Along::N, ZeroPoint::Tensor)),
        gemm(Gemm::new(Scalar::F16, 128, 128, 8192)),
        gemm(
            Gemm::new(Scalar::BF16, 256, 128, 128).trans(false, true).gate(GateFunction::Silu).separate_up(true).preactivations(),
        ),
        // Both leave by bulk stores.
        gemm(Gemm::new(Scalar::BF16, 256, 128, 128).trans(false, true).gate(GateFunction::Silu).up_first(true).preactivations())
            .constrained(&Constraint::parse("B_MIC16__C_UNI2_CST1").expect("a constraint")),
        gemm(Gemm::new(Scalar::F64, 64, 48, 40).order(Order::Col).trans(true, false).batch(3)),
        gemm(Gemm::new(Scalar::BF16, 512, 256, 256).dynamic(dynamic)),
        gemm(Gemm::new(Scalar::BF16, 256, 256, 256).trans(false, true).k2(16)),
        gemm(Gemm::new(Scalar::BF16, 256, 256, 128).reduce(told("max:n"))),
        conv(Direction::Forward, 1),
        conv(Direction::BackwardData, 2),
        // Four parts, whose result is masked.
        context.conv(several(Direction::BackwardData).mask()).expect("a convolution"),
        context.conv(several(Direction::Forward).reduce(told("sum:bm")).reduce(told("max:bm:f32"))).expect("a convolution"),
        context.reduce(Reduce::new(Scalar::F16, &[512, 700], &[1]).op(Operator::Sum).op(Operator::ArgMax)).expect("a reduction"),
    ]
}

/// Where operands are said to be, 16 GiB apart: nobody looks there.
fn memory(name: &str) -> u64 {
    const NAMES: [&str; 10] = ["A", "B", "C", "bias", "residual", "reduced_0", "workspace", "input", "filter", "output"];
    if let Some(number @ 1..) = name.strip_prefix("reduced_").and_then(|number| number.parse::<u64>().ok()) {
        return (number + 7) << 34;
    }
    if let Some(number) = ["scale_m", "scale_n", "zero_a", "zero_b", "ends", "preactivations", "up", "a2", "b2"]
        .into_iter()
        .zip(20..)
        .find_map(|(n, number)| (n == name).then_some(number))
    {
        return number << 34;
    }
    let alias = match name {
        "output_gradient" | "tensor" => "A",
        "input_gradient" => "C",
        other => other,
    };
    let at = NAMES.iter().position(|n| *n == alias).unwrap_or_else(|| panic!("a memory called {name}")) as u64;
    (at % 7 + 1) << 34
}

/// The extents of the launches: smaller ones where they may be.
fn rows(operation: &Operation) -> Option<u64> {
    matches!(operation.problem(), Problem::Gemm(g) if g.dynamic.m).then_some(77)
}

/// A program that loads the kernels, calls the function, and then calls it wrongly, which launches nothing.
fn program(operation: &Operation, source: &Path, text: &str) -> String {
    let prototype = text.split("CUresult f(").nth(1).and_then(|t| t.split(");").next()).expect("the prototype");
    let values: Vec<String> = prototype
        .split(',')
        .skip(2)
        .map(|parameter| {
            let name = parameter.rsplit([' ', '*']).next().expect("a name");
            let Problem::Gemm(g) = operation.problem() else { return value(name) };
            let number = match name {
                "m" => rows(operation).unwrap_or(g.m),
                "n" => g.n,
                "k" => g.k,
                "lda" => g.a.ld,
                "ldb" => g.b.ld,
                "ldc" => g.c.ld,
                "stride_a" => g.a.batch_stride,
                "stride_b" => g.b.batch_stride,
                "stride_c" => g.c.batch_stride,
                "batch" => g.batch,
                other => return value(other),
            };
            number.to_string()
        })
        .collect();
    let call = |values: &[String]| format!("f(&kernels, (CUstream)(uintptr_t)4242, {})", values.join(", "));
    let wrong = (0..values.len()).filter(|n| !values[*n].contains('.')).map(|n| {
        let mut values = values.clone();
        values[n] = match values[n].strip_prefix("(void *)") {
            Some(_) => "NULL".into(),
            None => format!("{} + 1000", values[n]),
        };
        format!("    if ({} != CUDA_ERROR_INVALID_VALUE) return {};\n", call(&values), n + 10)
    });
    format!(
        "#include \"{}\"\nint main(void)\n{{\n    f_kernels kernels;\n    if (f_load(&kernels) != CUDA_SUCCESS) return 1;\n    if ({} != CUDA_SUCCESS) return 2;\n{}    f_unload(&kernels);\n    return 0;\n}}\n",
        source.display(),
        call(&values),
        wrong.collect::<String>()
    )
}

fn value(name: &str) -> String {
    match name {
        "alpha" => "1.5".into(),
        "beta" => "0.25".into(),
        "alpha_im" => "-0.5".into(),
        "beta_im" => "2.0".into(),
        pointer => format!("(void *)(uintptr_t){:#x}u", memory(pointer)),
    }
}

/// Launches an operation as the library does.
fn launch(operation: &Operation) {
    stand_in::trust(operation);
    let prepared = operation.prepare().expect("it compiles");
    let mut addresses = Addresses::default();
    for role in Role::all() {
        let name = match role {
            Role::A | Role::B | Role::C => role.name().to_uppercase(),
            Role::Reduction(number) => format!("reduced_{number}"),
            role => role.name(),
        };
        addresses.set(role, memory(&name));
    }
    let at = rows(operation).map(|rows| operation.extents().with(Extent::M, rows));
    // Results in integers are not scaled, and host code takes no factors for them.
    let (alpha, beta) = match operation.problem() {
        Problem::Reduce(_) => (1.5, 0.0),
        problem if problem.out_dtype() == Scalar::I32 => (1.0, 0.0),
        problem if problem.gate().is_some() => (1.5, 0.0),
        _ => (1.5, 0.25),
    };
    let complex = operation.problem().parts() == 2;
    let (alpha_im, beta_im) = if complex { (-0.5, 2.0) } else { (0.0, 0.0) };
    let factors = Factors { alpha, beta, alpha_im, beta_im };
    // SAFETY: nothing is behind the driver that would follow an address, here and below.
    unsafe { prepared.launch(Stream(4242), &addresses, factors, at) }.expect("it is launched");
    if complex {
        // A kernel ahead multiplies C before the residual is read.
        let over = addresses.with(Role::Residual, addresses.of(Role::C));
        let refused = unsafe { prepared.launch(Stream(4242), &over, factors, at) }.expect_err("over C").to_string();
        assert!(refused.contains("overlaps the residual") && refused.contains("separate memory"), "{refused}");
    }
}

/// Width of clusters and sizes of arguments, for the driver.
fn sizes(operation: &Operation) -> String {
    let program = operation.program(&operation.plan().expect("a plan")).expect("a program");
    let size = |kind: &ArgKind| match kind {
        ArgKind::Buffer { .. } => 8,
        ArgKind::Scalar(scalar) => scalar.bytes(),
        ArgKind::TensorMap(_) => 128,
    };
    let target = &operation.context().info().target;
    let line = |kernel: &tilewright_ir::Kernel| {
        let entry = tilewright_ir::print(kernel, target).expect("source").entry;
        let sizes: Vec<String> = kernel.args.iter().map(|a| size(&a.kind).to_string()).collect();
        format!("{entry} {} {}\n", kernel.cluster, sizes.join(" "))
    };
    program.kernels.iter().map(line).collect()
}

/// Launches a problem of a bundle, in all ways that are right and some that are not.
const USES_A_BUNDLE: &str = r#"
#include "b.h"
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv)
{
    b_prepared prepared;
    b_operands operands = {OPERANDS, {(void *)(uintptr_t)REDUCED}, (void *)(uintptr_t)WORKSPACE, 1.5, 0.25, 0, 0, 0, 0, 0, 0, (void *)(uintptr_t)STORED, (void *)(uintptr_t)UP, (void *)(uintptr_t)SECOND_A, (void *)(uintptr_t)SECOND_B};
    const int n = argc == 4 ? b_find(argv[1]) : -1;
    if (n < 0 || b_find("another") != -1) return 1;
    operands.m = atoi(argv[2]);
    if (strstr(argv[1], "alphaim")) {
        operands.alpha_im = -0.5;
        operands.beta_im = 2.0;
    }
    if (b_prepare(&prepared, n, "nowhere") == CUDA_SUCCESS) return 2;
    if (b_prepare(&prepared, b_count, argv[3]) != CUDA_ERROR_INVALID_VALUE) return 3;
    if (b_prepare(&prepared, n, argv[3]) != CUDA_SUCCESS) return 4;
    if (b_launch(&prepared, (CUstream)(uintptr_t)4242, &operands) != CUDA_SUCCESS) return 5;
    if (!strstr(argv[1], "alphaim")) {
        operands.beta_im = 1;
        if (b_launch(&prepared, (CUstream)(uintptr_t)4242, &operands) != CUDA_ERROR_INVALID_VALUE) return 7;
        operands.beta_im = 0;
    }
    operands.a = NULL;
    if (b_launch(&prepared, (CUstream)(uintptr_t)4242, &operands) != CUDA_ERROR_INVALID_VALUE) return 6;
    b_release(&prepared);
    return b_launch(&prepared, NULL, &operands) != CUDA_ERROR_INVALID_VALUE;
}
"#;

/// Writes a bundle of operations and compiles the program above with it.
fn bundled(folder: &Path, operations: &[Operation], target: &Target) -> PathBuf {
    let one = |operation| Bundled { operation, plan: operation.plan().expect("a plan"), origin: "picked", time_us: None };
    let problems: Vec<Bundled<'_>> = operations.iter().map(one).collect();
    let options = tilewright_device::Options::default();
    for (name, content) in bundle("b", target, &problems, &options).expect("a bundle") {
        std::fs::write(folder.join(name), content).expect("a file");
    }
    let manifest = std::fs::read_to_string(folder.join("manifest.json")).expect("the manifest");
    assert!(
        operations.iter().all(|o| manifest.contains(&o.problem().key())) && manifest.contains("\"b_0_0.cubin\""),
        "{manifest}"
    );
    let twice = [problems[0], problems[0]];
    assert!(bundle("b", target, &twice, &options).expect_err("refused").to_string().contains("there twice"));
    let at = |name: &str| format!("{:#x}u", memory(name));
    let operands = ["A", "B", "C", "scale_m", "scale_n", "zero_a", "zero_b", "bias", "residual"]
        .map(|name| format!("(void *)(uintptr_t){}", at(name)))
        .join(", ");
    let text = USES_A_BUNDLE.replace("OPERANDS", &operands).replace("REDUCED", &at("reduced_0"));
    let text = text.replace("STORED", &at("preactivations")).replace("UP", &at("up"));
    let text = text.replace("SECOND_A", &at("a2")).replace("SECOND_B", &at("b2"));
    let (main, run) = (folder.join("bundled.c"), folder.join("bundled"));
    std::fs::write(&main, text.replace("WORKSPACE", &at("workspace"))).expect("a file");
    let mut cc = Command::new("gcc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(here()).arg(&main).arg(folder.join("b.c")).arg("-o").arg(&run);
    said(cc.arg("-L").arg(folder).arg("-lcuda"));
    run
}

/// Started again with the driver in the way of the loader, by the test below.
fn with_the_driver(folder: &Path) {
    let context = context("cuda:0").expect("the recording driver has a device");
    let (log, list) = (folder.join("log"), folder.join("sizes"));
    let mut all = String::new();
    let (mut operations, target) = (operations(&context), &context.info().target);
    // In another order than theirs: numbers are those of the bundle.
    operations.swap(0, 7);
    // With two pairs of factors.
    operations.swap(5, 10);
    let bundle = bundled(folder, &operations[..7], target);
    for (n, operation) in operations.into_iter().enumerate() {
        std::fs::write(&list, sizes(&operation)).expect("a file");
        let logged = |run: &dyn Fn()| {
            std::fs::write(&log, "").expect("a file");
            run();
            std::fs::read_to_string(&log).expect("the log")
        };
        let ours = logged(&|| launch(&operation));
        let plan = operation.plan().expect("a plan");
        let source = folder.join(format!("f{n}.c"));
        let text = operation.host_source(&plan, target, "f", Host::C).expect("host code");
        std::fs::write(&source, &text).expect("a file");
        let (main, run) = (folder.join(format!("main{n}.c")), folder.join(format!("run{n}")));
        std::fs::write(&main, program(&operation, &source, &text)).expect("a file");
        let mut cc = Command::new("gcc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I"]).arg(here()).arg(&main).arg("-o").arg(&run);
        said(cc.arg("-L").arg(folder).arg("-lcuda"));
        let theirs = logged(&|| assert!(said(&mut Command::new(&run)).is_some()));
        assert_eq!(theirs, ours, "{}", operation.problem());
        assert!(ours.contains("launch "), "{ours}");
        if n < 7 {
            let (key, rows) = (operation.problem().key(), rows(&operation).unwrap_or(0).to_string());
            let run = || assert!(said(Command::new(&bundle).arg(&key).arg(&rows).arg(folder)).is_some());
            assert_eq!(logged(&run), ours, "{key}");
        }
        let mut cxx = Command::new("g++");
        cxx.args(["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-x", "c++", "-I"]);
        said(cxx.arg(here()).arg(&source));
        all += &format!("{ours}{text}");
    }
    // What the problems were chosen for.
    for part in [
        "early 1",
        "Im2col(",
        "SWIZZLE_128B",
        "at_workspace",
        "attribute ",
        "opaque[1] &=",
        "reduced_0",
        "double alpha",
        "float beta_im",
        "at_scale_m",
        "at_zero_b",
        "at_preactivations",
        "at_up",
    ] {
        assert!(all.contains(part), "no problem uses `{part}`");
    }
}

pub fn host_code_tells_the_driver_what_our_own_launches_tell_it() {
    if let Some(folder) = std::env::var_os("RECORDING_DRIVER") {
        return with_the_driver(Path::new(&folder));
    }
    let Some(folder) = stand_in::driver() else { return };
    let mut again = Command::new(std::env::current_exe().expect("this test"));
    again.args(["--exact", "host::host_code_tells_the_driver_what_our_own_launches_tell_it", "--nocapture"]);
    again.env("RECORDING_DRIVER", folder.path()).env("LD_LIBRARY_PATH", folder.path());
    again.env("STUB_LOG", folder.path().join("log")).env("STUB_SIZES", folder.path().join("sizes"));
    assert!(said(&mut again).is_some_and(|out| out.contains("1 passed")));
}

fn emulated(device: &str) -> Context {
    context(device).expect("the emulator opens")
}

fn source(operation: &Operation, target: &Target) -> (Plan, String) {
    let plan = operation.plan().expect("a plan");
    let text = operation.host_source(&plan, target, "f", Host::Source).expect("host code");
    (plan, text)
}

/// The part of a file for nvcc or hipcc behind its kernels compiles, with kernels that are declared only.
pub fn the_host_part_of_one_source_file_compiles() {
    for device in ["emu:sm_90a", "emu:gfx942"] {
        let context = emulated(device);
        let target = context.info().target.clone();
        for operation in operations(&context).into_iter().take(3) {
            let (plan, text) = source(&operation, &target);
            let kernels = operation.program(&plan).expect("a program").kernels;
            let entries = kernels.iter().map(|k| tilewright_ir::print(k, &target).expect("source").entry);
            let declared: String = entries.map(|e| format!("extern \"C\" void f_{e}();\n#define {e} f_{e}\n")).collect();
            let host = text.rsplit("#if !defined(__CUDACC_RTC__)").next().expect("a host part");
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("host.cpp");
            std::fs::write(&file, format!("{declared}#if 1 //{host}")).expect("a file");
            let mut cxx = Command::new("g++");
            cxx.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(here()).arg(&file);
            said(&mut cxx);
        }
    }
}

/// A file with host code is taken back by compilers at run time like any other: they see its kernels alone.
pub fn one_source_file_compiles_at_run_time() {
    let context = emulated("emu:sm_90a");
    let target = context.info().target.clone();
    let operation = context.gemm(Gemm::new(Scalar::BF16, 256, 256, 128)).expect("a product");
    let (plan, text) = source(&operation, &target);
    let mut kernel = operation.program(&plan).expect("a program").kernels.remove(0);
    kernel.text = Some(text);
    match tilewright_device::cuda::compile(&kernel, "sm_90a", &tilewright_device::Options::default()) {
        Ok(offline) => {
            let entry = offline.source.entry.as_bytes();
            assert!(offline.code.windows(entry.len()).any(|w| w == entry), "the entry point has another name");
        }
        Err(e @ tilewright_device::DeviceError::Missing { .. }) => missing::missing(&e.to_string()),
        Err(e) => panic!("{e}"),
    }
}

pub fn names_dialects_and_images_without_host_code_are_refused() {
    let context = emulated("emu:sm_90a");
    let operation = context.gemm(Gemm::new(Scalar::F32, 32, 32, 32)).expect("a product");
    let plan = operation.plan().expect("a plan");
    let refused = |name: &str, target: &Target, host| match operation.host_source(&plan, target, name, host) {
        Err(e @ Error::Host { .. }) => e.to_string(),
        other => panic!("{other:?}"),
    };
    let cuda = &context.info().target;
    for name in ["", "1st", "a-b", "f(", "größe", &"x".repeat(129)] {
        assert!(refused(name, cuda, Host::Source).contains("a name in C"), "{name}");
    }
    let opencl = Target { dialect: Dialect::OpenCl, ..cuda.clone() };
    assert!(refused("f", &opencl, Host::Source).contains("OpenCL C has no host code"));
    let hip = Target::by_arch("gfx942").expect("known");
    assert!(refused("f", &hip, Host::C).contains("hipcc"));

    let (problem, program) = (operation.problem(), operation.program(&plan).expect("a program"));
    let contraction = operation.space().contraction(&plan);
    let emission = Emission { problem, contraction, plan: &plan, program: &program, target: cuda, atomics: false };
    let error = HostCode { emission, name: "f", images: Images::Embedded(&[]) }.source().expect_err("no images");
    assert!(error.to_string().contains("0 compiled kernels were given, the program has 1"), "{error}");
}
