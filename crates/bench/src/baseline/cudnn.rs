//! cuDNN forward convolution in f32 with FMA units only (no TF32), NCHW. Every algorithm that cuDNN's own search offers is
//! timed, each with the bias in a call of its own, and the fused call where there is a bias; the best is kept.
//! Asymmetric padding, which cuDNN does not have, is a padded copy of the input that is part of the time.

use super::cuda::{check, find, stream};
use super::{Baseline, Runner, fastest};
use crate::error::BenchError;
use crate::workload::Workload;
use cudarc::cudnn::sys::{self, cudnnStatus_t::CUDNN_STATUS_SUCCESS as OK};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use tilewright_device::{Buffer, Native};
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Conv, Direction, Layout, Math, Problem};

const NAME: &str = "cudnn";
/// Workspace offered, in bytes.
const WORKSPACE: u64 = 1 << 30;
/// Algorithms of the search that are timed.
const RESULTS: usize = 16;
/// Parts of cuDNN that it loads by itself, in order of dependence, then the library.
const FILES: [&str; 11] = [
    "libcublasLt.so",
    "libcublas.so",
    "libnvrtc.so",
    "libcudnn_graph.so",
    "libcudnn_engines_runtime_compiled.so",
    "libcudnn_engines_precompiled.so",
    "libcudnn_heuristic.so",
    "libcudnn_ops.so",
    "libcudnn_adv.so",
    "libcudnn_cnn.so",
    "libcudnn.so",
];

pub(super) struct Cudnn {
    handle: sys::cudnnHandle_t,
}

impl Cudnn {
    pub(super) fn open(native: &dyn Native) -> Result<Self, BenchError> {
        let stream = stream(native, NAME)?;
        // SAFETY: loading the vendor's library runs its initialisers, which is what is wanted.
        let present = || unsafe { sys::is_culib_present() };
        find(NAME, &FILES, &["cudnn", "cu13", "cublas", "cuda_nvrtc"], "nvidia-cudnn-cu13", present)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the out pointer is valid, the device's context is current.
        unsafe { check!(OK, sys::cudnnCreate(&mut handle)) }?;
        let this = Cudnn { handle };
        // SAFETY: the stream belongs to the current context and outlives the handle.
        unsafe { check!(OK, sys::cudnnSetStream(handle, stream as sys::cudaStream_t)) }?;
        Ok(this)
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once.
        let _ = unsafe { sys::cudnnDestroy(self.handle) };
    }
}

impl Baseline for Cudnn {
    fn name(&self) -> &'static str {
        NAME
    }
    fn version(&self) -> String {
        // SAFETY: the library is loaded.
        super::version(unsafe { sys::cudnnGetVersion() })
    }
    fn prepare<'a>(&'a self, workload: &'a Workload<'a>) -> Result<Box<dyn Runner + 'a>, BenchError> {
        let unsupported = |reason: &str| Err(BenchError::Unsupported { library: NAME, reason: reason.into() });
        let Problem::Conv(conv) = workload.problem() else { return unsupported("it computes convolutions only") };
        if conv.direction != Direction::Forward || conv.layout != Layout::Nchw || conv.dtype != Scalar::F32 {
            return unsupported("only forward convolutions in f32 and NCHW are compared");
        }
        if conv.activation.is_some() || conv.residual || conv.out_dtype != conv.dtype {
            return unsupported("only convolutions without activation and residual, with an f32 output, are compared");
        }
        if workload.math() != Math::Exact {
            return unsupported("only f32 without TF32 is compared");
        }
        let mut run = Convolution::new(self, workload, conv)?;
        run.search(conv.bias)?;
        let (chosen, _) = fastest(workload.native(), run.choices.len(), &mut |n| run.run(n))?;
        run.chosen = chosen;
        Ok(Box::new(run))
    }
}

/// Sizes as cuDNN takes them: two spatial dimensions at least.
fn narrow(values: &[u64]) -> Result<Vec<i32>, BenchError> {
    let fit = |v: &u64| {
        i32::try_from(*v)
            .map_err(|_| BenchError::Unsupported { library: NAME, reason: format!("{v} does not fit its 32-bit sizes") })
    };
    values.iter().map(fit).collect()
}

/// A list per spatial dimension, filled up in front to two dimensions.
fn spatial(list: &[u64], fill: u64) -> Vec<u64> {
    let missing = 2usize.saturating_sub(list.len());
    std::iter::repeat_n(fill, missing).chain(list.iter().copied()).collect()
}

/// A tensor descriptor.
struct Tensor(sys::cudnnTensorDescriptor_t);

impl Tensor {
    /// `extents` within a dense tensor of `allocated` extents, both outermost first.
    fn new(extents: &[u64], allocated: &[u64]) -> Result<Tensor, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cudnnCreateTensorDescriptor(&mut raw)) }?;
        let tensor = Tensor(raw);
        let mut strides = vec![1u64; allocated.len()];
        for d in (1..allocated.len()).rev() {
            strides[d - 1] = strides[d] * allocated[d];
        }
        let (extents, strides) = (narrow(extents)?, narrow(&strides)?);
        let float = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
        // SAFETY: both arrays have as many elements as is said, and are read during the call.
        unsafe {
            let (dims, extents, strides) = (extents.len() as i32, extents.as_ptr(), strides.as_ptr());
            check!(OK, sys::cudnnSetTensorNdDescriptor(raw, float, dims, extents, strides))?;
        }
        Ok(tensor)
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cudnnDestroyTensorDescriptor(self.0) };
    }
}

struct Filter(sys::cudnnFilterDescriptor_t);

impl Filter {
    fn new(extents: &[u64]) -> Result<Filter, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cudnnCreateFilterDescriptor(&mut raw)) }?;
        let filter = Filter(raw);
        let extents = narrow(extents)?;
        let (float, nchw) = (sys::cudnnDataType_t::CUDNN_DATA_FLOAT, sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW);
        // SAFETY: the array has as many elements as is said, and is read during the call.
        unsafe {
            let (dims, extents) = (extents.len() as i32, extents.as_ptr());
            check!(OK, sys::cudnnSetFilterNdDescriptor(raw, float, nchw, dims, extents))?;
        }
        Ok(filter)
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cudnnDestroyFilterDescriptor(self.0) };
    }
}

struct Window(sys::cudnnConvolutionDescriptor_t);

impl Window {
    fn new(conv: &Conv, pad: &[u64]) -> Result<Window, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cudnnCreateConvolutionDescriptor(&mut raw)) }?;
        let window = Window(raw);
        let (pad, stride) = (narrow(pad)?, narrow(&spatial(&conv.stride, 1))?);
        let dilation = narrow(&spatial(&conv.dilation, 1))?;
        let groups = narrow(&[conv.groups])?[0];
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let float = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
        // SAFETY: the arrays have as many elements as is said, and are read during the call.
        unsafe {
            let (dims, pad, stride, dilation) = (pad.len() as i32, pad.as_ptr(), stride.as_ptr(), dilation.as_ptr());
            check!(OK, sys::cudnnSetConvolutionNdDescriptor(raw, dims, pad, stride, dilation, mode, float))?;
            check!(OK, sys::cudnnSetConvolutionGroupCount(raw, groups))?;
            check!(OK, sys::cudnnSetConvolutionMathType(raw, sys::cudnnMathType_t::CUDNN_FMA_MATH))?;
        }
        Ok(window)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cudnnDestroyConvolutionDescriptor(self.0) };
    }
}

/// The activation that changes nothing.
struct Identity(sys::cudnnActivationDescriptor_t);

impl Identity {
    fn new() -> Result<Identity, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cudnnCreateActivationDescriptor(&mut raw)) }?;
        let identity = Identity(raw);
        let mode = sys::cudnnActivationMode_t::CUDNN_ACTIVATION_IDENTITY;
        let nan = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
        // SAFETY: the descriptor is alive.
        unsafe { check!(OK, sys::cudnnSetActivationDescriptor(raw, mode, nan, 0.0)) }?;
        Ok(identity)
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { sys::cudnnDestroyActivationDescriptor(self.0) };
    }
}

/// A padded copy of the input, made anew in every run. Its border is zero from the start and nobody writes it.
struct Padded {
    /// The input, dense.
    from: Tensor,
    /// The same extents within the padded tensor.
    to: Tensor,
    /// Address of the input, and of its first element's place in the copy.
    addresses: [usize; 2],
    _memory: Buffer,
}

/// A way to compute it.
#[derive(Clone, Copy, Debug)]
struct Choice {
    algorithm: sys::cudnnConvolutionFwdAlgo_t,
    workspace: usize,
    /// Bias in the same call.
    fused: bool,
}

struct Convolution<'a> {
    library: &'a Cudnn,
    padded: Option<Padded>,
    input: Tensor,
    filter: Filter,
    window: Window,
    output: Tensor,
    bias: Option<(Tensor, usize)>,
    identity: Identity,
    /// Input (or its padded copy), filter, output.
    addresses: [usize; 3],
    workspace: (Buffer, usize),
    choices: Vec<Choice>,
    chosen: usize,
}

impl<'a> Convolution<'a> {
    fn new(library: &'a Cudnn, workload: &Workload<'_>, conv: &Conv) -> Result<Self, BenchError> {
        let (begin, end) = (spatial(&conv.pad_begin, 0), spatial(&conv.pad_end, 0));
        let size = spatial(&conv.input, 1);
        let shape = |n: u64, c: u64, spatial: &[u64]| [&[n, c], spatial].concat();
        let dense = shape(conv.n, conv.c, &size);
        let (device, native) = (workload.device(), workload.native());
        let source = workload.address(Operand::A)?;
        let (padded, input, pad) = if begin == end {
            (None, dense.clone(), begin)
        } else {
            let total: Vec<u64> = size.iter().zip(&begin).zip(&end).map(|((s, b), e)| s + b + e).collect();
            let whole = shape(conv.n, conv.c, &total);
            let memory = device.alloc(4 * whole.iter().product::<u64>())?;
            device.fill(&memory, 0)?;
            let first = begin.iter().zip(&total).fold(0, |at, (b, t)| at * t + b);
            let base = native.memory(&memory)?;
            let copy = Padded {
                from: Tensor::new(&dense, &dense)?,
                to: Tensor::new(&dense, &whole)?,
                addresses: [source, base + 4 * first as usize],
                _memory: memory,
            };
            (Some((copy, base)), whole, vec![0; size.len()])
        };
        let outputs = shape(conv.n, conv.k, &spatial(&conv.output(), 1));
        let bias = match workload.bias_address()? {
            Some(address) => {
                let extents = shape(1, conv.k, &vec![1; size.len()]);
                Some((Tensor::new(&extents, &extents)?, address))
            }
            None => None,
        };
        let memory = device.alloc(WORKSPACE)?;
        let workspace = native.memory(&memory)?;
        let address = padded.as_ref().map_or(source, |(_, base)| *base);
        Ok(Convolution {
            library,
            padded: padded.map(|(copy, _)| copy),
            input: Tensor::new(&input, &input)?,
            filter: Filter::new(&shape(conv.k, conv.c_per_group(), &spatial(&conv.filter, 1)))?,
            window: Window::new(conv, &pad)?,
            output: Tensor::new(&outputs, &outputs)?,
            bias,
            identity: Identity::new()?,
            addresses: [address, workload.address(Operand::B)?, workload.address(Operand::C)?],
            workspace: (memory, workspace),
            choices: Vec::new(),
            chosen: 0,
        })
    }

    /// Collects what cuDNN's search offers.
    fn search(&mut self, bias: bool) -> Result<(), BenchError> {
        let mut results = [const { MaybeUninit::<sys::cudnnConvolutionFwdAlgoPerf_t>::uninit() }; RESULTS];
        let mut count = 0;
        let [x, w, y] = self.addresses.map(|address| address as *mut c_void);
        let (handle, space) = (self.library.handle, self.workspace.1 as *mut c_void);
        let (input, filter, window, output) = (self.input.0, self.filter.0, self.window.0, self.output.0);
        let (wanted, out) = (RESULTS as i32, results.as_mut_ptr().cast());
        // SAFETY: the descriptors describe the buffers at these addresses; the array has as many elements as are asked for;
        // the workspace has this size.
        unsafe {
            check!(
                OK,
                sys::cudnnFindConvolutionForwardAlgorithmEx(
                    handle,
                    input,
                    x,
                    filter,
                    w,
                    window,
                    output,
                    y,
                    wanted,
                    &mut count,
                    out,
                    space,
                    WORKSPACE as usize
                )
            )?;
        }
        let count = (count.max(0) as usize).min(RESULTS);
        for result in results.into_iter().take(count) {
            // SAFETY: the library has written as many results as it says.
            let result = unsafe { result.assume_init() };
            use sys::cudnnMathType_t::*;
            let tensor = matches!(result.mathType, CUDNN_TENSOR_OP_MATH | CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
            if result.status == OK && !tensor && result.memory <= WORKSPACE as usize {
                self.choices.push(Choice { algorithm: result.algo, workspace: result.memory, fused: false });
            }
        }
        if bias {
            // The only algorithm with which cuDNN fuses a bias without an activation.
            let algorithm = sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
            let mut bytes = 0;
            // SAFETY: the descriptors are alive, the out pointer is valid.
            let asked = unsafe {
                check!(
                    OK,
                    sys::cudnnGetConvolutionForwardWorkspaceSize(handle, input, filter, window, output, algorithm, &mut bytes)
                )
            };
            if asked.is_ok() && bytes <= WORKSPACE as usize {
                self.choices.push(Choice { algorithm, workspace: bytes, fused: true });
            }
        }
        Ok(())
    }

    fn run(&self, n: usize) -> Result<(), String> {
        let Some(&Choice { algorithm, workspace, fused }) = self.choices.get(n) else { return Err("no such choice".into()) };
        self.compute(algorithm, workspace, fused).map_err(|e| e.to_string())
    }

    fn compute(&self, algorithm: sys::cudnnConvolutionFwdAlgo_t, bytes: usize, fused: bool) -> Result<(), BenchError> {
        let handle = self.library.handle;
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero): (*const c_void, *const c_void) = ((&raw const one).cast(), (&raw const zero).cast());
        let [x, w, y] = self.addresses.map(|address| address as *mut c_void);
        let space = self.workspace.1 as *mut c_void;
        let (input, filter, window, output) = (self.input.0, self.filter.0, self.window.0, self.output.0);
        // SAFETY: the descriptors describe the buffers at these addresses (the workload made them for this problem); the
        // workspace is as large as the algorithm was said to need.
        unsafe {
            if let Some(copy) = &self.padded {
                let [from, to] = copy.addresses.map(|address| address as *mut c_void);
                check!(OK, sys::cudnnTransformTensor(handle, one, copy.from.0, from, zero, copy.to.0, to))?;
            }
            match &self.bias {
                Some((tensor, bias)) if fused => {
                    let bias = *bias as *const c_void;
                    check!(
                        OK,
                        sys::cudnnConvolutionBiasActivationForward(
                            handle,
                            one,
                            input,
                            x,
                            filter,
                            w,
                            window,
                            algorithm,
                            space,
                            bytes,
                            zero,
                            output,
                            y,
                            tensor.0,
                            bias,
                            self.identity.0,
                            output,
                            y
                        )
                    )
                }
                bias => {
                    check!(
                        OK,
                        sys::cudnnConvolutionForward(
                            handle, one, input, x, filter, w, window, algorithm, space, bytes, zero, output, y
                        )
                    )?;
                    match bias {
                        Some((tensor, bias)) => {
                            check!(OK, sys::cudnnAddTensor(handle, one, tensor.0, *bias as *const c_void, one, output, y))
                        }
                        None => Ok(()),
                    }
                }
            }
        }
    }
}

impl Runner for Convolution<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        self.run(self.chosen)
    }
    fn note(&self) -> String {
        let Some(choice) = self.choices.get(self.chosen) else { return String::new() };
        let name = format!("{:?}", choice.algorithm).replace("CUDNN_CONVOLUTION_FWD_ALGO_", "").to_lowercase();
        let bias = if choice.fused { ", bias fused" } else { "" };
        let copy = if self.padded.is_some() { ", padded copy" } else { "" };
        format!("{name}{bias}{copy}, best of {}", self.choices.len())
    }
}
