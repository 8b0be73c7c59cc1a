/* A carrier moves the frames of some of a domain's ports. The rest is its driver's, which has ports of its own: links
 * to ranks of other hosts, beside memory that is shared with those of this one. A carrier has no lock, no threads and
 * no sleep: it does its part when the driver calls. All calls are with the domain's lock, but for `resolve`,
 * `end_turn` and those for memory. */
#ifndef COMM_EXEC_CARRIER_H
#define COMM_EXEC_CARRIER_H

#include <comm/backend.h>
#include <stdatomic.h>

#include "domain.h"
#include "waiting.h"

/* What a carrier asks of the driver. */
struct carrier_driver {
    /* The domain's lock, for a thread that does not have it; for a short time. */
    void (*enter)(struct domain *d);
    void (*leave)(struct domain *d);
    /* There is something for the helper thread alone to do: `resolve`. */
    void (*wake_helper)(struct domain *d);
    /* If the helper sleeps, it must look again at what it sleeps for. */
    void (*rouse_helper)(struct domain *d);
    /* The program has closed all descriptors: do without them. */
    void (*forget_descriptors)(struct domain *d);
};

struct carrier {
    const struct carrier_ops *ops;
    int fd; /* once it is open: a sleeping thread wakes up when this is readable, and calls look_around */
};

/* What of the driver concerns a thread that looks for the driver, with the lock, while it does an op at once. */
struct carrier_looks {
    struct waiting *waiting;
    const atomic_int *contenders; /* threads that want the lock for a short time: make room */
    atomic_uint *runs;            /* counts ops that were done at once, so that the helper need not look */
};

/* What a carrier does for the driver. */
struct carrier_ops {
    /* What reaches outside: also before the other ranks are told where this one is. */
    comm_status (*open)(struct carrier *c);
    /* Write what is queued at one of its ports, and take in what has come there; 1 if something has. */
    int (*look)(struct port *p);
    /* The same at all of its ports, and connections that come and go. */
    int (*look_around)(struct carrier *c);
    /* From now on no thread polls until `fd` is readable; 0 if something is there already. `awake`: a thread polls
     * again; costs nothing if one did already. */
    int (*asleep)(struct carrier *c);
    void (*awake)(struct carrier *c);
    /* The slot `run` of a backend, for a collective of ranks that all are the carrier's, or a send or receive. */
    comm_status (*run)(struct carrier *c, struct exec_group *g, const comm_op *op, int64_t spin_ns);
    /* An op was run, or one that `run` has refused is submitted: without the lock. May yield the core. */
    void (*end_turn)(struct exec_group *g);
    /* The slots memory_open and memory_close of a backend, without the lock. */
    comm_status (*memory_open)(struct carrier *c, comm_memory_info *info, void **ret_handle);
    void (*memory_close)(struct carrier *c, void *handle);
    /* What is due by now; when to come again. */
    void (*timer)(struct carrier *c, int64_t now_ns);
    int64_t (*due_ns)(const struct carrier *c);
    /* Find peers that are wanted, until *stop, if that is not NULL. Takes a while: without the lock. */
    void (*resolve)(struct carrier *c, const atomic_int *stop);
    /* Send BYE to all peers that have not got it yet. Returns 1 as long as there is something to deliver. */
    int (*leave)(struct carrier *c);
    void (*close)(struct carrier *c);
    /* The ports, too. */
    void (*destroy)(struct carrier *c);
    /* In a child of fork(): close the descriptors, and nothing else. */
    void (*close_descriptors)(struct carrier *c);
};

/* Memory that is shared with the other ranks of this host (backend_shm): takes the place of the ports to them, in a
 * domain that has a port for each rank. */
comm_status carrier_create_shm(struct domain *d, const struct carrier_driver *driver, const struct carrier_looks *looks,
                               const comm_world_info *info, struct carrier **ret_carrier);

#endif
