/* What a kind of store implements, and the handle around it. store.c checks arguments, fills in what a kind lacks, and
 * keeps the reference count; a kind (hash.c file.c tcp_client.c prefix.c user.c) only does its own work.
 *
 * All functions may be called from any thread at the same time. On failure they return through comm__fail. A deadline is
 * absolute (base/clock.h). Keys are already checked and carry any prefix. NULL entries marked (may be NULL) are made from
 * the others by store.c. */
#ifndef COMM_STORE_STORE_H
#define COMM_STORE_STORE_H

#include <comm/store.h>
#include <stdatomic.h>

struct store_kind {
    const char *name;
    comm_status (*set)(comm_store *s, const char *key, const void *data, size_t bytes);
    comm_status (*get)(comm_store *s, const char *key, int64_t deadline_ns, void **ret_data, size_t *ret_bytes);
    comm_status (*add)(comm_store *s, const char *key, int64_t amount, int64_t *ret_value);
    comm_status (*compare_set)(comm_store *s, const char *key, const void *expected, size_t expected_bytes,
                               const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes);
    comm_status (*check)(comm_store *s, const char *const *keys, size_t count, int32_t *ret_all);
    comm_status (*remove)(comm_store *s, const char *key, int32_t *ret_existed);
    comm_status (*wait)(comm_store *s, const char *const *keys, size_t count, int64_t deadline_ns);  /* may be NULL */
    comm_status (*append)(comm_store *s, const char *key, const void *data, size_t bytes);           /* may be NULL */
    comm_status (*num_keys)(comm_store *s, int64_t *ret_count);                                      /* may be NULL */
    comm_status (*list_keys)(comm_store *s, char ***ret_keys, size_t *ret_count);                    /* may be NULL */
    comm_status (*multi_get)(comm_store *s, const char *const *keys, size_t count, int64_t deadline_ns, void **data,
                             size_t *bytes);                                                         /* may be NULL */
    comm_status (*multi_set)(comm_store *s, const char *const *keys, size_t count, const void *const *data,
                             const size_t *bytes);                                                   /* may be NULL */
    comm_status (*queue_push)(comm_store *s, const char *key, const void *data, size_t bytes);       /* may be NULL */
    comm_status (*queue_pop)(comm_store *s, const char *key, int64_t deadline_ns, int32_t may_wait, void **ret_data,
                             size_t *ret_bytes);                                                     /* may be NULL */
    comm_status (*queue_len)(comm_store *s, const char *key, int64_t *ret_count);                    /* may be NULL */
    comm_status (*barrier)(comm_store *s, const char *key, int32_t world_size, int64_t deadline_ns); /* may be NULL */
    comm_status (*clone)(comm_store *s, comm_store **ret_store); /* may be NULL: another reference */
    void (*interrupt)(comm_store *s); /* may be NULL: make waiting calls return ABORTED */
    void (*close)(comm_store *s);     /* the last reference is gone; frees the object */
};

/* Embedded first in each kind's own struct. */
struct comm_store {
    const struct store_kind *kind;
    atomic_int references;
    _Atomic int64_t timeout_ms;
    int32_t owner_pid; /* FORKED elsewhere */
    int32_t port;      /* -1 if none */
    char *host, *url;  /* heap; never NULL once open */
};

/* Fill in the base of a zeroed object; takes nothing, copies `url` and `host`. */
comm_status store_init(comm_store *s, const struct store_kind *kind, const char *url, const char *host, int32_t port,
                       int64_t timeout_ms);
/* The reverse of store_init, for a kind's close. */
void store_finish(comm_store *s);

/* The kinds' constructors; store.c routes comm_store_open to them by scheme. */
comm_status store_hash_open(const char *url, const comm_store_options *options, comm_store **ret_store);
comm_status store_file_open(const char *url, const comm_store_options *options, comm_store **ret_store);
comm_status store_tcp_open(const char *url, const comm_store_options *options, comm_store **ret_store);

#endif
