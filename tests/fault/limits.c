/* comm_init with hardly any descriptors or memory, or where files may not be large: it gives a status with a text,
 * whatever it ran out of; the other ranks get the same reason if this one had joined; and nothing is left behind.
 *     fault_limits        a sample
 *     fault_limits all    every RLIMIT_NOFILE from 3 to 40, every RLIMIT_AS from 10 to 200 MB */
#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "faults.h"

enum { INIT_MS = 2500, SLACK_MS = 2500 };

struct scenario {
    struct page *page;
    int limit;
    rlim_t value;
    uint64_t limited; /* bit r: rank r has it */
    int port;         /* 0: the ranks meet in a file, else rank 0 serves */
};

static void restrict_self(int limit, rlim_t value)
{
    struct rlimit r = { value, value };
    CHECK(setrlimit(limit, &r) == 0);
}

/* What came of it is written to the page: the status and the text. */
static void try_init(int rank, int size, struct scenario *s)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_op_options limit = COMM_OP_OPTIONS_INIT;
    char url[300];
    comm_group *world = (comm_group *)8;
    float value = 1;
    options.rendezvous = url;
    options.rank = rank;
    options.world_size = size;
    options.timeout_ms = INIT_MS;
    limit.timeout_ms = 2000;
    if (s->port)
        snprintf(url, sizeof url, "tcp://127.0.0.1:%d", s->port);
    else
        snprintf(url, sizeof url, "file://%s/meet", ranks_folder());
    int64_t began = fault_now_ns();
    comm_status status = comm_init(&options, &world);
    int64_t took_ms = (fault_now_ns() - began) / 1000000;
    atomic_store(&s->page->values[rank], status);
    snprintf(s->page->text[rank], sizeof s->page->text[0], "%s", status == COMM_OK ? "" : comm_last_error());
    if (took_ms > INIT_MS + SLACK_MS)
        ranks_fail(__FILE__, __LINE__, "comm_init took %lld ms: %s", (long long)took_ms, s->page->text[rank]);
    if (status != COMM_OK) {
        CHECK(*comm_last_error() && world == (comm_group *)8);
        return;
    }
    status = comm_all_reduce(world, &value, &value, 1, COMM_DTYPE_F32, COMM_REDOP_SUM, &limit, NULL);
    CHECK(status == COMM_OK || s->limit != RLIMIT_FSIZE); /* it has smaller rings, or tcp */
    CHECK(status == COMM_OK ? value == (float)size : *comm_last_error() != '\0');
    (void)comm_group_close(world);
}

static void some_have_little(int rank, int size, void *arg)
{
    struct scenario *s = arg;
    close_range(3, ~0u, 0); /* what the test itself has open does not count */
    if (s->limited >> rank & 1)
        restrict_self(s->limit, s->value);
    try_init(rank, size, s);
    if (FAULT_MEMORY_FACTOR > 1 && (s->limited >> rank & 1))
        _exit(0); /* a leak checker needs descriptors, too */
}

/* A rank that had joined told the others why: then all have the same text, after the part that names the rank
 * itself. */
static int check_texts(const struct scenario *s, int size)
{
    const char *told = NULL;
    for (int r = 0; r < size && !told; r++)
        told = strstr(s->page->text[r], "cannot open the world: ");
    for (int r = 0; told && r < size; r++)
        if (!strstr(s->page->text[r], told)) {
            fprintf(stderr, "rank %d has '%s', not '%s'\n", r, s->page->text[r], told);
            return 1;
        }
    return 0;
}

static int run(int size, int limit, rlim_t value, uint64_t limited, int serve)
{
    struct scenario s = { page_new(size), limit, value, limited, serve ? fault_free_port() : 0 };
    char name[100];
    snprintf(name, sizeof name, "%d ranks at %s, 0x%llx with %s %llu", size, serve ? "rank 0's server" : "a file",
             (unsigned long long)limited,
             limit == RLIMIT_NOFILE ? "RLIMIT_NOFILE"
             : limit == RLIMIT_AS   ? "RLIMIT_AS"
                                    : "RLIMIT_FSIZE",
             (unsigned long long)value);
    struct ranks_options options = { .limit_s = 30, .name = name };
    int failed = ranks_run(size, &options, some_have_little, &s) || check_texts(&s, size);
    printf("%s:", name);
    for (int r = 0; r < size; r++)
        printf(" %lld", (long long)atomic_load(&s.page->values[r]));
    printf("  %.200s\n", s.page->text[limited & 1 ? 0 : 1]);
    fflush(stdout);
    page_free(s.page);
    return failed;
}

static int sweep(int limit, rlim_t value)
{
    return run(2, limit, value, 1 << 1, 0) | run(2, limit, value, 1 << 1, 1) | run(2, limit, value, 1 << 0, 1) |
           run(3, limit, value, 7, 0);
}

/* ---- Nothing is left ---- */

static int entries(const char *folder)
{
    int count = 0;
    DIR *d = opendir(folder);
    CHECK(d != NULL);
    while (readdir(d))
        count++;
    closedir(d);
    return count;
}

/* The backend opens, but for its last step: the algorithm that is asked for does not exist. */
static void failures_leave_nothing(int rank, int size, void *arg)
{
    enum { TIMES = 100, WARM = 3 };
    int files = 0, threads = 0;
    (void)arg;
    setenv("COMM_TCP_ALGO", "all_reduce:nonesuch", 1);
    for (int i = 0; i < TIMES; i++) {
        comm_init_options options = COMM_INIT_OPTIONS_INIT;
        char name[32];
        comm_group *world;
        snprintf(name, sizeof name, "world-%d", i);
        options.name = name;
        options.timeout_ms = 20000;
        options.backend = i % 2 ? "cpu:nonesuch" : "tcp";
        CHECK_STATUS(ranks_init(&options, &world), i % 2 ? COMM_ERR_NOT_FOUND : COMM_ERR_INVALID);
        CHECK_ERROR_SAYS("cannot open the world: ");
        if (i % 2 == 0)
            CHECK_ERROR_SAYS("opening backend 'tcp': the option 'algo' (or its variable in the environment): ");
        if (i == WARM) {
            files = entries("/proc/self/fd");
            threads = entries("/proc/self/task");
        }
    }
    CHECK(entries("/proc/self/fd") == files);
    CHECK(entries("/proc/self/task") == threads);
    (void)rank;
    (void)size;
}

int main(int count, char **arguments)
{
    static const rlim_t few[] = { 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 24, 30, 40 };
    static const rlim_t large[] = { 8 << 10, 36 << 10, 100 << 10, 1 << 20, 6 << 20 };
    static const rlim_t little[] = { 10, 40, 60, 80, 120, 200 };
    int all = count > 1 && strcmp(arguments[1], "all") == 0, failed = 0;
    signal(SIGPIPE, SIG_IGN);
    failed |= ranks_run(2, &(struct ranks_options){ .name = "failures leave nothing" }, failures_leave_nothing, NULL);
    for (rlim_t n = 3; all && n <= 40; n++)
        failed |= sweep(RLIMIT_NOFILE, n);
    for (size_t i = 0; !all && i < sizeof few / sizeof *few; i++)
        failed |= run(2, RLIMIT_NOFILE, few[i], 1ull << i % 2, (int)(i / 2) % 2);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        failed |= run(2, RLIMIT_FSIZE, large[i], 1ull << i % 2, 1) | run(3, RLIMIT_FSIZE, large[i], 7, 1);
    if (FAULT_MEMORY_FACTOR > 1) { /* a sanitizer's own memory is many times that */
        puts("no RLIMIT_AS with sanitizers");
        return failed;
    }
    for (rlim_t mb = 10; all && mb <= 200; mb++)
        failed |= sweep(RLIMIT_AS, mb << 20);
    for (size_t i = 0; !all && i < sizeof little / sizeof *little; i++)
        failed |= run(3, RLIMIT_AS, little[i] << 20, i % 2 ? 7 : 2, (int)i % 2);
    return failed;
}
