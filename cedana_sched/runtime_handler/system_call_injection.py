"""Injection of system calls into processes that ptrace has stopped, before their next instruction.

For what only a process can do for itself, like acquiring a POSIX lock. The processes must be frozen and freshly
restored: outside of any system call, and not traced. Processes that make the call need a `syscall` instruction
somewhere in their code (the vDSO has one), and eight words of memory at their stack pointer, restored afterwards.

Numbers are from linux/ptrace.h and the two architectures' `user_regs_struct`. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

_PTRACE_SYSCALL, _PTRACE_DETACH = 24, 17
_PTRACE_GETREGSET, _PTRACE_SETREGSET = 0x4204, 0x4205
_PTRACE_SEIZE, _PTRACE_INTERRUPT = 0x4206, 0x4207
_PTRACE_GETSIGMASK, _PTRACE_SETSIGMASK = 0x420A, 0x420B
_O_TRACESYSGOOD, _O_EXITKILL, _O_SUSPEND_SECCOMP = 0x1, 1 << 20, 1 << 21
_EVENT_STOP = 128
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_WALL = 0x40000000
_NT_PRSTATUS = 1
_SIGNAL_SET_BYTES = 8
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.001
_SEARCHED_BYTES = 64 << 20


class InjectionError(Exception):
    """The injection failed; the processes are unchanged, or dead."""


class _SystemCallRegisters(NamedTuple):
    """An architecture's registers for system calls, as indexes of 64-bit words."""

    words: int
    instruction: bytes
    number: int
    arguments: tuple[int, int, int]
    result: int
    program_counter: int
    stack_pointer: int
    interrupted: int | None
    """The word with the number of the interrupted system call; -1 is none."""


_MACHINES = {
    "x86_64": _SystemCallRegisters(27, b"\x0f\x05", 10, (14, 13, 12), 10, 16, 19, 15),
    "aarch64": _SystemCallRegisters(34, b"\x01\x00\x00\xd4", 8, (0, 1, 2), 0, 32, 31, None),
}
_FCNTL = {"x86_64": 72, "aarch64": 25}


class _IoVector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


class StoppedProcesses:
    """All threads of frozen processes, stopped by ptrace; a context manager that detaches at its end.

    The processes are killed if this process dies meanwhile.
    """

    def __init__(self, processes: Iterable[int]) -> None:
        name = platform.machine()
        if name not in _MACHINES:
            raise InjectionError(f"this is not supported on {name} yet")
        self._machine, self._fcntl = _MACHINES[name], _FCNTL[name]
        self._processes = list(processes)
        self._threads: list[int] = []
        self._signals: dict[int, list[int]] = {}

    def __enter__(self) -> Self:
        try:
            for process in self._processes:
                for thread in map(int, os.listdir(f"/proc/{process}/task")):
                    if _is_alive(thread):
                        _seize(thread)
                        self._threads.append(thread)
        except OSError as error:
            raise InjectionError(f"a restored process cannot be stopped: {error}") from error
        return self

    def wait_stopped(self) -> None:
        """Wait until all are stopped; the processes must be thawed before.

        Raises:
            InjectionError: a thread has ended, or does not stop.
        """
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            while (status := _poll_wait_status(thread)) is None:
                if time.monotonic() > deadline:
                    raise InjectionError(f"thread {thread} does not stop")
                time.sleep(_LOOK_SECONDS)  # waitpid(2) has no timeout, and a thread has no pidfd
            if status >> 16 != _EVENT_STOP:
                raise InjectionError(f"thread {thread} came to another stop (status {status:#x})")

    def call_fcntl(self, process: int, descriptor: int, command: int, structure: bytes) -> int:
        """Make a process call it; return the result, or a negative errno. `structure` is not read back."""
        try:
            return self._inject_fcntl(process, descriptor, command, structure)
        except OSError as error:
            raise InjectionError(f"process {process} cannot be made to call fcntl: {error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, signals in self._signals.items():
            for number in signals:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
        killed = set()
        for thread in self._threads:
            try:
                _ptrace(_PTRACE_DETACH, thread)
            except OSError:
                killed.add(thread)
        _reap(killed)

    def _inject_fcntl(self, process: int, descriptor: int, command: int, structure: bytes) -> int:
        """Make the call.

        Raises:
            FileNotFoundError, ProcessLookupError: the process has ended.
            OSError: its registers or memory cannot be changed.
        """
        machine = self._machine
        saved = _read_registers(process, machine.words)
        mask = _signal_mask(process)
        instruction = _find_instruction(process, machine.instruction)
        place = saved[machine.stack_pointer]
        with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
            memory.seek(place)
            before = memory.read(len(structure))
            memory.seek(place)
            memory.write(structure)
            called = list(saved)
            called[machine.number] = self._fcntl
            called[machine.program_counter] = instruction
            if machine.interrupted is not None:
                called[machine.interrupted] = (1 << 64) - 1
            for at, value in zip(machine.arguments, (descriptor, command, place), strict=True):
                called[at] = value
            _set_signal_mask(process, (1 << 64) - 1)
            _set_registers(process, called)
            self._run_to_system_call(process)
            self._run_to_system_call(process)
            result = _read_registers(process, machine.words)[machine.result]
            _set_registers(process, saved)
            _set_signal_mask(process, mask)
            memory.seek(place)
            memory.write(before)
        return result - (1 << 64) if result >> 63 else result

    def _run_to_system_call(self, process: int) -> None:
        """Run it to the entry or exit of a system call. A stop signal precedes that, and is kept."""
        while True:
            _ptrace(_PTRACE_SYSCALL, process)
            _, status = os.waitpid(process, _WALL)
            if not os.WIFSTOPPED(status):
                raise InjectionError(f"process {process} ended (status {status:#x})")
            number = os.WSTOPSIG(status)
            if number == _SYSCALL_STOP:
                return
            if status >> 16 != _EVENT_STOP:
                self._signals.setdefault(process, []).append(number)


def _seize(thread: int) -> None:
    """Seize a thread, if permitted with seccomp suspended: a filter may refuse the call."""
    options = _O_TRACESYSGOOD | _O_EXITKILL
    try:
        _ptrace(_PTRACE_SEIZE, thread, 0, options | _O_SUSPEND_SECCOMP)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise
        _ptrace(_PTRACE_SEIZE, thread, 0, options)
    _ptrace(_PTRACE_INTERRUPT, thread)


def _reap(threads: set[int]) -> None:
    """Reap dead threads; until the tracer does, their parent, or PID 1 of their namespace, cannot."""
    deadline = time.monotonic() + _STOP_SECONDS
    while threads and time.monotonic() < deadline:
        for thread in list(threads):
            try:
                pid, status = os.waitpid(thread, _WALL | os.WNOHANG)
            except ChildProcessError:
                threads.remove(thread)
            else:
                if pid and not os.WIFSTOPPED(status):
                    threads.remove(thread)
        time.sleep(_LOOK_SECONDS)


def _poll_wait_status(thread: int) -> int | None:
    try:
        pid, status = os.waitpid(thread, _WALL | os.WNOHANG)
    except ChildProcessError as error:
        raise InjectionError(f"thread {thread} has ended") from error
    return status if pid else None


def _read_registers(thread: int, words: int) -> list[int]:
    buffer = ctypes.create_string_buffer(words * 8)
    vector = _IoVector(ctypes.addressof(buffer), len(buffer))
    _ptrace(_PTRACE_GETREGSET, thread, _NT_PRSTATUS, ctypes.addressof(vector))
    if vector.length != len(buffer):
        raise InjectionError(f"process {thread} is a 32-bit program")
    return list(struct.unpack(f"{words}Q", buffer.raw))


def _set_registers(thread: int, values: list[int]) -> None:
    buffer = ctypes.create_string_buffer(struct.pack(f"{len(values)}Q", *values), len(values) * 8)
    vector = _IoVector(ctypes.addressof(buffer), len(buffer))
    _ptrace(_PTRACE_SETREGSET, thread, _NT_PRSTATUS, ctypes.addressof(vector))


def _signal_mask(thread: int) -> int:
    mask = ctypes.c_uint64()
    _ptrace(_PTRACE_GETSIGMASK, thread, _SIGNAL_SET_BYTES, ctypes.addressof(mask))
    return mask.value


def _set_signal_mask(thread: int, value: int) -> None:
    mask = ctypes.c_uint64(value)
    _ptrace(_PTRACE_SETSIGMASK, thread, _SIGNAL_SET_BYTES, ctypes.addressof(mask))


def _find_instruction(process: int, instruction: bytes) -> int:
    """Return the address of an instruction in a process's code; searches the vDSO first, which is small."""
    areas = []
    with open(f"/proc/{process}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            bounds, rights, *_ = fields = line.split()
            if "x" in rights and not fields[-1].startswith("[vsyscall"):
                begin, end = (int(part, 16) for part in bounds.split("-"))
                areas.append((fields[-1] != "[vdso]", end - begin, begin))
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        for _, size, begin in sorted(areas):
            with suppress(OSError):  # not readable: a device
                memory.seek(begin)
                code = memory.read(min(size, _SEARCHED_BYTES))
                if (at := code.find(instruction)) >= 0:
                    return begin + at
    raise InjectionError(f"process {process} has no system call in its code")


def _is_alive(thread: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{thread}/stat", "rb") as stat:
        return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    if _libc.ptrace(request, thread, address, data) < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"ptrace of {thread}: {os.strerror(code)}")
