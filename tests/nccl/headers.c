/* backend_nccl/cuda_api.h and nccl_api.h against the headers of CUDA and NCCL: this file does not compile where they
 * differ. headers.py compiles it with several versions of both. */
#include <stddef.h>

#include "backend_nccl/nccl_api.h"

/* These names are macros in NCCL's header. */
enum { OUR_SHRINK_DEFAULT = NCCL_SHRINK_DEFAULT, OUR_SHRINK_ABORT = NCCL_SHRINK_ABORT };

#include <cuda_runtime_api.h>
#include <nccl.h>

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is " #theirs)
#define SAME_FIELD(our_type, ours, their_type, theirs)                                                                \
    SAME(offsetof(our_type, ours), offsetof(their_type, theirs));                                                     \
    SAME(sizeof(((our_type *)0)->ours), sizeof(((their_type *)0)->theirs))

/* ---- CUDA ---- */

SAME(CUDA_OK, cudaSuccess);
SAME(CUDA_NO_DEVICE, cudaErrorNoDevice);
SAME(CUDA_NOT_READY, cudaErrorNotReady);
SAME(CUDA_STREAM_NON_BLOCKING, cudaStreamNonBlocking);
SAME(CUDA_EVENT_DISABLE_TIMING, cudaEventDisableTiming);
SAME(CUDA_EVENT_BLOCKING_SYNC, cudaEventBlockingSync);
SAME(CUDA_CAPTURE_NONE, cudaStreamCaptureStatusNone);
SAME(CUDA_CAPTURE_ACTIVE, cudaStreamCaptureStatusActive);
SAME(CUDA_CAPTURE_INVALIDATED, cudaStreamCaptureStatusInvalidated);
SAME(CUDA_CAPTURE_MODE_GLOBAL, cudaStreamCaptureModeGlobal);
SAME(CUDA_CAPTURE_MODE_THREAD_LOCAL, cudaStreamCaptureModeThreadLocal);
SAME(CUDA_CAPTURE_MODE_RELAXED, cudaStreamCaptureModeRelaxed);
SAME(CUDA_MEMORY_UNREGISTERED, cudaMemoryTypeUnregistered);
SAME(CUDA_MEMORY_HOST, cudaMemoryTypeHost);
SAME(CUDA_MEMORY_DEVICE, cudaMemoryTypeDevice);
SAME(CUDA_MEMORY_MANAGED, cudaMemoryTypeManaged);
SAME(CUDA_COPY_DEFAULT, cudaMemcpyDefault);
SAME(CUDA_ATTRIBUTE_COMPUTE_MAJOR, cudaDevAttrComputeCapabilityMajor);

SAME_FIELD(cuda_pointer_attributes, type, struct cudaPointerAttributes, type);
SAME_FIELD(cuda_pointer_attributes, device, struct cudaPointerAttributes, device);
SAME_FIELD(cuda_pointer_attributes, device_pointer, struct cudaPointerAttributes, devicePointer);
SAME_FIELD(cuda_pointer_attributes, host_pointer, struct cudaPointerAttributes, hostPointer);
_Static_assert(sizeof(cuda_pointer_attributes) >= sizeof(struct cudaPointerAttributes), "CUDA writes no further");

/* The layouts are compared above, so the prototypes can be compared with CUDA's own structs in them. */
#define cuda_pointer_attributes struct cudaPointerAttributes
#define CALL(result, name, arguments) result(*const cuda_##name) arguments = cuda##name;
#include "backend_nccl/cuda.def"
#undef CALL
#undef cuda_pointer_attributes

/* ---- NCCL ---- */

SAME(NCCL_OK, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);

SAME(NCCL_I8, ncclInt8);
SAME(NCCL_U8, ncclUint8);
SAME(NCCL_I32, ncclInt32);
SAME(NCCL_U32, ncclUint32);
SAME(NCCL_I64, ncclInt64);
SAME(NCCL_U64, ncclUint64);
SAME(NCCL_F16, ncclFloat16);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_F64, ncclFloat64);
SAME(NCCL_BF16, 9); /* ncclBfloat16; up to 2.23 only C++ sees the name */
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_PRODUCT, ncclProd);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(NCCL_AVG, ncclAvg);
SAME(NCCL_SCALAR_ON_DEVICE, ncclScalarDevice);
SAME(NCCL_SCALAR_ON_HOST, ncclScalarHostImmediate);
SAME(NCCL_SPLIT_NO_COLOR, NCCL_SPLIT_NOCOLOR);
SAME(sizeof(nccl_id), sizeof(ncclUniqueId));

/* ncclConfig_t grows at its end; the backend gives an older NCCL the part that its version had. */
static const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
const void *const use_of_initial = &initial;
SAME_FIELD(nccl_config, size, ncclConfig_t, size);
SAME_FIELD(nccl_config, magic, ncclConfig_t, magic);
SAME_FIELD(nccl_config, version, ncclConfig_t, version);
SAME_FIELD(nccl_config, blocking, ncclConfig_t, blocking);
SAME_FIELD(nccl_config, cga_cluster_size, ncclConfig_t, cgaClusterSize);
SAME_FIELD(nccl_config, min_ctas, ncclConfig_t, minCTAs);
SAME_FIELD(nccl_config, max_ctas, ncclConfig_t, maxCTAs);
SAME_FIELD(nccl_config, net_name, ncclConfig_t, netName);
SAME_FIELD(nccl_config, split_share, ncclConfig_t, splitShare);
SAME(NCCL_NOT_SET, NCCL_CONFIG_UNDEF_INT);

#if NCCL_VERSION_CODE >= 22403
SAME(NCCL_BF16, ncclBfloat16);
SAME(NCCL_F8E4M3, ncclFloat8e4m3);
SAME(NCCL_F8E5M2, ncclFloat8e5m2);
#endif
#if NCCL_VERSION_CODE >= 22703
SAME(OUR_SHRINK_DEFAULT, NCCL_SHRINK_DEFAULT);
SAME(OUR_SHRINK_ABORT, NCCL_SHRINK_ABORT);
SAME(NCCL_WINDOW_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
SAME_FIELD(nccl_config, traffic_class, ncclConfig_t, trafficClass);
SAME_FIELD(nccl_config, comm_name, ncclConfig_t, commName);
SAME_FIELD(nccl_config, collnet_enable, ncclConfig_t, collnetEnable);
SAME_FIELD(nccl_config, cta_policy, ncclConfig_t, CTAPolicy);
SAME_FIELD(nccl_config, shrink_share, ncclConfig_t, shrinkShare);
SAME_FIELD(nccl_config, nvls_ctas, ncclConfig_t, nvlsCTAs);
_Static_assert(sizeof(nccl_config) <= sizeof(ncclConfig_t), "NCCL knows all of it");
#else
_Static_assert(offsetof(nccl_config, traffic_class) <= sizeof(ncclConfig_t), "NCCL knows all of that part");
#endif
#if NCCL_VERSION_CODE >= 23003
SAME(NCCL_TIMEOUT, ncclTimeout);
#endif

/* A call that is newer than the header is not declared there. */
#define SINCE_21800(declaration) declaration
#if NCCL_VERSION_CODE >= 21901
#define SINCE_21901(declaration) declaration
#else
#define SINCE_21901(declaration)
#endif
#if NCCL_VERSION_CODE >= 22703
#define SINCE_22703(declaration) declaration
#else
#define SINCE_22703(declaration)
typedef void *ncclWindow_t;
#endif
#if NCCL_VERSION_CODE >= 22803
#define SINCE_22803(declaration) declaration
#else
#define SINCE_22803(declaration)
#endif

SAME(sizeof(nccl_window), sizeof(ncclWindow_t));
#define nccl_id ncclUniqueId
#define nccl_config ncclConfig_t
#define nccl_window ncclWindow_t
#define CALL(since, result, name, arguments) SINCE_##since(result(*const nccl_##name) arguments = nccl##name;)
#include "backend_nccl/nccl.def"
