/* nccl_api.h: the part of NCCL that the backend calls, opened when the program runs; NCCL 2.18 to 2.32.
 *
 * As in cuda_api.h, the declarations are our own, and tests/nccl/headers.c compares them with NCCL's headers. Calls
 * that came later than 2.18 are NULL where the library has none. */
#ifndef NCCL_NCCL_API_H
#define NCCL_NCCL_API_H

#include <limits.h>

#include "cuda_api.h"

typedef unsigned int nccl_status; /* ncclResult_t */
typedef struct ncclComm *nccl_comm;
typedef struct ncclWindow_vidmem *nccl_window;
typedef struct nccl_id {
    char bytes[128];
} nccl_id; /* ncclUniqueId */

enum {
    NCCL_OK = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
    NCCL_TIMEOUT = 8, /* since 2.30.3 */
};

typedef unsigned int nccl_type; /* ncclDataType_t */
enum {
    NCCL_I8 = 0,
    NCCL_U8 = 1,
    NCCL_I32 = 2,
    NCCL_U32 = 3,
    NCCL_I64 = 4,
    NCCL_U64 = 5,
    NCCL_F16 = 6,
    NCCL_F32 = 7,
    NCCL_F64 = 8,
    NCCL_BF16 = 9,
    NCCL_F8E4M3 = 10, /* since 2.24 */
    NCCL_F8E5M2 = 11,
    NCCL_NO_TYPE = 99,
};

typedef unsigned int nccl_redop; /* ncclRedOp_t */
enum { NCCL_SUM = 0, NCCL_PRODUCT = 1, NCCL_MAX = 2, NCCL_MIN = 3, NCCL_AVG = 4, NCCL_NO_REDOP = 99 };
enum { NCCL_SCALAR_ON_DEVICE = 0, NCCL_SCALAR_ON_HOST = 1 };
enum { NCCL_SHRINK_DEFAULT = 0, NCCL_SHRINK_ABORT = 1 };
enum { NCCL_WINDOW_SYMMETRIC = 1, NCCL_SPLIT_NO_COLOR = -1 };

/* ncclConfig_t. The library copies as many bytes as `size` says, and takes fields that are newer than `version` as not
 * set. Not set: INT_MIN, or NULL. */
typedef struct nccl_config {
    size_t size;
    unsigned int magic, version;
    int blocking;
    int cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share; /* since 2.18: 2.18's struct ends here */
    int traffic_class;
    const char *comm_name; /* since 2.27 */
    int collnet_enable, cta_policy, shrink_share, nvls_ctas;
} nccl_config;
enum { NCCL_MAGIC = (int)0xcafebeef, NCCL_NOT_SET = INT_MIN };

struct nccl_api {
#define CALL(since, result, name, arguments) result(*name) arguments;
#include "nccl.def"
#undef CALL
    int version; /* 22809 is 2.28.9 */
    char path[256];
};

extern struct nccl_api nccl;

/* Open both libraries, once per process; 0, or a negative status with a text that says what is missing. */
int libraries_open(void);

#endif
