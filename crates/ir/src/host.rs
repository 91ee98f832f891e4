//! Free memory of this machine, for code that is about to allocate much of it. It is in the lowest crate because crates with and without
//! the emulator need it.

/// Bytes of memory that this machine can still give, where it says so. The limit is what its system has left, or this process's
/// control group, or its limit of address space.
pub fn memory_left() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let machine = kib.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? << 10;
    let machine = machine.min(address_space_left().unwrap_or(u64::MAX));
    let number = |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    let (Some(most), Some(now)) = (number("memory.max"), number("memory.current")) else { return Some(machine) };
    // Cached files count as used there although they make room.
    let stat = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")?.parse::<u64>().ok()).unwrap_or(0);
    Some(machine.min(most.saturating_sub(now.saturating_sub(cached))))
}

/// Bytes of address space that this process may still take, where that is limited (`ulimit -v`).
fn address_space_left() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let most =
        limits.lines().find_map(|l| l.strip_prefix("Max address space")?.split_whitespace().next()?.parse::<u64>().ok())?;
    let taken = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = taken.lines().find_map(|l| l.strip_prefix("VmSize:")?.trim().trim_end_matches("kB").trim().parse::<u64>().ok())?;
    Some(most.saturating_sub(kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_machine_says_what_it_has_left() {
        assert!(memory_left().is_some_and(|left| left > 1 << 20));
    }
}
