//! Test data of a compact problem in memory of one whose lines lie far apart: offsets of 64 bits without as much data.
//!
//! Between the lines the memory of an emulator is never touched, and takes no room.

use crate::reference::TestData;
use crate::run::Buffers;
use std::ops::Range;
use tilewright_device::{Buffer, Device, DeviceError};
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Gemm, ProblemError};

/// Bytes of NaN after each row, as in the memory around compact data: vectors may read past the elements that they use.
const BEHIND: u64 = 64;

/// Where the bytes of compact buffers of A, B and C lie in the spread ones.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    operands: [Vec<Piece>; 3],
}

/// Bytes of the compact buffer, and where they begin in the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    bytes: Range<usize>,
    at: u64,
}

impl Spread {
    /// From the data of a compact product to the same product with other leading dimensions and batch strides.
    ///
    /// # Errors
    /// [`ProblemError::Value`] where they are not the same product.
    pub(crate) fn new(data: &TestData, compact: &Gemm, wide: &Gemm) -> Result<Spread, ProblemError> {
        let same = Gemm { a: wide.a, b: wide.b, c: wide.c, ..compact.clone() };
        if same != *wide {
            let reason = "differs from the compact one in more than distances in memory".to_string();
            return Err(ProblemError::Text { text: tilewright_problem::Problem::Gemm(wide.clone()).key(), reason });
        }
        let buffers = [Operand::A, Operand::B, Operand::C].map(|operand| data.buffer(operand));
        let operands = [0, 1, 2].map(|index| {
            let buffer = buffers[index];
            let (from, to) = (compact.matrices()[index], wide.matrices()[index]);
            let (_, lines) = compact.lines(index);
            let batch = if from.batch_stride == 0 { 1 } else { compact.batch };
            let starts = (0..batch).flat_map(|b| (0..lines).map(move |l| (b, l)));
            // What lies before the first line, each line with what follows it.
            let mut marks = vec![(0, 0)];
            marks.extend(starts.map(|(b, l)| {
                let elements = |x: &tilewright_problem::Matrix| (b * x.batch_stride + l * x.ld) * compact.parts();
                let at = |x: &tilewright_problem::Matrix| buffer.scalar.bytes_of(buffer.start + elements(x));
                (at(from) as usize, at(to))
            }));
            let ends = marks.iter().skip(1).map(|m| m.0).chain([buffer.bytes.len()]);
            marks.iter().zip(ends).map(|(&(from, at), end)| Piece { bytes: from..end, at }).collect()
        });
        Ok(Spread { operands })
    }

    const fn of(&self, operand: Operand) -> &Vec<Piece> {
        match operand {
            Operand::A => &self.operands[0],
            Operand::B => &self.operands[1],
            Operand::C => &self.operands[2],
        }
    }

    /// Memory for the spread operands; the other inputs, and everything else, as [`Buffers::upload`].
    pub(crate) fn upload(&self, device: &dyn Device, data: &TestData) -> Result<Buffers, DeviceError> {
        let mut buffers = Buffers::upload(device, data)?;
        for operand in [Operand::A, Operand::B, Operand::C] {
            let pieces = self.of(operand);
            let end = pieces.iter().map(|p| p.at + p.bytes.len() as u64).max().unwrap_or(0);
            let buffer = device.alloc(end)?;
            for piece in pieces {
                let piece_end = piece.at + piece.bytes.len() as u64;
                device.write(&buffer, piece_end, &vec![0xff; (end - piece_end).min(BEHIND) as usize])?;
            }
            self.write(device, operand, &buffer, &data.buffer(operand).bytes)?;
            match operand {
                Operand::A => buffers.a = buffer,
                Operand::B => buffers.b = buffer,
                Operand::C => buffers.c = buffer,
            }
        }
        Ok(buffers)
    }

    /// Writes the bytes of a compact buffer.
    pub(crate) fn write(&self, device: &dyn Device, operand: Operand, buffer: &Buffer, bytes: &[u8]) -> Result<(), DeviceError> {
        for piece in self.of(operand) {
            device.write(buffer, piece.at, bytes.get(piece.bytes.clone()).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Reads the bytes of a compact buffer.
    pub(crate) fn read(
        &self,
        device: &dyn Device,
        operand: Operand,
        buffer: &Buffer,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        for piece in self.of(operand) {
            if let Some(bytes) = bytes.get_mut(piece.bytes.clone()) {
                device.read(buffer, piece.at, bytes)?;
            }
        }
        Ok(())
    }
}
