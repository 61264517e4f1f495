"""ONNX models to HLO: an importer of its own, from one table of operators to JAX functions."""
