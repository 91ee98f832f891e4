//! cuDNN's convolutions in three directions, in f64, f32 (FMA units only, or TF32), f16 and bf16, NCHW and NHWC. They come from
//! two interfaces:
//!
//! - the algorithms of its convolution calls ([`algorithms`]), where both ends of a dimension have the same padding;
//! - the plans of its graph interface ([`graph`]).
//!
//! Every way that cuDNN offers is timed with the bias included; the fastest right one is kept.

mod algorithms;
mod graph;

use super::cuda::{check, find, stream};
use super::{Baseline, Chosen, Runner, Samples, cublas, fastest_right};
use crate::error::BenchError;
use crate::record::Workspace;
use crate::workload::Workload;
use cudarc::cudnn::sys::{self, cudnnStatus_t::CUDNN_STATUS_SUCCESS as OK};
use std::ffi::c_void;
use std::rc::Rc;
use tilewright_device::{Buffer, Native};
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Conv, Direction, Layout, Math, Problem};

const NAME: &str = "cudnn";
/// Workspace offered, in bytes.
const WORKSPACE: u64 = 1 << 30;
/// The libraries that cuDNN loads, in order of dependence, then cuDNN.
const FILES: [&str; 8] = [
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
        let libraries: [(&[&str], &[&str]); 3] =
            [(&cublas::FILES, &cublas::PACKAGES), (&["libnvrtc.so"], &["cu13", "cuda_nvrtc"]), (&FILES, &["cudnn", "cu13"])];
        find(NAME, &libraries, "nvidia-cudnn-cu13", present)?;
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
        if conv.activation.is_some() || conv.residual || conv.out_dtype != conv.dtype {
            return unsupported(
                "only convolutions without activation and residual, with a result of the operands' type, are compared",
            );
        }
        let forward = conv.direction == Direction::Forward;
        if conv.bias && (!forward || conv.dtype != Scalar::F32) {
            return unsupported("a bias is compared with forward convolutions in f32 only");
        }
        let sizes = Sizes::new(conv);
        let Some(format) = Format::new(conv, workload.math()) else { return unsupported("it has no convolutions of this type") };
        let buffers = Rc::new(Buffers::new(workload, conv, &sizes, &format)?);
        // Pixels that no window reads have a gradient, too: zeros, which the calls do not write.
        let fits = |pixels: &Vec<u64>| conv.direction != Direction::BackwardData || *pixels == sizes.input;
        let mut refused = Vec::new();
        let mut both = Both { interfaces: Vec::new() };
        match sizes.fitted().filter(fits) {
            Some(pixels) => match algorithms::Algorithms::new(self, buffers.clone(), &sizes, &format, &pixels) {
                Ok(algorithms) => both.interfaces.push(Box::new(algorithms)),
                Err(e) => refused.push(e.to_string()),
            },
            None => refused.push("its convolution calls have no unlike padding on both sides of a dimension".into()),
        }
        match graph::Plans::new(self, buffers, &sizes, &format) {
            Ok(plans) => both.interfaces.push(Box::new(plans)),
            Err(e) => refused.push(e.to_string()),
        }
        if both.count() == 0 {
            return unsupported(&refused.join("; "));
        }
        let ways: Box<dyn Ways + 'a> = Box::new(both);
        let run = &mut |n| ways.run(n).map_err(|e| e.to_string());
        let chosen = fastest_right(workload, ways.count(), Samples::ALL, run)?;
        Ok(Box::new(Convolution { ways, chosen }))
    }
}

/// Layout, element type and accumulator type of a convolution, and the units that may multiply.
struct Format {
    direction: Direction,
    layout: Layout,
    data: sys::cudnnDataType_t,
    accumulator: sys::cudnnDataType_t,
    math: sys::cudnnMathType_t,
}

/// The factors 1 and 0 of products of f64.
static DOUBLES: [f64; 2] = [1.0, 0.0];
/// Those of all others.
static FLOATS: [f32; 2] = [1.0, 0.0];

impl Format {
    fn new(conv: &Conv, math: Math) -> Option<Format> {
        use sys::{cudnnDataType_t::*, cudnnMathType_t::*};
        let (data, math) = match (conv.dtype, math) {
            (Scalar::F64, _) => (CUDNN_DATA_DOUBLE, CUDNN_DEFAULT_MATH),
            (Scalar::F32, Math::Exact | Math::Tf32x3 | Math::Bf16x3 | Math::Bf16x6) => (CUDNN_DATA_FLOAT, CUDNN_FMA_MATH),
            (Scalar::F32, Math::Tf32) => (CUDNN_DATA_FLOAT, CUDNN_TENSOR_OP_MATH),
            (Scalar::F16, _) => (CUDNN_DATA_HALF, CUDNN_TENSOR_OP_MATH),
            (Scalar::BF16, _) => (CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_OP_MATH),
            _ => return None,
        };
        let accumulator = if data == CUDNN_DATA_DOUBLE { data } else { CUDNN_DATA_FLOAT };
        Some(Format { direction: conv.direction, layout: conv.layout, data, accumulator, math })
    }
    /// The factors of f64 are of f64, all others of f32.
    fn is_double(&self) -> bool {
        self.data == sys::cudnnDataType_t::CUDNN_DATA_DOUBLE
    }
    /// The factors 1 and 0 in the type that calls take.
    fn factors(&self) -> [*const c_void; 2] {
        let of = |number: usize| {
            if self.is_double() { (&raw const DOUBLES[number]).cast() } else { (&raw const FLOATS[number]).cast() }
        };
        [of(0), of(1)]
    }
    /// f32 with FMA units only.
    fn exact(&self) -> bool {
        self.math == sys::cudnnMathType_t::CUDNN_FMA_MATH
    }
    /// Strides of a dense tensor with extents (outer, channels, pixels ...).
    fn strides(&self, extents: &[u64]) -> Vec<u64> {
        match (self.layout, extents) {
            (Layout::Nhwc, [outer, channels, pixels @ ..]) => {
                let mut strides = strides(&[&[*outer], pixels, &[*channels]].concat());
                let channel = strides.pop().unwrap_or(1);
                strides.insert(1, channel);
                strides
            }
            _ => strides(extents),
        }
    }
}

/// The ways that an interface of cuDNN offers to compute one convolution.
trait Ways {
    fn count(&self) -> usize;
    /// Enqueues the convolution, its bias included.
    fn run(&self, number: usize) -> Result<(), BenchError>;
    /// What it is called in records.
    fn describe(&self, number: usize) -> Option<String>;
    /// Bytes of the workspace that it uses.
    fn workspace(&self, number: usize) -> Option<u64>;
}

/// The ways of several interfaces, one after the other.
struct Both<'a> {
    interfaces: Vec<Box<dyn Ways + 'a>>,
}

impl<'a> Both<'a> {
    /// The interface of a way, and the way's number there.
    fn find(&self, mut number: usize) -> Option<(&(dyn Ways + 'a), usize)> {
        for ways in &self.interfaces {
            match number.checked_sub(ways.count()) {
                Some(rest) => number = rest,
                None => return Some((ways.as_ref(), number)),
            }
        }
        None
    }
}

impl Ways for Both<'_> {
    fn count(&self) -> usize {
        self.interfaces.iter().map(|ways| ways.count()).sum()
    }
    fn run(&self, number: usize) -> Result<(), BenchError> {
        match self.find(number) {
            Some((ways, number)) => ways.run(number),
            None => Err(BenchError::Call { call: "a convolution", reason: format!("no way {number}") }),
        }
    }
    fn describe(&self, number: usize) -> Option<String> {
        self.find(number).and_then(|(ways, number)| ways.describe(number))
    }
    fn workspace(&self, number: usize) -> Option<u64> {
        self.find(number).and_then(|(ways, number)| ways.workspace(number))
    }
}

struct Convolution<'a> {
    ways: Box<dyn Ways + 'a>,
    chosen: Chosen,
}

impl Runner for Convolution<'_> {
    fn enqueue(&mut self) -> Result<(), String> {
        self.ways.run(self.chosen.number).map_err(|e| e.to_string())
    }
    fn note(&self) -> String {
        let Some(way) = self.ways.describe(self.chosen.number) else { return String::new() };
        format!("{way}, of {}{}", self.ways.count(), self.chosen.note())
    }
    fn workspace(&self) -> Option<Workspace> {
        let used = self.ways.workspace(self.chosen.number)?;
        Some(Workspace { limit: WORKSPACE, used })
    }
}

/// Sizes of a convolution as cuDNN takes them: two spatial dimensions at least, outermost first.
struct Sizes {
    n: u64,
    c: u64,
    k: u64,
    groups: u64,
    input: Vec<u64>,
    filter: Vec<u64>,
    output: Vec<u64>,
    stride: Vec<u64>,
    dilation: Vec<u64>,
    /// Padding in front.
    front: Vec<u64>,
}

impl Sizes {
    fn new(conv: &Conv) -> Sizes {
        let spatial = |list: &[u64], fill: u64| -> Vec<u64> {
            let missing = 2usize.saturating_sub(list.len());
            std::iter::repeat_n(fill, missing).chain(list.iter().copied()).collect()
        };
        Sizes {
            n: conv.n,
            c: conv.c,
            k: conv.k,
            groups: conv.groups,
            input: spatial(&conv.input, 1),
            filter: spatial(&conv.filter, 1),
            output: spatial(&conv.output(), 1),
            stride: spatial(&conv.stride, 1),
            dilation: spatial(&conv.dilation, 1),
            front: spatial(&conv.pad_begin, 0),
        }
    }
    /// Extents of the input's tensor with these pixels per channel.
    fn input(&self, pixels: &[u64]) -> Vec<u64> {
        [&[self.n, self.c], pixels].concat()
    }
    /// Extents of the filter.
    fn filter(&self) -> Vec<u64> {
        [&[self.k, self.c / self.groups], &self.filter[..]].concat()
    }
    /// Extents of the output.
    fn output(&self) -> Vec<u64> {
        [&[self.n, self.k], &self.output[..]].concat()
    }
    /// Pixels of the input with which the padding in front, taken for both ends, gives the same outputs.
    fn fitted(&self) -> Option<Vec<u64>> {
        (0..self.input.len()).map(|d| self.dimension(d).fitted()).collect()
    }
    fn dimension(&self, d: usize) -> Dimension {
        Dimension {
            input: self.input[d],
            filter: self.filter[d],
            output: self.output[d],
            stride: self.stride[d],
            dilation: self.dilation[d],
            front: self.front[d],
        }
    }
    /// Padding after the last pixel that some window reads.
    fn back(&self) -> Vec<u64> {
        let one = |d: usize| {
            let of = self.dimension(d);
            of.last_read().saturating_sub(of.front + of.input)
        };
        (0..self.input.len()).map(one).collect()
    }
}

/// One dimension of a convolution.
#[derive(Clone, Copy)]
struct Dimension {
    input: u64,
    filter: u64,
    output: u64,
    stride: u64,
    dilation: u64,
    /// Padding in front.
    front: u64,
}

impl Dimension {
    /// Pixels that a window spans.
    const fn window(&self) -> u64 {
        self.dilation * (self.filter - 1) + 1
    }

    /// Where the last window ends, in pixels from the start of the padding in front.
    const fn last_read(&self) -> u64 {
        (self.output - 1) * self.stride + self.window()
    }

    /// Number of pixels for which symmetric padding gives the same outputs: all pixels, or only those that some window reads.
    /// `None` if there is no such number, because the windows read different padding at the two ends.
    fn fitted(&self) -> Option<u64> {
        let room = |pixels: u64| (pixels + 2 * self.front).checked_sub(self.window());
        let gives = |pixels: u64| room(pixels).is_some_and(|room| room / self.stride + 1 == self.output);
        let read = self.last_read().saturating_sub(self.front).min(self.input);
        [self.input, read].into_iter().find(|&pixels| pixels > 0 && gives(pixels))
    }
}

/// Sizes as an interface of cuDNN takes them.
fn narrow<T: TryFrom<u64>>(values: &[u64]) -> Result<Vec<T>, BenchError> {
    let fit = |v: &u64| {
        let bits = 8 * size_of::<T>();
        T::try_from(*v)
            .map_err(|_| BenchError::Unsupported { library: NAME, reason: format!("{v} does not fit its {bits}-bit sizes") })
    };
    values.iter().map(fit).collect()
}

/// Strides of a dense tensor, outermost first.
fn strides(extents: &[u64]) -> Vec<u64> {
    let mut strides = vec![1u64; extents.len()];
    for d in (1..extents.len()).rev() {
        strides[d - 1] = strides[d] * extents[d];
    }
    strides
}

/// A tensor descriptor.
struct Tensor(sys::cudnnTensorDescriptor_t);

impl Tensor {
    /// `extents` within a dense tensor of `allocated` extents, both outermost first.
    fn new(extents: &[u64], allocated: &[u64], format: &Format) -> Result<Tensor, BenchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the out pointer is valid.
        unsafe { check!(OK, sys::cudnnCreateTensorDescriptor(&mut raw)) }?;
        let tensor = Tensor(raw);
        let (extents, strides) = (narrow(extents)?, narrow(&format.strides(allocated))?);
        // SAFETY: both arrays have as many elements as is said, and are read during the call.
        unsafe {
            let (dims, extents, strides) = (extents.len() as i32, extents.as_ptr(), strides.as_ptr());
            check!(OK, sys::cudnnSetTensorNdDescriptor(raw, format.data, dims, extents, strides))?;
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

/// The operands and the workspace on the device.
struct Buffers {
    input: usize,
    filter: usize,
    output: usize,
    output_tensor: Tensor,
    /// 1 and 0.
    factors: [*const c_void; 2],
    bias: Option<(Tensor, usize)>,
    workspace: usize,
    /// Holds the workspace.
    _memory: Buffer,
}

impl Buffers {
    fn new(workload: &Workload<'_>, conv: &Conv, sizes: &Sizes, format: &Format) -> Result<Buffers, BenchError> {
        let output = sizes.output();
        let bias = match workload.bias_address()? {
            Some(address) => {
                let extents: Vec<u64> = (0..output.len()).map(|d| if d == 1 { sizes.k } else { 1 }).collect();
                Some((Tensor::new(&extents, &extents, format)?, address))
            }
            None => None,
        };
        let memory = workload.device().alloc(WORKSPACE)?;
        let [input, filter, result] = match conv.direction {
            Direction::Forward => [Operand::A, Operand::B, Operand::C],
            Direction::BackwardData => [Operand::C, Operand::B, Operand::A],
            Direction::BackwardWeight => [Operand::B, Operand::C, Operand::A],
        };
        Ok(Buffers {
            input: workload.address(input)?,
            filter: workload.address(filter)?,
            output: workload.address(result)?,
            output_tensor: Tensor::new(&output, &output, format)?,
            factors: format.factors(),
            bias,
            workspace: workload.native().memory(&memory)?,
            _memory: memory,
        })
    }

    /// Enqueues a call of its own that adds the bias to the output; nothing where there is none.
    fn add_bias(&self, handle: sys::cudnnHandle_t) -> Result<(), BenchError> {
        let Some((tensor, bias)) = &self.bias else { return Ok(()) };
        let [one, _] = self.factors;
        let (bias, output) = (*bias as *const c_void, self.output as *mut c_void);
        // SAFETY: the descriptors describe the buffers at these addresses; the factors are read during the call.
        unsafe { check!(OK, sys::cudnnAddTensor(handle, one, tensor.0, bias, one, self.output_tensor.0, output)) }
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
        let fitted = |input, output, stride, front| Dimension { input, filter: 3, output, stride, dilation: 1, front }.fitted();
        // Stride 2 over 33 and 31 pixels with a trailing zero that no window of 3 reaches.
        assert_eq!(fitted(33, 16, 2, 0), Some(33));
        assert_eq!(fitted(31, 15, 2, 0), Some(31));
        // 32 pixels with a trailing zero: the last window reads it, and no window reads a leading one.
        assert_eq!(fitted(32, 16, 2, 0), None);
        // Leading padding only: no window reads the last pixel, or no window reads the trailing zero.
        assert_eq!(fitted(8, 4, 2, 1), Some(8));
        assert_eq!(fitted(9, 4, 2, 1), Some(8));
        assert_eq!(fitted(9, 8, 1, 1), None);
    }

    #[test]
    fn generated_kernels_do_not_check_padding_that_no_window_reads_either() {
        let view = |back: u64| {
            let conv = Conv::new(Scalar::F32, 2, 3, 4, &[33, 31], &[3, 3]).stride(&[2, 2]).pad(&[0, 0], &[back, back]);
            let problem = conv.build().unwrap().into();
            tilewright_problem::lower::lower(&problem, tilewright_problem::lower::ConvForm::MERGED).unwrap().lead.a.view.access
        };
        assert_eq!(view(1), view(0));
    }

    #[test]
    fn what_fits_reads_the_same() {
        let mut fits = 0;
        for input in 1..9u64 {
            for filter in 1..4 {
                for (stride, dilation) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)] {
                    for (front, back) in [(0, 0), (1, 1), (0, 1), (1, 0), (2, 1), (1, 2)] {
                        let window = dilation * (filter - 1) + 1;
                        let Some(room) = (input + front + back).checked_sub(window) else { continue };
                        let output = room / stride + 1;
                        let of = Dimension { input, filter, output, stride, dilation, front };
                        let Some(pixels) = of.fitted() else {
                            // The windows read more or fewer trailing zeros than leading ones.
                            assert_ne!(front, back);
                            continue;
                        };
                        let steps = (stride, dilation);
                        assert_eq!((pixels + 2 * front - window) / stride + 1, output);
                        assert_eq!(reads(pixels, front, (filter, output), steps), reads(input, front, (filter, output), steps));
                        fits += 1;
                    }
                }
            }
        }
        assert!(fits > 300, "{fits}");
    }
}
