/* Reductions of a product beside it, those of a tensor by themselves, and a gradient behind a ReLU: ./reduce [DEVICE]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewright.h>

static void check(tw_status status) {
    if (status != TW_OK) {
        fprintf(stderr, "%s: %s\n", tw_status_name(status), tw_last_error());
        exit(1);
    }
}

static void equal(const char *what, double got, double want) {
    if (fabs(got - want) > 1e-5 * fabs(want)) {
        fprintf(stderr, "%s: %g, not %g\n", what, got, want);
        exit(1);
    }
}

static void launch(tw_operation *operation, const tw_operands *operands) {
    tw_prepared *prepared;
    tw_operands with = *operands;
    check(tw_prepare(operation, NULL, &prepared));
    with.workspace = malloc(tw_prepared_workspace(prepared) + 1);
    check(tw_launch(prepared, &with, NULL));
    free(with.workspace);
    tw_prepared_free(prepared);
    tw_operation_free(operation);
}

int main(int argc, char **argv) {
    enum { M = 12, N = 20, K = 8 };
    static float a[M * K], b[K * N], c[M * N], largest[M], sums[2], columns[N];
    static int64_t at[M];
    tw_context *context;
    tw_operation *operation = NULL;
    check(tw_context_open(argc > 1 ? argv[1] : "emu", "", &context));
    for (int i = 0; i < M * K; i++) a[i] = (float)(i * 3 % 11 - 5);
    for (int i = 0; i < K * N; i++) b[i] = (float)(i * 5 % 13 - 6);

    /* Of each row of C the largest value and its column, and the sum of each column. */
    tw_gemm gemm;
    tw_gemm_init(&gemm, TW_F32, M, N, K);
    gemm.reduce = "max:n argmax:n sum:m";
    check(tw_operation_gemm(context, &gemm, &operation));
    tw_operands product = {.a = a, .b = b, .c = c, .alpha = 1.0, .reductions = {largest, at, columns}};
    launch(operation, &product);
    for (int i = 0; i < M; i++) {
        int best = 0;
        for (int j = 1; j < N; j++) best = c[i * N + j] > c[i * N + best] ? j : best;
        equal("max", largest[i], c[i * N + best]);
        equal("argmax", (double)at[i], best);
    }
    for (int j = 0; j < N; j++) {
        double sum = 0;
        for (int i = 0; i < M; i++) sum += c[i * N + j];
        equal("sum", columns[j], sum);
    }

    /* All elements of every second column of a tensor. */
    tw_reduce reduce;
    const int64_t shape[2] = {M, N / 2};
    tw_reduce_init(&reduce, TW_F32, 2, shape, "sum sumsq");
    reduce.strides[0] = N;
    reduce.strides[1] = 2;
    reduce.over[0] = reduce.over[1] = 1;
    check(tw_operation_reduce(context, &reduce, &operation));
    tw_operands tensor = {.a = c, .alpha = 1.0, .reductions = {&sums[0], &sums[1]}};
    launch(operation, &tensor);
    double sum = 0, squares = 0;
    for (int i = 0; i < M * N; i += 2) {
        sum += c[i];
        squares += (double)c[i] * c[i];
    }
    equal("sum of all", sums[0], sum);
    equal("sum of squares", sums[1], squares);

    /* The gradient of a 1 x 1 convolution's input, which was a ReLU's result. */
    const int64_t pixels[1] = {M}, taps[1] = {1};
    static float input[K * M], grad[N * M], weight[N * K], back[K * M];
    for (int i = 0; i < K * M; i++) input[i] = (float)(i % 3 - 1);
    for (int i = 0; i < N * M; i++) grad[i] = (float)(i * 7 % 5 - 2);
    for (int i = 0; i < N * K; i++) weight[i] = (float)(i * 3 % 7 - 3);
    tw_conv conv;
    tw_conv_init(&conv, TW_F32, 1, K, N, 1, pixels, taps);
    conv.direction = TW_BACKWARD_DATA;
    conv.mask = 1;
    check(tw_operation_conv(context, &conv, &operation));
    tw_operands masked = {.a = grad, .b = weight, .c = back, .residual = input, .alpha = 1.0};
    launch(operation, &masked);
    for (int k = 0; k < K; k++) {
        for (int p = 0; p < M; p++) {
            double want = 0;
            for (int n = 0; n < N && input[k * M + p] > 0; n++) want += weight[n * K + k] * grad[n * M + p];
            equal("gradient", back[k * M + p], want);
        }
    }

    conv.residual = 1;
    operation = NULL;
    if (tw_operation_conv(context, &conv, &operation) != TW_INVALID_ARGUMENT || operation != NULL) return 1;
    printf("as it should: %s\n", tw_last_error());
    gemm.reduce = "median:n";
    if (tw_operation_gemm(context, &gemm, &operation) != TW_INVALID_ARGUMENT) return 1;
    printf("as it should: %s\n", tw_last_error());
    tw_context_close(context);
    puts("ok");
    return 0;
}
