/* A backend for tests that is wrong in one way at a time: what a faulty plugin does to the core. Without a fault it is
 * the loopback backend. */
#ifndef COMM_TESTS_FAULTY_H
#define COMM_TESTS_FAULTY_H

#include <comm/backend.h>
#include <stdatomic.h>

enum {
    FAULTY_NOT,
    /* takes ops and completes none, not even when the group is aborted; see faulty_complete_kept */
    FAULTY_KEEPS,
    FAULTY_ENDS_GROUP,      /* keeps the op, and says by group_failed that the group has ended; heeds an abort */
    FAULTY_COMPLETES,       /* completes with faulty_status and faulty_text */
    FAULTY_SUBMIT,          /* submit returns faulty_status, with faulty_text if there is one */
    FAULTY_SUPPORTS,        /* supports does */
    FAULTY_PROGRESS,        /* keeps the op; progress does. Heeds an abort */
    FAULTY_OPEN,            /* group_open does; COMM_OK: without a state */
    FAULTY_LOOKS,           /* supports checks that the op is whole */
};
extern atomic_int faulty_fault;
extern comm_status faulty_status;
extern const char *faulty_text; /* NULL: says nothing */

/* How often group_abort was called, and with what at last. */
extern atomic_int faulty_aborts;

/* Complete with OK what FAULTY_KEEPS has kept. */
void faulty_complete_kept(void);

/* "faulty", and the same again as "faulty_driven", which has a progress slot. Both serve CPU and XPU. */
const comm_backend *faulty_entry(const comm_host *host);
const comm_backend *faulty_driven_entry(const comm_host *host);

#endif
