//! The mirror image of a plan: the same kernel for the problem with A and B, m and n exchanged.

use super::keys::{Chiral, Common, Key};
use super::refusal::Refusal;
use super::value::Plan;

impl Plan {
    /// The plan that does for `C^T = B^T A^T` what this one does for `C = A B` (MIOpenGEMM's rules, extended). `wave` is the
    /// number of lanes per wave, which shapes `WVA`. Reflecting twice gives the plan back.
    ///
    /// # Errors
    /// [`Refusal::NoMirror`] for vector math along n (`MVW` above 1), a thread count that is no power of two, and waves that
    /// do not divide.
    ///
    /// ```
    /// # use tilewright_gen::plan::{Common, Key, Plan};
    /// # fn main() -> Result<(), tilewright_gen::plan::Refusal> {
    /// let plan = [(Common::Mac, 128), (Common::Skw, 9), (Common::Gal, 1), (Common::Afi, 1), (Common::Mia, 0)]
    ///     .into_iter()
    ///     .fold(Plan::default(), |p, (key, value)| p.with(Key::C(key), value));
    /// let mirror = plan.reflected(64)?;
    /// assert_eq!((mirror.common(Common::Skw), mirror.common(Common::Gal)), (12, 2));
    /// assert_eq!((mirror.common(Common::Afi), mirror.common(Common::Mia)), (0, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn reflected(&self, wave: u32) -> Result<Plan, Refusal> {
        let at = |key: Common| self.common(key);
        let none = |key: Common, why: &'static str| Err(Refusal::NoMirror { key: Key::C(key), value: at(key), why });
        let mac = at(Common::Mac);
        if !mac.is_power_of_two() {
            return none(Common::Mac, "thread grids of other than a power of two are longer along one side only");
        }
        // Where the square root of MAC is no power of two, skew 10 gives A the longer side, and skew 11 gives it to B.
        let centre = if mac.ilog2() % 2 == 0 { 20 } else { 21 };
        let Some(skew) = centre_minus(centre, at(Common::Skw)) else {
            return none(Common::Skw, "the mirrored skew is outside the legal values");
        };
        if at(Common::Mvw) > 1 {
            return none(Common::Mvw, "vector arithmetic runs along n, its mirror image along m");
        }
        let wva = match at(Common::Wva) {
            0 => 0,
            w if wave.is_multiple_of(w) && wave >= w => wave / w,
            _ => return none(Common::Wva, "it does not divide the wave"),
        };
        if !Key::C(Common::Wva).info().legal.contains(wva) {
            return none(Common::Wva, "the mirrored rectangle is outside the legal values");
        }
        let mut mirror = Chiral::ALL.iter().fold(*self, |p, key| {
            let (a, b) = (self.get(Key::A(*key)), self.get(Key::B(*key)));
            p.with(Key::A(*key), b).with(Key::B(*key), a)
        });
        let gal = match at(Common::Gal) {
            1 => 2,
            2 => 1,
            strips => strips,
        };
        let flipped = |key: Common| 1 - at(key).min(1);
        let values = [
            (Common::Skw, skew),
            (Common::Gal, gal),
            (Common::Afi, flipped(Common::Afi)),
            (Common::Mia, flipped(Common::Mia)),
            (Common::Wva, wva),
        ];
        for (key, value) in values {
            mirror.set(Key::C(key), value);
        }
        Ok(mirror)
    }
}

fn centre_minus(centre: u32, skew: u32) -> Option<u32> {
    centre.checked_sub(skew).filter(|s| Key::C(Common::Skw).info().legal.contains(*s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::thread_grid;

    fn plan(values: &[(Common, u32)]) -> Plan {
        values.iter().fold(Plan::default(), |p, (k, v)| p.with(Key::C(*k), *v))
    }

    #[test]
    fn the_references_example() {
        let from = plan(&[(Common::Mac, 128), (Common::Skw, 9), (Common::Gal, 1), (Common::Afi, 1), (Common::Mia, 0)]);
        let to = from.reflected(64).unwrap();
        let want = [(Common::Mac, 128), (Common::Skw, 12), (Common::Gal, 2), (Common::Afi, 0), (Common::Mia, 1)];
        assert!(to.difference(&plan(&want)).is_empty(), "{to}");
    }

    #[test]
    fn mirrored_grids_are_turned() {
        for mac in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            for skew in 7..=13 {
                let from = plan(&[(Common::Mac, mac), (Common::Skw, skew)]).with(Key::A(Chiral::Mic), 5);
                let Some((a, b)) = thread_grid(mac, skew) else { continue };
                let to = from.reflected(32).unwrap();
                assert_eq!(thread_grid(mac, to.common(Common::Skw)), Some((b, a)), "MAC{mac} SKW{skew}");
                assert_eq!(to.get(Key::B(Chiral::Mic)), 5);
                assert!(to.reflected(32).unwrap().difference(&from).is_empty());
            }
        }
    }

    #[test]
    fn what_has_no_mirror_says_so() {
        for (key, value) in [(Common::Mac, 96), (Common::Mvw, 4), (Common::Wva, 64)] {
            let refused = plan(&[(key, value)]).reflected(32).unwrap_err();
            assert!(matches!(refused, Refusal::NoMirror { key: k, .. } if k == Key::C(key)), "{refused}");
        }
        assert_eq!(plan(&[(Common::Wva, 8)]).reflected(32).unwrap().common(Common::Wva), 4);
    }
}
