/* Runs a program as one rank. */
#ifndef COMM_TESTS_DIFFERENTIAL_EXECUTE_H
#define COMM_TESTS_DIFFERENTIAL_EXECUTE_H

#include "program.h"

struct execution {
    const struct program *program;
    int first_step, last_step; /* --only-steps */
    const char *again;         /* the command line's part that runs this program again */
    /* For backends that cannot do everything. What is refused, by all ranks alike, is left out, and so are steps that
     * `takes` says no to, because one side of a message cannot know that the other's is refused. */
    bool may_refuse;
    bool (*takes)(const struct step *step);
};

/* For ranks_run; arg is a struct execution. */
void execute(int rank, int size, void *arg);

#endif
