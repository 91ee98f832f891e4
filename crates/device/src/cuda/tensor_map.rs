//! Tensor maps of bulk copies, encoded by the driver on the host.

use super::status::check;
use crate::device::map_bytes;
use crate::gpu::{EncodedMap, Failure, Reach};
use cudarc::driver::sys::{self, CUtensorMapDataType_enum as DataType, CUtensorMapSwizzle_enum as Layout};
use tilewright_ir::{Scalar, Swizzle, TensorMap};

/// Last driver that needs [`SMALL_TENSOR`].
pub const LAST_WITH_FAULT: i32 = 13010;

/// Drivers up to CUDA 13.1 set a bit in maps of tensors smaller than this, in bytes. It makes copies go wrong (CUTLASS clears it,
/// too).
pub const SMALL_TENSOR: u64 = 131_072;

/// That bit, within word [`FAULTY_WORD`].
pub const FAULTY_BIT: u32 = 21;

/// The word of a map that holds the bit.
pub const FAULTY_WORD: usize = 1;

/// What the driver's header calls a map's element type and its layout in shared memory. `None` for elements that bulk copies do not move.
pub fn constants(map: &TensorMap) -> Option<[String; 2]> {
    Some([format!("{:?}", data_type(map)?), format!("{:?}", layout(map.swizzle))])
}

/// Encodes a map over the memory from `address` on, for a driver of CUDA `version` (1000 major + 10 minor).
pub(super) fn encode(map: &TensorMap, address: u64, version: i32) -> Result<EncodedMap, Failure> {
    let call = if map.im2col.is_some() { "cuTensorMapEncodeIm2col" } else { "cuTensorMapEncodeTiled" };
    let refused = |reason: String| Failure { call, reason, reach: Reach::Call };
    let ty = data_type(map).ok_or_else(|| refused(format!("bulk copies do not move {}", map.scalar)))?;
    let rank = map.extent.len();
    let spatial = map.im2col.as_ref().map(|w| [w.lower.len(), w.upper.len(), w.step.len(), rank.saturating_sub(2)]);
    let sides = if spatial.is_some() { 2 } else { rank };
    let dense = spatial.is_none_or(|counts| (1..=3).contains(&counts[3]) && counts == [counts[3]; 4]);
    if rank == 0 || rank > 5 || map.tile.len() != sides || map.stride_bytes.len() + 1 != rank || !dense {
        let windows = spatial.map_or(String::new(), |counts| format!(", corners and steps of {counts:?} dimensions"));
        return Err(refused(format!(
            "{rank} extents, {} strides, {} box extents{windows}",
            map.stride_bytes.len(),
            map.tile.len()
        )));
    }
    let mut steps = [1u32; 5];
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    let memory = address as *mut std::ffi::c_void;
    let interleave = sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE;
    let promotion = sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    let fill = sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    let (extent, stride) = (map.extent.as_ptr(), map.stride_bytes.as_ptr());
    // SAFETY: every array has as many elements as the rank says (strides: one less; corners: the spatial dimensions), which was
    // checked. The driver writes the map and keeps nothing. The address is not followed here.
    let result = unsafe {
        match &map.im2col {
            None => sys::cuTensorMapEncodeTiled(
                &mut encoded,
                ty,
                rank as u32,
                memory,
                extent,
                stride,
                map.tile.as_ptr(),
                steps.as_ptr(),
                interleave,
                layout(map.swizzle),
                promotion,
                fill,
            ),
            Some(windows) => {
                steps[1..rank - 1].copy_from_slice(&windows.step);
                sys::cuTensorMapEncodeIm2col(
                    &mut encoded,
                    ty,
                    rank as u32,
                    memory,
                    extent,
                    stride,
                    windows.lower.as_ptr(),
                    windows.upper.as_ptr(),
                    map.tile[0],
                    map.tile[1],
                    steps.as_ptr(),
                    interleave,
                    layout(map.swizzle),
                    promotion,
                    fill,
                )
            }
        }
    };
    check(call, result).map_err(|f| Failure { reason: format!("{} for {map:?} at {address:#x}", f.reason), ..f })?;
    Ok(EncodedMap(repaired(encoded.opaque, map, version)))
}

fn repaired(mut words: [u64; 16], map: &TensorMap, version: i32) -> [u64; 16] {
    if version <= LAST_WITH_FAULT && map_bytes(map).is_some_and(|bytes| bytes < SMALL_TENSOR) {
        words[FAULTY_WORD] &= !(1 << FAULTY_BIT);
    }
    words
}

const fn data_type(map: &TensorMap) -> Option<DataType> {
    Some(match map.scalar {
        Scalar::F16 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Scalar::BF16 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        // Of two integers of 4 bits a map counts the bytes.
        Scalar::I4 | Scalar::U4 | Scalar::I8 | Scalar::U8 | Scalar::E4M3 | Scalar::E5M2 | Scalar::E4M3Fnuz | Scalar::E5M2Fnuz => {
            DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8
        }
        Scalar::F32 if map.round_tf32 => DataType::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        Scalar::F32 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Scalar::F64 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        Scalar::I32 => DataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
        Scalar::U32 => DataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        Scalar::I64 => DataType::CU_TENSOR_MAP_DATA_TYPE_INT64,
        Scalar::Bool => return None,
    })
}

const fn layout(swizzle: Swizzle) -> Layout {
    match swizzle {
        Swizzle::None => Layout::CU_TENSOR_MAP_SWIZZLE_NONE,
        Swizzle::B32 => Layout::CU_TENSOR_MAP_SWIZZLE_32B,
        Swizzle::B64 => Layout::CU_TENSOR_MAP_SWIZZLE_64B,
        Swizzle::B128 => Layout::CU_TENSOR_MAP_SWIZZLE_128B,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::Im2col;

    fn map(rows: u64) -> TensorMap {
        let (extent, stride_bytes, tile) = (vec![256, rows], vec![512], vec![64, 64]);
        TensorMap { scalar: Scalar::F16, round_tf32: false, extent, stride_bytes, tile, swizzle: Swizzle::B128, im2col: None }
    }

    #[test]
    fn small_tensors_are_repaired_for_old_drivers() {
        let all = [u64::MAX; 16];
        let bit = |rows, version| repaired(all, &map(rows), version)[1] >> 21 & 1;
        assert_eq!((bit(255, 13010), bit(256, 13010), bit(255, 13020)), (0, 1, 1));
        assert_eq!(repaired(all, &map(8), 13000).iter().filter(|w| **w != u64::MAX).count(), 1);
    }

    #[test]
    fn malformed_maps_are_refused_before_the_driver_is_asked() {
        let flat = TensorMap { stride_bytes: vec![], ..map(8) };
        assert!(encode(&flat, 0, 13000).unwrap_err().reason.contains("0 strides"));
        let windows = Im2col { lower: vec![0], upper: vec![0], step: vec![1] };
        let flat = TensorMap { im2col: Some(windows), ..map(8) };
        assert!(encode(&flat, 0, 13000).unwrap_err().reason.contains("of [1, 1, 1, 0] dimensions"));
        let truth = TensorMap { scalar: Scalar::Bool, ..map(8) };
        assert!(encode(&truth, 0, 13000).unwrap_err().reason.contains("bool"));
    }
}
