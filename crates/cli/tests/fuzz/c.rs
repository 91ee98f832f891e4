//! The C interface: null pointers, structures of random numbers with a size that is allowed or not, random texts.

use crate::harness::{fuzz, last_panic};
use crate::texts::{pairs, target};
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use tilewright_c::*;
use tilewright_gen::space::Space;
use tilewright_problem::Problem;

/// The status of a panic that the library caught.
const INTERNAL: i32 = 10;
/// The largest status.
const MOST: i32 = 10;

/// An input of the interface: a kind, text that ends with a zero, and the bytes of a structure.
struct Input<'a> {
    kind: u8,
    text: CString,
    bytes: &'a [u8],
}

impl Input<'_> {
    fn of(input: &[u8]) -> Input<'_> {
        let (kind, rest) = input.split_first().unwrap_or((&0, &[]));
        let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
        let text = CString::new(&rest[..end]).unwrap_or_default();
        Input { kind: *kind, text, bytes: rest.get(end + 1..).unwrap_or_default() }
    }
    /// The text; null where it is empty.
    fn text(&self) -> *const c_char {
        if self.text.is_empty() { null() } else { self.text.as_ptr() }
    }
    /// A structure that begins with the input's bytes and goes on as `rest`.
    fn over<T: Copy>(&self, mut rest: T) -> T {
        let count = self.bytes.len().min(size_of::<T>());
        // SAFETY: so many bytes are in both; each structure is numbers and pointers, and those are set before it is used.
        unsafe { std::ptr::from_mut(&mut rest).cast::<u8>().copy_from_nonoverlapping(self.bytes.as_ptr(), count) };
        rest
    }
    /// A number from the end of the bytes.
    fn number(&self, index: usize) -> u8 {
        self.bytes.iter().rev().nth(index).copied().unwrap_or(0)
    }
}

/// The message of the last failure.
fn said() -> String {
    // SAFETY: a text that lives until this thread's next failure.
    unsafe { CStr::from_ptr(tw_last_error()) }.to_string_lossy().into_owned()
}

/// That a call gave a status of the header, and said why if it failed.
fn known(status: i32) -> bool {
    assert!((0..=MOST).contains(&status), "status {status}");
    assert!(status != INTERNAL, "{}: {}", said(), last_panic());
    assert!(status == 0 || !said().is_empty());
    status == 0
}

fn gemm() -> TwGemm {
    let mut made = MaybeUninit::zeroed();
    // SAFETY: as the header asks; zeros are a structure.
    unsafe {
        tw_gemm_init_sized(made.as_mut_ptr(), size_of::<TwGemm>(), 0, 8, 6, 4);
        made.assume_init()
    }
}

fn conv() -> TwConv {
    let mut made = MaybeUninit::zeroed();
    // SAFETY: as above.
    unsafe {
        tw_conv_init_sized(made.as_mut_ptr(), size_of::<TwConv>(), 0, 1, 2, 4, 2, [6, 6].as_ptr(), [3, 3].as_ptr());
        made.assume_init()
    }
}

fn reduce() -> TwReduce {
    let mut made = MaybeUninit::zeroed();
    // SAFETY: as above.
    unsafe {
        tw_reduce_init_sized(made.as_mut_ptr(), size_of::<TwReduce>(), 0, 2, [8, 6].as_ptr(), c"sum".as_ptr());
        made.assume_init()
    }
}

/// A structure that the library fills, in memory of `size` bytes: it writes nothing after them, and no more than it says. Where it refuses the size
/// the structure keeps a size that is refused, too.
fn filled<T: Copy>(size: usize, fill: impl FnOnce(*mut T)) -> T {
    const KEPT: u8 = 0xa5;
    let mut made = [const { MaybeUninit::<T>::uninit() }; 2];
    let start = made.as_mut_ptr().cast::<u8>();
    // SAFETY: all of the memory is written first; each structure is numbers and pointers, and begins with its size.
    unsafe {
        start.write_bytes(KEPT, size_of_val(&made));
        fill(made.as_mut_ptr().cast());
        let (all, said) = (std::slice::from_raw_parts(start, size_of_val(&made)), start.cast::<usize>().read_unaligned());
        let written = if said <= size_of::<T>() { said } else { 0 };
        assert!(written <= size && all[written..].iter().all(|byte| *byte == KEPT), "{size} bytes, {said} said");
        made[0].assume_init()
    }
}

/// An operation from a structure that is filled with numbers of the input: of a random size, or of version 0.1.0.
fn initialised(context: *const TwContext, input: &Input<'_>, operation: &mut *mut TwOperation) -> i32 {
    let number = |n: usize| i64::from_be_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|k| input.number(8 * n + k)));
    let small = |n: usize| i32::from(input.number(n)) - 2;
    let list: [i64; 8] = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| i64::from(input.number(n + 8)) - 1);
    let list = if input.number(7) == 7 { null() } else { list.as_ptr() };
    let (first, dtype, [m, n, k]) = (input.number(6).is_multiple_of(2), small(5), [3, 4, 5].map(number));
    let size = |known: usize| if first { known } else { usize::from(input.number(4)) * 2 % (2 * known + 1) };
    // SAFETY: the memory has the size that is said, a list is null or has all entries that may be read, and the texts outlive the calls.
    unsafe {
        match input.kind % 9 {
            6 => {
                let size = size(size_of::<TwGemm>());
                let gemm = filled(size, |to| match first {
                    true => tw_gemm_init(to, dtype, m, n, k),
                    false => tw_gemm_init_sized(to, size, dtype, m, n, k),
                });
                tw_operation_gemm(context, &TwGemm { reduce: input.text(), ..gemm }, operation)
            }
            7 => {
                let size = size(size_of::<TwConv>());
                let conv = filled(size, |to| match first {
                    true => tw_conv_init(to, dtype, m, n, k, small(2), list, list),
                    false => tw_conv_init_sized(to, size, dtype, m, n, k, small(2), list, list),
                });
                tw_operation_conv(context, &TwConv { reduce: input.text(), ..conv }, operation)
            }
            _ => {
                let size = size(size_of::<TwReduce>());
                let reduce = filled(size, |to| match first {
                    true => tw_reduce_init(to, dtype, small(2), list, input.text()),
                    false => tw_reduce_init_sized(to, size, dtype, small(2), list, input.text()),
                });
                tw_operation_reduce(context, &TwReduce { ops: input.text(), ..reduce }, operation)
            }
        }
    }
}

/// The names of the version and of a number.
fn names(input: &Input<'_>) {
    let number = i32::from_be_bytes([0, 1, 2, 3].map(|k| input.number(k)));
    for (text, is_known) in [(tw_version(), true), (tw_status_name(number), (0..=MOST).contains(&number))] {
        // SAFETY: static texts.
        let text = unsafe { CStr::from_ptr(text) };
        assert!(!text.is_empty() && (text != c"unknown") == is_known, "{number}: {text:?}");
    }
}

/// Options of a context, of random size and beyond it: the device is a text of the input.
fn options(input: &Input<'_>) -> TwOptions {
    let mut made = [const { MaybeUninit::<TwOptions>::zeroed() }; 2];
    let size = usize::from(input.number(3)) % size_of_val(&made);
    // SAFETY: so many bytes are there; zeros are a structure.
    let made = unsafe {
        tw_options_init(made.as_mut_ptr().cast(), size);
        made[0].assume_init()
    };
    TwOptions { device: input.text(), records: c"".as_ptr(), ..input.over(made) }
}

/// A context of these options, asked what it is and told where trials run.
fn opened(options: &TwOptions, input: &Input<'_>) -> i32 {
    let (mut context, mut text, mut length) = (null_mut(), [0 as c_char; 64], 0);
    // SAFETY: the structure is as large as the library's; the context is one of the library's or null, and the text has such room.
    unsafe {
        let status = tw_context_open_with(options, &mut context);
        let is_open = status == 0;
        assert!(!known(tw_context_describe(context, text.as_mut_ptr(), 64, &mut length)) || is_open);
        known(tw_context_describe(context, null_mut(), 0, &mut length));
        assert_eq!(known(tw_context_trials(context, 1)), is_open);
        known(tw_context_trials(context, i32::from(input.number(5)) - 2));
        tw_context_close(context);
        status
    }
}

fn bytes_of<T: Copy>(value: &T) -> Vec<u8> {
    let at = std::ptr::from_ref(value).cast::<u8>();
    // SAFETY: made from zeros, so that every byte has a value.
    unsafe { std::slice::from_raw_parts(at, size_of::<T>()) }.to_vec()
}

/// A plan of the operation's problem, without a search.
fn fallback(operation: *const TwOperation) -> CString {
    let mut text = vec![0_u8; 1 << 20];
    // SAFETY: the text has so much room.
    unsafe { known(tw_operation_problem(operation, text.as_mut_ptr().cast(), text.len(), null_mut())) };
    let key = CStr::from_bytes_until_nul(&text).expect("a text").to_str().expect("UTF-8");
    let problem = Problem::parse(key).unwrap_or_else(|error| panic!("{key}: {error}"));
    let space = Space::new(&problem, &target());
    CString::new(space.map_or_else(|_| String::new(), |space| space.fallback().to_string())).expect("no zero byte")
}

/// The calls that an operation passes through, each once.
fn used(operation: *mut TwOperation, input: &Input<'_>) {
    let (mut text, mut length) = ([0 as c_char; 64], 0);
    let capacity = usize::from(input.number(0)) % 65;
    // SAFETY: the operation is one of the library's or null; all other pointers are to places of this function or null.
    unsafe {
        known(tw_operation_problem(operation, text.as_mut_ptr(), capacity, &mut length));
        known(tw_operation_set_plan(operation, input.text()));
        // No search has such a bound.
        let seconds = [f64::NAN, -1.0, f64::INFINITY, 0.0][usize::from(input.number(1) % 4)];
        assert!(!known(tw_operation_tune(operation, seconds, 0, None, null_mut(), null_mut())));
        // The plan that the model picks would take seconds: a plan is given.
        let given = tw_operation_set_plan(operation, fallback(operation).as_ptr());
        if known(given) && input.number(2).is_multiple_of(4) {
            known(tw_operation_plan(operation, text.as_mut_ptr(), capacity, &mut length));
            known(tw_operation_source(operation, null_mut(), capacity % 2, &mut length));
            let (mut prepared, alignments) = (null_mut(), [0, 1, 2].map(|n| 1 << (input.number(n) % 64)));
            known(tw_prepare(operation, alignments.as_ptr(), &mut prepared));
            known(tw_prepared_plan(prepared, text.as_mut_ptr(), capacity, &mut length));
            launched(prepared, input);
            tw_prepared_free(prepared);
        }
        tw_operation_free(operation);
        assert!(!known(tw_operation_problem(operation, text.as_mut_ptr(), capacity, &mut length)), "it was freed");
    }
}

/// Launches with roles, numbers and extents of the input, and with no memory.
fn launched(prepared: *mut TwPrepared, input: &Input<'_>) {
    let role =
        |n: usize| TwMemory { role: i32::from_be_bytes([0, 1, 2, 3].map(|k| input.number(4 * n + k))), address: null_mut() };
    let memories = [role(0), role(1), role(2)];
    // SAFETY: the lists have as many entries as is said, and no memory is named that does not exist.
    unsafe {
        let mut call = std::mem::zeroed::<TwCall>();
        tw_call_init(&mut call, size_of::<TwCall>(), memories.as_ptr(), usize::from(input.number(16)) % 4);
        known(tw_launch_call(prepared, &call, null_mut()));
        let extents = [4, 5, 6].map(|n| i64::from(input.number(n)) - 2);
        (call.extents, call.size) = (extents.as_ptr(), usize::from(input.number(7)));
        known(tw_launch_call(prepared, &call, null_mut()));
        known(tw_launch_call(prepared, null(), null_mut()));
        let operands = TwOperands { extents: extents.as_ptr(), ..std::mem::zeroed() };
        known(tw_launch(prepared, &operands, null_mut()));
        tw_prepared_workspace(prepared);
    }
}

/// One call that makes an operation, or opens a device.
fn call(context: *const TwContext, input: &Input<'_>) -> Result<(), String> {
    let mut operation = null_mut();
    // SAFETY: each structure is as large as the library's, and has no pointers but those that are set here.
    unsafe {
        let made = match input.kind % 9 {
            0 => tw_operation_gemm(context, &TwGemm { reduce: input.text(), ..input.over(gemm()) }, &mut operation),
            1 => tw_operation_conv(context, &TwConv { reduce: input.text(), ..input.over(conv()) }, &mut operation),
            2 => tw_operation_reduce(context, &TwReduce { ops: input.text(), ..input.over(reduce()) }, &mut operation),
            3 => tw_operation_parse(context, input.text(), &mut operation),
            4 => opened(&options(input), input),
            6..=8 => initialised(context, input, &mut operation),
            _ => {
                let mut opened = null_mut();
                let status = tw_context_open(input.text(), c"".as_ptr(), &mut opened);
                tw_context_close(opened);
                status
            }
        };
        let read = if known(made) { Ok(()) } else { Err(said()) };
        if !operation.is_null() {
            used(operation, input);
        }
        names(input);
        // Numbers that are no handle, and NULL.
        let strange = std::ptr::without_provenance_mut::<TwOperation>(usize::from(input.number(4)));
        assert!(!known(tw_operation_set_plan(strange, input.text())));
        assert!(!known(tw_operation_gemm(context, null(), &mut operation)));
        assert!(!known(tw_operation_gemm(null(), &gemm(), &mut operation)));
        read
    }
}

#[test]
fn c_entries() {
    let mut context = null_mut();
    // SAFETY: as the header asks.
    assert!(known(unsafe { tw_context_open(c"emu:sm_90a".as_ptr(), c"".as_ptr(), &mut context) }));
    let structures = [
        (0, "max:n sum:m", bytes_of(&gemm())),
        (0, "", bytes_of(&gemm())),
        (1, "max:m", bytes_of(&conv())),
        (1, "", bytes_of(&conv())),
        (2, "sum", bytes_of(&reduce())),
        (4, "emu:gfx942", bytes_of(&options(&Input::of(&[])))),
        (5, "emu:gfx942", Vec::new()),
    ];
    // From the end: what follows, dimensions, type and kind of call; sizes of dimensions; m, n and k.
    let sizes = [0, 0, 0, 0, 0, 0, 0, 7].repeat(3);
    let mut small = [vec![4, 200, 4, 0, 0, 2, 0, 0], vec![4; 8], vec![0; 8], sizes].concat();
    small.reverse();
    let filled = [(6, "max:n"), (7, "max:m"), (8, "sum")].map(|(kind, text)| (kind, text, small.clone()));
    let input = |(kind, text, bytes): (u8, &str, Vec<u8>)| [&[kind], text.as_bytes(), &[0], &bytes].concat();
    // The last byte but two chooses the calls that follow, the last but sixteen the number of memories.
    let tails = [0, 2].map(|memories| [&[memories; 16][..], &[1, 0, 0, 0, 1, 1, 0, 1, 1, 2, 2, 1, 1, 0, 0, 0]].concat());
    let texts = pairs().iter().flat_map(|pair| tails.clone().map(|tail| input((3, &pair.problem.key(), tail))));
    let valid = structures.into_iter().chain(filled).map(input).chain(texts).collect();
    fuzz("c", valid, |bytes| call(context, &Input::of(bytes)));
    // SAFETY: opened above.
    unsafe { tw_context_close(context) };
}
