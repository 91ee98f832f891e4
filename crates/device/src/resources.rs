//! What compilers tell about a kernel.

use serde::{Deserialize, Serialize};

/// What a compiled kernel uses. `None` where the compiler does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// 32-bit (vector) registers per thread.
    pub registers: Option<u32>,
    /// Bytes per thread that did not fit into registers and are written to memory.
    pub spill_bytes: Option<u32>,
    /// Private memory per thread in bytes (stack, indexed arrays, spills).
    pub private_bytes: Option<u32>,
    /// Shared memory per work-group in bytes, static and dynamic.
    pub shared_bytes: Option<u32>,
    /// Most threads per work-group this kernel can be launched with.
    pub max_threads: Option<u32>,
}
