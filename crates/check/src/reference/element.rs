//! Elements of test buffers: bytes to f64 and back, random values, and the two bit patterns that must never be computed with.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tilewright_ir::{F8E4M3Fnuz, F8E5M2Fnuz, Scalar};
use tilewright_problem::ProblemError;

/// A type in memory, little-endian.
pub(super) trait Element: Copy + Send + Sync {
    /// Size in bytes.
    const BYTES: usize;
    /// Numbers that share these bytes, each in 4 bits where there are several.
    const NUMBERS: usize = 1;
    /// The value that fills outputs before a run and memory between tensors: a NaN, or for integers a number far from all results.
    fn poison() -> u64;
    /// The guard element at a position of the memory around a tensor: a poison value that differs from its neighbours.
    fn guard(position: u64) -> u64 {
        (Self::poison() & !0x3f) | (position & 0x3f)
    }
    /// A random number in [-1, 1), exact in this type, from 64 random bits; of integers any that is small enough, of 4 bits two.
    fn random(bits: u64) -> u64;
    /// Was never written, or is no number.
    fn is_missing(bits: u64) -> bool {
        Self::value(bits).is_nan()
    }
    /// The value of the low bits.
    fn value(bits: u64) -> f64;
    /// The bits of a value rounded to this type: to the nearest, to even where two are as near, to infinity beyond the largest.
    fn of(value: f64) -> u64;
    /// The bits of numbers that share their bytes, the first one lowest.
    fn together(numbers: &[u64]) -> u64 {
        numbers.iter().rev().fold(0, |all, bits| if Self::NUMBERS == 1 { *bits } else { all << 4 | bits & 15 })
    }
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
        u64::from(f16::from_f32(whole as f32 / 2048.0).to_bits())
    }
    fn value(bits: u64) -> f64 {
        f16::from_bits(bits as u16).to_f32().into()
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
        // Eight bits and a sign: the upper half of the f32.
        u64::from((whole as f32 / 256.0).to_bits() >> 16)
    }
    fn value(bits: u64) -> f64 {
        // As f32: a shift.
        bf16::from_bits(bits as u16).to_f32().into()
    }
    fn of(value: f64) -> u64 {
        bf16::from_f64(value).to_bits().into()
    }
}

macro_rules! float8 {
    ($($rust:ty: $nan:literal),*) => {$(
        impl Element for $rust {
            const BYTES: usize = 1;
            fn poison() -> u64 {
                $nan
            }
            /// There are few NaNs: of OCP's one of each sign, of FNUZ's one.
            fn guard(position: u64) -> u64 {
                Self::poison() | (position & 1) << 7
            }
            fn random(bits: u64) -> u64 {
                // Numbers of all magnitudes down to those below the least normal one, and none above the largest below 1.
                let most = <$rust>::from_f64(1.0).to_bits() - 1;
                let value = <$rust>::from_f64((bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0);
                u64::from(if value.to_f64() < 1.0 { value.to_bits() } else { most })
            }
            fn value(bits: u64) -> f64 {
                <$rust>::from_bits(bits as u8).to_f64()
            }
            fn of(value: f64) -> u64 {
                <$rust>::from_f64(value).to_bits().into()
            }
        }
    )*};
}
float8!(F8E4M3: 0x7f, F8E5M2: 0x7f, F8E4M3Fnuz: 0x80, F8E5M2Fnuz: 0x80);

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
            fn is_missing(bits: u64) -> bool {
                $bytes > 1 && bits as $rust == Self::poison() as $rust
            }
            fn value(bits: u64) -> f64 {
                bits as $rust as f64
            }
            fn of(value: f64) -> u64 {
                // Those of 8 bits are rounded from floats, and end at the ends of the type; sums keep their low bits.
                if $bytes == 1 { value.round_ties_even() as $rust as u64 } else { value as i64 as $rust as u64 }
            }
        }
    )*};
}
integers!(i8: 1, u8: 1, i32: 4, i64: 8);

/// Two signed integers of 4 bits, the first in the lower half of their byte.
#[derive(Clone, Copy)]
pub(super) struct I4;

/// The same, unsigned.
#[derive(Clone, Copy)]
pub(super) struct U4;

macro_rules! halves {
    ($($rust:ty: $value:expr),*) => {$(
        impl Element for $rust {
            const BYTES: usize = 1;
            const NUMBERS: usize = 2;
            fn poison() -> u64 {
                0xad
            }
            fn random(bits: u64) -> u64 {
                bits >> 56
            }
            fn value(bits: u64) -> f64 {
                $value(bits as u8)
            }
            fn of(value: f64) -> u64 {
                value as i64 as u64 & 15
            }
        }
    )*};
}
halves!(I4: |bits: u8| f64::from((bits << 4) as i8 >> 4), U4: |bits: u8| f64::from(bits & 15));

/// Calls `$body` with `$element` naming the Rust type of a scalar that lives in memory; `$other` for the rest.
macro_rules! with_element {
    ($scalar:expr, $element:ident => $body:expr, $other:expr) => {
        with_element!(
            @ $scalar, $element => $body, $other;
            E4M3 float8::F8E4M3, E5M2 float8::F8E5M2, E4M3Fnuz tilewright_ir::F8E4M3Fnuz, E5M2Fnuz tilewright_ir::F8E5M2Fnuz,
            F16 half::f16, BF16 half::bf16, F32 f32, F64 f64, I8 i8, U8 u8, I4 crate::reference::element::I4,
            U4 crate::reference::element::U4, I32 i32, I64 i64
        )
    };
    (@ $scalar:expr, $element:ident => $body:expr, $other:expr; $($name:ident $rust:ty),*) => {
        match $scalar {
            $(Scalar::$name => {
                type $element = $rust;
                $body
            })*
            Scalar::Bool | Scalar::U32 => $other,
        }
    };
}
pub(super) use with_element;

/// The bits of the element at a position, and of others above it where they share its bytes.
#[inline]
pub(super) fn bits<E: Element>(bytes: &[u8], position: usize) -> u64 {
    let mut word = [0; 8];
    let (at, within) = (position / E::NUMBERS, position % E::NUMBERS);
    match bytes.get(at * E::BYTES..(at + 1) * E::BYTES) {
        Some(element) => word[..E::BYTES].copy_from_slice(element),
        None => word = f64::NAN.to_le_bytes(),
    }
    u64::from_le_bytes(word) >> (4 * within)
}

/// Writes the bits of an element, or of those that share its bytes.
#[inline]
pub(super) fn put<E: Element>(element: &mut [u8], bits: u64) {
    element.copy_from_slice(&bits.to_le_bytes()[..E::BYTES]);
}

/// The value of the element at a position; NaN outside of the buffer.
pub(super) fn value(scalar: Scalar, bytes: &[u8], position: u64) -> f64 {
    with_element!(scalar, E => E::value(bits::<E>(bytes, position as usize)), f64::NAN)
}

/// The values of elements at equal distances, as [`value`] gives each of them.
pub(super) fn values(scalar: Scalar, bytes: &[u8], first: u64, apart: u64, out: &mut [f64]) {
    fn all<E: Element>(bytes: &[u8], first: usize, apart: usize, out: &mut [f64]) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = E::value(bits::<E>(bytes, first + i * apart));
        }
    }
    with_element!(scalar, E => all::<E>(bytes, first as usize, apart as usize, out), out.fill(f64::NAN));
}

/// A value rounded to a type, as the store of a result rounds it.
pub(super) fn rounded(scalar: Scalar, value: f64) -> f64 {
    with_element!(scalar, E => E::value(E::of(value)), f64::NAN)
}

/// How many elements are NaN; of wide integers, how many were never written.
pub(super) fn count_nan(scalar: Scalar, bytes: &[u8]) -> u64 {
    fn count<E: Element>(bytes: &[u8]) -> u64 {
        bytes.chunks_exact(E::BYTES).filter(|e| E::is_missing(bits::<E>(e, 0))).count() as u64
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

    /// The formats as the OCP 8-bit floating point specification has them, from exponent and mantissa.
    #[test]
    fn floats_of_8_bits_are_those_of_ocp() {
        let of = |bits: u64, mantissa: u32, bias: i32| {
            let (exponent, rest) = ((bits as i32 & 0x7f) >> mantissa, f64::from(bits as i32 & ((1 << mantissa) - 1)));
            let rest = rest / f64::from(1 << mantissa);
            let value = if exponent == 0 { rest * 2f64.powi(1 - bias) } else { (1.0 + rest) * 2f64.powi(exponent - bias) };
            if bits & 0x80 == 0 { value } else { -value }
        };
        for bits in 0..256 {
            let (e4m3, e5m2) = (F8E4M3::value(bits), F8E5M2::value(bits));
            assert!(if bits & 0x7f == 0x7f { e4m3.is_nan() } else { e4m3 == of(bits, 3, 7) }, "{bits:#x}: {e4m3}");
            assert!(if bits & 0x7c == 0x7c { !e5m2.is_finite() } else { e5m2 == of(bits, 2, 15) }, "{bits:#x}: {e5m2}");
            assert!(e4m3.is_nan() || F8E4M3::of(e4m3) == bits);
            assert!(!e5m2.is_finite() || F8E5M2::of(e5m2) == bits);
        }
    }

    #[test]
    fn random_values_are_uniform_and_poison_is_nan() {
        spread::<F8E4M3>(true);
        spread::<F8E5M2>(true);
        spread::<F8E4M3Fnuz>(true);
        spread::<F8E5M2Fnuz>(true);
        spread::<f16>(true);
        spread::<bf16>(true);
        spread::<f32>(true);
        spread::<f64>(true);
    }
}
