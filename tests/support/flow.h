/* Flow control of the tcp backend when nothing is under way. */
#ifndef COMM_TESTS_FLOW_H
#define COMM_TESTS_FLOW_H

#include <comm/comm.h>

/* Called by all ranks of a group when everything that was sent has been received, and nothing will be called until all
 * have come. On every connection between them then: no frames wait, no sends are held back or announced, nothing is
 * awaited, no message is kept; and what a rank may still send and what its peer owes it make the whole window. Else the
 * rank fails. Only for programs that are linked with the static library. */
void flow_check(comm_group *group);

#endif
