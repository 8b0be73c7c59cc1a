/* Memory runs out in one rank, at every place in turn: whatever it was doing then ends with an error or with success,
 * and so it does on the other rank; nothing hangs, nothing is left unfinished. The linker puts these allocators in
 * place of the library's (--wrap). */
#include <errno.h>
#include <string.h>

#include "faults.h"

static atomic_int left = -1; /* allocations until those that fail; -1: none does */
static atomic_int failing;   /* so many in a row */
static atomic_int failed;

static int fails(void)
{
    if (atomic_load(&left) < 0)
        return 0;
    if (atomic_load(&left) > 0) {
        atomic_fetch_sub(&left, 1);
        return 0;
    }
    if (atomic_fetch_sub(&failing, 1) <= 0) {
        atomic_store(&left, -1);
        return 0;
    }
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
int __real_posix_memalign(void **ret_memory, size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
int __wrap_posix_memalign(void **ret_memory, size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __real_realloc(memory, bytes);
}

int __wrap_posix_memalign(void **ret_memory, size_t alignment, size_t bytes)
{
    return fails() ? ENOMEM : __real_posix_memalign(ret_memory, alignment, bytes);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

/* ---- */

struct scenario {
    struct page *page;
    int from, many;
};

static void may_end(comm_status status)
{
    if (status != COMM_OK && status != COMM_ERR_NO_MEMORY && comm_status_scope(status) != COMM_SCOPE_OBJECT)
        ranks_fail(__FILE__, __LINE__, "a status that says nothing of memory: %s: %s", comm_status_name(status),
                   comm_last_error());
    if (status == COMM_ERR_PROTOCOL)
        ranks_fail(__FILE__, __LINE__, "the other rank is blamed: %s", comm_last_error());
    CHECK(status == COMM_OK || *comm_last_error() != '\0');
    CHECK(strcmp(comm_last_error(), comm_status_name(status)) != 0);
}

static void one_runs_out(int rank, int size, void *arg)
{
    enum { WORKS = 100 };
    struct scenario *s = arg;
    comm_group *world = fault_world();
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    comm_work *works[WORKS] = { NULL };
    static uint8_t data[WORKS][2000];
    CHECK_OK(menu_do(world, MENU_ALL_REDUCE_LARGE, WAIT_CALL, NULL)); /* the test's own buffers; a connection */
    limit.timeout_ms = 1500; /* an operation that only one side could begin */
    fault_meet(s->page);
    if (rank == 1) {
        atomic_store(&failing, s->many);
        atomic_store(&left, s->from);
    }
    for (int i = 0; i < WORKS; i++)
        may_end(i % 2 == rank ? comm_send(world, data[i], sizeof data[i], COMM_DTYPE_U8, !rank, &limit, &works[i])
                              : comm_recv(world, data[i], sizeof data[i], COMM_DTYPE_U8, !rank, &limit, &works[i]));
    may_end(menu_do(world, MENU_ALL_TO_ALL, WAIT_CALL, &limit));
    may_end(menu_do(world, MENU_COALESCED, WAIT_CALLBACK, &limit));
    may_end(menu_do(world, MENU_REDUCE_SCATTER, WAIT_WORK, &limit));
    for (int i = 0; i < WORKS; i++)
        if (works[i]) {
            may_end(comm_work_wait(works[i], 0));
            comm_work_release(works[i]);
        }
    atomic_store(&left, -1);
    if (rank == 1)
        atomic_store(&s->page->values[0], atomic_load(&failed));
    (void)size;
    CHECK_OK(fault_close(world));
}

int main(int count, char **arguments)
{
    int bad = 0, from = 0, runs = 0, step = count > 1 ? atoi(arguments[1]) : 1;
    for (int reached = 1; reached && !bad; from += from < 20 ? 1 : step * (1 + from / 12), runs++) {
        struct scenario s = { .page = page_new(2), .from = from, .many = runs % 3 ? 1 : 40 };
        char name[60];
        snprintf(name, sizeof name, "allocation %d and %d more fail", from, s.many - 1);
        struct ranks_options options = { .limit_s = 25, .name = name };
        bad = fault_run(2, &options, one_runs_out, &s);
        reached = atomic_load(&s.page->values[0]) > 0;
        page_free(s.page);
    }
    printf("%d runs, up to allocation %d\n", runs, from);
    return bad || runs < 20;
}
