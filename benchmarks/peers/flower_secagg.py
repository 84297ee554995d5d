"""Flower's SecAgg+ (``SecAggPlusWorkflow`` and ``secaggplus_mod``) in one process; needs ``flwr``.

The round of the case ``hundred`` in ``benchmarks/secagg.py``: 100 devices, 100,000 numbers, 30 neighbours and
threshold 21, with devices lost after they shared. Messages are handed over directly, without Ray or gRPC,
each copied through Flower's own protobuf encoding as a wire would do; that copying is counted apart. Prints
a line of JSON for each number of lost devices, with the process CPU of devices and of the server.
"""

import argparse
import json
import logging
import time

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.compat.common import recorddict_compat
from flwr.server.client_manager import SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.server_config import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.grid import Grid
from flwr.supercore.task_identity import TaskIdentity

DEVICES, LENGTH, SHARES, THRESHOLD = 100, 100_000, 31, 21
CLIP, WEIGHT = 8.0, 10


def context(node: int) -> Context:
    return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})


def copied(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


class Proxy(ClientProxy):
    """A device as the workflow's client manager wants it; never called."""

    def __init__(self, node: int) -> None:
        super().__init__(str(node))
        self.node_id = node

    get_properties = get_parameters = fit = evaluate = reconnect = None


class Collected(FedAvg):
    """Keeps the sum that the workflow decodes."""

    result = None

    def aggregate_fit(self, server_round, results, failures):  # noqa: D102
        self.result = results[0][1].parameters
        return self.result, {}


class DirectGrid(Grid):
    """Hands every message to its device at once and keeps the CPU of both sides apart."""

    run = None

    def __init__(self, updates: dict[int, np.ndarray], lost: set[int]) -> None:
        self.updates = updates
        self.lost = lost
        self.contexts = {node: context(node) for node in updates}
        self.device_s = self.copy_s = 0.0

    set_run = create_message = push_messages = pull_messages = None

    def get_node_ids(self):  # noqa: D102
        return list(self.updates)

    def train(self, message: Message, ctx: Context) -> Message:
        """Give the update, as an app would have trained it."""
        parameters = ndarrays_to_parameters([self.updates[ctx.node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, WEIGHT, {})
        return Message(recorddict_compat.fitres_to_recorddict(result, True), reply_to=message)

    def send_and_receive(self, messages, *, timeout=None):  # noqa: D102
        answers = []
        for message in messages:
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            start_s = time.process_time()
            content = copied(message.content)
            self.copy_s += time.process_time() - start_s
            stage = content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
            if node in self.lost and stage in (Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK):
                continue
            arrived = Message(
                content, dst_node_id=node, message_type=kind, group_id=message.metadata.group_id
            )
            start_s = time.process_time()
            reply = secaggplus_mod(arrived, self.contexts[node], self.train)
            self.device_s += time.process_time() - start_s
            start_s = time.process_time()
            answer = Message(copied(reply.content), reply_to=arrived)
            self.copy_s += time.process_time() - start_s
            answer.metadata.__dict__["_src_node_id"] = node
            answers.append(answer)
        return answers


def measure(lost: int) -> dict[str, object]:
    random = np.random.default_rng(0)
    nodes = [int(node) for node in random.choice(2**62, DEVICES, replace=False)]
    updates = {node: random.normal(0, 0.1, LENGTH).astype(np.float32) for node in nodes}
    manager = SimpleClientManager()
    for node in nodes:
        manager.register(Proxy(node))
    strategy = Collected(
        fraction_fit=1.0, fraction_evaluate=0.0, min_fit_clients=DEVICES, min_available_clients=DEVICES
    )
    server = LegacyContext(context(0), ServerConfig(num_rounds=1), strategy, manager)
    server.state.config_records["config"] = ConfigRecord({"current_round": 1, "start_time": 0.0})
    server.state.array_records["parameters"] = recorddict_compat.parameters_to_arrayrecord(
        ndarrays_to_parameters([np.zeros(LENGTH, np.float32)]), True
    )
    grid = DirectGrid(updates, set(nodes[:lost]))
    workflow = SecAggPlusWorkflow(SHARES, THRESHOLD, max_weight=1000.0, clipping_range=CLIP)
    start_s = time.process_time()
    workflow(grid, server)
    whole_s = time.process_time() - start_s - grid.copy_s
    if strategy.result is None:
        raise SystemExit("Flower's round did not end in a sum")
    mean = np.mean([updates[node] for node in nodes[lost:]], axis=0)
    error = float(np.abs(parameters_to_ndarrays(strategy.result)[0] - mean).max())
    return {
        "simulator": "flwr",
        "devices": DEVICES,
        "length": LENGTH,
        "lost": lost,
        "cpu_s": round(whole_s, 3),
        "device_cpu_s": round(grid.device_s, 3),
        "server_cpu_s": round(whole_s - grid.device_s, 3),
        "copy_cpu_s": round(grid.copy_s, 3),
        "largest_error": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure Flower's SecAgg+.")
    parser.add_argument("--lost", type=int, nargs="+", default=[0, 5, 10], help="devices lost after sharing")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    for lost in parser.parse_args().lost:
        print(json.dumps(measure(lost)), flush=True)


if __name__ == "__main__":
    main()
