// A stand-in for cuBLASLt (libcublasLt.so) on host memory: plain products without epilogues. Its heuristics offer, in this order, what
// the preferences allow:
//   0  four parts of k, partial results in the type of the result (reduction scheme 4)
//   1  four parts of k, summed in place (scheme 1)
//   2  two parts of k, summed in the accumulator's type (scheme 2), but the last k is dropped
//   3  as 2, nothing dropped, with 200 MiB of workspace
//   4  one part of k
//   5  as 4
// Each takes longer than the one before.
// With STUB_LATE set, the first eight are all number 2, and number 4 is the ninth.
#include "blas.h"

struct Desc { int trans_a, trans_b, epilogue; };
struct Layout { int type, batch; uint64_t rows, cols; int64_t ld, stride; };
struct Preference { uint64_t workspace; uint32_t schemes; };
struct Algorithm { uint64_t data[8]; };
struct Result { struct Algorithm algorithm; size_t workspace; int state; float waves; int reserved[4]; };

int cublasLtCreate(void **handle) { *handle = (void *)1; return 0; }
int cublasLtDestroy(void *handle) { (void)handle; return 0; }
size_t cublasLtGetVersion(void) { return 130100; }

int cublasLtMatmulDescCreate(struct Desc **desc, int compute, int scale) {
    *desc = calloc(1, sizeof **desc);
    (*desc)->epilogue = 1;
    return compute == 68 && scale == R_32F ? 0 : 15;
}
int cublasLtMatmulDescDestroy(struct Desc *desc) { free(desc); return 0; }
int cublasLtMatmulDescSetAttribute(struct Desc *desc, int attribute, const void *value, size_t size) {
    if (size != 4) return 7;
    switch (attribute) {
    case 3: memcpy(&desc->trans_a, value, 4); return 0;
    case 4: memcpy(&desc->trans_b, value, 4); return 0;
    case 7: memcpy(&desc->epilogue, value, 4); return desc->epilogue == 1 ? 0 : 15;
    default: return 15;
    }
}

int cublasLtMatrixLayoutCreate(struct Layout **layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    *layout = malloc(sizeof **layout);
    **layout = (struct Layout){type, 1, rows, cols, ld, 0};
    return ld >= (int64_t)rows ? 0 : 7;
}
int cublasLtMatrixLayoutDestroy(struct Layout *layout) { free(layout); return 0; }
int cublasLtMatrixLayoutSetAttribute(struct Layout *layout, int attribute, const void *value, size_t size) {
    if (attribute == 5 && size == 4) memcpy(&layout->batch, value, 4);
    else if (attribute == 6 && size == 8) memcpy(&layout->stride, value, 8);
    else return 7;
    return 0;
}

int cublasLtMatmulPreferenceCreate(struct Preference **preference) {
    *preference = malloc(sizeof **preference);
    **preference = (struct Preference){0, 7};
    return 0;
}
int cublasLtMatmulPreferenceDestroy(struct Preference *preference) { free(preference); return 0; }
int cublasLtMatmulPreferenceSetAttribute(struct Preference *preference, int attribute, const void *value, size_t size) {
    if (attribute == 1 && size == 8) memcpy(&preference->workspace, value, 8);
    else if (attribute == 3 && size == 4) memcpy(&preference->schemes, value, 4);
    else if (attribute < 5 || attribute > 8 || size != 4) return 7;
    return 0;
}

static const uint32_t schemes[] = {4, 1, 2, 2, 0, 0}, splits[] = {4, 4, 2, 2, 1, 1};

int cublasLtMatmulAlgoGetHeuristic(void *handle, struct Desc *desc, struct Layout *a, struct Layout *b, struct Layout *c, struct Layout *d,
                                   struct Preference *preference, int wanted, struct Result *results, int *count) {
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d;
    int late = getenv("STUB_LATE") != NULL;
    *count = 0;
    for (int n = 0; n < (late ? 9 : 6) && *count < wanted; n++) {
        int kind = !late ? n : n < 8 ? 2 : 4;
        size_t workspace = kind == 3 ? (size_t)200 << 20 : 0;
        if ((schemes[kind] & ~preference->schemes) || workspace > preference->workspace) continue;
        results[(*count)++] = (struct Result){{{(uint64_t)kind}}, workspace, 0, 1, {0}};
    }
    return *count ? 0 : 15;
}

int cublasLtMatmulAlgoConfigGetAttribute(const struct Algorithm *algorithm, int attribute, void *value, size_t size, size_t *written) {
    if (size != 4) return 7;
    *written = 4;
    if (attribute == 2) memcpy(value, &splits[algorithm->data[0]], 4);
    else if (attribute == 3) memcpy(value, &schemes[algorithm->data[0]], 4);
    else return 7;
    return 0;
}

int cublasLtMatmul(void *handle, struct Desc *desc, const float *alpha, const void *a, struct Layout *la, const void *b, struct Layout *lb,
                   const float *beta, const void *c, struct Layout *lc, void *d, struct Layout *ld, const struct Algorithm *algorithm,
                   void *workspace, size_t bytes, void *stream) {
    (void)handle, (void)stream;
    int kind = (int)algorithm->data[0];
    if (kind == 3 && (!workspace || bytes < (size_t)200 << 20)) return 7;
    struct Product p = {desc->trans_a, desc->trans_b, la->type, ld->type, (int64_t)ld->rows, (int64_t)ld->cols,
                        (int64_t)(desc->trans_a ? la->rows : la->cols), la->ld, lb->ld, lc->ld, ld->ld, ld->batch,
                        la->stride, lb->stride, lc->stride, ld->stride, *alpha, *beta, a, b, c, d};
    begin(&p, kind);
    compute(&p, (struct How){(int)splits[kind], kind < 2 ? ld->type : R_32F, kind == 2});
    stub_spend(10 * (kind + 1));
    return 0;
}
