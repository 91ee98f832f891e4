//! A view as dimensions of memory: what tensor maps of copies are made of.
//!
//! Coordinates are cut into *digits* at every place where the view's normal form divides them. A dimension is a distance in memory and the
//! position along it, a sum of multiples of digits: a window's `stride * output + dilation * tap - padding`, say. Together the dimensions
//! are the offset, and an element exists where every position is within its dimension.

use super::{Access, Bound, View, simplest};
use tilewright_ir::affine::{Affine, Atom, gcd};

/// `(axis / div) % extent`; the last digit of an axis has no remainder to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digit {
    /// Coordinate of the view.
    pub axis: usize,
    /// Coordinates that share a value.
    pub div: i64,
    /// Values.
    pub extent: i64,
    /// The axis ends with it.
    pub last: bool,
}

impl Digit {
    /// As a form of coordinates.
    pub fn form(&self) -> Affine {
        Affine::axis(self.axis).digit_of(self.div, (!self.last).then_some(self.extent))
    }
}

/// One dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimension {
    /// Elements between neighbouring positions.
    pub stride: i64,
    /// Positions that exist: `0 .. extent`.
    pub extent: i64,
    /// Position where all digits are 0.
    pub start: i64,
    /// Digits, by their number, and how far each value of theirs goes.
    pub steps: Vec<(usize, i64)>,
}

/// A view as dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dimensions {
    /// Digits of the coordinates, those of an axis in ascending order.
    pub digits: Vec<Digit>,
    /// Dimensions, by ascending distance.
    pub dims: Vec<Dimension>,
    /// Offset of position 0 along all of them.
    pub base: i64,
}

impl Dimensions {
    /// The view of these extents that they are: the inverse of [`View::dims`].
    pub fn view(&self, extent: [u64; 3]) -> View {
        let (mut offset, mut bounds) = (Affine::constant(self.base), Vec::new());
        for dim in &self.dims {
            let steps = dim.steps.iter();
            let value = steps.fold(Affine::constant(dim.start), |sum, (i, step)| sum.plus(&self.digits[*i].form(), *step));
            offset = offset.plus(&value, dim.stride);
            bounds.push(Bound { value, low: 0, high: dim.extent });
        }
        View { extent, access: Access { offset: offset.simplified(&extent), bounds: simplest(bounds, &extent) } }
    }
}

/// A form over digits.
struct DigitForm {
    constant: i64,
    /// One for each digit.
    coefficients: Vec<i64>,
}

impl View {
    /// The view as dimensions, if it is made of digits of single coordinates, and of conditions that are positions along dimensions.
    pub fn dims(&self) -> Option<Dimensions> {
        let plain = self.digits(&[])?;
        let digits = match windows(&plain, &expanded(&self.access.offset, &plain)?.coefficients, &self.existing(&plain)?) {
            cuts if cuts.is_empty() => plain,
            cuts => self.digits(&cuts)?,
        };
        let expand = |form: &Affine| expanded(form, &digits);
        let DigitForm { constant: mut base, coefficients: mut rest } = expand(&self.access.offset)?;
        let mut dims = Vec::new();
        for bound in &self.access.bounds {
            let DigitForm { constant, coefficients: steps } = expand(&bound.value)?;
            let (i, step) = steps.iter().enumerate().find(|(_, step)| **step != 0)?;
            let stride = rest[i] / step;
            if stride <= 0 || steps.iter().zip(&rest).any(|(step, rest)| *step != 0 && step * stride != *rest) {
                return None;
            }
            let start = constant - bound.low;
            base -= stride * start;
            rest.iter_mut().zip(&steps).filter(|(_, step)| **step != 0).for_each(|(rest, _)| *rest = 0);
            dims.push(Dimension { stride, extent: bound.high - bound.low, start, steps: moving(&steps, &digits) });
        }
        base += self.unbounded(&digits, &rest, &mut dims);
        dims.sort_by_key(|dim| dim.stride);
        Some(Dimensions { digits, dims, base })
    }

    /// Values of each digit that the conditions on it alone leave.
    fn existing(&self, digits: &[Digit]) -> Option<Vec<i64>> {
        let mut values: Vec<i64> = digits.iter().map(|digit| digit.extent).collect();
        for bound in &self.access.bounds {
            let coefficients = expanded(&bound.value, digits)?.coefficients;
            let mut moved = coefficients.iter().enumerate().filter(|(_, step)| **step != 0);
            if let (Some((i, 1)), None) = (moved.next(), moved.next()) {
                values[i] = values[i].min(bound.high - bound.low);
            }
        }
        Some(values)
    }

    /// The digits that the normal form cuts coordinates into, and so many further cuts (axis, place) do, where each cut divides the next.
    fn digits(&self, further: &[(usize, i64)]) -> Option<Vec<Digit>> {
        let mut cuts: [Vec<i64>; 3] = [vec![1], vec![1], vec![1]];
        further.iter().for_each(|(axis, place)| cuts[*axis].push(*place));
        let forms = self.access.bounds.iter().map(|bound| &bound.value).chain([&self.access.offset]);
        for (atom, _) in forms.flat_map(|form| &form.terms) {
            let Atom::Digit { of, div, modulo } = atom else { continue };
            let ([(Atom::Axis(axis), 1)], 0) = (of.terms.as_slice(), of.constant) else { return None };
            cuts.get_mut(*axis)?.extend([Some(*div), modulo.and_then(|m| m.checked_mul(*div))].into_iter().flatten());
        }
        let mut digits = Vec::new();
        for (axis, cuts) in cuts.iter_mut().enumerate() {
            let extent = i64::try_from(self.extent[axis]).ok()?;
            cuts.retain(|cut| *cut == 1 || *cut < extent);
            cuts.sort_unstable();
            cuts.dedup();
            for (i, div) in cuts.iter().enumerate() {
                let next = cuts.get(i + 1);
                if next.is_some_and(|next| next % div != 0) {
                    return None;
                }
                let extent = next.map_or((extent + div - 1) / div, |next| next / div);
                digits.push(Digit { axis, div: *div, extent, last: next.is_none() });
            }
        }
        Some(digits)
    }

    /// Dimensions of digits that no condition names: those whose reaches overlap are one. Returns what the base gains.
    fn unbounded(&self, digits: &[Digit], rest: &[i64], dims: &mut Vec<Dimension>) -> i64 {
        let mut order: Vec<usize> = (0..digits.len()).filter(|i| rest[*i] != 0 && digits[*i].extent > 1).collect();
        order.sort_by_key(|i| rest[*i].abs());
        let mut base = 0;
        let mut groups: Vec<Dimension> = Vec::new();
        // Farthest offset that the digits so far reach: a distance beyond it is a dimension of its own.
        let mut reach = 0;
        for i in order {
            let (coefficient, values) = (rest[i], digits[i].extent);
            // What runs backwards starts at its last position.
            let start = if coefficient < 0 { coefficient.abs() * (values - 1) } else { 0 };
            base -= start;
            // Steps, starts and the last position in elements until the distance of the dimension is known.
            match groups.last_mut() {
                Some(dim) if coefficient.abs() <= reach => {
                    dim.stride = gcd(dim.stride, coefficient.abs());
                    dim.extent += coefficient.abs() * (values - 1);
                    dim.start += start;
                    dim.steps.push((i, coefficient));
                }
                _ => {
                    let (stride, extent) = (coefficient.abs(), coefficient.abs() * (values - 1));
                    groups.push(Dimension { stride, extent, start, steps: vec![(i, coefficient)] });
                }
            }
            reach += coefficient.abs() * (values - 1);
        }
        dims.extend(groups.into_iter().map(|dim| {
            let steps = dim.steps.iter().map(|(i, step)| (*i, step / dim.stride)).collect::<Vec<_>>();
            Dimension { extent: dim.extent / dim.stride + 1, start: dim.start / dim.stride, steps, ..dim }
        }));
        base
    }
}

/// Where contiguous digits are to be cut: taps whose elements follow each other in memory are one digit, within which windows start.
/// A digit reaches no farther than the values that its own conditions leave.
fn windows(digits: &[Digit], distances: &[i64], existing: &[i64]) -> Vec<(usize, i64)> {
    let mut cuts = Vec::new();
    for ((digit, _), values) in digits.iter().zip(distances).zip(existing).filter(|((_, distance), _)| **distance == 1) {
        let others = digits.iter().zip(distances).filter(|(other, _)| other.axis != digit.axis && other.extent > 1);
        let within = others.map(|(_, step)| *step).filter(|step| (2..*values).contains(step));
        cuts.extend(within.filter(|step| digit.extent % step == 0).map(|step| (digit.axis, digit.div * step)));
    }
    cuts
}

/// Steps of digits that have more than one value.
fn moving(steps: &[i64], digits: &[Digit]) -> Vec<(usize, i64)> {
    steps.iter().copied().enumerate().filter(|(i, step)| *step != 0 && digits[*i].extent > 1).collect()
}

fn expanded(form: &Affine, digits: &[Digit]) -> Option<DigitForm> {
    let mut coefficients = vec![0; digits.len()];
    for (atom, coefficient) in &form.terms {
        let (axis, div, end) = match atom {
            Atom::Axis(axis) => (*axis, 1, None),
            Atom::Digit { of, div, modulo } => {
                let [(Atom::Axis(axis), 1)] = of.terms.as_slice() else { return None };
                (*axis, *div, modulo.and_then(|m| m.checked_mul(*div)))
            }
        };
        let within = |d: &&mut (usize, &Digit)| d.1.axis == axis && d.1.div >= div && end.is_none_or(|end| d.1.div < end);
        for (i, digit) in digits.iter().enumerate().collect::<Vec<_>>().iter_mut().filter(within) {
            coefficients[*i] += coefficient * (digit.div / div);
        }
    }
    Some(DigitForm { constant: form.constant, coefficients })
}
