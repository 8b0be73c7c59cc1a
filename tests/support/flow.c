#include "flow.h"

#include <string.h>
#include <time.h>

#include "core/exec/exec_group.h"
#include "backend_tcp/progress.h"
#include "core/group.h"
#include "ranks.h"

enum { PATIENCE_MS = 20000, LOOK_AGAIN_MS = 2, ROUNDS_MAX = 500 };

/* What the two ends of a connection tell each other. */
struct end {
    int64_t credit, owed;
};

static struct mesh *mesh_of(const struct exec_group *g)
{
    return (struct mesh *)g->domain;
}

/* NULL, or what is under way on a connection. */
static const char *unquiet(const struct link *l)
{
    const struct port *p = &l->port;
    if (p->state != PORT_UP && p->state != PORT_IDLE)
        return "it is neither up nor unused";
    return l->tx_head                            ? "a frame waits to be sent"
           : p->held.head                        ? "a send is held back"
           : p->announced                        ? "a send is announced"
           : p->interest || p->active_index >= 0 ? "something is awaited"
           : p->unexpected_count                 ? "a message is kept that nobody asked for"
           : p->in.type                          ? "a frame has come in part"
           : p->eager_held != p->credit_owed     ? "eager bytes are held that are neither kept nor owed"
                                                 : NULL;
}

static const char *look(const struct exec_group *g, struct end *ends)
{
    const char *wrong = NULL;
    progress_enter(mesh_of(g));
    for (int32_t r = 0; r < g->size; r++) {
        const struct link *l = &mesh_of(g)->links[g->world_ranks[r]];
        ends[r] = (struct end){ l->port.credit, l->port.credit_owed };
        if (!wrong && r != g->rank)
            wrong = unquiet(l);
    }
    progress_leave(mesh_of(g));
    return wrong;
}

static void look_again_soon(void)
{
    const struct timespec soon = { .tv_nsec = LOOK_AGAIN_MS * 1000000 };
    nanosleep(&soon, NULL);
}

/* All ranks count the rounds alike. */
static void key_of(int round, int32_t rank, char *key, size_t capacity)
{
    snprintf(key, capacity, "flow/%d/%d", round, (int)rank);
}

/* What rank `from` says of its connections. */
static struct end *told(comm_store *store, int round, int32_t from)
{
    char key[60];
    void *data;
    size_t bytes;
    key_of(round, from, key, sizeof key);
    CHECK_OK(comm_store_get(store, key, PATIENCE_MS, &data, &bytes));
    return data;
}

/* One round in which all tell all, so that all come to the same answer: do both ends of each connection fit? */
static int ends_fit(const struct exec_group *g, comm_store *store, const struct end *own, char *text, size_t capacity)
{
    static _Thread_local int rounds; /* ranks may be threads */
    char key[60];
    int fits = 1, round = rounds++;
    key_of(round, g->rank, key, sizeof key);
    CHECK_OK(comm_store_set(store, key, own, (size_t)g->size * sizeof *own));
    struct end **all = calloc((size_t)g->size, sizeof *all);
    for (int32_t r = 0; r < g->size; r++)
        all[r] = told(store, round, r);
    for (int32_t a = 0; a < g->size; a++)
        for (int32_t b = 0; b < g->size; b++)
            if (a != b && all[a][b].credit + all[b][a].owed != PORT_CREDIT_WINDOW) {
                snprintf(text, capacity, "rank %d may send %lld B to rank %d, which owes it %lld B: together not %d",
                         (int)a, (long long)all[a][b].credit, (int)b, (long long)all[b][a].owed,
                         (int)PORT_CREDIT_WINDOW);
                fits = 0;
            }
    for (int32_t r = 0; r < g->size; r++)
        comm_free(all[r]);
    free(all);
    return fits;
}

void flow_check(comm_group *group)
{
    const struct exec_group *g = group->channels[0].state;
    comm_store *store = ranks_store();
    struct end *own = calloc((size_t)g->size, sizeof *own);
    char text[200] = "";
    int fits = 0;
    for (int round = 0; round < ROUNDS_MAX && !fits; round++) { /* credit may be on its way */
        const char *wrong = look(g, own);
        for (int looks = 0; wrong && looks < PATIENCE_MS / LOOK_AGAIN_MS; looks++) {
            look_again_soon();
            wrong = look(g, own);
        }
        if (wrong)
            ranks_fail(__FILE__, __LINE__, "all is quiet, but on a connection of rank %d %s", (int)g->rank, wrong);
        fits = ends_fit(g, store, own, text, sizeof text);
        if (!fits)
            look_again_soon();
    }
    if (!fits)
        ranks_fail(__FILE__, __LINE__, "all is quiet, but %s", text);
    free(own);
    comm_store_close(store);
}
