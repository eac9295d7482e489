/* `blocks.c` for any processor. */
#include "blocks.h"
#define NAME NAME_ANY
#include "blocks.c"
