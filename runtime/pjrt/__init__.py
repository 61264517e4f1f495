"""The C++ side of the JAX backend: buffers, devices and executables behind the PJRT interface.

``_pjrt`` is a Python extension module and at the same time the library that jaxlib loads; ``driver.jax_backend`` gives
it the functions that compile and execute.
"""
