//! Products whose batch entries are groups of rows or columns, the ends of which are in device memory: what plans may ask of them.
//!
//! A tile begins where its group does, at any row, and ends where the group does; a tile that no group has is passed over. What counts
//! on rows at multiples of something, on copies of whole operands, or on every tile being computed, is refused here. That lines end anywhere is no other
//! than with an extent known only at launch ([`Contraction::varies`]).

use super::keys::{Chiral, Common, Key};
use super::refusal::Refusal;
use super::transport::Transport;
use super::value::Plan;
use tilewright_problem::Extent;
use tilewright_problem::contraction::Contraction;

/// Refuses what does not go with groups, for a contraction that is oriented as the plan says already.
pub(super) fn suits(plan: &Plan, c: &Contraction, copies: [&Transport; 2]) -> Result<(), Refusal> {
    if c.ends.is_none() {
        return Ok(());
    }
    let refuse = |key: Key, why| Err(Refusal::Grouped { key, value: plan.get(key), why });
    let at = |key: Common| plan.common(key);
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
        let (wos, acp) = (side(Chiral::Wos), side(Chiral::Acp));
        if plan.get(wos) > 0 {
            return refuse(wos, "and its operands are read in place; use WOS0");
        }
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
