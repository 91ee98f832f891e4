/* tilewright: matrix products, convolutions and reductions by kernels that are generated, verified and tuned for your shape on your device.
 *
 *     tw_context *context;                                  // a device with its tuning records
 *     tw_gemm gemm;
 *     tw_operation *operation;                              // one problem on it
 *     tw_prepared *prepared;                                // its kernels, compiled
 *     tw_context_open(NULL, NULL, &context);
 *     tw_gemm_init(&gemm, TW_F32, m, n, k);
 *     tw_operation_gemm(context, &gemm, &operation);
 *     tw_prepare(operation, NULL, &prepared);
 *     tw_memory memories[] = {{TW_A, a}, {TW_B, b}, {TW_C, c}, {TW_WORKSPACE, workspace}};
 *     tw_call call;
 *     tw_call_init(&call, sizeof call, memories, 4);        // alpha = 1, beta = 0
 *     tw_launch_call(prepared, &call, stream);
 *
 * Errors: a function that can fail returns a tw_status, and tw_last_error() describes the failure and the remedy. Every function returns
 * TW_INVALID_ARGUMENT for a NULL pointer, unless its comment allows NULL, and TW_INTERNAL for a bug of the library. The comments below list
 * the other errors. A function that fails makes no handle.
 *
 * Handles: a function that makes a handle gives it to the caller, who frees it once, in any order. A handle keeps the objects that it was made
 * from alive. Several threads may use one handle at once. A freed handle, and a handle of another kind, give TW_INVALID_ARGUMENT. Freeing NULL
 * does nothing; freeing a handle twice only sets tw_last_error().
 *
 * Versions: a program that was compiled with the header of version 0.1.0 or later runs with any later library of the same major version.
 * Structures carry their size. A later library gives defaults to fields that the program's header lacks. An earlier library refuses a larger
 * structure. Headers before version 0.1.0 are not supported: no error tells them by tw_operands, which has no size.
 */
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors. The numbers never change. ---- */

typedef int32_t tw_status;
enum {
    TW_OK = 0,
    TW_INVALID_ARGUMENT = 1, /* a NULL pointer, an unknown number, text that is not UTF-8 */
    TW_INVALID_PROBLEM = 2,  /* an impossible size, stride or combination of types */
    TW_REFUSED = 3,          /* the plan is illegal for the problem or the device, or no plan is legal */
    TW_BAD_OPERANDS = 4,     /* an operand is missing, misaligned or too small, or an extent or a factor is out of range */
    TW_NO_DEVICE = 5,        /* no such device, or no driver for it */
    TW_DEVICE_FAILED = 6,    /* a driver or a compiler failed, or a kernel crashed or hung */
    TW_OUT_OF_MEMORY = 7,
    TW_NOT_TUNED = 8,        /* the search found no plan with right results */
    TW_RECORDS = 9,          /* the records file cannot be used */
    TW_INTERNAL = 10         /* a bug of the library: please report the message */
};

/* Gives the name of a status, such as "TW_OK", or "unknown" for another number. The text is static: do not free it. */
const char *tw_status_name(tw_status status);
/* Gives the message of the last failed call of this thread, empty if none failed. The library owns the text; it is valid until the next
 * failed call of this thread. */
const char *tw_last_error(void);
/* Gives the version of the loaded library, such as "0.1.0". The text is static: do not free it. */
const char *tw_version(void);

/* Functions that give text write at most `capacity` bytes to `text`, the terminating 0 included. They write the length of the whole text,
 * without the 0, to `length` if it is not NULL. `text` may be NULL if `capacity` is 0. */

/* ---- Devices ---- */

typedef struct tw_context tw_context;

/* Opens a device with its tuning records.
 * `device`: "cuda:0", "opencl:0", "hip:0" or "emu" (the built-in emulator). NULL: the most capable device.
 * `records`: path of the records file. NULL: the user's file. "": no file.
 * The caller frees `context` with tw_context_close. Errors: TW_NO_DEVICE, TW_DEVICE_FAILED, TW_RECORDS. */
tw_status tw_context_open(const char *device, const char *records, tw_context **context);
/* Frees a context. Operations that were made from it keep working. `context` may be NULL. */
void tw_context_close(tw_context *context);
/* The process in which tw_operation_tune runs candidates and tw_prepare verifies a plan that no search has verified.
 * TW_TRIALS_IN_WORKER: a candidate that crashes or hangs ends the worker process only. The worker is the command `tilewright`. The environment
 * variable TILEWRIGHT_WORKER names it, or it is in the library's folder, in ../bin of this folder, or in PATH. Without a worker both fail.
 * TW_TRIALS_IN_PROCESS: a candidate that crashes may end this process. The emulator always runs candidates in this process. */
typedef int32_t tw_trials;
enum { TW_TRIALS_IN_WORKER = 0, TW_TRIALS_IN_PROCESS = 1 }; /* TW_TRIALS_IN_WORKER is the default */
/* Sets the process for later calls of both. */
tw_status tw_context_trials(const tw_context *context, tw_trials trials);

/* How a context is opened. */
typedef struct tw_options {
    size_t size; /* of this structure; tw_options_init sets it */
    const char *device, *records; /* as tw_context_open takes them */
    int64_t workspace;            /* bytes of device memory for copies and partial sums, where a problem allows more; -1: the problem's own */
    tw_trials trials;
    int32_t atomics;  /* 1: plans may add with atomics; the last bits of results then vary between runs */
    int32_t ieee;     /* 1: no plan in which NaN, infinity or overflow becomes another value than IEEE 754 has */
    int32_t reserved; /* 0 */
} tw_options;

/* Fills `options` with the defaults of tw_context_open(NULL, NULL, ...). `options` is the caller's. Does nothing for NULL. */
void tw_options_init(tw_options *options, size_t size);
/* Opens a device with these options. The texts are copied. Ownership and errors as tw_context_open. */
tw_status tw_context_open_with(const tw_options *options, tw_context **context);
/* Gives a text with the device's id, name and driver. */
tw_status tw_context_describe(const tw_context *context, char *text, size_t capacity, size_t *length);

/* ---- Problems: C = activation(alpha * scale_m * scale_n * A * B + bias + beta * C) + residual, and reductions of it ---- */

typedef int32_t tw_dtype;
enum { TW_AS_A = -1 }; /* for b_dtype: the type of A */
/* TW_E4M3, TW_E5M2: OCP's 8-bit floats. TW_E4M3FNUZ, TW_E5M2FNUZ: those of AMD's gfx942.
 * TW_I8, TW_U8: A and B, and C of such products. TW_I32: C of such products. tw_reduce takes all three.
 * TW_I4, TW_U4: B with 4-bit weights only. A byte holds two weights, the even index in its low half, along the contiguous direction. Sizes,
 * leading dimensions and strides count weights.
 * TW_COMPLEX64, TW_COMPLEX128: tw_gemm only; float _Complex and double _Complex. */
enum {
    TW_F32 = 0,
    TW_F64 = 1,
    TW_F16 = 2,
    TW_BF16 = 3,
    TW_E4M3 = 4,
    TW_E5M2 = 5,
    TW_I32 = 6,
    TW_I8 = 7,
    TW_U8 = 8,
    TW_E4M3FNUZ = 9,
    TW_E5M2FNUZ = 10,
    TW_I4 = 11,
    TW_U4 = 12,
    TW_COMPLEX64 = 13,
    TW_COMPLEX128 = 14
};
typedef int32_t tw_order;
enum { TW_ROW_MAJOR = 101, TW_COL_MAJOR = 102 }; /* CBLAS' numbers */
typedef int32_t tw_math;
enum { TW_EXACT = 0, TW_TF32 = 1, TW_TF32X3 = 2, TW_PROMOTED = 3, TW_BF16X3 = 4, TW_BF16X6 = 5 };
/* Scales of A or B. A line is a row of A or a column of B.
 * TW_SCALE_LINE: one scale for each line.
 * TW_SCALE_1X128, TW_SCALE_1X64, TW_SCALE_1X32: one scale for 128, 64 or 32 terms of a line. TW_SCALE_128X128: one scale for 128 terms of 128 lines.
 * Block scales need TW_PROMOTED or 4- or 8-bit weights. The scale of line i and term k is element k / terms * blocks + i / lines, where `lines` is
 * 1 or 128 and `blocks` is the number of blocks of lines. */
typedef int32_t tw_scale;
enum { TW_NO_SCALE = 0, TW_SCALE_LINE = 1, TW_SCALE_1X128 = 2, TW_SCALE_128X128 = 3, TW_SCALE_1X64 = 4, TW_SCALE_1X32 = 5 };
typedef int32_t tw_activation;
enum { TW_NO_ACTIVATION = 0, TW_RELU = 1, TW_GELU = 2, TW_GELU_TANH = 3, TW_SILU = 4, TW_HARDSWISH = 5, TW_EXP = 6 };
/* Function of a gated product's gate: C = function(A B_gate + bias) * (A B_up + bias). */
typedef int32_t tw_gate;
enum {
    TW_NO_GATE = 0,
    TW_GATE_RELU = 1,
    TW_GATE_GELU = 2,
    TW_GATE_GELU_TANH = 3,
    TW_GATE_SILU = 4,
    TW_GATE_HARDSWISH = 5,
    TW_GATE_SIGMOID = 6,
    TW_GATE_LINEAR = 7,
    TW_GATE_CLAMPED = 8 /* gpt-oss: gate sigmoid(slope gate) (1 + up), with gate at most limit and up from -limit to limit */
};
typedef int32_t tw_bias;
enum { TW_NO_BIAS = 0, TW_BIAS_M = 1, TW_BIAS_N = 2 }; /* TW_BIAS_M: one value per row; TW_BIAS_N: one value per column */
typedef int32_t tw_zero_points;
enum { TW_NO_ZERO_POINT = 0, TW_ZERO_POINT = 1, TW_ZERO_POINTS = 2 }; /* none; one for the matrix; one for each row of A or column of B */
/* Batch entries are groups of rows of A and C (M), of columns of B and C (N), or of terms: columns of A and rows of B (K). */
typedef int32_t tw_grouped;
enum { TW_NOT_GROUPED = 0, TW_GROUPED_M = 1, TW_GROUPED_N = 2, TW_GROUPED_K = 3 };
typedef int32_t tw_direction;
enum { TW_FORWARD = 0, TW_BACKWARD_DATA = 1, TW_BACKWARD_WEIGHT = 2 };
typedef int32_t tw_layout;
enum { TW_NCHW = 0, TW_NHWC = 1 };

/* A leading dimension or batch stride of contiguous rows (or columns) and contiguous batch entries. */
#define TW_TIGHT ((int64_t)-1)

/* A matrix product with the conventions of BLAS. Bias and residual have C's type. Sizes and strides count elements. */
typedef struct tw_gemm {
    size_t size; /* of this structure; tw_gemm_init sets it */
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldr;
    int64_t batch;
    int64_t stride_a, stride_b, stride_c, stride_r; /* between batch entries; 0 for A, B or residual: all entries share one matrix */
    tw_dtype dtype;                                 /* of A, and of B if b_dtype is TW_AS_A */
    tw_dtype out_dtype;                             /* of C, bias and residual; but the bias before TW_EXP has the type of the sums, f32 or f64 */
    tw_order order;
    /* TW_TF32: f32 operands are rounded to tf32. TW_TF32X3: three products of tf32, nearly f32's accuracy.
     * TW_BF16X3, TW_BF16X6: three or six products of bf16, relative error 2^-15 or 2^-24 of a product.
     * TW_PROMOTED: 8-bit floats with two-level accumulation. */
    tw_math math;
    int32_t trans_a, trans_b;
    tw_bias bias;
    tw_activation activation;
    int32_t residual;
    int32_t dynamic_m, dynamic_n, dynamic_batch; /* m, n or batch is the largest size; each launch gives the actual one */
    const char *reduce; /* reductions of C in the same pass, joined by spaces: "max:n sum:m:f32"; NULL: none */
    int32_t drop_c;     /* 1: C is not stored, only its reductions are. With trans_b and reduce "logsumexp:n sum:n": a linear cross-entropy, forward */
    tw_scale scale_m, scale_n; /* f32 scales of rows of A, of columns of B; they multiply the product */
    tw_zero_points zero_a, zero_b; /* int32_t zero points, subtracted from 8-bit integers */
    tw_grouped grouped; /* m (n, k) then counts the rows (columns, terms) of all groups, and TW_ENDS has the end of each group */
    /* TW_AS_A, the other 8-bit float of the same kind, the other 8-bit integer, or weights: TW_I8, TW_U8, TW_I4, TW_U4 with A in TW_F16,
     * TW_BF16 or TW_F32. */
    tw_dtype b_dtype;
    int32_t conj_a, conj_b; /* complex types: use the conjugate of A, of B; with trans_a the conjugate transpose */
    int32_t alpha_im, beta_im; /* complex types: alpha, beta is complex, and launches give its imaginary part; 0: it is real and cheaper */
    int64_t gate; /* a tw_gate. B, bias and scales along n then have 2 n columns: the gate's, then the other factor's (see up_first, interleaved). C has n. beta is 0 */
    int64_t up_first; /* 1: the gate's columns are the second half, or the second of each pair */
    double gate_limit, gate_slope; /* of TW_GATE_CLAMPED; 0: 7 and 1.702 */
    int64_t interleaved; /* 1: columns of the gate and of the other factor take turns */
    int64_t preactivations; /* 1: the sums of both factors are stored in TW_PREACTIVATIONS, too; tw_launch_call */
    int64_t separate_up; /* 1: B has the gate's n columns, and TW_UP those of the other factor; tw_launch_call */
    double softcap; /* C = softcap * tanh(x / softcap), in the place of an activation; 0: none */
    int64_t k2; /* terms of a second pair of factors, TW_A2 and TW_B2: C has alpha (A B + A2 B2). 0: none; tw_launch_call */
    int64_t lda2, ldb2; /* leading dimensions of A2 and B2, which are transposed as A and B are; TW_TIGHT */
} tw_gemm;

/* Fills `gemm` with a row-major, untransposed, tight product without epilogue. `gemm` is the caller's. Does nothing for NULL. */
void tw_gemm_init(tw_gemm *gemm, tw_dtype dtype, int64_t m, int64_t n, int64_t k);
void tw_gemm_init_sized(tw_gemm *gemm, size_t size, tw_dtype dtype, int64_t m, int64_t n, int64_t k);
/* The macro passes the size of the program's structure, so that the library never writes past it. */
#define tw_gemm_init(gemm, ...) tw_gemm_init_sized(gemm, sizeof(tw_gemm), __VA_ARGS__)

/* A convolution with 1 to 3 spatial dimensions, from the slowest to the fastest (D, H, W). Operands:
 * TW_FORWARD: A = input, B = filter, C = output.
 * TW_BACKWARD_DATA: A = output gradient, B = filter, C = input gradient.
 * TW_BACKWARD_WEIGHT: A = output gradient, B = input, C = filter gradient. */
typedef struct tw_conv {
    size_t size; /* of this structure; tw_conv_init sets it */
    int64_t n, c, k, groups;
    int64_t input[3], filter[3], stride[3], dilation[3], pad_begin[3], pad_end[3];
    int32_t dims;
    tw_direction direction;
    tw_layout layout; /* of all tensors; filters are (k, c / groups, spatial) or (k, spatial, c / groups) */
    tw_dtype dtype, out_dtype;
    tw_math math;
    int32_t bias; /* one value per output channel */
    tw_activation activation;
    int32_t residual;   /* 1: TW_RESIDUAL, a tensor of C's shape, is added last */
    int32_t mask;       /* 1: C is kept where TW_RESIDUAL is above 0, and is 0 elsewhere (gradient of a ReLU); excludes residual */
    int32_t drop_c;     /* as in tw_gemm */
    const char *reduce; /* as in tw_gemm */
} tw_conv;

/* Fills `conv` with a forward NCHW convolution: stride and dilation 1, one group, no padding, no epilogue. `conv` is the caller's.
 * `input`, `filter`: `dims` sizes each, copied. */
void tw_conv_init(tw_conv *conv, tw_dtype dtype, int64_t n, int64_t c, int64_t k, int32_t dims, const int64_t *input,
                  const int64_t *filter);
void tw_conv_init_sized(tw_conv *conv, size_t size, tw_dtype dtype, int64_t n, int64_t c, int64_t k, int32_t dims,
                        const int64_t *input, const int64_t *filter);
#define tw_conv_init(conv, ...) tw_conv_init_sized(conv, sizeof(tw_conv), __VA_ARGS__)

/* A reduction of a tensor with up to 8 dimensions. The tensor is operand A. There is no B and no C; TW_REDUCTION + i takes the values. */
typedef struct tw_reduce {
    size_t size; /* of this structure; tw_reduce_init sets it */
    int64_t shape[8], strides[8];
    int32_t over[8]; /* 1: reduce over this dimension */
    int32_t dims;
    tw_dtype dtype;
    tw_activation activation; /* applied to each element before the reduction */
    const char *ops;          /* operators joined by spaces: "sum sumsq", "argmax:i32" */
} tw_reduce;

/* Fills `reduce` with a dense tensor, reduced over no dimension yet. `reduce` is the caller's. `shape`: `dims` sizes, copied. `ops` is not
 * copied: it must live until tw_operation_reduce. */
void tw_reduce_init(tw_reduce *reduce, tw_dtype dtype, int32_t dims, const int64_t *shape, const char *ops);
void tw_reduce_init_sized(tw_reduce *reduce, size_t size, tw_dtype dtype, int32_t dims, const int64_t *shape, const char *ops);
#define tw_reduce_init(reduce, ...) tw_reduce_init_sized(reduce, sizeof(tw_reduce), __VA_ARGS__)

/* ---- Operations: a problem on a device ---- */

typedef struct tw_operation tw_operation;

/* Make an operation from a problem. The problem is copied; the caller frees `operation` with tw_operation_free.
 * Errors: TW_INVALID_PROBLEM. */
tw_status tw_operation_gemm(const tw_context *context, const tw_gemm *gemm, tw_operation **operation);
tw_status tw_operation_conv(const tw_context *context, const tw_conv *conv, tw_operation **operation);
tw_status tw_operation_reduce(const tw_context *context, const tw_reduce *reduce, tw_operation **operation);
/* Makes an operation from a problem's text, as the command `tilewright` prints it. Ownership and errors as above. */
tw_status tw_operation_parse(const tw_context *context, const char *problem, tw_operation **operation);
/* Frees an operation. Kernels that were prepared from it keep working. `operation` may be NULL. */
void tw_operation_free(tw_operation *operation);

/* Give a text: the problem; the plan that runs it (from the records, else the cost model's); its kernels in the device's language.
 * Errors of the plan and the source: TW_REFUSED if no plan is legal. */
tw_status tw_operation_problem(const tw_operation *operation, char *text, size_t capacity, size_t *length);
tw_status tw_operation_plan(const tw_operation *operation, char *text, size_t capacity, size_t *length);
tw_status tw_operation_source(const tw_operation *operation, char *text, size_t capacity, size_t *length);
/* Sets the plan of an operation. `plan`: its text, copied. Kernels that are prepared already do not change. Errors: TW_REFUSED. */
tw_status tw_operation_set_plan(const tw_operation *operation, const char *plan);

/* Called after every trial of a search. A result other than 0 ends the search with the best plan so far. best_us is 0 before the first
 * plan with a time. `user` is the pointer that tw_operation_tune got. */
typedef int (*tw_progress)(void *user, uint64_t trials, double seconds, double best_us);

/* Searches the fastest plan with right results, records it, and sets it as the operation's plan.
 * `seconds`, `trials`: bounds of the search. 0: no bound; one of the two must be given.
 * `progress`, `user`, `best_us` may be NULL. `best_us` receives the plan's time in microseconds.
 * Errors: TW_NOT_TUNED, TW_DEVICE_FAILED, TW_OUT_OF_MEMORY, TW_RECORDS. */
tw_status tw_operation_tune(const tw_operation *operation, double seconds, uint64_t trials, tw_progress progress, void *user,
                            double *best_us);

/* ---- Launches ---- */

typedef struct tw_prepared tw_prepared;

/* Chooses the plan and compiles its kernels. The first time takes about a second; a cache on disk keeps the binaries.
 * A plan that no search verified on this device is looked at: a quick verification in the worker process, of at most a second. A plan that fails is
 * never used; the next one takes its place. TW_REFUSED: the plan that was set fails, or every plan.
 * `alignments`: of the addresses of A, B and C, in bytes, powers of two. NULL: 256 each.
 * The caller frees `prepared` with tw_prepared_free. Errors: TW_REFUSED, TW_DEVICE_FAILED, TW_OUT_OF_MEMORY. */
tw_status tw_prepare(const tw_operation *operation, const uint64_t alignments[3], tw_prepared **prepared);
/* Frees prepared kernels. No launch of them may be pending on a stream. `prepared` may be NULL. */
void tw_prepared_free(tw_prepared *prepared);
/* Gives the bytes of workspace of a launch. For an invalid handle: 0, with a message in tw_last_error(). */
uint64_t tw_prepared_workspace(const tw_prepared *prepared);
/* Gives the text of the compiled plan: the operation's plan, or one that needs less alignment. */
tw_status tw_prepared_plan(const tw_prepared *prepared, char *text, size_t capacity, size_t *length);

/* The role of a memory in a problem. The numbers never change; new roles get new numbers. */
typedef int32_t tw_role;
enum {
    TW_A = 0,
    TW_B = 1,
    TW_C = 2,        /* must not overlap A or B: TW_BAD_OPERANDS, unless one of them has gaps */
    TW_SCALE_M = 3,  /* f32; this and all later roles are aligned to 16 bytes */
    TW_SCALE_N = 4,  /* f32 */
    TW_ZERO_A = 5,   /* int32_t */
    TW_ZERO_B = 6,   /* int32_t */
    TW_ENDS = 7,     /* int32_t: the end of each group, ascending, at most m (n, k). Read when the kernels run */
    TW_BIAS = 8,
    TW_RESIDUAL = 9,
    TW_WORKSPACE = 10, /* tw_prepared_workspace bytes, aligned to 256. Launches that may overlap need separate workspaces */
    TW_PREACTIVATIONS = 11, /* written: C's type and storage order, 2 n columns in B's order, without gaps. Must overlap no other memory */
    TW_UP = 12, /* of separate_up: the type, leading dimension and batch stride of B, from the address on */
    TW_A2 = 13, /* of k2: m x k2 elements of A's type */
    TW_B2 = 14, /* of k2: k2 x n elements of B's type */
    TW_REDUCTION = 16  /* values of the first reduction; TW_REDUCTION + 1: of the second; at most 8 */
};

/* One memory of a launch: device memory (CUDA, HIP) or host memory (emulator, OpenCL: the launch copies it in and out). The caller owns it. */
typedef struct tw_memory {
    tw_role role;
    void *address;
} tw_memory;

/* The arguments of a launch. The list has each role at most once. Roles that the problem does not have may be left out. */
typedef struct tw_call {
    size_t size; /* of this structure; tw_call_init sets it */
    const tw_memory *memories;
    size_t count;
    double alpha, beta;       /* beta = 0 never reads C */
    double alpha_im, beta_im; /* imaginary parts, if tw_gemm.alpha_im, beta_im are set; else 0 */
    const int64_t *extents;   /* batch, m and n of this launch, if any is dynamic; else NULL */
} tw_call;

/* Fills `call` with alpha = 1, beta = 0 and the list. `size` is sizeof(tw_call). The list is not copied: it must live until the launch. */
void tw_call_init(tw_call *call, size_t size, const tw_memory *memories, size_t count);

/* Starts the operation on a stream and returns without waiting. On the emulator and OpenCL the result is complete on return.
 * `stream`: a CUstream or hipStream_t of the device's primary context. NULL: its default stream.
 * The launch allocates nothing and holds no lock during the driver's call, so the stream may be capturing a graph.
 * `prepared` must live until the stream has passed the launch. Kernels that a graph captured stay loaded to the end of the process.
 * Errors: TW_BAD_OPERANDS, TW_DEVICE_FAILED, TW_OUT_OF_MEMORY. */
tw_status tw_launch_call(const tw_prepared *prepared, const tw_call *call, void *stream);

/* The memories of version 0.1.0. This structure never grows; later roles need tw_call. */
typedef struct tw_operands {
    const void *a;
    const void *b;
    void *c;                /* must not overlap a or b: TW_BAD_OPERANDS, unless one of them has gaps */
    const void *bias;       /* aligned to 16 bytes; NULL if the problem has none */
    const void *residual;   /* as bias */
    void *workspace;        /* as TW_WORKSPACE (host memory needs no alignment); NULL if its size is 0 */
    double alpha, beta;     /* beta = 0 never reads C */
    const int64_t *extents; /* batch, m and n of this launch, if any is dynamic; else NULL */
    void *reductions[8];    /* for each reduction of the problem, in order: its values, contiguous, aligned to 16 bytes */
    const void *scale_m;    /* f32, aligned to 16 bytes; NULL if the problem has none */
    const void *scale_n;    /* as scale_m */
    const void *zero_a;     /* int32_t, aligned to 16 bytes; NULL if the problem has none */
    const void *zero_b;     /* as zero_a */
    /* int32_t, aligned to 16 bytes: the end of each group, ascending, at most m (n, k). Rows and columns after the last end are not written,
     * terms after it are not added. Read when the kernels run. NULL if the problem is not grouped. */
    const void *ends;
    double alpha_im, beta_im; /* imaginary parts, if tw_gemm.alpha_im, beta_im are set; else 0 */
} tw_operands;

/* As tw_launch_call, with the memories of version 0.1.0. Ownership and errors are the same. */
tw_status tw_launch(const tw_prepared *prepared, const tw_operands *operands, void *stream);

#ifdef __cplusplus
}
#endif

#endif
