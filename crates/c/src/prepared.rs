//! Compiled operations, launched on memory and a stream of the caller.

use crate::operation::TwOperation;
use crate::status::{Failure, TwStatus, entry};
use crate::text::{free, give, given, handle, held, write};
use std::ffi::{c_char, c_void};
use tilewright::{Addresses, Extents, Factors, MOST_REDUCTIONS, Prepared, Stream};

pub struct TwPrepared(Prepared);
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
        let extents = unsafe { x.extents.cast::<[i64; 3]>().as_ref() };
        // What is negative is 0, which is refused with the name of the extent.
        let extents = extents.map(|e| e.map(|v| u64::try_from(v).unwrap_or(0))).map(|[g, m, n]| Extents { g, m, n });
        let addresses = Addresses {
            a: x.a as u64,
            b: x.b as u64,
            c: x.c as u64,
            quants: [x.scale_m, x.scale_n, x.zero_a, x.zero_b, x.ends].map(|at| at as u64),
            bias: x.bias as u64,
            residual: x.residual as u64,
            workspace: x.workspace as u64,
            reductions: x.reductions.map(|values| values as u64),
        };
        let factors = Factors { alpha: x.alpha, beta: x.beta, alpha_im: x.alpha_im, beta_im: x.beta_im };
        // SAFETY: the caller vouches for memory and stream, as the header asks.
        Ok(unsafe { prepared.0.launch(Stream(stream as usize), &addresses, factors, extents) }?)
    })
}
