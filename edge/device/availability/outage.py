"""Regional outages: a region's outage takes all of its devices at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edge.core.rng import hashed_bits
from edge.device.availability.base import Floats, Ids, Segment, SegmentedModel
from edge.device.availability.sessions import Lengths, SessionKeys, session_segment


class RegionalOutageAvailability(SegmentedModel):
    """Each region alternates between service and outage, both of exponential length.

    Parameters
    ----------
    keys : of the process. region_key : of the stream that assigns devices to regions.
    regions : number of regions.
    mean_between_s, mean_outage_s : mean lengths of service and outage, seconds.
    region : int[devices] in [0, regions), or None to assign devices evenly at random.

    Raises
    ------
    ValueError : a region outside [0, regions).
    """

    def __init__(
        self,
        keys: SessionKeys,
        region_key: int,
        *,
        regions: int,
        mean_between_s: float,
        mean_outage_s: float,
        region: npt.NDArray[np.integer] | None,
    ) -> None:
        if region is not None and region.size and not 0 <= region.min() <= region.max() < regions:
            raise ValueError(
                f"region: found {int(region.min())} to {int(region.max())}, but the profile has {regions} "
                f"regions; write 0 to {regions - 1}"
            )
        self._keys = keys
        self._region_key = region_key
        self._regions = regions
        self._region = region
        self._on, self._off = Lengths(mean_between_s, None), Lengths(mean_outage_s, None)

    def region_of(self, ids: Ids) -> Ids:
        """Return int64[n], the region of each device."""
        if self._region is not None:
            return self._region[ids].astype(np.int64)
        return (hashed_bits(self._region_key, ids) % np.uint64(self._regions)).astype(np.int64)

    def segment(self, ids: Ids, t_s: Floats) -> Segment:
        """Return the service or outage around ``t_s``."""
        region = self.region_of(ids)
        if ids.size > self._regions and np.all(t_s == t_s[0]):
            # One time for all, the usual question: it is answered once per region.
            every = np.arange(self._regions, dtype=np.int64)
            part = session_segment(self._keys, every, np.full(self._regions, t_s[0]), self._on, self._off)
            return Segment(part.available[region], part.end_s[region], part.changes[region])
        return session_segment(self._keys, region, t_s, self._on, self._off)
