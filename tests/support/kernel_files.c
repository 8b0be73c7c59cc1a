#include "kernel_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char folder[128];

static void exit_with(const char *what)
{
    perror(what);
    exit(1);
}

const char *kernel_files_make(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.100s/comm-kernel-files-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder))
        exit_with(folder);
    return folder;
}

void kernel_files_write(const char *name, const char *text)
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0)
        exit_with(path);
}

int kernel_files_remove(void)
{
    char command[160];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}
