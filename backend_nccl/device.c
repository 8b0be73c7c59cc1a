/* Devices: the thread's current one, and where buffers are. */
#include <string.h>

#include "nccl.h"

comm_status device_enter(struct device_scope *scope, int device)
{
    cuda_status status = cuda.GetDevice(&scope->before);
    scope->changed = 0;
    if (status == CUDA_OK && scope->before != device) {
        status = cuda.SetDevice(device);
        scope->changed = status == CUDA_OK;
    }
    if (status == CUDA_OK)
        return COMM_OK;
    return fail(COMM_ERR_INVALID, "device cuda:%d cannot be used: %s", device, cuda.GetErrorString(status));
}

void device_leave(const struct device_scope *scope)
{
    if (scope->changed)
        cuda.SetDevice(scope->before);
}

unsigned int capture_relax(void)
{
    unsigned int mode = CUDA_CAPTURE_MODE_RELAXED;
    cuda.ThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void capture_restore(unsigned int mode)
{
    cuda.ThreadExchangeStreamCaptureMode(&mode);
}

comm_status device_of(comm_device device, int *ret_index)
{
    static atomic_int devices; /* their number does not change */
    cuda_status status = CUDA_OK;
    int count = atomic_load_explicit(&devices, memory_order_relaxed);
    *ret_index = comm_device_index(device);
    if (*ret_index < 0)
        status = cuda.GetDevice(ret_index);
    else if (!count && (status = cuda.GetDeviceCount(&count)) == CUDA_OK)
        atomic_store_explicit(&devices, count, memory_order_relaxed);
    if (status == CUDA_OK && *ret_index >= count && comm_device_index(device) >= 0)
        return fail(COMM_ERR_INVALID, "there is no device cuda:%d: this process sees %d (CUDA_VISIBLE_DEVICES)",
                    *ret_index, count);
    return status == CUDA_OK ? COMM_OK : fail_cuda(status, "finding the device");
}

comm_status device_check_buffer(const void *data, int device, const char *side)
{
    cuda_pointer_attributes where;
    memset(&where, 0, sizeof where);
    cuda_status status = cuda.PointerGetAttributes(&where, data);
    if (status != CUDA_OK) {
        cuda.GetLastError(); /* it would be taken for the next call's */
        return fail_cuda(status, "cudaPointerGetAttributes");
    }
    if (where.type == CUDA_MEMORY_UNREGISTERED)
        return fail(COMM_ERR_INVALID,
                    "the %s buffer %p is in ordinary CPU memory, but the operation is one for device cuda:%d. Set "
                    "options.device to COMM_DEVICE_CPU (and add cpu:tcp to the backend string), or give a buffer in "
                    "device memory", side, data, device);
    if (where.type == CUDA_MEMORY_DEVICE && where.device != device)
        return fail(COMM_ERR_INVALID,
                    "the %s buffer %p is in the memory of cuda:%d, but the operation is one for cuda:%d: set "
                    "options.device to comm_device_at(COMM_DEVICE_CUDA, %d), or call cudaSetDevice(%d) before",
                    side, data, where.device, device, where.device, where.device);
    return COMM_OK;
}

/* A buffer of no elements can be anywhere. */
static comm_status check_side(const comm_buffers *side, int32_t blocks, int device, const char *name)
{
    comm_status status = COMM_OK;
    int has_elements = side->count > 0;
    if (side->memory)
        return COMM_OK;
    for (int32_t r = 0; (side->list || side->counts) && status == COMM_OK && r < blocks; r++) {
        size_t count = side->counts ? side->counts[r] : side->count;
        has_elements |= count > 0;
        if (side->list && side->list[r] && count)
            status = device_check_buffer(side->list[r], device, name);
    }
    if (side->data && status == COMM_OK && has_elements)
        status = device_check_buffer(side->data, device, name);
    return status;
}

/* The device's kernels load whole elements to reduce them; what is only moved is bytes. */
static comm_status check_alignment(const comm_buffers *side, const comm_op *op, int32_t blocks, const char *name)
{
    size_t parts = 0, skew = (size_t)(uintptr_t)side->data;
    type_of(op->dtype, &parts);
    size_t bytes = op->element_bytes / (parts ? parts : 1);
    for (int32_t r = 0; side->list && r < blocks; r++)
        skew |= (size_t)(uintptr_t)side->list[r];
    if (skew % bytes == 0)
        return COMM_OK;
    return fail(COMM_ERR_INVALID,
                "the %s buffer %p is not aligned to %zu bytes: a GPU reduces dtype %s only at addresses that are "
                "multiples of that", name, side->data, bytes, host->dtype_name(op->dtype));
}

comm_status device_check_reduction(const comm_op *op, int32_t group_size)
{
    if (!(comm_op_traits_of(op->kind)->traits & COMM_OP_TRAIT_REDUCES))
        return COMM_OK;
    comm_status status = check_alignment(&op->send, op, group_size, "send");
    return status == COMM_OK ? check_alignment(&op->recv, op, group_size, "recv") : status;
}

comm_status device_check_op(const comm_op *op, int device, int32_t group_size)
{
    comm_status status = check_side(&op->send, group_size, device, "send");
    return status == COMM_OK ? check_side(&op->recv, group_size, device, "recv") : status;
}
