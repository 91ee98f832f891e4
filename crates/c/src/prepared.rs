//! Compiled operations, launched on memory and a stream of the caller.

use crate::operation::TwOperation;
use crate::status::{Failure, TwStatus, entry};
use crate::text::{free, give, given, handle, held, write};
use std::ffi::{c_char, c_void};
use tilewright::{Addresses, Extents, Factors, MOST_REDUCTIONS, Prepared, Role, Stream};

pub struct TwPrepared(pub(crate) Prepared);
handle!(TwPrepared, "prepared");

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TwOperands {
    pub a: *const c_void,
    pub b: *const c_void,
    pub c: *mut c_void,
    pub bias: *const c_void,
    pub residual: *const c_void,
    pub workspace: *mut c_void,
    pub alpha: f64,
    pub beta: f64,
    pub extents: *const i64,
    pub reductions: [*mut c_void; MOST_REDUCTIONS],
    pub scale_m: *const c_void,
    pub scale_n: *const c_void,
    pub zero_a: *const c_void,
    pub zero_b: *const c_void,
    pub ends: *const c_void,
    pub alpha_im: f64,
    pub beta_im: f64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_prepare(
    operation: *const TwOperation,
    alignments: *const u64,
    prepared: *mut *mut TwPrepared,
) -> TwStatus {
    entry(|| {
        // SAFETY: as the header asks: null, or three numbers.
        let (operation, given) = (held(operation)?, unsafe { alignments.cast::<[u64; 3]>().as_ref() });
        let alignments = given.copied().unwrap_or([256; 3]);
        if let Some(odd) = alignments.iter().find(|a| !a.is_power_of_two()) {
            return Err(Failure::argument(format!("an alignment of {odd} bytes is no power of two")));
        }
        let made = operation.0.prepare_for(alignments)?;
        // SAFETY: as the header asks.
        unsafe { give(prepared, TwPrepared(made)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_prepared_free(prepared: *mut TwPrepared) {
    entry(|| free(prepared));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_prepared_workspace(prepared: *const TwPrepared) -> u64 {
    let mut bytes = 0;
    entry(|| {
        bytes = held(prepared)?.0.workspace_bytes();
        Ok(())
    });
    bytes
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_prepared_plan(
    prepared: *const TwPrepared,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> TwStatus {
    entry(|| {
        let plan = held(prepared)?.0.plan();
        // SAFETY: as the header asks.
        unsafe { write(&plan.to_string(), text, capacity, length) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_launch(prepared: *const TwPrepared, operands: *const TwOperands, stream: *mut c_void) -> TwStatus {
    entry(|| {
        // SAFETY: as the header asks.
        let (prepared, x) = (held(prepared)?, unsafe { given(operands, "operands") }?);
        // SAFETY: as the header asks: null, or three numbers.
        let extents = unsafe { extents(x.extents) };
        let single = [
            (Role::A, x.a),
            (Role::B, x.b),
            (Role::C, x.c.cast_const()),
            (Role::ScaleM, x.scale_m),
            (Role::ScaleN, x.scale_n),
            (Role::ZeroA, x.zero_a),
            (Role::ZeroB, x.zero_b),
            (Role::Ends, x.ends),
            (Role::Bias, x.bias),
            (Role::Residual, x.residual),
            (Role::Workspace, x.workspace.cast_const()),
        ];
        let reductions = x.reductions.into_iter().enumerate();
        let reductions = reductions.map(|(number, values)| (Role::Reduction(number), values.cast_const()));
        let mut addresses = Addresses::default();
        single.into_iter().chain(reductions).for_each(|(role, address)| addresses.set(role, address as u64));
        let factors = Factors { alpha: x.alpha, beta: x.beta, alpha_im: x.alpha_im, beta_im: x.beta_im };
        // SAFETY: the caller vouches for memory and stream, as the header asks.
        Ok(unsafe { prepared.0.launch(Stream(stream as usize), &addresses, factors, extents) }?)
    })
}

/// The extents of a launch: batch, m and n, where a program gives them. A negative extent is 0, which is refused with its name.
///
/// # Safety
/// The pointer is null, or points to three numbers.
pub(crate) unsafe fn extents(from: *const i64) -> Option<Extents> {
    // SAFETY: the caller's.
    let given = unsafe { from.cast::<[i64; 3]>().as_ref() };
    given.map(|e| e.map(|v| u64::try_from(v).unwrap_or(0))).map(|[g, m, n]| Extents { g, m, n })
}
