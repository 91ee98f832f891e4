//! Text, handles and structures across the border.

use crate::status::Failure;
use std::ffi::{CStr, c_char};

/// What a pointer points at.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the header asks for null or a pointer that is valid during the call.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument(format!("`{name}` is NULL")))
}

/// Hands a new handle out.
pub(crate) unsafe fn give<T>(to: *mut *mut T, handle: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::argument("the pointer to the result is NULL"));
    }
    // SAFETY: not null, and the header asks for a place that can be written.
    unsafe { to.write(Box::into_raw(Box::new(handle))) };
    Ok(())
}

/// Takes a handle back.
pub(crate) unsafe fn free<T>(handle: *mut T) -> Result<(), Failure> {
    if !handle.is_null() {
        // SAFETY: made by `give`, and freed once, as for every C handle.
        drop(unsafe { Box::from_raw(handle) });
    }
    Ok(())
}

/// Text from C; `None` for NULL.
pub(crate) unsafe fn read<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; text in C ends in a zero byte.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|e| Failure::argument(format!("`{name}` is not UTF-8: {e}")))
}

/// Text to C: as much as there is room for, and how long it is.
pub(crate) unsafe fn write(text: &str, to: *mut c_char, capacity: usize, length: *mut usize) -> Result<(), Failure> {
    // SAFETY: null, or a place that can be written.
    if let Some(length) = unsafe { length.as_mut() } {
        *length = text.len();
    }
    if capacity == 0 {
        return Ok(());
    }
    if to.is_null() {
        return Err(Failure::argument("`text` is NULL and its capacity is not 0"));
    }
    let count = text.len().min(capacity - 1);
    // SAFETY: there are `capacity` bytes, more than `count`; a Rust string overlaps none of them.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), count);
        to.add(count).write(0);
    }
    Ok(())
}
