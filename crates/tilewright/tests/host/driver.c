/* A driver that runs nothing and logs its calls: one line for each attribute of a function and each launch, with the bytes of its
   arguments. An encoded tensor map is what it was encoded from, hashed. STUB_LOG names the file of lines, STUB_SIZES one of what a
   driver reads from a cubin, the width of its clusters and the sizes of its arguments: `entry width size size ...`. It plays two H200s, and
   refuses launches while the context of another than the function's is current, as a driver does; where STUB_CONTEXTS is set it writes down
   which becomes current, too. STUB_FULL is a folder that the first process makes; the others get no context. STUB_EXCLUSIVE is
   such a folder, too: the device is in exclusive compute mode. STUB_MPS: the multi-process service shares the device. */
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST = 64 };
struct CUfunc_st {
    char name[256];
    const void *context;
    int cluster;
    int count;
    int sizes[MOST];
};

static FILE *opened(const char *variable, const char *how)
{
    const char *path = getenv(variable);
    return path ? fopen(path, how) : NULL;
}

static int anything;
/* Those of the devices; none is current where a program runs without. */
static int contexts[2];
static _Thread_local void *current;

CUresult cuInit(unsigned flags) { (void)flags; return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { *count = 2; return CUDA_SUCCESS; }
CUresult cuDeviceGet(int *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int length, int device)
{
    (void)device;
    snprintf(name, (size_t)length, "a driver that records");
    return CUDA_SUCCESS;
}
static CUresult named(CUresult error, const char **text)
{
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "an error";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) { return named(error, text); }
CUresult cuGetErrorString(CUresult error, const char **text) { return named(error, text); }
CUresult cuDeviceGetUuid_v2(void *uuid, int device) { memset(uuid, 0x10 + device, 16); return CUDA_SUCCESS; }
CUresult cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)1 << 37; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device)
{
    static const int known[][2] = {{1, 1024}, {5, 2147483647}, {6, 65535}, {7, 65535}, {10, 32}, {16, 132}, {38, 52428800}, {39, 2048},
                                   {75, 9}, {81, 233472}, {82, 65536}, {97, 232448}, {106, 32}};
    enum { compute_mode = 20, exclusive_process = 3, mps_enabled = 133 };
    size_t n;
    (void)device;
    *value = 0;
    for (n = 0; n < sizeof known / sizeof *known; ++n) {
        if (known[n][0] == attribute) *value = known[n][1];
    }
    if (attribute == compute_mode && getenv("STUB_EXCLUSIVE")) *value = exclusive_process;
    if (attribute == mps_enabled && getenv("STUB_MPS")) *value = 1;
    return CUDA_SUCCESS;
}
/* With STUB_FULL there is room for the contexts of the process that makes this folder first; with STUB_EXCLUSIVE the device is its own. */
CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
    static int made;
    const char *full = getenv("STUB_FULL"), *exclusive = getenv("STUB_EXCLUSIVE");
    if (full && !made && mkdir(full, 0700) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (exclusive && !made && mkdir(exclusive, 0700) != 0) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    made = 1;
    *context = &contexts[device];
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 4096; *total = (size_t)1 << 37; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(void *context)
{
    FILE *log = getenv("STUB_CONTEXTS") ? opened("STUB_LOG", "a") : NULL;
    current = context;
    if (log) fprintf(log, "current %d\n", context ? (int)((int *)context - contexts) : -1);
    if (log) fclose(log);
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(void **context) { *context = current; return CUDA_SUCCESS; }
CUresult cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = &anything; return CUDA_SUCCESS; }
CUresult cuStreamDestroy_v2(void *stream) { (void)stream; return CUDA_SUCCESS; }
CUresult cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return CUDA_SUCCESS; }
CUresult cuEventCreate(void **event, unsigned flags) { (void)flags; *event = &anything; return CUDA_SUCCESS; }
CUresult cuEventRecord(void *event, void *stream) { (void)event; (void)stream; return CUDA_SUCCESS; }
CUresult cuEventQuery(void *event) { (void)event; return CUDA_SUCCESS; }
CUresult cuEventDestroy_v2(void *event) { (void)event; return CUDA_SUCCESS; }

/* NVRTC asks for it where there is a driver. */
CUresult cuGetExportTable(const void **table, const void *id) { (void)id; *table = NULL; return CUDA_ERROR_NOT_FOUND; }

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    /* A cubin is an ELF file. */
    if (memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_VALUE;
    *module = (CUmodule)(current ? current : &anything);
    return CUDA_SUCCESS;
}
CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    char start[4] = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    if (fread(start, 1, 4, file) != 4) start[0] = 0;
    fclose(file);
    return cuModuleLoadData(module, start);
}
CUresult cuModuleUnload(CUmodule module) { (void)module; return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    CUfunction found = (CUfunction)calloc(1, sizeof *found);
    FILE *sizes = opened("STUB_SIZES", "r");
    char line[4096];
    found->context = module;
    *function = found;
    snprintf(found->name, sizeof found->name, "%s", name);
    while (sizes && fgets(line, sizeof line, sizes)) {
        char *word = strtok(line, " \n");
        if (!word || strcmp(word, name) != 0) continue;
        found->cluster = atoi(strtok(NULL, " \n"));
        while ((word = strtok(NULL, " \n")) && found->count < MOST) found->sizes[found->count++] = atoi(word);
    }
    if (sizes) fclose(sizes);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    const int required_cluster_width = 11;
    *value = attribute == required_cluster_width ? function->cluster : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    FILE *log = opened("STUB_LOG", "a");
    if (log) fprintf(log, "attribute %s %d %d\n", function->name, (int)attribute, value);
    if (log) fclose(log);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **arguments, void **extra)
{
    FILE *log = opened("STUB_LOG", "a");
    int n, i;
    if (function->context != (current ? current : &anything)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!log || extra) return CUDA_ERROR_INVALID_VALUE;
    fprintf(log, "launch %s %ux%ux%u %ux%ux%u shared %u stream %zu early %d:", function->name, c->gridDimX, c->gridDimY, c->gridDimZ,
            c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes, (size_t)c->hStream,
            c->numAttrs == 1 && c->attrs[0].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                && c->attrs[0].value.programmaticStreamSerializationAllowed);
    for (n = 0; n < function->count; ++n) {
        fprintf(log, " ");
        for (i = 0; i < function->sizes[n]; ++i) fprintf(log, "%02x", ((unsigned char *)arguments[n])[i]);
    }
    fprintf(log, "\n");
    fclose(log);
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra)
{
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = gx, config.gridDimY = gy, config.gridDimZ = gz;
    config.blockDimX = bx, config.blockDimY = by, config.blockDimZ = bz;
    config.sharedMemBytes = shared;
    config.hStream = stream;
    return cuLaunchKernelEx(&config, function, arguments, extra);
}

static void mix(CUtensorMap *map, const void *data, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)data;
    size_t n;
    for (n = 0; n < bytes; ++n) map->opaque[0] = (map->opaque[0] ^ at[n]) * 1099511628211u;
}
/* Old drivers set this bit for small tensors; here it is always set, so that what clears it shows. */
static void finish(CUtensorMap *map, int mode, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *extent,
                   const cuuint64_t *stride, const cuuint32_t *step, int interleave, int swizzle, int promotion, int fill)
{
    const int words[] = {mode, (int)type, (int)rank, interleave, swizzle, promotion, fill};
    mix(map, words, sizeof words);
    mix(map, &address, sizeof address);
    mix(map, extent, rank * sizeof *extent);
    mix(map, stride, (rank - 1) * sizeof *stride);
    mix(map, step, rank * sizeof *step);
    map->opaque[1] = (cuuint64_t)1 << 21;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *extent,
                                const cuuint64_t *stride, const cuuint32_t *box, const cuuint32_t *step, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    memset(map, 0, sizeof *map);
    mix(map, box, rank * sizeof *box);
    finish(map, 0, type, rank, address, extent, stride, step, (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *extent,
                                 const cuuint64_t *stride, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                 const cuuint32_t *step, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    memset(map, 0, sizeof *map);
    mix(map, lower, (rank - 2) * sizeof *lower);
    mix(map, upper, (rank - 2) * sizeof *upper);
    mix(map, &channels, sizeof channels);
    mix(map, &pixels, sizeof pixels);
    finish(map, 1, type, rank, address, extent, stride, step, (int)interleave, (int)swizzle, (int)promotion, (int)fill);
    return CUDA_SUCCESS;
}
