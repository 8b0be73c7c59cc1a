/* Variables that resemble libcomm's and are none of them are told of when a world opens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/common/base/misspelt.h"
#include "ranks.h"

static char said[2000];

static void note(int32_t level, const char *text, void *context)
{
    (void)context;
    if (level == COMM_LOG_WARN)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", text);
}

static const char *told_of(const char *variable, const char *value)
{
    *said = '\0';
    setenv(variable, value, 1);
    comm__misspelt_warn();
    unsetenv(variable);
    return said;
}

#define CHECK_TOLD(variable, words)                                                                                    \
    do {                                                                                                               \
        if (!strstr(told_of(variable, "1"), words))                                                                    \
            ranks_fail(__FILE__, __LINE__, "%s: '%s' does not say '%s'", variable, said, words);                       \
    } while (0)

static void what_is_told(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    setenv("COMM_SHM_LANE", "2", 1);
    comm_log_set(note, NULL);
    comm_log_set_level(COMM_LOG_WARN); /* whatever COMM_LOG says */
    comm_group *world = ranks_world("cpu:tcp");
    CHECK(strstr(said, "COMM_SHM_LANE is set, and is no variable of libcomm's; is COMM_SHM_LANES meant?") != NULL);
    unsetenv("COMM_SHM_LANE");
    CHECK_TOLD("COMM_TIMEOUT", "is COMM_TIMEOUT_MS meant?");
    CHECK_TOLD("COMM_BACKENDS", "is COMM_BACKEND meant?");
    CHECK_TOLD("COMM_TCP_EAGERBYTES", "is COMM_TCP_EAGER_BYTES meant?");
    CHECK_TOLD("COMM_SHM_WHATEVER", "COMM_SHM_WHATEVER is set, but backend 'shm' has no such parameter");
    CHECK_TOLD("COMM_TCP_", "backend 'tcp' has no such parameter");
    static const char *const quiet[] = {
        "COMM_SHM_LANES", "COMM_LOG", "COMM_JOB", "COMM_LAUNCHER", "COMM_STORE_URL", "COMM_", "COMM_X", "COMM_DEBUG",
        "COMM_MY_PROGRAMS_OWN", "MY_COMM_BACKENDS", "COMM_TCPX", "COMM_MPI_LINGER_MS", "COMM_UCX_LANES",
        "COMM_CORE_COUNT", "COMM_NAME_THAT_IS_MUCH_LONGER_THAN_ANY_OF_LIBCOMMS_EVER_ARE_AND_WILL_BE",
    };
    for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++)
        if (*told_of(quiet[i], "1"))
            ranks_fail(__FILE__, __LINE__, "%s: '%s'", quiet[i], said);
    comm_log_set(NULL, NULL);
    CHECK_OK(comm_group_close(world));
}

int main(void)
{
    struct ranks_options how = { .limit_s = 20 };
    return ranks_run(1, &how, what_is_told, NULL);
}
