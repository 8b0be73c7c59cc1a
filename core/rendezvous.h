/* Rendezvous: comm_rendezvous and comm_rendezvous_register of comm/store.h. */
#ifndef COMM_CORE_RENDEZVOUS_H
#define COMM_CORE_RENDEZVOUS_H

#include <comm/store.h>

/* Do the ranks join a store that their launcher serves (torchrun, commrun)? Then none of them serves. */
int comm__rendezvous_agent_serves(void);

#endif
