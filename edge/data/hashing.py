"""Stable fingerprints of numpy arrays, quick enough for stores of hundreds of megabytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

_LEAF_BYTES = 16 << 20


def _leaf(chunk: memoryview) -> bytes:
    return hashlib.blake2b(chunk, digest_size=16).digest()


def _buffer(array: npt.NDArray[np.generic]) -> memoryview:
    if array.dtype.kind == "U":
        # The width of a numpy text array depends on its longest entry; its lines do not.
        return memoryview("\n".join(array.tolist()).encode())
    little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little_endian.reshape(-1).view(np.uint8).data


def hash_arrays(parts: Iterable[tuple[str, npt.NDArray[np.generic] | None]]) -> str:
    """Return 32 hexadecimal digits that change when a name, a shape, a type or a value changes.

    The digest is a two-level tree: blake2b of every 16 MiB of an array (the leaves run on threads, hashlib
    releases the interpreter's lock) and blake2b over those. It does not depend on the number of threads, on
    the host's byte order or on how an array is laid out.

    Parameters
    ----------
    parts : (name, array) pairs in a fixed order; None stands for an array that is absent. Arrays of numbers,
        booleans or numpy text.
    """
    root = hashlib.blake2b(digest_size=16)
    for name, array in parts:
        if array is None:
            root.update(f"{name}:none;".encode())
            continue
        kind = "U" if array.dtype.kind == "U" else array.dtype.newbyteorder("<").str
        root.update(f"{name}:{kind}:{array.shape};".encode())
        data = _buffer(array)
        leaves = [data[start : start + _LEAF_BYTES] for start in range(0, len(data), _LEAF_BYTES)]
        if len(leaves) > 1:
            with ThreadPoolExecutor(min(len(leaves), os.cpu_count() or 1)) as pool:
                digests = list(pool.map(_leaf, leaves))
        else:
            digests = [_leaf(chunk) for chunk in leaves]
        for digest in digests:
            root.update(digest)
    return root.hexdigest()
