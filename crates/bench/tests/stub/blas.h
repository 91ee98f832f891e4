// Column-major products on host memory, for the stand-ins of cuBLAS and cuBLASLt.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Of the driver's stand-in: moves the clock of events.
void stub_spend(double us);

enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };

static double get(const void *p, int type, int64_t i) {
    switch (type) {
    case R_64F: return ((const double *)p)[i];
    case R_16F: return ((const _Float16 *)p)[i];
    case R_16BF: {
        uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    default: return ((const float *)p)[i];
    }
}

// A number as a type holds it, rounded to nearest even.
static double rounded(double value, int type) {
    float single = (float)value;
    uint32_t bits;
    switch (type) {
    case R_64F: return value;
    case R_16F: return (_Float16)value;
    case R_16BF:
        memcpy(&bits, &single, 4);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
        memcpy(&single, &bits, 4);
        return single;
    default: return single;
    }
}

static void put(void *p, int type, int64_t i, double value) {
    value = rounded(value, type);
    float single = (float)value;
    uint32_t bits;
    switch (type) {
    case R_64F: ((double *)p)[i] = value; break;
    case R_16F: ((_Float16 *)p)[i] = (_Float16)value; break;
    case R_16BF:
        memcpy(&bits, &single, 4);
        ((uint16_t *)p)[i] = (uint16_t)(bits >> 16);
        break;
    default: ((float *)p)[i] = single;
    }
}

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
