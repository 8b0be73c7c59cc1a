#include "program.h"

#include <string.h>

#include "gpu.h"
#include "random.h"
#include "reference.h"

static const char *const names[KIND_COUNT] = {
    [BROADCAST] = "broadcast",
    [ALL_REDUCE] = "all_reduce",
    [REDUCE] = "reduce",
    [ALL_GATHER] = "all_gather",
    [GATHER] = "gather",
    [SCATTER] = "scatter",
    [REDUCE_SCATTER] = "reduce_scatter",
    [ALL_TO_ALL] = "all_to_all",
    [BARRIER] = "barrier",
    [MESSAGE] = "message",
    [FAN_IN] = "fan_in",
    [ALL_GATHER_BYTES] = "all_gather_bytes",
    [GATHER_BYTES] = "gather_bytes",
    [BROADCAST_BYTES] = "broadcast_bytes",
    [SCATTER_BYTES] = "scatter_bytes",
    [MESSAGE_BYTES] = "message_bytes",
    [MONITORED_BARRIER] = "monitored_barrier",
    [CHILD] = "child",
};

bool program_reduces(enum kind kind)
{
    return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
}

/* ---- Groups ---- */

static void shuffle(uint64_t *state, int32_t *list, int32_t count)
{
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t j = (int32_t)random_below(state, (size_t)i + 1), kept = list[i];
        list[i] = list[j];
        list[j] = kept;
    }
}

static void add_group(struct program *p, const struct group_def *parent, const int32_t *ranks, int32_t size)
{
    struct group_def *g = &p->groups[p->group_count++];
    g->size = size;
    for (int32_t i = 0; i < size; i++)
        g->world_ranks[i] = parent->world_ranks[ranks[i]];
}

static void make_by_list(struct program *p, struct making *m, uint64_t *state)
{
    const struct group_def *parent = &p->groups[m->parent];
    for (int32_t r = 0; r < parent->size; r++)
        m->list[r] = r;
    shuffle(state, m->list, parent->size);
    m->list_size = 1 + (int32_t)random_below(state, (size_t)parent->size);
    add_group(p, parent, m->list, m->list_size);
}

/* The members of one colour, by key and then by rank. */
static int32_t members_of(const struct making *m, int32_t size, int32_t color, int32_t *ret_ranks)
{
    int32_t count = 0;
    for (int32_t r = 0; r < size; r++) {
        if (m->color[r] != color)
            continue;
        int32_t at = count++;
        for (; at > 0 && m->key[ret_ranks[at - 1]] > m->key[r]; at--)
            ret_ranks[at] = ret_ranks[at - 1];
        ret_ranks[at] = r;
    }
    return count;
}

static void make_by_split(struct program *p, struct making *m, uint64_t *state)
{
    const struct group_def *parent = &p->groups[m->parent];
    int32_t ranks[RANKS_MAX], colors = 1 + (int32_t)random_below(state, 3);
    for (int32_t r = 0; r < parent->size; r++) {
        m->color[r] = (int32_t)random_below(state, (size_t)colors + 1) - (random_one_in(state, 3) ? 1 : 0);
        m->key[r] = (int32_t)random_below(state, 5) - 2;
    }
    for (int32_t c = 0; c <= colors; c++) {
        int32_t size = members_of(m, parent->size, c, ranks);
        if (size > 0)
            add_group(p, parent, ranks, size);
    }
}

static void make_by_subgroups(struct program *p, struct making *m, uint64_t *state)
{
    const struct group_def *parent = &p->groups[m->parent];
    int32_t ranks[RANKS_MAX];
    do
        m->group_size = 1 + (int32_t)random_below(state, (size_t)parent->size);
    while (parent->size % m->group_size != 0);
    for (int32_t first = 0; first < parent->size; first += m->group_size) {
        for (int32_t i = 0; i < m->group_size; i++)
            ranks[i] = first + i;
        add_group(p, parent, ranks, m->group_size);
    }
}

static void make_groups(struct program *p, uint64_t *state)
{
    p->groups[0].size = p->size;
    for (int32_t r = 0; r < p->size; r++)
        p->groups[0].world_ranks[r] = r;
    p->group_count = 1;
    size_t makings = random_below(state, MAKINGS_MAX + 1);
    while ((size_t)p->making_count < makings && p->group_count + RANKS_MAX <= GROUPS_MAX) {
        struct making *m = &p->makings[p->making_count++];
        m->how = (enum how)random_below(state, 4);
        if (m->how == BY_SPLIT && !p->has_cpu)
            m->how = BY_DUP; /* the ranks of a split ask each other on the CPU */
        m->parent = (int)random_below(state, random_one_in(state, 2) ? 1 : (size_t)p->group_count);
        m->first = p->group_count;
        if (m->how == BY_LIST)
            make_by_list(p, m, state);
        else if (m->how == BY_SPLIT)
            make_by_split(p, m, state);
        else if (m->how == BY_SUBGROUPS)
            make_by_subgroups(p, m, state);
        else
            p->groups[p->group_count++] = p->groups[m->parent];
        m->count = p->group_count - m->first;
    }
    for (int i = 0; i < p->group_count; i++)
        p->groups[i].lane = (int)random_below(state, (size_t)p->lane_count);
}

/* ---- Steps ---- */

static enum kind draw_kind(uint64_t *state)
{
    switch (random_below(state, 16)) {
    case 0:
    case 1:
    case 2:
        return MESSAGE;
    case 3:
        return (enum kind)(ALL_GATHER_BYTES + random_below(state, 5));
    case 4:
        return random_one_in(state, 3) ? CHILD : random_one_in(state, 3) ? MONITORED_BARRIER : FAN_IN;
    case 5:
    case 6:
        return ALL_REDUCE;
    default:
        return (enum kind)random_below(state, BARRIER + 1);
    }
}

/* Mostly small. */
static size_t draw_count(uint64_t *state, size_t element)
{
    switch (random_below(state, 16)) {
    case 0:
        return 0;
    case 1:
    case 2:
        return 1;
    case 3:
        return random_below(state, 200000 / element);
    case 4:
        return random_below(state, 5000);
    default:
        return random_below(state, random_one_in(state, 3) ? 1200 : 40);
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Of a block. Each slice of it takes up to three messages, and with short reads and writes each of these dozens of
 * system calls. */
static size_t most_bytes(const struct program *p)
{
    enum { SLICES_MAX = 200 };
    size_t most = (size_t)3 << 20;
    return p->slice_bytes > 0 ? smaller(most, p->slice_bytes * SLICES_MAX) : most;
}

/* Elements around a size at which the tcp backend changes its way: where eager messages end, its buffers, a system
 * call's worth, a slice; or up to 3 MiB. */
static size_t draw_about_limit(const struct program *p, uint64_t *state, size_t element)
{
    const size_t limits[] = { p->eager_bytes, p->slice_bytes, 64 << 10, 256 << 10, 1 << 20 };
    size_t which = random_below(state, 8), most = most_bytes(p) / element;
    if (which >= 5)
        return random_below(state, most + 1);
    size_t count = limits[which] / element + random_below(state, 3);
    return count > 0 ? smaller(count - 1, most) : 0;
}

/* One step in so many is about such a size; each element of a reduction is checked by every rank, which takes its
 * time. */
static bool may_be_long(const struct step *s, uint64_t *state)
{
    return random_one_in(state, program_reduces(s->kind) ? 16 : 4);
}

/* A step with blocks of one length, which are cut in as many parts as there are ranks by some algorithms: all of it or
 * each part is about the limit. */
static void draw_long(const struct program *p, struct step *s, int32_t size, uint64_t *state)
{
    enum { MAX_BYTES = 12 << 20, MAX_REDUCED = 3 << 20 };
    size_t element = program_element(s), count = draw_about_limit(p, state, element), parts = (size_t)size;
    if (s->form != PLAIN) {
        s->longest = count;
        s->long_one_in = parts * (s->kind == ALL_TO_ALL ? 2 : 1);
        s->count += s->count == 0;
        return;
    }
    s->count = random_one_in(state, 3) ? count * parts : count;
    size_t most = program_reduces(s->kind) ? MAX_REDUCED / parts : MAX_BYTES / element / parts;
    if (s->kind == ALL_REDUCE || s->kind == BROADCAST)
        most = smaller(most, 2 * most_bytes(p) / element);
    if (s->count > most)
        s->count = smaller(count, most);
}

static bool has_forms(enum kind kind)
{
    return kind == ALL_GATHER || kind == GATHER || kind == SCATTER || kind == REDUCE_SCATTER || kind == ALL_TO_ALL;
}

size_t program_element(const struct step *s)
{
    return s->struct_bytes ? s->struct_bytes : comm_dtype_bytes(s->dtype);
}

/* One in some of the user's reductions is of structs. */
static void draw_struct(struct step *s, uint64_t *state)
{
    static const size_t sizes[] = { 1, 3, 7, 24, REFERENCE_STRUCT_MAX };
    if (s->redop != COMM_REDOP_USER || !random_one_in(state, 3))
        return;
    s->dtype = COMM_DTYPE_BYTE;
    s->struct_bytes = sizes[random_below(state, sizeof sizes / sizeof sizes[0])];
}

/* What NCCL reduces to the bits or nearly, with any number of ranks; conformance/reductions.c tries the rest. */
static bool is_for_gpu(comm_redop redop, comm_dtype dtype)
{
    bool is_integer = dtype < COMM_DTYPE_BOOL, is_wide = dtype == COMM_DTYPE_F32 || dtype == COMM_DTYPE_F64 ||
                                                         dtype == COMM_DTYPE_C64 || dtype == COMM_DTYPE_C128;
    bool compares = redop == COMM_REDOP_MIN || redop == COMM_REDOP_MAX;
    return gpu_reduces(redop, dtype, 2) && (is_integer || (is_wide && !compares));
}

static void draw_reduction(struct step *s, uint64_t *state)
{
    do {
        s->redop = (comm_redop)random_below(state, COMM_REDOP_USER + 1);
        s->dtype = (comm_dtype)(1 + random_below(state, COMM_DTYPE_END - 1));
    } while (s->on_gpu ? !is_for_gpu(s->redop, s->dtype) : !comm_redop_supports(s->redop, s->dtype));
    draw_struct(s, state);
    s->rank_order = random_one_in(state, 6) && !s->on_gpu;
    s->specials = random_one_in(state, 4) && !s->on_gpu;
}

/* NCCL has no tags, and a receive is as long as its message. */
static void suit_gpu(struct step *s)
{
    if (s->on_gpu && s->kind == MESSAGE) {
        s->naming = s->naming == BY_TAG ? BY_SOURCE : s->naming;
        s->tag = 0;
        s->capacity = s->count;
    }
}

/* `before`: the step of whose batch it is; NULL: none. A batch is for one device. */
static struct step draw_step(const struct program *p, int number, const struct step *before, uint64_t *state)
{
    int group = random_one_in(state, 3) ? 0 : (int)random_below(state, (size_t)p->group_count);
    int32_t size = p->groups[group].size;
    struct step s = { .number = number, .group = group, .repeats = -1 };
    s.kind = draw_kind(state);
    if (p->has_gpu)
        s.on_gpu = before ? before->on_gpu : !p->has_cpu || (s.kind <= MESSAGE && random_one_in(state, 2));
    if (s.on_gpu && s.kind > MESSAGE) /* byte strings, any source: the CPU's */
        s.kind = (enum kind)random_below(state, BARRIER + 1);
    s.dtype = (comm_dtype)(1 + random_below(state, COMM_DTYPE_END - 1));
    if (program_reduces(s.kind))
        draw_reduction(&s, state);
    s.form = has_forms(s.kind) ? (enum form)random_below(state, 3) : PLAIN;
    s.count = draw_count(state, program_element(&s));
    if (may_be_long(&s, state))
        draw_long(p, &s, size, state);
    s.root = (int32_t)random_below(state, (size_t)size);
    s.peer = random_one_in(state, 8) ? s.root : (int32_t)random_below(state, (size_t)size);
    s.in_place = random_one_in(state, 3) && !(s.kind == ALL_TO_ALL && s.form != PLAIN);
    s.offsets = s.form == LIST || random_one_in(state, 2);
    s.naming = (enum naming)random_below(state, 3);
    s.tag = s.naming == BY_TAG || s.kind == FAN_IN ? 1000 + number : (int32_t)random_below(state, 3);
    s.capacity = s.count + (random_one_in(state, 2) ? 0 : random_below(state, 100));
    if (s.kind == MESSAGE && s.count > 0 && random_one_in(state, 10))
        s.capacity = random_below(state, s.count);
    suit_gpu(&s);
    s.key = random_key(p->seed, (uint64_t)number);
    return s;
}

/* Steps that may be in a batch: not those that wait in any case, and no expected error, which would be the batch's. */
static bool may_coalesce(const struct step *s)
{
    return s->kind <= MESSAGE && !(s->kind == MESSAGE && s->capacity < s->count);
}

static void make_steps(struct program *p, int steps)
{
    int batch = 0, left = 0, batches = 0;
    for (int n = 0; n < steps; n++) {
        uint64_t state = random_key(p->seed, 1000000 + (uint64_t)n);
        struct step *s = &p->steps[n];
        *s = draw_step(p, n, left > 0 ? &p->steps[n - 1] : NULL, &state);
        if (left > 0) {
            s->group = p->steps[n - 1].group;
            int32_t size = p->groups[s->group].size;
            s->root %= size;
            s->peer %= size;
            s->count %= (size_t)300000 / program_element(s) + 1;
            s->longest = s->count > 0 ? s->longest : 0;
            s->capacity = s->count + s->capacity % 100;
            suit_gpu(s);
            s->batch = batch;
            left--;
            if (!may_coalesce(s))
                s->kind = ALL_REDUCE, s->dtype = COMM_DTYPE_I32, s->redop = COMM_REDOP_SUM, s->form = PLAIN;
        } else if (may_coalesce(s) && random_one_in(&state, 6)) {
            s->batch = batch = ++batches;
            left = (int)random_below(&state, 6);
        }
        int back = 1 + (int)random_below(&state, 20);
        if (!s->batch && program_reduces(s->kind) && random_one_in(&state, 4) && n >= back &&
            program_reduces(p->steps[n - back].kind)) {
            *s = p->steps[n - back];
            s->number = n;
            s->batch = 0;
            s->repeats = n - back;
        }
    }
    p->step_count = steps;
}

/* ---- The backend's options ---- */

/* One algorithm per operation, for some, that must then be used wherever it can be; appended to a backend string. */
static void draw_algorithms(uint64_t *state, char *text, size_t capacity)
{
    enum { MOST = 7 };
    static const char *const algorithms[][MOST] = {
        { "all_reduce:recursive_doubling", "all_reduce:one_shot", "all_reduce:direct", "all_reduce:halving_doubling",
          "all_reduce:ring", "all_reduce:two_level", "all_reduce:two_level_leaders" },
        { "reduce_scatter:direct", "reduce_scatter:ring", "reduce_scatter:circulant", "reduce_scatter:two_level" },
        { "all_gather:direct", "all_gather:ring", "all_gather:bruck", "all_gather:two_level" },
        { "broadcast:binomial", "broadcast:chain", "broadcast:scatter_direct", "broadcast:scatter_ring",
          "broadcast:two_level", "broadcast:two_level_chain" },
        { "reduce:binomial", "reduce:chain", "reduce:direct_gather", "reduce:two_level", "reduce:two_level_chain" },
        { "gather:linear", "gather:binomial" },
        { "scatter:linear", "scatter:binomial" },
        { "all_to_all:direct", "all_to_all:pairwise", "all_to_all:bruck" },
    };
    size_t used = 0;
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms && used < capacity; i++) {
        size_t choice = random_below(state, MOST);
        if (algorithms[i][choice] && random_one_in(state, 2))
            used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ";" : "&algo=",
                                     algorithms[i][choice]);
    }
}

static void choose_backend(struct program *p, const char *backend, uint64_t *state)
{
    static const size_t eager[] = { 65536, 0, 64, 1000, 131072 }, slices[] = { 0, 0, 1000, 40000, 65536, 1000000 };
    snprintf(p->backend, sizeof p->backend, "%s", backend);
    p->eager_bytes = eager[0];
    int takes_options = !strcmp(backend, "cpu:tcp") || !strcmp(backend, "cpu:shm") || !strcmp(backend, "cpu:auto");
    if (!takes_options || random_one_in(state, 2))
        return;
    p->eager_bytes = eager[random_below(state, 5)];
    int lanes = 1 + (int)random_below(state, 6);
    p->slice_bytes = slices[random_below(state, 6)];
    snprintf(p->backend, sizeof p->backend, "%s?eager_bytes=%zu&lanes=%d&slice_bytes=%zu", backend, p->eager_bytes,
             lanes, p->slice_bytes);
    if (!strcmp(backend, "cpu:shm") && random_one_in(state, 2))
        strcat(p->backend, "&past_caches=1&cma_bytes=0");
    size_t used = strlen(p->backend);
    if (random_one_in(state, 2))
        draw_algorithms(state, p->backend + used, sizeof p->backend - used);
}

void program_make(struct program *p, uint64_t seed, int32_t size, int steps, const char *backend)
{
    memset(p, 0, sizeof *p);
    p->seed = random_key(seed, (uint64_t)size);
    p->size = size;
    uint64_t state = p->seed;
    p->lane_count = 1 + (int)random_below(&state, LANES_MAX);
    p->hurried = random_one_in(&state, 2);
    p->has_gpu = gpu_in(backend);
    p->has_cpu = !p->has_gpu || strstr(backend, "cpu");
    choose_backend(p, backend, &state);
    make_groups(p, &state);
    make_steps(p, steps);
}

size_t program_count(const struct step *s, int32_t from, int32_t to)
{
    if (s->form == PLAIN)
        return s->count;
    uint64_t random = random_key(s->key, (uint64_t)(from * RANKS_MAX + to) + 7777);
    if (s->longest > 0 && random_mix(random) % s->long_one_in == 0)
        return random % 4 == 0 ? random % s->longest : s->longest - random % 2;
    return random % 4 == 0 ? 0 : random % 4 == 1 ? s->count : (random >> 8) % (s->count + 1);
}

/* ---- Printing ---- */

void program_print_step(const struct program *p, const struct step *s, FILE *out)
{
    static const char *const forms[] = { "", "_v", "_list" };
    fprintf(out, "step %d lane %d group %d: %s%s %s", s->number, p->groups[s->group].lane, s->group, names[s->kind],
            forms[s->form], comm_dtype_name(s->dtype));
    if (program_reduces(s->kind))
        fprintf(out, " %s%s%s", comm_redop_name(s->redop), s->rank_order ? " in rank order" : "",
                s->specials ? " with specials" : "");
    if (s->struct_bytes)
        fprintf(out, " of structs of %zu bytes", s->struct_bytes);
    fprintf(out, " count %zu root %d", s->count, s->root);
    if (s->longest)
        fprintf(out, " and blocks of about %zu", s->longest);
    if (s->kind == MESSAGE || s->kind == MESSAGE_BYTES)
        fprintf(out, " peer %d tag %d room %zu naming %d", s->peer, s->tag, s->capacity, s->naming);
    fprintf(out, "%s%s%s", s->in_place ? " in place" : "", s->offsets ? " offsets" : "", s->on_gpu ? " on GPUs" : "");
    if (s->batch)
        fprintf(out, " batch %d", s->batch);
    if (s->repeats >= 0)
        fprintf(out, " repeats %d", s->repeats);
}

void program_print_groups(const struct program *p, FILE *out)
{
    fprintf(out, "backend %s, %d lanes\n", p->backend, p->lane_count);
    for (int i = 0; i < p->group_count; i++) {
        fprintf(out, "group %d lane %d world ranks", i, p->groups[i].lane);
        for (int32_t r = 0; r < p->groups[i].size; r++)
            fprintf(out, " %d", p->groups[i].world_ranks[r]);
        fprintf(out, "\n");
    }
}
