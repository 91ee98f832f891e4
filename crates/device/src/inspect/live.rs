//! How many vector registers hold values that are needed later, in AMD's assembly. This is the number that each role of a kernel
//! would need alone, where the register file is divided by the need of all code.
//!
//! A write counts for all lanes, also where some are masked out. Accumulation registers (`a`) count like others (`v`).

use super::flow::{Block, blocks};
use super::listing::Listing;
use super::{LoopReport, Role};

/// Registers of either kind that an instruction can name.
const FILE: usize = 512;
/// A set of registers: vector registers, then accumulation registers.
type Set = [u64; 2 * FILE / 64];

/// Fills in [`LoopReport::live_registers`] of a kernel's loops. Each loop belongs to one role.
pub(super) fn count(listing: &Listing, loops: &mut [LoopReport]) {
    let blocks = blocks(listing);
    let effects: Vec<Effect> = listing.instructions.iter().map(|i| effect(&i.text)).collect();
    let out = live_out(&blocks, &effects);
    // What can run where a block is left out: what cannot, that block dominates.
    let without: Vec<Vec<bool>> = (0..blocks.len()).map(|b| reachable(&blocks, b)).collect();
    let home = |l: &LoopReport| blocks.iter().position(|block| (block.first..block.end).contains(&l.within));
    let homes: Vec<(Role, Option<usize>)> = loops.iter().map(|l| (l.role, home(l))).collect();
    for report in loops {
        let Some(own) = home(report) else { continue };
        let alone =
            |b: &usize| homes.iter().all(|(role, home)| *role == report.role || home.is_none_or(|home| without[*b][home]));
        let dominated = |b: &usize| without[*b].iter().filter(|runs| !**runs).count();
        // The first block that leads to this loop and to none of another role.
        let first = (0..blocks.len()).filter(|b| !without[*b][own]).filter(alone).max_by_key(dominated);
        let peak = |b: usize| {
            let mut live = out[b];
            let mut most = size(&live);
            for effect in effects[blocks[b].first..blocks[b].end].iter().rev() {
                step(&mut live, effect);
                most = most.max(size(&live));
            }
            most
        };
        report.live_registers = first.and_then(|first| (0..blocks.len()).filter(|b| !without[first][*b]).map(peak).max());
    }
}

/// Which blocks can run if this one cannot.
fn reachable(blocks: &[Block], left_out: usize) -> Vec<bool> {
    let mut seen = vec![false; blocks.len()];
    let mut open = vec![0];
    while let Some(b) = open.pop() {
        if b != left_out && b < blocks.len() && !std::mem::replace(&mut seen[b], true) {
            open.extend(&blocks[b].next);
        }
    }
    seen
}

/// Registers that an instruction writes and reads.
#[derive(Default)]
struct Effect {
    writes: Set,
    reads: Set,
}

/// Registers that are live at the end of each block.
fn live_out(blocks: &[Block], effects: &[Effect]) -> Vec<Set> {
    let (mut before, mut out) = (vec![Set::default(); blocks.len()], vec![Set::default(); blocks.len()]);
    loop {
        let mut changed = false;
        for (b, block) in blocks.iter().enumerate().rev() {
            for next in &block.next {
                out[b] = std::array::from_fn(|i| out[b][i] | before[*next][i]);
            }
            let mut live = out[b];
            effects[block.first..block.end].iter().rev().for_each(|effect| step(&mut live, effect));
            changed |= live != before[b];
            before[b] = live;
        }
        if !changed {
            return out;
        }
    }
}

fn step(live: &mut Set, effect: &Effect) {
    *live = std::array::from_fn(|i| live[i] & !effect.writes[i] | effect.reads[i]);
}

fn size(set: &Set) -> u32 {
    set.iter().map(|word| word.count_ones()).sum()
}

fn effect(text: &str) -> Effect {
    let (opcode, operands) = text.split_once(' ').unwrap_or((text, ""));
    let starts = |heads: &[&str]| heads.iter().any(|head| opcode.starts_with(head));
    let stores = starts(&["ds_write", "ds_store", "s_"]) || opcode.contains("_store_") || opcode.contains("load_lds");
    // Part of the register stays as it was.
    let keeps = starts(&["v_mac_", "v_fmac_", "v_pk_fmac", "v_dot2c", "v_swap", "v_writelane"])
        || opcode.contains("d16")
        || text.contains("UNUSED_PRESERVE");
    let mut effect = Effect::default();
    for (at, operand) in operands.split(',').enumerate() {
        let written = at == 0 && !stores;
        for register in registers(operand) {
            if written {
                insert(&mut effect.writes, register);
            }
            if !written || keeps {
                insert(&mut effect.reads, register);
            }
        }
    }
    effect
}

fn insert(set: &mut Set, register: usize) {
    if let Some(word) = set.get_mut(register / 64) {
        *word |= 1 << (register % 64);
    }
}

/// The registers of an operand: `v3`, `-v[4:7]`, `a[0:15]`, `|v1|`.
fn registers(operand: &str) -> std::ops::Range<usize> {
    let name = operand.split_whitespace().next().unwrap_or_default().trim_matches(['-', '|']);
    let number = |text: &str| text.parse::<usize>().ok();
    let range = |file: usize, of: &str| {
        let bounds = match of.strip_prefix('[').and_then(|of| of.strip_suffix(']')) {
            Some(bounds) => bounds.split_once(':').and_then(|(first, last)| Some((number(first)?, number(last)?))),
            None => number(of).map(|only| (only, only)),
        };
        bounds.filter(|(_, last)| *last < FILE).map(|(first, last)| file + first..file + last + 1)
    };
    let vector = name.strip_prefix('v').and_then(|of| range(0, of));
    vector.or_else(|| name.strip_prefix('a').and_then(|of| range(FILE, of))).unwrap_or(0..0)
}

#[cfg(test)]
mod tests {
    use super::super::gcn;
    use super::*;

    #[test]
    fn operands_are_read() {
        assert_eq!(registers(" v[4:7]"), 4..8);
        assert_eq!(registers("-v3"), 3..4);
        assert_eq!(registers(" a[0:15]"), FILE..FILE + 16);
        assert!(registers(" vcc").is_empty() && registers(" s[0:1]").is_empty() && registers(" off offset:16").is_empty());
        let mac = effect("v_fmac_f32_e32 v1, v2, v3");
        assert_eq!((size(&mac.writes), size(&mac.reads)), (1, 3));
        assert_eq!(size(&effect("ds_write_b64 v0, v[2:3]").writes), 0);
    }

    /// Two roles: one holds three values around its loop, the other one.
    #[test]
    fn roles_are_distinguished() {
        let text = "k:\n s_cbranch_scc0 .B\n v_mov_b32 v1, 0\n v_mov_b32 v2, 0\n v_mov_b32 v3, 0\n.A:\n v_add_f32 v1, v2, v3\n \
                    s_cbranch_scc0 .A\n global_store_dword v[4:5], v1, off\n s_branch .E\n.B:\n v_mov_b32 v1, 0\n.C:\n \
                    v_add_u32 v1, 1, v1\n s_cbranch_scc0 .C\n.E:\n s_endpgm\n.Lfunc_end0:\n";
        let listing = gcn::parse(text, "k");
        let at = |part: &str| listing.instructions.iter().position(|i| i.text.starts_with(part)).unwrap();
        let mut loops: Vec<LoopReport> = [(at("v_add_f32"), Role::Main), (at("v_add_u32"), Role::Load)]
            .map(|(first, role)| {
                let round = super::super::flow::Loop { order: (first..first + 2).collect(), inner: Vec::new() };
                super::super::trace::trace(&listing, &round, role)
            })
            .into();
        count(&listing, &mut loops);
        // The address of the store is live all along.
        assert_eq!(loops.iter().map(|l| l.live_registers).collect::<Vec<_>>(), [Some(5), Some(1)]);
        assert_eq!(loops.iter().map(|l| l.integer).collect::<Vec<_>>(), [0, 1]);
    }
}
