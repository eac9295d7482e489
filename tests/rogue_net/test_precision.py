"""The choice of `precision="auto"`: a table of widths and processors."""

from pathlib import Path

import pytest
import torch

from entity_env import CategoricalActionSpace, Entity, ObsSpace
from rogue_net import RogueNet, RogueNetConfig, RogueNetWithValueNet
from rogue_net.native import network
from rogue_net.precision import (
    LEAST_D_MODEL,
    auto_precision,
    choice_of,
    fast_bfloat16_instructions,
)

SPACE = ObsSpace(entities={"Unit": Entity(["x"])})
ACTIONS = {"move": CategoricalActionSpace(["left", "right"])}


@pytest.mark.parametrize(
    ("d_model", "device", "fast_products", "expected", "reason"),
    [
        (64, "cpu", "avx512_bf16", "float32", "d_model=64 is below 65"),
        (65, "cpu", "avx512_bf16", "bfloat16", "is at least 65, and bfloat16 is fast with avx"),
        (512, "cpu", None, "float32", "no fast bfloat16 products"),
        (255, "cuda", "A GPU", "float32", "d_model=255 is below 256"),
        (256, "cuda", "A GPU", "bfloat16", "fast with A GPU"),
        (512, "cuda", None, "float32", "no fast bfloat16 products"),
        (512, "mps", "bf16", "float32", "no fast bfloat16 products"),
    ],
)
def test_table_of_widths_and_devices(
    d_model: int, device: str, fast_products: str | None, expected: str, reason: str
) -> None:
    choice = choice_of(d_model, device, fast_products)
    assert choice.precision == expected
    assert reason in choice.reason


def test_networks_with_compiled_blocks_use_float32() -> None:
    """They run in float32 with either setting, faster than in bfloat16."""
    assert LEAST_D_MODEL["cpu"] > network.WIDEST


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 avx512_vnni", "avx512_bf16"),
        ("flags\t\t: fpu avx512f amx_tile amx_bf16", "amx_bf16"),
        ("Features\t: fp asimd svebf16 i8mm bf16", "bf16"),
        ("flags\t\t: fpu avx512f avx512_vnni avx_ne_convert", None),
        ("Features\t: fp asimd sve", None),
    ],
)
def test_instructions_of_the_processor(cpuinfo: str, expected: str | None, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\n{cpuinfo}\nbugs\t\t: none\n")
    assert fast_bfloat16_instructions(path) == expected


def test_system_without_cpuinfo_uses_float32(tmp_path: Path) -> None:
    assert fast_bfloat16_instructions(tmp_path / "cpuinfo") is None


def test_choice_is_a_function_of_the_processor() -> None:
    device = torch.device("cpu")
    instructions = fast_bfloat16_instructions()
    expected = "float32" if instructions is None else "bfloat16"
    assert [auto_precision(d_model, device).precision for d_model in (64, 128)] == [
        "float32",
        expected,
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_choice_is_a_function_of_the_gpu() -> None:
    device = torch.device("cuda")
    is_fast = torch.cuda.get_device_capability(device) >= (8, 0)
    assert auto_precision(512, device).precision == ("bfloat16" if is_fast else "float32")
    assert auto_precision(64, device).precision == "float32"


def test_network_refuses_a_precision_that_is_not_chosen() -> None:
    config = RogueNetConfig(precision="auto")
    expected = r'precision: expected "float32" or "bfloat16", got "auto".*auto_precision'
    with pytest.raises(ValueError, match=f"^{expected}"):
        RogueNet(config, SPACE, ACTIONS)
    with pytest.raises(ValueError, match=f"^vf_config: {expected}"):
        RogueNetWithValueNet(RogueNetConfig(), config, SPACE, ACTIONS)
