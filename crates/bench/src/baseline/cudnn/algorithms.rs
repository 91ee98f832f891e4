//! cuDNN's convolution calls. Every algorithm that its own search offers is timed with the bias in a call of its own. Where there
//! is a bias, the fused call is timed, too. They pad both ends of a dimension alike. Zeros that no window reads are no padding,
//! and pixels that none reads are no input.

use super::{Buffers, Cudnn, Format, OK, Sizes, Tensor, WORKSPACE, Ways, check, narrow};
use crate::error::BenchError;
use cudarc::cudnn::sys;
use std::ffi::c_void;
use std::rc::Rc;
use tilewright_problem::{Direction, Layout};

/// Algorithms of the search that are timed.
const RESULTS: usize = 16;

struct Filter(sys::cudnnFilterDescriptor_t);

impl Filter {
    fn new(extents: &[u64], of: &Format) -> Result<Filter, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cudnnCreateFilterDescriptor(&mut raw)) }?;
        let filter = Filter(raw);
        let extents = narrow(extents)?;
        let format = match of.layout {
            Layout::Nchw => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
            Layout::Nhwc => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
        };
        // SAFETY: the array has as many elements as is said, and is read during the call.
        unsafe {
            let (dims, extents) = (extents.len() as i32, extents.as_ptr());
            check!(OK, sys::cudnnSetFilterNdDescriptor(raw, of.data, format, dims, extents))?;
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
    fn new(sizes: &Sizes, format: &Format) -> Result<Window, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cudnnCreateConvolutionDescriptor(&mut raw)) }?;
        let window = Window(raw);
        let (pad, stride, dilation) = (narrow(&sizes.front)?, narrow(&sizes.stride)?, narrow(&sizes.dilation)?);
        let groups = narrow(&[sizes.groups])?[0];
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        // SAFETY: the arrays have as many elements as is said, and are read during the call.
        unsafe {
            let (dims, pad, stride, dilation) = (pad.len() as i32, pad.as_ptr(), stride.as_ptr(), dilation.as_ptr());
            check!(OK, sys::cudnnSetConvolutionNdDescriptor(raw, dims, pad, stride, dilation, mode, format.accumulator))?;
            check!(OK, sys::cudnnSetConvolutionGroupCount(raw, groups))?;
            check!(OK, sys::cudnnSetConvolutionMathType(raw, format.math))?;
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

/// An algorithm of a direction.
#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    Data(sys::cudnnConvolutionBwdDataAlgo_t),
    Filter(sys::cudnnConvolutionBwdFilterAlgo_t),
}

/// A way to compute it.
#[derive(Clone, Copy, Debug)]
struct Choice {
    algorithm: Algorithm,
    workspace: usize,
    /// Bias in the same call.
    fused: bool,
}

pub(super) struct Algorithms<'a> {
    library: &'a Cudnn,
    input: Tensor,
    filter: Filter,
    window: Window,
    identity: Identity,
    buffers: Rc<Buffers>,
    choices: Vec<Choice>,
    direction: Direction,
    /// Without tensor cores.
    exact: bool,
}

/// What a search of cuDNN finds: `ask` gets how many results there is room for, where their number goes, and where they go.
fn offered<P>(ask: impl FnOnce(i32, &mut i32, *mut P) -> Result<(), BenchError>) -> Result<Vec<P>, BenchError> {
    let mut results = Vec::with_capacity(RESULTS);
    let mut count = 0;
    ask(RESULTS as i32, &mut count, results.as_mut_ptr())?;
    // SAFETY: the library has written as many results as it says, no more than there is room for.
    unsafe { results.set_len((count.max(0) as usize).min(RESULTS)) };
    Ok(results)
}

impl<'a> Algorithms<'a> {
    /// What is offered for an input of which so many `pixels` per channel are read, padded at both ends as in front.
    pub(super) fn new(
        library: &'a Cudnn,
        buffers: Rc<Buffers>,
        sizes: &Sizes,
        format: &Format,
        pixels: &[u64],
    ) -> Result<Self, BenchError> {
        let mut this = Algorithms {
            library,
            input: Tensor::new(&sizes.input(pixels), &sizes.input(&sizes.input), format)?,
            filter: Filter::new(&sizes.filter(), format)?,
            window: Window::new(sizes, format)?,
            identity: Identity::new()?,
            buffers,
            choices: Vec::new(),
            direction: format.direction,
            exact: format.exact(),
        };
        this.search()?;
        Ok(this)
    }

    /// Input, filter, output, workspace.
    fn addresses(&self) -> [*mut c_void; 4] {
        let Buffers { input, filter, output, workspace, .. } = &*self.buffers;
        [*input, *filter, *output, *workspace].map(|address| address as *mut c_void)
    }

    /// Input, filter, window, output.
    fn descriptors(
        &self,
    ) -> (
        sys::cudnnTensorDescriptor_t,
        sys::cudnnFilterDescriptor_t,
        sys::cudnnConvolutionDescriptor_t,
        sys::cudnnTensorDescriptor_t,
    ) {
        (self.input.0, self.filter.0, self.window.0, self.buffers.output_tensor.0)
    }

    /// Keeps an algorithm that works, within the workspace, with the arithmetic that is wanted.
    fn keep(&mut self, algorithm: Algorithm, status: sys::cudnnStatus_t, math: sys::cudnnMathType_t, workspace: usize) {
        use sys::cudnnMathType_t::*;
        let tensor = matches!(math, CUDNN_TENSOR_OP_MATH | CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION);
        if status == OK && !(tensor && self.exact) && workspace <= WORKSPACE as usize {
            self.choices.push(Choice { algorithm, workspace, fused: false });
        }
    }

    /// Collects what cuDNN's search offers.
    fn search(&mut self) -> Result<(), BenchError> {
        let [x, w, y, space] = self.addresses();
        let handle = self.library.handle;
        let (input, filter, window, output) = self.descriptors();
        let size = WORKSPACE as usize;
        // SAFETY, for all calls: the descriptors describe the buffers at these addresses. There is room for as many results as
        // are asked for. The workspace has this size.
        match self.direction {
            Direction::Forward => {
                let found = offered(|wanted, count, out| unsafe {
                    check!(
                        OK,
                        sys::cudnnFindConvolutionForwardAlgorithmEx(
                            handle, input, x, filter, w, window, output, y, wanted, count, out, space, size
                        )
                    )
                })?;
                found.iter().for_each(|r| self.keep(Algorithm::Forward(r.algo), r.status, r.mathType, r.memory));
            }
            Direction::BackwardData => {
                let found = offered(|wanted, count, out| unsafe {
                    check!(
                        OK,
                        sys::cudnnFindConvolutionBackwardDataAlgorithmEx(
                            handle, filter, w, output, y, window, input, x, wanted, count, out, space, size
                        )
                    )
                })?;
                found.iter().for_each(|r| self.keep(Algorithm::Data(r.algo), r.status, r.mathType, r.memory));
            }
            Direction::BackwardWeight => {
                let found = offered(|wanted, count, out| unsafe {
                    check!(
                        OK,
                        sys::cudnnFindConvolutionBackwardFilterAlgorithmEx(
                            handle, input, x, output, y, window, filter, w, wanted, count, out, space, size
                        )
                    )
                })?;
                found.iter().for_each(|r| self.keep(Algorithm::Filter(r.algo), r.status, r.mathType, r.memory));
            }
        }
        if self.buffers.bias.is_some() {
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
                self.choices.push(Choice { algorithm: Algorithm::Forward(algorithm), workspace: bytes, fused: true });
            }
        }
        Ok(())
    }
}

impl Ways for Algorithms<'_> {
    fn count(&self) -> usize {
        self.choices.len()
    }
    fn run(&self, number: usize) -> Result<(), BenchError> {
        let Some(&Choice { algorithm, workspace: bytes, fused }) = self.choices.get(number) else {
            return Err(BenchError::Call { call: "cudnnConvolutionForward", reason: format!("no algorithm {number}") });
        };
        let handle = self.library.handle;
        let [one, zero] = self.buffers.factors;
        let [x, w, y, space] = self.addresses();
        let (input, filter, window, output) = self.descriptors();
        // SAFETY, for all calls: the descriptors describe the buffers at these addresses (the workload made them for this
        // problem). The workspace is as large as the algorithm was said to need.
        match (algorithm, &self.buffers.bias) {
            (Algorithm::Forward(algorithm), Some((tensor, bias))) if fused => {
                let (tensor, bias, identity) = (tensor.0, *bias as *const c_void, self.identity.0);
                return unsafe {
                    check!(
                        OK,
                        sys::cudnnConvolutionBiasActivationForward(
                            handle, one, input, x, filter, w, window, algorithm, space, bytes, zero, output, y, tensor, bias,
                            identity, output, y
                        )
                    )
                };
            }
            (Algorithm::Forward(algorithm), _) => unsafe {
                check!(
                    OK,
                    sys::cudnnConvolutionForward(
                        handle, one, input, x, filter, w, window, algorithm, space, bytes, zero, output, y
                    )
                )
            },
            (Algorithm::Data(algorithm), _) => unsafe {
                check!(
                    OK,
                    sys::cudnnConvolutionBackwardData(
                        handle, one, filter, w, output, y, window, algorithm, space, bytes, zero, input, x
                    )
                )
            },
            (Algorithm::Filter(algorithm), _) => unsafe {
                check!(
                    OK,
                    sys::cudnnConvolutionBackwardFilter(
                        handle, one, input, x, output, y, window, algorithm, space, bytes, zero, filter, w
                    )
                )
            },
        }?;
        self.buffers.add_bias(handle)
    }
    fn describe(&self, number: usize) -> Option<String> {
        let choice = self.choices.get(number)?;
        let name = match choice.algorithm {
            Algorithm::Forward(algorithm) => format!("{algorithm:?}").replace("CUDNN_CONVOLUTION_FWD_ALGO_", ""),
            Algorithm::Data(algorithm) => format!("{algorithm:?}").replace("CUDNN_CONVOLUTION_BWD_DATA_ALGO_", "algorithm "),
            Algorithm::Filter(algorithm) => format!("{algorithm:?}").replace("CUDNN_CONVOLUTION_BWD_FILTER_ALGO_", "algorithm "),
        };
        let name = name.to_lowercase();
        Some(format!("{name}{}", if choice.fused { ", bias fused" } else { "" }))
    }
    fn workspace(&self, number: usize) -> Option<u64> {
        Some(self.choices.get(number)?.workspace as u64)
    }
}
