//! The product of a complex factor and a complex number, part by part.

/// A part, 0 real and 1 imaginary, of the product of a factor (its real and its imaginary part) and a number. `own` is the same
/// part of the number, `other` its other part.
pub(super) fn turned([re, im]: [f64; 2], part: u64, own: f64, other: f64) -> f64 {
    if im == 0.0 {
        return re * own;
    }
    re * own + if part == 0 { -im * other } else { im * other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_problem::Factors;

    #[test]
    fn parts_of_a_product() {
        // (2 + 3 i) (5 + 7 i) = -11 + 29 i.
        assert_eq!([turned([2.0, 3.0], 0, 5.0, 7.0), turned([2.0, 3.0], 1, 7.0, 5.0)], [-11.0, 29.0]);
        assert_eq!(turned([2.0, 0.0], 0, 5.0, f64::NAN), 10.0);
        assert!(Factors { beta_im: 1.0, ..Factors::default() }.reads_old() && !Factors::default().reads_old());
    }
}
