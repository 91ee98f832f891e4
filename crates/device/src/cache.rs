//! Compiled binaries on disk, found by the content they were made from.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};

/// First bytes of an entry: format name and version.
const MAGIC: &[u8; 8] = b"TWBIN\0\0\x01";

/// A directory of binaries keyed by the SHA-256 of all they depend on (source, options, compiler, target). Many processes
/// may share it: entries appear whole (temporary file, then rename). A damaged entry counts as absent and is replaced.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: Option<PathBuf>,
}

impl Cache {
    /// No cache: every kernel is compiled.
    pub const fn disabled() -> Self {
        Cache { directory: None }
    }
    /// A cache in this directory, which is made when the first entry is written.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Cache { directory: Some(directory.into()) }
    }
    /// `TILEWRIGHT_CACHE` if set (empty or `off` disables), else the user's cache directory.
    pub fn from_env() -> Self {
        match std::env::var_os("TILEWRIGHT_CACHE") {
            Some(v) if v.is_empty() || v == "off" => Cache::disabled(),
            Some(v) => Cache::at(PathBuf::from(v)),
            None => match directories::ProjectDirs::from("", "", "tilewright") {
                Some(dirs) => Cache::at(dirs.cache_dir().join("binaries")),
                None => Cache::disabled(),
            },
        }
    }
    /// Where entries lie; `None` if disabled.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
    /// The key of a binary that depends on these parts, in this order.
    pub(crate) fn key(parts: &[&str]) -> String {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
    fn path(&self, key: &str) -> Option<PathBuf> {
        let (head, tail) = key.split_at_checked(2)?;
        Some(self.directory.as_ref()?.join(head).join(tail))
    }
    /// Compiler log and binary stored under a key, if the entry is there and undamaged.
    pub(crate) fn get(&self, key: &str) -> Option<(String, Vec<u8>)> {
        let data = std::fs::read(self.path(key)?).ok()?;
        let entry = decode(&data);
        if entry.is_none() {
            tracing::warn!(key, "damaged entry in the binary cache, compiling anew");
        }
        entry
    }
    /// Stores log and binary. A failure to write costs only the reuse and is logged.
    pub(crate) fn put(&self, key: &str, log: &str, binary: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let write = || -> std::io::Result<()> {
            let directory = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(directory)?;
            let mut file = tempfile::NamedTempFile::new_in(directory)?;
            file.write_all(&encode(log, binary))?;
            file.persist(&path).map_err(|e| e.error)?;
            Ok(())
        };
        if let Err(e) = write() {
            tracing::warn!(path = %path.display(), "cannot write to the binary cache: {e}");
        }
    }
}

/// Magic, SHA-256 of the rest, length of the log, log, binary.
fn encode(log: &str, binary: &[u8]) -> Vec<u8> {
    let mut rest = Vec::with_capacity(8 + log.len() + binary.len());
    rest.extend((log.len() as u64).to_le_bytes());
    rest.extend(log.as_bytes());
    rest.extend(binary);
    let mut out = MAGIC.to_vec();
    out.extend(Sha256::digest(&rest));
    out.extend(rest);
    out
}

fn decode(data: &[u8]) -> Option<(String, Vec<u8>)> {
    let rest = data.strip_prefix(MAGIC)?;
    let (sum, rest) = rest.split_at_checked(32)?;
    if Sha256::digest(rest).as_slice() != sum {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (log, binary) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((String::from_utf8(log.to_vec()).ok()?, binary.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let key = Cache::key(&["source", "options"]);
        assert_eq!(cache.get(&key), None);
        cache.put(&key, "log", &[1, 2, 3]);
        assert_eq!(cache.get(&key), Some(("log".into(), vec![1, 2, 3])));
        assert_eq!(Cache::disabled().get(&key), None);
    }

    #[test]
    fn damaged_entries_are_ignored_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path());
        let key = Cache::key(&["x"]);
        cache.put(&key, "", b"binary");
        let path = cache.path(&key).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(cache.get(&key), None, "cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).unwrap();
            assert_eq!(cache.get(&key), None, "flipped a bit of byte {at}");
        }
        cache.put(&key, "", b"binary");
        assert_eq!(cache.get(&key), Some((String::new(), b"binary".to_vec())));
    }

    #[test]
    fn keys_tell_parts_apart() {
        assert_ne!(Cache::key(&["ab", "c"]), Cache::key(&["a", "bc"]));
        assert_ne!(Cache::key(&["ab"]), Cache::key(&["ab", ""]));
    }
}
