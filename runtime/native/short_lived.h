// Tiles of which every byte is read by the few items that follow alone, if at all: they need not be in SBUF, from where the
// processor would have to write them to memory that is far. Strips (strips.h) keep them in the nearest cache.
#pragma once

#include "decode.h"

// Finds them: sets `last_use` and `unused` of the items that make them, and `maker` and `within` of all operands that touch them.
// Nothing on chip is needed any more at the end of the code.
void find_short_lived(Code& code);
