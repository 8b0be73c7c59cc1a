/* What the kernel says of the machine, a line in a file. */
#ifndef COMM_EXEC_SETTING_H
#define COMM_EXEC_SETTING_H

#include <stdio.h>

/* 0: there is no such file. */
static inline int setting_read(const char *path, char *line, int capacity)
{
    FILE *f = fopen(path, "re");
    int done = f && fgets(line, capacity, f);
    if (f)
        fclose(f);
    return done;
}

#endif
