//! Every function of the header with each of its pointers NULL, every number of the structures with values that it cannot have, records of a later
//! version: a status and a message that names what is wrong. What is taken is a problem whose text reads as the same again.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use tilewright_c::*;

const ARGUMENT: i32 = 1;
const PROBLEM: i32 = 2;
const RECORDS: i32 = 9;
const HEADER: &str = include_str!("../../include/tilewright.h");

fn said() -> String {
    // SAFETY: a text that lives until this thread's next failure.
    unsafe { CStr::from_ptr(tw_last_error()) }.to_string_lossy().into_owned()
}

/// What calls need.
struct Home {
    context: *mut TwContext,
    operation: *mut TwOperation,
    prepared: *mut TwPrepared,
    gemm: TwGemm,
    conv: TwConv,
    reduce: TwReduce,
    operands: TwOperands,
    /// What the operands are of.
    _memory: (Vec<f32>, Vec<f32>),
}

fn home() -> Home {
    let (read, mut written) = (vec![1.0_f32; 64], vec![0.0_f32; 64]);
    // SAFETY: as the header asks; structures of numbers and pointers that may be null.
    unsafe {
        let (mut context, mut operation, mut prepared) = (null_mut(), null_mut(), null_mut());
        let mut gemm: TwGemm = std::mem::zeroed();
        let mut conv: TwConv = std::mem::zeroed();
        let mut reduce: TwReduce = std::mem::zeroed();
        let mut operands: TwOperands = std::mem::zeroed();
        tw_gemm_init(&mut gemm, 0, 8, 6, 4);
        tw_conv_init(&mut conv, 0, 1, 2, 4, 2, [6, 6].as_ptr(), [3, 3].as_ptr());
        tw_reduce_init(&mut reduce, 0, 2, [8, 6].as_ptr(), c"sum".as_ptr());
        reduce.over[1] = 1;
        assert_eq!(tw_context_open(c"emu".as_ptr(), c"".as_ptr(), &mut context), 0, "{}", said());
        assert_eq!(tw_operation_gemm(context, &gemm, &mut operation), 0, "{}", said());
        assert_eq!(tw_prepare(operation, null(), &mut prepared), 0, "{}", said());
        (operands.a, operands.b, operands.c) = (read.as_ptr().cast(), read.as_ptr().cast(), written.as_mut_ptr().cast());
        operands.alpha = 1.0;
        Home { context, operation, prepared, gemm, conv, reduce, operands, _memory: (read, written) }
    }
}

unsafe extern "C" fn hears(_: *mut c_void, _: u64, _: f64, _: f64) -> c_int {
    1
}

/// A call that is right, but that the pointer of this number is NULL.
type Call = unsafe fn(&Home, usize) -> i32;

/// Functions with a status, and the numbers of those pointers that may be NULL.
const CALLS: &[(&str, &[usize], Call)] = &[
    ("tw_context_open", &[], |_, at| unsafe {
        let mut made = null_mut();
        // NULL means something as a device and as a file of records, which is this machine's: not tried here.
        let result = if at == 2 { null_mut() } else { &raw mut made };
        let status = tw_context_open(c"emu".as_ptr(), c"".as_ptr(), result);
        tw_context_close(made);
        if at < 2 { ARGUMENT } else { status }
    }),
    ("tw_context_trials", &[], |home, at| unsafe { tw_context_trials(or(at, 0, home.context), 1) }),
    ("tw_context_open_with", &[], |_, at| unsafe {
        let (mut options, mut made) = (std::mem::zeroed::<TwOptions>(), null_mut());
        tw_options_init(&mut options, size_of::<TwOptions>());
        (options.device, options.records) = (c"emu".as_ptr(), c"".as_ptr());
        let status = tw_context_open_with(or(at, 0, &options), if at == 1 { null_mut() } else { &raw mut made });
        tw_context_close(made);
        status
    }),
    ("tw_context_describe", &[1, 2], |home, at| unsafe {
        texts(at, |text, room, length| tw_context_describe(or(at, 0, home.context), text, room, length))
    }),
    ("tw_operation_gemm", &[], |home, at| unsafe {
        made(at, 2, |result| tw_operation_gemm(or(at, 0, home.context), or(at, 1, &home.gemm), result))
    }),
    ("tw_operation_conv", &[], |home, at| unsafe {
        made(at, 2, |result| tw_operation_conv(or(at, 0, home.context), or(at, 1, &home.conv), result))
    }),
    ("tw_operation_reduce", &[], |home, at| unsafe {
        made(at, 2, |result| tw_operation_reduce(or(at, 0, home.context), or(at, 1, &home.reduce), result))
    }),
    ("tw_operation_parse", &[], |home, at| unsafe {
        let text = text_of(home.operation);
        made(at, 2, |result| tw_operation_parse(or(at, 0, home.context), or(at, 1, text.as_ptr()), result))
    }),
    ("tw_operation_problem", &[1, 2], |home, at| unsafe {
        texts(at, |text, room, length| tw_operation_problem(or(at, 0, home.operation), text, room, length))
    }),
    ("tw_operation_plan", &[1, 2], |home, at| unsafe {
        texts(at, |text, room, length| tw_operation_plan(or(at, 0, home.operation), text, room, length))
    }),
    ("tw_operation_source", &[1, 2], |home, at| unsafe {
        texts(at, |text, room, length| tw_operation_source(or(at, 0, home.operation), text, room, length))
    }),
    ("tw_operation_set_plan", &[], |home, at| unsafe {
        let mut plan = [0 as c_char; 4096];
        assert_eq!(tw_operation_plan(home.operation, plan.as_mut_ptr(), plan.len(), null_mut()), 0, "{}", said());
        tw_operation_set_plan(or(at, 0, home.operation), or(at, 1, plan.as_ptr()))
    }),
    ("tw_operation_tune", &[1, 2, 3], |home, at| unsafe {
        let mut best = 0.0;
        let heard = if at == 1 { None } else { Some(hears as unsafe extern "C" fn(*mut c_void, u64, f64, f64) -> c_int) };
        let status = tw_operation_tune(
            or(at, 0, home.operation),
            0.0,
            1,
            heard,
            or(at, 2, home.operation).cast_mut().cast(),
            if at == 3 { null_mut() } else { &raw mut best },
        );
        // A search of one trial may find nothing.
        if CStr::from_ptr(tw_status_name(status)) == c"TW_NOT_TUNED" { 0 } else { status }
    }),
    ("tw_prepare", &[1], |home, at| unsafe {
        let mut prepared = null_mut();
        let status = tw_prepare(
            or(at, 0, home.operation),
            or(at, 1, [256, 256, 256].as_ptr()),
            if at == 2 { null_mut() } else { &raw mut prepared },
        );
        tw_prepared_free(prepared);
        status
    }),
    ("tw_prepared_plan", &[1, 2], |home, at| unsafe {
        texts(at, |text, room, length| tw_prepared_plan(or(at, 0, home.prepared), text, room, length))
    }),
    ("tw_launch_call", &[2], |home, at| unsafe {
        let x = &home.operands;
        let memory = |role: i32, address: *const c_void| TwMemory { role, address: address.cast_mut() };
        let memories = [memory(0, x.a), memory(1, x.b), memory(2, x.c.cast_const()), memory(10, x.workspace.cast_const())];
        let mut call = std::mem::zeroed::<TwCall>();
        tw_call_init(&mut call, size_of::<TwCall>(), memories.as_ptr(), memories.len());
        tw_launch_call(or(at, 0, home.prepared), or(at, 1, &call), null_mut())
    }),
    ("tw_launch", &[2], |home, at| unsafe { tw_launch(or(at, 0, home.prepared), or(at, 1, &home.operands), null_mut()) }),
];

fn or<T>(at: usize, number: usize, pointer: *const T) -> *const T {
    if at == number { null() } else { pointer }
}

/// A function that gives text: pointer 1 is the text, 2 its length.
fn texts(at: usize, call: impl FnOnce(*mut c_char, usize, *mut usize) -> i32) -> i32 {
    let (mut text, mut length) = ([0 as c_char; 64], 0);
    let (at_text, room) = if at == 1 { (null_mut(), 0) } else { (text.as_mut_ptr(), text.len()) };
    call(at_text, room, if at == 2 { null_mut() } else { &mut length })
}

/// A function that makes an operation at a pointer of this number.
fn made(at: usize, number: usize, call: impl FnOnce(*mut *mut TwOperation) -> i32) -> i32 {
    let mut operation = null_mut();
    let status = call(if at == number { null_mut() } else { &mut operation });
    // SAFETY: an operation or NULL.
    unsafe { tw_operation_free(operation) };
    status
}

/// # Safety
/// A handle of an operation.
unsafe fn text_of(operation: *const TwOperation) -> std::ffi::CString {
    let mut text = vec![0_u8; 4096];
    // SAFETY: the caller's, and as much room as is told.
    let status = unsafe { tw_operation_problem(operation, text.as_mut_ptr().cast(), text.len(), null_mut()) };
    assert_eq!(status, 0, "{}", said());
    CStr::from_bytes_until_nul(&text).expect("a text that ends").to_owned()
}

/// Functions with a status that the header declares, and the names of their pointers.
fn declared() -> Vec<(&'static str, Vec<&'static str>)> {
    let starts = HEADER.split("\ntw_status ").skip(1).filter_map(|rest| rest.split_once(';'));
    let each = starts.filter_map(|(head, _)| {
        let (name, parameters) = head.trim_end_matches(')').split_once('(')?;
        let pointer = |p: &&str| p.contains('*') || p.contains('[') || p.contains("tw_progress");
        let named = |p: &'static str| p.split('[').next().unwrap_or(p).rsplit(['*', ' ']).next().unwrap_or(p);
        Some((name, parameters.split(',').filter(pointer).map(named).collect()))
    });
    each.collect()
}

#[test]
fn each_pointer_of_each_function() {
    let home = home();
    let declared = declared();
    let names: Vec<_> = declared.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, CALLS.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), "each function of the header has a line here");
    for ((name, pointers), (_, may, call)) in declared.iter().zip(CALLS) {
        for (at, pointer) in pointers.iter().enumerate().filter(|(at, _)| *name != "tw_context_open" || *at == 2) {
            // SAFETY: what is NULL is what is tried.
            let status = unsafe { call(&home, at) };
            if may.contains(&at) {
                assert_eq!(status, 0, "{name}, {pointer} = NULL: {}", said());
            } else {
                assert_eq!(status, ARGUMENT, "{name}, {pointer} = NULL: {}", said());
                assert!(said().contains(pointer) || said().contains("result is NULL"), "{name}, {pointer} = NULL: {}", said());
            }
        }
        // SAFETY: nothing is wrong with this one.
        let status = if *name == "tw_context_open" { 0 } else { unsafe { call(&home, usize::MAX) } };
        assert_eq!(status, 0, "{name}: {}", said());
    }
}

const VALUES: [i64; 9] = [i64::MIN, -7, -1, 0, 5, 99, 1 << 20, 1 << 40, i64::MAX];

/// Tries a structure's numbers: `make` gives a status, and maybe an operation.
fn numbers<T: Copy + 'static>(good: &T, fields: Fields<T>, make: impl Fn(&T, *mut *mut TwOperation) -> i32) {
    let (home, mut unnamed) = (home(), Vec::new());
    for (name, set) in fields {
        for value in VALUES {
            let (mut changed, mut operation) = (*good, null_mut());
            set(&mut changed, value);
            let status = make(&changed, &mut operation);
            if status == 0 {
                // SAFETY: an operation that was made.
                unsafe {
                    let (text, mut again) = (text_of(operation), null_mut());
                    assert_eq!(
                        tw_operation_parse(home.context, text.as_ptr(), &mut again),
                        0,
                        "{name} = {value}: {text:?}: {}",
                        said()
                    );
                    assert_eq!(text_of(again), text, "{name} = {value}");
                    tw_operation_free(operation);
                    tw_operation_free(again);
                }
                continue;
            }
            assert!(operation.is_null(), "{name} = {value}");
            assert!(status == ARGUMENT || status == PROBLEM, "{name} = {value}: status {status}, {}", said());
            let told = said();
            let named = told.contains(name.split('[').next().unwrap_or(name))
                || ["64-bit address space", "overlap", "run-time", "reduction", "every size", "scales of blocks"]
                    .iter()
                    .any(|w| told.contains(w));
            if !(named && told.split_whitespace().count() > 3) {
                unnamed.push(format!("{name} = {value}: {told}"));
            }
        }
    }
    assert!(unnamed.is_empty(), "{}", unnamed.join("\n"));
}

macro_rules! fields {
    ($($name:ident $([$at:literal])?),+ $(,)?) => { &[$((stringify!($name), |x, value| x.$name $([$at])? = value as _)),+] };
}

#[test]
fn each_number_of_each_structure() {
    let home = home();
    // SAFETY: structures as the header asks, but for what is refused.
    unsafe {
        numbers(&home.gemm, FIELDS_GEMM, |x, to| tw_operation_gemm(home.context, x, to));
        numbers(&home.conv, FIELDS_CONV, |x, to| tw_operation_conv(home.context, x, to));
        numbers(&home.reduce, FIELDS_REDUCE, |x, to| tw_operation_reduce(home.context, x, to));
    }
}

/// That the table has each number that the header's structure has.
fn all_fields<T: 'static>(structure: &str, fields: Fields<T>) {
    let body = HEADER
        .split(&format!("typedef struct {structure} {{"))
        .nth(1)
        .and_then(|rest| rest.split_once('}'))
        .expect("the structure")
        .0;
    let mut told = Vec::new();
    for line in body.lines().map(|line| line.split("/*").next().unwrap_or(line).trim()).filter(|line| !line.contains('*')) {
        let Some((_, names)) = line.trim_end_matches(';').split_once(' ') else { continue };
        told.extend(names.split(',').map(|name| name.trim().split('[').next().unwrap_or(name)).filter(|name| !name.is_empty()));
    }
    let mut tried: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    tried.dedup();
    assert_eq!(tried, told, "{structure}");
}

type Fields<T> = &'static [(&'static str, fn(&mut T, i64))];

const FIELDS_GEMM: Fields<TwGemm> = fields![
    size,
    m,
    n,
    k,
    lda,
    ldb,
    ldc,
    ldr,
    batch,
    stride_a,
    stride_b,
    stride_c,
    stride_r,
    dtype,
    out_dtype,
    order,
    math,
    trans_a,
    trans_b,
    bias,
    activation,
    residual,
    dynamic_m,
    dynamic_n,
    dynamic_batch,
    drop_c,
    scale_m,
    scale_n,
    zero_a,
    zero_b,
    grouped,
    b_dtype,
    conj_a,
    conj_b,
    alpha_im,
    beta_im,
    gate,
    up_first,
    gate_limit,
    gate_slope,
    interleaved,
    preactivations,
    separate_up,
    softcap,
    k2,
    lda2,
    ldb2,
];
const FIELDS_CONV: Fields<TwConv> = fields![
    size,
    n,
    c,
    k,
    groups,
    input[0],
    input[1],
    input[2],
    filter[0],
    filter[1],
    filter[2],
    stride[0],
    stride[1],
    stride[2],
    dilation[0],
    dilation[1],
    dilation[2],
    pad_begin[0],
    pad_begin[1],
    pad_begin[2],
    pad_end[0],
    pad_end[1],
    pad_end[2],
    dims,
    direction,
    layout,
    dtype,
    out_dtype,
    math,
    bias,
    activation,
    residual,
    mask,
    drop_c,
];
const FIELDS_REDUCE: Fields<TwReduce> = fields![
    size, shape[0], shape[1], shape[7], strides[0], strides[1], strides[7], over[0], over[1], over[7], dims, dtype, activation,
];

#[test]
fn the_tables_have_each_number_of_the_header() {
    all_fields("tw_gemm", FIELDS_GEMM);
    all_fields("tw_conv", FIELDS_CONV);
    all_fields("tw_reduce", FIELDS_REDUCE);
}

#[test]
fn records_of_a_later_version_and_torn_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("records.sqlite");
    let text = std::ffi::CString::new(path.to_str().expect("a path in Unicode")).expect("a path");
    let open = |text: &CStr| {
        let mut context = null_mut();
        // SAFETY: as the header asks.
        unsafe {
            let status = tw_context_open(c"emu".as_ptr(), text.as_ptr(), &mut context);
            tw_context_close(context);
            status
        }
    };
    assert_eq!(open(&text), 0, "{}", said());
    let whole = std::fs::read(&path).expect("records");
    // SQLite's `user_version`.
    let later = |bytes: &mut Vec<u8>| bytes[63] += 1;
    let torn = |bytes: &mut Vec<u8>| bytes[100..].fill(0xff);
    let short = |bytes: &mut Vec<u8>| bytes.truncate(30);
    let foreign = |bytes: &mut Vec<u8>| bytes[68..72].fill(0);
    for (change, says) in
        [(&later as &dyn Fn(&mut Vec<u8>), "newer"), (&torn, "malformed"), (&short, "damaged"), (&foreign, "not a tilewright")]
    {
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&path, &bytes).expect("records");
        assert_eq!(open(&text), RECORDS, "{says}: {}", said());
        assert!(said().contains(says) && said().contains("records.sqlite"), "{says}: {}", said());
        assert_eq!(std::fs::read(&path).expect("records"), bytes, "{says}: it was written to");
    }
}
