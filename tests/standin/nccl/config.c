/* ncclConfig_t by the rules of the version: as many bytes as `size` says, fields newer than `version` are not set, and
 * what the library does not know yet has no effect. */
#include <stddef.h>
#include <string.h>

#include "comm.h"

/* The fields that versions added behind nccl_config, as far as they matter: all are int. */
enum { FIELDS_LATER = 16 };
struct config {
    nccl_config known;
    int later[FIELDS_LATER];
};

/* The bytes of the struct in this version. */
static size_t own_bytes(void)
{
    static const struct {
        int since;
        size_t bytes;
    } sizes[] = {
        {23203, offsetof(struct config, later) + 11 * sizeof(int)},
        {22803, offsetof(struct config, later) + 2 * sizeof(int)},
        {22703, offsetof(struct config, later)},
        {0, offsetof(nccl_config, traffic_class) + sizeof(int)}, /* with padding */
    };
    int i = 0;
    while (STANDIN_NCCL_VERSION < sizes[i].since)
        i++;
    return sizes[i].bytes;
}

static void forget_newer(struct config *config)
{
    nccl_config *known = &config->known;
    if (known->version < 21700) {
        known->cga_cluster_size = known->min_ctas = known->max_ctas = NCCL_NOT_SET;
        known->net_name = NULL;
    }
    if (known->version < 21800)
        known->split_share = NCCL_NOT_SET;
    if (known->version < 22500 || STANDIN_NCCL_VERSION < 22602)
        known->traffic_class = NCCL_NOT_SET;
    if (known->version < 22700 || STANDIN_NCCL_VERSION < 22703) {
        known->collnet_enable = known->cta_policy = known->shrink_share = known->nvls_ctas = NCCL_NOT_SET;
        known->comm_name = NULL;
    }
}

/* Fields behind the end of the version's struct are not read in reality: a program that sets them relies on nothing. */
static void check_skew(const nccl_config *config, size_t known_bytes)
{
    for (size_t at = known_bytes; at + sizeof(int) <= config->size; at += sizeof(int)) {
        int value;
        memcpy(&value, (const char *)config + at, sizeof value);
        bool is_name = at >= offsetof(nccl_config, comm_name) && at < offsetof(nccl_config, collnet_enable);
        if (is_name ? value != 0 : value != NCCL_NOT_SET && at != offsetof(nccl_config, traffic_class)) {
            standin_rule("ask ncclGetVersion, and leave newer fields unset",
                         "a config sets the field at byte %zu, and the struct of NCCL %d.%d.%d ends at byte %zu", at,
                         STANDIN_NCCL_VERSION / 10000, STANDIN_NCCL_VERSION / 100 % 100, STANDIN_NCCL_VERSION % 100,
                         known_bytes);
            return;
        }
    }
}

static bool is_flag(int value)
{
    return value == NCCL_NOT_SET || value == 0 || value == 1;
}

static bool is_count(int value, int least)
{
    return value == NCCL_NOT_SET || value >= least;
}

static nccl_status check_values(const nccl_config *known)
{
    if (!is_flag(known->blocking) || !is_flag(known->split_share) || !is_flag(known->collnet_enable) ||
        !is_flag(known->shrink_share))
        return failed(NCCL_INVALID_ARGUMENT, "config: blocking, splitShare, collnetEnable and shrinkShare are 0 or 1");
    bool both = known->min_ctas != NCCL_NOT_SET && known->max_ctas != NCCL_NOT_SET;
    if (!is_count(known->cga_cluster_size, 0) || !is_count(known->min_ctas, 1) || !is_count(known->max_ctas, 1) ||
        !is_count(known->nvls_ctas, 1) || (both && known->min_ctas > known->max_ctas))
        return failed(NCCL_INVALID_ARGUMENT, "config: a number of CTAs is not possible");
    return NCCL_OK;
}

nccl_status config_read(struct ncclComm *comm, const nccl_config *config, const struct ncclComm *parent)
{
    comm->is_blocking = config || !parent || parent->is_blocking;
    if (!config)
        return NCCL_OK;
    struct config own = {.known = {.blocking = NCCL_NOT_SET}};
    own.known.cga_cluster_size = own.known.min_ctas = own.known.max_ctas = own.known.split_share = NCCL_NOT_SET;
    own.known.traffic_class = own.known.collnet_enable = own.known.cta_policy = NCCL_NOT_SET;
    own.known.shrink_share = own.known.nvls_ctas = NCCL_NOT_SET;
    size_t bytes = config->size < own_bytes() ? config->size : own_bytes();
    memcpy(&own, config, bytes);
    if (own.known.magic != (unsigned int)NCCL_MAGIC)
        return failed(NCCL_INVALID_ARGUMENT, "config: not initialized by NCCL_CONFIG_INITIALIZER");
    forget_newer(&own);
    check_skew(config, own_bytes());
    nccl_status status = check_values(&own.known);
    if (own.known.blocking != NCCL_NOT_SET)
        comm->is_blocking = own.known.blocking;
    comm->shares = own.known.split_share == 1;
    if (own.known.comm_name)
        strncpy(comm->name, own.known.comm_name, sizeof comm->name - 1);
    return status;
}
