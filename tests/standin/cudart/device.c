/* Devices, errors, versions. */
#include <stdio.h>
#include <stdlib.h>

#include "cudart.h"

_Thread_local int current_device;
static _Thread_local cuda_status last_error;

static const struct {
    cuda_status status;
    const char *name, *text;
} errors[] = {
    {CUDA_OK, "cudaSuccess", "no error"},
    {CUDA_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {CUDA_NO_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {CUDA_NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {CUDA_INVALID_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {CUDA_NOT_READY, "cudaErrorNotReady", "device not ready"},
    {CUDA_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {CUDA_CAPTURE_SPOILT, "cudaErrorStreamCaptureInvalidated", "an earlier error ended the capture"},
    {CUDA_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched", "the stream is not the one that the capture began in"},
    {CUDA_CAPTURE_UNJOINED, "cudaErrorStreamCaptureUnjoined", "a stream of the capture was not joined to the first"},
    {CUDA_CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation", "a dependency from outside of the capture"},
    {CUDA_CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit", "the default stream would depend on a capturing stream"},
    {CUDA_CAPTURED_EVENT, "cudaErrorCapturedEvent", "the event was recorded in a capturing stream"},
    {CUDA_CAPTURE_WRONG_THREAD, "cudaErrorStreamCaptureWrongThread", "the capture was begun by another thread"},
};

const char *cudaGetErrorString(cuda_status status)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].status == status)
            return errors[i].text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cuda_status status)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].status == status)
            return errors[i].name;
    return "unrecognized error code";
}

cuda_status error(cuda_status status)
{
    if (status != CUDA_OK && status != CUDA_NOT_READY)
        last_error = status;
    return status;
}

cuda_status cudaGetLastError(void)
{
    cuda_status status = last_error;
    last_error = CUDA_OK;
    return status;
}

cuda_status cudaPeekAtLastError(void)
{
    return last_error;
}

int device_count(void)
{
    long count = parameter("STANDIN_DEVICES", 8);
    return count < 0 ? 0 : count > DEVICES_MAX ? DEVICES_MAX : (int)count;
}

cuda_status cudaRuntimeGetVersion(int *version)
{
    *version = (int)parameter("STANDIN_CUDA_VERSION", 13000);
    return standin_fault("cudaRuntimeGetVersion");
}

cuda_status cudaDriverGetVersion(int *version)
{
    *version = (int)parameter("STANDIN_DRIVER_VERSION", 13000);
    return standin_fault("cudaDriverGetVersion");
}

cuda_status cudaGetDeviceCount(int *count)
{
    cuda_status status = standin_fault("cudaGetDeviceCount");
    *count = status ? 0 : device_count();
    return error(status ? status : *count ? CUDA_OK : CUDA_NO_DEVICE);
}

cuda_status cudaGetDevice(int *device)
{
    *device = current_device;
    return error(standin_fault("cudaGetDevice"));
}

cuda_status cudaSetDevice(int device)
{
    cuda_status status = standin_fault("cudaSetDevice");
    if (!status && (device < 0 || device >= device_count()))
        status = CUDA_INVALID_DEVICE;
    if (!status)
        current_device = device;
    return error(status);
}

/* STANDIN_COMPUTE_MAJOR=8: an older device, which NCCL does not reduce 8-bit floats on. */
cuda_status cudaDeviceGetAttribute(int *value, unsigned int attribute, int device)
{
    cuda_status status = standin_fault("cudaDeviceGetAttribute");
    if (!status && (device < 0 || device >= device_count()))
        status = CUDA_INVALID_DEVICE;
    *value = attribute == CUDA_ATTRIBUTE_COMPUTE_MAJOR ? (int)parameter("STANDIN_COMPUTE_MAJOR", 9) : 0;
    return error(status);
}

cuda_status cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return error(standin_fault("cudaDeviceGetStreamPriorityRange"));
}

cuda_status cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    if (device < 0 || device >= device_count())
        return error(CUDA_INVALID_DEVICE);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", device + 1);
    return error(standin_fault("cudaDeviceGetPCIBusId"));
}
