// Decoded instructions.
#pragma once

#include "core.h"

// A part of a program whose loops are whole.
struct Code {
    std::vector<Item> items;
};

// From the words of encode.py: for each item its kind, record, whether it writes SBUF, number of results; then, each
// with their number in front, parameters, operations (4 words each) and operands. Loops must be whole.
Code* decode(const i64* words, i64 count);

// Whether operands a and b, of which the first is written, share bytes in a way that the kernels do not allow.
bool overlap(const Item& item, int a, int b, i64 offset_a, i64 offset_b);
