"""Errors that occur only on the command line."""

from __future__ import annotations

from cedana_sched.model.errors import CedanaSchedError


class CommandLineError(CedanaSchedError):
    """The command line is invalid: an unknown command or option, a missing argument."""


class WaitTimedOutError(CedanaSchedError):
    """The user's timeout of a wait has expired; the operation itself continues."""


class JobFailedError(CedanaSchedError):
    """The job of a wait failed or was cancelled."""


class PermissionRefusedError(CedanaSchedError):
    """The operating system denies the operation to this user."""


class DoctorError(CedanaSchedError):
    """A prerequisite is missing on this machine or in the cluster."""
