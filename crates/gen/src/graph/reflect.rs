//! The mirror image of a plan: the same kernel for the problem with A and B, m and n swapped.

use crate::plan::{Common, Keys};

/// The plan that does for `C^T = B^T A^T` what this one does for `C = A B` (MIOpenGEMM's rules, extended). `wave` is the number
/// of lanes per wave, which shapes `WVA`. Reflecting twice gives the plan back. `None` for vector math along n (`MVW` above 1)
/// and for waves that do not divide. `None` also for a thread count that is no power of two. Grids of such a thread count are
/// longer along one side only.
///
/// ```
/// # use tilewright_gen::plan::Keys;
/// # use tilewright_gen::graph::reflected;
/// let plan = Keys { threads: 128, skew: 9, order: 1, a_first: 1, along_n: 0, ..Keys::default() };
/// let mirror = reflected(&plan, 64).expect("a power of two");
/// assert_eq!((mirror.skew, mirror.order, mirror.a_first, mirror.along_n), (12, 2, 0, 1));
/// ```
pub fn reflected(plan: &Keys, wave: u32) -> Option<Keys> {
    let (mac, wva) = (plan.threads, plan.wave_shape);
    if !mac.is_power_of_two() || plan.math_width > 1 || wva > 0 && !(wave.is_multiple_of(wva) && wave >= wva) {
        return None;
    }
    // Where the square root of MAC is no power of two, skew 10 gives A the longer side, and skew 11 gives it to B.
    let centre: u32 = if mac.ilog2().is_multiple_of(2) { 20 } else { 21 };
    let mirror = Keys {
        a: plan.b,
        b: plan.a,
        skew: centre.checked_sub(plan.skew)?,
        order: match plan.order {
            1 => 2,
            2 => 1,
            strips => strips,
        },
        a_first: 1 - plan.a_first.min(1),
        along_n: 1 - plan.along_n.min(1),
        wave_shape: wave.checked_div(wva).unwrap_or(0),
        ..*plan
    };
    let legal = [Common::Skw, Common::Wva].into_iter().all(|key| key.info().legal.contains(mirror.value(key)));
    legal.then_some(mirror)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::thread_grid;

    #[test]
    fn the_references_example() {
        let from = Keys { threads: 128, skew: 9, order: 1, a_first: 1, along_n: 0, ..Keys::default() };
        let to = reflected(&from, 64).unwrap();
        assert_eq!(to, Keys { skew: 12, order: 2, a_first: 0, along_n: 1, ..from }, "{to}");
    }

    #[test]
    fn mirrored_grids_are_turned() {
        for threads in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] {
            for skew in 7..=13 {
                let from = Keys { threads, skew, ..Keys::default() }.but(|keys| keys.a.micro = 5);
                let Some((a, b)) = thread_grid(threads, skew) else { continue };
                let to = reflected(&from, 32).unwrap();
                assert_eq!(thread_grid(threads, to.skew), Some((b, a)), "MAC{threads} SKW{skew}");
                assert_eq!(to.b.micro, 5);
                assert_eq!(reflected(&to, 32).unwrap(), from);
            }
        }
    }

    #[test]
    fn some_have_no_mirror_image() {
        let plain = Keys::default();
        let none = [Keys { threads: 96, ..plain }, Keys { math_width: 4, ..plain }, Keys { wave_shape: 64, ..plain }];
        assert!(none.iter().all(|keys| reflected(keys, 32).is_none()));
        assert_eq!(reflected(&Keys { wave_shape: 8, ..plain }, 32).unwrap().wave_shape, 4);
    }
}
