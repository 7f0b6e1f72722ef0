"""A parallel program of two ranks under OpenMPI."""
