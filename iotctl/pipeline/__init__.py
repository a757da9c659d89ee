"""Spark jobs over the cluster: verify and repair replicas, migrate the slots of a change, read TsFiles.

No other package imports pyspark. The driver calls agents through `link.Cluster`; tasks rebuild the same
link from its picklable spec. TsFiles are opened only in Spark's Python workers, and only after the XXH3-128
of their bytes was checked: the format has no page checksums, and its native reader can crash on damaged bytes
and hangs after a fork.
"""
