"""Process trees as streams and back, by a bundled CRIU.

    toolchain   a relocatable CRIU made from Debian's package files      features    capabilities of this kernel
    freezer     freeze, thaw and kill a cgroup                           preflight   obstacles to a dump, found before
    dump        a frozen tree becomes named streams                      explain     CRIU's log in plain words
    restore     a folder of images becomes a running tree                inspect     contents of a snapshot
    namespaces  the mount namespace a job must live in                   rewind      files that grew since the snapshot
    gpus        NVIDIA's, by a process of its own

Independent of the streams' destination: the store implements `image_stream_receiver.ImageSink`, and the agent connects
the two.
"""
