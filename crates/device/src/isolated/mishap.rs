//! Mishaps that tests order in the worker of a device: ends, hangs, and kernels that are wrong.

use crate::{Device, DeviceError, Launch, LaunchArg};
use std::time::Duration;
use tilewright_ir::{Access, Base, Builder, Builtin, Kernel, Scalar, Unroll};

/// A worker that finds `KIND:N` in this variable has that mishap when it times for the N-th time. With kind `abort-launch` it has
/// it when it launches for the N-th time. For tests.
const VARIABLE: &str = "TILEWRIGHT_WORKER_MISHAP";
/// What a worker waits for a kernel that is ordered to hang: tests should not wait as long as users would.
const SHORT: Duration = Duration::from_secs(2);
/// Turns of the kernel that hangs: about 30 s on an H200 by an estimate. The kernel ends, so that no device stays busy after a test.
const TURNS: i64 = 1 << 27;
/// Elements between an operand and what a wrong kernel writes: no allocation is so large.
const FAR: i64 = 1 << 40;

/// A kind of mishap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The process aborts when it times.
    Abort,
    /// The process aborts when it launches.
    AbortLaunch,
    /// The process never answers.
    Hang,
    /// A kernel writes out of bounds.
    Outside,
    /// A kernel reads a vector at an address that is not its multiple. CPUs may allow that.
    Misaligned,
    /// A kernel runs far longer than anyone waits.
    Endless,
}

impl Mishap {
    fn named(name: &str) -> Option<Mishap> {
        Some(match name {
            "abort" => Mishap::Abort,
            "abort-launch" => Mishap::AbortLaunch,
            "hang" => Mishap::Hang,
            "outside" => Mishap::Outside,
            "misaligned" => Mishap::Misaligned,
            "endless" => Mishap::Endless,
            _ => return None,
        })
    }
}

/// A mishap and the run that has it, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ordered {
    pub what: Mishap,
    run: u64,
}

impl Ordered {
    /// What a test has ordered in this process.
    pub(super) fn here() -> Option<Ordered> {
        Ordered::parse(&std::env::var(VARIABLE).ok()?)
    }

    fn parse(text: &str) -> Option<Ordered> {
        let (name, run) = text.split_once(':')?;
        Some(Ordered { what: Mishap::named(name)?, run: run.parse().ok()? })
    }

    /// The longest wait for a kernel and for a compiler, where it is to be shorter than the given ones.
    pub(super) fn limits(self, given: [Duration; 2]) -> [Duration; 2] {
        let shorter = [SHORT, 4 * SHORT];
        if self.what == Mishap::Endless { [0, 1].map(|n| given[n].min(shorter[n])) } else { given }
    }

    /// Has the mishap if the run is the ordered one.
    pub(super) fn happen(self, run: u64, device: &dyn Device) -> Result<(), DeviceError> {
        if run != self.run {
            return Ok(());
        }
        let kernel = match self.what {
            Mishap::Abort | Mishap::AbortLaunch => std::process::abort(),
            Mishap::Hang => loop {
                std::thread::sleep(Duration::from_secs(1));
            },
            Mishap::Outside | Mishap::Misaligned => touches(self.what),
            Mishap::Endless => endless(),
        };
        let number = match self.what {
            Mishap::Outside => FAR,
            Mishap::Misaligned => 1,
            _ => TURNS,
        };
        let kernel = device.compile(&kernel)?;
        let y = LaunchArg::Buffer(device.alloc(4096)?);
        device.launch(&[Launch { kernel, grid: [1; 3], args: vec![y, LaunchArg::I64(number)] }])?;
        device.sync()
    }
}

/// A kernel whose threads access four elements each, so many elements after the start of its operand.
fn touches(what: Mishap) -> Kernel {
    let mut b = Builder::new(if what == Mishap::Outside { "outside" } else { "misaligned" }, 64);
    let y = b.buffer("y", Scalar::F32, Access::ReadWrite, "eight numbers per thread");
    let distance = b.scalar_arg("distance", Scalar::I64, "elements");
    let (local, four, beside) = (b.builtin(Builtin::LocalId), b.int(4, Scalar::I32), b.int(512, Scalar::I64));
    let own = b.mul(local, four);
    let own = b.cast(own, Scalar::I64);
    let away = b.add(own, distance);
    let (from, to) = if what == Mishap::Outside { (own, away) } else { (away, b.add(own, beside)) };
    let v = b.load("v", Base::Buffer(y), from, 4, None);
    b.store(Base::Buffer(y), to, v, None);
    b.finish()
}

/// A kernel that goes through shared memory so many times.
fn endless() -> Kernel {
    let mut b = Builder::new("endless", 64);
    let y = b.buffer("y", Scalar::F32, Access::ReadWrite, "one number per thread");
    let t = b.shared("t", Scalar::F32, 64, 0);
    let local = b.builtin(Builtin::LocalId);
    let many = b.scalar_arg("many", Scalar::I64, "turns");
    let zero = b.int(0, Scalar::I64);
    b.for_range("turn", zero, many, Unroll::No, |b, _| {
        let v = b.load("v", Base::Buffer(y), local, 1, None);
        b.store(Base::Shared(t), local, v, None);
        b.barrier();
        let last = b.int(63, Scalar::I32);
        let other = b.sub(last, local);
        let w = b.load("w", Base::Shared(t), other, 1, None);
        b.barrier();
        b.store(Base::Buffer(y), local, w, None);
    });
    b.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read() {
        assert_eq!(Ordered::parse("outside:2"), Some(Ordered { what: Mishap::Outside, run: 2 }));
        assert!(["", "outside", "outside:", "outside:x", "flood:1"].into_iter().all(|text| Ordered::parse(text).is_none()));
        let long = [Duration::from_secs(20), Duration::from_secs(60)];
        assert_eq!(Ordered { what: Mishap::Abort, run: 1 }.limits(long), long);
        assert_eq!(Ordered { what: Mishap::Endless, run: 1 }.limits(long), [SHORT, 4 * SHORT]);
    }
}
