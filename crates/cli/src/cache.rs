//! `tilewright cache`: the compiled binaries on disk.

use crate::args::CacheCommand;
use crate::error::CliError;
use crate::output::{human_bytes, line};
use serde_json::json;
use tilewright::Cache;

/// Runs one of the subcommands.
pub fn run(command: &CacheCommand) -> Result<(), CliError> {
    let cache = Cache::from_env();
    let Some(folder) = cache.directory() else {
        return Err(CliError::failed("there is no cache: TILEWRIGHT_CACHE is empty or `off`; set it to a folder"));
    };
    let failed = |e: std::io::Error| CliError::failed(format!("{}: {e}", folder.display()));
    match command {
        CacheCommand::Path => line(&folder.display().to_string()),
        CacheCommand::List { json } => {
            let entries = cache.entries().map_err(failed)?;
            let bytes: u64 = entries.iter().map(|e| e.bytes).sum();
            let oldest = entries.first().and_then(|e| e.used.elapsed().ok()).map_or(0, |age| age.as_secs());
            if *json {
                let limit = cache.limit();
                return line(
                    &json!({ "folder": folder, "binaries": entries.len(), "bytes": bytes, "limit_bytes": limit, "oldest_s": oldest })
                        .to_string(),
                );
            }
            line(&folder.display().to_string())?;
            let (size, limit) = (human_bytes(bytes), human_bytes(cache.limit()));
            line(&format!(
                "{} binaries, {size} of at most {limit}, the one longest unused for {} h",
                entries.len(),
                oldest / 3600
            ))
        }
        CacheCommand::Clear => {
            let removed = cache.clear().map_err(failed)?;
            eprintln!("{removed} binaries removed from {}", folder.display());
            Ok(())
        }
    }
}
