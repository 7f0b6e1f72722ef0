"""A program that lives by the kernel's timers."""
