// Entry points of the native core, called by library.py through ctypes.
#include "core.h"

#include <cstring>

namespace {

const int ABI = 1;  // library.py has the same number: raise both when the interface changes

#if HAVE_LEVELS
bool has_avx2() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512cd");
}
#endif

}  // namespace

const Kernels* kernels_for(const char* level) {
    const bool any = !*level;
#if HAVE_LEVELS
    if ((any || !std::strcmp(level, kernels_avx512.name)) && has_avx512()) return &kernels_avx512;
    if ((any || !std::strcmp(level, kernels_avx2.name)) && has_avx2()) return &kernels_avx2;
#endif
    return any || !std::strcmp(level, kernels_base.name) ? &kernels_base : nullptr;
}

EXPORTED int core_abi() { return ABI; }

// Name of the kernels that `level` selects ("" for the best), or null.
EXPORTED const char* core_level(const char* level) {
    const Kernels* found = kernels_for(level);
    return found ? found->name : nullptr;
}
