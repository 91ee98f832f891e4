//! 8-bit floats of AMD's CDNA 3, of which all numbers are finite and zero has no sign: e4m3fnuz and e5m2fnuz. Their exponents are
//! one less than exponents of OCP's formats with the same bits. The bits of -0 stand for NaN (AMD, "Instinct MI300 Instruction
//! Set Architecture").

use bytemuck::{Pod, Zeroable};

/// The bits of NaN.
const NAN: u8 = 0x80;

/// The value of bits with so many of mantissa.
fn decode(bits: u8, mantissa: u32, bias: i32) -> f64 {
    if bits == NAN {
        return f64::NAN;
    }
    let (exponent, rest) = (i32::from((bits & 0x7f) >> mantissa), i32::from(bits & ((1 << mantissa) - 1)));
    let (whole, exponent) = if exponent == 0 { (rest, 1) } else { (rest + (1 << mantissa), exponent) };
    let value = f64::from(whole) * 2f64.powi(exponent - bias - mantissa as i32);
    if bits & 0x80 == 0 { value } else { -value }
}

/// The bits of the nearest number, of two as near the even one; beyond the largest that one.
fn encode(value: f64, mantissa: u32, bias: i32) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    let magnitude = value.abs();
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    // In units of the last place; of the number above the next power of two as well.
    let units = (magnitude * 2f64.powi(mantissa as i32 - exponent)).round_ties_even();
    let bits = f64::from((exponent + bias - 1) << mantissa) + units;
    let bits = bits.min(127.0) as u8;
    if value.is_sign_negative() && bits > 0 { bits | 0x80 } else { bits }
}

macro_rules! fnuz {
    ($($(#[$doc:meta])* $name:ident: $mantissa:literal, $bias:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            /// The number with these bits.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }
            /// Its bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }
            /// The nearest number, of two as near the even one; beyond the largest that one.
            pub fn from_f64(value: f64) -> Self {
                Self(encode(value, $mantissa, $bias))
            }
            /// Likewise.
            pub fn from_f32(value: f32) -> Self {
                Self::from_f64(value.into())
            }
            /// Its value.
            pub fn to_f64(self) -> f64 {
                decode(self.0, $mantissa, $bias)
            }
            /// Its value.
            pub fn to_f32(self) -> f32 {
                self.to_f64() as f32
            }
        }
    )*};
}

fnuz! {
    /// 4 bits of exponent, 3 of mantissa: up to 240.
    ///
    /// ```
    /// use tilewright_ir::F8E4M3Fnuz;
    ///
    /// // Values saturate, and zero has no sign.
    /// assert_eq!([1.0625, 1000.0].map(|x| F8E4M3Fnuz::from_f32(x).to_f32()), [1.0, 240.0]);
    /// assert_eq!(F8E4M3Fnuz::from_f32(-0.0).to_bits(), 0);
    /// ```
    F8E4M3Fnuz: 3, 8;
    /// 5 bits of exponent, 2 of mantissa: up to 57344.
    ///
    /// ```
    /// use tilewright_ir::F8E5M2Fnuz;
    ///
    /// // A wider range with fewer bits of mantissa; the bits of -0 are NaN.
    /// assert_eq!([1.1, 1e9].map(|x| F8E5M2Fnuz::from_f32(x).to_f32()), [1.0, 57344.0]);
    /// assert!(F8E5M2Fnuz::from_bits(0x80).to_f32().is_nan());
    /// ```
    F8E5M2Fnuz: 2, 16;
}

#[cfg(test)]
mod tests {
    use super::*;
    use float8::{F8E4M3, F8E5M2};

    /// All numbers are half of OCP's with the same bits, beyond whose largest they go on where OCP has NaN and infinity.
    #[test]
    fn numbers_are_half_of_those_of_ocp() {
        for bits in 0..=255u8 {
            let (e4m3, e5m2) = (F8E4M3Fnuz::from_bits(bits), F8E5M2Fnuz::from_bits(bits));
            if bits == NAN {
                assert!(e4m3.to_f64().is_nan() && e5m2.to_f32().is_nan());
                continue;
            }
            let (ocp, wide) = (F8E4M3::from_bits(bits).to_f64(), F8E5M2::from_bits(bits).to_f64());
            assert!(ocp.is_nan() || e4m3.to_f64() == ocp / 2.0, "{bits:#x}");
            assert!(!wide.is_finite() || e5m2.to_f64() == wide / 2.0, "{bits:#x}");
            assert_eq!(
                (F8E4M3Fnuz::from_f64(e4m3.to_f64()).to_bits(), F8E5M2Fnuz::from_f32(e5m2.to_f32()).to_bits()),
                (bits, bits)
            );
        }
        assert_eq!((F8E4M3Fnuz::from_bits(0x7f).to_f64(), F8E5M2Fnuz::from_bits(0x7f).to_f64()), (240.0, 57344.0));
    }

    #[test]
    fn values_are_rounded_to_the_nearest_even_and_end_at_the_largest() {
        let of = |v: f64| F8E4M3Fnuz::from_f64(v).to_f64();
        for (value, nearest) in [
            (1.0625, 1.0),
            (1.1875, 1.25),
            (-1.07, -1.125),
            (1.9999, 2.0),
            (1e9, 240.0),
            (f64::NEG_INFINITY, -240.0),
            (2f64.powi(-11), 0.0),
            (1.5 * 2f64.powi(-10), 2f64.powi(-9)),
            (0.999 * 2f64.powi(-7), 2f64.powi(-7)),
        ] {
            assert_eq!(of(value), nearest, "{value}");
        }
        assert_eq!([F8E4M3Fnuz::from_f64(-0.0).to_bits(), F8E5M2Fnuz::from_f64(-1e-9).to_bits()], [0, 0]);
        assert!(of(f64::NAN).is_nan());
    }
}
