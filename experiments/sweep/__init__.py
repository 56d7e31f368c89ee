"""Grids of training runs: the file that describes one, the processes that run it, the choice from it."""
