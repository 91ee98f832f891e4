// Ten functions that `tilewright emit --host` wrote, on a GPU: each is called on a stream and replayed from a graph that captured it, and
// both results are compared with plain kernels that sum in double. `scripts/host-check` writes, compiles and runs it all.
#include "cases.h"
#include <cstdio>
#include <cstdlib>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <functional>
#include <type_traits>
#include <vector>

#define RUNTIME(call)                                                                               \
    do {                                                                                            \
        const cudaError_t e = (call);                                                               \
        if (e != cudaSuccess) std::printf("%s: %s\n", #call, cudaGetErrorString(e)), std::exit(1);  \
    } while (0)
#define DRIVER(call)                                                                   \
    do {                                                                               \
        const CUresult e = (call);                                                     \
        if (e != CUDA_SUCCESS) std::printf("%s: error %d\n", #call, (int)e), std::exit(1); \
    } while (0)

template <class T> __device__ double wide(T x) { return (double)(float)x; }
template <> __device__ double wide(double x) { return x; }

// Small whole numbers: sums of their products are exact in float.
template <class T> __global__ void fill(T *to, size_t count, unsigned seed)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (n >= count) return;
    unsigned x = (unsigned)n * 2654435761u + seed * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    to[n] = (T)(float)((int)(x % 5) - 2);
}

// What an element of the result is made of: sum, bias, old value.
template <class T> struct Gemm {
    const T *a, *b, *bias, *old;
    double *to;
    int64_t m, n, k, a_row, a_col, b_row, b_col, stride_a, stride_b;
    double alpha, beta;
};
template <class T> __global__ void gemm(Gemm<T> g)
{
    const int64_t j = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, i = blockIdx.y, p = blockIdx.z;
    if (j >= g.n) return;
    double sum = 0;
    for (int64_t x = 0; x < g.k; ++x) {
        sum += wide(g.a[p * g.stride_a + i * g.a_row + x * g.a_col]) * wide(g.b[p * g.stride_b + x * g.b_row + j * g.b_col]);
    }
    const int64_t at = (p * g.m + i) * g.n + j;
    g.to[at] = g.alpha * sum + (g.bias ? wide(g.bias[j]) : 0) + g.beta * wide(g.old[at]);
}

// NHWC, filter KRSC, 3 x 3, padding 1.
template <class T> struct Conv {
    const T *input, *filter, *bias, *old;
    double *to;
    int64_t c, k, size, out, stride;
    double alpha, beta;
    bool backward;
};
template <class T> __global__ void conv(Conv<T> g)
{
    const int64_t n = blockIdx.z, at = blockIdx.y, channel = threadIdx.x, wide_of = g.backward ? g.size : g.out;
    const int64_t y = at / wide_of, x = at % wide_of, channels = g.backward ? g.c : g.k;
    double sum = 0;
    for (int64_t r = 0; r < 3; ++r) {
        for (int64_t s = 0; s < 3; ++s) {
            if (!g.backward) {
                const int64_t v = y * g.stride + r - 1, u = x * g.stride + s - 1;
                if (v < 0 || u < 0 || v >= g.size || u >= g.size) continue;
                for (int64_t c = 0; c < g.c; ++c) {
                    sum += wide(g.input[((n * g.size + v) * g.size + u) * g.c + c]) * wide(g.filter[((channel * 3 + r) * 3 + s) * g.c + c]);
                }
            } else {
                const int64_t v = y + 1 - r, u = x + 1 - s;
                if (v < 0 || u < 0 || v % g.stride || u % g.stride || v / g.stride >= g.out || u / g.stride >= g.out) continue;
                for (int64_t k = 0; k < g.k; ++k) {
                    const int64_t from = ((n * g.out + v / g.stride) * g.out + u / g.stride) * g.k + k;
                    sum += wide(g.input[from]) * wide(g.filter[((k * 3 + r) * 3 + s) * g.c + channel]);
                }
            }
        }
    }
    const int64_t to = (n * wide_of * wide_of + at) * channels + channel;
    g.to[to] = g.alpha * sum + (g.bias ? wide(g.bias[channel]) : 0) + g.beta * wide(g.old[to]);
}

template <class T> __global__ void differing(const T *got, const double *want, size_t count, double tolerance, unsigned *wrong)
{
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (n >= count) return;
    const double error = fabs(wide(got[n]) - want[n]);
    if (!(error <= tolerance * (fabs(want[n]) + 1))) atomicAdd(wrong, 1u);
}

template <class T> T *memory(size_t count, unsigned seed)
{
    T *to;
    RUNTIME(cudaMalloc(&to, count * sizeof(T)));
    fill<<<(unsigned)((count + 255) / 256), 256>>>(to, count, seed);
    return to;
}

// Plans differ in whether they need a workspace.
template <class F, class... X> CUresult call(F f, void *workspace, X... x)
{
    if constexpr (std::is_invocable_v<F, X..., void *>) return f(x..., workspace);
    else return f(x...);
}

static int failed;
static void *workspace;
static cudaStream_t stream;

template <class T> void judge(const char *name, const T *got, const double *want, size_t count, double tolerance, const char *how)
{
    static unsigned *wrong;
    unsigned now = 0;
    if (!wrong) RUNTIME(cudaMalloc(&wrong, sizeof *wrong));
    RUNTIME(cudaMemset(wrong, 0, sizeof *wrong));
    differing<<<(unsigned)((count + 255) / 256), 256>>>(got, want, count, tolerance, wrong);
    RUNTIME(cudaMemcpy(&now, wrong, sizeof now, cudaMemcpyDeviceToHost));
    std::printf("%-4s %-8s %zu values, %u wrong\n", name, how, count, now);
    failed += now > 0;
}

// Runs at once, then from a graph, each on fresh old values.
template <class T>
void both(const char *name, T *c, size_t count, unsigned seed, const double *want, double tolerance, const std::function<CUresult()> &run)
{
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    DRIVER(run());
    RUNTIME(cudaStreamSynchronize(stream));
    judge(name, c, want, count, tolerance, "called");
    RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    DRIVER(run());
    RUNTIME(cudaStreamEndCapture(stream, &graph));
    RUNTIME(cudaGraphInstantiate(&replay, graph, 0));
    fill<<<(unsigned)((count + 255) / 256), 256>>>(c, count, seed);
    RUNTIME(cudaDeviceSynchronize());
    RUNTIME(cudaGraphLaunch(replay, stream));
    RUNTIME(cudaStreamSynchronize(stream));
    judge(name, c, want, count, tolerance, "replayed");
}

template <class T> struct Product {
    Gemm<T> g;
    T *a, *b, *bias, *c;
    double *want;
    int64_t batch;
};
template <class T> Product<T> product(int64_t batch, int64_t m, int64_t n, int64_t k, bool b_transposed, bool bias)
{
    Product<T> p;
    p.batch = batch;
    p.a = memory<T>(batch * m * k, 1);
    p.b = memory<T>(batch * k * n, 2);
    p.c = memory<T>(batch * m * n, 3);
    p.bias = bias ? memory<T>(n, 4) : nullptr;
    RUNTIME(cudaMalloc(&p.want, batch * m * n * sizeof(double)));
    p.g = {p.a, p.b, p.bias, p.c, p.want, m, n, k, k, 1, b_transposed ? 1 : n, b_transposed ? k : 1, m * k, k * n, 1.5, 0.25};
    gemm<<<dim3((unsigned)((n + 127) / 128), (unsigned)m, (unsigned)batch), 128>>>(p.g);
    RUNTIME(cudaDeviceSynchronize());
    return p;
}
template <class T> struct Window {
    T *input, *filter, *bias, *c;
    double *want;
    size_t count;
};
template <class T> Window<T> window(int64_t n, int64_t c, int64_t k, int64_t size, int64_t stride, bool bias, bool backward)
{
    Window<T> w;
    const int64_t out = (size - 1) / stride + 1, side = backward ? size : out, channels = backward ? c : k;
    w.input = memory<T>(backward ? n * out * out * k : n * size * size * c, 1);
    w.filter = memory<T>(k * 9 * c, 2);
    w.bias = bias ? memory<T>(channels, 4) : nullptr;
    w.count = n * side * side * channels;
    w.c = memory<T>(w.count, 3);
    RUNTIME(cudaMalloc(&w.want, w.count * sizeof(double)));
    conv<<<dim3(1, (unsigned)(side * side), (unsigned)n), (unsigned)channels>>>(
        Conv<T>{w.input, w.filter, w.bias, w.c, w.want, c, k, size, out, stride, 1.5, 0.25, backward});
    RUNTIME(cudaDeviceSynchronize());
    return w;
}

#define LOADED(name)          \
    name##_kernels kernels;   \
    DRIVER(name##_load(&kernels))

int main()
{
    typedef __nv_bfloat16 bf16;
    const double from_16_bits = 1.0 / 128;
    RUNTIME(cudaFree(nullptr));
    RUNTIME(cudaMalloc(&workspace, (size_t)1 << 30));
    RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    {
        LOADED(c1);
        auto p = product<bf16>(1, 2048, 2048, 1024, false, true);
        both("c1", p.c, 2048 * 2048, 3, p.want, from_16_bits, [&] {
            return call(c1, workspace, &kernels, stream, 2048, 2048, 1024, 1.5f, p.a, 1024, p.b, 2048, 0.25f, p.c, 2048, p.bias);
        });
        // Refused: another size, a misaligned operand.
        const CUresult size = call(c1, workspace, &kernels, stream, 2047, 2048, 1024, 1.5f, p.a, 1024, p.b, 2048, 0.25f, p.c, 2048, p.bias);
        const CUresult address =
            call(c1, workspace, &kernels, stream, 2048, 2048, 1024, 1.5f, p.a + 1, 1024, p.b, 2048, 0.25f, p.c, 2048, p.bias);
        failed += size != CUDA_ERROR_INVALID_VALUE || address != CUDA_ERROR_INVALID_VALUE;
        c1_unload(&kernels);
    }
    {
        LOADED(c2);
        auto p = product<float>(1, 512, 512, 512, true, false);
        both("c2", p.c, 512 * 512, 3, p.want, 1e-6, [&] {
            return call(c2, workspace, &kernels, stream, 512, 512, 512, 1.5f, p.a, 512, p.b, 512, 0.25f, p.c, 512);
        });
        c2_unload(&kernels);
    }
    {
        LOADED(c3);
        auto p = product<bf16>(1, 1000, 1001, 999, false, false);
        both("c3", p.c, 1000 * 1001, 3, p.want, from_16_bits, [&] {
            return call(c3, workspace, &kernels, stream, 1000, 1001, 999, 1.5f, p.a, 999, p.b, 1001, 0.25f, p.c, 1001);
        });
        c3_unload(&kernels);
    }
    {
        LOADED(c4);
        auto p = product<half>(1, 128, 128, 16384, false, false);
        both("c4", p.c, 128 * 128, 3, p.want, from_16_bits, [&] {
            return call(c4, workspace, &kernels, stream, 128, 128, 16384, 1.5f, p.a, 16384, p.b, 128, 0.25f, p.c, 128);
        });
        c4_unload(&kernels);
    }
    {
        LOADED(c5);
        auto p = product<half>(8, 256, 320, 192, false, false);
        both("c5", p.c, 8 * 256 * 320, 3, p.want, from_16_bits, [&] {
            return call(c5, workspace, &kernels, stream, 256, 320, 192, 1.5f, p.a, 192, 256 * 192, p.b, 320, 192 * 320, 0.25f, p.c, 320,
                        256 * 320, 8);
        });
        c5_unload(&kernels);
    }
    {
        LOADED(c6);
        auto p = product<bf16>(1, 300, 1024, 1024, false, false);
        both("c6", p.c, 300 * 1024, 3, p.want, from_16_bits, [&] {
            return call(c6, workspace, &kernels, stream, 300, 1024, 1024, 1.5f, p.a, 1024, p.b, 1024, 0.25f, p.c, 1024);
        });
        c6_unload(&kernels);
    }
    {
        LOADED(c7);
        auto p = product<bf16>(1, 512, 512, 256, false, false);
        std::vector<double> all(512 * 512), rows(512, -1e300), columns(512, 0);
        RUNTIME(cudaMemcpy(all.data(), p.want, all.size() * sizeof(double), cudaMemcpyDeviceToHost));
        for (int i = 0; i < 512; ++i) {
            for (int j = 0; j < 512; ++j) {
                rows[i] = all[i * 512 + j] > rows[i] ? all[i * 512 + j] : rows[i];
                columns[j] += all[i * 512 + j];
            }
        }
        double *want_rows, *want_columns;
        float *got_rows = memory<float>(512, 5), *got_columns = memory<float>(512, 6);
        RUNTIME(cudaMalloc(&want_rows, 512 * sizeof(double)));
        RUNTIME(cudaMalloc(&want_columns, 512 * sizeof(double)));
        RUNTIME(cudaMemcpy(want_rows, rows.data(), 512 * sizeof(double), cudaMemcpyHostToDevice));
        RUNTIME(cudaMemcpy(want_columns, columns.data(), 512 * sizeof(double), cudaMemcpyHostToDevice));
        both("c7", p.c, 512 * 512, 3, p.want, from_16_bits, [&] {
            return call(c7, workspace, &kernels, stream, 512, 512, 256, 1.5f, p.a, 256, p.b, 512, 0.25f, p.c, 512, got_rows, got_columns);
        });
        judge("c7", got_rows, want_rows, 512, 1e-5, "maxima");
        judge("c7", got_columns, want_columns, 512, 1e-5, "sums");
        c7_unload(&kernels);
    }
    {
        LOADED(c8);
        auto w = window<bf16>(8, 64, 64, 28, 1, false, false);
        both("c8", w.c, w.count, 3, w.want, from_16_bits,
             [&] { return call(c8, workspace, &kernels, stream, 1.5f, w.input, w.filter, 0.25f, w.c); });
        c8_unload(&kernels);
    }
    {
        LOADED(c9);
        auto w = window<half>(8, 32, 64, 56, 2, true, false);
        both("c9", w.c, w.count, 3, w.want, from_16_bits,
             [&] { return call(c9, workspace, &kernels, stream, 1.5f, w.input, w.filter, 0.25f, w.c, w.bias); });
        c9_unload(&kernels);
    }
    {
        LOADED(c10);
        auto w = window<bf16>(8, 64, 64, 28, 2, false, true);
        both("c10", w.c, w.count, 3, w.want, from_16_bits,
             [&] { return call(c10, workspace, &kernels, stream, 1.5f, w.input, w.filter, 0.25f, w.c); });
        c10_unload(&kernels);
    }
    std::printf(failed ? "%d FAILED\n" : "ok\n", failed);
    return failed != 0;
}
