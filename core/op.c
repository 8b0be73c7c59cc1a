/* Checks an op before it gets its number, so that a wrong argument has no effect on other ranks. The texts are for the
 * person who made the call. */
#include "op.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "base/limits.h"
#include "base/utf8.h"

const char *comm__op_name(int32_t kind)
{
    const comm_op_traits *traits = comm_op_traits_of(kind);
    return traits ? traits->name : NULL;
}

uint64_t comm__op_count(const comm_op *op)
{
    return op->send.count > op->recv.count ? op->send.count : op->recv.count;
}

void comm__op_place_text(const struct op_place *place, char text[OP_PLACE_BYTES])
{
    char world_rank[40] = "";
    if (place->world_rank != place->rank)
        snprintf(world_rank, sizeof world_rank, ", world rank %d", place->world_rank);
    snprintf(text, OP_PLACE_BYTES, "group '%s' (rank %d of %d%s)", place->group_name, place->rank, place->size,
             world_rank);
}

static const char *described_name(const comm_op *op)
{
    const char *name = !op ? "idle" : op->kind ? comm__op_name(op->kind) : "coalesced operations";
    return name ? name : "an unknown operation";
}

/* Of an op that has been checked, and has its number. */
static void say_peer(const comm_op *op, char *text, size_t capacity)
{
    char peer[16], tag[24] = "";
    if (op->kind == COMM_OP_RECV && op->root == COMM_ANY_SOURCE)
        snprintf(peer, sizeof peer, "any rank");
    else
        snprintf(peer, sizeof peer, "rank %" PRId32, op->root);
    if (op->tag == COMM_ANY_TAG)
        snprintf(tag, sizeof tag, " with any tag");
    else if (op->tag > COMM_ANY_TAG) /* the others are libcomm's own */
        snprintf(tag, sizeof tag, " with tag %" PRId32, op->tag);
    snprintf(text, capacity, " %s %s%s", op->kind == COMM_OP_RECV ? "from" : "to", peer, tag);
}

void comm__op_describe(const comm_op *op, const struct op_place *place, char *text, size_t capacity)
{
    char number[24] = "", peer[48] = "", where[OP_PLACE_BYTES];
    const char *label = op && op->label ? op->label : "", *quote = *label ? "'" : "";
    if (op && op->group_seq)
        snprintf(number, sizeof number, " #%" PRIu64, op->group_seq);
    if (op && op->group_seq && comm__op_is_peer(op->kind))
        say_peer(op, peer, sizeof peer);
    comm__op_place_text(place, where);
    snprintf(text, capacity, "%s%s%s%s%s%s%s on %s", described_name(op), *label ? " " : "", quote, label, quote,
             number, peer, where);
}

/* What is being checked; every refusal begins with it. */
struct check {
    const comm_op *op;
    const struct op_place *place;
};

__attribute__((format(printf, 3, 4))) static comm_status refuse(const struct check *c, comm_status status,
                                                                const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char what[OP_DESCRIBED_BYTES];
    comm__op_describe(c->op, c->place, what, sizeof what);
    return comm__fail(status, "%s: %s", what, text);
}

comm_status comm__check_struct(const void *options, size_t known, const char *name)
{
    if (!options)
        return COMM_OK;
    uint32_t bytes;
    memcpy(&bytes, options, sizeof bytes);
    if (bytes < sizeof bytes || bytes > 65536) {
        char macro[64] = "";
        for (size_t i = 0; name[i] && i < sizeof macro - 6; i++)
            macro[i] = (char)(name[i] >= 'a' && name[i] <= 'z' ? name[i] - 'a' + 'A' : name[i]);
        return comm__fail(COMM_ERR_INVALID, "%s: struct_bytes is %u; begin with `%s options = %s_INIT;`", name, bytes,
                          name, macro);
    }
    for (size_t i = known; i < bytes; i++)
        if (((const char *)options)[i] != 0)
            return comm__fail(
                COMM_ERR_VERSION,
                "%s: a field at byte %zu is set that this libcomm (%s) does not know; it knows %zu bytes. "
                "Link with the library that your header came with",
                name, i, comm_version(), known);
    return COMM_OK;
}

comm_status comm__check_name(const char *call, const char *what, const char *name)
{
    char clean[NAME_BYTES_MAX + 1];
    size_t bytes = strlen(name), kept = bytes <= NAME_BYTES_MAX ? bytes : utf8_cut(name, 40);
    memcpy(clean, name, kept);
    size_t left = utf8_clean(clean, kept);
    clean[left] = '\0';
    if (bytes > NAME_BYTES_MAX)
        return comm__fail(COMM_ERR_INVALID, "%s: %s '%s...' has %zu bytes; it may have %d", call, what, clean, bytes,
                          NAME_BYTES_MAX);
    if (left != bytes || memcmp(clean, name, bytes) != 0)
        return comm__fail(COMM_ERR_INVALID, "%s: %s '%s' must be UTF-8 without control characters", call, what, clean);
    return COMM_OK;
}

comm_status comm__give_struct(void *ret_info, const void *full, size_t known, const char *call, const char *name)
{
    uint32_t bytes = 0;
    if (ret_info)
        memcpy(&bytes, ret_info, sizeof bytes);
    if (bytes <= sizeof bytes || bytes > 65536)
        return comm__fail(COMM_ERR_INVALID,
                          ret_info ? "%s: set struct_bytes to sizeof(%s) first" : "%s: the %s is NULL", call, name);
    memset((char *)ret_info + sizeof bytes, 0, bytes - sizeof bytes);
    memcpy((char *)ret_info + sizeof bytes, (const char *)full + sizeof bytes,
           (bytes < known ? bytes : known) - sizeof bytes);
    return COMM_OK;
}

/* ---- Options, types, ranks ---- */

#define USER_FLAGS ((uint32_t)(COMM_OP_FLAG_RANK_ORDER | COMM_OP_FLAG_ON_STREAM | COMM_OP_FLAG_PREMUL_ON_DEVICE))

static comm_status take_options(comm_op *op, const struct check *c, const comm_op_options *given)
{
    comm_status status = comm__check_struct(given, sizeof *given, "comm_op_options");
    if (status != COMM_OK)
        return refuse(c, status, "%s", comm_last_error());
    if (!given)
        return COMM_OK;
    comm_op_options options = COMM_OP_OPTIONS_INIT; /* the caller's may be shorter */
    memcpy(&options, given, given->struct_bytes < sizeof options ? given->struct_bytes : sizeof options);
    if (options.label && comm__check_name(comm__op_name(op->kind), "the label", options.label) != COMM_OK)
        return COMM_ERR_INVALID;
    op->label = options.label;
    if (options.flags & ~USER_FLAGS)
        return refuse(c, COMM_ERR_INVALID, "options->flags has unknown bits: 0x%x", options.flags);
    if (options.timeout_ms < COMM_TIMEOUT_INFINITE)
        return refuse(c, COMM_ERR_INVALID,
                      "options->timeout_ms is %lld; it is milliseconds, 0 or COMM_TIMEOUT_INFINITE",
                      (long long)options.timeout_ms);
    op->flags |= options.flags;
    if (comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_PEER)
        op->tag = options.tag;
    op->device = options.device;
    op->stream = options.stream;
    op->premul = options.premul;
    op->reduce_fn = options.reduce_fn;
    op->reduce_context = options.reduce_context;
    op->element_bytes = options.element_bytes;
    return COMM_OK;
}

/* The size of an element is the dtype's, and only structs that the user reduces have another. */
static comm_status take_element(comm_op *op, const struct check *c, const comm_op_traits *t)
{
    uint32_t given = op->element_bytes, dtype_bytes = (uint32_t)comm_dtype_bytes(op->dtype);
    int is_struct = (t->traits & COMM_OP_TRAIT_REDUCES) && op->redop == COMM_REDOP_USER && op->dtype == COMM_DTYPE_BYTE;
    op->element_bytes = is_struct && given ? given : dtype_bytes ? dtype_bytes : 1;
    if (given == 0 || given == op->element_bytes)
        return COMM_OK;
    return refuse(c, COMM_ERR_INVALID,
                  "options->element_bytes is %u; it is for reducing structs, with COMM_REDOP_USER on COMM_DTYPE_BYTE",
                  given);
}

static comm_status check_types(const struct check *c, const comm_op_traits *t)
{
    const comm_op *op = c->op;
    if (t->send != COMM_OP_SIDE_NONE || t->recv != COMM_OP_SIDE_NONE)
        if (comm_dtype_bytes(op->dtype) == 0)
            return refuse(c, COMM_ERR_INVALID, "there is no dtype %d; COMM_DTYPE_ values are %d to %d", op->dtype,
                          COMM_DTYPE_I8, COMM_DTYPE_END - 1);
    if (!(t->traits & COMM_OP_TRAIT_REDUCES))
        return COMM_OK;
    if (!comm_redop_name(op->redop))
        return refuse(c, COMM_ERR_INVALID,
                      "there is no reduce op %d; they are %d (COMM_REDOP_SUM) to %d (COMM_REDOP_USER)", op->redop,
                      COMM_REDOP_SUM, COMM_REDOP_USER);
    if (!comm_redop_supports(op->redop, op->dtype))
        return refuse(c, COMM_ERR_UNSUPPORTED, "'%s' is not defined for dtype %s", comm_redop_name(op->redop),
                      comm_dtype_name(op->dtype));
    if (op->redop == COMM_REDOP_USER && !op->reduce_fn)
        return refuse(c, COMM_ERR_INVALID, "the reduce op is 'user', but options->reduce_fn is NULL");
    if (op->redop == COMM_REDOP_PREMUL_SUM && !op->premul)
        return refuse(c, COMM_ERR_INVALID, "the reduce op is 'premul_sum', but options->premul is NULL");
    return COMM_OK;
}

/* A reduce op that was meant to use them, but is another one, would give wrong results. */
static comm_status check_unused(const struct check *c, const comm_op_traits *t)
{
    const comm_op *op = c->op;
    int reduces = (t->traits & COMM_OP_TRAIT_REDUCES) != 0;
    if (op->premul && !(reduces && op->redop == COMM_REDOP_PREMUL_SUM))
        return refuse(c, COMM_ERR_INVALID, "options->premul is given, but it is for COMM_REDOP_PREMUL_SUM%s%s",
                      reduces ? "; the reduce op is " : "", reduces ? comm_redop_name(op->redop) : "");
    if (op->reduce_fn && !(reduces && op->redop == COMM_REDOP_USER))
        return refuse(c, COMM_ERR_INVALID, "options->reduce_fn is given, but it is for COMM_REDOP_USER%s%s",
                      reduces ? "; the reduce op is " : "", reduces ? comm_redop_name(op->redop) : "");
    return COMM_OK;
}

static comm_status check_ranks(const struct check *c, const comm_op_traits *t)
{
    const comm_op *op = c->op;
    int32_t size = c->place->size;
    if ((t->traits & COMM_OP_TRAIT_ROOTED) && (op->root < 0 || op->root >= size))
        return refuse(c, COMM_ERR_INVALID, "root is %d; the ranks are 0 to %d", op->root, size - 1);
    if (!(t->traits & COMM_OP_TRAIT_PEER))
        return COMM_OK;
    int receives = op->kind == COMM_OP_RECV;
    if ((op->root < 0 || op->root >= size) && !(receives && op->root == COMM_ANY_SOURCE))
        return refuse(c, COMM_ERR_INVALID, "peer is %d; the ranks are 0 to %d%s", op->root, size - 1,
                      receives ? ", or COMM_ANY_SOURCE" : "");
    if (op->tag < 0 && !(receives && op->tag == COMM_ANY_TAG))
        return refuse(c, COMM_ERR_INVALID, "tag is %d; tags are 0 to %d%s", op->tag, INT32_MAX,
                      receives ? ", or COMM_ANY_TAG" : "");
    return COMM_OK;
}

/* ---- Buffers ---- */

/* Bytes of the whole side, without gaps. Numbers that no buffer can have are refused. */
static comm_status side_bytes(const struct check *c, const char *name, const comm_buffers *side, uint8_t shape,
                              size_t *ret_bytes)
{
    size_t elements = side->count, element_bytes = c->op->element_bytes;
    int overflows = 0;
    if (shape == COMM_OP_SIDE_BLOCKS && side->counts) {
        elements = 0;
        for (int32_t r = 0; r < c->place->size; r++) {
            size_t end = side->counts[r];
            if (side->offsets)
                overflows |= __builtin_add_overflow(end, side->offsets[r], &end);
            overflows |= __builtin_add_overflow(elements, side->counts[r], &elements);
            overflows |= end > LIMIT_BUFFER_BYTES / element_bytes;
        }
    } else if (shape == COMM_OP_SIDE_BLOCKS) {
        overflows = __builtin_mul_overflow(side->count, (size_t)c->place->size, &elements);
    }
    overflows |= __builtin_mul_overflow(elements, element_bytes, ret_bytes);
    if (!overflows && *ret_bytes <= LIMIT_BUFFER_BYTES)
        return COMM_OK;
    if (side->counts)
        return refuse(c, COMM_ERR_INVALID,
                      "the %s side's counts and offsets reach beyond the address space; is one of them negative?",
                      name);
    return refuse(c, COMM_ERR_INVALID,
                  "the count %zu is absurd: %s%zu bytes of %s, so the %s buffer would be longer than the address "
                  "space%s",
                  side->count, overflows ? "more than " : "", overflows ? SIZE_MAX : *ret_bytes,
                  comm_dtype_name(c->op->dtype), name, side->count > PTRDIFF_MAX ? "; is it negative?" : "");
}

static comm_status check_side(const struct check *c, const char *name, const comm_buffers *side, uint8_t shape,
                              size_t *ret_bytes)
{
    if (shape == COMM_OP_SIDE_BLOCKS && (c->op->flags & COMM_OP_FLAG_UNEVEN) && !side->counts)
        return refuse(c, COMM_ERR_INVALID, "the %s side's counts are NULL; give one count per rank", name);
    comm_status status = side_bytes(c, name, side, shape, ret_bytes);
    if (status != COMM_OK || *ret_bytes == 0)
        return status;
    if (!side->list)
        return side->data ? COMM_OK
                          : refuse(c, COMM_ERR_INVALID, "the %s buffer is NULL, but %zu bytes are to be there", name,
                                   *ret_bytes);
    for (int32_t r = 0; r < c->place->size; r++)
        if (!side->list[r] && side->counts[r])
            return refuse(c, COMM_ERR_INVALID, "the %s list's entry %d is NULL, but its count is %zu", name, r,
                          side->counts[r]);
    return COMM_OK;
}

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return a_bytes && b_bytes && x < y + b_bytes && y < x + a_bytes;
}

/* One buffer against the blocks of the other side: it may be its own block, and touch none besides. */
static comm_status check_own_block(const struct check *c, const comm_buffers *one, const comm_buffers *blocks)
{
    size_t element_bytes = c->op->element_bytes, count, one_bytes = one->count * element_bytes;
    const char *own = comm_op_block(blocks, element_bytes, c->place->rank, &count);
    if (one->data == own)
        return COMM_OK;
    int bad = 0;
    if (!blocks->counts)
        bad = overlap(one->data, one_bytes, blocks->data, blocks->count * (size_t)c->place->size * element_bytes);
    size_t offset = 0; /* not comm_op_block for each rank: that would be quadratic */
    for (int32_t r = 0; blocks->counts && r < c->place->size && !bad; r++) {
        size_t at = blocks->offsets ? blocks->offsets[r] : offset;
        const char *block = blocks->list ? blocks->list[r] : (const char *)blocks->data + at * element_bytes;
        bad = overlap(one->data, one_bytes, block, blocks->counts[r] * element_bytes);
        offset += blocks->counts[r];
    }
    return bad ? refuse(c, COMM_ERR_INVALID,
                        "send and recv overlap; the only in-place form is to give this rank's own block of the longer "
                        "buffer as the other one")
               : COMM_OK;
}

static comm_status check_overlap(const struct check *c, const comm_op_traits *t, size_t send_bytes, size_t recv_bytes)
{
    const comm_op *op = c->op;
    if (send_bytes == 0 || recv_bytes == 0 || t->in_place == COMM_OP_IN_PLACE_NONE)
        return COMM_OK;
    if (t->in_place == COMM_OP_IN_PLACE_OWN)
        return t->send == COMM_OP_SIDE_ONE ? check_own_block(c, &op->send, &op->recv)
                                           : check_own_block(c, &op->recv, &op->send);
    int uneven = (op->flags & COMM_OP_FLAG_UNEVEN) != 0;
    if (op->send.list || op->recv.list || (op->send.data == op->recv.data && !uneven))
        return COMM_OK;
    /* With offsets the sides may interleave, so only the same beginning is surely wrong. */
    if (op->send.offsets || op->recv.offsets ? op->send.data == op->recv.data
                                             : overlap(op->send.data, send_bytes, op->recv.data, recv_bytes))
        return refuse(c, COMM_ERR_INVALID, "send (%zu bytes) and recv (%zu bytes) overlap; %s", send_bytes, recv_bytes,
                      uneven ? "this form has no in-place form" : "in place is recv == send");
    return COMM_OK;
}

/* What this rank sends to itself must be what it expects of itself, in the forms where it says both. */
static comm_status check_own_counts(const struct check *c, const comm_op_traits *t)
{
    const comm_op *op = c->op;
    int32_t rank = c->place->rank;
    if (!(op->flags & COMM_OP_FLAG_UNEVEN) || (t->traits & COMM_OP_TRAIT_COUNTS_AGREE) ||
        !((t->send == COMM_OP_SIDE_BLOCKS) | (t->recv == COMM_OP_SIDE_BLOCKS)))
        return COMM_OK;
    size_t sent = t->send == COMM_OP_SIDE_BLOCKS ? op->send.counts[rank] : op->send.count;
    size_t expected = t->recv == COMM_OP_SIDE_BLOCKS ? op->recv.counts[rank] : op->recv.count;
    if (sent == expected)
        return COMM_OK;
    return refuse(c, COMM_ERR_INVALID, "this rank sends itself %zu elements, but expects %zu of itself", sent,
                  expected);
}

/* ---- Signature ---- */

/* Uneven counts that all ranks give are hashed; those that only one side knows are checked by the backend as blocks
 * arrive. */
static uint64_t signature(const comm_op *op, const comm_op_traits *t, int32_t size)
{
    struct {
        int32_t kind, dtype, redop, root;
        uint32_t flags, struct_bytes; /* of the user's elements, else 0 */
        uint64_t count;
    } agreed;
    int uneven = (op->flags & COMM_OP_FLAG_UNEVEN) != 0;
    memset(&agreed, 0, sizeof agreed);
    agreed.kind = op->kind;
    agreed.dtype = op->dtype;
    agreed.redop = t->traits & COMM_OP_TRAIT_REDUCES ? op->redop : 0;
    agreed.root = op->root;
    if (op->element_bytes != comm_dtype_bytes(op->dtype) && op->dtype == COMM_DTYPE_BYTE)
        agreed.struct_bytes = op->element_bytes;
    agreed.flags = op->flags & COMM_OP_FLAG_RANK_ORDER;
    if (t->traits & COMM_OP_TRAIT_COUNTS_AGREE)
        agreed.flags |= op->flags & COMM_OP_FLAG_UNEVEN;
    if (!(t->traits & COMM_OP_TRAIT_PEER) &&
        !(uneven ||
          ((t->traits & COMM_OP_TRAIT_ROOTED) && (t->send == COMM_OP_SIDE_BLOCKS || t->recv == COMM_OP_SIDE_BLOCKS))))
        agreed.count = comm__op_count(op);
    if (uneven && (t->traits & COMM_OP_TRAIT_COUNTS_AGREE)) {
        const comm_buffers *blocks = t->send == COMM_OP_SIDE_BLOCKS ? &op->send : &op->recv;
        agreed.count = XXH64(blocks->counts, (size_t)size * sizeof *blocks->counts, 0);
    }
    return XXH64(&agreed, sizeof agreed, 0);
}

static void drop_absent_sides(comm_op *op, const comm_op_traits *t, int32_t rank)
{
    int is_root = op->root == rank;
    if (!is_root && (t->traits & COMM_OP_TRAIT_SEND_AT_ROOT))
        memset(&op->send, 0, sizeof op->send);
    if ((!is_root && (t->traits & COMM_OP_TRAIT_RECV_AT_ROOT)) ||
        (is_root && (t->traits & COMM_OP_TRAIT_RECV_BUT_ROOT)))
        memset(&op->recv, 0, sizeof op->recv);
}

struct op_extent comm__op_extent(const comm_op *op, const struct op_place *place)
{
    const comm_op_traits *t = comm_op_traits_of(op->kind);
    size_t element_bytes = op->element_bytes, ranks = (size_t)place->size;
    int sends_one = t->send == COMM_OP_SIDE_ONE;
    size_t own = (sends_one ? op->send.count : op->recv.count) * element_bytes * (size_t)place->rank;
    return (struct op_extent){
        .send_bytes = op->send.count * element_bytes * (t->send == COMM_OP_SIDE_BLOCKS ? ranks : 1),
        .recv_bytes = op->recv.count * element_bytes * (t->recv == COMM_OP_SIDE_BLOCKS ? ranks : 1),
        .in_place_at = t->in_place != COMM_OP_IN_PLACE_OWN ? 0 : sends_one ? -(ptrdiff_t)own : (ptrdiff_t)own,
    };
}

comm_status comm__op_prepare(comm_op *op, const struct op_place *place, const comm_op_options *options)
{
    const comm_op_traits *t = comm_op_traits_of(op->kind);
    struct check c = { op, place };
    size_t send_bytes = 0, recv_bytes = 0;
    op->struct_bytes = sizeof *op;
    comm_status status = take_options(op, &c, options);
    if (status == COMM_OK)
        status = check_types(&c, t);
    if (status == COMM_OK)
        status = check_unused(&c, t);
    if (status == COMM_OK)
        status = take_element(op, &c, t);
    if (status == COMM_OK)
        status = check_ranks(&c, t);
    if (status != COMM_OK)
        return status;

    int is_root = !(t->traits & COMM_OP_TRAIT_ROOTED) || op->root == place->rank;
    drop_absent_sides(op, t, place->rank);
    if (t->send == COMM_OP_SIDE_ONE ||
        (t->send == COMM_OP_SIDE_BLOCKS && (is_root || !(t->traits & COMM_OP_TRAIT_SEND_AT_ROOT))))
        status = check_side(&c, "send", &op->send, t->send, &send_bytes);
    if (status == COMM_OK && (t->recv == COMM_OP_SIDE_ONE || (t->recv == COMM_OP_SIDE_BLOCKS &&
                                                              (is_root || !(t->traits & COMM_OP_TRAIT_RECV_AT_ROOT)))))
        status = check_side(&c, "recv", &op->recv, t->recv, &recv_bytes);
    if (status != COMM_OK)
        return status;
    if ((op->flags & COMM_OP_FLAG_UNEVEN) && (t->traits & COMM_OP_TRAIT_COUNTS_AGREE)) {
        comm_buffers *one = t->send == COMM_OP_SIDE_ONE ? &op->send : &op->recv;
        one->count = (t->send == COMM_OP_SIDE_ONE ? &op->recv : &op->send)->counts[place->rank];
        if (one->count && !one->data)
            return refuse(&c, COMM_ERR_INVALID, "the %s buffer is NULL, but counts[%d] is %zu",
                          t->send == COMM_OP_SIDE_ONE ? "send" : "recv", place->rank, one->count);
        *(t->send == COMM_OP_SIDE_ONE ? &send_bytes : &recv_bytes) = one->count * op->element_bytes;
    }
    status = is_root ? check_own_counts(&c, t) : COMM_OK;
    if (status == COMM_OK)
        status = check_overlap(&c, t, send_bytes, recv_bytes);
    op->signature = signature(op, t, place->size);
    return status;
}
