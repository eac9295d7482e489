/* Which cells of an encoding each pair of entities has: `relpos_cells.py` for all pairs of packed frames.

   A position at the border of a cell must have the same cell whoever computes it, so that nothing here may be
   rounded otherwise than there: products and sums are not contracted. */
#include <math.h>
#include <stddef.h>

#include "blocks.h"

#if defined(__clang__)
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

enum { MOST_AXES = 8 }; /* as in `library.py` */
static const double PI = 3.14159265358979323846;

/* The cells of a pair along one axis: one or, interpolated, two with weights. */
typedef struct {
    int32_t cell[2];
    float weight[2];
} Along;

/* The cell of `size` cells in which a position lies; 0 if it is NaN, which no integer can hold. */
static int32_t whole(float position, int64_t size) {
    if (!(position > 0.0f)) return 0;
    return position < (float)size ? (int32_t)position : (int32_t)size - 1;
}

static Along between(float position, int64_t size, int64_t interpolate) {
    int32_t low = whole(position, size), last = (int32_t)size - 1;
    float beyond = position - (float)low;
    return (Along){{low, interpolate && low < last ? low + 1 : low}, {1.0f - beyond, beyond}};
}

static Along around(float x, float y, float heading, int64_t sectors, int64_t interpolate) {
    const float turn = (float)(2 * PI), all = (float)sectors;
    float angle = atan2f(y, x == 0.0f && y == 0.0f ? 1.0f : x) - heading;
    angle = angle + turn;
    float position = fmodf(angle / turn * all, all);
    if (position < 0.0f) position += all;
    int32_t low = whole(position, sectors);
    float beyond = position - (float)low;
    return (Along){{low, interpolate ? (low + 1) % (int32_t)sectors : low}, {1.0f - beyond, beyond}};
}

/* The cells and weights of one pair, at most 2**axes of them. */
static void cells_of(const PairCells *p, const float *relative, float heading, int32_t *cells, float *weights) {
    Along along[MOST_AXES];
    int64_t sizes[MOST_AXES], count = 0;
    if (!p->radial && !p->distance) {
        float sum = 0.0f;
        int64_t stride = 1;
        for (int64_t a = 0; a < p->axes; a++) {
            float extent = (float)p->extent[a], x = relative[a] * p->inverse_scale;
            x = (x < -extent ? -extent : x > extent ? extent : x) + extent;
            sizes[a] = 2 * p->extent[a] + 1;
            if (p->interpolate) along[a] = between(x, sizes[a], 1);
            float along_stride = x * (float)stride;
            sum = sum + along_stride;
            stride *= sizes[a];
        }
        if (!p->interpolate) {
            cells[0] = whole(rintf(sum), p->num_cells);
            return;
        }
        count = p->axes;
    }
    if (p->radial) {
        sizes[count] = p->extent[0];
        along[count++] = around(relative[0], relative[1], heading, p->extent[0], p->interpolate);
    }
    if (p->distance) {
        float squares = 0.0f;
        for (int64_t a = 0; a < p->axes; a++) squares += relative[a] * relative[a];
        int64_t rings = p->extent[count];
        float position = sqrtf(squares) * p->inverse_scale, last = (float)(rings - 1);
        sizes[count] = rings;
        along[count++] = between(position > last ? last : position, rings, p->interpolate);
    }
    for (int64_t c = 0; c < p->corners; c++) {
        int64_t stride = 1;
        cells[c] = 0, weights[c] = 1.0f;
        for (int64_t a = 0; a < count; a++, stride *= sizes[a - 1]) {
            int upper = (c >> a) & 1;
            cells[c] += (int32_t)stride * along[a].cell[upper];
            weights[c] *= along[a].weight[upper];
        }
    }
}

int pair_cells(const PairCells *p) {
    int32_t *keys = p->key_rows, *values = p->value_rows;
    float *weights = p->weights, alone, relative[MOST_AXES];
    if (p->axes > MOST_AXES) return OUT_OF_RANGE;
    for (int64_t f = 0; f < p->num_frames; f++)
        for (int64_t i = p->row_start[f]; i < p->row_start[f + 1]; i++)
            for (int64_t j = p->row_start[f]; j < p->row_start[f + 1]; j++) {
                for (int64_t a = 0; a < p->axes; a++)
                    relative[a] = p->position[i * p->axes + a] - p->position[j * p->axes + a];
                cells_of(p, relative, p->heading ? p->heading[i] : 0.0f, keys, weights ? weights : &alone);
                int both = !p->placed || (p->placed[i] && p->placed[j]);
                for (int64_t c = 0; c < p->corners; c++) {
                    if (values) values[c] = both ? keys[c] + p->first_value[j] : p->no_value;
                    if (!both) keys[c] = p->no_key;
                }
                keys += p->corners;
                if (values) values += p->corners;
                if (weights) weights += p->corners;
            }
    return 0;
}
