//! The graph of plans, the search and its records.

mod liars;
mod pins;
mod plan_search;
mod records;
mod search;
