//! The sweep before each timed run: a kernel that reads more memory than the last-level cache holds.
//!
//! Reading leaves the cache full of clean lines that nobody wants. Writing would leave dirty lines, which the device then writes
//! back while the timed run asks for memory. On an H200 a product that reads 134 MB then takes 44.0 us instead of 36.7.

use crate::device::DeviceKind;
use crate::{Device, DeviceError, DeviceInfo, Launch, LaunchArg};
use std::sync::OnceLock;
use tilewright_ir::{Access, Base, Builder, Builtin, Kernel, Scalar, Unroll};

/// Threads of a work-group.
const THREADS: u32 = 256;
/// Reads of each thread, 16 bytes each.
const READS: u32 = 16;
/// Bytes that a work-group reads.
const GROUP_BYTES: u64 = THREADS as u64 * READS as u64 * 16;

/// The launch that sweeps a device's last-level cache, made when it is first asked for.
#[derive(Default)]
pub(crate) struct Sweep(OnceLock<Launch>);

impl Sweep {
    /// The launch. Call it without holding the device's queue.
    ///
    /// # Errors
    /// Those of [`Device::compile`], [`Device::alloc`] and [`Device::fill`].
    pub(crate) fn launch(&self, device: &impl Device) -> Result<Launch, DeviceError> {
        if let Some(launch) = self.0.get() {
            return Ok(launch.clone());
        }
        let bytes = bytes(device.info());
        let kernel = device.compile(&kernel())?;
        let buffer = device.alloc(bytes)?;
        // Pages that nobody has written may be one page in truth, and the kernel must find zeros.
        device.fill(&buffer, 0)?;
        let found = device.alloc(4)?;
        let groups = u32::try_from(bytes / GROUP_BYTES).unwrap_or(u32::MAX);
        let launch = Launch { kernel, grid: [groups, 1, 1], args: vec![LaunchArg::Buffer(buffer), LaunchArg::Buffer(found)] };
        // Another thread may have been faster: one launch is as good as the other.
        Ok(self.0.get_or_init(|| launch).clone())
    }
}

/// Bytes to read: twice the last-level cache, and at least as many as take longer than the host needs to queue the next run.
fn bytes(info: &DeviceInfo) -> u64 {
    let least: u64 = if info.kind == DeviceKind::Gpu { 256 << 20 } else { 16 << 20 };
    let wanted = (2 * info.target.l2_bytes).max(least).min(1 << 30).min(info.max_buffer_bytes / 4);
    (wanted / GROUP_BYTES).max(1) * GROUP_BYTES
}

/// Reads all of a buffer of zeros. Were there anything else, it would be told: compilers cannot leave the reads out.
pub(crate) fn kernel() -> Kernel {
    let mut b = Builder::new("tw_sweep", THREADS);
    b.doc("Reads a buffer of zeros, so that the last-level cache holds nothing else, and nothing to be written back.");
    let x = b.buffer("x", Scalar::F32, Access::Read, "zeros");
    let found = b.buffer("found", Scalar::F32, Access::Write, "a sum that is not zero");
    let (local, group) = (b.builtin(Builtin::LocalId), b.builtin(Builtin::GroupId(0)));
    let first = b.mul(group, THREADS * READS * 4);
    let own = b.mul(local, 4);
    let first = b.add(first, own);
    let zero = b.float(0.0, Scalar::F32);
    let zeros = b.splat(zero, 4);
    let totals = b.declare("sums", zeros);
    b.for_range("read", 0, READS, Unroll::Full, |b, read| {
        let step = b.mul(read, THREADS * 4);
        let at = b.add(first, step);
        let value = b.load("value", Base::Buffer(x), at, 4, None);
        let before = b.get(totals);
        let after = b.add(before, value);
        b.set(totals, after);
    });
    let totals = b.get(totals);
    let parts = [0, 1, 2, 3].map(|lane| b.extract(totals, lane));
    let [low, high] = [b.add(parts[0], parts[1]), b.add(parts[2], parts[3])];
    let total = b.add(low, high);
    let is_there = b.lt(zero, total);
    let first = b.int(0, Scalar::I32);
    b.if_then(is_there, |b| b.store(Base::Buffer(found), first, total, None));
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_emu::{ArgValue, Buffer, Options, Program};
    use tilewright_ir::{Dialect, Target, print};

    #[test]
    fn all_of_the_buffer_is_read_and_none_is_written() {
        let kernel = kernel();
        for wave in [32, 64] {
            let program = Program::new(&kernel, &Options { wave, ..Options::default() }).unwrap();
            let groups = 3u32;
            let len = groups as usize * GROUP_BYTES as usize;
            let run = |at: Option<usize>| {
                let buffer = Buffer::new(len);
                let mut data = vec![0u8; len];
                if let Some(at) = at {
                    data[at..at + 4].copy_from_slice(&2.5f32.to_le_bytes());
                }
                buffer.write(0, &data).unwrap();
                // Every access is checked: one beyond the end fails.
                let found = Buffer::new(4);
                found.write(0, &[0; 4]).unwrap();
                let args = [buffer, found.clone()].map(|buffer| ArgValue::Buffer { buffer, offset: 0 });
                program.run([groups, 1, 1], &args).unwrap();
                let mut after = vec![0u8; 4];
                found.read(0, &mut after).unwrap();
                f32::from_le_bytes(after.try_into().unwrap())
            };
            assert_eq!(run(None), 0.0);
            // A number anywhere is found, so every place is read: the first, the last, some between.
            for at in [4, 4096, len / 2 + 1028, len - GROUP_BYTES as usize, len - 4] {
                assert_eq!(run(Some(at)), 2.5, "byte {at}");
            }
        }
    }

    #[test]
    fn it_is_spelt_for_every_language() {
        for arch in Target::known() {
            let target = Target::by_arch(arch).unwrap();
            assert!(print(&kernel(), &target).unwrap().text.contains("tw_sweep"), "{arch}");
            let opencl = Target { dialect: Dialect::OpenCl, ..target };
            assert!(print(&kernel(), &opencl).unwrap().text.contains("__kernel"), "{arch}");
        }
    }

    #[test]
    fn compilers_leave_no_read_out() {
        let inspection = match crate::inspect::inspect(&kernel(), "sm_90a", None, &crate::Options::default()) {
            Ok(inspection) => inspection,
            Err(e @ DeviceError::Missing { .. }) => {
                crate::missing::missing(&e.to_string());
                return;
            }
            Err(e) => panic!("{e}"),
        };
        let reads = inspection.assembly.lines().filter(|line| line.contains("LDG") && line.contains("128")).count();
        assert_eq!(reads, READS as usize, "{}", inspection.assembly);
    }

    #[test]
    fn more_is_read_than_the_cache_holds() {
        let mut info = crate::emulator::describe("emu", "sm_90a").unwrap();
        info.kind = DeviceKind::Gpu;
        for (l2, most) in [(60u64 << 20, 1u64 << 40), (200 << 20, 1 << 40), (4 << 20, 1 << 40)] {
            (info.target.l2_bytes, info.max_buffer_bytes) = (l2, most);
            let bytes = bytes(&info);
            assert!(bytes >= 2 * l2 && bytes >= 256 << 20 && bytes.is_multiple_of(GROUP_BYTES), "{l2}: {bytes}");
        }
        // A device with small buffers takes what it may.
        (info.target.l2_bytes, info.max_buffer_bytes) = (60 << 20, 64 << 20);
        assert_eq!(bytes(&info), 16 << 20);
    }
}
