"""The simulation of autoscaling: its queue against a plain one, its rules against the documented ones."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location("autoscaling", ROOT / "bench" / "autoscaling.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["autoscaling"] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def test_one_by_one_it_is_lindley_s_recursion(bench: ModuleType) -> None:
    """Without batches each request waits for what is left of those before it."""
    replica = bench.Replica(fixed_ms=0, text_ms=10, cores=1, max_batch=1, max_queue=10_000)
    arrived = np.sort(np.random.default_rng(1).random(2000) * 25)
    pod, waits = bench.Pod(replica, 0.0, 1), bench.Waits()
    for second in range(40):
        own = arrived[(arrived >= second) & (arrived < second + 1)]
        assert pod.take(own.tolist(), second + 1, waits) == 0
    wait, expected = 0.0, []
    for gap in np.diff(arrived, prepend=arrived[0]):
        wait = max(0.0, wait - gap)
        wait += 0.010
        expected.append(wait)
    np.testing.assert_allclose(np.array(waits.answered) - np.array(waits.arrived), expected, atol=1e-9)
    assert pod.idle


def test_what_waits_goes_together(bench: ModuleType) -> None:
    """Up to a batch's worth, all of it answered at once; what came later runs after."""
    replica = bench.Replica(fixed_ms=100, text_ms=10, cores=2, max_batch=3, max_queue=100)
    pod, waits = bench.Pod(replica, 0.0, 1), bench.Waits()
    pod.take([0.0, 0.01, 0.02, 0.03, 0.04], 1.0, waits)
    assert waits.answered == pytest.approx([0.055, 0.12, 0.12, 0.12, 0.175])


def test_every_request_is_answered_refused_or_waiting(bench: ModuleType) -> None:
    """Under ten times what there is room for nothing gets lost, and the queue keeps to its limit."""
    replica = bench.Replica(fixed_ms=1, text_ms=10, cores=1, max_batch=8, max_queue=50)
    pod, waits = bench.Pod(replica, 0.0, 1), bench.Waits()
    refused = sum(pod.take(np.linspace(s, s + 0.99, 1000).tolist(), s + 1, waits) for s in range(5))
    assert len(waits.answered) + refused + len(pod._waiting) == 5000
    assert len(pod._waiting) == 50


def test_what_may_wait_follows_the_pace_once_it_is_known(bench: ModuleType) -> None:
    """As in the service: a first rush finds the places of the setting, later ones so many seconds of work."""
    replica = bench.Replica(fixed_ms=0, text_ms=100, cores=1, max_batch=4, max_queue=500, max_queue_s=30)
    assert replica.max_queue_at_work == 300
    pod, waits = bench.Pod(replica, 0.0, 1), bench.Waits()
    assert pod.take([0.0], 1.0, waits) == 0
    assert pod._most_waiting == 500
    refused = pod.take([1.0] * 600, 2.0, waits)
    assert len(pod._waiting) == 300
    assert len(waits.answered) + refused + 300 == 601


@pytest.mark.parametrize(("max_queue_s", "texts"), [(None, 500), (0.1, 8), (3, 30), (1000, 500)])
def test_what_may_wait_at_work_is_never_less_than_two_batches(
    bench: ModuleType, max_queue_s: float | None, texts: int
) -> None:
    """As `service.batching` has it."""
    replica = bench.Replica(
        fixed_ms=0, text_ms=100, cores=1, max_batch=4, max_queue=500, max_queue_s=max_queue_s
    )
    assert replica.max_queue_at_work == texts


@pytest.mark.parametrize(
    ("values", "missing", "target", "replicas"),
    [
        ([200, 200], 0, 100, 4),  # the documentation's example: twice the target, twice the pods
        ([50, 50, 50, 50], 0, 100, 2),
        ([109, 109], 0, 100, 2),  # within the tolerance
        ([111, 111], 0, 100, 3),
        ([200, 200], 2, 100, 4),  # those that start may be enough, so nothing is added
        ([300, 300], 1, 100, 6),  # they are not enough
        ([50, 50], 2, 100, 3),  # those without a figure count as loaded before anything is removed
        ([], 2, 100, 2),
    ],
)
def test_a_metric_asks_for_what_kubernetes_documents(
    bench: ModuleType, values: list[float], missing: int, target: float, replicas: int
) -> None:
    """As by the section "Algorithm details" of Horizontal Pod Autoscaling."""
    assert bench.wanted(values, missing, target) == replicas


def test_replicas_keep_to_bounds_and_policies(bench: ModuleType) -> None:
    """Doubled at most in a period; fewer only after the window, and step by step."""
    rules = bench.Rules(least=2, most=16)
    replica = bench.Replica(fixed_ms=2, text_ms=10, cores=1, max_batch=64, max_queue=1000)
    load = [8 * replica.capacity] * 300 + [0.1 * replica.capacity] * 1200
    outcome = bench.simulate(replica, rules, load)
    number = outcome.replicas
    assert (min(number), max(number), number[-1]) == (2, 16, 2)
    for now in range(rules.up_period_s, 300):
        before = number[now - rules.up_period_s]
        assert number[now] <= max(2 * before, before + 2)
    assert min(number[300:590]) >= 11  # 8 / 0.7: what the load asked for until it ended
    for now in range(660, len(number)):
        before = number[now - rules.down_period_s]
        assert number[now] >= min(before - 1, 0.75 * before - 1)


def test_the_simulated_rules_are_the_chart_s(bench: ModuleType) -> None:
    """What is written down about autoscaling is about what is shipped."""
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "conche" / "values.yaml").read_text(encoding="utf-8"))
    chart, rules = values["autoscaling"], bench.Rules()
    assert (chart["minReplicas"], chart["maxReplicas"]) == (rules.least, rules.most)
    assert chart["cpuUtilization"] == 100 * rules.cpu
    assert int(chart["queue"]["target"].removesuffix("m")) == 1000 * rules.queue
    up, down = chart["behavior"]["scaleUp"], chart["behavior"]["scaleDown"]
    assert (up["stabilizationWindowSeconds"], down["stabilizationWindowSeconds"]) == (0, rules.down_window_s)
    assert [(one["type"], one["value"], one["periodSeconds"]) for one in up["policies"]] == [
        ("Percent", 100 * rules.up_share, rules.up_period_s),
        ("Pods", rules.up_pods, rules.up_period_s),
    ]
    assert [(one["type"], one["value"], one["periodSeconds"]) for one in down["policies"]] == [
        ("Percent", 100 * rules.down_share, rules.down_period_s),
        ("Pods", rules.down_pods, rules.down_period_s),
    ]
    query = (ROOT / "deploy" / "helm" / "prometheus-adapter.yaml").read_text(encoding="utf-8")
    assert f"[{rules.window_s // 60}m]" in query
    assert values["metrics"]["serviceMonitor"]["interval"] == f"{bench.LOOK_EVERY_S}s"


def test_pictures_are_well_formed(bench: ModuleType) -> None:
    """With a line for each set of rules."""
    replica = bench.Replica(fixed_ms=2, text_ms=10, cores=1, max_batch=64, max_queue=1000)
    outcome = bench.simulate(replica, bench.Rules(), [replica.capacity] * 180)
    root = ET.fromstring(bench.picture("step", replica, {"CPU": outcome, "both": outcome}))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 5
