#include "cases.h"

#include <comm/backend.h>
#include <string.h>

int is_rooted(int32_t kind)
{
    return kind == COMM_OP_BROADCAST || kind == COMM_OP_REDUCE || kind == COMM_OP_GATHER || kind == COMM_OP_SCATTER;
}

const char *op_name(int32_t kind)
{
    static const char *const names[COMM_OP_KIND_END] = {
        [COMM_OP_BROADCAST] = "broadcast",           [COMM_OP_ALL_REDUCE] = "all_reduce", [COMM_OP_REDUCE] = "reduce",
        [COMM_OP_ALL_GATHER] = "all_gather",         [COMM_OP_GATHER] = "gather",         [COMM_OP_SCATTER] = "scatter",
        [COMM_OP_REDUCE_SCATTER] = "reduce_scatter", [COMM_OP_ALL_TO_ALL] = "all_to_all", [COMM_OP_BARRIER] = "barrier",
    };
    return kind > 0 && kind < COMM_OP_KIND_END && names[kind] ? names[kind] : "?";
}

const struct claim *claim_of(const struct algo *algo)
{
    static const struct claim nothing = { "", "", ANY, ANY, ANY, 0 };
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++)
        if (strcmp(claims[i].name, algo->name) == 0 && strcmp(claims[i].op, op_name(algo->kind)) == 0)
            return &claims[i];
    return &nothing;
}

int build_plans(const struct algo *algo, int32_t size, int32_t root, const int32_t *hosts, int widens,
                struct plan *plans)
{
    int failed = 0;
    for (int32_t r = 0; r < size; r++) {
        plan_init(&plans[r], r, size, root);
        plans[r].widens = (uint8_t)widens;
        plan_set_hosts(&plans[r], hosts);
        algo->build(&plans[r]);
        failed |= plans[r].failed;
    }
    return failed ? -1 : 0;
}

void free_plans(struct plan *plans, int32_t size)
{
    for (int32_t r = 0; r < size; r++)
        plan_finish(&plans[r]);
}

void random_lengths(int32_t kind, int32_t size, uint64_t *random, size_t *ret_lengths)
{
    for (int32_t i = 0; i < size; i++)
        for (int32_t j = 0; j < size; j++) {
            uint64_t r = next_random(random);
            size_t length = r % 3 == 0 ? 0 : (r >> 8) % 12;
            ret_lengths[i * size + j] = i == 0 || kind == COMM_OP_ALL_TO_ALL ? length : ret_lengths[j];
        }
}

int32_t count_hosts(const int32_t *hosts, int32_t size)
{
    int32_t count = 0;
    for (int32_t r = 0; r < size; r++) {
        int32_t i = 0;
        while (i < r && hosts[i] != hosts[r])
            i++;
        count += i == r;
    }
    return count;
}

/* Do the ranks of each host follow each other? */
static int is_by_host(const int32_t *hosts, int32_t size)
{
    int32_t changes = 0;
    for (int32_t r = 1; r < size; r++)
        changes += hosts[r] != hosts[r - 1];
    return changes == count_hosts(hosts, size) - 1;
}

void set_claims(const struct algo *algo, struct setting *setting)
{
    int flags = claim_of(algo)->flags;
    setting->kind = algo->kind;
    setting->keeps_order = (flags & ORDER) || (flags & ORDER_FROM_0 && setting->root == 0);
    if (flags & BY_HOST && setting->hosts && !is_by_host(setting->hosts, setting->size))
        setting->keeps_order = 0;
    setting->one_rounding = (algo->traits & ALGO_ONE_ROUNDING) != 0;
}
