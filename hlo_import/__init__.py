if __name__ != "neuronx_cc.hlo_import":
    raise ImportError("import this package as neuronx_cc.hlo_import, not as hlo_import")
