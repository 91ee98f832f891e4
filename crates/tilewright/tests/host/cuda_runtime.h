/* What the host part of a file for nvcc uses of CUDA's runtime. */
#include <cuda.h>
typedef enum cudaError_t { cudaSuccess = 0 } cudaError_t;
typedef struct CUfunc_st *cudaFunction_t;
extern "C" cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol);
