/* The model of train_bytes: forward, backward, Adam. Written so that gcc -O3 vectorises the inner loops without
 * -ffast-math: every one of them runs along a row, none adds up a row. */
#include "train_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t model_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform between -limit and +limit; no libm, so the same bits on every machine. */
static void fill_random(float *values, size_t count, float limit, uint64_t *state)
{
    for (size_t i = 0; i < count; i++)
        values[i] = limit * ((float)(model_random(state) >> 40) / 8388608.0f - 1.0f);
}

/* Lay the parameters out, and return how many there are. */
static size_t lay_out(struct model *model, size_t hidden)
{
    const size_t widths[MODEL_LAYERS + 1] = { model->window * MODEL_EMBEDDING, hidden, hidden, MODEL_BYTES };
    size_t offset = MODEL_BYTES * MODEL_EMBEDDING;

    for (size_t l = 0; l < MODEL_LAYERS; l++) {
        struct model_layer *layer = &model->layers[l];
        layer->inputs = widths[l];
        layer->outputs = widths[l + 1];
        layer->weights = offset;
        layer->biases = offset + layer->inputs * layer->outputs;
        offset = layer->biases + layer->outputs;
    }
    return offset;
}

int model_create(struct model *model, size_t window, size_t hidden, size_t samples_max, uint64_t seed)
{
    memset(model, 0, sizeof *model);
    model->window = window;
    model->samples_max = samples_max > 0 ? samples_max : 1; /* model_sample needs room for one */
    model->parameter_count = lay_out(model, hidden);
    model->gradient_count = model->parameter_count + 1;
    model->decay1 = model->decay2 = 1.0f;

    size_t transposed_count = 0;
    int complete = 1;
    for (size_t l = 0; l <= MODEL_LAYERS; l++) {
        size_t width = l < MODEL_LAYERS ? model->layers[l].inputs : MODEL_BYTES;
        model->values[l] = calloc(model->samples_max * width, sizeof(float));
        model->deltas[l] = calloc(model->samples_max * width, sizeof(float));
        complete = complete && model->values[l] && model->deltas[l];
        if (l < MODEL_LAYERS && width * model->layers[l].outputs > transposed_count)
            transposed_count = width * model->layers[l].outputs;
    }
    model->transposed = calloc(transposed_count, sizeof(float));
    model->parameters = calloc(model->parameter_count, sizeof(float));
    model->gradients = calloc(model->gradient_count, sizeof(float));
    model->moment1 = calloc(model->parameter_count, sizeof(float));
    model->moment2 = calloc(model->parameter_count, sizeof(float));
    if (!complete || !model->transposed || !model->parameters || !model->gradients || !model->moment1 ||
        !model->moment2) {
        model_destroy(model);
        return -1;
    }

    uint64_t state = seed;
    fill_random(model->parameters, MODEL_BYTES * MODEL_EMBEDDING, 0.5f, &state);
    for (size_t l = 0; l < MODEL_LAYERS; l++) {
        const struct model_layer *layer = &model->layers[l];
        /* He's rule keeps the size of the values from layer to layer; small logits begin at a loss of ln 256. */
        float limit = sqrtf((l + 1 < MODEL_LAYERS ? 6.0f : 0.1f) / (float)layer->inputs);
        fill_random(model->parameters + layer->weights, layer->inputs * layer->outputs, limit, &state);
    }
    return 0;
}

void model_destroy(struct model *model)
{
    for (size_t l = 0; l <= MODEL_LAYERS; l++) {
        free(model->values[l]);
        free(model->deltas[l]);
    }
    free(model->transposed);
    free(model->parameters);
    free(model->gradients);
    free(model->moment1);
    free(model->moment2);
    memset(model, 0, sizeof *model);
}

/* out[j] += the sum over k of factors[k * stride] * rows[k][j], for one row `out` of `columns`. Four rows at a time, so
 * that `out` is loaded and stored a quarter as often. */
static void add_rows(float *restrict out, size_t columns, const float *restrict factors, size_t stride,
                     const float *restrict rows, size_t row_count)
{
    size_t k = 0;
    for (; k + 4 <= row_count; k += 4) {
        const float *row0 = rows + k * columns, *row1 = row0 + columns, *row2 = row1 + columns, *row3 = row2 + columns;
        float f0 = factors[k * stride], f1 = factors[(k + 1) * stride];
        float f2 = factors[(k + 2) * stride], f3 = factors[(k + 3) * stride];
        for (size_t j = 0; j < columns; j++)
            out[j] += (f0 * row0[j] + f1 * row1[j]) + (f2 * row2[j] + f3 * row3[j]);
    }
    for (; k < row_count; k++) {
        const float *row = rows + k * columns;
        float factor = factors[k * stride];
        for (size_t j = 0; j < columns; j++)
            out[j] += factor * row[j];
    }
}

static void embed(struct model *model, const uint8_t *const *contexts, size_t samples)
{
    float *out = model->values[0];
    for (size_t s = 0; s < samples; s++)
        for (size_t w = 0; w < model->window; w++, out += MODEL_EMBEDDING)
            memcpy(out, model->parameters + contexts[s][w] * MODEL_EMBEDDING, MODEL_EMBEDDING * sizeof(float));
}

void model_forward(struct model *model, const uint8_t *const *contexts, size_t samples)
{
    embed(model, contexts, samples);
    for (size_t l = 0; l < MODEL_LAYERS; l++) {
        const struct model_layer *layer = &model->layers[l];
        for (size_t s = 0; s < samples; s++) {
            const float *in = model->values[l] + s * layer->inputs;
            float *out = model->values[l + 1] + s * layer->outputs;
            memcpy(out, model->parameters + layer->biases, layer->outputs * sizeof(float));
            add_rows(out, layer->outputs, in, 1, model->parameters + layer->weights, layer->inputs);
            if (l + 1 == MODEL_LAYERS)
                continue; /* the logits stay as they are; all others go through a ReLU */
            for (size_t j = 0; j < layer->outputs; j++)
                out[j] = out[j] > 0.0f ? out[j] : 0.0f;
        }
    }
}

/* Turn logits into probabilities, in place. */
static void softmax(float *values, size_t count)
{
    float top = values[0], sum = 0.0f;
    for (size_t j = 1; j < count; j++)
        top = values[j] > top ? values[j] : top;
    for (size_t j = 0; j < count; j++) {
        values[j] = expf(values[j] - top);
        sum += values[j];
    }
    for (size_t j = 0; j < count; j++)
        values[j] /= sum;
}

/* The loss, and its derivatives by the logits: probability minus truth. */
static float loss_and_deltas(struct model *model, const uint8_t *targets, size_t samples, float weight)
{
    double loss = 0.0;
    for (size_t s = 0; s < samples; s++) {
        float *delta = model->deltas[MODEL_LAYERS] + s * MODEL_BYTES;
        memcpy(delta, model->values[MODEL_LAYERS] + s * MODEL_BYTES, MODEL_BYTES * sizeof(float));
        softmax(delta, MODEL_BYTES);
        loss -= log((double)delta[targets[s]] + 1e-30);
        delta[targets[s]] -= 1.0f;
        for (size_t j = 0; j < MODEL_BYTES; j++)
            delta[j] *= weight;
    }
    return (float)(loss * (double)weight);
}

/* The derivatives by a layer's inputs: its deltas times its weights, transposed. */
static void backward_inputs(struct model *model, size_t l, size_t samples)
{
    const struct model_layer *layer = &model->layers[l];
    const float *weights = model->parameters + layer->weights;

    for (size_t k = 0; k < layer->inputs; k++)
        for (size_t j = 0; j < layer->outputs; j++)
            model->transposed[j * layer->inputs + k] = weights[k * layer->outputs + j];
    for (size_t s = 0; s < samples; s++) {
        const float *in = model->values[l] + s * layer->inputs;
        float *delta = model->deltas[l] + s * layer->inputs;
        memset(delta, 0, layer->inputs * sizeof(float));
        add_rows(delta, layer->inputs, model->deltas[l + 1] + s * layer->outputs, 1, model->transposed, layer->outputs);
        if (l == 0)
            continue; /* the embedding has no ReLU */
        for (size_t k = 0; k < layer->inputs; k++)
            delta[k] = in[k] > 0.0f ? delta[k] : 0.0f;
    }
}

void model_backward(struct model *model, const uint8_t *const *contexts, const uint8_t *targets, size_t samples,
                    float weight, model_ready_fn ready, void *context)
{
    static const float one = 1.0f;
    float *gradients = model->gradients;

    memset(gradients, 0, model->gradient_count * sizeof(float));
    gradients[model->parameter_count] = loss_and_deltas(model, targets, samples, weight);
    ready(context, model->parameter_count);

    for (size_t l = MODEL_LAYERS; l-- > 0;) {
        const struct model_layer *layer = &model->layers[l];
        const float *deltas = model->deltas[l + 1];
        add_rows(gradients + layer->biases, layer->outputs, &one, 0, deltas, samples);
        ready(context, layer->biases);
        for (size_t k = layer->inputs; k-- > 0;) {
            size_t row = layer->weights + k * layer->outputs;
            add_rows(gradients + row, layer->outputs, model->values[l] + k, layer->inputs, deltas, samples);
            ready(context, row);
        }
        /* Only now, so that the layer's gradients travel in the meantime. */
        backward_inputs(model, l, samples);
    }

    const float *delta = model->deltas[0];
    for (size_t s = 0; s < samples; s++)
        for (size_t w = 0; w < model->window; w++, delta += MODEL_EMBEDDING)
            for (size_t e = 0; e < MODEL_EMBEDDING; e++)
                gradients[contexts[s][w] * MODEL_EMBEDDING + e] += delta[e];
    ready(context, 0);
}

void model_update(struct model *model, float learning_rate)
{
    const float beta1 = 0.9f, beta2 = 0.99f, epsilon = 1e-8f;

    /* Powers by multiplication, and sqrtf, which IEEE 754 defines to the last bit: all ranks must come to the same
     * parameters, whatever their libm. */
    model->decay1 *= beta1;
    model->decay2 *= beta2;
    float step = learning_rate / (1.0f - model->decay1);
    float correction2 = 1.0f / (1.0f - model->decay2);
    float *restrict parameters = model->parameters;
    const float *restrict gradients = model->gradients;
    float *restrict moment1 = model->moment1;
    float *restrict moment2 = model->moment2;
    for (size_t i = 0; i < model->parameter_count; i++) {
        moment1[i] = beta1 * moment1[i] + (1.0f - beta1) * gradients[i];
        moment2[i] = beta2 * moment2[i] + (1.0f - beta2) * gradients[i] * gradients[i];
        parameters[i] -= step * moment1[i] / (sqrtf(moment2[i] * correction2) + epsilon);
    }
}

uint8_t model_sample(struct model *model, const uint8_t *window, float temperature, float random)
{
    float *values = model->values[MODEL_LAYERS];

    model_forward(model, &window, 1);
    for (size_t j = 0; j < MODEL_BYTES; j++)
        values[j] /= temperature;
    softmax(values, MODEL_BYTES);
    for (size_t j = 0; j + 1 < MODEL_BYTES; j++) {
        random -= values[j];
        if (random < 0.0f)
            return (uint8_t)j;
    }
    return MODEL_BYTES - 1;
}
