// A stand-in for cuDNN (libcudnn.so) on host memory: forward convolutions in two spatial dimensions, f32, NCHW, padded alike on both
// sides of a dimension. Extents that do not agree are refused, as cuDNN refuses them.
#include <stddef.h>
#include <stdlib.h>

// Of the driver's stand-in: moves the clock of events.
void stub_spend(double us);

struct Tensor { int extent[4], stride[4]; };
struct Filter { int extent[4]; };
struct Window { int pad[2], stride[2], dilation[2], groups; };

int cudnnCreate(void **handle) { *handle = (void *)1; return 0; }
int cudnnDestroy(void *handle) { (void)handle; return 0; }
int cudnnSetStream(void *handle, void *stream) { (void)handle, (void)stream; return 0; }
size_t cudnnGetVersion(void) { return 91400; }

int cudnnCreateTensorDescriptor(struct Tensor **tensor) { *tensor = calloc(1, sizeof **tensor); return 0; }
int cudnnDestroyTensorDescriptor(struct Tensor *tensor) { free(tensor); return 0; }
int cudnnSetTensorNdDescriptor(struct Tensor *tensor, int type, int dims, const int *extent, const int *stride) {
    if (type != 0 || dims != 4) return 3000;
    for (int i = 0; i < 4; i++) tensor->extent[i] = extent[i], tensor->stride[i] = stride[i];
    return 0;
}
int cudnnCreateFilterDescriptor(struct Filter **filter) { *filter = calloc(1, sizeof **filter); return 0; }
int cudnnDestroyFilterDescriptor(struct Filter *filter) { free(filter); return 0; }
int cudnnSetFilterNdDescriptor(struct Filter *filter, int type, int format, int dims, const int *extent) {
    if (type != 0 || format != 0 || dims != 4) return 3000;
    for (int i = 0; i < 4; i++) filter->extent[i] = extent[i];
    return 0;
}
int cudnnCreateConvolutionDescriptor(struct Window **window) { *window = calloc(1, sizeof **window); (*window)->groups = 1; return 0; }
int cudnnDestroyConvolutionDescriptor(struct Window *window) { free(window); return 0; }
int cudnnSetConvolutionNdDescriptor(struct Window *w, int dims, const int *pad, const int *stride, const int *dilation, int mode, int type) {
    if (dims != 2 || mode != 1 || type != 0) return 3000;
    for (int i = 0; i < 2; i++) w->pad[i] = pad[i], w->stride[i] = stride[i], w->dilation[i] = dilation[i];
    return 0;
}
int cudnnSetConvolutionGroupCount(struct Window *window, int groups) { window->groups = groups; return 0; }
// Without tensor cores.
int cudnnSetConvolutionMathType(struct Window *window, int math) { (void)window; return math == 3 ? 0 : 3000; }
int cudnnCreateActivationDescriptor(void **activation) { *activation = (void *)1; return 0; }
int cudnnDestroyActivationDescriptor(void *activation) { (void)activation; return 0; }
int cudnnSetActivationDescriptor(void *activation, int mode, int nan, double coef) { (void)activation, (void)mode, (void)nan, (void)coef; return 0; }

static int agree(const struct Tensor *x, const struct Filter *f, const struct Window *w, const struct Tensor *y) {
    if (x->extent[1] != f->extent[1] * w->groups || y->extent[1] != f->extent[0] || x->extent[0] != y->extent[0]) return 0;
    for (int d = 0; d < 2; d++) {
        int room = x->extent[2 + d] + 2 * w->pad[d] - (w->dilation[d] * (f->extent[2 + d] - 1) + 1);
        if (room < 0 || y->extent[2 + d] != room / w->stride[d] + 1) return 0;
    }
    return 1;
}

struct Perf { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; };

// Two: number 0, and number 6 with a workspace, which is faster but forgets the last input channel of a group.
int cudnnFindConvolutionForwardAlgorithmEx(void *handle, struct Tensor *xd, const void *x, struct Filter *fd, const void *f,
                                           struct Window *w, struct Tensor *yd, void *y, int wanted, int *count, struct Perf *perf,
                                           void *workspace, size_t bytes) {
    (void)handle, (void)x, (void)f, (void)y, (void)workspace, (void)bytes;
    if (!agree(xd, fd, w, yd)) return 2000;
    *count = wanted < 2 ? wanted : 2;
    for (int n = 0; n < *count; n++) perf[n] = (struct Perf){n ? 6 : 0, 0, 1, n ? 4096 : 0, 1, 3, {0}};
    return 0;
}
int cudnnGetConvolutionForwardWorkspaceSize(void *handle, struct Tensor *x, struct Filter *f, struct Window *w, struct Tensor *y,
                                            int algorithm, size_t *bytes) {
    (void)handle, (void)algorithm;
    *bytes = 64;
    return agree(x, f, w, y) ? 0 : 2000;
}

static int run(const struct Tensor *xd, const float *x, const struct Filter *fd, const float *f, const struct Window *w, int algorithm,
               const struct Tensor *yd, float *y, const float *bias) {
    if (!agree(xd, fd, w, yd)) return 2000;
    stub_spend(algorithm == 6 ? 10 : 20);
    int per = fd->extent[1], last = algorithm == 6 ? per - 1 : per, outs = yd->extent[1] / w->groups;
    for (int n = 0; n < yd->extent[0]; n++)
        for (int k = 0; k < yd->extent[1]; k++)
            for (int p = 0; p < yd->extent[2]; p++)
                for (int q = 0; q < yd->extent[3]; q++) {
                    double sum = bias ? bias[k] : 0;
                    for (int c = 0; c < last; c++)
                        for (int r = 0; r < fd->extent[2]; r++)
                            for (int s = 0; s < fd->extent[3]; s++) {
                                int h = p * w->stride[0] + r * w->dilation[0] - w->pad[0];
                                int v = q * w->stride[1] + s * w->dilation[1] - w->pad[1];
                                if (h < 0 || v < 0 || h >= xd->extent[2] || v >= xd->extent[3]) continue;
                                int channel = k / outs * per + c;
                                sum += (double)x[n * xd->stride[0] + channel * xd->stride[1] + h * xd->stride[2] + v * xd->stride[3]] *
                                       f[((k * per + c) * fd->extent[2] + r) * fd->extent[3] + s];
                            }
                    y[n * yd->stride[0] + k * yd->stride[1] + p * yd->stride[2] + q * yd->stride[3]] = (float)sum;
                }
    return 0;
}

int cudnnConvolutionForward(void *handle, const void *alpha, struct Tensor *xd, const void *x, struct Filter *fd, const void *f,
                            struct Window *w, int algorithm, void *workspace, size_t bytes, const void *beta, struct Tensor *yd, void *y) {
    (void)handle, (void)alpha, (void)beta;
    if (algorithm == 6 && (!workspace || bytes < 4096)) return 2000;
    return run(xd, x, fd, f, w, algorithm, yd, y, NULL);
}
int cudnnConvolutionBiasActivationForward(void *handle, const void *alpha, struct Tensor *xd, const void *x, struct Filter *fd,
                                          const void *f, struct Window *w, int algorithm, void *workspace, size_t bytes,
                                          const void *alpha2, struct Tensor *zd, const void *z, struct Tensor *bd, const void *bias,
                                          void *activation, struct Tensor *yd, void *y) {
    (void)handle, (void)alpha, (void)workspace, (void)bytes, (void)alpha2, (void)zd, (void)z, (void)bd, (void)activation;
    return run(xd, x, fd, f, w, algorithm, yd, y, bias);
}
int cudnnAddTensor(void *handle, const void *alpha, struct Tensor *bd, const float *bias, const void *beta, struct Tensor *yd, float *y) {
    (void)handle, (void)alpha, (void)beta, (void)bd;
    for (int n = 0; n < yd->extent[0]; n++)
        for (int k = 0; k < yd->extent[1]; k++)
            for (int p = 0; p < yd->extent[2]; p++)
                for (int q = 0; q < yd->extent[3]; q++)
                    y[n * yd->stride[0] + k * yd->stride[1] + p * yd->stride[2] + q * yd->stride[3]] += bias[k];
    return 0;
}
