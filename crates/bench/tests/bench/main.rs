//! The command `tilewright-bench`: its page, what is published, and vendor libraries.

#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
mod page;
mod published;
mod vendors;
