"""What kernels are written with: access maps, memories, loops, tiles, instructions, synchronisation."""
