/* Built as libcuda.so.1: the part of CUDA's driver that libcomm asks where a pointer leads. Memory of a device cannot
 * be touched by the CPU. */
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#include "fake_libcuda.h"

enum { PIECES_MAX = 16 };
enum { SUCCESS = 0, INVALID_VALUE = 1 };
enum { MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
enum { MEMORY_OF_HOST = 1, MEMORY_OF_DEVICE = 2 };

static struct piece {
    const char *data;
    size_t bytes;
    int kind, index;
} pieces[PIECES_MAX];
static atomic_size_t count;

static atomic_int asked;

#define EXPORTED __attribute__((visibility("default")))
EXPORTED int cuPointerGetAttribute(void *ret_value, int attribute, unsigned long long pointer);
EXPORTED void *fake_cuda_alloc(size_t bytes, int kind, int index);
EXPORTED int fake_cuda_asked(void);

/* One thread at a time. */
void *fake_cuda_alloc(size_t bytes, int kind, int index)
{
    size_t n = atomic_load(&count);
    void *data = n == PIECES_MAX ? MAP_FAILED
                                  : mmap(NULL, bytes, kind == FAKE_CUDA_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return NULL;
    pieces[n] = (struct piece){ data, bytes, kind, index };
    atomic_store(&count, n + 1);
    return data;
}

int fake_cuda_asked(void)
{
    return atomic_load(&asked);
}

int cuPointerGetAttribute(void *ret_value, int attribute, unsigned long long pointer)
{
    const struct piece *found = NULL;
    atomic_fetch_add(&asked, 1);
    for (size_t i = 0; i < atomic_load(&count); i++)
        if (pointer - (unsigned long long)pieces[i].data < pieces[i].bytes)
            found = &pieces[i];
    if (!found)
        return INVALID_VALUE;
    switch (attribute) {
    case MEMORY_TYPE:
        *(unsigned *)ret_value = found->kind == FAKE_CUDA_PINNED ? MEMORY_OF_HOST : MEMORY_OF_DEVICE;
        return SUCCESS;
    case IS_MANAGED: *(unsigned *)ret_value = found->kind == FAKE_CUDA_MANAGED; return SUCCESS;
    case DEVICE_ORDINAL: *(int *)ret_value = found->index; return SUCCESS;
    default: return INVALID_VALUE;
    }
}
