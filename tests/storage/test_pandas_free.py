"""No process of a node imports pandas."""

import subprocess
import sys

WORKER = """
import nodeagent.storage.child as child
import sys
assert "pandas" not in sys.modules, "by an import"
child.forbid_pandas()
import pyarrow as pa
import pyarrow.compute as pc
import numpy as np
assert pa.array([1, None]).to_pylist() == [1, None]
assert pa.array(np.array([1.5])).to_numpy()[0] == 1.5
assert pc.add(pa.scalar(1), 1).as_py() == 2
assert not any(name.startswith("pandas.") for name in sys.modules)
"""

BOTH = """
from nodeagent.storage.tsfile_package import tsfile
import pandas
assert pandas.DataFrame({"a": [1]}).shape == (1, 1)
"""


def _run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_worker_does_not_import_pandas() -> None:
    _run(WORKER)


def test_pandas_can_be_imported_together_with_tsfile() -> None:
    _run(BOTH)
    _run("import pandas; " + BOTH.strip().replace("\n", "; "))
