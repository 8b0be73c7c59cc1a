/* The driver is found among the libraries of the process, loaded by the code that uses CUDA. It is looked for when the
 * process has loaded something since the last look; the dynamic linker counts. */
#include "cuda_memory.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* cuPointerGetAttribute, and of its header what is used here. */
typedef int (*pointer_attribute_fn)(void *ret_value, int attribute, unsigned long long pointer);
enum { SUCCESS = 0, MEMORY_TYPE = 2, IS_MANAGED = 8, DEVICE_ORDINAL = 9, MEMORY_OF_DEVICE = 2 };

static _Atomic(pointer_attribute_fn) pointer_attribute; /* NULL while there is no driver */
static atomic_ullong loads_seen;

/* Of the first library; that is enough for the count. */
static int count_loads(struct dl_phdr_info *info, size_t bytes, void *ret_loads)
{
    (void)bytes;
    *(unsigned long long *)ret_loads = info->dlpi_adds;
    return 1;
}

struct path {
    char text[4096];
};

static int find_driver(struct dl_phdr_info *info, size_t bytes, void *ret_path)
{
    const char *name = strrchr(info->dlpi_name, '/');
    (void)bytes;
    name = name ? name + 1 : info->dlpi_name;
    if (strncmp(name, "libcuda.so", strlen("libcuda.so")) != 0)
        return 0;
    snprintf(((struct path *)ret_path)->text, sizeof(struct path), "%s", info->dlpi_name);
    return 1;
}

/* Whatever is found stays loaded. dlopen alone would look for it in all folders, and must not be called by find_driver,
 * as the linker's list is locked there. */
static pointer_attribute_fn open_driver(void)
{
    struct path path;
    if (!dl_iterate_phdr(find_driver, &path))
        return NULL;
    void *driver = dlopen(path.text, RTLD_NOLOAD | RTLD_LAZY);
    return driver ? (pointer_attribute_fn)dlsym(driver, "cuPointerGetAttribute") : NULL;
}

static pointer_attribute_fn look_again(void)
{
    unsigned long long loads = 0;
    dl_iterate_phdr(count_loads, &loads);
    if (loads == atomic_load_explicit(&loads_seen, memory_order_acquire)) /* perhaps by another thread, just now */
        return atomic_load_explicit(&pointer_attribute, memory_order_acquire);
    pointer_attribute_fn found = open_driver();
    if (found)
        atomic_store_explicit(&pointer_attribute, found, memory_order_release);
    atomic_store_explicit(&loads_seen, loads, memory_order_release);
    return found;
}

static pointer_attribute_fn find(void)
{
    pointer_attribute_fn known = atomic_load_explicit(&pointer_attribute, memory_order_acquire);
    return known ? known : look_again();
}

int comm__cuda_is_there(void)
{
    return find() != NULL;
}

int32_t comm__cuda_device_of(const void *pointer)
{
    pointer_attribute_fn ask = find();
    unsigned long long address = (uintptr_t)pointer;
    unsigned type = 0, is_managed = 0;
    int index = 0;
    /* What CUDA does not know is the CPU's; so is everything while no device is in use. */
    if (!ask || ask(&type, MEMORY_TYPE, address) != SUCCESS || type != MEMORY_OF_DEVICE)
        return -1;
    if (ask(&is_managed, IS_MANAGED, address) == SUCCESS && is_managed)
        return -1;
    return ask(&index, DEVICE_ORDINAL, address) == SUCCESS ? index : 0;
}
