/* A call of a slot: how long it slept, whether it left the thread as it was, and which ones have not returned. */
#ifndef COMM_CHECK_SPAN_H
#define COMM_CHECK_SPAN_H

#include <signal.h>
#include <stdatomic.h>

#include "check.h"

enum { WHAT_BYTES = 220 };

struct span {
    struct span *next, *outer; /* of the process; the thread's one around it */
    const char *slot;
    char what[WHAT_BYTES];
    int64_t begun_ns, run_ns, waited_ns;
    int inside_completion;        /* it was called from a callback, in host->work_complete of this thread */
    _Atomic int64_t *aborted_ns;  /* of the group whose progress it is */
    long thread;
    sigset_t mask;
};

void span_begin(struct span *span, const char *slot, const char *what);
/* `must_not_sleep`: the rule that it breaks by sleeping; RULE_COUNT: it may. */
void span_end(struct span *span, enum rule must_not_sleep);
/* The thread is in host->work_complete (+1), or no more (-1). */
void span_inside_completion(int change);

/* For watch_where, watch_story and watch_hangs. */
void span_where(char *text, size_t capacity);
size_t span_story(char *text, size_t capacity);
int span_hangs(void);

#endif
