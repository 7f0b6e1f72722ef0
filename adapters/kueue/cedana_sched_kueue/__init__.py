"""Kueue: its preemptions as signals, its suspension as the hold, its AdmissionCheck as the way back."""
