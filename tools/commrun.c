/* commrun: start a program as the ranks of a world, and end all of them together.
 *
 * It serves the ranks' store itself, on a port that the system chooses: there is no port to find, and none to lose to
 * another program. The first failure decides the exit status and the report; what the other ranks do once they are told
 * to end is not news. The report comes once, and last. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commrun.h"

enum { DRAIN_MS = 1000, KILL_DRAIN_MS = 300, EXIT_USAGE = 2, RANKS_MAX = 65536, SECRET_READ_BYTES = 256 };

/* ---- Saying ---- */

void run_say(const char *format, ...)
{
    char text[COMMRUN_TEXT_BYTES + 256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "commrun: %s\n", text);
}

static void begin_failure(struct run *run, int exit_status)
{
    run->failed = 1;
    run->exit_status = exit_status;
    if (run->running > 0 && !run->options.keep_going)
        run_end_all(run, SIGTERM);
    if (run->nodes && !run->options.keep_going)
        nodes_failed(run);
}

/* Record the first failure, and end the ranks. It is said when everything has ended. With --keep-going the ranks go on
 * after one has failed, so something may be the matter with the run afterwards: that is what ends it then. */
void run_fail(struct run *run, int exit_status, const char *format, ...)
{
    if (run->failed && !run->options.keep_going)
        return;
    run->failed_rank = NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(run->failure, sizeof run->failure, format, arguments);
    va_end(arguments);
    run->options.keep_going = 0; /* that is about ranks that fail, not about the run */
    begin_failure(run, exit_status);
}

/* ---- Ending ---- */

static void on_grace_over(uv_timer_t *timer)
{
    struct run *run = timer->data;
    run_say("%d rank%s did not end within %d s; sending SIGKILL", run->running, run->running == 1 ? "" : "s",
            COMMRUN_GRACE_MS / 1000);
    for (int i = 0; i < run->options.local_count; i++)
        if (run->ranks[i].running)
            spawn_kill(&run->ranks[i], SIGKILL);
}

void run_end_all(struct run *run, int signal)
{
    for (int i = 0; i < run->options.local_count; i++) {
        if (!run->ranks[i].running)
            continue;
        spawn_kill(&run->ranks[i], signal);
        spawn_kill(&run->ranks[i], SIGCONT); /* a stopped process does not hear anything else */
    }
    if (!run->ending) {
        uv_update_time(&run->loop); /* starting many ranks takes a while, in which the loop's clock stands */
        uv_timer_start(&run->kill_timer, on_grace_over, COMMRUN_GRACE_MS, 0);
    }
    run->ending = 1;
}

static void on_drain_over(uv_timer_t *timer)
{
    struct run *run = timer->data;
    spawn_sweep(run);
    /* No process is left to write, unless one got out of reach. What is in the pipes is read before they close. */
    uv_timer_start(timer, on_drain_over, KILL_DRAIN_MS, 0);
    static int sweeps;
    if (++sweeps > 1)
        for (int i = 0; i < run->options.local_count; i++) {
            output_close(&run->ranks[i].out);
            output_close(&run->ranks[i].err);
        }
}

/* Called whenever a rank or a stream has ended. Ranks first; then what they left in the pipes, which background
 * processes may still be writing (a `tee`, say): they get a moment. */
void run_check_ended(struct run *run)
{
    if (run->running > 0 || run->all_ended)
        return;
    uv_timer_stop(&run->kill_timer);
    uv_timer_stop(&run->waiting_timer);
    if (run->streams_open > 0) {
        if (!uv_is_active((uv_handle_t *)&run->drain_timer))
            uv_timer_start(&run->drain_timer, on_drain_over, run->failed ? KILL_DRAIN_MS : DRAIN_MS, 0);
        return;
    }
    run->all_ended = 1;
    spawn_sweep(run);
    if (run->nodes && run->failed && run->options.keep_going)
        nodes_failed(run);
    if (run->nodes && !run->failed) {
        nodes_succeeded(run);
        return; /* the other hosts' ranks decide with ours */
    }
    uv_stop(&run->loop);
}

/* ---- Ranks that end ---- */

static void describe_end(const struct run *run, const struct rank *rank, char *text, size_t capacity)
{
    char host[65] = "", where[96] = "";
    gethostname(host, sizeof host - 1);
    if (run->nodes)
        snprintf(where, sizeof where, " on node %d (%s)", run->options.node_rank, host);
    int status = rank->wait_status;
    if (WIFSIGNALED(status))
        snprintf(text, capacity, "rank %d%s (pid %d) was killed by signal %d (SIG%s%s)", rank->rank, where, rank->pid,
                 WTERMSIG(status), sigabbrev_np(WTERMSIG(status)) ? sigabbrev_np(WTERMSIG(status)) : "?",
                 WCOREDUMP(status) ? ", core dumped" : "");
    else
        snprintf(text, capacity, "rank %d%s (pid %d) exited with status %d", rank->rank, where, rank->pid,
                 WEXITSTATUS(status));
}

/* "0, 3, 4": this host's ranks that are running, or those that ended well; how many. */
static int list_ranks(const struct run *run, int running, char *text, size_t capacity)
{
    int count = 0;
    size_t used = 0;
    *text = '\0';
    for (int i = 0; i < run->options.local_count; i++) {
        const struct rank *rank = &run->ranks[i];
        if (!rank->pid || rank->running != running || (!running && rank->wait_status != 0))
            continue;
        if (used + 16 < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "%s%d", count ? ", " : "", rank->rank);
        else if (used + 4 < capacity)
            used += (size_t)snprintf(text + used, capacity - used, "...");
        count++;
    }
    return count;
}

/* Does a rank wait for one that has ended? */
static void on_waiting(uv_timer_t *timer)
{
    struct run *run = timer->data;
    if (run->running == 0 || run->ending)
        uv_timer_stop(timer);
    else
        waiting_look(run);
}

static void on_rank_ended(struct run *run, struct rank *rank, int status)
{
    char text[512];
    rank->wait_status = status;
    rank->running = 0;
    run->running--;
    spawn_forget(rank);
    describe_end(run, rank, text, sizeof text);
    if (run->options.verbose)
        run_say("%s", text);
    int others_go_on = run->running > 0 && (run->options.keep_going || (status == 0 && !run->failed));
    if (others_go_on && !uv_is_active((uv_handle_t *)&run->waiting_timer))
        uv_timer_start(&run->waiting_timer, on_waiting, COMMRUN_WAITING_MS, COMMRUN_WAITING_MS);
    int by_signal = WIFSIGNALED(status);
    /* A rank that is killed takes others with it, within the same turn of the loop if the machine is slow: then the one
     * that was killed is the cause. */
    int is_cause = by_signal && WTERMSIG(status) != SIGTERM && run->failed_rank && !run->failed_by_signal &&
                   uv_now(&run->loop) == run->failed_at;
    if (status == 0 || (run->failed && !is_cause))
        return;
    run->failed_rank = rank;
    run->failed_by_signal = by_signal;
    run->failed_at = uv_now(&run->loop);
    /* One that left too early, without an error, is why others fail: say so. */
    char gone[128];
    int count = list_ranks(run, 0, gone, sizeof gone);
    snprintf(run->failure, sizeof run->failure, count ? "%s, after rank%s %s had ended with status 0" : "%s", text,
             count > 1 ? "s" : "", gone);
    begin_failure(run, by_signal ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

/* Everything that ends is reaped here: ranks, and orphans that came to us as the subreaper. */
static void on_child(uv_signal_t *handle, int signal)
{
    struct run *run = handle->data;
    int status;
    pid_t pid;
    (void)signal;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (int i = 0; i < run->options.local_count; i++)
            if (run->ranks[i].running && run->ranks[i].pid == pid)
                on_rank_ended(run, &run->ranks[i], status);
        if (pid == run->guard_pid)
            run->guard_pid = 0;
    }
    run_check_ended(run);
}

/* ---- Signals and timers ---- */

static const char *signal_name(int signal)
{
    const char *name = sigabbrev_np(signal);
    return name ? name : "?";
}

/* The first one asks the ranks to end, in its own words; the second one does not ask. */
static void on_end_signal(uv_signal_t *handle, int signal)
{
    struct run *run = handle->data;
    if (run->ending || (run->failed && !run->options.keep_going)) {
        for (int i = 0; i < run->options.local_count; i++)
            if (run->ranks[i].running)
                spawn_kill(&run->ranks[i], SIGKILL);
        if (run->running == 0)
            uv_stop(&run->loop);
        return;
    }
    snprintf(run->failure, sizeof run->failure, "ended by SIG%s", signal_name(signal));
    run->failed_rank = NULL;
    run->failed = 1;
    run->options.keep_going = 0;
    run->exit_status = 128 + signal;
    run_end_all(run, signal);
    if (run->nodes)
        nodes_failed(run);
    if (run->running == 0) {
        run->all_ended = 1;
        uv_stop(&run->loop);
    }
}

static void on_forward_signal(uv_signal_t *handle, int signal)
{
    struct run *run = handle->data;
    for (int i = 0; i < run->options.local_count; i++)
        if (run->ranks[i].running)
            spawn_kill(&run->ranks[i], signal);
}

/* Ctrl-Z: the ranks are in groups of their own, so the terminal does not stop them for us. */
static void on_stop_signal(uv_signal_t *handle, int signal)
{
    on_forward_signal(handle, signal);
    raise(SIGSTOP);
}

static void on_continue_signal(uv_signal_t *handle, int signal)
{
    struct run *run = handle->data;
    on_forward_signal(handle, signal);
    output_stdin_start(run);
}

static void on_timeout(uv_timer_t *timer)
{
    struct run *run = timer->data;
    char late[128];
    int count = list_ranks(run, 1, late, sizeof late);
    run_fail(run, COMMRUN_EXIT_TIMEOUT, "rank%s %s did not end within --timeout %g s", count == 1 ? "" : "s", late,
             run->options.timeout_s);
}

static void on_remote(uv_async_t *handle)
{
    struct run *run = handle->data;
    if (!nodes_outcome(run))
        return;
    if (run->running > 0)
        run_end_all(run, SIGTERM);
    else
        uv_stop(&run->loop);
}

static void loop_start(struct run *run)
{
    static const struct {
        int signal;
        uv_signal_cb callback;
    } table[] = {
        { SIGCHLD, on_child },           { SIGINT, on_end_signal },       { SIGTERM, on_end_signal },
        { SIGHUP, on_end_signal },       { SIGQUIT, on_end_signal },      { SIGUSR1, on_forward_signal },
        { SIGUSR2, on_forward_signal },  { SIGWINCH, on_forward_signal }, { SIGTSTP, on_stop_signal },
        { SIGCONT, on_continue_signal },
    };
    uv_loop_init(&run->loop);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uv_signal_init(&run->loop, &run->signals[i]);
        run->signals[i].data = run;
        uv_signal_start(&run->signals[i], table[i].callback, table[i].signal);
    }
    uv_timer_t *timers[] = { &run->kill_timer, &run->timeout_timer, &run->drain_timer, &run->waiting_timer };
    for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
        uv_timer_init(&run->loop, timers[i]);
        timers[i]->data = run;
    }
    uv_async_init(&run->loop, &run->remote, on_remote);
    run->remote.data = run;
}

/* ---- The meeting point ---- */

static void make_name(char *text, size_t bytes)
{
    unsigned char random[64];
    if (getrandom(random, bytes / 2, 0) != (ssize_t)(bytes / 2))
        abort();
    for (size_t i = 0; i < bytes / 2; i++)
        snprintf(text + 2 * i, 3, "%02x", random[i]);
}

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The file's only word, whole: a part of a secret would be a weak one. */
static int read_secret(struct run *run)
{
    const char *path = run->options.secret_file;
    char text[SECRET_READ_BYTES];
    FILE *file = fopen(path, "re");
    size_t bytes = file ? fread(text, 1, sizeof text, file) : 0, begin = 0, end;
    int error = !file || ferror(file) ? errno : 0;
    if (file)
        fclose(file);
    while (bytes > begin && is_blank(text[bytes - 1]))
        bytes--;
    while (begin < bytes && is_blank(text[begin]))
        begin++;
    for (end = begin; end < bytes && (unsigned char)text[end] > ' ' && text[end] != 127;)
        end++;
    if (!error && end > begin && end == bytes && end - begin < sizeof run->secret) {
        snprintf(run->secret, sizeof run->secret, "%.*s", (int)(end - begin), text + begin);
        return 0;
    }
    run_fail(run, 1, "reading the secret from '%s': %s", path,
             error            ? strerror(error)
             : begin == bytes ? "it is empty"
             : end < bytes    ? "it is not one word: it holds a blank or a control character. Make one of random bytes "
                                "by: od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n'"
                              : "it is longer than 128 bytes");
    return -1;
}

/* From a file, else from the environment, else random for this run (several hosts: node 0's; see nodes_join). */
static int choose_secret(struct run *run)
{
    const char *given = getenv("COMM_SECRET");
    if (run->options.secret_file) {
        if (read_secret(run) != 0)
            return -1;
    } else if (given && *given) {
        if (strlen(given) >= sizeof run->secret) {
            run_fail(run, 1, "COMM_SECRET has %zu bytes; at most %zu", strlen(given), sizeof run->secret - 1);
            return -1;
        }
        snprintf(run->secret, sizeof run->secret, "%s", given);
    } else if (run->options.node_rank == 0) {
        make_name(run->secret, 64);
    }
    run->secret_is_given = run->options.secret_file || (given && *given);
    if (run->options.verbose)
        run_say("the secret is %s", run->options.secret_file ? "the file's"
                                    : given && *given        ? "COMM_SECRET's"
                                    : run->options.node_count > 1
                                        ? "made by node 0 and handed out by its store to any process that can connect; "
                                          "--secret-file keeps it off the network"
                                        : "random");
    return 0;
}

static int open_store(struct run *run)
{
    char url[300] = "tcp://127.0.0.1:0";
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.serve = run->options.node_rank == 0;
    if (run->options.rendezvous)
        snprintf(url, sizeof url, "tcp://%s", run->options.rendezvous);
    if (comm_store_open(url, &options, &run->store) != COMM_OK) {
        run_fail(run, 1, "%s the store at %s: %s", options.serve ? "serving" : "reaching node 0 by", url,
                 comm_last_error());
        return -1;
    }
    snprintf(run->master_addr, sizeof run->master_addr, "%s", comm_store_host(run->store));
    run->master_port = comm_store_port(run->store);
    if (run->options.verbose)
        run_say("the store is at %s:%d", run->master_addr, run->master_port);
    return 0;
}

/* ---- The run ---- */

static int start_ranks(struct run *run)
{
    for (int i = 0; i < run->options.local_count; i++) {
        struct rank *rank = &run->ranks[i];
        rank->run = run;
        rank->local_rank = i;
        rank->rank = run->first_rank + i;
        if (output_open(rank) != 0 || spawn_rank(run, rank) != 0)
            return -1;
        if (run->options.verbose)
            run_say("rank %d is pid %d", rank->rank, rank->pid);
    }
    output_stdin_start(run);
    return 0;
}

static void report(struct run *run)
{
    char words[COMMRUN_TEXT_BYTES] = "";
    if (run->failed_rank)
        output_last_words(run->failed_rank, words, sizeof words);
    run_say("%s%s%s", run->failure, words[0] ? "; its last words on stderr:" : "", words);
}

static int run_all(struct run *run)
{
    make_name(run->job, 32);
    run->stdin_rank_fd = -1;
    run->world_size = run->options.local_count;
    run->ranks = calloc((size_t)run->options.local_count, sizeof *run->ranks);
    if (!run->ranks)
        abort();
    /* The guard is forked first, while this process still has one thread. */
    int started = spawn_find_program(run) == 0 && spawn_room(run) == 0 && spawn_guard(run) == 0;
    early_start(run);
    started = started && choose_secret(run) == 0 && open_store(run) == 0 &&
              (run->options.node_count == 1 || nodes_join(run) == 0);
    loop_start(run);
    uint64_t left_ms = early_end(run);
    if (left_ms > 0)
        uv_timer_start(&run->timeout_timer, on_timeout, left_ms, 0);
    if (started)
        started = start_ranks(run) == 0 && (!run->nodes || nodes_watch(run) == 0);
    if (run->running > 0 || run->streams_open > 0)
        uv_run(&run->loop, UV_RUN_DEFAULT);
    if (run->nodes)
        nodes_leave(run);
    if (run->guard_pid > 0) {
        spawn_sweep(run);
        spawn_guard_done(run);
    }
    if (run->failed)
        report(run);
    for (int i = 0; i < run->options.local_count; i++)
        output_finish(&run->ranks[i]);
    free(run->ranks);
    comm_store_close(run->store);
    return run->failed ? run->exit_status : 0;
}

/* ---- The command line ---- */

enum {
    OPT_NNODES = 256,
    OPT_NODE_RANK,
    OPT_RENDEZVOUS,
    OPT_SECRET_FILE,
    OPT_NO_PREFIX,
    OPT_NO_COLOR,
    OPT_LOG_DIR,
    OPT_BIND,
    OPT_ENV,
    OPT_TIMEOUT,
    OPT_KEEP_GOING,
};

static const struct argp_option argp_options[] = {
    { "ranks", 'n', "N", 0, "how many ranks to start on this host", 1 },
    { "nnodes", OPT_NNODES, "N", 0, "how many hosts take part, each with its own commrun (default 1)", 2 },
    { "node-rank", OPT_NODE_RANK, "K", 0, "which of them this is, from 0", 2 },
    { "rendezvous", OPT_RENDEZVOUS, "HOST:PORT", 0, "where node 0 serves and the others find it", 2 },
    { "secret-file", OPT_SECRET_FILE, "FILE", 0,
      "the job's secret, the same on all hosts (default: COMM_SECRET, else random, handed out by node 0's store)", 2 },
    { "no-prefix", OPT_NO_PREFIX, NULL, 0, "do not put [rank] before lines", 3 },
    { "no-color", OPT_NO_COLOR, NULL, 0, "no colours on a terminal (NO_COLOR does the same)", 3 },
    { "log-dir", OPT_LOG_DIR, "DIR", 0, "also write what each rank says to DIR/rank-R.log", 3 },
    { "bind", OPT_BIND, "auto|none|core", 0,
      "core: divide the cores among the ranks, or deal out the ranks to the cores; auto: only if that gives each core "
      "the same number of ranks, two or more (default); none", 4 },
    { "env", OPT_ENV, "NAME=VALUE", 0, "set a variable for the ranks; may be repeated", 4 },
    { "timeout", OPT_TIMEOUT, "SECONDS", 0, "end the run SECONDS after the start of commrun, with exit status 124", 4 },
    { "keep-going", OPT_KEEP_GOING, NULL, 0, "when a rank fails, let the others go on", 4 },
    { "verbose", 'v', NULL, 0, "say what is started and how it ends", 5 },
    { 0 },
};

static int number(struct argp_state *state, const char *name, const char *text, long least, long most)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        argp_error(state, "%s takes a number from %ld to %ld, not '%s'", name, least, most, text);
    return (int)value;
}

static void check_options(struct options *o, struct argp_state *state)
{
    if (!o->program)
        argp_error(state, "no program is given: commrun -n 4 program arguments...");
    if (o->local_count == 0)
        argp_error(state, "the number of ranks is missing: commrun -n 4 %s", o->program ? o->program[0] : "program");
    if (o->node_count > 1 && !o->rendezvous)
        argp_error(state, "--nnodes needs --rendezvous HOST:PORT, where node 0 can be reached");
    if (o->node_rank >= o->node_count)
        argp_error(state, "--node-rank %d, but --nnodes is %d: nodes count from 0", o->node_rank, o->node_count);
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *o = state->input;
    char *end;
    switch (key) {
    case 'n':
        o->local_count = number(state, "-n", text, 1, RANKS_MAX);
        break;
    case 'v':
        o->verbose = 1;
        break;
    case OPT_NNODES:
        o->node_count = number(state, "--nnodes", text, 1, RANKS_MAX);
        break;
    case OPT_NODE_RANK:
        o->node_rank = number(state, "--node-rank", text, 0, RANKS_MAX);
        break;
    case OPT_RENDEZVOUS:
        o->rendezvous = text;
        break;
    case OPT_SECRET_FILE:
        o->secret_file = text;
        break;
    case OPT_NO_PREFIX:
        o->no_prefix = 1;
        break;
    case OPT_NO_COLOR:
        o->no_color = 1;
        break;
    case OPT_LOG_DIR:
        o->log_dir = text;
        break;
    case OPT_KEEP_GOING:
        o->keep_going = 1;
        break;
    case OPT_BIND:
        if (strcmp(text, "auto") != 0 && strcmp(text, "none") != 0 && strcmp(text, "core") != 0)
            argp_error(state, "--bind takes auto, none or core, not '%s'", text);
        o->bind = strcmp(text, "core") == 0 ? BIND_CORE : strcmp(text, "none") == 0 ? BIND_NONE : BIND_AUTO;
        break;
    case OPT_ENV:
        if (*text == '=' || !strchr(text, '='))
            argp_error(state, "--env takes NAME=VALUE, not '%s'", text);
        o->extra = realloc(o->extra, (o->extra_count + 1) * sizeof *o->extra);
        if (!o->extra)
            abort();
        o->extra[o->extra_count++] = text;
        break;
    case OPT_TIMEOUT:
        o->timeout_s = strtod(text, &end);
        if (*end || end == text || !(o->timeout_s > 0 && o->timeout_s < 1e9))
            argp_error(state, "--timeout takes seconds, not '%s'", text);
        break;
    case ARGP_KEY_ARG: /* the program; whatever follows is the program's */
        o->program = &state->argv[state->next - 1];
        state->next = state->argc;
        break;
    case ARGP_KEY_END:
        check_options(o, state);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {
    argp_options,
    parse_option,
    "[--] PROGRAM [ARGUMENTS...]",
    "Start PROGRAM as the ranks of a libcomm world. It finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
    "MASTER_ADDR, "
    "MASTER_PORT and COMM_SECRET in its environment, which comm_init (and PyTorch) read."
    "\vWhen a rank fails, the others get SIGTERM and, 5 seconds later, SIGKILL; commrun exits with the failed rank's "
    "status, "
    "or 128 + the number of the signal that killed it. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the ranks (twice: at "
    "once), and before there are ranks commrun itself; SIGUSR1 and SIGUSR2 are passed on. Rank 0 gets stdin.",
    NULL,
    NULL,
    NULL,
};

int main(int argc, char **argv)
{
    static struct run run;
    int fd;
    /* Descriptors 0 to 2 must be taken, or pipes would get their numbers. */
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= 2)
        ;
    if (fd > 2)
        close(fd);
    run.options.node_count = 1;
    argp_err_exit_status = EXIT_USAGE;
    argp_program_version = comm_version();
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &run.options);
    return run_all(&run);
}
