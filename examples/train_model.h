/* A small language model that predicts the next byte from a window of bytes: an embedding and three dense layers,
 * trained with Adam. It knows nothing of ranks; train_bytes.c brings those in. */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    MODEL_BYTES = 256,    /* kinds of bytes: what there is to predict */
    MODEL_LAYERS = 3,     /* dense layers */
    MODEL_EMBEDDING = 24, /* numbers that stand for one byte */
};

/* One dense layer: outputs = inputs x weights + biases. `weights` and `biases` are offsets into the parameters. */
struct model_layer {
    size_t inputs, outputs;
    size_t weights; /* inputs rows of outputs */
    size_t biases;
};

/* All parameters are one array, so that an optimiser, a hash and a bucket of an all_reduce need not know of layers. The
 * gradients have the same layout, and one element more: the loss. The layout follows the forward pass:
 *
 *     embedding | layer 0: weights biases | layer 1 ... | layer 2 ... | loss
 *
 * so that the backward pass completes the gradients from the end of the array to its beginning. */
struct model {
    size_t window; /* bytes that a prediction looks at */
    size_t samples_max;
    struct model_layer layers[MODEL_LAYERS];
    size_t parameter_count;
    size_t gradient_count; /* parameter_count + 1 */
    float *parameters;
    float *gradients;
    float *moment1, *moment2;        /* Adam's running means of the gradient and of its square */
    float decay1, decay2;            /* Adam's decay rates to the power of the steps taken */
    float *values[MODEL_LAYERS + 1]; /* [l]: the inputs of layer l, for all samples; the last one: the logits */
    float *deltas[MODEL_LAYERS + 1]; /* the loss's derivatives by these */
    float *transposed;               /* scratch: a layer's weights the other way round */
};

/* Build a model for at most `samples_max` samples at a time; its parameters come from `seed` alone.
 * 0, or -1 without memory. */
int model_create(struct model *model, size_t window, size_t hidden, size_t samples_max, uint64_t seed);
void model_destroy(struct model *model);

/* The forward pass: `contexts[s]` points to the window of sample s. */
void model_forward(struct model *model, const uint8_t *const *contexts, size_t samples);

/* The backward pass after model_forward, for the loss: the cross entropy of each sample, times `weight`, summed. As the
 * gradients become complete, from the end to the beginning, ready(context, offset) says that all from `offset` on are.
 */
typedef void (*model_ready_fn)(void *context, size_t offset);
void model_backward(struct model *model, const uint8_t *const *contexts, const uint8_t *targets, size_t samples,
                    float weight, model_ready_fn ready, void *context);

/* One step of Adam with the gradients as they are now. */
void model_update(struct model *model, float learning_rate);

/* Draw the next byte after `window` from the model's distribution, with `random` between 0 and 1. */
uint8_t model_sample(struct model *model, const uint8_t *window, float temperature, float random);

/* A random number from a state; the state moves on. (splitmix64: the same on every machine.) */
uint64_t model_random(uint64_t *state);

#endif
