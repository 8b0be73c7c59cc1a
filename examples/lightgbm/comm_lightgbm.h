/* LightGBM's network over libcomm. On the thread that trains:
 *
 *     comm_lightgbm_begin(NULL, &rank, &size);
 *     LGBM_NetworkInitWithFunctions(size, rank, comm_lightgbm_reduce_scatter, comm_lightgbm_all_gather);
 *     ... make the data set, train with tree_learner=data, voting or feature ...
 *     LGBM_NetworkFree();
 *     comm_lightgbm_end();
 */
#ifndef COMM_LIGHTGBM_H
#define COMM_LIGHTGBM_H

#include <comm/comm.h>

/* Open a world for this thread (`backend`: a backend string, or NULL). The launcher says which rank it is. On failure
 * comm_last_error() says why. */
COMM_API comm_status comm_lightgbm_begin(const char *backend, int32_t *ret_rank, int32_t *ret_size);
COMM_API void comm_lightgbm_end(void);
/* This thread's world, or NULL. */
COMM_API comm_group *comm_lightgbm_group(void);

/* LightGBM's ReduceFunction, ReduceScatterFunction and AllgatherFunction (LightGBM/meta.h), as C has them: sizes are in
 * bytes, and the reducer comes by reference. */
typedef void (*comm_lightgbm_reduce)(const char *input, char *output, int type_size, int32_t array_size);
COMM_API void comm_lightgbm_reduce_scatter(char *input, int32_t input_size, int type_size, const int32_t *block_start,
                                           const int32_t *block_len, int num_block, char *output, int32_t output_size,
                                           const comm_lightgbm_reduce *reducer);
COMM_API void comm_lightgbm_all_gather(char *input, int32_t input_size, const int32_t *block_start,
                                       const int32_t *block_len, int num_block, char *output, int32_t output_size);

#endif
