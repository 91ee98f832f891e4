//! Every check catches a kernel that breaks its rule and lets the mended kernel pass.

use crate::common::*;
use tilewright_emu::{Buffer, EmuError, Options};
use tilewright_ir::*;

fn lid(b: &mut Builder) -> ExprId {
    b.builtin(Builtin::LocalId)
}

/// A kernel of 64 threads over `x` (read) and `y` (written), waves of 32, and its run on fresh buffers of `n` floats.
fn trial(n: usize, f: impl FnOnce(&mut Builder, Base, Base)) -> Result<(), EmuError> {
    let k = kernel(64, |b| {
        b.wave(32);
        let x = b.buffer("x", Scalar::F32, Access::Read, "");
        let y = b.buffer("y", Scalar::F32, Access::ReadWrite, "");
        f(b, Base::Buffer(x), Base::Buffer(y));
    });
    let args = [arg(&f32s(&vec![1.0; n])), arg(&Buffer::new(n * 4))];
    let result = run(&k, [1; 3], &args);
    // A rule is broken or kept whatever the order of waves.
    for seed in 0..3 {
        let options = Options { interleave: true, seed, ..checked() };
        let again = tilewright_emu::run(&k, [1; 3], &[arg(&f32s(&vec![1.0; n])), arg(&Buffer::new(n * 4))], &options);
        assert_eq!(again.is_ok(), result.is_ok(), "seed {seed}: {again:?} {result:?}");
    }
    result.map(|_| ())
}

macro_rules! caught {
    ($pattern:pat $(if $guard:expr)?, $result:expr) => {
        match $result {
            Err($pattern) $(if $guard)? => {}
            other => panic!("not caught as {}: {other:?}", stringify!($pattern)),
        }
    };
}

mod limits;
mod memory;
mod order;
mod races;
mod waits;
