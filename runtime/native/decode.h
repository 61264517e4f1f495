// Decoded instructions.
#pragma once

#include "check.h"

// A part of a program whose loops and regions are whole.
struct Code {
    std::vector<Item> items;
    i64 slots = 0;          // counters of loops that it uses
};

// From the words of encode.py: for each item its kind, record, number of results; then, each
// with their number in front, parameters, operations (4 words each) and operands. An item that kernels must not be given
// becomes a FALLBACK; of one that was a FALLBACK before, the operands are all that it touches, if it has some. Null for words that are none, for loops and regions that are not whole, and for parts of a product or a loop
// that are not sound.
Code* decode(const i64* words, i64 count, const Limits& limits);

// Whether two operands depend on registers alike.
bool same_coefs(const Operand& a, const Operand& b);

// Whether operands a and b, of which the first is written, share bytes in a way that the kernels do not allow.
bool overlap(const Item& item, int a, int b, i64 offset_a, i64 offset_b);
