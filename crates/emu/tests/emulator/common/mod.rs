//! Helpers shared by the emulator's tests: buffers of typed values, short ways to run a kernel.
#![allow(dead_code)] // Each test binary uses its own part.

pub mod pipeline;
pub mod product;

use tilewright_emu::{ArgValue, Buffer, EmuError, Options, Report};
use tilewright_ir::{Builder, Kernel};

/// A buffer holding values, and their way back.
pub fn f32s(values: &[f32]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}
pub fn f64s(values: &[f64]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}
pub fn i32s(values: &[i32]) -> Buffer {
    Buffer::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}
pub fn to_f32s(b: &Buffer) -> Vec<f32> {
    b.to_vec().chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}
pub fn to_f64s(b: &Buffer) -> Vec<f64> {
    b.to_vec().chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect()
}
pub fn to_i32s(b: &Buffer) -> Vec<i32> {
    b.to_vec().chunks_exact(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect()
}
pub fn to_u16s(b: &Buffer) -> Vec<u16> {
    b.to_vec().chunks_exact(2).map(|c| u16::from_le_bytes(c.try_into().unwrap())).collect()
}
pub fn arg(b: &Buffer) -> ArgValue {
    ArgValue::Buffer { buffer: b.clone(), offset: 0 }
}
pub fn at(b: &Buffer, offset: usize) -> ArgValue {
    ArgValue::Buffer { buffer: b.clone(), offset }
}

/// Builds a kernel.
pub fn kernel(threads: u32, f: impl FnOnce(&mut Builder)) -> Kernel {
    let mut b = Builder::new("test", threads);
    f(&mut b);
    b.finish()
}

/// All checks, one host thread.
pub fn checked() -> Options {
    Options { threads: 1, ..Options::default() }
}

/// Runs on every execution mode (unchecked, lockstep, interleaved with a few seeds) and demands the same outcome of `read`.
pub fn everywhere<T: PartialEq + std::fmt::Debug>(
    k: &Kernel,
    grid: [u32; 3],
    make: impl Fn() -> Vec<ArgValue>,
    read: impl Fn(&[ArgValue]) -> T,
) -> T {
    let mut modes = vec![Options::fast(), Options::default(), checked()];
    modes.extend((0..4).map(|seed| Options { interleave: true, seed, ..checked() }));
    let results: Vec<T> = modes
        .iter()
        .map(|o| {
            let args = make();
            tilewright_emu::run(k, grid, &args, o).unwrap_or_else(|e| panic!("{o:?}: {e}"));
            read(&args)
        })
        .collect();
    for (r, o) in results.iter().zip(&modes) {
        assert_eq!(*r, results[0], "{o:?}");
    }
    results.into_iter().next().unwrap()
}

/// Runs with all checks, lockstep.
pub fn run(k: &Kernel, grid: [u32; 3], args: &[ArgValue]) -> Result<Report, EmuError> {
    tilewright_emu::run(k, grid, args, &checked())
}

/// The buffer behind an argument.
pub fn buffer(a: &ArgValue) -> &Buffer {
    match a {
        ArgValue::Buffer { buffer, .. } => buffer,
        _ => panic!("no buffer"),
    }
}
