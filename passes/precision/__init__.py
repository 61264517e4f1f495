"""In which types ops compute: auto-cast modes, policies by op, and the casts that follow from them."""
