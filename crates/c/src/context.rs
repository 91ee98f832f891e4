//! A device with its records.

use crate::grown::{self, Grown};
use crate::status::{Failure, TwStatus, entry};
use crate::text::{free, give, handle, held, read, write};
use std::ffi::c_char;
use tilewright::{Context, Options, RecordsAt, Trials};

pub struct TwContext(pub(crate) Context);
handle!(TwContext, "context");

/// How a context is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TwOptions {
    pub size: usize,
    pub device: *const c_char,
    pub records: *const c_char,
    pub workspace: i64,
    pub trials: i32,
    pub atomics: i32,
    pub ieee: i32,
    /// 0. It keeps later fields out of the padding.
    pub reserved: i32,
}

impl Grown for TwOptions {
    const NAME: &'static str = "tw_options";
    const FIRST: usize = 48;
    fn defaults() -> Self {
        let none = std::ptr::null();
        let size = size_of::<Self>();
        TwOptions { size, device: none, records: none, workspace: -1, trials: 0, atomics: 0, ieee: 0, reserved: 0 }
    }
}

fn trials_of(trials: i32) -> Result<Trials, Failure> {
    match trials {
        0 => Ok(Trials::Worker),
        1 => Ok(Trials::InProcess),
        other => {
            Err(Failure::argument(format!("trials = {other} is no tw_trials: give TW_TRIALS_IN_WORKER or TW_TRIALS_IN_PROCESS")))
        }
    }
}

fn flag(value: i32, name: &str) -> Result<bool, Failure> {
    match value {
        0 | 1 => Ok(value == 1),
        other => Err(Failure::argument(format!("{name} = {other} is no flag: give 0 or 1"))),
    }
}

/// Opens a context as the structure says.
///
/// # Safety
/// The structure's texts are null or end with a zero byte.
unsafe fn opened(given: &TwOptions) -> Result<TwContext, Failure> {
    // SAFETY: the caller's.
    let (device, records) = unsafe { (read(given.device, "device")?, read(given.records, "records")?) };
    let records = match records {
        None => RecordsAt::Default,
        Some("") => RecordsAt::Memory,
        Some(path) => RecordsAt::File(path.into()),
    };
    let workspace = match given.workspace {
        -1 => None,
        bytes => Some(u64::try_from(bytes).map_err(|_| {
            Failure::argument(format!("workspace = {bytes} is no number of bytes: give 0 or more, or -1 for the problem's own"))
        })?),
    };
    if given.reserved != 0 {
        return Err(Failure::argument(format!("reserved = {}: give 0, or call tw_options_init", given.reserved)));
    }
    let (allow_atomics, ieee) = (flag(given.atomics, "atomics")?, flag(given.ieee, "ieee")?);
    let (device, trials) = (device.map(String::from), trials_of(given.trials)?);
    let options = Options { device, records, workspace, allow_atomics, ieee, trials, ..Options::default() };
    Ok(TwContext(Context::with(options)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_context_open(
    device: *const c_char,
    records: *const c_char,
    context: *mut *mut TwContext,
) -> TwStatus {
    // SAFETY: as the header asks.
    entry(|| unsafe { give(context, opened(&TwOptions { device, records, ..TwOptions::defaults() })?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_options_init(options: *mut TwOptions, size: usize) {
    // SAFETY: as the header asks.
    unsafe { grown::write(&TwOptions::defaults(), options, size) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_context_open_with(options: *const TwOptions, context: *mut *mut TwContext) -> TwStatus {
    // SAFETY: as the header asks.
    entry(|| unsafe { give(context, opened(&grown::grown(options, "options")?)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_context_trials(context: *const TwContext, trials: i32) -> TwStatus {
    entry(|| {
        held(context)?.0.set_trials(trials_of(trials)?);
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
