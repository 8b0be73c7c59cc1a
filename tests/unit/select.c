/* Routing: for every op, size and need there is an algorithm that has it; overrides say what they mean or what is wrong
 * with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <comm/backend.h>
#include <string.h>

#include "core/exec/select.h"

static struct route route_with(const char *overrides, int32_t kind, int32_t size, size_t bytes, uint32_t needs)
{
    char error[256] = "";
    struct select_overrides *o = overrides ? select_overrides_create(overrides, error, sizeof error) : NULL;
    struct select_query query = { .kind = kind, .size = size, .bytes = bytes, .needs = needs };
    assert_string_equal(error, "");
    struct route route = select_route(&query, o, NULL);
    select_overrides_destroy(o);
    return route;
}

static const char *algo_on_hosts(int32_t kind, int32_t size, int32_t hosts, size_t bytes)
{
    struct select_query query = { .kind = kind, .size = size, .hosts = hosts, .bytes = bytes };
    return select_route(&query, NULL, NULL).algo->name;
}

static const char *algo_with(const char *overrides, size_t bytes, uint32_t needs)
{
    return route_with(overrides, COMM_OP_ALL_REDUCE, 4, bytes, needs).algo->name;
}

/* What the engine may ask of an op: any that some algorithm of the kind has, whatever hosts there are. */
static void every_query_finds_an_algorithm_with_its_needs(void **state)
{
    static const int32_t sizes[] = { 1, 2, 3, 8, 9, 16, 17, 33, 1000, 100000 };
    static const size_t bytes[] = { 0, 1, 256, 4096, 65536, 1 << 20, 1 << 24, (size_t)1 << 40 };
    const struct algo *algo;
    (void)state;
    for (size_t a = 0; (algo = select_algo_at(a)); a++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++)
                for (uint32_t wanted = 0; wanted < 8 * ALGO_WIDE_SUMS; wanted++) {
                    int shares_cores = wanted / (2 * ALGO_WIDE_SUMS) == 3;
                    int memory = shares_cores ? SELECT_MEMORY_ALL : (int)(wanted / (2 * ALGO_WIDE_SUMS));
                    uint32_t needs = algo->traits & wanted & ~(uint32_t)ALGO_LEVELS;
                    int32_t hosts = wanted & ALGO_LEVELS ? (sizes[s] + 2) / 3 : 0;
                    struct select_query query = { .kind = algo->kind, .size = sizes[s], .hosts = hosts,
                                                  .bytes = bytes[b], .needs = needs, .memory = memory,
                                                  .shares_cores = shares_cores };
                    struct route route = select_route(&query, NULL, NULL);
                    assert_non_null(route.algo);
                    assert_int_equal(route.algo->kind, algo->kind);
                    uint32_t has = route.algo->traits;
                    assert_int_equal((has & ALGO_ONE_ROUNDING ? has | ALGO_WIDE_SUMS : has) & needs, needs);
                }
}

static void ops_without_plans_have_no_route(void **state)
{
    (void)state;
    assert_null(route_with(NULL, COMM_OP_SEND, 4, 8, 0).algo);
    assert_null(route_with(NULL, 999, 4, 8, 0).algo);
}

static void larger_vectors_take_algorithms_that_send_less(void **state)
{
    (void)state;
    assert_string_equal(algo_with(NULL, 8, 0), "recursive_doubling");
    assert_string_equal(algo_with(NULL, 1 << 30, 0), "ring");
    assert_string_equal(algo_with(NULL, 1 << 30, ALGO_ONE_ROUNDING), "direct");
}

/* A rule for few ranks ends at its number of ranks. */
static void more_ranks_take_other_algorithms(void **state)
{
    (void)state;
    assert_string_equal(route_with(NULL, COMM_OP_ALL_GATHER, 16, 1 << 10, 0).algo->name, "direct");
    assert_string_equal(route_with(NULL, COMM_OP_ALL_GATHER, 17, 1 << 10, 0).algo->name, "bruck");
    assert_string_equal(route_with(NULL, COMM_OP_ALL_TO_ALL, 64, 1 << 20, 0).algo->name, "direct");
    assert_string_equal(route_with(NULL, COMM_OP_ALL_TO_ALL, 65, 1 << 20, 0).algo->name, "pairwise");
}

/* Two levels by default only where there are several hosts with several ranks; forced they are used anywhere. */
static void two_levels_are_for_hosts_with_several_ranks(void **state)
{
    static const int32_t kinds[] = { COMM_OP_ALL_REDUCE, COMM_OP_REDUCE_SCATTER, COMM_OP_ALL_GATHER,
                                     COMM_OP_BROADCAST,  COMM_OP_REDUCE,         COMM_OP_BARRIER };
    static const struct {
        int32_t size, hosts;
        int is_two_level;
    } cases[] = { { 4, 2, 1 }, { 7, 3, 1 }, { 64, 8, 1 }, { 6, 0, 0 },
                  { 6, 1, 0 }, { 6, 6, 0 }, { 7, 4, 0 },  { 2, 2, 0 } };
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const char *name = algo_on_hosts(kinds[k], cases[i].size, cases[i].hosts, 4 << 20);
            if ((strncmp(name, "two_level", 9) == 0) != cases[i].is_two_level)
                fail_msg("%d ranks on %d hosts, op %d: %s", cases[i].size, cases[i].hosts, kinds[k], name);
        }
    assert_string_equal(algo_on_hosts(COMM_OP_ALL_REDUCE, 8, 2, 16 << 10), "recursive_doubling");
    /* A limit of such a rule is in hosts. */
    assert_string_equal(algo_on_hosts(COMM_OP_ALL_REDUCE, 64, 17, 4 << 20), "ring");
    assert_string_equal(algo_on_hosts(COMM_OP_ALL_REDUCE, 640, 16, 4 << 20), "two_level");
    assert_string_equal(algo_with("all_reduce:two_level", 8, 0), "two_level");
    assert_string_equal(algo_with("all_reduce:two_level", 8, ALGO_ONE_ROUNDING), "one_shot");
}

/* Ranks that share memory on their hosts: wherever one host has several. */
static void ranks_that_share_memory_on_their_hosts_have_rules_of_their_own(void **state)
{
    static const struct {
        int32_t kind, size, hosts;
        size_t bytes;
        const char *algo;
        size_t slice_bytes;
    } cases[] = {
        { COMM_OP_ALL_REDUCE, 4, 2, 8, "two_level_leaders", 0 },
        { COMM_OP_ALL_REDUCE, 3, 2, 64 << 10, "two_level_leaders", 0 },
        { COMM_OP_ALL_REDUCE, 3, 2, (64 << 10) + 1, "two_level", 1 << 20 },
        { COMM_OP_ALL_REDUCE, 64, 8, 4 << 10, "two_level_leaders", 0 },
        { COMM_OP_ALL_REDUCE, 64, 9, 4 << 10, "recursive_doubling", 0 },
        { COMM_OP_ALL_REDUCE, 6, 3, 16 << 10, "two_level_leaders", 0 },
        { COMM_OP_ALL_REDUCE, 6, 3, 32 << 10, "two_level", 1 << 20 },
        { COMM_OP_ALL_REDUCE, 10, 5, 16 << 10, "recursive_doubling", 0 },
        { COMM_OP_ALL_REDUCE, 640, 17, 16 << 20, "ring", 4 << 20 },
        { COMM_OP_REDUCE_SCATTER, 4, 2, 32, "two_level", 1 << 20 },
        { COMM_OP_REDUCE_SCATTER, 10, 5, 32, "circulant", 0 },
        { COMM_OP_ALL_GATHER, 4, 2, 32, "bruck", 0 },
        { COMM_OP_ALL_GATHER, 4, 2, 8 << 10, "two_level", 1 << 20 },
        { COMM_OP_BROADCAST, 4, 2, 256 << 10, "two_level_chain", 0 },
        { COMM_OP_BROADCAST, 6, 3, 256 << 10, "two_level_chain", 64 << 10 },
        { COMM_OP_REDUCE, 3, 2, 4 << 20, "two_level_chain", 512 << 10 },
        { COMM_OP_ALL_TO_ALL, 4, 2, 32, "bruck", 0 },
        { COMM_OP_ALL_TO_ALL, 4, 2, 16 << 20, "direct", 0 },
        { COMM_OP_ALL_TO_ALL, 32, 4, 16 << 20, "pairwise", 0 },
        { COMM_OP_BARRIER, 3, 2, 0, "two_level", 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct select_query query = { .kind = cases[i].kind, .size = cases[i].size, .hosts = cases[i].hosts,
                                      .bytes = cases[i].bytes, .memory = SELECT_MEMORY_HOSTS };
        struct route route = select_route(&query, NULL, NULL);
        assert_string_equal(route.algo->name, cases[i].algo);
        assert_int_equal(route.slice_bytes, cases[i].slice_bytes);
    }
}

/* Two ranks sum what no cache holds in longer slices, if they have a core each. */
static void long_sums_of_two_ranks_have_longer_slices(void **state)
{
    struct select_query query = { .kind = COMM_OP_ALL_REDUCE, .size = 2, .bytes = 16 << 20,
                                  .memory = SELECT_MEMORY_ALL };
    (void)state;
    assert_int_equal(select_route(&query, NULL, NULL).slice_bytes, 256 << 10);
    query.bytes++;
    assert_int_equal(select_route(&query, NULL, NULL).slice_bytes, 512 << 10);
    query.shares_cores = 1;
    assert_int_equal(select_route(&query, NULL, NULL).slice_bytes, 256 << 10);
}

/* What is kept in rings is reduced in slices of which several leave space there. Two ranks with cores keep nothing. */
static void what_several_ranks_keep_two_do_not(void **state)
{
    static const struct {
        int32_t kind, size;
        size_t bytes;
        uint32_t needs;
        const char *algo;
        size_t slice_bytes;
    } cases[] = {
        { COMM_OP_REDUCE_SCATTER, 2, 1 << 20, 0, "ring", 512 << 10 },
        { COMM_OP_REDUCE_SCATTER, 2, 1 << 20, ALGO_ONE_ROUNDING, "direct", 256 << 10 },
        { COMM_OP_REDUCE_SCATTER, 3, 1 << 20, 0, "direct", 96 << 10 },
        { COMM_OP_REDUCE_SCATTER, 4, 1 << 20, ALGO_WIDE_SUMS, "direct", 64 << 10 },
        { COMM_OP_ALL_REDUCE, 2, 1 << 20, ALGO_ONE_ROUNDING, "direct", 256 << 10 },
        { COMM_OP_ALL_REDUCE, 3, 1 << 20, ALGO_ONE_ROUNDING, "direct", 96 << 10 },
        { COMM_OP_ALL_REDUCE, 9, 256, ALGO_ONE_ROUNDING, "one_shot", 0 },
        { COMM_OP_ALL_REDUCE, 9, 64 << 10, 0, "direct", 256 << 10 },
        { COMM_OP_ALL_REDUCE, 15, 64 << 10, 0, "direct", 384 << 10 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct select_query query = { .kind = cases[i].kind, .size = cases[i].size, .hosts = 1, .bytes = cases[i].bytes,
                                      .needs = cases[i].needs, .memory = SELECT_MEMORY_ALL };
        struct route route = select_route(&query, NULL, NULL);
        assert_string_equal(route.algo->name, cases[i].algo);
        assert_int_equal(route.slice_bytes, cases[i].slice_bytes);
    }
}

static const struct {
    int32_t kind, size;
    size_t bytes;
    const char *crowded, *with_cores;
} crowded_cases[] = {
    { COMM_OP_ALL_REDUCE, 2, 1 << 10, "one_shot", "one_shot" },
    { COMM_OP_ALL_REDUCE, 2, 1 << 20, "halving_doubling", "halving_doubling" },
    { COMM_OP_ALL_REDUCE, 3, 8 << 10, "one_shot", "one_shot" },
    { COMM_OP_ALL_REDUCE, 4, 1 << 10, "one_shot", "recursive_doubling" },
    { COMM_OP_ALL_REDUCE, 4, 8 << 10, "one_shot", "recursive_doubling" },
    { COMM_OP_ALL_REDUCE, 4, (8 << 10) + 1, "direct", "recursive_doubling" },
    { COMM_OP_ALL_REDUCE, 4, (64 << 10) + 1, "direct", "halving_doubling" },
    { COMM_OP_ALL_REDUCE, 3, (512 << 10) + 1, "halving_doubling", "direct" },
    { COMM_OP_ALL_REDUCE, 3, 16 << 20, "direct", "direct" },
    { COMM_OP_ALL_REDUCE, 7, 4 << 10, "one_shot", "direct" },
    { COMM_OP_ALL_REDUCE, 7, 8 << 10, "direct", "direct" },
    { COMM_OP_ALL_REDUCE, 8, 256, "one_shot", "recursive_doubling" },
    { COMM_OP_ALL_REDUCE, 8, 4 << 10, "recursive_doubling", "halving_doubling" },
    { COMM_OP_ALL_REDUCE, 12, 8 << 10, "halving_doubling", "halving_doubling" },
    { COMM_OP_ALL_REDUCE, 8, 64 << 20, "direct", "halving_doubling" },
    { COMM_OP_ALL_REDUCE, 12, 256 << 10, "direct", "direct" },
    { COMM_OP_ALL_REDUCE, 12, (256 << 10) + 1, "direct", "direct" },
    { COMM_OP_ALL_REDUCE, 15, 64 << 20, "direct", "direct" },
    { COMM_OP_ALL_REDUCE, 16, 64 << 20, "halving_doubling", "halving_doubling" },
    { COMM_OP_ALL_REDUCE, 7, 64 << 20, "direct", "direct" },
    { COMM_OP_ALL_REDUCE, 13, 16 << 10, "direct", "halving_doubling" },
    { COMM_OP_ALL_REDUCE, 17, 4 << 10, "halving_doubling", "halving_doubling" },
    { COMM_OP_BROADCAST, 3, 64 << 10, "direct", "scatter_direct" },
    { COMM_OP_BROADCAST, 16, 4 << 10, "direct", "binomial" },
    { COMM_OP_BROADCAST, 16, 64 << 20, "direct", "chain" },
    { COMM_OP_BROADCAST, 17, 64 << 20, "chain", "chain" },
    { COMM_OP_REDUCE, 2, 72 << 10, "binomial", "binomial" },
    { COMM_OP_REDUCE, 4, 2 << 10, "direct", "binomial" },
    { COMM_OP_REDUCE, 4, 8 << 10, "direct", "binomial" },
    { COMM_OP_REDUCE, 3, 1 << 20, "direct", "direct_gather" },
    { COMM_OP_REDUCE, 6, (1 << 20) + 1, "chain", "direct_gather" },
    { COMM_OP_REDUCE, 8, (512 << 10) + 1, "chain", "direct_gather" },
    { COMM_OP_REDUCE, 16, 1 << 20, "chain", "direct_gather" },
    { COMM_OP_REDUCE, 7, (32 << 10) + 1, "direct_gather", "direct_gather" },
    { COMM_OP_REDUCE, 16, 32 << 10, "direct", "direct_gather" },
    { COMM_OP_REDUCE, 4, 1 << 20, "direct", "direct_gather" },
    { COMM_OP_REDUCE, 16, (32 << 10) + 1, "direct_gather", "direct_gather" },
    { COMM_OP_REDUCE_SCATTER, 2, (64 << 10) + 1, "ring", "ring" },
    { COMM_OP_REDUCE_SCATTER, 3, (512 << 10) + 1, "ring", "direct" },
    { COMM_OP_REDUCE_SCATTER, 8, 64 << 20, "direct", "direct" },
    { COMM_OP_REDUCE_SCATTER, 9, (128 << 10) + 1, "ring", "direct" },
    { COMM_OP_REDUCE_SCATTER, 12, (1 << 20) + 1, "ring", "ring" },
    { COMM_OP_REDUCE_SCATTER, 13, 512 << 10, "ring", "direct" },
    { COMM_OP_REDUCE_SCATTER, 16, (512 << 10) + 1, "ring", "ring" },
    { COMM_OP_REDUCE_SCATTER, 7, 128 << 10, "direct", "direct" },
    { COMM_OP_REDUCE_SCATTER, 16, 4 << 10, "direct", "circulant" },
    { COMM_OP_ALL_GATHER, 16, 4 << 10, "direct", "bruck" },
    { COMM_OP_REDUCE_SCATTER, 17, 4 << 10, "ring", "circulant" },
    { COMM_OP_ALL_GATHER, 17, 4 << 10, "direct", "bruck" },
    { COMM_OP_REDUCE, 17, 4 << 10, "direct_gather", "binomial" },
    { COMM_OP_BARRIER, 16, 0, "direct", "dissemination" },
    { COMM_OP_ALL_GATHER, 4, 4 << 10, "direct", "direct" },
};

/* More ranks than cores: few rounds, and nothing is passed on. */
static void ranks_that_share_cores_do_more_in_one_round(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof crowded_cases / sizeof *crowded_cases; i++) {
        struct select_query query = { .kind = crowded_cases[i].kind, .size = crowded_cases[i].size, .hosts = 1,
                                      .bytes = crowded_cases[i].bytes, .memory = SELECT_MEMORY_ALL };
        assert_string_equal(select_route(&query, NULL, NULL).algo->name, crowded_cases[i].with_cores);
        query.shares_cores = 1;
        assert_string_equal(select_route(&query, NULL, NULL).algo->name, crowded_cases[i].crowded);
        /* What one host has of cores says nothing of the others. */
        query.memory = SELECT_MEMORY_HOSTS;
        query.hosts = 2;
        const struct algo *before = select_route(&query, NULL, NULL).algo;
        query.shares_cores = 0;
        assert_ptr_equal(select_route(&query, NULL, NULL).algo, before);
    }
}

static void an_override_holds_in_its_range_with_both_ends(void **state)
{
    const char *text = "all_reduce:one_shot@1K-64K";
    (void)state;
    assert_string_equal(algo_with(text, 1023, 0), algo_with(NULL, 1023, 0));
    assert_string_equal(algo_with(text, 1024, 0), "one_shot");
    assert_string_equal(algo_with(text, 65536, 0), "one_shot");
    assert_string_equal(algo_with(text, 65537, 0), algo_with(NULL, 65537, 0));
    assert_string_equal(algo_with("all_reduce:ring@-100", 100, 0), "ring");
    assert_string_equal(algo_with("all_reduce:one_shot@1G-", (size_t)1 << 40, 0), "one_shot");
    assert_string_equal(algo_with("all_reduce:one_shot", 1 << 30, 0), "one_shot");
}

static void the_first_override_that_fits_wins(void **state)
{
    const char *text = "broadcast:chain,all_reduce:ring@-1K,all_reduce:one_shot";
    (void)state;
    assert_string_equal(algo_with(text, 8, 0), "ring");
    assert_string_equal(algo_with(text, 2048, 0), "one_shot");
    assert_string_equal(route_with(text, COMM_OP_BROADCAST, 4, 8, 0).algo->name, "chain");
    assert_string_equal(route_with(text, COMM_OP_REDUCE, 4, 8, 0).algo->name,
                        route_with(NULL, COMM_OP_REDUCE, 4, 8, 0).algo->name);
}

static void a_semicolon_separates_as_a_comma_does(void **state)
{
    (void)state;
    assert_string_equal(algo_with("broadcast:chain;all_reduce:ring@-1K;all_reduce:direct", 2048, 0), "direct");
    assert_string_equal(algo_with("broadcast:chain;all_reduce:ring@-1K,all_reduce:direct", 1000, 0), "ring");
}

static const char *algo_in_memory(int32_t kind, int32_t size, size_t bytes, uint32_t needs)
{
    const struct select_query query = { .kind = kind, .size = size, .bytes = bytes, .needs = needs,
                                        .memory = SELECT_MEMORY_ALL };
    return select_route(&query, NULL, NULL).algo->name;
}

/* 16- and 8-bit floats: what sums in a wider type will do, or what reduces in rank order; the latter where that is
 * sooner, and for what must be in rank order. */
static void narrow_floats_are_summed_wide_or_in_rank_order(void **state)
{
    (void)state;
    assert_string_equal(algo_with(NULL, 8, ALGO_WIDE_SUMS), "recursive_doubling");
    assert_string_equal(algo_with(NULL, 8, ALGO_WIDE_SUMS | ALGO_ONE_ROUNDING), "one_shot");
    assert_string_equal(algo_with("all_reduce:halving_doubling", 8, ALGO_WIDE_SUMS), "halving_doubling");
    assert_string_equal(algo_with("all_reduce:ring,all_reduce:direct", 8, ALGO_WIDE_SUMS), "direct");
    assert_string_equal(algo_in_memory(COMM_OP_ALL_REDUCE, 16, 256, ALGO_WIDE_SUMS), "recursive_doubling");
    assert_string_equal(algo_in_memory(COMM_OP_ALL_REDUCE, 16, 32 << 10, ALGO_WIDE_SUMS), "halving_doubling");
    assert_string_equal(algo_in_memory(COMM_OP_ALL_REDUCE, 16, 64 << 10, ALGO_WIDE_SUMS), "direct");
    assert_string_equal(algo_in_memory(COMM_OP_ALL_REDUCE, 16, 64 << 10, 0), "halving_doubling");
    assert_string_equal(algo_in_memory(COMM_OP_REDUCE, 8, 8 << 10, ALGO_WIDE_SUMS), "binomial");
    assert_string_equal(algo_in_memory(COMM_OP_REDUCE, 8, 16 << 10, ALGO_WIDE_SUMS), "direct_gather");
    assert_string_equal(algo_in_memory(COMM_OP_REDUCE_SCATTER, 16, 16 << 10, ALGO_WIDE_SUMS), "circulant");
    assert_string_equal(algo_in_memory(COMM_OP_REDUCE_SCATTER, 16, 32 << 10, ALGO_WIDE_SUMS), "direct");
    struct select_query query = { .kind = COMM_OP_REDUCE, .size = 4, .hosts = 1, .bytes = 2 << 20,
                                  .memory = SELECT_MEMORY_ALL, .shares_cores = 1 };
    assert_string_equal(select_route(&query, NULL, NULL).algo->name, "chain");
    query.needs = ALGO_WIDE_SUMS;
    assert_string_equal(select_route(&query, NULL, NULL).algo->name, "direct");
    query.size = 16; /* what the rules for crowded 16- and 8-bit floats do not say, those of all crowded ranks do */
    query.bytes = 2 << 20;
    assert_string_equal(select_route(&query, NULL, NULL).algo->name, "direct_gather");
    query.kind = COMM_OP_ALL_REDUCE; /* and then those of 16- and 8-bit floats */
    assert_string_equal(select_route(&query, NULL, NULL).algo->name, "direct");
    query.needs = 0;
    assert_string_equal(select_route(&query, NULL, NULL).algo->name, "halving_doubling");
}

static void an_override_without_the_needed_trait_is_passed_over(void **state)
{
    (void)state;
    assert_string_equal(algo_with("all_reduce:ring", 8, ALGO_ONE_ROUNDING), "one_shot");
    assert_string_equal(algo_with("all_reduce:ring,all_reduce:direct", 8, ALGO_ONE_ROUNDING), "direct");
}

static void slices_come_from_the_override_or_the_rules(void **state)
{
    (void)state;
    assert_int_equal(route_with("all_reduce:ring/512K", COMM_OP_ALL_REDUCE, 4, 8, 0).slice_bytes, 512 << 10);
    assert_int_equal(route_with("all_reduce:ring@1-2M/7", COMM_OP_ALL_REDUCE, 4, 8, 0).slice_bytes, 7);
    assert_int_equal(route_with("all_reduce:ring/0", COMM_OP_ALL_REDUCE, 4, 8, 0).slice_bytes, 0);
    /* No rule for such memory has it. */
    assert_int_equal(route_with("reduce:chain", COMM_OP_REDUCE, 4, 8, 0).slice_bytes, 64 << 10);
    assert_int_equal(route_with("all_reduce:ring", COMM_OP_ALL_REDUCE, 4, 8, 0).slice_bytes,
                     route_with(NULL, COMM_OP_ALL_REDUCE, 4, 1 << 30, 0).slice_bytes);
}

static void long_slices_are_for_the_kernel(void **state)
{
    static const uint32_t needs[] = { 0, ALGO_WIDE_SUMS };
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int reads = 0; reads < 2; reads++)
            for (size_t bytes = 1 << 20; bytes <= 32 << 20; bytes *= 2) {
                const struct select_query query = { .kind = COMM_OP_ALL_REDUCE, .size = 8, .bytes = bytes,
                                                    .needs = needs[i], .memory = SELECT_MEMORY_ALL,
                                                    .kernel_reads = reads };
                size_t most = needs[i] ? 4 << 20 : 16 << 20, slice = select_route(&query, NULL, NULL).slice_bytes;
                assert_int_equal(slice > 512 << 10, reads && bytes > 1 << 20 && bytes <= most);
            }
}

/* They were found with fp32. */
static void a_tuning_file_is_not_for_sums_that_are_wider(void **state)
{
    char error[64];
    struct select_overrides *o = select_overrides_create("all_reduce:halving_doubling", error, sizeof error);
    struct select_query query = { .kind = COMM_OP_ALL_REDUCE, .size = 4, .bytes = 1 << 20 };
    (void)state;
    assert_non_null(o);
    assert_string_equal(select_route(&query, NULL, o).algo->name, "halving_doubling");
    query.needs = ALGO_WIDE_SUMS;
    query.memory = SELECT_MEMORY_ALL;
    assert_string_equal(select_route(&query, o, NULL).algo->name, "halving_doubling");
    assert_string_equal(select_route(&query, NULL, o).algo->name, "direct");
    select_overrides_destroy(o);
}

static void an_empty_text_overrides_nothing(void **state)
{
    (void)state;
    assert_string_equal(algo_with("", 8, 0), algo_with(NULL, 8, 0));
}

static void malformed_overrides_are_refused_with_a_reason(void **state)
{
    static const struct {
        const char *text, *reason;
    } cases[] = {
        { "all_reduce", "'all_reduce': an override is OP:ALGORITHM" },
        { ":ring", "an override is OP:ALGORITHM" },
        { ",", "an override is OP:ALGORITHM" },
        { "all_reduce:ring,", "an override is OP:ALGORITHM" },
        { "all_reduce@1K:ring", "an override is OP:ALGORITHM" },
        { "all_reduce:", "no such algorithm for all_reduce; there are: recursive_doubling, " },
        { "all_reduce:rin", "'all_reduce:rin': no such algorithm" },
        { "broadcast:ring", "no such algorithm for broadcast; there are: direct, " },
        { "allreduce:ring", "no such operation; there are: all_reduce, reduce_scatter" },
        { "send:ring", "no such operation" },
        { "all_reduce:ring@", "a range is MIN-MAX" },
        { "all_reduce:ring@64K", "a range is MIN-MAX" },
        { "all_reduce:ring@64K/1K", "a range is MIN-MAX" },
        { "all_reduce:ring@K-", "must be two numbers of bytes" },
        { "all_reduce:ring@1k-", "must be two numbers of bytes" },
        { "all_reduce:ring@1KK-", "must be two numbers of bytes" },
        { "all_reduce:ring@2M-1M", "the smaller one first" },
        { "all_reduce:ring@1--2", "must be two numbers of bytes" },
        { "all_reduce:ring@99999999999999999999-", "must be two numbers of bytes" },
        { "all_reduce:ring@18446744073709551615K-", "must be two numbers of bytes" },
        { "all_reduce:ring/", "the slice must be a number of bytes" },
        { "all_reduce:ring/-1", "the slice must be a number of bytes" },
        { "broadcast:chain,all_reduce:ring/x", "'all_reduce:ring/x': the slice" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char error[512] = "", tiny[4] = "";
        assert_null(select_overrides_create(cases[i].text, error, sizeof error));
        if (!strstr(error, cases[i].reason))
            fail_msg("'%s' gave: %s", cases[i].text, error);
        assert_null(select_overrides_create(cases[i].text, tiny, sizeof tiny)); /* the text is cut, not overrun */
        assert_int_equal(strnlen(tiny, sizeof tiny), sizeof tiny - 1);
    }
    select_overrides_destroy(NULL);
}

static void names_are_unique_and_rules_can_be_printed(void **state)
{
    const struct algo *a, *b;
    size_t rules = 0;
    const char *rule;
    (void)state;
    for (size_t i = 0; (a = select_algo_at(i)); i++) {
        assert_true(a->help[0] && a->name[0] && a->build);
        for (size_t k = 0; k < i && (b = select_algo_at(k)); k++)
            assert_false(a->kind == b->kind && strcmp(a->name, b->name) == 0);
    }
    for (int memory = SELECT_MEMORY_NONE; memory <= SELECT_MEMORY_HOSTS; memory++) {
        for (rules = 0; (rule = select_rule_at(memory, rules)); rules++)
            assert_true(strlen(rule) > 20 && strlen(rule) < 140);
        assert_true(rules > 9);
    }
    assert_ptr_equal(select_rule_at(0, 0), select_rule_at(0, 0));
    assert_non_null(strstr(select_rule_at(SELECT_MEMORY_ALL, 0), "with more ranks than cores"));
    for (size_t i = 0; i < rules; i++)
        assert_null(strstr(select_rule_at(SELECT_MEMORY_HOSTS, i), "cores"));
}

/* ---- plan.c ----------------------------------------------------------------------------------- */

static void impossible_steps_fail_the_plan(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct plan p;
        plan_init(&p, 1, 4, 0);
        switch (i) {
        case 0:
            plan_send(&p, 1, plan_chunk(PLAN_SEND, 0)); /* to itself */
            break;
        case 1:
            plan_send(&p, 4, plan_chunk(PLAN_SEND, 0));
            break;
        case 2:
            plan_recv(&p, -1, plan_chunk(PLAN_RECV, 0));
            break;
        case 3:
            plan_recv(&p, 0, plan_chunk(PLAN_SEND, 0)); /* SEND is const */
            break;
        case 4:
            plan_copy(&p, plan_chunk(PLAN_RECV, 4), plan_chunk(PLAN_SEND, 0));
            break;
        case 5:
            plan_copy(&p, plan_chunk(PLAN_RECV, -1), plan_chunk(PLAN_SEND, 0));
            break;
        case 6:
            plan_copy(&p, plan_range(PLAN_RECV, 2, 3), plan_range(PLAN_SEND, 0, 3));
            break;
        default:
            plan_copy(&p, plan_chunk(PLAN_RECV, 0), plan_slot(-1, 0, 1));
            break;
        }
        assert_int_equal(p.failed, 1);
        assert_int_equal(p.step_count, 0);
        plan_copy(&p, plan_chunk(PLAN_RECV, 0), plan_chunk(PLAN_SEND, 0)); /* does nothing any more */
        assert_int_equal(p.step_count, 0);
        plan_finish(&p);
        plan_finish(&p);
    }
}

static void chunks_cover_the_vector_without_overlap(void **state)
{
    (void)state;
    for (int32_t size = 1; size <= 9; size++)
        for (size_t count = 0; count < 40; count++) {
            size_t at = 0, begin, end, first;
            plan_cut(count, size, 0, &begin, &first);
            for (int32_t i = 0; i < size; i++, at = end) {
                plan_cut(count, size, i, &begin, &end);
                assert_int_equal(begin, at);
                assert_true(end - begin <= first && end - begin + 1 >= first);
            }
            assert_int_equal(at, count);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_query_finds_an_algorithm_with_its_needs),
        cmocka_unit_test(ops_without_plans_have_no_route),
        cmocka_unit_test(larger_vectors_take_algorithms_that_send_less),
        cmocka_unit_test(more_ranks_take_other_algorithms),
        cmocka_unit_test(two_levels_are_for_hosts_with_several_ranks),
        cmocka_unit_test(ranks_that_share_memory_on_their_hosts_have_rules_of_their_own),
        cmocka_unit_test(long_sums_of_two_ranks_have_longer_slices),
        cmocka_unit_test(what_several_ranks_keep_two_do_not),
        cmocka_unit_test(ranks_that_share_cores_do_more_in_one_round),
        cmocka_unit_test(an_override_holds_in_its_range_with_both_ends),
        cmocka_unit_test(the_first_override_that_fits_wins),
        cmocka_unit_test(a_semicolon_separates_as_a_comma_does),
        cmocka_unit_test(narrow_floats_are_summed_wide_or_in_rank_order),
        cmocka_unit_test(an_override_without_the_needed_trait_is_passed_over),
        cmocka_unit_test(slices_come_from_the_override_or_the_rules),
        cmocka_unit_test(long_slices_are_for_the_kernel),
        cmocka_unit_test(a_tuning_file_is_not_for_sums_that_are_wider),
        cmocka_unit_test(an_empty_text_overrides_nothing),
        cmocka_unit_test(malformed_overrides_are_refused_with_a_reason),
        cmocka_unit_test(names_are_unique_and_rules_can_be_printed),
        cmocka_unit_test(impossible_steps_fail_the_plan),
        cmocka_unit_test(chunks_cover_the_vector_without_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
