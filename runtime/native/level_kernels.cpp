// The kernels of one processor level.
#include "core.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

const Kernels JOIN(kernels_, LEVEL) = {TEXT(LEVEL)};
