/* Random numbers to act with: two rounds of `entity_env.seeding.mix` for each actor, which in numpy are fifty
   operations for a few hundred numbers. */
#include "blocks.h"

static uint64_t mixed(uint64_t state, uint64_t key) {
    state = (state + key + 1) * 0x9E3779B97F4A7C15u;
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
    state = (state ^ state >> 27) * 0x94D049BB133111EBu;
    return state ^ state >> 31;
}

void draw_uniforms(uint64_t state, int64_t num_frames, const int64_t *env, const int64_t *lengths, float *to) {
    for (int64_t f = 0; f < num_frames; f++) {
        uint64_t of_frame = mixed(state, (uint64_t)env[f]);
        for (int64_t rank = 0; rank < lengths[f]; rank++)
            *to++ = (float)(mixed(of_frame, (uint64_t)rank) >> 41) * 0x1p-23f;
    }
}
