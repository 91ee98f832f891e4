/* What the host part of a file for hipcc uses of HIP's runtime. */
#include <stddef.h>
typedef enum hipError_t { hipSuccess = 0, hipErrorInvalidValue = 1 } hipError_t;
typedef struct ihipStream_t *hipStream_t;
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x, unsigned y, unsigned z) : x(x), y(y), z(z) {}
};
extern "C" hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t stream);
