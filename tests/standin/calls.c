#include "calls.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct cuda_calls cu;
struct nccl_calls nc;
void (*stop_here)(const char *what);

static void *library(const char *path)
{
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return found;
}

static void symbol(void *from, const char *name, void *pointer)
{
    void *found = dlsym(from, name);
    memcpy(pointer, &found, sizeof found);
}

void calls_open(const char *cudart, const char *nccl_path)
{
    void *cuda_library = library(cudart), *nccl_library = nccl_path ? library(nccl_path) : NULL;
#define CALL(result, name, arguments) symbol(cuda_library, "cuda" #name, &cu.name);
#include "cuda.def"
#include "cuda_more.def"
#undef CALL
    symbol(cuda_library, "standin_stop", &stop_here);
    if (!nccl_library)
        return;
#define CALL(since, result, name, arguments) symbol(nccl_library, "nccl" #name, &nc.name);
#include "nccl.def"
#include "nccl_more.def"
#undef CALL
}

void check_status(unsigned int wanted, unsigned int status, const char *call, const char *file, int line)
{
    if (wanted == status)
        return;
    fprintf(stderr, "%s:%d: %s: %u, not %u (%s)\n", file, line, call, status, wanted,
            nc.GetLastError ? nc.GetLastError(NULL) : "");
    exit(1);
}

/* The parent makes the ids, but opens no streams: its threads would not be there in the children. */
int ranks_run(int count, void (*run)(int rank, int count, const nccl_id *ids))
{
    nccl_id ids[IDS];
    for (int i = 0; i < IDS && nc.GetUniqueId; i++)
        OK(nc.GetUniqueId(&ids[i]));
    pid_t children[16];
    for (int rank = 0; rank < count; rank++) {
        children[rank] = fork();
        if (!children[rank]) {
            run(rank, count, ids);
            exit(0);
        }
    }
    int bad = 0;
    for (int ended = 0; ended < count; ended++) {
        int status;
        pid_t child = waitpid(-1, &status, 0);
        bool is_first = status && !bad;
        for (int rank = 0; rank < count; rank++) {
            if (is_first && children[rank] == child)
                fprintf(stderr, "rank %d of %d ended with status %#x\n", rank, count, (unsigned int)status);
            if (children[rank] == child)
                children[rank] = 0;
            else if (is_first && children[rank])
                kill(children[rank], SIGKILL); /* it might wait for the one that is gone */
        }
        bad += status != 0;
    }
    return bad;
}
