/* commrun's parts. One thread, the loop's, owns everything here; commrun_nodes.c has threads of its own and says so.
 *
 *   commrun.c           the command line, and the life of a run: start, wait, end all, report
 *   commrun_early.c     signals and the time limit before there are ranks
 *   commrun_spawn.c     one rank: environment, processor binding, fork, exec; and making sure that no process stays
 *                       behind
 *   commrun_output.c    lines with prefixes, log files, last words
 *   commrun_waiting.c   ranks that wait in comm_init for one that has ended
 *   commrun_nodes.c     several hosts: which ranks each has, and failures known everywhere */
#ifndef COMM_TOOLS_COMMRUN_H
#define COMM_TOOLS_COMMRUN_H

#include <comm/store.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <uv.h>

enum {
    COMMRUN_LINE_BYTES = 1 << 20, /* a longer line is shown in pieces of this size */
    COMMRUN_LAST_LINES = 10,      /* of a failed rank's stderr, shown once more at the end */
    COMMRUN_LAST_BYTES = 4096,
    COMMRUN_GRACE_MS = 5000, /* from SIGTERM to SIGKILL */
    COMMRUN_WAITING_MS = 1000, /* between looks whether a rank waits for one that has ended */
    COMMRUN_STORE_MS = 3000, /* for node 0 to answer, while there are ranks: the loop may stand so long */
    COMMRUN_TEXT_BYTES = 8192,
    COMMRUN_EXIT_TIMEOUT = 124,
};

enum bind { BIND_AUTO, BIND_NONE, BIND_CORE };

struct options {
    int local_count; /* -n */
    int node_count, node_rank;
    const char *rendezvous; /* HOST:PORT of node 0 */
    const char *secret_file, *log_dir;
    char **extra; /* --env K=V */
    size_t extra_count;
    enum bind bind;
    double timeout_s; /* 0: none */
    int no_prefix, no_color, keep_going, verbose;
    char **program; /* NULL-terminated */
};

struct run;

/* What a rank writes to stdout or stderr. */
struct stream {
    uv_pipe_t pipe;
    struct rank *rank;
    int fd; /* where it goes: 1 or 2 */
    int open;
    char *line; /* the line that is not whole yet */
    size_t bytes, capacity;
};

struct rank {
    struct run *run;
    int rank, local_rank;
    pid_t pid; /* also its process group; 0: not started */
    int running;
    int wait_status; /* of waitpid, once it has ended */
    struct stream out, err;
    char *last[COMMRUN_LAST_LINES]; /* a ring of stderr lines; the next goes to last_next */
    size_t last_next;
    FILE *log;
};

struct run {
    struct options options;
    uv_loop_t loop;
    struct rank *ranks; /* options.local_count of them */
    int running, streams_open;
    int first_rank, world_size;
    comm_store *store;
    char master_addr[256], secret[129], job[33];
    int secret_is_given; /* by a file or COMM_SECRET: node 0 does not hand it out */
    int32_t master_port;
    struct nodes *nodes; /* NULL on one host */

    int ending; /* SIGTERM has been sent */
    int failed; /* the first failure is recorded: exit_status, failure, and the rank, if it was one */
    struct rank *failed_rank;
    uint64_t failed_at; /* uv_now */
    int failed_by_signal;
    int exit_status;
    char failure[COMMRUN_TEXT_BYTES];
    int all_ended; /* this host's ranks have ended, and their output is out */

    uv_signal_t signals[10];
    uv_timer_t kill_timer, timeout_timer, drain_timer, waiting_timer;
    uv_poll_t stdin_poll;
    uv_async_t remote; /* the other hosts have an outcome */
    int stdin_rank_fd, stdin_polled;
    struct rlimit files; /* the limit of descriptors that the ranks inherit; ours is higher */
    int guard_fd;
    pid_t guard_pid;
    const char *program_path;
};

/* commrun.c */
void run_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void run_fail(struct run *run, int exit_status, const char *format, ...) __attribute__((format(printf, 3, 4)));
void run_end_all(struct run *run, int signal);
void run_check_ended(struct run *run);

/* commrun_early.c. From early_start to early_end a signal or the time limit ends this process at once. */
void early_start(struct run *run);
uint64_t early_end(const struct run *run); /* gives the rest of --timeout in ms, 0 without one */

/* commrun_spawn.c. Each returns 0, or -1 after run_fail. */
int spawn_find_program(struct run *run);
int spawn_room(struct run *run);  /* are there enough descriptors for all ranks? */
int spawn_guard(struct run *run); /* before anything else is started */
int spawn_rank(struct run *run, struct rank *rank);
void spawn_kill(struct rank *rank, int signal); /* a rank that runs: the number of another one may be in use again */
void spawn_forget(const struct rank *rank);     /* it has ended, and the guard must not kill its group any more */
void spawn_sweep(struct run *run); /* kill what is left of the ranks' descendants, and wait for it */
void spawn_guard_done(struct run *run);

/* commrun_output.c */
int output_open(struct rank *rank);
void output_read(struct stream *stream, int fd);
void output_close(struct stream *stream);
void output_finish(struct rank *rank);
void output_last_words(const struct rank *rank, char *text, size_t capacity);
void output_stdin_start(struct run *run);

/* commrun_waiting.c */
void waiting_look(struct run *run);

/* commrun_nodes.c */
int nodes_join(struct run *run);       /* sets first_rank and world_size; waits for the others */
int nodes_watch(struct run *run);      /* from now on run->remote fires when there is an outcome */
void nodes_failed(struct run *run);    /* tell the others of run->failure */
void nodes_succeeded(struct run *run); /* this host's ranks have all ended well */
int nodes_outcome(struct run *run);    /* take the outcome over; 1 if there is one */
void nodes_leave(struct run *run);

#endif
