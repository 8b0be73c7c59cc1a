/* Where the operands of a plan's steps lie in the user's buffers and in scratch memory, and the steps that need no
 * message: copies and reductions. */
#ifndef COMM_EXEC_OPERANDS_H
#define COMM_EXEC_OPERANDS_H

#include "exec_op.h"

/* Elements of the vector, or of the longest block of either side: what slices are cut from. */
size_t operand_total(const struct exec_op *op);
/* Elements of the longest block that is moved, whatever buffer it lies in; block ops. */
size_t operand_largest_block(const struct exec_op *op);
/* Elements of the longest chunk in a slice of so many. */
size_t operand_largest_chunk(const struct exec_op *op, size_t slice_elements);
/* Bytes from one of the plan's scratch slots to the next in a slice of so many elements, and of all its scratch. */
size_t operand_stride(const struct exec_op *op, size_t slice_elements);
size_t operand_scratch_bytes(const struct exec_op *op, size_t slice_elements);
/* Bytes of an element in a region, and in a step's message. */
size_t operand_element_bytes(const struct exec_op *op, const struct plan_region *r);
size_t operand_message_element_bytes(const struct exec_op *op, const struct plan_step *step);
/* That reduces what the step reduces: REDUCE, RECV_REDUCE. */
reduce_kernel_fn operand_kernel(const struct exec_op *op, const struct plan_step *step);
/* Where a region lies in this slot's slice, and its elements. */
uint8_t *operand_region(const struct exec_op *op, const struct slot *slot, const struct plan_region *r,
                        size_t *ret_count);
/* Are the op's blocks too long for the caches? For copy_part. */
int operand_is_long(const struct exec_op *op);
/* The op begins: a long side of it is noted, for huge pages. */
void operand_note_long(const struct exec_op *op);
/* Carry out a step that needs no message. */
void operand_local_step(struct exec_op *op, struct slot *slot, const struct plan_step *step);

#endif
