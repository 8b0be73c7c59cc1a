/* The parameters, for the user: comm_param_count and comm_param_query. */
#include <comm/comm.h>

#include "base/error.h"
#include "base/param.h"
#include "op.h"
#include "registry.h"

size_t comm_param_count(void)
{
    comm__registry_ready(); /* the built-in backends have theirs listed */
    return comm__param_count();
}

comm_status comm_param_query(size_t index, comm_param_info *ret_info)
{
    size_t count = comm_param_count();
    if (index >= count)
        return comm__fail(COMM_ERR_NOT_FOUND, "parameter %zu: there are %zu", index, count);
    const comm_param_info info = comm__param_listed(index);
    return comm__give_struct(ret_info, &info, sizeof info, "comm_param_query", "comm_param_info");
}
