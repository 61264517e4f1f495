"""What leaves the core: collectives, and calls of the host process."""
