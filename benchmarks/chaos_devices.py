"""Devices of a process that will be killed: what they are told is in a file before anything else happens.

    python benchmarks/chaos_devices.py URL FIRST COUNT TOKENS JOURNAL

They are those of ``recfleet device URL --id FIRST --count COUNT --token-file TOKENS``. Each line of
JOURNAL is the round, the device, and how its part in it ended: one write, which outlives the process.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from coordinator.service.admission.token_files import read_tokens
from coordinator.service.local_devices import LocalDevices, Tally
from edge.clock import real as real_clock
from edge.core.vocabulary import Reason
from edge.device.participation import Participation


@dataclass(slots=True)
class Journal(Tally):
    """Also writes down at once how a participation has ended."""

    file: int = -1

    def ended(self, part: Participation) -> None:
        """Count the end of a participation, and write it down."""
        Tally.ended(self, part)
        how = "counted" if part.receipt is Reason.NONE else "not-counted"
        os.write(self.file, f"{part.round_number} {part.device} {how}\n".encode())


def main() -> None:
    url, first, count, tokens, journal = sys.argv[1:]
    token_of, _ = read_tokens(Path(tokens).read_text(), tokens)
    memory = Path(journal).with_name("memory")
    ids = range(int(first), int(first) + int(count))
    devices = LocalDevices(url, ids, token_of=token_of, memory=memory)
    devices.tally = Journal(file=os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    real_clock.run(devices.run())


if __name__ == "__main__":
    main()
