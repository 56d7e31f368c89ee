"""What a method costs on a network: bytes, time per step, and a ranking of all. Needs no MPI."""
