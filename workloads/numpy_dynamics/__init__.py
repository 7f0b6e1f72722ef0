"""Molecular dynamics written with NumPy, for machines on which GROMACS cannot be installed."""
