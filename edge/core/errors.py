"""Every error the product raises on purpose, with its place in the hierarchy."""

from __future__ import annotations


class RecfleetError(Exception):
    """Base of all errors that recfleet raises on purpose."""


class ProtocolError(RecfleetError):
    """The protocol between coordinator and device was broken."""


class LocalProtocolError(ProtocolError):
    """We were about to break the protocol: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; ``reason`` is a short name that is counted and reported."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class CodecError(RemoteProtocolError):
    """Bytes that are not a valid frame."""


class FrameTooLargeError(CodecError):
    """A frame above the limit; the limit's setting is named in the message."""


class DataError(RecfleetError):
    """A dataset that cannot be read; the message names file, line and what was expected."""


class DeadlockError(RecfleetError):
    """Virtual time cannot advance: nothing is ready and no timer is set."""


class UnsupportedPythonError(RecfleetError):
    """The virtual clock goes wrong on this Python: its asyncio works in another way than it overrides."""


class MissingExtraError(RecfleetError):
    """A feature needs packages that are not installed; the message says how to install them."""


class PluginError(RecfleetError):
    """A plug-in that cannot be used; the message names its file and line."""


class ExportError(RecfleetError):
    """A model that cannot be written as asked; the message names the parameter and what it must be."""


class ModelFileError(DataError):
    """A model file that is refused; the message names the file and the rule that it breaks."""


class ParityError(RecfleetError):
    """An exported model gives other numbers than the formula; the message says by how much."""


class DivergedModelError(ParityError):
    """A model, or the scores that it gives, are not finite in float32; the message names round and device."""
