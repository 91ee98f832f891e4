// Shared by the stand-ins of libraries: calls of the driver's stand-in, and numbers of all types.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Of the driver's stand-in: moves the clock of events.
void stub_spend(double us);
// The same: a kernel of a library begins, which its first call loads.
void stub_kernel(uint64_t kernel);

// Tells kernels apart: the name of one after a further number.
static inline uint64_t mixed(uint64_t kernel, int64_t number) { return (kernel ^ (uint64_t)number) * 0x100000001b3u; }

enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };

static inline double get(const void *p, int type, int64_t i) {
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
static inline double rounded(double value, int type) {
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

static inline void put(void *p, int type, int64_t i, double value) {
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
