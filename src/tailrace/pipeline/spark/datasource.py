"""The format `tailrace`, as Spark knows it: the door to the source and the sink."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from .options import SinkOptions, SourceOptions
from .rows import default_schema
from .sink import BatchSink, StreamSink
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

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        return BatchSink(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        return StreamSink(SinkOptions.parse(self.options), schema, overwrite=overwrite)
