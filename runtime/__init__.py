if __name__ != "neuronx_cc.runtime":
    raise ImportError("import this package as neuronx_cc.runtime, not as runtime")
