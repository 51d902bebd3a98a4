// The wheels' CUDA headers include this one and do not bring it. Nothing that nvcc reads here means anything to gcc.
#pragma once
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#define __host__
#define __device__
#define __global__
#define __device_builtin__
#define __cudart_builtin__
#define __builtin_align__(bytes)
#define __align__(bytes)
#define __location__(place)
#define __specialization_static
#define __CUDA_DEPRECATED
