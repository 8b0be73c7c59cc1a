/* The words of errors: how a rank is written, and two calls that do not fit together.
 *
 * A text about a group speaks of the group's ranks, on every rank that reads it; where a rank has another number in the world, that one
 * stands behind it: "rank 2 (world rank 1, node-b 10.0.0.7:40213)". */
#include <string.h>

#include "tcp.h"

/* ---- Ranks ---- */

enum { RING = 8, RANK_TEXT_BYTES = 160 };

static char *next_buffer(void)
{
    static _Thread_local char ring[RING][RANK_TEXT_BYTES];
    static _Thread_local unsigned next;
    return ring[next++ % RING];
}

static const char *write_rank(int32_t rank, int32_t world_rank, const char *where)
{
    char *text = next_buffer();
    if (rank != world_rank)
        snprintf(text, RANK_TEXT_BYTES, "rank %d (world rank %d%s%s)", (int)rank, (int)world_rank, *where ? ", " : "", where);
    else
        snprintf(text, RANK_TEXT_BYTES, "rank %d%s%s%s", (int)rank, *where ? " (" : "", where, *where ? ")" : "");
    return text;
}

const char *text_rank(const struct tcp_group *g, int32_t rank)
{
    return write_rank(rank, g->world_ranks[rank], "");
}

const char *text_peer(const struct tcp_group *g, int32_t rank)
{
    int32_t world_rank = g->world_ranks[rank];
    return write_rank(rank, world_rank, g->mesh->links[world_rank].where);
}

const char *mesh_peer_text(struct mesh *m, int32_t peer)
{
    return write_rank(peer, peer, m->links[peer].where);
}

/* ---- Calls ---- */

static const char *or_unknown(const char *name)
{
    return name ? name : "?";
}

/* A call as its header tells it: "reduce(24 x f32, sum, root 1)". */
static void spell(char *text, size_t room, const struct frame *h)
{
    const char *op_name = exec_host->op_name(h->kind);
    snprintf(text, room, "%s(", op_name ? op_name : "an unknown operation");
    if (h->kind != COMM_OP_BARRIER && h->count)
        text_add(text, room, "%llu x ", (unsigned long long)h->count);
    if (h->kind != COMM_OP_BARRIER)
        text_add(text, room, "%s", or_unknown(exec_host->dtype_name(h->dtype)));
    if (h->kind == COMM_OP_ALL_REDUCE || h->kind == COMM_OP_REDUCE || h->kind == COMM_OP_REDUCE_SCATTER)
        text_add(text, room, ", %s", or_unknown(exec_host->redop_name(h->redop)));
    if (h->root >= 0)
        text_add(text, room, ", root %d", (int)h->root);
    text_add(text, room, ")");
}

static void spell_own(char *text, size_t room, const struct call *call)
{
    const struct frame h = { .kind = call->kind, .dtype = call->dtype, .redop = call->redop, .root = call->root, .count = call->count };
    spell(text, room, &h);
}

void text_mismatch(const struct tcp_group *g, int32_t rank, const struct frame *h, const struct call *mine, char *text, size_t room)
{
    char theirs[160], ours[160];
    spell(theirs, sizeof theirs, h);
    spell_own(ours, sizeof ours, mine);
    snprintf(text, room, "the ranks of group '%s' disagree on collective #%llu: %s called %s, %s called %s", g->name,
             (unsigned long long)h->seq, text_peer(g, g->rank), ours, text_peer(g, rank), theirs);
    if (strcmp(ours, theirs) == 0)
        text_add(text, room, ", with other counts for the ranks, or only one of them with COMM_OP_FLAG_RANK_ORDER");
}

void text_lengths(const struct tcp_group *g, int32_t rank, const struct frame *h, const struct call *mine, size_t bytes,
                  char *text, size_t room)
{
    char theirs[160], ours[160];
    spell(theirs, sizeof theirs, h);
    spell_own(ours, sizeof ours, mine);
    snprintf(text, room,
             "the ranks of group '%s' disagree on collective #%llu: %s called %s and expects %zu B from %s, %s called %s and sends "
             "it %llu B: their counts must be the same",
             g->name, (unsigned long long)h->seq, text_peer(g, g->rank), ours, bytes, text_rank(g, rank), text_peer(g, rank),
             theirs, (unsigned long long)h->bytes);
}
