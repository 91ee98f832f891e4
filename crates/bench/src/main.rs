//! `tilewright-bench`: see the library of the same name.

fn main() -> ! {
    // Threads of a search that has ended may still be compiling, and libraries to compare with keep threads of their own.
    tilewright_device::exit_now(tilewright_bench::command())
}
