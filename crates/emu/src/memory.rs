//! Global memory: buffers shared by host and work-groups, and the values passed as kernel arguments.
//!
//! A buffer is an array of 32-bit atomic cells accessed with relaxed ordering, which on every host CPU is an ordinary load or store.
//! That makes concurrent access from work-groups on several host threads well defined without `unsafe`. The race checks decide whether a
//! kernel's accesses are *ordered*. A second array has one bit per byte that tells whether the byte was ever written. Both arrays consist of
//! pages that are allocated by the first write.

use crate::EmuError;
use crate::pool::{Pages, Pool, cells};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a page. No element crosses from one to the next.
pub(crate) const PAGE: usize = 1 << 16;

/// Global memory of the emulated device, aligned to 256 bytes in its address space. Clones share the memory. It takes memory of this
/// machine only where it is written.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Cells>);

/// A kernel argument.
#[derive(Clone, Debug)]
pub enum ArgValue {
    /// Global memory from a byte offset to the end of a buffer. A tensor map argument takes it too: its extents and strides are the
    /// kernel's, its first element stands at the offset.
    Buffer {
        /// The memory.
        buffer: Buffer,
        /// Where the argument's element 0 stands, in bytes.
        offset: usize,
    },
    /// A tensor map argument with extents of this launch, at most the kernel's.
    Map {
        /// The memory.
        buffer: Buffer,
        /// Where the tensor's first element stands, in bytes.
        offset: usize,
        /// Extents in elements, in the map's order.
        extent: Vec<u64>,
    },
    /// A scalar.
    I32(i32),
    /// A scalar.
    U32(u32),
    /// A scalar.
    I64(i64),
    /// A scalar.
    F32(f32),
    /// A scalar.
    F64(f64),
}

#[derive(Debug)]
pub(crate) struct Cells {
    len: usize,
    pages: Pages<Page>,
    pool: Pool,
    /// Held by 64-bit atomics, which span two words.
    wide: Mutex<()>,
}

impl Buffer {
    /// Memory that nobody has written yet. It reads as bytes 0xFF (NaN in every float type); with
    /// [`crate::Checks::initialised`] a kernel's read of it is an error.
    pub fn new(bytes: usize) -> Buffer {
        Buffer::of(&Pool::new(u64::MAX), bytes)
    }
    /// As [`Buffer::new`], taking its memory from an allowance.
    ///
    /// # Errors
    /// [`EmuError::OutOfMemory`] if this machine cannot even hold the list of its pages.
    pub fn new_in(pool: &Pool, bytes: usize) -> Result<Buffer, EmuError> {
        let buffer = Buffer::of(pool, bytes);
        buffer.0.pages.intact()?;
        Ok(buffer)
    }
    fn of(pool: &Pool, bytes: usize) -> Buffer {
        let pages = Pages::new(bytes.div_ceil(PAGE), pool);
        Buffer(Arc::new(Cells { len: bytes, pages, pool: pool.clone(), wide: Mutex::new(()) }))
    }
    /// Memory that holds these bytes. Where this machine has no room for them, the next launch on it says so.
    pub fn from_bytes(bytes: &[u8]) -> Buffer {
        let b = Buffer::new(bytes.len());
        b.0.write(0, bytes);
        b
    }
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }
    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }
    /// True if both are the same memory.
    pub fn same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    /// Copies host bytes in, starting at byte `offset`.
    ///
    /// # Errors
    /// [`EmuError::HostRange`], [`EmuError::OutOfMemory`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), EmuError> {
        self.range(offset, bytes.len())?;
        self.0.write(offset, bytes);
        self.0.pages.intact()
    }
    /// Copies bytes out to the host, starting at byte `offset`.
    ///
    /// # Errors
    /// [`EmuError::HostRange`].
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), EmuError> {
        self.range(offset, bytes.len())?;
        self.0.read(offset, bytes);
        Ok(())
    }
    /// Copies everything out to the host.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.0.len];
        self.0.read(0, &mut bytes);
        bytes
    }
    pub(crate) fn cells(&self) -> &Arc<Cells> {
        &self.0
    }
    fn range(&self, offset: usize, len: usize) -> Result<(), EmuError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.0.len => Ok(()),
            end => Err(EmuError::HostRange { offset, end: end.unwrap_or(usize::MAX), len: self.0.len }),
        }
    }
}

impl Cells {
    /// What its memory, and what is noted about it, is taken from.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }
    /// An error if a write was lost for want of memory since this was last asked.
    pub(crate) fn intact(&self) -> Result<(), EmuError> {
        self.pages.intact()
    }
    /// The page of a byte, to write.
    #[inline]
    fn page(&self, byte: usize) -> Option<&Page> {
        let first = byte / PAGE * PAGE;
        let bytes = (self.len - first.min(self.len)).min(PAGE);
        self.pages.touch(byte / PAGE, bytes + bytes / 8, || Page::new(bytes))
    }
    fn read(&self, offset: usize, out: &mut [u8]) {
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let n = (PAGE - at % PAGE).min(rest.len());
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(n);
            match self.pages.get(at / PAGE) {
                Some(page) => page.read(at % PAGE, part),
                None => part.fill(0xFF),
            }
            (at, rest) = (at + n, tail);
        }
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (part, tail) = rest.split_at((PAGE - at % PAGE).min(rest.len()));
            if let Some(page) = self.page(at) {
                page.write(at % PAGE, part);
            }
            (at, rest) = (at + part.len(), tail);
        }
    }
    /// The element of 1, 2, 4 or 8 bytes at an aligned byte offset within the buffer.
    #[inline]
    pub(crate) fn get(&self, byte: usize, size: usize) -> u64 {
        match self.pages.get(byte / PAGE) {
            Some(page) => page.get(byte % PAGE, size),
            None => u64::MAX >> (64 - 8 * size),
        }
    }
    /// Writes an element and notes that it is written.
    #[inline]
    pub(crate) fn set(&self, byte: usize, size: usize, value: u64) {
        if let Some(page) = self.page(byte) {
            page.set(byte % PAGE, size, value);
        }
    }
    /// Replaces an element by a function of itself, atomically against other calls. Returns the old value.
    pub(crate) fn update(&self, byte: usize, size: usize, f: impl Fn(u64) -> u64) -> u64 {
        let Some(page) = self.page(byte) else { return 0 };
        let at = byte % PAGE;
        if size == 4 {
            let before = page.words[at / 4].fetch_update(Relaxed, Relaxed, |old| Some(f(old as u64) as u32));
            page.mark(at, size);
            before.map_or(0, u64::from)
        } else {
            let guard = self.wide.lock().unwrap_or_else(PoisonError::into_inner);
            let before = page.get(at, size);
            page.set(at, size, f(before));
            drop(guard);
            before
        }
    }
    /// True if all bytes of an aligned element were written.
    #[inline]
    pub(crate) fn is_written(&self, byte: usize, size: usize) -> bool {
        self.pages.get(byte / PAGE).is_some_and(|page| page.is_written(byte % PAGE, size))
    }
}

/// A part of a buffer. Bytes count from its first.
#[derive(Debug)]
struct Page {
    words: Box<[AtomicU32]>,
    /// One bit per byte: written at least once.
    written: Box<[AtomicU32]>,
}

impl Page {
    fn new(bytes: usize) -> Option<Page> {
        let words = cells(bytes.div_ceil(4), || AtomicU32::new(u32::MAX))?;
        Some(Page { words, written: cells(bytes.div_ceil(32), || AtomicU32::new(0))? })
    }
    fn read(&self, offset: usize, out: &mut [u8]) {
        // Up to a word boundary, whole words, the rest.
        let head = (offset.wrapping_neg() % 4).min(out.len());
        let (first, rest) = out.split_at_mut(head);
        self.read_within_word(offset, first);
        let words = (offset + head) / 4;
        let mut whole = rest.chunks_exact_mut(4);
        let n = whole.len();
        for (to, from) in whole.by_ref().zip(&self.words[words..]) {
            to.copy_from_slice(&from.load(Relaxed).to_le_bytes());
        }
        self.read_within_word((words + n) * 4, whole.into_remainder());
    }
    fn read_within_word(&self, offset: usize, out: &mut [u8]) {
        if let Some(word) = self.words.get(offset / 4)
            && !out.is_empty()
        {
            out.copy_from_slice(&word.load(Relaxed).to_le_bytes()[offset % 4..offset % 4 + out.len()]);
        }
    }
    fn write(&self, offset: usize, bytes: &[u8]) {
        let head = (offset.wrapping_neg() % 4).min(bytes.len());
        let (first, rest) = bytes.split_at(head);
        self.write_within_word(offset, first);
        let words = (offset + head) / 4;
        let whole = rest.chunks_exact(4);
        let (n, last) = (whole.len(), whole.remainder());
        for (from, to) in whole.zip(&self.words[words..]) {
            to.store(from.iter().rev().fold(0, |w, &b| w << 8 | b as u32), Relaxed);
        }
        for at in (words..words + n).map(|w| w * 4) {
            self.mark(at, 4);
        }
        self.write_within_word((words + n) * 4, last);
    }
    fn write_within_word(&self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (mut new, mut keep) = ([0; 4], [0xFF; 4]);
        let range = offset % 4..offset % 4 + bytes.len();
        new[range.clone()].copy_from_slice(bytes);
        keep[range].fill(0);
        self.put(offset / 4, u32::from_le_bytes(new), u32::from_le_bytes(keep));
        self.mark(offset, bytes.len());
    }
    #[inline]
    fn get(&self, byte: usize, size: usize) -> u64 {
        let low = self.words[byte / 4].load(Relaxed);
        match size {
            1 => (low >> (byte % 4 * 8)) as u8 as u64,
            2 => (low >> (byte % 4 * 8)) as u16 as u64,
            4 => low as u64,
            _ => low as u64 | (self.words[byte / 4 + 1].load(Relaxed) as u64) << 32,
        }
    }
    #[inline]
    fn set(&self, byte: usize, size: usize, value: u64) {
        match size {
            1 | 2 => {
                let (shift, mask) = (byte % 4 * 8, (1 << (8 * size)) - 1);
                self.put(byte / 4, (value as u32 & mask) << shift, !(mask << shift));
            }
            4 => self.words[byte / 4].store(value as u32, Relaxed),
            _ => {
                self.words[byte / 4].store(value as u32, Relaxed);
                self.words[byte / 4 + 1].store((value >> 32) as u32, Relaxed);
            }
        }
        self.mark(byte, size);
    }
    #[inline]
    fn is_written(&self, byte: usize, size: usize) -> bool {
        let bits = ((1u32 << size) - 1) << (byte % 32);
        self.written[byte / 32].load(Relaxed) & bits == bits
    }
    #[inline]
    fn mark(&self, byte: usize, size: usize) {
        let bits = ((1u32 << size) - 1) << (byte % 32);
        let cell = &self.written[byte / 32];
        // Most stores hit what is written already: a load is much cheaper than a read-modify-write.
        if cell.load(Relaxed) & bits != bits {
            cell.fetch_or(bits, Relaxed);
        }
    }
    /// Replaces the bits of a word that `keep` does not hold.
    fn put(&self, word: usize, new: u32, keep: u32) {
        let cell = &self.words[word];
        if keep == 0 {
            cell.store(new, Relaxed);
        } else {
            let _ = cell.fetch_update(Relaxed, Relaxed, |old| Some(old & keep | new));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_as_written() {
        let bytes: Vec<u8> = (1..78).collect();
        for (offset, n) in (0..9).flat_map(|o| (0..12).map(move |n| (o, n))).chain([(13, 77), (23, 77)]) {
            let b = Buffer::new(100);
            b.write(offset, &bytes[..n]).unwrap();
            let mut back = vec![0; n];
            b.read(offset, &mut back).unwrap();
            assert_eq!(back, bytes[..n]);
            let all = b.to_vec();
            assert_eq!(all[offset..offset + n], bytes[..n]);
            assert!(all[..offset].iter().chain(&all[offset + n..]).all(|&x| x == 0xFF));
            assert!((0..100).all(|i| b.0.is_written(i, 1) == (offset..offset + n).contains(&i)));
        }
    }

    #[test]
    fn huge_buffers_cost_what_is_written_of_them() {
        let pool = Pool::new(1 << 20);
        let b = Buffer::new_in(&pool, 40 << 30).unwrap();
        let bytes: Vec<u8> = (0..10).collect();
        // Across two pages, and at the very end.
        for offset in [3 * PAGE - 4, (40 << 30) - 10] {
            b.write(offset, &bytes).unwrap();
            let mut back = [0; 12];
            b.read(offset - 2, &mut back).unwrap();
            assert_eq!(back, [0xFF, 0xFF, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
            assert!(b.0.is_written(offset + 4, 4) && !b.0.is_written(offset - 4, 4));
        }
        assert_eq!(pool.used(), 3 * (PAGE + PAGE / 8) as u64);
        assert_eq!((b.0.get(20 << 30, 2), b.0.get(20 << 30, 8)), (0xFFFF, u64::MAX));
        let all = vec![0; 1 << 20];
        assert!(matches!(b.write(1 << 30, &all), Err(EmuError::OutOfMemory { .. })));
        drop(b);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn host_copies_past_the_end_are_refused() {
        let b = Buffer::new(8);
        assert!(matches!(b.write(5, &[0; 4]), Err(EmuError::HostRange { offset: 5, end: 9, len: 8 })));
        assert!(b.read(usize::MAX, &mut [0; 4]).is_err());
        assert!(b.write(8, &[]).is_ok());
    }
}
