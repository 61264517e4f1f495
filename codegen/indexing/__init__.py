"""Windows at run-time places, gathers, scatters, sorts."""
