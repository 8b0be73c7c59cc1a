/* Error texts: what MPI says, and which rank is which. And a pause. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "state.h"

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

comm_status fail_mpi(int error, const char *call)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length = 0;
    if (error == MPI_SUCCESS)
        return COMM_OK;
    if (mpi.Error_string(error, text, &length) != MPI_SUCCESS || length <= 0)
        snprintf(text, sizeof text, "error %d", error);
    for (char *at = text; (at = strchr(at, '\n'));) /* MPICH has one line for each function that it was in */
        *at = at[1] ? ';' : '\0';
    return fail(COMM_ERR_BACKEND, "%s: %s", call, text);
}

comm_status status_that_ends(comm_status status)
{
    return status > COMM_ERR_PEER_LOST ? COMM_ERR_BACKEND : status;
}

void say_rank(const struct group *g, int rank, char *text, size_t capacity)
{
    if (g->info->world_ranks[rank] == rank)
        snprintf(text, capacity, "rank %d", rank);
    else
        snprintf(text, capacity, "rank %d (world rank %d)", rank, g->info->world_ranks[rank]);
}
