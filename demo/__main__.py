"""`python -m demo`: run the scenario on this machine. Exit status 0 if the results are bit-identical, else 1."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from cedana_sched.model.errors import CedanaSchedError
from demo import account, casting, scenario
from demo.board import Board
from demo.engine_process import running_engine
from demo.screen import ProgressOf, Screen, shown
from workloads.catalog import WORKLOADS
from workloads.packages import PackageError
from workloads.reference import RunError
from workloads.workload import PrepareError, Size

FAILED = 1


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=scenario.__doc__.split("\n")[0])
    parser.add_argument("--simulation", default="gromacs", choices=sorted(WORKLOADS), help="what bio runs")
    parser.add_argument("--training", default="xgboost", choices=sorted(WORKLOADS), help="what ml runs")
    parser.add_argument("--size", default=Size.DEMO, type=Size, choices=list(Size), help="how long the runs are")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the runs, the store and the logs")
    return parser.parse_args(words)


async def play(cast: casting.Cast, directory: Path, console: Console, size: Size) -> account.Account:
    """Prepare the inputs, start the engine, run the scenario, and stop the engine."""
    performance = scenario.Play(cast, directory)
    await asyncio.to_thread(performance.prepare, size)

    def show(board: Board, progress_of: ProgressOf) -> AbstractContextManager[Screen]:
        return shown(console, board, scenario.QUOTAS, progress_of)

    async with running_engine(directory) as engine:
        return await performance.perform(engine, show)


def run(options: argparse.Namespace, console: Console) -> int:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    if os.geteuid() != 0:
        say("demo: only root can freeze and restore processes: run it as root")
        return FAILED
    cast = casting.choose(say, (options.simulation, options.training))
    directory = Path(tempfile.mkdtemp(prefix="cedana-sched-demo-"))
    directory.chmod(0o755)
    say(f"bio: {cast.simulation.title}   ml: {cast.training.title}   1 cpu each, one cohort")
    try:
        outcome = asyncio.run(play(cast, directory, console, options.size))
    finally:
        if options.keep:
            say(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    say("\n" + account.as_text(outcome))
    return 0 if outcome.succeeded else FAILED


def main() -> int:
    console = Console()
    try:
        return run(arguments(sys.argv[1:]), console)
    except ExceptionGroup as group:
        return _report(console, group.exceptions[0])
    except (CedanaSchedError, PackageError, PrepareError, RunError, scenario.DemoError) as error:
        return _report(console, error)
    except KeyboardInterrupt:
        console.print("demo: interrupted")
        return 130


def _report(console: Console, error: BaseException) -> int:
    if not isinstance(error, (CedanaSchedError, PackageError, PrepareError, RunError, scenario.DemoError)):
        raise error
    console.print(f"demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    for line in getattr(error, "evidence", ()):
        console.print(f"  {line}", style="dim", markup=False, highlight=False)
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
