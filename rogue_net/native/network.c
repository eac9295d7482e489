/* A whole network over packed frames: its parts one after the other, so that Python asks once for all of them. */
#include <stdlib.h>

#include "blocks.h"
#include "regions.h"

enum { OF_BLOCK = 12, OF_TYPE = 4, OF_HEAD = 2, BEFORE_BLOCKS = 4 };

static void set_head(Head *h, const float *const *weights, float *const *gradients) {
    h->weight = weights[0], h->bias = weights[1];
    if (gradients) h->weight_grad = gradients[0], h->bias_grad = gradients[1];
}

/* Hands its parameters, and their gradients if there are any, to each part. */
static void set_parameters(Network *n, const float *const *p, float *const *g) {
    Frames *f = &n->frames;
    int64_t at = BEFORE_BLOCKS + OF_BLOCK * f->layers;
    f->keys.table = p[0], f->values.table = p[1], f->gate_weight = p[2], f->gate_bias = p[3];
    if (g) f->keys.table_grad = g[0], f->values.table_grad = g[1], f->gate_weight_grad = g[2], f->gate_bias_grad = g[3];
    float *kept = n->embedded;
    for (Embedding *t = n->types; t < n->types + n->num_types; t++) {
        if (is_one_vector(t)) {
            t->bias = p[at], t->bias_grad = g ? g[at] : NULL, at++;
            continue;
        }
        t->hidden = kept, t->stats = kept + t->rows * f->width, kept = t->stats + 2 * t->rows;
        t->weight = p[at], t->bias = p[at + 1], t->norm_weight = p[at + 2], t->norm_bias = p[at + 3];
        if (g) t->weight_grad = g[at], t->bias_grad = g[at + 1], t->norm_weight_grad = g[at + 2], t->norm_bias_grad = g[at + 3];
        at += OF_TYPE;
        if (t->kinds) t->labels = p[at], t->labels_grad = g ? g[at] : NULL, at++;
    }
    for (Head *h = n->choices; h < n->choices + n->num_choices; h++, at += OF_HEAD) set_head(h, p + at, g ? g + at : NULL);
    for (Head *h = n->means; h < n->means + n->num_means; h++, at += OF_HEAD) set_head(h, p + at, g ? g + at : NULL);
}

int network_forward(Network *n) {
    Frames *f = &n->frames;
    int64_t d = f->width;
    int failed = 0;
    set_parameters(n, n->parameters, NULL);
    for (int64_t i = 0; i < n->num_types && !failed; i++) failed = embed_forward(n->types + i, d, n->clip, n->x);
    if (!failed) failed = blocks_forward(f, n->parameters + BEFORE_BLOCKS, n->x, n->made);
    for (int64_t i = 0; i < n->num_choices && !failed; i++) failed = head_forward(n->choices + i, d, n->x);
    if (n->num_means && !failed) failed = frame_means(f, n->x, n->pooled);
    for (int64_t i = 0; i < n->num_means && !failed; i++) failed = head_forward(n->means + i, d, n->pooled);
    return failed;
}

static int has_gradient(const Head *h) { return h->dsaid || h->dlogprobs || h->dentropies; }

static int heads_backward(Network *n) {
    Frames *f = &n->frames;
    int64_t d = f->width;
    int failed = 0, of_means = 0;
    for (int64_t i = 0; i < n->num_means; i++) of_means |= has_gradient(n->means + i);
    if (of_means) {
        int64_t size = f->num_frames * d;
        float *dpooled, *room = open_regions(1, &size, &dpooled);
        if (!room) return NO_MEMORY;
        memset(dpooled, 0, sizeof(float) * (size_t)size);
        for (int64_t i = 0; i < n->num_means && !failed; i++)
            if (has_gradient(n->means + i)) failed = head_backward(n->means + i, d, n->pooled, dpooled);
        if (!failed) failed = frame_means_backward(f, dpooled, n->dx);
        failed = close_regions(room, 1, &size, failed);
    }
    for (int64_t i = 0; i < n->num_choices && !failed; i++)
        if (has_gradient(n->choices + i)) failed = head_backward(n->choices + i, d, n->x, n->dx);
    return failed;
}

int network_backward(Network *n) {
    Frames *f = &n->frames;
    float **gradients = malloc(sizeof(float *) * (size_t)n->num_parameters);
    if (!gradients) return NO_MEMORY;
    float *to = n->gradients;
    for (int64_t i = 0; i < n->num_parameters; to += n->sizes[i++]) gradients[i] = n->parameters[i] ? to : NULL;
    set_parameters(n, n->parameters, gradients);
    int failed = heads_backward(n);
    if (!failed) failed = blocks_backward(f, n->parameters + BEFORE_BLOCKS, gradients + BEFORE_BLOCKS, n->made, n->dx);
    for (int64_t i = 0; i < n->num_types && !failed; i++) failed = embed_backward(n->types + i, f->width, n->clip, n->dx);
    free(gradients);
    return failed;
}
