//! Programs that compute almost the right thing: what a quick look at random data lets pass, a thorough look finds.
//!
//! The device computes products itself, on the host and in f32, and lies as told.

use std::sync::Arc;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, Verification, test_factors};
use tilewright_device::{Buffer, Device, DeviceError, DeviceInfo, Launch, LaunchArg, open};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Problem};

/// What is wrong with the result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Nothing,
    /// A term of every sum counts so many times.
    Term(u64, f32),
    /// A term is missing from one element.
    TermOf([u64; 2], u64),
    /// These rows hold a neighbour's values.
    Rows(u64, u64),
    /// Something is written between the first row of the result and the second.
    BehindRow,
}

/// The emulator, except that it computes a row-major, transposed-B product of f32 itself.
struct Liar {
    emulator: Arc<dyn Device>,
    size: [u64; 3],
    ldc: u64,
    lie: Lie,
}

impl Liar {
    fn floats(&self, buffer: &Buffer) -> Result<Vec<f32>, DeviceError> {
        let mut bytes = vec![0; buffer.bytes() as usize];
        self.emulator.read(buffer, 0, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    fn product(&self, a: &[f32], b: &[f32], c: &mut [f32], alpha: f32, beta: f32) {
        let [m, n, k] = self.size;
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let from = match self.lie {
                Lie::Rows(first, behind) if (first..behind).contains(&i) => first - 1,
                _ => i,
            };
            let (x, y) = (&a[(from * k) as usize..][..k as usize], &b[(j * k) as usize..][..k as usize]);
            let mut lanes = [0f32; 8];
            for (x, y) in x.chunks(8).zip(y.chunks(8)) {
                lanes.iter_mut().zip(x.iter().zip(y)).for_each(|(lane, (x, y))| *lane += x * y);
            }
            let mut sum: f32 = lanes.iter().sum();
            match self.lie {
                Lie::Term(at, times) => sum += (times - 1.0) * x[at as usize] * y[at as usize],
                Lie::TermOf(element, at) if element == [i, j] => sum -= x[at as usize] * y[at as usize],
                _ => {}
            }
            let out = &mut c[(i * self.ldc + j) as usize];
            *out = alpha * sum + if beta == 0.0 { 0.0 } else { beta * *out };
        }
        if self.lie == Lie::BehindRow {
            c[n as usize] = 1.0;
        }
    }
}

impl Device for Liar {
    delegated!(emulator: compile memory sync time);
    fn info(&self) -> &DeviceInfo {
        self.emulator.info()
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        for launch in launches {
            let named = |name: &str| launch.kernel.args().iter().position(|a| a.name == name).map(|n| &launch.args[n]);
            let (mut buffers, mut factors) = (Vec::new(), Vec::new());
            for name in ["a", "b", "c"] {
                let (Some(LaunchArg::Buffer(buffer)), Some(LaunchArg::I64(offset))) =
                    (named(name), named(&format!("{name}_offset")))
                else {
                    panic!("no {name}");
                };
                buffers.push((buffer, *offset as usize));
            }
            for name in ["alpha", "beta"] {
                let Some(LaunchArg::F32(factor)) = named(name) else { panic!("no {name}") };
                factors.push(*factor);
            }
            let [a, b, mut c] = [0, 1, 2].map(|i| self.floats(buffers[i].0).unwrap());
            let [from_a, from_b, from_c] = [0, 1, 2].map(|i| buffers[i].1);
            self.product(&a[from_a..], &b[from_b..], &mut c[from_c..], factors[0], factors[1]);
            let bytes: Vec<u8> = c.iter().flat_map(|x| x.to_le_bytes()).collect();
            self.emulator.write(buffers[2].0, 0, &bytes)?;
        }
        Ok(())
    }
}

/// Verdicts of a quick and of a thorough look, the former at random data alone.
fn looks(size: [u64; 3], lie: Lie, samples: Samples) -> [Verification; 2] {
    looks_with(size, size[1], lie, samples)
}

/// The same with so many elements from one row of the result to the next.
fn looks_with(size: [u64; 3], ldc: u64, lie: Lie, samples: Samples) -> [Verification; 2] {
    let [m, n, k] = size;
    let gemm = Gemm::new(Scalar::F32, m, n, k).order(tilewright_problem::Order::Row).trans(false, true).ldc(ldc);
    let problem = Problem::Gemm(gemm.build().unwrap());
    let device: Arc<dyn Device> = Arc::new(Liar { emulator: open("emu").unwrap(), size, ldc, lie });
    let space = Space::new(&problem, &device.info().target).unwrap();
    let plan = space.repair(&space.fallback()).unwrap();
    let resolved = space.resolve(&plan).unwrap();
    let program = resolved.generate(space.env().workspace_bytes).unwrap();
    let compiled = compile(device.as_ref(), &program).unwrap();
    let case = Case::new(&device, &problem, 7, test_factors(7, false), samples).unwrap();
    [Depth::Quick, Depth::Thorough].map(|depth| case.verify(&program, &compiled, resolved.contraction, depth, true).unwrap())
}

#[test]
fn a_term_of_a_million_that_is_dropped_or_doubled_is_found() {
    const K: u64 = 1 << 20;
    for lie in [Lie::Term(0, 0.0), Lie::Term(K - 1, 0.0), Lie::Term(777_777, 0.0), Lie::Term(K / 2, 2.0)] {
        let [quick, thorough] = looks([4, 3, K], lie, Samples::All);
        assert!(quick.passed, "the bound of random data admits it: {lie:?} {quick:?}");
        assert!(!thorough.passed && !thorough.race, "{lie:?} {thorough:?}");
        assert!(thorough.reason.unwrap().contains("exact sums"), "{lie:?}");
    }
    let [quick, thorough] = looks([4, 3, K], Lie::Nothing, Samples::All);
    assert!(quick.passed && thorough.passed && thorough.checked == 24, "{thorough:?}");
}

#[test]
fn a_term_of_one_element_that_no_sample_meets_is_found() {
    // The crossings and the diagonal are a small part of so large a result.
    let [quick, thorough] = looks([500, 400, 64], Lie::TermOf([123, 321], 40), Samples::Budget(64 * 64));
    assert!(quick.passed && quick.checked < 1000, "{quick:?}");
    assert!(!thorough.passed, "{thorough:?}");
    assert!(thorough.reason.unwrap().contains("row 123, column 321"));
}

#[test]
fn a_wrong_row_of_tiles_is_found_by_a_quick_look_too() {
    // So few crossings that most rows of tiles have none of them.
    for first in (64..896).step_by(64) {
        let [quick, thorough] = looks([896, 70, 256], Lie::Rows(first, first + 64), Samples::Budget(16 * 256));
        assert!(!quick.passed && !thorough.passed, "{first}: {quick:?}");
    }
}

#[test]
fn a_write_between_rows_of_a_result_is_found_by_a_quick_look_however_large_it_is() {
    // 60 KiB and 48 MiB; poison comes from the device, or from the host where there are many rows.
    for (rows, ldc) in [(3, 5 << 10), (3, 4 << 20), (100, 7)] {
        let [quick, thorough] = looks_with([rows, 5, 8], ldc, Lie::Nothing, Samples::All);
        assert!(quick.passed && thorough.passed, "{quick:?} {thorough:?}");
        for wrong in looks_with([rows, 5, 8], ldc, Lie::BehindRow, Samples::All) {
            assert!(!wrong.passed && wrong.reason.as_ref().is_some_and(|r| r.contains("C: byte")), "{ldc}: {wrong:?}");
        }
    }
}
