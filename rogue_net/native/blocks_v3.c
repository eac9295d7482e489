/* `blocks.c` for processors with AVX2. */
#include "blocks.h"
#ifdef SEVERAL_INSTRUCTION_SETS
#pragma GCC target("arch=x86-64-v3")
#define NAME NAME_V3
#include "blocks.c"
#endif
