//! The space of plans, the search, its records, and verification.

mod liars;
mod pins;
mod plan_search;
mod search;
mod verify;
