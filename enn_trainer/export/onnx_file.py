"""ONNX graphs of networks, with dimensions of any size; equal networks have equal bytes."""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from enn_trainer.base.errors import ConfigError
from enn_trainer.export import OPSET
from entity_env.imports.extras import missing_package
from rogue_net.dense import DenseNet
from rogue_net.dense_arrays import Arrays, ArraySpec

IR_VERSION = 8
"""Version of the file format that onnxruntime 1.14 reads."""
LEAST_TORCH = (2, 9)


def onnx_bytes(
    net: DenseNet, example: Arrays, metadata: Mapping[str, str], opset: int = OPSET
) -> bytes:
    """Return the ONNX file of a network.

    Args:
        net: the network.
        example: inputs in which the sizes with a name are at least 2, as the exporter fixes 0
            and 1.
        metadata: texts for the file, by name.
        opset: version of the operators.

    Raises:
        ConfigError: a package is missing or too old, or the version lacks an operator.
    """
    check_exporter()
    import onnx

    with _quiet():
        program: Any = torch.onnx.export(
            net,
            (),
            kwargs={"inputs": {name: example[name] for name in net.inputs}},  # names are by order
            dynamo=True,
            dynamic_shapes={"inputs": {n: _any_size(spec) for n, spec in net.inputs.items()}},
            input_names=[*net.inputs],
            output_names=[*net.outputs],
            opset_version=opset,
            custom_translation_table=_translations(),
            verbose=False,
        )
    model = program.model_proto
    check_operators(model, opset)
    _strip(model)
    _name_sizes(model.graph.input, net.inputs)
    _name_sizes(model.graph.output, net.outputs)
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def check_exporter() -> None:
    """Raise ConfigError if a package of the exporter is missing or too old."""
    if missing := missing_package("onnx", "onnxscript", "onnxruntime"):
        raise ConfigError(f"export: {missing}")
    if tuple(map(int, torch.__version__.split(".")[:2])) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        raise ConfigError(
            f"export: expected torch {least} or newer, got {torch.__version__}; type: pip install "
            f"'torch>={least}'"
        )


def _any_size(spec: ArraySpec) -> dict[int, Any]:
    """Return the dimensions that may have any size."""
    dynamic = torch.export.Dim.DYNAMIC
    return {axis: dynamic for axis, dim in enumerate(spec.dims) if isinstance(dim, str)}


def check_operators(model: Any, opset: int) -> None:
    """Raise ConfigError if a version of the operators lacks one that the graph needs."""
    import onnx

    versions = {entry.domain: entry.version for entry in model.opset_import}
    needed = {node.op_type: versions[""] for node in model.graph.node}
    for name in sorted(needed):
        if not onnx.defs.has(name, max_inclusive_version=opset):
            raise ConfigError(f"--opset: expected a version with {name}, got {opset}")
    if versions[""] != opset:
        changed = {n: onnx.defs.get_schema(n, versions[""]).since_version for n in needed}
        name = max(changed, key=lambda n: changed[n])
        raise ConfigError(
            f"--opset: expected {changed[name]} or newer, as in {name} of that version, got {opset}"
        )


def _name_sizes(values: Any, specs: Mapping[str, ArraySpec]) -> None:
    """Set the shapes of inputs or outputs, in which a size is fixed or has a name."""
    assert [value.name for value in values] == [*specs]
    for value, spec in zip(values, specs.values(), strict=True):
        shape = value.type.tensor_type.shape
        fixed = [size.dim_value for size in shape.dim]  # 0 for any size; none if not inferred
        assert fixed in ([], [0 if isinstance(dim, str) else dim for dim in spec.dims]), value
        del shape.dim[:]
        for dim in spec.dims:
            shape.dim.add(**{"dim_param" if isinstance(dim, str) else "dim_value": dim})


def _strip(model: Any) -> None:
    """Remove the stack traces and names of files of the exporter, which depend on the folder."""
    graph = model.graph
    del graph.value_info[:]
    for part in [model, graph, *graph.node, *graph.input, *graph.output, *graph.initializer]:
        del part.metadata_props[:]
        part.doc_string = ""
    graph.name = "enn-trainer"
    model.ir_version = IR_VERSION


@contextmanager
def _quiet() -> Iterator[None]:
    """Return a context in which the exporter logs no details and warns of nothing."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _translations() -> dict[Any, Callable[..., Any]]:
    """Return the operators of torch that ONNX lacks, or that the exporter translates otherwise."""
    from onnxscript import opset18

    op: Any = opset18

    def atan2(y: Any, x: Any) -> Any:
        """Compute the angle of (x, y) in all quadrants, with the signs of zeros, 0 at (0, 0)."""
        zero, pi = op.CastLike(0.0, x), op.CastLike(torch.pi, x)
        is_left = op.Or(op.Less(x, zero), op.Less(op.Reciprocal(x), zero))
        is_below = op.Or(op.Less(y, zero), op.Less(op.Reciprocal(y), zero))
        angle = op.Atan(op.Where(op.Equal(y, zero), zero, op.Div(op.Abs(y), op.Abs(x))))
        angle = op.Where(is_left, op.Sub(pi, angle), angle)
        return op.Where(is_below, op.Neg(angle), angle)

    def ndtri(p: Any) -> Any:
        """Compute the quantiles of N(0, 1) to 7 digits.

        Source: Wichura 1988, "Algorithm AS 241", PPND7, for p from 1e-11.
        """

        def polynomial(x: Any, *terms: float) -> Any:
            total = op.CastLike(terms[0], x)
            for term in terms[1:]:
                total = op.Add(op.Mul(total, x), op.CastLike(term, x))
            return total

        def like(value: float) -> Any:
            return op.CastLike(value, p)

        q = op.Sub(p, like(0.5))
        r = op.Sub(like(0.180625), op.Mul(q, q))
        inner = op.Div(
            op.Mul(q, polynomial(r, 59.109374720, 159.29113202, 50.434271938, 3.3871327179)),
            polynomial(r, 67.187563600, 78.757757664, 17.895169469, 1.0),
        )
        tail = op.Where(op.Less(q, like(0.0)), p, op.Sub(like(1.0), p))
        r = op.Sub(op.Sqrt(op.Neg(op.Log(tail))), like(1.6))
        outer = op.Div(
            polynomial(r, 0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777),
            polynomial(r, 0.12021132975, 0.73700164250, 1.0),
        )
        outer = op.Where(op.Less(q, like(0.0)), op.Neg(outer), outer)
        return op.Where(op.LessOrEqual(op.Abs(q), like(0.425)), inner, outer)

    ops = torch.ops.aten
    return {ops.atan2.default: atan2, ops.special_ndtri.default: ndtri}
