/* What a kind of store implements, and the handle around it. store.c checks arguments and keeps the reference count,
 * fallback.c does what a kind lacks; a kind (hash.c file.c tcp_*.c prefix.c user.c) only does its own work.
 *
 * All functions may be called from any thread at the same time. On failure they return through comm__fail. Keys are
 * already checked and carry any prefix; a kind that was reached through a view is given the inner store as `s`. NULL
 * entries marked (may be NULL) are made from the others by fallback.c.
 *
 * Every call is told until when, and for which handle, by a store_wait. It is made once, when the user calls, and goes
 * down to whatever may block: a lock, a connection, a reply, a step of a call that is made of several. No layer has a
 * time limit of its own that could reach beyond it. When the handle is closed, the kind's `interrupt` is called: wake
 * the threads that wait in the store; each then asks store_wait_closed, and returns through store_fail_closed or waits
 * on. (Two handles, a store and a view of it, can wait in one store; closing one does not end the waits of the
 * other.) */
#ifndef COMM_STORE_STORE_H
#define COMM_STORE_STORE_H

#include <comm/store.h>
#include <stdatomic.h>

#include "base/clock.h"

struct store_wait {
    int64_t began_ns, deadline_ns; /* base/clock.h */
    const comm_store *handle;      /* the one the user called; not `s` if that is a view's inner store */
};

struct store_kind {
    const char *name;
    comm_status (*set)(comm_store *s, const char *key, const void *data, size_t bytes, const struct store_wait *wait);
    comm_status (*get)(comm_store *s, const char *key, const struct store_wait *wait, void **ret_data,
                       size_t *ret_bytes);
    comm_status (*add)(comm_store *s, const char *key, int64_t amount, const struct store_wait *wait,
                       int64_t *ret_value);
    comm_status (*compare_set)(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                               const void *desired, size_t desired_bytes, const struct store_wait *wait,
                               void **ret_data, size_t *ret_bytes);
    comm_status (*check)(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                         int32_t *ret_all);
    comm_status (*remove)(comm_store *s, const char *key, const struct store_wait *wait, int32_t *ret_existed);
    comm_status (*wait)(comm_store *s, const char *const *keys, size_t count,
                        const struct store_wait *wait); /* may be NULL */
    comm_status (*append)(comm_store *s, const char *key, const void *data, size_t bytes,
                          const struct store_wait *wait);                                             /* may be NULL */
    comm_status (*num_keys)(comm_store *s, const struct store_wait *wait, int64_t *ret_count);        /* may be NULL */
    comm_status (*list_keys)(comm_store *s, const struct store_wait *wait, char ***ret_keys,
                             size_t *ret_count); /* may be NULL */
    comm_status (*multi_get)(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                             void **data, size_t *bytes); /* may be NULL */
    comm_status (*multi_set)(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                             const size_t *bytes, const struct store_wait *wait); /* may be NULL */
    comm_status (*queue_push)(comm_store *s, const char *key, const void *data, size_t bytes,
                              const struct store_wait *wait); /* may be NULL */
    comm_status (*queue_pop)(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                             void **ret_data, size_t *ret_bytes); /* may be NULL */
    comm_status (*queue_len)(comm_store *s, const char *key, const struct store_wait *wait,
                             int64_t *ret_count); /* may be NULL */
    comm_status (*barrier)(comm_store *s, const char *key, int32_t world_size,
                           const struct store_wait *wait); /* may be NULL */
    /* Of a store that is only reached through views: `s` again, referenced, will do. */
    comm_status (*clone)(comm_store *s, const struct store_wait *wait, comm_store **ret_store);
    void (*interrupt)(comm_store *s); /* see above */
    void (*close)(comm_store *s); /* the last reference is gone and no call is under way; frees the object */
};

/* Embedded first in each kind's own struct. */
struct comm_store {
    const struct store_kind *kind;
    atomic_int references; /* the user's, and those of its views */
    atomic_uint calls;     /* twice the calls under way, plus STORE_CLOSED */
    _Atomic int64_t timeout_ms;
    _Atomic int64_t deadline_ns; /* no call goes beyond it; see base/deadline.h */
    int32_t owner_pid; /* FORKED elsewhere */
    int32_t port;      /* -1 if none */
    char *host, *url;  /* heap; never NULL once open */
};

enum { STORE_CLOSED = 1 };          /* comm_store_close was called */
enum {
    STORE_TIMEOUT_MS = 300000, /* unless an option says otherwise */
    STORE_GRACE_MS = 300,      /* to end a call in good order when its time is over: comm/store.h promises 500 in all */
};

/* Fill in the base of a zeroed object; copies `url` and `host`. On failure store_finish is still right. */
comm_status store_init(comm_store *s, const struct store_kind *kind, const char *url, const char *host, int32_t port,
                       int64_t timeout_ms);
/* The reverse of store_init, for a kind's close. Does not free `s`. */
void store_finish(comm_store *s);

static inline int store_wait_closed(const struct store_wait *wait)
{
    return (atomic_load(&wait->handle->calls) & STORE_CLOSED) != 0;
}

/* For what must still be done when the time is over, or says why it was: the deadline, and the grace behind it. Steps
 * that follow each other share it. */
struct store_wait store_grace(const struct store_wait *wait);
static inline int store_wait_over(const struct store_wait *wait)
{
    return clock_now_ns() >= wait->deadline_ns;
}
static inline long long store_wait_ms(const struct store_wait *wait)
{
    return (long long)((clock_now_ns() - wait->began_ns) / 1000000);
}

/* ABORTED, with its text. */
comm_status store_fail_closed(const struct store_wait *wait);
/* TIMEOUT: "waiting in file:///x timed out after 1000 ms: 1 key did not appear: 'a'". Give the keys that are missing;
 * `note` (may be NULL) is what else the kind knows: "joined: 3 of 4 clients". */
comm_status store_fail_timeout(const struct store_wait *wait, const char *const *missing, size_t count,
                               const char *note);
/* The same for queue_pop, which waits for an item. */
comm_status store_fail_queue_timeout(const struct store_wait *wait, const char *key, const char *note);
/* The same for a barrier. */
comm_status store_fail_barrier(const struct store_wait *wait, const char *key, int64_t came, int32_t world_size);
/* As store_fail_timeout, for those of the keys that are not there now. */
comm_status store_fail_missing(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                               const char *note);

/* Call a store from inside, without its handle's checks: the kind's function, or what stands in for it if the
 * kind has none (fallback.c). Views use these. */
comm_status store_call_wait(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait);
comm_status store_call_append(comm_store *s, const char *key, const void *data, size_t bytes,
                              const struct store_wait *wait);
comm_status store_call_num_keys(comm_store *s, const struct store_wait *wait, int64_t *ret_count);
comm_status store_call_list_keys(comm_store *s, const struct store_wait *wait, char ***ret_keys, size_t *ret_count);
comm_status store_call_multi_get(comm_store *s, const char *const *keys, size_t count, const struct store_wait *wait,
                                 void **data, size_t *bytes);
comm_status store_call_multi_set(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                                 const size_t *bytes, const struct store_wait *wait);
comm_status store_call_queue_push(comm_store *s, const char *key, const void *data, size_t bytes,
                                  const struct store_wait *wait);
comm_status store_call_queue_pop(comm_store *s, const char *key, const struct store_wait *wait, int32_t may_wait,
                                 void **ret_data, size_t *ret_bytes);
comm_status store_call_queue_len(comm_store *s, const char *key, const struct store_wait *wait, int64_t *ret_count);
comm_status store_call_barrier(comm_store *s, const char *key, int32_t world_size, const struct store_wait *wait);

/* A user's call on a handle, from beginning to end: store_leave returns `status`. Closing the handle waits for those
 * inside. FORKED, ABORTED (it is being closed) or INVALID (NULL), and then there is nothing to leave. */
comm_status store_enter(comm_store *s, const char *what);
comm_status store_leave(comm_store *s, comm_status status);
/* A text that no other process uses. */
enum { STORE_NONCE_BYTES = 64 };
void store_nonce(char nonce[STORE_NONCE_BYTES]);
/* The limit of a call that begins now; 0 is the handle's timeout. */
struct store_wait store_wait_of(const comm_store *s, int64_t timeout_ms);
/* INVALID, if these are no key and no value. */
comm_status store_check_key(const char *what, const char *key);
comm_status store_check_value(const char *what, const char *key, const void *data, size_t bytes);

/* One more reference, and one less: the last one closes. store_try_ref is for a thread that finds the store without
 * holding a reference: 0 if the last one has gone. */
void store_ref(comm_store *s);
int store_try_ref(comm_store *s);
void store_release(comm_store *s);

/* The kinds' constructors; store.c routes comm_store_open to them by scheme. `options` is never NULL, is complete, and
 * its timeout_ms is set (COMM_TIMEOUT_INFINITE or more than 0). */
comm_status store_hash_open(const char *url, const comm_store_options *options, comm_store **ret_store);
comm_status store_file_open(const char *url, const comm_store_options *options, comm_store **ret_store);
comm_status store_tcp_open(const char *url, const comm_store_options *options, comm_store **ret_store);

#endif
