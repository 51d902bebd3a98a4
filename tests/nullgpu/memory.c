// Device memory that is host memory: fresh pages, which the system hands out only once they are written to. Kernels write
// nothing, so a device may hold more than the host has. Each allocation begins with a page of our own that says its size.
#define _GNU_SOURCE
#include "memory.h"

#include <pthread.h>
#include <sys/mman.h>

#include "settings.h"

enum { PAGE = 4096 };  // CUDA aligns to 256 bytes; torch's allocator relies on 512

typedef struct Allocation {
    size_t bytes;  // as asked for, without this page
    int device;
    struct Allocation *previous, *next;
} Allocation;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // autograd has a thread for each device
static Allocation all = {0, -1, &all, &all};              // a ring: an empty one to begin with
static size_t used[MOST_DEVICES];

static void *start(Allocation *a) { return (char *)a + PAGE; }

void *device_malloc(int device, size_t bytes) {
    void *result = NULL;
    pthread_mutex_lock(&lock);
    if (bytes <= nullgpu_bytes() - used[device]) {
        int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        Allocation *a = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE, kind, -1, 0);
        if (a != MAP_FAILED) {
            *a = (Allocation){bytes, device, all.previous, &all};
            all.previous->next = a;
            all.previous = a;
            used[device] += bytes;
            result = start(a);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void device_free(void *address) {
    if (!address) return;
    Allocation *a = (Allocation *)((char *)address - PAGE);
    pthread_mutex_lock(&lock);
    a->previous->next = a->next;
    a->next->previous = a->previous;
    used[a->device] -= a->bytes;
    pthread_mutex_unlock(&lock);
    munmap(a, a->bytes + PAGE);
}

size_t device_used_bytes(int device) {
    pthread_mutex_lock(&lock);
    size_t bytes = used[device];
    pthread_mutex_unlock(&lock);
    return bytes;
}

int device_of(const void *address) {
    int found = -1;
    pthread_mutex_lock(&lock);
    for (Allocation *a = all.next; a != &all && found < 0; a = a->next)
        if ((char *)start(a) <= (char *)address && (char *)address < (char *)start(a) + a->bytes) found = a->device;
    pthread_mutex_unlock(&lock);
    return found;
}
