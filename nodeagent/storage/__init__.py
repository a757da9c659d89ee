"""Files of a node: closed TsFiles, checkpoints, snapshots, staging, and the worker that makes files.

All I/O goes through the `Disk` protocol, so the simulator runs the same code; only the TsFile worker
(a child process) opens files directly. Nothing here uses asyncio or sockets: pulling from another node is a
generator that requests chunks (`pull`).

Write ordering. *Must* (data is lost otherwise): a file's bytes are synced before its name appears; names are
synced before a job returns; a checkpoint is written after the files it names; staged files are deleted after
the checkpoint that names their new place. *Should* (a sweep repairs it): temporary files are deleted at once.
"""
