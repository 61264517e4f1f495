"""Kinds of random programs for ``tests/soak.py``: how each is drawn by seed, shown and judged."""

from __future__ import annotations

import traceback

import soak_cases

from neuronx_cc.ir.errors import NeuronError

KINDS = (*soak_cases.KINDS,)


def text(kind: str, seed: int) -> str:
    """The program, to be read."""
    case = soak_cases.draw(kind, seed)
    shapes = ", ".join(f"{array.dtype}{list(array.shape)}" for array in case.inputs)
    return f"# {shapes}; {case.options}\n{case.source}\n"


def judge(kind: str, seed: int) -> tuple[str, str]:
    """Outcome (right, refused, wrong, full, failed, oracle, drawn) and what was raised."""
    try:
        case = soak_cases.draw(kind, seed)
    except Exception:
        return "drawn", traceback.format_exc()
    try:
        soak_cases.check(case)
    except NeuronError as error:
        if error.code == "EXSP001":
            return "full", traceback.format_exc()
        if error.code in ("ERUN911", "ERUN912", "ERUN913", "ERUN914") or error.code.startswith("I"):
            return "failed", traceback.format_exc()
        return "refused", str(error)
    except AssertionError as error:
        trace = traceback.extract_tb(error.__traceback__)
        inside = any("/codegen/" in frame.filename or "/passes/" in frame.filename for frame in trace)
        return ("failed", traceback.format_exc()) if inside else ("wrong", str(error))
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)
        ours = any("neuronx_cc" in f.filename or "/codegen/" in f.filename or "/passes/" in f.filename for f in trace)
        return ("failed" if ours else "oracle"), traceback.format_exc()
    return "right", ""
