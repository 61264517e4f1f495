// The kernels of one processor level, each in the file that its group is named after.
#pragma once

#include "core.h"

namespace LEVEL {

// level_map.cpp: chains of f32 operations on elements; reductions and scans of rows
void map(const Item&, char* const*, i64, i64, Workspace&);
void map_of_one(const Item&, char* const*);
void accumulate(const Item&, char* const*, i64, i64, Workspace&);
void reduce(const Item&, char* const*, i64, i64, Workspace&);
void scan(const Item&, char* const*, i64, i64, Workspace&);

// level_move.cpp: bits moved and selected
void copy(const Nest&, int, char*, const char*, i64, i64);
void select(const Item&, char* const*, i64, i64, Workspace&);

// level_integer.cpp: bits combined, exact integers
void bits(const Item&, char* const*, i64, i64, Workspace&);
void integer(const Item&, char* const*, i64, i64, Workspace&);
void words_of_one(const Item&, char* const*);

// level_matmul.cpp: TensorE
void settle(Weights&);
bool transposed(const Item&, const char*, i64, i64, i64, char*, i64, i64);
bool is_identity(const Item&, const char*, Workspace&);
void pack(Weights&, bool);
void multiply(const Item&, const Weights&, char*, const char*, i64, i64, Workspace&);
void interleaved(const Item&, const char*, i64, const char*, i64, i64, float*);
void store_column(const Item&, char*, const float*, i64);
void weighted_sum(const Item&, const Weights&, const char*, float*);
bool add_up(const Item&, Weights&, char*, const char*, Workspace&);

}  // namespace LEVEL
