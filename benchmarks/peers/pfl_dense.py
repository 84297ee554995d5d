"""pfl's in-process simulation, numpy only, on the dense workload; needs ``pfl``.

pfl passes updates by reference: there are no messages, no bytes and no device times in its figure.
"""

import time

import numpy as np
from dense_workload import CLIENTS, COHORT, FACTORS, ITEMS, ROUNDS, offset, report
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import FederatedNNAlgorithm, NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import ModelHyperParams
from pfl.internal.ops import numpy_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Metrics
from pfl.model.base import StatefulModel
from pfl.stats import MappedVectorStatistics


class ItemFactors(StatefulModel):
    """The table of item factors."""

    def __init__(self):
        self.factors = np.zeros((ITEMS, FACTORS), np.float32)

    def get_parameters(self, placeholders=None):  # noqa: D102
        return MappedVectorStatistics({"factors": self.factors.copy()})

    def set_parameters(self, parameters):  # noqa: D102
        self.factors = parameters["factors"].copy()

    def get_model_difference(self, other):  # noqa: D102
        return MappedVectorStatistics({"factors": self.factors - other["factors"]}, weight=1)

    def apply_model_update(self, statistics):  # noqa: D102
        self.factors = self.factors + statistics["factors"]
        return self, Metrics()

    def evaluate(self, *arguments, **options):  # noqa: D102
        return Metrics()

    def save(self, dir_path):  # noqa: D102
        raise NotImplementedError("the workload saves nothing")

    def load(self, dir_path):  # noqa: D102
        raise NotImplementedError("the workload loads nothing")


class AddConstant(FederatedNNAlgorithm):
    """Each client adds its constant; the server averages."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):  # noqa: D102
        (client,) = user_dataset.raw_data[0]
        model.factors = model.factors + np.float32(offset(int(client)))
        return model.get_model_difference(initial_model_state), Metrics()

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):  # noqa: D102
        statistics.average()
        return model.apply_model_update(statistics)


class Stopwatch(TrainingProcessCallback):
    """Notes when each round ends, and the CPU time by then."""

    def __init__(self):
        self.marks, self.cpu_marks = [], []

    def mark(self):  # noqa: D102
        self.marks.append(time.monotonic())
        self.cpu_marks.append(time.process_time())

    def on_train_begin(self, *, model):  # noqa: D102
        self.mark()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # noqa: D102
        self.mark()
        return False, Metrics()


def main():
    started = time.monotonic()
    set_framework_module(numpy_ops)
    clients = FederatedDataset(
        lambda client: Dataset(raw_data=[np.array([client])], user_id=str(client)),
        get_user_sampler("minimize_reuse", list(range(CLIENTS))),
    )
    parameters = NNAlgorithmParams(
        central_num_iterations=ROUNDS,
        evaluation_frequency=10**9,
        train_cohort_size=COHORT,
        val_cohort_size=0,
    )
    stopwatch = Stopwatch()
    model = AddConstant().run(
        algorithm_params=parameters,
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=ItemFactors(),
        model_train_params=ModelHyperParams(),
        model_eval_params=None,
        callbacks=[stopwatch],
    )
    report("pfl", stopwatch.marks, started, float(model.factors.mean()), stopwatch.cpu_marks)


if __name__ == "__main__":
    main()
