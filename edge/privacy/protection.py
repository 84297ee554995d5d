"""What a device does to its update before anybody sees it: clip its norm, and add noise if that is local."""

from __future__ import annotations

from dataclasses import dataclass

from edge.learning.base import ClientUpdate
from edge.privacy.clipping import clip_update
from edge.privacy.noise import with_gaussian
from edge.secagg.entropy import Entropy


@dataclass(frozen=True, slots=True)
class Protection:
    """How the updates of a run are protected on the device.

    Attributes
    ----------
    clip_norm : largest L2 norm of an update that weighs 1, over all its arrays.
    noise_sd : standard deviation of the Gaussian noise on every element, in the update's units; 0 is none.
    bare : whether the number of examples and the loss stay on the device, because no noise would hide them.
    weight : what the update is multiplied by at last, noise and all; public, so that it tells nothing.
    """

    clip_norm: float
    noise_sd: float
    bare: bool
    weight: float = 1.0

    def apply(self, update: ClientUpdate, entropy: Entropy) -> tuple[ClientUpdate, bool]:
        """Return the protected update, and whether its norm was clipped.

        Arrays of whole numbers (which rows a sparse update changes) are left as they are.

        Raises what :func:`~edge.privacy.clipping.clip_update` and :func:`~edge.privacy.noise.with_gaussian`
        raise.
        """
        real = {name: array for name, array in update.arrays.items() if array.dtype.kind == "f"}
        arrays, clipped, _ = clip_update(real, self.clip_norm)
        if self.noise_sd > 0:
            arrays = with_gaussian(arrays, self.noise_sd, entropy)
        if self.weight != 1:
            # A Python float keeps the dtypes.
            arrays = {name: array * self.weight for name, array in arrays.items()}
        protected = update._replace(arrays={**update.arrays, **arrays})
        return (protected._replace(examples=0, loss=0.0) if self.bare else protected), clipped
