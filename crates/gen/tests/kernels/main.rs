//! Kernels of every kind of problem, type and schedule, verified on the emulator.

#[macro_use]
#[path = "../../../device/tests/common/delegated.rs"]
mod delegated;

mod barriers;
mod bf16_parts;
mod block_scales;
mod cells;
mod complex;
mod depthwise;
mod double_unit;
mod eight_bits;
mod epilogues;
mod exact_sums;
mod gaps;
mod gates;
mod grouped;
mod halo;
#[path = "../support/inspected.rs"]
mod inspected;
mod materialise;
mod matrix_barriers;
#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
mod operand_cells;
mod owners;
mod parameters;
mod pinned_text;
mod promoted;
mod raw_weights;
mod reduction_cells;
mod reductions;
mod rerolled;
mod row_fragments;
mod scales;
mod shifted_lines;
mod small_weights;
mod split_products;
mod split_tails;
#[path = "../support/mod.rs"]
mod support;
mod two_pairs;
mod windows;
