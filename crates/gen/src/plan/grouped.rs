//! Legality of plans for grouped products: the batch entries are groups of rows, columns or terms, and their ends are in device memory.
//!
//! The first tile of a group begins at the first row of the group, which can be any row. The last tile ends at the last row. Tiles without a group are skipped.
//! This module refuses three assumptions: rows at multiples of a number, copies of whole operands, and the computation of every tile.
//! Rows of C may end anywhere, as with a dynamic extent ([`Contraction::varies`]).
//!
//! Groups of terms have whole results. Each result sums a range of k that begins and ends at any term. Copies check each element of both operands
//! against this range: zeros in one operand alone would give NaN where the other is infinite. A box of a bulk copy ends only at the end of its tensor.

use super::keys::{Chiral, Common, Key, Side};
use super::refusal::Refusal;
use super::transport::Transport;
use super::value::Plan;
use tilewright_problem::Ragged;
use tilewright_problem::contraction::{Contraction, LaunchExtents};

/// Refuses choices that are illegal for groups. The contraction is already oriented by SWP.
pub(super) fn check(plan: &Plan, c: &Contraction, copies: [&Transport; 2]) -> Result<(), Refusal> {
    let refuse = |key: Key, why| Err(Refusal::Grouped { key, value: plan.get(key), why });
    let LaunchExtents::Grouped(groups) = &c.launch else { return Ok(()) };
    let copied = Side::ALL.into_iter().find(|side| plan.of(*side).source > 0);
    if let Some(side) = copied {
        return refuse(side.key(Chiral::Wos), "operands of groups are read in place; use WOS0");
    }
    if groups.of == Ragged::K {
        return of_terms(plan, copies);
    }
    if plan.splits > 1 && plan.split_sum != 2 {
        return refuse(
            Key::C(Common::Ice),
            "the kernels before and after the main kernel (SKS0, SKS1) do not know the group of a row; use ICE1, or SKS2 with PST0",
        );
    }
    if plan.ping_pong == 1 {
        return refuse(Key::C(Common::Png), "a ping-pong warpgroup without a tile never signals the next one; use PNG0");
    }
    for (cut, side, copy) in [(Ragged::M, Side::A, copies[0]), (Ragged::N, Side::B, copies[1])] {
        let acp = side.key(Chiral::Acp);
        match copy {
            Transport::Bulk(tile) if groups.of == cut && !tile.k_contiguous => {
                return refuse(
                    acp,
                    "bulk copies along rows begin at multiples of 16 bytes, and groups begin at any row; use ACP0 with LWV",
                );
            }
            Transport::Shifted(_) => {
                return refuse(acp, "copies to the staging buffer run ahead into tiles that may not exist; use ACP0 with LWV");
            }
            _ => {}
        }
    }
    // Staged rows are stored in vectors of 16 bytes, so a tile must begin at a multiple of these columns.
    if plan.staged == 1 && groups.of == Ragged::N {
        return refuse(Key::C(Common::Cst), "tiles begin at any column of the staged rows; use CST0, or the other SWP");
    }
    Ok(())
}

/// Refuses choices that are illegal for groups of terms.
fn of_terms(plan: &Plan, copies: [&Transport; 2]) -> Result<(), Refusal> {
    let refuse = |key: Key, why| Err(Refusal::Grouped { key, value: plan.get(key), why });
    if plan.stagger == 1 {
        return refuse(Key::C(Common::Ufo), "the k range of a group begins at the end of the previous group; use UFO0");
    }
    if plan.ping_pong == 1 {
        return refuse(
            Key::C(Common::Png),
            "ping-pong warpgroups do not know the number of k-tiles of each other's groups; use PNG0",
        );
    }
    for (side, copy) in [(Side::A, copies[0]), (Side::B, copies[1])] {
        let why = match copy {
            Transport::Bulk(_) | Transport::Shifted(_) => {
                "the last box of a group would load terms of the next group; use ACP0 with LWV, or ACP1"
            }
            Transport::Halo(_) => "k-tiles begin at any term of the windows; use ACP0 or ACP1",
            _ => continue,
        };
        return refuse(side.key(Chiral::Acp), why);
    }
    Ok(())
}
