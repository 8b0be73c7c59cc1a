/* MPI in this process. If the program has initialised it, it is the program's, and is not finalised. Else a thread
 * initialises it: MPI_Init waits for all processes of the job, and opening a world must not wait for other ranks. It is
 * finalised at exit, unless something is left in it that would make that wait for ever. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>

#include "state.h"

enum start_state { START_NONE, START_RUNNING, START_READY, START_FAILED };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum start_state state;
    int level, expected_rank;
    pid_t pid;
    int rank, size; /* in MPI_COMM_WORLD, when MPI is prepared */
    int worlds; /* that are open */
    int leaks;
    char text[TEXT_BYTES]; /* why it failed */
} start = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static atomic_int is_serialised, tag_most = -1;
static pthread_mutex_t serial = PTHREAD_MUTEX_INITIALIZER;

enum { LOOK_NS = 100000000 };

int mpi_is_serialised(void)
{
    return atomic_load_explicit(&is_serialised, memory_order_relaxed);
}

void mpi_lock(void)
{
    if (mpi_is_serialised())
        pthread_mutex_lock(&serial);
}

void mpi_unlock(void)
{
    if (mpi_is_serialised())
        pthread_mutex_unlock(&serial);
}

/* ---- Where this process is in MPI, before MPI is initialised ---- */

/* As the launcher's environment says; -1: it says nothing, and MPI will be alone (a "singleton"). */
static int launched_rank(void)
{
    static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return atoi(value);
    }
    return -1;
}

static const char *job_name(void)
{
    const char *name = getenv("PMIX_NAMESPACE");
    name = name && *name ? name : getenv("OMPI_MCA_ess_base_jobid");
    name = name && *name ? name : getenv("PMI_JOBID");
    return name && *name ? name : "-";
}

/* ---- Initialising ---- */

/* Ours to decide on errors where MPI is ours: else the program has, for its two communicators. */
static comm_status prepare(int is_ours)
{
    int *most, has_most, error = MPI_SUCCESS;
    if (is_ours) {
        error = mpi.Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        if (error == MPI_SUCCESS)
            error = mpi.Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    }
    if (error == MPI_SUCCESS)
        error = mpi.Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &has_most);
    if (error == MPI_SUCCESS)
        error = mpi.Comm_rank(MPI_COMM_WORLD, &start.rank);
    if (error == MPI_SUCCESS)
        error = mpi.Comm_size(MPI_COMM_WORLD, &start.size);
    if (error != MPI_SUCCESS)
        return fail_mpi(error, "preparing MPI");
    atomic_store(&tag_most, has_most ? *most : 32767);
    return types_create();
}

static comm_status check_level(int level, int is_ours)
{
    static const char *const names[] = { "MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED",
                                         "MPI_THREAD_MULTIPLE" };
    int order[] = { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE };
    const char *name = "an unknown thread level";
    for (size_t i = 0; i < 4; i++)
        if (order[i] == level)
            name = names[i];
    if (level < MPI_THREAD_SERIALIZED)
        return fail(COMM_ERR_UNSUPPORTED,
                    is_ours ? "this MPI can only do %s; threads of libcomm call it, so MPI_THREAD_SERIALIZED is needed"
                            : "the program has initialised MPI with %s, but threads of libcomm call it, too: use "
                              "MPI_Init_thread with MPI_THREAD_MULTIPLE, or leave initialising MPI to libcomm", name);
    atomic_store(&is_serialised, level < MPI_THREAD_MULTIPLE);
    return COMM_OK;
}

static comm_status check_place(void)
{
    int rank, size, error = mpi.Comm_rank(MPI_COMM_WORLD, &rank);
    if (error == MPI_SUCCESS)
        error = mpi.Comm_size(MPI_COMM_WORLD, &size);
    if (error != MPI_SUCCESS)
        return fail_mpi(error, "MPI_Comm_rank");
    if (start.expected_rank >= 0 ? rank == start.expected_rank || size == 1 : size == 1)
        return COMM_OK;
    return fail(COMM_ERR_UNSUPPORTED, "MPI calls this process rank %d of %d, but the launcher's environment does not "
                "say so (OMPI_COMM_WORLD_RANK, PMI_RANK, PMIX_RANK): call MPI_Init_thread before comm_init", rank,
                size);
}

/* Everything of ours must be over here and on the others: MPI_Finalize waits for them, as in any MPI program. */
static void finalise(void)
{
    int is_over = 0;
    pthread_mutex_lock(&start.lock);
    int can = start.state == START_READY && !start.leaks && start.worlds == 0 && start.pid == getpid();
    pthread_mutex_unlock(&start.lock);
    if (can)
        leaving_wait(NULL, INT64_MAX);
    if (can && mpi.Finalized(&is_over) == MPI_SUCCESS && !is_over)
        mpi.Finalize();
}

static comm_status initialise(void)
{
    int provided;
    signals_keep();
    int error = mpi.Init_thread(NULL, NULL, start.level, &provided);
    signals_give_back();
    if (error != MPI_SUCCESS)
        return fail(COMM_ERR_BACKEND, "MPI_Init_thread failed: error %d", error);
    if (atexit(finalise) != 0)
        return fail(COMM_ERR_NO_MEMORY, "the exit handler that finalises MPI");
    comm_status status = check_level(start.level < provided ? start.level : provided, 1);
    if (status == COMM_OK)
        status = check_place();
    return status == COMM_OK ? prepare(1) : status;
}

static void settle(comm_status status)
{
    pthread_mutex_lock(&start.lock);
    if (status != COMM_OK)
        snprintf(start.text, sizeof start.text, "%s", host->last_error());
    start.state = status == COMM_OK ? START_READY : START_FAILED;
    pthread_cond_broadcast(&start.changed);
    pthread_mutex_unlock(&start.lock);
}

static void *initialise_apart(void *context)
{
    (void)context;
    settle(initialise());
    return NULL;
}

static comm_status start_thread(void)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, initialise_apart, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return fail(COMM_ERR_SYSTEM, "the thread that initialises MPI cannot be started: %s", strerror(error));
    pthread_detach(thread);
    start.state = START_RUNNING;
    return COMM_OK;
}

static comm_status level_wanted(const comm_world_info *info)
{
    const char *text = host->param_text(info->options, "mpi", "threads");
    if (text && strcmp(text, "multiple") != 0 && strcmp(text, "serialized") != 0)
        return fail(COMM_ERR_INVALID, "threads is '%s'; it can be \"multiple\" or \"serialized\"", text);
    start.level = text && strcmp(text, "serialized") == 0 ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
    return COMM_OK;
}

/* The lock is held. */
static comm_status begin(const comm_world_info *info)
{
    int is_initialised = 0, level = 0;
    start.pid = getpid();
    mpi.Initialized(&is_initialised);
    if (!is_initialised) {
        comm_status status = level_wanted(info);
        start.expected_rank = launched_rank();
        return status == COMM_OK ? start_thread() : status;
    }
    comm_status status = fail_mpi(mpi.Query_thread(&level), "MPI_Query_thread");
    if (status == COMM_OK)
        status = check_level(level, 0);
    if (status == COMM_OK)
        status = prepare(0);
    if (status == COMM_OK)
        start.state = START_READY;
    return status;
}

/* It waits for no call of MPI: one that is under way may take long. */
comm_status start_begin(const comm_world_info *info, char *card, size_t capacity)
{
    comm_status status = COMM_OK;
    int is_finalised = 0;
    pthread_mutex_lock(&start.lock);
    mpi.Finalized(&is_finalised);
    if (is_finalised) /* also after a world of before: MPI ends a process that calls it now */
        status = fail(COMM_ERR_UNSUPPORTED, "the program has called MPI_Finalize; MPI cannot be initialised again");
    else if (start.state == START_NONE)
        status = begin(info);
    else if (start.state == START_FAILED)
        status = fail(COMM_ERR_BACKEND, "%s", start.text);
    else if (start.pid != getpid())
        status = fail(COMM_ERR_UNSUPPORTED, "MPI was initialised before fork(), and cannot be used in the child");
    int rank = start.expected_rank, size = rank >= 0 ? 0 : 1; /* 0: not known */
    if (status == COMM_OK && start.state == START_READY) {
        rank = start.rank;
        size = start.size;
    }
    start.worlds += status == COMM_OK;
    pthread_mutex_unlock(&start.lock);
    snprintf(card, capacity, "%d %s %s", size == 1 && info->size > 1 ? -1 : rank,
             VARIANT_NAME[0] == 'O' ? "open" : "mpich", job_name());
    return status;
}

static struct timespec in_a_while(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += LOOK_NS;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

/* MPI finalises only what is initialised, and mpirun takes a process that has not finalised MPI for one that failed. So
 * a rank that had nothing to do waits until MPI is there, as long as that may take. */
void start_world_closed(int64_t until_ns)
{
    pthread_mutex_lock(&start.lock);
    while (start.state == START_RUNNING && host->now_ns() < until_ns) {
        struct timespec soon = in_a_while();
        pthread_cond_timedwait(&start.changed, &start.lock, &soon);
    }
    start.worlds--;
    pthread_mutex_unlock(&start.lock);
}

comm_status start_wait(const struct group *g)
{
    comm_status status = COMM_OK;
    pthread_mutex_lock(&start.lock);
    while (start.state == START_RUNNING && !atomic_load(&g->ended) && !atomic_load(&g->closing)) {
        struct timespec soon = in_a_while();
        pthread_cond_timedwait(&start.changed, &start.lock, &soon);
    }
    if (start.state == START_FAILED)
        status = fail(COMM_ERR_BACKEND, "%s", start.text);
    else if (start.state == START_RUNNING)
        status = fail(COMM_ERR_ABORTED, "MPI_Init_thread has not returned: all processes that mpirun or srun has "
                      "started must open a world with the backend mpi, or call MPI_Init_thread themselves");
    pthread_mutex_unlock(&start.lock);
    return status;
}

int start_tag_max(void)
{
    return atomic_load(&tag_most);
}

void start_leak(void)
{
    pthread_mutex_lock(&start.lock);
    start.leaks = 1;
    pthread_mutex_unlock(&start.lock);
}
