/* Each block is a mapping of its own with a page behind it that cannot be touched. What has ended stays mapped without
 * access rights and without memory, so that its addresses do not come again. */
#include "memory.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "gpu.h"
#include "watch.h"

struct block {
    char *base, *data;
    size_t mapped, bytes; /* without the page behind it */
    enum rule rule;       /* broken by an access from now on */
    int ended;
    char what[160];
};

enum { BLOCKS_MAX = 1 << 17 };
static struct block *blocks;
static size_t block_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before_us[2];

void (*memory_given_back)(const void *memory, size_t bytes);

static size_t page_bytes(void)
{
    static size_t bytes;
    if (!bytes)
        bytes = (size_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

/* ---- Accesses to memory that has ended ---- */

static int was_write(const void *context)
{
#if defined(__x86_64__)
    return (((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return -1;
#endif
}

static const struct block *block_at(const char *address)
{
    for (size_t i = block_count; i > 0; i--) {
        const struct block *b = &blocks[i - 1];
        if (address >= b->base && address < b->base + b->mapped + page_bytes())
            return b;
    }
    return NULL;
}

/* The process ends here: what is not safe in a signal's handler matters little. */
static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    static volatile int inside;
    const char *address = info->si_addr;
    char where[300];
    if (inside++)
        _exit(1);
    const struct block *b = block_at(address);
    int writes = was_write(context);
    const char *verb = writes > 0 ? "writes" : writes == 0 ? "reads" : "touches";
    watch_where(where, sizeof where);
    if (b && b->ended)
        finding(b->rule, "%s %s byte %td of %s", where, verb, address - b->data, b->what);
    else if (b && address >= b->data + b->bytes && *b->what)
        finding(RULE_struct_bytes, "%s %s byte %td of %s, which has %zu", where, verb, address - b->data, b->what,
                b->bytes);
    else if (b && address >= b->data + b->bytes)
        finding(RULE_result, "%s %s %td bytes behind the end of a buffer of %zu bytes", where, verb,
                address - b->data - (ptrdiff_t)b->bytes, b->bytes);
    else
        finding(RULE_crash, "%s ends the process with signal %d at address %p", where, signal_number,
                (const void *)address);
    _exit(1);
}

void memory_begin(void)
{
    static char stack[64 << 10];
    const stack_t alternative = { .ss_sp = stack, .ss_size = sizeof stack };
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    blocks = mmap(NULL, BLOCKS_MAX * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (blocks == MAP_FAILED)
        abort();
    sigaltstack(&alternative, NULL);
    sigaction(SIGSEGV, &action, &before_us[0]);
    sigaction(SIGBUS, &action, &before_us[1]);
}

/* ---- Blocks ---- */

/* At the end of its pages, or at their beginning. */
static void *new_block(size_t bytes, bool at_end, const char *what)
{
    struct block *b = NULL;
    pthread_mutex_lock(&lock);
    if (block_count < BLOCKS_MAX)
        b = &blocks[block_count];
    if (b) {
        size_t page = page_bytes();
        b->bytes = bytes;
        b->mapped = (bytes + page - 1) / page * page;
        if (b->mapped == 0)
            b->mapped = page;
        b->base = mmap(NULL, b->mapped + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->base == MAP_FAILED || mprotect(b->base + b->mapped, page, PROT_NONE) != 0)
            abort();
        b->data = at_end ? b->base + b->mapped - bytes : b->base;
        snprintf(b->what, sizeof b->what, "%s", what);
        block_count++;
    }
    pthread_mutex_unlock(&lock);
    if (!b)
        abort();
    return b->data;
}

static struct block *find_block(const void *data)
{
    for (size_t i = block_count; i > 0; i--)
        if (blocks[i - 1].data == data && !blocks[i - 1].ended)
            return &blocks[i - 1];
    abort();
}

static void end_block(struct block *b, enum rule rule)
{
    b->rule = rule;
    b->ended = 1;
    mprotect(b->base, b->mapped, PROT_NONE);
    madvise(b->base, b->mapped, MADV_DONTNEED);
}

void *lent_take(size_t bytes, const char *what)
{
    return new_block(bytes, true, what);
}

void lent_end(void *memory, enum rule rule)
{
    if (!memory)
        return;
    pthread_mutex_lock(&lock);
    end_block(find_block(memory), rule);
    pthread_mutex_unlock(&lock);
}

/* ---- The programs' buffers ---- */

int memory_holds(const void *address)
{
    pthread_mutex_lock(&lock);
    const struct block *b = block_at(address);
    int holds = b && !b->ended && !*b->what;
    pthread_mutex_unlock(&lock);
    return holds;
}

bool gpu_in(const char *backend)
{
    (void)backend;
    return false;
}

void gpu_open(const char *backend, int rank)
{
    (void)backend, (void)rank;
}

comm_device gpu_device(void)
{
    return COMM_DEVICE_CPU;
}

void gpu_thread(void)
{
}

bool gpu_reduces(comm_redop redop, comm_dtype dtype, int32_t size)
{
    (void)size;
    return comm_redop_supports(redop, dtype);
}

void *gpu_buffer(comm_device device, size_t bytes)
{
    (void)device;
    return new_block(bytes, false, "");
}

void gpu_buffer_free(comm_device device, void *buffer)
{
    (void)device;
    if (!buffer)
        return;
    pthread_mutex_lock(&lock);
    struct block *b = find_block(buffer);
    size_t bytes = b->bytes;
    pthread_mutex_unlock(&lock);
    if (memory_given_back)
        memory_given_back(buffer, bytes);
    pthread_mutex_lock(&lock);
    snprintf(b->what, sizeof b->what, "a buffer whose operation has completed, and which the program has freed");
    end_block(b, RULE_complete_late);
    pthread_mutex_unlock(&lock);
}
