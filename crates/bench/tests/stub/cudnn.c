// A stand-in for cuDNN (libcudnn.so) on host memory: convolutions in two spatial dimensions, f32, NCHW: by the convolution calls, which
// pad both sides of a dimension alike, and by the graph interface, which does not have to. What does not agree is refused,
// as cuDNN refuses it.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Of the driver's stand-in: moves the clock of events.
void stub_spend(double us);

struct Tensor { int extent[4], stride[4]; };
struct Filter { int extent[4]; };
struct Window { int pad[2], behind[2], stride[2], dilation[2], groups; };

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
    for (int i = 0; i < 2; i++) w->pad[i] = w->behind[i] = pad[i], w->stride[i] = stride[i], w->dilation[i] = dilation[i];
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
        int room = x->extent[2 + d] + w->pad[d] + w->behind[d] - (w->dilation[d] * (f->extent[2 + d] - 1) + 1);
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

// In so many microseconds; `forgets` the last input channel of a group, or not.
static int run(const struct Tensor *xd, const float *x, const struct Filter *fd, const float *f, const struct Window *w, int forgets,
               double us, const struct Tensor *yd, float *y, const float *bias) {
    if (!agree(xd, fd, w, yd)) return 2000;
    stub_spend(us);
    int per = fd->extent[1], last = forgets ? per - 1 : per, outs = yd->extent[1] / w->groups;
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
    // A way that takes 100,000 times as long as the others.
    if (algorithm == 6 && getenv("STUB_SLOW_WAY")) nanosleep(&(struct timespec){2, 0}, NULL);
    return run(xd, x, fd, f, w, algorithm == 6, algorithm == 6 ? 10 : 20, yd, y, NULL);
}

// Both gradients: two algorithms each, of which number 1 is faster but forgets the last output channel.
int cudnnFindConvolutionBackwardDataAlgorithmEx(void *handle, struct Filter *fd, const void *f, struct Tensor *yd, const void *y,
                                                struct Window *w, struct Tensor *xd, void *x, int wanted, int *count, struct Perf *perf,
                                                void *workspace, size_t bytes) {
    (void)handle, (void)x, (void)f, (void)y, (void)workspace, (void)bytes;
    if (!agree(xd, fd, w, yd)) return 2000;
    *count = wanted < 2 ? wanted : 2;
    for (int n = 0; n < *count; n++) perf[n] = (struct Perf){n, 0, 1, n ? 4096 : 0, 1, 3, {0}};
    return 0;
}
int cudnnFindConvolutionBackwardFilterAlgorithmEx(void *handle, struct Tensor *xd, const void *x, struct Tensor *yd, const void *y,
                                                  struct Window *w, struct Filter *fd, void *f, int wanted, int *count,
                                                  struct Perf *perf, void *workspace, size_t bytes) {
    return cudnnFindConvolutionBackwardDataAlgorithmEx(handle, fd, f, yd, y, w, xd, (void *)x, wanted, count, perf, workspace, bytes);
}
// The gradient of the input where `dx` is one, else of the filter.
static int gradient(const struct Tensor *xd, const float *x, float *dx, const struct Filter *fd, const float *f, float *df,
                    const struct Window *w, int forgets, double us, const struct Tensor *yd, const float *y) {
    if (!agree(xd, fd, w, yd)) return 2000;
    stub_spend(us);
    int per = fd->extent[1], outs = yd->extent[1] / w->groups, taps = fd->extent[2] * fd->extent[3];
    if (dx)
        for (int n = 0; n < xd->extent[0]; n++)
            for (int c = 0; c < xd->extent[1]; c++)
                for (int h = 0; h < xd->extent[2]; h++)
                    for (int v = 0; v < xd->extent[3]; v++)
                        dx[n * xd->stride[0] + c * xd->stride[1] + h * xd->stride[2] + v * xd->stride[3]] = 0;
    else
        memset(df, 0, sizeof(float) * (size_t)(fd->extent[0] * per * taps));
    for (int n = 0; n < yd->extent[0]; n++)
        for (int k = 0; k < yd->extent[1] - forgets; k++)
            for (int p = 0; p < yd->extent[2]; p++)
                for (int q = 0; q < yd->extent[3]; q++)
                    for (int c = 0; c < per; c++)
                        for (int r = 0; r < fd->extent[2]; r++)
                            for (int s = 0; s < fd->extent[3]; s++) {
                                int h = p * w->stride[0] + r * w->dilation[0] - w->pad[0];
                                int v = q * w->stride[1] + s * w->dilation[1] - w->pad[1];
                                if (h < 0 || v < 0 || h >= xd->extent[2] || v >= xd->extent[3]) continue;
                                int at = n * xd->stride[0] + (k / outs * per + c) * xd->stride[1] + h * xd->stride[2] + v * xd->stride[3];
                                int tap = ((k * per + c) * fd->extent[2] + r) * fd->extent[3] + s;
                                float dy = y[n * yd->stride[0] + k * yd->stride[1] + p * yd->stride[2] + q * yd->stride[3]];
                                if (dx) dx[at] += dy * f[tap];
                                else df[tap] += dy * x[at];
                            }
    return 0;
}
int cudnnConvolutionBackwardData(void *handle, const void *alpha, struct Filter *fd, const void *f, struct Tensor *yd, const void *y,
                                 struct Window *w, int algorithm, void *workspace, size_t bytes, const void *beta, struct Tensor *xd,
                                 void *dx) {
    (void)handle, (void)alpha, (void)beta;
    if (algorithm && (!workspace || bytes < 4096)) return 2000;
    return gradient(xd, NULL, dx, fd, f, NULL, w, algorithm, algorithm ? 10 : 20, yd, y);
}
int cudnnConvolutionBackwardFilter(void *handle, const void *alpha, struct Tensor *xd, const void *x, struct Tensor *yd, const void *y,
                                   struct Window *w, int algorithm, void *workspace, size_t bytes, const void *beta, struct Filter *fd,
                                   void *df) {
    (void)handle, (void)alpha, (void)beta;
    if (algorithm && (!workspace || bytes < 4096)) return 2000;
    return gradient(xd, x, NULL, fd, NULL, df, w, algorithm, algorithm ? 10 : 20, yd, y);
}
int cudnnConvolutionBiasActivationForward(void *handle, const void *alpha, struct Tensor *xd, const void *x, struct Filter *fd,
                                          const void *f, struct Window *w, int algorithm, void *workspace, size_t bytes,
                                          const void *alpha2, struct Tensor *zd, const void *z, struct Tensor *bd, const void *bias,
                                          void *activation, struct Tensor *yd, void *y) {
    (void)handle, (void)alpha, (void)workspace, (void)bytes, (void)alpha2, (void)zd, (void)z, (void)bd, (void)activation;
    return run(xd, x, fd, f, w, algorithm == 6, algorithm == 6 ? 10 : 20, yd, y, bias);
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

// The graph interface. Descriptors keep their attributes as they come; an attribute of another type, kind or number is refused.
enum { CONVOLUTION = 1, ENGINE = 2, CONFIG = 3, HEURISTIC = 4, PLAN = 5, CHOICE = 7, FORWARD = 10, FILTER = 11, INPUT = 12, GRAPH = 15, PACK = 16, TENSOR = 17 };
enum { HANDLE = 0, DATA = 1, INT64 = 3, FLOAT = 4, POINTER = 6, MODE = 7, HEUR = 8, KNOB = 9, NOTE = 11, DESCRIPTOR = 15 };

static const struct Rule { int kind, name, type, count, bytes; } rules[] = {
    {CONVOLUTION, 100, DATA, 1, 4},   {CONVOLUTION, 101, MODE, 1, 4},   {CONVOLUTION, 102, INT64, 2, 8},
    {CONVOLUTION, 103, INT64, 2, 8},  {CONVOLUTION, 104, INT64, 2, 8},  {CONVOLUTION, 105, INT64, 2, 8},
    {CONVOLUTION, 106, INT64, 1, 8},  {HEURISTIC, 200, HEUR, 1, 4},     {HEURISTIC, 201, DESCRIPTOR, 1, 8},
    {PLAN, 401, DESCRIPTOR, 1, 8},    {FORWARD, 700, FLOAT, 1, 4},      {FORWARD, 701, FLOAT, 1, 4},
    {FORWARD, 702, DESCRIPTOR, 1, 8}, {FORWARD, 703, DESCRIPTOR, 1, 8}, {FORWARD, 704, DESCRIPTOR, 1, 8},
    {FORWARD, 705, DESCRIPTOR, 1, 8}, {GRAPH, 800, HANDLE, 1, 8},       {GRAPH, 801, DESCRIPTOR, 1, 8},
    {INPUT, 706, FLOAT, 1, 4},        {INPUT, 707, FLOAT, 1, 4},        {INPUT, 708, DESCRIPTOR, 1, 8},
    {INPUT, 709, DESCRIPTOR, 1, 8},   {INPUT, 710, DESCRIPTOR, 1, 8},   {INPUT, 711, DESCRIPTOR, 1, 8},
    {FILTER, 712, FLOAT, 1, 4},       {FILTER, 713, FLOAT, 1, 4},       {FILTER, 714, DESCRIPTOR, 1, 8},
    {FILTER, 715, DESCRIPTOR, 1, 8},  {FILTER, 716, DESCRIPTOR, 1, 8},  {FILTER, 717, DESCRIPTOR, 1, 8},
    {TENSOR, 900, INT64, 1, 8},       {TENSOR, 901, DATA, 1, 4},        {TENSOR, 902, INT64, 4, 8},
    {TENSOR, 903, INT64, 4, 8},       {TENSOR, 906, INT64, 1, 8},       {PACK, 1000, INT64, 3, 8},
    {PACK, 1001, POINTER, 3, 8},      {PACK, 1003, POINTER, 1, 8},
};
enum { RULES = sizeof rules / sizeof *rules };

struct Backend {
    int kind, final, engine, knob;
    struct Backend *graph;  // of a configuration
    int set[RULES];
    int64_t value[RULES][4];
};

static const char *error = "";
static int refuse(const char *why) { error = why; return 2000; }
void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "%s", error); }

// An attribute that is set.
static const void *attribute(const struct Backend *b, int name) {
    for (int i = 0; i < RULES; i++)
        if (rules[i].kind == b->kind && rules[i].name == name) return b->value[i];
    abort();
}
static const int64_t *numbers(const struct Backend *b, int name) { return attribute(b, name); }
static struct Backend *part(const struct Backend *b, int name) { return *(struct Backend *const *)attribute(b, name); }

int cudnnBackendCreateDescriptor(int kind, struct Backend **out) {
    *out = calloc(1, sizeof **out);
    (*out)->kind = kind;
    return 0;
}
int cudnnBackendDestroyDescriptor(struct Backend *b) { free(b); return 0; }
int cudnnBackendSetAttribute(struct Backend *b, int name, int type, int64_t count, const void *data) {
    if (b->final) return refuse("finalized");
    for (int i = 0; i < RULES; i++) {
        if (rules[i].kind != b->kind || rules[i].name != name) continue;
        if (rules[i].type != type || rules[i].count != count) return refuse("type or count");
        if (type == DESCRIPTOR && !(*(struct Backend *const *)data)->final) return refuse("not finalized");
        memcpy(b->value[i], data, (size_t)(rules[i].bytes * count));
        b->set[i] = 1;
        return 0;
    }
    return refuse("no such attribute");
}

// The names of an operation's window, filter, input and output, or their gradients.
static const int *names(const struct Backend *operation) {
    static const int all[3][4] = {{702, 703, 704, 705}, {714, 715, 716, 717}, {708, 709, 710, 711}};
    return all[operation->kind - FORWARD];
}

// What an operation is made of.
static void operands(const struct Backend *operation, struct Tensor *x, struct Filter *f, struct Tensor *y, struct Window *w) {
    const int *name = names(operation);
    const struct Backend *xd = part(operation, name[2]), *fd = part(operation, name[1]), *yd = part(operation, name[3]), *c = part(operation, name[0]);
    for (int i = 0; i < 4; i++) {
        x->extent[i] = (int)numbers(xd, 902)[i], x->stride[i] = (int)numbers(xd, 903)[i];
        y->extent[i] = (int)numbers(yd, 902)[i], y->stride[i] = (int)numbers(yd, 903)[i];
        f->extent[i] = (int)numbers(fd, 902)[i];
    }
    for (int i = 0; i < 2; i++) {
        w->pad[i] = (int)numbers(c, 105)[i], w->behind[i] = (int)numbers(c, 104)[i];
        w->stride[i] = (int)numbers(c, 103)[i], w->dilation[i] = (int)numbers(c, 102)[i];
    }
    w->groups = x->extent[1] / f->extent[1];
}

int cudnnBackendFinalize(struct Backend *b) {
    for (int i = 0; i < RULES; i++)
        if (rules[i].kind == b->kind && !b->set[i]) return refuse("an attribute is missing");
    if (b->kind == CONVOLUTION && (numbers(b, 106)[0] != 2 || *(const int *)attribute(b, 101) != 1)) return refuse("mode");
    if (b->kind == FORWARD || b->kind == FILTER || b->kind == INPUT) {
        struct Tensor x, y;
        struct Filter f;
        struct Window w;
        operands(b, &x, &f, &y, &w);
        if (!agree(&x, &f, &w, &y)) return refuse("extents");
    }
    // Number 5 is offered and does not work.
    if (b->kind == PLAN && part(b, 401)->engine == 5) return refuse("engine 5");
    b->final = 1;
    return 0;
}

// Engines: 0 uses tensor cores, 1 forgets the last input channel of a group, 2 needs 2 GiB, 3 and 4 are right, 3 with a workspace; 5
// does not work. By heuristic: instant, B, fallback, A. With STUB_TENSOR_CORES engines without them are not offered.
static const struct Offer { int count, engines[4]; } offers[] = {{0}, {4, {0, 1, 2, 5}}, {2, {4, 1}}, {2, {1, 3}}};
static const int64_t workspaces[] = {0, 0, (int64_t)2 << 30, 4096, 0, 0};

int cudnnBackendGetAttribute(struct Backend *b, int name, int type, int64_t wanted, int64_t *count, void *data) {
    if (b->kind == HEURISTIC && name == 202 && type == DESCRIPTOR) {
        const struct Offer *offer = &offers[*(const int *)attribute(b, 200)];
        *count = getenv("STUB_TENSOR_CORES") && offer->count ? 1 : offer->count;
        for (int i = 0; i < *count && i < wanted; i++) {
            struct Backend *config = ((struct Backend **)data)[i];
            if (config->kind != CONFIG) return refuse("kind");
            config->engine = getenv("STUB_TENSOR_CORES") ? 0 : offer->engines[i];
            config->graph = part(b, 201), config->final = 1;
        }
        return 0;
    }
    *count = 1;
    // Each configuration has two knobs, in no order: kind 1 is 7, kind 0 is 3.
    if (b->kind == CONFIG && name == 302 && type == DESCRIPTOR) {
        *count = 2;
        for (int i = 0; i < 2 && i < wanted; i++) {
            struct Backend *choice = ((struct Backend **)data)[i];
            if (choice->kind != CHOICE) return refuse("kind");
            choice->knob = 1 - i, choice->final = 1;
        }
    } else if (b->kind == CHOICE && name == 600 && type == KNOB && wanted == 1) {
        *(int *)data = b->knob;
    } else if (b->kind == CHOICE && name == 601 && type == INT64 && wanted == 1) {
        *(int64_t *)data = b->knob ? 7 : 3;
    } else if (b->kind == CONFIG && name == 300 && type == DESCRIPTOR && wanted == 1) {
        (*(struct Backend **)data)->engine = b->engine;
    } else if (b->kind == ENGINE && name == 1301 && type == INT64 && wanted == 1) {
        *(int64_t *)data = b->engine;
    } else if (b->kind == ENGINE && name == 1303 && type == NOTE) {
        *count = b->engine == 0;
        if (wanted > 0) *(int *)data = 0;
    } else if (b->kind == PLAN && name == 402 && type == INT64 && wanted == 1) {
        *(int64_t *)data = workspaces[part(b, 401)->engine];
    } else {
        return refuse("no such attribute");
    }
    return 0;
}

int cudnnBackendExecute(void *handle, struct Backend *plan, struct Backend *pack) {
    (void)handle;
    if (!plan->final || !pack->final) return refuse("not finalized");
    const struct Backend *config = part(plan, 401), *operation = part(config->graph, 801);
    const int *name = names(operation);
    struct Tensor x, y;
    struct Filter f;
    struct Window w;
    operands(operation, &x, &f, &y, &w);
    void *const *pointers = attribute(pack, 1001);
    void *at[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 3; t++)
            if (numbers(pack, 1000)[i] == *numbers(part(operation, (const int[]){name[2], name[1], name[3]}[t]), 906)) at[t] = pointers[i];
    if (!at[0] || !at[1] || !at[2]) return refuse("names of tensors");
    if (workspaces[config->engine] && !*(void *const *)attribute(pack, 1003)) return refuse("workspace");
    double us = (const double[]){5, 10, 10, 15, 20, 5}[config->engine];
    if (operation->kind == FORWARD) return run(&x, at[0], &f, at[1], &w, config->engine == 1, us, &y, at[2], NULL);
    int is_input = operation->kind == INPUT;
    return gradient(&x, at[0], is_input ? at[0] : NULL, &f, at[1], is_input ? NULL : at[1], &w, config->engine == 1, us, &y, at[2]);
}
