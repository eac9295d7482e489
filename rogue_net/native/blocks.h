/* What the caller hands over. Everything is row-major and belongs to the caller.

   B frames of entities lie one after the other: frame f has the rows row_start[f] to
   row_start[f + 1] of a matrix of R rows. d is the width of a row, H the number of heads, and e = d / H
   the width of a head; d and e are multiples of 8.

   NULL stands for an array that does not exist, as the comments say. One without elements exists, and is not NULL:
   `address` in `library.py` gives it some address, which nobody reads. */
#ifndef BLOCKS_H
#define BLOCKS_H
#include <stdint.h>

/* What functions return, if not 0: no memory, an index out of range, an array written past its end. */
enum { NO_MEMORY = 1, OUT_OF_RANGE = 2, OVERRUN = 3 };

enum { NO_GATE, LINEAR_GATE, RELU_GATE, GELU_GATE, SIGMOID_GATE };

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
    const int64_t *kept_start;  /* (B + 1,), where the rows are that come out, the first ones of each frame: the last layer
                                   leaves out the others, to which it attends only. NULL if all come out */
    int64_t width, heads, layers;
    /* Blocks are computed in parts: consecutive frames of about as many rows each, which threads take one after the
       other. Each part has gradients of parameters of its own, `gradient_stride` numbers behind those of the part
       before, so that what comes out does not depend on how many threads there are. */
    int64_t parts, threads, gradient_stride;
    /* Several networks of equal sizes may share the blocks: network k has frames first_frame[k] to first_frame[k + 1],
       and parameters `num_parameters` pointers behind those of the one before. Without a backward pass. */
    int64_t num_networks, num_parameters;
    const int64_t *first_frame; /* (num_networks + 1,), NULL for one network */
    /* Relative positions. Pair p of a frame is of query p / n and target p % n; what it adds to the result is
       its value times the gate of the target. */
    PairRows keys, values;
    int64_t gate_kind; /* of the blocks' own gate; its weights are (e, d) and (e,) */
    const float *gate_weight, *gate_bias;
    float *gate_weight_grad, *gate_bias_grad; /* added to */
} Frames;

/* The entities of one type: n rows of features and of labels, and what they are embedded by. */
typedef struct {
    int64_t rows, features, kinds, num_labels; /* num_labels: of all kinds */
    const float *x;                          /* (n, features) */
    const int64_t *label_rows;               /* (n, kinds), which row of `labels` each has; NULL without kinds */
    const float *mean, *std;                 /* (features,) */
    const int64_t *to;                       /* (n,), which row of all each is */
    const float *weight, *bias;              /* (d, features) and (d,); of a type without features and kinds, bias is
                                                its row */
    const float *norm_weight, *norm_bias;    /* (d,) */
    const float *labels;                     /* (num_labels, d) */
    float *hidden, *stats;                   /* (n, d) and (n, 2), for the backward pass */
    float *weight_grad, *bias_grad, *norm_weight_grad, *norm_bias_grad, *labels_grad; /* added to */
} Embedding;

static inline int is_one_vector(const Embedding *t) { return t->features == 0 && t->kinds == 0; }

enum { LINEAR_HEAD, CHOICE_HEAD };
/* What is said about n rows of (x_rows, d) x: a linear function of each, or the log-probabilities of choices. */
typedef struct {
    int64_t kind, rows, width, x_rows; /* n, and how many numbers are said about each */
    const int64_t *from;       /* (n,), which rows; NULL for all of them */
    const uint8_t *mask;       /* (n, width), what may be chosen; NULL where everything may */
    const float *weight, *bias; /* (width, d) and (width,) */
    float *said;               /* (n, width) */
    /* Of choices: what was chosen; or what is chosen, the most probable, or drawn with numbers in [0, 1). */
    const int64_t *given;   /* (n,) or NULL */
    const float *uniforms;  /* (n,) or NULL */
    int64_t *chosen;        /* (n,), NULL where it is given */
    float *logprobs, *entropies; /* (n,), of what is chosen and of all choices */
    /* Gradients of what is said, NULL for none, and of the parameters, which are added to. */
    const float *dsaid, *dlogprobs, *dentropies;
    float *weight_grad, *bias_grad;
} Head;

/* The parameters before those of blocks: the tables of relative keys and values, weight and bias of the gate. */
enum { BEFORE_BLOCKS = 4 };

/* A network over packed frames, or several of equal sizes. The parts name no parameters, which all are in `parameters`:
   those before the blocks, 12 of each block, of each type 4, 5 if it has kinds, or 1 if it has neither features nor
   kinds, and weight and bias of each head; NULL of what there is not. A network has no outputs of a head without
   weight. Entities of a type, and actors, are in the order of frames. */
typedef struct {
    Frames frames;
    int64_t num_types, num_choices, num_means;
    Embedding *types;
    Head *choices, *means; /* of entities, and of the means of frames */
    const float *const *parameters; /* of each network */
    const float *const *statistics; /* mean and std of each type, of each network; NULL of one vector */
    const int64_t *sizes; /* numbers of each parameter, for the backward pass */
    float *x;             /* (R, d), what comes out of the blocks */
    float *kept;          /* the rows that come out, if there is a `kept_start`, which says that not all do */
    float *pooled;        /* (B, d) */
    float *embedded;      /* n * (d + 2) numbers for each type but those of one vector: n rows and what their norm needs */
    float *made;          /* see `blocks_made`; NULL without a backward pass */
    float *gradients;     /* of all parameters, one after the other, for each part of the blocks; added to */
    float *dx;            /* (R, d), the gradient of x, which is changed */
    float *dkept;         /* that of `kept`, which is changed; with a `kept_start` dx is written */
    float clip;
} Network;

/* Return 0, NO_MEMORY, OUT_OF_RANGE or OVERRUN. */
int network_forward(Network *);
int network_backward(Network *);

/* The memory of a network. B frames have P entities, x, and R rows that remember: the frame, if it does, and entities. A
   gated recurrent unit updates their states, level after level, each from the state of an earlier row. Into the blocks
   after it go the rows of each frame: its entities, with what their states add to them; a row for each entity that is
   remembered and not shown; and one of the frame, if it remembers. Widths d of rows and w of states are multiples of 8. */
typedef struct {
    int64_t num_frames, num_rows, num_entities, num_first, width, state_width, of_frame; /* B, R, P, F, d, w */
    /* Parts of consecutive frames, which threads take. No row comes from one in another part. See `Frames`. */
    int64_t parts, threads, gradient_stride;
    const int64_t *part_start;   /* (parts + 1,) */
    const int64_t *row_start;    /* (B + 1,), of the entities */
    const int64_t *memory_start; /* (B + 1,), of the rows that remember; that of the frame is its first */
    const int64_t *absent_start; /* (B + 1,), of those who are not shown */
    const int64_t *level;        /* (B,), how many frames of its sequence come before it */
    const int64_t *row;          /* (R,), which row of x each is; P + i of frame i */
    const int64_t *kind;         /* (R,), whose first state it has if it is new */
    const int64_t *source;       /* (R,), the row that it comes from; R + i: row i of `carried`; -1: it is new */
    const int64_t *absent;       /* of those who are not shown, likewise; none is new */
    const uint8_t *known;        /* (P,), the entities that enter the mean of the frame; NULL for all */
    const float *x;              /* (P, d) */
    const float *of_frames;      /* (B, d), what is added to the means; NULL for nothing */
    const float *added;          /* (R, w), what is added to a state for later rows; NULL for nothing */
    const float *carried;        /* (C, w), states from before */
    /* Of the unit W_i (3 w, d) and b_i, W_h (3 w, w) and b_h; first states (F, w); from states to entities (d, w); to
       further rows (d, w) and (d,). */
    const float *const *parameters;
    float *means;                /* (B, d), of the entities that are known, with `of_frames` */
    float *states;               /* (R, w) */
    float *passed;               /* (R, w), with what is added: from which later rows come; may be `states` */
    float *gates;                /* (4, R, w): r, z, new state, part of the last state; NULL without a backward pass */
    float *joined;               /* (P + A + B or 0, d), the rows of the blocks after memory */
    /* Gradients: given ones, of which that of the states is changed, and those to make. */
    const float *djoined;
    float *dstates;              /* (R, w) */
    float *dpassed;              /* (R, w), 0 at first; becomes the gradient of `added` */
    float *dx, *dof_frames;      /* (P, d) and (B, d) */
    float *gradients;            /* of all parameters, one after the other, for each part; added to */
} Memory;

/* How the entities of packed frames lie, and how their relative positions are encoded, see `pairs.c`. */
typedef struct {
    int64_t num_frames;
    const int64_t *row_start;    /* (B + 1,) */
    int64_t axes, radial, distance, interpolate;
    const int64_t *extent;
    const float *position;       /* (R, axes) */
    const float *heading;        /* (R,), NULL where all are 0 */
    const uint8_t *placed;       /* (R,), NULL where all have a position */
    const int32_t *first_value;  /* (R,), of each target's type the first row of its values */
    int64_t num_cells, corners;         /* in all, and of each pair */
    int64_t no_key, no_value;           /* the rows of a pair without relative position */
    int32_t *key_rows, *value_rows;     /* (pairs, corners); the latter NULL where they would be the same */
    float *weights;                     /* (pairs, corners), NULL where all are 1 */
    float inverse_scale;
} PairCells;

/* Fills in the rows and weights of all pairs. Returns 0, or OUT_OF_RANGE with too many axes. */
int pair_cells(const PairCells *);

/* For each actor of each frame a number in [0, 1), a multiple of 2**-23, that follows from the state, the number of the
   frame's environment, and the how-manieth of its frame the actor is. */
void draw_uniforms(uint64_t state, int64_t num_frames, const int64_t *env, const int64_t *lengths, float *to);

/* Call a function with the task and each part, 0 to parts - 1, in as many threads. Return the largest that a call
   returned. */
int for_parts(int64_t parts, int64_t threads, int (*function)(const void *task, int64_t part), const void *task);

/* What `blocks.c` does, under a name for each set of instructions. */
#define DECLARE_BLOCKS(NAME)                                                                                   \
    int NAME(attention_forward)(const Frames *, const float *, const float *, float *, float *);               \
    int NAME(attention_backward)(const Frames *, const float *, const float *, const float *, const float *,   \
                                 float *, float *);                                                            \
    int NAME(frame_means)(const Frames *, const float *, float *);                                             \
    int NAME(frame_means_backward)(const Frames *, const float *, float *);                                    \
    int NAME(embed_forward)(const Embedding *, int64_t, float, float *);                                       \
    int NAME(embed_backward)(const Embedding *, int64_t, float, const float *);                                \
    int NAME(head_forward)(const Head *, int64_t, const float *);                                              \
    int NAME(head_backward)(const Head *, int64_t, const float *, float *);                                    \
    int NAME(memory_forward)(const Memory *);                                                                  \
    int NAME(memory_backward)(const Memory *);                                                                 \
    int64_t NAME(blocks_made)(const Frames *);                                                                 \
    int NAME(blocks_forward)(const Frames *, const float *const *, float *, float *, float *);                 \
    int NAME(blocks_backward)(const Frames *, const float *const *, float *const *, float *, float *, float *);

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SEVERAL_INSTRUCTION_SETS
#endif

#define NAME_BEST(name) name
#define NAME_ANY(name) name##_any
#define NAME_V3(name) name##_v3
#define NAME_V4(name) name##_v4
DECLARE_BLOCKS(NAME_BEST) /* for the instructions that this processor has, see `native.c` */
DECLARE_BLOCKS(NAME_ANY)
#ifdef SEVERAL_INSTRUCTION_SETS
DECLARE_BLOCKS(NAME_V3)
DECLARE_BLOCKS(NAME_V4)
#endif
#endif
