"""The JAX backend: ordinary JAX programs on simulated NeuronCores, with ``JAX_PLATFORMS=neuron``.

JAX finds ``plugin`` through the entry point group ``jax_plugins``. The C++ library ``runtime.pjrt`` owns devices,
buffers and executables; it calls ``compiler.compile`` and ``launch.execute`` here. ``report`` is what users call.
"""
