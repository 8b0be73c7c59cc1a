/* Gradients in the memory of a GPU. The model of this example computes on the CPU, so its gradients are copied there
 * before they are summed, and their sums back; a trainer that computes on the GPU has them there already. */
#ifndef TRAIN_DEVICE_H
#define TRAIN_DEVICE_H

#include <comm/comm.h>
#include <stddef.h>

struct device {
    comm_device device; /* COMM_DEVICE_CPU: no GPU is used */
    void *stream;       /* of CUDA: copies and sums follow each other in it */
    void *data;         /* as many bytes as the gradients have */
    comm_memory *memory;
};

/* Use the GPU of this local rank; CUDA's runtime is opened here, so that runs on the CPU do not need it. Before
 * comm_init. 0, or -1 with a sentence in `error`. */
int device_open(struct device *device, int32_t local_rank, char *error, size_t capacity);
/* Memory for the gradients, from the group's backend. */
comm_status device_allocate(struct device *device, comm_group *group, size_t bytes);
void device_close(struct device *device);

/* Copy `bytes` from `offset` on; to the device in the order of its stream, from it at once. 0, or CUDA's error, of
 * which device_failed prints the text. */
unsigned int device_write(const struct device *device, const void *from, size_t offset, size_t bytes);
unsigned int device_read(const struct device *device, void *to, size_t offset, size_t bytes);
comm_status device_failed(unsigned int error);

#endif
