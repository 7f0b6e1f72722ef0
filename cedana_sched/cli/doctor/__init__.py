"""`cedana-sched doctor`: what this machine can do, in plain words, and what to do about the rest.

findings   what a check says        machine   kernel, capabilities, namespaces, control groups
command    runs all, prints         criu      the toolchain and the kernel features that it needs
                                    devices   GPUs, disks        services   the engine and the store
                                    cluster   a Kubernetes cluster, with the rights of whoever asks
"""
