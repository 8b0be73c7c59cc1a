/* A domain is one process's view of one world: a port to each peer, and all the groups that were opened from the world.
 * All of it is guarded by the lock of the object that embeds it (struct mesh), and the thread that holds the lock may
 * drive the ports. */
#ifndef COMM_EXEC_DOMAIN_H
#define COMM_EXEC_DOMAIN_H

#include <comm/backend.h>
#include <stdatomic.h>

#include "cache.h"
#include "huge_pages.h"
#include "match.h"
#include "port.h"

enum {
    DOMAIN_BUCKETS = 512,
    DOMAIN_CLOSED_MAX = 1024, /* groups closed here whose late frames are answered, not kept */
    DOMAIN_TOLD_MAX = 1024,   /* ends of groups that are not open here yet; 1 KiB each at most */
    DOMAIN_HEARD_MAX = 64,    /* collectives that others have called, and this rank has not */
};

struct exec_group;
struct exec_op;

/* Why a group has ended: the text of the rank that found out. It is passed on unchanged, so all members have the same
 * one. */
struct reason {
    comm_status status;     /* OK: it has not */
    int32_t reporter;       /* that rank, in the group */
    char *text;             /* NULL: there was no memory for it */
    uint64_t lost;          /* the world rank that is lost, plus 1; 0: none */
    int lost_here;          /* to this group, perhaps not to others: it has left, was never heard of, or it is another
                             * backend that has lost it */
};

/* A group that is not open here: closed here, or ended elsewhere before it was opened here. */
struct past_group {
    uint64_t id;
    uint64_t seq;           /* closed here: its last collective */
    int32_t from;           /* told: by that world rank, which may turn out not to be a member */
    struct reason why;      /* closed here before it ended: OK, and the text names the rank that closed it */
};

struct completion {
    comm_work *work;
    comm_status status;
    char *error;
};

struct domain {
    struct port_table peers; /* first: domain_of */
    const int32_t *hosts;    /* [peers.size] which ranks share a host; NULL: not known. The core's */
    struct matching matching;
    struct cache cache;      /* the carrier of frames chooses it */
    struct huge_pages huge_pages; /* a carrier that shares memory chooses them */
    const char *backend;     /* whose parameters groups have: "tcp" */
    int memory;              /* enum select_memory; HOSTS: ranks of one host share it, if there are such */
    int shares_cores;        /* waiting_shares_cores */
    int32_t keeps_from;      /* groups of so many ranks or more reduce payloads where they have come, if they can
                              * (struct kept); 0: none do */
    struct select_overrides *tuning; /* what the file COMM_TUNING has for this backend; NULL: nothing */

    /* What the end of the turn must see to. */
    struct exec_group *ready;  /* groups whose next collective may start */
    struct exec_group *failed; /* groups that have ended, whose operations must end */
    struct exec_op *retired;   /* ops to put back into the pool */
    int64_t due_ns;            /* a deadline that the timer does not know yet; INT64_MAX: none */

    uint64_t world;            /* the id of the world's own group; 0: none */
    struct exec_group *groups;
    struct exec_group *buckets[DOMAIN_BUCKETS]; /* the same by id: each message asks, and a world may have thousands */
    struct unexpected_list unexpected; /* frames of groups that are not open here (yet) */
    struct past_group closed[DOMAIN_CLOSED_MAX], told[DOMAIN_TOLD_MAX]; /* rings: the oldest is forgotten */
    size_t closed_count, told_count;
    struct frame heard[DOMAIN_HEARD_MAX]; /* who called a collective first that has not been called here, as a CALL */
    uint32_t ticks;         /* seconds, roughly: a clock that costs nothing to read */

    struct exec_op *op_pool;
    struct completion *done;
    size_t done_count, done_capacity;
    size_t works_out;       /* submitted and not handed back: all of them fit into `done` */
    atomic_int async_works; /* ops that no thread waits for, under way */
};

/* Take in the rules of a tuning file that are for the backend; `text` may be NULL.  Errors  INVALID (names the line and
 * the cause), NO_MEMORY. */
comm_status domain_tune(struct domain *d, const char *backend, const char *text);

static inline struct domain *domain_of(const struct port *p)
{
    return (struct domain *)p->table;
}

/* The timer should go off then, if it would only later. */
static inline void domain_due(struct domain *d, int64_t due_ns)
{
    if (due_ns < d->due_ns)
        d->due_ns = due_ns;
}

/* For a carrier whose ports leave payloads where they have come. Two ranks with a core each copy at the same time, and
 * gain nothing by that. */
static inline void domain_keeps_payloads(struct domain *d)
{
    d->keeps_from = d->shares_cores ? 2 : 3;
}

#endif
