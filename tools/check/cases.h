/* The directed cases, by section; check_cases in cases.c lists all. */
#ifndef COMM_CHECK_CASES_H
#define COMM_CHECK_CASES_H

/* table.c */
void table_facts(void);
/* local.c: what must not wait for other ranks, and what is left behind. */
void local_world_open(void);
void local_submit(void);
void local_messages(void);
void local_group_open(void);
void local_opposite_orders(void);
void local_callback(void);
void state_two_worlds(void);
void state_left_behind(void);
void state_memory(void);
/* faults.c */
void faults_missing_rank(void);
void faults_killed_rank(void);
void faults_abort(void);
void faults_close(void);
void faults_dropped_works(void);
void faults_fork(void);
void faults_mismatch(void);

#endif
