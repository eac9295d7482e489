/* What the caller hands over. Everything is row-major and belongs to the caller.

   B frames of entities lie one after the other: frame f has the rows row_start[f] to
   row_start[f + 1] of a matrix of R rows. d is the width of a row, H the number of heads, and e = d / H
   the width of a head; d and e are multiples of 8. */
#ifndef BLOCKS_H
#define BLOCKS_H
#include <stdint.h>

enum { NO_GATE, LINEAR_GATE, RELU_GATE, GELU_GATE, SIGMOID_GATE };
enum { PARAMETERS_OF_LAYER = 12 };

/* Which rows of a table make the vector of each pair: their sum, weighted. */
typedef struct {
    int64_t corners;
    const int32_t *rows;   /* (pairs, corners) */
    const float *weights;  /* (pairs, corners), NULL where all are 1 */
    const float *table;    /* (rows, e) */
    float *table_grad;     /* added to */
} PairRows;

typedef struct {
    int64_t num_frames;
    const int64_t *row_start;   /* (B + 1,) */
    const int64_t *pair_start;  /* (B + 1,), n * n pairs of each frame of n; NULL without relative positions */
    const int64_t *score_start; /* (B + 1,), H * n * (n rounded up to 8) scores of each frame of n */
    const uint8_t *visible;     /* (R,), NULL where all is */
    int64_t width, heads, layers;
    /* Relative positions. Pair p of a frame is of query p / n and target p % n; what it adds to the result is
       its value times the gate of the target. */
    PairRows keys, values;
    int64_t gate_kind; /* of the blocks' own gate; its weights are (e, d) and (e,) */
    const float *gate_weight, *gate_bias;
    float *gate_weight_grad, *gate_bias_grad; /* added to */
} Frames;

/* What `blocks.c` does, under a name for each set of instructions. */
#define DECLARE_BLOCKS(NAME)                                                                                   \
    int NAME(attention_forward)(const Frames *, const float *, const float *, float *, float *);               \
    int NAME(attention_backward)(const Frames *, const float *, const float *, const float *, const float *,   \
                                 float *, float *);                                                            \
    int NAME(frame_means)(const Frames *, const float *, float *);                                             \
    int NAME(frame_means_backward)(const Frames *, const float *, float *);                                    \
    int64_t NAME(blocks_made)(const Frames *);                                                                 \
    int NAME(blocks_forward)(const Frames *, const float *const *, float *, float *);                          \
    int NAME(blocks_backward)(const Frames *, const float *const *, float *const *, float *, float *);

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SEVERAL_INSTRUCTION_SETS
#endif

#define NAME_ANY(name) name##_any
#define NAME_V3(name) name##_v3
#define NAME_V4(name) name##_v4
DECLARE_BLOCKS(NAME_ANY)
#ifdef SEVERAL_INSTRUCTION_SETS
DECLARE_BLOCKS(NAME_V3)
DECLARE_BLOCKS(NAME_V4)
#endif
#endif
