/* The stand-in libraries as test programs use them: opened at run time, "cu." and "nc." before the names of the
 * calls. */
#ifndef STANDIN_CALLS_H
#define STANDIN_CALLS_H

#include "standin.h"

struct cuda_calls {
#define CALL(result, name, arguments) result(*name) arguments;
#include "cuda.def"
#include "cuda_more.def"
#undef CALL
};

struct nccl_calls {
#define CALL(since, result, name, arguments) result(*name) arguments;
#include "nccl.def"
#include "nccl_more.def"
#undef CALL
};

extern struct cuda_calls cu;
extern struct nccl_calls nc;
extern void (*stop_here)(const char *what); /* standin_stop */

/* Open the libraries of these paths, or end the process. Calls that are not there are NULL. */
void calls_open(const char *cudart, const char *nccl_path);

/* End the process with 1, and say where, unless the status is the one that is expected. */
#define CHECK(wanted, call) check_status(wanted, call, #call, __FILE__, __LINE__)
#define OK(call) CHECK(0, call)
void check_status(unsigned int wanted, unsigned int status, const char *call, const char *file, int line);
#define TRUE(condition) check_status(1, !!(condition), #condition, __FILE__, __LINE__)

/* Run `count` ranks as processes, which share unique ids, and wait for them. Returns how many did not end with 0. */
int ranks_run(int count, void (*run)(int rank, int count, const nccl_id *ids));
enum { IDS = 8 };

#endif
