"""What `tailrace produce` takes in: files and pipes, cut into batches of rows, in bounded memory."""

from .files import InputFile, InputFormat, check_files, guess_format
from .rows import BadRow, Rows
from .select import Fields, rows_of

__all__ = ["BadRow", "Fields", "InputFile", "InputFormat", "Rows", "check_files", "guess_format", "rows_of"]
