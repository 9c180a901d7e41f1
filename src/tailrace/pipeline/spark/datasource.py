"""The format `tailrace`, as Spark knows it: the door to the source and the sink."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .options import SourceOptions
from .rows import default_schema
from .source import BatchSource, StreamSource, batch_source


class TailraceDataSource(DataSource):
    """`spark.dataSource.register(TailraceDataSource)`, then `format("tailrace")`."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> StructType:
        return default_schema(SourceOptions.parse(self.options, streaming=False))

    def reader(self, schema: StructType) -> BatchSource:
        return batch_source(SourceOptions.parse(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> StreamSource:
        return StreamSource(SourceOptions.parse(self.options, streaming=True), schema)
