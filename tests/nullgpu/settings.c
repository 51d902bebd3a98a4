// Reads the environment; see README.md.
#include "settings.h"

#include <stdlib.h>
#include <string.h>

static size_t number(const char *name, size_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

// How many devices CUDA_VISIBLE_DEVICES names: "0,1" names two, "" and "-1" none. All, where it is not set.
static size_t visible_devices(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) return MOST_DEVICES;
    if (!*text || *text == '-') return 0;
    size_t count = 1;
    for (; *text; text++) count += *text == ',';
    return count;
}

int nullgpu_devices(void) {
    size_t asked = number("NULLGPU_DEVICES", 1), visible = visible_devices();
    size_t count = asked < visible ? asked : visible;
    return count < MOST_DEVICES ? (int)count : MOST_DEVICES;
}

int nullgpu_capability(void) { return (int)number("NULLGPU_CAPABILITY", 90); }

size_t nullgpu_bytes(void) { return number("NULLGPU_BYTES", (size_t)80 << 30); }
