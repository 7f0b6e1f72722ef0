"""Molecular dynamics of a box of water with GROMACS."""
