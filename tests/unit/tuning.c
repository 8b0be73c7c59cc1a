/* COMM_TUNING: what a file of rules means, what is wrong with one, and that all ranks read the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/exec/groups.h"
#include "core/exec/say.h"
#include "core/exec/select.h"
#include "core/registry.h"
#include "ranks.h"

/* ---- One file ---- */

static void tune(struct domain *d, const char *backend, const char *text)
{
    exec_host = &comm__host;
    memset(d, 0, sizeof *d);
    CHECK(domain_init(d, backend, 0, 2, NULL));
    CHECK_OK(domain_tune(d, backend, text));
}

static const char *route(const struct domain *d, const char *overrides, struct select_query query)
{
    char error[512];
    struct select_overrides *o = select_overrides_create(overrides, error, sizeof error);
    query.kind = COMM_OP_ALL_REDUCE;
    struct route found = select_route(&query, o, d->tuning);
    select_overrides_destroy(o);
    return found.algo->name;
}

#define CHECK_ROUTE(d, overrides, algorithm, ...)                                                                      \
    CHECK(strcmp(route(d, overrides, (struct select_query){ __VA_ARGS__ }), algorithm) == 0)

static void rules_go_between_the_user_s_and_ours(int rank, int size, void *arg)
{
    static const char text[] = "# measured here\n"
                               "\n"
                               "tcp ranks=2 hosts=1 all_reduce:ring@-4K # for small ones\r\n"
                               "\ttcp  ranks=3-4   all_reduce:direct\n"
                               "shm all_reduce:ring\n"
                               "tcp ranks=9- all_reduce:halving_doubling@1M-";
    static struct domain d;
    (void)rank, (void)size, (void)arg;
    tune(&d, "tcp", text);
    CHECK_ROUTE(&d, "", "ring", .size = 2, .hosts = 1, .bytes = 8);
    CHECK_ROUTE(&d, "", "ring", .size = 2, .hosts = 1, .bytes = 4096);
    CHECK_ROUTE(&d, "", "recursive_doubling", .size = 2, .hosts = 1, .bytes = 4097);
    CHECK_ROUTE(&d, "", "recursive_doubling", .size = 2, .hosts = 2, .bytes = 8);
    CHECK_ROUTE(&d, "", "direct", .size = 3, .hosts = 2, .bytes = 8);
    CHECK_ROUTE(&d, "", "recursive_doubling", .size = 5, .hosts = 1, .bytes = 8);
    CHECK_ROUTE(&d, "", "ring", .size = 8, .hosts = 1, .bytes = 1 << 24);
    CHECK_ROUTE(&d, "", "halving_doubling", .size = 9, .hosts = 1, .bytes = 1 << 24);
    CHECK_ROUTE(&d, "all_reduce:direct@8-8", "direct", .size = 2, .hosts = 1, .bytes = 8);
    domain_finish(&d);
    tune(&d, "shm", text);
    CHECK_ROUTE(&d, "", "ring", .size = 2, .hosts = 1, .bytes = 8, .memory = 1);
    domain_finish(&d);
    tune(&d, "shm", NULL);
    CHECK_ROUTE(&d, "", "one_shot", .size = 2, .hosts = 1, .bytes = 8, .memory = 1);
    domain_finish(&d);
}

static void what_is_wrong_is_said_with_its_line(int rank, int size, void *arg)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        { "# fine\ntcp", "line 2: the rule is missing" },
        { "tcp ranks=2", "line 1: the rule is missing" },
        { "\n\ntcp all_reduce:nonesuch", "line 3: 'all_reduce:nonesuch': no such algorithm for all_reduce; there " },
        { "tcp all_reduce", "line 1: 'all_reduce': an override is OP:ALGORITHM" },
        { "tcp all_reduce:ring@9-3", "line 1: 'all_reduce:ring@9-3': the range must be two numbers" },
        { "tcp all_reduce:ring all_reduce:ring", "line 1: 'all_reduce:ring': a rule ends the line" },
        { "tcp ranks=0 all_reduce:ring", "'ranks=0': a range is a number from 1" },
        { "tcp ranks=3-2 all_reduce:ring", "'ranks=3-2': a range" },
        { "tcp ranks=2-3- all_reduce:ring", "'ranks=2-3-': a range" },
        { "tcp hosts=x all_reduce:ring", "'hosts=x': a range" },
        { "tcp ranks= all_reduce:ring", "'ranks=': a range" },
        { "tcp ranks=99999999999 all_reduce:ring", "'ranks=99999999999': a range" },
    };
    (void)rank, (void)size, (void)arg;
    exec_host = &comm__host;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static struct domain d;
        memset(&d, 0, sizeof d);
        CHECK(domain_init(&d, "tcp", 0, 2, NULL));
        CHECK_STATUS(domain_tune(&d, "tcp", cases[i].text), COMM_ERR_INVALID);
        CHECK_ERROR_SAYS(cases[i].words);
        domain_finish(&d);
    }
}

/* ---- Worlds ---- */

static char said[4096];

static void note(int32_t level, const char *text, void *context)
{
    size_t used = strlen(said);
    (void)level, (void)context;
    snprintf(said + used, sizeof said - used, "%s\n", text);
}

/* A file of this rank's own. */
static void set_tuning(int rank, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tuning-%d", ranks_folder(), rank);
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && fclose(file) == 0);
    setenv("COMM_TUNING", path, 1);
}

static comm_status open_world(comm_group **ret_world)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.backend = "cpu:tcp";
    options.timeout_ms = 20000;
    return ranks_init(&options, ret_world);
}

static void equal_files_may_lie_anywhere(int rank, int size, void *arg)
{
    comm_group *world;
    int32_t sum = 1;
    (void)arg;
    comm_log_set(note, NULL);
    setenv("COMM_EXPLAIN", "1", 1);
    set_tuning(rank, "tcp all_reduce:ring/0\nshm all_reduce:direct\ntcp barrier:dissemination\n");
    CHECK_OK(open_world(&world));
    CHECK_OK(comm_all_reduce(world, &sum, &sum, 1, COMM_DTYPE_I32, COMM_REDOP_SUM, NULL, NULL));
    CHECK(sum == size);
    CHECK((rank == 0) == (strstr(said, "world 'world': 2 rules for tcp from COMM_TUNING=/") != NULL));
    CHECK_OK(comm_group_close(world));
}

static void different_files_are_told_to_all(int rank, int size, void *arg)
{
    comm_group *world;
    const char *own = arg;
    (void)size;
    if (rank == 1)
        set_tuning(rank, "tcp all_reduce:direct\n");
    else if (own)
        set_tuning(rank, own);
    CHECK_STATUS(open_world(&world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the ranks have different tuning files: rank ");
    CHECK_ERROR_SAYS(own ? " has another one. Give" : " has none");
    CHECK_ERROR_SAYS("Give all ranks the same COMM_TUNING");
}

static void a_bad_file_is_told_to_all(int rank, int size, void *arg)
{
    comm_group *world;
    (void)size, (void)arg;
    set_tuning(rank, "# one\ntcp all_reduce:nonesuch\n");
    CHECK_STATUS(open_world(&world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("the file that COMM_TUNING names, line 2: 'all_reduce:nonesuch': no such algorithm");
}

static void a_file_that_is_none(int rank, int size, void *arg)
{
    comm_group *world;
    (void)size, (void)arg;
    set_tuning(rank, "shm all_reduce:direct\n\nshn all_reduce:ring\n");
    CHECK_STATUS(open_world(&world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS(", line 3: there is no backend 'shn'; a rule is ");
    setenv("COMM_TUNING", "/no/such/file", 1);
    CHECK_STATUS(open_world(&world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("COMM_TUNING=/no/such/file: cannot read it: No such file");
    setenv("COMM_TUNING", "/dev/zero", 1);
    CHECK_STATUS(open_world(&world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("COMM_TUNING=/dev/zero: it is no file of rules");
    setenv("COMM_TUNING", "/", 1);
    CHECK_STATUS(open_world(&world), COMM_ERR_INVALID);
    CHECK_ERROR_SAYS("COMM_TUNING=/: cannot read it: Is a directory");
}

int main(void)
{
    static const struct {
        const char *name;
        void (*fn)(int rank, int size, void *arg);
        int size;
        const char *arg;
    } cases[] = {
        { "rules go between the user's and ours", rules_go_between_the_user_s_and_ours, 1, NULL },
        { "what is wrong is said with its line", what_is_wrong_is_said_with_its_line, 1, NULL },
        { "equal files may lie anywhere", equal_files_may_lie_anywhere, 3, NULL },
        { "different files", different_files_are_told_to_all, 3, "tcp all_reduce:ring\n" },
        { "a file on one rank", different_files_are_told_to_all, 3, NULL },
        { "a bad file", a_bad_file_is_told_to_all, 2, NULL },
        { "no file", a_file_that_is_none, 1, NULL },
    };
    int failed = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ranks_options options = { .limit_s = 30, .name = cases[i].name };
        failed |= ranks_run(cases[i].size, &options, cases[i].fn, (void *)cases[i].arg);
    }
    return failed;
}
