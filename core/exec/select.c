/* Which algorithm for which op: the rules, the user's overrides, and the two laid over each other. Pure functions; any
 * thread. To change what is used when, edit the rules; to add an algorithm, see algo/README.md. */
#include "select.h"

#include <comm/backend.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* algo.def and the rules name an op as people do; these are its numbers. */
enum {
    KIND_broadcast = COMM_OP_BROADCAST,
    KIND_all_reduce = COMM_OP_ALL_REDUCE,
    KIND_reduce = COMM_OP_REDUCE,
    KIND_all_gather = COMM_OP_ALL_GATHER,
    KIND_gather = COMM_OP_GATHER,
    KIND_scatter = COMM_OP_SCATTER,
    KIND_reduce_scatter = COMM_OP_REDUCE_SCATTER,
    KIND_all_to_all = COMM_OP_ALL_TO_ALL,
    KIND_barrier = COMM_OP_BARRIER,
};

/* One row of algo.def: a name that the rules can refer to, the op's name, and the algorithm. */
enum {
#define ALGO(kind, name, traits, help) kind##_##name,
#include "algo.def"
#undef ALGO
    ALGO_COUNT
};

static const struct algo algos[] = {
#define ALGO(kind, name, traits, help) { KIND_##kind, #name, help, algo_##kind##_##name, traits },
#include "algo.def"
#undef ALGO
};

static const char *const op_names[] = {
#define ALGO(kind, name, traits, help) #kind,
#include "algo.def"
#undef ALGO
};

/* ---- The rules -------------------------------------------------------------------------------- */

#define KB ((size_t)1 << 10)
#define MB ((size_t)1 << 20)
#define ANY INT32_MAX
#define ALL SIZE_MAX

/* The first rule wins whose op is meant, whose limits are not exceeded, and whose algorithm has the traits that are
 * needed. Each op ends with rules without limits that between them have every trait that is ever needed of it. `bytes`
 * is as in select_query. What one rank alone knows must not count: ranks may call the plain form of gather and scatter
 * beside the uneven ones, so both take what all forms can. The rules of two levels are for several hosts with two ranks
 * each on average, and limit the hosts. They were found on 2 and 3 hosts with 2 ranks each, links of 1 Gbit/s and
 * 0.2 ms, ranks in order and in turn. */
struct rule {
    int algo;
    int32_t max_size; /* ranks; of two levels: hosts */
    size_t max_bytes;
    size_t slice_bytes; /* as in struct route */
};

static const struct rule rules[] = {
    { all_reduce_recursive_doubling, ANY, 16 * KB, 0 },
    { all_reduce_two_level, 16, ALL, 1 * MB },
    { all_reduce_recursive_doubling, ANY, 32 * KB, 0 },
    { all_reduce_one_shot, 8, 2 * KB, 0 },
    { all_reduce_direct, 16, 64 * KB, 0 },
    { all_reduce_halving_doubling, ANY, 512 * KB, 0 },
    { all_reduce_ring, 16, ALL, 4 * MB },
    { all_reduce_halving_doubling, ANY, 1 * MB, 0 },
    { all_reduce_ring, ANY, ALL, 4 * MB },
    { all_reduce_direct, ANY, ALL, 4 * MB },

    { reduce_scatter_direct, 16, 32 * KB, 0 },
    { reduce_scatter_circulant, ANY, 32 * KB, 0 },
    { reduce_scatter_two_level, 16, ALL, 1 * MB },
    { reduce_scatter_direct, 16, 128 * KB, 0 },
    { reduce_scatter_ring, 16, ALL, 1 * MB },
    { reduce_scatter_circulant, ANY, 512 * KB, 0 },
    { reduce_scatter_two_level, ANY, ALL, 1 * MB },
    { reduce_scatter_ring, ANY, ALL, 1 * MB },
    { reduce_scatter_direct, ANY, ALL, 1 * MB },

    { all_gather_direct, 16, 16 * KB, 0 },
    { all_gather_bruck, ANY, 16 * KB, 0 },
    { all_gather_two_level, 16, ALL, 1 * MB },
    { all_gather_direct, 16, 128 * KB, 0 },
    { all_gather_bruck, ANY, 80 * KB, 0 },
    { all_gather_two_level, ANY, ALL, 1 * MB },
    { all_gather_ring, ANY, ALL, 1 * MB },

    { broadcast_two_level, ANY, 32 * KB, 0 },
    { broadcast_two_level_chain, 16, 1 * MB, 64 * KB },
    { broadcast_two_level_chain, 16, ALL, 512 * KB },
    { broadcast_binomial, 2, ALL, 0 },
    { broadcast_binomial, ANY, 32 * KB, 0 },
    { broadcast_chain, 8, 1 * MB, 128 * KB },
    { broadcast_scatter_direct, 16, 1 * MB, 0 },
    { broadcast_chain, 32, ALL, 512 * KB },
    { broadcast_scatter_ring, ANY, ALL, 4 * MB },

    { reduce_two_level, ANY, 32 * KB, 0 },
    { reduce_two_level_chain, 16, 1 * MB, 64 * KB },
    { reduce_two_level_chain, 16, ALL, 512 * KB },
    { reduce_binomial, ANY, 8 * KB, 0 },
    { reduce_direct_gather, ANY, ALL, 4 * MB },

    { gather_linear, ANY, ALL, 0 },

    { scatter_linear, ANY, ALL, 0 },

    { all_to_all_direct, 16, ALL, 0 },
    { all_to_all_bruck, ANY, 16 * KB, 0 },
    { all_to_all_direct, 64, 2 * MB, 0 },
    { all_to_all_pairwise, ANY, ALL, 0 },

    { barrier_two_level, ANY, ALL, 0 },
    { barrier_dissemination, ANY, ALL, 0 },
};

/* For ranks that share memory: a message costs little more than its bytes, and no switch can be overrun. What is long
 * is best reduced as it comes, straight from the memory that is shared. Found with 2 ranks on several machines, and
 * with 3 to 16 on 16 cores of one (Sapphire Rapids). A round of short messages takes 0.2 to 0.3 us, as a carrier does
 * it without the engine: 8 ranks' all_reduce of 1 KiB took 2.7 us in three rounds and 5.0 in one shot, their reduce of
 * 4 KiB 1.2 up a tree and 3.9 in two rounds. Chains bring forth streams of short broadcasts sooner than trees, but a
 * single one later: 4 KiB to 8 ranks 11 us, not 5. For more ranks the rules go on as for 16; that was not measured.
 * Slices of what no cache holds may be longer: two ranks that read and write by the kernel sum 64 MiB a tenth faster.
 * So may those of what several ranks read by the kernel, from 1 to 16 MiB (backend_shm/lend.c): it reads long pieces
 * faster. Where it may not, such slices are cut to RING_SLICE_BYTES: through rings 4 ranks take 1.1 to 1.3 times as
 * long with slices of 4 MiB.
 *
 * What one of several ranks reduces stays in the rings until all of it is there, and is read once (struct kept): in
 * slices of which as many as are under way leave space there. A reduce_scatter of 256 KiB to 16 MiB takes 4 ranks 0.7
 * times as long so as along a ring, 8 ranks 0.6 to 0.95, and 12 and 16 ranks 0.7 and 0.75 up to 1 MiB and 512 KiB; an
 * all_reduce 3 ranks 0.5 to 0.7 times as long as by halving and doubling, and 6 and 12 ranks 0.45 to 0.75. Of 4, 8 and
 * 16 ranks, which are powers of two, it is not faster. */
static const struct rule memory_rules[] = {
    { all_reduce_one_shot, 2, 16 * KB, 0 },
    { all_reduce_halving_doubling, 2, 16 * MB, 256 * KB },
    { all_reduce_halving_doubling, 2, ALL, 512 * KB },
    { all_reduce_one_shot, 3, 8 * KB, 0 },
    { all_reduce_direct, 3, 32 * KB, 0 },
    { all_reduce_direct, 2, ALL, 256 * KB },
    { all_reduce_direct, 3, ALL, 96 * KB },
    { all_reduce_one_shot, 4, 32, 0 },
    { all_reduce_recursive_doubling, 4, 16 * KB, 0 },
    { all_reduce_halving_doubling, 4, 1 * MB, 512 * KB },
    { all_reduce_halving_doubling, 4, 16 * MB, 4 * MB },
    { all_reduce_halving_doubling, 4, ALL, 512 * KB },
    { all_reduce_one_shot, 7, 512, 0 },
    { all_reduce_recursive_doubling, 7, 1 * KB, 0 },
    { all_reduce_direct, 7, 32 * KB, 0 },
    { all_reduce_direct, 7, ALL, 192 * KB },
    { all_reduce_one_shot, 8, 32, 0 },
    { all_reduce_recursive_doubling, ANY, 2 * KB, 0 },
    { all_reduce_halving_doubling, ANY, 32 * KB, 0 },
    { all_reduce_halving_doubling, 8, 1 * MB, 512 * KB },
    { all_reduce_halving_doubling, 8, 16 * MB, 4 * MB },
    { all_reduce_halving_doubling, 8, ALL, 512 * KB },
    { all_reduce_one_shot, 16, 256, 0 },
    { all_reduce_direct, 11, ALL, 256 * KB },
    { all_reduce_direct, 15, ALL, 384 * KB },
    { all_reduce_halving_doubling, ANY, 1 * MB, 512 * KB },
    { all_reduce_halving_doubling, ANY, 16 * MB, 4 * MB },
    { all_reduce_halving_doubling, ANY, ALL, 512 * KB },
    { all_reduce_direct, ANY, ALL, 256 * KB },

    { reduce_scatter_direct, 6, 64 * KB, 0 },
    { reduce_scatter_circulant, ANY, 32 * KB, 0 },
    { reduce_scatter_direct, 16, 64 * KB, 0 },
    { reduce_scatter_ring, 2, ALL, 512 * KB },
    { reduce_scatter_direct, 2, ALL, 256 * KB },
    { reduce_scatter_direct, 3, ALL, 96 * KB },
    { reduce_scatter_direct, 4, ALL, 64 * KB },
    { reduce_scatter_direct, 7, ALL, 96 * KB },
    { reduce_scatter_direct, 8, ALL, 64 * KB },
    { reduce_scatter_direct, 12, 1 * MB, 0 },
    { reduce_scatter_direct, 16, 512 * KB, 0 },
    { reduce_scatter_ring, ANY, ALL, 512 * KB },
    { reduce_scatter_direct, ANY, ALL, 256 * KB },

    { all_gather_direct, 8, ALL, 1 * MB },
    { all_gather_bruck, ANY, 16 * KB, 0 },
    { all_gather_direct, ANY, ALL, 1 * MB },

    { broadcast_direct, 2, 16 * KB, 0 },
    { broadcast_direct, 3, 128, 0 },
    { broadcast_binomial, 2, ALL, 0 },
    { broadcast_binomial, ANY, 16 * KB, 0 },
    { broadcast_scatter_direct, 4, ALL, 512 * KB },
    { broadcast_scatter_direct, 16, 1 * MB, 0 },
    { broadcast_chain, ANY, ALL, 128 * KB },

    { reduce_direct, 2, 16 * KB, 0 },
    { reduce_direct, 3, 2 * KB, 0 },
    { reduce_direct, 4, 256, 0 },
    { reduce_binomial, ANY, 16 * KB, 0 },
    { reduce_binomial, 2, ALL, 512 * KB },
    { reduce_direct, 8, 16 * KB, 0 },
    { reduce_direct, 16, 4 * KB, 0 },
    { reduce_direct_gather, ANY, ALL, 512 * KB },

    { gather_linear, ANY, ALL, 0 },

    { scatter_linear, ANY, ALL, 0 },

    { all_to_all_direct, ANY, ALL, 0 },

    { barrier_direct, 6, ALL, 0 },
    { barrier_dissemination, ANY, ALL, 0 },
};

/* Before those, for 16- and 8-bit floats: their sums are swapped in fp32, which are twice or four times as many bytes,
 * all of them in recursive doubling and the circulant, half of them in halving and doubling. What reduces in rank order
 * swaps no sums. Found with bf16 and 3 to 16 ranks on the same 16 cores. */
static const struct rule narrow_memory_rules[] = {
    { all_reduce_one_shot, 3, 4 * KB, 0 },
    { all_reduce_direct, 3, 32 * KB, 0 },
    { all_reduce_recursive_doubling, 4, 2 * KB, 0 },
    { all_reduce_halving_doubling, 4, 32 * KB, 0 },
    { all_reduce_recursive_doubling, 7, 512, 0 },
    { all_reduce_direct, 7, 32 * KB, 0 },
    { all_reduce_recursive_doubling, ANY, 256, 0 },
    { all_reduce_halving_doubling, ANY, 32 * KB, 0 },
    { all_reduce_direct, 2, 1 * MB, 256 * KB },
    { all_reduce_direct, 7, 1 * MB, 128 * KB },
    { all_reduce_direct, ANY, 1 * MB, 256 * KB },
    { all_reduce_direct, ANY, 4 * MB, 2 * MB },
    { all_reduce_direct, ANY, ALL, 256 * KB },

    { reduce_scatter_direct, 6, 64 * KB, 0 },
    { reduce_scatter_circulant, 8, 2 * KB, 0 },
    { reduce_scatter_direct, 8, 64 * KB, 0 },
    { reduce_scatter_circulant, ANY, 16 * KB, 0 },
    { reduce_scatter_direct, 16, 64 * KB, 0 },
    { reduce_scatter_direct, 2, ALL, 256 * KB },
    { reduce_scatter_direct, 4, ALL, 64 * KB },
    { reduce_scatter_direct, 7, ALL, 96 * KB },
    { reduce_scatter_direct, 8, ALL, 64 * KB },
    { reduce_scatter_direct, ANY, ALL, 256 * KB },

    { reduce_binomial, ANY, 8 * KB, 0 },
    { reduce_direct_gather, ANY, ALL, 512 * KB },
};

/* Before those, for ranks that share memory and are more than their cores. A round costs a turn of each rank on a core
 * then, and a rank that passes something on stops those before and behind it until its turn comes. So one round is best
 * for a few ranks, and two up to lengths at which copies take as long. From 8 ranks on each has so many messages to
 * look at in one shot that a round for each doubling is sooner, from 512 B on (1 KiB of 8 ranks: 11 us, not 15). Found
 * with 3 to 16 ranks on 2 cores, f32 and bf16. (4 ranks, all_reduce of 4 KiB: 7.3 us in two rounds, 4.6 in one; of
 * 16 KiB 10.5 and 12. 8 ranks, broadcast of 64 KiB: 54 us along a chain, 15 from the root.)
 *
 * What several ranks send for one to reduce stays in the rings until all of it is there, and is read once (struct
 * kept): in slices of which as many as are under way leave space there, mostly. Up to 8 ranks that is best, with few
 * exceptions; 12 sum as fast by halving and doubling. all_reduce of 256 KiB and 4 MiB takes 6 ranks 0.18 and 5.1 ms so,
 * and 0.24 and 12.4 by halving and doubling. Longer reductions to one rank go along a chain, in slices that stay in a
 * core's own cache. */
static const struct rule crowded_rules[] = {
    { all_reduce_one_shot, 3, 16 * KB, 0 },
    { all_reduce_one_shot, 4, 8 * KB, 0 },
    { all_reduce_one_shot, 7, 4 * KB, 0 },
    { all_reduce_halving_doubling, 2, ALL, 256 * KB },
    { all_reduce_direct, 3, 512 * KB, 128 * KB },
    { all_reduce_halving_doubling, 3, 1 * MB, 512 * KB },
    { all_reduce_direct, 3, ALL, 256 * KB },
    { all_reduce_direct, 7, ALL, 128 * KB },
    { all_reduce_one_shot, 16, 256, 0 },
    { all_reduce_recursive_doubling, 16, 4 * KB, 0 },
    { all_reduce_halving_doubling, 16, 8 * KB, 0 },
    { all_reduce_direct, 15, ALL, 128 * KB },
    { all_reduce_direct, 16, 32 * KB, 0 },

    { reduce_scatter_direct, 2, 64 * KB, 0 },
    { reduce_scatter_ring, 2, ALL, 64 * KB },
    { reduce_scatter_direct, 3, 512 * KB, 128 * KB },
    { reduce_scatter_ring, 3, ALL, 64 * KB },
    { reduce_scatter_direct, 4, ALL, 64 * KB },
    { reduce_scatter_direct, 6, ALL, 32 * KB },
    { reduce_scatter_direct, 8, 512 * KB, 32 * KB },
    { reduce_scatter_direct, 8, ALL, 16 * KB },
    { reduce_scatter_direct, 16, 128 * KB, 0 },
    { reduce_scatter_ring, ANY, ALL, 64 * KB },

    { all_gather_direct, ANY, ALL, 1 * MB },

    { broadcast_direct, 16, ALL, 0 },

    { reduce_direct, 2, 64 * KB, 0 },
    { reduce_binomial, 2, ALL, 512 * KB },
    { reduce_direct, 3, 1 * MB, 64 * KB },
    { reduce_direct, 6, 1 * MB, 32 * KB },
    { reduce_chain, 6, ALL, 64 * KB },
    { reduce_direct, 3, ALL, 64 * KB },
    { reduce_direct, 6, ALL, 32 * KB },
    { reduce_direct, 16, 32 * KB, 0 },
    { reduce_binomial, ANY, 2 * KB, 0 },
    { reduce_direct_gather, 16, 512 * KB, 0 },
    { reduce_chain, 16, ALL, 64 * KB },
    { reduce_direct_gather, 8, ALL, 128 * KB },
    { reduce_direct_gather, ANY, ALL, 512 * KB },

    { barrier_direct, 16, ALL, 0 },
};

/* And before those, for 16- and 8-bit floats: halving and doubling swaps sums, of twice as many bytes. (Rings and
 * chains would round partial sums, and are passed over.) */
static const struct rule narrow_crowded_rules[] = {
    { all_reduce_one_shot, 3, 16 * KB, 0 },
    { all_reduce_direct, 3, ALL, 256 * KB },
};

/* For ranks of several hosts that share memory within each. On a host a round costs next to nothing, so what counts is
 * what goes between hosts: as few rounds and messages as can be, then as few bytes. Found on 2 and 3 hosts with 1 to 3
 * ranks each, in order and in turn, over loopback (no limit but the cores) and links of 1 and 10 Gbit/s. */
static const struct rule level_rules[] = {
    { all_reduce_two_level_leaders, 2, 64 * KB, 0 },
    { all_reduce_two_level_leaders, 4, 16 * KB, 0 },
    { all_reduce_two_level_leaders, 8, 4 * KB, 0 },
    { all_reduce_recursive_doubling, ANY, 16 * KB, 0 },
    { all_reduce_two_level, 16, ALL, 1 * MB },
    { all_reduce_halving_doubling, ANY, 1 * MB, 0 },
    { all_reduce_ring, ANY, ALL, 4 * MB },
    { all_reduce_one_shot, 8, 2 * KB, 0 },
    { all_reduce_direct, ANY, ALL, 4 * MB },

    { reduce_scatter_two_level, 4, ALL, 1 * MB },
    { reduce_scatter_circulant, ANY, 32 * KB, 0 },
    { reduce_scatter_two_level, ANY, ALL, 1 * MB },
    { reduce_scatter_ring, ANY, ALL, 1 * MB },
    { reduce_scatter_direct, ANY, ALL, 1 * MB },

    { all_gather_bruck, ANY, 4 * KB, 0 },
    { all_gather_two_level, 16, ALL, 1 * MB },
    { all_gather_bruck, ANY, 80 * KB, 0 },
    { all_gather_two_level, ANY, ALL, 1 * MB },
    { all_gather_ring, ANY, ALL, 1 * MB },

    { broadcast_two_level, ANY, 64 * KB, 0 },
    { broadcast_two_level_chain, 2, 512 * KB, 0 },
    { broadcast_two_level_chain, 2, ALL, 512 * KB },
    { broadcast_two_level_chain, 16, 1 * MB, 64 * KB },
    { broadcast_two_level_chain, 16, ALL, 512 * KB },
    { broadcast_binomial, ANY, 64 * KB, 0 },
    { broadcast_scatter_ring, ANY, ALL, 4 * MB },

    { reduce_two_level, ANY, 64 * KB, 0 },
    { reduce_two_level_chain, 2, 512 * KB, 0 },
    { reduce_two_level_chain, 2, ALL, 512 * KB },
    { reduce_two_level_chain, 16, 1 * MB, 64 * KB },
    { reduce_two_level_chain, 16, ALL, 512 * KB },
    { reduce_binomial, ANY, 8 * KB, 0 },
    { reduce_direct_gather, ANY, ALL, 4 * MB },

    { gather_linear, ANY, ALL, 0 },

    { scatter_linear, ANY, ALL, 0 },

    { all_to_all_bruck, ANY, 4 * KB, 0 },
    { all_to_all_direct, 16, ALL, 0 },
    { all_to_all_direct, 64, 2 * MB, 0 },
    { all_to_all_pairwise, ANY, ALL, 0 },

    { barrier_two_level, ANY, ALL, 0 },
    { barrier_dissemination, ANY, ALL, 0 },
};

enum {
    RULE_COUNT = sizeof rules / sizeof *rules,
    LEVEL_RULE_COUNT = sizeof level_rules / sizeof *level_rules,
    MEMORY_RULE_COUNT = sizeof memory_rules / sizeof *memory_rules,
    NARROW_RULE_COUNT = sizeof narrow_memory_rules / sizeof *narrow_memory_rules,
    CROWDED_RULE_COUNT = sizeof crowded_rules / sizeof *crowded_rules,
    NARROW_CROWDED_RULE_COUNT = sizeof narrow_crowded_rules / sizeof *narrow_crowded_rules,
    SPECIAL_RULE_COUNT = NARROW_CROWDED_RULE_COUNT + CROWDED_RULE_COUNT + NARROW_RULE_COUNT,
};

/* In memory: slices for the kernel's reads, and the longest through rings. */
enum { KERNEL_SLICE_BYTES = 2 << 20, RING_SLICE_BYTES = 512 << 10 };

struct rule_list {
    const struct rule *rules;
    size_t count;
};

/* Those that come before memory_rules where they are for the query, in this order. */
static const struct special {
    struct rule_list list;
    int crowded, narrow; /* only for ranks that share cores; only for 16- and 8-bit floats */
    const char *where;
} specials[] = {
    { { narrow_crowded_rules, NARROW_CROWDED_RULE_COUNT }, 1, 1,
      "  of sums of 16- and 8-bit floats, with more ranks than cores" },
    { { crowded_rules, CROWDED_RULE_COUNT }, 1, 0, "  with more ranks than cores" },
    { { narrow_memory_rules, NARROW_RULE_COUNT }, 0, 1, "  of sums of 16- and 8-bit floats" },
};
enum { SPECIALS = sizeof specials / sizeof *specials };

/* `memory` is an enum select_memory. */
static struct rule_list rules_for(int memory)
{
    if (memory == SELECT_MEMORY_ALL)
        return (struct rule_list){ memory_rules, MEMORY_RULE_COUNT };
    if (memory == SELECT_MEMORY_HOSTS)
        return (struct rule_list){ level_rules, LEVEL_RULE_COUNT };
    return (struct rule_list){ rules, RULE_COUNT };
}

/* ---- Overrides -------------------------------------------------------------------------------- */

/* One item of the text, cut up; pointers lend from the text. */
struct item {
    const char *text;
    size_t length;
    char *error;
    size_t capacity;
};

/* Complain about an item; always -1. */
static int refuse(const struct item *item, const char *what)
{
    snprintf(item->error, item->capacity, "'%.*s': %s", (int)item->length, item->text, what);
    return -1;
}

/* The length of what begins at `text` up to one of `ends` or `limit`. */
static size_t word(const char *text, const char *limit, const char *ends)
{
    size_t length = 0;
    while (text + length < limit && !strchr(ends, text[length]))
        length++;
    return length;
}

static int same(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

/* "64K": digits and perhaps K, M or G. An empty word gives `empty`. */
static int parse_bytes(const char *text, size_t length, size_t empty, size_t *ret_bytes)
{
    size_t bytes = 0, i = 0;
    int shift = 0;
    for (; i < length && text[i] >= '0' && text[i] <= '9'; i++) {
        size_t digit = (size_t)(text[i] - '0');
        if (bytes > (SIZE_MAX - digit) / 10)
            return -1;
        bytes = bytes * 10 + digit;
    }
    if (i > 0 && i + 1 == length) {
        shift = text[i] == 'K' ? 10 : text[i] == 'M' ? 20 : text[i] == 'G' ? 30 : -1;
        i++;
    }
    if (i != length || shift < 0 || bytes > SIZE_MAX >> shift)
        return -1;
    *ret_bytes = length == 0 ? empty : bytes << shift;
    return 0;
}

/* Write what there is: the ops if `op` is NULL, else the algorithms for it. */
static void list_names(const char *op, size_t op_length, char *text, size_t capacity)
{
    size_t used = 0;
    for (size_t i = 0; i < ALGO_COUNT && used < capacity; i++) {
        const char *name = op ? algos[i].name : op_names[i];
        if (op ? !same(op_names[i], op, op_length) : i > 0 && algos[i].kind == algos[i - 1].kind)
            continue;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ", " : "", name);
    }
}

static const struct algo *find_algo(const struct item *item, const char *op, size_t op_length, const char *name,
                                    size_t length)
{
    char names[512] = "", what[640];
    for (size_t i = 0; i < ALGO_COUNT; i++)
        if (same(op_names[i], op, op_length) && same(algos[i].name, name, length))
            return &algos[i];
    list_names(op, op_length, names, sizeof names);
    if (names[0]) {
        snprintf(what, sizeof what, "no such algorithm for %.*s; there are: %s", (int)op_length, op, names);
    } else {
        list_names(NULL, 0, names, sizeof names);
        snprintf(what, sizeof what, "no such operation; there are: %s", names);
    }
    refuse(item, what);
    return NULL;
}

/* op:algorithm[@[min]-[max]][/slice] */
static int parse_item(const struct item *item, struct override *o)
{
    const char *at = item->text, *end = item->text + item->length;
    size_t length = word(at, end, ":@/");
    const char *op = at;
    size_t op_length = length;
    at += length;
    if (at == end || *at != ':' || length == 0)
        return refuse(item, "an override is OP:ALGORITHM[@MIN-MAX][/SLICE], as in all_reduce:ring@64K-1M");
    at++;
    length = word(at, end, "@/");
    o->algo = find_algo(item, op, op_length, at, length);
    if (!o->algo)
        return -1;
    at += length;
    o->min_ranks = o->min_hosts = 0;
    o->max_ranks = o->max_hosts = ANY;
    o->min_bytes = 0;
    o->max_bytes = o->slice_bytes = SIZE_MAX;
    if (at < end && *at == '@') {
        size_t low = word(++at, end, "-/");
        if (at + low == end || at[low] != '-')
            return refuse(item, "a range is MIN-MAX; either may be left out, as in 64K-");
        const char *high = at + low + 1;
        length = word(high, end, "/");
        if (parse_bytes(at, low, 0, &o->min_bytes) || parse_bytes(high, length, SIZE_MAX, &o->max_bytes) ||
            o->min_bytes > o->max_bytes)
            return refuse(item, "the range must be two numbers of bytes, such as 64K-1M, the smaller one first");
        at = high + length;
    }
    if (at < end && (at + 1 == end || parse_bytes(at + 1, (size_t)(end - at - 1), 0, &o->slice_bytes)))
        return refuse(item, "the slice must be a number of bytes, such as /512K, or /0 for none");
    return 0;
}

int select_override_parse(const char *text, size_t length, struct override *ret_override, char *error, size_t capacity)
{
    const struct item item = { text, length, error, capacity };
    return parse_item(&item, ret_override);
}

/* In a backend string a comma ends the backend, so there is a second separator. */
#define SEPARATORS ",;"

struct select_overrides *select_overrides_create(const char *text, char *error, size_t capacity)
{
    size_t count = 0;
    for (const char *c = text; *c; c++)
        count += strchr(SEPARATORS, *c) != NULL;
    struct select_overrides *o = calloc(1, sizeof *o + (count + 1) * sizeof *o->items);
    if (!o) {
        snprintf(error, capacity, "out of memory");
        return NULL;
    }
    const char *at = text, *end = text + strlen(text);
    while (*text) {
        struct item item = { at, word(at, end, SEPARATORS), error, capacity };
        if (parse_item(&item, &o->items[o->count++])) {
            select_overrides_destroy(o);
            return NULL;
        }
        at += item.length;
        if (at == end)
            break;
        at++;
    }
    return o;
}

void select_overrides_destroy(struct select_overrides *o)
{
    free(o);
}

/* ---- Choosing --------------------------------------------------------------------------------- */

/* The last rule of an algorithm, which is for the most bytes; NULL: none. */
static const struct rule *last_rule(const struct algo *algo, struct rule_list list)
{
    for (size_t i = list.count; i-- > 0;)
        if (&algos[list.rules[i].algo] == algo)
            return &list.rules[i];
    return NULL;
}

/* The slices that the rules give an algorithm, where it is used for the most bytes: those for such memory, or else
 * others. */
static size_t usual_slice(const struct algo *algo, int memory)
{
    const struct rule *r = last_rule(algo, rules_for(memory));
    for (size_t i = 0; i < SPECIALS && !r; i++)
        r = last_rule(algo, specials[i].list);
    static const int others[] = { SELECT_MEMORY_ALL, SELECT_MEMORY_NONE, SELECT_MEMORY_HOSTS };
    for (size_t i = 0; i < sizeof others / sizeof *others && !r; i++)
        r = last_rule(algo, rules_for(others[i]));
    return r ? r->slice_bytes : 0;
}

static int fits(const struct select_query *query, const struct algo *algo)
{
    uint32_t traits = algo->traits | (algo->traits & ALGO_ONE_ROUNDING ? ALGO_WIDE_SUMS : 0);
    return algo->kind == query->kind && (traits & query->needs) == query->needs;
}

/* Are there hosts with several ranks? Without shared memory it must be so on average. */
static int has_levels(const struct select_query *query)
{
    int share = query->memory == SELECT_MEMORY_HOSTS || query->hosts <= query->size / 2;
    return query->hosts > 1 && share;
}

/* Is the rule for so many ranks, on so many hosts? */
static int is_for(const struct rule *r, const struct select_query *query)
{
    if (algos[r->algo].traits & ALGO_LEVELS)
        return has_levels(query) && query->hosts <= r->max_size;
    return query->size <= r->max_size;
}

static int is_meant(const struct override *o, const struct select_query *query)
{
    return fits(query, o->algo) && query->bytes >= o->min_bytes && query->bytes <= o->max_bytes &&
           query->size >= o->min_ranks && query->size <= o->max_ranks && query->hosts >= o->min_hosts &&
           query->hosts <= o->max_hosts;
}

/* The first that is meant, or NULL. */
static const struct override *find_override(const struct select_query *query, const struct select_overrides *overrides)
{
    for (size_t i = 0; overrides && i < overrides->count; i++)
        if (is_meant(&overrides->items[i], query))
            return &overrides->items[i];
    return NULL;
}

/* The first that is for it, or NULL. */
static const struct rule *find_rule(const struct select_query *query, struct rule_list list)
{
    for (size_t i = 0; i < list.count; i++) {
        const struct rule *r = &list.rules[i];
        if (fits(query, &algos[r->algo]) && is_for(r, query) && query->bytes <= r->max_bytes)
            return r;
    }
    return NULL;
}

struct route select_route(const struct select_query *query, const struct select_overrides *overrides,
                          const struct select_overrides *tuning)
{
    /* A tuning file's are found with fp32: not for what would swap more bytes. */
    struct select_query tuned = *query;
    tuned.needs |= query->needs & ALGO_WIDE_SUMS ? ALGO_ONE_ROUNDING : 0;
    const struct override *o = find_override(query, overrides);
    if (!o)
        o = find_override(&tuned, tuning);
    if (o)
        return (struct route){ o->algo,
                               o->slice_bytes == SIZE_MAX ? usual_slice(o->algo, query->memory) : o->slice_bytes };
    const struct rule *r = NULL;
    for (size_t i = 0; i < SPECIALS && !r && query->memory == SELECT_MEMORY_ALL; i++)
        if ((query->shares_cores || !specials[i].crowded) && (query->needs & ALGO_WIDE_SUMS || !specials[i].narrow))
            r = find_rule(query, specials[i].list);
    if (!r)
        r = find_rule(query, rules_for(query->memory));
    if (!r)
        return (struct route){ NULL, 0 };
    int is_for_the_kernel = query->memory == SELECT_MEMORY_ALL && r->slice_bytes >= KERNEL_SLICE_BYTES;
    return (struct route){ &algos[r->algo],
                           is_for_the_kernel && !query->kernel_reads ? RING_SLICE_BYTES : r->slice_bytes };
}

/* ---- For printing ----------------------------------------------------------------------------- */

enum { RULE_TEXT_BYTES = 160 };
static char rule_texts[RULE_COUNT][RULE_TEXT_BYTES], level_rule_texts[LEVEL_RULE_COUNT][RULE_TEXT_BYTES],
    memory_rule_texts[SPECIAL_RULE_COUNT + MEMORY_RULE_COUNT][RULE_TEXT_BYTES];

static char (*texts_for(int memory))[RULE_TEXT_BYTES]
{
    return memory == SELECT_MEMORY_ALL     ? memory_rule_texts
           : memory == SELECT_MEMORY_HOSTS ? level_rule_texts
                                           : rule_texts;
}

static void put_bytes(char *text, size_t capacity, size_t bytes, const char *none)
{
    if (bytes == 0 || bytes == SIZE_MAX)
        snprintf(text, capacity, "%s", none);
    else if (bytes % MB == 0)
        snprintf(text, capacity, "%zuM", bytes / MB);
    else if (bytes % KB == 0)
        snprintf(text, capacity, "%zuK", bytes / KB);
    else
        snprintf(text, capacity, "%zu", bytes);
}

static void write_rule_text(const struct rule *r, const char *where, char *text)
{
    char ranks[16] = "", limit[24], slice[24];
    if (r->max_size != ANY)
        snprintf(ranks, sizeof ranks, "-%d", r->max_size);
    put_bytes(limit, sizeof limit, r->max_bytes, "");
    put_bytes(slice, sizeof slice, r->slice_bytes, "");
    const struct algo *algo = &algos[r->algo];
    snprintf(text, RULE_TEXT_BYTES, "%-14s  %5s %s  %s%-6s  %-20s%s%s%s", op_names[r->algo], ranks[0] ? ranks : "any",
             algo->traits & ALGO_LEVELS ? "hosts" : "ranks", limit[0] ? "-" : " ", limit[0] ? limit : "any",
             algo->name, slice[0] ? "  in slices of " : "", slice, where);
}

/* So many rules come before those of rules_for. */
static size_t special_count(int memory)
{
    return memory == SELECT_MEMORY_ALL ? SPECIAL_RULE_COUNT : 0;
}

static void write_rule_texts(void)
{
    static const int all[] = { SELECT_MEMORY_NONE, SELECT_MEMORY_ALL, SELECT_MEMORY_HOSTS };
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        for (size_t i = 0; i < rules_for(all[k]).count; i++)
            write_rule_text(&rules_for(all[k]).rules[i], "", texts_for(all[k])[special_count(all[k]) + i]);
    for (size_t k = 0, at = 0; k < SPECIALS; k++)
        for (size_t i = 0; i < specials[k].list.count; i++)
            write_rule_text(&specials[k].list.rules[i], specials[k].where, memory_rule_texts[at++]);
}

const struct algo *select_algo_at(size_t index)
{
    return index < ALGO_COUNT ? &algos[index] : NULL;
}

const char *select_rule_at(int memory, size_t index)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (index >= special_count(memory) + rules_for(memory).count)
        return NULL;
    pthread_once(&once, write_rule_texts);
    return texts_for(memory)[index];
}

void select_describe(int memory, const char *variable, void (*line)(const char *text, void *line_context),
                     void *line_context)
{
    const struct algo *algo;
    const char *rule;
    char text[256];
    line("algorithms:", line_context);
    for (size_t i = 0; (algo = select_algo_at(i)); i++) {
        snprintf(text, sizeof text, "  %-14s %-20s %s", comm_op_traits_of(algo->kind)->name, algo->name, algo->help);
        line(text, line_context);
    }
    snprintf(text, sizeof text, "rules, the first that fits counts (%s goes before them):", variable);
    line(text, line_context);
    for (size_t i = 0; (rule = select_rule_at(memory, i)); i++) {
        snprintf(text, sizeof text, "  %.*s", RULE_TEXT_BYTES, rule);
        line(text, line_context);
    }
}
