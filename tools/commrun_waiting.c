/* A rank that has ended, but had not joined the world that others wait to come together: it will not come any more. (It
 * has ended well, or the others go on by --keep-going.) The store shows which ranks wait (the keys are those of
 * core/join.c). They are told there, and so end with the reason instead of their time limit. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "commrun.h"

enum { PREFIX_BYTES = 256 };

struct keys {
    char **names;
    size_t count;
};

static int has(const struct keys *keys, const char *prefix, const char *rest)
{
    size_t bytes = strlen(prefix);
    for (size_t i = 0; i < keys->count; i++)
        if (strncmp(keys->names[i], prefix, bytes) == 0 && strcmp(keys->names[i] + bytes, rest) == 0)
            return 1;
    return 0;
}

static int has_rank(const struct keys *keys, const char *prefix, int rank)
{
    char rest[32];
    snprintf(rest, sizeof rest, "/rank/%d", rank);
    return has(keys, prefix, rest);
}

/* Is it a world of all our ranks? */
static int is_ours(struct run *run, const char *prefix)
{
    char key[PREFIX_BYTES + 16];
    void *terms;
    snprintf(key, sizeof key, "%s/terms", prefix);
    if (comm_store_get(run->store, key, 1000, &terms, NULL) != COMM_OK)
        return 0;
    int ours = strtol(terms, NULL, 10) == run->world_size;
    comm_free(terms);
    return ours;
}

static void tell(struct run *run, const char *prefix, const char *why)
{
    char key[PREFIX_BYTES + 16], verdict[512];
    void *there;
    size_t bytes;
    snprintf(verdict, sizeof verdict, "%d %s", COMM_ERR_PEER_LOST, why);
    snprintf(key, sizeof key, "%s/verdict", prefix);
    if (comm_store_compare_set(run->store, key, "", 0, verdict, strlen(verdict), &there, &bytes) != COMM_OK)
        return;
    snprintf(key, sizeof key, "%s/all", prefix);
    (void)comm_store_set(run->store, key, there, bytes);
    comm_free(there);
}

static int count_waiting(const struct run *run, const struct keys *keys, const char *prefix)
{
    int count = 0;
    for (int r = 0; r < run->world_size; r++)
        count += has_rank(keys, prefix, r);
    return count;
}

/* A world that some rank has begun to join: has one of this host's ranks ended without joining it? */
static void look_at_world(struct run *run, const struct keys *keys, const char *prefix)
{
    if (has(keys, prefix, "/all") || !is_ours(run, prefix))
        return;
    for (int i = 0; i < run->options.local_count; i++) {
        const struct rank *rank = &run->ranks[i];
        char why[256], others[64];
        if (!rank->pid || rank->running || has_rank(keys, prefix, rank->rank))
            continue;
        int waiting = count_waiting(run, keys, prefix), status = rank->wait_status;
        snprintf(others, sizeof others, "%d other%s wait%s for it in comm_init", waiting, waiting == 1 ? "" : "s",
                 waiting == 1 ? "s" : "");
        if (WIFSIGNALED(status))
            snprintf(why, sizeof why, "rank %d (pid %d) was killed by signal %d while %s", rank->rank, rank->pid,
                     WTERMSIG(status), others);
        else
            snprintf(why, sizeof why, "rank %d (pid %d) ended with status %d while %s", rank->rank, rank->pid,
                     WEXITSTATUS(status), others);
        run_say("%s", why);
        tell(run, prefix, why);
        return;
    }
}

void waiting_look(struct run *run)
{
    struct keys keys = { NULL, 0 };
    if (!run->store || comm_store_list_keys(run->store, &keys.names, &keys.count) != COMM_OK)
        return;
    for (size_t i = 0; i < keys.count; i++) {
        const char *name = keys.names[i], *end = strrchr(name, '/'); /* a world's name may hold one, too */
        char prefix[PREFIX_BYTES];
        if (strncmp(name, "comm/", 5) != 0 || !end || strcmp(end, "/terms") != 0 || end - name >= PREFIX_BYTES)
            continue;
        snprintf(prefix, sizeof prefix, "%.*s", (int)(end - name), name);
        look_at_world(run, &keys, prefix);
    }
    comm_free(keys.names);
}
