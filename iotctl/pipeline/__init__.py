"""Spark jobs over the cluster: verify and repair replicas, migrate the slots of a change, read TsFiles.

No other package imports pyspark. The driver calls agents through `link.Cluster`; tasks rebuild the same
link from its picklable spec. TsFiles are opened only in Spark's Python workers, because the native reader
hangs after a fork. Those of a cluster are opened only after the XXH3-128 of their bytes was checked, because
the format has no page checksums and damaged bytes can crash the reader; a TsFile loaded from a path has no
recorded hash and is opened unchecked.
"""
