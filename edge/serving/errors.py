"""What can go wrong between a model and its ONNX file."""

from __future__ import annotations

from edge.errors import DataError, RecfleetError


class ExportError(RecfleetError):
    """A model that cannot be written as asked; the message names the parameter and what it must be."""


class ModelFileError(DataError):
    """A model file that is refused; the message names the file and the rule that it breaks."""


class ParityError(RecfleetError):
    """An exported model gives other numbers than the formula; the message says by how much."""


class DivergedModelError(ParityError):
    """A model, or the scores that it gives, are not finite in float32; the message names round and device."""
