//! The C interface of tilewright, for programs in C, C++ and every language that calls C. It builds `libtilewright.so` and `libtilewright.a`.
//!
//! Handles are opaque, status codes have messages, and memory, workspace and stream are the caller's. `include/tilewright.h` describes each
//! function; a test compares both.
//!
//! Every entry checks what C can get wrong (null, numbers that name nothing), catches panics, and keeps the message of a failure for
//! `tw_last_error`.
#![allow(missing_docs, reason = "the header documents every function, for those who call it")]
#![allow(clippy::missing_safety_doc, reason = "as above")]

mod call;
mod context;
mod grown;
mod operation;
mod prepared;
mod problem;
mod status;
mod text;

pub use call::*;
pub use context::*;
pub use operation::*;
pub use prepared::*;
pub use problem::*;
pub use status::*;
