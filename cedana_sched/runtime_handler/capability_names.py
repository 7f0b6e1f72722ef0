"""Names of the kernel's capabilities by number (linux/capability.h), as in an OCI specification."""

from __future__ import annotations

KNOWN_CAPABILITIES = tuple(
    f"CAP_{name}"
    for name in (
        "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
        "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
        "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
        "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
        "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
        "CHECKPOINT_RESTORE",
    )
)  # fmt: skip


def capability_names_of_mask(mask: int) -> frozenset[str]:
    """Return the names of the bits in a capability set from /proc; one newer than this list is named by its number."""
    numbers = (number for number in range(mask.bit_length()) if mask >> number & 1)
    return frozenset(_capability_name(number) for number in numbers)


def _capability_name(number: int) -> str:
    return KNOWN_CAPABILITIES[number] if number < len(KNOWN_CAPABILITIES) else f"CAP_{number}"
