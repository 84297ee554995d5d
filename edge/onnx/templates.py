"""Model files of many devices from one: weights written over the bytes of a template.

A file's length and layout depend on shapes alone, so the weights of every device lie at the same offsets. A
patched file has the bytes of one that was built from the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edge.core.errors import ExportError
from edge.onnx.loading import tensor_places
from edge.onnx.mask_graph import Features, MaskKind, Weights, mask_model
from edge.onnx.metadata import ModelInfo
from edge.onnx.model_format import FLOAT32
from edge.onnx.recommenders import Recommenders, recommender_model


class Template:
    """A serialised model, and where in it the weights lie that differ between devices.

    Parameters
    ----------
    contents : the serialised model.
    names : initializers to replace, all float32.

    Attributes
    ----------
    shapes : of each of ``names``.
    nbytes : size of every file.
    """

    def __init__(self, contents: bytes, names: Sequence[str]) -> None:
        places = tensor_places(contents)
        for name in names:
            if name not in places or places[name].data_type != FLOAT32:
                raise ExportError(f"the model has no float32 weights {name!r} that could be replaced")
        self._contents = np.frombuffer(contents, np.uint8)
        self.nbytes = len(contents)
        self._places = {name: places[name] for name in names}
        self.shapes = {name: place.shape for name, place in self._places.items()}

    def patched_all(self, stacked: Mapping[str, npt.NDArray[np.float32]]) -> Iterator[bytes]:
        """Return an iterator over the models of n devices.

        Parameters
        ----------
        stacked : for each weight, float32 [n, …], a device in each row.

        Raises
        ------
        ExportError
            At once, for weights of other names, types or shapes, or not finite.
        """
        rows = self._checked(stacked)
        return self._patched(rows)

    def _checked(self, stacked: Mapping[str, npt.NDArray[np.float32]]) -> list[npt.NDArray[np.uint8]]:
        if set(stacked) != set(self.shapes):
            raise ExportError(
                f"this template takes {', '.join(self.shapes)}, not {', '.join(sorted(stacked))}"
            )
        devices = {len(array) for array in stacked.values()}
        if len(devices) != 1:
            raise ExportError(
                f"weights of {' and '.join(map(str, sorted(devices)))} devices; give one number"
            )
        rows = []
        for name, shape in self.shapes.items():
            array = stacked[name]
            if array.dtype != np.float32 or array.shape[1:] != shape:
                raise ExportError(
                    f"{name} is float32 [devices, …{list(shape)}], not {array.dtype} {list(array.shape)}"
                )
            if not np.isfinite(array).all():
                raise ExportError(f"{name} is not finite everywhere")
            flat = np.ascontiguousarray(array, "<f4").reshape(len(array), -1)
            rows.append(flat.view(np.uint8))
        return rows

    def _patched(self, rows: Sequence[npt.NDArray[np.uint8]]) -> Iterator[bytes]:
        buffer = self._contents.copy()
        targets = [buffer[place.start : place.end] for place in self._places.values()]
        for device in zip(*rows, strict=True):
            for target, row in zip(targets, device, strict=True):
                target[:] = row
            yield buffer.tobytes()


def mask_template(
    kind: MaskKind, shapes: Mapping[str, tuple[int, ...]], info: ModelInfo, *, features: Features | None
) -> Template:
    """Return the template of :func:`edge.onnx.mask_graph.mask_model` for weights of these shapes."""
    return Template(mask_model(kind, _zeros(shapes), info, features=features), list(shapes))


def recommender_template(models: Recommenders, info: ModelInfo, *, top: int) -> Template:
    """Return the template of :func:`edge.onnx.recommenders.recommender_model` for devices like these.

    It takes what is a device's own.
    """
    return Template(recommender_model(models, info, top=top), list(models.own()))


def _zeros(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
