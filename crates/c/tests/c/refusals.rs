//! Whatever C gets wrong in a call of any function gives a status and a message that names it; nothing of it ends the process.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use tilewright_c::*;

const ARGUMENT: i32 = 1;
const PROBLEM: i32 = 2;
const REFUSED: i32 = 3;
const OPERANDS: i32 = 4;
const NO_DEVICE: i32 = 5;
const RECORDS: i32 = 9;

fn said() -> String {
    // SAFETY: a text that lives until this thread's next failure.
    unsafe { CStr::from_ptr(tw_last_error()) }.to_string_lossy().into_owned()
}

/// That a call fails so, and says so.
fn fails(status: i32, expected: i32, says: &str) {
    assert_eq!(status, expected, "{}; expected: {says}", said());
    assert!(said().contains(says), "{:?} does not say {says:?}", said());
}

fn opened() -> *mut TwContext {
    let mut context = null_mut();
    // SAFETY: as the header asks.
    let status = unsafe { tw_context_open(c"emu".as_ptr(), c"".as_ptr(), &mut context) };
    assert_eq!(status, 0, "{}", said());
    context
}

fn gemm(change: impl FnOnce(&mut TwGemm)) -> TwGemm {
    // SAFETY: a structure of numbers and a pointer that may be null.
    let mut gemm = unsafe { std::mem::zeroed() };
    // SAFETY: as the header asks.
    unsafe { tw_gemm_init(&mut gemm, 0, 8, 6, 4) };
    change(&mut gemm);
    gemm
}

fn conv(change: impl FnOnce(&mut TwConv)) -> TwConv {
    // SAFETY: as above.
    let mut conv = unsafe { std::mem::zeroed() };
    // SAFETY: as the header asks.
    unsafe { tw_conv_init(&mut conv, 0, 1, 2, 4, 2, [6, 6].as_ptr(), [3, 3].as_ptr()) };
    change(&mut conv);
    conv
}

fn reduce(change: impl FnOnce(&mut TwReduce)) -> TwReduce {
    // SAFETY: as above.
    let mut reduce = unsafe { std::mem::zeroed() };
    // SAFETY: as the header asks.
    unsafe { tw_reduce_init(&mut reduce, 0, 2, [8, 6].as_ptr(), c"sum".as_ptr()) };
    reduce.over[1] = 1;
    change(&mut reduce);
    reduce
}

fn made(context: *mut TwContext, gemm: &TwGemm) -> *mut TwOperation {
    let mut operation = null_mut();
    // SAFETY: as the header asks.
    assert_eq!(unsafe { tw_operation_gemm(context, gemm, &mut operation) }, 0, "{}", said());
    operation
}

fn prepared(operation: *mut TwOperation) -> *mut TwPrepared {
    let mut prepared = null_mut();
    // SAFETY: as the header asks.
    assert_eq!(unsafe { tw_prepare(operation, null(), &mut prepared) }, 0, "{}", said());
    prepared
}

/// Text that is not UTF-8.
const NO_TEXT: &CStr = c"\xff\xfe";

#[test]
fn contexts() {
    let mut context = null_mut();
    // SAFETY: what is wrong here is what the header says is refused.
    unsafe {
        for (device, records, status, says) in [
            (c"toaster", c"", NO_DEVICE, "Write emu"),
            (c"", c"", NO_DEVICE, "Write emu"),
            (c"emu:sm_1", c"", NO_DEVICE, "sm_90a"),
            (c"cuda:-1", c"", NO_DEVICE, "a number"),
            (c"opencl:99999999999999999999", c"", NO_DEVICE, "opencl"),
            (NO_TEXT, c"", ARGUMENT, "`device` is not UTF-8"),
            (c"emu", NO_TEXT, ARGUMENT, "`records` is not UTF-8"),
            (c"emu", c"/", RECORDS, "Name another file"),
            (c"emu", c"/proc/nothing/here", RECORDS, "/proc/nothing"),
        ] {
            fails(tw_context_open(device.as_ptr(), records.as_ptr(), &mut context), status, says);
            assert!(context.is_null());
        }
        fails(tw_context_open(c"emu".as_ptr(), c"".as_ptr(), null_mut()), ARGUMENT, "pointer to the result is NULL");
        let context = opened();
        fails(tw_context_trials(context, 2), ARGUMENT, "trials = 2");
        assert_eq!(tw_context_trials(context, 0), 0, "{}", said());
        tw_context_close(context);
        let mut text = [0 as c_char; 4];
        let mut length = 0;
        fails(tw_context_describe(null(), text.as_mut_ptr(), 4, &mut length), ARGUMENT, "`context` is NULL");
        let context = opened();
        fails(tw_context_describe(context, null_mut(), 4, &mut length), ARGUMENT, "`text` is NULL");
        assert_eq!(tw_context_describe(context, null_mut(), 0, null_mut()), 0);
        assert_eq!(tw_context_describe(context, text.as_mut_ptr(), 4, &mut length), 0);
        assert_eq!((CStr::from_ptr(text.as_ptr()), length > 4), (c"emu", true));
        assert_eq!(CStr::from_ptr(tw_status_name(-1)), c"unknown");
        assert_eq!(CStr::from_ptr(tw_status_name(i32::MAX)), c"unknown");
        tw_context_close(context);
    }
}

#[test]
fn options_of_a_context() {
    const E4M3: i32 = 4;
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        let options = |change: &dyn Fn(&mut TwOptions)| {
            let mut options = std::mem::zeroed::<TwOptions>();
            tw_options_init(&mut options, size_of::<TwOptions>());
            (options.device, options.records) = (c"emu:sm_90a".as_ptr(), c"".as_ptr());
            change(&mut options);
            options
        };
        let mut context = null_mut();
        type Change = fn(&mut TwOptions);
        let wrong: [(Change, &str); 6] = [
            (|x| x.workspace = -2, "workspace = -2"),
            (|x| x.trials = 2, "trials = 2"),
            (|x| x.atomics = 3, "atomics = 3 is no flag"),
            (|x| x.ieee = -1, "ieee = -1 is no flag"),
            (|x| x.reserved = 1, "reserved = 1"),
            (|x| x.size = 8, "call tw_options_init"),
        ];
        for (change, says) in wrong {
            fails(tw_context_open_with(&options(&change), &mut context), ARGUMENT, says);
        }
        // An 8-bit result has no infinity: with `ieee` no plan is left.
        for (ieee, says) in [(0, ""), (1, "store results in f16, bf16 or f32")] {
            assert_eq!(tw_context_open_with(&options(&|x| x.ieee = ieee), &mut context), 0, "{}", said());
            let product = gemm(|x| (x.dtype, x.out_dtype, x.trans_b, x.m, x.n, x.k) = (E4M3, E4M3, 1, 64, 64, 64));
            let mut operation = null_mut();
            let mut status = tw_operation_gemm(context, &product, &mut operation);
            if status == 0 {
                let mut kernels = null_mut();
                status = tw_prepare(operation, null(), &mut kernels);
                tw_prepared_free(kernels);
            }
            assert_eq!(status == 0, ieee == 0, "{}", said());
            assert!(said().contains(says), "{}", said());
            tw_operation_free(operation);
            tw_context_close(context);
        }
    }
}

#[test]
fn a_list_of_memories_launches_and_its_mistakes_are_named() {
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        let operation = made(opened(), &gemm(|_| ()));
        let kernels = prepared(operation);
        let (mut a, mut b, mut c) = ([1.0_f32; 32], [1.0_f32; 24], [0.0_f32; 48]);
        let entry = |role: i32, address: *mut f32| TwMemory { role, address: address.cast() };
        let list = [entry(2, c.as_mut_ptr()), entry(0, a.as_mut_ptr()), entry(1, b.as_mut_ptr()), entry(9, null_mut())];
        let mut call = std::mem::zeroed::<TwCall>();
        tw_call_init(&mut call, size_of::<TwCall>(), list.as_ptr(), list.len());
        assert_eq!(tw_launch_call(kernels, &call, null_mut()), 0, "{}", said());
        assert_eq!(c, [4.0; 48]);

        let launched = |change: fn(&mut TwCall)| {
            let mut changed = call;
            change(&mut changed);
            tw_launch_call(kernels, &changed, null_mut())
        };
        fails(launched(|x| x.count = 2), OPERANDS, "operand B");
        fails(launched(|x| x.memories = null()), ARGUMENT, "`memories` is NULL");
        fails(launched(|x| x.count = 24), ARGUMENT, "there are 23 roles");
        fails(launched(|x| x.size = 0), ARGUMENT, "tw_call_init");
        fails(launched(|x| x.size += 8), ARGUMENT, "the library of the program's header");
        fails(tw_launch_call(kernels, null(), null_mut()), ARGUMENT, "`call` is NULL");
        for (role, says) in [(2, "c is in the list twice"), (15, "role = 15"), (24, "role = 24"), (-1, "role = -1")] {
            let list = [entry(2, c.as_mut_ptr()), entry(role, c.as_mut_ptr())];
            tw_call_init(&mut call, size_of::<TwCall>(), list.as_ptr(), list.len());
            fails(tw_launch_call(kernels, &call, null_mut()), ARGUMENT, says);
        }
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        // A second output: the sums of both factors of a gate.
        let operation = made(opened(), &gemm(|x| (x.size, x.gate, x.preactivations) = (size_of::<TwGemm>(), 7, 1)));
        let kernels = prepared(operation);
        let (mut b, mut sums) = ([1.0_f32; 48], [0.0_f32; 96]);
        let list = [(0, a.as_mut_ptr()), (1, b.as_mut_ptr()), (2, c.as_mut_ptr()), (11, sums.as_mut_ptr())];
        let list = list.map(|(role, address)| entry(role, address));
        tw_call_init(&mut call, size_of::<TwCall>(), list.as_ptr(), list.len());
        assert_eq!(tw_launch_call(kernels, &call, null_mut()), 0, "{}", said());
        assert_eq!((c, sums), ([16.0; 48], [4.0; 96]));
        let mut shared = list;
        shared[3] = entry(11, b.as_mut_ptr());
        tw_call_init(&mut call, size_of::<TwCall>(), shared.as_ptr(), shared.len());
        fails(tw_launch_call(kernels, &call, null_mut()), OPERANDS, "the memory of pre-activations overlaps that of operand B");
        tw_call_init(&mut call, size_of::<TwCall>(), list.as_ptr(), list.len());
        call.count = 3;
        fails(tw_launch_call(kernels, &call, null_mut()), OPERANDS, "pre-activations");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        let operation = made(opened(), &gemm(|x| (x.size, x.gate, x.preactivations, x.bias) = (size_of::<TwGemm>(), 7, 1, 2)));
        let kernels = prepared(operation);
        let shared = [list[0], list[1], list[2], list[3], entry(8, sums.as_mut_ptr())];
        tw_call_init(&mut call, size_of::<TwCall>(), shared.as_ptr(), shared.len());
        fails(tw_launch_call(kernels, &call, null_mut()), OPERANDS, "the memory of pre-activations overlaps that of bias");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        // Two tensors of weights.
        let operation = made(opened(), &gemm(|x| (x.size, x.gate, x.separate_up) = (size_of::<TwGemm>(), 7, 1)));
        let kernels = prepared(operation);
        let mut up = [2.0_f32; 24];
        let list = [list[0], list[1], list[2], entry(12, up.as_mut_ptr())];
        tw_call_init(&mut call, size_of::<TwCall>(), list.as_ptr(), list.len());
        assert_eq!(tw_launch_call(kernels, &call, null_mut()), 0, "{}", said());
        assert_eq!(c, [32.0; 48]);
        call.count = 3;
        fails(tw_launch_call(kernels, &call, null_mut()), OPERANDS, "up weights");
        let shared = [list[0], list[1], list[2], entry(12, c.as_mut_ptr())];
        tw_call_init(&mut call, size_of::<TwCall>(), shared.as_ptr(), shared.len());
        fails(tw_launch_call(kernels, &call, null_mut()), OPERANDS, "the memory of operand C overlaps that of up weights");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
    }
}

#[test]
fn handles_that_were_freed_or_are_of_another_kind() {
    // SAFETY: handles are no addresses: what they stand for is looked up.
    unsafe {
        let context = opened();
        let operation = made(context, &gemm(|_| ()));
        let kernels = prepared(operation);
        let mut other: *mut TwOperation = null_mut();
        let no = "was freed";
        // What a handle was made from may be freed before it.
        tw_context_close(context);
        assert_eq!(tw_operation_plan(operation, null_mut(), 0, null_mut()), 0, "{}", said());
        tw_operation_free(operation);
        let (a, b) = ([1.0_f32; 32], [1.0_f32; 24]);
        let mut c = [0.0_f32; 48];
        let mut operands: TwOperands = std::mem::zeroed();
        (operands.a, operands.b, operands.c, operands.alpha) = (a.as_ptr().cast(), b.as_ptr().cast(), c.as_mut_ptr().cast(), 1.0);
        assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
        assert_eq!(c, [4.0; 48]);
        tw_prepared_free(kernels);
        for context in [context, operation.cast(), kernels.cast(), (&raw mut other).cast(), std::ptr::dangling_mut()] {
            fails(tw_context_describe(context, null_mut(), 0, null_mut()), ARGUMENT, no);
            fails(tw_operation_gemm(context, &gemm(|_| ()), &mut other), ARGUMENT, no);
            fails(tw_operation_conv(context, &conv(|_| ()), &mut other), ARGUMENT, no);
            fails(tw_operation_reduce(context, &reduce(|_| ()), &mut other), ARGUMENT, no);
            fails(tw_operation_parse(context, c"x".as_ptr(), &mut other), ARGUMENT, no);
        }
        let mut third = null_mut();
        for operation in [operation, context.cast(), kernels.cast(), std::ptr::dangling_mut()] {
            fails(tw_operation_problem(operation, null_mut(), 0, null_mut()), ARGUMENT, no);
            fails(tw_operation_plan(operation, null_mut(), 0, null_mut()), ARGUMENT, no);
            fails(tw_operation_source(operation, null_mut(), 0, null_mut()), ARGUMENT, no);
            fails(tw_operation_set_plan(operation, c"x".as_ptr()), ARGUMENT, no);
            fails(tw_operation_tune(operation, 0.0, 1, None, null_mut(), null_mut()), ARGUMENT, no);
            fails(tw_prepare(operation, null(), &mut third), ARGUMENT, no);
        }
        for kernels in [kernels, context.cast(), operation.cast(), std::ptr::dangling_mut()] {
            fails(tw_prepared_plan(kernels, null_mut(), 0, null_mut()), ARGUMENT, no);
            fails(tw_launch(kernels, &operands, null_mut()), ARGUMENT, no);
        }
        // Functions without a status leave their message.
        let stale = made(opened(), &gemm(|_| ()));
        fails(tw_operation_set_plan(stale, c"x".as_ptr()), REFUSED, "character 1");
        assert_eq!(tw_prepared_workspace(kernels), 0);
        assert!(said().contains("`prepared` is no tw_prepared"), "{}", said());
        tw_context_close(context);
        assert!(said().contains("`context` is no tw_context"), "{}", said());
        tw_operation_free(operation);
        assert!(said().contains("`operation` is no tw_operation"), "{}", said());
        tw_prepared_free(kernels);
        assert!(said().contains("`prepared` is no tw_prepared"), "{}", said());
        tw_operation_free(stale);
        tw_context_close(null_mut());
        tw_operation_free(null_mut());
        tw_prepared_free(null_mut());
    }
}

#[test]
fn products() {
    let context = opened();
    let mut operation = null_mut();
    type Change = fn(&mut TwGemm);
    let cases: [(Change, i32, &str); 61] = [
        (|x| x.size = 0, ARGUMENT, "tw_gemm_init"),
        (|x| x.m = -1, ARGUMENT, "m = -1 is negative"),
        (|x| x.n = i64::MIN, ARGUMENT, "n = -9223372036854775808 is negative"),
        (|x| x.k = 0, PROBLEM, "k = 0"),
        (|x| x.batch = 0, PROBLEM, "batch = 0"),
        (|x| x.batch = -2, ARGUMENT, "batch = -2"),
        (|x| (x.m, x.n, x.k) = (i64::MAX, i64::MAX, i64::MAX), PROBLEM, "64-bit address space"),
        (|x| x.m = i64::MAX, PROBLEM, "64-bit address space"),
        (|x| x.lda = 1, PROBLEM, "lda = 1"),
        (|x| x.ldb = -2, ARGUMENT, "ldb = -2"),
        (|x| x.ldc = i64::MAX, PROBLEM, "64-bit address space"),
        (|x| (x.batch, x.stride_c) = (2, 1), PROBLEM, "entries of C overlap"),
        (|x| (x.batch, x.stride_a) = (2, i64::MAX), PROBLEM, "64-bit address space"),
        (|x| x.dtype = 99, ARGUMENT, "dtype = 99"),
        (|x| x.dtype = -1, ARGUMENT, "dtype = -1"),
        (|x| x.dtype = 6, PROBLEM, "i32"),
        (|x| x.out_dtype = 77, ARGUMENT, "out_dtype = 77"),
        (|x| x.out_dtype = 1, PROBLEM, "out_dtype = f64"),
        (|x| x.order = 0, ARGUMENT, "order = 0"),
        (|x| x.math = 9, ARGUMENT, "math = 9"),
        (|x| (x.dtype, x.out_dtype, x.math) = (1, 1, 1), PROBLEM, "tf32"),
        (|x| x.bias = 3, ARGUMENT, "bias = 3"),
        (|x| (x.dtype, x.out_dtype, x.scale_m) = (1, 1, 1), PROBLEM, "scales = m"),
        (|x| x.scale_m = 6, ARGUMENT, "scale_m = 6 names nothing"),
        (|x| (x.dtype, x.scale_n) = (3, 5), PROBLEM, "scales = n1x32"),
        (|x| x.b_dtype = 99, ARGUMENT, "b_dtype = 99"),
        (|x| x.b_dtype = 3, PROBLEM, "i4 and u4 with f16, bf16 or f32"),
        (|x| x.dtype = 11, PROBLEM, "4-bit integers are weights beside f16, bf16 or f32"),
        (|x| (x.n, x.b_dtype) = (5, 12), PROBLEM, "n = 5"),
        (|x| (x.dtype, x.out_dtype, x.scale_n) = (4, 0, 3), PROBLEM, "scales = n128x128"),
        (|x| x.zero_a = 3, ARGUMENT, "zero_a = 3"),
        (|x| x.zero_b = 2, PROBLEM, "8-bit integers have zero points"),
        (|x| x.dtype = 13, ARGUMENT, "out_dtype = f32: results of complex products"),
        (|x| x.out_dtype = 14, ARGUMENT, "complex numbers are elements of matrix products"),
        (|x| x.b_dtype = 13, ARGUMENT, "of A, B and C alike"),
        (|x| x.conj_b = 1, ARGUMENT, "conj_b = 1: elements of type f32 are their own conjugates"),
        (|x| x.beta_im = 1, ARGUMENT, "beta_im = 1: alpha and beta of a product of type f32 are real"),
        (|x| (x.dtype, x.out_dtype, x.bias) = (14, 14, 1), PROBLEM, "add it as a residual"),
        (|x| x.grouped = 4, ARGUMENT, "grouped = 4"),
        (|x| (x.grouped, x.dynamic_n) = (1, 1), PROBLEM, "grouped product with n known only at launch"),
        (|x| x.activation = -7, ARGUMENT, "activation = -7"),
        (|x| (x.size, x.gate) = (size_of::<TwGemm>(), 9), ARGUMENT, "gate = 9"),
        (
            |x| (x.size, x.gate, x.gate_limit) = (size_of::<TwGemm>(), 8, -7.0),
            ARGUMENT,
            "gate_limit = -7: must be a positive number",
        ),
        (
            |x| (x.size, x.gate, x.gate_limit) = (size_of::<TwGemm>(), 8, f64::NAN),
            ARGUMENT,
            "gate_limit = NaN: must be a positive",
        ),
        (|x| (x.size, x.gate, x.gate_slope) = (size_of::<TwGemm>(), 4, 2.0), PROBLEM, "only a clamped gate"),
        (|x| (x.size, x.softcap) = (size_of::<TwGemm>(), -30.0), ARGUMENT, "softcap = -30: must be a positive number"),
        (|x| (x.size, x.activation, x.softcap) = (size_of::<TwGemm>(), 1, 30.0), ARGUMENT, "leave one of them out"),
        (|x| (x.size, x.gate, x.softcap) = (size_of::<TwGemm>(), 4, 30.0), PROBLEM, "the gate has the function"),
        (|x| (x.size, x.up_first) = (size_of::<TwGemm>(), 1), PROBLEM, "no gate"),
        (|x| (x.size, x.interleaved) = (size_of::<TwGemm>(), 1), PROBLEM, "no gate"),
        (|x| (x.size, x.preactivations) = (size_of::<TwGemm>(), 1), PROBLEM, "no gate"),
        (|x| (x.size, x.separate_up) = (size_of::<TwGemm>(), 1), PROBLEM, "no gate"),
        (|x| (x.size, x.gate, x.activation) = (size_of::<TwGemm>(), 4, 1), PROBLEM, "the gate has the function"),
        (|x| x.reduce = c"max".as_ptr(), ARGUMENT, "axes are missing"),
        (|x| x.reduce = c"median:n".as_ptr(), ARGUMENT, "the operators are"),
        (|x| x.reduce = c"max:n4".as_ptr(), PROBLEM, "blocks of 4"),
        (|x| x.reduce = c"max:n99999999999999999999".as_ptr(), ARGUMENT, "out of range"),
        (|x| x.reduce = c"sum:n sum:n sum:n sum:n sum:n sum:n sum:n sum:n sum:n".as_ptr(), PROBLEM, "at most 8"),
        (|x| x.reduce = NO_TEXT.as_ptr(), ARGUMENT, "`reduce` is not UTF-8"),
        (|x| x.drop_c = 1, PROBLEM, "reduce"),
        (|x| (x.dynamic_m, x.reduce) = (1, c"absmax:m2".as_ptr()), PROBLEM, "launch"),
    ];
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        for (change, status, says) in cases {
            fails(tw_operation_gemm(context, &gemm(change), &mut operation), status, says);
        }
        fails(tw_operation_gemm(null(), &gemm(|_| ()), &mut operation), ARGUMENT, "`context` is NULL");
        fails(tw_operation_gemm(context, null(), &mut operation), ARGUMENT, "`gemm` is NULL");
        fails(tw_operation_gemm(context, &gemm(|_| ()), null_mut()), ARGUMENT, "result is NULL");
        tw_gemm_init(null_mut(), 0, 1, 1, 1);
        for (text, status, says) in
            [(null(), ARGUMENT, "`problem` is NULL"), (NO_TEXT.as_ptr(), ARGUMENT, "not UTF-8"), (c"".as_ptr(), PROBLEM, "key")]
        {
            fails(tw_operation_parse(context, text, &mut operation), status, says);
        }
        let long = CString::new("tC0_".repeat(100_000)).unwrap_or_default();
        fails(tw_operation_parse(context, long.as_ptr(), &mut operation), PROBLEM, "tC");
        assert!(operation.is_null());
        tw_context_close(context);
    }
}

#[test]
fn convolutions_and_reductions() {
    let context = opened();
    let mut operation = null_mut();
    type Change<T> = fn(&mut T);
    let convs: [(Change<TwConv>, i32, &str); 20] = [
        (|x| x.size = 1, ARGUMENT, "tw_conv_init"),
        (|x| x.dims = 0, ARGUMENT, "dims = 0"),
        (|x| x.dims = 4, ARGUMENT, "dims = 4"),
        (|x| x.dims = i32::MIN, ARGUMENT, "1 to 3"),
        (|x| x.dims = 3, PROBLEM, "filter = 3x3x0"),
        (|x| x.n = -1, ARGUMENT, "n = -1"),
        (|x| x.k = 0, PROBLEM, "k = 0"),
        (|x| x.groups = 0, PROBLEM, "groups"),
        (|x| x.groups = 3, PROBLEM, "groups"),
        (|x| x.input[0] = 1, PROBLEM, "filter"),
        (|x| x.input[1] = -6, ARGUMENT, "input = -6"),
        (|x| (x.n, x.input) = (i64::MAX, [i64::MAX; 3]), PROBLEM, "64-bit address space"),
        (|x| x.stride[0] = 0, PROBLEM, "stride"),
        (|x| x.dilation[1] = i64::MAX, PROBLEM, "64-bit address space"),
        (|x| x.pad_begin[0] = -1, ARGUMENT, "pad_begin = -1"),
        (|x| x.direction = 3, ARGUMENT, "direction = 3"),
        (|x| x.layout = -1, ARGUMENT, "layout = -1"),
        (|x| (x.residual, x.mask) = (1, 1), ARGUMENT, "one tensor"),
        (|x| (x.direction, x.bias) = (2, 1), PROBLEM, "bias"),
        (|x| x.reduce = c"sum:q".as_ptr(), ARGUMENT, "sum:q"),
    ];
    let reductions: [(Change<TwReduce>, i32, &str); 12] = [
        (|x| x.size = 1, ARGUMENT, "tw_reduce_init"),
        (|x| x.dims = 0, ARGUMENT, "dims = 0"),
        (|x| x.dims = 9, ARGUMENT, "1 to 8"),
        (|x| x.over = [0; 8], PROBLEM, "names no axis"),
        (|x| x.shape[0] = -8, ARGUMENT, "shape = -8"),
        (|x| (x.shape[1], x.ops) = (0, c"argmax".as_ptr()), PROBLEM, "no element to name"),
        (|x| x.shape = [i64::MAX; 8], PROBLEM, "64-bit address space"),
        (|x| x.strides[0] = -6, ARGUMENT, "strides = -6"),
        (|x| x.strides[0] = i64::MAX, PROBLEM, "64-bit address space"),
        (|x| x.dtype = 50, ARGUMENT, "dtype = 50"),
        (|x| x.ops = null(), PROBLEM, "what is computed"),
        (|x| x.ops = c"sum:n:n".as_ptr(), ARGUMENT, "sum"),
    ];
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        for (change, status, says) in convs {
            fails(tw_operation_conv(context, &conv(change), &mut operation), status, says);
        }
        for (change, status, says) in reductions {
            fails(tw_operation_reduce(context, &reduce(change), &mut operation), status, says);
        }
        fails(tw_operation_conv(context, null(), &mut operation), ARGUMENT, "`conv` is NULL");
        fails(tw_operation_reduce(context, null(), &mut operation), ARGUMENT, "`reduce` is NULL");
        // Sizes that are not given are refused.
        let mut convolution = conv(|_| ());
        tw_conv_init(&mut convolution, 0, 1, 2, 4, 2, null(), null());
        fails(tw_operation_conv(context, &convolution, &mut operation), PROBLEM, "0");
        let mut tensor = reduce(|_| ());
        tw_reduce_init(&mut tensor, 0, 2, null(), c"sum".as_ptr());
        tensor.over[0] = 1;
        fails(tw_operation_reduce(context, &tensor, &mut operation), ARGUMENT, "shape = -1 is negative");
        tw_conv_init(null_mut(), 0, 1, 1, 1, 1, null(), null());
        tw_reduce_init(null_mut(), 0, 1, null(), null());
        assert!(operation.is_null());
        tw_context_close(context);
    }
}

unsafe extern "C" fn ends(_: *mut c_void, _: u64, _: f64, _: f64) -> c_int {
    1
}

#[test]
fn vectors_of_scales() {
    let context = opened();
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        let operation = made(context, &gemm(|x| (x.scale_m, x.scale_n) = (1, 1)));
        let kernels = prepared(operation);
        let (ones, mut c) = ([1.0_f32; 64], [0.0_f32; 48]);
        let rows: [f32; 8] = std::array::from_fn(|m| (1 << m) as f32);
        let columns: [f32; 6] = std::array::from_fn(|n| 0.5_f32.powi(n as i32));
        let mut operands: TwOperands = std::mem::zeroed();
        (operands.a, operands.b, operands.c) = (ones.as_ptr().cast(), ones.as_ptr().cast(), c.as_mut_ptr().cast());
        (operands.scale_m, operands.alpha) = (rows.as_ptr().cast(), 1.0);
        fails(tw_launch(kernels, &operands, null_mut()), OPERANDS, "scales along n");
        (operands.scale_m, operands.scale_n) = (null(), columns.as_ptr().cast());
        fails(tw_launch(kernels, &operands, null_mut()), OPERANDS, "scales along m");
        operands.scale_m = rows.as_ptr().cast();
        assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
        assert!((0..48).all(|at| c[at] == 4.0 * rows[at / 6] * columns[at % 6]), "{c:?}");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        tw_context_close(context);
    }
}

#[test]
fn small_weights() {
    let context = opened();
    // SAFETY: as the header asks.
    unsafe {
        // Bytes, and pairs of -3 (of columns with even numbers) and 5, or of 13 and 5.
        for (b_dtype, bytes, [even, odd]) in [(7, -3_i8, [-3.0; 2]), (11, 0x5d, [-3.0, 5.0]), (12, 0x5d, [13.0, 5.0])] {
            let changed = gemm(|x| (x.dtype, x.b_dtype, x.scale_n) = (0, b_dtype, 5));
            let operation = made(context, &changed);
            let kernels = prepared(operation);
            let (halves, weights, mut c) = ([0.5_f32; 64], [bytes; 64], [0_f32; 48]);
            let scales: [f32; 6] = std::array::from_fn(|n| n as f32);
            let mut operands: TwOperands = std::mem::zeroed();
            (operands.a, operands.b, operands.c) = (halves.as_ptr().cast(), weights.as_ptr().cast(), c.as_mut_ptr().cast());
            (operands.scale_n, operands.alpha) = (scales.as_ptr().cast(), 1.0);
            assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
            let k = changed.k as f32;
            let weight = |at: usize| if at.is_multiple_of(2) { even } else { odd };
            assert!((0..48).all(|at| c[at] == k * 0.5 * weight(at) * scales[at % 6]), "{b_dtype}: {c:?}");
            tw_prepared_free(kernels);
            tw_operation_free(operation);
        }
        tw_context_close(context);
    }
}

#[test]
fn zero_points() {
    let context = opened();
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        let changed = gemm(|x| (x.dtype, x.out_dtype, x.zero_a, x.zero_b) = (7, 6, 2, 1));
        let operation = made(context, &changed);
        let kernels = prepared(operation);
        let (threes, mut c) = ([3_i8; 64], [0_i32; 48]);
        let rows: [i32; 8] = std::array::from_fn(|m| m as i32);
        let mut operands: TwOperands = std::mem::zeroed();
        (operands.a, operands.b, operands.c) = (threes.as_ptr().cast(), threes.as_ptr().cast(), c.as_mut_ptr().cast());
        (operands.zero_a, operands.alpha) = (rows.as_ptr().cast(), 1.0);
        fails(tw_launch(kernels, &operands, null_mut()), OPERANDS, "zero points of B");
        (operands.zero_a, operands.zero_b) = (null(), (&raw const rows[5]).cast());
        fails(tw_launch(kernels, &operands, null_mut()), OPERANDS, "zero points of A");
        operands.zero_a = rows.as_ptr().cast();
        assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
        let k = changed.k as i32;
        assert!((0..48).all(|at| c[at] == k * (3 - rows[at / 6]) * (3 - 5)), "{c:?}");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        tw_context_close(context);
    }
}

#[test]
fn groups() {
    let context = opened();
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        let changed = gemm(|x| (x.grouped, x.batch) = (1, 3));
        let operation = made(context, &changed);
        let kernels = prepared(operation);
        let [m, n, k] = [changed.m, changed.n, changed.k].map(|extent| extent as usize);
        let (ones, mut c) = (vec![1_f32; m * k], vec![-1_f32; m * n]);
        let factors: Vec<f32> = (0..3 * k * n).map(|at| (at / (k * n)) as f32).collect();
        // The second group is empty, and the last row belongs to none.
        let ends: [i32; 3] = [2, 2, m as i32 - 1];
        let mut operands: TwOperands = std::mem::zeroed();
        (operands.a, operands.b, operands.c) = (ones.as_ptr().cast(), factors.as_ptr().cast(), c.as_mut_ptr().cast());
        operands.alpha = 1.0;
        fails(tw_launch(kernels, &operands, null_mut()), OPERANDS, "ends of groups");
        operands.ends = ends.as_ptr().cast();
        assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
        let expected = |row: usize| {
            if row < 2 {
                0.0
            } else if row < m - 1 {
                2.0 * k as f32
            } else {
                -1.0
            }
        };
        assert!((0..m * n).all(|at| c[at] == expected(at / n)), "{c:?}");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        // Groups of terms have results of their own: the second's sum has none, and the last term is no group's.
        let operation = made(context, &gemm(|x| (x.grouped, x.batch) = (3, 3)));
        let kernels = prepared(operation);
        let (factors, mut c, ends) = (vec![1_f32; k * n], vec![-1_f32; 3 * m * n], [2, 2, k as i32 - 1]);
        (operands.b, operands.c, operands.ends) = (factors.as_ptr().cast(), c.as_mut_ptr().cast(), ends.as_ptr().cast());
        assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
        assert!((0..3 * m * n).all(|at| c[at] == [2.0, 0.0, k as f32 - 3.0][at / (m * n)]), "{c:?}");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        tw_context_close(context);
    }
}

/// The conjugates of 1 + 2i times 3 + i, as many as there are terms.
#[test]
fn complex_numbers() {
    let context = opened();
    // SAFETY: as the header asks.
    unsafe {
        let changed = gemm(|x| (x.dtype, x.out_dtype, x.conj_a) = (13, 13, 1));
        let operation = made(context, &changed);
        let kernels = prepared(operation);
        let [m, n, k] = [changed.m, changed.n, changed.k].map(|extent| extent as usize);
        let (a, b, mut c) = (vec![[1_f32, 2.0]; m * k], vec![[3_f32, 1.0]; k * n], vec![[0_f32; 2]; m * n]);
        let mut operands: TwOperands = std::mem::zeroed();
        (operands.a, operands.b, operands.c) = (a.as_ptr().cast(), b.as_ptr().cast(), c.as_mut_ptr().cast());
        operands.alpha = 1.0;
        assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
        assert!(c.iter().all(|x| *x == [5.0 * k as f32, -5.0 * k as f32]), "{c:?}");
        (operands.alpha_im, operands.beta_im) = (2.0, -1.0);
        fails(tw_launch(kernels, &operands, null_mut()), OPERANDS, "alpha_im");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        // (5 - 5i) (1 + 2i) of each term, and -i (2 + 3i).
        let changed = gemm(|x| (x.dtype, x.out_dtype, x.conj_a, x.alpha_im, x.beta_im) = (13, 13, 1, 1, 1));
        let operation = made(context, &changed);
        let kernels = prepared(operation);
        c.fill([2.0, 3.0]);
        operands.c = c.as_mut_ptr().cast();
        assert_eq!(tw_launch(kernels, &operands, null_mut()), 0, "{}", said());
        assert!(c.iter().all(|x| *x == [15.0 * k as f32 + 3.0, 5.0 * k as f32 - 2.0]), "{c:?}");
        tw_prepared_free(kernels);
        tw_operation_free(operation);
        tw_context_close(context);
    }
}

#[test]
fn plans_searches_and_launches() {
    let context = opened();
    // SAFETY: as the header asks, but for what is refused.
    unsafe {
        let operation = made(context, &gemm(|x| (x.bias, x.residual, x.dynamic_m) = (2, 1, 1)));
        for (plan, status, says) in [
            (null(), ARGUMENT, "`plan` is NULL"),
            (NO_TEXT.as_ptr(), ARGUMENT, "not UTF-8"),
            (c"".as_ptr(), REFUSED, "missing keys"),
            (c"x".as_ptr(), REFUSED, "character 1"),
            (c"A_MIC99999999999999999999".as_ptr(), REFUSED, "1 to 64"),
        ] {
            fails(tw_operation_set_plan(operation, plan), status, says);
        }
        for (seconds, trials, says) in [
            (0.0, 0, "needs a bound"),
            (-1.0, 1, "seconds = -1"),
            (f64::NAN, 1, "seconds = NaN"),
            (f64::INFINITY, 1, "seconds = inf"),
        ] {
            fails(tw_operation_tune(operation, seconds, trials, None, null_mut(), null_mut()), ARGUMENT, says);
        }
        // A search that its listener ends at once has either found something by then, or says that it has not.
        let status = tw_operation_tune(operation, 60.0, 0, Some(ends), null_mut(), null_mut());
        assert!(status == 0 || CStr::from_ptr(tw_status_name(status)) == c"TW_NOT_TUNED", "{}", said());
        let mut kernels = null_mut();
        for (alignments, says) in [([3, 1, 1], "3 bytes"), ([0, 1, 1], "0 bytes"), ([u64::MAX, 1, 1], "no power of two")] {
            fails(tw_prepare(operation, alignments.as_ptr(), &mut kernels), ARGUMENT, says);
        }
        fails(tw_prepare(operation, null(), null_mut()), ARGUMENT, "result is NULL");
        let kernels = prepared(operation);
        let memory = [1.0_f32; 64];
        let at: *const c_void = memory.as_ptr().cast();
        let mut c = [0.0_f32; 64];
        let mut good: TwOperands = std::mem::zeroed();
        (good.a, good.b, good.c, good.bias, good.residual, good.alpha) = (at, at, c.as_mut_ptr().cast(), at, at, 1.0);
        let extents = |m: i64| [1, m, 6];
        let (whole, negative, large) = (extents(8), extents(-1), extents(9));
        good.extents = whole.as_ptr();
        assert_eq!(tw_launch(kernels, &good, null_mut()), 0, "{}", said());
        let with = |change: &dyn Fn(&mut TwOperands)| {
            let mut operands = good;
            change(&mut operands);
            tw_launch(kernels, &operands, null_mut())
        };
        fails(with(&|x| x.a = null()), OPERANDS, "operand A");
        fails(with(&|x| x.b = null()), OPERANDS, "operand B");
        fails(with(&|x| x.c = null_mut()), OPERANDS, "operand C");
        fails(with(&|x| x.bias = null()), OPERANDS, "bias");
        fails(with(&|x| x.residual = null()), OPERANDS, "residual");
        fails(with(&|x| x.extents = negative.as_ptr()), OPERANDS, "m");
        fails(with(&|x| x.extents = large.as_ptr()), OPERANDS, "9");
        fails(with(&|x| x.alpha = 1e300), OPERANDS, "alpha");
        fails(with(&|x| x.beta = -1e300), OPERANDS, "beta");
        fails(tw_launch(kernels, null(), null_mut()), ARGUMENT, "`operands` is NULL");
        fails(tw_launch(null(), &good, null_mut()), ARGUMENT, "`prepared` is NULL");
        fails(tw_prepared_plan(null(), null_mut(), 0, null_mut()), ARGUMENT, "`prepared` is NULL");
        let sums = made(context, &gemm(|x| x.reduce = c"sum:n".as_ptr()));
        let missing = prepared(sums);
        fails(tw_launch(missing, &good, null_mut()), OPERANDS, "reduction");
        for kernels in [kernels, missing] {
            tw_prepared_free(kernels);
        }
        tw_operation_free(operation);
        tw_operation_free(sums);
        tw_context_close(context);
    }
}
