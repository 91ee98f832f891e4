// Column-major products on host memory, for the stand-ins of cuBLAS and cuBLASLt.
#include "common.h"

// How a product is computed: as sums of `splits` parts of k, with the running total rounded to `partial` after each. The last `dropped`
// terms of k are left out, as two recent libraries do on some shapes.
struct How {
    int splits, partial;
    int64_t dropped;
};

struct Product {
    int trans_a, trans_b, in, out;
    int64_t m, n, k, lda, ldb, ldc, ldd, batch, stride_a, stride_b, stride_c, stride_d;
    double alpha, beta;
    const void *a, *b, *c;
    void *d;
};

static void compute(const struct Product *p, struct How how) {
    for (int64_t g = 0; g < p->batch; g++)
        for (int64_t col = 0; col < p->n; col++)
            for (int64_t row = 0; row < p->m; row++) {
                double total = 0;
                for (int s = 0; s < how.splits; s++) {
                    int64_t from = p->k * s / how.splits, to = p->k * (s + 1) / how.splits;
                    if (s + 1 == how.splits) to -= how.dropped;
                    double sum = 0;
                    for (int64_t i = from; i < to; i++)
                        sum += get(p->a, p->in, g * p->stride_a + (p->trans_a ? i + row * p->lda : row + i * p->lda)) *
                               get(p->b, p->in, g * p->stride_b + (p->trans_b ? col + i * p->ldb : i + col * p->ldb));
                    total = rounded(total + rounded(sum, how.partial), how.partial);
                }
                double old = p->beta == 0 ? 0 : p->beta * get(p->c, p->out, g * p->stride_c + row + col * p->ldc);
                put(p->d, p->out, g * p->stride_d + row + col * p->ldd, p->alpha * total + old);
            }
}

// The kernel of a product: one for each way, type and shape.
static void begin(const struct Product *p, int64_t way) {
    const int64_t parts[] = {way, p->trans_a, p->trans_b, p->in, p->out, p->m, p->n, p->k, p->batch};
    uint64_t kernel = 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) kernel = mixed(kernel, parts[i]);
    stub_kernel(kernel);
}
