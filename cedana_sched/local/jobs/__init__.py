"""Job lifecycle: the state machine, the scheduling loop, and the journal that persists jobs."""
