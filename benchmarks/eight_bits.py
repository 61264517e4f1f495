"""Weights in 8 bits beside BF16: simulated time, bytes read, error against FP32.

    python benchmarks/eight_bits.py                        # decoding with GPT-2 small and Llama, ResNet-50 on an image
    python benchmarks/eight_bits.py --layers 2 llama       # fewer layers of a decoder

Weights are constants of the program, from a file as ``--constants`` takes it, or parameters: in BF16, or as codes and
scales that ``neuronx_cc.quantize`` makes. The cache of keys and values and the embeddings of the token are never in 8
bits. Errors are relative 2-norms of the logits, against jaxlib in FP32.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import gpt2
import jax
import jax.numpy as jnp
import llama
import ml_dtypes
import resnet
from jax import lax
from layers import layer_norm, linear
from lowering import Array, Model, serialize

import neuronx_cc

POSITION, CACHE = 700, 1024
FORMATS = ("int8", "fp8_e4m3")


def gpt2_step(layers: int) -> Model:
    """One token of GPT-2 small after ``POSITION`` others."""
    config = gpt2.Config(layers=layers)
    weights, size = gpt2.build(config).weights, config.width // config.heads
    weights = {**weights, "embedding": weights["wte"]}
    random = np.random.default_rng(1)
    shape = (layers, 2, 1, config.heads, CACHE, size)
    token, position = np.asarray([17], np.int32), np.asarray(POSITION, np.int32)

    def attend(x: Any, part: Any, cache: Any, position: Any) -> tuple[Any, Any]:
        query, key, value = (
            each.reshape(1, config.heads, 1, size) for each in jnp.split(linear(x, part["qkv"]), 3, axis=-1)
        )
        keys = lax.dynamic_update_slice_in_dim(cache[0], key, position, axis=2)
        values = lax.dynamic_update_slice_in_dim(cache[1], value, position, axis=2)
        scores = query @ keys.transpose(0, 1, 3, 2) / np.float32(np.sqrt(size))
        scores = jnp.where(jnp.arange(CACHE) <= position, scores, -jnp.inf)
        mixed = jax.nn.softmax(scores, axis=-1) @ values
        return linear(mixed.reshape(1, config.width), part["projection"]), (keys, values)

    def decode(weights: Any, cache: Any, token: Any, position: Any) -> tuple[Any, Any]:
        x = weights["embedding"][token] + weights["wpe"][position][None]
        updated = []
        for layer, entry in zip(weights["layers"], cache, strict=True):
            mixed, entry = attend(layer_norm(x, layer["ln1"], gpt2.EPSILON), layer["attention"], entry, position)
            x = x + mixed
            hidden = jax.nn.gelu(linear(layer_norm(x, layer["ln2"], gpt2.EPSILON), layer["up"]), approximate=True)
            x = x + linear(hidden, layer["down"])
            updated.append(entry)
        return layer_norm(x, weights["ln"], gpt2.EPSILON) @ weights["wte"].T, updated

    cache = [tuple(pair) for pair in random.standard_normal(shape, np.float32)]
    return Model("gpt2", decode, weights, (cache, token, position), donate=(1,))


MODELS = {
    "gpt2": gpt2_step,
    "llama": lambda layers: llama.build(llama.Config(layers=layers, cache=CACHE)),
    "resnet": lambda layers: _infer(resnet.build()),
}


def _infer(model: Model) -> Model:
    """With the name that its weights have in files."""
    return replace(model, function=lambda weights, images: model.function(weights, images))


def contracted(path: Any, leaf: Array) -> tuple[int, ...]:
    """The dims of a weight that a product or convolution sums over; none of tables of embeddings and of rows."""
    name = jax.tree_util.keystr(path)
    if leaf.ndim < 2 or any(table in name for table in ("wpe", "embedding", "tokens")):
        return ()
    return (1,) if "wte" in name else tuple(range(leaf.ndim - 1))


def as_constants(model: Model) -> Iterator[tuple[str, Any, list[Array], dict[str, Any]]]:
    """Title, module, inputs and options of each form with constant weights."""
    module = jax.jit(model.function, keep_unused=True, donate_argnums=model.donate).lower(model.weights, *model.inputs)
    inputs = jax.tree.leaves(model.inputs)
    with tempfile.TemporaryDirectory() as folder:
        path, weights = Path(folder, "model.pb"), Path(folder, "weights.npz")
        path.write_bytes(serialize(module))
        leaves = jax.tree.leaves_with_path(model.weights)
        np.savez(weights, **{f"weights{jax.tree_util.keystr(at)}": leaf for at, leaf in leaves})
        options = {"constants": str(weights)}
        yield "FP32", path, inputs, {**options, "auto_cast": "none"}
        yield "BF16", path, inputs, {**options, "auto_cast": "matmult"}
        for form in FORMATS:
            yield form, path, inputs, {**options, "auto_cast": "matmult", "quantize_weights": form}


class Codes(NamedTuple):
    """A weight in 8 bits: codes, and scales of as many dims."""

    codes: Any
    scales: Any


def as_parameters(model: Model) -> Iterator[tuple[str, Any, list[Array], dict[str, Any]]]:
    """The same with weights that are given in their types."""

    def stored(form: str) -> Any:
        def of(path: Any, leaf: Array) -> Any:
            axes = contracted(path, leaf)
            if not axes:
                return leaf
            if form == "BF16":
                return leaf.astype(ml_dtypes.bfloat16)
            codes, scales = neuronx_cc.quantize(leaf, contracted=axes, format=form)
            return Codes(codes, np.expand_dims(scales, axes))

        return jax.tree_util.tree_map_with_path(of, model.weights)

    def read(leaf: Any) -> Any:
        if isinstance(leaf, Codes):
            return leaf.codes.astype(jnp.float32) * leaf.scales
        return leaf.astype(jnp.float32)

    for form in ("FP32", "BF16", *FORMATS):

        def function(weights: Any, *rest: Any) -> Any:
            return model.function(jax.tree.map(read, weights, is_leaf=lambda leaf: isinstance(leaf, Codes)), *rest)

        weights = model.weights if form == "FP32" else stored(form)
        given = replace(model, function=function, weights=weights)
        yield form, given.lowered, given.arguments, {"auto_cast": "none" if form == "FP32" else "matmult"}


def rows(name: str, layers: int) -> Iterator[str]:
    model = MODELS[name](layers)
    expected = model.expected[0].astype(np.float64)
    for title, forms in (("constants", as_constants(model)), ("parameters", as_parameters(model))):
        for form, module, inputs, options in forms:
            result = neuronx_cc.compile(module, **options).run(inputs)
            summary = result.report.summary
            read = (summary["input_queue_bytes"] + summary["weight_queue_bytes"]) / 1e6
            error = np.linalg.norm(result.outputs[0].astype(np.float64) - expected) / np.linalg.norm(expected)
            time = f"{result.report.time_ns / 1e3:,.0f} us"
            yield f"| {name} | {title} | {form} | {time} | {read:.0f} MB | {error:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--layers", type=int, default=12)
    arguments = parser.parse_args()
    print("| model | weights are | in | time | read | error |\n|---|---|---|---|---|---|")
    for name in arguments.models:
        for row in rows(name, arguments.layers):
            print(row, flush=True)


if __name__ == "__main__":
    main()
