"""The native core of the simulator: C++ sources, the library built from them, and the Python side of it."""
