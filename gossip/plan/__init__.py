"""What a method costs on a network: bytes, time per step, and a ranking of all. Only `link` needs MPI."""
