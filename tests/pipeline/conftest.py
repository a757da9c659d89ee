"""One Spark session and one TsFile writer for all tests of this directory."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from iotctl.pipeline.session import spark_session
from tests.pipeline.fake import Maker


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("tests", "local[2]") as session:
        yield session


@pytest.fixture(scope="session")
def maker() -> Iterator[Maker]:
    made = Maker()
    yield made
    made.close()
