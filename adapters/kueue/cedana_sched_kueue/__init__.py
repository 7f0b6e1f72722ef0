"""Kueue: preemptions become signals, the suspension of the Job is held, an AdmissionCheck prepares restores."""
