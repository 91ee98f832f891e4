//! From a plan and a contraction to a [`KernelSpec`]: every rule of legality that needs no device.

use super::refusal::Refusal;
use super::spec::KernelSpec;
use super::value::Plan;
use crate::contraction::Contraction;
use tilewright_ir::Target;

/// What legality reads besides plan and contraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Env {
    /// Usable workspace in bytes.
    pub workspace_bytes: u64,
    /// Lanes per wave (1 on CPUs).
    pub wave: u32,
    /// Results may depend on the order of atomic additions (`SKS0` with `ICE` above 1).
    pub allow_atomics: bool,
}

impl Env {
    /// A target's wave with a workspace; atomics not allowed.
    pub fn new(target: &Target, workspace_bytes: u64) -> Env {
        Env { workspace_bytes, wave: target.wave, allow_atomics: false }
    }
}

/// What the plan means for the contraction, or why it means nothing.
pub fn derive(_plan: &Plan, _c: &Contraction, _env: &Env) -> Result<KernelSpec, Refusal> {
    Err(Refusal::NotBuilt("derive"))
}
