#include "answers.h"

#include <stdatomic.h>
#include <string.h>

enum { SLOTS = 8192, KEPT_BYTES = 120 };

struct answer {
    _Atomic uint64_t signature; /* 0: free */
    atomic_uint yes, no;        /* bits: ranks */
    char what[KEPT_BYTES];
};

struct answers {
    struct answer slots[SLOTS];
};

static struct answers *shared;

size_t answers_bytes(void)
{
    return sizeof(struct answers);
}

void answers_share(struct answers *answers)
{
    shared = answers;
}

/* Point-to-point operations have no signature. A full table notes no more. */
void answers_note(const comm_op *op, bool yes, const char *what)
{
    for (size_t i = 0; shared && op->signature && i < SLOTS; i++) {
        struct answer *a = &shared->slots[(op->signature + i) % SLOTS];
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&a->signature, &none, op->signature))
            snprintf(a->what, sizeof a->what, "%s", what);
        else if (none != op->signature)
            continue;
        atomic_fetch_or(yes ? &a->yes : &a->no, 1u << self_rank());
        return;
    }
}

static int first_of(unsigned bits)
{
    return __builtin_ctz(bits);
}

/* An operation that a rank has refused and another has accepted, neither of them ever otherwise. */
void answers_compare(const struct answers *answers, int size,
                     void (*differs)(int yes_rank, int no_rank, const char *what, void *context), void *context)
{
    (void)size;
    for (size_t i = 0; i < SLOTS; i++) {
        const struct answer *a = &answers->slots[i];
        unsigned yes = atomic_load(&a->yes), no = atomic_load(&a->no);
        if ((yes & ~no) && (no & ~yes))
            differs(first_of(yes & ~no), first_of(no & ~yes), a->what, context);
    }
}
