//! Tensor maps encoded in C by CUDA's driver with the arguments that our own launches pass.

use super::expression;
use crate::Error;
use crate::map::{element_strides, joined};
use std::fmt::Write;
use tilewright_device::cuda::tensor_map::{FAULTY_BIT, FAULTY_WORD, LAST_WITH_FAULT, SMALL_TENSOR, constants};
use tilewright_gen::program::Launch;
use tilewright_ir::TensorMap;
use tilewright_problem::contraction::Contraction;

/// Declares and encodes the map of argument `n` over memory from an address on.
pub(super) fn encode(c: &Contraction, launch: &Launch, n: usize, map: &TensorMap, address: &str) -> Result<String, Error> {
    let refused = |reason: String| Error::Host { name: format!("argument {n}").into(), reason: reason.into() };
    let [ty, swizzle] = constants(map).ok_or_else(|| refused(format!("bulk copies do not move {}", map.scalar)))?;
    let mut extents: Vec<String> = map.extent.iter().map(u64::to_string).collect();
    let sized: Vec<_> = launch.maps.iter().filter(|m| m.arg == n).collect();
    for m in &sized {
        let room = extents.get_mut(m.dim).ok_or_else(|| refused(format!("the map has no dimension {}", m.dim)))?;
        *room = expression::factor(c, &m.extent);
    }
    let rank = map.extent.len();
    if rank < 2 || map.stride_bytes.len() + 1 != rank {
        return Err(refused(format!("a map of {rank} dimensions and {} strides", map.stride_bytes.len())));
    }
    let mut out = String::new();
    // Writing to a String cannot fail, here and below.
    let _ = write!(
        out,
        "        CUtensorMap x{n};\n\
         \x20       const cuuint64_t extent{n}[] = {{{}}};\n\
         \x20       const cuuint64_t stride{n}[] = {{{}}}; /* bytes */\n\
         \x20       const cuuint32_t step{n}[] = {{{}}}; /* elements */\n",
        extents.join(", "),
        joined(&map.stride_bytes, ", "),
        joined(&element_strides(map), ", ")
    );
    let memory = format!("{ty}, {rank}, (void *)(uintptr_t)({address}), extent{n}, stride{n}");
    let rest = format!(
        "CU_TENSOR_MAP_INTERLEAVE_NONE, {swizzle},\n            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"
    );
    match &map.im2col {
        None => {
            let _ = write!(
                out,
                "        const cuuint32_t box{n}[] = {{{}}};\n        status = cuTensorMapEncodeTiled(&x{n}, {memory}, box{n}, step{n},\n            {rest});\n",
                joined(&map.tile, ", ")
            );
        }
        Some(w) => {
            let (channels, pixels) = (map.tile.first().unwrap_or(&0), map.tile.get(1).unwrap_or(&0));
            let _ = write!(
                out,
                "        const int lower{n}[] = {{{}}};\n        const int upper{n}[] = {{{}}};\n        status = cuTensorMapEncodeIm2col(&x{n}, {memory}, lower{n}, upper{n}, {channels}, {pixels}, step{n},\n            {rest});\n",
                joined(&w.lower, ", "),
                joined(&w.upper, ", ")
            );
        }
    }
    out.push_str("        if (status != CUDA_SUCCESS) return status;\n");
    out.push_str(&repair(map, n, !sized.is_empty()));
    Ok(out)
}

/// Clears what old drivers set wrongly in maps of small tensors.
fn repair(map: &TensorMap, n: usize, dynamic: bool) -> String {
    let element = u64::from(map.scalar.bytes());
    let strides = std::iter::once(element).chain(map.stride_bytes.iter().copied());
    let bytes = map
        .extent
        .iter()
        .zip(strides)
        .fold(u128::from(element), |sum, (extent, stride)| sum + u128::from(extent.saturating_sub(1)) * u128::from(stride));
    if !dynamic && bytes >= u128::from(SMALL_TENSOR) {
        return String::new();
    }
    let terms: Vec<String> = (0..map.extent.len())
        .map(|d| {
            let stride = if d == 0 { element.to_string() } else { format!("stride{n}[{}]", d - 1) };
            format!("(extent{n}[{d}] - 1) * {stride}")
        })
        .collect();
    format!(
        "        /* Drivers up to CUDA {}.{} encode maps of small tensors wrongly. */\n\
         \x20       if (kernels->driver <= {LAST_WITH_FAULT} && {element} + {} < {SMALL_TENSOR}) x{n}.opaque[{FAULTY_WORD}] &= ~((cuuint64_t)1 << {FAULTY_BIT});\n",
        LAST_WITH_FAULT / 1000,
        LAST_WITH_FAULT % 1000 / 10,
        terms.join(" + ")
    )
}
