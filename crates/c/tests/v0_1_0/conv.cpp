// A convolution from C++, with handles that free themselves: ./conv [DEVICE].
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <tilewright.h>
#include <vector>

static void check(tw_status status) {
    if (status != TW_OK) throw std::runtime_error(std::string(tw_status_name(status)) + ": " + tw_last_error());
}

template <class T, void (*Free)(T *)> struct Freed {
    void operator()(T *handle) const { Free(handle); }
};
using Context = std::unique_ptr<tw_context, Freed<tw_context, tw_context_close>>;
using Operation = std::unique_ptr<tw_operation, Freed<tw_operation, tw_operation_free>>;
using Prepared = std::unique_ptr<tw_prepared, Freed<tw_prepared, tw_prepared_free>>;

int main(int argc, char **argv) try {
    tw_context *raw_context = nullptr;
    check(tw_context_open(argc > 1 ? argv[1] : "emu", "", &raw_context));
    Context context(raw_context);

    const int64_t input[] = {6, 6}, filter[] = {3, 3};
    tw_conv conv;
    tw_conv_init(&conv, TW_F32, 2, 4, 8, 2, input, filter);
    conv.layout = TW_NHWC;
    conv.bias = 1;
    for (int d = 0; d < 2; d++) conv.pad_begin[d] = conv.pad_end[d] = 1;
    tw_operation *raw_operation = nullptr;
    check(tw_operation_conv(context.get(), &conv, &raw_operation));
    Operation operation(raw_operation);
    tw_prepared *raw_prepared = nullptr;
    check(tw_prepare(operation.get(), nullptr, &raw_prepared));
    Prepared prepared(raw_prepared);

    std::vector<float> x(2 * 6 * 6 * 4, 1.0f), w(8 * 3 * 3 * 4, 0.5f), bias(8, 10.0f), y(2 * 6 * 6 * 8);
    tw_operands operands{};
    operands.a = x.data(), operands.b = w.data(), operands.c = y.data(), operands.bias = bias.data(), operands.alpha = 1.0;
    check(tw_launch(prepared.get(), &operands, nullptr));
    // A corner sees 4 of the 9 pixels, an edge 6, the others all; 4 channels of 0.5.
    if (y[0] != 18.0f || y[8] != 22.0f || y[(1 * 6 + 1) * 8] != 28.0f) {
        std::fprintf(stderr, "%g %g %g\n", y[0], y[8], y[(1 * 6 + 1) * 8]);
        return 1;
    }

    operands.bias = nullptr;
    const tw_status status = tw_launch(prepared.get(), &operands, nullptr);
    std::printf("as it should: %s: %s\n", tw_status_name(status), tw_last_error());
    if (status != TW_BAD_OPERANDS) return 1;
    std::puts("ok");
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
