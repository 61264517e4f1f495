// Rows taken from tables and put there, by numbers that are known at run time. False: Python must carry it out.
#pragma once

#include "core.h"

// An integer of any type.
i64 element(i64 type, const char* at);

// A number of any type, rounded to FP32.
float element_as_float(int type, const char* at);

// Rows of memory, one for each partition.
bool gather(const Kernels&, const Item&, char* const* start);
bool scatter(const Kernels&, const Item&, char* const* start);

// In each group of partitions, rows of its table for a list of entries, and the other way round.
bool group_gather(const Item&, char* const* start);
bool group_scatter(const Item&, char* const* start);
