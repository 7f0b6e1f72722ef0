"""The way back of a pod on its node: volumes, a plan for the runtime handler, a word to the restore container."""
