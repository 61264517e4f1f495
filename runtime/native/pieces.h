// Long rows of items that are carried out together, cut into pieces: what is made of one piece stays in the nearest cache
// until all items have had it.
#pragma once

#include "core.h"

// How many pieces the rows of items are cut into, each of which depends on the same piece of other items alone; 1 where
// that cannot be, or is no gain. Of the short-lived tiles `kept` bytes of a partition are needed at once, `room` are wanted.
i64 pieces_of(Item* const* items, char* const (*start)[MAX_OPERANDS], int count, i64 kept, i64 room);

// Leaves one of so many pieces of each row.
void cut(Nest& nest, i64 pieces);

// Bytes from an operand's first element to another one of the same partition. The nest has two or three dims.
i64 column_at(const Nest& nest, size_t operand, i64 column);
