if __name__ != "neuronx_cc.ir":
    raise ImportError("import this package as neuronx_cc.ir, not as ir")
