"""Measure other simulators, each in a fresh environment of its own.

    python benchmarks/peers/measure.py            # all of them
    python benchmarks/peers/measure.py pfl

``flwr`` and ``pfl`` run the dense workload, ``flwr-secagg`` a round of secure aggregation. Prints lines of
JSON. Needs a package index: flwr with Ray installs about 700 MB into a temporary folder, which is removed at
the end.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = {
    "flwr": ("flwr[simulation]==1.42.0", HERE / "flower_dense.py"),
    "pfl": ("pfl==0.6.0", HERE / "pfl_dense.py"),
    "flwr-secagg": ("flwr==1.42.0", HERE / "flower_secagg.py"),
}
INSTALL_LIMIT_S = 1_200
RUN_LIMIT_S = 600
ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def measure(requirement: str, script: Path, folder: Path) -> str:
    """Install a simulator into ``folder``, run its script there, and return the lines of JSON it printed."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [python, "-m", "pip", "install", "--quiet", requirement]
    subprocess.run(install, check=True, timeout=INSTALL_LIMIT_S, stdout=sys.stderr)
    done = subprocess.run(
        [python, script],
        check=True,
        timeout=RUN_LIMIT_S,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
    )
    return "\n".join(line for line in done.stdout.splitlines() if line.startswith("{"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure other simulators.")
    parser.add_argument(
        "peers", nargs="*", metavar="PEER", help=f"which of {', '.join(PEERS)}; all by default"
    )
    chosen = parser.parse_args().peers or list(PEERS)
    unknown = sorted(set(chosen) - set(PEERS))
    if unknown:
        parser.error(f"unknown simulator {unknown[0]!r}; choose from {', '.join(PEERS)}")
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix=f"recfleet-peer-{name}-") as folder:
            print(measure(*PEERS[name], Path(folder)), flush=True)


if __name__ == "__main__":
    main()
