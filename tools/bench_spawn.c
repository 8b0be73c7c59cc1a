/* -n: the ranks of this run are forks of this process, and meet in a store that it serves. The listening socket is made
 * before the forks, so its port is known to all; the server is started after them, so that no child inherits a thread's
 * state. A child dies with its parent, and the parent ends the others when one fails. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

int32_t bench_core_count(void)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

void bench_bind(int32_t index)
{
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0)
        return; /* unbound is slower, not wrong */
    int32_t skip = index % CPU_COUNT(&allowed);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || skip-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        sched_setaffinity(0, sizeof one, &one);
        return;
    }
}

static int listen_on_loopback(int *ret_port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, 1024) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &length) == 0) {
        *ret_port = ntohs(address.sin_port);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static void make_secret(char secret[33])
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        memset(bytes, 0, sizeof bytes); /* never on Linux for so few bytes */
    for (int i = 0; i < 16; i++)
        snprintf(secret + 2 * i, 3, "%02x", bytes[i]);
}

/* Wait for all; the first failure ends the rest. Returns the first failing rank's exit status, 0 if there is none. */
static int wait_for_all(pid_t *pids, int32_t ranks)
{
    int result = 0;
    for (int32_t left = ranks; left > 0; left--) {
        int state;
        pid_t pid;
        do
            pid = waitpid(-1, &state, 0);
        while (pid < 0 && errno == EINTR);
        int32_t rank = 0;
        while (rank < ranks && pids[rank] != pid)
            rank++;
        if (pid < 0 || rank == ranks)
            break;
        pids[rank] = 0;
        if (state == 0 || result != 0)
            continue;
        result = WIFEXITED(state) ? WEXITSTATUS(state) : 1;
        if (WIFSIGNALED(state))
            fprintf(stderr, "comm-bench: rank %d was ended by signal %d (%s)\n", rank, WTERMSIG(state),
                    strsignal(WTERMSIG(state)));
        /* Wrong results are known to all ranks, which end by themselves; after any other failure the others are
         * ended. */
        for (int32_t r = 0; r < ranks && (WIFSIGNALED(state) || result != 1); r++)
            if (pids[r])
                kill(pids[r], SIGTERM);
    }
    return result;
}

static int start_ranks(struct bench_spawned *self, int listen_fd, int bind_cores, pid_t *pids,
                       int (*fn)(const struct bench_spawned *self, void *context), void *context)
{
    pid_t parent = getpid();
    for (int32_t rank = 0; rank < self->ranks; rank++) {
        pids[rank] = fork();
        if (pids[rank] < 0)
            return -1;
        if (pids[rank] > 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1); /* it died before prctl */
        close(listen_fd);
        self->rank = rank;
        if (bind_cores)
            bench_bind(rank);
        int result = fn(self, context);
        fflush(NULL);
        _exit(result);
    }
    return 0;
}

/* Serve the store at the listener, which is the store's then. */
static comm_store *serve_store(int port, int *listen_fd)
{
    comm_store *store;
    char url[64];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    options.serve = 1;
    options.listen_fd_plus_one = *listen_fd + 1;
    if (comm_store_open(url, &options, &store) != COMM_OK) {
        fprintf(stderr, "comm-bench: %s\n", comm_last_error());
        return NULL;
    }
    *listen_fd = -1;
    return store;
}

int bench_spawn(int32_t ranks, int bind_cores, int (*fn)(const struct bench_spawned *self, void *context),
                void *context)
{
    struct bench_spawned self = { .ranks = ranks };
    comm_store *store = NULL;
    pid_t *pids = calloc((size_t)ranks, sizeof *pids);
    int listen_fd = listen_on_loopback(&self.port), result = 1;
    if (!pids || listen_fd < 0) {
        fprintf(stderr, "comm-bench: cannot listen on 127.0.0.1: %s\n", strerror(errno));
    } else {
        make_secret(self.secret);
        fflush(NULL); /* or each child would print what is buffered once more */
        if (start_ranks(&self, listen_fd, bind_cores, pids, fn, context) != 0)
            fprintf(stderr, "comm-bench: cannot start %d processes: %s\n", ranks, strerror(errno));
        else if ((store = serve_store(self.port, &listen_fd)))
            result = wait_for_all(pids, ranks);
    }
    for (int32_t r = 0; pids && r < ranks; r++)
        if (pids[r] > 0)
            kill(pids[r], SIGKILL);
    while (waitpid(-1, NULL, 0) > 0)
        ;
    comm_store_close(store);
    if (listen_fd >= 0)
        close(listen_fd);
    free(pids);
    return result;
}
