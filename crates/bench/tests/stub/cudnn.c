// A stand-in for cuDNN (libcudnn.so) on host memory: convolutions in two or three spatial dimensions, f32, f64, f16 and bf16, NCHW and
// NHWC: by the convolution calls, which pad both sides of a dimension alike, and by the graph interface, which does not have to. What does
// not agree is refused, as cuDNN refuses it.
#include "common.h"
#include <stddef.h>
#include <stdio.h>
#include <time.h>

enum { FLOATS = 0, DOUBLES = 1, HALVES = 2, BFLOATS = 9 };
// Most dimensions of a tensor, most of them spatial.
enum { DIMS = 5, SPATIAL = 3 };

// Tensors and filters. Extents are those of NCHW in either layout.
struct Tensor { int type, dims, extent[DIMS], stride[DIMS]; };
struct Window { int dims, pad[SPATIAL], behind[SPATIAL], stride[SPATIAL], dilation[SPATIAL], groups, accumulator, math; };

// A type as `common.h` numbers it.
static int as_common(int type) { return type == BFLOATS ? R_16BF : type; }
static int accumulator_of(int type) { return type == DOUBLES ? DOUBLES : FLOATS; }

int cudnnCreate(void **handle) { *handle = (void *)1; return 0; }
int cudnnDestroy(void *handle) { (void)handle; return 0; }
int cudnnSetStream(void *handle, void *stream) { (void)handle, (void)stream; return 0; }
size_t cudnnGetVersion(void) { return 91400; }

int cudnnCreateTensorDescriptor(struct Tensor **tensor) { *tensor = calloc(1, sizeof **tensor); return 0; }
int cudnnDestroyTensorDescriptor(struct Tensor *tensor) { free(tensor); return 0; }
static int known(int type, int dims) {
    return (type == FLOATS || type == DOUBLES || type == HALVES || type == BFLOATS) && (dims == 4 || dims == 5);
}
int cudnnSetTensorNdDescriptor(struct Tensor *tensor, int type, int dims, const int *extent, const int *stride) {
    if (!known(type, dims)) return 3000;
    tensor->type = type, tensor->dims = dims;
    for (int i = 0; i < dims; i++) tensor->extent[i] = extent[i], tensor->stride[i] = stride[i];
    return 0;
}
int cudnnCreateFilterDescriptor(struct Tensor **filter) { return cudnnCreateTensorDescriptor(filter); }
int cudnnDestroyFilterDescriptor(struct Tensor *filter) { return cudnnDestroyTensorDescriptor(filter); }
// Formats: 0 is K C/g spatial, 1 is K spatial C/g.
int cudnnSetFilterNdDescriptor(struct Tensor *filter, int type, int format, int dims, const int *extent) {
    if (!known(type, dims) || (format != 0 && format != 1)) return 3000;
    int stride[DIMS], next = 1;
    if (format == 1) stride[1] = next, next *= extent[1];
    for (int i = dims - 1; i >= 0; i--) {
        if (format == 1 && i == 1) continue;
        stride[i] = next, next *= extent[i];
    }
    return cudnnSetTensorNdDescriptor(filter, type, dims, extent, stride);
}
int cudnnCreateConvolutionDescriptor(struct Window **window) { *window = calloc(1, sizeof **window); (*window)->groups = 1; return 0; }
int cudnnDestroyConvolutionDescriptor(struct Window *window) { free(window); return 0; }
int cudnnSetConvolutionNdDescriptor(struct Window *w, int dims, const int *pad, const int *stride, const int *dilation, int mode, int type) {
    if (dims < 2 || dims > SPATIAL || mode != 1 || (type != FLOATS && type != DOUBLES)) return 3000;
    w->dims = dims, w->accumulator = type;
    for (int i = 0; i < dims; i++) w->pad[i] = w->behind[i] = pad[i], w->stride[i] = stride[i], w->dilation[i] = dilation[i];
    return 0;
}
int cudnnSetConvolutionGroupCount(struct Window *window, int groups) { window->groups = groups; return 0; }
int cudnnSetConvolutionMathType(struct Window *window, int math) { window->math = math; return 0; }
int cudnnCreateActivationDescriptor(void **activation) { *activation = (void *)1; return 0; }
int cudnnDestroyActivationDescriptor(void *activation) { (void)activation; return 0; }
int cudnnSetActivationDescriptor(void *activation, int mode, int nan, double coef) { (void)activation, (void)mode, (void)nan, (void)coef; return 0; }

static int agree(const struct Tensor *x, const struct Tensor *f, const struct Window *w, const struct Tensor *y) {
    if (x->type != f->type || x->type != y->type || w->accumulator != accumulator_of(x->type)) return 0;
    if (x->dims != f->dims || x->dims != y->dims || x->dims != w->dims + 2) return 0;
    if (x->extent[1] != f->extent[1] * w->groups || y->extent[1] != f->extent[0] || x->extent[0] != y->extent[0]) return 0;
    for (int d = 0; d < w->dims; d++) {
        int room = x->extent[2 + d] + w->pad[d] + w->behind[d] - (w->dilation[d] * (f->extent[2 + d] - 1) + 1);
        if (room < 0 || y->extent[2 + d] != room / w->stride[d] + 1) return 0;
    }
    return 1;
}
// The same of a call: with default units for f64, FMA units alone for f32, tensor cores for 16 bits; the factors are 1 and 0.
static int agree_in_call(const struct Tensor *x, const struct Tensor *f, const struct Window *w, const struct Tensor *y, const void *one,
                         const void *zero) {
    int is_double = x->type == DOUBLES, math = is_double ? 0 : x->type == FLOATS ? 3 : 1;
    if (!agree(x, f, w, y) || w->math != math) return 0;
    if (!one) return 1;
    return is_double ? *(const double *)one == 1 && *(const double *)zero == 0 : *(const float *)one == 1 && *(const float *)zero == 0;
}

struct Perf { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; };

// Number 0, and `other` with a workspace.
static int offer(int other, int math, int wanted, int *count, struct Perf *perf) {
    *count = wanted < 2 ? wanted : 2;
    for (int n = 0; n < *count; n++) perf[n] = (struct Perf){n ? other : 0, 0, 1, n ? 4096 : 0, 1, math, {0}};
    return 0;
}
// Two: number 0, and number 6 with a workspace, which is faster but forgets the last input channel of a group.
int cudnnFindConvolutionForwardAlgorithmEx(void *handle, struct Tensor *xd, const void *x, struct Tensor *fd, const void *f,
                                           struct Window *w, struct Tensor *yd, void *y, int wanted, int *count, struct Perf *perf,
                                           void *workspace, size_t bytes) {
    (void)handle, (void)x, (void)f, (void)y, (void)workspace, (void)bytes;
    if (!agree_in_call(xd, fd, w, yd, NULL, NULL)) return 2000;
    return offer(6, w->math, wanted, count, perf);
}
int cudnnGetConvolutionForwardWorkspaceSize(void *handle, struct Tensor *x, struct Tensor *f, struct Window *w, struct Tensor *y,
                                            int algorithm, size_t *bytes) {
    (void)handle, (void)algorithm;
    *bytes = 64;
    return agree(x, f, w, y) ? 0 : 2000;
}

// Which of the three is computed.
enum Direction { OF_OUTPUT, OF_INPUT, OF_FILTER };

static int volume(const int *extent, int dims) {
    int all = 1;
    for (int d = 0; d < dims; d++) all *= extent[d];
    return all;
}
// Coordinates of element `n` within these extents.
static void coordinates(int n, const int *extent, int dims, int *at) {
    for (int d = dims - 1; d >= 0; d--) at[d] = n % extent[d], n /= extent[d];
}
static int64_t place(const struct Tensor *t, const int *at) {
    int64_t sum = 0;
    for (int d = 0; d < t->dims; d++) sum += (int64_t)at[d] * t->stride[d];
    return sum;
}
static int number(const struct Tensor *t, const int *at) {
    int sum = 0;
    for (int d = 0; d < t->dims; d++) sum = sum * t->extent[d] + at[d];
    return sum;
}

// A way of a convolution and of its gradients: number, what it forgets (the last input channel of a group, of gradients the last output
// channel), how long it takes.
struct Way { int number, forgets; double us; };

static void begin(const struct Tensor *x, const struct Tensor *f, const struct Window *w, enum Direction direction, int way) {
    uint64_t kernel = mixed(mixed(mixed(mixed(1, direction), way), x->type), x->stride[1]);
    for (int d = 0; d < x->dims; d++) kernel = mixed(mixed(kernel, x->extent[d]), f->extent[d]);
    for (int d = 0; d < w->dims; d++) kernel = mixed(mixed(mixed(kernel, w->stride[d]), w->dilation[d]), w->pad[d]);
    stub_kernel(kernel);
}

static int run(enum Direction direction, struct Way way, const struct Tensor *xd, void *x, const struct Tensor *fd, void *f,
               const struct Window *w, const struct Tensor *yd, void *y, const void *bias) {
    if (!agree(xd, fd, w, yd)) return 2000;
    begin(xd, fd, w, direction, way.number);
    stub_spend(way.us);
    const struct Tensor *to = direction == OF_OUTPUT ? yd : direction == OF_INPUT ? xd : fd;
    void *result = direction == OF_OUTPUT ? y : direction == OF_INPUT ? x : f;
    int type = as_common(xd->type), per = fd->extent[1], outs = yd->extent[1] / w->groups, elements = volume(to->extent, to->dims);
    int channels = direction == OF_OUTPUT ? per - way.forgets : per, maps = yd->extent[1] - (direction == OF_OUTPUT ? 0 : way.forgets);
    int pixels = volume(yd->extent + 2, w->dims), taps = volume(fd->extent + 2, w->dims), all = yd->extent[0] * maps * pixels;
    double *sums = calloc((size_t)elements, sizeof *sums);
    for (int n = 0; n < all; n++) {
        int aty[DIMS] = {n / pixels / maps, n / pixels % maps}, atx[DIMS] = {aty[0]}, atf[DIMS] = {aty[1]};
        coordinates(n % pixels, yd->extent + 2, w->dims, aty + 2);
        for (int t = 0; t < taps; t++) {
            int inside = 1;
            coordinates(t, fd->extent + 2, w->dims, atf + 2);
            for (int d = 0; d < w->dims; d++) {
                atx[2 + d] = aty[2 + d] * w->stride[d] + atf[2 + d] * w->dilation[d] - w->pad[d];
                inside = inside && atx[2 + d] >= 0 && atx[2 + d] < xd->extent[2 + d];
            }
            for (int c = 0; inside && c < channels; c++) {
                atf[1] = c, atx[1] = aty[1] / outs * per + c;
                double of_x = direction == OF_INPUT ? 0 : get(x, type, place(xd, atx));
                double of_f = direction == OF_FILTER ? 0 : get(f, type, place(fd, atf));
                double of_y = direction == OF_OUTPUT ? 0 : get(y, type, place(yd, aty));
                if (direction == OF_OUTPUT) sums[number(yd, aty)] += of_x * of_f;
                else if (direction == OF_INPUT) sums[number(xd, atx)] += of_y * of_f;
                else sums[number(fd, atf)] += of_y * of_x;
            }
        }
    }
    for (int n = 0; n < elements; n++) {
        int at[DIMS];
        coordinates(n, to->extent, to->dims, at);
        put(result, type, place(to, at), sums[n] + (bias ? get(bias, type, at[1]) : 0));
    }
    free(sums);
    return 0;
}

int cudnnConvolutionForward(void *handle, const void *alpha, struct Tensor *xd, const void *x, struct Tensor *fd, const void *f,
                            struct Window *w, int algorithm, void *workspace, size_t bytes, const void *beta, struct Tensor *yd, void *y) {
    (void)handle;
    if (!agree_in_call(xd, fd, w, yd, alpha, beta)) return 2000;
    if (algorithm == 6 && (!workspace || bytes < 4096)) return 2000;
    // A way that takes 100,000 times as long as the others.
    if (algorithm == 6 && getenv("STUB_SLOW_WAY")) nanosleep(&(struct timespec){2, 0}, NULL);
    struct Way way = {algorithm, algorithm == 6, algorithm == 6 ? 10 : 20};
    return run(OF_OUTPUT, way, xd, (void *)x, fd, (void *)f, w, yd, y, NULL);
}

// Both gradients: two algorithms each, of which number 1 is faster but forgets the last output channel.
int cudnnFindConvolutionBackwardDataAlgorithmEx(void *handle, struct Tensor *fd, const void *f, struct Tensor *yd, const void *y,
                                                struct Window *w, struct Tensor *xd, void *x, int wanted, int *count, struct Perf *perf,
                                                void *workspace, size_t bytes) {
    (void)handle, (void)x, (void)f, (void)y, (void)workspace, (void)bytes;
    if (!agree_in_call(xd, fd, w, yd, NULL, NULL)) return 2000;
    return offer(1, w->math, wanted, count, perf);
}
int cudnnFindConvolutionBackwardFilterAlgorithmEx(void *handle, struct Tensor *xd, const void *x, struct Tensor *yd, const void *y,
                                                  struct Window *w, struct Tensor *fd, void *f, int wanted, int *count,
                                                  struct Perf *perf, void *workspace, size_t bytes) {
    return cudnnFindConvolutionBackwardDataAlgorithmEx(handle, fd, f, yd, y, w, xd, (void *)x, wanted, count, perf, workspace, bytes);
}
int cudnnConvolutionBackwardData(void *handle, const void *alpha, struct Tensor *fd, const void *f, struct Tensor *yd, const void *y,
                                 struct Window *w, int algorithm, void *workspace, size_t bytes, const void *beta, struct Tensor *xd,
                                 void *dx) {
    (void)handle;
    if (!agree_in_call(xd, fd, w, yd, alpha, beta) || (algorithm && (!workspace || bytes < 4096))) return 2000;
    struct Way way = {algorithm, algorithm, algorithm ? 10 : 20};
    return run(OF_INPUT, way, xd, dx, fd, (void *)f, w, yd, (void *)y, NULL);
}
int cudnnConvolutionBackwardFilter(void *handle, const void *alpha, struct Tensor *xd, const void *x, struct Tensor *yd, const void *y,
                                   struct Window *w, int algorithm, void *workspace, size_t bytes, const void *beta, struct Tensor *fd,
                                   void *df) {
    (void)handle;
    if (!agree_in_call(xd, fd, w, yd, alpha, beta) || (algorithm && (!workspace || bytes < 4096))) return 2000;
    struct Way way = {algorithm, algorithm, algorithm ? 10 : 20};
    return run(OF_FILTER, way, xd, (void *)x, fd, df, w, yd, (void *)y, NULL);
}
int cudnnConvolutionBiasActivationForward(void *handle, const void *alpha, struct Tensor *xd, const void *x, struct Tensor *fd,
                                          const void *f, struct Window *w, int algorithm, void *workspace, size_t bytes,
                                          const void *alpha2, struct Tensor *zd, const void *z, struct Tensor *bd, const void *bias,
                                          void *activation, struct Tensor *yd, void *y) {
    (void)handle, (void)workspace, (void)bytes, (void)zd, (void)z, (void)bd, (void)activation;
    if (!agree_in_call(xd, fd, w, yd, alpha, alpha2)) return 2000;
    struct Way way = {algorithm + 100, algorithm == 6, algorithm == 6 ? 10 : 20};
    return run(OF_OUTPUT, way, xd, (void *)x, fd, (void *)f, w, yd, y, bias);
}
int cudnnAddTensor(void *handle, const void *alpha, struct Tensor *bd, const void *bias, const void *beta, struct Tensor *yd, void *y) {
    (void)handle, (void)alpha, (void)beta;
    if (bd->type != yd->type || bd->extent[1] != yd->extent[1]) return 2000;
    for (int n = 0, type = as_common(yd->type), all = volume(yd->extent, yd->dims); n < all; n++) {
        int at[DIMS];
        coordinates(n, yd->extent, yd->dims, at);
        put(y, type, place(yd, at), get(y, type, place(yd, at)) + get(bias, type, at[1]));
    }
    return 0;
}

// The graph interface. Descriptors keep their attributes as they come; an attribute of another type, kind or number is refused.
enum { CONVOLUTION = 1, ENGINE = 2, CONFIG = 3, HEURISTIC = 4, PLAN = 5, CHOICE = 7, FORWARD = 10, FILTER = 11, INPUT = 12, GRAPH = 15, PACK = 16, TENSOR = 17 };
enum { HANDLE = 0, DATA = 1, INT64 = 3, FLOAT = 4, DOUBLE = 5, POINTER = 6, MODE = 7, HEUR = 8, KNOB = 9, NOTE = 11, DESCRIPTOR = 15 };
// Numbers as many as there are dimensions; a factor, of the type of accumulators.
enum { EACH = -1, FACTOR = -2 };

static const struct Rule { int kind, name, type, count, bytes; } rules[] = {
    {CONVOLUTION, 100, DATA, 1, 4},   {CONVOLUTION, 101, MODE, 1, 4},   {CONVOLUTION, 102, INT64, EACH, 8},
    {CONVOLUTION, 103, INT64, EACH, 8},  {CONVOLUTION, 104, INT64, EACH, 8},  {CONVOLUTION, 105, INT64, EACH, 8},
    {CONVOLUTION, 106, INT64, 1, 8},  {HEURISTIC, 200, HEUR, 1, 4},     {HEURISTIC, 201, DESCRIPTOR, 1, 8},
    {PLAN, 401, DESCRIPTOR, 1, 8},    {FORWARD, 700, FACTOR, 1, 8},      {FORWARD, 701, FACTOR, 1, 8},
    {FORWARD, 702, DESCRIPTOR, 1, 8}, {FORWARD, 703, DESCRIPTOR, 1, 8}, {FORWARD, 704, DESCRIPTOR, 1, 8},
    {FORWARD, 705, DESCRIPTOR, 1, 8}, {GRAPH, 800, HANDLE, 1, 8},       {GRAPH, 801, DESCRIPTOR, 1, 8},
    {INPUT, 706, FACTOR, 1, 8},        {INPUT, 707, FACTOR, 1, 8},        {INPUT, 708, DESCRIPTOR, 1, 8},
    {INPUT, 709, DESCRIPTOR, 1, 8},   {INPUT, 710, DESCRIPTOR, 1, 8},   {INPUT, 711, DESCRIPTOR, 1, 8},
    {FILTER, 712, FACTOR, 1, 8},       {FILTER, 713, FACTOR, 1, 8},       {FILTER, 714, DESCRIPTOR, 1, 8},
    {FILTER, 715, DESCRIPTOR, 1, 8},  {FILTER, 716, DESCRIPTOR, 1, 8},  {FILTER, 717, DESCRIPTOR, 1, 8},
    {TENSOR, 900, INT64, 1, 8},       {TENSOR, 901, DATA, 1, 4},        {TENSOR, 902, INT64, EACH, 8},
    {TENSOR, 903, INT64, EACH, 8},       {TENSOR, 906, INT64, 1, 8},       {PACK, 1000, INT64, 3, 8},
    {PACK, 1001, POINTER, 3, 8},      {PACK, 1003, POINTER, 1, 8},
};
enum { RULES = sizeof rules / sizeof *rules };

struct Backend {
    int kind, final, engine, knob;
    struct Backend *graph;  // of a configuration
    int set[RULES];  // the number of elements
    int type[RULES];
    int64_t value[RULES][DIMS];
};

static const char *error = "";
static int refuse(const char *why) { error = why; return 2000; }
void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "%s", error); }

static int rule(const struct Backend *b, int name) {
    for (int i = 0; i < RULES; i++)
        if (rules[i].kind == b->kind && rules[i].name == name) return i;
    abort();
}
// An attribute that is set.
static const void *attribute(const struct Backend *b, int name) { return b->value[rule(b, name)]; }
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
        int is_factor = rules[i].type == FACTOR && (type == FLOAT || type == DOUBLE);
        if ((rules[i].type != type && !is_factor) || (rules[i].count == EACH ? count < 2 || count > DIMS : rules[i].count != count))
            return refuse("type or count");
        if (type == DESCRIPTOR && !(*(struct Backend *const *)data)->final) return refuse("not finalized");
        memcpy(b->value[i], data, (size_t)((type == FLOAT ? 4 : rules[i].bytes) * count));
        b->set[i] = (int)count, b->type[i] = type;
        return 0;
    }
    return refuse("no such attribute");
}

// The names of an operation's window, filter, input and output, or their gradients.
static const int *names(const struct Backend *operation) {
    static const int all[3][4] = {{702, 703, 704, 705}, {714, 715, 716, 717}, {708, 709, 710, 711}};
    return all[operation->kind - FORWARD];
}

static void tensor(const struct Backend *of, struct Tensor *t) {
    t->type = *(const int *)attribute(of, 901), t->dims = of->set[rule(of, 902)];
    for (int i = 0; i < t->dims; i++) t->extent[i] = (int)numbers(of, 902)[i], t->stride[i] = (int)numbers(of, 903)[i];
}
// What an operation is made of.
static void operands(const struct Backend *operation, struct Tensor *x, struct Tensor *f, struct Tensor *y, struct Window *w) {
    const int *name = names(operation);
    const struct Backend *c = part(operation, name[0]);
    tensor(part(operation, name[2]), x), tensor(part(operation, name[1]), f), tensor(part(operation, name[3]), y);
    w->dims = (int)*numbers(c, 106), w->accumulator = *(const int *)attribute(c, 100);
    for (int i = 0; i < w->dims; i++) {
        w->pad[i] = (int)numbers(c, 105)[i], w->behind[i] = (int)numbers(c, 104)[i];
        w->stride[i] = (int)numbers(c, 103)[i], w->dilation[i] = (int)numbers(c, 102)[i];
    }
    w->groups = x->extent[1] / f->extent[1];
}
// Two factors, 1 and 0, of the type of accumulators.
static int factors_agree(const struct Backend *operation, int type) {
    const int first[3] = {700, 712, 706};
    for (int i = 0; i < 2; i++) {
        int at = rule(operation, first[operation->kind - FORWARD] + i);
        const void *value = operation->value[at];
        double number = type == DOUBLES ? *(const double *)value : *(const float *)value;
        if (operation->type[at] != (type == DOUBLES ? DOUBLE : FLOAT) || number != 1 - i) return 0;
    }
    return 1;
}

int cudnnBackendFinalize(struct Backend *b) {
    for (int i = 0; i < RULES; i++)
        if (rules[i].kind == b->kind && !b->set[i]) return refuse("an attribute is missing");
    if (b->kind == CONVOLUTION && *(const int *)attribute(b, 101) != 1) return refuse("mode");
    for (int name = 102; b->kind == CONVOLUTION && name <= 105; name++)
        if (b->set[rule(b, name)] != *numbers(b, 106) || *numbers(b, 106) > SPATIAL) return refuse("dimensions");
    if (b->kind == TENSOR && (!known(*(const int *)attribute(b, 901), b->set[rule(b, 902)]) || b->set[rule(b, 902)] != b->set[rule(b, 903)]))
        return refuse("dimensions");
    if (b->kind == FORWARD || b->kind == FILTER || b->kind == INPUT) {
        struct Tensor x, f, y;
        struct Window w;
        operands(b, &x, &f, &y, &w);
        if (!agree(&x, &f, &w, &y)) return refuse("extents");
        if (!factors_agree(b, x.type)) return refuse("factors");
    }
    // Number 5 is offered and does not work.
    if (b->kind == PLAN && part(b, 401)->engine == 5) return refuse("engine 5");
    b->final = 1;
    return 0;
}

// Engines: 0 uses tensor cores, 1 forgets the last input channel of a group, 2 needs 2 GiB, 3 and 4 are right, 3 with a workspace; 5
// does not work. By heuristic: instant, B, fallback, A. With STUB_TENSOR_CORES engines without them are not offered, with STUB_NO_GRAPH none.
static const struct Offer { int count, engines[4]; } offers[] = {{0}, {4, {0, 1, 2, 5}}, {2, {4, 1}}, {2, {1, 3}}};
static const int64_t workspaces[] = {0, 0, (int64_t)2 << 30, 4096, 0, 0};

int cudnnBackendGetAttribute(struct Backend *b, int name, int type, int64_t wanted, int64_t *count, void *data) {
    if (b->kind == HEURISTIC && name == 202 && type == DESCRIPTOR) {
        const struct Offer *offer = &offers[*(const int *)attribute(b, 200)];
        *count = getenv("STUB_NO_GRAPH") ? 0 : getenv("STUB_TENSOR_CORES") && offer->count ? 1 : offer->count;
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
    struct Tensor x, f, y;
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
    enum Direction direction = operation->kind == FORWARD ? OF_OUTPUT : operation->kind == INPUT ? OF_INPUT : OF_FILTER;
    struct Way way = {200 + config->engine, config->engine == 1, us};
    return run(direction, way, &x, at[0], &f, at[1], &w, &y, at[2], NULL);
}
