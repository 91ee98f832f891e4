//! Typed device memory.

use crate::{Element, Error};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use tilewright_device::Device;

/// Device memory that holds elements of one type. It is freed when dropped.
///
/// ```
/// use tilewright::{Context, Options, RecordsAt};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let mut x = context.alloc::<f32>(3)?;
/// x.write(&[1.0, 2.0, 3.0])?;
/// assert_eq!((x.len(), x.download()?), (3, vec![1.0, 2.0, 3.0]));
/// # Ok::<(), tilewright::Error>(())
/// ```
pub struct Buffer<T: Element> {
    device: Arc<dyn Device>,
    memory: tilewright_device::Buffer,
    len: u64,
    element: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// Memory for `len` elements with undefined content.
    pub(crate) fn alloc(device: &Arc<dyn Device>, len: u64) -> Result<Self, Error> {
        let bytes = len.checked_mul(size_of::<T>() as u64).ok_or(Error::TooLarge { elements: len, dtype: T::SCALAR })?;
        let memory = device.alloc(bytes.max(1))?;
        Ok(Buffer { device: device.clone(), memory, len, element: PhantomData })
    }
    /// Number of elements.
    pub const fn len(&self) -> u64 {
        self.len
    }
    /// True if it holds no element.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Copies elements from the host to the start of the buffer.
    ///
    /// # Errors
    /// [`Error::Length`] if there are more than the buffer holds; those of the device.
    pub fn write(&mut self, data: &[T]) -> Result<(), Error> {
        if data.len() as u64 > self.len {
            return Err(Error::Length { what: "the data to write".into(), have: self.len, need: data.len() as u64 });
        }
        Ok(self.device.write(&self.memory, 0, bytemuck::cast_slice(data))?)
    }
    /// Waits for the work so far and copies all elements to the host.
    ///
    /// # Errors
    /// Those of the device and of the kernels that ran before.
    pub fn download(&self) -> Result<Vec<T>, Error> {
        let len = usize::try_from(self.len).map_err(|_| Error::TooLarge { elements: self.len, dtype: T::SCALAR })?;
        let mut data = vec![T::zeroed(); len];
        if len > 0 {
            self.device.read(&self.memory, 0, bytemuck::cast_slice_mut(&mut data))?;
        }
        Ok(data)
    }
    /// The buffer from an element on, as an operand of [`crate::Operation::run`].
    pub const fn at(&self, offset: u64) -> Slice<'_, T> {
        Slice { buffer: self, offset }
    }
    /// The buffer from an element on, as a result of [`crate::Operation::run`].
    pub const fn at_mut(&mut self, offset: u64) -> SliceMut<'_, T> {
        SliceMut { buffer: self, offset }
    }
    /// The device that holds it.
    pub(crate) const fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    /// The untyped memory, for launches through [`tilewright_device`].
    pub const fn memory(&self) -> &tilewright_device::Buffer {
        &self.memory
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {} on {})", self.len, T::SCALAR, self.memory.device())
    }
}

/// A buffer read from one of its elements on.
///
/// ```
/// use tilewright::{Context, Gemm, Operands, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// // Both operands are in one buffer: B begins at its third element.
/// let both = context.upload(&[1.0f32, 2.0, 3.0, 4.0])?;
/// let mut c = context.alloc::<f32>(1)?;
/// context.gemm(Gemm::new(Scalar::F32, 1, 1, 2))?.run_with(Operands::new(&both, both.at(2), &mut c))?;
/// assert_eq!(c.download()?, [1.0 * 3.0 + 2.0 * 4.0]);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a, T: Element> {
    pub(crate) buffer: &'a Buffer<T>,
    pub(crate) offset: u64,
}

/// A buffer written from one of its elements on.
///
/// ```
/// use tilewright::{Context, Gemm, Operands, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// // The result fills the last row of a larger matrix; the rows before it keep their values.
/// let (a, b, mut c) = (context.upload(&[2.0f32])?, context.upload(&[3.0f32, 4.0])?, context.upload(&[9.0f32; 4])?);
/// context.gemm(Gemm::new(Scalar::F32, 1, 2, 1))?.run_with(Operands::new(&a, &b, c.at_mut(2)))?;
/// assert_eq!(c.download()?, [9.0, 9.0, 6.0, 8.0]);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Debug)]
pub struct SliceMut<'a, T: Element> {
    pub(crate) buffer: &'a mut Buffer<T>,
    pub(crate) offset: u64,
}

impl<'a, T: Element> From<&'a Buffer<T>> for Slice<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.at(0)
    }
}

impl<'a, T: Element> From<&'a mut Buffer<T>> for SliceMut<'a, T> {
    fn from(buffer: &'a mut Buffer<T>) -> Self {
        buffer.at_mut(0)
    }
}
