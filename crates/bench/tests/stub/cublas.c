// A stand-in for cuBLAS (libcublas.so) on host memory. Products of 16-bit types are sums of two parts rounded to 16 bits, unless the math
// mode forbids that.
#include "blas.h"

static int math_mode;

int cublasCreate_v2(void **handle) { *handle = (void *)1; return 0; }
int cublasDestroy_v2(void *handle) { (void)handle; return 0; }
int cublasSetStream_v2(void *handle, void *stream) { (void)handle, (void)stream; return 0; }
int cublasGetVersion_v2(void *handle, int *version) { (void)handle; *version = 130100; return 0; }
int cublasSetMathMode(void *handle, int mode) { (void)handle; math_mode = mode; return 0; }

static int run(int ta, int tb, int m, int n, int k, double alpha, const void *a, int in, int lda, int64_t sa, const void *b, int ldb,
               int64_t sb, double beta, void *c, int out, int ldc, int64_t sc, int batch) {
    struct Product p = {ta, tb, in, out, m, n, k, lda, ldb, ldc, ldc, batch, sa, sb, sc, sc, alpha, beta, a, b, c, c};
    int is_short = in == R_16F || in == R_16BF;
    struct How how = {1, in == R_64F ? R_64F : R_32F, 0};
    if (is_short && !(math_mode & 16)) how = (struct How){2, in, 0};
    begin(&p, -1);
    compute(&p, how);
    stub_spend(10);
    return 0;
}

int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int lda, const void *b, int ldb,
                   const float *beta, void *c, int ldc) {
    (void)h;
    return run(ta, tb, m, n, k, *alpha, a, R_32F, lda, 0, b, ldb, 0, *beta, c, R_32F, ldc, 0, 1);
}
int cublasDgemm_v2(void *h, int ta, int tb, int m, int n, int k, const double *alpha, const void *a, int lda, const void *b, int ldb,
                   const double *beta, void *c, int ldc) {
    (void)h;
    return run(ta, tb, m, n, k, *alpha, a, R_64F, lda, 0, b, ldb, 0, *beta, c, R_64F, ldc, 0, 1);
}
int cublasSgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int lda, long long sa,
                              const void *b, int ldb, long long sb, const float *beta, void *c, int ldc, long long sc, int batch) {
    (void)h;
    return run(ta, tb, m, n, k, *alpha, a, R_32F, lda, sa, b, ldb, sb, *beta, c, R_32F, ldc, sc, batch);
}
int cublasDgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const double *alpha, const void *a, int lda, long long sa,
                              const void *b, int ldb, long long sb, const double *beta, void *c, int ldc, long long sc, int batch) {
    (void)h;
    return run(ta, tb, m, n, k, *alpha, a, R_64F, lda, sa, b, ldb, sb, *beta, c, R_64F, ldc, sc, batch);
}
int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int in, int lda, const void *b,
                 int in_b, int ldb, const float *beta, void *c, int out, int ldc, int compute_type, int algorithm) {
    (void)h, (void)algorithm;
    // Sums in f32 of two factors of one type.
    if (in != in_b || compute_type != 68) return 7;
    return run(ta, tb, m, n, k, *alpha, a, in, lda, 0, b, ldb, 0, *beta, c, out, ldc, 0, 1);
}
int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const void *a, int in, int lda,
                               long long sa, const void *b, int in_b, int ldb, long long sb, const float *beta, void *c, int out, int ldc,
                               long long sc, int batch, int compute_type, int algorithm) {
    (void)h, (void)algorithm;
    if (in != in_b || compute_type != 68) return 7;
    return run(ta, tb, m, n, k, *alpha, a, in, lda, sa, b, ldb, sb, *beta, c, out, ldc, sc, batch);
}
// Groups of several products are not asked for; addresses lie in device memory, which is the host's here.
int cublasGemmGroupedBatchedEx(void *h, const int *ta, const int *tb, const int *m, const int *n, const int *k, const void *alpha,
                               const void *const *a, int in, const int *lda, const void *const *b, int in_b, const int *ldb,
                               const void *beta, void *const *c, int out, const int *ldc, int groups, const int *sizes,
                               int compute_type) {
    (void)h;
    if (in != in_b || compute_type != 68) return 7;
    for (int g = 0; g < groups; g++) {
        if (sizes[g] != 1) return 7;
        int status = run(ta[g], tb[g], m[g], n[g], k[g], ((const float *)alpha)[g], a[g], in, lda[g], 0, b[g], ldb[g], 0,
                         ((const float *)beta)[g], c[g], out, ldc[g], 0, 1);
        if (status) return status;
    }
    return 0;
}
