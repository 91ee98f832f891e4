//! The graph of plans, the search and its records.

#[macro_use]
#[path = "../../../device/tests/common/delegated.rs"]
mod delegated;
mod campaign;
mod ends;
mod liars;
mod looks;
mod order;
mod pins;
mod plan_search;
mod records;
mod search;
