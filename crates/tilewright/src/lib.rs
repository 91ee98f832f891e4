//! tilewright.

mod buffer;
mod context;
mod element;
pub mod emit;
mod error;
mod launch;
mod operation;

pub use buffer::{Buffer, Slice, SliceMut};
pub use context::{Context, Options, RecordsAt, default_records};
pub use element::Element;
pub use error::Error;

pub use operation::{Operation, Origin};
