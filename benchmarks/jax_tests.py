"""JAX's own tests on the JAX backend: a fixed sample of each file, a table of pass rates, and why the rest fails.

    python benchmarks/jax_tests.py PATH [--sample 40] [--cases 3] [--files lax_test,api_test] [--jobs 1] [--seconds 180]

PATH is a checkout of JAX, or its git directory, from which the tests of the tag of the installed version are taken. The
tests need absl-py, and with pytest-timeout a test that hangs ends after SECONDS. The sample depends on the names of
the tests alone. Auto-cast is off, there are 8 devices, and a CPU beside them where a test wants one.
"""

import argparse
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import jax

FILES = (
    *("lax_test", "lax_numpy_test", "lax_numpy_operators_test", "lax_numpy_reducers_test", "lax_numpy_indexing_test"),
    *("lax_numpy_einsum_test", "lax_autodiff_test", "lax_vmap_test", "lax_control_flow_test", "random_test"),
    *("nn_test", "fft_test", "api_test", "jax_jit_test", "array_test", "memories_test", "multi_device_test"),
    *("pmap_test", "pjit_test", "shard_map_test", "aot_test", "export_test", "debugging_primitives_test"),
    *("checkify_test", "custom_api_test", "jaxpr_effects_test", "lax_numpy_ufuncs_test", "lax_numpy_vectorize_test"),
    *("lax_numpy_setops_test", "lax_vmap_op_test", "lax_scipy_test", "lax_scipy_special_functions_test"),
    *("lax_scipy_sparse_test", "random_lax_test", "scipy_stats_test", "scipy_ndimage_test", "scipy_signal_test"),
    *("scipy_interpolate_test", "scipy_optimize_test", "scipy_spatial_test", "scipy_fft_test", "linalg_test"),
    *("svd_test", "qdwh_test", "image_test", "ode_test", "polynomial_test", "sparse_test", "sparse_bcoo_bcsr_test"),
    *("jet_test", "stax_test", "optimizers_test", "ann_test", "dtypes_test", "custom_linear_solve_test"),
    "array_interoperability_test",
)
ENVIRONMENT = {
    "JAX_PLATFORMS": "neuron,cpu",
    "NEURON_NUM_DEVICES": "8",
    "NEURON_CC_FLAGS": "--auto-cast=none --no_cache",
    "JAX_NUM_GENERATED_CASES": "3",
    "JAX_SKIP_SLOW_TESTS": "1",
}
CLASSES = (
    (re.compile(r"\[NCC_(\w+)\] (?:\(%[^)]*\) )?(operator [\w-]+|[^\n]{0,60})"), "{0}: {1}"),
    (re.compile(r"No MLIR lowering|MLIR translation rule for primitive '(\w+)'"), "JAX has no lowering: {0}"),
    (re.compile(r"Mismatched elements|Not equal to tolerance|Arrays are not"), "values differ"),
    (re.compile(r"Timeout"), "takes too long"),
    (re.compile(r"worker '\w+' crashed"), "the process died"),
    (re.compile(r"(\w+Error|\w+Exception)\b[:(]? ?([^\n]{0,60})"), "{0}: {1}"),
)


@dataclass
class Result:
    """Counts of one file."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


def unpack(source: Path, target: Path) -> None:
    """The tests of the installed version from a checkout or git directory."""
    command = ["git", "-C", str(source), "archive", f"jax-v{jax.__version__}", "tests", "conftest.py", "pyproject.toml"]
    # a partial copy may lack unrelated files: git complains after it has written the tests
    archive = subprocess.run(command, capture_output=True).stdout
    if not archive:
        sys.exit(f"{source} is no git directory with the tag jax-v{jax.__version__}")
    with tarfile.open(fileobj=BytesIO(archive), mode="r|") as members:
        for member in members:
            members.extract(member, target, filter="data")


def sample(file: str, folder: Path, count: int, environment: dict[str, str]) -> list[str]:
    """``count`` tests of a file, by a hash of their names."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", f"tests/{file}.py"]
    listed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    names = [line for line in listed.stdout.splitlines() if "::" in line]
    if not names:
        print(f"{file}: no tests were collected: {(listed.stdout + listed.stderr)[-300:]}", file=sys.stderr)
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())
    return names[:count]


def run(file: str, names: list[str], folder: Path, jobs: int, seconds: int, environment: dict[str, str]) -> Result:
    """Run the tests in processes that are replaced when they die."""
    report = folder / f"{file}.xml"
    (folder / "names.txt").write_text("\n".join(names))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", f"--junitxml={report}"]
    command += ["-n", str(jobs), "--max-worker-restart=20", "@names.txt"]
    if importlib.util.find_spec("pytest_timeout"):
        command += [f"--timeout={seconds}", "--timeout-method=thread"]
    subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    result = Result()
    if not report.exists():
        result.failed, result.reasons = len(names), Counter({"pytest itself failed": len(names)})
        return result
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        result.seconds += float(case.get("time", 0))
        problem = next((each for each in case if each.tag in ("failure", "error")), None)
        if problem is not None:
            reason = classify(f"{problem.get('message', '')}\n{problem.text or ''}")
            result.failed += 1
            result.reasons[reason] += 1
            result.examples.setdefault(reason, str(case.get("name")))
        elif any(each.tag == "skipped" for each in case):
            result.skipped += 1
        else:
            result.passed += 1
    return result


def classify(text: str) -> str:
    """A failure in a few words."""
    for pattern, form in CLASSES:
        match = pattern.search(text)
        if match:
            return form.format(*(group or "" for group in match.groups())).strip(" :")
    return "other"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--sample", type=int, default=40, help="tests of each file")
    parser.add_argument("--files", default=",".join(FILES))
    parser.add_argument("--cases", default=ENVIRONMENT["JAX_NUM_GENERATED_CASES"], help="of a test; others draw others")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=180, help="for one test")
    arguments = parser.parse_args()
    environment = os.environ | ENVIRONMENT | {"JAX_NUM_GENERATED_CASES": arguments.cases}
    total, reasons, examples = Result(), Counter[str](), dict[str, str]()
    print(f"JAX {jax.__version__}, {arguments.sample} tests of each file\n")
    print(f"{'file':<28} {'passed':>6} {'failed':>6} {'skipped':>7} {'rate':>7} {'s':>6}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        unpack(arguments.path, folder)
        for file in arguments.files.split(","):
            names = sample(file, folder, arguments.sample, environment)
            result = run(file, names, folder, arguments.jobs, arguments.seconds, environment) if names else Result()
            show(file, result)
            total.passed += result.passed
            total.failed += result.failed
            total.skipped += result.skipped
            total.seconds += result.seconds
            reasons += result.reasons
            examples |= {reason: f"{file}::{name}" for reason, name in result.examples.items()}
    show("all", total)
    print("\nwhy tests fail")
    for reason, count in reasons.most_common():
        print(f"{count:>5}  {reason}  ({examples.get(reason, '')})")


def show(name: str, result: Result) -> None:
    """One line of the table."""
    ran = result.passed + result.failed
    rate = f"{100 * result.passed / ran:.1f} %" if ran else "-"
    counts = f"{result.passed:>6} {result.failed:>6} {result.skipped:>7}"
    print(f"{name:<28} {counts} {rate:>7} {result.seconds:>6.0f}", flush=True)


if __name__ == "__main__":
    main()
