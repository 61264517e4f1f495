// The gradient of pooling: selects an element of every window and scatters a source there (ir/isa/pooling.py).
#pragma once

#include "core.h"

// Partitions [first, last). Operands: result, x, source, bounds; params: start (bits of an f32, or an integer), lowest,
// then size and stride of the windows along each free dim; operations: what keeps an element, and what combines sources.
void select_scatter(const Item&, char* const* start, i64 first, i64 last);
