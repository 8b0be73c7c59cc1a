/* Runs the cases, one after the other, on the world that the launcher made. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rows.h"

static const struct row_case *const tables[] = { rows_stores,   rows_groups, rows_meshes, rows_collectives,
                                                 rows_messages, rows_works,  rows_looking };
enum { TABLES = sizeof tables / sizeof *tables };

static const char *running = "starting";
static int own_rank = -1;

void rows_fail(const char *file, int line, const char *format, ...)
{
    char text[1500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "rank %d, %s: %s:%d: %s\n", own_rank, running, file, line, text);
    exit(1);
}

int rows_error_has(const char *words)
{
    return strstr(comm_last_error(), words) != NULL;
}

int64_t rows_sum(comm_group *group, int64_t value)
{
    int64_t sum = -7;
    OK(comm_all_reduce(group, &value, &sum, 1, COMM_DTYPE_I64, COMM_REDOP_SUM, NULL, NULL));
    return sum;
}

void rows_finish(comm_work *work)
{
    OK(comm_work_wait(work, 0));
    comm_work_release(work);
}

const char *rows_fresh_key(void)
{
    static char key[32];
    static int number;
    snprintf(key, sizeof key, "rows/%d", number++);
    return key;
}

static int is_wanted(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return count == 0;
}

static int list(void)
{
    for (size_t t = 0; t < TABLES; t++)
        for (const struct row_case *c = tables[t]; c->name; c++)
            puts(c->name);
    return 0;
}

/* A folder of rank 0's making, told to the others. */
static void share_folder(struct place *p, char *folder, size_t capacity)
{
    const char *base = getenv("TMPDIR");
    if (p->rank == 0) {
        snprintf(folder, capacity, "%s/comm-rows-XXXXXX", base && *base ? base : "/tmp");
        IS(mkdtemp(folder) != NULL);
    }
    OK(comm_broadcast(p->world, folder, capacity, COMM_DTYPE_BYTE, 0, NULL, NULL));
    p->folder = folder;
}

int main(int count, char **arguments)
{
    char folder[256] = "";
    int done = 0, wanted = count - 1;
    if (count == 2 && strcmp(arguments[1], "--list") == 0)
        return list();
    struct place p = { .size = 0 };
    OK(comm_init(NULL, &p.world));
    own_rank = p.rank = comm_group_rank(p.world);
    p.size = comm_group_size(p.world);
    share_folder(&p, folder, sizeof folder);
    for (size_t t = 0; t < TABLES; t++)
        for (const struct row_case *c = tables[t]; c->name; c++) {
            if (!is_wanted(c->name, wanted, arguments + 1))
                continue;
            running = c->name;
            OK(comm_barrier(p.world, NULL, NULL));
            c->run(&p);
            done++;
        }
    running = "ending";
    IS(wanted == 0 ? done > 0 : done == wanted);
    IS(comm_group_count(p.world) == 1); /* no case leaves a group behind */
    OK(comm_barrier(p.world, NULL, NULL));
    if (p.rank == 0) {
        rmdir(folder);
        printf("%d rows on %d ranks\n", done, p.size);
    }
    OK(comm_group_close(p.world));
    return 0;
}
