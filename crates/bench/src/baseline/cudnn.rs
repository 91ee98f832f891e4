//! cuDNN forward convolution in f32 with FMA units only (no TF32), NCHW. Every algorithm that cuDNN's own search offers is
//! timed, each with the bias in a call of its own, and the fused call where there is a bias; the fastest right one is kept.
//!
//! These calls pad both ends of a dimension alike. Zeros that no window reads are no padding, and pixels that none reads are no input
//! ([`fitted`]): what is left of an asymmetric padding is refused, not charged as a padded copy.

use super::cuda::{check, find, stream};
use super::{Baseline, Chosen, Runner, fastest_right};
use crate::error::BenchError;
use crate::record::Workspace;
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
        run.chosen = fastest_right(workload, run.choices.len(), &mut |n| run.run(n))?;
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

/// One dimension as cuDNN takes it: so many pixels of the input, and as much padding on both sides as the windows read in front, so
/// that every output is the same. `None` where there is no such pair: the windows read unlike padding on both sides.
fn fitted((input, filter, output): (u64, u64, u64), (stride, dilation): (u64, u64), front: u64) -> Option<(u64, u64)> {
    let window = dilation * (filter - 1) + 1;
    let read = (output - 1) * stride + window;
    let gives = |pixels: u64| (pixels + 2 * front).checked_sub(window).is_some_and(|room| room / stride + 1 == output);
    // All pixels, or only those that some window reads.
    let read_pixels = read.saturating_sub(front).min(input);
    [input, read_pixels].into_iter().find(|&pixels| pixels > 0 && gives(pixels)).map(|pixels| (pixels, front))
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
    input: Tensor,
    filter: Filter,
    window: Window,
    output: Tensor,
    bias: Option<(Tensor, usize)>,
    identity: Identity,
    /// Input, filter, output.
    addresses: [usize; 3],
    workspace: (Buffer, usize),
    choices: Vec<Choice>,
    chosen: Chosen,
}

impl<'a> Convolution<'a> {
    fn new(library: &'a Cudnn, workload: &Workload<'_>, conv: &Conv) -> Result<Self, BenchError> {
        let begin = spatial(&conv.pad_begin, 0);
        let (size, output) = (spatial(&conv.input, 1), spatial(&conv.output(), 1));
        let (stride, dilation, filter) = (spatial(&conv.stride, 1), spatial(&conv.dilation, 1), spatial(&conv.filter, 1));
        let shape = |n: u64, c: u64, spatial: &[u64]| [&[n, c], spatial].concat();
        let (mut pixels, mut pad) = (Vec::new(), Vec::new());
        for d in 0..size.len() {
            let Some((extent, both)) = fitted((size[d], filter[d], output[d]), (stride[d], dilation[d]), begin[d]) else {
                return Err(BenchError::Unsupported {
                    library: NAME,
                    reason:
                        "windows read unlike padding on both sides of a dimension, which its convolution calls do not have (its \
                             graph interface, which does, is not compared)"
                            .into(),
                });
            };
            pixels.push(extent);
            pad.push(both);
        }
        let (device, native) = (workload.device(), workload.native());
        let outputs = shape(conv.n, conv.k, &output);
        let bias = match workload.bias_address()? {
            Some(address) => {
                let extents = shape(1, conv.k, &vec![1; size.len()]);
                Some((Tensor::new(&extents, &extents)?, address))
            }
            None => None,
        };
        let memory = device.alloc(WORKSPACE)?;
        let workspace = native.memory(&memory)?;
        Ok(Convolution {
            library,
            input: Tensor::new(&shape(conv.n, conv.c, &pixels), &shape(conv.n, conv.c, &size))?,
            filter: Filter::new(&shape(conv.k, conv.c_per_group(), &filter))?,
            window: Window::new(conv, &pad)?,
            output: Tensor::new(&outputs, &outputs)?,
            bias,
            identity: Identity::new()?,
            addresses: [workload.address(Operand::A)?, workload.address(Operand::B)?, workload.address(Operand::C)?],
            workspace: (memory, workspace),
            choices: Vec::new(),
            chosen: Chosen { number: 0, right: false, passed_over: 0 },
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
        self.run(self.chosen.number)
    }
    fn note(&self) -> String {
        let Some(choice) = self.choices.get(self.chosen.number) else { return String::new() };
        let name = format!("{:?}", choice.algorithm).replace("CUDNN_CONVOLUTION_FWD_ALGO_", "").to_lowercase();
        let bias = if choice.fused { ", bias fused" } else { "" };
        format!("{name}{bias}, of {}{}", self.choices.len(), self.chosen.note())
    }
    fn workspace(&self) -> Option<Workspace> {
        let used = self.choices.get(self.chosen.number)?.workspace as u64;
        Some(Workspace { limit: WORKSPACE, used })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which inputs each output reads: of a padding, or a pixel.
    fn reads(pixels: u64, front: u64, (filter, output): (u64, u64), (stride, dilation): (u64, u64)) -> Vec<Vec<Option<u64>>> {
        let tap = |o: u64, f: u64| (o * stride + f * dilation).checked_sub(front).filter(|at| *at < pixels);
        (0..output).map(|o| (0..filter).map(|f| tap(o, f)).collect()).collect()
    }

    #[test]
    fn padding_that_no_window_reads_is_none() {
        // Stride 2 over 33 and 31 pixels with a zero behind that no window of 3 reaches.
        assert_eq!(fitted((33, 3, 16), (2, 1), 0), Some((33, 0)));
        assert_eq!(fitted((31, 3, 15), (2, 1), 0), Some((31, 0)));
        // 32 pixels with a zero behind: the last window reads it, and none in front.
        assert_eq!(fitted((32, 3, 16), (2, 1), 0), None);
        // Padding in front only: the last pixel is read by none, or the zero behind is not.
        assert_eq!(fitted((8, 3, 4), (2, 1), 1), Some((8, 1)));
        assert_eq!(fitted((9, 3, 4), (2, 1), 1), Some((8, 1)));
        assert_eq!(fitted((9, 3, 8), (1, 1), 1), None);
    }

    #[test]
    fn generated_kernels_do_not_check_padding_that_no_window_reads_either() {
        let view = |behind: u64| {
            let conv = Conv::new(Scalar::F32, 2, 3, 4, &[33, 31], &[3, 3]).stride(&[2, 2]).pad(&[0, 0], &[behind, behind]);
            let problem = conv.build().unwrap().into();
            tilewright_problem::lower::lower(&problem, tilewright_problem::lower::ConvForm::Merged).unwrap().a.view.access
        };
        assert_eq!(view(1), view(0));
    }

    #[test]
    fn what_fits_reads_the_same() {
        let mut fits = 0;
        for input in 1..9u64 {
            for filter in 1..4 {
                for (stride, dilation) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)] {
                    for (front, behind) in [(0, 0), (1, 1), (0, 1), (1, 0), (2, 1), (1, 2)] {
                        let window = dilation * (filter - 1) + 1;
                        let Some(room) = (input + front + behind).checked_sub(window) else { continue };
                        let output = room / stride + 1;
                        let Some((pixels, pad)) = fitted((input, filter, output), (stride, dilation), front) else {
                            // The windows do read more or fewer zeros behind than in front.
                            assert_ne!(front, behind);
                            continue;
                        };
                        let steps = (stride, dilation);
                        assert_eq!((pixels + 2 * pad - window) / stride + 1, output);
                        assert_eq!(reads(pixels, pad, (filter, output), steps), reads(input, front, (filter, output), steps));
                        fits += 1;
                    }
                }
            }
        }
        assert!(fits > 300, "{fits}");
    }
}
