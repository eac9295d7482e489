/* A whole network over packed frames: its parts one after the other, so that Python asks once for all of them. */
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "regions.h"

enum { OF_BLOCK = 12, OF_TYPE = 4, OF_HEAD = 2 };

static void set_head(Head *h, const float *const *weights, float *const *gradients) {
    h->weight = weights[0], h->bias = weights[1];
    if (gradients) h->weight_grad = gradients[0], h->bias_grad = gradients[1];
}

/* Hands the parameters and statistics of network k, and gradients if there are any, to each part. */
static void set_parameters(Network *n, int64_t k, float *const *g) {
    Frames *f = &n->frames;
    const float *const *p = n->parameters + k * f->num_parameters, *const *s = n->statistics + 2 * k * n->num_types;
    int64_t at = BEFORE_BLOCKS + OF_BLOCK * f->layers;
    f->keys.table = p[0], f->values.table = p[1], f->gate_weight = p[2], f->gate_bias = p[3];
    if (g) f->keys.table_grad = g[0], f->values.table_grad = g[1], f->gate_weight_grad = g[2], f->gate_bias_grad = g[3];
    for (Embedding *t = n->types; t < n->types + n->num_types; t++, s += 2) {
        if (is_one_vector(t)) {
            t->bias = p[at], t->bias_grad = g ? g[at] : NULL, at++;
            continue;
        }
        t->mean = s[0], t->std = s[1];
        t->weight = p[at], t->bias = p[at + 1], t->norm_weight = p[at + 2], t->norm_bias = p[at + 3];
        if (g) t->weight_grad = g[at], t->bias_grad = g[at + 1], t->norm_weight_grad = g[at + 2], t->norm_bias_grad = g[at + 3];
        at += OF_TYPE;
        if (t->kinds) t->labels = p[at], t->labels_grad = g ? g[at] : NULL, at++;
    }
    for (Head *h = n->choices; h < n->choices + n->num_choices; h++, at += OF_HEAD) set_head(h, p + at, g ? g + at : NULL);
    for (Head *h = n->means; h < n->means + n->num_means; h++, at += OF_HEAD) set_head(h, p + at, g ? g + at : NULL);
}

/* Gives each type its part of the memory for activations. */
static void set_memory(Network *n) {
    float *kept = n->embedded;
    for (Embedding *t = n->types; t < n->types + n->num_types; t++) {
        if (is_one_vector(t)) continue;
        t->hidden = kept, t->stats = kept + t->rows * n->frames.width, kept = t->stats + 2 * t->rows;
    }
}

static int64_t end_of_network(const Frames *f, int64_t k) { return f->first_frame ? f->first_frame[k + 1] : f->num_frames; }

/* Of ascending rows the end of those of network k, which begin with `first`. The last network has all that are left. */
static int64_t end_of_rows(const Frames *f, int64_t k, const int64_t *rows, int64_t count, int64_t first) {
    if (k == f->num_networks - 1) return count;
    while (first < count && rows[first] < f->row_start[end_of_network(f, k)]) first++;
    return first;
}

static Embedding entities_between(const Embedding *all, int64_t first, int64_t last, int64_t d) {
    Embedding some = *all;
    some.rows = last - first, some.to += first, some.x += first * all->features;
    if (some.label_rows) some.label_rows += first * all->kinds;
    if (!is_one_vector(all)) some.hidden += first * d, some.stats += 2 * first;
    return some;
}

static Head rows_between(const Head *all, int64_t first, int64_t last) {
    Head some = *all;
    some.rows = last - first, some.said += first * all->width;
    if (some.from) some.from += first;
    if (some.mask) some.mask += first * all->width;
    if (some.given) some.given += first;
    if (some.uniforms) some.uniforms += first;
    if (some.chosen) some.chosen += first;
    if (some.logprobs) some.logprobs += first, some.entropies += first;
    return some;
}

/* The frames with the rows that come out of the blocks. */
static Frames frames_of_output(const Frames *f) {
    Frames output = *f;
    if (f->kept_start) output.row_start = f->kept_start;
    return output;
}

int network_forward(Network *n) {
    Frames *f = &n->frames, output = frames_of_output(f);
    const float *x = f->kept_start ? n->kept : n->x;
    int64_t d = f->width, first[n->num_types + n->num_choices + 1];
    int failed = 0;
    set_memory(n);
    memset(first, 0, sizeof first);
    for (int64_t k = 0; k < f->num_networks; k++) {
        set_parameters(n, k, NULL);
        for (int64_t i = 0; i < n->num_types && !failed; i++) {
            const Embedding *all = n->types + i;
            int64_t last = end_of_rows(f, k, all->to, all->rows, first[i]);
            Embedding own = entities_between(all, first[i], last, d);
            failed = embed_forward(&own, d, n->clip, n->x), first[i] = last;
        }
    }
    if (!failed) failed = blocks_forward(f, n->parameters, n->x, n->kept, n->made);
    if (n->num_means && !failed) failed = frame_means(&output, x, n->pooled);
    for (int64_t k = 0, begin = 0, end; k < f->num_networks; k++, begin = end) {
        end = end_of_network(f, k);
        set_parameters(n, k, NULL);
        for (int64_t i = 0, *from = first + n->num_types; i < n->num_choices && !failed; i++) {
            const Head *all = n->choices + i;
            int64_t last = end_of_rows(f, k, all->from, all->rows, from[i]);
            Head own = rows_between(all, from[i], last);
            failed = head_forward(&own, d, x), from[i] = last;
        }
        for (int64_t i = 0; i < n->num_means && !failed; i++) {
            Head own = rows_between(n->means + i, begin, end);
            if (own.weight) failed = head_forward(&own, d, n->pooled + begin * d);
        }
    }
    return failed;
}

static int has_gradient(const Head *h) { return h->dsaid || h->dlogprobs || h->dentropies; }

static int heads_backward(Network *n) {
    Frames *f = &n->frames, output = frames_of_output(f);
    float *dx = f->kept_start ? n->dkept : n->dx;
    const float *x = f->kept_start ? n->kept : n->x;
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
        if (!failed) failed = frame_means_backward(&output, dpooled, dx);
        failed = close_regions(room, 1, &size, failed);
    }
    for (int64_t i = 0; i < n->num_choices && !failed; i++)
        if (has_gradient(n->choices + i)) failed = head_backward(n->choices + i, d, x, dx);
    return failed;
}

int network_backward(Network *n) {
    Frames *f = &n->frames;
    float **gradients = new_array(sizeof(float *) * (size_t)f->num_parameters);
    if (!gradients) return NO_MEMORY;
    float *to = n->gradients;
    for (int64_t i = 0; i < f->num_parameters; to += n->sizes[i++]) gradients[i] = n->parameters[i] ? to : NULL;
    set_parameters(n, 0, gradients);
    int failed = heads_backward(n);
    if (!failed) failed = blocks_backward(f, n->parameters, gradients, n->made, n->dx, n->dkept);
    for (int64_t i = 0; i < n->num_types && !failed; i++) failed = embed_backward(n->types + i, f->width, n->clip, n->dx);
    free(gradients);
    return failed;
}
