/* Which peers are gone, and which of those are missed.
 *
 * A rank that closes its world leaves a note in the store: how many operations it has done on each communicator, and
 * which groups have ended before, so that the others hear of it by an alarm.
 *
 *   left.RANK        lines "COMMUNICATOR COUNT" and "ended.GROUP", the first one empty; RANK is the world's
 *
 * All ranks of a communicator have the same operations on it, in the same order. So a peer that has left is missed by
 * operations behind those that it has done only. One without a note is lost to all: its process has ended, or the store
 * has. If the store has, the rank may have closed its world, and what it sent before may be on its way here still: so
 * it is lost only if it is missed at the next look, too. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

/* ---- The note ---- */

static void add_line(struct world *w, const char *line)
{
    size_t bytes = strlen(line);
    pthread_mutex_lock(&w->lock);
    char *note = realloc(w->note, w->note_bytes + bytes + 1); /* NULL: the others will miss this rank */
    if (note) {
        memcpy(note + w->note_bytes, line, bytes + 1);
        w->note = note;
        w->note_bytes += bytes;
    }
    pthread_mutex_unlock(&w->lock);
}

void peers_note(struct group *g)
{
    char key[KEY_BYTES], line[KEY_BYTES + 32];
    int has_ended = atomic_load(&g->ended) != COMM_OK;
    if (has_ended && g->told) {
        snprintf(line, sizeof line, "ended.%" PRIx64 "\n", g->info->id);
        add_line(g->world, line);
    }
    for (const struct communicator *c = g->communicators; c && !has_ended; c = c->next) {
        if (is_to_self(c) || !c->is_finalized)
            continue;
        communicator_key(c, key);
        snprintf(line, sizeof line, "%s %" PRIu64 "\n", key, c->given);
        add_line(g->world, line);
    }
}

void peers_take_leave(struct world *w)
{
    char key[KEY_BYTES];
    size_t bytes = w->note_bytes + 1;
    char *note = w->info->size > 1 ? malloc(bytes) : NULL;
    if (!note)
        return;
    note[0] = '\n';
    if (w->note_bytes)
        memcpy(note + 1, w->note, w->note_bytes);
    snprintf(key, sizeof key, "left.%d", w->info->rank);
    if (host->store_set(w->info->store, key, note, bytes) == COMM_OK && w->info->rank == 0)
        alarm_leave(w);
    free(note);
}

void peers_free(struct world *w)
{
    for (int32_t rank = 0; w->left && rank < w->info->size; rank++)
        free(w->left[rank]);
    free(w->left);
    free(w->note);
}

/* Called with the world's lock. */
static char **place_of(struct world *w, int32_t world_rank)
{
    if (!w->left)
        w->left = calloc((size_t)w->info->size, sizeof *w->left);
    return w->left ? &w->left[world_rank] : NULL;
}

/* The note of a rank that is gone, which lives as long as the world; NULL: there is none. */
static const char *read_note(struct world *w, int32_t world_rank)
{
    char key[KEY_BYTES], *text = NULL;
    int32_t exists = 0;
    pthread_mutex_lock(&w->lock);
    char **at = place_of(w, world_rank);
    const char *known = at ? *at : NULL;
    pthread_mutex_unlock(&w->lock);
    if (!at || known)
        return known;
    snprintf(key, sizeof key, "left.%d", world_rank);
    if (alarm_store_answers(w) && host->store_check(w->info->store, key, &exists) == COMM_OK && exists)
        text = alarm_get_text(w, key);
    pthread_mutex_lock(&w->lock);
    if (*at)
        free(text);
    else
        *at = text;
    known = *at;
    pthread_mutex_unlock(&w->lock);
    return known;
}

void peers_read_first(struct world *w)
{
    if (w->info->rank != 0)
        read_note(w, 0);
}

/* ---- Who is missed ---- */

/* What the note says of the communicator; 0 if nothing. */
static int find_line(const char *note, const struct communicator *c, uint64_t *ret_count)
{
    char key[KEY_BYTES], line[KEY_BYTES + 2];
    communicator_key(c, key);
    snprintf(line, sizeof line, "\n%s ", key);
    const char *at = strstr(note, line);
    *ret_count = at ? strtoull(at + strlen(line), NULL, 10) : 0;
    return at != NULL;
}

static int is_missed_at(const struct communicator *c, const char *note)
{
    uint64_t count;
    int has_been_made = find_line(note, c, &count);
    const struct flight *oldest[] = { c->pending.first, c->issuing.first, c->queued.first };
    for (int i = 0; i < 3; i++)
        if (oldest[i])
            return oldest[i]->number > count;
    return communicator_connects(c) && !has_been_made;
}

/* Whether an operation needs that rank, which has left, and will not get what it needs. */
static int is_missed(struct group *g, int rank, const char *note)
{
    int missed = 0;
    char line[KEY_BYTES];
    snprintf(line, sizeof line, "\nended.%" PRIx64 "\n", g->info->id);
    if (strstr(note, line))
        return 0; /* an alarm says why */
    pthread_mutex_lock(&g->lock);
    for (const struct communicator *c = g->communicators; c && !missed; c = c->next)
        if (!is_to_self(c) && (c->source < 0 || c->source == rank || c->target == rank))
            missed = is_missed_at(c, note);
    pthread_mutex_unlock(&g->lock);
    return missed;
}

enum peer_state peers_look(struct group *g, int rank, char why[WHY_BYTES])
{
    int32_t world_rank = g->info->world_ranks[rank];
    if (rank == g->info->rank || host->rank_check(g->info->token, world_rank) == COMM_OK)
        return PEER_THERE;
    snprintf(why, WHY_BYTES, "%s", host->last_error());
    const char *note = read_note(g->world, world_rank);
    if (note && !is_missed(g, rank, note))
        return PEER_LEFT;
    if (note) {
        char self[64];
        say_rank(g, g->info->rank, self, sizeof self);
        snprintf(why, WHY_BYTES, "it has closed its world before %s was done with it", self);
    }
    host->rank_lost(g->info->token, world_rank, why);
    return PEER_LOST;
}

int32_t peers_gone_with_store(struct group *g)
{
    int32_t gone = 0;
    for (int32_t rank = 0; rank < g->info->size; rank++)
        gone += rank != g->info->rank && host->rank_check(g->info->token, g->info->world_ranks[rank]) != COMM_OK;
    return gone && !alarm_store_answers(g->world) ? gone : 0;
}

int peers_lost(struct group *g, char why[WHY_BYTES])
{
    int first = -1;
    char text[WHY_BYTES];
    for (int32_t rank = g->info->size - 1; rank >= 0; rank--)
        if (peers_look(g, rank, text) == PEER_LOST) {
            memcpy(why, text, WHY_BYTES);
            first = rank;
        }
    return first;
}
