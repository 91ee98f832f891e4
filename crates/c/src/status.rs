//! Status codes, the message of the last failure, and the wrapper of every entry point.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tilewright::{DeviceError, Error, ProblemError};

pub type TwStatus = i32;

/// Names by number, as the header's.
pub const NAMES: [&std::ffi::CStr; 11] = [
    c"TW_OK",
    c"TW_INVALID_ARGUMENT",
    c"TW_INVALID_PROBLEM",
    c"TW_REFUSED",
    c"TW_BAD_OPERANDS",
    c"TW_NO_DEVICE",
    c"TW_DEVICE_FAILED",
    c"TW_OUT_OF_MEMORY",
    c"TW_NOT_TUNED",
    c"TW_RECORDS",
    c"TW_INTERNAL",
];

/// A failure: status and message.
#[derive(Debug)]
pub(crate) struct Failure(TwStatus, String);

impl Failure {
    pub(crate) fn argument(message: impl Into<String>) -> Failure {
        Failure(1, message.into())
    }
    /// The message.
    #[cfg(test)]
    pub(crate) fn text(self) -> String {
        self.1
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let status = match &e {
            Error::Problem(_) => 2,
            Error::Plan(_)
            | Error::Refused(_)
            | Error::NoPlan { .. }
            | Error::Look { .. }
            | Error::Generate(_)
            | Error::Invalid(_) => 3,
            Error::Bind(_) | Error::Dtype { .. } | Error::Length { .. } | Error::Unwanted { .. } => 4,
            Error::Device(DeviceError::Missing { .. } | DeviceError::NoSuchDevice { .. } | DeviceError::BadSpec { .. }) => 5,
            Error::Device(DeviceError::OutOfMemory { .. }) | Error::TooLarge { .. } => 7,
            Error::Device(_) | Error::Source(_) => 6,
            Error::Tune(_) => 8,
            Error::Records(_) => 9,
            _ => 10,
        };
        Failure(status, e.to_string())
    }
}

impl From<ProblemError> for Failure {
    fn from(e: ProblemError) -> Failure {
        Error::from(e).into()
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs an entry; a failure, or a panic, becomes a status with a message.
pub(crate) fn entry(work: impl FnOnce() -> Result<(), Failure>) -> TwStatus {
    let Failure(status, message) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Failure(10, format!("the library panicked: {}", text.unwrap_or("no message")))
        }
    };
    LAST.with_borrow_mut(|last| *last = CString::new(message.replace('\0', " ")).unwrap_or_default());
    status
}

#[unsafe(no_mangle)]
pub extern "C" fn tw_status_name(status: TwStatus) -> *const c_char {
    usize::try_from(status).ok().and_then(|n| NAMES.get(n)).unwrap_or(&c"unknown").as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn tw_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn tw_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
