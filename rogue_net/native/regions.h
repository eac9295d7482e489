/* Arrays of floats cut from one block of memory, each followed by a guard.

   Sizes are computed in one place and used in another. If a function writes past its array, the guard behind it
   changes, and the caller returns OVERRUN in place of wrong numbers. A guard holds NaN, so that reading past an array
   shows as well. Setting and checking costs a cache line an array and call. */
#ifndef REGIONS_H
#define REGIONS_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_FLOATS = 16 };
static const uint32_t GUARD_BITS = 0x7FC5A5A5u; /* a quiet NaN */

/* While it is 1, new arrays are full of bytes of 255, which are NaN as floats and -1 as integers: a result that depends
   on a number that was never written shows. `library.py` sets it. */
__attribute__((weak, visibility("default"))) int poisons_arrays = 0;

/* Allocate memory. Return NULL if there is none. */
static inline void *new_array(size_t bytes) {
    void *memory = malloc(bytes);
    if (memory && poisons_arrays) memset(memory, 255, bytes);
    return memory;
}

/* Return the floats that `count` arrays take with their guards. */
static inline int64_t floats_of_regions(int count, const int64_t *sizes) {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += sizes[i] + GUARD_FLOATS;
    return sum;
}

/* Point `regions` to the arrays in `memory`. */
static inline void cut_regions(float *memory, int count, const int64_t *sizes, float **regions) {
    for (int i = 0; i < count; i++) {
        regions[i] = memory;
        memory += sizes[i] + GUARD_FLOATS;
    }
}

/* Write the guards behind the arrays. */
static inline void set_guards(float *memory, int count, const int64_t *sizes) {
    for (int i = 0; i < count; i++) {
        memory += sizes[i];
        for (int k = 0; k < GUARD_FLOATS; k++) memcpy(memory++, &GUARD_BITS, sizeof GUARD_BITS);
    }
}

/* Return 1 if every guard is as it was set, else 0. */
static inline int guards_hold(const float *memory, int count, const int64_t *sizes) {
    for (int i = 0; i < count; i++) {
        memory += sizes[i];
        for (int k = 0; k < GUARD_FLOATS; k++)
            if (memcmp(memory++, &GUARD_BITS, sizeof GUARD_BITS)) return 0;
    }
    return 1;
}

/* Allocate arrays and set their guards. Return the block, or NULL without memory. */
static inline float *open_regions(int count, const int64_t *sizes, float **regions) {
    float *memory = new_array(sizeof(float) * (size_t)floats_of_regions(count, sizes));
    if (!memory) return NULL;
    cut_regions(memory, count, sizes, regions);
    set_guards(memory, count, sizes);
    return memory;
}

/* Free the block of `open_regions`. Return `failed` if it is not 0, OVERRUN if a guard changed, else 0. */
static inline int close_regions(float *memory, int count, const int64_t *sizes, int failed) {
    if (!failed && !guards_hold(memory, count, sizes)) failed = OVERRUN;
    free(memory);
    return failed;
}
#endif
