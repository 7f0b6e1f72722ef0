"""Placeholder."""

import typer

app = typer.Typer(no_args_is_help=True)


def register(app: typer.Typer) -> None: ...
