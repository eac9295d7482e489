/* Attention and pre-norm blocks of a transformer over frames of entities, forward and backward.

   Every frame is taken through all layers while what it makes is in the cache, and without padding. The plain
   way, in torch, is in attention.py and transformer.py; this is the same arithmetic in another order.

   This file is compiled once for each set of instructions, by `blocks_any.c` and its like, which say how its
   functions are called. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "regions.h"

#define INLINE static inline __attribute__((always_inline))
#define MAX_HEAD 64
#define TILE_ROWS 64 /* so many rows go through all layers together */
#define LAYER_NORM_EPS 1e-5f

#define BYTES 32
#define OF(name) name
#include "vectors.h"

INLINE float total(vec x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }
INLINE float largest(vec x) {
    x = larger(x, __builtin_shuffle(x, (ivec){4, 5, 6, 7, 0, 1, 2, 3}));
    x = larger(x, __builtin_shuffle(x, (ivec){2, 3, 0, 1, 6, 7, 4, 5}));
    return x[0] > x[1] ? x[0] : x[1];
}
INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* What has enough numbers in a row uses vectors twice as wide, where there are any. */
#ifdef __AVX512F__
#define BYTES 64
#define OF(name) wide_##name
#include "vectors.h"
#define WIDEST(name) wide_##name
#else
#define WIDEST(name) name
#endif

/* ---- Products of matrices. ---- */

/* c = from + bias + a b: (m, k) times (k, n) with n a multiple of 8. Element (i, k) of a is at
   a[i * a_row + k * a_col]; `from`, of rows, and `bias`, one row, may be NULL; `from` may be c. */
static void product(int64_t m, int64_t n, int64_t k, const float *a, ptrdiff_t a_row, ptrdiff_t a_col,
                    const float *b, ptrdiff_t b_row, const float *from, ptrdiff_t from_row, const float *bias,
                    float *c, ptrdiff_t c_row) {
    int64_t j = 0;
#define ROWS(TILE, COUNT, VECS)                                                                                \
    TILE(COUNT, VECS, k, a + i * a_row, a_row, a_col, b + j, b_row, from ? from + i * from_row + j : NULL,     \
         from_row, bias ? bias + j : NULL, c + i * c_row + j, c_row)
/* All rows of so many vectors of columns, with numbers that the compiler knows. */
#define COLUMNS(TILE, VECS)                                                                                    \
    for (int64_t i = 0; i < m; i += 6) {                                                                       \
        switch (m - i) {                                                                                       \
        case 1: ROWS(TILE, 1, VECS); break;                                                                    \
        case 2: ROWS(TILE, 2, VECS); break;                                                                    \
        case 3: ROWS(TILE, 3, VECS); break;                                                                    \
        case 4: ROWS(TILE, 4, VECS); break;                                                                    \
        case 5: ROWS(TILE, 5, VECS); break;                                                                    \
        default: ROWS(TILE, 6, VECS);                                                                          \
        }                                                                                                      \
    }
#ifdef __AVX512F__
    for (; n - j >= 4 * LANES; j += 4 * LANES) COLUMNS(wide_product_tile, 2)
    for (; n - j >= 2 * LANES; j += 2 * LANES) COLUMNS(wide_product_tile, 1)
#else
    for (; n - j >= 2 * LANES; j += 2 * LANES) COLUMNS(product_tile, 2)
#endif
    if (j < n) COLUMNS(product_tile, 1)
#undef COLUMNS
#undef ROWS
}

static void transpose(int64_t rows, int64_t cols, const float *from, ptrdiff_t from_row, float *to, ptrdiff_t to_row) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) to[j * to_row + i] = from[i * from_row + j];
}

static void add_column_sums(int64_t rows, int64_t cols, const float *x, float *sums) {
    for (int64_t j = 0; j < cols; j += LANES) {
        vec sum = load(sums + j);
        for (int64_t i = 0; i < rows; i++) sum += load(x + i * cols + j);
        store(sums + j, sum);
    }
}

/* The gradients of weight (out, in) and bias of a linear layer: += dy' x and += column sums of dy. */
static void add_linear_gradient(int64_t rows, int64_t in, int64_t out, const float *dy, const float *x,
                                float *weight, float *bias) {
    product(out, in, rows, dy, 1, out, x, in, weight, in, NULL, weight, in);
    add_column_sums(rows, out, dy, bias);
}

/* ---- Layer norm. ---- */

static void layer_norm(int64_t rows, int64_t d, const float *x, const float *weight, const float *bias, float *y,
                       float *stats) {
    for (int64_t i = 0; i < rows; i++, x += d, y += d) {
        vec sum = all(0.0f), squares = all(0.0f);
        for (int64_t j = 0; j < d; j += LANES) sum += load(x + j);
        float mean = total(sum) / (float)d;
        for (int64_t j = 0; j < d; j += LANES) {
            vec from_mean = load(x + j) - mean;
            squares += from_mean * from_mean;
        }
        float scale = 1.0f / sqrtf(total(squares) / (float)d + LAYER_NORM_EPS);
        stats[2 * i] = mean, stats[2 * i + 1] = scale;
        for (int64_t j = 0; j < d; j += LANES)
            store(y + j, (load(x + j) - mean) * scale * load(weight + j) + load(bias + j));
    }
}

/* What `layer_norm` gave, from the statistics that it kept. */
static void layer_norm_again(int64_t rows, int64_t d, const float *x, const float *stats, const float *weight,
                             const float *bias, float *y) {
    for (int64_t i = 0; i < rows; i++, x += d, y += d)
        for (int64_t j = 0; j < d; j += LANES)
            store(y + j, (load(x + j) - stats[2 * i]) * stats[2 * i + 1] * load(weight + j) + load(bias + j));
}

/* dx += what the gradient dy of the norm makes of x; adds to the gradients of weight and bias. */
static void layer_norm_backward(int64_t rows, int64_t d, const float *x, const float *stats, const float *weight,
                                const float *dy, float *dx, float *dweight, float *dbias) {
    for (int64_t i = 0; i < rows; i++, x += d, dy += d, dx += d) {
        float mean = stats[2 * i], scale = stats[2 * i + 1];
        vec sum = all(0.0f), with_x = all(0.0f);
        for (int64_t j = 0; j < d; j += LANES) {
            vec normed = (load(x + j) - mean) * scale, g = load(dy + j), weighted = g * load(weight + j);
            sum += weighted;
            with_x += weighted * normed;
            store(dweight + j, load(dweight + j) + g * normed);
            store(dbias + j, load(dbias + j) + g);
        }
        float mean_g = total(sum) / (float)d, mean_gx = total(with_x) / (float)d;
        for (int64_t j = 0; j < d; j += LANES) {
            vec normed = (load(x + j) - mean) * scale, weighted = load(dy + j) * load(weight + j);
            store(dx + j, load(dx + j) + (weighted - mean_g - normed * mean_gx) * scale);
        }
    }
}

/* ---- Relative positions. ---- */

/* Calls a function of a number of vecs with that number as a constant, so that vectors stay in registers. */
#define BY_WIDTH(function, vecs, ...)                                                                          \
    switch (vecs) {                                                                                            \
    case 1: function(1, __VA_ARGS__); break;                                                                   \
    case 2: function(2, __VA_ARGS__); break;                                                                   \
    case 4: function(4, __VA_ARGS__); break;                                                                   \
    default: function(vecs, __VA_ARGS__);                                                                      \
    }

/* The sum over the corners of a pair of weight times row of a table: 8 * vecs numbers. */
INLINE void pair_vector(int64_t vecs, const PairRows *of, int64_t pair, vec *sum) {
    const int32_t *rows = of->rows + pair * of->corners;
    const float *weights = of->weights ? of->weights + pair * of->corners : NULL;
    for (int64_t j = 0; j < vecs; j++) {
        sum[j] = load(of->table + rows[0] * vecs * LANES + j * LANES);
        if (weights) sum[j] *= weights[0];
    }
    for (int64_t c = 1; c < of->corners; c++)
        for (int64_t j = 0; j < vecs; j++)
            sum[j] += weights[c] * load(of->table + rows[c] * vecs * LANES + j * LANES);
}

INLINE void add_to_rows(int64_t vecs, const PairRows *of, int64_t pair, const vec *x) {
    const int32_t *rows = of->rows + pair * of->corners;
    const float *weights = of->weights ? of->weights + pair * of->corners : NULL;
    for (int64_t c = 0; c < of->corners; c++) {
        float *row = of->table_grad + rows[c] * vecs * LANES;
        float weight = weights ? weights[c] : 1.0f;
        for (int64_t j = 0; j < vecs; j++) store(row + j * LANES, load(row + j * LANES) + weight * x[j]);
    }
}

INLINE vec gated(vec x, const float *gate, int64_t j) { return gate ? x * load(gate + j * LANES) : x; }

/* ---- Attention in one frame of n entities. ---- */

typedef struct {
    int64_t n, d, e, heads, first_pair;
    float scale;
    const uint8_t *visible;
} Frame;

static Frame frame_of(const Frames *f, int64_t i) {
    int64_t start = f->row_start[i], e = f->width / f->heads;
    return (Frame){f->row_start[i + 1] - start, f->width, e, f->heads, f->pair_start ? f->pair_start[i] : 0,
                   1.0f / sqrtf((float)e), f->visible ? f->visible + start : NULL};
}

/* scores (H, n, padded n) += query . key of the pair */
INLINE void add_relative_scores(int64_t vecs, const Frames *f, const Frame *o, const float *qkv, float *scores) {
    int64_t n = o->n, width = padded(n), e = vecs * LANES;
    vec key[MAX_HEAD / LANES];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            pair_vector(vecs, &f->keys, o->first_pair + i * n + j, key);
            for (int64_t h = 0; h < o->heads; h++) {
                const float *query = qkv + i * 3 * o->d + h * e;
                vec sum = load(query) * key[0];
                for (int64_t k = 1; k < vecs; k++) sum += load(query + k * LANES) * key[k];
                scores[(h * n + i) * width + j] += total(sum);
            }
        }
}

/* y (n, d) += sum over targets of attention * gate of the target * value of the pair */
INLINE void add_relative_values(int64_t vecs, const Frames *f, const Frame *o, const float *attention,
                                const float *gate, float *y) {
    int64_t n = o->n, width = padded(n), e = vecs * LANES;
    vec value[MAX_HEAD / LANES];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            pair_vector(vecs, &f->values, o->first_pair + i * n + j, value);
            for (int64_t k = 0; k < vecs; k++) {
                vec x = gated(value[k], gate ? gate + j * e : NULL, k);
                for (int64_t h = 0; h < o->heads; h++) {
                    float *out = y + i * o->d + h * e + k * LANES;
                    store(out, load(out) + attention[(h * n + i) * width + j] * x);
                }
            }
        }
}

/* Softmax over the targets of scaled scores, in place; what may not be seen and the padding become 0. */
static void softmax(const Frame *o, float *scores) {
    int64_t n = o->n, width = padded(n);
    for (int64_t row = 0; row < o->heads * n; row++, scores += width) {
        for (int64_t j = n; j < width; j++) scores[j] = -INFINITY;
        if (o->visible && o->visible[row % n])
            for (int64_t j = 0; j < n; j++)
                if (!o->visible[j]) scores[j] = -INFINITY;
        vec most = load(scores), sum = all(0.0f);
        for (int64_t j = LANES; j < width; j += LANES) most = larger(most, load(scores + j));
        float top = largest(most);
        int64_t j = 0;
        for (; width - j >= WIDEST(LANES); j += WIDEST(LANES))
            WIDEST(store)(scores + j, WIDEST(weight_of_score)(WIDEST(load)(scores + j), top, o->scale));
        for (; j < width; j += LANES) store(scores + j, weight_of_score(load(scores + j), top, o->scale));
        for (j = 0; j < width; j += LANES) sum += load(scores + j);
        float share = 1.0f / total(sum);
        for (int64_t j = 0; j < width; j += LANES) store(scores + j, load(scores + j) * share);
    }
}

/* qkv (n, 3 d) and gate (n, e) or NULL -> attention (H, n, padded n) and y (n, d); `spare` has e * padded n. */
static void attend(const Frames *f, int64_t i, const float *qkv, const float *gate, float *attention, float *y,
                   float *spare) {
    Frame o = frame_of(f, i);
    int64_t n = o.n, d = o.d, e = o.e, width = padded(n);
    if (n == 0) return;
    for (int64_t k = 0; k < e; k++)
        for (int64_t j = n; j < width; j++) spare[k * width + j] = 0.0f;
    for (int64_t h = 0; h < o.heads; h++) {
        transpose(n, e, qkv + d + h * e, 3 * d, spare, width);
        product(n, width, e, qkv + h * e, 3 * d, 1, spare, width, NULL, 0, NULL, attention + h * n * width, width);
    }
    if (f->pair_start) BY_WIDTH(add_relative_scores, e / LANES, f, &o, qkv, attention);
    softmax(&o, attention);
    for (int64_t h = 0; h < o.heads; h++)
        product(n, e, n, attention + h * n * width, width, 1, qkv + 2 * d + h * e, 3 * d, NULL, 0, NULL, y + h * e, d);
    if (f->pair_start) BY_WIDTH(add_relative_values, e / LANES, f, &o, attention, gate, y);
}

/* scores' gradient (H, n, padded n) += dy . gated value; adds to the gradients of the table of values and the gate */
INLINE void relative_values_backward(int64_t vecs, const Frames *f, const Frame *o, const float *attention,
                                     const float *gate, const float *dy, float *dscores, float *dgate) {
    int64_t n = o->n, width = padded(n), e = vecs * LANES;
    vec value[MAX_HEAD / LANES], sum[MAX_HEAD / LANES];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t pair = o->first_pair + i * n + j;
            const float *gate_j = gate ? gate + j * e : NULL;
            pair_vector(vecs, &f->values, pair, value);
            for (int64_t k = 0; k < vecs; k++) sum[k] = all(0.0f);
            for (int64_t h = 0; h < o->heads; h++) {
                const float *g = dy + i * o->d + h * e;
                float weight = attention[(h * n + i) * width + j];
                vec dot = all(0.0f);
                for (int64_t k = 0; k < vecs; k++) {
                    vec g_k = load(g + k * LANES);
                    dot += g_k * gated(value[k], gate_j, k);
                    sum[k] += weight * g_k;
                }
                dscores[(h * n + i) * width + j] += total(dot);
            }
            for (int64_t k = 0; k < vecs && gate; k++) {
                float *to = dgate + j * e + k * LANES;
                store(to, load(to) + sum[k] * value[k]);
                sum[k] = gated(sum[k], gate_j, k);
            }
            add_to_rows(vecs, &f->values, pair, sum);
        }
}

/* dqkv's queries += dscores * key; adds to the gradient of the table of keys */
INLINE void relative_scores_backward(int64_t vecs, const Frames *f, const Frame *o, const float *qkv,
                                     const float *dscores, float *dqkv) {
    int64_t n = o->n, width = padded(n), e = vecs * LANES;
    vec key[MAX_HEAD / LANES], sum[MAX_HEAD / LANES];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t pair = o->first_pair + i * n + j;
            pair_vector(vecs, &f->keys, pair, key);
            for (int64_t k = 0; k < vecs; k++) sum[k] = all(0.0f);
            for (int64_t h = 0; h < o->heads; h++) {
                int64_t at = i * 3 * o->d + h * e;
                float g = dscores[(h * n + i) * width + j];
                for (int64_t k = 0; k < vecs; k++) {
                    sum[k] += g * load(qkv + at + k * LANES);
                    store(dqkv + at + k * LANES, load(dqkv + at + k * LANES) + g * key[k]);
                }
            }
            add_to_rows(vecs, &f->keys, pair, sum);
        }
}

/* dy (n, d) -> dqkv (n, 3 d); dgate (n, e) is added to. `spare` has (e + H * n) * padded n. */
static void attend_backward(const Frames *f, int64_t i, const float *qkv, const float *gate, const float *attention,
                            const float *dy, float *dqkv, float *dgate, float *spare) {
    Frame o = frame_of(f, i);
    int64_t n = o.n, d = o.d, e = o.e, width = padded(n);
    if (n == 0) return;
    float *dscores = spare + e * width;
    for (int64_t k = 0; k < e; k++)
        for (int64_t j = n; j < width; j++) spare[k * width + j] = 0.0f;
    for (int64_t h = 0; h < o.heads; h++) {
        transpose(n, e, qkv + 2 * d + h * e, 3 * d, spare, width);
        product(n, width, e, dy + h * e, d, 1, spare, width, NULL, 0, NULL, dscores + h * n * width, width);
        product(n, e, n, attention + h * n * width, 1, width, dy + h * e, d, NULL, 0, NULL, dqkv + 2 * d + h * e, 3 * d);
    }
    if (f->pair_start) BY_WIDTH(relative_values_backward, e / LANES, f, &o, attention, gate, dy, dscores, dgate);
    for (int64_t row = 0; row < o.heads * n; row++) {
        const float *p = attention + row * width;
        float *g = dscores + row * width;
        vec dot = all(0.0f);
        for (int64_t j = 0; j < width; j += LANES) dot += load(p + j) * load(g + j);
        float mean = total(dot);
        for (int64_t j = 0; j < width; j += LANES) store(g + j, load(p + j) * (load(g + j) - mean) * o.scale);
    }
    for (int64_t h = 0; h < o.heads; h++) {
        const float *g = dscores + h * n * width;
        product(n, e, n, g, width, 1, qkv + d + h * e, 3 * d, NULL, 0, NULL, dqkv + h * e, 3 * d);
        product(n, e, n, g, 1, width, qkv + h * e, 3 * d, NULL, 0, NULL, dqkv + d + h * e, 3 * d);
    }
    if (f->pair_start) BY_WIDTH(relative_scores_backward, e / LANES, f, &o, qkv, dscores, dqkv);
}

static int64_t longest(const Frames *f) {
    int64_t most = 0;
    for (int64_t i = 0; i < f->num_frames; i++) {
        int64_t n = f->row_start[i + 1] - f->row_start[i];
        most = n > most ? n : most;
    }
    return most;
}

static int64_t spare_of_frame(const Frames *f) {
    int64_t n = longest(f);
    return (f->width / f->heads + f->heads * n) * padded(n);
}

/* Attention alone, of all frames: see `attend`. Returns 0, NO_MEMORY or OVERRUN. */
int NAME(attention_forward)(const Frames *f, const float *qkv, const float *gate, float *attention, float *y) {
    int64_t d = f->width, e = d / f->heads;
    int64_t size = spare_of_frame(f);
    float *spare, *room = open_regions(1, &size, &spare);
    if (!room) return NO_MEMORY;
    for (int64_t i = 0; i < f->num_frames; i++) {
        int64_t row = f->row_start[i];
        attend(f, i, qkv + row * 3 * d, gate ? gate + row * e : NULL, attention + f->score_start[i], y + row * d, spare);
    }
    return close_regions(room, 1, &size, 0);
}

/* See `attend_backward`; dgate must be zero where there is a gate. */
int NAME(attention_backward)(const Frames *f, const float *qkv, const float *gate, const float *attention,
                             const float *dy, float *dqkv, float *dgate) {
    int64_t d = f->width, e = d / f->heads;
    int64_t size = spare_of_frame(f);
    float *spare, *room = open_regions(1, &size, &spare);
    if (!room) return NO_MEMORY;
    for (int64_t i = 0; i < f->num_frames; i++) {
        int64_t row = f->row_start[i];
        attend_backward(f, i, qkv + row * 3 * d, gate ? gate + row * e : NULL, attention + f->score_start[i],
                        dy + row * d, dqkv + row * 3 * d, gate ? dgate + row * e : NULL, spare);
    }
    return close_regions(room, 1, &size, 0);
}

/* The mean over the rows of each frame of x (R, d); zero for an empty frame. */
int NAME(frame_means)(const Frames *f, const float *x, float *means) {
    int64_t d = f->width;
    for (int64_t i = 0; i < f->num_frames; i++, means += d) {
        int64_t n = f->row_start[i + 1] - f->row_start[i];
        float share = n ? 1.0f / (float)n : 0.0f;
        for (int64_t j = 0; j < d; j += LANES) {
            const float *from = x + f->row_start[i] * d + j;
            vec sum = all(0.0f);
            for (int64_t row = 0; row < n; row++) sum += load(from + row * d);
            store(means + j, sum * share);
        }
    }
    return 0;
}

/* dx (R, d) += what the gradient of the means makes of it. */
int NAME(frame_means_backward)(const Frames *f, const float *dmeans, float *dx) {
    int64_t d = f->width;
    for (int64_t i = 0; i < f->num_frames; i++, dmeans += d) {
        int64_t n = f->row_start[i + 1] - f->row_start[i];
        float share = n ? 1.0f / (float)n : 0.0f;
        for (int64_t row = 0; row < n; row++)
            for (int64_t j = 0; j < d; j += LANES) {
                float *to = dx + (f->row_start[i] + row) * d + j;
                store(to, load(to) + load(dmeans + j) * share);
            }
    }
    return 0;
}

/* ---- Heads. ---- */

/* Logits (n,) become log-probabilities, -inf where the mask is 0: the entropy. */
static float log_softmax(int64_t n, const uint8_t *mask, float *x) {
    float top = -INFINITY, sum = 0.0f, entropy = 0.0f;
    for (int64_t c = 0; c < n; c++) {
        if (mask && !mask[c]) x[c] = -INFINITY;
        top = x[c] > top ? x[c] : top;
    }
    for (int64_t c = 0; c < n; c++) sum += expf(x[c] - top);
    float rest = top + logf(sum);
    for (int64_t c = 0; c < n; c++) {
        x[c] -= rest;
        if (x[c] != -INFINITY) entropy -= expf(x[c]) * x[c];
    }
    return entropy;
}

static int64_t most_probable(int64_t n, const float *log_probs) {
    int64_t best = 0;
    for (int64_t c = 1; c < n; c++)
        if (log_probs[c] > log_probs[best]) best = c;
    return best;
}

/* By inverting the distribution: the first choice at which the sum of probabilities exceeds a part of the whole. */
static int64_t drawn(int64_t n, const float *log_probs, float uniform) {
    float whole = 0.0f, sum = 0.0f;
    for (int64_t c = 0; c < n; c++) whole += expf(log_probs[c]);
    for (int64_t c = 0; c < n; c++) {
        float p = expf(log_probs[c]);
        sum += p;
        if (p > 0.0f && sum > uniform * whole) return c;
    }
    return 0;
}

/* Returns 0, or OUT_OF_RANGE if there is no such row, no such choice, or nothing to choose from. */
int NAME(head_forward)(const Head *h, int64_t d, const float *x) {
    if (h->kind == CHOICE_HEAD && h->width < 1 && h->rows > 0) return OUT_OF_RANGE;
    for (int64_t i = 0; i < h->rows; i++) {
        int64_t from = h->from ? h->from[i] : i;
        if (from < 0 || from >= h->x_rows) return OUT_OF_RANGE;
        if (h->given && (h->given[i] < 0 || h->given[i] >= h->width)) return OUT_OF_RANGE;
        const float *row = x + from * d;
        float *said = h->said + i * h->width;
        for (int64_t c = 0; c < h->width; c++) {
            vec sum = load(row) * load(h->weight + c * d);
            for (int64_t j = LANES; j < d; j += LANES) sum += load(row + j) * load(h->weight + c * d + j);
            said[c] = total(sum) + h->bias[c];
        }
        if (h->kind == LINEAR_HEAD) continue;
        float entropy = log_softmax(h->width, h->mask ? h->mask + i * h->width : NULL, said);
        int64_t choice;
        if (h->given) choice = h->given[i];
        else if (h->uniforms) choice = drawn(h->width, said, h->uniforms[i]);
        else choice = most_probable(h->width, said);
        if (h->chosen) h->chosen[i] = choice;
        h->logprobs[i] = said[choice];
        h->entropies[i] = entropy;
    }
    return 0;
}

/* Adds to dx, the gradient of x, and to those of the parameters. Returns 0, NO_MEMORY or OVERRUN. */
int NAME(head_backward)(const Head *h, int64_t d, const float *x, float *dx) {
    float *g, *room = open_regions(1, &h->width, &g);
    if (!room) return NO_MEMORY;
    for (int64_t i = 0; i < h->rows; i++) {
        int64_t at = (h->from ? h->from[i] : i) * d;
        const float *said = h->said + i * h->width;
        for (int64_t c = 0; c < h->width; c++) g[c] = h->dsaid ? h->dsaid[i * h->width + c] : 0.0f;
        if (h->kind == CHOICE_HEAD) {
            int64_t choice = h->given ? h->given[i] : h->chosen[i];
            float sum = 0.0f;
            if (h->dlogprobs) g[choice] += h->dlogprobs[i];
            for (int64_t c = 0; c < h->width; c++) {
                if (h->dentropies && said[c] != -INFINITY) g[c] -= h->dentropies[i] * expf(said[c]) * (said[c] + 1.0f);
                sum += g[c];
            }
            for (int64_t c = 0; c < h->width; c++)
                g[c] = h->mask && !h->mask[i * h->width + c] ? 0.0f : g[c] - expf(said[c]) * sum;
        }
        for (int64_t c = 0; c < h->width; c++) {
            float *weight_grad = h->weight_grad + c * d;
            for (int64_t j = 0; j < d; j += LANES) {
                store(dx + at + j, load(dx + at + j) + g[c] * load(h->weight + c * d + j));
                store(weight_grad + j, load(weight_grad + j) + g[c] * load(x + at + j));
            }
            h->bias_grad[c] += g[c];
        }
    }
    return close_regions(room, 1, &h->width, 0);
}

/* ---- Embedding. ---- */

/* Rows of a type, normalised and clipped, `rows` from `first` on. */
static void normalised(const Embedding *t, int64_t first, int64_t rows, float clip, float *to) {
    const float *x = t->x + first * t->features;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < t->features; k++, x++, to++) {
            float value = (*x - t->mean[k]) / t->std[k];
            *to = value < -clip ? -clip : value > clip ? clip : value;
        }
}

/* The sum of the vectors of each row's labels, `rows` from `first` on: (rows, d). Returns 0, or OUT_OF_RANGE. */
static int label_sums(const Embedding *t, int64_t first, int64_t rows, int64_t d, float *to) {
    const int64_t *label = t->label_rows + first * t->kinds;
    memset(to, 0, sizeof(float) * (size_t)(rows * d));
    for (int64_t i = 0; i < rows; i++, to += d)
        for (int64_t k = 0; k < t->kinds; k++, label++) {
            if (*label < 0 || *label >= t->num_labels) return OUT_OF_RANGE;
            const float *vector = t->labels + *label * d;
            for (int64_t j = 0; j < d; j += LANES) store(to + j, load(to + j) + load(vector + j));
        }
    return 0;
}

/* The gradient of the vectors of labels += that of the rows' sums, dx (rows, d). */
static void label_sums_backward(const Embedding *t, int64_t first, int64_t rows, int64_t d, const float *dx) {
    const int64_t *label = t->label_rows + first * t->kinds;
    for (int64_t i = 0; i < rows; i++, dx += d)
        for (int64_t k = 0; k < t->kinds; k++, label++) {
            float *to = t->labels_grad + *label * d;
            for (int64_t j = 0; j < d; j += LANES) store(to + j, load(to + j) + load(dx + j));
        }
}

/* All rows of a type: normalised, projected, labels added, rectified and normalised again, each to its place in
   out (R, d); `hidden` (n, d) and `stats` (n, 2) are kept. A type without features and kinds has the same row
   everywhere. Returns 0, NO_MEMORY, OVERRUN, or OUT_OF_RANGE if there is no such label. */
int NAME(embed_forward)(const Embedding *t, int64_t d, float clip, float *out) {
    if (is_one_vector(t)) {
        for (int64_t i = 0; i < t->rows; i++) memcpy(out + t->to[i] * d, t->bias, sizeof(float) * (size_t)d);
        return 0;
    }
    enum { WEIGHT, X, Y, REGIONS };
    const int64_t region_sizes[REGIONS] = {t->features * d, t->features * TILE_ROWS, TILE_ROWS * d};
    float *at[REGIONS], *room = open_regions(REGIONS, region_sizes, at);
    if (!room) return NO_MEMORY;
    float *weight = at[WEIGHT], *x = at[X], *y = at[Y];
    transpose(d, t->features, t->weight, t->features, weight, d);
    for (int64_t first = 0; first < t->rows; first += TILE_ROWS) {
        int64_t rows = t->rows - first < TILE_ROWS ? t->rows - first : TILE_ROWS;
        float *hidden = t->hidden + first * d, *labels = t->kinds ? hidden : NULL;
        if (labels && label_sums(t, first, rows, d, labels))
            return close_regions(room, REGIONS, region_sizes, OUT_OF_RANGE);
        normalised(t, first, rows, clip, x);
        product(rows, d, t->features, x, t->features, 1, weight, d, labels, d, t->bias, hidden, d);
        for (int64_t i = 0; i < rows * d; i += LANES) store(hidden + i, larger(load(hidden + i), all(0.0f)));
        layer_norm(rows, d, hidden, t->norm_weight, t->norm_bias, y, t->stats + 2 * first);
        for (int64_t i = 0; i < rows; i++) memcpy(out + t->to[first + i] * d, y + i * d, sizeof(float) * (size_t)d);
    }
    return close_regions(room, REGIONS, region_sizes, 0);
}

/* The gradients of a type's parameters, from that of all rows dout (R, d): they are added to. */
int NAME(embed_backward)(const Embedding *t, int64_t d, float clip, const float *dout) {
    enum { DWEIGHT, X, DY, DX, REGIONS };
    const int64_t region_sizes[REGIONS] = {t->features * d, t->features * TILE_ROWS, TILE_ROWS * d, TILE_ROWS * d};
    float *at[REGIONS], *room = open_regions(REGIONS, region_sizes, at);
    if (!room) return NO_MEMORY;
    float *dweight = at[DWEIGHT], *x = at[X], *dy = at[DY], *dx = at[DX];
    memset(dweight, 0, sizeof(float) * (size_t)(t->features * d));
    for (int64_t first = 0; first < t->rows; first += TILE_ROWS) {
        int64_t rows = t->rows - first < TILE_ROWS ? t->rows - first : TILE_ROWS;
        for (int64_t i = 0; i < rows; i++) memcpy(dy + i * d, dout + t->to[first + i] * d, sizeof(float) * (size_t)d);
        if (is_one_vector(t)) {
            add_column_sums(rows, d, dy, t->bias_grad);
            continue;
        }
        const float *hidden = t->hidden + first * d;
        memset(dx, 0, sizeof(float) * (size_t)(rows * d));
        layer_norm_backward(rows, d, hidden, t->stats + 2 * first, t->norm_weight, dy, dx, t->norm_weight_grad,
                            t->norm_bias_grad);
        for (int64_t i = 0; i < rows * d; i += LANES)
            store(dx + i, choose(load(hidden + i) > all(0.0f), load(dx + i), all(0.0f)));
        normalised(t, first, rows, clip, x);
        product(t->features, d, rows, x, 1, t->features, dx, d, dweight, d, NULL, dweight, d);
        add_column_sums(rows, d, dx, t->bias_grad);
        if (t->kinds) label_sums_backward(t, first, rows, d, dx);
    }
    for (int64_t i = 0; i < d; i++)
        for (int64_t k = 0; k < t->features; k++) t->weight_grad[i * t->features + k] += dweight[k * d + i];
    return close_regions(room, REGIONS, region_sizes, 0);
}

/* ---- Blocks. ---- */

typedef struct {
    const float *norm_1_weight, *norm_1_bias, *qkv_weight, *qkv_bias, *project_weight, *project_bias,
        *norm_2_weight, *norm_2_bias, *up_weight, *up_bias, *down_weight, *down_bias;
} Layer;

typedef struct {
    float *norm_1_weight, *norm_1_bias, *qkv_weight, *qkv_bias, *project_weight, *project_bias, *norm_2_weight,
        *norm_2_bias, *up_weight, *up_bias, *down_weight, *down_bias;
} LayerGradient;

/* What a layer makes of some rows, and what its gradient is computed from. */
typedef struct {
    float *x, *stats_1, *qkv, *gate_in, *attention, *y, *middle, *stats_2, *hidden;
} Made;

enum { MADE_REGIONS = sizeof(Made) / sizeof(float *) };

/* Floats of each array of `Made`, in its order, of some rows and scores. */
static void sizes_made(const Frames *f, int64_t rows, int64_t scores, int64_t *sizes) {
    int64_t d = f->width, e = d / f->heads;
    const int64_t of_rows[MADE_REGIONS] = {
        rows * d, rows * 2, rows * 3 * d, rows * e, scores, rows * d, rows * d, rows * 2, rows * 4 * d};
    memcpy(sizes, of_rows, sizeof of_rows);
}

static int64_t floats_made(const Frames *f, int64_t rows, int64_t scores) {
    int64_t sizes[MADE_REGIONS];
    sizes_made(f, rows, scores, sizes);
    return floats_of_regions(MADE_REGIONS, sizes);
}

/* The arrays of a layer in memory for all rows and scores. */
static Made made_of_layer(const Frames *f, float *memory, int64_t layer) {
    int64_t sizes[MADE_REGIONS], rows = f->row_start[f->num_frames], scores = f->score_start[f->num_frames];
    Made made;
    sizes_made(f, rows, scores, sizes);
    cut_regions(memory + layer * floats_made(f, rows, scores), MADE_REGIONS, sizes, (float **)&made);
    return made;
}

/* Set the guards of all layers, or check them: 1 if they hold. */
static int guards_of_layers(const Frames *f, float *memory, int is_set) {
    int64_t sizes[MADE_REGIONS], rows = f->row_start[f->num_frames], scores = f->score_start[f->num_frames];
    sizes_made(f, rows, scores, sizes);
    for (int64_t l = 0; l < f->layers; l++, memory += floats_made(f, rows, scores)) {
        if (is_set) set_guards(memory, MADE_REGIONS, sizes);
        else if (!guards_hold(memory, MADE_REGIONS, sizes)) return 0;
    }
    return 1;
}

/* `kept_start` of the frames in a layer: all rows come out of those before the last one. */
static const int64_t *kept_after(const Frames *f, int64_t layer) { return layer == f->layers - 1 ? f->kept_start : NULL; }

/* The arrays from a frame on. From `y` on, the last layer has those rows alone that come out. */
static Made made_from(const Frames *f, Made m, int64_t layer, int64_t frame) {
    int64_t d = f->width, e = d / f->heads, row = f->row_start[frame], score = f->score_start[frame];
    int64_t kept = kept_after(f, layer) ? f->kept_start[frame] : row;
    return (Made){m.x + row * d,       m.stats_1 + row * 2,  m.qkv + row * 3 * d,
                  m.gate_in + row * e, m.attention + score,  m.y + kept * d,
                  m.middle + kept * d, m.stats_2 + kept * 2, m.hidden + kept * 4 * d};
}

INLINE void gate_and_slope(int64_t kind, vec x, vec *value, vec *slope) {
    vec one = all(1.0f), zero = all(0.0f), p, density;
    switch (kind) {
    case RELU_GATE: *value = larger(x, zero), *slope = choose(x > zero, one, zero); break;
    case GELU_GATE: normal(x, &p, &density), *value = x * p, *slope = p + x * density; break;
    case SIGMOID_GATE: p = one / (one + exponential(smaller(-x, all(88.0f)))), *value = p, *slope = p * (one - p); break;
    default: *value = x, *slope = one;
    }
}

static void gates_of(int64_t kind, int64_t count, const float *x, float *gate) {
    vec value, slope;
    for (int64_t i = 0; i < count; i += LANES) {
        gate_and_slope(kind, load(x + i), &value, &slope);
        store(gate + i, value);
    }
}

static int64_t network_of(const Frames *f, int64_t frame) {
    int64_t network = 0;
    while (network < f->num_networks - 1 && frame >= f->first_frame[network + 1]) network++;
    return network;
}

/* The first frame behind a tile of `TILE_ROWS` rows, or of one frame; `end` at most. A tile is of one network. */
static int64_t end_of_tile(const Frames *f, int64_t first, int64_t end) {
    int64_t last = first + 1;
    if (f->first_frame) {
        int64_t of_network = f->first_frame[network_of(f, first) + 1];
        end = of_network < end ? of_network : end;
    }
    while (last < end && f->row_start[last + 1] - f->row_start[first] <= TILE_ROWS) last++;
    return last;
}

static int64_t most_rows_of_tile(const Frames *f) {
    int64_t n = longest(f);
    return n > TILE_ROWS ? n : TILE_ROWS;
}

/* The most scores of a tile, where frames `begin` to `end` are cut into tiles. Tiles begin anew in each part. */
static int64_t most_scores_of_tile(const Frames *f, int64_t begin, int64_t end) {
    int64_t most = 0;
    for (int64_t first = begin, last; first < end; first = last) {
        last = end_of_tile(f, first, end);
        int64_t scores = f->score_start[last] - f->score_start[first];
        most = scores > most ? scores : most;
    }
    return most;
}

/* Matrices with the inputs of a linear layer as rows, which is how products take them. */
typedef struct {
    float *qkv, *project, *up, *down, *gate;
} Transposed;

static int64_t floats_transposed(const Frames *f) {
    return 12 * f->width * f->width * f->layers + f->width * f->width / f->heads;
}

static void transposed_weights(const Frames *f, const Layer *layers, float *at, Transposed *to) {
    int64_t d = f->width, e = d / f->heads;
    float *gate = at;
    at += d * e;
    if (f->gate_kind != NO_GATE) transpose(e, d, f->gate_weight, d, gate, e);
    for (int64_t l = 0; l < f->layers; l++) {
        to[l] = (Transposed){at, at + 3 * d * d, at + 4 * d * d, at + 8 * d * d, gate};
        at += 12 * d * d;
        transpose(3 * d, d, layers[l].qkv_weight, d, to[l].qkv, 3 * d);
        transpose(d, d, layers[l].project_weight, d, to[l].project, d);
        transpose(4 * d, d, layers[l].up_weight, d, to[l].up, 4 * d);
        transpose(d, 4 * d, layers[l].down_weight, 4 * d, to[l].down, d);
    }
}

/* Copy the rows that come out of frames `first` to `last`, from all of them to one after the other. */
static void gather_kept(const Frames *f, int64_t first, int64_t last, const float *all, float *kept) {
    int64_t d = f->width;
    for (int64_t i = first; i < last; i++)
        memmove(kept + (f->kept_start[i] - f->kept_start[first]) * d, all + (f->row_start[i] - f->row_start[first]) * d,
                sizeof(float) * (size_t)((f->kept_start[i + 1] - f->kept_start[i]) * d));
}

/* The other way round; rows that do not come out become 0. They may be in the same place. */
static void scatter_kept(const Frames *f, int64_t first, int64_t last, const float *kept, float *all) {
    int64_t d = f->width;
    for (int64_t i = last; i-- > first;) {
        int64_t count = f->kept_start[i + 1] - f->kept_start[i], row = f->row_start[i] - f->row_start[first];
        memmove(all + row * d, kept + (f->kept_start[i] - f->kept_start[first]) * d, sizeof(float) * (size_t)(count * d));
        memset(all + (row + count) * d, 0, sizeof(float) * (size_t)((f->row_start[i + 1] - f->row_start[i] - count) * d));
    }
}

/* One layer over the rows of some frames: m.x is there, the rest of m is made, and x is what comes out; or `kept`, if
   not all rows do, as `f->kept_start` says.
   `normed` has room for rows of d, `wide` for rows of 4 d. */
static void block(const Frames *f, int64_t first, int64_t last, const Layer *w, const Transposed *t, Made m,
                  float *x, float *kept, float *normed, float *wide, float *spare) {
    int64_t d = f->width, e = d / f->heads, start = f->row_start[first], rows = f->row_start[last] - start;
    float *gate = f->gate_kind == NO_GATE ? NULL : wide;
    layer_norm(rows, d, m.x, w->norm_1_weight, w->norm_1_bias, normed, m.stats_1);
    product(rows, 3 * d, d, normed, d, 1, t->qkv, 3 * d, NULL, 0, w->qkv_bias, m.qkv, 3 * d);
    if (gate) {
        product(rows, e, d, normed, d, 1, t->gate, e, NULL, 0, f->gate_bias, m.gate_in, e);
        gates_of(f->gate_kind, rows * e, m.gate_in, gate);
    }
    float *y = f->kept_start ? normed : m.y;
    for (int64_t i = first; i < last; i++) {
        int64_t row = f->row_start[i] - start;
        attend(f, i, m.qkv + row * 3 * d, gate ? gate + row * e : NULL,
               m.attention + f->score_start[i] - f->score_start[first], y + row * d, spare);
    }
    if (f->kept_start) {
        gather_kept(f, first, last, y, m.y);
        gather_kept(f, first, last, m.x, kept);
        rows = f->kept_start[last] - f->kept_start[first], x = kept;
    }
    const float *from = f->kept_start ? kept : m.x;
    product(rows, d, d, m.y, d, 1, t->project, d, from, d, w->project_bias, m.middle, d);
    layer_norm(rows, d, m.middle, w->norm_2_weight, w->norm_2_bias, normed, m.stats_2);
    product(rows, 4 * d, d, normed, d, 1, t->up, 4 * d, NULL, 0, w->up_bias, m.hidden, 4 * d);
    for (int64_t i = 0; i < rows * 4 * d; i += WIDEST(LANES))
        WIDEST(store)(wide + i, WIDEST(gelu)(WIDEST(load)(m.hidden + i)));
    product(rows, d, 4 * d, wide, 4 * d, 1, t->down, d, m.middle, d, w->down_bias, x, d);
}

/* How many numbers `blocks_forward` makes for the backward pass. */
int64_t NAME(blocks_made)(const Frames *f) {
    return f->layers * floats_made(f, f->row_start[f->num_frames], f->score_start[f->num_frames]);
}

/* The first frame of a part. */
static int64_t start_of_part(const Frames *f, int64_t part) {
    int64_t row = f->row_start[f->num_frames] * part / f->parts, low = 0, high = f->num_frames;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (f->row_start[middle] < row) low = middle + 1;
        else high = middle;
    }
    return part == f->parts ? f->num_frames : low;
}

/* The frames with what one of the networks adds to them. */
static Frames frames_of_network(const Frames *f, const float *const *parameters) {
    Frames own = *f;
    own.keys.table = parameters[0], own.values.table = parameters[1];
    own.gate_weight = parameters[2], own.gate_bias = parameters[3];
    return own;
}

typedef struct {
    const Frames *f;
    const float *const *parameters;
    const Transposed *transposed;
    float *x, *kept, *made;
} Forward;

static int part_forward(const void *task, int64_t part) {
    const Forward *o = task;
    const Frames *f = o->f;
    int64_t d = f->width, rows = most_rows_of_tile(f);
    int64_t begin = start_of_part(f, part), end = start_of_part(f, part + 1);
    /* Without a backward pass, layers and tiles make what they make in the same place, one after the other. */
    enum { NORMED = MADE_REGIONS, WIDE, SPARE, REGIONS };
    int64_t sizes[REGIONS] = {[NORMED] = rows * d, [WIDE] = rows * 4 * d, [SPARE] = spare_of_frame(f)};
    if (!o->made) sizes_made(f, rows, most_scores_of_tile(f, begin, end), sizes);
    float *at[REGIONS], *room = open_regions(REGIONS, sizes, at);
    if (!room) return NO_MEMORY;
    for (int64_t first = begin, last; first < end; first = last) {
        last = end_of_tile(f, first, end);
        int64_t row = f->row_start[first];
        float *x = o->x + row * d;
        size_t bytes = sizeof(float) * (size_t)((f->row_start[last] - row) * d);
        int64_t network = network_of(f, first);
        const float *const *parameters = o->parameters + network * f->num_parameters;
        const Layer *layers = (const Layer *)(parameters + BEFORE_BLOCKS);
        const Transposed *transposed = o->transposed + network * f->layers;
        Frames own = frames_of_network(f, parameters);
        for (int64_t l = 0; l < f->layers; l++) {
            Made m;
            if (o->made) m = made_from(f, made_of_layer(f, o->made, l), l, first);
            else memcpy(&m, at, sizeof m);
            own.kept_start = kept_after(f, l);
            float *kept = own.kept_start ? o->kept + f->kept_start[first] * d : NULL;
            memcpy(m.x, x, bytes);
            block(&own, first, last, layers + l, transposed + l, m, x, kept, at[NORMED], at[WIDE], at[SPARE]);
        }
    }
    return close_regions(room, REGIONS, sizes, 0);
}

/* The layers, over (R, d) x, in place. `kept` takes the rows that come out, if not all do. `made` takes what the
   backward pass needs, layer after layer; NULL for no backward pass. Returns 0, NO_MEMORY or OVERRUN. */
int NAME(blocks_forward)(const Frames *f, const float *const *parameters, float *x, float *kept, float *made) {
    Transposed transposed[f->num_networks * f->layers + 1];
    int64_t of_network = floats_transposed(f), size = f->num_networks * of_network;
    float *weights, *room = open_regions(1, &size, &weights);
    if (!room) return NO_MEMORY;
    for (int64_t k = 0; k < f->num_networks; k++) {
        const float *const *own = parameters + k * f->num_parameters;
        Frames frames = frames_of_network(f, own);
        const Layer *layers = (const Layer *)(own + BEFORE_BLOCKS);
        transposed_weights(&frames, layers, weights + k * of_network, transposed + k * f->layers);
    }
    if (made) guards_of_layers(f, made, 1);
    Forward task = {f, parameters, transposed, x, kept, made};
    int failed = for_parts(f->parts, f->threads, part_forward, &task);
    if (!failed && made && !guards_of_layers(f, made, 0)) failed = OVERRUN;
    return close_regions(room, 1, &size, failed);
}

/* The gradient of one layer over the rows of some frames: dx, of what comes out, becomes that of what went in. If not
   all rows come out, dkept is that of those, and dx is written.
   `a` to `c` have room for rows of 4 d. */
static void block_backward(const Frames *f, int64_t first, int64_t last, const Layer *w, LayerGradient *g, Made m,
                           float *dx, float *dkept, float *a, float *b, float *c, float *spare) {
    int64_t d = f->width, e = d / f->heads, start = f->row_start[first], all_rows = f->row_start[last] - start;
    int64_t rows = f->kept_start ? f->kept_start[last] - f->kept_start[first] : all_rows;
    float *normed = c, *dnormed = c + all_rows * d, *gate = NULL, *dgate = NULL, *dx_of_all = dx;
    if (f->kept_start) dx = dkept;
    /* The perceptron: a becomes its hidden values, b their gradient. */
    product(rows, 4 * d, d, dx, d, 1, w->down_weight, 4 * d, NULL, 0, NULL, b, 4 * d);
    for (int64_t i = 0; i < rows * 4 * d; i += WIDEST(LANES)) {
        WIDEST(vec) x = WIDEST(load)(m.hidden + i), cdf, density;
        WIDEST(normal)(x, &cdf, &density);
        WIDEST(store)(a + i, x * cdf);
        WIDEST(store)(b + i, WIDEST(load)(b + i) * (cdf + x * density));
    }
    add_linear_gradient(rows, 4 * d, d, dx, a, g->down_weight, g->down_bias);
    layer_norm_again(rows, d, m.middle, m.stats_2, w->norm_2_weight, w->norm_2_bias, normed);
    add_linear_gradient(rows, d, 4 * d, b, normed, g->up_weight, g->up_bias);
    product(rows, d, 4 * d, b, 4 * d, 1, w->up_weight, d, NULL, 0, NULL, dnormed, d);
    layer_norm_backward(rows, d, m.middle, m.stats_2, w->norm_2_weight, dnormed, dx, g->norm_2_weight, g->norm_2_bias);
    /* Attention: a becomes the gradient of its result, b that of queries, keys and values. */
    add_linear_gradient(rows, d, d, dx, m.y, g->project_weight, g->project_bias);
    product(rows, d, d, dx, d, 1, w->project_weight, d, NULL, 0, NULL, a, d);
    if (f->kept_start) {
        scatter_kept(f, first, last, a, a);
        scatter_kept(f, first, last, dkept, dx_of_all);
        rows = all_rows, dx = dx_of_all;
    }
    if (f->gate_kind != NO_GATE) {
        gate = a + rows * d, dgate = gate + rows * e;
        gates_of(f->gate_kind, rows * e, m.gate_in, gate);
        memset(dgate, 0, sizeof(float) * (size_t)(rows * e));
    }
    for (int64_t i = first; i < last; i++) {
        int64_t row = f->row_start[i] - start;
        attend_backward(f, i, m.qkv + row * 3 * d, gate ? gate + row * e : NULL,
                        m.attention + f->score_start[i] - f->score_start[first], a + row * d, b + row * 3 * d,
                        gate ? dgate + row * e : NULL, spare);
    }
    layer_norm_again(rows, d, m.x, m.stats_1, w->norm_1_weight, w->norm_1_bias, normed);
    add_linear_gradient(rows, d, 3 * d, b, normed, g->qkv_weight, g->qkv_bias);
    product(rows, d, 3 * d, b, 3 * d, 1, w->qkv_weight, d, NULL, 0, NULL, dnormed, d);
    if (gate) {
        vec value, slope;
        for (int64_t i = 0; i < rows * e; i += LANES) {
            gate_and_slope(f->gate_kind, load(m.gate_in + i), &value, &slope);
            store(dgate + i, load(dgate + i) * slope);
        }
        add_linear_gradient(rows, d, e, dgate, normed, f->gate_weight_grad, f->gate_bias_grad);
        product(rows, d, e, dgate, e, 1, f->gate_weight, d, dnormed, d, NULL, dnormed, d);
    }
    layer_norm_backward(rows, d, m.x, m.stats_1, w->norm_1_weight, dnormed, dx, g->norm_1_weight, g->norm_1_bias);
}

typedef struct {
    const Frames *f;
    const float *const *parameters;
    float *const *gradients;
    float *made, *dx, *dkept;
} Backward;

INLINE float *of_part(float *gradient, const Frames *f, int64_t part) {
    return gradient ? gradient + part * f->gradient_stride : NULL;
}

static int part_backward(const void *task, int64_t part) {
    const Backward *o = task;
    Frames own = *o->f;
    const Frames *f = &own;
    own.keys.table_grad = of_part(own.keys.table_grad, f, part);
    own.values.table_grad = of_part(own.values.table_grad, f, part);
    own.gate_weight_grad = of_part(own.gate_weight_grad, f, part);
    own.gate_bias_grad = of_part(own.gate_bias_grad, f, part);
    enum { OF_LAYER = sizeof(Layer) / sizeof(float *) };
    enum { A, B, C, SPARE, REGIONS };
    const Layer *layers = (const Layer *)(o->parameters + BEFORE_BLOCKS);
    float *const *gradients = o->gradients + BEFORE_BLOCKS;
    int64_t d = f->width, rows = most_rows_of_tile(f);
    const int64_t sizes[REGIONS] = {rows * 4 * d, rows * 4 * d, rows * 4 * d, spare_of_frame(f)};
    float *at[REGIONS], *room = open_regions(REGIONS, sizes, at);
    if (!room) return NO_MEMORY;
    int64_t end = start_of_part(f, part + 1);
    for (int64_t first = start_of_part(f, part), last; first < end; first = last) {
        last = end_of_tile(f, first, end);
        for (int64_t l = f->layers - 1; l >= 0; l--) {
            float *gradient[OF_LAYER];
            for (int i = 0; i < OF_LAYER; i++) gradient[i] = of_part(gradients[l * OF_LAYER + i], f, part);
            Made m = made_from(o->f, made_of_layer(f, o->made, l), l, first);
            own.kept_start = kept_after(o->f, l);
            float *dkept = own.kept_start ? o->dkept + own.kept_start[first] * d : NULL;
            block_backward(f, first, last, layers + l, (LayerGradient *)gradient, m, o->dx + f->row_start[first] * d,
                           dkept, at[A], at[B], at[C], at[SPARE]);
        }
    }
    return close_regions(room, REGIONS, sizes, 0);
}

/* dx (R, d), the gradient of what `blocks_forward` gives, becomes that of what it was given; those of the
   parameters are added to. If not all rows come out, dkept is the gradient of those that do, which is changed.
   Returns 0, NO_MEMORY or OVERRUN. */
int NAME(blocks_backward)(const Frames *f, const float *const *parameters, float *const *gradients, float *made,
                          float *dx, float *dkept) {
    Backward task = {f, parameters, gradients, made, dx, dkept};
    int failed = for_parts(f->parts, f->threads, part_backward, &task);
    return failed || guards_of_layers(f, made, 0) ? failed : OVERRUN;
}

/* ---- Memory. ---- */

enum { CELL_TILE = 48 }; /* rows of a level that are computed together, so that they stay in the cache */

INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(smaller(-x, all(80.0f)))); }
INLINE vec hyperbolic_tangent(vec x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }
INLINE void copy_row(float *to, const float *from, int64_t width) { memcpy(to, from, sizeof(float) * (size_t)width); }
INLINE void add_row(float *to, const float *from, int64_t width) {
    for (int64_t j = 0; j < width; j += LANES) store(to + j, load(to + j) + load(from + j));
}

/* The parameters of memory, and where they begin among all gradients. */
enum { INPUT_WEIGHT, INPUT_BIAS, STATE_WEIGHT, STATE_BIAS, FIRST, TO_ENTITIES, TO_ROWS, TO_ROWS_BIAS, MEMORY_PARAMETERS };

static void starts_of_parameters(const Memory *m, int64_t *at) {
    int64_t d = m->width, w = m->state_width;
    const int64_t sizes[MEMORY_PARAMETERS] = {3 * w * d, 3 * w, 3 * w * w, 3 * w, m->num_first * w, d * w, d * w, d};
    for (int64_t i = 0, start = 0; i < MEMORY_PARAMETERS; start += sizes[i++]) at[i] = start;
}

/* The first of the further rows of a frame among the joined ones. */
static int64_t further_row(const Memory *m, int64_t frame) {
    return m->row_start[frame + 1] + m->absent_start[frame] + (m->of_frame ? frame : 0);
}
static int64_t joined_row(const Memory *m, int64_t frame) {
    return m->row_start[frame] + m->absent_start[frame] + (m->of_frame ? frame : 0);
}

/* The state that a row comes from. */
static const float *state_before(const Memory *m, int64_t row, int64_t source) {
    int64_t w = m->state_width;
    if (source < 0) return m->parameters[FIRST] + m->kind[row] * w;
    return source < m->num_rows ? m->passed + source * w : m->carried + (source - m->num_rows) * w;
}

/* The frames of a part by level: `order` takes them, and `at` where each level begins; levels are their number. */
static int64_t frames_by_level(const Memory *m, int64_t part, int64_t *order, int64_t *at) {
    int64_t begin = m->part_start[part], end = m->part_start[part + 1], levels = 0;
    for (int64_t i = begin; i < end; i++) levels = m->level[i] >= levels ? m->level[i] + 1 : levels;
    memset(at, 0, sizeof(int64_t) * (size_t)(levels + 1));
    for (int64_t i = begin; i < end; i++) at[m->level[i] + 1]++;
    for (int64_t l = 0; l < levels; l++) at[l + 1] += at[l];
    for (int64_t i = begin; i < end; i++) order[at[m->level[i]]++] = i;
    for (int64_t l = levels; l > 0; l--) at[l] = at[l - 1];
    at[0] = 0;
    return levels;
}

/* Frames, levels and rows of a part. */
typedef struct {
    int64_t *order, *at, *rows, levels;
} Levels;

static int open_levels(const Memory *m, int64_t part, Levels *l) {
    int64_t frames = m->part_start[part + 1] - m->part_start[part], most = 0;
    for (int64_t i = m->part_start[part]; i < m->part_start[part + 1]; i++) most = m->level[i] > most ? m->level[i] : most;
    int64_t rows = m->memory_start[m->part_start[part + 1]] - m->memory_start[m->part_start[part]];
    l->order = new_array(sizeof(int64_t) * (size_t)(frames + most + 2 + rows + 1));
    if (!l->order) return NO_MEMORY;
    l->at = l->order + frames, l->rows = l->at + most + 2;
    l->levels = frames_by_level(m, part, l->order, l->at);
    return 0;
}

/* The rows of a level, one after the other: how many they are. */
static int64_t rows_of_level(const Memory *m, const Levels *l, int64_t level) {
    int64_t count = 0;
    for (int64_t i = l->at[level]; i < l->at[level + 1]; i++)
        for (int64_t r = m->memory_start[l->order[i]]; r < m->memory_start[l->order[i] + 1]; r++) l->rows[count++] = r;
    return count;
}

/* A level is cut into tiles of about as many rows each. */
static int64_t rows_of_tile(int64_t count) {
    int64_t tiles = (count + CELL_TILE - 1) / CELL_TILE;
    return tiles ? (count + tiles - 1) / tiles : 0;
}

/* The means of the entities of each frame that are known. */
static void means_of_known(const Memory *m, int64_t begin, int64_t end) {
    int64_t d = m->width;
    for (int64_t i = begin; i < end; i++) {
        float *mean = m->means + i * d;
        int64_t count = 0;
        memset(mean, 0, sizeof(float) * (size_t)d);
        for (int64_t row = m->row_start[i]; row < m->row_start[i + 1]; row++)
            if (!m->known || m->known[row]) add_row(mean, m->x + row * d, d), count++;
        float share = count ? 1.0f / (float)count : 0.0f;
        for (int64_t j = 0; j < d; j += LANES) store(mean + j, load(mean + j) * share);
        if (m->of_frames) add_row(mean, m->of_frames + i * d, d);
    }
}

static const float *input_of_row(const Memory *m, int64_t row) {
    int64_t at = m->row[row];
    return at < m->num_entities ? m->x + at * m->width : m->means + (at - m->num_entities) * m->width;
}

/* One row of the unit: r = s(i_r + h_r), z = s(i_z + h_z), n = tanh(i_n + r h_n), h' = n + z (h - n). */
INLINE void cell_row(const Memory *m, int64_t row, const float *last, const float *in, const float *of_last) {
    int64_t w = m->state_width, size = m->num_rows * w;
    const float *added = m->added ? m->added + row * w : NULL;
    float *state = m->states + row * w, *to = m->passed + row * w, *gates = m->gates ? m->gates + row * w : NULL;
    for (int64_t j = 0; j < w; j += LANES) {
        vec h = load(last + j), part = load(of_last + 2 * w + j);
        vec r = sigmoid(load(in + j) + load(of_last + j)), z = sigmoid(load(in + w + j) + load(of_last + w + j));
        vec n = hyperbolic_tangent(load(in + 2 * w + j) + r * part);
        vec now = n + z * (h - n);
        store(state + j, now);
        if (added) store(to + j, now + load(added + j));
        if (!gates) continue;
        store(gates + j, r), store(gates + size + j, z), store(gates + 2 * size + j, n), store(gates + 3 * size + j, part);
    }
}

/* The weights of memory with inputs as rows. */
typedef struct {
    const Memory *m;
    const float *input, *state, *to_entities, *to_rows;
} MemoryTask;

static void update_states(const MemoryTask *t, const Levels *l, float *in, float *last, float *of_in, float *of_last) {
    const Memory *m = t->m;
    int64_t d = m->width, w = m->state_width;
    for (int64_t level = 0; level < l->levels; level++) {
        int64_t all_rows = rows_of_level(m, l, level), of_tile = rows_of_tile(all_rows);
        for (int64_t first = 0; first < all_rows; first += of_tile) {
            int64_t count = all_rows - first < of_tile ? all_rows - first : of_tile;
            const int64_t *rows = l->rows + first;
            for (int64_t i = 0; i < count; i++) {
                copy_row(in + i * d, input_of_row(m, rows[i]), d);
                copy_row(last + i * w, state_before(m, rows[i], m->source[rows[i]]), w);
            }
            product(count, 3 * w, d, in, d, 1, t->input, 3 * w, NULL, 0, m->parameters[INPUT_BIAS], of_in, 3 * w);
            product(count, 3 * w, w, last, w, 1, t->state, 3 * w, NULL, 0, m->parameters[STATE_BIAS], of_last, 3 * w);
            for (int64_t i = 0; i < count; i++)
                cell_row(m, rows[i], last + i * w, of_in + i * 3 * w, of_last + i * 3 * w);
        }
    }
}

/* The states of the further rows of some frames, one after the other: how many there are. */
static int64_t states_of_further_rows(const Memory *m, int64_t frame, int64_t first, int64_t count, float *to) {
    int64_t w = m->state_width, start = m->absent_start[frame], absent = m->absent_start[frame + 1] - start, i = 0;
    for (; i < count && first + i < absent; i++) copy_row(to + i * w, state_before(m, 0, m->absent[start + first + i]), w);
    if (i < count) copy_row(to + i * w, m->states + m->memory_start[frame] * w, w), i++;
    return i;
}

static int64_t further_rows(const Memory *m, int64_t frame) {
    return m->absent_start[frame + 1] - m->absent_start[frame] + (m->of_frame ? 1 : 0);
}

/* Further rows of consecutive frames in a tile: `frame` and `first` go on to the next one. Each has its place among the
   joined rows in `place`. */
static int64_t tile_of_further_rows(const Memory *m, int64_t *frame, int64_t *first, int64_t end, float *states,
                                    int64_t *place, int64_t *from) {
    int64_t count = 0, w = m->state_width;
    while (*frame < end && count < CELL_TILE) {
        int64_t all_rows = further_rows(m, *frame), room = CELL_TILE - count;
        int64_t some = all_rows - *first < room ? all_rows - *first : room, start = m->absent_start[*frame];
        int64_t absent = m->absent_start[*frame + 1] - start;
        states_of_further_rows(m, *frame, *first, some, states + count * w);
        for (int64_t i = 0; i < some; i++) {
            int64_t at = *first + i;
            place[count + i] = further_row(m, *frame) + at;
            /* Whose gradient it is: of a row's passed state, or behind those of a state. */
            from[count + i] = at < absent ? m->absent[start + at] : -1 - m->memory_start[*frame];
        }
        count += some, *first += some;
        if (*first == all_rows) *first = 0, ++*frame;
    }
    return count;
}

static int part_of_memory(const void *task, int64_t part) {
    const MemoryTask *t = task;
    const Memory *m = t->m;
    int64_t d = m->width, w = m->state_width, begin = m->part_start[part], end = m->part_start[part + 1];
    const int64_t sizes[] = {CELL_TILE * d, CELL_TILE * w, 3 * CELL_TILE * w, 3 * CELL_TILE * w};
    float *at[4], *room = open_regions(4, sizes, at);
    Levels levels;
    if (!room) return NO_MEMORY;
    if (open_levels(m, part, &levels)) return close_regions(room, 4, sizes, NO_MEMORY);
    if (m->of_frame) means_of_known(m, begin, end);
    update_states(t, &levels, at[0], at[1], at[2], at[3]);
    free(levels.order);
    /* Entities, and what their states add to them. */
    for (int64_t i = begin; i < end; i++)
        memcpy(m->joined + joined_row(m, i) * d, m->x + m->row_start[i] * d,
               sizeof(float) * (size_t)((m->row_start[i + 1] - m->row_start[i]) * d));
    float *rows = at[0], *states = at[1];
    int64_t frame = begin, last = m->memory_start[end];
    for (int64_t first = m->memory_start[begin]; first < last; first += CELL_TILE) {
        int64_t count = last - first < CELL_TILE ? last - first : CELL_TILE;
        product(count, d, w, m->states + first * w, w, 1, t->to_entities, d, NULL, 0, NULL, rows, d);
        for (int64_t i = 0; i < count; i++) {
            while (m->memory_start[frame + 1] <= first + i) frame++;
            int64_t row = m->row[first + i];
            if (row < m->num_entities) add_row(m->joined + (row - m->row_start[frame] + joined_row(m, frame)) * d, rows + i * d, d);
        }
    }
    /* Further rows. */
    int64_t place[CELL_TILE], from[CELL_TILE], first = 0, count;
    for (frame = begin; (count = tile_of_further_rows(m, &frame, &first, end, states, place, from)) > 0;) {
        product(count, d, w, states, w, 1, t->to_rows, d, NULL, 0, m->parameters[TO_ROWS_BIAS], rows, d);
        for (int64_t i = 0; i < count; i++) copy_row(m->joined + place[i] * d, rows + i * d, d);
    }
    return close_regions(room, 4, sizes, 0);
}

int NAME(memory_forward)(const Memory *m) {
    int64_t d = m->width, w = m->state_width;
    const int64_t sizes[] = {3 * w * d, 3 * w * w, d * w, d * w};
    float *at[4], *room = open_regions(4, sizes, at);
    if (!room) return NO_MEMORY;
    transpose(3 * w, d, m->parameters[INPUT_WEIGHT], d, at[0], 3 * w);
    transpose(3 * w, w, m->parameters[STATE_WEIGHT], w, at[1], 3 * w);
    transpose(d, w, m->parameters[TO_ENTITIES], w, at[2], d);
    transpose(d, w, m->parameters[TO_ROWS], w, at[3], d);
    MemoryTask task = {m, at[0], at[1], at[2], at[3]};
    return close_regions(room, 4, sizes, for_parts(m->parts, m->threads, part_of_memory, &task));
}

/* The gradients of the gates of one row, of the input and of the last state, and of that state as the unit keeps it. */
INLINE void cell_row_backward(const Memory *m, int64_t row, const float *last, float *din, float *dof_last, float *dlast) {
    int64_t w = m->state_width, size = m->num_rows * w;
    const float *gates = m->gates + row * w, *dstate = m->dstates + row * w, *dpassed = m->dpassed + row * w;
    for (int64_t j = 0; j < w; j += LANES) {
        vec h = load(last + j), r = load(gates + j), z = load(gates + size + j);
        vec n = load(gates + 2 * size + j), part = load(gates + 3 * size + j);
        vec dy = load(dstate + j) + load(dpassed + j);
        vec dn = dy * (1.0f - z) * (1.0f - n * n);
        vec dr = dn * part * r * (1.0f - r), dz = dy * (h - n) * z * (1.0f - z);
        store(din + j, dr), store(din + w + j, dz), store(din + 2 * w + j, dn);
        store(dof_last + j, dr), store(dof_last + w + j, dz), store(dof_last + 2 * w + j, dn * r);
        store(dlast + j, dy * z);
    }
}

/* Add the gradient of a row's input to that of its entity, or of all entities in the mean of the frame. */
static void add_to_inputs(const Memory *m, int64_t row, const float *gradient) {
    int64_t d = m->width, at = m->row[row];
    if (at < m->num_entities) {
        add_row(m->dx + at * d, gradient, d);
        return;
    }
    int64_t frame = at - m->num_entities, count = 0;
    if (m->dof_frames) copy_row(m->dof_frames + frame * d, gradient, d);
    for (int64_t i = m->row_start[frame]; i < m->row_start[frame + 1]; i++) count += !m->known || m->known[i];
    float share = count ? 1.0f / (float)count : 0.0f;
    for (int64_t i = m->row_start[frame]; i < m->row_start[frame + 1]; i++) {
        if (m->known && !m->known[i]) continue;
        for (int64_t j = 0; j < d; j += LANES) store(m->dx + i * d + j, load(m->dx + i * d + j) + load(gradient + j) * share);
    }
}

static int part_of_memory_backward(const void *task, int64_t part) {
    const Memory *m = ((const MemoryTask *)task)->m;
    int64_t d = m->width, w = m->state_width, begin = m->part_start[part], end = m->part_start[part + 1];
    int64_t start[MEMORY_PARAMETERS];
    starts_of_parameters(m, start);
    float *own = m->gradients + part * m->gradient_stride;
    enum { ROWS, STATES, LAST, DIN, DOF_LAST, DLAST, REGIONS };
    const int64_t sizes[REGIONS] = {CELL_TILE * d, CELL_TILE * w, CELL_TILE * w, CELL_TILE * 3 * w, CELL_TILE * 3 * w, CELL_TILE * w};
    float *at[REGIONS], *room = open_regions(REGIONS, sizes, at);
    float *rows = at[ROWS], *states = at[STATES];
    Levels levels;
    if (!room) return NO_MEMORY;
    if (open_levels(m, part, &levels)) return close_regions(room, REGIONS, sizes, NO_MEMORY);
    /* Entities. */
    for (int64_t i = begin; i < end; i++)
        memcpy(m->dx + m->row_start[i] * d, m->djoined + joined_row(m, i) * d,
               sizeof(float) * (size_t)((m->row_start[i + 1] - m->row_start[i]) * d));
    for (int64_t first = m->memory_start[begin], last = m->memory_start[end]; first < last; first += CELL_TILE) {
        int64_t count = last - first < CELL_TILE ? last - first : CELL_TILE;
        for (int64_t i = 0; i < count; i++) {
            int64_t row = m->row[first + i];
            if (row < m->num_entities) copy_row(rows + i * d, m->dx + row * d, d);
            else memset(rows + i * d, 0, sizeof(float) * (size_t)d);
        }
        float *dstates = m->dstates + first * w, *gradient = own + start[TO_ENTITIES];
        product(count, w, d, rows, d, 1, m->parameters[TO_ENTITIES], w, dstates, w, NULL, dstates, w);
        product(d, w, count, rows, 1, d, m->states + first * w, w, gradient, w, NULL, gradient, w);
    }
    /* Further rows. */
    int64_t place[CELL_TILE], from[CELL_TILE], first = 0, count;
    for (int64_t frame = begin; (count = tile_of_further_rows(m, &frame, &first, end, states, place, from)) > 0;) {
        for (int64_t i = 0; i < count; i++) copy_row(rows + i * d, m->djoined + place[i] * d, d);
        add_linear_gradient(count, w, d, rows, states, own + start[TO_ROWS], own + start[TO_ROWS_BIAS]);
        product(count, w, d, rows, d, 1, m->parameters[TO_ROWS], w, NULL, 0, NULL, states, w);
        for (int64_t i = 0; i < count; i++) {
            if (from[i] < 0) add_row(m->dstates + (-1 - from[i]) * w, states + i * w, w);
            else if (from[i] < m->num_rows) add_row(m->dpassed + from[i] * w, states + i * w, w);
        }
    }
    /* The unit, from the last level to the first. */
    float *last = at[LAST], *din = at[DIN], *dof_last = at[DOF_LAST], *dlast = at[DLAST];
    for (int64_t level = levels.levels; level-- > 0;) {
        int64_t all_rows = rows_of_level(m, &levels, level), of_tile = rows_of_tile(all_rows);
        for (first = 0; first < all_rows; first += of_tile) {
            count = all_rows - first < of_tile ? all_rows - first : of_tile;
            const int64_t *of = levels.rows + first;
            for (int64_t i = 0; i < count; i++) {
                copy_row(rows + i * d, input_of_row(m, of[i]), d);
                copy_row(last + i * w, state_before(m, of[i], m->source[of[i]]), w);
                cell_row_backward(m, of[i], last + i * w, din + i * 3 * w, dof_last + i * 3 * w, dlast + i * w);
            }
            add_linear_gradient(count, d, 3 * w, din, rows, own + start[INPUT_WEIGHT], own + start[INPUT_BIAS]);
            add_linear_gradient(count, w, 3 * w, dof_last, last, own + start[STATE_WEIGHT], own + start[STATE_BIAS]);
            product(count, w, 3 * w, dof_last, 3 * w, 1, m->parameters[STATE_WEIGHT], w, dlast, w, NULL, dlast, w);
            product(count, d, 3 * w, din, 3 * w, 1, m->parameters[INPUT_WEIGHT], d, NULL, 0, NULL, rows, d);
            for (int64_t i = 0; i < count; i++) {
                int64_t source = m->source[of[i]];
                add_to_inputs(m, of[i], rows + i * d);
                if (source < 0) add_row(own + start[FIRST] + m->kind[of[i]] * w, dlast + i * w, w);
                else if (source < m->num_rows) add_row(m->dpassed + source * w, dlast + i * w, w);
            }
        }
    }
    free(levels.order);
    return close_regions(room, REGIONS, sizes, 0);
}

int NAME(memory_backward)(const Memory *m) {
    MemoryTask task = {m, NULL, NULL, NULL, NULL};
    return for_parts(m->parts, m->threads, part_of_memory_backward, &task);
}
