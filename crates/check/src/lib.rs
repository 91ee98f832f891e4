//! Checks kernels of every problem on any device: references, verification, random problems and plans.
//!
//! [`mod@reference`] makes test data and says how a result compares with the f64 or the exact reference. [`run`] binds a program to buffers.
//! [`verify`](mod@verify) runs a program on test data and looks at its result and all memory around it. [`reduce`] finds a smaller problem
//! of the same kind for the emulator. [`random`] draws problems and plans.
//!
//! ```
//! use tilewright_check::random::{Recipe, pair, verify};
//! use tilewright_device::open;
//!
//! let device = open("emu")?;
//! let pair = pair(&device.info().target, &Recipe::short_code(), 1).expect("a legal pair");
//! assert!(verify(&device, &pair)?.passed, "{pair}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod random;
pub mod reduce;
pub mod reference;
mod room;
pub mod run;
mod spread;
pub mod verify;
