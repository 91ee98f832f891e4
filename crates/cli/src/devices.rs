//! `tilewright devices`: what is here, what is missing, and how to get it.

use crate::args::DevicesArgs;
use crate::error::CliError;
use crate::output::{human_bytes, line};
use serde_json::json;
use tilewright_device::{Listing, list};

/// Prints a line or two per device and per back end without one.
pub fn run(args: &DevicesArgs) -> Result<(), CliError> {
    for listing in list() {
        line(&if args.json { object(&listing) } else { words(&listing) })?;
    }
    Ok(())
}

fn object(listing: &Listing) -> String {
    let backend = listing.backend.prefix();
    match &listing.device {
        Ok(d) => json!({
            "backend": backend,
            "device": d.id,
            "name": d.name,
            "kind": d.kind,
            "arch": d.target.arch,
            "units": d.target.units,
            "memory_bytes": d.memory_bytes,
            "fingerprint": d.fingerprint,
            "platform": listing.platform,
            "time_kind": if d.is_measured() { "measured" } else { "modelled" },
        })
        .to_string(),
        Err(e) => json!({ "backend": backend, "missing": e.to_string() }).to_string(),
    }
}

fn words(listing: &Listing) -> String {
    match &listing.device {
        Ok(d) => {
            let t = &d.target;
            let times = if d.is_measured() { "times are measured" } else { "results are real, times are modelled" };
            format!(
                "{:<12} {}\n{:<12} {}, {} units, wave {}, {} of shared memory per group, {} of memory; {times}\n{:<12} {}",
                d.id,
                d.name,
                "",
                t.arch,
                t.units,
                t.wave,
                human_bytes(u64::from(t.limits.shared_per_group)),
                human_bytes(d.memory_bytes),
                "",
                d.fingerprint
            )
        }
        Err(e) => {
            let reason = e.to_string();
            let mut lines = reason.lines();
            let mut out = format!("{:<12} {}", format!("({})", listing.backend.prefix()), lines.next().unwrap_or_default());
            for more in lines {
                out.push_str(&format!("\n{:<12} {}", "", more.trim()));
            }
            out
        }
    }
}
