// Instructions that follow each other and keep to their partitions, carried out strip by strip: all of them on a few
// partitions, whose data stays in the nearest caches, before the next few.
#pragma once

#include "core.h"

const int MOST_IN_STRIPS = 24;

// How an item can be carried out for some of its partitions.
Lanes lanes_of(const Item& item);

// Whether items are worth being carried out in strips.
bool is_long(const Item& item);

// How many of the items, all of which have lanes, can be: the first ones of which none reads or writes what another one
// writes in HBM.
int independent(const Item* const* items, char* const (*start)[MAX_OPERANDS], int count);

void run_in_strips(const Kernels& kernels, const Item* const* items, char* const (*start)[MAX_OPERANDS], int count);
