/* `blocks.c` for processors with AVX-512. */
#include "blocks.h"
#ifdef SEVERAL_INSTRUCTION_SETS
#pragma GCC target("arch=x86-64-v4")
#define NAME NAME_V4
#include "blocks.c"
#endif
