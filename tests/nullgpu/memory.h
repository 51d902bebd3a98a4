// Device memory that is host memory.
#pragma once
#include <stddef.h>

void *device_malloc(int device, size_t bytes);  // NULL where the device has no more
void device_free(void *address);
size_t device_used_bytes(int device);
int device_of(const void *address);  // the device whose memory an address is in; -1 for other memory
