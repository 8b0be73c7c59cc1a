/* Memory of devices lies in one arena that is mapped twice: the program's pointers lead where nothing can be read or
 * written, and the stand-in uses the second view. Pinned and managed memory comes from malloc. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cudart.h"

#define ARENA_BYTES ((size_t)16 << 30)
enum { PAGE = 4096, GARBAGE = 0xdb };

static char *arena, *arena_view;
static uintptr_t arena_next;
static struct memory *memories; /* by address */

static bool arena_open(void)
{
    if (arena)
        return true;
    int fd = memfd_create("standin-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)ARENA_BYTES))
        return false;
    char *program = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    char *view = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (program == MAP_FAILED || view == MAP_FAILED)
        return false;
    arena = program;
    arena_view = view;
    arena_next = (uintptr_t)arena;
    return true;
}

void *standin_view(const void *at)
{
    uintptr_t offset = (uintptr_t)at - (uintptr_t)arena;
    return arena && offset < ARENA_BYTES ? arena_view + offset : (void *)at;
}

/* The first piece of memory that ends after the address. */
static struct memory **memory_after(uintptr_t at)
{
    struct memory **place = &memories;
    while (*place && (*place)->to <= at)
        place = &(*place)->next;
    return place;
}

static struct memory *memory_find(const void *at)
{
    struct memory *found = *memory_after((uintptr_t)at);
    return found && found->from <= (uintptr_t)at ? found : NULL;
}

unsigned int memory_type(const void *at)
{
    struct memory *found = memory_find(at);
    return found ? found->type : CUDA_MEMORY_UNREGISTERED;
}

/* A free range of whole pages with a page behind it, after the last one that was given out: what is freed is not given
 * out again soon. */
static uintptr_t arena_take(size_t bytes)
{
    size_t pages = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    uintptr_t end = (uintptr_t)arena + ARENA_BYTES;
    for (int turn = 0; turn < 2; turn++) {
        uintptr_t at = turn ? (uintptr_t)arena : arena_next;
        for (struct memory *next = *memory_after(at); pages < end - at; next = next->next) {
            if (!next || next->from >= at + pages || next->from > end) {
                arena_next = at + pages;
                return at;
            }
            at = (next->to + PAGE - 1) / PAGE * PAGE + PAGE;
        }
    }
    return 0;
}

static void memory_add(uintptr_t from, size_t bytes, unsigned int type)
{
    struct memory *memory = malloc(sizeof *memory);
    struct memory **place = memory_after(from);
    *memory = (struct memory){.next = *place, .from = from, .to = from + bytes, .type = type, .device = current_device};
    *place = memory;
}

static cuda_status create(void **memory, size_t bytes, unsigned int type, const char *call)
{
    cuda_status status = standin_fault(call);
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    uintptr_t from = 0;
    void *host = NULL;
    if (!capture_allows(call))
        status = CUDA_CAPTURE_UNSUPPORTED;
    else if (!bytes)
        *memory = NULL;
    else if (type == CUDA_MEMORY_DEVICE)
        from = arena_open() ? arena_take(bytes) : 0;
    else if (!posix_memalign(&host, PAGE, bytes))
        from = (uintptr_t)host;
    if (from) {
        memory_add(from, bytes, type);
        memset(standin_view((void *)from), GARBAGE, bytes < 65536 ? bytes : 65536);
        *memory = (void *)from;
        standin_count("pieces of memory", 1);
    } else if (bytes && !status) {
        status = CUDA_NO_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaMalloc(void **memory, size_t bytes)
{
    return create(memory, bytes, CUDA_MEMORY_DEVICE, "cudaMalloc");
}

cuda_status cudaHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    (void)flags;
    return create(memory, bytes, CUDA_MEMORY_HOST, "cudaHostAlloc");
}

cuda_status cudaMallocManaged(void **memory, size_t bytes, unsigned int flags)
{
    (void)flags;
    return create(memory, bytes, CUDA_MEMORY_MANAGED, "cudaMallocManaged");
}

/* An operation that is not known to be over: a violation. */
static void check_over(struct memory *memory, const char *call)
{
    accesses_prune(&memory->accesses);
    if (memory->accesses)
        standin_rule("wait on the host for the operation (an event, a stream, the device) before the memory is freed",
                     "%s of %p, which %s %s", call, (void *)memory->from, memory->accesses->text,
                     memory->accesses->write ? "writes" : "reads");
}

static cuda_status destroy(void *at, bool is_host, const char *call)
{
    cuda_status status = standin_fault(call);
    if (status || !at)
        return error(status);
    pthread_mutex_lock(&lock);
    struct memory **place = memory_after((uintptr_t)at), *memory = *place;
    if (!capture_allows(call)) {
        status = CUDA_CAPTURE_UNSUPPORTED;
    } else if (!memory || memory->from != (uintptr_t)at || is_host != (memory->type == CUDA_MEMORY_HOST)) {
        standin_rule("free each piece once, by the start of it, with the call that belongs to its kind",
                     "%s of %p, which is no such memory", call, at);
        status = CUDA_INVALID_VALUE;
    } else {
        check_over(memory, call);
        *place = memory->next;
        size_t pages = (memory->to - memory->from + PAGE - 1) / PAGE * PAGE;
        if (memory->type == CUDA_MEMORY_DEVICE)
            madvise(standin_view(at), pages, MADV_REMOVE);
        else
            free(at);
        accesses_free(memory->accesses);
        free(memory);
        standin_count("pieces of memory", -1);
    }
    pthread_mutex_unlock(&lock);
    return error(status);
}

cuda_status cudaFree(void *memory)
{
    return destroy(memory, false, "cudaFree");
}

cuda_status cudaFreeHost(void *memory)
{
    return destroy(memory, true, "cudaFreeHost");
}

cuda_status cudaPointerGetAttributes(cuda_pointer_attributes *attributes, const void *pointer)
{
    cuda_status status = standin_fault("cudaPointerGetAttributes");
    if (status)
        return error(status);
    pthread_mutex_lock(&lock);
    struct memory *memory = memory_find(pointer);
    attributes->type = memory ? memory->type : CUDA_MEMORY_UNREGISTERED;
    attributes->device = memory ? memory->device : -2;
    attributes->device_pointer = memory ? (void *)pointer : NULL;
    attributes->host_pointer = memory && memory->type != CUDA_MEMORY_DEVICE ? (void *)pointer : NULL;
    pthread_mutex_unlock(&lock);
    return CUDA_OK;
}

int standin_memory_device(const void *at, size_t bytes)
{
    pthread_mutex_lock(&lock);
    struct memory *memory = memory_find(at);
    int device = memory && (uintptr_t)at + bytes <= memory->to ? memory->device : -1;
    pthread_mutex_unlock(&lock);
    return device;
}

bool memory_check(const struct standin_access *access, int device, const char *text)
{
    struct memory *memory = memory_find(access->at);
    uintptr_t end = (uintptr_t)access->at + access->bytes;
    const char *verb = access->write ? "writes" : "reads";
    if (!memory) {
        standin_rule("give it memory of cudaMalloc, cudaMallocManaged or cudaHostAlloc that has not been freed",
                     "%s %s %zu bytes at %p, which is no live device memory", text, verb, access->bytes, access->at);
        return false;
    }
    if (end > memory->to) {
        standin_rule("make the memory larger, or the count smaller",
                     "%s %s %zu bytes at %p, and the memory ends %zu bytes earlier", text, verb, access->bytes,
                     access->at, (size_t)(end - memory->to));
        return false;
    }
    if (memory->type == CUDA_MEMORY_DEVICE && device >= 0 && memory->device != device) {
        standin_rule("use memory of the operation's device", "%s on device %d %s memory of device %d at %p", text,
                     device, verb, memory->device, access->at);
        return false;
    }
    return true;
}

bool memory_use(const struct standin_access *accesses, int count, cuda_stream stream, int device, const char *text)
{
    for (int i = 0; i < count; i++) {
        const struct standin_access *access = &accesses[i];
        if (!access->bytes)
            continue;
        if (!memory_check(access, device, text))
            return false;
        if (stream->capture)
            access_add(&stream->capture->graph->accesses, access, stream, text);
        else
            access_add(&memory_find(access->at)->accesses, access, stream, text);
    }
    return true;
}
