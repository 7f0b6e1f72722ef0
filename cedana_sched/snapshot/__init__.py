"""Process trees as streams and back, by a bundled CRIU.

    criu_toolchain          a relocatable CRIU made from Debian's package files
    features                capabilities of this kernel
    freezer                 freeze, thaw and kill a cgroup
    preflight               obstacles to a dump, found before
    dump                    a frozen tree becomes named streams
    explain                 CRIU's log in plain words
    restore                 a folder of images becomes a running tree
    external_mounts         the mount namespace a job must live in
    grown_file_truncation   files that grew since the snapshot
    job_outputs             the output files of a saved job
    recorded_size_removal   sizes of files that are compared before the processes run
    ran_ahead_files         files that changed since the snapshot, where the policy decides
    reopened_names          names that a restore uses as root, and who can redirect them
    snapshot_contents       contents of a snapshot
    gpus                    NVIDIA's, by a process of its own

Independent of the streams' destination: the store implements `image_stream_receiver.ImageSink`, and the agent connects
the two.
"""
