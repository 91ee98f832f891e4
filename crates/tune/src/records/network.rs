//! Whether a file lies on a network file system, where SQLite's log and our marks of running plans do not hold.
//!
//! The log (WAL) needs memory that all its readers and writers share, and processes on two hosts share none. This host can only
//! ask for its own processes whether they live. So a running plan of another host would be taken for one that crashed.

use std::path::{Path, PathBuf};

/// File systems that several hosts write at once, as Linux names them.
const NETWORK: [&str; 24] = [
    "nfs",
    "nfs3",
    "nfs4",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "panfs",
    "pvfs2",
    "orangefs",
    "wekafs",
    "glusterfs",
    "fuse.glusterfs",
    "fuse.sshfs",
    "fuse.juicefs",
    "fuse.s3fs",
    "fuse.dfuse",
    "ncpfs",
];

/// The network file system that a file lies on, or would if it were made. `None` on a local one, and where the system does not
/// say.
pub(super) fn file_system(path: &Path) -> Option<&'static str> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    network(&mounts, &whole(path)?)
}

/// The absolute path without links, as far as it exists.
fn whole(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    let existing = absolute.ancestors().find_map(|a| Some((a, a.canonicalize().ok()?)))?;
    Some(existing.1.join(absolute.strip_prefix(existing.0).ok()?))
}

/// The file system of the deepest mount that holds a path; of several at one place the last covers the others.
fn network(mounts: &str, path: &Path) -> Option<&'static str> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let place = PathBuf::from(unescaped(before.split(' ').nth(4)?));
        Some((place, after.split(' ').next()?.to_string()))
    };
    let holding = mounts.lines().filter_map(mount).filter(|(place, _)| path.starts_with(place));
    let (_, kind) = holding.max_by_key(|(place, _)| place.components().count())?;
    NETWORK.into_iter().find(|known| *known == kind)
}

/// The kernel writes blanks, tabs, line ends and backslashes as three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.into(), |t, (from, to)| t.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:50 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2
23 22 8:2 / /home/local rw - xfs /dev/sdb1 rw
24 21 0:51 / /my\\040scratch rw - lustre 10.0.0.1@tcp:/scratch rw
25 21 0:52 / /over rw - nfs server:/over rw
26 21 0:53 / /over rw - tmpfs tmpfs rw
27 21 0:54 / /remote rw shared:9 master:3 - fuse.sshfs host:/ rw
28 21 0:55 / /gvisor rw - 9p none rw
";

    #[test]
    fn the_deepest_and_last_mount_decides() {
        let of = |path: &str| network(MOUNTS, Path::new(path));
        assert_eq!(of("/var/records.sqlite"), None);
        assert_eq!(of("/home/me/records.sqlite"), Some("nfs4"));
        assert_eq!(of("/homeless/records.sqlite"), None);
        assert_eq!(of("/home/local/records.sqlite"), None);
        assert_eq!(of("/my scratch/a/b.sqlite"), Some("lustre"));
        assert_eq!(of("/over/records.sqlite"), None);
        assert_eq!(of("/remote/r"), Some("fuse.sshfs"));
        assert_eq!(of("/gvisor/r"), None);
        assert_eq!(network("", Path::new("/x")), None);
        assert_eq!(network("garbage\n1 2 - \n", Path::new("/x")), None);
    }

    #[test]
    fn paths_are_followed_as_far_as_they_exist() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
        #[cfg(unix)]
        assert_eq!(whole(&folder.path().join("link/new/r.sqlite")), Some(real.join("new/r.sqlite")));
        assert_eq!(whole(&real.join("r.sqlite")), Some(real.join("r.sqlite")));
    }
}
