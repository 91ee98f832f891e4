// A stand-in for NVIDIA's driver (libcuda.so): one device whose memory is the host's. Copies and fills work; kernels are loaded
// and launched, and do nothing. Events read a clock that only the other stand-ins move (stub_spend): times are the same in every run.
// With STUB_HOST_TIME the device is also never ahead of the host, unless the kernel `tw_hold` keeps its work queued: an idle device's
// clock then goes on as the host's does. With STUB_SLEEP a library's call keeps the host busy for 1 ms. With STUB_EXPIRED each hold
// runs out of its time. A library's first call of a kernel loads it and waits for the device then: a hold that keeps the device runs out of its time.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int Result;

Result cuInit(unsigned flags) { (void)flags; return 0; }
Result cuDriverGetVersion(int *version) { *version = 13000; return 0; }
Result cuDeviceGetCount(int *count) { *count = 1; return 0; }
Result cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
Result cuDeviceGetName(char *name, int len, int device) { (void)device; strncpy(name, "a stand-in on the host", len); return 0; }
Result cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)8 << 30; return 0; }

Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 1: *value = 1024; break;                   // threads per block
    case 5: case 6: case 7: *value = 65535; break;  // grid
    case 10: *value = 32; break;                    // threads per warp
    case 13: *value = 1500000; break;               // clock in kHz
    case 16: *value = 4; break;                     // multiprocessors
    case 38: *value = 4 << 20; break;               // last-level cache
    case 39: *value = 1024; break;                  // threads per multiprocessor
    case 75: *value = 7; break;                     // compute capability
    case 76: *value = 5; break;
    case 81: case 97: *value = 64 << 10; break;     // shared memory
    case 82: *value = 65536; break;                 // registers
    case 106: *value = 16; break;                   // blocks per multiprocessor
    default: *value = 0;
    }
    return 0;
}

Result cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = (void *)1; return 0; }
Result cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return 0; }
static _Thread_local void *current;
Result cuCtxSetCurrent(void *context) { current = context; return 0; }
Result cuCtxGetCurrent(void **context) { *context = current; return 0; }
Result cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
Result cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return 0; }
Result cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = (void *)2; return 0; }
Result cuStreamDestroy_v2(void *stream) { (void)stream; return 0; }
Result cuStreamSynchronize(void *stream) { (void)stream; return 0; }

Result cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 256, bytes)) return 2;
    *address = (uint64_t)memory;
    return 0;
}
Result cuMemFree_v2(uint64_t address) { free((void *)address); return 0; }
Result cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy((void *)to, from, bytes);
    return 0;
}
Result cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, (void *)from, bytes);
    return 0;
}
Result cuMemsetD8Async(uint64_t address, unsigned char byte, size_t bytes, void *stream) {
    (void)stream;
    memset((void *)address, byte, bytes);
    return 0;
}

Result cuModuleLoadData(void **module, const void *image) { (void)image; *module = (void *)3; return 0; }
Result cuModuleUnload(void *module) { (void)module; return 0; }
Result cuModuleGetFunction(void **function, void *module, const char *name) { (void)module; *function = strcmp(name, "tw_hold") ? (void *)4 : (void *)5; return 0; }
Result cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return 0; }
Result cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)function;
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return 0;
}
// The hold that was launched last.
static volatile unsigned *flags;
static unsigned ticket;

Result cuMemHostAlloc(void **memory, size_t bytes, unsigned kind) { (void)kind; *memory = calloc(1, bytes); return *memory ? 0 : 2; }
Result cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned zero) { (void)zero; *address = (uint64_t)memory; return 0; }
Result cuMemFreeHost(void *memory) { if (memory == flags) flags = NULL; free(memory); return 0; }

Result cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                      void *stream, void **params, void **extra) {
    if (function == (void *)5) flags = *(volatile unsigned **)params[0], ticket = *(unsigned *)params[1];
    if (function == (void *)5 && getenv("STUB_EXPIRED")) flags[1] = ticket;
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)extra;
    return 0;
}

static double clock_us;
// The clock of a device that has run all its work follows the host's.
static void follow(void) {
    if (!getenv("STUB_HOST_TIME") || (flags && (int)(flags[0] - ticket) < 0)) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double us = (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
    if (us > clock_us) clock_us = us;
}
void stub_kernel(uint64_t kernel) {
    enum { MOST = 4096 };
    static uint64_t loaded[MOST];
    static int count;
    for (int i = 0; i < count; i++)
        if (loaded[i] == kernel) return;
    if (count == MOST) abort();
    loaded[count++] = kernel;
    if (flags && (int)(flags[0] - ticket) < 0) flags[1] = ticket;
}
void stub_spend(double us) {
    if (getenv("STUB_SLEEP")) nanosleep(&(struct timespec){0, 1000000}, NULL);
    follow();
    clock_us += us;
}

Result cuEventCreate(void **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof(double)); return *event ? 0 : 2; }
Result cuEventDestroy_v2(void *event) { free(event); return 0; }
Result cuEventRecord(void *event, void *stream) { (void)stream; follow(); *(double *)event = clock_us; clock_us += 1; return 0; }
Result cuEventQuery(void *event) { (void)event; return 0; }
Result cuEventElapsedTime_v2(float *ms, void *start, void *end) {
    *ms = (float)((*(double *)end - *(double *)start) * 1e-3);
    return 0;
}
