#include "text.h"

#include <stdio.h>
#include <string.h>

#include "say.h"

const char *text_rank(const struct exec_group *g, int32_t rank)
{
    return say_rank(rank, g->world_ranks[rank], "");
}

const char *text_peer(const struct exec_group *g, int32_t rank)
{
    int32_t world_rank = g->world_ranks[rank];
    return say_rank(rank, world_rank, g->domain->peers.at[world_rank]->where);
}

const char *text_tag(int32_t tag, char text[TEXT_TAG_BYTES])
{
    if (tag == COMM_ANY_TAG)
        return "any tag";
    snprintf(text, TEXT_TAG_BYTES, "tag %d", (int)tag);
    return text;
}

void text_unresolved(const struct domain *d, char *text, size_t capacity)
{
    snprintf(text, capacity, "the store has not said where it is: that rank has not opened %.40s yet (make the group "
             "on every member, with the same backend string), or the store does not answer", d->backend);
}

/* ---- Calls ---- */

static const char *or_unknown(const char *name)
{
    return name ? name : "?";
}

/* A call as its header tells it: "reduce(24 x f32, sum, root 1)". */
static void spell(char *text, size_t capacity, const struct frame *h)
{
    const comm_op_traits *traits = comm_op_traits_of(h->kind);
    /* 0 also stands for counts of blocks that differ */
    int has_blocks = traits && traits_have_blocks(traits);
    snprintf(text, capacity, "%s(", traits ? traits->name : "an unknown operation");
    if (h->kind != COMM_OP_BARRIER && (h->count || !has_blocks))
        text_add(text, capacity, "%llu x ", (unsigned long long)h->count);
    if (h->kind != COMM_OP_BARRIER)
        text_add(text, capacity, "%s", or_unknown(exec_host->dtype_name(h->dtype)));
    if (traits && traits->traits & COMM_OP_TRAIT_REDUCES)
        text_add(text, capacity, ", %s", or_unknown(exec_host->redop_name(h->redop)));
    if (h->root >= 0)
        text_add(text, capacity, ", root %d", (int)h->root);
    text_add(text, capacity, ")");
}

static void spell_own(char *text, size_t capacity, const struct call *call)
{
    const struct frame h = { .kind = call->kind, .dtype = call->dtype, .redop = call->redop, .root = call->root,
                             .count = call->count };
    spell(text, capacity, &h);
}

/* The list of all counts is agreed, but a header has only one of them. */
static int may_be_own_counts(const struct frame *theirs, const struct call *mine)
{
    const comm_op_traits *traits = comm_op_traits_of(mine->kind);
    return theirs->kind == mine->kind && theirs->dtype == mine->dtype && theirs->redop == mine->redop && traits &&
           traits->traits & COMM_OP_TRAIT_COUNTS_AGREE;
}

void text_mismatch(const struct exec_group *g, int32_t rank, const struct frame *h, const struct call *mine, char *text,
                   size_t capacity)
{
    char theirs[160], ours[160];
    spell(theirs, sizeof theirs, h);
    spell_own(ours, sizeof ours, mine);
    snprintf(text, capacity, "the ranks of group '%s' disagree on collective #%llu: %s called %s, %s called %s",
             g->name,
             (unsigned long long)h->seq, text_peer(g, g->rank), ours, text_peer(g, rank), theirs);
    if (strcmp(ours, theirs) == 0)
        text_add(text, capacity, ", with other settings that choose algorithms and slices (algo and slice_bytes, and "
                                 "their variables in the environment), other counts for the ranks, elements of "
                                 "another size, or only one of them the _v form or with COMM_OP_FLAG_RANK_ORDER");
    else if (may_be_own_counts(h, mine))
        text_add(text, capacity, "; if that is the _v form, these are the counts of their own blocks, and their lists "
                                 "of counts differ elsewhere");
}

void text_lengths(const struct exec_group *g, int32_t rank, const struct frame *h, const struct call *mine,
                  size_t bytes, char *text, size_t capacity)
{
    char theirs[160], ours[160];
    spell(theirs, sizeof theirs, h);
    spell_own(ours, sizeof ours, mine);
    snprintf(text, capacity,
             "the ranks of group '%s' disagree on collective #%llu: %s called %s and expects %zu B from %s, %s called "
             "%s and sends it %llu B: their counts must be the same%s",
             g->name, (unsigned long long)h->seq, text_peer(g, g->rank), ours, bytes, text_rank(g, rank),
             text_peer(g, rank), theirs, (unsigned long long)h->bytes,
             strcmp(ours, theirs) == 0 ? ", and so must the settings that choose algorithms and slices (algo and "
                                         "slice_bytes, and their variables in the environment)"
                                       : "");
}
