/* Finds rank and world size in the environment that launchers leave. One row per launcher; add one, and it is known.
 *
 * Launchers nest (srun starts mpirun, mpirun starts torchrun), and the variables of the outer ones stay in the
 * environment. The order of the rows decides which launcher wins: torchrun is only ever the inner one; commrun clears
 * the other launchers' rank variables for its ranks, so where they are set beside COMM_LAUNCHER they come from
 * inside. */
#include "launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "op.h"

struct launcher {
    const char *name;
    int (*runs)(void); /* is this process one of its ranks? */
    /* Environment variables; with '|' between alternatives, the first that is set counts. NULL: it has none. */
    const char *rank, *world_size, *local_rank, *local_world_size, *hosts;
    const char *job, *job_step; /* together, one job's name */
};

enum { VARIABLE_BYTES = 64 };

/* The value of the first of `names` that is set and not empty; its name in `ret_name`. NULL if none is. */
static const char *lookup(const char *names, char ret_name[VARIABLE_BYTES])
{
    ret_name[0] = '\0';
    while (names && *names) {
        size_t bytes = strcspn(names, "|");
        snprintf(ret_name, VARIABLE_BYTES, "%.*s", (int)bytes, names);
        const char *value = getenv(ret_name);
        if (value && *value)
            return value;
        names += bytes + (names[bytes] == '|');
    }
    return NULL;
}

static int is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

static int torchrun_runs(void)
{
    return is_set("TORCHELASTIC_RUN_ID");
}

static int openmpi_runs(void)
{
    return is_set("OMPI_COMM_WORLD_RANK");
}

static int hydra_runs(void)
{
    return is_set("MPI_LOCALRANKID") && is_set("PMI_RANK");
}

static int pmi_runs(void)
{
    return is_set("PMI_RANK");
}

/* A batch script or an interactive shell has SLURM_PROCID=0 and the allocation's task count too, but is not one of
 * that many ranks. Only a numbered step is; the numbers from 0xfffffffa up stand for batch, extern and interactive
 * steps. */
static int slurm_runs(void)
{
    char name[VARIABLE_BYTES];
    const char *step = lookup("SLURM_STEP_ID|SLURM_STEPID", name);
    return step && is_set("SLURM_PROCID") && strtoull(step, NULL, 10) < 0xfffffffaull;
}

static int commrun_runs(void)
{
    const char *value = getenv("COMM_LAUNCHER");
    return value && strcmp(value, "commrun") == 0;
}

static int env_runs(void)
{
    return is_set("RANK") || is_set("WORLD_SIZE");
}

/* Hydra is the launcher of MPICH and Intel MPI. PMI_RANK without its MPI_LOCALRANKID is some other PMI server; srun can
 * be one, which is why Slurm stands between the two rows. */
static const struct launcher launchers[] = {
    { "torchrun", torchrun_runs, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, NULL, NULL },
    { "openmpi", openmpi_runs, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
      "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, "PMIX_NAMESPACE|OMPI_MCA_ess_base_jobid", NULL },
    { "mpich", hydra_runs, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, "PMI_JOBID", NULL },
    { "slurm", slurm_runs, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS|SLURM_NTASKS|SLURM_NPROCS", "SLURM_LOCALID", NULL,
      "SLURM_STEP_NUM_NODES|SLURM_NNODES|SLURM_JOB_NUM_NODES", "SLURM_JOB_ID|SLURM_JOBID",
      "SLURM_STEP_ID|SLURM_STEPID" },
    { "mpich", pmi_runs, "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", NULL, "PMI_JOBID", NULL },
    { "commrun", commrun_runs, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, NULL, NULL },
    { "env", env_runs, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, NULL, NULL },
};
enum { LAUNCHER_COUNT = sizeof launchers / sizeof *launchers };

/* *ret_value stays -1 if the variable is not set. */
static comm_status read_number(const char *names, int32_t least, int32_t *ret_value)
{
    char name[VARIABLE_BYTES];
    const char *text = lookup(names, name);
    *ret_value = -1;
    if (!text)
        return COMM_OK;
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || strspn(text, "0123456789") != strlen(text) || value < least || value > INT32_MAX)
        return comm__fail(COMM_ERR_INVALID, "the environment variable %s is '%s', which is not a number from %d up",
                          name, text, least);
    *ret_value = (int32_t)value;
    return COMM_OK;
}

static comm_status check(const struct launcher *l, const struct comm__launch *found)
{
    if (l->runs != env_runs && (found->rank < 0 || found->world_size < 0))
        return comm__fail(COMM_ERR_INVALID, "this process looks like a rank of %s, but %s is not set", l->name,
                          found->rank < 0 ? l->rank : l->world_size);
    if (found->world_size >= 0 && found->rank >= found->world_size)
        return comm__fail(COMM_ERR_INVALID, "%s is %d and %s is %d (from %s): ranks go from 0 to %d", l->rank,
                          found->rank, l->world_size, found->world_size, l->name, found->world_size - 1);
    return COMM_OK;
}

static void read_job(const struct launcher *l, struct comm__launch *found)
{
    char name[VARIABLE_BYTES];
    const char *job = lookup(l->job, name);
    const char *step = lookup(l->job_step, name);
    if (job && (step || !l->job_step))
        snprintf(found->job, sizeof found->job, "%s-%s%s%s", l->name, job, step ? "." : "", step ? step : "");
}

static comm_status read_launcher(const struct launcher *l, struct comm__launch *found)
{
    memset(found, 0, sizeof *found);
    found->launcher = l->name;
    comm_status status = read_number(l->rank, 0, &found->rank);
    if (status == COMM_OK)
        status = read_number(l->world_size, 1, &found->world_size);
    if (status == COMM_OK)
        status = read_number(l->local_rank, 0, &found->local_rank);
    if (status == COMM_OK)
        status = read_number(l->local_world_size, 1, &found->local_world_size);
    if (status == COMM_OK)
        status = read_number(l->hosts, 1, &found->hosts);
    if (status == COMM_OK)
        status = check(l, found);
    if (status != COMM_OK)
        return status;
    if (l->runs == slurm_runs) {
        char name[VARIABLE_BYTES];
        const char *tasks = lookup("SLURM_STEP_TASKS_PER_NODE|SLURM_TASKS_PER_NODE", name);
        const char *node = getenv("SLURM_NODEID");
        if (tasks && node)
            found->local_world_size = comm__slurm_tasks_on(tasks, (int32_t)strtol(node, NULL, 10));
    }
    if (found->world_size > 0 && found->local_world_size == found->world_size)
        found->hosts = 1;
    read_job(l, found);
    return COMM_OK;
}

/* RANK and WORLD_SIZE beside another launcher's: the same, or a larger world that this process's ancestor, one of
 * the launcher's ranks, has started. Anything else is a leftover in the user's shell, and every rank would believe to
 * be the same one. */
static comm_status reconcile_with_env(struct comm__launch *found)
{
    const struct launcher *env = &launchers[LAUNCHER_COUNT - 1];
    struct comm__launch plain;
    if (!is_set("RANK") || !is_set("WORLD_SIZE"))
        return COMM_OK;
    comm_status status = read_launcher(env, &plain);
    if (status != COMM_OK)
        return status;
    if (plain.rank == found->rank && plain.world_size == found->world_size)
        return COMM_OK;
    if (plain.world_size > found->world_size) {
        *found = plain;
        return COMM_OK;
    }
    return comm__fail(COMM_ERR_INVALID,
                      "RANK and WORLD_SIZE say rank %d of %d, but %s started this process as rank %d of %d; unset RANK "
                      "and WORLD_SIZE, or give rank and world_size in the URL",
                      plain.rank, plain.world_size, found->launcher, found->rank, found->world_size);
}

comm_status comm__launch_find(struct comm__launch *ret_launch)
{
    struct comm__launch found = {
        .launcher = "none", .rank = -1, .world_size = -1, .local_rank = -1, .local_world_size = -1, .hosts = -1
    };
    for (size_t i = 0; i < LAUNCHER_COUNT; i++) {
        if (!launchers[i].runs())
            continue;
        comm_status status = read_launcher(&launchers[i], &found);
        if (status == COMM_OK && strcmp(launchers[i].rank, "RANK") != 0 && !commrun_runs())
            status = reconcile_with_env(&found);
        if (status != COMM_OK)
            return status;
        break;
    }
    *ret_launch = found;
    return COMM_OK;
}

comm_status comm_launch_query(comm_launch_info *ret_info)
{
    struct comm__launch found;
    comm_status status = comm__launch_find(&found);
    if (status != COMM_OK)
        return status;
    const comm_launch_info info = { .struct_bytes = sizeof info,
                                    .rank = found.rank,
                                    .world_size = found.world_size,
                                    .local_rank = found.local_rank,
                                    .local_world_size = found.local_world_size,
                                    .launcher = found.launcher };
    return comm__give_struct(ret_info, &info, sizeof info, "comm_launch_query", "comm_launch_info");
}

void comm__slurm_first_host(const char *list, char *host, size_t capacity)
{
    size_t prefix = strcspn(list, ",[");
    size_t digits = 0;
    const char *tail = list + prefix;
    if (*tail == '[') {
        digits = strspn(tail + 1, "0123456789");
        tail = strchr(tail, ']');
        if (digits == 0 || !tail) {
            host[0] = '\0';
            return;
        }
        tail++;
    }
    size_t suffix = strcspn(tail, ",[");
    int written = snprintf(host, capacity, "%.*s%.*s%.*s", (int)prefix, list, (int)digits, list + prefix + 1,
                           digits ? (int)suffix : 0, tail);
    /* "rack[1-2]n[1-8]" has two ranges; the rule above would cut it short, and a wrong host is worse than none. */
    if (written < 0 || (size_t)written >= capacity || tail[digits ? suffix : 0] == '[')
        host[0] = '\0';
}

int32_t comm__slurm_tasks_on(const char *tasks_per_node, int32_t index)
{
    const char *at = tasks_per_node;
    while (*at) {
        char *end;
        long tasks = strtol(at, &end, 10), repeat = 1;
        if (end == at || tasks < 1 || tasks > INT32_MAX)
            return -1;
        if (end[0] == '(' && end[1] == 'x') {
            repeat = strtol(end + 2, &end, 10);
            if (*end++ != ')' || repeat < 1)
                return -1;
        }
        if (index < repeat)
            return (int32_t)tasks;
        index -= (int32_t)repeat;
        if (*end != ',')
            return -1;
        at = end + 1;
    }
    return -1;
}
