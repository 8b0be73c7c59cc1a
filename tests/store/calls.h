/* One call of each kind that a store has, timed, for servers that do not answer: none may take longer than its limit
 * and PROMISED_MS, and its error must say that it was the server. */
#ifndef COMM_TESTS_CALLS_H
#define COMM_TESTS_CALLS_H

#include <comm/store.h>
#include <pthread.h>
#include <stdint.h>

enum { BRIEF_MS = 300, LONGER_MS = 1000, PROMISED_MS = 500, PLENTY_MS = 60000 };

enum {
    CALL_GET, CALL_WAIT, CALL_MULTI_GET, CALL_QUEUE_POP, CALL_POP_AT_ONCE, CALL_BARRIER, CALL_SET,
    CALL_MULTI_SET, CALL_APPEND, CALL_ADD, CALL_COMPARE_SET, CALL_CHECK, CALL_DELETE, CALL_NUM_KEYS,
    CALL_LIST_KEYS, CALL_QUEUE_LEN, CALL_CLONE, CALL_BROADCAST, CALL_ALL_GATHER, CALL_ALL_SUM, CALL_COUNT
};

struct call {
    const char *name;
    comm_status (*run)(comm_store *s, int64_t limit_ms); /* the limit of a call that has none is the handle's */
};

extern const struct call calls[CALL_COUNT];
extern const char *calls_host; /* that errors must name; 127.0.0.1 */

/* A call in a thread. */
struct run {
    pthread_t thread;
    const struct call *call;
    comm_store *store;
    int64_t limit_ms, took_ms;
    comm_status status;
    char text[1024];
};

int64_t now_ms(void);
void run_start(struct run *r, const struct call *call, comm_store *store, int64_t limit_ms);
int run_is_late(const struct run *r);
/* It ended with TIMEOUT, because of the server, and nothing else, and not before its time. */
void run_check(const struct run *r, const char *when);
void fail_late(const struct run *r, const char *when) __attribute__((noreturn));

comm_store *open_at(const char *url, int64_t timeout_ms);
/* A handle for every call with each limit, [0] BRIEF_MS and [1] LONGER_MS; views with `prefix`, unless it is NULL. */
void open_handles(const char *url, const char *prefix, comm_store *handles[2][CALL_COUNT]);
/* Every call with each limit, twice: the second time there is no connection left. */
void check_all(const char *when, comm_store *handles[2][CALL_COUNT]);
/* The server answers again, and each handle is as good as before. */
void check_good_again(comm_store *handles[2][CALL_COUNT]);
void close_handles(comm_store *handles[2][CALL_COUNT]);

#endif
