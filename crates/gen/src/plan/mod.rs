//! Plans: hyperparameters, their grammar, what they mean for a contraction, and whether they fit a device.
//!
//! Three questions, three answers: a text is *parsed* ([`Plan::parse`]), a plan is *derivable* for a contraction
//! ([`derive`](fn@derive)), a derived plan *fits* a device ([`fits`](fn@fits)).

mod accumulators;
mod blocks;
mod bulk;
mod counts;
pub mod derive;
mod derived;
mod epilogue;
mod exchange;
mod exit;
mod fetch_shape;
mod fetched;
pub mod fits;
mod frame;
pub mod grammar;
mod grammar_error;
mod grid;
mod grouped;
mod halo;
pub mod keys;
mod materialised;
mod normal;
mod operand;
mod own_loads;
mod own_operands;
mod padded_rows;
mod pairs;
pub(crate) mod reach;
mod readable;
pub mod reduction;
mod refusal;
mod registers;
mod rules;
mod schedule;
mod second;
mod shared_bytes;
mod shared_map;
mod spans;
pub mod spec;
pub mod special;
mod tail;
mod tile;
mod transport;
mod value;
mod windows;
mod workspace;

pub use accumulators::HeldScales;
pub use blocks::Blocks;
pub use bulk::{
    BulkTile, ROW_VECTOR, RowStaging, STORE_ROWS, StoreTile, bulk_tile, fetched_tile, partials, store_buffers, store_columns,
    store_tile,
};
pub use counts::{Counts, Instructions, added_bytes, counts};
pub use derive::{derive, generic, of_elements};
pub use derived::Derived;
pub use exchange::ExchangeShape;
pub use fetch_shape::{FetchShape, LINE_CLASSES, fetch_width, fetched_by_lines};
pub(crate) use fetched::shifted_together;
pub use fetched::{FetchWork, chunk_registers, fetch_batch, fetch_work};
pub use fits::{Footprint, fits, pieces, staging_sets, whole_pieces, work_groups};
pub use grammar_error::{GrammarError, GrammarFault};
pub(crate) use grid::gcd;
pub use grid::{load_tile, thread_grid};
pub use halo::Halo;
pub use keys::{Chiral, Common, Edges, Key, KeyInfo, Keys, Legal, Moves, OperandKeys, Part, Side, Start, System};
pub use materialised::{copy_leading_dimension, in_runs};
pub use own_loads::{OwnLoads, Place};
pub use padded_rows::{PaddedRows, padded_rows};
pub use pairs::OfResults;
pub(crate) use reduction::partials_bytes;
pub use reduction::{
    Carried, ELEMENT_BLOCK, ELEMENT_THREADS, ElementLoads, ElementSteps, ElementTile, Finish, OperandTile, OperandVector,
    Partials, ReductionArrays, SharedReduction, Stage, TileReduction, atomic, reduction_arrays,
};
pub use refusal::Refusal;
pub use rules::Env;
pub use second::SecondCopies;
pub use shared_bytes::shared_align;
pub use shared_map::{Area, Barriers, SharedMap};
pub use spans::{ClassMap, Spans, spans};
pub use spec::*;
pub use tail::first_split_row;
pub use tile::{Along, OperandTiling, Source, WORKSPACE_ALIGN};
pub use transport::{Shifted, Transport};
pub use value::{Constraint, Plan, PlanHasher, Plans, TileClass, TileShape, Way};
pub use workspace::workspace_per_entry;
