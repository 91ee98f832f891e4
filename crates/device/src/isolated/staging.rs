//! Memory that a tuner and its worker share. Bytes of buffers go through it.
//!
//! The memory is a file that both processes map, in rooms of [`ROOM`] bytes. A room is the tuner's, except while a call that names it runs in
//! the worker. A pipe would copy the bytes twice more and touch fresh pages in each transfer.

use crate::DeviceError;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;
use tempfile::{Builder, NamedTempFile};

/// Bytes of a room: the most that cross in one call.
pub(super) const ROOM: usize = 2 << 20;
/// Rooms: the bytes of one call are copied here while those of another are copied on the device.
const ROOMS: usize = 4;

/// A folder whose files are memory, on Linux.
const IN_MEMORY: &str = "/dev/shm";

/// The mapping of one of the two processes.
pub(super) struct Staging(MmapRaw);

/// A room, in the tuner.
pub(super) struct Room<'a> {
    at: usize,
    start: *mut u8,
    _staging: PhantomData<&'a mut Staging>,
}

// SAFETY: no two rooms have a byte in common, and `Staging` is borrowed as long as they are there.
unsafe impl Send for Room<'_> {}

impl Staging {
    /// Creates the memory. Both mappings outlive the file, which is removed when it is dropped.
    ///
    /// # Errors
    /// The operating system's: there is no room for the file, neither in memory nor in the folder of temporary files.
    pub(super) fn create() -> io::Result<(Staging, NamedTempFile)> {
        let file = file_in(Path::new(IN_MEMORY)).or_else(|_| file_in(&std::env::temp_dir()))?;
        Ok((Staging::of(file.as_file())?, file))
    }

    /// Maps the memory that the other process has created.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn open(path: &Path) -> io::Result<Staging> {
        Staging::of(&File::options().read(true).write(true).open(path)?)
    }

    fn of(file: &File) -> io::Result<Staging> {
        Ok(Staging(MmapOptions::new().len(ROOMS * ROOM).map_raw(file)?))
    }

    /// All rooms, for the tuner.
    pub(super) fn rooms(&mut self) -> [Room<'_>; ROOMS] {
        // SAFETY: every room is within the mapping.
        std::array::from_fn(|i| Room { at: i * ROOM, start: unsafe { self.0.as_mut_ptr().add(i * ROOM) }, _staging: PhantomData })
    }

    /// All bytes, for the worker's device to prepare.
    pub(super) fn all(&self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.0.as_mut_ptr(), self.0.len())
    }

    /// Bytes that a call names, for the worker. None if they leave the memory.
    ///
    /// # Safety
    /// They are used while the call runs, and no other call names them.
    #[allow(clippy::mut_from_ref)] // Calls that run at once name different bytes.
    pub(super) unsafe fn bytes(&self, range: Range<usize>) -> Option<&mut [u8]> {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= self.0.len())?;
        // SAFETY: the range is within the mapping, and nobody else uses it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().add(range.start), len) })
    }
}

impl Room<'_> {
    /// Where it begins in the memory.
    pub(super) const fn at(&self) -> usize {
        self.at
    }

    /// Copies bytes in, as many as it holds.
    pub(super) fn put(&mut self, bytes: &[u8]) {
        // SAFETY: no more than the room holds, which no call names now. Through a pointer, because the other process changes the bytes too.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, bytes.len().min(ROOM)) }
    }

    /// Copies bytes out, as many as it holds.
    pub(super) fn get(&mut self, bytes: &mut [u8]) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.start, bytes.as_mut_ptr(), bytes.len().min(ROOM)) }
    }
}

/// The error of memory that cannot be shared.
pub(super) fn unshared(e: &io::Error) -> DeviceError {
    let reason =
        format!("{e}; make {} MiB of room in {IN_MEMORY} or in {}", (ROOMS * ROOM) >> 20, std::env::temp_dir().display());
    DeviceError::Io { what: "the memory shared with a worker".into(), reason }
}

/// A file of the memory's size, all of it written: where a file system is full, a page that was never written ends the process.
fn file_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut file = Builder::new().prefix("tilewright-").tempfile_in(folder)?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..ROOMS * ROOM / zeros.len() {
        file.write_all(&zeros)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same_bytes() {
        let (mut here, file) = Staging::create().unwrap();
        let there = Staging::open(file.path()).unwrap();
        let path = file.path().to_path_buf();
        drop(file);
        assert!(!path.exists());
        here.rooms()[1].put(&[1, 2, 3]);
        // SAFETY: nobody else uses the memory.
        let bytes = |range| unsafe { there.bytes(range) };
        let range = ROOM - 1..ROOM + 3;
        assert_eq!(bytes(range.clone()), Some(&mut [0, 1, 2, 3][..]));
        bytes(range).unwrap().copy_from_slice(&[7, 8, 9, 10]);
        let mut back = [0; 3];
        here.rooms()[1].get(&mut back);
        assert_eq!(back, [8, 9, 10]);
        assert_eq!(bytes(ROOMS * ROOM - 1..ROOMS * ROOM + 1), None);
        assert_eq!(bytes(Range { start: 2, end: 1 }), None);
    }
}
