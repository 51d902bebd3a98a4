// The part of the CUDA runtime that PyTorch calls, on devices that compute nothing: copies and fills happen, at once; kernels do
// not. The types are those of the wheel's own headers. What is not here is NVIDIA's, which says that there is no driver.
#define __CUDART_API_VERSION 13000  // names functions without a version's suffix, as the library exports them
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_runtime_api.h"
#include "memory.h"
#include "settings.h"

enum { VERSION = 13000, PROCESSORS = 132, BLOCKS_PER_PROCESSOR = 4, THREADS_PER_BLOCK = 1024 };
enum { SHARED_BYTES = 48 << 10, MOST_SHARED_BYTES = 227 << 10, REGISTERS = 64 << 10 };  // those of an H100

static __thread int current;  // each thread has its own current device, as in CUDA

// --- devices

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = nullgpu_devices();
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= nullgpu_devices()) return cudaErrorInvalidDevice;
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    if (device < 0 || device >= nullgpu_devices()) return cudaErrorInvalidDevice;
    memset(p, 0, sizeof *p);
    strcpy(p->name, "Null GPU (computes nothing)");
    p->major = nullgpu_capability() / 10;
    p->minor = nullgpu_capability() % 10;
    p->totalGlobalMem = nullgpu_bytes();
    p->pciBusID = device;
    p->multiProcessorCount = PROCESSORS;
    p->warpSize = 32;
    p->maxThreadsPerBlock = THREADS_PER_BLOCK;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = SHARED_BYTES;
    p->sharedMemPerBlockOptin = MOST_SHARED_BYTES;
    p->l2CacheSize = 50 << 20;
    p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
    p->maxBlocksPerMultiProcessor = 32;
    p->sharedMemPerMultiprocessor = 228 << 10;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = THREADS_PER_BLOCK;
    p->maxThreadsDim[2] = 64;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = PROCESSORS; break;
        case cudaDevAttrComputeCapabilityMajor: *value = nullgpu_capability() / 10; break;
        case cudaDevAttrComputeCapabilityMinor: *value = nullgpu_capability() % 10; break;
        case cudaDevAttrWarpSize: *value = 32; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = THREADS_PER_BLOCK; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_BYTES; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = MOST_SHARED_BYTES; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
    snprintf(text, bytes, "0000:%02X:00.0", device);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = 0;  // then torch copies between devices by cudaMemcpyPeerAsync
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return cudaSuccess; }
cudaError_t cudaPeekAtLastError(void) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    *function = NULL;
    if (result) *result = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

// --- memory

cudaError_t cudaMalloc(void **address, size_t bytes) {
    *address = device_malloc(current, bytes);
    return *address ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *address) {
    device_free(address);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) {
    *total = nullgpu_bytes();
    *unused = *total - device_used_bytes(current);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
    return posix_memalign(address, 4096, bytes ? bytes : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void *address) {
    free(address);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *address) {
    int device = device_of(address);
    memset(a, 0, sizeof *a);
    a->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    a->device = device < 0 ? 0 : device;
    a->devicePointer = device < 0 ? NULL : (void *)address;
    a->hostPointer = device < 0 ? (void *)address : NULL;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int device, const void *from, int peer, size_t bytes, cudaStream_t stream) {
    return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++) memmove((char *)to + row * to_pitch, (char *)from + row * from_pitch, width);
    return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
    return cudaSuccess;  // what only kernels read
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) { return cudaMemset(to, value, bytes); }

// --- kernels: launched, and not run

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) { return cudaSuccess; }

cudaError_t cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream) {
    return cudaSuccess;
}

// Compiled by nvcc 13, launches call these two; a kernel's handle is never looked at.
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = THREADS_PER_BLOCK;
    a->numRegs = 32;
    a->binaryVersion = a->ptxVersion = nullgpu_capability();
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int size, size_t shared) {
    *blocks = BLOCKS_PER_PROCESSOR;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int size, size_t shared,
                                                                   unsigned flags) {
    *blocks = BLOCKS_PER_PROCESSOR;
    return cudaSuccess;
}

// --- streams: all that is queued is done at once

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    *stream = malloc(1);  // torch tells streams apart by their addresses
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    if (id) *id = 0;
    return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    function(data);
    return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data, unsigned flags) {
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

// --- events: the host's clock when they were recorded

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = calloc(1, sizeof(struct timespec));
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaSuccess; }

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end) {
    struct timespec *a = (struct timespec *)begin, *b = (struct timespec *)end;
    *milliseconds = 1e3f * (b->tv_sec - a->tv_sec) + 1e-6f * (b->tv_nsec - a->tv_nsec);
    return cudaSuccess;
}
