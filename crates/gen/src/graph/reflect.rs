//! The mirror image of a plan: the same kernel for the problem with A and B, m and n swapped.

use crate::plan::{Chiral, Common, Key, Keys};

/// The plan that does for `C^T = B^T A^T` what this one does for `C = A B` (MIOpenGEMM's rules, extended). `wave` is the
/// number of lanes per wave, which shapes `WVA`. Reflecting twice gives the plan back. `None` for vector math along n (`MVW` above 1), a
/// thread count that is no power of two (its grids are longer along one side only), and waves that do not divide.
///
/// ```
/// # use tilewright_gen::plan::{Common, Key, Keys};
/// # use tilewright_gen::graph::reflected;
/// let plan = [(Common::Mac, 128), (Common::Skw, 9), (Common::Gal, 1), (Common::Afi, 1), (Common::Mia, 0)]
///     .into_iter()
///     .fold(Keys::default(), |p, (key, value)| p.with(Key::C(key), value));
/// let mirror = reflected(&plan, 64).expect("a power of two");
/// assert_eq!((mirror.common(Common::Skw), mirror.common(Common::Gal)), (12, 2));
/// assert_eq!((mirror.common(Common::Afi), mirror.common(Common::Mia)), (0, 1));
/// ```
pub fn reflected(plan: &Keys, wave: u32) -> Option<Keys> {
    let at = |key: Common| plan.common(key);
    let (mac, wva) = (at(Common::Mac), at(Common::Wva));
    if !mac.is_power_of_two() || at(Common::Mvw) > 1 || wva > 0 && !(wave.is_multiple_of(wva) && wave >= wva) {
        return None;
    }
    // Where the square root of MAC is no power of two, skew 10 gives A the longer side, and skew 11 gives it to B.
    let centre: u32 = if mac.ilog2().is_multiple_of(2) { 20 } else { 21 };
    let mirror = Chiral::ALL
        .iter()
        .fold(*plan, |p, key| p.with(Key::A(*key), plan.get(Key::B(*key))).with(Key::B(*key), plan.get(Key::A(*key))));
    let gal = match at(Common::Gal) {
        1 => 2,
        2 => 1,
        strips => strips,
    };
    let flipped = |key: Common| 1 - at(key).min(1);
    let values = [
        (Common::Skw, centre.checked_sub(at(Common::Skw))?),
        (Common::Gal, gal),
        (Common::Afi, flipped(Common::Afi)),
        (Common::Mia, flipped(Common::Mia)),
        (Common::Wva, wave.checked_div(wva).unwrap_or(0)),
    ];
    let legal = values.iter().all(|(key, value)| key.info().legal.contains(*value));
    legal.then(|| values.into_iter().fold(mirror, |p, (key, value)| p.with(Key::C(key), value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::thread_grid;

    fn plan(values: &[(Common, u32)]) -> Keys {
        values.iter().fold(Keys::default(), |p, (k, v)| p.with(Key::C(*k), *v))
    }

    #[test]
    fn the_references_example() {
        let from = plan(&[(Common::Mac, 128), (Common::Skw, 9), (Common::Gal, 1), (Common::Afi, 1), (Common::Mia, 0)]);
        let to = reflected(&from, 64).unwrap();
        let want = [(Common::Mac, 128), (Common::Skw, 12), (Common::Gal, 2), (Common::Afi, 0), (Common::Mia, 1)];
        assert!(to.difference(&plan(&want)).is_empty(), "{to}");
    }

    #[test]
    fn mirrored_grids_are_turned() {
        for mac in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            for skew in 7..=13 {
                let from = plan(&[(Common::Mac, mac), (Common::Skw, skew)]).with(Key::A(Chiral::Mic), 5);
                let Some((a, b)) = thread_grid(mac, skew) else { continue };
                let to = reflected(&from, 32).unwrap();
                assert_eq!(thread_grid(mac, to.common(Common::Skw)), Some((b, a)), "MAC{mac} SKW{skew}");
                assert_eq!(to.get(Key::B(Chiral::Mic)), 5);
                assert!(reflected(&to, 32).unwrap().difference(&from).is_empty());
            }
        }
    }

    #[test]
    fn some_have_no_mirror_image() {
        for (key, value) in [(Common::Mac, 96), (Common::Mvw, 4), (Common::Wva, 64)] {
            assert!(reflected(&plan(&[(key, value)]), 32).is_none());
        }
        assert_eq!(reflected(&plan(&[(Common::Wva, 8)]), 32).unwrap().common(Common::Wva), 4);
    }
}
