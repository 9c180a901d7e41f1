"""The words of the design as frozen types. Standard library only; no input or output."""

from .message_file import MessageFile
from .names import check_name

__all__ = ["MessageFile", "check_name"]
