/* What the fault tests share: a menu of operations, ways of waiting for them, and a page of memory that all ranks see,
 * so that one rank can tell the others, and the test's end, what it does and when, without a message of libcomm's. */
#ifndef COMM_TESTS_FAULTS_H
#define COMM_TESTS_FAULTS_H

#include <comm/comm.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ranks.h"

enum { FAULT_RANKS_MAX = 8 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FAULT_MEMORY_FACTOR = 8, FAULT_TIME_FACTOR = 4 }; /* shadow memory is resident too */
#else
enum { FAULT_MEMORY_FACTOR = 1, FAULT_TIME_FACTOR = 1 };
#endif

struct page {
    pthread_barrier_t meeting; /* of all ranks */
    _Atomic int64_t event_ns;  /* CLOCK_MONOTONIC, when the fault happened */
    _Atomic int64_t noticed_ns[FAULT_RANKS_MAX];
    _Atomic int32_t pids[FAULT_RANKS_MAX];
    _Atomic int32_t flags[8]; /* the test's own; fault_raise and fault_await */
    _Atomic int64_t values[8];
    char text[FAULT_RANKS_MAX][1024];
};

/* A fresh page for `size` ranks; before ranks_run, which hands it down. */
struct page *page_new(int size);
void page_free(struct page *page);
int64_t fault_now_ns(void);
/* All ranks come together, without libcomm. */
void fault_meet(struct page *page);
/* Set a flag; wait in the kernel until it is set. Works between processes. */
void fault_raise(struct page *page, int flag);
void fault_await(struct page *page, int flag);
/* Stop a process, and wait until it is. */
void fault_stop(int pid);
int fault_is_stopped(int pid);
/* What a busy machine may add to a time, as it is loaded now. */
int64_t fault_tolerance_ms(void);
/* The longest time from the event until a rank noticed, in milliseconds; prints it. */
double fault_report(const struct page *page, int size, const char *what);
/* The same; 1 if it was longer than `limit_ms` and what a busy machine may add, and says so. */
int fault_noticed_late(const struct page *page, int size, const char *what, int64_t limit_ms);
enum { FAULT_NOTICE_MS = 2000 }; /* a death or a disagreement, also where nothing is under way */

/* The seed of this run: FAULT_SEED in the environment, else of the clock; printed once. */
uint64_t fault_seed(void);
uint64_t fault_random(uint64_t *state);

/* Memory of this process that is in use, and a port of the loopback without a listener. */
long fault_resident_kib(void);
int fault_free_port(void);

/* ---- The group under test ----
 *
 * The tests speak of ranks 0 to size - 1 of a group "world". As a rule that is the world. With FAULT_PERMUTED=1 in the
 * environment it is a group of a larger world, whose ranks have other numbers there (fault_world_rank). Two more ranks,
 * world rank 0 among them, stand by, work in a group of their own, and must not be disturbed. */
int fault_permuted(void);
/* The backend string of the world, which all its ranks must have: to be changed before fault_run only. NULL:
 * fault_backend_name(). */
extern const char *fault_backend;
/* The backend that is tried: tcp, or FAULT_BACKEND in the environment. */
const char *fault_backend_name(void);
/* Does the text end with where a rank is, as that backend writes it: "vm 127.0.0.1:40213", "vm pid 4711"? */
int fault_is_place(const char *text);
/* As ranks_run; fn gets rank and size in the group under test. */
int fault_run(int size, const struct ranks_options *options, void (*fn)(int rank, int size, void *arg), void *arg);
/* Inside fn: open the group under test; with options of the world's own; and close it, and the world. */
comm_group *fault_world(void);
comm_group *fault_world_with(comm_init_options *options);
comm_status fault_close(comm_group *group);
/* End the process at once, with its handles open. */
void fault_vanish(void) __attribute__((noreturn));
/* The rank's number in the world. */
int fault_world_rank(int rank, int size);

/* ---- Operations ---- */

enum menu {
    MENU_ALL_REDUCE,
    MENU_ALL_REDUCE_LARGE,
    MENU_ALL_GATHER,
    MENU_REDUCE_SCATTER,
    MENU_BROADCAST,
    MENU_ALL_TO_ALL,
    MENU_BARRIER,
    MENU_SEND_RECV,
    MENU_SEND_RECV_LARGE,
    MENU_COALESCED,
    MENU_END
};
enum wait_by { WAIT_CALL, WAIT_WORK, WAIT_CALLBACK, WAIT_FD, WAIT_TEST, WAIT_END };

extern const char *const menu_names[MENU_END], *const waiting_names[WAIT_END];

/* Do one operation of the menu and wait for it in the given way. Its status; its text is comm_last_error. */
comm_status menu_do(comm_group *group, enum menu what, enum wait_by how, const comm_op_options *options);
/* Begin it; *ret_work is to be released. */
comm_status menu_begin(comm_group *group, enum menu what, const comm_op_options *options, comm_work **ret_work);
/* Do it until the group ends. A late rank may still find all that it needs of an operation that the others have given
 * up: then the next one tells. */
comm_status menu_until_it_ends(comm_group *group, enum menu what, const comm_op_options *options);
/* Wait for a work in the given way. */
comm_status menu_wait(comm_work *work, enum wait_by how);

/* ---- Texts ---- */

/* The text must name `rank` together with an address: "rank 3 (node-b 10.0.0.7:40213)", or "rank 3 (world rank 1,
 * node-b ...)". */
void check_names(const char *text, int rank, const char *file, int line);
#define CHECK_NAMES(text, rank) check_names(text, rank, __FILE__, __LINE__)
/* The text must say these words right behind the rank's name, with or without an address. */
int says_of(const char *text, int rank, const char *words);
void check_says_of(const char *text, int rank, const char *words, const char *file, int line);
#define CHECK_SAYS_OF(text, rank, words) check_says_of(text, rank, words, __FILE__, __LINE__)
#define CHECK_SAYS(text, words)                                                                                        \
    do {                                                                                                               \
        if (!strstr((text), (words)))                                                                                  \
            ranks_fail(__FILE__, __LINE__, "'%s' does not say '%s'", (text), (words));                                 \
    } while (0)

#endif
