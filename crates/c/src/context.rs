//! A device with its records.

use crate::status::{Failure, TwStatus, entry};
use crate::text::{free, give, handle, held, read, write};
use std::ffi::c_char;
use tilewright::{Context, Options, RecordsAt, Trials};

pub struct TwContext(pub(crate) Context);
handle!(TwContext, "context");

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_context_open(
    device: *const c_char,
    records: *const c_char,
    context: *mut *mut TwContext,
) -> TwStatus {
    entry(|| {
        // SAFETY: as the header asks.
        let (device, records) = unsafe { (read(device, "device")?, read(records, "records")?) };
        let records = match records {
            None => RecordsAt::Default,
            Some("") => RecordsAt::Memory,
            Some(path) => RecordsAt::File(path.into()),
        };
        let opened = Context::with(Options { device: device.map(String::from), records, ..Options::default() })?;
        // SAFETY: as the header asks.
        unsafe { give(context, TwContext(opened)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_context_trials(context: *const TwContext, trials: i32) -> TwStatus {
    entry(|| {
        let context = held(context)?;
        context.0.set_trials(match trials {
            0 => Trials::Worker,
            1 => Trials::InProcess,
            other => {
                return Err(Failure::argument(format!(
                    "trials = {other} is no tw_trials: give TW_TRIALS_IN_WORKER or TW_TRIALS_IN_PROCESS"
                )));
            }
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_context_close(context: *mut TwContext) {
    entry(|| free(context));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_context_describe(
    context: *const TwContext,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> TwStatus {
    entry(|| {
        let context = held(context)?;
        let info = context.0.info();
        // SAFETY: as the header asks.
        unsafe { write(&format!("{}: {} ({})", info.id, info.name, info.fingerprint), text, capacity, length) }
    })
}
