"""Requirements as the Python of an image reads them; pip itself reads markers for the Python that runs it."""

from __future__ import annotations

import re

from packaging.markers import Marker

_ENTRY = re.compile(r"(?:.*\\\n)*.*\n?")
_MARKER = re.compile(r"\s*;\s*([^\\\n#]+?)(?=\s*(?:\\|#|\n|$))")


def for_python(text: str, version: str) -> str:
    """Leave out what is not for that minor version of Python, such as 3.13, and the markers that say so."""
    environment = {"python_version": version, "python_full_version": f"{version}.0"}
    kept = []
    for entry in _ENTRY.findall(text):
        marker = None if entry.lstrip().startswith(("#", "-")) else _MARKER.search(entry)
        if marker is None:
            kept.append(entry)
        elif Marker(marker[1]).evaluate(environment):
            kept.append(entry[: marker.start()] + entry[marker.end() :])
    return "".join(kept)
