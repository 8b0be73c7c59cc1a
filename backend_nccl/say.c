/* Error texts: what CUDA and NCCL say, and what to do about it. And a pause. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

void pause_for(int64_t ns)
{
    struct timespec t = { 0, (long)ns };
    nanosleep(&t, NULL);
}

comm_status fail(comm_status status, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return host->fail(status, text);
}

comm_status fail_cuda(cuda_status status, const char *call)
{
    return fail(COMM_ERR_BACKEND, "%s: CUDA error %u: %s", call, status, cuda.GetErrorString(status));
}

comm_status status_that_ends(comm_status status)
{
    return status > COMM_ERR_PEER_LOST ? COMM_ERR_BACKEND : status;
}

comm_status status_of_nccl(nccl_status status)
{
    switch (status) {
    case NCCL_OK:
        return COMM_OK;
    case NCCL_REMOTE_ERROR:
        return COMM_ERR_PEER_LOST;
    case NCCL_TIMEOUT:
        return COMM_ERR_DEADLINE;
    default:
        return COMM_ERR_BACKEND;
    }
}

void say_rank(const struct group *g, int rank, char *text, size_t capacity)
{
    if (g->info->world_ranks[rank] == rank)
        snprintf(text, capacity, "rank %d", rank);
    else
        snprintf(text, capacity, "rank %d (world rank %d)", rank, g->info->world_ranks[rank]);
}

void say_communicator(const struct communicator *c, char *text, size_t capacity)
{
    if (c->source < 0)
        snprintf(text, capacity, "the communicator of %d ranks on cuda:%d", c->size, c->device);
    else
        snprintf(text, capacity, "the communicator from rank %d to rank %d on cuda:%d", c->source, c->target,
                 c->device);
}

static const char *cure_of(nccl_status status, const char *text)
{
    if (status == NCCL_INVALID_USAGE && text && strstr(text, "uplicate GPU"))
        return ". Two ranks of one host use the same GPU. Give each rank its own (cudaSetDevice, CUDA_VISIBLE_DEVICES "
               "or options.device by the local rank); to share one GPU on purpose, for tests, set "
               "NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30.3 or newer), or NCCL_HOSTID to a different text on each rank";
    if (status == NCCL_REMOTE_ERROR)
        return ". A peer ended, or its connection broke";
    if (status == NCCL_SYSTEM_ERROR || status == NCCL_INTERNAL_ERROR || status == NCCL_CUDA_ERROR)
        return ". NCCL_DEBUG=WARN makes NCCL print more";
    return "";
}

comm_status fail_nccl(const struct communicator *c, nccl_status status, const char *call)
{
    char where[128];
    const char *text = c->root && nccl.GetLastError ? nccl.GetLastError(c->root) : NULL;
    if (!text || !*text)
        text = nccl.GetLastError(NULL);
    say_communicator(c, where, sizeof where);
    return fail(status_of_nccl(status), "%s on %s: NCCL error %u: %s%s%s%s", call, where, status,
                nccl.GetErrorString(status), text && *text ? ": " : "", text && *text ? text : "",
                cure_of(status, text));
}
