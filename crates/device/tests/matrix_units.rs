//! Warpgroup instructions on every layout of their operands, on the emulator and on the GPUs at hand: the emulator reads shared
//! memory as the hardware does, or one of them is wrong here.

#[path = "../../emu/tests/common/mod.rs"]
mod emulated;

use emulated::pipeline::Shape;
use emulated::{buffer, to_f32s};
use std::sync::Arc;
use tilewright_device::{Device, DeviceError, Launch, LaunchArg, open};
use tilewright_ir::{MatrixType, Swizzle};

fn devices() -> Vec<Arc<dyn Device>> {
    let mut devices = vec![open("emu:sm_90a").unwrap()];
    match open("cuda:0") {
        Ok(device) if device.info().target.features.warpgroup => devices.push(device),
        Ok(device) => eprintln!("SKIPPED: {} has no warpgroup instructions", device.info().id),
        Err(e @ DeviceError::Missing { .. }) => eprintln!("SKIPPED: {e}"),
        Err(e) => panic!("{e}"),
    }
    devices
}

/// Products of small integers, which are exact, in whatever order they are added.
fn product(shape: Shape) {
    let kernel = shape.kernel();
    let (args, expected) = shape.arguments();
    for device in devices() {
        let id = &device.info().id;
        let compiled = device.compile(&kernel).unwrap_or_else(|e| panic!("{id} {shape:?}: {e}"));
        let buffers: Vec<_> = args
            .iter()
            .map(|a| {
                let bytes = buffer(a).to_vec();
                let on_device = device.alloc(bytes.len() as u64).unwrap();
                device.write(&on_device, 0, &bytes).unwrap();
                on_device
            })
            .collect();
        let launched = buffers.iter().map(|b| LaunchArg::Buffer(b.clone())).collect();
        device.launch(&[Launch { kernel: compiled, grid: shape.grid(), args: launched }]).unwrap_or_else(|e| panic!("{id}: {e}"));
        let mut got = vec![0; buffers[2].bytes() as usize];
        device.read(&buffers[2], 0, &mut got).unwrap();
        let got = to_f32s(&tilewright_emu::Buffer::from_bytes(&got));
        let wrong = got.iter().zip(&expected).position(|(g, e)| g != e);
        if let Some(at) = wrong {
            let (row, column) = (at as u32 / shape.n, at as u32 % shape.n);
            panic!("{id} {shape:?}: row {row}, column {column}: {} instead of {}", got[at], expected[at]);
        }
    }
}

#[test]
fn rows_of_k() {
    for swizzle in [Swizzle::B128, Swizzle::B64, Swizzle::B32, Swizzle::None] {
        for input in [MatrixType::F16, MatrixType::BF16, MatrixType::TF32] {
            product(Shape { input, swizzle, ..Shape::default() });
        }
    }
}

#[test]
fn columns_of_k() {
    for (swizzle, tile_n) in [(Swizzle::B128, 64), (Swizzle::B64, 32), (Swizzle::B32, 48), (Swizzle::None, 24)] {
        product(Shape { swizzle, tile_n, a_transposed: true, b_transposed: true, ..Shape::default() });
    }
    for (a_transposed, b_transposed) in [(true, false), (false, true)] {
        product(Shape { swizzle: Swizzle::B64, a_transposed, b_transposed, ..Shape::default() });
    }
}

#[test]
fn left_operand_from_registers() {
    for input in [MatrixType::F16, MatrixType::TF32] {
        product(Shape { input, a_in_registers: true, stages: 3, ..Shape::default() });
    }
}

#[test]
fn widest_and_narrowest_instruction() {
    product(Shape { tile_n: 256, n: 256, k: 128, m: 64, stages: 1, ..Shape::default() });
    product(Shape { tile_n: 8, n: 8, k: 64, m: 1, stages: 4, ..Shape::default() });
}
