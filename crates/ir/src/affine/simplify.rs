//! Simplification of affine forms: ranges, division and remainder of forms, and adjacent digits.

use super::{Affine, Atom};

impl Affine {
    /// Inclusive range over all points within the extents where the form is valid.
    pub fn range(&self, extent: &[u64]) -> (i64, i64) {
        ranged(self, extent, true)
    }
    /// Inclusive range over all points within the extents, also those where the form is not valid.
    pub fn reach(&self, extent: &[u64]) -> (i64, i64) {
        ranged(self, extent, false)
    }
    /// `(self / div) % modulo` in its simplest form.
    pub fn digit(&self, div: i64, modulo: Option<i64>, extent: &[u64]) -> Affine {
        digit(self, div, modulo, extent)
    }
    /// The form with adjacent digits of the same form joined until nothing changes:
    /// `a * ((e / (d*q)) % r) * q + a * ((e / d) % q)` is `a * ((e / d) % (q*r))`.
    pub fn simplified(&self, extent: &[u64]) -> Affine {
        let mut affine = self.clone();
        while let Some(joined) = join_once(&affine, extent) {
            affine = joined;
        }
        affine
    }
}

fn ranged(affine: &Affine, extent: &[u64], valid: bool) -> (i64, i64) {
    let mut sum = (affine.constant, affine.constant);
    for (atom, coefficient) in &affine.terms {
        let (low, high) = atom_range(atom, extent, valid);
        let ends = [low.saturating_mul(*coefficient), high.saturating_mul(*coefficient)];
        sum.0 = sum.0.saturating_add(ends[0].min(ends[1]));
        sum.1 = sum.1.saturating_add(ends[0].max(ends[1]));
    }
    sum
}

fn atom_range(atom: &Atom, extent: &[u64], valid: bool) -> (i64, i64) {
    match atom {
        Atom::Axis(axis) => (0, last(extent.get(*axis).copied().unwrap_or(1))),
        Atom::Digit { of, div, modulo } => {
            let (low, high) = ranged(of, extent, valid);
            let least = if valid { 0 } else { i64::MIN };
            let (low, high) = (low.max(least) / div, high.max(least) / div);
            match modulo {
                Some(m) if high >= *m || low <= -m => (if low < 0 { 1 - m } else { 0 }, if high > 0 { m - 1 } else { 0 }),
                _ => (low, high),
            }
        }
    }
}

fn last(extent: u64) -> i64 {
    i64::try_from(extent).unwrap_or(i64::MAX).saturating_sub(1).max(0)
}

/// Terms and constant whose values are multiples of `divisor`, divided by it; and the remaining terms and constant.
fn split(of: &Affine, divisor: i64) -> (Affine, Affine) {
    let (whole, rest) = of.terms.iter().cloned().partition::<Vec<_>, _>(|(_, c)| c % divisor == 0);
    let whole = whole.into_iter().map(|(atom, c)| (atom, c / divisor)).collect();
    (
        Affine { terms: whole, constant: of.constant.div_euclid(divisor) },
        Affine { terms: rest, constant: of.constant.rem_euclid(divisor) },
    )
}

fn digit(of: &Affine, div: i64, modulo: Option<i64>, extent: &[u64]) -> Affine {
    // Multiples of div * modulo do not change the remainder.
    if let Some(period) = modulo.and_then(|m| m.checked_mul(div)) {
        let (whole, rest) = split(of, period);
        if (!whole.terms.is_empty() || whole.constant != 0) && rest.range(extent).0 >= 0 {
            return digit(&rest, div, modulo, extent);
        }
    }
    let high = of.range(extent).1.max(0);
    if high < div || modulo == Some(1) {
        return Affine::constant(0);
    }
    if modulo.is_some_and(|m| high / div < m) {
        return digit(of, div, None, extent);
    }
    if div == 1 && modulo.is_none() {
        return of.clone();
    }
    if div > 1 {
        let (whole, rest) = split(of, div);
        let (low, high) = rest.range(extent);
        if low >= 0 && high < div {
            return digit(&whole, 1, modulo, extent);
        }
        // A common factor of the terms and the divisor can be taken out, rounding the constant down.
        let factor = of.terms.iter().fold(div, |g, (_, c)| gcd(g, *c));
        if factor > 1 {
            let (whole, _) = split(of, factor);
            return digit(&whole, div / factor, modulo, extent);
        }
        if modulo.is_none() && low >= 0 && !whole.terms.is_empty() {
            return whole.plus(&digit(&rest, div, None, extent), 1).simplified(extent);
        }
    }
    if let ([(Atom::Digit { of: inner, div: inner_div, modulo: inner_modulo }, 1)], 0) = (of.terms.as_slice(), of.constant) {
        match (inner_modulo, inner_div.checked_mul(div)) {
            (None, Some(product)) => return digit(inner, product, modulo, extent),
            (Some(m), Some(product)) if m % div == 0 => {
                let left = m / div;
                if modulo.is_none_or(|m| left % m == 0) {
                    return digit(inner, product, Some(modulo.unwrap_or(left)), extent);
                }
            }
            _ => {}
        }
    }
    Affine { terms: vec![(Atom::Digit { of: Box::new(of.clone()), div, modulo }, 1)], constant: 0 }
}

fn join_once(affine: &Affine, extent: &[u64]) -> Option<Affine> {
    for (low_index, (low, low_factor)) in affine.terms.iter().enumerate() {
        let Atom::Digit { of, div, modulo: Some(q) } = low else { continue };
        for (high_index, (high, high_factor)) in affine.terms.iter().enumerate() {
            let Atom::Digit { of: high_of, div: high_div, modulo: high_modulo } = high else { continue };
            let adjacent = high_of == of && div.checked_mul(*q) == Some(*high_div);
            if high_index == low_index || !adjacent || low_factor.checked_mul(*q) != Some(*high_factor) {
                continue;
            }
            let modulo = match high_modulo {
                Some(r) => match r.checked_mul(*q) {
                    Some(product) => Some(product),
                    None => continue,
                },
                None => None,
            };
            let mut rest = affine.clone();
            let mut index = 0;
            rest.terms.retain(|_| {
                index += 1;
                index - 1 != low_index && index - 1 != high_index
            });
            return Some(rest.plus(&digit(of, *div, modulo, extent), *low_factor));
        }
    }
    None
}

/// Greatest common divisor, never negative.
pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const G: usize = 0;
    const ROW: usize = 1;
    const COL: usize = 2;
    const EXTENT: [u64; 3] = [4, 12, 30];

    #[test]
    fn adjacent_digits_join() {
        let col = Affine::axis(COL);
        let three = digit(&col, 10, None, &EXTENT);
        let two = digit(&col, 5, Some(2), &EXTENT);
        let one = digit(&col, 1, Some(5), &EXTENT);
        let sum = Affine::constant(3).plus(&three, 70).plus(&two, 35).plus(&one, 7);
        assert_eq!(sum.simplified(&EXTENT), Affine::constant(3).plus(&col, 7));
        // A gap between lines keeps the outer digit.
        let sum = Affine::default().plus(&three, 80).plus(&two, 35).plus(&one, 7);
        let joined = Affine::default().plus(&three, 80).plus(&digit(&col, 1, Some(10), &EXTENT), 7);
        assert_eq!(sum.simplified(&EXTENT), joined);
    }

    #[test]
    fn digits_that_do_nothing_vanish() {
        let row = Affine::axis(ROW);
        assert_eq!(digit(&row, 12, None, &EXTENT), Affine::constant(0));
        assert_eq!(digit(&row, 1, Some(12), &EXTENT), row);
        let wide = Affine::axis(G).plus(&Affine::constant(0), 1);
        let mixed = Affine::default().plus(&wide, 12).plus(&row, 1);
        assert_eq!(digit(&mixed, 12, None, &EXTENT), wide);
        assert_eq!(digit(&mixed, 1, Some(12), &EXTENT), row);
        assert_eq!(
            digit(&digit(&Affine::axis(COL), 2, None, &EXTENT), 3, Some(2), &EXTENT),
            digit(&Affine::axis(COL), 6, Some(2), &EXTENT)
        );
    }

    fn affine() -> impl Strategy<Value = Affine> {
        let term = (0usize..3, 1i64..25);
        (proptest::collection::vec(term, 1..4), 0i64..20).prop_map(|(terms, constant)| {
            terms.into_iter().fold(Affine::constant(constant), |sum, (axis, c)| sum.plus(&Affine::axis(axis), c))
        })
    }

    proptest! {
        #[test]
        fn digit_means_division_and_remainder(
            of in affine(),
            steps in proptest::collection::vec((1i64..13, proptest::option::of(1i64..13)), 1..3),
        ) {
            let mut symbolic = of.clone();
            for (div, modulo) in &steps {
                symbolic = digit(&symbolic, *div, *modulo, &EXTENT);
            }
            let (low, high) = symbolic.range(&EXTENT);
            for g in 0..4 { for r in 0..12 { for c in 0..30 {
                let plain = steps.iter().fold(of.at(&[g, r, c]), |v, (div, modulo)| modulo.map_or(v / div, |m| v / div % m));
                prop_assert_eq!(symbolic.at(&[g, r, c]), plain, "{:?}", symbolic);
                prop_assert!((low..=high).contains(&plain));
            }}}
        }

        #[test]
        fn joining_keeps_the_value(of in affine(), digits in proptest::collection::vec((0usize..6, 0usize..4, 1i64..4), 1..5)) {
            let divs = [1, 2, 4, 6, 12, 24];
            let modulos = [None, Some(1), Some(2), Some(3)];
            let sum = digits.iter().fold(Affine::constant(1), |sum, &(d, m, c)| {
                sum.plus(&digit(&of, divs[d], modulos[m], &EXTENT), c * divs[d])
            });
            let simple = sum.simplified(&EXTENT);
            for g in 0..4 { for r in 0..12 { for c in 0..30 {
                prop_assert_eq!(simple.at(&[g, r, c]), sum.at(&[g, r, c]));
            }}}
        }
    }
}
