"""Flower's simulation engine (Ray, two processors) on the dense workload; needs ``flwr[simulation]``."""

import time

import numpy as np
from dense_workload import CLIENTS, COHORT, FACTORS, ITEMS, ROUNDS, offset, report
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

BACKEND = {
    "init_args": {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False},
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
}

client_app = ClientApp()
server_app = ServerApp()
marks: list[float] = []
results: list[float] = []


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Add the client's constant and send the array back."""
    (factors,) = message.content["arrays"].to_numpy_ndarrays()
    updated = factors + np.float32(offset(int(context.node_config["partition-id"])))
    answer = RecordDict({"arrays": ArrayRecord([updated]), "metrics": MetricRecord({"num-examples": 100})})
    return Message(content=answer, reply_to=message)


class TimedFedAvg(FedAvg):
    """FedAvg that notes when each round starts and refuses one with a failed client."""

    def configure_train(self, *arguments, **options):  # noqa: D102
        marks.append(time.monotonic())
        return super().configure_train(*arguments, **options)

    def aggregate_train(self, server_round, replies):  # noqa: D102
        replies = list(replies)
        if len(replies) != COHORT or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"round {server_round}: {len(replies)} replies, or one with an error")
        result = super().aggregate_train(server_round, replies)
        if server_round == ROUNDS:
            marks.append(time.monotonic())
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    strategy = TimedFedAvg(
        fraction_train=COHORT / CLIENTS,
        fraction_evaluate=0.0,
        min_train_nodes=COHORT,
        min_available_nodes=CLIENTS,
    )
    initial = ArrayRecord([np.zeros((ITEMS, FACTORS), np.float32)])
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=ROUNDS)
    results.append(float(result.arrays.to_numpy_ndarrays()[0].mean()))


if __name__ == "__main__":
    started = time.monotonic()
    run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=BACKEND)
    report("flwr", marks, started, results[0])
