//! Tensor maps in words.

use tilewright_ir::{Swizzle, TensorMap};

/// Distances between the elements that a copy reads along each dimension of a map.
pub(crate) fn element_strides(map: &TensorMap) -> Vec<u32> {
    let mut steps = vec![1; map.extent.len()];
    if let Some(windows) = &map.im2col {
        steps.iter_mut().skip(1).zip(&windows.step).for_each(|(to, from)| *to = *from);
    }
    steps
}

/// Values with something between them.
pub(crate) fn joined<T: ToString>(values: &[T], with: &str) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(with)
}

/// What a map is encoded with, in words.
pub(crate) fn words(map: &TensorMap) -> String {
    let (extent, strides) = (joined(&map.extent, " x "), joined(&map.stride_bytes, ", "));
    let (tile, steps) = (joined(&map.tile, " x "), joined(&element_strides(map), " x "));
    let swizzle = match map.swizzle {
        Swizzle::None => "no swizzle",
        Swizzle::B32 => "swizzle 32B",
        Swizzle::B64 => "swizzle 64B",
        Swizzle::B128 => "swizzle 128B",
    };
    let scalar = if map.round_tf32 { "tf32".to_string() } else { map.scalar.to_string() };
    let boxes = match &map.im2col {
        None => format!("tiled, box {tile}"),
        Some(w) => {
            let (lower, upper) = (joined(&w.lower, " x "), joined(&w.upper, " x "));
            format!("im2col, channels and pixels {tile}, corners {lower} and {upper}")
        }
    };
    format!(
        "{extent} of {scalar}, innermost first, strides {strides} bytes; {boxes}, {swizzle}, no interleave, element strides {steps}, \
         L2 promotion 256B, zeros outside"
    )
}
