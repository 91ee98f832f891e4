//! Elements of test buffers: bytes to f64 and back, random values, and the two bit patterns that must never be computed with.

use crate::error::ProblemError;
use half::{bf16, f16};
use tilewright_ir::Scalar;

/// A type in memory, little-endian.
pub(super) trait Element: Copy + Send + Sync {
    /// Size in bytes.
    const BYTES: usize;
    /// A NaN that fills outputs before a run and memory between tensors; of integers a number far from all results.
    fn poison() -> u64;
    /// A random number in [-1, 1), exact in this type, from 64 random bits.
    fn random(bits: u64) -> u64;
    /// The value of the low bits.
    fn value(bits: u64) -> f64;
    /// The bits of a value rounded to this type: to the nearest, to even where two are as near, to infinity beyond the largest.
    fn of(value: f64) -> u64;
}

impl Element for f32 {
    const BYTES: usize = 4;
    fn poison() -> u64 {
        0x7fc0_dead
    }
    fn random(bits: u64) -> u64 {
        let whole = (bits >> 40) as i64 - (1 << 23);
        u64::from((whole as f32 / (1 << 23) as f32).to_bits())
    }
    fn value(bits: u64) -> f64 {
        f64::from(f32::from_bits(bits as u32))
    }
    fn of(value: f64) -> u64 {
        (value as f32).to_bits().into()
    }
}

impl Element for f64 {
    const BYTES: usize = 8;
    fn poison() -> u64 {
        0x7ff8_0000_dead_beef
    }
    fn random(bits: u64) -> u64 {
        let whole = (bits >> 11) as i64 - (1 << 52);
        (whole as f64 / (1u64 << 52) as f64).to_bits()
    }
    fn value(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    fn of(value: f64) -> u64 {
        value.to_bits()
    }
}

impl Element for f16 {
    const BYTES: usize = 2;
    fn poison() -> u64 {
        0x7ead
    }
    fn random(bits: u64) -> u64 {
        let whole = (bits >> 52) as i64 - (1 << 11);
        u64::from(f16::from_f64(whole as f64 / 2048.0).to_bits())
    }
    fn value(bits: u64) -> f64 {
        f16::from_bits(bits as u16).to_f64()
    }
    fn of(value: f64) -> u64 {
        f16::from_f64(value).to_bits().into()
    }
}

impl Element for bf16 {
    const BYTES: usize = 2;
    fn poison() -> u64 {
        0x7fed
    }
    fn random(bits: u64) -> u64 {
        let whole = (bits >> 55) as i64 - (1 << 8);
        u64::from(bf16::from_f64(whole as f64 / 256.0).to_bits())
    }
    fn value(bits: u64) -> f64 {
        bf16::from_bits(bits as u16).to_f64()
    }
    fn of(value: f64) -> u64 {
        bf16::from_f64(value).to_bits().into()
    }
}

macro_rules! integers {
    ($($rust:ty: $bytes:literal),*) => {$(
        impl Element for $rust {
            const BYTES: usize = $bytes;
            fn poison() -> u64 {
                (<$rust>::MIN + 0x2d) as u64
            }
            fn random(bits: u64) -> u64 {
                // Small enough for sums of many to be exact in f64.
                ((bits as i64) >> 44.max(64 - 8 * $bytes)) as u64
            }
            fn value(bits: u64) -> f64 {
                bits as $rust as f64
            }
            fn of(value: f64) -> u64 {
                value as i64 as $rust as u64
            }
        }
    )*};
}
integers!(i32: 4, i64: 8);

/// Calls `$body` with `$element` naming the Rust type of a scalar that lives in memory; `$other` for the rest.
macro_rules! with_element {
    ($scalar:expr, $element:ident => $body:expr, $other:expr) => {
        match $scalar {
            Scalar::F16 => {
                type $element = half::f16;
                $body
            }
            Scalar::BF16 => {
                type $element = half::bf16;
                $body
            }
            Scalar::F32 => {
                type $element = f32;
                $body
            }
            Scalar::F64 => {
                type $element = f64;
                $body
            }
            Scalar::I32 => {
                type $element = i32;
                $body
            }
            Scalar::I64 => {
                type $element = i64;
                $body
            }
            Scalar::Bool | Scalar::U32 => $other,
        }
    };
}
pub(super) use with_element;

/// The bits of the element at a position.
#[inline]
pub(super) fn bits<E: Element>(bytes: &[u8], position: usize) -> u64 {
    let mut word = [0; 8];
    match bytes.get(position * E::BYTES..(position + 1) * E::BYTES) {
        Some(element) => word[..E::BYTES].copy_from_slice(element),
        None => word = f64::NAN.to_le_bytes(),
    }
    u64::from_le_bytes(word)
}

/// Writes the bits of an element.
#[inline]
pub(super) fn put<E: Element>(element: &mut [u8], bits: u64) {
    element.copy_from_slice(&bits.to_le_bytes()[..E::BYTES]);
}

/// The value of the element at a position; NaN outside of the buffer.
pub(super) fn value(scalar: Scalar, bytes: &[u8], position: u64) -> f64 {
    with_element!(scalar, E => E::value(bits::<E>(bytes, position as usize)), f64::NAN)
}

/// A value rounded to a type, as the store of a result rounds it.
pub(super) fn rounded(scalar: Scalar, value: f64) -> f64 {
    with_element!(scalar, E => E::value(E::of(value)), f64::NAN)
}

/// How many elements are NaN.
pub(super) fn count_nan(scalar: Scalar, bytes: &[u8]) -> u64 {
    fn count<E: Element>(bytes: &[u8]) -> u64 {
        bytes.chunks_exact(E::BYTES).filter(|e| E::value(bits::<E>(e, 0)).is_nan()).count() as u64
    }
    with_element!(scalar, E => count::<E>(bytes), 0)
}

/// 64 random bits for a position: SplitMix64 (Steele, Lea, Flood 2014), so that any element can be made at any time.
pub(super) fn hash(seed: u64, position: u64) -> u64 {
    let mut z = seed.wrapping_add(position.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `len` zero bytes, or an error that says how many were wanted.
pub(super) fn zeroed(what: &str, len: u64) -> Result<Vec<u8>, ProblemError> {
    let wanted = usize::try_from(len).unwrap_or(usize::MAX);
    match Vec::<u8>::new().try_reserve_exact(wanted) {
        // The system's zero pages are taken when they are first written, by all threads that fill them.
        Ok(()) => Ok(vec![0; wanted]),
        Err(_) => {
            Err(ProblemError::value(what, format!("{len} bytes"), "does not fit the memory of this machine; make it smaller"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread<E: Element>(poison_is_nan: bool) {
        let values: Vec<f64> = (0..10_000).map(|i| E::value(E::random(hash(1, i)))).collect();
        assert!(values.iter().all(|v| (-1.0..1.0).contains(v)));
        let mean = values.iter().sum::<f64>() / 1e4;
        let square = values.iter().map(|v| v * v).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.03 && (square - 1.0 / 3.0).abs() < 0.02, "{mean} {square}");
        assert_eq!(E::value(E::poison()).is_nan(), poison_is_nan);
        // The extreme draws are exact as well.
        assert_eq!(E::value(E::random(0)), -1.0);
        assert!(E::value(E::random(u64::MAX)) < 1.0);
    }

    #[test]
    fn random_values_are_uniform_and_poison_is_nan() {
        spread::<f16>(true);
        spread::<bf16>(true);
        spread::<f32>(true);
        spread::<f64>(true);
    }
}
