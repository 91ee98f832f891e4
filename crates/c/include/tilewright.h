/* tilewright: matrix products and convolutions by kernels that are generated, verified and tuned for your shape on your device.
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
 * Every function that can fail gives a tw_status; tw_last_error() says in words what was wrong and what to do. Handles may be used from
 * any thread, by several at once. A handle keeps what it was made from alive: the order of freeing is yours. Handles are no addresses: one that
 * was freed, or is of another kind, is refused (TW_INVALID_ARGUMENT), freeing it again does nothing but set tw_last_error().
 *
 * A program that was compiled with the header of version 0.1.0 or later runs with any later library of the same major version. Structures carry
 * their size: a later library gives defaults to the fields that the program's header lacks. An earlier library refuses a larger structure.
 */
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors. The numbers stay what they are. ---- */

typedef int32_t tw_status;
enum {
    TW_OK = 0,
    TW_INVALID_ARGUMENT = 1, /* a null pointer, a number that names nothing, text that is not UTF-8 */
    TW_INVALID_PROBLEM = 2,  /* an impossible size, stride or combination of types */
    TW_REFUSED = 3,          /* a plan does not suit the problem or the device, or there is none */
    TW_BAD_OPERANDS = 4,     /* an operand is missing, misaligned or too small, an extent or a factor out of range */
    TW_NO_DEVICE = 5,        /* no such device, or no driver for it */
    TW_DEVICE_FAILED = 6,    /* a driver or a compiler failed, or a kernel crashed or hung */
    TW_OUT_OF_MEMORY = 7,
    TW_NOT_TUNED = 8,        /* the search found nothing that was right */
    TW_RECORDS = 9,          /* the records file cannot be used */
    TW_INTERNAL = 10         /* a bug of the library: please report the message */
};

/* Its name: "TW_OK" and so on; "unknown" for another number. */
const char *tw_status_name(tw_status status);
/* What the last call of this thread that failed says; valid until the next one that fails. Empty if none did. */
const char *tw_last_error(void);
/* Version of the library that is loaded: "0.1.0". */
const char *tw_version(void);

/* Functions that give text write at most `capacity` bytes to `text`, the last of which is 0, and the length of the whole text without
 * that byte to `length`, if that is not NULL. */

/* ---- Devices ---- */

typedef struct tw_context tw_context;

/* Opens a device: "cuda:0", "opencl:0", "hip:0", "emu" (the built-in emulator); NULL: the most capable one. `records`: path of the
 * tuning records; NULL: the user's, "": none on disk. */
tw_status tw_context_open(const char *device, const char *records, tw_context **context);
void tw_context_close(tw_context *context);
/* Where candidates run when something is tuned, from now on. In a worker process, a candidate that crashes or hangs costs the worker, and this
 * process is unharmed. The worker is the command `tilewright`: the environment variable TILEWRIGHT_WORKER has its path, or it stands beside the
 * library or in PATH; tuning is refused where there is none. In this process, a candidate that crashes may end it. The emulator always runs
 * candidates in this process. */
typedef int32_t tw_trials;
enum { TW_TRIALS_IN_WORKER = 0, TW_TRIALS_IN_PROCESS = 1 }; /* TW_TRIALS_IN_WORKER is the default */
tw_status tw_context_trials(const tw_context *context, tw_trials trials);
/* The device in words: its id, its name, its driver. */
tw_status tw_context_describe(const tw_context *context, char *text, size_t capacity, size_t *length);

/* ---- Problems: C = activation(alpha * scale_m * scale_n * A * B + bias + beta * C) + residual, and reductions of it ---- */

typedef int32_t tw_dtype;
enum { TW_AS_A = -1 }; /* of B: the type of A */
enum { TW_F32 = 0, TW_F64 = 1, TW_F16 = 2, TW_BF16 = 3, TW_E4M3 = 4, TW_E5M2 = 5, TW_I32 = 6, TW_I8 = 7, TW_U8 = 8, TW_E4M3FNUZ = 9, TW_E5M2FNUZ = 10, TW_I4 = 11, TW_U4 = 12, TW_COMPLEX64 = 13, TW_COMPLEX128 = 14 }; /* 4, 5 (OCP), 9, 10 (AMD's gfx942); 7 and 8 of A and B, and of C beside these; 6 of C beside 7 and 8; 6 to 8 of tw_reduce; 11 and 12 of small weights alone: two in a byte, the one with the even index in its lower half, along the direction in which the matrix is contiguous; sizes, ld and strides count numbers; 13 and 14 of tw_gemm: float _Complex and double _Complex, a real and an imaginary part */
typedef int32_t tw_order;
enum { TW_ROW_MAJOR = 101, TW_COL_MAJOR = 102 }; /* CBLAS' numbers */
typedef int32_t tw_math;
enum { TW_EXACT = 0, TW_TF32 = 1, TW_TF32X3 = 2, TW_PROMOTED = 3, TW_BF16X3 = 4, TW_BF16X6 = 5 };
typedef int32_t tw_scale; /* one for each line (a row of A, a column of B), or, of TW_PROMOTED sums and of small weights, for each 128, 64 or 32 terms of one, or 128
                            of 128 lines: those of line i and term k are element k / terms * blocks + i / lines, of so many blocks of 1 or 128 lines */
enum { TW_NO_SCALE = 0, TW_SCALE_LINE = 1, TW_SCALE_1X128 = 2, TW_SCALE_128X128 = 3, TW_SCALE_1X64 = 4, TW_SCALE_1X32 = 5 };
typedef int32_t tw_activation;
enum { TW_NO_ACTIVATION = 0, TW_RELU = 1, TW_GELU = 2, TW_GELU_TANH = 3, TW_SILU = 4 };
typedef int32_t tw_bias;
enum { TW_NO_BIAS = 0, TW_BIAS_M = 1, TW_BIAS_N = 2 }; /* one value per row, per column */
typedef int32_t tw_zero_points;
enum { TW_NO_ZERO_POINT = 0, TW_ZERO_POINT = 1, TW_ZERO_POINTS = 2 }; /* none, one, one for each row of A or column of B */
typedef int32_t tw_grouped;
enum { TW_NOT_GROUPED = 0, TW_GROUPED_M = 1, TW_GROUPED_N = 2, TW_GROUPED_K = 3 }; /* batch entries are groups of rows of A and C, of columns of B and C,
                                                                                      of terms (columns of A, rows of B) */
typedef int32_t tw_direction;
enum { TW_FORWARD = 0, TW_BACKWARD_DATA = 1, TW_BACKWARD_WEIGHT = 2 };
typedef int32_t tw_layout;
enum { TW_NCHW = 0, TW_NHWC = 1 };

/* A leading dimension or batch stride that is not given: rows (or columns), then batch entries, one behind the other. */
#define TW_TIGHT ((int64_t)-1)

/* A matrix product, as BLAS has it. Bias and residual have C's type. Sizes and strides in elements. */
typedef struct tw_gemm {
    size_t size; /* of this structure: tw_gemm_init sets it */
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldr;
    int64_t batch;
    int64_t stride_a, stride_b, stride_c, stride_r; /* between batch entries; of A, B or residual also 0: one for all */
    tw_dtype dtype;                                 /* of A, and of B where b_dtype does not say another */
    tw_dtype out_dtype;                             /* of C, bias and residual */
    tw_order order;
    tw_math math; /* TW_TF32: f32 factors are rounded to tf32; TW_TF32X3: three products of tf32, nearly f32's accuracy; TW_BF16X3, TW_BF16X6: three or six of bf16, 2^-15 or 2^-24 of a product; TW_PROMOTED: sums of 8-bit floats in two levels */
    int32_t trans_a, trans_b;
    tw_bias bias;
    tw_activation activation;
    int32_t residual;
    int32_t dynamic_m, dynamic_n, dynamic_batch; /* m, n or batch are the largest; each launch says its own */
    const char *reduce; /* values of C computed beside it, joined by spaces, as the command has them: "max:n sum:m:f32"; NULL: none */
    int32_t drop_c;     /* C is not stored: there are only its reductions */
    tw_scale scale_m, scale_n; /* the product is multiplied by scales of f32, of its rows, of its columns */
    tw_zero_points zero_a, zero_b; /* of int32_t, subtracted from 8-bit integers */
    tw_grouped grouped; /* m (n, k) then counts the rows (columns, terms) of all batch entries, and tw_operands.ends says whose they are */
    tw_dtype b_dtype; /* TW_AS_A, or the other 8-bit float of a kind or 8-bit integer; or small weights: TW_I8, TW_U8, TW_I4 or TW_U4 beside TW_F16, TW_BF16 or TW_F32 */
    int32_t conj_a, conj_b; /* of complex types: the conjugates of A, of B, are multiplied; with trans_a the conjugate transpose */
    int32_t alpha_im, beta_im; /* of complex types: alpha, beta is complex, and launches give its imaginary part; 0: it is real, which costs nothing */
} tw_gemm;

/* A row-major, untransposed, tight product without epilogue. */
void tw_gemm_init(tw_gemm *gemm, tw_dtype dtype, int64_t m, int64_t n, int64_t k);
void tw_gemm_init_sized(tw_gemm *gemm, size_t size, tw_dtype dtype, int64_t m, int64_t n, int64_t k);
/* The library writes no more than the structure of the program's own header has. */
#define tw_gemm_init(gemm, ...) tw_gemm_init_sized(gemm, sizeof(tw_gemm), __VA_ARGS__)

/* A convolution of 1 to 3 dimensions, from the slowest to the fastest (D, H, W). Operands A, B and C are: forward, input, filter and
 * output; backward-data, output gradient, filter and input gradient; backward-weight, output gradient, input and filter gradient. */
typedef struct tw_conv {
    size_t size; /* of this structure: tw_conv_init sets it */
    int64_t n, c, k, groups;
    int64_t input[3], filter[3], stride[3], dilation[3], pad_begin[3], pad_end[3];
    int32_t dims;
    tw_direction direction;
    tw_layout layout; /* of all tensors; filters are K C/g spatial, or K spatial C/g */
    tw_dtype dtype, out_dtype;
    tw_math math;
    int32_t bias; /* one value per output channel */
    tw_activation activation;
    int32_t residual;   /* a tensor as C is added last */
    int32_t mask;       /* instead, C is kept where that tensor is above 0, and 0 elsewhere: the gradient of a ReLU */
    int32_t drop_c;     /* as in tw_gemm */
    const char *reduce; /* as in tw_gemm */
} tw_conv;

/* A forward NCHW convolution with stride and dilation 1, one group, no padding, no epilogue. */
void tw_conv_init(tw_conv *conv, tw_dtype dtype, int64_t n, int64_t c, int64_t k, int32_t dims, const int64_t *input,
                  const int64_t *filter);
void tw_conv_init_sized(tw_conv *conv, size_t size, tw_dtype dtype, int64_t n, int64_t c, int64_t k, int32_t dims,
                        const int64_t *input, const int64_t *filter);
#define tw_conv_init(conv, ...) tw_conv_init_sized(conv, sizeof(tw_conv), __VA_ARGS__)

/* A reduction of a tensor of up to 8 dimensions over some of them. It is operand A; there is no B and no C, and all values are results. */
typedef struct tw_reduce {
    size_t size; /* of this structure: tw_reduce_init sets it */
    int64_t shape[8], strides[8];
    int32_t over[8]; /* 1: over this dimension */
    int32_t dims;
    tw_dtype dtype;
    tw_activation activation; /* of each element, before it is reduced */
    const char *ops;          /* operators joined by spaces: "sum sumsq", "argmax:i32" */
} tw_reduce;

/* Of a dense tensor, over no dimension yet. */
void tw_reduce_init(tw_reduce *reduce, tw_dtype dtype, int32_t dims, const int64_t *shape, const char *ops);
void tw_reduce_init_sized(tw_reduce *reduce, size_t size, tw_dtype dtype, int32_t dims, const int64_t *shape, const char *ops);
#define tw_reduce_init(reduce, ...) tw_reduce_init_sized(reduce, sizeof(tw_reduce), __VA_ARGS__)

/* ---- Operations: a problem on a device ---- */

typedef struct tw_operation tw_operation;

tw_status tw_operation_gemm(const tw_context *context, const tw_gemm *gemm, tw_operation **operation);
tw_status tw_operation_conv(const tw_context *context, const tw_conv *conv, tw_operation **operation);
tw_status tw_operation_reduce(const tw_context *context, const tw_reduce *reduce, tw_operation **operation);
/* From the text that `tilewright` prints and records hold. */
tw_status tw_operation_parse(const tw_context *context, const char *problem, tw_operation **operation);
void tw_operation_free(tw_operation *operation);

/* The problem's text; the plan that runs it (from the records, else the cost model's); its kernels in the device's language. */
tw_status tw_operation_problem(const tw_operation *operation, char *text, size_t capacity, size_t *length);
tw_status tw_operation_plan(const tw_operation *operation, char *text, size_t capacity, size_t *length);
tw_status tw_operation_source(const tw_operation *operation, char *text, size_t capacity, size_t *length);
/* Runs with this plan from now on. */
tw_status tw_operation_set_plan(const tw_operation *operation, const char *plan);

/* Hears of every trial of a search; what is not 0 ends the search with the best so far. best_us is 0 as long as there is none. */
typedef int (*tw_progress)(void *user, uint64_t trials, double seconds, double best_us);

/* Searches the fastest plan whose results are right, for so many seconds or trials (0: no bound; one must be given), records it, and
 * runs with it from now on. Takes a plan again that the records hold. `progress` may be NULL; `best_us` may be NULL. */
tw_status tw_operation_tune(const tw_operation *operation, double seconds, uint64_t trials, tw_progress progress, void *user,
                            double *best_us);

/* ---- Launches ---- */

typedef struct tw_prepared tw_prepared;

/* Chooses the plan and compiles its kernels (a second or so, once: kept on disk) for operands A, B and C whose addresses are multiples of
 * these powers of two, in bytes; NULL: of 256. */
tw_status tw_prepare(const tw_operation *operation, const uint64_t alignments[3], tw_prepared **prepared);
void tw_prepared_free(tw_prepared *prepared);
/* Bytes of workspace that a launch takes; 0, and tw_last_error(), without a prepared operation. */
uint64_t tw_prepared_workspace(const tw_prepared *prepared);
/* The plan that was compiled: that of the operation, or one that asks less of the operands' alignment. */
tw_status tw_prepared_plan(const tw_prepared *prepared, char *text, size_t capacity, size_t *length);

/* A memory of a problem. The numbers stay what they are; new roles get new numbers. */
typedef int32_t tw_role;
enum {
    TW_A = 0,
    TW_B = 1,
    TW_C = 2,        /* memory of its own: refused where it overlaps A or B and none of them has gaps */
    TW_SCALE_M = 3,  /* f32; this and all roles below are aligned to 16 bytes */
    TW_SCALE_N = 4,  /* f32 */
    TW_ZERO_A = 5,   /* int32_t */
    TW_ZERO_B = 6,   /* int32_t */
    TW_ENDS = 7,     /* int32_t: where each group ends, ascending, at most m (n, k). Read when kernels run */
    TW_BIAS = 8,
    TW_RESIDUAL = 9,
    TW_WORKSPACE = 10, /* aligned to 256 bytes: tw_prepared_workspace. Launches that may overlap need one each */
    TW_REDUCTION = 16  /* values of the first reduction; TW_REDUCTION + 1 of the second, at most 8 */
};

/* Memory of the device (CUDA, HIP), or of this process (emulator, OpenCL: copied in and out by the launch). */
typedef struct tw_memory {
    tw_role role;
    void *address;
} tw_memory;

/* What a launch is given. A list names each role once; roles that the problem does not have may be left out. */
typedef struct tw_call {
    size_t size; /* of this structure: tw_call_init sets it */
    const tw_memory *memories;
    size_t count;
    double alpha, beta;       /* beta = 0 never reads C */
    double alpha_im, beta_im; /* imaginary parts, of a product that is made for them (tw_gemm); else 0 */
    const int64_t *extents;   /* batch, m and n of this launch, where they are dynamic; else NULL */
} tw_call;

/* alpha = 1, beta = 0. `size` is sizeof(tw_call). */
void tw_call_init(tw_call *call, size_t size, const tw_memory *memories, size_t count);

/* Starts the operation on a CUstream or hipStream_t of the device's primary context (NULL: its default stream) and returns. Nothing is
 * allocated, locked over the driver's call or waited for: the stream may be capturing a graph. `prepared` must live until the stream has
 * passed the launch, and as long as a graph that captured it. On the emulator and OpenCL the result is there when this returns. */
tw_status tw_launch_call(const tw_prepared *prepared, const tw_call *call, void *stream);

/* The memories of version 0.1.0, in a structure that never grows. Use tw_call for later roles. */
typedef struct tw_operands {
    const void *a;
    const void *b;
    void *c;                /* memory of its own: refused where it overlaps a or b and none of them has gaps */
    const void *bias;       /* aligned to 16 bytes; NULL where the problem has none */
    const void *residual;   /* as bias */
    void *workspace;        /* aligned to 256 bytes (the emulator and OpenCL copy host memory and do not ask); NULL where none is asked for. Launches that may overlap need one each */
    double alpha, beta;     /* beta = 0 never reads C */
    const int64_t *extents; /* batch, m and n of this launch, where they are dynamic; else NULL */
    void *reductions[8];    /* values of the problem's reductions in their order, aligned to 16 bytes, one behind the other */
    const void *scale_m;    /* f32, aligned to 16 bytes; NULL where the problem has none */
    const void *scale_n;    /* as scale_m */
    const void *zero_a;     /* int32_t, aligned to 16 bytes; NULL where the problem has none */
    const void *zero_b;     /* as zero_a */
    const void *ends;       /* int32_t, aligned to 16 bytes: where each group ends, ascending, at most m (n, k); what lies behind the last is not
                               written (of terms not added). Read when kernels run. NULL where the problem is not grouped */
    double alpha_im, beta_im; /* imaginary parts, of a product that is made for them (tw_gemm); else 0 */
} tw_operands;

/* As tw_launch_call, with the memories of version 0.1.0. */
tw_status tw_launch(const tw_prepared *prepared, const tw_operands *operands, void *stream);

#ifdef __cplusplus
}
#endif

#endif
