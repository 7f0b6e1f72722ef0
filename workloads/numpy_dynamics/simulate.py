"""A Lennard-Jones fluid in a periodic box, by velocity Verlet, one thread: `simulate.py STEPS`.

Writes `energies.txt` (a line every ten steps: step, potential, kinetic), `trajectory.bin` (coordinates every
fifty steps) and at the end `final.bin` (coordinates and velocities). Plain array arithmetic in a fixed order:
the same machine gives the same bits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np  # type: ignore[import-not-found, unused-ignore]

SIDE = 8
DENSITY = 0.8
TIME_STEP = 0.002
SEED = 20261
ENERGY_EVERY = 10
FRAME_EVERY = 50


def initial_state() -> tuple[np.ndarray, np.ndarray, float]:
    """Return coordinates on a lattice, random velocities without drift, and the length of the box."""
    count = SIDE**3
    box = (count / DENSITY) ** (1 / 3)
    lattice = np.stack(np.meshgrid(*[np.arange(SIDE)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    velocities = np.random.default_rng(SEED).standard_normal((count, 3))
    return (lattice + 0.5) * (box / SIDE), velocities - velocities.mean(axis=0), box


def forces(positions: np.ndarray, box: float) -> tuple[np.ndarray, float]:
    """Return the force on every particle and the potential energy, each pair taken at its nearest image."""
    separation = positions[:, None, :] - positions[None, :, :]
    separation -= box * np.rint(separation / box)
    squared = (separation * separation).sum(axis=2)
    np.fill_diagonal(squared, np.inf)
    inverse = 1.0 / squared
    sixth = inverse * inverse * inverse
    strength = 24.0 * inverse * sixth * (2.0 * sixth - 1.0)
    return (separation * strength[:, :, None]).sum(axis=1), float((2.0 * sixth * (sixth - 1.0)).sum())


def main() -> None:
    steps = int(sys.argv[1])
    positions, velocities, box = initial_state()
    force, _ = forces(positions, box)
    with Path("energies.txt").open("w", buffering=1) as energies, Path("trajectory.bin").open("wb") as frames:
        for step in range(1, steps + 1):
            velocities += 0.5 * TIME_STEP * force
            positions = (positions + TIME_STEP * velocities) % box
            force, potential = forces(positions, box)
            velocities += 0.5 * TIME_STEP * force
            if step % ENERGY_EVERY == 0:
                energies.write(f"{step} {potential:.17g} {0.5 * float((velocities * velocities).sum()):.17g}\n")
            if step % FRAME_EVERY == 0:
                frames.write(positions.tobytes())
    Path("final.bin").write_bytes(positions.tobytes() + velocities.tobytes())
    print(f"simulated {steps} steps of {len(positions)} particles", flush=True)


if __name__ == "__main__":
    main()
