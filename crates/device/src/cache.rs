//! Compiled binaries on disk, found by the content they were made from.

use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// First bytes of an entry: format name and version.
const MAGIC: &[u8; 8] = b"TWBIN\0\0\x01";
/// How names of files begin that are being written.
const TEMPORARY: &str = ".tmp";

/// A directory of binaries keyed by the SHA-256 of all they depend on (source, options, compiler, target). Many processes
/// may share it: entries appear whole (temporary file, then rename). A damaged entry counts as absent and is replaced.
///
/// It is kept below [`Cache::limit`]: now and then what was unused longest goes, and with it what writers that were killed left.
///
/// ```
/// use tilewright_device::{Cache, Options, open_with};
///
/// # let folder = std::env::temp_dir().join(format!("tilewright-cache-{}", std::process::id()));
/// # let folder = folder.as_path();
/// // At most 64 MiB, in a folder of the program's own.
/// let cache = Cache::at(folder).limited(64 << 20);
/// let device = open_with("emu", &Options { cache: cache.clone(), ..Options::default() })?;
/// assert_eq!((cache.directory(), cache.limit(), cache.entries()?.len()), (Some(folder), 64 << 20, 0));
/// # let _ = device;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cache {
    directory: Option<PathBuf>,
    limit: u64,
    /// Entries written since the cache was last looked through; all clones count together.
    written: Arc<AtomicU64>,
}

/// A binary in the cache.
///
/// ```
/// use tilewright_device::{Cache, CacheEntry};
///
/// # let folder = std::env::temp_dir().join(format!("tilewright-entry-{}", std::process::id()));
/// # let file = folder.join("ab").join("0".repeat(62));
/// # std::fs::create_dir_all(folder.join("ab"))?;
/// # std::fs::write(&file, [0; 100])?;
/// let cache = Cache::at(&folder);
/// // The one that was unused longest comes first.
/// let [CacheEntry { path, bytes, .. }] = &cache.entries()?[..] else { panic!("one entry") };
/// assert_eq!((path, *bytes), (&file, 100));
/// assert_eq!(cache.clear()?, 1);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CacheEntry {
    /// Its file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// When it was written or last used.
    pub used: SystemTime,
}

/// Bytes that a cache may take where nothing else is said.
const LIMIT: u64 = 2 << 30;
/// Entries written between two looks at the size of the cache; the first one that a process writes looks, too.
const LOOK: u64 = 512;
/// Age of a temporary file from which its writer must be gone.
const ABANDONED: Duration = Duration::from_secs(3600);

impl Cache {
    /// No cache: every kernel is compiled.
    pub fn disabled() -> Self {
        Cache { directory: None, limit: LIMIT, written: Arc::default() }
    }
    /// A cache in this directory, which is made when the first entry is written.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Cache { directory: Some(directory.into()), ..Cache::disabled() }
    }
    /// The same with another bound of its size in bytes.
    pub fn limited(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }
    /// `TILEWRIGHT_CACHE` if set (empty or `off` disables), else the user's cache directory; `TILEWRIGHT_CACHE_MB` bounds its size.
    pub fn from_env() -> Self {
        let limit = std::env::var("TILEWRIGHT_CACHE_MB").ok().and_then(|text| text.parse::<u64>().ok());
        let cache = Cache::named();
        match limit.and_then(|mb| mb.checked_mul(1 << 20)) {
            Some(bytes) => cache.limited(bytes),
            None => cache,
        }
    }
    fn named() -> Self {
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
    /// Bytes that its entries may take together.
    pub const fn limit(&self) -> u64 {
        self.limit
    }
    /// All entries, the one longest unused first.
    ///
    /// # Errors
    /// Of reading its folders; one that is not there is empty.
    pub fn entries(&self) -> std::io::Result<Vec<CacheEntry>> {
        let mut entries = self.files(false)?;
        entries.sort_by_key(|e| e.used);
        Ok(entries)
    }
    /// Removes all entries, and what killed writers left; gives the number of entries.
    ///
    /// # Errors
    /// Of reading its folders; files that cannot be removed stay.
    pub fn clear(&self) -> std::io::Result<usize> {
        for left in self.files(true)? {
            let _ = std::fs::remove_file(left.path);
        }
        let entries = self.entries()?;
        Ok(entries.iter().filter(|e| std::fs::remove_file(&e.path).is_ok()).count())
    }
    /// Temporary files, or entries.
    fn files(&self, temporary: bool) -> std::io::Result<Vec<CacheEntry>> {
        let Some(directory) = self.directory.as_ref().filter(|d| d.exists()) else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for folder in std::fs::read_dir(directory)?.flatten() {
            let name = folder.file_name();
            // Nothing but the folders that entries lie in, should the cache's own be a folder of other things.
            if name.len() != 2 || !name.to_string_lossy().bytes().all(|b| b.is_ascii_hexdigit()) || !folder.path().is_dir() {
                continue;
            }
            for file in std::fs::read_dir(folder.path())?.flatten() {
                let name = file.file_name();
                let name = name.to_string_lossy();
                let entry = name.len() == 62 && name.bytes().all(|b| b.is_ascii_hexdigit());
                if (entry && !temporary) || (temporary && name.starts_with(TEMPORARY)) {
                    // One that another process has just removed is not there.
                    let Ok(data) = file.metadata() else { continue };
                    let used = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    files.push(CacheEntry { path: file.path(), bytes: data.len(), used });
                }
            }
        }
        Ok(files)
    }
    /// Removes what was unused longest until the rest is a tenth below the limit, and temporary files of writers that are gone.
    fn trim(&self) -> std::io::Result<()> {
        for left in self.files(true)? {
            if left.used.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = std::fs::remove_file(left.path);
            }
        }
        let entries = self.entries()?;
        let mut bytes: u64 = entries.iter().map(|e| e.bytes).sum();
        if bytes <= self.limit {
            return Ok(());
        }
        for entry in entries {
            if bytes <= self.limit / 10 * 9 {
                break;
            }
            if std::fs::remove_file(&entry.path).is_ok() {
                bytes -= entry.bytes;
            }
        }
        Ok(())
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
        let path = self.path(key)?;
        let data = std::fs::read(&path).ok()?;
        let entry = decode(&data);
        if entry.is_none() {
            tracing::warn!(key, "damaged entry in the binary cache, compiling anew");
        } else if let Ok(file) = std::fs::File::open(&path) {
            // It stays longer than what nobody uses.
            let _ = file.set_modified(SystemTime::now());
        }
        entry
    }
    /// Stores log and binary. A failure to write costs only the reuse and is logged.
    pub(crate) fn put(&self, key: &str, log: &str, binary: &[u8]) {
        let Some(path) = self.path(key) else { return };
        let write = || -> std::io::Result<()> {
            let directory = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(directory)?;
            let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(directory)?;
            file.write_all(&encode(log, binary))?;
            file.persist(&path).map_err(|e| e.error)?;
            if self.written.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK) {
                self.trim()?;
            }
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
    fn a_full_cache_loses_what_was_unused_longest() {
        let dir = tempfile::tempdir().unwrap();
        let keys: Vec<String> = (0..10).map(|n| Cache::key(&[&n.to_string()])).collect();
        let cache = Cache::at(dir.path());
        let hour = Duration::from_secs(3600);
        for (n, key) in keys.iter().enumerate() {
            cache.put(key, "", &[0; 1000]);
            let file = std::fs::File::options().write(true).open(cache.path(key).unwrap()).unwrap();
            file.set_modified(SystemTime::now() - hour * (20 - n as u32)).unwrap();
        }
        // What is used is young again.
        assert!(cache.get(&keys[0]).is_some());
        let folder = cache.path(&keys[0]).unwrap().parent().unwrap().to_path_buf();
        let left = |name: &str, age: u32| {
            let file = std::fs::File::create(folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - hour * age).unwrap();
        };
        left(".tmpold", 2);
        left(".tmpnew", 0);
        std::fs::write(dir.path().join("somebody's file"), b"dear").unwrap();
        let small = Cache::at(dir.path()).limited(6000);
        small.put(&Cache::key(&["one more"]), "", &[0; 1000]);
        let there: Vec<bool> = keys.iter().map(|key| small.path(key).unwrap().exists()).collect();
        assert_eq!(there, [true, false, false, false, false, false, false, true, true, true]);
        assert!(small.entries().unwrap().iter().map(|e| e.bytes).sum::<u64>() <= 6000);
        assert!(!folder.join(".tmpold").exists() && folder.join(".tmpnew").exists());
        assert_eq!((small.clear().unwrap(), small.entries().unwrap().len()), (5, 0));
        assert!(!folder.join(".tmpnew").exists() && dir.path().join("somebody's file").exists());
        assert_eq!(Cache::disabled().entries().unwrap().len(), 0);
    }

    #[test]
    fn keys_tell_parts_apart() {
        assert_ne!(Cache::key(&["ab", "c"]), Cache::key(&["a", "bc"]));
        assert_ne!(Cache::key(&["ab"]), Cache::key(&["ab", ""]));
    }
}
