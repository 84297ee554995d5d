"""What tests of verbs share."""

SCENARIO = """\
format: 2
title: Sixty clients, three rounds
seed: 3
data: {source: synthetic-ratings, users: 60, items: 80, ratings_per_user: 20}
fleet: {mix: enterprise_wifi, availability: always_on}
learning: {algorithm: fedrecon, factors: 4}
rounds: {count: 3, cohort: 20, quorum: 1, deadline: 60 s}
evaluation: {every: 1}
thresholds:
  round.completed: [rate == 100%]
  device.up_bytes: [max < 64 KiB]
"""
