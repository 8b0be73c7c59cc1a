/* A backend for tests: ranks are threads of one process and exchange through memory. Register it with
 * comm_backend_register. */
#ifndef COMM_TESTS_LOOPBACK_H
#define COMM_TESTS_LOOPBACK_H

#include <comm/backend.h>

/* "loopback": CPU and, so that routing can be tested, memory that claims to be XPU. */
const comm_backend *loopback_entry(const comm_host *host);

#endif
