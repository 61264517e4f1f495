"""The JAX backend: ordinary JAX programs on simulated NeuronCores, with ``JAX_PLATFORMS=neuron``.

JAX finds ``plugin`` through the entry point group ``jax_plugins``. The C++ library ``_pjrt``
(sources in ``runtime/pjrt``) is what jaxlib loads, and an extension module: it owns devices, buffers and executables
and calls ``compiler.compile`` and ``launch.execute`` here.
"""
