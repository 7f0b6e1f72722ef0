"""Errors that only a person at the command line can meet."""

from __future__ import annotations

from cedana_sched.model.errors import CedanaSchedError


class CommandLineError(CedanaSchedError):
    """The command line cannot be read: an unknown command or option, a missing argument."""


class WaitTimedOutError(CedanaSchedError):
    """The time that a person gave is over; what was waited for goes on."""


class JobFailedError(CedanaSchedError):
    """The job that was waited for failed or was cancelled."""


class PermissionRefusedError(CedanaSchedError):
    """The operating system does not let this user do it."""


class DoctorError(CedanaSchedError):
    """Something that the product needs is missing on this machine, or in the cluster."""
