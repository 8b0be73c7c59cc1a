/* store.h: the key-value store that brings processes together.
 *
 *     comm_store *store;
 *     void *address;
 *     if (comm_store_open("tcp://node0:29500", NULL, &store) != COMM_OK ||
 *         comm_store_set(store, "rank1", "10.0.0.2", 8) != COMM_OK ||
 *         comm_store_get(store, "rank0", 0, &address, NULL) != COMM_OK) { ... comm_last_error() ... }
 *     comm_free(address);
 *     comm_store_close(store);
 *
 * All stores behave alike, and one conformance suite runs on all of them: `tcp` speaks PyTorch's TCPStore protocol
 * byte for byte, as client and as server; `file` is one file that all processes can reach; `hash` lives in this
 * process; `prefix` puts a name before the keys of another store; and you can bring your own (comm_store_create).
 * What a store cannot do is UNSUPPORTED: queues and list_keys with a PyTorch server that is too old for them;
 * num_keys and list_keys with a store of your own that has none.
 *
 * Keys are NUL-terminated, of 1 to 8191 bytes (with the prefix, if there is one), usually UTF-8 but any bytes will
 * do. Values are any bytes, up to 8 MiB. A key stays until it is deleted, or as long as the store.
 *
 * The notation is that of comm/comm.h. For every call here, unless it says otherwise:
 * Memory   borrows its arguments; results are written on success only.
 * Threads  any. A call that waits does not block other threads' calls on the same handle.
 * Errors   INVALID (an argument; nothing has happened), TIMEOUT (names the keys, and how long it waited), ABORTED
 *          (another thread closes the handle), PEER_LOST (the server went away, or the file was deleted: close the
 *          store), PROTOCOL (the file is damaged, or the server talks nonsense), SYSTEM, NO_MEMORY, FORKED.
 * `timeout_ms`: 0 is the handle's own (5 minutes unless set), COMM_TIMEOUT_INFINITE waits for ever. Calls without one
 * take the handle's, as their limit for the server's answer or the file's lock. A view has a timeout of its own.
 * Promise  no call takes longer than its limit and half a second, whatever the server, its host or the network do. The
 *          limit is that of the whole call: resolving a name, connecting, waiting for another thread's request, and all
 *          steps of a call that is made of several. TIMEOUT tells a server that does not answer (its address, what was
 *          asked) from keys that are not there, and from a file that another process has locked. What the promise
 *          cannot cover: a file system that hangs, and the functions of a store of your own (see there). A queue_pop to
 *          which the server did not answer may have taken an item all the same.
 */
#ifndef COMM_STORE_H
#define COMM_STORE_H

#include <comm/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct comm_store_options {
    uint32_t struct_bytes;
    int32_t serve;         /* tcp: 1 runs the server in this process, on a thread of its own, until the store is closed
                            * */
    int64_t timeout_ms;    /* to open, and then the handle's own; 0: 5 minutes; COMM_TIMEOUT_INFINITE: no limit; other
                            * negative numbers are INVALID */
    int32_t world_size;    /* 0: not known; negative: INVALID. tcp: a client that gives it is counted as joined; with
                              serve, open returns when world_size clients have joined. file: how many will open it;
                              more are refused, and the last to close removes the file */
    int32_t listen_fd_plus_one; /* tcp, serve: an already listening socket, plus one; the store takes it */
    const char *bind;      /* tcp, serve: the address to listen on; NULL: the URL's host if it is one, else all */
    int32_t multi_tenant;  /* tcp, serve: 1 shares the server with this process's other such stores at the same address
                              and port; the last of them to close ends it */
    int32_t reserved;      /* 0, else INVALID */
} comm_store_options;
#define COMM_STORE_OPTIONS_INIT { (uint32_t)sizeof(comm_store_options), 0, 0, 0, 0, NULL, 0, 0 }

/* Open a store by its URL:
 *   tcp://host:port      IPv6 in brackets; port 0 (serve only) lets the system choose: see comm_store_port
 *   file:///path         a regular file that all processes can reach, made if it is not there; %20 is a blank;
 *                        ?world_size=N stands for the option. It grows with every change, and a new opener reads it
 *                        all. A process that has closed the file of a whole world, and opens it again, waits until
 *                        the last of that world has closed and removed it
 *   hash://name          shared by all openers of that name in this process, as long as one of them has it open;
 *                        hash:// alone is a fresh one
 * A file whose openers have all died without closing it is left from a crashed job, and refused; the text names them.
 * Memory  gives *ret_store (comm_store_close).
 * Errors  INVALID (quotes the part of the URL, or the option; the file is left over, or its world is complete),
 *         NOT_FOUND (unknown scheme), TIMEOUT (no answer: says host, address, and the last refusal; serve: says how
 *         many clients have joined; or the file is still that of the last world), SYSTEM (for example the port is
 *         taken), PROTOCOL (the file is something else). */
COMM_API comm_status comm_store_open(const char *url, const comm_store_options *options, comm_store **ret_store);

/* Close; NULL is fine. Calls of other threads that wait on this handle end with ABORTED first; after that the handle
 * must not be used. A serving store ends its server, and with it the store of all its clients. Waits for nothing but a
 * file's lock, for at most a second. */
COMM_API void comm_store_close(comm_store *store);

/* A view of `store` in which every key begins with "prefix/" (PyTorch's PrefixStore); views can be nested. It lives
 * on its own: the inner store stays open until the last view is closed. It begins with the timeout of `store`.
 * Memory  gives *ret_store. */
COMM_API comm_status comm_store_prefix(const char *prefix, comm_store *store, comm_store **ret_store);

/* A second handle to the same data (tcp: on connections of its own). Closing one does not touch the other, but a
 * clone of a serving store does not keep its server.  Memory  gives *ret_store. */
COMM_API comm_status comm_store_clone(comm_store *store, comm_store **ret_store);

/* What it is: "tcp", "file", "hash", "prefix" or your own name; the host and port of a tcp store, or of the one
 * behind a view (the chosen port for port 0; "" and -1 for others); the URL, as errors show it (a view's is its inner
 * store's); this handle's timeout. set_timeout: 0 is 5 minutes.  Memory  lends, until the handle is closed. */
COMM_API const char *comm_store_kind(const comm_store *store);
COMM_API const char *comm_store_url(const comm_store *store);
COMM_API const char *comm_store_host(const comm_store *store);
COMM_API int32_t comm_store_port(const comm_store *store);
COMM_API int64_t comm_store_timeout(const comm_store *store);
COMM_API comm_status comm_store_set_timeout(comm_store *store, int64_t timeout_ms);

/* Put; overwrites. 0 bytes are a legal value. (tcp: set, multi_set, append and queue_push return when the request is
 * under way, for the protocol has no answer to them; this handle's later calls see it, another process a moment
 * later. get and wait there do the rest.) */
COMM_API comm_status comm_store_set(comm_store *store, const char *key, const void *data, size_t bytes);

/* Wait until the key exists, then give its value, with a NUL byte after it that is not counted. ret_bytes may be NULL
 * (here and below).
 * Memory  gives *ret_data (comm_free). */
COMM_API comm_status comm_store_get(comm_store *store, const char *key, int64_t timeout_ms, void **ret_data,
                                    size_t *ret_bytes);

/* Add to a decimal number, which begins at 0; gives the new one (ret_value may be NULL). add(key, 0) reads it, and
 * makes the key if it is not there.  Errors  INVALID (the value is not a number, or it would overflow; the store is
 * unharmed). */
COMM_API comm_status comm_store_add(comm_store *store, const char *key, int64_t amount, int64_t *ret_value);

/* If the value equals `expected`, or `expected` is empty and the key does not exist, store `desired`, in one step.
 * Gives the value that the key has afterwards; for a key that does not exist and was not made, `expected` (c10d's
 * rule). To learn whether this call stored the value, make `desired` unique, for example by adding the rank.
 * Memory  gives *ret_data (comm_free). */
COMM_API comm_status comm_store_compare_set(comm_store *store, const char *key, const void *expected,
                                            size_t expected_bytes, const void *desired, size_t desired_bytes,
                                            void **ret_data, size_t *ret_bytes);

/* Put `data` at the end of the value; a missing key is made.  Errors  INVALID (it would be longer than 8 MiB). */
COMM_API comm_status comm_store_append(comm_store *store, const char *key, const void *data, size_t bytes);

/* *ret_all is 1 if all keys exist, else 0. Does not wait for them. At most 131072 keys at once, here and below. (tcp:
 * check and wait take a name with something in its queue for a key that is there, as PyTorch's server does.) */
COMM_API comm_status comm_store_check(comm_store *store, const char *const *keys, size_t count, int32_t *ret_all);

/* Wait until all keys exist.  Errors  TIMEOUT names the keys that are missing. */
COMM_API comm_status comm_store_wait(comm_store *store, const char *const *keys, size_t count, int64_t timeout_ms);

/* *ret_existed (may be NULL) is 1 if the key was there. */
COMM_API comm_status comm_store_delete(comm_store *store, const char *key, int32_t *ret_existed);

/* How many keys there are, without queues. A prefix store counts the whole inner store; a tcp store counts "init/",
 * where openers with a world_size are counted.  Errors  UNSUPPORTED (see above). */
COMM_API comm_status comm_store_num_keys(comm_store *store, int64_t *ret_count);

/* All keys of this view, without its prefix, in no order.
 * Memory  gives *ret_keys, an array and its strings in one block (comm_free).  Errors  UNSUPPORTED (see above). */
COMM_API comm_status comm_store_list_keys(comm_store *store, char ***ret_keys, size_t *ret_count);

/* Several at once; not in one step: others may see some of them first. multi_get waits until all are there, and
 * writes data[i] and bytes[i] for each key.  Memory  gives each data[i] (comm_free); on failure none, though some may
 * have been overwritten. */
COMM_API comm_status comm_store_multi_get(comm_store *store, const char *const *keys, size_t count, int64_t timeout_ms,
                                          void **data, size_t *bytes);
COMM_API comm_status comm_store_multi_set(comm_store *store, const char *const *keys, size_t count,
                                          const void *const *data, const size_t *bytes);

/* First-in first-out queues, in a name space of their own. pop takes the first item, for this caller alone. It waits
 * for one unless timeout_ms is COMM_STORE_NO_WAIT.  Memory  pop gives *ret_data (comm_free).
 * Errors  NOT_FOUND (NO_WAIT, and it is empty), UNSUPPORTED (see above). */
#define COMM_STORE_NO_WAIT ((int64_t)-2)
COMM_API comm_status comm_store_queue_push(comm_store *store, const char *key, const void *data, size_t bytes);
COMM_API comm_status comm_store_queue_pop(comm_store *store, const char *key, int64_t timeout_ms, void **ret_data,
                                          size_t *ret_bytes);
COMM_API comm_status comm_store_queue_len(comm_store *store, const char *key, int64_t *ret_count);

/* Wait until `world_size` callers have come to `key`. Each use needs a fresh key; a caller that gave up stays counted.
 * Errors  TIMEOUT says how many came. */
COMM_API comm_status comm_store_barrier(comm_store *store, const char *key, int32_t world_size, int64_t timeout_ms);

/* Collectives of byte strings over a store, for before there is a group, or after it has ended. Every rank calls with
 * the same key, root and world_size. Each use needs a fresh key: the parts stay at "KEY/<rank>" and "KEY/<rank>/uses".
 * After every rank has returned, and all know it (by a barrier), each may delete its two with comm_store_delete; then
 * the key is fresh again. They are as slow as the store. A barrier that names the missing ranks is an all_gather of
 * nothing.
 * Results are as those of the byte strings of comm.h: all_gather and gather (at the root; NULL elsewhere) give the
 * strings one after the other, and their lengths. all_sum wraps around. (c10d's store collectives.)
 * Memory   borrows; gives *ret_data and *ret_bytes of gathers (comm_free).
 * Errors   TIMEOUT (names the ranks that have not come), INVALID (also if this rank has used the key already). */
COMM_API comm_status comm_store_broadcast(comm_store *store, const char *key, const void *data, size_t bytes,
                                          int32_t root, int32_t rank, int32_t world_size, int64_t timeout_ms,
                                          void **ret_data, size_t *ret_bytes);
COMM_API comm_status comm_store_gather(comm_store *store, const char *key, const void *data, size_t bytes, int32_t root,
                                       int32_t rank, int32_t world_size, int64_t timeout_ms, void **ret_data,
                                       size_t **ret_bytes);
COMM_API comm_status comm_store_scatter(comm_store *store, const char *key, const void *const *data,
                                        const size_t *bytes, int32_t root, int32_t rank, int32_t world_size,
                                        int64_t timeout_ms, void **ret_data, size_t *ret_bytes);
COMM_API comm_status comm_store_all_gather(comm_store *store, const char *key, const void *data, size_t bytes,
                                           int32_t rank, int32_t world_size, int64_t timeout_ms, void **ret_data,
                                           size_t **ret_bytes);
COMM_API comm_status comm_store_all_sum(comm_store *store, const char *key, int64_t value, int32_t rank,
                                        int32_t world_size, int64_t timeout_ms, int64_t *ret_sum);

/* ---- A store of your own ----------------------------------------------------------------------
 *
 * Fill in what you have. `set`, `get`, `add`, `compare_set`, `check` and `remove` are needed. The rest may be NULL
 * and is made from them, with keys of ours beside the user's ("KEY/queue/...", "KEY/appending"); only num_keys and
 * list_keys cannot be made, and are UNSUPPORTED then.
 *
 * Each function does what the public call of its name does, with these differences. Arguments have been checked. A
 * key has at most 8191 bytes, and "prefix/" in front if it came through a view. `timeout_ms` is above 0 and short:
 * `get`, `wait` and `queue_pop` return TIMEOUT when it is over, and are called again until the caller's time is over or
 * the handle is closed (queue_pop also gets COMM_STORE_NO_WAIT, and then returns NOT_FOUND from an empty queue). Values
 * need no NUL behind them.
 *
 * The library cannot interrupt a function of yours. So a call on such a store takes at most its limit, plus half a
 * second, plus the rest of the function that is running then; where a half-done step must be undone (append, queues),
 * one more function is called. Otherwise no function is begun after the limit: if your functions have limits of their
 * own, all calls keep within them.
 *
 * Memory   what you give back must come from comm_alloc() or malloc(); on failure give nothing.
 * Threads  you are called from any thread, from several at the same time.
 * Errors   return the status, and write a text for people into `error`, of at most `capacity` bytes with its NUL. */
typedef struct comm_store_ops {
    uint32_t struct_bytes;
    const char *name; /* "redis" */
    comm_status (*set)(void *context, const char *key, const void *data, size_t bytes, char *error, size_t capacity);
    comm_status (*get)(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                       char *error, size_t capacity);
    comm_status (*add)(void *context, const char *key, int64_t amount, int64_t *ret_value, char *error,
                       size_t capacity);
    comm_status (*compare_set)(void *context, const char *key, const void *expected, size_t expected_bytes,
                               const void *desired, size_t desired_bytes, void **ret_data, size_t *ret_bytes,
                               char *error, size_t capacity);
    comm_status (*check)(void *context, const char *const *keys, size_t count, int32_t *ret_all, char *error,
                         size_t capacity);
    comm_status (*remove)(void *context, const char *key, int32_t *ret_existed, char *error, size_t capacity);
    comm_status (*wait)(void *context, const char *const *keys, size_t count, int64_t timeout_ms, char *error,
                        size_t capacity);
    comm_status (*append)(void *context, const char *key, const void *data, size_t bytes, char *error, size_t capacity);
    comm_status (*num_keys)(void *context, int64_t *ret_count, char *error, size_t capacity);
    comm_status (*list_keys)(void *context, char ***ret_keys, size_t *ret_count, char *error, size_t capacity);
    comm_status (*queue_push)(void *context, const char *key, const void *data, size_t bytes, char *error,
                              size_t capacity);
    comm_status (*queue_pop)(void *context, const char *key, int64_t timeout_ms, void **ret_data, size_t *ret_bytes,
                             char *error, size_t capacity);
    comm_status (*queue_len)(void *context, const char *key, int64_t *ret_count, char *error, size_t capacity);
    void (*close)(void *context);
} comm_store_ops;

/* Memory  borrows ops (it is copied); takes context (ops->close gets it back; on failure it stays yours); gives
 *         *ret_store (comm_store_close).
 * Errors  INVALID (a function that is needed is missing), VERSION (ops has functions that this library does not know).
 *         */
COMM_API comm_status comm_store_create(const comm_store_ops *ops, void *context, comm_store **ret_store);

/* ---- Rendezvous -------------------------------------------------------------------------------
 *
 * Turn a URL into a store, a rank and a world size. comm_init does this for you. rank and world_size are taken from
 * the URL's query (?rank=&world_size=), else from the arguments, else from the launcher; giving one twice is an error.
 *   env://               MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, or what torchrun, mpirun, srun or commrun say
 *   tcp://host:port      rank 0 serves, all ranks connect; several rendezvous of one process share the server. Port 0
 *                        is for a world of one: no other rank could find it
 *   file:///path
 * Arguments: world_size 0 means not given.
 * Memory  gives *ret_store (comm_store_close).
 * Errors  INVALID (the URL, a variable, ranks that do not fit), NOT_FOUND (unknown scheme; no launcher says the rank),
 *         and those of comm_store_open. */
COMM_API comm_status comm_rendezvous(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms,
                                     comm_store **ret_store, int32_t *ret_rank, int32_t *ret_world_size);

/* Add a scheme. `fn` has comm_rendezvous's contract, and writes a text of at most `capacity` bytes to `error` if it
 * fails.
 * Memory   keeps fn and context for as long as the process lives.
 * Threads  any; fn is called by the threads that use the scheme, also by several at the same time.
 * Errors   INVALID (the scheme is taken, or is no scheme). */
typedef comm_status (*comm_rendezvous_fn)(const char *url, int32_t rank, int32_t world_size, int64_t timeout_ms,
                                          comm_store **ret_store, int32_t *ret_rank, int32_t *ret_world_size,
                                          void *context, char *error, size_t capacity);
COMM_API comm_status comm_rendezvous_register(const char *scheme, comm_rendezvous_fn fn, void *context);

#ifdef __cplusplus
}
#endif

#endif
