/* The backend "watched", which wraps the backend under test and sees every call in both directions: what slots return,
 * how long they sleep, what they do to what they are lent, and how works complete. A broken rule is a finding. Host
 * functions that the backend calls reach the core directly; only completions come back here. */
#ifndef COMM_CHECK_WATCH_H
#define COMM_CHECK_WATCH_H

#include <comm/backend.h>

#include "check.h"

/* Load the backend under test, look at its table, and register "watched". `describes`: what is wrong in the table is a
 * finding. Ends the process with CANNOT_BE_USED, and the reason on stderr, if the backend cannot be used. */
enum { CANNOT_BE_USED = 4 };
void watch_begin(bool describes);

/* The backend under test; its slots are those of its own. */
const comm_backend *watch_inner(void);

/* What this thread is doing in the backend, "submit of all_reduce #3 on group 'world'", or that it is another's. */
void watch_where(char *text, size_t capacity);
/* What all threads of the process are doing there, and the operations that have not completed. */
void watch_story(char *text, size_t capacity);
/* Tell what hangs as findings: slots that do not return, works that do not complete. Returns how many. */
int watch_hangs(void);

/* A comparison has failed: was the buffer written after its operation had completed? Tells it, and returns whether. */
bool watch_late_writes(void);

/* Called around the backend's world_open in each rank; NULL: nothing. */
extern void (*watch_before_world_open)(void), (*watch_after_world_open)(void);

/* Ask the backend's `supports` slot about an op on the world group, without the core. */
comm_status watch_ask(const comm_op *op);
/* Ranks' answers are compared through this memory, which all ranks of a case share; NULL: they are not. */
struct answers;
size_t answers_bytes(void);
void answers_share(struct answers *answers);
/* In the parent: the answers of the ranks; calls `differs` once for each operation about which they differ. */
void answers_compare(const struct answers *answers, int size,
                     void (*differs)(int yes_rank, int no_rank, const char *what, void *context), void *context);

/* Operations that have been handed over and have not completed. */
int watch_pending(void);

#endif
