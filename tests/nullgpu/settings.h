// What the environment says of the devices; see README.md.
#pragma once
#include <stddef.h>

enum { MOST_DEVICES = 16 };

int nullgpu_devices(void);       // NULLGPU_DEVICES (1), fewer where CUDA_VISIBLE_DEVICES names fewer
int nullgpu_capability(void);    // NULLGPU_CAPABILITY (90): ten times the major version, plus the minor
size_t nullgpu_bytes(void);      // NULLGPU_BYTES (80 GiB): the memory of each device
