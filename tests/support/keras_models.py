"""Keras models by name, with seeded weights: through a ``.keras`` file on the JAX backend, and through a SavedModel.

``python keras_models.py NAME...`` (all without names) prints what each route gives; a backend is for a whole process,
so each route has one of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

APPLICATIONS: dict[str, tuple[int, dict[str, Any]]] = {
    "MobileNet": (32, {"alpha": 0.25}),
    "MobileNetV2": (32, {"alpha": 0.35}),
    "MobileNetV3Small": (32, {}),
    "EfficientNetB0": (32, {}),
    "EfficientNetV2B0": (32, {}),
    "DenseNet121": (32, {}),
    "NASNetMobile": (32, {}),
    "ResNet50": (32, {}),
    "ResNet50V2": (32, {}),
    "InceptionV3": (75, {}),
    "Xception": (71, {}),
    "VGG16": (32, {}),
    "ConvNeXtTiny": (32, {}),
}
"""Of ``keras.applications``: edge of the image, and what else is asked for. Nothing is downloaded."""
ROUTES = ("keras", "keras, weights as parameters", "savedmodel", "savedmodel, weights as parameters")
TOLERANCE = 1e-4
"""Of the relative 2-norm of the error, against Keras itself in FP32."""


def _application(name: str) -> Callable[[Any], Any]:
    def make(keras: Any) -> Any:
        size, more = APPLICATIONS[name]
        top = {} if name == "VGG16" else {"classes": 10, "classifier_activation": None}
        return getattr(keras.applications, name)(
            input_shape=(size, size, 3), weights=None, include_top=bool(top), **top, **more
        )

    return make


def unet(keras: Any) -> Any:
    layers = keras.layers
    image = keras.Input((32, 32, 3), name="image")
    x, kept = image, []
    for width in (8, 16):
        x = layers.LeakyReLU()(layers.GroupNormalization(4)(layers.Conv2D(width, 3, padding="same")(x)))
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="gelu")(x)
    for width in (16, 8):
        x = layers.Concatenate()([layers.Conv2DTranspose(width, 2, strides=2)(x), kept.pop()])
        x = layers.Conv2D(width, 3, padding="same", activation="silu")(x)
    return keras.Model(image, layers.Conv2D(2, 1, name="mask")(layers.UpSampling2D(interpolation="bilinear")(x)))


def encoder(keras: Any) -> Any:
    layers = keras.layers
    tokens = keras.Input((16,), dtype="int32", name="tokens")
    x = layers.Embedding(50, 32)(tokens)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 8)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(32)(layers.Dense(64, activation="gelu")(x)))
    return keras.Model(tokens, layers.Dense(5, name="label")(layers.GlobalAveragePooling1D()(layers.Dropout(0.1)(x))))


def recurrent(keras: Any) -> Any:
    layers = keras.layers
    steps = keras.Input((10, 12), name="steps")
    x = layers.Bidirectional(layers.LSTM(16, return_sequences=True))(steps)
    x = layers.GRU(16)(layers.Conv1D(16, 3, padding="causal", activation="tanh")(x))
    return keras.Model(steps, [layers.Dense(3, name="next")(x), layers.Dense(1, activation="sigmoid", name="end")(x)])


MODELS: dict[str, Callable[[Any], Any]] = {
    **{name: _application(name) for name in APPLICATIONS},
    "unet": unet, "encoder": encoder, "recurrent": recurrent,
}  # fmt: skip


def outcome(name: str, route: str) -> dict[str, Any]:
    """Error and seconds of one model by one route, in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        backends = ["jax"] if route.startswith("keras") else ["jax", "tensorflow"]
        for backend in backends:
            environment = {**os.environ, "KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
            command = [sys.executable, __file__, "--inside", name, route, backend, folder]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
            if done.returncode:
                return {"error": None, "said": done.stderr[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _inside(name: str, route: str, backend: str, folder: str) -> dict[str, Any]:
    import keras
    import numpy as np

    import neuronx_cc

    keras.utils.set_random_seed(1)
    path, saved = Path(folder) / "model.keras", Path(folder) / "saved"
    if backend == "jax":
        made = MODELS[name](keras)
        draw = np.random.default_rng(0)
        for weight in made.weights:
            # means and variances of normalisation, and biases, are zeros and ones in a new model
            if "bias" in weight.path or "moving" in weight.path or "beta" in weight.path or "gamma" in weight.path:
                weight.assign(np.asarray(weight) + draw.uniform(0, 0.1, weight.shape))
        made.save(path)
        if route.startswith("savedmodel"):
            return {}
    model = keras.saving.load_model(path, compile=False)
    draw = np.random.default_rng(7)
    inputs = [
        draw.integers(0, 50, (2, *each.shape[1:])).astype(np.int32)
        if "int" in str(each.dtype)
        else draw.uniform(-1, 1, (2, *each.shape[1:])).astype(np.float32)
        for each in model.inputs
    ]
    given = inputs[0] if len(inputs) == 1 else inputs
    wanted = [np.asarray(each) for each in _leaves(model(given, training=False))]
    if backend == "tensorflow":
        model.export(saved, verbose=False)
    started = time.monotonic()
    source = path if backend == "jax" else saved
    names = [each.name for each in model.inputs]
    inline = "parameters" not in route
    try:
        loaded = neuronx_cc.load_model(source, inline_weights_to_neff=inline)
    except neuronx_cc.CompileError as error:
        if error.code != "EMOD025":
            raise
        shapes = dict(zip(_named(error, names), (each.shape for each in inputs), strict=True))
        loaded = neuronx_cc.load_model(source, shapes=shapes, inline_weights_to_neff=inline)
    executable = neuronx_cc.compile(loaded, auto_cast="none")
    compiled = time.monotonic()
    result = executable.run({**dict(zip(loaded.inputs, inputs, strict=True)), **loaded.weights})
    assert bool(loaded.weights) is not inline
    by_name = dict(zip(loaded.outputs, result.outputs, strict=True))
    got = result.outputs if backend == "jax" else [by_name[key] for key in sorted(by_name, key=_place)]
    error = max(float(np.linalg.norm(g - w) / np.linalg.norm(w)) for g, w in zip(got, wanted, strict=True))
    return {
        "error": error,
        "parameters": int(sum(np.prod(each.shape) for each in model.weights)),
        "seconds": round(compiled - started, 1),
        "microseconds": round(result.report.time_ns / 1e3, 1),
    }


def _leaves(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


def _place(name: str) -> int:
    return int(name.rpartition("_")[2]) if name.rpartition("_")[2].isdigit() else 0


def _named(error: Any, names: list[str]) -> list[str]:
    """The inputs; a SavedModel of one names it as it likes."""
    return [error.message.split("'")[1]] if len(names) == 1 else names


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        print(json.dumps(_inside(*sys.argv[2:])))
    else:
        for each in sys.argv[1:] or MODELS:
            for way in ROUTES:
                print(f"{each:18} {way:36} {outcome(each, way)}", flush=True)
