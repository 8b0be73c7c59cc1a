/* Groups: their queue of collectives, how they end, and how two ranks in different collectives find out. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tcp.h"

/* ---- Groups that are not open here ---- */

static void end_group(struct tcp_group *g, comm_status status, int32_t reporter, const char *text);

static void set_reason(struct reason *why, comm_status status, int32_t reporter, const char *text)
{
    free(why->text);
    *why = (struct reason){ status, reporter, strdup(text) };
}

static struct past_group *past_new(struct past_group *ring, size_t room, size_t *count, uint64_t id)
{
    struct past_group *p = &ring[(*count)++ % room];
    free(p->why.text);
    *p = (struct past_group){ .id = id, .from = -1 };
    return p;
}

static struct past_group *past_find(struct past_group *ring, size_t room, size_t count, uint64_t id)
{
    for (size_t i = 0; i < room && i < count; i++)
        if (ring[i].id == id)
            return &ring[i];
    return NULL;
}

const struct past_group *group_closed(struct mesh *m, uint64_t id)
{
    return past_find(m->closed, TCP_CLOSED_REMEMBERED, m->closed_count, id);
}

static void note_closed(struct tcp_group *g)
{
    struct mesh *m = g->mesh;
    struct past_group *p = past_new(m->closed, TCP_CLOSED_REMEMBERED, &m->closed_count, g->id);
    p->seq = g->entered.seq;
    p->why = g->why;
    g->why.text = NULL;
    if (g->status != COMM_OK)
        return;
    char text[256];
    snprintf(text, sizeof text, "%s has closed group '%s'", text_peer(g, g->rank), g->name);
    set_reason(&p->why, COMM_OK, g->rank, text);
}

/* A peer says why a group has ended that is not open here: not yet, or not any more. */
static void note_end(struct link *l, uint64_t id, const struct reason *why)
{
    struct mesh *m = l->mesh;
    struct past_group *p = past_find(m->closed, TCP_CLOSED_REMEMBERED, m->closed_count, id);
    for (size_t i = 0; !p && i < TCP_TOLD_REMEMBERED; i++)
        if (m->told[i].id == id && m->told[i].from == l->peer && m->told[i].why.status != COMM_OK)
            return;
    if (!p)
        p = past_new(m->told, TCP_TOLD_REMEMBERED, &m->told_count, id);
    p->from = l->peer;
    if (p->why.status == COMM_OK)
        set_reason(&p->why, why->status, why->reporter, why->text);
}

/* A member says so; the words may be those of another one. */
static void end_as_reported(struct tcp_group *g, int32_t from, const struct reason *why)
{
    int is_rank = why->reporter >= 0 && why->reporter < g->size && why->reporter != g->rank;
    end_group(g, why->status, is_rank ? why->reporter : from, why->text ? why->text : "");
}

/* The group is open now: what members said of its end before counts, the first of them first. */
static void end_as_told(struct tcp_group *g)
{
    struct mesh *m = g->mesh;
    for (size_t i = 0; i < TCP_TOLD_REMEMBERED; i++) {
        struct past_group *p = &m->told[(m->told_count + i) % TCP_TOLD_REMEMBERED];
        if (p->id != g->id || p->why.status == COMM_OK)
            continue;
        if (p->from >= 0 && g->rank_of[p->from] >= 0)
            end_as_reported(g, g->rank_of[p->from], &p->why);
        free(p->why.text);
        *p = (struct past_group){ .from = -1 };
    }
}

void group_forget_past(struct mesh *m)
{
    for (size_t i = 0; i < TCP_CLOSED_REMEMBERED; i++)
        free(m->closed[i].why.text);
    for (size_t i = 0; i < TCP_TOLD_REMEMBERED; i++)
        free(m->told[i].why.text);
}

/* ---- Making and finding ---- */

/* Each member's host, and how many hosts there are. 0: no memory. */
static int learn_hosts(struct tcp_group *g)
{
    const int32_t *hosts = g->mesh->hosts;
    if (!hosts || hosts[0] < 0)
        return 1; /* not known */
    g->hosts = malloc((size_t)g->size * sizeof *g->hosts);
    uint8_t *seen = calloc((size_t)g->mesh->size, 1);
    for (int32_t r = 0; g->hosts && seen && r < g->size; r++) {
        g->hosts[r] = hosts[g->world_ranks[r]];
        g->host_count += !seen[g->hosts[r]];
        seen[g->hosts[r]] = 1;
    }
    free(seen);
    return g->hosts && seen;
}

comm_status group_create(struct mesh *m, const comm_group_info *info, struct tcp_group **ret_group)
{
    struct tcp_group *g = calloc(1, sizeof *g);
    if (g) {
        g->world_ranks = malloc((size_t)info->size * sizeof *g->world_ranks);
        g->rank_of = malloc((size_t)m->size * sizeof *g->rank_of);
        g->answers = calloc((size_t)info->size, sizeof *g->answers);
        g->early = early_lists_create(info->size);
        g->early_p2p = early_lists_create(info->size);
    }
    if (!g || !g->world_ranks || !g->rank_of || !g->answers || !g->early || !g->early_p2p) {
        group_destroy(g);
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for group '%s'", info->name);
    }
    g->mesh = m;
    g->id = info->id;
    g->rank = info->rank;
    g->size = info->size;
    g->name = info->name;
    g->token = info->token;
    g->tail = &g->head;
    p2p_list_init(&g->recvs);
    p2p_list_init(&g->sends);
    memcpy(g->world_ranks, info->world_ranks, (size_t)info->size * sizeof *g->world_ranks);
    for (int32_t i = 0; i < m->size; i++)
        g->rank_of[i] = -1;
    for (int32_t r = 0; r < g->size; r++)
        g->rank_of[g->world_ranks[r]] = r;
    if (!learn_hosts(g)) {
        group_destroy(g);
        return exec_fail(COMM_ERR_NO_MEMORY, "no memory for group '%s'", info->name);
    }
    g->lanes = (uint32_t)exec_host->param_int(info->options, "tcp", "lanes");
    g->slice_bytes = exec_host->param_int(info->options, "tcp", "slice_bytes");
    const char *algo = exec_host->param_text(info->options, "tcp", "algo");
    char error[512];
    if (algo && *algo && !(g->overrides = select_overrides_create(algo, error, sizeof error))) {
        group_destroy(g);
        return exec_fail(COMM_ERR_INVALID, "COMM_TCP_ALGO (or the option 'algo'): %s", error);
    }
    *ret_group = g;
    return COMM_OK;
}

void group_destroy(struct tcp_group *g)
{
    if (!g)
        return;
    while (g->plans) {
        struct plan_entry *e = g->plans;
        g->plans = e->next;
        plan_finish(&e->plan);
        free(e);
    }
    select_overrides_destroy(g->overrides);
    free(g->world_ranks);
    free(g->rank_of);
    free(g->hosts);
    free(g->answers);
    free(g->early);
    free(g->early_p2p);
    free(g->error_memory);
    free(g->why.text);
    free(g->scratch);
    free(g->prepared);
    free(g->step_pool);
    free(g);
}

struct tcp_group *group_find(struct mesh *m, uint64_t id)
{
    struct tcp_group *g = m->buckets[id % TCP_BUCKETS];
    while (g && g->id != id)
        g = g->bucket_next;
    return g;
}

void group_enter(struct mesh *m, struct tcp_group *g)
{
    struct tcp_group **bucket = &m->buckets[g->id % TCP_BUCKETS];
    g->bucket_next = *bucket;
    *bucket = g;
    g->next = m->groups;
    g->at = &m->groups;
    if (g->next)
        g->next->at = &g->next;
    m->groups = g;
    end_as_told(g);
}

void group_leave(struct tcp_group *g)
{
    struct tcp_group **at = &g->mesh->buckets[g->id % TCP_BUCKETS];
    while (*at && *at != g)
        at = &(*at)->bucket_next;
    if (*at)
        *at = g->bucket_next;
    *g->at = g->next;
    if (g->next)
        g->next->at = g->at;
    note_closed(g);
}

struct tcp_op *op_get(struct mesh *m)
{
    struct tcp_op *op = m->op_pool;
    if (op)
        m->op_pool = op->next;
    else
        op = malloc(sizeof *op);
    if (op)
        memset(op, 0, sizeof *op);
    return op;
}

void group_describe(struct tcp_group *g, const comm_op *op, char *text, size_t room)
{
    exec_host->describe(g->token, op, text, room);
}

/* ---- Completion ---- */

/* The op's memory is put back at the end of the turn: code further up the stack still looks at it. */
static void bury(struct tcp_op *op)
{
    struct mesh *m = op->group->mesh;
    op->dying = 1;
    op->next = m->dying;
    m->dying = op;
    if (!(op->op.flags & COMM_OP_FLAG_WAITING))
        atomic_fetch_sub(&m->async_works, 1);
}

static void remember(struct tcp_group *g, const struct tcp_op *op)
{
    g->ended_seq = op->call.seq;
    g->ended[op->call.seq % TCP_ENDED_MAX] = op->call;
}

static int is_p2p(const struct tcp_op *op)
{
    return op->op.kind == COMM_OP_SEND || op->op.kind == COMM_OP_RECV;
}

void group_ready(struct tcp_group *g)
{
    if (g->is_ready)
        return;
    g->is_ready = 1;
    g->ready_next = g->mesh->ready;
    g->mesh->ready = g;
}

void group_complete(struct tcp_op *op, comm_status status, const char *text)
{
    struct tcp_group *g = op->group;
    if (op->dying)
        return;
    if (g->inquest == op)
        g->inquest = NULL;
    if (!is_p2p(op)) {
        remember(g, op);
        g->head = op->next;
        if (!g->head)
            g->tail = &g->head;
    }
    progress_done(g->mesh, op->work, status, text);
    bury(op);
    if (!is_p2p(op) && g->head)
        group_ready(g); /* The next one starts at the end of the turn, not on top of this stack. */
}

static void group_next(struct tcp_group *g)
{
    while (g->status == COMM_OK && g->head && !g->head->started) {
        struct tcp_op *op = g->head;
        engine_start(op);
        if (g->head == op)
            break;
    }
}

void group_turn_end(struct mesh *m)
{
    while (m->ready || m->lost_pending) {
        while (m->ready) {
            struct tcp_group *g = m->ready;
            m->ready = g->ready_next;
            g->is_ready = 0;
            group_next(g);
        }
        link_sweep_lost(m);
    }
    while (m->dying) {
        struct tcp_op *op = m->dying;
        m->dying = op->next;
        op->next = m->op_pool;
        m->op_pool = op;
    }
}

/* ---- The end of a group ---- */

static void forget(struct tcp_group *g)
{
    struct mesh *m = g->mesh;
    for (int32_t i = 0; i < m->size; i++)
        if (m->links[i].state == LINK_UP || m->links[i].tx_head)
            link_forget(&m->links[i], g);
}

/* Where the text goes on if it speaks of this operation already, though perhaps from another rank; else NULL. `what` is
 * "all_reduce #3 on group 'g' (rank 1 of 4)". */
static const char *after_op(const char *text, const char *what)
{
    const char *rank = strstr(what, " (rank "), *end;
    size_t same = rank ? (size_t)(rank - what) : strlen(what);
    if (strncmp(text, what, same) != 0)
        return NULL;
    end = strstr(text + same, "): ");
    return end ? end + 3 : text + same;
}

/* The reason in this rank's words: its own, or what another rank reports. */
static void say_reason(const struct tcp_group *g, const char *what, char *text, size_t room)
{
    const char *reason = g->why.text ? g->why.text : "the group has ended, and there was no memory for the reason";
    const char *after = after_op(reason, what);
    *text = '\0';
    if (*what)
        text_add(text, room, "%s: ", what);
    if (g->why.reporter != g->rank)
        text_add(text, room, "%s reports: ", text_rank(g, g->why.reporter));
    text_add(text, room, "%s", *what && after ? after : reason);
    utf8_clean_string(text); /* the user's words are in it too, and it may have been cut within a character */
}

static void end_list(struct tcp_group *g, struct tcp_op **list)
{
    struct mesh *m = g->mesh;
    while (*list) {
        struct tcp_op *op = *list;
        *list = op->next;
        p2p_forget(op);
        char what[256], whole[FRAME_TEXT_MAX + 512];
        group_describe(g, &op->op, what, sizeof what);
        say_reason(g, what, whole, sizeof whole);
        progress_done(m, op->work, g->status, whole);
        bury(op);
    }
}

static void fail_header(uint64_t id, const struct reason *why, struct frame *h)
{
    memset(h, 0, sizeof *h);
    h->type = FRAME_FAIL;
    h->group = id;
    h->status = why->status == COMM_OK ? COMM_ERR_PEER_LOST : why->status;
    h->reporter = why->reporter;
}

static void tell_members(struct tcp_group *g)
{
    for (int32_t r = 0; r < g->size; r++) {
        struct link *l = &g->mesh->links[g->world_ranks[r]];
        if (r == g->rank || l->state == LINK_LOST || l->state == LINK_LEFT || g->mesh->closing)
            continue;
        mesh_want(g->mesh, l->peer);
        struct frame h;
        fail_header(g->id, &g->why, &h);
        link_send_text(l, &h, g->why.text ? g->why.text : "");
    }
}

static void drop_interest(struct tcp_group *g)
{
    /* What is awaited from the peers is awaited no more; what other groups await is counted anew, over all links. */
    for (int32_t i = 0; i < g->mesh->size; i++) {
        struct link *l = &g->mesh->links[i];
        uint32_t queued = l->tx_head ? 1 : 0;
        while (l->interest > queued)
            link_interest(l, -1);
    }
    for (struct tcp_group *other = g->mesh->groups; other; other = other->next)
        if (other != g)
            engine_restore_interest(other);
}

static void end_group(struct tcp_group *g, comm_status status, int32_t reporter, const char *text)
{
    char said[FRAME_TEXT_MAX + 256];
    if (g->status != COMM_OK)
        return;
    if (status > COMM_ERR_PEER_LOST || status < COMM_ERR_BACKEND)
        status = COMM_ERR_BACKEND; /* NO_MEMORY would say that the group is still usable. */
    g->status = status;
    set_reason(&g->why, status, reporter, text);
    say_reason(g, "", said, sizeof said);
    g->error_memory = strdup(said);
    g->error = g->error_memory ? g->error_memory : "the group has ended, and there was no memory for the reason";
    g->inquest = NULL;
    drop_interest(g);
    forget(g);
    end_list(g, &g->head);
    g->tail = &g->head;
    end_list(g, &g->recvs.head);
    p2p_list_init(&g->recvs);
    end_list(g, &g->sends.head);
    p2p_list_init(&g->sends);
    for (int32_t r = 0; r < g->size; r++)
        p2p_release(&g->mesh->links[g->world_ranks[r]]);
    early_lists_clear(g->mesh, g->early, g->size);
    early_lists_clear(g->mesh, g->early_p2p, g->size);
    exec_host->group_failed(g->token, status, g->error);
    tell_members(g);
}

void group_fail(struct tcp_group *g, comm_status status, const char *text)
{
    end_group(g, status, g->rank, text);
}

static int all_gone(const struct tcp_group *g)
{
    for (int32_t r = 0; r < g->size; r++) {
        enum link_state state = g->mesh->links[g->world_ranks[r]].state;
        if (r != g->rank && state != LINK_LEFT && state != LINK_LOST)
            return 0;
    }
    return g->size > 1;
}

static int p2p_needs(const struct tcp_group *g, int32_t rank)
{
    for (const struct tcp_op *op = g->sends.head; op; op = op->next)
        if (op->op.root == rank)
            return 1;
    for (const struct tcp_op *op = g->recvs.head; op; op = op->next)
        if (op->op.root == rank || (op->p2p_state == STEP_SENDING && op->matched_from == rank) ||
            (op->op.root == COMM_ANY_SOURCE && op->op.tag >= COMM_ANY_TAG && all_gone(g)))
            return 1;
    return 0;
}

/* What members have said already counts before the loss of one of them: it may be the reason why that one went. */
static void hear_members(struct tcp_group *g)
{
    for (int32_t r = 0; r < g->size && g->status == COMM_OK; r++)
        link_read(&g->mesh->links[g->world_ranks[r]]);
}

/* Who has left, or was gone before we ever talked, is missed only by those who need it. */
static int is_missed(const struct tcp_group *g, const struct link *l)
{
    if (g->status != COMM_OK)
        return 0;
    return (l->state != LINK_LEFT && l->heard) || (g->head && engine_needs(g->head, l->peer)) || p2p_needs(g, g->rank_of[l->peer]);
}

void group_peer_gone(struct mesh *m, struct link *l, comm_status status, const char *text)
{
    for (struct tcp_group *g = m->groups; g; g = g->next) {
        int32_t rank = g->rank_of[l->peer];
        if (rank < 0 || !is_missed(g, l))
            continue;
        hear_members(g);
        if (!is_missed(g, l))
            continue;
        char whole[768];
        if (l->state == LINK_LEFT)
            snprintf(whole, sizeof whole, "%s has closed its world before %s was done with it", text_peer(g, rank),
                     text_rank(g, g->rank));
        else
            snprintf(whole, sizeof whole, "%s %s", text_peer(g, rank), text);
        group_fail(g, status, whole);
    }
}

/* ---- Ranks in different collectives ---- */

struct call group_call(const comm_op *op)
{
    return (struct call){ .seq = op->seq, .signature = op->signature, .count = op->send.count ? op->send.count : op->recv.count,
                          .root = op->root, .kind = (uint8_t)op->kind, .dtype = (uint8_t)op->dtype, .redop = (uint8_t)op->redop };
}

void group_header(struct tcp_op *op, uint8_t type, struct frame *h)
{
    const struct call *call = &op->call;
    *h = (struct frame){ .type = type, .kind = call->kind, .dtype = call->dtype, .redop = call->redop, .group = op->group->id,
                         .seq = call->seq, .signature = call->signature, .root = call->root, .count = call->count };
}

static void mismatch(struct tcp_group *g, struct link *l, const struct frame *h, const struct call *mine)
{
    char text[768];
    text_mismatch(g, g->rank_of[l->peer], h, mine, text, sizeof text);
    group_fail(g, COMM_ERR_MISMATCH, text);
}

void group_lengths_differ(struct tcp_op *op, struct link *l, const struct frame *h, size_t bytes)
{
    struct tcp_group *g = op->group;
    char text[768];
    text_lengths(g, g->rank_of[l->peer], h, &op->call, bytes, text, sizeof text);
    group_fail(g, COMM_ERR_MISMATCH, text);
}

const struct call *group_collective(struct tcp_group *g, uint64_t seq)
{
    for (const struct tcp_op *queued = g->head; queued; queued = queued->next)
        if (queued->call.seq == seq)
            return &queued->call;
    const struct call *past = &g->ended[seq % TCP_ENDED_MAX];
    return seq == 0 || past->seq != seq ? NULL : past;
}

int group_matches_call(struct tcp_group *g, struct link *l, const struct frame *h, const struct call *mine)
{
    if (mine->signature == h->signature)
        return 1;
    mismatch(g, l, h, mine);
    return 0;
}

int group_matches(struct tcp_group *g, struct link *l, const struct frame *h)
{
    const struct call *mine = group_collective(g, h->seq);
    return !mine || group_matches_call(g, l, h, mine);
}

/* ---- Frames ---- */

static void reply_end(struct link *l, uint64_t id, const struct reason *why)
{
    struct frame fail;
    fail_header(id, why, &fail);
    link_reply_text(l, &fail, why->text ? why->text : "");
}

int group_tell_why(struct link *l, const struct tcp_group *g, uint64_t id)
{
    struct mesh *m = l->mesh;
    const struct past_group *past = g ? NULL : group_closed(m, id);
    if (!g && !past)
        past = past_find(m->told, TCP_TOLD_REMEMBERED, m->told_count, id);
    const struct reason *why = g ? &g->why : past ? &past->why : NULL;
    if (!why || why->status == COMM_OK)
        return 0;
    reply_end(l, id, why);
    return 1;
}

int group_may_come(struct link *l, const struct tcp_group *g, const struct frame *h)
{
    struct mesh *m = l->mesh;
    const struct past_group *closed = g ? NULL : group_closed(m, h->group);
    /* The end of a group is told to its members when it comes, so all that is under way by then needs no answer. Of one that was
     * closed without an end the peer is told once. */
    if (closed && closed->why.status == COMM_OK && l->closed_told != h->group) {
        l->closed_told = h->group;
        reply_end(l, h->group, &closed->why);
    }
    if (g || closed || past_find(m->told, TCP_TOLD_REMEMBERED, m->told_count, h->group))
        return 0;
    if (h->type == FRAME_DATA)
        link_lose(l, COMM_ERR_PROTOCOL, "sent data for a group that was never open here");
    return h->type != FRAME_DATA;
}

static void peer_left(struct link *l)
{
    l->state = LINK_LEFT;
    l->mesh->lost_pending = 1;
}

static int is_member(struct link *l, const struct tcp_group *g)
{
    if (g->rank_of[l->peer] >= 0)
        return 1;
    link_lose(l, COMM_ERR_PROTOCOL, "is not in group '%s' but sends to it", g->name);
    return 0;
}

static void hear_of_end(struct link *l, struct tcp_group *g, const struct frame *h, const char *text)
{
    const struct reason why = {
        .status = h->status >= COMM_ERR_BACKEND && h->status <= COMM_ERR_PEER_LOST ? h->status : COMM_ERR_PROTOCOL,
        .reporter = h->reporter,
        .text = (char *)text,
    };
    if (!g)
        note_end(l, h->group, &why);
    else if (g->status == COMM_OK && is_member(l, g))
        end_as_reported(g, g->rank_of[l->peer], &why);
}

void group_frame(struct link *l, const struct frame *h, const char *text)
{
    struct mesh *m = l->mesh;
    if (h->type == FRAME_CREDIT)
        return;
    if (h->type == FRAME_BYE) {
        peer_left(l);
        return;
    }
    struct tcp_group *g = group_find(m, h->group);
    if (h->type == FRAME_FAIL) {
        hear_of_end(l, g, h, text);
        return;
    }
    if (h->type == FRAME_QUERY) {
        inquest_query(g, l, h);
        return;
    }
    if (!g || g->status != COMM_OK) {
        int promise = h->type == FRAME_RTS || h->type == FRAME_CTS;
        if (promise && group_may_come(l, g, h) && !early_add(m, &m->orphans, l->peer, h))
            link_lose(l, COMM_ERR_PROTOCOL, "announced too many messages");
        return;
    }
    if (!is_member(l, g))
        return;
    if (h->type == FRAME_ANSWER) {
        inquest_answer(g, l, h, text);
    } else if (h->type == FRAME_RTS) {
        (h->kind == COMM_OP_SEND ? p2p_rts : engine_rts)(g, l, h);
    } else if (h->type == FRAME_CTS) {
        (h->kind == COMM_OP_SEND ? p2p_cts : engine_cts)(g, l, h);
    }
}
