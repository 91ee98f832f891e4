//! Element types that buffers hold.

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tilewright_ir::{F8E4M3Fnuz, F8E5M2Fnuz, Scalar};
use tilewright_problem::{Dtype, Math};

mod sealed {
    pub trait Sealed {}
}

/// A number that lives in device memory.
///
/// - Floats: `f32`, `f64`, [`half::f16`], [`half::bf16`], [`float8::F8E4M3`], [`float8::F8E5M2`], [`F8E4M3Fnuz`] and
///   [`F8E5M2Fnuz`].
/// - Complex numbers: `[f32; 2]` and `[f64; 2]`, real and imaginary part (`bytemuck::cast_slice` makes them of num-complex's).
/// - Integers: `i8`, `u8` and `i32`; `i64` holds results of reductions.
///
/// ```
/// use tilewright::{Buffer, Context, Element, Options, RecordsAt, Scalar, f16};
///
/// /// Bytes of a buffer of any type.
/// fn bytes<T: Element>(buffer: &Buffer<T>) -> u64 {
///     buffer.len() * T::PARTS * u64::from(T::SCALAR.bytes())
/// }
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// assert_eq!(bytes(&context.upload(&[f16::ONE; 3])?), 6);
/// // A complex number has two parts.
/// assert_eq!((<[f32; 2]>::SCALAR, bytes(&context.upload(&[[1.0f32, -1.0]; 3])?)), (Scalar::F32, 24));
/// # Ok::<(), tilewright::Error>(())
/// ```
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// Its type in the kernel language.
    const SCALAR: Scalar;
    /// Numbers of that type that it has: 2 of complex ones.
    const PARTS: u64 = 1;
}

/// The name of a type of elements with so many parts, as problems spell it.
pub(crate) fn type_name(scalar: Scalar, parts: u64) -> &'static str {
    Dtype::name_of(scalar, Math::Exact, parts == 2)
}

macro_rules! complex {
    ($($rust:ty => $scalar:ident),*) => {$(
        impl sealed::Sealed for [$rust; 2] {}
        impl Element for [$rust; 2] {
            const SCALAR: Scalar = Scalar::$scalar;
            const PARTS: u64 = 2;
        }
    )*};
}

complex!(f32 => F32, f64 => F64);

macro_rules! elements {
    ($($rust:ty => $scalar:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const SCALAR: Scalar = Scalar::$scalar;
        }
    )*};
}

elements!(F8E4M3 => E4M3, F8E5M2 => E5M2, F8E4M3Fnuz => E4M3Fnuz, F8E5M2Fnuz => E5M2Fnuz, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, i8 => I8, u8 => U8, i32 => I32, i64 => I64);
