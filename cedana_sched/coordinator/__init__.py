"""The coordinator: a synchronous state machine (core), and the shell that does its I/O."""

from cedana_sched.coordinator.clock import SystemClock
from cedana_sched.coordinator.ports import Agents, Clock, EventListener, Journal
from cedana_sched.coordinator.shell import Coordinator

__all__ = ["Agents", "Clock", "Coordinator", "EventListener", "Journal", "SystemClock"]
