// Instructions that follow each other and keep to their partitions, carried out strip by strip: all of them on a few
// partitions, whose data stays in the nearest caches, before the next few.
#pragma once

#include "core.h"

const int MOST_IN_STRIPS = 24;

// How an item can be carried out for some of its partitions.
Lanes lanes_of(const Item& item);

// Whether items are worth being carried out in strips.
bool is_long(const Item& item);

// What some items that have lanes touch outside of partitions.
class Outside {
public:
    // Whether an item with these places neither reads nor writes what an item before it writes, nor the other way round.
    bool admits(const Item& item, const Place* places) const;
    void add(const Item& item, const Place* places);

private:
    Place all[MOST_IN_STRIPS * MAX_OPERANDS];
    bool written[MOST_IN_STRIPS * MAX_OPERANDS];
    int count = 0;
};

// Carries out `count` items, which have these numbers, with operands at `start`; items before number `end` are carried out
// afterwards, or need not be.
void run_in_strips(const Kernels& kernels, Item* const* items, const i64* numbers, char* const (*start)[MAX_OPERANDS], int count,
                   i64 end);
