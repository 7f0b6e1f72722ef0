"""Internet addresses, as CRIU's images have them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence


def read_address(family: int, words: Sequence[int]) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address of 32-bit words in network order; one of IPv4 that is mapped into IPv6 is that of IPv4.

    Raises:
        ValueError, OverflowError: it has fewer words than an address of this family, or longer ones.
    """
    data = b"".join(word.to_bytes(4, "little") for word in words)
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(data[:4])
    address = ipaddress.IPv6Address(data[:16])
    return address.ipv4_mapped or address
