//! The `tilewright` command.

#![allow(dead_code, reason = "the subcommands are being wired up")]

mod args;
mod error;
mod figures;
mod problem;
mod values;

fn main() {}
