//! Whether this machine has room for the test data of a problem. It is checked before any data is made, because a system that has
//! promised too much ends the process instead of refusing.

use crate::reference::{Reference, Samples};
use tilewright_device::{Device, DeviceError, DeviceKind};
use tilewright_ir::{Scalar, memory_left};
use tilewright_problem::Problem;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::lower::{ConvForm, lower};

/// Refuses a problem whose test data would take more memory than this machine has left.
///
/// # Errors
/// [`DeviceError::OutOfMemory`].
pub(crate) fn check(device: &dyn Device, problem: &Problem) -> Result<(), DeviceError> {
    let (info, Some(left)) = (device.info(), memory_left()) else { return Ok(()) };
    let Ok(parts) = lower(problem, ConvForm::PER_SAMPLE) else { return Ok(()) };
    // Every part's tensors are the whole ones.
    let contraction = &parts.lead;
    fits(needed(contraction, info.kind), left).map_err(|reason| DeviceError::OutOfMemory {
        device: info.id.clone(),
        bytes: needed(contraction, info.kind),
        reason,
    })
}

/// Bytes of this machine's memory: operands on the host, the result read back, and the expected result. The device's own memory
/// counts where it is this machine's.
fn needed(c: &Contraction, kind: DeviceKind) -> u64 {
    let bytes = |len: u64, scalar: Scalar| u128::from(scalar.bytes_of(len));
    let [a, b, result] = [&c.a, &c.b, &c.c].map(|t| bytes(t.len, t.scalar));
    let residual = bytes(c.residual_len_at(&c.extents()), c.c.scalar);
    let second: u128 = c.second_operands().map(|(_, x)| bytes(x.len, x.scalar)).sum();
    let operands = a + b + result + residual + second;
    let own = match kind {
        // With what it notes of each byte.
        DeviceKind::Emulated => operands + operands / 8,
        DeviceKind::Cpu => operands,
        DeviceKind::Gpu | DeviceKind::Accelerator => 0,
    };
    let elements = c.entries().saturating_mul(c.m).saturating_mul(c.n);
    let expected = Reference::bytes(elements, c.k, Samples::default());
    u64::try_from(operands + result + own + u128::from(expected)).unwrap_or(u64::MAX)
}

fn fits(needed: u64, left: u64) -> Result<(), String> {
    if needed <= left { Ok(()) } else { Err(format!("its test data takes them of this machine's memory, which has {left} left")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_device::{Options, open_with};
    use tilewright_problem::Gemm;

    #[test]
    fn what_all_operands_take_is_asked_for() {
        let gemm: Problem = Gemm::new(Scalar::F16, 100, 10, 1000).out_dtype(Scalar::F32).build().unwrap().into();
        let contraction = lower(&gemm, ConvForm::PER_SAMPLE).unwrap().lead;
        let (a, b, c) = (2 * 100 * 1000, 2 * 10 * 1000, 4 * 100 * 10);
        let expected = Reference::bytes(1000, 1000, Samples::All);
        assert!(expected >= 24 * 1000);
        assert_eq!(needed(&contraction, DeviceKind::Gpu), a + b + 2 * c + expected);
        assert_eq!(needed(&contraction, DeviceKind::Cpu), 2 * (a + b) + 3 * c + expected);
        assert_eq!(needed(&contraction, DeviceKind::Emulated), 2 * (a + b) + 3 * c + (a + b + c) / 8 + expected);
        assert!(fits(1000, 1000).is_ok() && fits(1001, 1000).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn an_absurd_problem_is_refused_before_its_data_are_made() {
        let device = open_with("emu", &Options::default()).unwrap();
        // 64 TB of operands, each of which an address space would hold.
        let gemm: Problem = Gemm::new(Scalar::F32, 1 << 22, 1 << 22, 8).build().unwrap().into();
        let refused = check(&*device, &gemm).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfMemory { .. }), "{refused}");
        let small: Problem = Gemm::new(Scalar::F32, 64, 64, 64).build().unwrap().into();
        check(&*device, &small).unwrap();
    }
}
