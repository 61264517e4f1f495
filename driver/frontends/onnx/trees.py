"""What of ``ai.onnx.ml`` works on numbers."""

from collections.abc import Callable, Sequence

import jax
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


_LEAST, _MOST = 2, 3
"""Aggregate functions; 0 is the mean and 1 the sum."""
_COMPARISONS = (jnp.less_equal, jnp.less, jnp.greater_equal, jnp.greater, jnp.equal, jnp.not_equal)
_MEMBER = 6
_TRANSFORMS: tuple[Callable[[Value], Value], ...] = (
    lambda scores: scores,
    lambda scores: jax.nn.softmax(scores, -1),
    jax.nn.sigmoid,
)


@op("TreeEnsemble", domain=_DOMAIN, note="without SOFTMAX_ZERO and PROBIT")
def tree_ensemble(
    x: Value,
    *,
    leaf_targetids: Sequence[int],
    leaf_weights: Value,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_modes: Value,
    nodes_splits: Value,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    tree_roots: Sequence[int],
    aggregate_function: int = 1,
    membership_values: Value = None,
    n_targets: int = 1,
    nodes_hitrates: Value = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    post_transform: int = 0,
) -> Value:
    """Rows of ``x`` go down all trees at once, as far as the deepest goes; leaves are numbered after the nodes."""
    del nodes_hitrates
    if not 0 <= post_transform < len(_TRANSFORMS) or not 0 <= aggregate_function <= _MOST:
        raise refusal(f"post_transform {post_transform} of aggregate_function {aggregate_function} is not supported")
    count, splits = len(nodes_featureids), np.asarray(nodes_splits)
    modes, features = np.asarray(nodes_modes, np.int64), np.asarray(nodes_featureids, np.int64)
    targets = [
        np.asarray(ids, np.int64) + np.where(np.asarray(leaves, np.int64) != 0, count, 0)
        for ids, leaves in ((nodes_falsenodeids, nodes_falseleafs), (nodes_truenodeids, nodes_trueleafs))
    ]
    roots = np.asarray(tree_roots, np.int64)
    _check_tree(targets, roots, modes, features, splits, count, np.size(leaf_weights), x.shape[-1])
    sets = _sets(modes, membership_values, splits)
    tracks = np.zeros(count, bool)
    tracks[: len(nodes_missing_value_tracks_true)] = np.asarray(nodes_missing_value_tracks_true, bool)
    at = jnp.broadcast_to(jnp.asarray(roots), (x.shape[0], len(roots)))
    for _ in range(_depth(targets, roots, count)):
        node = jnp.minimum(at, count - 1)
        value = jnp.take_along_axis(jnp.asarray(x), jnp.asarray(features)[node], 1)
        goes = jnp.isnan(value) & jnp.asarray(tracks)[node]
        for mode in np.unique(modes):
            if mode == _MEMBER:
                holds = jnp.any(value[..., None] == jnp.asarray(sets)[node], -1)
            else:
                holds = _COMPARISONS[mode](value, jnp.asarray(splits)[node])
            goes = goes | (holds & (jnp.asarray(modes)[node] == mode))
        following = jnp.where(goes, jnp.asarray(targets[1])[node], jnp.asarray(targets[0])[node])
        at = jnp.where(at < count, following, at)
    leaf = at - count
    weight = jnp.asarray(leaf_weights)[leaf][..., None]
    own = jnp.asarray(np.asarray(leaf_targetids, np.int64))[leaf][..., None] == np.arange(n_targets)
    if aggregate_function in (_LEAST, _MOST):
        reduce, beyond = (jnp.min, np.inf) if aggregate_function == _LEAST else (jnp.max, -np.inf)
        scores = reduce(jnp.where(own, weight, np.asarray(beyond, weight.dtype)), 1)
        scores = jnp.where(jnp.any(own, 1), scores, np.zeros((), weight.dtype))
    else:
        scores = jnp.sum(jnp.where(own, weight, np.zeros((), weight.dtype)), 1)
        scores = scores if aggregate_function else scores / len(roots)
    return _TRANSFORMS[post_transform](scores)


def _check_tree(
    targets: Sequence[Value], roots: Value, modes: Value, features: Value, splits: Value, count: int, leaves: int,
    width: int,
) -> None:  # fmt: skip
    """Raises ValueError for lists that do not describe trees."""
    if not count or not roots.size or any(len(each) != count for each in (*targets, modes, splits)):
        raise ValueError("the lists of nodes have different lengths, or none")
    for each, limit in (
        (roots, count),
        (features, width),
        (modes, _MEMBER + 1),
        *((t, count + leaves) for t in targets),
    ):
        if each.min() < 0 or each.max() >= limit:
            raise ValueError(f"a number of {limit} is out of range")


def _depth(targets: Sequence[Value], roots: Value, count: int) -> int:
    """How many steps lead from the roots to leaves alone. Raises ValueError for a circle."""
    level, depth = np.unique(roots), 0
    while level.size:
        depth += 1
        if depth > count:
            raise ValueError("a tree leads back to itself")
        reached = np.unique(np.concatenate([each[level] for each in targets]))
        level = reached[reached < count]
    return depth


def _sets(modes: Value, members: Value, splits: Value) -> Value:
    """The values of each node that asks for membership, filled up with NaN, which equals nothing."""
    if not (modes == _MEMBER).any():
        return splits[:, None]
    listed = np.asarray(() if members is None else members, splits.dtype)
    parts = [part[~np.isnan(part)] for part in np.split(listed, np.flatnonzero(np.isnan(listed)))]
    sets = np.full((len(modes), max(map(len, parts))), np.nan, splits.dtype)
    for node, part in zip(np.flatnonzero(modes == _MEMBER), parts, strict=False):
        sets[node, : len(part)] = part
    return sets
