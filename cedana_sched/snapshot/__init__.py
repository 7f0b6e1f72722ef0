"""How a process tree becomes streams and back: CRIU, brought along, driven and explained.

    toolchain   a relocatable CRIU made from Debian's package files      features    what this kernel can do
    freezer     stop, continue and kill a cgroup                         preflight   what cannot be dumped, said before
    dump        a frozen tree becomes named streams                      explain     CRIU's log in plain words
    restore     a folder of images becomes a running tree                inspect     what a snapshot holds
    namespaces  the mount namespace a job must live in                   rewind      files that grew since the snapshot

Nothing here knows where the streams go: the store satisfies `stream.StreamSink`, and the agent joins the two.
"""
