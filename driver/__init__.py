if __name__ != "neuronx_cc.driver":
    raise ImportError("import this package as neuronx_cc.driver, not as driver")
