"""What a device does to its update before anybody sees it: clip its norm, and add noise if that is local."""

from __future__ import annotations

from dataclasses import dataclass

from edge.crypto.entropy import Entropy
from edge.crypto.noise import Sampler, with_gaussian
from edge.learning.updates import ClientUpdate
from edge.privacy.clipping import clip_update


@dataclass(frozen=True, slots=True)
class Protection:
    """How the updates of a run are protected on the device.

    Attributes
    ----------
    clip_norm : largest L2 norm of an update that weighs 1, over all its arrays.
    noise_sd : standard deviation of the Gaussian noise on every element, in the update's units; 0 is none.
    bare : whether the number of examples and the loss stay on the device, because no noise would hide them.
    weight : what the update is multiplied by at last, noise and all; public, so that it tells nothing.
    sampler : how the noise is drawn.
    """

    clip_norm: float
    noise_sd: float
    bare: bool
    weight: float = 1.0
    sampler: Sampler = Sampler.FLOATING_POINT

    def apply(self, update: ClientUpdate, entropy: Entropy) -> tuple[ClientUpdate, bool]:
        """Return the protected update, and whether its norm was clipped.

        Arrays of whole numbers (which rows a sparse update changes) are left as they are.

        Raises what :func:`~edge.privacy.clipping.clip_update` and :func:`~edge.crypto.noise.with_gaussian`
        raise.
        """
        protected, clipped = clipped_update(update, self.clip_norm)
        real = {name: array for name, array in protected.arrays.items() if array.dtype.kind == "f"}
        if self.noise_sd > 0:
            real = with_gaussian(real, self.noise_sd, entropy, self.sampler)
        if self.weight != 1:
            # A Python float keeps the dtypes.
            real = {name: array * self.weight for name, array in real.items()}
        protected = protected._replace(arrays={**protected.arrays, **real})
        return (protected._replace(examples=0, loss=0.0) if self.bare else protected), clipped


def clipped_update(update: ClientUpdate, norm_bound: float) -> tuple[ClientUpdate, bool]:
    """Return an update whose real numbers have at most this L2 norm together, and whether it was above.

    Raises what :func:`~edge.privacy.clipping.clip_update` raises.
    """
    real = {name: array for name, array in update.arrays.items() if array.dtype.kind == "f"}
    arrays, clipped, _ = clip_update(real, norm_bound)
    return update._replace(arrays={**update.arrays, **arrays}), clipped
