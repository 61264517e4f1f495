"""Which ops of a computation run as one tile program."""
