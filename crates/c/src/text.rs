//! Text, handles and structures across the border.

use crate::status::Failure;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// An object that a handle refers to. Handles are numbers in the form of pointers, and the number of a freed handle is never used again. So a
/// freed handle, a handle of another kind and any other pointer are errors, and are never dereferenced.
pub(crate) trait Handle: Sized + 'static {
    const NAME: &'static str;
    fn all() -> &'static RwLock<BTreeMap<usize, Arc<Self>>>;
}

macro_rules! handle {
    ($kind:ty, $name:literal) => {
        impl $crate::text::Handle for $kind {
            const NAME: &'static str = $name;
            fn all() -> &'static std::sync::RwLock<std::collections::BTreeMap<usize, std::sync::Arc<Self>>> {
                static ALL: std::sync::RwLock<std::collections::BTreeMap<usize, std::sync::Arc<$kind>>> =
                    std::sync::RwLock::new(std::collections::BTreeMap::new());
                &ALL
            }
        }
    };
}
pub(crate) use handle;

/// What a handle stands for, which lives as long as a call uses it, even if another thread frees it meanwhile.
pub(crate) fn held<T: Handle>(handle: *const T) -> Result<Arc<T>, Failure> {
    if handle.is_null() {
        return Err(Failure::argument(format!("`{}` is NULL", T::NAME)));
    }
    T::all().read().unwrap_or_else(PoisonError::into_inner).get(&handle.addr()).cloned().ok_or_else(unknown::<T>)
}

fn unknown<T: Handle>() -> Failure {
    let name = T::NAME;
    Failure::argument(format!(
        "`{name}` is no tw_{name} of this library, or was freed: use each until it is freed, and free it once"
    ))
}

/// What a pointer points at.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: the header asks for null or a pointer that is valid during the call.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument(format!("`{name}` is NULL")))
}

/// Hands a new handle out.
pub(crate) unsafe fn give<T: Handle>(to: *mut *mut T, made: T) -> Result<(), Failure> {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    if to.is_null() {
        return Err(Failure::argument("the pointer to the result is NULL"));
    }
    // As pointers are aligned; small numbers are no addresses of a program's memory.
    let number = NEXT.fetch_add(1, Ordering::Relaxed) * 16;
    T::all().write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(made));
    // SAFETY: not null, and the header asks for a place that can be written.
    unsafe { to.write(std::ptr::without_provenance_mut(number)) };
    Ok(())
}

/// Takes a handle back; NULL is none.
pub(crate) fn free<T: Handle>(handle: *mut T) -> Result<(), Failure> {
    if handle.is_null() {
        return Ok(());
    }
    // Dropped when the lock is free again: it may free a device.
    let taken = T::all().write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    taken.map(drop).ok_or_else(unknown::<T>)
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
