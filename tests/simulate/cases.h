/* What the programs of this folder share: an algorithm with its claims, and its plans for all ranks. */
#ifndef CASES_H
#define CASES_H

#include "claims.h"
#include "core/exec/select.h"
#include "simulate.h"

enum { WORLD_MAX = 33 };

int is_rooted(int32_t kind);
const char *op_name(int32_t kind);
const struct claim *claim_of(const struct algo *algo);

/* plans[r] for every rank, on these hosts (NULL: on one); 0, or -1 if one has failed. */
int build_plans(const struct algo *algo, int32_t size, int32_t root, const int32_t *hosts, int widens,
                struct plan *plans);
void free_plans(struct plan *plans, int32_t size);

/* Random block lengths, many of them 0, of which every rank knows all (or, for all_to_all, its own). */
void random_lengths(int32_t kind, int32_t size, uint64_t *random, size_t *ret_lengths);

/* How many hosts there are. */
int32_t count_hosts(const int32_t *hosts, int32_t size);

/* Fill in what is to be checked, beyond the result. */
void set_claims(const struct algo *algo, struct setting *setting);

#endif
