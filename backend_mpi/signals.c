/* The program's signal handlers. MPI's libraries put handlers of their own in their place when they are loaded (UCX)
 * and when MPI is initialised (Open MPI, MPICH). These print where the process crashed, or what hangs. libcomm is a
 * guest in the program, so it takes them out again.
 *
 * Another thread may set a handler while MPI is initialised, which can take long. So only a handler that lies in an
 * object of MPI's is taken out: one that has come while MPI's library was opened or MPI was initialised. */
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "state.h"

struct span {
    uintptr_t from, to;
};

struct spans {
    struct span *all;
    size_t count, capacity;
};

static struct {
    struct spans mpis, others; /* others: of the program, while MPI is opened or initialised */
    struct sigaction before[NSIG];
} kept;

static int is_in(const struct spans *spans, uintptr_t address)
{
    for (size_t i = 0; i < spans->count; i++)
        if (address >= spans->all[i].from && address < spans->all[i].to)
            return 1;
    return 0;
}

/* Without memory for it an object is in no list, and a handler in it stays. */
static void add(struct spans *spans, struct span span)
{
    if (spans->count == spans->capacity) {
        size_t capacity = spans->capacity ? 2 * spans->capacity : 64;
        struct span *more = realloc(spans->all, capacity * sizeof *more);
        if (!more)
            return;
        spans->all = more;
        spans->capacity = capacity;
    }
    spans->all[spans->count++] = span;
}

static struct span span_of(const struct dl_phdr_info *object)
{
    struct span span = { UINTPTR_MAX, 0 };
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t from = object->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type != PT_LOAD)
            continue;
        span.from = from < span.from ? from : span.from;
        span.to = to > span.to ? to : span.to;
    }
    return span;
}

static int add_to_others(struct dl_phdr_info *object, size_t bytes, void *context)
{
    struct span span = span_of(object);
    (void)bytes;
    (void)context;
    if (!is_in(&kept.mpis, span.from))
        add(&kept.others, span);
    return 0;
}

static int add_to_mpis(struct dl_phdr_info *object, size_t bytes, void *context)
{
    struct span span = span_of(object);
    (void)bytes;
    (void)context;
    if (!is_in(&kept.others, span.from) && !is_in(&kept.mpis, span.from))
        add(&kept.mpis, span);
    return 0;
}

static uintptr_t handler_of(const struct sigaction *action)
{
    return action->sa_flags & SA_SIGINFO ? (uintptr_t)action->sa_sigaction : (uintptr_t)action->sa_handler;
}

void signals_keep(void)
{
    for (int i = 1; i < NSIG; i++)
        if (sigaction(i, NULL, &kept.before[i]) != 0) /* the C library has some for itself */
            kept.before[i].sa_handler = SIG_ERR;
    dl_iterate_phdr(add_to_others, NULL);
}

void signals_give_back(void)
{
    struct sigaction now;
    dl_iterate_phdr(add_to_mpis, NULL);
    for (int i = 1; i < NSIG; i++) {
        const struct sigaction *before = &kept.before[i];
        if (before->sa_handler == SIG_ERR || sigaction(i, NULL, &now) != 0 || handler_of(&now) == handler_of(before))
            continue;
        /* The mpiexec of MPICH sends it when a process has died, and the default action would end this one. */
        if (i == SIGUSR1 && before->sa_handler == SIG_DFL)
            continue;
        if (is_in(&kept.mpis, handler_of(&now)))
            sigaction(i, before, NULL);
    }
    free(kept.others.all);
    kept.others = (struct spans){ 0 };
}
