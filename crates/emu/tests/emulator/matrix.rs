//! Matrix instructions, transaction barriers and bulk copies do what the hardware does, and every broken rule is caught.

use crate::common;
use crate::scrambled::scrambled;
use common::pipeline::{Break, Shape};
use common::*;
use proptest::prelude::*;
use tilewright_emu::{Checks, EmuError, Options, Report};
use tilewright_ir::*;

/// Runs a product in every mode and demands the right one.
fn product(shape: Shape) {
    let k = shape.kernel();
    let (_, expected) = shape.arguments();
    let got = everywhere(&k, shape.grid(), || shape.arguments().0, |args| to_f32s(buffer(&args[2])));
    for (i, (g, e)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(g, e, "{shape:?} row {} column {}", i as u32 / shape.n, i as u32 % shape.n);
    }
}

#[test]
fn rows_of_k_with_every_swizzle() {
    for swizzle in [Swizzle::B128, Swizzle::B64, Swizzle::B32, Swizzle::None] {
        for input in [MatrixType::F16, MatrixType::BF16, MatrixType::TF32] {
            product(Shape { input, swizzle, ..Shape::default() });
        }
    }
}

#[test]
fn columns_of_k_with_every_swizzle() {
    for (swizzle, tile_n) in [(Swizzle::B128, 64), (Swizzle::B64, 32), (Swizzle::B32, 48), (Swizzle::None, 24)] {
        for (a_transposed, b_transposed) in [(true, true), (true, false), (false, true)] {
            if a_transposed != b_transposed && swizzle != Swizzle::B64 {
                continue; // The other side would need rows of 64 bytes.
            }
            product(Shape { swizzle, tile_n, a_transposed, b_transposed, ..Shape::default() });
        }
    }
}

#[test]
fn left_operand_from_registers() {
    for input in [MatrixType::F16, MatrixType::TF32] {
        product(Shape { input, a_in_registers: true, stages: 3, ..Shape::default() });
    }
}

#[test]
fn wide_tiles_and_one_stage() {
    product(Shape { tile_n: 256, n: 256, k: 128, m: 64, stages: 1, ..Shape::default() });
    product(Shape { tile_n: 8, n: 8, k: 64, m: 1, stages: 4, ..Shape::default() });
}

/// The error of a broken kernel in lockstep; other orders must object too.
fn broken(shape: Shape) -> EmuError {
    let k = shape.kernel();
    let error = |options: &Options| match tilewright_emu::run(&k, shape.grid(), &shape.arguments().0, options) {
        Err(e) => e,
        Ok(Report { .. }) => panic!("{:?} is not caught with {options:?}", shape.broken),
    };
    for seed in 0..8 {
        error(&Options { interleave: true, seed, ..checked() });
    }
    error(&checked())
}

macro_rules! caught {
    ($broken:ident, $pattern:pat $(if $guard:expr)?) => {
        match broken(Shape { broken: Break::$broken, ..Shape::default() }) {
            $pattern $(if $guard)? => {}
            other => panic!("{} is not caught as {}: {other}", stringify!($broken), stringify!($pattern)),
        }
    };
}

#[test]
fn loads_must_be_waited_for() {
    caught!(NoFullWait, EmuError::Race { .. } | EmuError::Uninitialised { .. });
    caught!(WrongPhase, EmuError::Race { .. } | EmuError::Uninitialised { .. } | EmuError::Deadlock { .. });
    caught!(OneLaneWaits, EmuError::Race { who, .. } if who.contains("full"));
    caught!(SpareLoad, EmuError::Unfinished { what, .. } if what.contains("bulk load"));
}

#[test]
fn readers_must_be_done_before_a_stage_is_loaded_again() {
    caught!(NoEmptyWait, EmuError::Race { .. } | EmuError::TxBarrier { .. });
    caught!(EarlyArrive, EmuError::Race { .. });
    caught!(NoArrive, EmuError::Deadlock { waiting, .. } if waiting.contains("empty"));
}

#[test]
fn transaction_barriers_have_rules() {
    caught!(FewBytes, EmuError::TxBarrier { what, .. } | EmuError::Race { who: what, .. } if !what.is_empty());
    caught!(NoInitFence, EmuError::TxBarrier { what, .. } if what.contains("InitFence"));
    caught!(NoInitBarrier, EmuError::TxBarrier { what, .. } if what.contains("initialise"));
    caught!(NoInit, EmuError::TxBarrier { barrier, what, .. } if barrier == "full[1]" && what.contains("before it is initialised"));
}

#[test]
fn registers_belong_to_instructions_in_flight() {
    caught!(NoLastWait, EmuError::Registers { memory, what, .. } if memory == "sums" && what.contains("WarpgroupWait"));
    caught!(NoFence, EmuError::Registers { what, .. } if what.contains("WarpgroupFence"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn products_of_any_shape(
        size in (1u32..140, 1u32..100, 1u32..150),
        tile_n in 1u32..16,
        stages in 1u32..4,
        swizzle in prop::sample::select(vec![Swizzle::B128, Swizzle::B64, Swizzle::B32, Swizzle::None]),
        input in prop::sample::select(vec![MatrixType::F16, MatrixType::BF16, MatrixType::TF32]),
        seed in 0u64..1000,
    ) {
        let (m, n, k) = size;
        let shape = Shape { input, m, n, k, tile_n: 8 * tile_n, stages, swizzle, ..Shape::default() };
        let (args, expected) = shape.arguments();
        let options = Options { interleave: seed % 2 == 0, seed, ..checked() };
        tilewright_emu::run(&shape.kernel(), shape.grid(), &args, &options).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
        prop_assert_eq!(to_f32s(buffer(&args[2])), expected, "{:?}", shape);
    }

    #[test]
    fn nothing_panics(
        transposed in any::<bool>(),
        checks in any::<bool>(),
        changes in prop::collection::vec((any::<usize>(), prop_oneof![0i64..80, Just(-1), Just(u32::MAX.into())]), 1..4),
    ) {
        let shape = Shape { m: 64, n: 32, k: 130, a_transposed: transposed, b_transposed: transposed, swizzle: Swizzle::B64, ..Shape::default() };
        if let Some(kernel) = scrambled(&shape.kernel(), &changes) {
            let checks = if checks { Checks::all() } else { Checks::none() };
            let options = Options { checks, max_steps: 1000, ..checked() };
            // Whatever comes of it, it comes as a value.
            let _ = tilewright_emu::run(&kernel, shape.grid(), &shape.arguments().0, &options);
        }
    }
}
