//! Reads the operands of matrix instructions: where their elements are in shared memory, and what their bits mean.

use crate::access::{Kind, Target, Touch, get_shared};
use crate::code::{Space, Tile};
use crate::context::Team;
use crate::launch::Launch;
use crate::{EmuError, Location};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use tilewright_ir::{F8E4M3Fnuz, F8E5M2Fnuz, MatrixType, Swizzle};

/// Bytes of an operand's row that one instruction takes along k.
pub(super) const K_BYTES: usize = 32;
/// Bytes that a swizzle moves together.
const CHUNK: usize = 16;

/// The value of an element's bits as the matrix unit takes it.
#[inline]
pub(super) fn decode(input: MatrixType, bits: u32) -> f32 {
    match input {
        MatrixType::F16 => f16::from_bits(bits as u16).to_f32(),
        MatrixType::BF16 => bf16::from_bits(bits as u16).to_f32(),
        // The unit ignores the lower 13 bits of the mantissa.
        MatrixType::TF32 => f32::from_bits(bits & 0xFFFF_E000),
        MatrixType::F32 => f32::from_bits(bits),
        MatrixType::E4M3 => F8E4M3::from_bits(bits as u8).to_f32(),
        MatrixType::E5M2 => F8E5M2::from_bits(bits as u8).to_f32(),
        MatrixType::E4M3Fnuz => F8E4M3Fnuz::from_bits(bits as u8).to_f32(),
        MatrixType::E5M2Fnuz => F8E5M2Fnuz::from_bits(bits as u8).to_f32(),
        MatrixType::I8 => f32::from(bits as u8 as i8),
        MatrixType::U8 => f32::from(bits as u8),
        // Doubles are no 32-bit registers; they are multiplied as they are.
        MatrixType::F64 => f32::NAN,
        // Each factor is of one type.
        MatrixType::E4M3xE5M2 | MatrixType::E5M2xE4M3 | MatrixType::E4M3xE5M2Fnuz | MatrixType::E5M2xE4M3Fnuz => f32::NAN,
        MatrixType::I8xU8 | MatrixType::U8xI8 => f32::NAN,
    }
}

/// The elements of a 32-bit register: one, two or four, the first in the lowest bits.
#[inline]
pub(super) fn element(input: MatrixType, register: u32, number: usize) -> f32 {
    let bits = 8 * input.bytes();
    decode(input, if bits < 32 { register >> (bits * number as u32) & ((1 << bits) - 1) } else { register })
}

/// Byte distance of 16 bytes from an operand's first byte, before the swizzle. Where k is contiguous, these are the bytes that
/// hold byte `k` of row `row`. Where rows are contiguous, they hold row `8 * row` at depth `k`.
fn chunk_offset(t: &Tile, row: usize, k: usize) -> usize {
    let width = t.swizzle.row_bytes() as usize;
    match (t.k_contiguous, t.swizzle) {
        (true, Swizzle::None) => row / 8 * t.stride + row % 8 * CHUNK + k / CHUNK * t.leading,
        (true, _) => row / 8 * t.stride + row % 8 * width + k,
        (false, Swizzle::None) => row * t.stride + k % 8 * CHUNK + k / 8 * t.leading,
        (false, _) => {
            let chunks = width / CHUNK;
            row / chunks * t.leading + row % chunks * CHUNK + k % 8 * width + k / 8 * t.stride
        }
    }
}

/// The rows of an operand that one instruction reads, and the order of their copy.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Byte of the first row, from the array's first.
    pub(super) byte: i64,
    pub(super) rows: usize,
    /// True for `copy[k * rows + row]`, false for `copy[row * depth + k]`.
    pub(super) k_first: bool,
}

/// Who reads an operand.
pub(super) struct Reader<'a> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) site: u32,
    /// The agent that reads, as a thread.
    pub(super) agent: u32,
    /// One thread of each wave that starts the instruction.
    pub(super) issuers: &'a [u32],
}

impl Reader<'_> {
    fn location(&self, team: &Team) -> Box<Location> {
        team.location(self.launch, self.site, self.issuers.first().copied().unwrap_or(0))
    }

    /// Reads rows of an operand into `out`, element by element along k.
    pub(super) fn tile(&self, team: &mut Team, input: MatrixType, t: &Tile, of: Rows, out: &mut [f32]) -> Result<(), EmuError> {
        let Rows { byte, rows, k_first } = of;
        let size = input.bytes() as usize;
        let depth = K_BYTES / size;
        let space = Space::Shared(t.array);
        let Some(target) = Target::new(self.launch, space, input.storage(), 1) else { return Ok(()) };
        let Some(array) = self.launch.code.shared.get(t.array) else { return Ok(()) };
        let end = array.byte_end() as usize;
        let outside = |team: &Team, byte: i64| {
            let (at, memory) = (self.location(team), self.launch.name(space));
            Err(EmuError::OutOfBounds {
                at,
                memory,
                index: byte.div_euclid(i64::from(array.scalar.bytes())),
                lanes: (CHUNK / array.scalar.bytes() as usize) as u32,
                len: array.len.into(),
            })
        };
        if byte < 0 {
            return outside(team, byte);
        }
        let first = target.base + byte as usize;
        if !first.is_multiple_of(CHUNK) {
            let (at, memory) = (self.location(team), self.launch.name(space));
            return Err(EmuError::Misaligned { at, memory, byte: first as u64, size: CHUNK as u32 });
        }
        let mut put = |row: usize, k: usize, bits: u64| {
            let at = if k_first { k * rows + row } else { row * depth + k };
            out[at] = decode(input, bits as u32);
        };
        let (chunk_rows, chunk_ks) = if t.k_contiguous { (rows, K_BYTES / CHUNK) } else { (rows / 8, depth) };
        for r in 0..chunk_rows {
            for c in 0..chunk_ks {
                let k = if t.k_contiguous { c * CHUNK } else { c };
                let plain = first + chunk_offset(t, r, k);
                let at = u32::try_from(plain).map_or(usize::MAX - CHUNK, |p| t.swizzle.apply(p) as usize);
                if at < target.base || at + CHUNK > end {
                    return outside(team, plain as i64 - target.base as i64);
                }
                self.check(team, &target, at)?;
                for i in 0..CHUNK / size {
                    let bits = get_shared(&team.shared, at + i * size, size);
                    if t.k_contiguous { put(r, c * (CHUNK / size) + i, bits) } else { put(r * 8 + i, k, bits) }
                }
            }
        }
        Ok(())
    }

    fn check(&self, team: &mut Team, target: &Target<'_>, at: usize) -> Result<(), EmuError> {
        let Some(shadow) = &mut team.shadow else { return Ok(()) };
        shadow.read_by(&team.clocks, at, CHUNK, self.agent, self.issuers).map_err(|broken| {
            let thread = self.issuers.first().copied().unwrap_or(0);
            let touch = Touch { launch: self.launch, site: self.site, thread, kind: Kind::Read };
            touch.trouble(team, target, broken)
        })
    }
}
