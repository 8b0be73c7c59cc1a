/* Every row of docs/mapping.md, tried from outside: each case calls what its row names, on however many ranks the
 * launcher started, and checks the results. Includes the public headers only.
 *
 *     commrun -n 3 rows            all cases            rows --list      their names
 *     commrun -n 3 rows NAME...    some of them */
#ifndef COMM_TESTS_ROWS_H
#define COMM_TESTS_ROWS_H

#include <comm/comm.h>
#include <comm/store.h>
#include <stdint.h>

struct place {
    comm_group *world;
    int rank, size;
    const char *folder; /* that all ranks share; for files */
};

struct row_case {
    const char *name;
    void (*run)(const struct place *p);
};

/* Each ends with a NULL name. */
extern const struct row_case rows_stores[], rows_groups[], rows_meshes[], rows_collectives[], rows_messages[],
    rows_works[], rows_looking[];

void rows_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));

#define IS(condition)                                                                                                  \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            rows_fail(__FILE__, __LINE__, "%s is not so", #condition);                                                 \
    } while (0)

/* Every error about a time limit says "timed out". */
#define OK(call) GIVES(COMM_OK, call)

#define GIVES(expected, call)                                                                                          \
    do {                                                                                                               \
        comm_status gives_ = (call);                                                                                   \
        if (gives_ != (expected))                                                                                      \
            rows_fail(__FILE__, __LINE__, "%s gave %s: %s", #call, comm_status_name(gives_), comm_last_error());       \
        if ((gives_ == COMM_ERR_TIMEOUT || gives_ == COMM_ERR_DEADLINE) && !rows_error_has("timed out"))               \
            rows_fail(__FILE__, __LINE__, "'%s' does not say 'timed out'", comm_last_error());                         \
    } while (0)

#define SAYS(words)                                                                                                    \
    do {                                                                                                               \
        if (!rows_error_has(words))                                                                                    \
            rows_fail(__FILE__, __LINE__, "'%s' does not say '%s'", comm_last_error(), words);                         \
    } while (0)
int rows_error_has(const char *words);

/* What most cases need: a sum over a group, and waiting for a work and letting go of it. */
int64_t rows_sum(comm_group *group, int64_t value);
void rows_finish(comm_work *work);
/* A key that no other call of this process has had; the same on all ranks, as they run the same cases. */
const char *rows_fresh_key(void);

#endif
