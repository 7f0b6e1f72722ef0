"""Restores a pod on its node: volumes, a plan for the runtime handler, a decision for the restore container."""
