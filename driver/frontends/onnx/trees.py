"""What of ``ai.onnx.ml`` works on numbers."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from neuronx_cc.driver.frontends.onnx.table import Value, op, refusal

_DOMAIN = "ai.onnx.ml"


@op("ArrayFeatureExtractor", domain=_DOMAIN)
def array_feature_extractor(x: Value, y: Value) -> Value:
    return jnp.take(x, jnp.asarray(y).reshape(-1), -1)


@op("Binarizer", domain=_DOMAIN)
def binarizer(x: Value, *, threshold: float = 0.0) -> Value:
    return (x > np.asarray(threshold, x.dtype)).astype(x.dtype)


@op("Scaler", domain=_DOMAIN)
def scaler(x: Value, *, offset: Sequence[float], scale: Sequence[float]) -> Value:
    return (x.astype(np.float32) - np.asarray(offset, np.float32)) * np.asarray(scale, np.float32)


@op("LabelEncoder", domain=_DOMAIN, note="numbers to numbers")
def label_encoder(
    x: Value,
    *,
    keys_tensor: Value = None,
    values_tensor: Value = None,
    default_tensor: Value = None,
    keys_int64s: Sequence[int] = (),
    values_int64s: Sequence[int] = (),
    keys_floats: Sequence[float] = (),
    values_floats: Sequence[float] = (),
    default_int64: int = -1,
    default_float: float = -0.0,
    default_string: str = "",
) -> Value:
    keys = keys_tensor
    if keys is None:
        keys = np.asarray(keys_int64s, np.int64) if keys_int64s else np.asarray(keys_floats, np.float32)
    values, default = values_tensor, default_tensor
    if values is None:
        of_integers = bool(values_int64s)
        values = np.asarray(values_int64s, np.int64) if of_integers else np.asarray(values_floats, np.float32)
        default = np.asarray(default_int64 if of_integers else default_float, values.dtype)
    if not keys.size or keys.size != values.size:
        raise refusal("only numbers are encoded as numbers", code="ESPP004")
    same = x[..., None] == keys
    if np.dtype(keys.dtype).kind == "f":
        same = same | (jnp.isnan(x)[..., None] & np.isnan(keys))
    found = jnp.asarray(values)[jnp.argmax(same, -1)]
    return jnp.where(jnp.any(same, -1), found, default.reshape(()))
