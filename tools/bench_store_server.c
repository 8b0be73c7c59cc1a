/* The servers under load, each in a process of its own, as in a real job. A server prints "PORT VERSION" to a pipe when
 * it listens, and ends when its stdin closes: so it cannot outlive us, whatever happens here. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_store.h"

/* wait_for_workers False: no client of its own in the way. */
static const char pytorch_server[] =
    "import sys, datetime\n"
    "import torch, torch.distributed as dist\n"
    "store = dist.TCPStore('127.0.0.1', 0, 1, True, datetime.timedelta(seconds=300), wait_for_workers=False)\n"
    "print(store.port, torch.__version__, flush=True)\n"
    "sys.stdin.read()\n";

static int serve_ours(void)
{
    comm_store *store;
    comm_store_options options = COMM_STORE_OPTIONS_INIT;
    char byte;
    options.serve = 1;
    if (comm_store_open("tcp://127.0.0.1:0", &options, &store) != COMM_OK) {
        fprintf(stderr, "comm-bench: %s\n", comm_last_error());
        return 1;
    }
    printf("%d %s\n", comm_store_port(store), comm_version());
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0 || errno == EINTR)
        ;
    comm_store_close(store);
    return 0;
}

/* The servers get one core, the clients the others: whether the scheduler puts the two sides together or apart matters
 * more than which server it is, and it changes its mind. */
static void place(int is_server)
{
    cpu_set_t allowed, mine;
    int last = -1;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed))
            last = cpu;
    CPU_ZERO(&mine);
    if (is_server) {
        CPU_SET(last, &mine);
    } else {
        mine = allowed;
        CPU_CLR(last, &mine);
    }
    sched_setaffinity(0, sizeof mine, &mine);
}

void bench_server_leave_room(void)
{
    place(0);
}

static void run_child(int input, int output, const char *python)
{
    struct rlimit limit;
    place(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) { /* ours does so by itself; a comparison should not hang on it */
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    if (dup2(input, STDIN_FILENO) < 0 || dup2(output, STDOUT_FILENO) < 0)
        _exit(1);
    if (python) {
        execl(python, python, "-c", pytorch_server, (char *)NULL);
        fprintf(stderr, "%s: %s\n", python, strerror(errno));
        _exit(1);
    }
    int result = serve_ours();
    fflush(NULL);
    _exit(result);
}

/* PyTorch before 2.2 knows only the old dialect. */
static int version_is_old(const char *version)
{
    int major = 0, minor = 0;
    return sscanf(version, "%d.%d", &major, &minor) == 2 && (major < 2 || (major == 2 && minor < 2));
}

int bench_server_start(struct bench_server *server, const char *python, char *error, size_t capacity)
{
    int in[2], out[2];
    *server = (struct bench_server){ .name = python ? "pytorch" : "libcomm", .lifeline = -1 };
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
        snprintf(error, capacity, "pipe: %s", strerror(errno));
        return -1;
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(in[1]); /* ours does not exec: its end of its own lifeline must not keep it alive */
        run_child(in[0], out[1], python);
    }
    close(in[0]);
    close(out[1]);
    server->pid = pid > 0 ? pid : 0;
    server->lifeline = in[1];
    char line[128] = "", version[64] = "";
    FILE *answer = fdopen(out[0], "r");
    int said = pid > 0 && answer && fgets(line, sizeof line, answer) &&
               sscanf(line, "%d %63s", &server->port, version) == 2;
    if (answer)
        fclose(answer);
    server->is_old = python && version_is_old(version);
    if (said)
        return 0;
    bench_server_stop(server);
    snprintf(error, capacity, "%s's server did not start%s", python ? "PyTorch" : "libcomm",
             python ? " (Debian: apt-get install python3-torch)" : "");
    return -1;
}

double bench_server_cpu_us(const struct bench_server *server)
{
    char path[300];
    double ns = 0;
    snprintf(path, sizeof path, "/proc/%d/task", server->pid);
    DIR *tasks = opendir(path);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        double of_thread = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", server->pid, entry->d_name);
        FILE *file = fopen(path, "re");
        if (file && fscanf(file, "%lf", &of_thread) == 1)
            ns += of_thread;
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return ns * 1e-3;
}

void bench_server_stop(struct bench_server *server)
{
    if (server->lifeline >= 0)
        close(server->lifeline);
    if (server->pid)
        waitpid(server->pid, NULL, 0);
    server->lifeline = -1;
    server->pid = 0;
}
