//! Kernels built ahead of time: compiled files, one C file that finds and launches them, and a manifest. Nothing is compiled, looked up in
//! records or searched where they run.

use crate::emit::Emission;
use crate::host::signature::{Meaning, Parameter};
use crate::host::{HostCode, Images};
use crate::{Error, Operation};
use serde_json::{Value, json};
use std::fmt::Write;
use tilewright_device::Options;
use tilewright_gen::plan::Plan;
use tilewright_gen::program::Program;
use tilewright_ir::Target;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::{Extent, Extents, MOST_REDUCTIONS, Role};

/// A problem of a bundle, with the plan that it gets.
///
/// ```
/// use tilewright::{Bundled, Context, DeviceOptions, Gemm, Options, RecordsAt, Scalar, Target, bundle};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let operation = context.operation_for(Gemm::new(Scalar::F32, 64, 64, 64).build()?, &target)?;
/// let layer = Bundled { operation: &operation, plan: operation.plan()?, origin: "picked", time_us: None };
/// // Names of C functions come from the bundle's name.
/// let refused = bundle("my-layers", &target, &[layer], &DeviceOptions::default()).unwrap_err();
/// assert!(refused.to_string().contains("`my-layers"));
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bundled<'a> {
    /// The problem, on any device.
    pub operation: &'a Operation,
    /// Its plan.
    pub plan: Plan,
    /// Where the plan comes from, for the manifest.
    pub origin: &'a str,
    /// Its time, where it was measured.
    pub time_us: Option<f64>,
}

/// What [`bundle`] made: files with their names.
///
/// ```
/// use tilewright::{Bundled, Context, DeviceOptions, Error, Files, Gemm, Options, RecordsAt, Scalar, Target, bundle};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// # let operation = context.operation_for(Gemm::new(Scalar::F32, 64, 64, 64).build()?, &target)?;
/// # let layer = Bundled { operation: &operation, plan: operation.plan()?, origin: "picked", time_us: None };
/// let files: Result<Files, Error> = bundle("layers", &target, &[layer], &DeviceOptions::default());
/// match files {
///     Ok(files) => assert_eq!(files.iter().filter(|(name, _)| name == "layers.h" || name == "layers.c").count(), 2),
///     // NVRTC is not installed here.
///     Err(e) => assert!(matches!(e, Error::Device(_))),
/// }
/// # Ok::<(), tilewright::Error>(())
/// ```
pub type Files = Vec<(String, Vec<u8>)>;

/// A bundle's problem with what was made of it.
struct Part<'a> {
    bundled: &'a Bundled<'a>,
    name: String,
    contraction: Contraction,
    program: Program,
    cubins: Vec<String>,
}

/// Kernels of several problems for an NVIDIA GPU, compiled now by NVRTC. The files are `NAME.h` and `NAME.c` (functions to find,
/// prepare and launch the kernels), cubins, and `manifest.json`.
///
/// # Errors
/// [`Error::Host`] for a name that C does not allow, other targets, a problem that is there twice, and no problem.
/// [`Error::Device`] where NVRTC is missing or refuses a kernel. Also the errors of [`Operation::source_of`].
pub fn bundle(name: &str, target: &Target, problems: &[Bundled<'_>], options: &Options) -> Result<Files, Error> {
    let refused = |reason: String| Error::Host { name: name.into(), reason: reason.into() };
    let mut files = Files::new();
    let mut parts: Vec<Part<'_>> = Vec::new();
    for (n, bundled) in problems.iter().enumerate() {
        let key = bundled.operation.problem().key();
        if parts.iter().any(|p| p.bundled.operation.problem().key() == key) {
            return Err(refused(format!("{key} is there twice")));
        }
        let (contraction, program) = bundled.operation.program_for(&bundled.plan, None)?;
        let mut part = Part { bundled, name: format!("{name}_{n}"), contraction, program, cubins: Vec::new() };
        // Names and targets are refused before anything is compiled.
        part.host(target, Images::Source).declarations()?;
        for (k, code) in part.emission(target).compile(options)?.into_iter().enumerate() {
            let file = format!("{}_{k}.cubin", part.name);
            part.cubins.push(file.clone());
            files.push((file, code));
        }
        parts.push(part);
    }
    if parts.is_empty() {
        return Err(refused("there is no problem to be bundled".into()));
    }
    let declared = parts.iter().map(|p| p.host(target, Images::Files(&p.cubins)).declarations());
    let declared = declared.collect::<Result<Vec<_>, _>>()?;
    let defined = parts.iter().map(|p| p.host(target, Images::Files(&p.cubins)).definitions());
    let defined = defined.collect::<Result<Vec<_>, _>>()?;
    files.push((format!("{name}.h"), header(name, &parts, &declared).into_bytes()));
    files.push((format!("{name}.c"), dispatcher(name, target, &parts, &defined).into_bytes()));
    let manifest = manifest(name, target, &parts, &files)?;
    files.push(("manifest.json".into(), format!("{manifest:#}\n").into_bytes()));
    Ok(files)
}

impl Part<'_> {
    fn emission<'a>(&'a self, target: &'a Target) -> Emission<'a> {
        let operation = self.bundled.operation;
        let atomics = operation.space().env().allow_atomics;
        let (contraction, program) = (&self.contraction, &self.program);
        Emission { problem: operation.problem(), contraction, plan: &self.bundled.plan, program, target, atomics }
    }
    fn host<'a>(&'a self, target: &'a Target, images: Images<'a>) -> HostCode<'a> {
        HostCode { emission: self.emission(target), name: &self.name, images }
    }
}

fn header(name: &str, parts: &[Part<'_>], declared: &[String]) -> String {
    let members: String = parts.iter().enumerate().map(|(n, p)| format!("        {}_kernels k{n};\n", p.name)).collect();
    format!(
        "/* Kernels built ahead of time by tilewright {version}. */\n\
         #ifndef {name}_h\n#define {name}_h\n#include <cuda.h>\n#include <stddef.h>\n#include <stdint.h>\n\n{declared}\n\
         #ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n\
         /* A problem that there are kernels for. */\n\
         typedef struct {name}_problem {{\n    const char *key; /* as `tilewright` writes it */\n    const char *plan;\n    \
         int64_t m, n, k, batch; /* of the contraction; the largest where a launch chooses */\n    size_t workspace_bytes;\n}} {name}_problem;\n\n\
         enum {{ {name}_count = {count} }};\nextern const {name}_problem {name}_problems[{name}_count];\n\n\
         /* What a launch runs on: device memory, as the function of each problem above says. What a problem does not have is not looked at. */\n\
         typedef struct {name}_operands {{\n    const void *a, *b;\n    void *c;\n    const void *scale_m, *scale_n, *zero_a, *zero_b, *bias, *residual;\n    void *reduced[{MOST_REDUCTIONS}];\n    \
         void *workspace;\n    double alpha, beta;\n    int64_t m, n, batch; /* 0: the largest */\n    double alpha_im, beta_im; /* of complex products made for them; else 0 */\n    const void *ends;\n    void *preactivations;\n    const void *up;\n    const void *a2, *b2;\n}} {name}_operands;\n\n\
         /* Loaded kernels of a problem. */\n\
         typedef struct {name}_prepared {{\n    int problem;\n    union {{\n{members}    }} kernels;\n}} {name}_prepared;\n\n\
         /* The number of a problem by its key; -1 where it is not in the bundle. */\n\
         int {name}_find(const char *key);\n\n\
         /* Loads a problem's kernels from the folder of the bundle into the current context. Not while a stream is being captured. */\n\
         CUresult {name}_prepare({name}_prepared *prepared, int problem, const char *folder);\n\n\
         /* Starts it on a stream and returns: nothing is allocated or waited for, so the stream may be capturing a graph. Any thread may\n   call it. Gives CUDA_ERROR_INVALID_VALUE for operands that the kernels do not hold for. */\n\
         CUresult {name}_launch(const {name}_prepared *prepared, CUstream stream, const {name}_operands *operands);\n\n\
         /* Unloads the kernels; no launch may be under way. */\n\
         void {name}_release({name}_prepared *prepared);\n\n\
         #ifdef __cplusplus\n}}\n#endif\n#endif\n",
        version = env!("CARGO_PKG_VERSION"),
        declared = declared.join("\n"),
        count = parts.len(),
    )
}

fn dispatcher(name: &str, target: &Target, parts: &[Part<'_>], defined: &[String]) -> String {
    let mut out = format!("#include \"{name}.h\"\n#include <string.h>\n{}", defined.concat());
    // Writing to a String cannot fail, here and below.
    let _ = write!(out, "\nconst {name}_problem {name}_problems[{name}_count] = {{\n");
    for p in parts {
        let (c, key) = (&p.contraction, p.bundled.operation.problem().key());
        let (plan, workspace) = (p.bundled.plan, p.program.workspace_bytes);
        let _ = writeln!(out, "    {{\"{key}\", \"{plan}\", {}, {}, {}, {}, {workspace}u}},", c.m, c.n, c.k, c.g);
    }
    let _ = write!(
        out,
        "}};\n\nint {name}_find(const char *key)\n{{\n    int n;\n    for (n = 0; n < {name}_count; ++n) {{\n        \
         if (strcmp({name}_problems[n].key, key) == 0) return n;\n    }}\n    return -1;\n}}\n"
    );
    let cases = |one: &dyn Fn(usize, &Part<'_>) -> String| -> String {
        parts.iter().enumerate().map(|(n, p)| format!("    case {n}: {};\n", one(n, p))).collect()
    };
    let loads = cases(&|n, p| format!("return {}_load(&prepared->kernels.k{n}, folder)", p.name));
    let calls = cases(&|n, p| {
        let args = p.host(target, Images::Files(&p.cubins)).parameters();
        // An imaginary part that kernels know nothing of would be left out of the result.
        let real = [(Meaning::AlphaIm, "alpha_im"), (Meaning::BetaIm, "beta_im")];
        let real = real.into_iter().filter(|(factor, _)| args.iter().all(|a| a.meaning != *factor));
        let refused: Vec<String> = real.map(|(_, name)| format!("operands->{name} != 0")).collect();
        let refused = match refused.is_empty() {
            true => String::new(),
            false => format!("if ({}) return CUDA_ERROR_INVALID_VALUE; ", refused.join(" || ")),
        };
        let args: Vec<String> = args.iter().map(|a| argument(a, p.bundled.operation.problem().result_shape().extents)).collect();
        format!("{refused}return {}(&prepared->kernels.k{n}, stream, {})", p.name, args.join(", "))
    });
    let unloads = cases(&|n, p| format!("{}_unload(&prepared->kernels.k{n}); break", p.name));
    let invalid = "    default: return CUDA_ERROR_INVALID_VALUE;\n";
    let _ = write!(
        out,
        "\nCUresult {name}_prepare({name}_prepared *prepared, int problem, const char *folder)\n{{\n    \
         memset(prepared, 0, sizeof *prepared);\n    prepared->problem = problem;\n    switch (problem) {{\n{loads}{invalid}    }}\n}}\n\
         \nCUresult {name}_launch(const {name}_prepared *prepared, CUstream stream, const {name}_operands *operands)\n{{\n    \
         switch (prepared->problem) {{\n{calls}{invalid}    }}\n}}\n\
         \nvoid {name}_release({name}_prepared *prepared)\n{{\n    switch (prepared->problem) {{\n{unloads}    default: break;\n    }}\n    \
         prepared->problem = -1;\n}}\n"
    );
    out
}

/// A parameter of a problem's function, from the operands of a launch.
fn argument(parameter: &Parameter, largest: Extents) -> String {
    match parameter.meaning {
        Meaning::Memory(Role::Reduction(number)) => format!("operands->reduced[{number}]"),
        Meaning::Memory(role) => format!("operands->{}", role.name()),
        Meaning::Alpha => format!("({})operands->alpha", parameter.ty),
        Meaning::Beta => format!("({})operands->beta", parameter.ty),
        Meaning::AlphaIm | Meaning::BetaIm => format!("({})operands->{}", parameter.ty, parameter.name),
        Meaning::Fixed(value) => value.to_string(),
        Meaning::Extent(extent) => {
            let name = match extent {
                Extent::M => "m",
                Extent::N => "n",
                Extent::G => "batch",
            };
            format!("operands->{name} ? operands->{name} : {}", largest.of(extent))
        }
    }
}

fn manifest(name: &str, target: &Target, parts: &[Part<'_>], files: &Files) -> Result<Value, Error> {
    let bytes = |file: &String| files.iter().find(|(name, _)| name == file).map(|(_, content)| content.len());
    let one = |p: &Part<'_>| {
        let sources = p.program.kernels.iter().map(|k| tilewright_ir::print(k, target)).collect::<Result<Vec<_>, _>>()?;
        let kernels = sources.iter().zip(&p.program.kernels).zip(&p.cubins);
        let kernels: Vec<Value> = kernels
            .map(|((source, kernel), file)| {
                json!({ "file": file, "bytes": bytes(file), "entry": source.entry, "threads": kernel.threads,
                        "dynamic_shared_bytes": source.dynamic_shared_bytes })
            })
            .collect();
        Ok(json!({
            "problem": p.bundled.operation.problem().key(), "function": p.name, "plan": p.bundled.plan.to_string(),
            "origin": p.bundled.origin, "time_us": p.bundled.time_us, "workspace_bytes": p.program.workspace_bytes, "kernels": kernels,
        }))
    };
    let problems = parts.iter().map(one).collect::<Result<Vec<_>, Error>>()?;
    Ok(json!({ "tilewright": env!("CARGO_PKG_VERSION"), "name": name, "arch": target.arch, "problems": problems }))
}
