"""Streams as a source and a sink of Spark: `spark.read.format("tailrace")`, and the same for readStream and write.

from tailrace.pipeline.spark import session
spark = session()                                        # or, for a session of your own: register(spark)
clicks = spark.read.format("tailrace").option("world", "data/").option("stream", "clicks").load()
"""

try:
    import pyspark  # noqa: F401
except ImportError as missing:
    raise ImportError("Spark is not installed here: pip install 'tailrace[spark]'") from missing

from .datasource import TailraceDataSource
from .session import register, session

__all__ = ["TailraceDataSource", "register", "session"]
