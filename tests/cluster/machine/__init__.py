"""A machine of the test cluster: a Debian root in namespaces of its own, with runit as its service manager.

Its PID, mount, UTS, IPC and cgroup namespaces are its own and its network namespace is named, so that `hostPID` and
`hostNetwork` mean this machine, and so that a kill of its first process is a power cut.
"""
