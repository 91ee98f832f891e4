//! An allocator that knows how much memory each thread holds, and the most that it held since it was asked. It counts a thread apart from all
//! others: the memory of threads that an input starts is in `process::peak` alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes of a thread. A block that another thread frees stays counted.
#[derive(Clone, Copy)]
struct Held {
    now: isize,
    most: isize,
}

thread_local! {
    static HELD: Cell<Held> = const { Cell::new(Held { now: 0, most: 0 }) };
}

fn count(bytes: isize) {
    // A thread that ends may allocate after its locals are gone.
    let _ = HELD.try_with(|cell| {
        let Held { now, most } = cell.get();
        let now = now.saturating_add(bytes);
        cell.set(Held { now, most: most.max(now) });
    });
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// A layout's bytes. Rust allows `isize::MAX` at most.
fn bytes(layout: Layout) -> isize {
    layout.size() as isize
}

// SAFETY: every call is the system allocator's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(bytes(layout));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(bytes(layout));
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-bytes(layout));
        // SAFETY: the caller's.
        unsafe { System.dealloc(block, layout) }
    }
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - bytes(layout));
        // SAFETY: the caller's.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Runs some work on this thread and gives the most bytes that it held at a time.
pub fn most_of(work: impl FnOnce()) -> isize {
    let before = HELD.get().now;
    HELD.set(Held { now: before, most: before });
    work();
    HELD.get().most - before
}

#[test]
fn the_most_memory_is_counted() {
    let kept = most_of(|| drop((vec![1_u8; 3000], vec![0_u8; 5000])));
    assert!((8000..9000).contains(&kept), "{kept}");
    let one_by_one = most_of(|| (0..4).for_each(|_| drop(std::hint::black_box(vec![0_u8; 5000]))));
    assert!((5000..6000).contains(&one_by_one), "{one_by_one}");
}
