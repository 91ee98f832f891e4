//! The command `tilewright`: every subcommand, bad input, interruptions, what compilers make of kernels, and the project's pages.

mod bad_input;
mod commands;
mod common;
mod documents;
mod edited;
#[cfg(unix)]
mod fleet;
mod inspect;
mod memory;
mod onnx;
#[path = "../../../ir/tests/support/pages.rs"]
mod pages;
#[cfg(unix)]
mod recipes;
mod resume;
mod selfcheck;
mod small_model;
mod wave_units;
