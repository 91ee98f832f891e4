//! The C interface: the header, its examples, and whatever a caller may get wrong.

mod examples;
#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
#[path = "../../../ir/tests/support/pages.rs"]
mod pages;
mod refusals;
mod sweep;
