//! Warpgroup instructions on every layout of their operands, and instructions of single waves, on the emulator and on the GPUs at
//! hand: the emulator reads shared memory as the hardware does, or one of them is wrong here.

use crate::common::missing;
use crate::{emulated, kernels};
use emulated::pipeline::Shape;
use emulated::{buffer, to_f32s};
use std::sync::Arc;
use tilewright_device::{Device, DeviceError, Launch, LaunchArg, open};
use tilewright_ir::{Kernel, MatrixType, Swizzle};

fn devices() -> Vec<Arc<dyn Device>> {
    let mut devices = vec![open("emu:sm_90a").unwrap()];
    match open("cuda:0") {
        Ok(device) if device.info().target.features.warpgroup => devices.push(device),
        Ok(device) => missing::skipped(&format!("{} has no warpgroup instructions", device.info().id)),
        Err(e @ DeviceError::Missing { .. }) => missing::skipped(&e.to_string()),
        Err(e) => panic!("{e}"),
    }
    devices
}

/// Runs a kernel on every device: the last argument must hold these values afterwards, exactly.
fn agrees(what: &str, kernel: &Kernel, grid: [u32; 3], args: &[Vec<u8>], expected: &[f32]) {
    for device in devices() {
        let id = &device.info().id;
        let compiled = device.compile(kernel).unwrap_or_else(|e| panic!("{id} {what}: {e}"));
        let buffers: Vec<_> = args
            .iter()
            .map(|bytes| {
                let buffer = device.alloc(bytes.len() as u64).unwrap();
                device.write(&buffer, 0, bytes).unwrap();
                buffer
            })
            .collect();
        let launched = buffers.iter().map(|b| LaunchArg::Buffer(b.clone())).collect();
        device.launch(&[Launch { kernel: compiled, grid, args: launched }]).unwrap_or_else(|e| panic!("{id} {what}: {e}"));
        let out = buffers.last().unwrap();
        let mut got = vec![0; out.bytes() as usize];
        device.read(out, 0, &mut got).unwrap();
        let got = to_f32s(&tilewright_emu::Buffer::from_bytes(&got));
        assert_eq!(got.len(), expected.len());
        let wrong = got.iter().zip(expected).position(|(g, e)| g != e);
        if let Some(at) = wrong {
            panic!("{id} {what}: element {at} is {} instead of {}", got[at], expected[at]);
        }
    }
}

/// Products of small integers, which are exact, in whatever order they are added.
fn product(shape: Shape) {
    let (args, expected) = shape.arguments();
    let args: Vec<Vec<u8>> = args.iter().map(|a| buffer(a).to_vec()).collect();
    agrees(&format!("{shape:?}"), &shape.kernel(), shape.grid(), &args, &expected);
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

/// `ldmatrix`, plain and transposed, feeds `mma`.
#[test]
fn instructions_of_single_waves() {
    let a = |i: usize, k: usize| ((i * 5 + k * 3) % 13) as f32 - 6.0;
    let b = |k: usize, j: usize| ((k * 7 + j * 2) % 11) as f32 - 5.0;
    let halves = |values: Vec<f32>| values.into_iter().flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect();
    let args = [
        halves((0..16 * 64).map(|x| a(x / 64, x % 64)).collect()),
        halves((0..64 * 8).map(|x| b(x / 8, x % 8)).collect()),
        vec![0xFF; 16 * 8 * 4],
    ];
    let expected: Vec<f32> = (0..16 * 8).map(|x| (0..64).map(|k| a(x / 8, k) * b(k, x % 8)).sum()).collect();
    agrees("mma", &kernels::wave_gemm(), [1; 3], &args, &expected);
}

/// Bulk copies in and out around warpgroup instructions: 512 x 640 by 1024, integers so small that sums are exact.
#[test]
fn bulk_copies_both_ways() {
    let a = |i: usize, k: usize| ((i + k * 3) % 5) as f32 - 2.0;
    let b = |k: usize, j: usize| ((k * 7 + j * 2) % 3) as f32 - 1.0;
    let halves = |values: Vec<f32>| values.into_iter().flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect();
    let args = [
        halves((0..512 * 1024).map(|x| a(x / 1024, x % 1024)).collect()),
        halves((0..640 * 1024).map(|x| b(x % 1024, x / 1024)).collect()),
        vec![0xFF; 512 * 640 * 4],
    ];
    let mut expected = vec![0.0; 512 * 640];
    for i in 0..512 {
        for k in 0..1024 {
            let left = a(i, k);
            for (j, sum) in expected[i * 640..(i + 1) * 640].iter_mut().enumerate() {
                *sum += left * b(k, j);
            }
        }
    }
    agrees("warpgroup_gemm", &kernels::warpgroup_gemm(), [5, 8, 1], &args, &expected);
}
