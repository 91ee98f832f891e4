//! Whether a derived plan fits a device, and how much of it one work-group takes.

use super::refusal::Refusal;
use super::spec::KernelSpec;
use crate::contraction::Contraction;
use serde::Serialize;
use tilewright_ir::Target;

/// What a kernel takes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Footprint {
    /// Threads per work-group, load and math threads together.
    pub threads: u32,
    /// Shared memory per work-group, in bytes.
    pub shared_bytes: u32,
    /// 32-bit registers per thread, estimated.
    pub registers: u32,
    /// Work-groups that one compute unit can hold at once.
    pub groups_per_unit: u32,
}

/// The footprint on a device, or why the device cannot run it.
pub fn fits(_spec: &KernelSpec, _c: &Contraction, _target: &Target) -> Result<Footprint, Refusal> {
    Err(Refusal::NotBuilt("fits"))
}
