/* Log what a call cannot return; see comm_log_set in comm/comm.h. */
#ifndef COMM_BASE_LOG_H
#define COMM_BASE_LOG_H

#include <comm/comm.h>

void comm__log(int32_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));
int comm__log_wanted(int32_t level);

#endif
