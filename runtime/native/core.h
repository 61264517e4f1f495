// The interface between the native core's parts. See core.cpp for what Python calls.
#pragma once

#include <cstdint>

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Kernels of one processor level: level_*.cpp is compiled once for each.
struct Kernels {
    const char* name;
};

extern const Kernels kernels_base;
#if HAVE_LEVELS
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

// The best kernels of this processor, or those of the level that is named (null where it cannot run).
const Kernels* kernels_for(const char* level);
