//! Launches on memory and streams that others own: a framework's tensors on its current stream, a C program's pointers.

use crate::{Compiled, DeviceError};
use tilewright_ir::TensorMap;

/// A stream of the device's native API, as its handle in C: `CUstream` or `hipStream_t`. 0 is the default stream of the device's
/// primary context.
///
/// ```
/// use tilewright_device::Stream;
///
/// // A `CUstream` that came through C as a pointer.
/// let handle: *mut std::ffi::c_void = std::ptr::without_provenance_mut(4096);
/// assert_eq!(Stream(handle.addr()), Stream(4096));
/// // The default stream.
/// assert_eq!(Stream::default(), Stream(0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stream(pub usize);

/// Extents of a tensor map in its order; 0 beyond its rank.
pub type MapExtents = [u64; 5];

/// An argument of a launch on memory of others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Address of global memory.
    Address(u64),
    /// A tensor map over the memory from an address on, with these extents.
    Map(u64, MapExtents),
    /// A number.
    Number(Number),
}

/// A number as an argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// 32-bit integer.
    I32(i32),
    /// 64-bit integer.
    I64(i64),
    /// 32-bit float.
    F32(f32),
    /// 64-bit float.
    F64(f64),
}

/// The extents that a kernel declares for a map.
pub fn declared(map: &TensorMap) -> MapExtents {
    let mut extents = [0; 5];
    extents.iter_mut().zip(&map.extent).for_each(|(to, from)| *to = *from);
    extents
}

/// What devices offer whose memory has addresses: CUDA's and HIP's.
pub trait Foreign {
    /// Starts a kernel on a stream of the device's primary context and returns. No lock is held over the driver's call; nothing is
    /// allocated on the device, waited for or asked of it: the stream may be capturing. The context that is current on the calling
    /// thread is current again afterwards. `early`: the kernel is of the same sequence as the launch ahead of it on the stream.
    ///
    /// # Errors
    /// [`DeviceError::BadLaunch`] where arguments and kernel do not fit, [`DeviceError::Api`] for what the driver says.
    ///
    /// # Safety
    /// Every address must be one of this device, aligned and as large as the kernel accesses it, until the stream has passed the
    /// launch. If the launch was captured, that holds until the stream has passed every replay. Kernel and stream must live as
    /// long.
    unsafe fn start(
        &self,
        stream: Stream,
        kernel: &Compiled,
        grid: [u32; 3],
        early: bool,
        args: &[Value],
    ) -> Result<(), DeviceError>;
}
