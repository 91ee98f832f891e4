//! What a launch of the library gets: operands, factors, extents and further memory, each checked against a problem.

use crate::buffer::{Slice, SliceMut};
use crate::{Buffer, Element};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use tilewright_check::run::Factors;
use tilewright_device::Device;
use tilewright_ir::Scalar;
use tilewright_problem::{Along, Extents, PerRole, Quant, Role};

/// What an operation runs on, by name: `out = activation(alpha * scale_m * scale_n * A * B + bias + beta * C) + residual`
/// goes to C.
///
/// B's elements are of A's type but in products of the two 8-bit floats. Bias and residual are what the problem says, have C's element type, and start their buffers.
///
/// ```
/// use tilewright::{Context, Gemm, Operands, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// // C = 2 * A * B + C, and the largest value of each row.
/// let gemm = Gemm::new(Scalar::F32, 2, 2, 1).reduce("max:n".parse().expect("a reduction"));
/// let (a, b) = (context.upload(&[1.0f32, 2.0])?, context.upload(&[3.0f32, 4.0])?);
/// let (mut c, mut largest) = (context.upload(&[1.0f32; 4])?, context.alloc::<f32>(2)?);
/// let operands = Operands::new(&a, &b, &mut c).alpha(2.0).beta(1.0).reduction(&mut largest);
/// context.gemm(gemm)?.run_with(operands)?;
/// assert_eq!(c.download()?, [7.0, 9.0, 13.0, 17.0]);
/// assert_eq!(largest.download()?, [9.0, 17.0]);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Debug)]
pub struct Operands<'a, T: Element, U: Element, V: Element = T> {
    pub(crate) a: Slice<'a, T>,
    pub(crate) b: Slice<'a, V>,
    pub(crate) c: Option<SliceMut<'a, U>>,
    pub(crate) others: PerRole<Option<Memory<'a>>>,
    pub(crate) reductions: usize,
    pub(crate) factors: Factors,
    pub(crate) at: Option<Extents>,
}

/// Memory beside A, B and C.
pub(crate) struct Memory<'a> {
    pub(crate) scalar: Scalar,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) memory: tilewright_device::Buffer,
    pub(crate) buffer: PhantomData<&'a mut ()>,
}

impl Memory<'_> {
    fn of<T: Element>(buffer: &Buffer<T>) -> Self {
        let (device, memory) = (buffer.device().clone(), buffer.memory().clone());
        Memory { scalar: T::SCALAR, device, memory, buffer: PhantomData }
    }
}

impl fmt::Debug for Memory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("scalar", &self.scalar).finish_non_exhaustive()
    }
}

impl<'a, T: Element, U: Element> Operands<'a, T, U> {
    /// The operands of a tensor reduction: the tensor alone.
    pub fn of(tensor: impl Into<Slice<'a, T>>) -> Self {
        let a = tensor.into();
        let b = Slice { buffer: a.buffer, offset: 0 };
        Operands::without_c(a, b)
    }
}

impl<'a, T: Element, U: Element, V: Element> Operands<'a, T, U, V> {
    /// Factors and result, with alpha = 1 and beta = 0. For a convolution: input, filter and output; output gradient, filter and input
    /// gradient; or output gradient, input and filter gradient.
    pub fn new(a: impl Into<Slice<'a, T>>, b: impl Into<Slice<'a, V>>, c: impl Into<SliceMut<'a, U>>) -> Self {
        Operands { c: Some(c.into()), ..Operands::without_c(a, b) }
    }
    /// Factors of a problem whose result is not stored ([`GemmBuilder::drop_c`](crate::GemmBuilder::drop_c)), with alpha = 1. `U` is still C's
    /// type, which bias and residual have.
    pub fn without_c(a: impl Into<Slice<'a, T>>, b: impl Into<Slice<'a, V>>) -> Self {
        let (a, b, factors) = (a.into(), b.into(), Factors::default());
        Operands { a, b, c: None, others: PerRole::default(), reductions: 0, factors, at: None }
    }
    fn with(mut self, role: Role, memory: Memory<'a>) -> Self {
        self.others.set(role, Some(memory));
        self
    }
    /// The values of the problem's next reduction go there: dense, from the buffer's first element on.
    #[must_use]
    pub fn reduction<R: Element>(mut self, values: &'a mut Buffer<R>) -> Self {
        self.reductions += 1;
        let role = Role::Reduction(self.reductions - 1);
        self.with(role, Memory::of(values))
    }
    /// Sets the factor of A * B. A finite value must be finite in the accumulator's type. Infinity and NaN act as in IEEE
    /// arithmetic. A factor of 0 is multiplied like any value: a NaN or an infinity in A or B reaches C.
    #[must_use]
    pub const fn alpha(mut self, alpha: f64) -> Self {
        self.factors.alpha = alpha;
        self
    }
    /// Factor of the old result; 0 never reads it.
    #[must_use]
    pub const fn beta(mut self, beta: f64) -> Self {
        self.factors.beta = beta;
        self
    }
    /// Alpha's imaginary part, of a complex product made for one ([`GemmBuilder::imaginary`](crate::GemmBuilder::imaginary)).
    #[must_use]
    pub const fn alpha_im(mut self, alpha_im: f64) -> Self {
        self.factors.alpha_im = alpha_im;
        self
    }
    /// Sets beta's imaginary part, for problems made with a complex beta.
    #[must_use]
    pub const fn beta_im(mut self, beta_im: f64) -> Self {
        self.factors.beta_im = beta_im;
        self
    }
    /// The problem's vector of scales along m or n: one value per row or column, which multiplies it.
    #[must_use]
    pub fn scale(self, along: Along, scales: &'a Buffer<f32>) -> Self {
        self.with(Quant::scale(along).into(), Memory::of(scales))
    }
    /// The problem's zero points of A (m) or B (n): one value, or one per row of A or column of B, subtracted from it.
    #[must_use]
    pub fn zero_points(self, of: Along, values: &'a Buffer<i32>) -> Self {
        self.with(Quant::zero(of).into(), Memory::of(values))
    }
    /// Where each group of a grouped product ends ([`crate::GemmBuilder::grouped`]): ascending, each at most the rows (columns) that the problem has.
    /// Kernels read it when they run; nothing else does.
    #[must_use]
    pub fn ends(self, ends: &'a Buffer<i32>) -> Self {
        self.with(Role::Ends, Memory::of(ends))
    }
    /// The problem's bias vector: one value per row, column or output channel, of C's type; before an exponential of the sums' type (`f32`, or `f64`).
    #[must_use]
    pub fn bias<W: Element>(self, bias: &'a Buffer<W>) -> Self {
        self.with(Role::Bias, Memory::of(bias))
    }
    /// Extents of this launch, where the problem declares some as known only at launch. The compiled kernel runs for every value
    /// from 1 to the largest. Leading dimensions and batch strides are the problem's at every size; operands need hold no more
    /// than this launch touches.
    #[must_use]
    pub const fn at(mut self, extents: Extents) -> Self {
        self.at = Some(extents);
        self
    }
    /// The extents of this launch, where given.
    pub const fn extents(&self) -> Option<Extents> {
        self.at
    }
    /// The up weights of a gated product whose weights are two tensors ([`crate::GemmBuilder::separate_up`]): as large as B, from the buffer's first
    /// element on.
    #[must_use]
    pub fn up(self, up: &'a Buffer<V>) -> Self {
        self.with(Role::Up, Memory::of(up))
    }
    /// The operands of the second pair of factors ([`crate::GemmBuilder::k2`]), each from its buffer's first element on.
    #[must_use]
    pub fn second(self, a: &'a Buffer<T>, b: &'a Buffer<V>) -> Self {
        self.with(Role::A2, Memory::of(a)).with(Role::B2, Memory::of(b))
    }
    /// The pre-activations of a gated product that stores them ([`crate::GemmBuilder::preactivations`]) go there, from the buffer's first element on.
    #[must_use]
    pub fn preactivations(self, stored: &'a mut Buffer<U>) -> Self {
        self.with(Role::Preactivations, Memory::of(stored))
    }
    /// Sets the problem's residual, which is added after the activation.
    #[must_use]
    pub fn residual(self, residual: &'a Buffer<U>) -> Self {
        self.with(Role::Residual, Memory::of(residual))
    }
}
