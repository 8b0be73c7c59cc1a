/* What the backend has, for people and for --json: asked of its table and of `supports`, on one rank of a world. */
#include <string.h>

#include "cases.h"
#include "check.h"
#include "programs.h"
#include "watch.h"

static char memory[64];
static void *lists[CHECK_RANKS_MAX];
static const size_t eights[CHECK_RANKS_MAX] = { 8, 8, 8, 8, 8, 8, 8, 8, 8 };

enum { THREADS_TOLERATED = 8 };
enum form { PLAIN, UNEVEN, LIST };

static void fill_side(comm_buffers *side, uint8_t shape, enum form form, size_t count)
{
    side->count = count;
    side->data = memory;
    if (shape == COMM_OP_SIDE_BLOCKS && form != PLAIN) {
        side->counts = eights;
        if (form == LIST)
            side->list = lists;
    }
}

static void sum_up(const void *in, void *inout, size_t count, comm_dtype dtype, void *context)
{
    (void)in, (void)inout, (void)count, (void)dtype, (void)context;
}

/* An op as rank 0 would hand it over; root and peer are rank 0. */
static comm_op make_op(int32_t kind, enum form form, comm_dtype dtype, comm_redop redop, size_t count)
{
    const comm_op_traits *t = comm_op_traits_of(kind);
    comm_op op = { .struct_bytes = sizeof op,
                   .kind = kind,
                   .dtype = dtype,
                   .redop = redop,
                   .root = t->traits & (COMM_OP_TRAIT_ROOTED | COMM_OP_TRAIT_PEER) ? 0 : -1,
                   .flags = form == PLAIN ? 0 : COMM_OP_FLAG_UNEVEN,
                   .device = COMM_DEVICE_CPU,
                   .element_bytes = (uint32_t)comm_dtype_bytes(dtype),
                   .timeout_ns = INT64_MAX,
                   .premul = redop == COMM_REDOP_PREMUL_SUM ? memory : NULL,
                   .reduce_fn = redop == COMM_REDOP_USER ? sum_up : NULL };
    for (int r = 0; r < CHECK_RANKS_MAX; r++)
        lists[r] = memory;
    if (t->send != COMM_OP_SIDE_NONE)
        fill_side(&op.send, t->send, form, count);
    if (t->recv != COMM_OP_SIDE_NONE && !(t->traits & COMM_OP_TRAIT_RECV_BUT_ROOT))
        fill_side(&op.recv, t->recv, form, count);
    return op;
}

static bool can(const comm_op *op)
{
    const comm_backend *b = watch_inner();
    bool reduces = comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_REDUCES;
    if (op->kind >= b->kind_end || op->dtype >= b->dtype_end || (reduces && op->redop >= b->redop_end) ||
        (op->flags & ~b->op_flags))
        return false;
    return watch_ask(op) == COMM_OK;
}

static bool can_do(int32_t kind, enum form form, comm_dtype dtype, comm_redop redop, size_t count)
{
    comm_op op = make_op(kind, form, dtype, redop, count);
    return can(&op);
}

static void append(char *text, const char *word)
{
    size_t used = strlen(text);
    snprintf(text + used, CHECK_TEXT_BYTES - used, "%s%s", used ? " " : "", word);
}

/* "sum: all" or the list of types; nothing if none. */
static void tell_redop(comm_redop redop)
{
    char types[CHECK_TEXT_BYTES] = "", missing[CHECK_TEXT_BYTES] = "", key[40];
    for (comm_dtype d = 1; d < COMM_DTYPE_END; d++)
        if (comm_redop_supports(redop, d))
            append(can_do(COMM_OP_ALL_REDUCE, PLAIN, d, redop, 8) ? types : missing, comm_dtype_name(d));
    snprintf(key, sizeof key, "redop %s", comm_redop_name(redop));
    fact(key, "%s%s%s%s", *missing ? types : "every type that has it", *missing && !*types ? "none" : "",
         *missing && *types ? "; not " : "", *types ? missing : "");
}

static void tell_kinds(void)
{
    static const char *const forms[] = { "", "_v", "_list" };
    char yes[CHECK_TEXT_BYTES] = "", no[CHECK_TEXT_BYTES] = "", name[60];
    for (int32_t kind = 1; kind < COMM_OP_KIND_END; kind++) {
        const comm_op_traits *t = comm_op_traits_of(kind);
        bool blocks = t->send == COMM_OP_SIDE_BLOCKS || t->recv == COMM_OP_SIDE_BLOCKS;
        for (int f = PLAIN; f <= (blocks ? LIST : PLAIN); f++) {
            snprintf(name, sizeof name, "%s%s", t->name, forms[f]);
            append(can_do(kind, (enum form)f, COMM_DTYPE_I32, COMM_REDOP_SUM, 8) ? yes : no, name);
        }
    }
    fact("operations", "%s", *yes ? yes : "none");
    if (*no)
        fact("refused", "%s", no);
}

static void tell_types(void)
{
    char yes[CHECK_TEXT_BYTES] = "", no[CHECK_TEXT_BYTES] = "";
    for (comm_dtype d = 1; d < COMM_DTYPE_END; d++)
        append(can_do(COMM_OP_BROADCAST, PLAIN, d, 0, 8) ? yes : no, comm_dtype_name(d));
    fact("types moved", "%s%s%s", *yes ? yes : "none", *no && *yes ? "; not " : "", *yes ? no : "");
    if (!can_do(COMM_OP_ALL_REDUCE, PLAIN, COMM_DTYPE_I32, COMM_REDOP_SUM, 8))
        return;
    for (comm_redop r = 0; r < COMM_REDOP_END; r++)
        tell_redop(r);
    comm_op op = make_op(COMM_OP_ALL_REDUCE, PLAIN, COMM_DTYPE_F32, COMM_REDOP_SUM, 8);
    op.flags |= COMM_OP_FLAG_RANK_ORDER;
    fact("rank order", "%s", can(&op) ? "yes" : "refused");
}

static void tell_messages(void)
{
    struct message_facts m;
    ask_about_messages(&m);
    if (!m.messages)
        return;
    fact("messages", "tags to %d%s%s%s", m.most_tag, m.any_source ? ", any source" : "", m.any_tag ? ", any tag" : "",
         m.own_tags ? ", the library's own tags" : "; the library's own tags are refused");
}

static void tell_limit(void)
{
    char text[CHECK_TEXT_BYTES] = "";
    int32_t kinds[] = { COMM_OP_BROADCAST, COMM_OP_ALL_REDUCE, COMM_OP_ALL_GATHER };
    for (int k = 0; k < 3; k++) {
        size_t most = 1;
        if (!can_do(kinds[k], PLAIN, COMM_DTYPE_U8, COMM_REDOP_SUM, most))
            continue;
        while (most < (size_t)1 << 40 && can_do(kinds[k], PLAIN, COMM_DTYPE_U8, COMM_REDOP_SUM, most * 2))
            most *= 2;
        char word[80];
        snprintf(word, sizeof word, "%s %s%zu B", comm_op_traits_of(kinds[k])->name,
                 most >= (size_t)1 << 40 ? "at least " : "about ", most);
        append(text, word);
    }
    fact("longest", "%s", *text ? text : "nothing");
}

static void tell_slots(const comm_backend *b)
{
    char text[CHECK_TEXT_BYTES] = "";
    const struct {
        const char *name;
        bool has;
    } slots[] = { { "query", b->query != NULL },
                  { "group_connect", b->group_connect != NULL },
                  { "supports", b->supports != NULL },
                  { "run", b->run != NULL },
                  { "progress", b->progress != NULL },
                  { "wait_stream", b->wait_stream != NULL },
                  { "memory_open", b->memory_open != NULL },
                  { "describe_routes", b->describe_routes != NULL } };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (slots[i].has)
            append(text, slots[i].name);
    fact("optional slots", "%s", *text ? text : "none");
}

static void tell_traits(uint32_t traits)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } all[] = { { COMM_BACKEND_KEEPS_DEADLINES, "KEEPS_DEADLINES" },
                { COMM_BACKEND_CANNOT_CANCEL, "CANNOT_CANCEL" },
                { COMM_BACKEND_NOTICES_LOSS, "NOTICES_LOSS" },
                { COMM_BACKEND_CHECKS_SIGNATURES, "CHECKS_SIGNATURES" } };
    char text[CHECK_TEXT_BYTES] = "";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (traits & all[i].bit)
            append(text, all[i].name);
    fact("traits", "%s", *text ? text : "none");
}

static void tell_params(const comm_backend *b)
{
    char text[CHECK_TEXT_BYTES] = "";
    for (const comm_backend_param *const *p = b->params; p && *p; p++) {
        char word[120];
        snprintf(word, sizeof word, "%s=%s", (*p)->name, (*p)->initial ? (*p)->initial : "");
        append(text, word);
    }
    fact("parameters", "%s", *text ? text : "none");
}

void table_facts(void)
{
    const comm_backend *b = watch_inner();
    comm_group *world = open_world(NULL);
    int threads = thread_count();
    if (self_rank() == 0) {
        fact("name", "%s %s, %s", b->name, b->version ? b->version : "", b->license ? b->license : "");
        fact("devices", "%s", b->devices ? b->devices : "");
        fact("ABI", "%u.%u, comm_op of %u bytes", b->abi_major, b->abi_minor, b->op_bytes);
        fact("preference", "%d", b->preference);
        tell_traits(b->traits);
        tell_slots(b);
        tell_params(b);
        tell_kinds();
        tell_types();
        tell_messages();
        tell_limit();
    }
    if (thread_count() > threads + THREADS_TOLERATED) /* a few may have been on their way */
        finding(RULE_supports_blocks, "supports has side effects: %d threads were started while it was asked",
                thread_count() - threads);
    meet(world, "asked"); /* the others look after nothing meanwhile */
    comm_group_close(world);
}
