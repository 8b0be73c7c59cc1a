/* Ranks as processes: fork, a folder with one log per rank and the store, pidfds with a deadline, SIGKILL for what is
 * left. */
#include "ranks.h"

#include "flow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORLD_MAX = 160, GRACE_MS = 3000, TAIL_BYTES = 3000 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SLOW = 1, LIMIT_FACTOR = 4 };
#else
enum { IS_SLOW = 0, LIMIT_FACTOR = 1 };
#endif

static _Thread_local struct {
    int rank, size;
    char url[300];
} self = { -1, 0, "" };
static int process_rank = -1, process_size; /* of a process that is one rank, for threads that the test has made */
static char folder[256];

/* It is there for what hangs, not for what is slow. */
static int limit_s(const struct ranks_options *options)
{
    return (options->limit_s ? options->limit_s : 60) * LIMIT_FACTOR;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void ranks_fail(const char *file, int line, const char *format, ...)
{
    char text[1500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int is_thread = self.rank < 0;
    fprintf(stderr, "rank %d of %d: %s:%d: %s\n", is_thread ? process_rank : self.rank,
            is_thread ? process_size : self.size, file, line, text);
    fflush(NULL);
    _exit(1);
}

comm_store *ranks_store(void)
{
    comm_store *store;
    CHECK_OK(comm_store_open(self.url, NULL, &store));
    return store;
}

const char *ranks_folder(void)
{
    return folder;
}

comm_status ranks_init(comm_init_options *options, comm_group **ret_world)
{
    comm_store *store = ranks_store();
    options->store = store;
    if (options->world_size == 0) {
        options->rank = self.rank;
        options->world_size = self.size;
    }
    const int had_text = *comm_last_error() != '\0';
    comm_status status = comm_init(options, ret_world);
    if (status == COMM_OK && !had_text && *comm_last_error())
        ranks_fail(__FILE__, __LINE__, "comm_init went well, and left the text of an error: %s", comm_last_error());
    comm_store_close(store); /* the world keeps what it needs */
    return status;
}

comm_group *ranks_world(const char *backend)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    comm_group *world;
    options.backend = backend;
    options.timeout_ms = 30000 * LIMIT_FACTOR;
    CHECK_OK(ranks_init(&options, &world));
    return world;
}

#pragma weak flow_check

void ranks_quiet(comm_group *world)
{
    if (flow_check)
        flow_check(world);
}

/* ---- Processes ---- */

struct run {
    int size;
    const struct ranks_options *options;
    pid_t pids[WORLD_MAX];
    int pidfds[WORLD_MAX]; /* -1: gone */
    int alive;
    int first_failed;
    char reason[80];
};

static void log_path(int rank, char *path, size_t capacity)
{
    snprintf(path, capacity, "%s/rank-%d.log", folder, rank);
}

/* RANKS_HOSTS=aab: of each three ranks, the first two pretend to share a host. RANKS_SHARE_GPU: NCCL takes each rank
 * for a host of its own, and so lets several use one GPU. */
static void pretend_host(int rank)
{
    const char *hosts = getenv("RANKS_HOSTS");
    char host[2] = "", id[32];
    if (getenv("RANKS_SHARE_GPU")) {
        snprintf(id, sizeof id, "libcomm-%d", rank);
        setenv("NCCL_HOSTID", id, 1);
    }
    if (!hosts || !*hosts)
        return;
    host[0] = hosts[(size_t)rank % strlen(hosts)];
    setenv("COMM_HOST_ID", host, 1);
}

static void become_rank(int rank, int size, void (*fn)(int, int, void *), void *arg)
{
    char path[300];
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a killed test must not leave ranks behind */
    log_path(rank, path, sizeof path);
    int fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    self.rank = process_rank = rank;
    self.size = process_size = size;
    snprintf(self.url, sizeof self.url, "file://%s/store", folder);
    pretend_host(rank);
    fn(rank, size, arg);
    exit(0); /* with atexit handlers: LeakSanitizer reports there */
}

static void kill_rest(struct run *run)
{
    for (int r = 0; r < run->size; r++)
        if (run->pidfds[r] >= 0)
            kill(run->pids[r], SIGKILL);
}

static void reap(struct run *run, int rank)
{
    int status;
    waitpid(run->pids[rank], &status, 0);
    close(run->pidfds[rank]);
    run->pidfds[rank] = -1;
    run->alive--;
    int may_fail = rank < 64 && (run->options->may_fail >> rank & 1);
    if ((WIFEXITED(status) && WEXITSTATUS(status) == 0) || may_fail || run->first_failed >= 0)
        return;
    run->first_failed = rank;
    if (WIFEXITED(status))
        snprintf(run->reason, sizeof run->reason, "exited with %d", WEXITSTATUS(status));
    else
        snprintf(run->reason, sizeof run->reason, "was ended by signal %d", WTERMSIG(status));
}

/* Wait until all are gone. Once one has failed, the others get a moment to fail too, for their side of the story. */
static void watch(struct run *run)
{
    int64_t deadline = now_ms() + 1000 * limit_s(run->options);
    int shortened = 0;
    while (run->alive > 0) {
        struct pollfd fds[WORLD_MAX];
        for (int r = 0; r < run->size; r++)
            fds[r] = (struct pollfd){ run->pidfds[r], POLLIN, 0 };
        int64_t left = deadline - now_ms();
        if (left > 0 && poll(fds, (nfds_t)run->size, (int)left) >= 0) {
            for (int r = 0; r < run->size; r++)
                if (run->pidfds[r] >= 0 && fds[r].revents)
                    reap(run, r);
            if (run->first_failed >= 0 && !shortened) {
                shortened = 1;
                deadline = now_ms() + GRACE_MS < deadline ? now_ms() + GRACE_MS : deadline;
            }
            continue;
        }
        for (int r = 0; r < run->size && run->first_failed < 0; r++)
            if (run->pidfds[r] >= 0) {
                run->first_failed = r;
                snprintf(run->reason, sizeof run->reason, "did not end within its time limit");
            }
        kill_rest(run);
        for (int r = 0; r < run->size; r++)
            if (run->pidfds[r] >= 0)
                reap(run, r);
    }
}

/* RANKS_REFUSE: a text that no rank may have written. */
static void look_for_refused(struct run *run)
{
    const char *refused = getenv("RANKS_REFUSE");
    char path[300], line[1000];
    for (int r = 0; refused && *refused && r < run->size && run->first_failed < 0; r++) {
        log_path(r, path, sizeof path);
        FILE *log = fopen(path, "r");
        while (log && run->first_failed < 0 && fgets(line, sizeof line, log))
            if (strstr(line, refused)) {
                run->first_failed = r;
                snprintf(run->reason, sizeof run->reason, "has written: %.60s", strstr(line, refused));
            }
        if (log)
            fclose(log);
    }
}

static void print_tail(int rank)
{
    char path[300], tail[TAIL_BYTES + 1];
    log_path(rank, path, sizeof path);
    FILE *log = fopen(path, "r");
    if (!log)
        return;
    fseek(log, 0, SEEK_END);
    long end = ftell(log);
    fseek(log, end > TAIL_BYTES ? end - TAIL_BYTES : 0, SEEK_SET);
    size_t got = fread(tail, 1, TAIL_BYTES, log);
    tail[got] = '\0';
    fclose(log);
    fprintf(stderr, "---- rank %d wrote:\n%s", rank, tail);
}

/* With what the test has put there, too. */
static void remove_folder(void)
{
    DIR *d = opendir(folder);
    struct dirent *entry;
    while (d && (entry = readdir(d)))
        unlinkat(dirfd(d), entry->d_name, 0); /* not "." and ".." */
    if (d)
        closedir(d);
    rmdir(folder);
}

static int run_processes(int size, const struct ranks_options *o, void (*fn)(int, int, void *), void *arg)
{
    struct run run = { .size = size, .options = o, .first_failed = -1 };
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/comm-ranks-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    char url[300];
    /* a store file that no living process has open is taken for one of a crashed job, and ranks may die here */
    comm_store *keep;
    snprintf(url, sizeof url, "file://%s/store", folder);
    if (comm_store_open(url, NULL, &keep) != COMM_OK) {
        fprintf(stderr, "%s: %s\n", url, comm_last_error());
        return 1;
    }
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        run.pids[r] = fork();
        if (run.pids[r] == 0)
            become_rank(r, size, fn, arg);
        run.pidfds[r] = run.pids[r] > 0 ? (int)syscall(SYS_pidfd_open, run.pids[r], 0) : -1;
        if (run.pidfds[r] < 0) {
            perror("starting a rank");
            abort();
        }
        run.alive++;
    }
    watch(&run);
    look_for_refused(&run);
    if (run.first_failed >= 0) {
        fprintf(stderr, "%s: rank %d of %d %s\n", o->name ? o->name : "ranks", run.first_failed, size, run.reason);
        print_tail(run.first_failed);
        for (int r = 0; r < size; r++)
            if (r != run.first_failed)
                print_tail(r);
    }
    comm_store_close(keep);
    remove_folder();
    return run.first_failed >= 0;
}

/* ---- Processes of a launcher ---- */

/* RANKS_LAUNCHED=folder: mpirun has started this program once per rank, and each process is one of the ranks of every
 * run that has as many. Runs of other sizes are left out. */
static int run_launched(int size, const struct ranks_options *o, void (*fn)(int, int, void *), void *arg)
{
    static int runs;
    comm_launch_info launch = { .struct_bytes = sizeof launch };
    if (comm_launch_query(&launch) != COMM_OK || launch.world_size < 1) {
        fprintf(stderr, "RANKS_LAUNCHED is set, but no launcher has started this process: %s\n", comm_last_error());
        return 1;
    }
    if (size != launch.world_size)
        return 0;
    snprintf(folder, sizeof folder, "%.200s/run-%d", getenv("RANKS_LAUNCHED"), runs++);
    mkdir(folder, 0700); /* the first rank does */
    self.rank = launch.rank;
    self.size = size;
    snprintf(self.url, sizeof self.url, "file://%s/store", folder);
    alarm((unsigned)limit_s(o));
    comm_store *keep = ranks_store();
    fn(self.rank, size, arg);
    comm_store_close(keep);
    alarm(0);
    return 0;
}

/* ---- Threads ---- */

struct thread {
    pthread_t id;
    int rank, size;
    void (*fn)(int, int, void *);
    void *arg;
    char url[300];
};

static void *thread_main(void *context)
{
    struct thread *t = context;
    self.rank = t->rank;
    self.size = t->size;
    snprintf(self.url, sizeof self.url, "%s", t->url);
    t->fn(t->rank, t->size, t->arg);
    return NULL;
}

static int run_threads(int size, const struct ranks_options *o, void (*fn)(int, int, void *), void *arg)
{
    static atomic_int runs;
    struct thread threads[WORLD_MAX];
    int run = atomic_fetch_add(&runs, 1);
    char url[300];
    snprintf(url, sizeof url, "hash://ranks-%d", run);
    comm_store *keep; /* a hash store goes with its last handle, and the threads come and go */
    if (comm_store_open(url, NULL, &keep) != COMM_OK) {
        fprintf(stderr, "%s: %s\n", url, comm_last_error());
        return 1;
    }
    alarm((unsigned)limit_s(o)); /* threads cannot be killed one by one */
    for (int r = 0; r < size; r++) {
        struct thread *t = &threads[r];
        *t = (struct thread){ .rank = r, .size = size, .fn = fn, .arg = arg };
        snprintf(t->url, sizeof t->url, "%s", url);
        if (pthread_create(&t->id, NULL, thread_main, t) != 0)
            abort();
    }
    for (int r = 0; r < size; r++)
        pthread_join(threads[r].id, NULL);
    alarm(0);
    comm_store_close(keep);
    return 0;
}

int ranks_run(int size, const struct ranks_options *options, void (*fn)(int rank, int size, void *arg), void *arg)
{
    static const struct ranks_options none;
    if (!options)
        options = &none;
    if (size < 1 || size > WORLD_MAX)
        abort();
    if (IS_SLOW || getenv("SHORT_IO_RUNS"))
        setenv("COMM_TCP_ANSWER_MS", "1500", 0); /* a rank that is asked what it does may take long to say so */
    if (getenv("RANKS_LAUNCHED") && !options->threads)
        return run_launched(size, options, fn, arg);
    return options->threads ? run_threads(size, options, fn, arg) : run_processes(size, options, fn, arg);
}
