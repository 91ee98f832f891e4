//! `tilewright-bench`: see the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    tilewright_bench::command()
}
