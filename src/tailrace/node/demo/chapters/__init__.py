"""The chapters of the demo, in the order in which they are told. Each is a module with a `CHAPTER`."""

from ..chapter import Chapter
from . import advertising, clusters, streams

CHAPTERS: tuple[Chapter, ...] = (streams.CHAPTER, clusters.CHAPTER, advertising.CHAPTER)
