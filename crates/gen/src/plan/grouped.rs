//! Products whose batch entries are groups of rows, columns or terms, the ends of which are in device memory: what plans may ask of them.
//!
//! A tile begins where its group does, at any row, and ends where the group does; a tile that no group has is passed over. What counts
//! on rows at multiples of something, on copies of whole operands, or on every tile being computed, is refused here. That lines end anywhere is no other
//! than with an extent known only at launch ([`Contraction::varies`]).
//!
//! Groups of terms have whole results, each a sum from any term to any other. Copies ask of every element whether it is the group's: one factor's zeros
//! would not do, as the other's may be infinite there. Boxes of bulk copies end where tensors do and nowhere else.

use super::keys::{Chiral, Common, Key};
use super::refusal::Refusal;
use super::transport::Transport;
use super::value::Plan;
use tilewright_problem::Extent;
use tilewright_problem::contraction::Contraction;

/// Refuses what does not go with groups, for a contraction that is oriented as the plan says already.
pub(super) fn suits(plan: &Plan, c: &Contraction, copies: [&Transport; 2]) -> Result<(), Refusal> {
    let refuse = |key: Key, why| Err(Refusal::Grouped { key, value: plan.get(key), why });
    let at = |key: Common| plan.common(key);
    let copied = [Key::A(Chiral::Wos), Key::B(Chiral::Wos)].into_iter().find(|wos| plan.get(*wos) > 0);
    if let Some(wos) = copied.filter(|_| c.has_groups()) {
        return refuse(wos, "and its operands are read in place; use WOS0");
    }
    if c.k_ends.is_some() {
        return of_terms(plan, copies);
    }
    if c.ends.is_none() {
        return Ok(());
    }
    if at(Common::Ice) > 1 && at(Common::Sks) != 2 {
        return refuse(
            Key::C(Common::Ice),
            "and kernels around the main one (SKS0, SKS1) do not know whose a row is; use ICE1, or SKS2 with PST0",
        );
    }
    if at(Common::Png) == 1 {
        return refuse(Key::C(Common::Png), "and a team whose tile no group has would not hand on its turn; use PNG0");
    }
    for (extent, side, copy) in [(Extent::M, Key::A as fn(Chiral) -> Key, copies[0]), (Extent::N, Key::B, copies[1])] {
        let acp = side(Chiral::Acp);
        match copy {
            Transport::Bulk(tile) if c.grouped(extent) && !tile.k_contiguous => {
                return refuse(
                    acp,
                    "and bulk copies along lines of rows begin at multiples of 16 bytes, where groups need not; use ACP0 with LWV",
                );
            }
            Transport::Shifted(_) => {
                return refuse(acp, "and copies to be shifted run ahead into tiles that no group may have; use ACP0 with LWV");
            }
            _ => {}
        }
    }
    // Rows of results in vectors of 16 bytes: columns of a tile begin at a multiple of these.
    if at(Common::Cst) == 1 && c.grouped(Extent::N) {
        return refuse(Key::C(Common::Cst), "and its tiles begin at any column of the staged rows; use CST0, or the other SWP");
    }
    Ok(())
}

/// Refuses what does not go with groups of terms.
fn of_terms(plan: &Plan, copies: [&Transport; 2]) -> Result<(), Refusal> {
    let refuse = |key: Key, why| Err(Refusal::Grouped { key, value: plan.get(key), why });
    if plan.common(Common::Ufo) == 1 {
        return refuse(Key::C(Common::Ufo), "and its sums begin where the group before ends; use UFO0");
    }
    if plan.common(Common::Png) == 1 {
        return refuse(Key::C(Common::Png), "and teams would have to know how many k-tiles each other's groups have; use PNG0");
    }
    for (side, copy) in [(Key::A as fn(Chiral) -> Key, copies[0]), (Key::B, copies[1])] {
        let why = match copy {
            Transport::Bulk(_) | Transport::Shifted(_) => {
                "and the last box of a group would bring terms of the next; use ACP0 with LWV, or ACP1"
            }
            Transport::Halo(_) => "and its k-tiles begin at any term of the windows; use ACP0 or ACP1",
            _ => continue,
        };
        return refuse(side(Chiral::Acp), why);
    }
    Ok(())
}
