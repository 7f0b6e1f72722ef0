"""Loads adapters, and their parts for other components, by entry points.

A broken adapter raises an error instead of being skipped.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from cedana_sched.adapter.contract import Adapter
from cedana_sched.model.errors import CedanaSchedError, NotFoundError

GROUP = "cedana_sched.adapters"
"""Entry point group; any distribution may register adapters in it."""
CONTRACT = ("name", "reports", "release")
"""Members that a loaded class must have."""


class AdapterLoadError(CedanaSchedError):
    """An installed adapter is unusable; the message names the adapter, its distribution, the reason and a remedy."""


def installed_adapters(group: str = GROUP) -> dict[str, EntryPoint]:
    """Return the entry points of all installed adapters by name, without importing them.

    Raises:
        AdapterLoadError: two distributions register the same name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise AdapterLoadError(
                f"two adapters are called {point.name!r}: {_describe_origin(other)} and {_describe_origin(point)}",
                remedy="uninstall one of the two distributions",
            )
        found[point.name] = point
    return found


def load(name: str) -> type[Adapter]:
    """Import the adapter called `name`.

    Raises:
        NotFoundError: no installed distribution registers the name.
        AdapterLoadError: the adapter cannot be imported, or does not fulfil the contract.
    """
    loaded: type[Adapter] = load_class(name, GROUP, CONTRACT, "cedana_sched/adapter/contract.py")
    return loaded


def load_class(name: str, group: str, members: tuple[str, ...], contract: str) -> type:
    """Import the class that an adapter registers under its name in a group of entry points.

    Args:
        name: the adapter's name; must equal the class's `name`.
        group: the entry point group.
        members: required members of the class.
        contract: the file that defines them, for the error message.

    Raises:
        NotFoundError: no installed distribution registers the name.
        AdapterLoadError: the class cannot be imported, or lacks a member.
    """
    adapters = installed_adapters(group)
    if name not in adapters:
        choice = ", ".join(sorted(adapters)) or "none"
        raise NotFoundError("adapter", name, "is not installed", remedy=f"installed are: {choice}")
    point = adapters[name]
    try:
        loaded = point.load()
    except ImportError as error:
        raise AdapterLoadError(
            f"adapter {name!r} ({_describe_origin(point)}) cannot be imported: {error}",
            remedy=f"install what it needs: pip install 'cedana-sched[{name}]'",
        ) from error
    except AttributeError as error:
        raise AdapterLoadError(
            f"adapter {name!r} ({_describe_origin(point)}) names an object that does not exist: {error}",
            remedy="correct the entry point in that distribution",
        ) from error
    missing = [member for member in members if not hasattr(loaded, member)]
    if not isinstance(loaded, type) or missing:
        what = f"lacks {', '.join(missing)}" if missing else "is not a class"
        raise AdapterLoadError(
            f"adapter {name!r} ({_describe_origin(point)}) does not fulfil the contract: it {what}",
            remedy=f"see {contract}",
        )
    if loaded.name != name:  # type: ignore[attr-defined]  # checked by hasattr above
        raise AdapterLoadError(
            f"adapter {name!r} ({_describe_origin(point)}) calls itself {loaded.name!r}",  # type: ignore[attr-defined]
            remedy="give the entry point and the class the same name",
        )
    return loaded


def _describe_origin(point: EntryPoint) -> str:
    distribution = point.dist.name if point.dist else "an unknown distribution"
    return f"{point.value} of {distribution}"
