/* Runs cases: as processes of their own, as threads of one, or as the processes that a launcher has started. A rank
 * that takes too long tells what it is doing, and ends. */
#include <comm/store.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "memory.h"
#include "watch.h"

enum { GRACE_MS = 4000, AFTER_FAILURE_MS = 1500, SIZES_MAX = 4 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 4 };
#else
enum { SLOW = 1 };
#endif

static _Thread_local int thread_rank = -1;
static struct {
    int rank, size;
    const struct check_case *current;
    char url[300], folder[256];
    char doing[300];
    pthread_mutex_t lock;
} self = { .rank = -1, .lock = PTHREAD_MUTEX_INITIALIZER };

int self_rank(void)
{
    return thread_rank >= 0 ? thread_rank : self.rank;
}

int self_size(void)
{
    return self.size;
}

const struct check_case *self_case(void)
{
    return self.current;
}

uint64_t self_seed(void)
{
    return settings.seed * 1000 + (uint64_t)self.size;
}

void self_doing(const char *format, ...)
{
    va_list arguments;
    pthread_mutex_lock(&self.lock);
    va_start(arguments, format);
    vsnprintf(self.doing, sizeof self.doing, format, arguments);
    va_end(arguments);
    pthread_mutex_unlock(&self.lock);
}

int64_t check_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int entries_of(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

int thread_count(void)
{
    return entries_of("/proc/self/task");
}

int descriptor_count(void)
{
    return entries_of("/proc/self/fd") - 1; /* without the folder's own */
}

/* ---- Worlds ---- */

comm_store *rank_store(void)
{
    comm_store *store;
    return !settings.as_rank && comm_store_open(self.url, NULL, &store) == COMM_OK ? store : NULL;
}

comm_status try_world(const char *name, comm_group **ret_world)
{
    comm_init_options options = COMM_INIT_OPTIONS_INIT;
    options.backend = "cpu:watched";
    options.timeout_ms = (int64_t)(settings.patience_s * 4000);
    options.name = name;
    if (settings.as_rank)
        return comm_init(&options, ret_world);
    comm_store *store = rank_store();
    if (!store)
        return COMM_ERR_SYSTEM;
    options.store = store;
    options.rank = self_rank();
    options.world_size = self.size;
    comm_status status = comm_init(&options, ret_world);
    comm_store_close(store);
    return status;
}

comm_group *open_world(const char *name)
{
    comm_group *world;
    self_doing("opening the world");
    comm_status status = try_world(name, &world);
    if (status == COMM_ERR_UNSUPPORTED)
        skip("%s", comm_last_error());
    if (status != COMM_OK)
        finding_ends(RULE_result, "the world does not open: %s: %s", comm_status_name(status), comm_last_error());
    self_doing("running");
    return world;
}

void tell(comm_group *world, const char *key)
{
    if (comm_store_set(comm_group_store(world), key, "x", 1) != COMM_OK)
        finding_ends(RULE_result, "the store does not take a key: %s", comm_last_error());
}

void await_told(comm_group *world, const char *key)
{
    self_doing("waiting for the key '%s' of another rank", key);
    if (comm_store_wait(comm_group_store(world), &key, 1, (int64_t)(settings.patience_s * 2000)) != COMM_OK)
        finding_ends(RULE_result, "another rank did not come to '%s': %s", key, comm_last_error());
    self_doing("running");
}

void meet(comm_group *world, const char *key)
{
    char mine[100];
    for (int r = 0; r < self.size; r++) {
        snprintf(mine, sizeof mine, "%s/%d", key, r);
        if (r == self_rank())
            tell(world, mine);
    }
    for (int r = 0; r < self.size; r++) {
        snprintf(mine, sizeof mine, "%s/%d", key, r);
        await_told(world, mine);
    }
}

/* ---- A rank that hangs ---- */

static void tell_story(void)
{
    char story[CHECK_TEXT_BYTES] = "", doing[300];
    pthread_mutex_lock(&self.lock);
    snprintf(doing, sizeof doing, "%s", self.doing);
    pthread_mutex_unlock(&self.lock);
    watch_story(story, sizeof story);
    if (watch_hangs() == 0)
        finding(RULE_complete_always, "the rank did not end within %.1f s; it was %s; %s", settings.patience_s, doing,
                *story ? story : "nothing is pending");
    report_line(stderr, self.rank, 'H', "", "%s; %s", doing, *story ? story : "no slot is open, nothing is pending");
}

static int64_t hang_ns;

/* A rank that ends is seen by the others: they shall have told their own part before. */
static void let_others_tell(void)
{
    nanosleep(&(const struct timespec){ 0, 800000000 }, NULL);
}

static void *wait_for_hang(void *unused)
{
    (void)unused;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (;;) {
        int64_t left_ns = __atomic_load_n(&hang_ns, __ATOMIC_RELAXED) - check_now_ns();
        if (left_ns <= 0)
            break;
        const struct timespec pause = { (time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000) };
        nanosleep(&pause, NULL);
    }
    tell_story();
    let_others_tell();
    fflush(NULL);
    _exit(1);
}

static void begin_patience(const struct check_case *c)
{
    double random_s = strcmp(c->section, "random") == 0 ? settings.seconds : 0;
    __atomic_store_n(&hang_ns, check_now_ns() + (int64_t)((settings.patience_s + random_s) * 1e9),
                     __ATOMIC_RELAXED);
}

static void start_hang_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_for_hang, NULL) != 0)
        abort();
    pthread_detach(thread);
}

/* ---- One rank ---- */

static void *thread_main(void *rank)
{
    thread_rank = (int)(intptr_t)rank;
    self.current->run();
    return NULL;
}

static void run_threads(void)
{
    pthread_t threads[CHECK_RANKS_MAX];
    comm_store *keep; /* a hash store goes with its last handle */
    snprintf(self.url, sizeof self.url, "hash://check");
    if (comm_store_open(self.url, NULL, &keep) != COMM_OK)
        abort();
    for (int r = 0; r < self.size; r++)
        if (pthread_create(&threads[r], NULL, thread_main, (void *)(intptr_t)r) != 0)
            abort();
    for (int r = 0; r < self.size; r++)
        pthread_join(threads[r], NULL);
    comm_store_close(keep);
}

static bool has_threads(const struct check_case *c)
{
    return c->threads || settings.threads;
}

static void begin_rank(const struct check_case *c, int rank, int size)
{
    self.current = c;
    self.rank = rank;
    self.size = size;
}

static void rank_process(const struct check_case *c, int rank, int size, struct answers *answers)
{
    char path[300];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    begin_rank(c, rank, size);
    snprintf(path, sizeof path, "%s/report", self.folder);
    int report = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/rank-%d.log", self.folder, rank);
    int log = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(log);
    report_to(report);
    answers_share(answers);
    memory_begin();
    begin_patience(c);
    start_hang_thread();
    watch_begin(strcmp(c->section, "table") == 0);
    if (has_threads(c))
        run_threads();
    else
        c->run();
    fflush(NULL);
    exit(0);
}

/* ---- Ranks as processes ---- */

struct run {
    const struct check_case *c;
    int size, processes, alive;
    bool failed; /* a rank has ended as it should not */
    bool unusable; /* the backend is */
    bool killed; /* those that are left, by us */
    pid_t pids[CHECK_RANKS_MAX];
    int pidfds[CHECK_RANKS_MAX];
    FILE *report;
};

static void reap(struct run *run, int rank)
{
    int status;
    waitpid(run->pids[rank], &status, 0);
    close(run->pidfds[rank]);
    run->pidfds[rank] = -1;
    run->alive--;
    if (rank >= run->processes - run->c->dies)
        return;
    run->unusable |= WIFEXITED(status) && WEXITSTATUS(status) == CANNOT_BE_USED;
    run->failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (WIFSIGNALED(status) && !run->killed)
        report_line(run->report, rank, 'F', "crash", "the rank was ended by signal %d (%s)", WTERMSIG(status),
                    strsignal(WTERMSIG(status)));
    else if (WIFEXITED(status) && WEXITSTATUS(status) > 1 && !run->unusable)
        report_line(run->report, rank, 'F', "crash", "the rank ended itself with status %d", WEXITSTATUS(status));
}

/* One that has failed leaves the others without it: they get a while to tell their part. */
static void watch_over(struct run *run)
{
    int64_t limit_ms = (int64_t)(settings.patience_s * 1000) + GRACE_MS;
    if (strcmp(run->c->section, "random") == 0)
        limit_ms += (int64_t)(settings.seconds * 1000);
    int64_t until_ms = check_now_ns() / 1000000 + limit_ms;
    bool shortened = false;
    while (run->alive > 0) {
        struct pollfd fds[CHECK_RANKS_MAX];
        for (int r = 0; r < run->processes; r++)
            fds[r] = (struct pollfd){ run->pidfds[r], POLLIN, 0 };
        int64_t left = until_ms - check_now_ns() / 1000000;
        int ready = left > 0 ? poll(fds, (nfds_t)run->processes, (int)left) : 0;
        for (int r = 0; ready > 0 && r < run->processes; r++)
            if (run->pidfds[r] >= 0 && fds[r].revents)
                reap(run, r);
        if (run->failed && !shortened && (shortened = true))
            until_ms = check_now_ns() / 1000000 + AFTER_FAILURE_MS < until_ms
                           ? check_now_ns() / 1000000 + AFTER_FAILURE_MS
                           : until_ms;
        if (left > 0)
            continue;
        run->killed = true;
        for (int r = 0; r < run->processes; r++)
            if (run->pidfds[r] >= 0) {
                if (!shortened)
                    report_line(run->report, r, 'F', "complete_always", "the rank does not end, nor does it say why");
                kill(run->pids[r], SIGKILL);
                reap(run, r);
            }
    }
}

static void tell_difference(int yes_rank, int no_rank, const char *what, void *context)
{
    report_line(context, no_rank, 'F', "supports_alike", "supports of %s: rank %d refuses it, rank %d does not", what,
                no_rank, yes_rank);
}

static void copy_stories(const struct run *run)
{
    char path[300], line[CHECK_TEXT_BYTES + 100];
    for (int r = 0; r < run->processes; r++) {
        snprintf(path, sizeof path, "%s/rank-%d.log", self.folder, r);
        FILE *log = fopen(path, "r");
        while (log && fgets(line, sizeof line, log)) {
            line[strcspn(line, "\n")] = '\0';
            const char *text = strrchr(line, '\t');
            if (strncmp(line, "H\t", 2) == 0 && text)
                report_line(run->report, r, 'H', "", "%s", text + 1);
            else if (*line)
                report_line(run->report, r, 'P', "", "%s", line);
        }
        if (log)
            fclose(log);
        unlink(path);
    }
}

/* The first rank's log has the reason. */
__attribute__((noreturn)) static void give_up(const struct run *run)
{
    char path[300], line[CHECK_TEXT_BYTES];
    snprintf(path, sizeof path, "%s/rank-0.log", self.folder);
    FILE *log = fopen(path, "r");
    while (log && fgets(line, sizeof line, log))
        fprintf(stderr, "comm-backend-check: %s", line);
    for (int r = 0; r < run->processes; r++) {
        snprintf(path, sizeof path, "%s/rank-%d.log", self.folder, r);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/report", self.folder);
    unlink(path);
    rmdir(self.folder);
    exit(2);
}

static char skipped[CHECK_TEXT_BYTES];

/* A case is skipped if every rank has skipped it. */
static const char *reason_to_skip(FILE *report, int size)
{
    char line[CHECK_TEXT_BYTES + 300];
    int count = 0;
    rewind(report);
    while (fgets(line, sizeof line, report))
        if (line[0] == 'S') {
            const char *text = strrchr(line, '\t');
            snprintf(skipped, sizeof skipped, "%s", text ? text + 1 : "");
            skipped[strcspn(skipped, "\n")] = '\0';
            count++;
        }
    return count >= size ? skipped : NULL;
}

static int end_run(struct run *run, struct answers *answers)
{
    char path[300];
    answers_compare(answers, run->size, tell_difference, run->report);
    copy_stories(run);
    int findings = report_take(run->report, run->c, run->size, settings.seed);
    report_case(run->c, run->size, findings, reason_to_skip(run->report, run->processes));
    fclose(run->report);
    munmap(answers, answers_bytes());
    snprintf(path, sizeof path, "%s/report", self.folder);
    unlink(path);
    rmdir(self.folder);
    return findings;
}

/* The store of a case, in a process of its own: the ranks are forked from one that has no threads, and what is in the
 * store is not taken for a rank's memory. It ends when `fd` is closed. */
struct store_process {
    pid_t pid;
    int fd;
};

static void serve_store(int fd)
{
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    comm_store *store;
    char end;
    options.serve = 1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int32_t port = comm_store_open("tcp://127.0.0.1:0", &options, &store) == COMM_OK ? comm_store_port(store) : -1;
    if (port < 0)
        fprintf(stderr, "comm-backend-check: a store for the ranks: %s\n", comm_last_error());
    bool told = send(fd, &port, sizeof port, MSG_NOSIGNAL) == sizeof port;
    while (told && recv(fd, &end, 1, 0) > 0)
        ;
    _exit(0);
}

static struct store_process start_store(void)
{
    struct store_process s;
    int fds[2];
    int32_t port = -1;
    fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0 || (s.pid = fork()) < 0) {
        perror("comm-backend-check: a process for the store");
        exit(2);
    }
    if (s.pid == 0) {
        close(fds[0]);
        serve_store(fds[1]);
    }
    close(fds[1]);
    s.fd = fds[0];
    if (recv(s.fd, &port, sizeof port, MSG_WAITALL) != sizeof port || port < 0)
        exit(2);
    snprintf(self.url, sizeof self.url, "tcp://127.0.0.1:%d", (int)port);
    return s;
}

static void stop_store(const struct store_process *s)
{
    close(s->fd);
    waitpid(s->pid, NULL, 0);
}

static int run_processes(const struct check_case *c, int size)
{
    struct run run = { .c = c, .size = size, .processes = has_threads(c) ? 1 : size };
    char path[300];
    const char *base = getenv("TMPDIR");
    snprintf(self.folder, sizeof self.folder, "%s/comm-backend-check-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(self.folder)) {
        perror(self.folder);
        exit(2);
    }
    snprintf(path, sizeof path, "%s/report", self.folder);
    run.report = fopen(path, "a+e");
    struct answers *answers = mmap(NULL, answers_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!run.report || answers == MAP_FAILED) {
        fprintf(stderr, "comm-backend-check: %s cannot be used\n", self.folder);
        exit(2);
    }
    struct store_process store = start_store();
    fflush(NULL);
    for (int r = 0; r < run.processes; r++) {
        run.pids[r] = fork();
        if (run.pids[r] == 0)
            rank_process(c, r, size, answers);
        run.pidfds[r] = run.pids[r] > 0 ? (int)syscall(SYS_pidfd_open, run.pids[r], 0) : -1;
        if (run.pidfds[r] < 0) {
            perror("comm-backend-check: starting a rank");
            exit(2);
        }
        run.alive++;
    }
    watch_over(&run);
    stop_store(&store);
    if (run.unusable)
        give_up(&run);
    return end_run(&run, answers);
}

/* ---- All cases ---- */

static bool is_wanted(const struct check_case *c)
{
    char full[100];
    snprintf(full, sizeof full, "%s.%s", c->section, c->name);
    return !settings.only || strcmp(settings.only, c->section) == 0 || strcmp(settings.only, full) == 0;
}

static int run_alone(void)
{
    for (size_t i = 0; i < check_case_count; i++) {
        const struct check_case *c = &check_cases[i];
        if (!is_wanted(c) || (settings.threads && (c->alone || c->counts)))
            continue;
        for (int size = settings.ranks ? settings.ranks : 1; size <= (settings.ranks ? settings.ranks : SIZES_MAX);
             size++)
            if (size >= c->least && (size <= c->most || settings.ranks) && size <= CHECK_RANKS_MAX)
                run_processes(c, size);
    }
    return report_end();
}

/* Rank 0 may serve the store: no rank leaves before all are through. */
static void leave_together(void)
{
    comm_group *last;
    if (try_world("the end", &last) != COMM_OK)
        return;
    meet(last, "end");
    comm_group_close(last);
}

/* The launcher's ranks run all cases, one after the other, each with a world of its own. */
static int run_launched(void)
{
    comm_launch_info launch = { .struct_bytes = sizeof launch };
    if (comm_launch_query(&launch) != COMM_OK || launch.rank < 0) {
        fprintf(stderr, "comm-backend-check: --as-rank is for processes that a launcher has started: %s\n",
                comm_last_error());
        return 2;
    }
    jmp_buf here;
    skip_to = &here;
    memory_begin();
    begin_rank(&check_cases[0], launch.rank, launch.world_size);
    begin_patience(&check_cases[0]);
    start_hang_thread();
    watch_begin(launch.rank == 0);
    for (volatile size_t i = 0; i < check_case_count; i++) {
        const struct check_case *c = &check_cases[i];
        if (!is_wanted(c) || c->alone || c->threads || self.size < c->least)
            continue;
        begin_rank(c, launch.rank, launch.world_size);
        begin_patience(c);
        volatile int before = report_count();
        bool is_skipped = setjmp(here) != 0;
        if (!is_skipped)
            c->run();
        if (launch.rank == 0)
            report_case(c, self.size, report_count() - before,
                        is_skipped ? "the backend cannot do what it needs" : NULL);
    }
    leave_together();
    return report_end();
}

int run_cases(void)
{
    settings.patience_s *= SLOW;
    return settings.as_rank ? run_launched() : run_alone();
}
