if __name__ != "neuronx_cc.passes":
    raise ImportError("import this package as neuronx_cc.passes, not as passes")
