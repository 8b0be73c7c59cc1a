/* The table of device kinds. Names are added and never removed, so readers need no lock. */
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { FIRST_OF_BACKENDS = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(const char *) names[DEVICE_KIND_END] = {
    [COMM_DEVICE_DEFAULT] = "default", [COMM_DEVICE_CPU] = "cpu", [COMM_DEVICE_CUDA] = "cuda",
    [COMM_DEVICE_HIP] = "hip",         [COMM_DEVICE_XPU] = "xpu", [COMM_DEVICE_NPU] = "npu",
    [COMM_DEVICE_HPU] = "hpu",         [COMM_DEVICE_METAL] = "metal", [COMM_DEVICE_OTHER] = "other",
};

static const char *name_of(int32_t kind)
{
    return kind >= 0 && kind < DEVICE_KIND_END ? atomic_load_explicit(&names[kind], memory_order_acquire) : NULL;
}

const char *comm_device_name(comm_device device)
{
    return name_of(comm_device_kind(device));
}

void comm__device_text(comm_device device, char *text, size_t capacity)
{
    const char *name = comm_device_name(device);
    char index[16] = "";
    if (comm_device_index(device) >= 0)
        snprintf(index, sizeof index, ":%d", comm_device_index(device));
    if (name)
        snprintf(text, capacity, "%s%s", name, index);
    else
        snprintf(text, capacity, "%d (unknown)", device);
}

int32_t comm__device_kind_of(const char *name, size_t length)
{
    for (int32_t kind = COMM_DEVICE_CPU; kind < DEVICE_KIND_END; kind++) {
        const char *known = name_of(kind);
        if (known && strlen(known) == length && memcmp(known, name, length) == 0)
            return kind;
    }
    return COMM_DEVICE_DEFAULT;
}

static int is_name(const char *name, size_t length)
{
    return length > 0 && length < DEVICE_NAME_BYTES && name[0] >= 'a' && name[0] <= 'z' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") >= length;
}

static comm_status add_kind(const char *name, size_t length, int32_t *ret_kind)
{
    int32_t kind = FIRST_OF_BACKENDS;
    while (kind < DEVICE_KIND_END && name_of(kind))
        kind++;
    char *copy = kind < DEVICE_KIND_END ? strndup(name, length) : NULL;
    if (!copy)
        return comm__fail(COMM_ERR_UNSUPPORTED, "device '%.*s': there are %d kinds of device already", (int)length,
                          name, DEVICE_KIND_END);
    atomic_store_explicit(&names[kind], copy, memory_order_release);
    *ret_kind = kind;
    return COMM_OK;
}

comm_status comm__device_kinds(const char *list, uint32_t *ret_kinds)
{
    comm_status status = COMM_OK;
    *ret_kinds = 0;
    pthread_mutex_lock(&lock);
    for (const char *name = list; status == COMM_OK; name++) {
        size_t length = strcspn(name, ",");
        int32_t kind = comm__device_kind_of(name, length);
        if (!is_name(name, length) || (length == 7 && memcmp(name, "default", 7) == 0))
            status = comm__fail(COMM_ERR_INVALID, "'%s' is not a list of devices such as \"cpu\" or \"cuda,hip\"",
                                list);
        else if (!kind)
            status = add_kind(name, length, &kind);
        *ret_kinds |= 1u << kind;
        name += length;
        if (!*name)
            break;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

comm_status comm_device_parse(const char *name, comm_device *ret_device)
{
    if (!name || !ret_device)
        return comm__fail(COMM_ERR_INVALID, "parsing a device: %s is NULL", name ? "the result" : "the name");
    size_t length = strcspn(name, ":");
    int32_t kind = comm__device_kind_of(name, length);
    if (!kind) {
        char known[256] = "";
        for (size_t k = COMM_DEVICE_CPU, used = 0; k < DEVICE_KIND_END && used < sizeof known; k++)
            if (name_of((int32_t)k))
                used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                         name_of((int32_t)k));
        return comm__fail(COMM_ERR_INVALID, "there is no device '%.*s'; the names are %s",
                          (int)(length < 64 ? length : 64), name, known);
    }
    long index = -1;
    if (name[length] == ':') {
        char *end;
        index = strtol(name + length + 1, &end, 10);
        if (name[length + 1] < '0' || name[length + 1] > '9' || *end || index > 0x7ffff0)
            return comm__fail(COMM_ERR_INVALID, "device '%s': what follows ':' is not a device's index", name);
    }
    *ret_device = comm_device_at(kind, (int32_t)index);
    return COMM_OK;
}
