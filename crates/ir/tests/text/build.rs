//! What the builder computes while building agrees with what the kernel would compute when run.

use tilewright_ir::{Builder, Builtin, Ex, Scalar};

#[test]
fn casts_of_constants_wrap_as_casts_at_run_time_do() {
    let mut b = Builder::new("casts", 32);
    for (value, from, to, expected) in [
        (-1, Scalar::I32, Scalar::U32, 0xffff_ffff),
        (-1, Scalar::I64, Scalar::U32, 0xffff_ffff),
        (0xffff_ffff, Scalar::U32, Scalar::I32, -1),
        (1 << 32, Scalar::I64, Scalar::I32, 0),
        (-1, Scalar::I32, Scalar::I64, -1),
        (0xffff_ffff, Scalar::U32, Scalar::I64, 0xffff_ffff),
    ] {
        let x = b.int(value, from);
        let cast = b.cast(x, to);
        assert_eq!(b.kernel().as_int(cast), Some(expected), "{value} {from} to {to}");
    }
    // The range test of a padded view's index, one unsigned comparison: -1 is outside.
    let x = b.int(-1, Scalar::I32);
    let unsigned = b.cast(x, Scalar::U32);
    let inside = b.lt(unsigned, 9);
    assert_eq!(b.kernel().as_int(inside), Some(0));
}

/// A result that its type does not hold is left to the device, which wraps, or to the emulator, which says so.
#[test]
fn constants_that_overflow_are_not_folded() {
    let mut b = Builder::new("products", 32);
    for (scalar, expected) in [(Scalar::I32, None), (Scalar::U32, None), (Scalar::I64, Some(1 << 32))] {
        let large = b.int(1 << 30, scalar);
        let product = b.mul(large, 4);
        assert_eq!(b.kernel().as_int(product), expected);
    }
}

/// Arithmetic written as values is the same expression as the one the builder's methods make, and folds as they do.
#[test]
fn values_become_the_expressions_they_are_written_as() {
    let mut b = Builder::new("values", 32);
    let row = b.builtin(Builtin::LocalId);
    let col = b.builtin(Builtin::GroupId(0));
    let line = b.mul(row, 40);
    let chunk = b.div(col, 8);
    let within = b.rem(chunk, 4);
    let expected = b.add(line, within);
    assert_eq!(b.value(row * 40 + col / 8 % 4), expected);
    // Integers take the other operand's type, on either side, and neutral elements leave nothing behind.
    let wide = b.cast(row, Scalar::I64);
    let sum = b.value(7 + row.cast(Scalar::I64));
    assert_eq!((b.value(wide + 7), b.ty(sum).scalar), (sum, Scalar::I64));
    assert_eq!(b.value((row * 1 + 0) * (Ex::from(3) - 2)), row);
    let more = b.lt(1, row);
    let either = b.select(more, row, 1);
    assert_eq!(b.value(row.gt(1).select(row, 1)), either);
}
