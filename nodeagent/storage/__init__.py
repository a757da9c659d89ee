"""Files of a node: closed TsFiles, checkpoints, snapshots, staging, and the worker that makes files.

Everything goes through the `Disk` protocol, so the simulator runs the same code; only the TsFile worker
(a child process) opens files by itself. Nothing here knows asyncio or a socket: pulling from another
node is a generator that asks for chunks (`pull`).

Write ordering. *Must* (else data is lost): a file's bytes are synced before its name appears; names are
synced before a job answers; a checkpoint is written after the files it names; staged files go after the
checkpoint that names their new place. *Should* (a sweep repairs it): temporary files go at once.
"""
