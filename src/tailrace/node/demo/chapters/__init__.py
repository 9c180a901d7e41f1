"""The chapters of the demo, in the order in which they are told. Each is a module with a `CHAPTER`."""

from ..chapter import Chapter
from . import advertising, streams

CHAPTERS: tuple[Chapter, ...] = (streams.CHAPTER, advertising.CHAPTER)
