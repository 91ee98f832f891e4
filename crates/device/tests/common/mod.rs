//! Small kernels that touch each part of the kernel language, and the means to run them on any device.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod boxes;
mod memory;
#[path = "../../../ir/tests/support/missing.rs"]
pub mod missing;
mod values;

use tilewright_device::{Buffer, Device, DeviceError, Launch, LaunchArg};
use tilewright_ir::{Builder, Builtin, ExprId, Kernel};

/// An argument of a case.
pub enum Arg {
    /// A buffer with content, compared afterwards.
    Data(Vec<u8>),
    /// A buffer of bytes 0xEE, compared afterwards.
    Out(usize),
    /// A scalar.
    Scalar(LaunchArg),
}

/// A kernel with its data.
pub struct Case {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub args: Vec<Arg>,
    /// Relative error allowed per f32 output; 0 demands equal bytes.
    pub tolerance: f32,
}

/// The value, or one visible line and `None` where a tool is missing and not required.
pub fn tool<T>(what: &str, result: Result<T, DeviceError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(e @ (DeviceError::Missing { .. } | DeviceError::NoSuchDevice { .. })) => {
            missing::missing(&format!("{what}: {e}"));
            None
        }
        Err(e) => panic!("{what}: {e}"),
    }
}

/// Compiles, runs and reads back all buffers.
pub fn run(device: &dyn Device, case: &Case) -> Result<Vec<Vec<u8>>, DeviceError> {
    let kernel = device.compile(&case.kernel)?;
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut args = Vec::new();
    for arg in &case.args {
        args.push(match arg {
            Arg::Data(data) => {
                let buffer = device.alloc(data.len() as u64)?;
                device.write(&buffer, 0, data)?;
                buffers.push(buffer.clone());
                LaunchArg::Buffer(buffer)
            }
            Arg::Out(bytes) => {
                let buffer = device.alloc(*bytes as u64)?;
                device.fill(&buffer, 0xEE)?;
                buffers.push(buffer.clone());
                LaunchArg::Buffer(buffer)
            }
            Arg::Scalar(scalar) => scalar.clone(),
        });
    }
    device.launch(&[Launch { kernel, grid: case.grid, args }])?;
    device.sync()?;
    buffers
        .iter()
        .map(|buffer| {
            let mut data = vec![0; buffer.bytes() as usize];
            device.read(buffer, 0, &mut data)?;
            Ok(data)
        })
        .collect()
}

/// Demands that a device gives what another gave.
pub fn compare(case: &Case, got: &[Vec<u8>], want: &[Vec<u8>], device: &str) {
    let name = &case.kernel.name;
    assert_eq!(got.len(), want.len());
    for (n, (got, want)) in got.iter().zip(want).enumerate() {
        if case.tolerance == 0.0 {
            let at = got.iter().zip(want).position(|(a, b)| a != b);
            assert_eq!(at, None, "{name} on {device}: buffer {n} differs from this byte on");
            continue;
        }
        let (got, want) = (floats(got), floats(want));
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let fine = g.to_bits() == w.to_bits() || (g - w).abs() <= case.tolerance * w.abs().max(1e-3);
            assert!(fine, "{name} on {device}: buffer {n} element {i} is {g}, not {w}");
        }
    }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Numbers in (-2, 2) that look random.
pub fn noise(n: usize) -> Vec<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..n).map(|_| next()).collect()
}

/// Global index of the thread, for groups of `threads`.
fn global(b: &mut Builder, threads: u32) -> ExprId {
    let (group, local) = (b.builtin(Builtin::GroupId(0)), b.builtin(Builtin::LocalId));
    let start = b.mul(group, threads);
    let i = b.add(start, local);
    b.bind("i", i)
}

/// All cases that every back end must run.
pub fn cases() -> Vec<Case> {
    vec![
        memory::copy(),
        memory::tail(),
        memory::tile(),
        memory::atomics(),
        memory::shared_atomics(),
        values::halves(),
        values::vectors(),
        memory::product(),
        memory::cursors(),
        values::doubles(),
        values::functions(),
        values::scalars(),
        memory::nothing(),
    ]
}
