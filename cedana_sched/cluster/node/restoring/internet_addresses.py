"""Internet addresses, as CRIU's images have them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address


def read_address(family: int, words: Sequence[int]) -> Address:
    """Return an address of 32-bit words in network order; one of IPv4 that is mapped into IPv6 is that of IPv4.

    Raises:
        ValueError, OverflowError: it has fewer words than an address of this family, or longer ones.
    """
    data = b"".join(word.to_bytes(4, "little") for word in words)
    if family == socket.AF_INET:
        return IPv4Address(data[:4])
    address = IPv6Address(data[:16])
    return address.ipv4_mapped or address


def address_words(family: int, address: Address) -> list[int]:
    """Return the 32-bit words of an address for a socket of this family; one of IPv4 is mapped into IPv6."""
    is_mapped = family == socket.AF_INET6 and address.version == 4 and not address.is_unspecified
    packed = IPv6Address(f"::ffff:{address}").packed if is_mapped else address.packed
    data = packed.ljust(16 if family == socket.AF_INET6 else 4, b"\0")
    return list(struct.unpack(f"<{len(data) // 4}I", data))
