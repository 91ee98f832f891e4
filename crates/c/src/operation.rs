//! A problem on a device: its plan, its source, the search for a better one.

use crate::context::TwContext;
use crate::grown::grown;
use crate::problem::{self, TwConv, TwGemm, TwReduce};
use crate::status::{Failure, TwStatus, entry};
use crate::text::{free, give, handle, held, read, write};
use std::ffi::{c_char, c_int, c_void};
use tilewright::{Budget, Cancel, Error, Event, Operation, Plan, Problem, SearchOptions};

pub struct TwOperation(pub(crate) Operation);
handle!(TwOperation, "operation");

pub type TwProgress = Option<unsafe extern "C" fn(*mut c_void, u64, f64, f64) -> c_int>;

unsafe fn made(
    context: *const TwContext,
    operation: *mut *mut TwOperation,
    problem: impl FnOnce() -> Result<Problem, Failure>,
) -> TwStatus {
    entry(|| {
        let made = held(context)?.0.operation(problem()?)?;
        // SAFETY: as the header asks.
        unsafe { give(operation, TwOperation(made)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_gemm(
    context: *const TwContext,
    gemm: *const TwGemm,
    operation: *mut *mut TwOperation,
) -> TwStatus {
    // SAFETY: as the header asks.
    unsafe { made(context, operation, || problem::gemm(&grown(gemm, "gemm")?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_conv(
    context: *const TwContext,
    conv: *const TwConv,
    operation: *mut *mut TwOperation,
) -> TwStatus {
    // SAFETY: as the header asks.
    unsafe { made(context, operation, || problem::conv(&grown(conv, "conv")?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_reduce(
    context: *const TwContext,
    reduce: *const TwReduce,
    operation: *mut *mut TwOperation,
) -> TwStatus {
    // SAFETY: as the header asks.
    unsafe { made(context, operation, || problem::reduce(&grown(reduce, "reduce")?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_parse(
    context: *const TwContext,
    problem: *const c_char,
    operation: *mut *mut TwOperation,
) -> TwStatus {
    let parse = || {
        // SAFETY: as the header asks.
        let text = unsafe { read(problem, "problem") }?.ok_or_else(|| Failure::argument("`problem` is NULL"))?;
        Ok(Problem::parse(text)?)
    };
    // SAFETY: as the header asks.
    unsafe { made(context, operation, parse) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_free(operation: *mut TwOperation) {
    entry(|| free(operation));
}

unsafe fn write_text(
    operation: *const TwOperation,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
    what: impl FnOnce(&Operation) -> Result<String, Error>,
) -> TwStatus {
    entry(|| {
        let value = what(&held(operation)?.0)?;
        // SAFETY: as the header asks.
        unsafe { write(&value, text, capacity, length) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_problem(
    operation: *const TwOperation,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> TwStatus {
    // SAFETY: as the header asks.
    unsafe { write_text(operation, text, capacity, length, |o| Ok(o.problem().key())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_plan(
    operation: *const TwOperation,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> TwStatus {
    // SAFETY: as the header asks.
    unsafe { write_text(operation, text, capacity, length, |o| Ok(o.plan()?.to_string())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_source(
    operation: *const TwOperation,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> TwStatus {
    // SAFETY: as the header asks.
    unsafe { write_text(operation, text, capacity, length, Operation::source) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_set_plan(operation: *const TwOperation, plan: *const c_char) -> TwStatus {
    entry(|| {
        // SAFETY: as the header asks.
        let (operation, text) = (held(operation)?, unsafe { read(plan, "plan") }?);
        let plan = Plan::parse(text.ok_or_else(|| Failure::argument("`plan` is NULL"))?).map_err(Error::from)?;
        Ok(operation.0.set_plan(&plan)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_operation_tune(
    operation: *const TwOperation,
    seconds: f64,
    trials: u64,
    progress: TwProgress,
    user: *mut c_void,
    best_us: *mut f64,
) -> TwStatus {
    entry(|| {
        let operation = held(operation)?;
        if !(seconds.is_finite() && seconds >= 0.0) {
            return Err(Failure::argument(format!("seconds = {seconds}: a number of at least 0 is needed; 0: no bound")));
        }
        let budget = Budget { seconds: (seconds > 0.0).then_some(seconds), trials: (trials > 0).then_some(trials) };
        if budget == (Budget { seconds: None, trials: None }) {
            return Err(Failure::argument("a search needs a bound: give seconds or trials"));
        }
        let (options, cancel) = (SearchOptions { budget, ..SearchOptions::default() }, Cancel::default());
        let outcome = operation.0.tune_with(&options, &cancel, &mut |event| {
            if let (Some(progress), Event::Trial { best_us, tally, seconds, .. }) = (progress, event) {
                // SAFETY: the caller's function with the caller's pointer.
                if unsafe { progress(user, tally.trials, *seconds, best_us.unwrap_or(0.0)) } != 0 {
                    cancel.cancel();
                }
            }
        })?;
        // SAFETY: null, or a place that can be written.
        if let Some(best) = unsafe { best_us.as_mut() } {
            *best = outcome.time_us;
        }
        Ok(())
    })
}
