/* Tunes and runs a product with bias and ReLU on a device: ./gemm [DEVICE]. On the emulator and OpenCL, memory is this process's; for
 * CUDA and HIP allocate operands with cudaMalloc or hipMalloc and give a stream. */
#include <stdio.h>
#include <stdlib.h>
#include <tilewright.h>

static void check(tw_status status) {
    if (status != TW_OK) {
        fprintf(stderr, "%s: %s\n", tw_status_name(status), tw_last_error());
        exit(1);
    }
}

static int heard(void *user, uint64_t trials, double seconds, double best_us) {
    (void)seconds;
    (void)best_us;
    *(uint64_t *)user = trials;
    return 0;
}

int main(int argc, char **argv) {
    enum { M = 40, N = 24, K = 32, LDC = 30 };
    static float a[M * K], b[K * N], c[M * LDC], bias[N];
    tw_context *context;
    tw_operation *operation;
    tw_prepared *prepared;
    tw_gemm gemm;
    char text[4096];
    uint64_t trials = 0;
    double best_us;

    check(tw_context_open(argc > 1 ? argv[1] : "emu", "", &context));
    check(tw_context_describe(context, text, sizeof text, NULL));
    printf("tilewright %s on %s\n", tw_version(), text);

    tw_gemm_init(&gemm, TW_F32, M, N, K);
    gemm.ldc = LDC;
    gemm.bias = TW_BIAS_N;
    gemm.activation = TW_RELU;
    check(tw_operation_gemm(context, &gemm, &operation));
    check(tw_operation_tune(operation, 0, 3, heard, &trials, &best_us));
    check(tw_operation_plan(operation, text, sizeof text, NULL));
    printf("%d trials, %.1f us: %s\n", (int)trials, best_us, text);
    check(tw_prepare(operation, NULL, &prepared));

    for (int i = 0; i < M * K; i++) a[i] = (float)(i % 5 - 2);
    for (int i = 0; i < K * N; i++) b[i] = (float)(i % 7 - 3);
    for (int i = 0; i < M * LDC; i++) c[i] = -1.0f;
    for (int i = 0; i < N; i++) bias[i] = (float)i;
    /* As the header asks: aligned to 256 bytes. */
    void *workspace = aligned_alloc(256, (tw_prepared_workspace(prepared) / 256 + 1) * 256);
    tw_operands operands = {.a = a, .b = b, .c = c, .bias = bias, .workspace = workspace, .alpha = 2.0};
    check(tw_launch(prepared, &operands, NULL));

    for (int i = 0; i < M; i++) {
        for (int j = 0; j < LDC; j++) {
            float want = -1.0f; /* between the rows nothing is written */
            if (j < N) {
                want = bias[j];
                for (int k = 0; k < K; k++) want += 2.0f * a[i * K + k] * b[k * N + j];
                want = want > 0.0f ? want : 0.0f;
            }
            if (c[i * LDC + j] != want) {
                fprintf(stderr, "C[%d][%d] = %g, not %g\n", i, j, c[i * LDC + j], want);
                return 1;
            }
        }
    }
    free(workspace);
    /* In any order: the prepared operation keeps what it needs. */
    tw_context_close(context);
    tw_operation_free(operation);
    check(tw_launch(prepared, &operands, NULL));
    tw_prepared_free(prepared);

    /* What is wrong is said in words. */
    tw_context *none = NULL;
    tw_status status = tw_context_open("toaster", "", &none);
    if (status != TW_NO_DEVICE || none != NULL) return 1;
    printf("a device that does not exist is refused: %s: %s\n", tw_status_name(status), tw_last_error());
    puts("ok: every element of C is right");
    return 0;
}
