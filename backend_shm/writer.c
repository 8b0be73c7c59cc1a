#include "writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* "": it cannot be read. */
static void read_file(const char *name, char *text, size_t capacity)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, capacity - 1);
    int error = errno;
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    errno = n < 0 ? error : 0;
}

int writer_is_seen(pid_t pid)
{
    char name[32], self[16] = "";
    ssize_t n = readlink("/proc/self", self, sizeof self - 1);
    snprintf(name, sizeof name, "/proc/%d/task", (int)pid);
    return n > 0 && strtol(self, NULL, 10) == (long)getpid() && access(name, R_OK | X_OK) == 0;
}

/* Of its state in /proc, 'R' for instance; 0: there is no such thread, -1: that is not known. */
static int state_of(const char *name)
{
    char text[256];
    read_file(name, text, sizeof text);
    if (errno == ENOENT || errno == ESRCH)
        return 0;
    const char *state = strrchr(text, ')');
    return state && state[1] ? state[2] : -1;
}

int writer_threads(pid_t pid, pid_t *threads, int space)
{
    char name[32];
    snprintf(name, sizeof name, "/proc/%d/task", (int)pid);
    DIR *folder = pid > 0 ? opendir(name) : NULL;
    int count = 0;
    if (!folder)
        return -1;
    for (struct dirent *entry; count < space && (entry = readdir(folder));) {
        long thread = strtol(entry->d_name, NULL, 10);
        if (thread > 0)
            threads[count++] = (pid_t)thread;
    }
    closedir(folder);
    return count;
}

int writer_has_ended(pid_t pid)
{
    char name[64];
    pid_t threads[2];
    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    int state = pid > 0 ? state_of(name) : -1;
    return state == 0 || state == 'X' || state == 'x' || (state == 'Z' && writer_threads(pid, threads, 2) == 1);
}

int writer_is_out(pid_t pid, int thread)
{
    char name[64], text[256];
    snprintf(name, sizeof name, "/proc/%d/task/%d/stat", (int)pid, thread);
    int state = state_of(name);
    if (state == 0 || (state > 0 && strchr("TtZXx", state)))
        return 1;
    snprintf(name, sizeof name, "/proc/%d/task/%d/syscall", (int)pid, thread);
    read_file(name, text, sizeof text);
    char *end = text;
    long call = strtol(text, &end, 10);
    return end != text && call != SYS_process_vm_writev;
}
