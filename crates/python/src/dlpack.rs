//! Arrays of any framework through DLPack: where the elements are, how they lie, on which device.

use crate::errors::OperandError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::c_void;

/// The head of `DLManagedTensor`, as DLPack's specification has it up to version 0.8, which producers give to consumers that ask for
/// none.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dims: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Address, shape, strides in elements, type, kind and number of the device.
type Seen = (u64, Vec<i64>, Vec<i64>, &'static str, i32, i32);

/// What a capsule of `__dlpack__` describes. The capsule stays the caller's: what it describes lives as long as it does.
#[pyfunction]
pub fn dlpack(capsule: &Bound<'_, PyCapsule>) -> PyResult<Seen> {
    let pointer = capsule
        .pointer_checked(Some(c"dltensor"))
        .map_err(|e| OperandError::new_err(format!("the array's __dlpack__ gave something else than a tensor: {e}")))?;
    // SAFETY: a capsule of this name points at a `DLManagedTensor`, which begins so.
    let tensor = unsafe { pointer.cast::<Tensor>().as_ref() };
    let dtype = match (tensor.code, tensor.bits, tensor.lanes) {
        (2, 16, 1) => "float16",
        (2, 32, 1) => "float32",
        (2, 64, 1) => "float64",
        (5, 64, 1) => "complex64",
        (5, 128, 1) => "complex128",
        (4, 16, 1) => "bfloat16",
        (0, 8, 1) => "int8",
        (1, 8, 1) => "uint8",
        (0, 32, 1) => "int32",
        (0, 64, 1) => "int64",
        (code, bits, lanes) => {
            let message = format!(
                "elements of DLPack type {code}, {bits} bits, {lanes} lanes: float16, bfloat16, float32, float64, complex64, complex128, int8 or uint8 are possible"
            );
            return Err(OperandError::new_err(message));
        }
    };
    let dims = usize::try_from(tensor.dims).unwrap_or(0);
    // SAFETY: the specification: as many numbers as dimensions, or null where there are none.
    let numbers = |from: *const i64| (!from.is_null()).then(|| (0..dims).map(|i| unsafe { *from.add(i) }).collect::<Vec<i64>>());
    let shape = numbers(tensor.shape).unwrap_or_default();
    let strides = numbers(tensor.strides).unwrap_or_else(|| {
        let mut strides = vec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i];
        }
        strides
    });
    let address = (tensor.data as u64).wrapping_add(tensor.byte_offset);
    Ok((address, shape, strides, dtype, tensor.device_type, tensor.device_id))
}
