//! How another process finds a device: plain data.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A device by names rather than by its number among all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Name of the platform.
    pub platform: String,
    /// Name of the device.
    pub name: String,
    /// How many devices of these names stand before it.
    pub nth: usize,
}

/// How another process finds a device of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(pub(crate) Found);

/// By what a device is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Found {
    /// Its id, which means the same in every process.
    Id(String),
    /// Its UUID: 32 hexadecimal digits.
    Cuda(String),
    /// Its names.
    OpenCl { id: String, place: Place },
}

impl Identity {
    /// The variables to start a worker with, one attempt after the other: the worker may not see the device with the first.
    pub(crate) fn attempts(&self) -> Vec<Vec<(&'static str, String)>> {
        let mut attempts = vec![Vec::new()];
        if let Found::Cuda(uuid) = &self.0 {
            // The caller may have changed the variable after its driver had read it.
            let spelled = spell(uuid);
            attempts.extend(["GPU", "MIG"].map(|kind| vec![("CUDA_VISIBLE_DEVICES", format!("{kind}-{spelled}"))]));
        }
        attempts
    }

    /// 32 hexadecimal digits that no other device has, in whatever host; `None` where the driver gives no UUID.
    pub fn uuid(&self) -> Option<&str> {
        match &self.0 {
            Found::Cuda(uuid) => Some(uuid),
            Found::Id(_) | Found::OpenCl { .. } => None,
        }
    }

    /// The file whose lock a process holds while it times. It names its last holder.
    pub fn lock_file(&self) -> PathBuf {
        let text = match &self.0 {
            Found::Id(id) => id.clone(),
            Found::Cuda(uuid) => uuid.clone(),
            Found::OpenCl { place, .. } => format!("{}-{}-{}", place.platform, place.name, place.nth),
        };
        let name: String = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(100).collect();
        std::env::temp_dir().join(format!("tilewright-{name}.lock"))
    }
}

/// A UUID with its hyphens.
pub(crate) fn spell(uuid: &str) -> String {
    let ends = [8, 12, 16, 20];
    let mut spelled = String::with_capacity(36);
    for (n, digit) in uuid.chars().enumerate() {
        if ends.contains(&n) {
            spelled.push('-');
        }
        spelled.push(digit);
    }
    spelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_by_its_uuid_whatever_is_visible() {
        let identity = Identity(Found::Cuda("0123456789abcdef0123456789abcdef".into()));
        let attempts = identity.attempts();
        assert!(attempts[0].is_empty());
        let named = "01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(attempts[1], [("CUDA_VISIBLE_DEVICES", format!("GPU-{named}"))]);
        assert_eq!(attempts[2], [("CUDA_VISIBLE_DEVICES", format!("MIG-{named}"))]);
        assert_eq!(Identity(Found::Id("emu".into())).attempts().len(), 1);
    }
}
