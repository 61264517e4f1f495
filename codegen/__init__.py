if __name__ != "neuronx_cc.codegen":
    raise ImportError("import this package as neuronx_cc.codegen, not as codegen")
