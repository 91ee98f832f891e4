//! Names of devices among those of all hosts.

use tilewright::Context;
use tilewright_device::Identity;
use tilewright_fleet::digest;

/// The name of the host.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    if name.trim().is_empty() { "host".into() } else { name.trim().into() }
}

/// The name of a context's device among those of all hosts; of the emulator, that of one worker.
pub fn name(context: &Context, host: &str, worker: Option<usize>) -> String {
    let info = context.info();
    match context.device().identity().filter(|_| info.is_measured()) {
        Some(identity) => named(host, &info.id, &identity),
        None => format!("{host} {} #{}", info.id, worker.unwrap_or_default()),
    }
}

/// A number counts the devices that a process sees, so a UUID stands without it.
fn named(host: &str, id: &str, identity: &Identity) -> String {
    match identity.uuid() {
        Some(uuid) => format!("cuda {uuid}"),
        None => format!("{host} {id} {}", digest(&serde_json::to_string(identity).unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_has_one_name_whatever_devices_a_process_sees() {
        let identity = |text: &str| serde_json::from_str(text).expect("an identity");
        let cuda = |id: &str, uuid: &str| named("a", id, &identity(&format!("{{\"Cuda\":\"{uuid}\"}}")));
        assert_eq!(cuda("cuda:0", "01"), cuda("cuda:3", "01"));
        assert_ne!(cuda("cuda:0", "01"), cuda("cuda:0", "02"));
        // Without a UUID, hosts have devices of the same names.
        let of = |host: &str, id: &str| named(host, id, &identity(&format!("{{\"Id\":\"{id}\"}}")));
        assert_ne!(of("a", "hip:0"), of("b", "hip:0"));
        assert_ne!(of("a", "hip:0"), of("a", "hip:1"));
    }
}
