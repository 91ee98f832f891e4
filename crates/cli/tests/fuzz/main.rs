//! Strange inputs of every reader and of the C interface: nothing panics, hangs or holds much memory. `docs/testing.md` names the variables.
//!
//! Manifests of bundles have no target: the library writes them, and only programs of its users read them.

mod c;
mod edit;
mod files;
mod harness;
mod memory;
mod process;
mod texts;
