"""Finds adapters by their entry points, and refuses a broken one with a sentence instead of skipping it."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from cedana_sched.adapter.contract import Adapter
from cedana_sched.model.errors import CedanaSchedError, NotFoundError

GROUP = "cedana_sched.adapters"
"""Entry point group; any distribution may add adapters under it."""


class AdapterLoadError(CedanaSchedError):
    """An installed adapter cannot be used: says which, from which distribution, what is wrong and what to do."""


def installed() -> dict[str, EntryPoint]:
    """All adapters of this environment by name, none of them imported yet.

    Raises:
        AdapterLoadError: two distributions offer the same name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise AdapterLoadError(
                f"two adapters are called {point.name!r}: {_origin(other)} and {_origin(point)}",
                remedy="uninstall one of the two distributions",
            )
        found[point.name] = point
    return found


def load(name: str) -> type[Adapter]:
    """Import the adapter called `name`.

    Raises:
        NotFoundError: no installed distribution offers it.
        AdapterLoadError: it cannot be imported, or does not fulfil the contract.
    """
    adapters = installed()
    if name not in adapters:
        choice = ", ".join(sorted(adapters)) or "none"
        raise NotFoundError("adapter", name, "is not installed", remedy=f"installed are: {choice}")
    point = adapters[name]
    try:
        loaded = point.load()
    except ImportError as error:
        raise AdapterLoadError(
            f"adapter {name!r} ({_origin(point)}) cannot be imported: {error}",
            remedy=f"install what it needs: pip install 'cedana-sched[{name}]'",
        ) from error
    except AttributeError as error:
        raise AdapterLoadError(
            f"adapter {name!r} ({_origin(point)}) names an object that does not exist: {error}",
            remedy="correct the entry point in that distribution",
        ) from error
    return _validated(name, point, loaded)


def _validated(name: str, point: EntryPoint, loaded: object) -> type[Adapter]:
    missing = [member for member in ("name", "reports", "release") if not hasattr(loaded, member)]
    if not isinstance(loaded, type) or missing:
        what = f"lacks {', '.join(missing)}" if missing else "is not a class"
        raise AdapterLoadError(
            f"adapter {name!r} ({_origin(point)}) does not fulfil the contract: it {what}",
            remedy="see cedana_sched/adapter/contract.py",
        )
    if loaded.name != name:  # type: ignore[attr-defined]  # checked by hasattr above
        raise AdapterLoadError(
            f"adapter {name!r} ({_origin(point)}) calls itself {loaded.name!r}",  # type: ignore[attr-defined]
            remedy="give the entry point and the class the same name",
        )
    return loaded


def _origin(point: EntryPoint) -> str:
    distribution = point.dist.name if point.dist else "an unknown distribution"
    return f"{point.value} of {distribution}"
