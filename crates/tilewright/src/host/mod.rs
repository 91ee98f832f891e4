//! Host code of a program: a C function that launches its kernels through the vendor's driver, with the signature of a BLAS call.
//!
//! It does what [`Prepared::launch`](crate::Prepared::launch) does, and nothing else is needed to run it: no library, no records, no search.

mod call;
mod expression;
mod map;
pub(crate) mod signature;

use crate::emit::Emission;
use crate::{Error, Operation};
use std::fmt::Write;
use tilewright_device::Options;
use tilewright_gen::plan::Plan;
use tilewright_ir::{Dialect, PORTABLE_CLUSTER, Source, Target, print};

/// Which file a plan becomes with its host code.
///
/// ```
/// use tilewright::{Context, Gemm, Host, Options, RecordsAt, Scalar, Target};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let target = Target::by_arch("gfx90a").expect("a known architecture");
/// let operation = context.operation_for(Gemm::new(Scalar::F32, 64, 64, 64).build()?, &target)?;
/// // One file for hipcc: the kernel, and a function `layer` that launches it.
/// let text = operation.host_source(&operation.plan()?, &target, "layer", Host::Source)?;
/// assert!(text.contains("__global__") && text.contains("hipError_t layer("));
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// C with the compiled kernels in it, for any C compiler and CUDA's driver. NVRTC compiles them now.
    C,
    /// Kernels and host code as one source, for nvcc or hipcc.
    Source,
}

/// Where the host code finds the compiled kernels.
///
/// ```
/// use tilewright::{Context, Emission, Gemm, HostCode, Images, Options, RecordsAt, Scalar, Target};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// # let operation = context.operation_for(Gemm::new(Scalar::F32, 64, 64, 64).build()?, &target)?;
/// # let plan = operation.plan()?;
/// # let (problem, contraction) = (operation.problem(), operation.space().contraction(&plan));
/// # let (program, target) = (operation.program(&plan)?, &target);
/// # let emission = Emission { problem, contraction, plan: &plan, program: &program, target, atomics: false };
/// // The program has one kernel. Its cubin is a file of this name, found when the host code runs.
/// let names = ["layer_0.cubin".to_string()];
/// let text = HostCode { emission, name: "layer", images: Images::Files(&names) }.source()?;
/// assert!(text.contains("layer_0.cubin") && !text.contains("__global__"));
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Images<'a> {
    /// In the same file as source: for nvcc or hipcc.
    Source,
    /// In the same file, compiled: one cubin for each kernel of the program.
    Embedded(&'a [Vec<u8>]),
    /// In files, compiled: the name of one for each kernel. Their folder is named when they are loaded.
    Files(&'a [String]),
}

/// Host code of an emission.
///
/// ```
/// use tilewright::{Context, Emission, Gemm, HostCode, Images, Options, RecordsAt, Scalar, Target};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// # let operation = context.operation_for(Gemm::new(Scalar::F32, 64, 64, 64).build()?, &target)?;
/// # let plan = operation.plan()?;
/// # let (problem, contraction) = (operation.problem(), operation.space().contraction(&plan));
/// # let (program, target) = (operation.program(&plan)?, &target);
/// let emission = Emission { problem, contraction, plan: &plan, program: &program, target, atomics: false };
/// let host = HostCode { emission, name: "layer", images: Images::Source };
/// // A header needs the declarations alone.
/// assert!(host.declarations()?.contains("CUresult layer("));
/// assert!(HostCode { name: "2 layers", ..host }.source().is_err());
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HostCode<'a> {
    /// What is launched.
    pub emission: Emission<'a>,
    /// The function's name, which begins all others.
    pub name: &'a str,
    /// Where the kernels are.
    pub images: Images<'a>,
}

/// The words in which the two drivers differ.
struct Api {
    headers: &'static [&'static str],
    status: &'static str,
    ok: &'static str,
    invalid: &'static str,
    function: &'static str,
    stream: &'static str,
}

const CUDA: Api = Api {
    headers: &["cuda.h"],
    status: "CUresult",
    ok: "CUDA_SUCCESS",
    invalid: "CUDA_ERROR_INVALID_VALUE",
    function: "CUfunction",
    stream: "CUstream",
};
const HIP: Api = Api {
    headers: &["hip/hip_runtime.h"],
    status: "hipError_t",
    ok: "hipSuccess",
    invalid: "hipErrorInvalidValue",
    function: "const void *",
    stream: "hipStream_t",
};

/// Around what a compiler at run time does not see: it is given edited files, too, and takes the kernels alone from them.
const OPENED: &str = "\n#if !defined(__CUDACC_RTC__) && !defined(__HIPCC_RTC__)\n";
const CLOSED: &str = "#endif\n";

/// Longest name of a function.
const LONGEST_NAME: usize = 128;

impl Operation {
    /// Any plan's kernels for any target with the function that launches them, as one file: [`Operation::source_of`] with host code of
    /// this name.
    ///
    /// # Errors
    /// As [`Operation::source_of`] and [`HostCode::source`]; [`Error::Device`] where NVRTC is missing or refuses a kernel.
    pub fn host_source(&self, plan: &Plan, target: &Target, name: &str, host: Host) -> Result<String, Error> {
        let (contraction, program) = self.program_for(plan, None)?;
        let atomics = self.space().env().allow_atomics;
        let emission = Emission { problem: self.problem(), contraction: &contraction, plan, program: &program, target, atomics };
        let compiled = match (host, target.dialect) {
            (Host::C, Dialect::Cuda) => emission.compile(&self.context().inner.options.device_options)?,
            (Host::C | Host::Source, _) => Vec::new(),
        };
        let images = if host == Host::C { Images::Embedded(&compiled) } else { Images::Source };
        HostCode { emission, name, images }.source()
    }
}

impl Emission<'_> {
    /// A cubin for each kernel, through NVRTC.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn compile(&self, options: &Options) -> Result<Vec<Vec<u8>>, Error> {
        let one = |kernel| Ok(tilewright_device::cuda::compile(kernel, &self.target.arch, options)?.code);
        self.program.kernels.iter().map(one).collect()
    }
}

impl HostCode<'_> {
    /// The source file: kernels (if the file contains them), declarations, functions. The same input gives the same text.
    ///
    /// # Errors
    /// [`Error::Host`] for a name that C does not allow, a dialect without host code, and images that are not the program's;
    /// [`Error::Invalid`].
    pub fn source(&self) -> Result<String, Error> {
        let api = self.api()?;
        let (kernels, opened, closed) = match self.images {
            Images::Source => (self.renamed()?, OPENED, CLOSED),
            Images::Embedded(_) | Images::Files(_) => (self.emission.about()?, "", ""),
        };
        let (headers, declarations, definitions) = (self.headers(api), self.declarations()?, self.definitions()?);
        Ok(format!("{kernels}{opened}\n{headers}\n{declarations}{definitions}{closed}"))
    }

    /// Declarations of types and functions, with what they take, as a header has them.
    ///
    /// # Errors
    /// As [`HostCode::source`].
    pub fn declarations(&self) -> Result<String, Error> {
        let (api, name, count) = (self.api()?, self.name, self.emission.program.kernels.len());
        let (status, function) = (api.status, api.function);
        let modules = match self.images {
            Images::Source => String::new(),
            Images::Embedded(_) | Images::Files(_) => format!("    CUmodule modules[{count}];\n"),
        };
        let driver = if self.emission.target.dialect == Dialect::Cuda { "    int driver;\n" } else { "" };
        let from = self.folder_parameter();
        let loads = if from == "void" { "" } else { ", from the folder that holds their files" };
        Ok(format!(
            "#ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n\
             /* Loaded kernels, of the context that was current then. */\n\
             typedef struct {name}_kernels {{\n{modules}    {function} functions[{count}];\n{driver}}} {name}_kernels;\n\n\
             /* Bytes of workspace that a call takes. */\n\
             #define {name}_workspace_bytes {}ull\n\n\
             /* Loads the kernels into the current context{loads}. Not while a stream is being captured. */\n\
             {status} {name}_load({name}_kernels *kernels{});\n\n\
             /* Unloads them; no call may be under way. */\n\
             void {name}_unload({name}_kernels *kernels);\n\n\
             {}\n{};\n\n\
             #ifdef __cplusplus\n}}\n#endif\n",
            self.emission.program.workspace_bytes,
            if from == "void" { String::new() } else { format!(", {from}") },
            self.about_call(api),
            self.prototype(api),
        ))
    }

    /// The functions, without declarations.
    ///
    /// # Errors
    /// As [`HostCode::source`].
    pub fn definitions(&self) -> Result<String, Error> {
        let api = self.api()?;
        let sources = self.sources()?;
        let mut out = String::new();
        self.images_text(&mut out, &sources);
        self.load(&mut out, api, &sources);
        self.start(&mut out, api);
        self.call(&mut out, api, &sources)?;
        Ok(out)
    }

    fn api(&self) -> Result<&'static Api, Error> {
        let refused = |reason: String| Err(Error::Host { name: self.name.into(), reason: reason.into() });
        let mut letters = self.name.chars();
        let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') || self.name.len() > LONGEST_NAME {
            let rule = format!("a name in C has letters, digits and _, no digit first, at most {LONGEST_NAME} here");
            return refused(rule);
        }
        let api = match (self.emission.target.dialect, self.images) {
            (Dialect::Cuda, _) => &CUDA,
            (Dialect::Hip, Images::Source) => &HIP,
            (Dialect::Hip, _) => return refused("kernels for AMD are compiled by hipcc, in one file with their source".into()),
            (Dialect::OpenCl, _) => return refused("OpenCL C has no host code; there is some for CUDA and HIP".into()),
        };
        let needed = self.emission.program.kernels.len();
        let images = match self.images {
            Images::Source => needed,
            Images::Embedded(images) => images.len(),
            Images::Files(files) => files.len(),
        };
        if images != needed {
            return refused(format!("{images} compiled kernels were given, the program has {needed}"));
        }
        Ok(api)
    }

    fn sources(&self) -> Result<Vec<Source>, Error> {
        Ok(self.emission.program.kernels.iter().map(|k| print(k, self.emission.target)).collect::<Result<_, _>>()?)
    }

    /// The kernels' source, with entry points of this file's own: several such files make one program.
    fn renamed(&self) -> Result<String, Error> {
        let source = self.emission.source()?;
        let entries = self.sources()?;
        let names: String = entries.iter().map(|s| format!("#define {} {}_{}\n", s.entry, self.name, s.entry)).collect();
        let head = source.lines().take_while(|l| l.starts_with("//")).map(|l| l.len() + 1).sum::<usize>();
        let (head, kernels) = source.split_at(head.min(source.len()));
        Ok(format!("{head}{OPENED}{names}{CLOSED}{kernels}"))
    }

    fn headers(&self, api: &Api) -> String {
        let runtime = matches!(self.images, Images::Source) && self.emission.target.dialect == Dialect::Cuda;
        let own = api.headers.iter().copied().chain(runtime.then_some("cuda_runtime.h"));
        own.chain(["stddef.h", "stdint.h", "string.h"]).map(|h| format!("#include <{h}>\n")).collect()
    }

    /// What loading takes beside the kernels.
    const fn folder_parameter(&self) -> &'static str {
        match self.images {
            Images::Files(_) => "const char *folder",
            Images::Source | Images::Embedded(_) => "void",
        }
    }

    /// Compiled kernels as numbers: words, which are aligned and quicker to read for a compiler than bytes.
    fn images_text(&self, out: &mut String, sources: &[Source]) {
        let Images::Embedded(images) = self.images else { return };
        for (n, (image, source)) in images.iter().zip(sources).enumerate() {
            let (name, entry) = (self.name, &source.entry);
            // Writing to a String cannot fail, here and below.
            let _ = write!(
                out,
                "\n/* `{entry}`, compiled for {}. */\nstatic const uint64_t {name}_image_{n}[] = {{",
                self.emission.target.arch
            );
            for (at, bytes) in image.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                let gap = if at % 6 == 0 { "\n    " } else { " " };
                let _ = write!(out, "{gap}{:#x}u,", u64::from_le_bytes(word));
            }
            out.push_str("\n};\n");
        }
    }

    /// Loading and unloading.
    fn load(&self, out: &mut String, api: &Api, sources: &[Source]) {
        let (name, status, ok) = (self.name, api.status, api.ok);
        let cuda = self.emission.target.dialect == Dialect::Cuda;
        let from = self.folder_parameter();
        let from = if from == "void" { String::new() } else { format!(", {from}") };
        if cuda {
            out.push_str(&self.load_one());
        }
        let _ = write!(out, "\n{status} {name}_load({name}_kernels *kernels{from})\n{{\n");
        let _ = writeln!(out, "    {status} status = {ok};\n    memset(kernels, 0, sizeof *kernels);");
        if cuda {
            out.push_str("    status = cuDriverGetVersion(&kernels->driver);\n");
        }
        for (n, (source, kernel)) in sources.iter().zip(&self.emission.program.kernels).enumerate() {
            let (entry, shared) = (&source.entry, source.dynamic_shared_bytes);
            let wide = i32::from(kernel.cluster > PORTABLE_CLUSTER);
            let image = match self.images {
                Images::Source => format!("(const void *){entry}"),
                Images::Embedded(_) => format!("&kernels->modules[{n}], {name}_image_{n}, \"{entry}\""),
                Images::Files(files) => format!("&kernels->modules[{n}], folder, \"{}\", \"{entry}\"", files[n]),
            };
            if cuda {
                let one = format!("{name}_load_one(&kernels->functions[{n}], {image}, {shared}, {wide})");
                let _ = writeln!(out, "    if (status == {ok}) status = {one};");
            } else {
                let _ = writeln!(out, "    kernels->functions[{n}] = {image};");
            }
        }
        let _ = writeln!(out, "    if (status != {ok}) {name}_unload(kernels);\n    return status;\n}}");
        let unload = match self.images {
            Images::Source => String::new(),
            Images::Embedded(_) | Images::Files(_) => format!(
                "    size_t n;\n    for (n = 0; n < {}; ++n) {{\n        if (kernels->modules[n]) cuModuleUnload(kernels->modules[n]);\n    }}\n",
                sources.len()
            ),
        };
        let _ = write!(
            out,
            "\nvoid {name}_unload({name}_kernels *kernels)\n{{\n{unload}    memset(kernels, 0, sizeof *kernels);\n}}\n"
        );
    }

    /// CUDA: from a symbol or an image to a function with the attributes that launches need.
    fn load_one(&self) -> String {
        let name = self.name;
        let (takes, finds) = match self.images {
            Images::Source => (
                "const void *symbol",
                "    CUresult status = CUDA_SUCCESS;\n\
                 \x20   cudaFunction_t found = NULL;\n\
                 \x20   if (cudaGetFuncBySymbol(&found, symbol) != cudaSuccess) return CUDA_ERROR_NOT_FOUND;\n\
                 \x20   *function = (CUfunction)found;\n",
            ),
            Images::Embedded(_) => (
                "CUmodule *module, const void *image, const char *entry",
                "    CUresult status = cuModuleLoadData(module, image);\n\
                 \x20   if (status == CUDA_SUCCESS) status = cuModuleGetFunction(function, *module, entry);\n",
            ),
            Images::Files(_) => (
                "CUmodule *module, const char *folder, const char *file, const char *entry",
                "    CUresult status;\n\
                 \x20   char path[4096];\n\
                 \x20   const size_t length = strlen(folder);\n\
                 \x20   if (length + strlen(file) + 2 > sizeof path) return CUDA_ERROR_INVALID_VALUE;\n\
                 \x20   memcpy(path, folder, length);\n\
                 \x20   path[length] = '/';\n\
                 \x20   memcpy(path + length + 1, file, strlen(file) + 1);\n\
                 \x20   status = cuModuleLoad(module, path);\n\
                 \x20   if (status == CUDA_SUCCESS) status = cuModuleGetFunction(function, *module, entry);\n",
            ),
        };
        format!(
            "\nstatic CUresult {name}_load_one(CUfunction *function, {takes}, int shared, int wide_cluster)\n{{\n{finds}\
             \x20   if (status == CUDA_SUCCESS && shared > 0) {{\n\
             \x20       status = cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared);\n\
             \x20       if (status == CUDA_SUCCESS) status = cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);\n\
             \x20   }}\n\
             \x20   if (status == CUDA_SUCCESS && wide_cluster) {{\n\
             \x20       status = cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);\n\
             \x20   }}\n\
             \x20   return status;\n}}\n"
        )
    }

    /// One launch.
    fn start(&self, out: &mut String, api: &Api) {
        let (name, status, function, stream) = (self.name, api.status, api.function, api.stream);
        let early = self.emission.target.dialect == Dialect::Cuda && self.may_begin_early();
        let takes = if early { ", int early" } else { "" };
        let _ = write!(
            out,
            "\nstatic {status} {name}_start({function} function, {stream} stream, uint64_t groups, const unsigned *rest, unsigned threads, \
             unsigned shared{takes}, void **arguments)\n{{\n"
        );
        if early {
            out.push_str(
                "    /* The kernel may begin before the launch ahead of it has ended, and waits by itself. */\n\
                 \x20   CUlaunchAttribute attribute;\n\
                 \x20   CUlaunchConfig config;\n\
                 \x20   if (early) {\n\
                 \x20       memset(&attribute, 0, sizeof attribute);\n\
                 \x20       memset(&config, 0, sizeof config);\n\
                 \x20       attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;\n\
                 \x20       attribute.value.programmaticStreamSerializationAllowed = 1;\n\
                 \x20       config.gridDimX = (unsigned)groups;\n\
                 \x20       config.gridDimY = rest[0];\n\
                 \x20       config.gridDimZ = rest[1];\n\
                 \x20       config.blockDimX = threads;\n\
                 \x20       config.blockDimY = 1;\n\
                 \x20       config.blockDimZ = 1;\n\
                 \x20       config.sharedMemBytes = shared;\n\
                 \x20       config.hStream = stream;\n\
                 \x20       config.attrs = &attribute;\n\
                 \x20       config.numAttrs = 1;\n\
                 \x20       return cuLaunchKernelEx(&config, function, arguments, NULL);\n\
                 \x20   }\n",
            );
        }
        out.push_str(match self.emission.target.dialect {
            Dialect::Cuda => {
                "    return cuLaunchKernel(function, (unsigned)groups, rest[0], rest[1], threads, 1, 1, shared, stream, arguments, NULL);\n}\n"
            }
            _ => {
                "    return hipLaunchKernel(function, dim3((unsigned)groups, rest[0], rest[1]), dim3(threads, 1, 1), arguments, shared, stream);\n}\n"
            }
        });
    }

    /// True if a launch may begin before the one ahead of it has ended.
    fn may_begin_early(&self) -> bool {
        let program = self.emission.program;
        let follows = |launch: &tilewright_gen::program::Launch| program.kernels.get(launch.kernel).is_some_and(|k| k.follows);
        self.emission.target.features.cluster && program.launches.iter().skip(1).any(follows)
    }
}
