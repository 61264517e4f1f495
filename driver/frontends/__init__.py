"""Models of other frameworks than JAX, as modules that the compiler takes; each framework is imported on first use."""
