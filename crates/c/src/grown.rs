//! Structures that begin with their size and may grow at their end: a program and a library of different versions agree on the shorter one.

use crate::status::Failure;

/// A structure of the header whose first field is its size in bytes.
pub(crate) trait Grown: Copy {
    /// Its name in the header.
    const NAME: &'static str;
    /// Its size in version 0.1.0, the smallest that is read. Later fields begin after it, never in its padding.
    const FIRST: usize;
    /// The structure with the size of this library and a default for every field that a shorter structure lacks.
    fn defaults() -> Self;
}

/// The structure that a program filled. Fields that the program's header did not have keep their defaults.
///
/// # Errors
/// A null pointer; a size below that of version 0.1.0 or above that of this library.
///
/// # Safety
/// The pointer is null, or points to as many bytes as its first field says, and to 8 at least.
pub(crate) unsafe fn grown<T: Grown>(from: *const T, argument: &str) -> Result<T, Failure> {
    let name = T::NAME;
    if from.is_null() {
        return Err(Failure::argument(format!("`{argument}` is NULL")));
    }
    // SAFETY: the first field is the size.
    let size = unsafe { from.cast::<usize>().read() };
    let known = size_of::<T>();
    if size < T::FIRST || size > known {
        let (first, remedy) =
            (T::FIRST, if size > known { "; load the library of the program's header, or a later one" } else { "" });
        return Err(Failure::argument(format!(
            "{name}.size = {size}, this library reads {first} to {known}: call {name}_init before setting fields{remedy}"
        )));
    }
    let mut value = T::defaults();
    // SAFETY: the program's structure has `size` bytes, no more than `value` has; both begin with the same fields.
    unsafe { std::ptr::from_mut(&mut value).cast::<u8>().copy_from_nonoverlapping(from.cast(), size) };
    Ok(value)
}

/// Writes a structure to a program's memory of `size` bytes, with the size that both sides know.
///
/// # Safety
/// The pointer is null, or points to memory of `size` bytes that can be written.
pub(crate) unsafe fn write<T: Grown>(value: &T, to: *mut T, size: usize) {
    let size = size.min(size_of::<T>());
    if to.is_null() || size < T::FIRST {
        return;
    }
    // SAFETY: the caller's; the first field is the size.
    unsafe {
        to.cast::<u8>().copy_from_nonoverlapping(std::ptr::from_ref(value).cast(), size);
        to.cast::<usize>().write(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure that has grown by `late` since version 0.1.0.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct TwExample {
        size: usize,
        early: i64,
        late: i64,
    }
    impl Grown for TwExample {
        const NAME: &'static str = "tw_example";
        const FIRST: usize = 16;
        fn defaults() -> Self {
            TwExample { size: size_of::<Self>(), early: 0, late: 7 }
        }
    }

    #[test]
    fn a_program_of_the_first_version_is_read_and_written_within_its_structure() {
        let mut old = [16_usize, 5, 99];
        let pointer = old.as_mut_ptr().cast::<TwExample>();
        // SAFETY: there are more bytes than the first field says.
        let read = unsafe { grown(pointer, "example") }.unwrap();
        assert_eq!(read, TwExample { size: 16, early: 5, late: 7 });
        // SAFETY: there are 16 bytes and more.
        unsafe { write(&TwExample { early: 6, ..TwExample::defaults() }, pointer, 16) };
        assert_eq!(old, [16, 6, 99]);
    }

    #[test]
    fn sizes_of_no_version_are_refused_with_the_remedy() {
        for size in [0, 15, 25, usize::MAX] {
            let given = TwExample { size, ..TwExample::defaults() };
            // SAFETY: a size that no version has is not followed.
            let refused = unsafe { grown(&raw const given, "example") }.unwrap_err().text();
            assert!(refused.contains("tw_example_init") && refused.contains("16 to 24"), "{refused}");
        }
        // SAFETY: null.
        let refused = unsafe { grown(std::ptr::null::<TwExample>(), "example") }.unwrap_err().text();
        assert!(refused.contains("`example` is NULL"), "{refused}");
    }
}
