"""What `benchmarks/host_path.py` measures."""

from typing import Any


def test_work_of_the_host_is_measured_and_its_operations_are_few(benchmark: Any) -> None:
    host_path = benchmark("host_path")
    settings = host_path.Settings(envs=32, steps=2, size=32, epochs=2)
    for world in host_path.WORLDS:
        times = host_path.measure(world, settings, updates=1)
        assert {"all", *host_path.PHASES} <= times.keys() | {"optimize/gradient"}
        assert min(times.values()) >= 0
    counts = host_path.count("environments in arrays", settings)
    assert 10 < counts["loss"] <= host_path.TO_REACH_OPERATIONS
    assert counts["update"] > settings.minibatches * counts["loss"]
