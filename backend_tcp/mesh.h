/* Opening and closing a mesh. */
#ifndef COMM_TCP_MESH_H
#define COMM_TCP_MESH_H

#include "tcp.h"

/* with_shm: ranks of this host through memory that they share. */
comm_status mesh_open(const comm_world_info *info, int with_shm, struct mesh **ret_mesh);
/* Its part that needs no network, in zeroed memory: links that are idle. */
comm_status mesh_allocate(struct mesh *m, int32_t rank, int32_t size, const char *secret);
void mesh_close(struct mesh *m, int forked);

#endif
