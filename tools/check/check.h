/* What the parts of comm-backend-check share: the settings, the cases, and how a rank reports.
 *
 * A case is a short program that a few ranks run on the backend under test, which is wrapped by `watch.h`. Each case
 * has processes of its own (run.c), or, under a launcher, those that the launcher has started. */
#ifndef COMM_CHECK_H
#define COMM_CHECK_H

#include <comm/comm.h>
#include <comm/store.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CHECK_RANKS_MAX = 9, CHECK_TEXT_BYTES = 1200 };

enum rule {
#define RULE(name, section, words) RULE_##name,
#include "rules.def"
#undef RULE
    RULE_COUNT
};

struct rule_text {
    const char *name, *section, *words;
};
extern const struct rule_text rule_texts[RULE_COUNT];

/* The command line. */
struct settings {
    const char *backend;      /* as it was given */
    char name[300];           /* the backend's name or path, without device and options */
    int ranks;                /* 0: several sizes */
    const char *only;         /* a section, or section.case; NULL: all */
    uint64_t seed;
    double seconds;           /* for the random programs */
    double patience_s;        /* a case that takes longer hangs */
    bool json, lists, as_rank, threads;
};
extern struct settings settings;

struct check_case {
    const char *section, *name;
    const char *what; /* one line for people */
    void (*run)(void);
    int least, most;  /* ranks */
    int dies;         /* how many ranks, the last ones, end as they like */
    bool threads;     /* ranks are threads of one process */
    enum rule hangs;  /* what an operation that does not complete in it means; 0: nothing special */
    bool alone;       /* not under a launcher, nor as threads: it ends a process or begins another one */
    bool counts;      /* what the process has: not as threads */
};
extern const struct check_case check_cases[];
extern const size_t check_case_count;

/* ---- In a rank ---- */

/* Whose thread is this? Threads that a case starts have the process's. */
int self_rank(void);
int self_size(void);
const struct check_case *self_case(void);
/* The seed of this case and size; the same on all ranks. */
uint64_t self_seed(void);
/* What the rank is doing, for the story of one that hangs. */
void self_doing(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The backend has broken a rule. The rank goes on. Several equal ones of a rank are told once. */
void finding(enum rule rule, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with a rank that cannot go on. */
void finding_ends(enum rule rule, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/* A line for people that is no fault; printed once for all ranks. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One fact of the table: `key` is the same for people and for --json. */
void fact(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The backend refuses what the case needs, on all ranks alike: end it. */
void skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Open the world of these ranks; `name` NULL: "world". Ends the rank with a finding if it does not open. */
comm_group *open_world(const char *name);
/* The same; the caller looks at the status. */
comm_status try_world(const char *name, comm_group **ret_world);
/* The store of these ranks, before there is a world; NULL under a launcher. To be closed. */
comm_store *rank_store(void);
/* All ranks of the case come together, by the store and not by the backend. */
void meet(comm_group *world, const char *key);
/* One rank tells; the others wait for it. */
void tell(comm_group *world, const char *key);
void await_told(comm_group *world, const char *key);

int64_t check_now_ns(void);
/* Of this process. */
int thread_count(void);
int descriptor_count(void);

/* ---- report.c ---- */

/* Under a launcher, where a rank goes on with the next case: a jump buffer; NULL: skip ends the process. */
extern jmp_buf *skip_to;

/* Where ranks report to: a descriptor that all of them append lines to. */
void report_to(int fd);
/* The parent: take in what the ranks of a case have written. Returns the number of findings. */
int report_take(FILE *lines, const struct check_case *c, int size, uint64_t seed);
/* The parent itself has something to say about a rank. */
void report_line(FILE *lines, int rank, char kind, const char *rule, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void report_case(const struct check_case *c, int size, int findings, const char *skipped);
/* How many findings there have been. */
int report_count(void);
int report_end(void);

/* ---- run.c ---- */

int run_cases(void);

#endif
